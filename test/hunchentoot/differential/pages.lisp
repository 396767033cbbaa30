(in-package #:hunchentoot-recycling-taskmaster-test)

;;; The handlers of the differential test that show what a request object contains.

(defvar *pages* (make-hash-table :test 'equal)
  "The handlers by script name.")

(defmacro define-page (path &body body)
  "Makes BODY the handler for PATH."
  `(setf (gethash ,path *pages*) (lambda () ,@body)))

(defun dispatch-page (request)
  (gethash (hunchentoot:script-name request) *pages*))

(defun plain-text! ()
  (setf (hunchentoot:content-type*) "text/plain"))

(defun asked (&optional (name "x"))
  "The parameter NAME of the query, or NIL."
  (hunchentoot:get-parameter name))

(defun asked-number (&optional (name "x"))
  (parse-integer (asked name)))

(define-page "/probe" "probed")

;;; All of it

(defparameter *facts*
  '(hunchentoot:request-method* hunchentoot:request-uri* hunchentoot:script-name*
    hunchentoot:query-string* hunchentoot:get-parameters* hunchentoot:post-parameters*
    hunchentoot:headers-in* hunchentoot:cookies-in* hunchentoot:server-protocol*
    hunchentoot:remote-addr* hunchentoot:local-addr* hunchentoot:real-remote-addr
    hunchentoot:host hunchentoot:user-agent hunchentoot:referer hunchentoot:authorization
    hunchentoot:raw-post-data hunchentoot:ssl-p)
  "Functions of the current request whose values are shown.")

(defun other-facts ()
  (list (list :aux (hunchentoot:aux-request-value 'nothing)
              (setf (hunchentoot:aux-request-value 'something) 1)
              (hunchentoot:aux-request-value 'something))
        (list :ports (integerp (hunchentoot:remote-port*))
              (= (hunchentoot:local-port*)
                 (hunchentoot:acceptor-port hunchentoot:*acceptor*)))
        (list :session hunchentoot:*session*)
        (list :classes (type-of hunchentoot:*request*) (type-of hunchentoot:*reply*))
        (list :types (type-of (hunchentoot:headers-in*))
              (mapcar (lambda (pair) (type-of (car pair))) (hunchentoot:headers-in*)))
        (list :headers (hunchentoot:header-in* :host) (hunchentoot:header-in* "host")
              (hunchentoot:header-in* :x-absent) (hunchentoot:header-in* "content-TYPE"))
        (list :reply (hunchentoot:return-code*) (hunchentoot:content-type*)
              (hunchentoot:content-length*) (hunchentoot:headers-out*)
              (hunchentoot:cookies-out*))))

(defun facts ()
  "Everything that the current request tells, one fact a line."
  (format nil "~{~A~%~}"
          (append (loop for name in *facts*
                        collect (shown name (multiple-value-list (funcall name))))
                  (mapcar #'shown (other-facts)))))

(define-page "/echo" (plain-text!) (facts))
(define-page "/" (plain-text!) (facts))
(define-page "*" (plain-text!) (facts))
(define-page "/é€ x" (plain-text!) (facts))
(define-page "/a/b.c;d" (plain-text!) (facts))

;;; The body in particular

(define-page "/raw" (shown (hunchentoot:raw-post-data)))
(define-page "/raw-text" (shown (hunchentoot:raw-post-data :force-text t)))
(define-page "/raw-binary" (shown (coerce (hunchentoot:raw-post-data :force-binary t) 'list)))
(define-page "/raw-format"
  (shown (hunchentoot:raw-post-data :external-format :utf-16le)))
(define-page "/raw-twice"
  (shown (hunchentoot:raw-post-data) (hunchentoot:raw-post-data)
         (hunchentoot:raw-post-data :force-text t)))
(define-page "/raw-and-parameters"
  (shown (hunchentoot:raw-post-data) (hunchentoot:post-parameters*)))
(define-page "/parameters-and-raw"
  (shown (hunchentoot:post-parameters*) (hunchentoot:raw-post-data)))

(define-page "/raw-size"
  (shown (length (hunchentoot:raw-post-data :force-binary t))
         (reduce #'logxor (hunchentoot:raw-post-data :force-binary t))))

(defun rest-of-stream (stream)
  "The octets of STREAM until its end."
  (loop for octet = (read-byte stream nil nil)
        while octet collect octet))

(define-page "/stream-in"
  (shown (rest-of-stream (hunchentoot:raw-post-data :want-stream t))))
(define-page "/stream-in-lines"
  (shown (loop with stream = (hunchentoot:raw-post-data :want-stream t)
               for line = (read-line stream nil nil)
               while line collect line)))
(define-page "/stream-in-part"
  (shown (read-byte (hunchentoot:raw-post-data :want-stream t))))
(define-page "/stream-in-unread"
  (hunchentoot:raw-post-data :want-stream t)
  "unread")
(define-page "/stream-in-sequence"
  (let ((octets (make-array 100 :element-type '(unsigned-byte 8) :initial-element 0)))
    (shown (read-sequence octets (hunchentoot:raw-post-data :want-stream t))
           (coerce (subseq octets 0 10) 'list))))
(define-page "/untouched" "untouched")

(define-page "/stream-in-odd"
  (let ((stream (hunchentoot:raw-post-data :want-stream t)))
    (shown (flexi-streams:flexi-stream-bound stream) (listen stream)
           (flexi-streams:peek-byte stream) (read-char stream) (peek-char nil stream)
           (progn (unread-char (read-char stream) stream) (read-char stream))
           (let ((octets (list 0 0))) (read-sequence octets stream) octets)
           (flexi-streams:flexi-stream-position stream) (rest-of-stream stream)
           (read-byte stream nil :end) (read-byte stream nil :end)
           (eq stream (hunchentoot:raw-post-data :want-stream t)))))
(define-page "/stream-in-utf-8"
  (let ((stream (hunchentoot:raw-post-data :want-stream t)))
    (setf (flexi-streams:flexi-stream-external-format stream) :utf-8)
    (shown (read-line stream) (read-char stream nil))))

;;; Forms

(define-page "/form"
  (shown (hunchentoot:post-parameters*) (hunchentoot:get-parameters*)
         (hunchentoot:post-parameter "a") (hunchentoot:parameter "a")))
(define-page "/form-recomputed"
  (hunchentoot:recompute-request-parameters :external-format :latin-1)
  (shown (hunchentoot:post-parameters*) (hunchentoot:get-parameters*)))

(defun shown-upload (value)
  "VALUE of a parameter, with the contents in place of the name of a temporary file."
  (if (consp value)
      (list* (coerce (file-octets (first value)) 'list) (rest value))
      value))

(define-page "/upload"
  (shown (loop for (name . value) in (hunchentoot:post-parameters*)
               collect (cons name (shown-upload value)))))

(hunchentoot:define-easy-handler (differential-easy :uri "/easy-form")
    ((a :parameter-type 'integer) (b :parameter-type '(list string)) (c :request-type :post)
     (d :init-form "d") (e :parameter-type 'keyword) (f :parameter-type 'boolean)
     (g :parameter-type '(array integer)) (h :parameter-type '(hash-table integer keyword eq)))
  (shown a b c d e f g (and h (alexandria:hash-table-alist h))))

;;; Sessions and credentials

(define-page "/session"
  (setf (hunchentoot:session-value :count)
        (1+ (or (hunchentoot:session-value :count) 0)))
  (shown (hunchentoot:session-value :count)
         (not (null hunchentoot:*session*))
         (eq hunchentoot:*session* (hunchentoot:session hunchentoot:*request*))
         (hunchentoot:session-remote-addr hunchentoot:*session*)
         (hunchentoot:session-user-agent hunchentoot:*session*)))
(define-page "/session-read"
  (shown (hunchentoot:session-value :count) (null hunchentoot:*session*)))
(define-page "/session-removed"
  (when hunchentoot:*session*
    (hunchentoot:remove-session hunchentoot:*session*))
  "removed")
(define-page "/session-links"
  (hunchentoot:start-session)
  (setf (hunchentoot:content-type*) (or (asked "type") "text/html"))
  "<a href='/session-read?a=b&c=d'>é</a><form action=\"/form\"></form><a href='http://x/'>")
(define-page "/session-redirect"
  (hunchentoot:start-session)
  (hunchentoot:redirect "/session-read"))

(define-page "/guarded"
  (multiple-value-bind (user password) (hunchentoot:authorization)
    (if (equal password "secret")
        (shown user)
        (hunchentoot:require-authorization (or (asked "realm") "a \"realm\"")))))
