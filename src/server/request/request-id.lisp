(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; Identifiers of requests, by which the lines about one request are found in the logs of all
;;;; programs that it has passed.  A trusted proxy may tell one in X-Request-Id.  The others are
;;;; made when something asks for them.

(defparameter *request-id-limit* 200
  "How many characters an identifier that a proxy tells may have.")

(defun request-id-p (text)
  "True if TEXT, a string, may be an identifier: it has only visible ASCII characters, and not too
many."
  (and (<= 1 (length text) *request-id-limit*)
       (every (lambda (char) (<= 33 (char-code char) 126)) text)))

(defun told-request-id (http headers)
  "The identifier, a string, that HEADERS, an alist, have for a request over HTTP; NIL if there is
none, or if the peer of HTTP is no trusted proxy."
  (and (http-trusted http)
       (let ((text (cdr (assoc :x-request-id headers :test #'eq))))
         (and text (request-id-p text) text))))

;;; New ones: a random number of the process, and a count

(defvar *request-ids-lock* (bt:make-lock "request identifiers")
  "Guards *PROCESS-ID-TEXT* and *REQUEST-COUNT*, and identifiers that threads may give to one
request at the same time.")

(defvar *process-id-text* nil
  "The beginning of all identifiers of this process, a string of hexadecimal digits, or NIL.")

(defvar *request-count* 0
  "How many identifiers were made.")

(defun renew-request-ids ()
  "Gives further identifiers another beginning.  A server calls this when it starts: the Lisp may be
an image that was saved after it had made some, and so several processes would make the same."
  (let ((text (format nil "~(~16,'0X~)" (random (ash 1 64) (make-random-state t)))))
    (with-lock-briefly (*request-ids-lock*)
      (setf *process-id-text* text))))

(defun new-request-id ()
  "A new identifier, a string of 26 hexadecimal digits."
  (unless *process-id-text*
    (renew-request-ids))
  (let* ((text (make-string 26))
         (count (with-lock-briefly (*request-ids-lock*)
                  (replace text *process-id-text*)
                  (incf *request-count*))))
    (loop for index from 25 downto 16
          for shift from 0 by 4
          do (setf (char text index) (schar "0123456789abcdef" (ldb (byte 4 shift) count))))
    text))

(defmacro keep-request-id (place)
  "The identifier in PLACE, which is NIL before the first call, or else a new one that is stored
there.  All threads get the same."
  (let ((id (gensym "ID")))
    `(or ,place
         (let ((,id (new-request-id)))
           (with-lock-briefly (*request-ids-lock*)
             (or ,place (setf ,place ,id)))))))

;;; For programs

(defgeneric identifier-of (request)
  (:documentation "The value of REQUEST-ID for REQUEST; NIL stands for the current request.")
  (:method ((request null))
    nil))

(defun request-id (&optional request)
  "The identifier of REQUEST, a string of visible ASCII characters, by which logs in JSON name it.
REQUEST is a HUNCHENTOOT:REQUEST, by default the current one; or an environment of Clack, a plist
with :CLACK.IO.  NIL where there is no current request.  The identifier is that in the header field
X-Request-Id if one of :TRUSTED-PROXIES has sent the request, and the field has at most 200
characters, all of them visible and of ASCII.  Otherwise the first call makes one that no other
request has, of 26 hexadecimal digits.  May be called in any thread."
  (identifier-of request))

(defmethod (setf application-engine) :after (engine (application http-service))
  (declare (ignore engine))
  (renew-request-ids))
