;;;; The application that the differential test has served by us and by others.  It is loaded in
;;;; their processes, too, where nothing of the tests is.

(defpackage #:recycling-rival-application
  (:use #:common-lisp)
  (:export #:app))

(in-package #:recycling-rival-application)

(defparameter *file* (or *load-truename* *compile-file-truename*))

(defun as-octets (list)
  (coerce list '(simple-array (unsigned-byte 8) (*))))

(defun octets (&rest octets)
  (as-octets octets))

;;; What the application is told

(defun header-lines (headers)
  (let ((lines '()))
    (maphash (lambda (name value)
               (push (format nil "header ~A: ~S" name value) lines))
             headers)
    (sort lines #'string<)))

(defun kind-of-port (port)
  (typecase port
    ((integer 1 65535) "a port")
    (t port)))

(defun environment-text (environment)
  "What ENVIRONMENT has, a line for each."
  (format nil "~{~A~%~}"
          (append (loop for key in '(:request-method :script-name :path-info :query-string
                                     :server-name :server-port
                                     :server-protocol :request-uri :url-scheme :remote-addr
                                     :content-type
                                     :content-length :clack.streaming)
                        collect (format nil "~(~A~): ~S" key (getf environment key)))
                  (list (format nil "remote-port: ~A"
                                (kind-of-port (getf environment :remote-port)))
                        (format nil "test of headers: ~A"
                                (hash-table-test (getf environment :headers))))
                  (header-lines (getf environment :headers)))))

(defun content-of (environment)
  (let ((body (getf environment :raw-body)))
    (as-octets (loop for octet = (and body (read-byte body nil))
                     while octet collect octet))))

(defun environment-response (environment)
  (list 200 '(:content-type "text/plain; charset=utf-8") (list (environment-text environment))))

;;; What it answers, by the path

(defparameter *text* '(:content-type "text/plain; charset=utf-8"))

(defparameter *responses*
  `(("/list" 200 ,*text* ("Hello" "World"))
    ("/empty-strings" 200 ,*text* ("" "Hello" ""))
    ("/utf-8" 200 ,*text* (,(string (code-char #x3042))))
    ("/untyped" 200 () ("Hello"))
    ("/nil" 200 ,*text* nil)
    ("/length" 200 (:content-length 5 ,@*text*) ("Hello"))
    ("/length-in-text" 200 (:content-length "5" ,@*text*) ("Hello"))
    ("/length-of-nothing" 200 (:content-length 5 ,@*text*) nil)
    ("/headers" 200 (:x-foo "foo" :set-cookie "a=1" :set-cookie "b=2" ,@*text*) ("hi"))
    ("/repeated" 200 (:x-foo "a" :x-foo "b" ,@*text*) ("hi"))
    ("/integer" 200 (:x-foo 42 ,@*text*) ("hi"))
    ("/close" 200 (:connection "close" ,@*text*) ("hi"))
    ("/octets" 200 (:content-type "application/octet-stream") ,(octets 1 2 3))
    ("/no-octets" 200 (:content-type "application/octet-stream") ,(octets))
    ("/file" 200 ,*text* ,*file*)
    ("/file-untyped" 200 () ,*file*)
    ("/file-missing" 200 ,*text* #p"/no/such/file.txt")
    ("/201" 201 (:location "/list" ,@*text*) ("made"))
    ("/204" 204 () nil)
    ("/204-with-type" 204 ,*text* nil)
    ("/302" 302 (:location "/list") nil)
    ("/304" 304 () nil)
    ("/304-with-headers" 304 (:etag "\"x\"" ,@*text*) nil)
    ("/404" 404 ,*text* ("Not Found"))
    ("/500" 500 ,*text* ("Mine"))))

(defun read-twice (environment)
  "A response with the content of the request, twice, which is read from its beginning again."
  (let ((first (content-of environment)))
    (file-position (getf environment :raw-body) 0)
    (list 200 '(:content-type "application/octet-stream")
          (concatenate '(simple-array (unsigned-byte 8) (*)) first (content-of environment)))))

(defun write-pieces (responder)
  (let ((writer (funcall responder (list 200 *text*))))
    (funcall writer "one")
    (funcall writer (octets 116 119 111))
    (funcall writer "-three-" :start 1 :end 6)
    (funcall writer nil :close t)))

(defun write-nothing (responder)
  (funcall (funcall responder (list 200 *text*)) nil :close t))

(defparameter *functions*
  `(("/delayed" . ,(lambda (responder) (funcall responder `(200 ,*text* ("later")))))
    ("/delayed-nil" . ,(lambda (responder) (funcall responder `(200 ,*text* nil))))
    ("/delayed-file" . ,(lambda (responder) (funcall responder `(200 ,*text* ,*file*))))
    ("/stream" . ,#'write-pieces)
    ("/stream-of-nothing" . ,#'write-nothing)
    ("/delayed-error" . ,(lambda (responder)
                           (declare (ignore responder))
                           (error "On purpose."))))
  "What is returned by paths, functions of a responder.")

(defun app (environment)
  (let ((path (getf environment :path-info)))
    (flet ((known (table)
             (cdr (assoc path table :test #'equal))))
      (cond ((known *responses*))
            ((known *functions*))
            ((equal path "/error") (error "On purpose."))
            ((equal path "/no-response") 42)
            ((equal path "/twice") (read-twice environment))
            ((equal path "/echo")
             (list 200 '(:content-type "application/octet-stream") (content-of environment)))
            (t (environment-response environment))))))
