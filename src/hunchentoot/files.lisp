(in-package #:hunchentoot-recycling-taskmaster)

;;;; Static files, which the kernel sends from its cache to the socket.
;;;;
;;;; Programs, folder dispatchers and acceptors with a document root call the function
;;;; HUNCHENTOOT:HANDLE-STATIC-FILE, which copies the file to a stream.  We wrap it: where our own
;;;; code has read the request and would write the reply, a readable regular file is sent here.
;;;; What is none is not found, and all other files go to Hunchentoot's function.

(defun serve-file (hunchentoots pathname &rest arguments)
  "Replies with the file PATHNAME.  Calls HUNCHENTOOTS, Hunchentoot's function, with ARGUMENTS where
our own code cannot send it, except for what is no regular file: it would wait for a pipe's writer."
  (cond ((and (current-head) (not *headers-sent*) (apply #'send-best-file pathname arguments)))
        ((and (readiness-supported-p) (not (time-of-file pathname)))
         (leave-with hunchentoot:+http-not-found+))
        (t
         (apply hunchentoots pathname arguments))))

(defun send-best-file (pathname &optional content-type callback)
  "Replies with the file PATHNAME, or a compressed sibling of it; NIL where it is no readable
regular file.  CALLBACK, a function, is called before the reply is sent, as Hunchentoot does since
1.3."
  (multiple-value-bind (sibling coding)
      (and (precompressed-files-p hunchentoot:*acceptor*)
           (not (hunchentoot:header-out :content-encoding))
           (not (hunchentoot:header-out :etag)) ; the program's, for the file itself
           (coded-sibling pathname (current-head)))
    (flet ((send-file (file coding)
             (call-with-file file
                             (lambda (part version)
                               (send-version pathname part version coding content-type callback)))))
      (or (and sibling (send-file sibling coding))
          (send-file pathname nil)))))

(defun leave-with (status &optional content)
  "Leaves the handler.  The reply has STATUS and CONTENT, or Hunchentoot's page of STATUS."
  (setf (hunchentoot:return-code*) status)
  (hunchentoot:abort-request-handler content))

(defun settle-cache-control (pathname)
  "Sets the Cache-Control of the reply, which has the file PATHNAME or confirms it, unless the
program has set one."
  (let ((text (and (null (hunchentoot:header-out :cache-control))
                   (cache-control-of (file-cache-control hunchentoot:*acceptor*) pathname))))
    (when text
      (setf (hunchentoot:header-out :cache-control) text))))

(defun send-version (pathname part version coding content-type callback)
  "Sends the octets of PART, the VERSION of the file PATHNAME with CODING or NIL, for which the
client has asked; or leaves the handler with another answer."
  (let ((head (current-head))
        (content-type (or content-type
                          (hunchentoot:mime-type pathname) ; as programs expect
                          (media-type-of-file pathname))))
    (setf (hunchentoot:content-type*)
          (if content-type
              (content-kind-header
               (content-kind content-type (hunchentoot:reply-external-format*)))
              "application/octet-stream")
          (hunchentoot:header-out :accept-ranges) "bytes")
    (when (version-date version)
      (setf (hunchentoot:header-out :last-modified) (version-date version)))
    (unless (or (null (version-tag version)) (hunchentoot:header-out :etag)) ; the program's
      (setf (hunchentoot:header-out :etag) (coded-tag (version-tag version) coding)))
    (when (precompressed-files-p hunchentoot:*acceptor*) ; the client's Accept-Encoding decides
      (setf (hunchentoot:header-out :vary) (vary-by-encoding (hunchentoot:header-out :vary))))
    ;; The conditions of a request do not apply to an error page (RFC 9110, section 13.2.1).
    (when (eql (hunchentoot:return-code*) hunchentoot:+http-ok+)
      (case (precondition head (hunchentoot:header-out :etag) (version-date version))
        (:not-modified
         (settle-cache-control pathname)
         (leave-with hunchentoot:+http-not-modified+))
        (:failed
         (leave-with hunchentoot:+http-precondition-failed+))))
    (when callback
      (funcall callback pathname content-type))
    (multiple-value-bind (status range)
        (settle-range part version head (hunchentoot:return-code*)
                      (hunchentoot:header-out :etag) (hunchentoot:header-out :vary))
      (when range
        (setf (hunchentoot:header-out :content-range) range
              (hunchentoot:return-code*) status)
        (when (= hunchentoot:+http-requested-range-not-satisfiable+ status)
          ;; As Hunchentoot tells it, and its own tests want it.
          (setf (hunchentoot:header-out :content-range)
                (format nil "bytes 0-~D/~D" (1- (version-size version)) (version-size version)))
          (leave-with status))))
    (when coding
      (setf (hunchentoot:header-out :content-encoding) (coding-name coding)))
    (when (member (hunchentoot:return-code*) '(200 206))
      (settle-cache-control pathname))
    (begin-limited-reply *exchange*)    ; the handler may go on
    (send-reply-with hunchentoot:*acceptor* hunchentoot:*request*
                     (hunchentoot:return-code*) nil (- (part-end part) (part-position part))
                     (lambda (reply)
                       (append-file reply part)))
    (when (eq (hunchentoot:request-method*) :head)
      (throw 'request-processed nil))))
