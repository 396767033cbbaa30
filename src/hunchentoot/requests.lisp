(in-package #:hunchentoot-recycling-taskmaster)

;;;; Making request and reply objects.  The code here replaces Hunchentoot's :AFTER method of
;;;; INITIALIZE-INSTANCE, which parses by regular expressions and streams: that costs more than all
;;;; other work for a short request.

;;; Names of header fields for which there is no keyword.  Chunga, which reads heads for
;;; Hunchentoot, interned them before 1.1.9; since then they are strings, spelled as the client
;;; sends them.

(defun chunga-field-name (name)
  "The name that the loaded Chunga gives to a header field that is called NAME, a string."
  (let ((octets (concatenate 'vector (map 'vector #'char-code name) #(58 97 13 10 13 10))))
    (flexi-streams:with-input-from-sequence (stream octets) ; "name:a", and an empty line
      (chunga:with-character-stream-semantics
        (car (first (chunga:read-http-headers stream)))))))

(defun unmentioned-name ()
  "A name of mixed case for which there is no keyword."
  (loop for number from 0
        for name = (format nil "X-No-Keyword-~D" number)
        unless (find-symbol (string-upcase name) '#:keyword) return name))

(defun chunga-keeps-spelling-p ()
  "True if the loaded Chunga leaves names without a keyword as the client spells them."
  (let* ((name (unmentioned-name))
         (made (chunga-field-name name)))
    (when (symbolp made)
      (unintern made '#:keyword))
    (equal name made)))

(setf *spelling-kept-p* (chunga-keeps-spelling-p))

;;; Instances of classes that the program chooses.  MAKE-INSTANCE with a class that is known only at
;;; run time is slow; with a constant class it is compiled to direct code, which follows
;;; redefinitions of the class.

(defvar *constructors* '()
  "An alist of symbols that name classes, and their constructors; replaced whole.")

(defun compiled-constructor (class initargs)
  "A function of the values of INITARGS, keywords, that makes an instance of CLASS, a symbol."
  (let ((values (loop for nil in initargs collect (gensym "VALUE"))))
    (compile nil `(lambda ,values
                    (make-instance ',class ,@(mapcan #'list initargs values))))))

(defun constructor (class initargs)
  "A function of the values of INITARGS, always the same keywords for the same CLASS, that makes
an instance of CLASS, a symbol or a class."
  (let ((known (cdr (assoc class *constructors* :test #'eq))))
    (cond (known)
          ((and class (symbolp class))
           (let ((new (compiled-constructor class initargs)))
             (push (cons class new) *constructors*)
             new))
          (t
           (lambda (&rest values)
             (apply #'make-instance class (mapcan #'list initargs values)))))))

;;; The objects

(defparameter *request-initargs*
  '(:acceptor :remote-addr :remote-port :local-addr :local-port
    :headers-in :method :uri :server-protocol :content-stream)
  "The initargs with which a request is made.")

(defgeneric fill-parameters (request headers uri)
  (:documentation "Fills the slots of REQUEST that Hunchentoot computes from HEADERS and URI, a
text, and finds the session.")
  (:method ((request hunchentoot:request) headers uri)
    (declare (type text uri))
    (let* ((named (external-format-of-type (cdr (assoc :content-type headers :test #'eq))))
           (external-format (or named *uri-format*))
           (ascii-p (or (null named) (and (encoding-of named) t)))
           (cookies (cdr (assoc :cookie headers :test #'eq))))
      (multiple-value-bind (path-start path-end) (uri-path uri)
        (setf (slot-value request 'hunchentoot:script-name)
              (decoded uri path-start path-end external-format ascii-p (not *plus-kept-p*)))
        (when (< path-end (length uri))
          (let ((query (text-part uri (1+ path-end) (length uri)))
                (flexi-streams:*substitution-char* #\?))
            (setf (slot-value request 'hunchentoot:query-string) query
                  (slot-value request 'hunchentoot:get-parameters)
                  (query-alist query external-format ascii-p)))))
      (when cookies
        (setf (slot-value request 'hunchentoot:cookies-in)
              ;; Hunchentoot joins repeated fields to a string of base characters.
              (cookie-alist (coerce cookies 'text))))
      (setf hunchentoot:*session* (hunchentoot:session-verify request)
            (slot-value request 'hunchentoot:session) hunchentoot:*session*))))

(defmethod initialize-instance :after ((request hunchentoot:request) &rest initargs)
  (declare (ignore initargs))
  (with-bad-request
    (fill-parameters request (hunchentoot:headers-in request)
                     (coerce (hunchentoot:request-uri request) 'text))))

(defun make-request (acceptor http headers method uri protocol content)
  "An instance of the request class of ACCEPTOR for a request that came over HTTP."
  (destructuring-bind ((remote-address remote-port) (local-address local-port))
      (list (request-remote http) (http-local http))
    (let ((request (funcall (constructor (hunchentoot:acceptor-request-class acceptor)
                                         *request-initargs*)
                            acceptor remote-address remote-port local-address local-port
                            headers method uri protocol content)))
      (when (http-client http)
        (note-scheme request http))
      (note-told-request-id request http headers)
      request)))

(defun make-reply (acceptor)
  "An instance of the reply class of ACCEPTOR."
  (funcall (constructor (hunchentoot:acceptor-reply-class acceptor) '())))
