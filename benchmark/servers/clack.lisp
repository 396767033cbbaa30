;;;; The application for Clack's handlers, ours, Woo and Hunchentoot's.

(in-package #:work)

(defun query-value (environment name)
  "The parameter NAME of the query, a string or NIL."
  (let* ((query (getf environment :query-string))
         (name (concatenate 'string name "="))
         (start (and query (search name query))))
    (and start
         (subseq query (+ start (length name)) (position #\& query :start start)))))

(defun respond (type text)
  "A response with TEXT as content of TYPE.  Without a length Clack's Hunchentoot sends it in
chunks, for the last of which TCP has clients wait."
  (let ((length (length (sb-ext:string-to-octets text :external-format :utf-8))))
    (list 200 (list :content-type type :content-length length) (list text))))

(defun content (environment)
  "The content of a POST, a string; else NIL."
  (when (eq (getf environment :request-method) :post)
    (let* ((octets (make-array 64 :element-type '(unsigned-byte 8)))
           (end (read-sequence octets (getf environment :raw-body))))
      (map 'string #'code-char (subseq octets 0 end)))))

(defvar *run-after* nil
  "A function of seconds and of what is to be called then, where the handler has one.")

(defun later (environment)
  "Responds with the number n of the query after ms milliseconds, by a timer."
  (lambda (responder)
    (funcall *run-after* (/ (integer-in (query-value environment "ms")) 1000)
             (lambda ()
               (funcall responder (respond "text/plain" (query-value environment "n")))))))

(defun application (environment)
  "The application."
  (let ((path (getf environment :path-info))
        ;; True in Woo's workers, where Postmodern would print names as arrays.
        (*print-readably* nil))
    (flet ((value (name) (query-value environment name))
           (path-p (prefix) (uiop:string-prefix-p prefix path)))
      (cond ((path-p "/hello") (respond "text/plain" "Hey!"))
            ((path-p "/wait") (wait) (respond "text/plain" "Hey!"))
            ((path-p "/mix")
             (respond "text/plain" (sum (value "a") (value "b") (content environment))))
            ((path-p "/json/")
             (respond "application/json" (items-json (integer-in (subseq path (length "/json/")) 1)
                                                     (integer-in (value "m") 1))))
            ((path-p "/row")
             (respond "application/json" (row-json (integer-in (value "id") 1))))
            ((path-p "/fortunes") (respond "text/html; charset=utf-8" (fortunes-html)))
            ((path-p "/upload")
             (respond "text/plain" (count-octets (getf environment :raw-body))))
            ((path-p "/file") (list 200 '(:content-type "application/octet-stream") (file)))
            ((path-p "/later") (later environment))
            (t '(404 () ("")))))))

(defun serve (port certificate key run &rest arguments &key run-after &allow-other-keys)
  "Calls RUN, a handler's function, to serve on PORT with ARGUMENTS; over TLS with the files
CERTIFICATE and KEY, unless they are NIL.  RUN-AFTER as *RUN-AFTER*."
  (setf *run-after* run-after)
  (apply run #'application :port port :address "127.0.0.1" :debug nil :allow-other-keys t
                           (append (and certificate
                                        (list :ssl t :ssl-cert-file certificate :ssl-key-file key))
                                   arguments))
  (loop (sleep 3600)))
