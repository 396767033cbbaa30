(in-package #:clack.handler.recycling)

;;;; The content of a request as a stream, :RAW-BODY: octets, and characters in UTF-8, that can be
;;;; read again.
;;;;
;;;;   position            what is read
;;;;   below TAKEN         what was taken of the content before, and is kept
;;;;   is TAKEN            more is taken of the content, which may have to be waited for
;;;;
;;;; Invariants:
;;;; - TAKEN octets were read off CONTENT, which is NIL when there is no more, or nobody may take more.
;;;; - OCTETS from 0 to COUNT, the window, are those of the content from BASE on.
;;;; - All that was taken is in BLOCKS, one behind the other, or in the FILE; OCTETS are one of BLOCKS, or a part of the
;;;;   FILE.  Where all had come before the application was called, OCTETS are all, and there is neither.
;;;; - Blocks of full size go from one body to another: to make them anew, with their pages, costs more than all else
;;;;   that is done for content.  So they are the body's until RELEASE-BODY only, and nothing reads them outside a turn.
;;;; - While there are CONTENT, BLOCKS or a FILE, who has the turn is the only one that reads or writes all this: any thread may read,
;;;;   one call after the other, while the worker takes the rest, and releases it.
;;;; - Where no file could be made, LOST-P, OCTETS are what was taken last, and what came before is gone.

(defparameter *raw-body-memory* (* 4 1024 1024)
  "How many octets of the content of a request :RAW-BODY keeps in memory, while that is plentiful;
when there are more, all go to a temporary file.")

(defvar *no-octets* (make-octets 0)
  "What a window is that has nothing.")

(defconstant +block-size+ (* 128 1024)
  "How many octets a block has, and how many of a file are in memory.")

(defvar *blocks* (make-free-list 64)
  "Blocks that no body has.")

(defclass raw-body (trivial-gray-streams:fundamental-binary-input-stream
                    trivial-gray-streams:fundamental-character-input-stream
                    trivial-gray-streams:trivial-gray-stream-mixin)
  ((source :initarg :source :initform nil :reader raw-body-source
           :documentation "What CONTENT was at first, a stream.")
   (content :initarg :content :initform nil :accessor raw-body-content)
   (octets :initarg :octets :initform *no-octets* :accessor raw-body-octets)
   (base :initform 0 :accessor raw-body-base)
   (count :initarg :taken :initform 0 :accessor raw-body-count)
   (taken :initarg :taken :initform 0 :accessor raw-body-taken)
   (position :initform 0 :accessor raw-body-position)
   (last-size :initform 0 :accessor raw-body-last-size
              :documentation "How many octets the character had that was read last.")
   (blocks :initform '#() :accessor raw-body-blocks
           :documentation "Vectors of +BLOCK-SIZE+ octets, the last of which may be shorter.")
   (file :initform nil :accessor raw-body-file :documentation "A descriptor, or NIL.")
   (lost-p :initform nil :accessor raw-body-lost-p)
   (stays-p :initform nil :accessor raw-body-stays-p
            :documentation "True when all of it stays in memory, since there are no files, and it
will be read later.")
   (lock :initarg :lock :initform nil :reader raw-body-lock
         :documentation "A lock, held while TURN changes; NIL where CONTENT and FILE never are
there.")
   (turn-ended :initarg :turn-ended :initform nil :reader raw-body-turn-ended
               :documentation "A condition variable, notified when a turn has ended.")
   (turn :initform nil :accessor raw-body-turn))
  (:documentation "The content of one request, which can be read again."))

(defvar *empty-body* (make-instance 'raw-body)
  "That of all requests without content: nothing can be read of it, so that it never changes.")

(defun whole-body (octets)
  "A body of OCTETS, all the content of a request."
  (make-instance 'raw-body :octets octets :taken (length octets)))

(defun partial-body (content)
  "A body of CONTENT, of which not all has come."
  (make-instance 'raw-body :content content :source content :lock (bt:make-lock "raw body")
                           :turn-ended (bt:make-condition-variable)))

(defmethod stream-element-type ((stream raw-body))
  '(unsigned-byte 8))

(defmethod close ((stream raw-body) &key abort)
  "Does nothing: who comes next may read it again."
  (declare (ignore abort))
  t)

;;; Whose turn it is

(defun end-reading-turn (body)
  (with-lock-briefly ((raw-body-lock body))
    (setf (raw-body-turn body) nil)
    (bt:condition-notify (raw-body-turn-ended body))))

(defun call-in-reading-turn (body function)
  "Calls FUNCTION while no other thread reads BODY, or takes more of it; waits for those that do.
What it signals is signalled when the turn has ended: a program's handlers may read BODY, or take
their time.  Signals an error in a thread that has the turn, as where it was interrupted amid it: it
would wait for itself."
  (when (eq (bt:current-thread) (raw-body-turn body))
    (error "The content of the request is being read by this thread."))
  (error (with-acquired (taken (list nil) (when (first taken) (end-reading-turn body)))
           (wait-until (lambda ()
                         (unless (raw-body-turn body)
                           (setf (first taken) t
                                 (raw-body-turn body) (bt:current-thread))))
                       (raw-body-turn-ended body) (raw-body-lock body) nil 1/4)
           ;; A time limit of the program's own is no error, and may have a restart to read on.
           (handler-case (return-from call-in-reading-turn (funcall function))
             (error (condition) condition)))))

(defun keeps-elsewhere-p (body)
  "True while what BODY has may change hands, so that reading it takes a turn."
  (or (raw-body-content body)
      (raw-body-file body)
      (plusp (length (raw-body-blocks body)))))

(defmacro with-reading-turn ((body) &body forms)
  "Evaluates FORMS, which are not in such a form already, while no other thread does likewise for
BODY."
  (let ((it (gensym "IT")))
    `(flet ((,it () ,@forms))
       (declare (dynamic-extent #',it))
       (if (keeps-elsewhere-p ,body)
           (call-in-reading-turn ,body #',it)
           (,it)))))

(defun end-reading (body)
  "Lets nobody take more of the content of BODY: who reads on is told."
  (when (raw-body-content body)
    (with-reading-turn (body)
      (let ((content (shiftf (raw-body-content body) nil)))
        (when content
          (lose-rest content))))))

(defun release-body (body)
  "Lets nobody take more of the content of BODY, whose request is over, and gives back its blocks
and its file."
  (end-reading body)
  (when (keeps-elsewhere-p body)
    (with-reading-turn (body)
      (uninterruptibly
        (close-file body)
        (leave-window body)
        (give-blocks-back body)))))

(defun close-file (body)
  (uninterruptibly
    (let ((file (shiftf (raw-body-file body) nil)))
      (when file
        (close-descriptor file)))))

;;; Where what was taken is kept

(defun set-window (body octets base count)
  "Lets the window of BODY be OCTETS, of which the first COUNT are those of the content from BASE
on."
  ;; First, so that a reader interrupted between the two reads nothing wrong.
  (setf (raw-body-count body) 0
        (raw-body-base body) base
        (raw-body-octets body) octets
        (raw-body-count body) count))

(defun leave-window (body)
  "Lets BODY have nothing in its window: what is taken next comes there."
  (set-window body (raw-body-octets body) (raw-body-taken body) 0))

(defun give-blocks-back (body)
  "Gives the blocks of BODY, which nobody reads any more, to those who want some."
  (let ((blocks (shiftf (raw-body-blocks body) '#())))
    (set-window body *no-octets* (raw-body-taken body) 0)
    (loop for block across blocks
          when (= (length (the octets block)) +block-size+)
            do (put-on-free-list *blocks* block))))

(defun larger-block (body size)
  "A block for BODY with room for SIZE octets, or more; NIL where memory is not plentiful."
  (cond ((< (* 2 size) +block-size+)
         (make-octets (max 256 (* 2 size))))
        ((reserve-plentiful-memory (raw-body-content body) +block-size+)
         (or (take-from-free-list *blocks*)
             (make-octets +block-size+)))))

(defun block-with-room (body index fill count)
  "The block of BODY with INDEX, or a new one behind all, which has FILL octets and gets room for
COUNT more; NIL where memory is not plentiful."
  (let* ((blocks (raw-body-blocks body))
         (old (if (< index (length blocks)) (aref blocks index) *no-octets*)))
    (if (<= (+ fill count) (length (the octets old)))
        old
        (let ((block (larger-block body (+ fill count))))
          (when block
            (replace (the octets block) (the octets old) :end2 fill)
            (setf (raw-body-blocks body) (concatenate 'simple-vector (subseq blocks 0 index) (list block)))
            block)))))

(defun prepare-block (body count)
  "Makes room in the blocks of BODY for COUNT octets more, or for fewer; returns for how many, or
NIL where memory is not plentiful."
  (multiple-value-bind (index fill) (floor (raw-body-taken body) +block-size+)
    (let* ((count (min count (- +block-size+ fill)))
           (block (block-with-room body index fill count)))
      (when block
        (set-window body block (- (raw-body-taken body) fill) fill)
        count))))

(defun write-blocks (body file)
  "Writes all that BODY has taken to FILE, a descriptor.  True when that took it."
  (loop for block across (raw-body-blocks body)
        for start from 0 by +block-size+
        always (write-file-octets file start block 0 (min +block-size+ (- (raw-body-taken body) start)))))

(defun file-made-p (body)
  "Moves what BODY has in blocks to a file; NIL when that cannot be."
  (uninterruptibly                      ; until it is closed by RELEASE-BODY
    (let ((file (open-temporary-file)))
      (cond ((minusp file) nil)
            ((write-blocks body file)
             (setf (raw-body-file body) file)
             t)
            (t
             (close-descriptor file)
             nil)))))

(defun leave-memory (body)
  "Lets what BODY has in blocks, which is too much, go to a file, if it can, and gives the memory
back."
  (unless (file-made-p body)
    (setf (raw-body-lost-p body) t))
  (uninterruptibly
    (give-blocks-back body)
    (release-memory (raw-body-content body))
    (set-window body (make-octets +block-size+) (raw-body-taken body) 0)))

;;; Taking more

(defun prepare-window (body count)
  "Makes room in the window of BODY for COUNT octets more, or for fewer; returns for how many."
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
  "Notes that BODY has octets more in its memory, from START to END."
  (let ((file (raw-body-file body)))
    (when (and file
               (not (write-file-octets file (raw-body-taken body) (raw-body-octets body) start end)))
      (setf (raw-body-lost-p body) t)
      (close-file body)))
  (uninterruptibly                      ; or a position could be behind all that was taken
    (incf (raw-body-count body) (- end start))
    (incf (raw-body-taken body) (- end start))))

(defun wanted-of (content wanted)
  "How many octets to take of CONTENT for who wants WANTED: those that are at hand, too, since to
take few takes as long."
  (let ((size (content-size content))
        (count (max wanted (min +block-size+ (content-at-hand content)))))
    (if size (min size count) count)))

(defun take-more (body wanted)
  "Takes more of the content of BODY, WANTED octets if there are as many; waits for them.  NIL when
there is no more."
  (let ((content (raw-body-content body)))
    (when (raw-body-source body)
      (check-content (raw-body-source body))) ; also where CONTENT is NIL since some of it was lost
    (when content
      (keeping-content (content)
        (let* ((count (prepare-window body (max 1 (wanted-of content wanted))))
               (start (raw-body-count body))
               (end (read-sequence (raw-body-octets body) content :start start :end (+ start count))))
          (keep-taken body start end)
          (when (or (< end (+ start count)) (eql 0 (content-size content)))
            (setf (raw-body-content body) nil))
          (< start end))))))

;;; What is at a position

(defun load-block (body position)
  "Lets the window of BODY be the block that has what is at POSITION; NIL where there is none."
  (multiple-value-bind (index offset) (floor position +block-size+)
    (when (< index (length (raw-body-blocks body)))
      (let ((base (- position offset)))
        (set-window body (aref (raw-body-blocks body) index) base
                    (min +block-size+ (- (raw-body-taken body) base)))))))

(defun load-part (body position)
  "Lets the window of BODY be what its file has at POSITION; NIL where there is none, or it cannot
be read."
  (let ((count (min +block-size+ (- (raw-body-taken body) position))))
    (setf (raw-body-count body) 0)      ; until all are there: who leaves it may read on
    (when (and (raw-body-file body)
               (read-file-octets (raw-body-file body) position (raw-body-octets body) 0 count))
      (set-window body (raw-body-octets body) position count))))

(defun load-window (body position)
  "Brings what BODY has kept at POSITION to its window."
  (or (load-block body position)
      (load-part body position)
      (error "What was read of the content of a request before was not kept.")))

(defun octets-there (body wanted)
  "How many octets BODY has in memory from its position on, at least one; 0 at its end.  Takes more,
WANTED of them, if there are none."
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
  "Where in its memory BODY has the octet of its position."
  (- (raw-body-position body) (raw-body-base body)))

(defun take-rest (body most)
  "Takes what is left of the content of BODY, which is read later, but no more than MOST octets, or
a few."
  (with-reading-turn (body)
    (setf (raw-body-stays-p body) (not (readiness-supported-p))) ; and neither are temporary files
    (take-up-to body (+ (raw-body-taken body) most))))

(defun take-up-to (body position)
  "Takes octets of BODY until as many as POSITION are taken, or NIL for all."
  (loop while (and (or (null position) (< (raw-body-taken body) position))
                   (take-more body (if position
                                       (min +block-size+ (- position (raw-body-taken body)))
                                       +block-size+)))))
