(in-package #:hunchentoot-recycling-taskmaster.http)

(define-condition protocol-error (recycling-error)
  ((refusal :initarg :refusal :reader protocol-error-refusal
            :documentation "The keyword that names the rule that the client broke.")
   (status :initarg :status :reader protocol-error-status
           :documentation "The HTTP status code of the reply, an integer.")
   (reason :initarg :reason :reader protocol-error-reason
           :documentation "The rule that was broken, a sentence for the client."))
  (:report (lambda (condition stream)
             (format stream "~D: ~A"
                     (protocol-error-status condition) (protocol-error-reason condition))))
  (:documentation "A client sent octets that are not acceptable HTTP.  The end of the request is
unknown, so the server replies with PROTOCOL-ERROR-STATUS, if the client has sent anything, and
closes the connection."))

;;; Every reason for which this layer, or a layer above it, refuses a request.  The layer that
;;; sends the reply uses the status; this file sends nothing.

(defparameter *refusals*
  '(;; RFC 9112, sections 2.2, 2.3 and 3
    (:malformed-request-line 400
     "The request does not begin with a method, a target and an HTTP version in one line.")
    (:method-too-long 501 "The method is longer than any that this server knows.")
    (:target-too-long 414 "The request line is longer than this server takes.")
    ;; RFC 9110, section 15.6.6
    (:unsupported-version 505 "This server speaks only HTTP/1.1 and HTTP/1.0.")
    ;; RFC 9112, section 3.2
    (:malformed-target 400
     "The request target is no path or http URI without a fragment, and none for its method.")
    ;; RFC 9112, sections 2.2 and 5
    (:malformed-field 400
     "A line is no header field: a name, a colon and a value without control characters.")
    ;; RFC 6585, section 5
    (:headers-too-large 431 "There are more header fields than this server takes.")
    ;; RFC 9112, section 3.2
    (:invalid-host 400 "A request needs one Host field: a host with an optional port.")
    ;; RFC 9110, section 8.6
    (:malformed-content-length 400 "Content-Length is not one decimal number.")
    ;; RFC 9110, section 15.5.14
    (:body-too-large 413 "The content is larger than this server takes.")
    ;; RFC 9112, sections 6.1, 6.3 and 7
    (:malformed-transfer-encoding 400
     "Transfer-Encoding does not end in chunked, or there is Content-Length, too, or HTTP/1.0.")
    (:unknown-transfer-coding 501 "This server knows no transfer coding but chunked.")
    ;; RFC 9110, section 10.1.1
    (:unknown-expectation 417 "This server can meet no expectation but 100-continue.")
    ;; RFC 9112, section 7.1
    (:malformed-chunk 400
     "A chunk is not a size in hexadecimal digits, perhaps extensions, and so many octets.")
    (:chunk-extensions-too-large 413 "The chunk extensions are larger than this server takes.")
    (:trailers-too-large 431 "The trailer fields are larger than this server takes.")
    ;; Refusals by the layers above, which have handlers, a heap and a clock
    ;; RFC 9110, section 15.5.14
    (:form-too-large 413 "The form is larger than this server takes.")
    (:too-many-fields 413 "The form has more fields than this server takes.")
    (:too-many-files 413 "The form has more files than this server takes.")
    ;; RFC 9110, section 15.6.4
    (:no-memory 503 "Neither memory nor a temporary file has room for the request.")
    (:busy 503 "The server is busy.  Please try again in a moment.")
    (:handler-timeout 503 "The server took too long to answer the request.")
    ;; RFC 9110, section 9.3.6
    (:connect-not-served 501 "This server is not a proxy, and does not serve CONNECT.")
    ;; RFC 9110, section 4.2.2
    (:plain-http-to-tls 400 "A plain HTTP request was sent to a port for https.")
    ;; proxy-protocol.txt, section 2
    (:malformed-proxy-header 400
     "The connection does not begin with a header of the PROXY protocol.")
    (:no-trusted-proxy 400 "The connection does not come from a trusted proxy.")
    ;; RFC 9110, section 15.5.9
    (:request-timeout 408 "The request did not arrive in time."))
  "A list of (REFUSAL STATUS REASON), the last a sentence for the client.")

(defun make-refusal (refusal)
  "The PROTOCOL-ERROR named REFUSAL, a keyword such as :REQUEST-TIMEOUT, not signalled."
  (destructuring-bind (status reason) (rest (assoc refusal *refusals*))
    (make-condition 'protocol-error :refusal refusal :status status :reason reason)))

(declaim (ftype (function (symbol) nil) refuse))
(defun refuse (refusal)
  "Signals the PROTOCOL-ERROR named REFUSAL, a keyword such as :REQUEST-TIMEOUT.
Never returns."
  (error (make-refusal refusal)))

;;; Limits

(deftype content-size ()
  "A number of octets of content.  It can exceed any memory, yet the sum of two is cheap to
compute."
  '(unsigned-byte 60))

(defconstant +most-content+ (1- (expt 2 60))
  "The largest content size there is.")

(deftype timeout ()
  "A limit of time: seconds, a real; NIL for none; :READ-TIMEOUT for that of the server."
  '(or null (real 0) (eql :read-timeout)))

(defparameter *content-grace* 10
  "The number of seconds before the CONTENT-RATE of LIMITS applies.")

(defstruct (limits (:include opaque) (:copier nil))
  "The limits of one request.  A limits object never changes, so threads can share it; other limits
are a new object.  All sizes are in octets."
  ;; The maximum number of octets of the request line in these LIMITS, with its line end and the
  ;; empty lines before it. The server refuses more with 414, or with 501 within the method (RFC
  ;; 9112, section 3).
  (request-line-octets (* 16 1024) :type index :read-only t)
  ;; The maximum number of octets of a whole head in these LIMITS: the request line, all header
  ;; lines and the empty line, with their line ends. The server refuses more with 431 (RFC 6585,
  ;; section 5).
  (header-octets (* 32 1024) :type index :read-only t)
  ;; The maximum number of header lines in these LIMITS. The server refuses more with 431 (RFC
  ;; 6585, section 5).
  (header-count 128 :type index :read-only t)
  ;; The maximum number of octets of content in these LIMITS, NIL for no bound. The server refuses
  ;; more with 413 (RFC 9110, section 15.5.14).
  (body-octets nil :type (or null content-size) :read-only t)
  ;; The maximum number of octets of content that the server keeps as a whole, in these LIMITS; NIL
  ;; for no bound. The server refuses more with 413 (RFC 9110, section 15.5.14).
  (raw-octets (* 64 1024 1024) :type (or null content-size) :read-only t)
  ;; The maximum number of octets of a form that the server keeps, without its files, in these
  ;; LIMITS; NIL for no bound. The server refuses more with 413 (RFC 9110, section 15.5.14).
  (form-octets (* 2 1024 1024) :type (or null content-size) :read-only t)
  ;; The minimum average rate, in octets per second, at which a client has to send content, in
  ;; these LIMITS; NIL for no bound. The server refuses a slower client with 408 (RFC 9110, section
  ;; 15.5.9).
  (content-rate 1024 :type (or null (and index (integer 1))) :read-only t)
  ;; The minimum average rate, in octets per second, at which a client has to receive a reply while
  ;; the server waits for it, in these LIMITS; NIL for no bound.
  (reply-rate 1024 :type (or null (and index (integer 1))) :read-only t)
  ;; The number of seconds that a deferred reply may take by default, a real, in these LIMITS; NIL
  ;; for no bound. The server then answers 504 (RFC 9110, section 15.6.5).
  (reply-seconds 60 :type (or null (real 0)) :read-only t)
  ;; The number of seconds that a handler may run before the server answers 503 in its place (RFC
  ;; 9110, section 15.6.4), a real, in these LIMITS; NIL for no bound.
  (handler-seconds nil :type (or null (real 0)) :read-only t)
  ;; The number of seconds that a TLS handshake may take, a real, in these LIMITS; NIL for no
  ;; bound, :READ-TIMEOUT for the server's own.
  (handshake-seconds :read-timeout :type timeout :read-only t)
  ;; The number of seconds that the head of a request may take, a real, in these LIMITS; NIL for no
  ;; bound, :READ-TIMEOUT for the server's own. The server refuses a slower client with 408 (RFC
  ;; 9110, section 15.5.9).
  (head-seconds :read-timeout :type timeout :read-only t)
  ;; The number of seconds that a connection may wait for its first request or the next one, a
  ;; real, in these LIMITS; NIL for no bound, :READ-TIMEOUT for the server's own.
  (idle-seconds :read-timeout :type timeout :read-only t)
  ;; The number of requests after which a connection ends, in these LIMITS; NIL for no bound.
  (connection-requests nil :type (or null (and index (integer 1))) :read-only t)
  ;; The number of connections that one address may have open, in these LIMITS; NIL for no bound.
  ;; The server refuses more with 503 (RFC 9110, section 15.6.4).
  (address-connections nil :type (or null (and index (integer 1))) :read-only t)
  ;; The maximum number of fields in a form, files included, in these LIMITS; NIL for no bound. The
  ;; server refuses more with 413 (RFC 9110, section 15.5.14).
  (field-count 10000 :type (or null content-size) :read-only t)
  ;; The maximum number of files in a form, in these LIMITS; NIL for no bound. The server refuses
  ;; more with 413 (RFC 9110, section 15.5.14).
  (file-count 100 :type (or null content-size) :read-only t))

(defparameter *default-limits* (make-limits)
  "The limits that MAKE-PARSER uses by default.")
