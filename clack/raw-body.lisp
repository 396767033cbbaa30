(in-package #:clack.handler.recycling)

;;;; The content of a request as a stream, :RAW-BODY: octets, and characters in UTF-8, that can be read again.
;;;;
;;;;   position            what is read
;;;;   below TAKEN         what was taken of the content before, and is kept
;;;;   is TAKEN            more is taken of the content, which may have to be waited for
;;;;
;;;; Invariants:
;;;; - TAKEN octets were read off CONTENT, which is NIL when there is no more, or nobody may take more.
;;;; - OCTETS from 0 to COUNT are those of the content from BASE on.  Without a FILE that is all that was taken.
;;;; - With a FILE, that has all that was taken, and OCTETS are a part of it.
;;;; - While there is CONTENT or a FILE, who has the turn is the only one that reads or writes all this: any thread may read,
;;;;   one call after the other, while the worker takes the rest, and releases it.
;;;; - Where no file could be made, LOST-P, OCTETS are what was taken last, and what came before is gone.

(defparameter *raw-body-memory* (* 1024 1024)
  "How many octets of the content of a request :RAW-BODY keeps in memory; when there are more, all go to a
temporary file.")

(defconstant +window-size+ (* 32 1024)
  "How many octets of a file are in memory.")

(defclass raw-body (trivial-gray-streams:fundamental-binary-input-stream
                    trivial-gray-streams:fundamental-character-input-stream
                    trivial-gray-streams:trivial-gray-stream-mixin)
  ((source :initarg :source :initform nil :reader raw-body-source
           :documentation "What CONTENT was at first, a stream.")
   (content :initarg :content :initform nil :accessor raw-body-content)
   (octets :initarg :octets :initform (make-octets 0) :accessor raw-body-octets)
   (base :initform 0 :accessor raw-body-base)
   (count :initarg :taken :initform 0 :accessor raw-body-count)
   (taken :initarg :taken :initform 0 :accessor raw-body-taken)
   (position :initform 0 :accessor raw-body-position)
   (last-size :initform 0 :accessor raw-body-last-size
              :documentation "How many octets the character had that was read last.")
   (file :initform nil :accessor raw-body-file :documentation "A descriptor, or NIL.")
   (lost-p :initform nil :accessor raw-body-lost-p)
   (stays-p :initform nil :accessor raw-body-stays-p
            :documentation "True when all of it stays in memory, since there are no files, and it will be read later.")
   (lock :initarg :lock :initform nil :reader raw-body-lock
         :documentation "A lock, held while TURN changes; NIL where CONTENT and FILE never are there.")
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
  "Calls FUNCTION while no other thread reads BODY, or takes more of it; waits for those that do.  What it signals is
signalled when the turn has ended: a program's handlers may read BODY, or take their time.  Signals an error in a thread
that has the turn, as where it was interrupted amid it: it would wait for itself."
  (when (eq (bt:current-thread) (raw-body-turn body))
    (error "The content of the request is being read by this thread."))
  (error (with-acquired (taken (list nil) (when (first taken) (end-reading-turn body)))
           (wait-until (lambda ()
                         (uninterruptibly
                           (unless (raw-body-turn body)
                             (setf (first taken) t
                                   (raw-body-turn body) (bt:current-thread)))))
                       (raw-body-turn-ended body) (raw-body-lock body) nil 1/4)
           ;; A time limit of the program's own is no error, and may have a restart to read on.
           (handler-case (return-from call-in-reading-turn (funcall function))
             (error (condition) condition)))))

(defmacro with-reading-turn ((body) &body forms)
  "Evaluates FORMS, which are not in such a form already, while no other thread does likewise for BODY."
  (let ((it (gensym "IT")))
    `(flet ((,it () ,@forms))
       (declare (dynamic-extent #',it))
       (if (or (raw-body-content ,body) (raw-body-file ,body))
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
  "Lets nobody take more of the content of BODY, whose request is over, and closes its file, if it has one."
  (end-reading body)
  (when (raw-body-file body)
    (with-reading-turn (body)
      (close-file body))))

(defun close-file (body)
  (uninterruptibly
    (let ((file (shiftf (raw-body-file body) nil)))
      (when file
        (close-descriptor file)))))

;;; Taking more

(defun room-for (body count)
  "Makes room for COUNT octets more behind those that BODY has in memory; returns their vector."
  (let* ((octets (raw-body-octets body))
         (size (+ (raw-body-count body) count)))
    (when (> size (length octets))
      (let ((grown (max size (* 2 (length octets)) 256)))
        (reserve-memory (raw-body-content body) (- grown (length octets)))
        (setf octets (replace (make-octets grown) octets :end2 (raw-body-count body))
              (raw-body-octets body) octets)))
    octets))

(defun file-made-p (body)
  "Moves what BODY has in memory to a file; NIL when that cannot be."
  (uninterruptibly                      ; until it is closed by RELEASE-BODY
    (let ((file (open-temporary-file)))
      (cond ((minusp file) nil)
            ((write-file-octets file 0 (raw-body-octets body) 0 (raw-body-count body))
             (setf (raw-body-file body) file)
             t)
            (t
             (close-descriptor file)
             nil)))))

(defun leave-window (body)
  "Lets BODY have nothing in memory: what is taken next comes there."
  (setf (raw-body-count body) 0         ; first: who is interrupted between the two reads nothing wrong
        (raw-body-base body) (raw-body-taken body)))

(defun leave-memory (body)
  "Lets what BODY has in memory, which is too much, go to a file, if it can, and gives the memory back."
  (unless (file-made-p body)
    (setf (raw-body-lost-p body) t))
  (release-memory (raw-body-content body))
  (let ((octets (make-octets +window-size+)))
    (leave-window body)
    (setf (raw-body-octets body) octets)))

(defun prepare-window (body count)
  "Makes room in the memory of BODY for COUNT octets more, or for fewer; returns for how many."
  (cond ((or (raw-body-file body) (raw-body-lost-p body))
         (leave-window body)
         (min count +window-size+))
        ((or (<= (+ (raw-body-taken body) count) *raw-body-memory*)
             (raw-body-stays-p body))
         (room-for body count)
         count)
        (t
         (leave-memory body)
         (min count +window-size+))))

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
  "How many octets to take of CONTENT for who wants WANTED: those that are at hand, too, since to take few takes as
long."
  (let ((size (content-size content))
        (count (max wanted (min +window-size+ (content-at-hand content)))))
    (if size (min size count) count)))

(defun take-more (body wanted)
  "Takes more of the content of BODY, WANTED octets if there are as many; waits for them.  NIL when there is no
more."
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

(defun load-window (body position)
  "Reads what the file of BODY has at POSITION to memory."
  (let ((count (min +window-size+ (- (raw-body-taken body) position))))
    (setf (raw-body-count body) 0)      ; until all are there: who leaves it may read on
    (unless (and (raw-body-file body)
                 (read-file-octets (raw-body-file body) position (raw-body-octets body) 0 count))
      (error "What was read of the content of a request before was not kept."))
    (setf (raw-body-base body) position
          (raw-body-count body) count)))

(defun octets-there (body wanted)
  "How many octets BODY has in memory from its position on, at least one; 0 at its end.  Takes more, WANTED of them,
if there are none."
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
  "Takes what is left of the content of BODY, which is read later, but no more than MOST octets, or a few."
  (with-reading-turn (body)
    (setf (raw-body-stays-p body) (not (readiness-supported-p))) ; and neither are temporary files
    (take-up-to body (+ (raw-body-taken body) most))))

(defun take-up-to (body position)
  "Takes octets of BODY until as many as POSITION are taken, or NIL for all."
  (loop while (and (or (null position) (< (raw-body-taken body) position))
                   (take-more body (if position
                                       (min +window-size+ (- position (raw-body-taken body)))
                                       +window-size+)))))
