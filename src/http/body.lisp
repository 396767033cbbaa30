(in-package #:hunchentoot-recycling-taskmaster.http)

;;; A body decoder finds the content among the octets of a body.  Like the head parser, it is a
;;; state machine that examines each octet once, in order.  It keeps no octets.
;;;
;;; The decoder checks trailer fields like header fields, and drops them.  RFC 9110, section
;;; 6.5.1, allows that, and a trailer field must not change the meaning of the head.
;;;
;;; In the phases TAKE-CONTENT and TAKE-CHUNK, the next REMAINING octets are content.  All other
;;; phases are functions that take the octets around the content.

(defstruct (body-decoder (:include opaque) (:constructor %make-body-decoder (limits)) (:copier nil)
                         (:conc-name decoder-))
  "Finds the content of one request; see DECODE-BODY."
  (limits *default-limits* :type limits)
  (phase nil :type symbol)              ; NIL after the end of the body
  (remaining 0 :type content-size)      ; octets of content up to the next phase
  (room 0 :type content-size)           ; octets that further chunks may have
  (digits 0 :type index)                ; number of digits of the chunk size so far
  (budget 0 :type index)                ; octets that extensions, then trailers, may have
  (part :before :type symbol)           ; of chunk extensions: see *EXTENSION-PARTS*
  (line-p nil :type boolean))           ; true within a trailer line, after its first octet

(defun make-body-decoder (framing &optional (limits *default-limits*))
  "A decoder for a body with FRAMING, a HEAD-FRAMING, under LIMITS."
  (check-type framing (or (member :none :chunked) content-size))
  (check-type limits limits)
  (let ((decoder (%make-body-decoder limits)))
    (case framing
      (:none)
      (:chunked
       (setf (decoder-phase decoder) 'read-chunk-size
             (decoder-room decoder) (or (limits-body-octets limits) +most-content+)
             (decoder-budget decoder) (limits-chunk-extension-octets limits)))
      (t
       (setf (decoder-phase decoder) (and (plusp framing) 'take-content)
             (decoder-remaining decoder) framing)))
    decoder))

(defun body-done-p (decoder)
  "True if DECODER has seen the last octet of the body."
  (null (decoder-phase decoder)))

(defun body-octets-due (decoder)
  "The number of octets, at least 1 and at most a buffer's size, that the client must still send
before the body can end.  A caller that reads that many never waits for octets beyond the body.
DECODER has not seen the end of the body."
  (max 1 (min (decoder-remaining decoder) (* 16 1024))))

(defmacro define-step (name (decoder octets position end) documentation &body body)
  "Defines NAME as a phase of DECODER that gets OCTETS from POSITION below END, at least one.  BODY
returns the position after the octets that it took, and may set a new phase."
  `(defun ,name (,decoder ,octets ,position ,end)
     ,documentation
     (declare (type body-decoder ,decoder) (type octets ,octets) (type index ,position ,end)
              (ignorable ,end) #.*plain-policy*)
     ,@body))

(defmacro step-to (phase decoder position)
  "Makes PHASE the phase of DECODER; returns POSITION."
  `(progn (setf (decoder-phase ,decoder) ',phase)
          ,position))

;;; Chunks.  RFC 9112, section 7.1:
;;; chunk = chunk-size [ chunk-ext ] CRLF chunk-data CRLF, chunk-size = 1*HEXDIG

(defconstant +most-size-digits+ 64
  "The maximum number of digits of a chunk size, so that no client sends leading zeros for ever.")

(define-step read-chunk-size (decoder octets position end)
  "Takes the hexadecimal digits of a chunk size."
  (loop for digit = (digit-char-p (code-char (aref octets position)) 16)
        while digit
        do (add-size-digit decoder digit)
           (incf position)
        when (= position end)
          do (return-from read-chunk-size position))
  (when (zerop (decoder-digits decoder))
    (refuse :malformed-chunk-size))
  (end-chunk-size decoder)
  (let ((octet (aref octets position)))
    (cond ((= octet +carriage-return+)
           (step-to end-chunk-line decoder (1+ position)))
          ((or (= octet 59) (octet-in-class-p octet +whitespace+))
           (setf (decoder-part decoder) :before)
           (step-to read-extensions decoder position))
          (t
           (refuse-octet octet :malformed-chunk-size)))))

(defun add-size-digit (decoder digit)
  "Appends DIGIT to the chunk size."
  ;; RFC 9112, section 7.1: MUST anticipate large numerals and prevent overflows.
  (when (or (= +most-size-digits+ (decoder-digits decoder))
            (> (decoder-remaining decoder) (ash +most-content+ -4)))
    (refuse :body-too-large))
  (incf (decoder-digits decoder))
  (setf (decoder-remaining decoder) (+ (* 16 (decoder-remaining decoder)) digit)))

(defun end-chunk-size (decoder)
  "Refuses the chunk whose size was read if the content would exceed its limit."
  (when (> (decoder-remaining decoder) (decoder-room decoder))
    (refuse :body-too-large))
  (decf (decoder-room decoder) (decoder-remaining decoder))
  (setf (decoder-digits decoder) 0))

(defun charge (decoder octets refusal)
  "Subtracts a number of OCTETS from the budget of DECODER.  Refuses the body with REFUSAL if the
budget is too small."
  (let ((left (- (decoder-budget decoder) octets)))
    (when (minusp left)
      (refuse refusal))
    (setf (decoder-budget decoder) left)))

;;; RFC 9112, section 7.1.1: a recipient MUST ignore unrecognized extensions, and ought to limit
;;; their total length.
;;; chunk-ext = *( BWS ";" BWS chunk-ext-name [ BWS "=" BWS chunk-ext-val ] ), where a name is a
;;; token and a value a token or a quoted-string.  BWS MUST be parsed and removed.

(defparameter *extension-parts*
  '(:before (:space :before :semicolon :begin)
    :begin (:space :begin :token :name)
    :name (:token :name :space :named :semicolon :begin :equals :equals :return :end)
    :named (:space :named :semicolon :begin :equals :equals)
    :equals (:space :equals :quote :quoted :token :value)
    :value (:token :value :space :before :semicolon :begin :return :end)
    ;; RFC 9110, section 5.6.4: qdtext = HTAB / SP / %x21 / %x23-5B / %x5D-7E / obs-text,
    ;; quoted-pair = "\" ( HTAB / SP / VCHAR / obs-text )
    :quoted (:quote :unquoted :backslash :pair :any :quoted)
    :pair (:any :quoted)
    :unquoted (:space :before :semicolon :begin :return :end))
  "For each part of chunk extensions a plist: which part begins with or goes on by an octet of which
kind.  :ANY is an octet of a value.")

(defun next-extension-part (part octet)
  "The part of *EXTENSION-PARTS* in which OCTET is, after PART; NIL where it is malformed."
  (let ((parts (getf *extension-parts* part))
        (kind (cond ((octet-in-class-p octet +whitespace+) :space)
                    ((octet-in-class-p octet +token+) :token)
                    ((= octet 59) :semicolon)
                    ((= octet 61) :equals)
                    ((= octet 34) :quote)
                    ((= octet 92) :backslash)
                    ((= octet +carriage-return+) :return))))
    (or (getf parts kind)
        (and (octet-in-class-p octet +value+) (getf parts :any)))))

(define-step read-extensions (decoder octets position end)
  "Takes extensions up to the carriage return behind them."
  (loop for octet = (aref octets position)
        for part = (next-extension-part (decoder-part decoder) octet)
        unless part
          do (refuse-octet octet :malformed-chunk-extension)
        do (incf position)
        when (eq :end part)
          return (step-to end-chunk-line decoder position)
        do (charge decoder 1 :chunk-extensions-too-large)
           (setf (decoder-part decoder) part)
        when (= position end)
          return position))

(define-step end-chunk-line (decoder octets position end)
  "Takes the line feed after a chunk size.  A chunk of size 0 is the last."
  (expect-line-feed (aref octets position))
  (cond ((plusp (decoder-remaining decoder))
         (step-to take-chunk decoder (1+ position)))
        (t
         (setf (decoder-budget decoder) (limits-trailer-octets (decoder-limits decoder)))
         (step-to read-trailer decoder (1+ position)))))

(define-step end-chunk (decoder octets position end)
  "Takes the carriage return after the octets of a chunk."
  (unless (= (aref octets position) +carriage-return+)
    (refuse-octet (aref octets position) :malformed-chunk-end))
  (step-to end-chunk-end decoder (1+ position)))

(define-step end-chunk-end (decoder octets position end)
  "Takes the line feed after the octets of a chunk."
  (expect-line-feed (aref octets position))
  (step-to read-chunk-size decoder (1+ position)))

;;; Trailers.  RFC 9112, section 7.1.2: trailer-section = *( field-line CRLF )

(define-step read-trailer (decoder octets position end)
  "Takes the name of a trailer field, or the beginning of the last line."
  (let* ((stop (run-end octets position end +token+))
         (named-p (or (decoder-line-p decoder) (< position stop))))
    (charge decoder (- stop position) :trailers-too-large)
    (setf (decoder-line-p decoder) named-p)
    (cond ((= stop end) stop)
          ((and named-p (= (aref octets stop) +colon+))
           (step-to skip-trailer-value decoder stop))
          ((and (not named-p) (= (aref octets stop) +carriage-return+))
           (step-to end-body decoder (1+ stop)))
          (t
           (refuse-name-end (aref octets stop) (not named-p) nil)))))

(define-step skip-trailer-value (decoder octets position end)
  "Takes the colon and the value of a trailer field, and the carriage return after it."
  (let ((stop (run-end octets position end +value+)))
    (charge decoder (- stop position) :trailers-too-large)
    (cond ((= stop end) stop)
          ((= (aref octets stop) +carriage-return+)
           (step-to end-trailer decoder (1+ stop)))
          (t
           (refuse-octet (aref octets stop) :control-in-value)))))

(define-step end-trailer (decoder octets position end)
  "Takes the line feed of a trailer line."
  (expect-line-feed (aref octets position))
  (charge decoder 2 :trailers-too-large)
  (setf (decoder-line-p decoder) nil)
  (step-to read-trailer decoder (1+ position)))

(define-step end-body (decoder octets position end)
  "Takes the last line feed of the body."
  (expect-line-feed (aref octets position))
  (step-to nil decoder (1+ position)))

;;; The whole body

(defun found-content (decoder position end)
  "Takes the content from POSITION to END at most; returns the values of DECODE-BODY."
  (let* ((size (min (decoder-remaining decoder) (- end position)))
         (stop (+ position size)))
    (when (zerop (decf (decoder-remaining decoder) size))
      (setf (decoder-phase decoder)
            (and (eq 'take-chunk (decoder-phase decoder)) 'end-chunk)))
    (values position stop stop)))

(defun decode-body (decoder octets start end)
  "Finds content in OCTETS from START below END.  Returns three positions: the start of the content,
its end (equal to the start if there is none), and the end of the octets that DECODER has used.  The
caller calls again from that third position, with more octets if all were used, until BODY-DONE-P of
DECODER is true.  DECODER uses no octet after the body.
Signals a PROTOCOL-ERROR with status 400, 413 or 431 as soon as the octets received so far cannot
become an acceptable body (RFC 9112, section 7.1)."
  (declare (type body-decoder decoder) #.*plain-policy*)
  (check-range octets start end)
  (loop with position of-type index = start
        for phase = (decoder-phase decoder)
        while (and phase (< position end))
        do (if (member phase '(take-content take-chunk))
               (return (found-content decoder position end))
               (setf position (funcall phase decoder octets position end)))
        finally (return (values position position position))))
