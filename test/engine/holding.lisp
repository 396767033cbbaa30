(in-package #:hunchentoot-recycling-taskmaster-test)

;;;; What the tests of calls that are made together share: a service whose answers may be held, and a worker without a
;;;; thread.

;;; A service whose answers may be held, and whose input may be received early

(defstruct gathered
  "What came early for a connection, and whether more may be there."
  (octets '()) (more-p nil))

(defclass told-of-missed-input ()
  ((missed :initform (make-recorder) :reader missed-input
           :documentation "Connections of which it was told that it may not know of all that has come."))
  (:documentation "A service that records of what it was told."))

(defmethod engine:note-input-missed ((service told-of-missed-input) connection)
  (record (missed-input service) connection))

(defclass gathering-service (told-of-missed-input octet-service)
  ((after :initform (constantly nil) :accessor gathering-after
          :documentation "Called with a character after its answer was given.")
   (early :initform (make-recorder) :reader gathering-early
          :documentation "Lists of what was received early, a string, and whether it was all."))
  (:documentation "Answers octets as its superclass does, by HOLD-OUTPUT where their meaning is an outcome."))

(defun gathered-of (connection)
  (or (engine:connection-data connection)
      (setf (engine:connection-data connection) (make-gathered))))

(defun next-gathered (connection buffer)
  "Puts the next octet of CONNECTION into BUFFER; returns what RECEIVE-OCTETS does."
  (let ((gathered (gathered-of connection)))
    (cond ((gathered-octets gathered)
           (setf (aref buffer 0) (pop (gathered-octets gathered)))
           1)
          (t
           (platform:receive-octets (engine:connection-descriptor connection) buffer 0 1)))))

(defun give-gathered (connection buffer)
  "Answers BUFFER to CONNECTION, or has that done soon."
  (unless (engine:hold-output connection buffer 0 1)
    (platform:send-octets (engine:connection-descriptor connection) buffer 0 1)))

(defmethod engine:serve ((service gathering-service) connection)
  (let* ((buffer (octets "."))
         (count (next-gathered connection buffer)))
    (setf (gathered-more-p (gathered-of connection)) (plusp count))
    (cond ((platform:would-block-p count) :park)
          ((<= count 0) :close)
          (t
           (let* ((char (code-char (aref buffer 0)))
                  (outcome (or (funcall (octet-meanings service) char) :park)))
             (engine:count-request connection)
             (give-gathered connection buffer)
             (funcall (gathering-after service) char)
             outcome)))))

(defmethod engine:input-buffered-p ((service gathering-service) connection)
  (let ((gathered (gathered-of connection)))
    (or (gathered-more-p gathered)
        (and (gathered-octets gathered) t))))

(defmethod engine:receives-first-p ((service gathering-service) connection)
  (null (gathered-octets (gathered-of connection))))

(defmethod engine:take-input ((service gathering-service) connection octets start end all-p)
  (record (gathering-early service) (list (decode (subseq octets start end)) all-p))
  (setf (gathered-octets (gathered-of connection)) (coerce (subseq octets start end) 'list)))

;;; A worker without a thread

(defun pretend-calm (engine &optional (calm-p t))
  "Makes it look as if nobody had been stuck in ENGINE, which has no sentinel, for long; or the contrary."
  (setf (engine::pool-state-calm-p (engine::engine-pool-state engine)) calm-p))

(defmacro as-a-worker ((engine worker) &body body)
  "Evaluates BODY as WORKER of ENGINE would, and ends that."
  `(progn
     (pretend-calm ,engine)
     (let* ((,worker (engine::make-pool-worker ,engine 1))
            (engine::*worker* ,worker))
       (engine::stamp-worker ,worker)   ; as one that handles an event
       (unwind-protect (progn ,@body)
         (setf (engine::ready-worker-stamp ,worker) 0)
         (engine::end-holding ,engine ,worker)))))

(defun call-with-holding-worker (function engine)
  (change-class (engine::engine-service engine) 'gathering-service)
  (as-a-worker (engine worker)
    (with-function (engine::holding-pays-p (original engine worker) t)
      (funcall function worker))))

(defmacro with-holding ((engine worker connections clients count) &body body)
  "Evaluates BODY with an ENGINE without threads, the WORKER that the current thread stands for, which holds
all answers, COUNT CONNECTIONS that it owns, and their CLIENTS in the same order.  Where the system sends no
answers together, does nothing."
  `(where-rings-work
    (with-connections-at-rest (,engine ,connections ,clients ,count)
      (call-with-holding-worker (lambda (,worker)
                                  (declare (ignorable ,worker))
                                  ,@body)
                                ,engine))))

(defun serve-at-rest (engine worker connection)
  (engine::serve-connection engine worker connection))

(defun hold-answer (engine worker connection client text)
  "Has WORKER hold its answer to TEXT, an octet, of CLIENT, which CONNECTION of ENGINE is to."
  (send client text)
  (await-input-at-rest connection)
  (serve-at-rest engine worker connection))

(defun hold-answers (engine worker connections clients text)
  "Has WORKER hold its answers to the octets of TEXT, one of each of CLIENTS, which CONNECTIONS of ENGINE are to."
  (loop for connection in connections
        for client in clients
        for char across text
        do (hold-answer engine worker connection client (string char))))

(defun end-after (engine text)
  "Has the service of ENGINE end connections with its answers to the characters of TEXT."
  (setf (slot-value (engine::engine-service engine) 'meanings)
        (lambda (char) (if (find char text) :close :park))))

(defun held-count (worker)
  "How many answers WORKER holds."
  (let ((batch (engine::ready-worker-batch worker)))
    (if (typep batch 'engine::output-batch) (engine::output-batch-count batch) 0)))

(defun expect-nothing (client)
  "Checks that nothing has come for CLIENT."
  (is (not (readable-p client))))

(defun expect-octets (clients text)
  "Checks that to each of CLIENTS the octet of TEXT comes that is at its place there."
  (loop for client in clients
        for char across text
        do (is (equal (string char) (decode (read-octets client 1))))))

(defun fill-window (connection)
  "Sends to the peer of CONNECTION as much as goes; returns how many octets."
  (let ((octets (engine::make-octets 65536)) (sum 0))
    (flet ((send-some ()
             (let ((count (platform:send-octets (engine:connection-descriptor connection) octets 0 65536)))
               (and (plusp count) (incf sum count)))))
      ;; The system moves some to the peer's side a little later.
      (loop while (poll #'send-some 1/20))
      sum)))

(defun shut-for-good (connection)
  "Makes CONNECTION one to which nothing can be sent."
  (platform:shut-descriptor (engine:connection-descriptor connection) :io))

(defun send-late (engine worker)
  "Does what the sentinel of ENGINE does when it finds that what WORKER holds is late."
  (engine::send-late-answers engine (engine::ready-worker-batch worker)))

(defparameter *senders* '(engine::send-held-output send-late)
  "Who sends what a worker holds: it, and the sentinel.")

(defun call-sending-by (send function)
  "Calls FUNCTION while answers that were held are sent by SEND, a function of a place in a batch and of the arguments of
SEND-OCTETS, which returns what that does."
  (flet ((send-place (place descriptors octets positions)
           (funcall send place (aref descriptors place) octets (aref positions place) (aref positions (1+ place)))))
    (with-function (platform:send-through-ring (original ring descriptors octets positions count results)
                     (dotimes (place count results)
                       (setf (aref results place) (send-place place descriptors octets positions))))
      (with-function (engine::send-answer (original batch place)
                       (send-place place (engine::output-batch-descriptors batch) (engine::output-batch-octets batch)
                                   (engine::output-batch-positions batch)))
        (funcall function)))))

(defmacro sending-by ((send) &body body)
  "Evaluates BODY as CALL-SENDING-BY calls a function."
  `(call-sending-by ,send (lambda () ,@body)))

(defun forget-lateness (worker)
  "Lets WORKER hold answers again, though the sentinel has just sent some of it."
  (setf (engine::output-batch-long-share (engine::ready-worker-batch worker)) 0.0))

(defun serve-queued (engine worker)
  "Has WORKER handle all that is queued in ENGINE."
  (loop for token = (engine::take-event engine)
        while token do (engine::handle-event engine worker token)))

(defun send-and-settle (engine worker)
  "Has WORKER send what it holds, and handle what is queued in ENGINE then."
  (engine::send-held-output engine worker)
  (serve-queued engine worker))
