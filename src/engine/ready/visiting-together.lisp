(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; A thread that visits many connections, one after the other, sends to several of them by one call of the system.
;;;;
;;;;   what a service has for a connection        and then
;;;;   is small, and its visitor gathers          is copied; the next connection is visited
;;;;   otherwise                                  is sent at once, as by every visitor
;;;;
;;;;   the visitor                                does
;;;;   has gathered as much as there is room for  sends it, and ends those visits
;;;;   has visited all                            likewise
;;;;
;;;; Invariants:
;;;; - A connection for which something is gathered is owned by its visitor, and :GATHERED, until that was sent.
;;;; - Nothing else is sent to it meanwhile: who visits it leaves that to its owner, who sees to it when its visit ends.
;;;;
;;;; No other thread knows what was gathered.  So it must not wait, nor may the functions of programs that are called
;;;; amid the visits, as for room in a stream.

(defstruct (gathering (:include opaque) (:constructor make-gathering (engine batch)))
  "What a visitor of connections of ENGINE has for several of them."
  (engine nil :read-only t)
  (batch nil :type output-batch :read-only t))

(defvar *gathering* nil
  "The GATHERING of the current thread, or NIL.")

(defconstant +most-gathered-octets+ (* 2 1024)
  "How many octets for one connection are gathered at most; more are sent at once, without a copy.")

(defun gather-output (engine connection octets start end)
  "Gathers OCTETS, a vector of them, from START to END, integers, for CONNECTION of ENGINE, if the current thread, which
visits that, gathers: true then, and the octets are sent soon, whatever becomes of OCTETS.  NIL when the caller is to send
them.  Only for what SERVE-VISITOR does last for CONNECTION."
  (let ((gathering *gathering*))
    (and gathering
         (eq engine (gathering-engine gathering))
         (<= (- end start) +most-gathered-octets+)
         (null (connection-held connection))
         (let ((batch (gathering-batch gathering)))
           (or (added-to-batch-p batch connection octets start end)
               (progn (send-gathered gathering)
                      (added-to-batch-p batch connection octets start end))))
         (setf (connection-held connection) :gathered)
         t)))

;;; Sending

(defun end-gathered-visit (engine connection left error)
  "Ends the visit of CONNECTION, to which all but LEFT, octets or NIL, was sent; or whose peer is gone, where ERROR, a
number, has come."
  (setf (connection-held connection) nil)
  (end-visit engine connection
             (noting-failure (engine connection)
               (settle-sent engine connection left error))))

(defun take-gathered (batch)
  "What END-GATHERED-VISIT is to be told of those whose answers BATCH has, which were sent: a list.  BATCH is empty then."
  (prog1 (loop for place below (output-batch-count batch)
               collect (cons (svref (output-batch-connections batch) place)
                             (multiple-value-list (answer-left batch place))))
    (empty-batch batch)))

(defun send-gathered (gathering)
  "Sends what GATHERING has, and ends the visits of those who get it."
  (let ((engine (gathering-engine gathering))
        (batch (gathering-batch gathering)))
    (when (plusp (output-batch-count batch))
      (send-answers batch)
      (let ((*worker* (worker-of engine)))
        (call-for-all (lambda (visit)
                        (destructuring-bind (connection left &optional error) visit
                          (end-gathered-visit engine connection left error)))
                      ;; Who is called then may visit others, and have something gathered for them.
                      (take-gathered batch))))))

;;; Who gathers

(defparameter *worth-a-ring* 128
  "From how many visits on it pays that a thread that has no ring makes one for them.")

(defun ring-for-visits (engine count)
  "A ring for the current thread, which is about to visit COUNT connections of ENGINE; NIL where it is to have none.  Second
value: true when that is the caller's to close."
  (let* ((worker (worker-of engine))
         (batch (and worker (< 1 count) (batch-for-input engine worker))))
    (cond (batch (input-batch-ring batch))
          ((and (>= count *worth-a-ring*)
                (calls-together-p (engine-service engine)))
           (values (make-ring) t)))))

(defun call-gathering (engine ring function)
  "Calls FUNCTION, which visits connections of ENGINE, while what they get is gathered, and sent with RING."
  (let ((*gathering* (make-gathering engine (make-output-batch ring))))
    (unwind-protect (funcall function)
      (send-gathered *gathering*))))

(defmethod call-visiting ((engine ready-engine) count function)
  (if *gathering*                       ; a visitor's program has more to send
      (funcall function)
      (uninterruptibly
        (multiple-value-bind (ring own-p) (ring-for-visits engine count)
          (if (null ring)
              (funcall function)
              (unwind-protect (call-gathering engine ring function)
                (when own-p
                  (close-ring ring))))))))
