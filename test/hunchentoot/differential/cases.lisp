(in-package #:hunchentoot-recycling-taskmaster-test)

;;; The differential test: the same requests to Hunchentoot's own acceptor and to ours.
;;; README.md tells how cases and differences are written.  This file turns the tables of
;;; cases into octets.

;;; Generators

(defun with-variables (form bindings)
  "FORM with {name} replaced in its strings, as BINDINGS, an alist of strings, says."
  (typecase form
    (string (loop for (name . value) in bindings
                  do (setf form (replace-all form (format nil "{~A}" name) value))
                  finally (return form)))
    (cons (cons (with-variables (car form) bindings)
                (with-variables (cdr form) bindings)))
    (t form)))

(defun combinations (variables)
  "Alists for every combination of the values of VARIABLES, a list of (name . strings)."
  (if (null variables)
      (list '())
      (destructuring-bind ((name . values) . others) variables
        (loop for value in values
              append (loop for rest in (combinations others)
                           collect (acons (string-downcase name) value rest))))))

(defun generated-cases (form)
  "The cases that FORM of a table stands for: one for each combination of its :FOR."
  (loop for bindings in (combinations (getf form :for))
        collect (with-variables (uiop:remove-plist-key :for form) bindings)))

(defun all-cases ()
  "The cases of all tables, in order."
  (loop for pathname in (sort (directory (merge-pathnames
                                          "test/hunchentoot/differential/cases/*.sexp"
                                          (source-root)))
                              #'string< :key #'namestring)
        append (loop for form in (read-table pathname)
                     append (generated-cases form))))

(defun case-worlds (case)
  "The names of the worlds in which CASE is tried."
  (getf case :worlds '(:plain)))

(defun case-steps (case)
  "The steps of CASE, a list of plists; a case of one step is written without :STEPS."
  (or (getf case :steps) (list case)))

;;; From steps to octets

(defun raw-octets (content)
  "The list of octets of CONTENT: a string as it is, or a list of lines."
  (input-octets (if (stringp content) (list :raw content) content)))

(defun chunk-octets (content)
  "CONTENT as one chunk, a list of octets."
  (let ((octets (raw-octets content)))
    (append (input-octets (format nil "~X" (length octets))) octets '(13 10))))

(defun step-body (step)
  "The octets of the body of the request STEP, and the header lines that frame it."
  (cond ((getf step :chunks)
         (values (append (loop for content in (getf step :chunks) append (chunk-octets content))
                         (input-octets '("0" "")))
                 '("Transfer-Encoding: chunked")))
        ((getf step :body)
         (let ((octets (raw-octets (getf step :body))))
           (values octets (list (format nil "Content-Length: ~D" (length octets))))))))

(defun request-line (step)
  (format nil "~A ~A" (getf step :request) (getf step :version "HTTP/1.1")))

(defun request-input (step)
  "The list of octets of the request STEP."
  (multiple-value-bind (body framing) (step-body step)
    (let ((host (getf step :host "localhost")))
      (append (input-octets `(,(request-line step)
                              ,@(and host (list (format nil "Host: ~A" host)))
                              ,@framing ,@(getf step :headers) ""))
              body))))

(defun step-input (step)
  "The list of octets that STEP sends."
  (cond ((getf step :send) (input-octets (getf step :send)))
        ((getf step :pipeline)
         (loop for request in (getf step :pipeline) append (request-input request)))
        (t (request-input step))))

(defun head-request-p (text)
  (uiop:string-prefix-p "HEAD " text))

(defun expected-read (text)
  "How to read the response to the request that begins with TEXT."
  (if (head-request-p text) :head :response))

(defun step-reads (step)
  "What to read after STEP: a list of :RESPONSE, :HEAD, which has no body, and :INTERIM."
  (cond ((getf step :reads))
        ((getf step :pipeline)
         (loop for request in (getf step :pipeline)
               collect (expected-read (getf request :request))))
        ((getf step :request) (list (expected-read (getf step :request))))
        (t (list (expected-read (find-if #'stringp (getf step :send)))))))
