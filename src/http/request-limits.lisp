(in-package #:hunchentoot-recycling-taskmaster.http)

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

(defparameter *reply-grace* 30
  "The number of seconds before the REPLY-RATE of LIMITS applies.")

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
  ;; The maximum number of octets of all chunk extensions of one body. The server refuses more with
  ;; 413 (RFC 9112, section 7.1.1). No argument changes it.
  (chunk-extension-octets (* 16 1024) :type index :read-only t)
  ;; The maximum number of octets of the trailer fields of one body, with their line ends. The
  ;; server refuses more with 431 (RFC 9112, section 7.1.2). No argument changes it.
  (trailer-octets (* 8 1024) :type index :read-only t)
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
  ;; The maximum number of seconds that content received before the handler runs may take, in these
  ;; LIMITS; NIL for no bound. The server refuses a slower client with 408 (RFC 9110, section
  ;; 15.5.9).
  (content-seconds nil :type (or null index) :read-only t)
  ;; The minimum average rate, in octets per second, at which a client has to receive a reply while
  ;; the server waits for it, in these LIMITS; NIL for no bound.
  (reply-rate 1024 :type (or null (and index (integer 1))) :read-only t)
  ;; The number of seconds that a deferred reply may take by default, a real, in these LIMITS; NIL
  ;; for no bound. The server then answers 504 (RFC 9110, section 15.6.5).
  (reply-seconds 60 :type (or null (real 0)) :read-only t)
  ;; The number of seconds that a handler may run before the server answers 503 in its place (RFC
  ;; 9110, section 15.6.4), a real, in these LIMITS; NIL for no bound.
  (handler-seconds nil :type (or null (real 0)) :read-only t)
  ;; The number of seconds that a request may wait for a thread, a real, in these LIMITS; NIL for
  ;; no bound. The server answers one that has waited longer with 503 (RFC 9110, section 15.6.4).
  (queue-seconds nil :type (or null (real 0)) :read-only t)
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
