;;;; The application that test/clack/rivals.lisp has served by us and by others.  It is loaded in their processes,
;;;; too, where nothing of the tests is.

(defpackage #:recycling-rival-application
  (:use #:common-lisp)
  (:export #:app))

(in-package #:recycling-rival-application)

(defparameter *file* (or *load-truename* *compile-file-truename*))

(defun header-lines (headers)
  (let ((lines '()))
    (maphash (lambda (name value)
               (push (format nil "header ~A: ~A" name value) lines))
             headers)
    (sort lines #'string<)))

(defun environment-text (environment)
  "What ENVIRONMENT has, a line for each."
  (format nil "~{~A~%~}"
          (append (loop for key in '(:request-method :script-name :path-info :query-string :server-name :server-port
                                     :server-protocol :request-uri :url-scheme :remote-addr :content-type
                                     :content-length :clack.streaming)
                        collect (format nil "~(~A~): ~S" key (getf environment key)))
                  (header-lines (getf environment :headers)))))

(defun body-octets (environment)
  (let ((body (getf environment :raw-body)))
    (coerce (loop for octet = (and body (read-byte body nil))
                  while octet collect octet)
            '(vector (unsigned-byte 8)))))

(defun stream-response (responder)
  (let ((writer (funcall responder '(200 (:content-type "text/plain")))))
    (funcall writer "one")
    (funcall writer (coerce '(116 119 111) '(vector (unsigned-byte 8))))
    (funcall writer "-three-" :start 1 :end 6)
    (funcall writer nil :close t)))

(defparameter *responses*
  `(("/list" . (200 (:content-type "text/plain; charset=utf-8") ("Hello" "World")))
    ("/utf-8" . (200 (:content-type "text/plain; charset=utf-8") (,(string (code-char #x3042)))))
    ("/nil" . (200 (:content-type "text/plain") nil))
    ("/headers" . (200 (:content-type "text/plain" :x-foo "foo" :set-cookie "a=1" :set-cookie "b=2") ("hi")))
    ("/octets" . (200 (:content-type "application/octet-stream")
                  ,(coerce '(1 2 3) '(simple-array (unsigned-byte 8) (*)))))
    ("/file" . (200 (:content-type "text/plain") ,*file*))
    ("/304" . (304 nil nil))
    ("/404" . (404 (:content-type "text/plain") ("Not Found")))
    ("/stream" . stream-response)))

(defun app (environment)
  (let* ((path (getf environment :path-info))
         (response (cdr (assoc path *responses* :test #'equal))))
    (cond ((equal path "/error") (error "On purpose."))
          ((equal path "/echo")
           (list 200 '(:content-type "application/octet-stream")
                 (coerce (body-octets environment) '(simple-array (unsigned-byte 8) (*)))))
          ((equal path "/delayed")
           (lambda (responder) (funcall responder '(200 (:content-type "text/plain") ("later")))))
          ((symbolp response)
           (if response
               (symbol-function response)
               (list 200 '(:content-type "text/plain; charset=utf-8") (list (environment-text environment)))))
          (t response))))
