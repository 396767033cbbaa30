(in-package #:hunchentoot-recycling-taskmaster)

;;;; Files by the shortest way: from the system's cache to the socket.
;;;;
;;;; HUNCHENTOOT:HANDLE-STATIC-FILE is a function that programs, folder dispatchers and acceptors
;;;; with a document root call.  It copies the file to a stream, and no stream could know that
;;;; what it is given is a file.  So the function is wrapped: where our own code has read the
;;;; request and would write the reply, a regular file that can be opened is sent here; whatever
;;;; else, and everybody else, goes to Hunchentoot's function.

;;; Who sends it

(defun serve-file (hunchentoots pathname &rest arguments)
  "Replies with the file PATHNAME, as HUNCHENTOOTS, a function, does with ARGUMENTS; calls that
where there is no better way."
  (unless (and (ours-to-send-p)
               (apply #'send-regular-file pathname arguments))
    (apply hunchentoots pathname arguments)))

(wrap-function 'hunchentoot:handle-static-file 'serve-file)

(defun send-regular-file (pathname &optional content-type callback)
  "Replies with the file PATHNAME if that is a regular file that can be read; else NIL.  CALLBACK, a
function, is called when all is decided, as Hunchentoot does since 1.3."
  (call-with-file pathname (current-http-connection)
                  (lambda (part version)
                    (let ((content-type (or content-type
                                            (hunchentoot:mime-type pathname) ; knows no newer ones
                                            (media-type-of-file pathname))))
                      (settle-file-headers content-type version)
                      (settle-conditions version)
                      (when callback
                        (funcall callback pathname content-type))
                      (send-version part version)))))

(defun settle-file-headers (content-type version)
  "Sets what the reply says of the VERSION of a file with CONTENT-TYPE, and its entity tag unless
the program has."
  (setf (hunchentoot:content-type*)
        (if content-type
            (content-kind-header
             (content-kind content-type (hunchentoot:reply-external-format*)))
            "application/octet-stream")
        (hunchentoot:header-out :last-modified) (version-date version)
        (hunchentoot:header-out :accept-ranges) "bytes")
  (unless (hunchentoot:header-out :etag)
    (setf (hunchentoot:header-out :etag) (version-tag version))))

(defun settle-conditions (version)
  "Leaves the handler where the client has the VERSION of a file already, or wants another; but
conditions are not for the page of an error (RFC 9110, section 13.2.1)."
  (when (eql (hunchentoot:return-code*) hunchentoot:+http-ok+)
    (case (precondition (current-head) (hunchentoot:header-out :etag) (version-date version))
      (:not-modified (leave-with hunchentoot:+http-not-modified+))
      (:failed (leave-with hunchentoot:+http-precondition-failed+)))))

(defun leave-with (status &optional content)
  "Leaves the handler; the reply has STATUS and CONTENT, or what Hunchentoot says to that."
  (setf (hunchentoot:return-code*) status)
  (hunchentoot:abort-request-handler content))

(defun send-version (part version)
  "Sends what the client wants of PART, the VERSION of a file; or leaves the handler with what
Hunchentoot answers to a range beyond it, but for the header."
  (multiple-value-bind (status range first last)
      (settle-range part version (current-head)
                    (hunchentoot:return-code*) (hunchentoot:header-out :etag))
    (when range
      (setf (hunchentoot:header-out :content-range) range
            (hunchentoot:return-code*) status)
      (when (= hunchentoot:+http-requested-range-not-satisfiable+ status)
        (leave-with status (format nil "invalid request range (requested ~D-~D, accepted 0-~D)"
                                   first last (1- (version-size version)))))))
  (send-reply-with hunchentoot:*acceptor* hunchentoot:*request* (current-head)
                   (hunchentoot:return-code*) nil (- (part-end part) (part-position part))
                   (lambda (reply)
                     (append-file reply part)))
  (when (eq (hunchentoot:request-method*) :head)
    (end-of-request)))
