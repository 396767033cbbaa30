(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; The content of a request.  It is spooled before the request is served: in memory, and in a file
;;;; without a name when there is much of it.  So no handler waits for a client, and any thread may
;;;; read at any position until the reply has ended.
;;;;
;;;;   the content                                        its request
;;;;   has come whole                                     is served
;;;;   is to come, and is not late                        waits: parked, or with its worker
;;;;   is malformed, too large or late; or neither        is answered 400, 413, 408 or 503, and its
;;;;   memory nor a file has room for it                  connection is closed
;;;;   ends too early                                     is dropped with its connection
;;;;
;;;; Invariants:
;;;; - SIZE octets have come.  The next read returns the one at POSITION.
;;;; - The window, OCTETS from 0 to COUNT, has the content from BASE on: all of it while there is no
;;;;   FILE; then a part that was read there.
;;;; - From the moment at which its request is served, threads use it under its LOCK.

(defvar *no-octets* (make-octets 0)
  "The vector of an empty window.")

(defstruct (content (:include opaque) (:copier nil)
                    (:constructor make-content (head announced io limits decoder)))
  "The content of one request, which can be read at any position."
  (head nil :read-only t)
  (io nil :read-only t)
  (limits nil :read-only t)
  (decoder nil :read-only t)
  ;; How many octets the client has announced, an integer; NIL where CONTENT comes in chunks.
  (announced nil :read-only t)
  (as-stream nil)                       ; the STREAM-OF-CONTENT that programs get
  (lock (bt:make-recursive-lock "content") :read-only t)
  (octets *no-octets* :type octets)
  (base 0 :type index)
  (count 0 :type index)
  (file nil)                            ; see OPEN-TEMPORARY-FILE; or NIL
  (size 0 :type index)
  (position 0 :type index)
  (given-p nil)                         ; a program has OCTETS
  (reserved 0 :type index)              ; octets of memory that are reserved for it
  (began (milliseconds) :type fixnum)
  (touched (milliseconds) :type fixnum) ; when the last octets came
  (failure nil))                        ; the condition that each further read signals, or NIL

(defclass stream-of-content (trivial-gray-streams:fundamental-binary-input-stream
                             trivial-gray-streams:trivial-gray-stream-mixin)
  ((content :initarg :content :reader content-of))
  (:documentation "The octets of a CONTENT."))

(define-condition content-left (recycling-error stream-error)
  ()
  (:report "The content of the request is not to be had any more.")
  (:documentation "Signalled to a reader of a request's content after the reply has ended."))

(defvar *no-content*
  (let ((content (make-content nil 0 nil nil nil)))
    (setf (content-as-stream content) (make-instance 'stream-of-content :content content))
    content)
  "The content of every request without content.  Nothing changes it.")

(defmacro with-content ((content &optional (form content)) &body body)
  "Evaluates BODY with CONTENT bound to the value of FORM, a CONTENT that no other thread reads
meanwhile.  Uses may be nested."
  `(let ((,content ,form))
     (bt:with-recursive-lock-held ((content-lock ,content))
       ,@body)))

;;; Memory and files

(defparameter *content-memory* (* 64 1024)
  "More octets of content than this go to a file, unless memory is plentiful.")

(defparameter *most-content-memory* (* 4 1024 1024)
  "More octets of content than this go to a file.")

(defparameter *plenty* 1/4
  "Memory is plentiful while less than this share of the budget, a rational, is reserved.  A file
costs several times the processor time.")

(defvar *content-vectors* (make-free-list 8)
  "Large vectors that no content uses: a new one, with its pages, costs more than all other work.")

(defun move-to-file (content)
  "Moves CONTENT from memory to a new file; NIL when that fails, and CONTENT is to be refused."
  (let ((file (uninterruptibly          ; or nobody would close it
                (setf (content-file content) (open-temporary-file)))))
    (when (and file
               (write-file-octets file 0 (content-octets content) 0 (content-count content)))
      (setf (content-octets content) *no-octets*
            (content-count content) 0)
      (change-reservation (content-reserved content) 0))))

(defun spool (content octets start end)
  "Appends OCTETS from START to END to CONTENT: in memory, or in a file.  Signals PROTOCOL-ERROR
where there is no room."
  (let* ((count (content-count content))
         (total (+ count (- end start)))
         (announced (content-announced content))
         (most (if (>= total +buffer-size+) *most-content-memory* *content-memory*))
         ;; What was announced if that is little, or if enough of it has come.
         (size (if (and announced (<= total announced most)) announced (max 256 (* 2 total))))
         (large-p (> size *content-memory*)))
    (when (and (null (content-file content))
               (> total (length (content-octets content)))
               (or (<= total *most-content-memory*)
                   (not (readiness-supported-p))) ; nor files without a name
               (or (not large-p)
                   (and (fits-in-heap-p size)
                        (change-reservation (content-reserved content) size :share *plenty*))))
      (let ((free (and large-p (take-from-free-list *content-vectors*))))
        (setf (content-octets content)
              (replace (if (and free (<= size (length (the octets free))))
                           free
                           (make-octets size))
                       (content-octets content) :end2 count))))
    (cond ((and (null (content-file content)) (<= total (length (content-octets content))))
           (replace (content-octets content) octets :start1 count :start2 start :end2 end)
           (setf (content-count content) total))
          ((not (and (or (content-file content) (move-to-file content))
                     (write-file-octets (content-file content) (content-size content)
                                        octets start end)))
           (error (make-refusal :no-memory))))
    (incf (content-size content) (- end start))))

(defun reserve-memory (content octets)
  "Reserves memory for OCTETS more that a reader makes of CONTENT; refuses CONTENT when there is
none."
  (unless (or (<= octets *content-memory*)
              (and (change-reservation (content-reserved content)
                                       (+ octets (content-reserved content)))
                   (make-room-in-heap octets)))
    (refuse-content content :no-memory)))

(defun release-content (content &optional failure)
  "Releases the memory and the file of CONTENT, whose reply has ended; a reader gets FAILURE, or
CONTENT-LEFT, from now on.  Waits for a thread that is reading."
  (unless (eq content *no-content*)
    (with-content (content)
      (uninterruptibly
        (setf (content-failure content)
              (or failure
                  (make-condition 'content-left :stream (content-as-stream content))))
        (when (content-file content)
          (close-descriptor (shiftf (content-file content) nil)))
        (let ((octets (shiftf (content-octets content) *no-octets*)))
          (unless (or (content-given-p content) (<= (length octets) *content-memory*))
            (put-on-free-list *content-vectors* octets)))
        (setf (content-count content) 0)
        (change-reservation (content-reserved content) 0)))))

;;; Receiving

(defun receive-content (content wait-p)
  "Receives CONTENT, if WAIT-P waiting for it.  Returns :ALL; :NONE where more is to come; or :END
where it will not come.  Signals PROTOCOL-ERROR, STREAM-TIMEOUT and DESCRIPTOR-BROKEN."
  (let* ((io (content-io content))
         (decoder (content-decoder content))
         (announced (content-announced content))
         (part-p nil)                   ; a line that was looked at has come in part
         (outcome :some))
    (loop
      (when (body-done-p decoder)
        (return :all))
      (if (and announced                ; straight to a window that has room for all
               (= (io-start io) (io-end io))
               (null (content-file content))
               (not (io-source io))
               (<= announced (length (content-octets content))))
          (let ((octets (content-octets content))
                (fill (content-count content))
                (count 0))
            (setf (values outcome count) (receive io octets fill announced))
            (when (eq :some outcome)
              (decode-body decoder octets fill (+ fill count))
              (incf (content-count content) count)
              (incf (content-size content) count)))
          (progn
            (setf outcome (fill-input io (cond (part-p :more)
                                               ((and wait-p (io-source io))
                                                (body-octets-due decoder)))))
            (when (eq :some outcome)
              (multiple-value-bind (start end next)
                  (decode-body decoder (io-input io) (io-start io) (io-end io))
                (when (< start end)
                  (spool content (io-input io) start end))
                (setf part-p (= next (io-start io))
                      (io-start io) next)))))
      (case outcome
        (:some (setf (content-touched content) (milliseconds)))
        (:none
         (unless wait-p
           (return :none))
         (await-peer io :input (content-deadline content nil)))
        (t (return :end))))))

(defun content-deadline (content idle)
  "The time, in MILLISECONDS, from which CONTENT is late; NIL for never.  IDLE is for how many
milliseconds no octets may come, or NIL."
  (let ((rate (limits-content-rate (content-limits content))))
    (earlier (and rate
                  (+ (content-began content) (* 1000 *content-grace*)
                     (floor (* 1000 (content-size content)) rate)))
             (and idle (+ (content-touched content) idle)))))

;;; Reading

(defun refuse-content (content refusal)
  "Releases CONTENT, and signals PROTOCOL-ERROR because of REFUSAL, the keyword of one, as each
further read does."
  (let ((refusal (make-refusal refusal)))
    (release-content content refusal)
    (error refusal)))

(defun read-octets-of-content (content sequence start end)
  "Reads octets of CONTENT into SEQUENCE from START up to END.  Returns the index after the last."
  (with-content (content)
    (when (content-failure content)
      (error (content-failure content)))
    (loop
      (let* ((position (content-position content))
             (index (- position (content-base content)))
             (left (- (content-size content) position)))
        (declare (type fixnum index left))
        (when (or (= start end) (zerop left))
          (return start))
        (unless (< -1 index (content-count content))
          ;; A part of the file becomes the window.
          (let ((count (min *content-memory* left)))
            (when (< (length (content-octets content)) count)
              (setf (content-octets content) (make-octets count)))
            (unless (read-file-octets (content-file content) position
                                      (content-octets content) 0 count)
              (error "A temporary file cannot be read."))
            (setf (content-base content) position
                  (content-count content) count
                  index 0)))
        (let ((count (min (- end start) (- (content-count content) index)))
              (octets (content-octets content)))
          (declare (type octets octets))
          (replace sequence octets :start1 start :start2 index :end2 (+ index count))
          (incf (content-position content) count)
          (incf start count))))))

(defun read-all-content (content limit refusal)
  "The octets of CONTENT, in a vector that the caller may keep.  If there are more than LIMIT, an
integer or NIL, refuses CONTENT with REFUSAL, a keyword."
  (with-content (content)
    (when (content-failure content)
      (error (content-failure content)))
    (let ((size (content-size content))
          (octets (content-octets content)))
      (when (and limit (> size limit))
        (refuse-content content refusal))
      (cond ((= size (content-count content) (length octets))
             (setf (content-given-p content) t))
            (t
             (reserve-memory content size)
             (setf octets (make-octets size)
                   (content-position content) 0)
             (read-octets-of-content content octets 0 size)))
      octets)))

;;; As a stream

(defmethod stream-element-type ((stream stream-of-content))
  '(unsigned-byte 8))

(defmethod close ((stream stream-of-content) &key abort)
  "Does nothing, since another part of the program may read STREAM again."
  (declare (ignore abort))
  t)

(defmethod trivial-gray-streams:stream-read-byte ((stream stream-of-content))
  (let ((octets (make-octets 1)))
    (if (plusp (read-octets-of-content (content-of stream) octets 0 1))
        (aref octets 0)
        :eof)))

(defmethod trivial-gray-streams:stream-listen ((stream stream-of-content))
  (with-content (content (content-of stream))
    (< (content-position content) (content-size content))))

(defmethod trivial-gray-streams:stream-file-position ((stream stream-of-content))
  (content-position (content-of stream)))

(defmethod (setf trivial-gray-streams:stream-file-position) (position (stream stream-of-content))
  (with-content (content (content-of stream))
    (let ((position (case position
                      (:start 0)
                      (:end (content-size content))
                      (t position))))
      (when (<= 0 position (content-size content))
        (unless (= position (content-position content)) ; nothing changes *NO-CONTENT*
          (setf (content-position content) position))
        t))))

(defmethod trivial-gray-streams:stream-read-sequence
    ((stream stream-of-content) sequence start end &key)
  (let ((start (or start 0)) (end (or end (length sequence))))
    (if (stringp sequence)              ; by which CLOG, for one, reads a form: as many octets
        (let* ((octets (make-octets (- end start)))
               (count (read-octets-of-content (content-of stream) octets 0 (length octets)))
               (text (utf-8-text octets 0 count)))
          (replace sequence text :start1 start)
          (+ start (length text)))
        (read-octets-of-content (content-of stream) sequence start end))))

;;; The content of the next request

(defun begin-content (application connection http head wait-p)
  "Begins with the content of the request HEAD of CONNECTION to APPLICATION, which follows over
HTTP.  Returns what READ-HEAD does."
  (let* ((limits (application-limits application))
         (io (http-io http))
         (framing (head-framing head))
         (content (make-content head (if (integerp framing) framing nil)
                                io limits (make-body-decoder framing limits))))
    (setf (content-as-stream content) (make-instance 'stream-of-content :content content)
          (http-content http) content)
    (when (head-expect-100-continue-p head)
      (send-continue io))
    (receive-spooled application connection http wait-p)))

(defun receive-spooled (application connection http wait-p)
  "Receives the content of HTTP.  Returns what READ-HEAD does."
  (let ((content (http-content http)) (io (http-io http)))
    (setf (http-part-p http) nil)
    (flet ((end (&optional refusal)
             (when refusal
               (reject application http refusal (content-head content)))
             (abandon-content http)
             :end))
      (handler-case
          (ecase (receive-content content wait-p)
            (:all
             (release-input io)
             (content-head content))
            (:end (end))
            (:none
             (let ((deadline (content-deadline content
                                               (as-milliseconds (read-seconds application)))))
               (when (and deadline (<= deadline (milliseconds)))
                 (count-late (worker-engine *worker*) :body)
                 (error (make-refusal :request-timeout)))
               ;; In memory, or in a file.
               (unless (and (or (change-reservation (content-reserved content)
                                                    (length (content-octets content))
                                                    :share *waiting-share*)
                                (and (null (content-file content))
                                     (move-to-file content)))
                            (keep-waiting-input (worker-engine *worker*) http))
                 (error (make-refusal :no-memory)))
               (setf (http-part-p http) 0)
               (set-deadline-at connection :body deadline)
               :none)))
        (protocol-error (refusal) (end refusal))
        (stream-timeout () (end (make-refusal :request-timeout)))
        (descriptor-broken () (end))))))

(defun content-pending-p (http)
  "True while the content of a request over HTTP is received before that is served."
  (let ((content (http-content http)))
    (and content
         (not (body-done-p (content-decoder content))))))

(defun abandon-content (http)
  "Releases the content of a request over HTTP that was answered, or will not be."
  (when (http-content http)
    (release-content (shiftf (http-content http) nil))))

;;; The content of the current request

(defun take-content (exchange)
  "The content of the request of EXCHANGE, until its reply is over.  The identifier is the one
that a trusted proxy tells, if any, and if it has at most 200 characters, all visible and of ASCII."
  (let* ((http (exchange-http exchange))
         (head (exchange-head exchange))
         (told-id (and (http-trusted http)
                       (cdr (assoc :x-request-id (head-headers head) :test #'eq)))))
    (setf (exchange-output exchange) nil ; EXCHANGE may have had another request
          (exchange-kept-p exchange) (head-keep-alive-p head)
          (exchange-request-id exchange)
          (and told-id
               (<= 1 (length told-id) 200)
               (every (lambda (char) (<= 33 (char-code char) 126)) told-id)
               told-id))
    (or (http-content http) *no-content*)))
