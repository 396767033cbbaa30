(in-package #:clack.handler.recycling)

;;;; :RAW-BODY, the content of a request as a stream that can be read again: octets, and characters
;;;; in UTF-8.
;;;;
;;;;   POSITION            a read returns
;;;;   below TAKEN         octets that were taken from the content before, and are kept
;;;;   equal to TAKEN      octets that it takes from the content now; it waits for the client
;;;;
;;;; Invariants:
;;;; - TAKEN octets were read from CONTENT.  CONTENT is NIL when there is no more, or when no thread
;;;;   may take more.
;;;; - The window, OCTETS from 0 to COUNT, holds the content from BASE on.
;;;; - BLOCKS, one behind the other, or the FILE hold all octets that were taken.  OCTETS is one of
;;;;   BLOCKS, or a copy of a part of the FILE.  If all content had come before the application was
;;;;   called, OCTETS holds it all, and there are no BLOCKS and no FILE.
;;;; - Blocks of full size go from one body to another, since a new block with its pages costs more
;;;;   than all other work on content.  A block belongs to the body only until RELEASE-BODY, and no
;;;;   thread reads it outside a turn.
;;;; - While there are CONTENT, BLOCKS or a FILE, only the thread that has the turn reads or writes
;;;;   any of this.  So any thread may read, one call after the other, while the worker takes the
;;;;   rest and releases the body.
;;;; - LOST-P means that no file could be made: OCTETS holds the octets that were taken last, and
;;;;   earlier ones are gone.

(defparameter *raw-body-memory* (* 4 1024 1024)
  "How many octets of the content of one request :RAW-BODY keeps in memory, an integer.  When there
are more, or when memory is scarce, all of them go to a temporary file.")

(defvar *no-octets* (make-octets 0)
  "The vector of an empty window.")

(defconstant +block-size+ (* 128 1024)
  "The size of a block, and of the window on a file, in octets.")

(defvar *blocks* (make-free-list 64)
  "Blocks that no body uses.")

(defclass raw-body (trivial-gray-streams:fundamental-binary-input-stream
                    trivial-gray-streams:fundamental-character-input-stream
                    trivial-gray-streams:trivial-gray-stream-mixin)
  ((source :initarg :source :initform nil :reader raw-body-source
           :documentation "The first value of CONTENT, a stream.")
   (content :initarg :content :initform nil :accessor raw-body-content)
   (octets :initarg :octets :initform *no-octets* :accessor raw-body-octets)
   (base :initform 0 :accessor raw-body-base)
   (count :initarg :taken :initform 0 :accessor raw-body-count)
   (taken :initarg :taken :initform 0 :accessor raw-body-taken)
   (position :initform 0 :accessor raw-body-position)
   (last-size :initform 0 :accessor raw-body-last-size
              :documentation "How many octets the last character that was read had.")
   (blocks :initform '#() :accessor raw-body-blocks
           :documentation "Vectors of +BLOCK-SIZE+ octets, the last of which may be shorter.")
   (file :initform nil :accessor raw-body-file :documentation "A descriptor, or NIL.")
   (lost-p :initform nil :accessor raw-body-lost-p)
   (stays-p :initform nil :accessor raw-body-stays-p
            :documentation "True when all content stays in memory: it will be read later, and this
Lisp has no temporary files.")
   (lock :initarg :lock :initform nil :reader raw-body-lock
         :documentation "A lock, held while TURN changes; NIL in a body that never has CONTENT.")
   (turn-ended :initarg :turn-ended :initform nil :reader raw-body-turn-ended
               :documentation "A condition variable, notified when a turn has ended.")
   (turn :initform nil :accessor raw-body-turn))
  (:documentation "The content of one request, which can be read again."))

(defvar *empty-body* (make-instance 'raw-body)
  "The body of all requests without content.  Nothing can be read from it, so it never changes.")

(defun whole-body (octets)
  "A body of OCTETS, which are all the content of a request."
  (make-instance 'raw-body :octets octets :taken (length octets)))

(defun partial-body (content)
  "A body of CONTENT, a stream that has yet to receive some of it."
  (make-instance 'raw-body :content content :source content :lock (bt:make-lock "raw body")
                           :turn-ended (bt:make-condition-variable)))

(defmethod stream-element-type ((stream raw-body))
  '(unsigned-byte 8))

(defmethod close ((stream raw-body) &key abort)
  "Does nothing, since another part of the application may read STREAM again."
  (declare (ignore abort))
  t)

;;; Turns: one thread at a time reads a body

(defun end-reading-turn (body)
  (with-lock-briefly ((raw-body-lock body))
    (setf (raw-body-turn body) nil)
    (bt:condition-notify (raw-body-turn-ended body))))

(defun call-in-reading-turn (body function)
  "Waits until no other thread reads BODY or takes more of its content, then calls FUNCTION in the
turn.  An error in FUNCTION is signalled after the turn has ended, since a handler of the program
may read BODY, or take long.  Signals an error in a thread that has the turn already, for example in
an interrupt: it would wait for itself."
  (when (eq (bt:current-thread) (raw-body-turn body))
    (error "The content of the request is being read by this thread already."))
  (error (with-acquired (taken (list nil) (when (first taken) (end-reading-turn body)))
           (wait-until (lambda ()
                         (unless (raw-body-turn body)
                           (setf (first taken) t
                                 (raw-body-turn body) (bt:current-thread))))
                       (raw-body-turn-ended body) (raw-body-lock body) nil 1/4)
           ;; A condition that is no ERROR, such as a time limit of the program, passes: it may have
           ;; a restart to read on.
           (handler-case (return-from call-in-reading-turn (funcall function))
             (error (condition) condition)))))

(defun keeps-elsewhere-p (body)
  "True while octets of BODY may be moved or given to another body, so that a reader needs a turn."
  (or (raw-body-content body)
      (raw-body-file body)
      (plusp (length (raw-body-blocks body)))))

(defmacro with-reading-turn ((body) &body forms)
  "Evaluates FORMS in a turn for BODY.  Uses of this macro for the same BODY must not be nested."
  (let ((it (gensym "IT")))
    `(flet ((,it () ,@forms))
       (declare (dynamic-extent #',it))
       (if (keeps-elsewhere-p ,body)
           (call-in-reading-turn ,body #',it)
           (,it)))))

(defun end-reading (body)
  "Lets no thread take more of the content of BODY.  A later read beyond the octets that were taken
signals an error."
  (when (raw-body-content body)
    (with-reading-turn (body)
      (let ((content (shiftf (raw-body-content body) nil)))
        (when content
          (lose-rest content))))))

(defun release-body (body)
  "Lets no thread take more of the content of BODY, whose request is over.  Gives back its blocks
and its file."
  (end-reading body)
  (when (keeps-elsewhere-p body)
    (with-reading-turn (body)
      (uninterruptibly
        (close-file body)
        (leave-window body)
        (give-blocks-back body)))))

(defun close-file (body)
  (when-taken (file (shiftf (raw-body-file body) nil))
    (close-descriptor file)))

;;; The octets that were taken: blocks in memory, or a file

(defun set-window (body octets base count)
  "Makes OCTETS the window of BODY.  Its first COUNT octets are the content from BASE on."
  ;; An empty window first: a reader interrupted between two of these steps reads nothing wrong.
  (setf (raw-body-count body) 0
        (raw-body-base body) base
        (raw-body-octets body) octets
        (raw-body-count body) count))

(defun leave-window (body)
  "Empties the window of BODY, so that the octets that are taken next come there."
  (set-window body (raw-body-octets body) (raw-body-taken body) 0))

(defun give-blocks-back (body)
  "Puts the blocks of BODY, which no thread reads any more, on the free list."
  (let ((blocks (shiftf (raw-body-blocks body) '#())))
    (set-window body *no-octets* (raw-body-taken body) 0)
    (loop for block across blocks
          when (= (length (the octets block)) +block-size+)
            do (put-on-free-list *blocks* block))))

(defun larger-block (body size)
  "A block for BODY with room for at least SIZE octets; NIL where memory is scarce."
  (cond ((< (* 2 size) +block-size+)
         (make-octets (max 256 (* 2 size))))
        ((reserve-plentiful-memory (raw-body-content body) +block-size+)
         (or (take-from-free-list *blocks*)
             (make-octets +block-size+)))))

(defun block-with-room (body index fill count)
  "The block of BODY with INDEX, which may be a new last one.  It holds FILL octets, and gets room
for COUNT more.  NIL where memory is scarce."
  (let* ((blocks (raw-body-blocks body))
         (old (if (< index (length blocks)) (aref blocks index) *no-octets*)))
    (if (<= (+ fill count) (length (the octets old)))
        old
        (let ((block (larger-block body (+ fill count))))
          (when block
            (replace (the octets block) (the octets old) :end2 fill)
            (setf (raw-body-blocks body)
                  (concatenate 'simple-vector (subseq blocks 0 index) (list block)))
            block)))))

(defun prepare-block (body count)
  "Makes room in the blocks of BODY for COUNT more octets, or for fewer.  Returns the number; NIL
where memory is scarce."
  (multiple-value-bind (index fill) (floor (raw-body-taken body) +block-size+)
    (let* ((count (min count (- +block-size+ fill)))
           (block (block-with-room body index fill count)))
      (when block
        (set-window body block (- (raw-body-taken body) fill) fill)
        count))))

(defun write-blocks (body file)
  "Writes all octets that BODY has taken to FILE, a descriptor.  True when that worked."
  (loop for block across (raw-body-blocks body)
        for start from 0 by +block-size+
        always (write-file-octets file start block 0
                                  (min +block-size+ (- (raw-body-taken body) start)))))

(defun file-made-p (body)
  "Writes the blocks of BODY to a new temporary file.  NIL when that fails."
  (uninterruptibly                      ; or no thread would close the file
    (let ((file (open-temporary-file)))
      (cond ((minusp file) nil)
            ((write-blocks body file)
             (setf (raw-body-file body) file)
             t)
            (t
             (close-descriptor file)
             nil)))))

(defun leave-memory (body)
  "Moves the octets in the blocks of BODY, which are too many, to a file.  Gives the blocks back,
also where no file can be made and the octets are lost."
  (unless (file-made-p body)
    (setf (raw-body-lost-p body) t))
  (uninterruptibly
    (give-blocks-back body)
    (release-memory (raw-body-content body))
    (set-window body (make-octets +block-size+) (raw-body-taken body) 0)))

;;; Taking more

(defun prepare-window (body count)
  "Makes room in the window of BODY for COUNT more octets, or for fewer.  Returns the number."
  (cond ((or (raw-body-file body) (raw-body-lost-p body))
         (leave-window body)
         (min count +block-size+))
        ((and (or (<= (+ (raw-body-taken body) count) *raw-body-memory*)
                  (raw-body-stays-p body))
              (prepare-block body count)))
        (t
         (leave-memory body)
         (min count +block-size+))))

(defun keep-taken (body start end)
  "Adds the octets from START to END of the window of BODY to those that were taken."
  (let ((file (raw-body-file body))
        (octets (raw-body-octets body)))
    (when (and file
               (not (write-file-octets file (raw-body-taken body) octets start end)))
      (setf (raw-body-lost-p body) t)
      (close-file body)))
  (uninterruptibly                      ; or POSITION could go beyond TAKEN
    (incf (raw-body-count body) (- end start))
    (incf (raw-body-taken body) (- end start))))

(defun wanted-of (content wanted)
  "How many octets to take from CONTENT when a reader wants WANTED.  Takes all that are at hand, up
to a block, since a small piece takes as long."
  (let ((size (content-size content))
        (count (max wanted (min +block-size+ (content-at-hand content)))))
    (if size (min size count) count)))

(defun take-more (body wanted)
  "Takes more of the content of BODY: WANTED octets, for which it waits, or fewer at the end.  NIL
when there is no more."
  (let ((content (raw-body-content body)))
    (when (raw-body-source body)
      ;; Also where CONTENT is NIL because some of it was lost.
      (check-content (raw-body-source body)))
    (when content
      (keeping-content (content)
        (let* ((count (prepare-window body (max 1 (wanted-of content wanted))))
               (start (raw-body-count body))
               (end (read-sequence (raw-body-octets body) content
                                   :start start :end (+ start count))))
          (keep-taken body start end)
          (when (or (< end (+ start count)) (eql 0 (content-size content)))
            (setf (raw-body-content body) nil))
          (< start end))))))

;;; Loading the window

(defun load-block (body position)
  "Makes the block with the octet at POSITION the window of BODY; NIL where there is none."
  (multiple-value-bind (index offset) (floor position +block-size+)
    (when (< index (length (raw-body-blocks body)))
      (let ((base (- position offset)))
        (set-window body (aref (raw-body-blocks body) index) base
                    (min +block-size+ (- (raw-body-taken body) base)))))))

(defun load-part (body position)
  "Reads the file of BODY at POSITION into the window; NIL where there is no file, or reading it
fails."
  (let ((count (min +block-size+ (- (raw-body-taken body) position))))
    ;; The window stays empty until all octets are there: an interrupted reader may read again.
    (setf (raw-body-count body) 0)
    (when (and (raw-body-file body)
               (read-file-octets (raw-body-file body) position (raw-body-octets body) 0 count))
      (set-window body (raw-body-octets body) position count))))

(defun load-window (body position)
  "Loads the octet at POSITION, which BODY has taken before, into its window."
  (or (load-block body position)
      (load-part body position)
      (error "This part of the request's content was read before and could not be kept.")))

(defun octets-there (body wanted)
  "How many octets the window of BODY has from its position on: at least one, or 0 at the end.
Takes up to WANTED more if there are none."
  (let ((position (raw-body-position body)))
    (cond ((and (= position (raw-body-taken body))
                (not (take-more body wanted)))
           0)
          (t
           (unless (< -1 (- position (raw-body-base body)) (raw-body-count body))
             (load-window body position))
           (- (+ (raw-body-base body) (raw-body-count body)) position)))))

(declaim (inline memory-index))
(defun memory-index (body)
  "The index in the window of BODY of the octet at its position."
  (- (raw-body-position body) (raw-body-base body)))

(defun take-rest (body most)
  "Takes the rest of the content of BODY, which will be read later, up to about MOST octets."
  (with-reading-turn (body)
    ;; Where readiness is not supported, temporary files are not either.
    (setf (raw-body-stays-p body) (not (readiness-supported-p)))
    (take-up-to body (+ (raw-body-taken body) most))))

(defun take-up-to (body position)
  "Takes octets of BODY up to POSITION, or all of them if POSITION is NIL."
  (loop while (and (or (null position) (< (raw-body-taken body) position))
                   (take-more body (if position
                                       (min +block-size+ (- position (raw-body-taken body)))
                                       +block-size+)))))
