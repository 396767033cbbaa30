(in-package #:hunchentoot-recycling-taskmaster.http)

;;;; The parser of request heads keeps nothing: where a head has come in part, its octets are parsed
;;;; anew when more have come.  It judges a line as soon as its octets tell.  So the decision to
;;;; refuse a request depends on its octets alone, not on how they were split in transit.  A client
;;;; that sends octets one by one costs no more than one that sends as many requests.
;;;;
;;;; It is strict: if it were more lenient than a proxy in front of it, an attacker could make the
;;;; two see different requests.

(declaim (inline line-end-after))
(defun line-end-after (octets position end refusal)
  "The position after the line end in OCTETS at POSITION; NIL where END comes before.  Refuses any
other octets with REFUSAL."
  (declare (type octets octets) (type index position end))
  (cond ((= position end) nil)
        ((/= +carriage-return+ (aref octets position)) (refuse refusal))
        ((= (1+ position) end) nil)
        ;; RFC 9112, section 2.2: MUST consider an element with a bare CR invalid.
        ((/= +line-feed+ (aref octets (1+ position))) (refuse refusal))
        (t (the index (+ 2 position)))))

(defun read-request-line (head octets start end)
  "Reads the request line in OCTETS from START below END into HEAD, as far as it has come.  Returns
the position after it, or NIL where more has to come."
  (declare (type head head) (type octets octets) (type index start end) #.*plain-policy*)
  ;; RFC 9112, section 3: request-line = method SP request-target SP HTTP-version
  (flet ((word-end (class octet)        ; which must follow
           (declare (type octet class octet))
           (let ((stop (run-end octets start end class)))
             (when (= stop end)
               (return-from read-request-line nil))
             (unless (and (= octet (aref octets stop)) (< start stop))
               (refuse :malformed-request-line))
             stop)))
    (let ((stop (word-end +token+ +space+)))
      (setf (head-method head) (word-in *methods* octets start stop 0)
            start (1+ stop)))
    (let ((stop (word-end +visible+ +space+)))
      (setf (head-uri head) (latin-1-text octets start stop)
            start (1+ stop)))
    (let* ((stop (word-end +visible+ +carriage-return+))
           (version (word-in *versions* octets start stop 0)))
      (unless (member version '(:http/1.0 :http/1.1))
        ;; RFC 9112, section 2.3: HTTP-version = HTTP-name "/" DIGIT "." DIGIT, case-sensitive.
        (let ((text (string version)))
          (unless (and (= 8 (length text))
                       (string= "HTTP/" text :end2 5)
                       (digit-char-p (char text 5))
                       (char= #\. (char text 6))
                       (digit-char-p (char text 7)))
            (refuse :malformed-request-line))
          (unless (char= #\1 (char text 5))
            (refuse :unsupported-version)))
        ;; RFC 9110, section 2.5: a later minor version counts as the latest known one.
        (setf version :http/1.1))
      (setf (head-protocol head) version
            start stop)))
  (let ((next (line-end-after octets start end :malformed-request-line))
        (uri (head-uri head)))
    (declare (type text uri))
    (when next
      ;; RFC 9112, section 3.2: no form has a fragment.  Some proxies would read it as a part of the
      ;; path, and others not.
      (when (loop for char across uri thereis (char= #\# char)) ; FIND would call a function
        (refuse :malformed-target))
      (unless (and (char= #\/ (schar uri 0)) ; RFC 9112, section 3.2.1
                   (not (eq :connect (head-method head))))
        (settle-unusual-target head)))
    next))

(defun make-http/2-head (fields content-p limits)
  "The HEAD of a request of HTTP/2 with FIELDS, a list of pairs of octets, those that begin with a
colon first, which a decoder of HTTP/2 has found well-formed; CONTENT-P is true if content may
follow.  Signals a PROTOCOL-ERROR as PARSE-HEAD does under LIMITS (RFC 9113, section 8.3)."
  (declare (type limits limits) #.*plain-policy*)
  (let ((head (start-head)) (authority nil) (others '()))
    (setf (head-protocol head) :http/2.0)
    (flet ((text (octets)
             (declare (type octets octets))
             (latin-1-text octets 0 (length octets))))
      (loop for (name . value) in fields
            do (if (/= +colon+ (aref name 0))
                   (setf others (add-field (word-in *headers* name 0 (length name) 32) (text value)
                                           others))
                   (ecase (code-char (aref name 1))
                     (#\m
                      (setf (head-method head) (word-in *methods* value 0 (length value) 0)))
                     (#\p               ; not empty
                      (when (or (< (run-end value 0 (length value) +visible+) (length value))
                                (find 35 value)) ; a fragment
                        (refuse :malformed-target))
                      (when (> (length value) (limits-request-line-octets limits))
                        (refuse :target-too-long))
                      (setf (head-uri head) (text value)))
                     (#\a
                      (setf authority (text value)))
                     (#\s))))         ; as the connection says
      (when (eq :connect (head-method head)) ; it has no path
        (refuse :connect-not-served))
      (unless (eql 0 (position #\/ (head-uri head)))
        (settle-unusual-target head))
      ;; Section 8.3.1: a Host field that differs from :authority makes the request malformed.
      (let ((host (assoc :host others :test #'eq)))
        (cond ((and host authority (not (equalp (cdr host) authority)))
               (refuse :invalid-host))
              ((and authority (null host))
               (setf others (append others (list (cons :host authority)))))))
      (settle-head head (nreverse others) limits)
      (setf (head-keep-alive-p head) nil ; its stream ends with it
            (head-upgrade head) nil)
      (when (and content-p (not (head-header head :content-length)))
        (setf (head-framing head) :chunked)) ; by its stream
      head)))

(defun read-field (octets start end)
  "Reads the field line in OCTETS from START below END.  Returns the position after it, the name and
the value; or NIL where more has to come."
  (declare (type octets octets) (type index start end) #.*plain-policy*)
  ;; RFC 9112, section 5: field-line = field-name ":" OWS field-value OWS
  (let* ((name-end (run-end octets start end +token+))
         (from (1+ name-end)))
    (declare (type index name-end from))
    (cond ((= name-end end) nil)
          ((not (and (= +colon+ (aref octets name-end)) (< start name-end)))
           (refuse :malformed-field))
          (t
           (let* ((to (run-end octets from end +value+))
                  (next (line-end-after octets to end :malformed-field)))
             (declare (type index to))
             (when next
               (loop while (and (< from to) (octet-in-class-p (aref octets from) +whitespace+))
                     do (incf from))
               (loop while (and (< from to) (octet-in-class-p (aref octets (1- to)) +whitespace+))
                     do (decf to))
               (values next
                       (word-in *headers* octets start name-end 32)
                       (latin-1-text octets from to))))))))

(defun parse-head (octets start end &optional (limits *default-limits*))
  "Parses the request head in OCTETS from START below END, under LIMITS.  Returns the HEAD and the
position after its last octet.  Returns NIL where it has come in part: then the caller keeps the
octets, receives more, and calls again with all of them.  The head shares no memory with OCTETS.
Signals a PROTOCOL-ERROR with status 400, 413, 414, 417, 431, 501 or 505 as soon as the octets
received so far cannot become an acceptable request (RFC 9112, section 2.2)."
  (declare (type index start end) (type limits limits) #.*plain-policy*)
  (check-range octets start end)
  (let ((head (start-head))
        (request-line-p t)
        (fields '())                    ; as SETTLE-HEAD gets them, the last one first
        (count 0)
        (line start)
        (most (limits-request-line-octets limits)))
    (declare (type index count line))
    (loop
      ;; The request line, with the empty lines before it, must end within its limit, and so must
      ;; the head.  No octet beyond it is looked at.
      (let* ((stop (max line (min end (+ start most))))
             (empty-p (and (< line stop) (= (aref octets line) +carriage-return+)))
             (next nil))
        (declare (type index stop) (type (or null index) next))
        (cond ((= line stop))
              (empty-p
               (setf next (line-end-after octets line stop (if request-line-p
                                                               :malformed-request-line
                                                               :malformed-field))))
              (request-line-p
               (when (setf next (read-request-line head octets line stop))
                 (setf request-line-p nil
                       most (limits-header-octets limits))))
              ((= count (limits-header-count limits))
               (refuse :headers-too-large))
              (t
               (multiple-value-bind (after name value) (read-field octets line stop)
                 (when (setf next after)
                   (incf count)
                   (setf fields (add-field name value fields))))))
        (cond ((null next)
               (when (< stop end)
                 (refuse (cond ((not request-line-p) :headers-too-large)
                               ((or (= line stop) empty-p) :malformed-request-line)
                               ((head-method head) :target-too-long)
                               (t :method-too-long))))
               (return nil))
              ((and empty-p (not request-line-p))
               (settle-head head (nreverse fields) limits)
               (return (values head next))))
        ;; Empty lines before the request line are ignored (RFC 9112, section 2.2).
        (setf line next)))))

(defun request-start (octets start end)
  "The position in OCTETS, from START below END, of a request that has begun behind empty lines; END
if none has."
  (or (position-if-not (lambda (octet)
                         (or (= +carriage-return+ octet) (= +line-feed+ octet)))
                       octets :start start :end end)
      end))

(defun known-request-line (octets start end &optional (limits *default-limits*))
  "A HEAD with the method, the target and the protocol of a request whose head is unfinished or was
refused, in OCTETS from START below END, under LIMITS, as far as they are known."
  (let ((head (start-head))
        (end (min end (+ start (limits-request-line-octets limits)))))
    (handler-case (read-request-line head octets (request-start octets start end) end)
      (protocol-error () nil))
    head))
