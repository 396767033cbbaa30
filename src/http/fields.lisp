(in-package #:hunchentoot-recycling-taskmaster.http)

;;; The meaning of the header fields that control a connection.  SEEN is the union of the roles
;;; (words.lisp) of the fields in a head, so that absent fields cost nothing.

(defmacro do-elements ((text start end) &body body)
  "Runs BODY for each element of the comma-separated list TEXT, a variable, with START
and END around the element without its surrounding white space.  Elements may be empty."
  (let ((comma (gensym "COMMA")) (from (gensym "FROM")) (size (gensym "SIZE")))
    ;; RFC 9110, section 5.6.1: #element = [ element ] *( OWS "," OWS [ element ] )
    `(loop with ,size of-type index = (length ,text)
           for ,from of-type index = 0 then (1+ ,comma)
           for ,comma of-type index = (text-position #\, ,text ,from ,size)
           do (let* ((,start (text-run-end ,text ,from ,comma +whitespace+))
                     (,end (text-run-start ,text ,start ,comma +whitespace+)))
                ,@body)
           until (= ,comma ,size))))

(defmacro element= (word text start end)
  "True if TEXT from START to END is WORD, a literal in lower case, compared without regard to
case."
  `(text-spells-p ,text ,start ,end (load-time-value (coerce ,word 'text) t)))

(defun list-elements (value)
  "A list of the non-empty elements, strings, of VALUE, a string that is a comma-separated list
(RFC 9110, section 5.6.1)."
  (let ((text (coerce value 'text)) (elements '()))
    (declare (type text text))
    (do-elements (text start end)
      (when (< start end)
        (push (text-part text start end) elements)))
    (nreverse elements)))

(defun token-p (string)
  "True if STRING is a token (RFC 9110, section 5.6.2)."
  (let* ((text (coerce string 'text)) (end (length text)))
    (and (plusp end)
         (every (lambda (char) (< (char-code char) 128)) text)
         (= end (text-run-end text 0 end +token+)))))

(defun settle-connection (head seen)
  "Sets the connection options of HEAD by its version, Connection and Upgrade."
  (declare (type head head) (type role seen) #.*plain-policy*)
  (when (logtest seen +connection+)
    (let ((options (head-header head :connection))
          (upgrade-p nil))
      (declare (type text options))
      (do-elements (options start end)
        (cond ((element= "keep-alive" options start end)
               (setf (head-keep-alive-requested-p head) t))
              ((element= "close" options start end)
               (setf (head-close-requested-p head) t))
              ((element= "upgrade" options start end)
               (setf upgrade-p t))))
      ;; RFC 9110, section 7.8: a server MUST ignore Upgrade in HTTP/1.0.  Without the connection
      ;; option, Upgrade was not meant for this server.
      (when (and upgrade-p (logtest seen +upgrade+) (eq :http/1.1 (head-protocol head)))
        (setf (head-upgrade head) (head-header head :upgrade)))))
  ;; These tests follow the order of RFC 9112, section 9.3.
  (setf (head-keep-alive-p head)
        (and (not (head-close-requested-p head))
             (or (eq :http/1.1 (head-protocol head))
                 (head-keep-alive-requested-p head)))))

(defun settle-host (head seen)
  "Checks Host.  If the target names a host, replaces the value of Host by it."
  (declare (type head head) (type role seen) #.*plain-policy*)
  (let* ((entry (and (logtest seen +host+) (find-field :host (head-headers head))))
         (value (cdr entry)))
    (cond ((null entry)
           ;; RFC 9112, section 3.2: a server MUST respond with 400 to HTTP/1.1 without Host.
           (when (eq :http/1.1 (head-protocol head))
             (refuse :missing-host)))
          ((not (authority-p value 0 (length value)))
           (refuse :invalid-host))
          ((head-host head)
           ;; RFC 9112, section 3.2.2: a server MUST ignore Host in favour of the target.
           (setf (cdr entry) (head-host head)))
          (t
           (setf (head-host head) value)))))

(defun set-host (head host)
  "Makes HOST, a text, the host that HEAD is for, and the value of its field Host."
  (let ((entry (find-field :host (head-headers head))))
    (if entry
        (setf (cdr entry) host)
        (setf (head-headers head) (append (head-headers head) (list (cons :host host)))))
    (setf (head-host head) host)))

(defun parse-content-length (value limit)
  "The number in VALUE, the text of a Content-Length.  Refuses a number above LIMIT."
  (declare (type text value))
  ;; RFC 9110, section 8.6: Content-Length = 1*DIGIT; anticipate large numerals.
  (unless (and (plusp (length value))
               (= (length value) (text-run-end value 0 (length value) +digit+)))
    (refuse :malformed-content-length))
  (let ((size 0))
    (declare (type (unsigned-byte 64) size))
    (loop for digit across value
          do (setf size (+ (* 10 size) (digit-char-p digit)))
             (unless (and (typep size 'content-size) (<= size limit))
               (refuse :body-too-large)))
    size))

(defun check-transfer-encoding (value)
  "Refuses VALUE, the text of a Transfer-Encoding, unless it is chunked."
  (declare (type text value) #.*plain-policy*)
  (let ((chunked 0) (others 0) (final-chunked-p nil))
    (do-elements (value start end)
      ;; RFC 9112, section 7.1: parameters of chunked are an error.  RFC 9110, section 5.6.1.2,
      ;; allows empty elements in lists.  This function refuses them, since a proxy that reads
      ;; them differently would see another end of the request.
      (unless (and (< start end) (= end (text-run-end value start end +token+)))
        (refuse :malformed-transfer-encoding))
      (setf final-chunked-p (element= "chunked" value start end))
      (if final-chunked-p (incf chunked) (incf others)))
    ;; RFC 9112, section 6.3, item 4: unless chunked comes last, the length is unknown.
    (unless (and final-chunked-p (= 1 chunked))
      (refuse :chunked-not-final))
    (when (plusp others)
      (refuse :unknown-transfer-coding))))

(defun settle-framing (head seen limits)
  "Sets the framing of HEAD by RFC 9112, section 6.3, within LIMITS."
  (declare (type head head) (type role seen) (type limits limits) #.*plain-policy*)
  (let ((length-p (logtest seen +content-length+)))
    (when (logtest seen +transfer-encoding+)
      ;; RFC 9112, section 6.1: in HTTP/1.0, a Transfer-Encoding makes the framing faulty.
      (when (eq :http/1.0 (head-protocol head))
        (refuse :transfer-encoding-in-http/1.0))
      (when length-p
        (refuse :two-framings))
      (check-transfer-encoding (head-header head :transfer-encoding))
      (setf (head-framing head) :chunked))
    (when length-p
      (let ((size (parse-content-length (head-header head :content-length)
                                        (or (limits-body-octets limits)
                                            +most-content+))))
        (setf (head-framing head) (if (zerop size) :none size))))))

(defun settle-expectation (head seen)
  "Sets HEAD-EXPECT-100-CONTINUE-P of HEAD.  Refuses any other expectation."
  (declare (type head head) (type role seen) #.*plain-policy*)
  ;; RFC 9110, section 10.1.1: a server MUST ignore Expect in HTTP/1.0, and may reply 417 to an
  ;; expectation that it cannot meet.
  (when (and (logtest seen +expect+) (eq :http/1.1 (head-protocol head)))
    (let ((value (head-header head :expect)))
      (declare (type text value))
      (do-elements (value start end)
        (cond ((= start end))
              ((element= "100-continue" value start end)
               (setf (head-expect-100-continue-p head)
                     (not (eq :none (head-framing head)))))
              (t (refuse :unknown-expectation)))))))
