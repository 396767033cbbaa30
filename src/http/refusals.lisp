(in-package #:hunchentoot-recycling-taskmaster.http)

(define-condition protocol-error (recycling-error)
  ((refusal :initarg :refusal :reader protocol-error-refusal
            :documentation "The keyword that names the rule that the client broke.")
   (status :initarg :status :reader protocol-error-status
           :documentation "The HTTP status code of the reply, an integer.")
   (section :initarg :section :reader protocol-error-section
            :documentation "The section of an RFC that states the rule, a string.")
   (reason :initarg :reason :reader protocol-error-reason
           :documentation "The rule that was broken, a sentence for the client."))
  (:report (lambda (condition stream)
             (format stream "~D: ~A (~A)"
                     (protocol-error-status condition)
                     (protocol-error-reason condition)
                     (protocol-error-section condition))))
  (:documentation "A client sent octets that are not acceptable HTTP.  The end of the request is
unknown, so the server replies with PROTOCOL-ERROR-STATUS, if the client has sent anything, and
closes the connection."))

(defvar *refusals* '()
  "List of (REFUSAL STATUS SECTION REASON), the last defined first.")

(defun define-refusal (refusal status section reason)
  "Defines the keyword REFUSAL: the server replies with STATUS and REASON, a sentence for the
client.  SECTION of an RFC has the rule."
  (setf *refusals* (remove refusal *refusals* :key #'first))
  (push (list refusal status section reason) *refusals*))

;;; Every reason for which this layer, or a layer above it, refuses a request.  The layer that
;;; sends the reply uses the status; this file sends nothing.

;;; Line structure

(define-refusal :bare-carriage-return 400 "RFC 9112, section 2.2"
  "A carriage return is not followed by a line feed.")
(define-refusal :bare-line-feed 400 "RFC 9112, section 2.2"
  "A line feed is not preceded by a carriage return.")
(define-refusal :too-many-empty-lines 400 "RFC 9112, section 2.2"
  "Too many empty lines precede the request line.")

;;; Request line

(define-refusal :malformed-method 400 "RFC 9112, section 3.1"
  "The method is not a token followed by one space.")
(define-refusal :method-too-long 501 "RFC 9112, section 3"
  "The method is longer than any that this server knows.")
(define-refusal :malformed-target 400 "RFC 9112, section 3.2"
  "The request target is not visible ASCII followed by one space.")
(define-refusal :target-too-long 414 "RFC 9112, section 3"
  "The request line is longer than this server takes.")
(define-refusal :missing-version 400 "RFC 9112, section 3"
  "The request line names no HTTP version.")
(define-refusal :malformed-version 400 "RFC 9112, section 2.3"
  "The request line does not end in an HTTP version.")
(define-refusal :unsupported-version 505 "RFC 9110, section 15.6.6"
  "This server speaks only HTTP/1.1 and HTTP/1.0.")
(define-refusal :unknown-target-form 400 "RFC 9112, section 3.2"
  "The request target is neither a path nor an http URI.")
(define-refusal :fragment-in-target 400 "RFC 9112, section 3.2"
  "The request target has a fragment.")
(define-refusal :asterisk-without-options 400 "RFC 9112, section 3.2.4"
  "The target * goes with the method OPTIONS only.")
(define-refusal :connect-without-authority 400 "RFC 9112, section 3.2.3"
  "The target of CONNECT is a host, a colon and a port.")
(define-refusal :invalid-authority 400 "RFC 9110, section 4.2"
  "The request target names no valid host.")

;;; Fields

(define-refusal :whitespace-before-fields 400 "RFC 9112, section 2.2"
  "White space follows the request line.")
(define-refusal :folded-line 400 "RFC 9112, section 5.2"
  "A header field is continued on a second line.")
(define-refusal :whitespace-before-colon 400 "RFC 9112, section 5.1"
  "White space stands between a field name and its colon.")
(define-refusal :malformed-field-name 400 "RFC 9112, section 5.1"
  "A field name is not a token followed by a colon.")
(define-refusal :control-in-value 400 "RFC 9110, section 5.5"
  "A field value contains a control character.")
(define-refusal :headers-too-large 431 "RFC 6585, section 5"
  "The header fields are larger than this server takes.")
(define-refusal :too-many-headers 431 "RFC 6585, section 5"
  "There are more header fields than this server takes.")

;;; Host

(define-refusal :missing-host 400 "RFC 9112, section 3.2"
  "An HTTP/1.1 request needs a Host field.")
(define-refusal :repeated-host 400 "RFC 9112, section 3.2"
  "There is more than one Host field.")
(define-refusal :invalid-host 400 "RFC 9112, section 3.2"
  "The Host field is not a host with an optional port.")

;;; Framing

(define-refusal :malformed-content-length 400 "RFC 9110, section 8.6"
  "Content-Length is not a decimal number.")
(define-refusal :repeated-content-length 400 "RFC 9110, section 8.6"
  "There is more than one Content-Length.")
(define-refusal :body-too-large 413 "RFC 9110, section 15.5.14"
  "The content is larger than this server takes.")
(define-refusal :two-framings 400 "RFC 9112, section 6.1"
  "Transfer-Encoding and Content-Length exclude each other.")
(define-refusal :transfer-encoding-in-http/1.0 400 "RFC 9112, section 6.1"
  "HTTP/1.0 has no Transfer-Encoding.")
(define-refusal :malformed-transfer-encoding 400 "RFC 9112, section 7"
  "Transfer-Encoding is not a list of plain coding names.")
(define-refusal :chunked-not-final 400 "RFC 9112, section 6.3"
  "The final transfer coding, and no other, must be chunked.")
(define-refusal :unknown-transfer-coding 501 "RFC 9112, section 6.1"
  "This server knows no transfer coding but chunked.")
(define-refusal :unknown-expectation 417 "RFC 9110, section 10.1.1"
  "This server can meet no expectation but 100-continue.")

;;; Chunked bodies

(define-refusal :malformed-chunk-size 400 "RFC 9112, section 7.1"
  "A chunk does not begin with its size in hexadecimal digits.")
(define-refusal :malformed-chunk-extension 400 "RFC 9112, section 7.1.1"
  "A chunk extension is not a name, perhaps with a token or a quoted string.")
(define-refusal :chunk-extensions-too-large 413 "RFC 9112, section 7.1.1"
  "The chunk extensions are larger than this server takes.")
(define-refusal :malformed-chunk-end 400 "RFC 9112, section 7.1"
  "The octets of a chunk are not followed by a line end.")
(define-refusal :trailers-too-large 431 "RFC 9112, section 7.1.2"
  "The trailer fields are larger than this server takes.")

;;; Refusals by the layers above, which have handlers, a heap and a clock

(define-refusal :form-too-large 413 "RFC 9110, section 15.5.14"
  "The form is larger than this server takes.")
(define-refusal :too-many-fields 413 "RFC 9110, section 15.5.14"
  "The form has more fields than this server takes.")
(define-refusal :too-many-files 413 "RFC 9110, section 15.5.14"
  "The form has more files than this server takes.")
(define-refusal :no-memory 503 "RFC 9110, section 15.6.4"
  "Neither memory nor a temporary file has room for the request.")
(define-refusal :queue-timeout 503 "RFC 9110, section 15.6.4"
  "The server is busy.  Please try again in a moment.")
(define-refusal :handler-timeout 503 "RFC 9110, section 15.6.4"
  "The server took too long to answer the request.")
(define-refusal :connect-not-served 501 "RFC 9110, section 9.3.6"
  "This server is not a proxy, and does not serve CONNECT.")

(define-refusal :content-of-handshake 400 "RFC 6455, section 4.1"
  "A request that opens a WebSocket must not have content.")

(define-refusal :plain-http-to-tls 400 "RFC 9110, section 4.2.2"
  "A plain HTTP request was sent to a port for https.")
(define-refusal :tls-to-plain-http 400 "RFC 9110, section 4.2.1"
  "A TLS handshake was begun on a port for plain http.")
(define-refusal :malformed-proxy-header 400 "proxy-protocol.txt, section 2"
  "The connection does not begin with a header of the PROXY protocol.")
(define-refusal :no-trusted-proxy 400 "proxy-protocol.txt, section 2"
  "The connection does not come from a trusted proxy.")
(define-refusal :contradicting-proxies 400 "RFC 7239, section 8.1"
  "Forwarded and X-Forwarded-For name different clients.")
(define-refusal :request-timeout 408 "RFC 9110, section 15.5.9"
  "The request did not arrive in time.")

(defun make-refusal (refusal)
  "The PROTOCOL-ERROR named REFUSAL, a keyword such as :REQUEST-TIMEOUT, not signalled."
  (destructuring-bind (status section reason)
      (or (rest (assoc refusal *refusals*))
          (error "There is no refusal named ~S." refusal))
    (make-condition 'protocol-error :refusal refusal :status status
                                    :section section :reason reason)))

(declaim (ftype (function (symbol) nil) refuse))
(defun refuse (refusal)
  "Signals the PROTOCOL-ERROR named REFUSAL, a keyword such as :REQUEST-TIMEOUT.
Never returns."
  (error (make-refusal refusal)))

