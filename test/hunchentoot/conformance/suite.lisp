(in-package #:hunchentoot-recycling-taskmaster-test)

;;; The conformance suite: what a Hunchentoot application may rely on, beside the answers to
;;; requests, which differential/ compares with those of Hunchentoot's own acceptor.

(def-suite conformance :in all
  :description "Everything behaves as on Hunchentoot's own acceptor.")

;;; Where releases of Hunchentoot differ, a function with the difference's name tells
;;; which way the loaded one goes.

(defun hunchentoot-has-p (name)
  "Whether the loaded Hunchentoot knows a symbol called NAME."
  (and (find-symbol (string name) '#:hunchentoot) t))

(defun hunchentoot-since-p (version)
  "Whether the loaded Hunchentoot is of VERSION or later."
  (uiop:version<= version hunchentoot:*hunchentoot-version*))

(defun unknown-methods-served-p ()
  "Before 1.3.0 any token was taken for a method; since then all but nine are refused."
  (not (hunchentoot-since-p "1.3.0")))

(defun other-versions-refused-p ()
  "Since 1.3.0 a request of another version than HTTP/1.0 and HTTP/1.1 is answered 505."
  (hunchentoot-since-p "1.3.0"))

(defun forms-bounded-p ()
  "Since 1.3.0 a multipart form is read no farther than its Content-Length."
  (hunchentoot-since-p "1.3.0"))

(defun bodies-of-bodyless-statuses-dropped-p ()
  "Later than 1.3.1 a body that a handler gives to 1xx, 204 or 304 is dropped.  The
change is in no release yet, so we look for a function that is as new."
  (hunchentoot-has-p '#:create-regex-dispatcher-with-groups))

(defun same-site-cookies-p ()
  "Since 1.3.0 cookies may have the attribute SameSite."
  (hunchentoot-has-p '#:cookie-same-site))

;;; What several themes need

(defun shown (&rest values)
  "VALUES as a handler can return and a test compare them: printed as READ wants it."
  (with-standard-io-syntax
    ;; Readably, SBCL would tell strings of base characters apart.
    (let ((*print-readably* nil))
      (format nil "~{~S~^ ~}" values))))

(defmacro quietly (&body body)
  "Evaluates BODY while nobody sees what threads write to the error output."
  `(with-globals ((*error-output* (make-broadcast-stream)))
     ,@body))

(defun header-stream-works-p ()
  "False where Hunchentoot's own code writes, and broadcast streams of this Lisp reach no Gray
streams: then no client gets the head of a reply while there is a *HEADER-STREAM*."
  (let ((octets (ignore-errors
                 (flexi-streams:with-output-to-sequence (stream)
                   (let ((both (make-broadcast-stream (make-string-output-stream)
                                                      (flexi-streams:make-flexi-stream stream))))
                     (format both "head")
                     (finish-output both))))))
    (equalp #(104 101 97 100) octets)))

(defun chunga-warns-p ()
  "False where Chunga can't warn of an extension of a chunk: it gives its warning arguments that
this Lisp refuses, since the class of the warning has none."
  (handler-case (progn (make-condition 'chunga:chunga-warning
                                       :stream nil :format-control "" :format-arguments '())
                       t)
    (error () nil)))

(defun set-cookies (response)
  "The values of the Set-Cookie headers of RESPONSE."
  (response-header-values response "set-cookie"))

(defun connection-header (response)
  "The Connection header of RESPONSE in lower case, or NIL."
  (let ((value (response-header response "connection")))
    (and value (string-downcase value))))

(defun write-parts (stream &rest parts)
  "Writes the octets of PARTS to STREAM, flushed after each."
  (dolist (part parts)
    (write-sequence (octets "-" part) stream :start 1)
    (finish-output stream)))
