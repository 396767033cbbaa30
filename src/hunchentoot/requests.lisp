(in-package #:hunchentoot-recycling-taskmaster)

;;;; Making request objects.  What Hunchentoot does in an :AFTER method of INITIALIZE-INSTANCE is
;;;; done here in its place, for all requests, however they are made; see fast-instances.lisp for
;;;; that.

;;; Names of header fields that no keyword has.  Chunga, which reads heads for Hunchentoot, interned
;;; them; since 1.1.9 they stay strings, spelled as the client has sent them.

(defun chunga-field-name (name)
  "What the Chunga that is loaded makes of NAME, a string, as the name of a header field."
  (let ((octets (concatenate 'vector (map 'vector #'char-code name) #(58 97 13 10 13 10))))
    (flexi-streams:with-input-from-sequence (stream octets) ; "name:a", and an empty line
      (chunga:with-character-stream-semantics
        (car (first (chunga:read-http-headers stream)))))))

(defun unmentioned-name ()
  "A name of mixed case that no keyword has."
  (loop for number from 0
        for name = (format nil "X-No-Keyword-~D" number)
        unless (find-symbol (string-upcase name) '#:keyword) return name))

(defun chunga-keeps-spelling-p ()
  "True if the Chunga that is loaded leaves names that no keyword has as the client spells them."
  (let* ((name (unmentioned-name))
         (made (chunga-field-name name)))
    (when (symbolp made)
      (unintern made '#:keyword))
    (equal name made)))

(setf *spelling-kept-p* (chunga-keeps-spelling-p))

;;; The objects

(defparameter *request-initargs*
  '(:acceptor :remote-addr :remote-port :local-addr :local-port
    :headers-in :method :uri :server-protocol :content-stream)
  "What a request is made of.")

(defun make-request-by-class (class acceptor http headers method uri protocol content)
  (destructuring-bind ((remote-address remote-port) (local-address local-port))
      (list (http-remote http) (http-local http))
    (funcall (constructor class *request-initargs*)
             acceptor remote-address remote-port local-address local-port
             headers method uri protocol content)))

(defgeneric fill-request (request acceptor http headers method protocol)
  (:documentation "Gives those slots of REQUEST their values that MAKE-INSTANCE takes from its
arguments, and the others their initial ones, save the hidden ones.")
  ;; In a method SBCL compiles access to slots of its argument to straight code.
  (:method ((request hunchentoot:request) acceptor http headers method protocol)
    (let ((remote (http-remote http)) (local (http-local http)))
      (macrolet ((fill-slots (&rest names-and-values)
                   `(setf ,@(loop for (name value) on names-and-values by #'cddr
                                  append `((slot-value request ',name) ,value)))))
        (fill-slots hunchentoot:acceptor acceptor
                    hunchentoot:headers-in headers
                    method method
                    hunchentoot:server-protocol protocol
                    hunchentoot:remote-addr (first remote)
                    hunchentoot:remote-port (second remote)
                    hunchentoot:local-addr (first local)
                    hunchentoot:local-port (second local)
                    hunchentoot:cookies-in '()
                    hunchentoot:get-parameters '()
                    hunchentoot:post-parameters '()
                    hunchentoot:script-name nil
                    hunchentoot:query-string nil
                    hunchentoot:session nil
                    hunchentoot:raw-post-data nil)))))

(defgeneric fill-parameters (request headers uri)
  (:documentation "Gives the slots of REQUEST that Hunchentoot computes from HEADERS and URI, a
text, their values, and finds its session.")
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

(know-making 'hunchentoot:request)      ; with the method above

(defun make-request (acceptor http headers method uri protocol content)
  "An instance of the request class of ACCEPTOR for a request that came over HTTP."
  (let* ((class (hunchentoot:acceptor-request-class acceptor))
         (request (allocated-instance class (load-time-value (find-class 'hunchentoot:request)))))
    (cond (request
           (fill-request request acceptor http headers method protocol)
           (fill-hidden-slots request uri content)
           (with-bad-request
             (fill-parameters request headers (coerce uri 'text)))
           request)
          (t
           (make-request-by-class class acceptor http headers method uri protocol content)))))
