(in-package #:hunchentoot-recycling-taskmaster)

;;;; Static files, which the kernel sends from its cache to the socket.
;;;;
;;;; Programs, folder dispatchers and acceptors with a document root call the function
;;;; HUNCHENTOOT:HANDLE-STATIC-FILE, which copies the file to a stream.  We wrap it: where our own
;;;; code has read the request and would write the reply, a readable regular file is sent here, and
;;;; what is none is not found.

(defun serve-file (hunchentoots pathname &rest arguments)
  "Replies with the file PATHNAME, or leaves the handler with Hunchentoot's page of another status.
ARGUMENTS are a type of content, or NIL for that of the name, and, since Hunchentoot 1.3, a function
that is called before the file is sent.  Calls HUNCHENTOOTS, Hunchentoot's function, where our own
code cannot send the file."
  (when (or (null (current-head)) *headers-sent* (not (readiness-supported-p)))
    (return-from serve-file (apply hunchentoots pathname arguments)))
  (destructuring-bind (&optional type callback) arguments
    (let* ((tag (hunchentoot:header-out :etag))
           (siblings-p (and (precompressed-files-p hunchentoot:*acceptor*)
                            (null tag)  ; the program's, for the file itself
                            (null (hunchentoot:header-out :content-encoding))))
           (type (or type
                     (hunchentoot:mime-type pathname) ; as programs expect
                     (media-type-of-file pathname)))
           (type-header (if type
                            (content-kind-header
                             (content-kind type (hunchentoot:reply-external-format*)))
                            "application/octet-stream")))
      (flet ((send (status parts headers)
               (setf (hunchentoot:content-type*) type-header
                     (hunchentoot:return-code*) status)
               (loop for (name value) on headers by #'cddr
                     do (setf (hunchentoot:header-out name) value))
               (when siblings-p
                 (push '(:vary . "Accept-Encoding")
                       (slot-value hunchentoot:*reply* 'hunchentoot:headers-out)))
               (when (= hunchentoot:+http-requested-range-not-satisfiable+ status)
                 ;; As Hunchentoot tells it, and its own tests want it.
                 (let ((size (parse-integer (getf headers :content-range)
                                            :start (length "bytes */"))))
                   (setf (hunchentoot:header-out :content-range)
                         (format nil "bytes 0-~D/~D" (1- size) size))))
               (unless parts
                 (hunchentoot:abort-request-handler))
               (when callback
                 (funcall callback pathname type))
               (begin-limited-reply *exchange*) ; the handler may go on
               (send-reply-with hunchentoot:*acceptor* hunchentoot:*request* status nil
                                (parts-size parts)
                                (lambda (reply)
                                  (append-parts reply parts))
                                t)
               (when (eq (hunchentoot:request-method*) :head)
                 (throw 'request-processed nil))
               t))
        (unless (answer-with-file pathname *exchange* (hunchentoot:return-code*) siblings-p
                                  tag type-header #'send)
          (setf (hunchentoot:return-code*) hunchentoot:+http-not-found+)
          (hunchentoot:abort-request-handler))))))
