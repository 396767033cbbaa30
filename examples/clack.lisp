;;;; A Clack application on recycled threads, with Clack or without it.
;;;;
;;;;   (asdf:load-system "clack-handler-recycling")
;;;;   (load "examples/clack.lisp")
;;;;   (clack:clackup 'recycling-clack-demo:app :server :recycling :port 5000)
;;;;
;;;; Without Clack, in place of the last line; this one returns when it is interrupted:
;;;;
;;;;   (clack.handler.recycling:run 'recycling-clack-demo:app :port 5000)

(defpackage #:recycling-clack-demo
  (:documentation "A small Clack application.")
  (:use #:common-lisp)
  (:export #:app))

(in-package #:recycling-clack-demo)

(defparameter *source* (or *load-truename* *compile-file-truename*)
  "This file.")

(defun text (status control &rest arguments)
  "A response with STATUS and the text that CONTROL and ARGUMENTS make."
  (list status '(:content-type "text/plain; charset=utf-8")
        (list (apply #'format nil control arguments))))

(defun body-octets (environment)
  "What the client has sent."
  (coerce (loop for octet = (read-byte (getf environment :raw-body) nil)
                while octet
                collect octet)
          '(vector (unsigned-byte 8))))

(defun count-down (responder)
  "A response that is written piece by piece."
  (let ((writer (funcall responder '(200 (:content-type "text/plain; charset=utf-8")))))
    (loop for number from 3 above 0
          do (funcall writer (format nil "~R~%" number)))
    (funcall writer "none" :close t)))

(defun app (environment)
  "The application: a function of an environment, a plist, that returns a response."
  (let ((path (getf environment :path-info)))
    (cond ((string= path "/")
           (text 200 "Hello from ~A." (getf environment :server-name)))
          ((string= path "/echo")
           (list 200 '(:content-type "text/plain; charset=utf-8") (body-octets environment)))
          ((string= path "/count")
           #'count-down)
          ((string= path "/source")
           (list 200 '(:content-type "text/plain; charset=utf-8") *source*))
          (t
           (text 404 "There is nothing at ~A." path)))))
