(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; What several connections have sent is received by one call of the system, where a worker gets the events of
;;;; all of them at once.
;;;;
;;;;   of an event that came with others   the worker that waited for them
;;;;   somebody owns its connection        marks that, as always
;;;;   its service receives early          owns it, receives what it has, and queues the connection itself
;;;;   its service does not, or it has     owns and queues it
;;;;   something else to do first
;;;;   it is of no connection, or of one   queues it
;;;;   that others may have to visit
;;;;
;;;; The first of them it handles.  A connection that is queued is owned by the queue, and whoever takes it owns it:
;;;; a handler that blocks holds up nobody.  If it is to be served, it has no deadline while it waits for a worker, since
;;;; its peer has done what it was to do.

(defconstant +early-octets+ (* 2 1024)
  "How many octets of a connection are received early, at most: more than the heads of most requests have.")

(defstruct (input-batch (:include opaque) (:constructor make-input-batch (ring)))
  "Connections whose input is received by one call."
  (ring nil :read-only t)
  (descriptors (make-array +ring-size+ :element-type 'fixnum :initial-element 0)
   :type ring-descriptors :read-only t)
  (positions (let ((positions (make-array (1+ +ring-size+) :element-type 'fixnum)))
               (dotimes (place (1+ +ring-size+) positions)
                 (setf (aref positions place) (* place +early-octets+))))
   :type ring-positions :read-only t)
  (results (make-array +ring-size+ :element-type 'fixnum :initial-element 0)
   :type ring-results :read-only t)
  (octets (make-octets (* +ring-size+ +early-octets+)) :type octets :read-only t))

(defun served-next-p (connection)
  "True when the next thing that is done for CONNECTION, which the caller owns, is to call its service."
  (and (null (connection-verdict connection))
       (null (connection-output connection))
       (not (connection-lingering-p connection))
       (not (gone-p connection))))

(defun receives-early-p (engine connection)
  "True when the next thing that is done for CONNECTION, which the caller owns, is to receive what it has."
  (and (served-next-p connection)
       (receives-first-p (engine-service engine) connection)))

(declaim (inline input-result))
(defun input-result (batch place)
  "What receiving for PLACE of BATCH has returned; see RECEIVE-OCTETS.  Where it was not done, that nothing was there."
  (let ((result (aref (input-batch-results batch) place)))
    (if (eql +not-made+ result) +would-block+ result)))

(defun receive-for (batch connections)
  "Receives what CONNECTIONS have, a list of no more than +RING-SIZE+, which the caller owns, into BATCH, one after the
other."
  (let ((count 0))
    (dolist (connection connections)
      (setf (aref (input-batch-descriptors batch) count) (connection-descriptor connection))
      (incf count))
    (when (plusp count)
      (receive-through-ring (input-batch-ring batch) (input-batch-descriptors batch) (input-batch-octets batch)
                            (input-batch-positions batch) count (input-batch-results batch)))))

(defun give-early-input (engine batch connection place)
  "Gives the service of ENGINE what was received of CONNECTION for PLACE of BATCH.  Where nothing was, or an error or the
end, it will find that out by itself."
  (let ((result (input-result batch place))
        (start (aref (input-batch-positions batch) place)))
    (when (plusp result)
      (setf (connection-verdict connection)
            (noting-failure (engine connection)
              (take-input (engine-service engine) connection
                          (input-batch-octets batch) start (+ start result) (< result +early-octets+))
              nil)))))

(defun receive-together (engine batch entries)
  "Receives what those of ENTRIES that are connections, which the caller owns, have that is to be received early."
  (let ((connections (loop for entry in entries
                           when (and (typep entry 'connection) (receives-early-p engine entry))
                             collect entry)))
    (when (and (rest connections) (<= (length connections) +ring-size+))
      (receive-for batch connections)
      (loop for connection in connections
            for place from 0
            do (give-early-input engine batch connection place)))))

(defun left-to-visitors-p (engine connection)
  "True when CONNECTION, which the caller owns, is not to be queued: an answer to it may come from any thread meanwhile.
One that is received early is, unless no worker of ENGINE may come to it for long."
  (and (connection-deferred-p connection)
       (not (and (receives-early-p engine connection)
                 (room-p engine)))))    ; else all of them may be blocked

(defun own-event (engine token)
  "What is to be queued for TOKEN: its connection, which the caller owns then; itself where it is of none, or of one that
is LEFT-TO-VISITORS; NIL where somebody else owns that."
  (if (not (connection-token-p engine token))
      token
      (let ((connection (own-connection engine token)))
        (cond ((null connection) nil)
              ((left-to-visitors-p engine connection)
               (give-up-unread engine connection)
               (end-if-parked-too-late engine connection)
               token)
              (t
               ;; Who takes no output, or lingers, has no more time for sending something.
               (when (served-next-p connection)
                 (begin-service connection))
               connection)))))

(defun queue-owned (engine entries)
  "Queues ENTRIES, a list and not empty, and with them connections that the caller owns.  If ENGINE was stopped
meanwhile, who did that may not have seen these."
  (queue-events engine entries)
  (when (and (not (serving-p engine)) (some #'connection-p entries))
    (abandon-events engine)))

(defun batch-for-input (engine worker)
  "The input batch of WORKER of ENGINE, whose thread this is; NIL where it should have none."
  ;; Where handlers block there may be hundreds of workers, made at once: each would need a ring and its buffers, and gain
  ;; next to nothing by them.
  (and (serving-p engine)
       (or (ready-worker-batch worker)
           (pool-state-calm-p (engine-pool-state engine)))
       (input-batch-of worker)))

(defun receive-early (engine worker tokens)
  "What is to be queued for TOKENS, of events that WORKER of ENGINE, whose thread this is, got at once: a list."
  (let ((batch (batch-for-input engine worker)))
    (if (null batch)
        tokens
        (let ((entries (loop for token in tokens
                             for entry = (own-event engine token)
                             when entry collect entry)))
          (receive-together engine batch entries)
          entries))))

(defun abandon-events (engine)
  "Parks the connections that are queued in ENGINE, which serves nobody any more."
  (call-for-all (lambda (entry)
                  (when (typep entry 'connection)
                    (loop until (give-up-ownership entry))
                    (end-if-parked-too-late engine entry)))
                (loop for entry = (take-event engine)
                      while entry collect entry)))
