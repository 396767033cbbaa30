;;;; The application for Hunchentoot, stock or ours.

(in-package #:work)

(defun parameter (name)
  "The parameter NAME of the query, a string or NIL."
  (hunchentoot:get-parameter name))

(defun answer (type text)
  "Answers TEXT as content of TYPE."
  (setf (hunchentoot:content-type*) type)
  text)

(defun content ()
  "The content of a POST, a string; else NIL."
  (and (eq (hunchentoot:request-method*) :post)
       (hunchentoot:raw-post-data :force-text t)))

(defun hello () (answer "text/plain" "Hey!"))
(defun hello-after-wait () (wait) (hello))
(defun mix () (answer "text/plain" (sum (parameter "a") (parameter "b") (content))))
(defun upload () (answer "text/plain" (count-octets (hunchentoot:raw-post-data :want-stream t))))
(defun row () (answer "application/json" (row-json (integer-in (parameter "id") 1))))
(defun fortunes () (answer "text/html; charset=utf-8" (fortunes-html)))

(defun items ()
  (answer "application/json"
          (items-json (integer-in (subseq (hunchentoot:script-name*) (length "/json/")) 1)
                      (integer-in (parameter "m") 1))))

(defparameter *handlers*
  '(("/hello" hello) ("/wait" hello-after-wait) ("/mix" mix) ("/json/" items) ("/row" row)
    ("/fortunes" fortunes) ("/upload" upload))
  "The handlers, by the beginnings of their paths, in the order in which they are asked.")

(defun serve (port certificate key class &rest initargs)
  "Serves on PORT by an acceptor of CLASS, made with INITARGS, and never returns.  CLASS is one for
TLS unless the files CERTIFICATE and KEY are NIL."
  (setf hunchentoot:*dispatch-table*
        (append (loop for (path handler) in *handlers*
                      collect (hunchentoot:create-prefix-dispatcher path handler))
                (list (hunchentoot:create-static-file-dispatcher-and-handler "/file" (file)))))
  (start-serving (apply #'make-instance class
                        :address "127.0.0.1" :port port :listen-backlog 4096
                        :access-log-destination nil :message-log-destination nil
                        (append (and certificate (list :ssl-certificate-file certificate
                                                       :ssl-privatekey-file key))
                                initargs)))
  (loop (sleep 3600)))

(defun start-serving (acceptor)
  "Starts ACCEPTOR."
  (hunchentoot:start acceptor))
