(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* send-queues :in all
  :description "What several threads have for a client leaves once, in order, and to the end.")

;;; An exhaustive search, with the real queue, of what can happen to a stream: two writers put
;;; octets in and have the connection visited; one of them closes it, or a publisher drops it; the
;;; client takes some octets now and then.  The owner sends, and while it is in the system's call,
;;; any of the others may do what it does next: so the lock must not be held there.  A run makes
;;; each choice that its path says, and then the first one; the next path changes the last choice
;;; that has another.
;;;
;;; What must hold: the client gets the head, and what was taken in its order, nothing twice, and,
;;; unless the stream was dropped, all of it; the end comes once, after that; and a thread that
;;; found the queue full is told of room once.

(defvar *path*)                         ; choices that are to be made
(defvar *made*)                         ; those made, with how many there were, the last first

(defun choose (count)
  "One of the integers from 0 below COUNT."
  (let ((choice (if *path* (pop *path*) 0)))
    (push (cons choice count) *made*)
    choice))

(defun next-path (made)
  "The path after that which has MADE choices; NIL where there is none."
  (loop for ((choice . count) . before) on made
        when (< (1+ choice) count)
          return (reverse (cons (1+ choice) (mapcar #'car before)))))

(defun count-runs (function)
  "Calls FUNCTION for each path of choices that it can make; returns how many there are."
  (loop with *path* = '()
        with *made* = '()
        do (funcall function)
        count t
        do (setf *path* (next-path *made*)
                 *made* '())
        while *path*))

(defstruct (narrow-transport (:include transport) (:constructor make-narrow-transport (function)))
  "A transport that sends by FUNCTION, of octets; it takes as many as that returns, or none."
  function)

(defmethod transport-send-parts ((transport narrow-transport) parts)
  (let ((part (first parts)))
    (funcall (narrow-transport-function transport)
             (subseq (engine:octets-part-octets part) (engine:part-position part)
                     (engine:part-end part)))))

(defun run-stream (scripts room)
  "Plays SCRIPTS, lists of what the others do one after the other, with a client that takes ROOM
octets at first.  Returns what the client got, what was taken for it, how often the end came, how
many who found the queue full were told of room, :LATE if not before the end, and how many there
were."
  (let* ((scripts (copy-list scripts))
         (shared-queue (server:make-shared-queue 4))
         (got '()) (taken (list 1)) (ends 0) (told 0) (full 0)
         (busy-p nil) (arrived-p nil) (over-p nil)
         io)
    (labels ((others ()
               (loop for script in scripts for index from 0 when script collect index))
             (step-one (index)
               (destructuring-bind (kind &optional argument) (pop (nth index scripts))
                 (ecase kind
                   (:put (ecase (server:put-in-shared-queue shared-queue (as-octets argument))
                           (:room (setf taken (append taken argument)))
                           (:full (setf taken (append taken argument))
                            (incf full)
                            (server:call-when-room shared-queue (lambda ()
                                                                  (unless (eq :late told)
                                                                    (incf told)))))
                           ((:refused :over))))
                   (:close (server:close-shared-queue shared-queue))
                   (:drop (server:drop-shared-queue shared-queue))
                   (:resume (resume))
                   (:take (incf room argument)
                    (when (server:io-unsent io)     ; or the poller has nothing to tell
                      (resume))))))
             (resume ()
               (setf arrived-p t)
               (unless (or busy-p over-p)
                 (setf busy-p t)
                 (loop while (and (shiftf arrived-p nil) (not over-p)) do (go-on))
                 (setf busy-p nil)))
             (go-on ()
               (cond ((server:shared-queue-broken-p shared-queue)
                      (engine:clear-queue (server:io-queue io))
                      (server:end-shared-queue shared-queue)
                      (setf over-p t))
                     ((server:send-queued shared-queue io)
                      (incf ends)
                      (when (< told full)
                        (setf told :late)) ; the end tells all
                      (server:end-shared-queue shared-queue)
                      (setf over-p t))))
             (take (octets)
               (loop for others = (others)
                     for choice = (if others (choose (1+ (length others))) 0)
                     until (zerop choice)
                     do (step-one (nth (1- choice) others)))
               (let ((count (min room (length octets))))
                 (decf room count)
                 (setf got (append got (coerce (subseq octets 0 count) 'list)))
                 (if (zerop count) platform:+would-block+ count))))
      (setf io (server:make-transport-io (make-narrow-transport #'take)))
      (engine:enqueue (server:io-queue io) (list (engine:make-octets-part (as-octets '(1)))))
      (loop for others = (others)
            while others
            do (step-one (nth (choose (length others)) others)))
      (setf room 100)
      (resume)
      (values got taken ends told full))))

(define-server-test (what-is-put-in-leaves-once-and-in-order-however-threads-interleave
                     :needs :parking)
  (let* ((wrong '())
         (count (count-runs
                 (lambda ()
                   (multiple-value-bind (got taken ends told full)
                       (run-stream '(((:put (2 3)) (:resume) (:put (4 5 6)) (:close) (:resume))
                                     ((:put (7)) (:resume))
                                     ((:take 3)))
                                   0)
                     (unless (and (equal got taken) (= 1 ends) (eql told full))
                       (push (list (mapcar #'car *made*) got taken ends told full) wrong)))))))
    (is (< 1000 count))
    (is (null (first (last wrong))))))

(define-server-test (what-is-dropped-sends-no-more-and-tells-those-who-wait :needs :parking)
  (let ((wrong '()))
    (count-runs (lambda ()
                  (multiple-value-bind (got taken ends told full)
                      (run-stream '(((:put (2 3)) (:resume) (:put (4 5 6)) (:resume))
                                    ((:drop) (:resume))
                                    ((:take 3)))
                                  1)
                    (unless (and (equal got (subseq taken 0 (length got)))
                                 (zerop ends)
                                 (eql told full))
                      (push (list (mapcar #'car *made*) got taken ends told full) wrong)))))
    (is (null (first (last wrong))))))
