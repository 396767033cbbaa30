(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; A thread that visits many connections, one after the other, sends to several of them by one call of the system.
;;;;
;;;;   what a service has for a connection        and then
;;;;   is small, and its visitor gathers          is copied; the next connection is visited
;;;;   otherwise                                  is sent at once, as by every visitor
;;;;
;;;;   a visitor that, between two visits,        does
;;;;   has gathered as much as there is room for  sends it, and ends those visits
;;;;   has visited all                            likewise
;;;;
;;;; Invariants:
;;;; - A connection for which something is gathered is owned by its visitor, and :GATHERED, until that was sent.
;;;; - Nothing else is sent to it meanwhile: who visits it leaves that to its owner, who sees to it when its visit ends.
;;;; - No visit ends amid another one: a program that is called there may visit others, even the same again.
;;;;
;;;; No other thread knows what was gathered.  So it must not wait, nor may the functions of programs that are called
;;;; amid the visits, as for room in a stream.

(defstruct (gathering (:include opaque) (:constructor make-gathering (engine batch)))
  "What a visitor of connections of ENGINE has for several of them."
  (engine nil :read-only t)
  (batch nil :type output-batch :read-only t))

(defvar *gathering* nil
  "The GATHERING of the current thread amid one of its visits, or NIL.")

(defconstant +most-gathered-octets+ (floor +batch-octets+ +ring-size+)
  "How many octets for one connection are gathered at most; more are sent at once, without a copy.")

(defun gather-output (engine connection octets start end)
  "Gathers OCTETS, a vector of them, from START to END, integers, for CONNECTION of ENGINE, if the current thread, which
visits that, gathers: true then, and the octets are sent soon, whatever becomes of OCTETS.  NIL when the caller is to send
them.  Only for what SERVE-VISITOR does last for CONNECTION."
  (let ((gathering *gathering*))
    (and gathering
         (eq engine (gathering-engine gathering))
         (<= (- end start) +most-gathered-octets+)
         (added-to-batch-p (gathering-batch gathering) connection octets start end)
         (setf (connection-held connection) :gathered)
         t)))

;;; Sending

(defun send-gathered (gathering)
  "Sends what GATHERING has, and ends the visits of those who get it."
  (let ((engine (gathering-engine gathering))
        (batch (gathering-batch gathering)))
    (when (plusp (output-batch-count batch))
      (send-answers batch)
      (let ((*worker* (worker-of engine)))
        (end-sent-visits engine batch)))))

;;; Who gathers

(defparameter *worth-a-ring* 128
  "From how many visits on it pays that a thread that has no ring makes one for them.")

(defun ring-for-visits (engine count)
  "A ring for the current thread, which is about to make COUNT visits in ENGINE; NIL where it is to have none.  Second
value: true when that is the caller's to close."
  (let* ((worker (worker-of engine))
         (batch (and worker (< 1 count) (batch-for-input engine worker))))
    (cond (batch (input-batch-ring batch))
          ((and (>= count *worth-a-ring*)
                (calls-together-p (engine-service engine)))
           (values (make-ring) t)))))

(defun visit-gathering (engine ring function visits)
  "Calls FUNCTION with each of VISITS, a list, of connections of ENGINE, while what they get is gathered; sends that with
RING."
  (let ((gathering (make-gathering engine (make-output-batch ring))))
    (flet ((visit (visit)
             (let ((*gathering* gathering))
               (funcall function visit))
             (when (= +ring-size+ (output-batch-count (gathering-batch gathering)))
               (send-gathered gathering))))
      (unwind-protect (call-for-all #'visit visits)
        (send-gathered gathering)))))

(defmethod visit-together ((engine ready-engine) function visits)
  (uninterruptibly
    (multiple-value-bind (ring own-p) (ring-for-visits engine (length visits))
      (if (null ring)
          (call-for-all function visits)
          (unwind-protect (visit-gathering engine ring function visits)
            (when own-p
              (close-ring ring)))))))
