(in-package #:hunchentoot-recycling-taskmaster.http)

(deftype content-size ()
  "A number of octets of content: far over any memory, yet sums of two are cheap."
  '(unsigned-byte 60))

(defconstant +most-content+ (1- (expt 2 60))
  "The largest content size there is.")

(define-record (limits (:include opaque) (:copier nil))
  "How much one request may ask of us.  Immutable: threads share it freely, and
changed limits are a new object.  All sizes are octets."
  (request-line-octets (* 16 1024) :type index :read-only t
   :documentation "The most octets of the request line of these LIMITS, with its
line end and the empty lines before it; beyond it 414, or 501 while the method
lasts (RFC 9112, section 3).")
  (header-octets (* 32 1024) :type index :read-only t
   :documentation "The most octets of a whole head of these LIMITS: of the request line,
all header lines and the empty line, with their line ends; beyond it 431 (RFC 6585,
section 5).")
  (header-count 128 :type index :read-only t
   :documentation "The most header lines of these LIMITS; beyond it 431 (RFC 6585,
section 5).")
  (body-octets nil :type (or null content-size) :read-only t
   :documentation "The most octets of content of these LIMITS, NIL for no bound;
beyond it 413 (RFC 9110, section 15.5.14).")
  (chunk-extension-octets (* 16 1024) :type index :read-only t
   :documentation "The most octets of all chunk extensions in one body of these
LIMITS; beyond it 413 (RFC 9112, section 7.1.1).")
  (trailer-octets (* 8 1024) :type index :read-only t
   :documentation "The most octets of the trailer fields of one body of these
LIMITS, line ends included; beyond it 431 (RFC 9112, section 7.1.2).")
  (raw-octets (* 64 1024 1024) :type (or null content-size) :read-only t
   :documentation "The most octets of content that is kept whole of these LIMITS, NIL for
no bound; beyond it 413 (RFC 9110, section 15.5.14).")
  (form-octets (* 2 1024 1024) :type (or null content-size) :read-only t
   :documentation "The most octets of a form that are kept of these LIMITS, files apart,
NIL for no bound; beyond it 413 (RFC 9110, section 15.5.14).")
  (early-octets (* 1024 1024 1024) :type content-size :read-only t
   :documentation "The most octets of content of these LIMITS that are received before the
request is served; 0 for none.")
  (content-rate 1024 :type (or null (and index (integer 1))) :read-only t
   :documentation "How many octets of content a second of these LIMITS a client has to
send on average, NIL for no bound; beyond it 408 (RFC 9110, section 15.5.9).")
  (content-grace 10 :type index :read-only t
   :documentation "After how many seconds CONTENT-RATE of these LIMITS counts.")
  (content-seconds nil :type (or null index) :read-only t
   :documentation "How many seconds all content of these LIMITS that is received before the
request is served may take, NIL for no bound; beyond it 408 (RFC 9110, section
15.5.9).")
  (reply-rate 1024 :type (or null (and index (integer 1))) :read-only t
   :documentation "How many octets of a reply a second of these LIMITS a client has to take
on average while it is waited for, NIL for no bound.")
  (reply-grace 30 :type index :read-only t
   :documentation "After how many seconds REPLY-RATE of these LIMITS counts.")
  (field-count 10000 :type (or null content-size) :read-only t
   :documentation "The most fields of a form of these LIMITS, files among them, NIL for no
bound; beyond it 413 (RFC 9110, section 15.5.14).")
  (file-count 100 :type (or null content-size) :read-only t
   :documentation "The most files in a form of these LIMITS, NIL for no bound; beyond it 413
(RFC 9110, section 15.5.14)."))

(setf (documentation 'make-limits 'function)
      "New LIMITS; each keyword is one of its slots: :REQUEST-LINE-OCTETS (16 KiB),
:HEADER-OCTETS (32 KiB), :HEADER-COUNT (128), :BODY-OCTETS (NIL), :CHUNK-EXTENSION-OCTETS
(16 KiB), :TRAILER-OCTETS (8 KiB), :RAW-OCTETS (64 MiB), :FORM-OCTETS (2 MiB), :EARLY-OCTETS
(1 GiB), :CONTENT-RATE (1024), :CONTENT-GRACE (10), :CONTENT-SECONDS (NIL), :REPLY-RATE
(1024), :REPLY-GRACE (30), :FIELD-COUNT (10,000), :FILE-COUNT (100).")

(defparameter *default-limits* (make-limits)
  "The limits of a parser that was given none.")
