(in-package #:hunchentoot-recycling-taskmaster)

;;;; Files by the shortest way: from the system's cache to the socket.
;;;;
;;;; HUNCHENTOOT:HANDLE-STATIC-FILE is a function that programs, folder dispatchers and acceptors
;;;; with a document root call.  It copies the file to a stream, and no stream could know that
;;;; what it is given is a file.  So the function is wrapped: where our own code has read the
;;;; request and would write the reply, a regular file that can be opened is sent here; whatever
;;;; else, and everybody else, goes to Hunchentoot's function.

;;; Who sends it

(defun ours-to-send-p ()
  "True when the current request is one that our own code read, and its reply is still to be made."
  (and (current-head)
       (not (headers-sent-p))
       (null hunchentoot:*header-stream*)))

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
  (let* ((known (known-file pathname))
         (name (known-file-name known)))
    (with-acquired (part (and name (open-file-part name)) (close-unless-left part (current-link)))
      (let ((version (and part (version-of known (file-part-file part))))
            (content-type (or content-type
                              (hunchentoot:mime-type pathname) ; which knows no newer ones
                              (media-type-of-file pathname))))
        (when version
          (settle-file-headers content-type (version-date version))
          (settle-conditions version)
          (when callback
            (funcall callback pathname content-type))
          (settle-range part version)
          (send-part-of-file part)
          t)))))

;;; The head of the reply

(defun settle-file-headers (content-type date)
  (setf (hunchentoot:content-type*)
        (if content-type
            (content-kind-header
             (content-kind content-type (hunchentoot:reply-external-format*)))
            "application/octet-stream")
        (hunchentoot:header-out :last-modified) date
        (hunchentoot:header-out :accept-ranges) "bytes"))

(defun conditional-p ()
  "RFC 9110, section 13.2.1: conditions are for what would be a 200 without them, not for the page of
an error."
  (eql (hunchentoot:return-code*) hunchentoot:+http-ok+))

(defun settle-conditions (version)
  "Sets the entity tag of the VERSION of a file, unless the program has, and leaves the handler where
the client has that already, or wants another."
  (unless (hunchentoot:header-out :etag)
    (setf (hunchentoot:header-out :etag) (version-tag version)))
  (when (conditional-p)
    (multiple-value-bind (decision date-p)
        (precondition (current-head) (hunchentoot:header-out :etag))
      (case decision
        (:proceed (when (and date-p (hunchentoot:header-in* :if-modified-since))
                    (hunchentoot:handle-if-modified-since (version-seconds version))))
        (:not-modified (leave-with hunchentoot:+http-not-modified+))
        (:failed (leave-with hunchentoot:+http-precondition-failed+))))))

(defun leave-with (status)
  "Leaves the handler; the reply has STATUS and what Hunchentoot says to that."
  (setf (hunchentoot:return-code*) status)
  (hunchentoot:abort-request-handler))

(defun wanted-range (version)
  "The first and the last octet of VERSION that the client asks for; NIL when that is all."
  (and (conditional-p)
       (range-of-file (current-head) (hunchentoot:header-out :etag) version)))

(defun settle-range (part version)
  "Makes PART what is to be sent of VERSION."
  (let ((size (version-size version)))
    (multiple-value-bind (first last) (wanted-range version)
      (cond ((null first)
             (setf (part-end part) size))
            ((<= first last (1- size))
             (setf (hunchentoot:return-code*) hunchentoot:+http-partial-content+
                   (hunchentoot:header-out :content-range)
                   (format nil "bytes ~D-~D/~D" first last size)
                   (part-position part) first
                   (part-end part) (1+ last)))
            (t
             (refuse-range first last size))))))

(defun refuse-range (first last size)
  "Leaves the handler with what Hunchentoot answers to a range beyond a file of SIZE octets, but for
the header (RFC 9110, section 14.4)."
  (setf (hunchentoot:return-code*) hunchentoot:+http-requested-range-not-satisfiable+
        (hunchentoot:header-out :content-range) (format nil "bytes */~D" size))
  (hunchentoot:abort-request-handler
   (format nil "invalid request range (requested ~D-~D, accepted 0-~D)" first last (1- size))))

;;; The reply

(defun send-part-of-file (part)
  "Sends the reply with PART as its content."
  (send-reply-with hunchentoot:*acceptor* hunchentoot:*request* (current-head) (hunchentoot:return-code*)
                   nil (- (part-end part) (part-position part))
                   (lambda (reply)
                     (append-file reply part)))
  (when (eq (hunchentoot:request-method*) :head)
    (end-of-request)))
