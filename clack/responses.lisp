(in-package #:clack.handler.recycling)

;;;; Responses as octets.  A response is a list (STATUS HEADERS BODY); HEADERS is a plist, whose
;;;; names may repeat.
;;;;
;;;;   BODY                     the server sends
;;;;   NIL                      a head
;;;;   a list                   its elements, strings in UTF-8 and octets, one after the other
;;;;   octets                   these octets
;;;;   a pathname               the file; see file-responses.lisp
;;;;   not in the list          a head, and the pieces that the application gives to the writer; see
;;;;                            written-responses.lisp

;;; Headers

(defun header-name (name)
  "NAME, of a header that an application has set, as a keyword if such a keyword exists, else as a
string."
  (if (keywordp name)
      name
      (or (find-symbol (string-upcase name) '#:keyword)
          (string name))))

(defun header (name headers)
  "The value of the first header NAME, a keyword, in the plist HEADERS; NIL where there is none."
  (loop for (other value) on headers by #'cddr
        when (eq name (header-name other))
          return value))

(defun with-content-type (headers type)
  "HEADERS, a plist, with TYPE added as Content-Type unless they have one."
  (if (header :content-type headers)
      headers
      (list* :content-type type headers)))

(defparameter *text-type* "text/html; charset=utf-8"
  "The Content-Type of strings where an application sets none.  Applications rely on it, since
Clack's handler for Hunchentoot has it.")

(defparameter *server-line*
  (map 'octets #'char-code (format nil "Server: recycling~C~C" #\Return #\Newline)))

(defun encode-own-headers (reply headers allowed-p)
  "Appends HEADERS, a plist, to REPLY, except those that only the server sets, and except
Content-Type unless ALLOWED-P.  True when Server is among them."
  (let ((server-p nil))
    (loop for (name value) on headers by #'cddr
          when value
            do (let ((name (header-name name)))
                 (case name
                   ;; The server sets these itself.
                   ((:content-length :transfer-encoding :connection :keep-alive :date))
                   (:content-type
                    (when allowed-p
                      (encode-header reply name value)))
                   (t
                    (when (eq name :server)
                      (setf server-p t))
                    (encode-header reply name value)))))
    server-p))

(defun encode-response-head (reply exchange status headers event framing)
  "Appends the head of the response to EXCHANGE, with STATUS and HEADERS, to REPLY, an empty OUTPUT.
EVENT is the protocol event that sending the head will be.  FRAMING is the number of octets of
content, :CHUNKED, or NIL for no header about it.  Signals INVALID-HEADER."
  (let ((allowed-p (body-allowed-p status)))
    (encode-status-line reply status)
    (unless (encode-own-headers reply headers allowed-p)
      (encode-octets reply *server-line*))
    (when allowed-p
      (case framing
        ((nil))
        (:chunked (encode-header reply :transfer-encoding "chunked"))
        (t (encode-header reply :content-length framing))))
    (multiple-value-bind (connection keep-alive)
        (connection-headers exchange event (seconds-for (exchange-application exchange) :idle))
      (when connection
        (encode-header reply :connection connection))
      (when keep-alive
        (encode-header reply :keep-alive keep-alive)))
    (when (eq :switch event)
      (encode-header reply :connection (or (header :connection headers) "upgrade")))
    (encode-date reply (current-second))
    (encode-end-of-head reply)))

;;; The connection after the response

(defun kept-p (exchange headers)
  "True when the server is willing to keep the connection of EXCHANGE, whose response has HEADERS."
  (and (server-persistent-p (exchange-application exchange))
       (not (last-of-connection-p exchange))
       (not (says-close-p (header :connection headers)))))

;;; Whole responses

(defun element-length (element)
  (etypecase element
    (string (encoded-length element :utf-8))
    (null 0)
    ((vector octet) (length element))))

(defun encode-element (reply element)
  (etypecase element
    (string (encode-string reply element :utf-8))
    (null)
    ((vector octet) (encode-octets reply (coerce element 'octets)))))

(defun send-elements (io elements)
  "Sends ELEMENTS, a list, to IO, one after the other.  Waits for the peer where it is slow."
  (whole-or-broken (io)
    (dolist (element elements)
      (with-line (line)
        (encode-element line element)
        (write-with-backpressure io (output-octets line) 0 (output-fill line))))
    (push-output io)))

(defun append-body (reply body at-once-p)
  "Appends BODY, as SEND-WHOLE takes it, to REPLY; or returns it, if it is to be sent after that.  A
list is appended if AT-ONCE-P."
  (etypecase body
    (list (if at-once-p
              (dolist (element body)
                (encode-element reply element))
              body))
    (octets (if (encode-body reply body) nil body))
    (part (append-file reply body))))

(defun send-whole (exchange status headers length body)
  "Sends the response to the request of EXCHANGE with STATUS, HEADERS and LENGTH octets of content:
BODY, octets, a part of a file, or a list of elements."
  (begin-limited-reply exchange)
  (let ((io (http-io (exchange-http exchange)))
        (event (reply-event exchange status (kept-p exchange headers))))
    (with-reply (reply)
      (encode-response-head reply exchange status headers event length)
      (let ((rest (and (content-wanted-p (head-method (exchange-head exchange)) status)
                       (append-body reply body
                                    ;; A longer list is sent element by element, in a worker, which
                                    ;; waits for its client.  Otherwise slow clients could fill the
                                    ;; heap with copies of what they do not take.
                                    (or (<= length (* 1024 1024))
                                        ;; The thread that gives it later must not wait.
                                        (exchange-deferred-response exchange))))))
        (note-event exchange event)
        (send-reply io reply (if (listp rest) nil rest))
        (when (consp rest)
          (send-elements io rest))
        (note-event exchange :reply-end)))))

(defun announced-length (headers)
  "The Content-Length in HEADERS, an integer, or NIL where there is no valid one."
  (let* ((value (header :content-length headers))
         (length (if (stringp value) (parse-integer value :junk-allowed t) value)))
    (and (typep length 'content-size) length)))

(defun send-nothing (exchange status headers)
  ;; In a response to HEAD, the application may announce the length that GET would have.
  (send-whole exchange status headers
              (or (and (eq :head (head-method (exchange-head exchange)))
                       (announced-length headers))
                  0)
              '()))

(defun send-list (exchange status headers elements)
  (if (and (eq :head (head-method (exchange-head exchange))) (every #'null elements))
      (send-nothing exchange status headers)
      (send-whole exchange status
                  (if (some #'stringp elements) (with-content-type headers *text-type*) headers)
                  (loop for element in elements sum (element-length element) of-type index)
                  elements)))

(defun send-octet-vector (exchange status headers octets)
  (send-whole exchange status headers (length octets) (coerce octets 'octets)))

(define-condition unfit-response (recycling-error)
  ((response :initarg :response :reader unfit-response-response))
  (:report (lambda (condition stream)
             (let ((*print-length* 10) (*print-level* 4))
               (format stream "The application has returned ~S, which is not a Clack response."
                       (unfit-response-response condition)))))
  (:documentation "Signalled when an application returns something that is not a response."))

(deftype final-status ()
  "A status after which a client waits for no other (RFC 9110, section 15).  101 is one, since it
ends HTTP on the connection (section 15.2.2)."
  '(or (eql 101) (integer 200 999)))

(defun proper-list-p (object)
  "True when OBJECT is a list that ends with NIL."
  (and (listp object)
       (handler-case (list-length object) ; NIL for a circular list
         (type-error () nil))
       t))

(defun check-response (response)
  "Signals UNFIT-RESPONSE unless RESPONSE is a list of a status, a list of headers and perhaps a
body."
  (unless (and (proper-list-p response)
               (<= 1 (length response) 3)
               (typep (first response) 'final-status)
               (proper-list-p (second response))
               (or (atom (third response))
                   (proper-list-p (third response))))
    (error 'unfit-response :response response)))

(defun send-response (exchange response)
  "Sends RESPONSE, a list with a body, to the request of EXCHANGE."
  (destructuring-bind (status &optional headers body) response
    (typecase body
      (list (if body
                (send-list exchange status headers body)
                (send-nothing exchange status headers)))
      (pathname (send-file-response exchange status headers body))
      ((vector octet) (send-octet-vector exchange status headers body))
      (t (error 'unfit-response :response response)))))

(defun send-text (exchange status text &optional headers)
  "Sends TEXT, in ASCII, as the response to EXCHANGE, with STATUS and additional HEADERS, a plist."
  (send-list exchange status (list* :content-type "text/plain; charset=us-ascii" headers)
             (list text)))
