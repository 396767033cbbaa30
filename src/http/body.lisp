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
          ((or (= octet +semicolon+) (octet-in-class-p octet +whitespace+))
           (step-to skip-to-extension decoder position))
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

(defun next-in-extension (decoder octet position equals-p)
  "Selects the next phase of DECODER by OCTET, at POSITION, which ends a part of an extension: its
name, if EQUALS-P; else its value, or white space before the extension.  Returns the position where
that phase begins."
  (cond ((= octet +semicolon+)
         (charge decoder 1 :chunk-extensions-too-large)
         (step-to begin-extension decoder (1+ position)))
        ((and equals-p (= octet +equals+))
         (charge decoder 1 :chunk-extensions-too-large)
         (step-to begin-extension-value decoder (1+ position)))
        ((octet-in-class-p octet +whitespace+)
         (if equals-p
             (step-to end-extension-name decoder position)
             (step-to skip-to-extension decoder position)))
        (t
         (refuse-octet octet :malformed-chunk-extension))))

(defun end-of-run (decoder octets position end class)
  "The end of the run of octets of CLASS that begins in OCTETS at POSITION.  Charges the run to the
budget of DECODER."
  (declare (type octets octets) (type index position end) (type octet class) #.*plain-policy*)
  (let ((stop (run-end octets position end class)))
    (charge decoder (- stop position) :chunk-extensions-too-large)
    stop))

;;; RFC 9112, section 7.1.1: a recipient MUST ignore unrecognized extensions, and ought to limit
;;; their total length.
;;; chunk-ext = *( BWS ";" BWS chunk-ext-name [ BWS "=" BWS chunk-ext-val ] ), where a name is a
;;; token and a value a token or a quoted-string.  BWS MUST be parsed and removed.

(define-step skip-to-extension (decoder octets position end)
  "Takes the white space before the semicolon of an extension."
  (let ((stop (end-of-run decoder octets position end +whitespace+)))
    (if (= stop end)
        stop
        (next-in-extension decoder (aref octets stop) stop nil))))

(define-step begin-extension (decoder octets position end)
  "Takes the white space before the name of an extension."
  (let ((stop (end-of-run decoder octets position end +whitespace+)))
    (cond ((= stop end) stop)
          ((octet-in-class-p (aref octets stop) +token+)
           (step-to read-extension-name decoder stop))
          (t
           (refuse-octet (aref octets stop) :malformed-chunk-extension)))))

(define-step read-extension-name (decoder octets position end)
  "Takes the name of an extension."
  (let ((stop (end-of-run decoder octets position end +token+)))
    (cond ((= stop end) stop)
          ((= (aref octets stop) +carriage-return+)
           (step-to end-chunk-line decoder (1+ stop)))
          (t
           (next-in-extension decoder (aref octets stop) stop t)))))

(define-step end-extension-name (decoder octets position end)
  "Takes the white space after the name of an extension."
  (let ((stop (end-of-run decoder octets position end +whitespace+)))
    (if (= stop end)
        stop
        (next-in-extension decoder (aref octets stop) stop t))))

(define-step begin-extension-value (decoder octets position end)
  "Takes the white space before the value of an extension, and the quote that begins one."
  (let ((stop (end-of-run decoder octets position end +whitespace+)))
    (cond ((= stop end) stop)
          ((= (aref octets stop) +quote+)
           (charge decoder 1 :chunk-extensions-too-large)
           (step-to read-quoted-value decoder (1+ stop)))
          ((octet-in-class-p (aref octets stop) +token+)
           (step-to read-extension-value decoder stop))
          (t
           (refuse-octet (aref octets stop) :malformed-chunk-extension)))))

(define-step read-extension-value (decoder octets position end)
  "Takes a value of an extension that is a token."
  (let ((stop (end-of-run decoder octets position end +token+)))
    (cond ((= stop end) stop)
          ((= (aref octets stop) +carriage-return+)
           (step-to end-chunk-line decoder (1+ stop)))
          (t
           (next-in-extension decoder (aref octets stop) stop nil)))))

(define-step read-quoted-value (decoder octets position end)
  "Takes a quoted value of an extension, through a backslash or the closing quote."
  ;; RFC 9110, section 5.6.4: qdtext = HTAB / SP / %x21 / %x23-5B / %x5D-7E / obs-text
  (loop for octet = (aref octets position)
        do (cond ((= octet +quote+)
                  (charge decoder 1 :chunk-extensions-too-large)
                  (return (step-to end-quoted-value decoder (1+ position))))
                 ((not (octet-in-class-p octet +value+))
                  (refuse-octet octet :malformed-chunk-extension)))
           (charge decoder 1 :chunk-extensions-too-large)
           (incf position)
           (when (= octet +backslash+)
             (return (step-to read-quoted-pair decoder position)))
        when (= position end)
          return position))

(define-step read-quoted-pair (decoder octets position end)
  "Takes the octet after a backslash."
  ;; RFC 9110, section 5.6.4: quoted-pair = "\" ( HTAB / SP / VCHAR / obs-text )
  (unless (octet-in-class-p (aref octets position) +value+)
    (refuse-octet (aref octets position) :malformed-chunk-extension))
  (charge decoder 1 :chunk-extensions-too-large)
  (step-to read-quoted-value decoder (1+ position)))

(define-step end-quoted-value (decoder octets position end)
  "Takes the octet after a quoted value of an extension."
  (let ((octet (aref octets position)))
    (if (= octet +carriage-return+)
        (step-to end-chunk-line decoder (1+ position))
        (next-in-extension decoder octet position nil))))

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
  (let ((stop (value-end octets position end)))
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
