(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite held-output :in engine
  :description "Answers that a worker holds, and sends together.")

(in-suite held-output)

;;; A service whose answers may be held, and whose input may be received early

(defstruct gathered
  "What came early for a connection, and whether more may be there."
  (octets '()) (more-p nil))

(defclass told-of-output ()
  ((left :initform (make-recorder) :reader left-with-output
         :documentation "Connections of which it was told that they have output left."))
  (:documentation "A service that records of what it was told."))

(defmethod engine:note-output-left ((service told-of-output) connection)
  (record (left-with-output service) connection))

(defclass gathering-service (told-of-output octet-service)
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

(defun call-with-holding-worker (function engine)
  (change-class (engine::engine-service engine) 'gathering-service)
  (pretend-calm engine)
  (let* ((worker (engine::make-pool-worker engine 1))
         (engine::*worker* worker))
    (unwind-protect
         (with-function (engine::holding-pays-p (original engine worker) t)
           (funcall function worker))
      (engine::end-holding engine worker))))

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

;;; One after the other

(define-server-test answers-that-were-held-come-once-to-whom-they-are-for
  (with-holding (engine worker connections clients 3)
    (hold-answers engine worker connections clients "abc")
    (is (= 3 (held-count worker)))
    (mapc #'expect-nothing clients)
    (is (notany #'engine::parked-p connections) "They are their worker's.")
    (send-and-settle engine worker)
    (is (zerop (held-count worker)))
    (expect-octets clients "abc")
    (send-and-settle engine worker)
    (mapc #'expect-nothing clients)
    (is (every #'engine::parked-p connections))))

(define-server-test one-answer-that-was-held-comes-too
  (with-holding (engine worker connections clients 1)
    (hold-answer engine worker (first connections) (first clients) "a")
    (send-and-settle engine worker)
    (is (equal "a" (decode (read-octets (first clients) 1))))
    (is (engine::parked-p (first connections)))))

(define-server-test a-call-that-the-system-does-not-make-is-made-up-for
  (with-holding (engine worker connections clients 3)
    (hold-answers engine worker connections clients "aaa")
    (with-function (platform:send-through-ring (original ring descriptors octets positions count results)
                     ;; It takes one of three.
                     (fill results platform:+not-made+)
                     (setf (aref results 0) (platform:send-octets (aref descriptors 0) octets
                                                                  (aref positions 0) (aref positions 1)))
                     results)
      (send-and-settle engine worker))
    (dolist (client clients)
      (is (equal "a" (decode (read-octets client 1))))
      (expect-nothing client))))

(define-server-test the-last-answer-is-sent-before-its-connection-is-closed
  (with-holding (engine worker connections clients 2)
    (end-after engine "z")
    (hold-answers engine worker connections clients "za")
    (is (not (engine::gone-p (first connections))))
    (send-and-settle engine worker)
    (expect-octets clients "za")
    (is (closed-by-server-p (first clients)))
    (is (engine::parked-p (second connections)))))

(define-server-test a-request-that-comes-while-the-answer-before-is-held-is-served-after-it
  (with-holding (engine worker connections clients 2)
    (hold-answer engine worker (first connections) (first clients) "a")
    (send (first clients) "b")
    (await-input-at-rest (first connections))
    (is (null (engine::own-event engine (engine::connection-token (first connections))))
        "Its worker has it.")
    (engine::send-held-output engine worker)
    (is (equal "a" (decode (read-octets (first clients) 1))))
    (serve-queued engine worker)
    (is (= 1 (held-count worker)))
    (send-and-settle engine worker)
    (is (equal "b" (decode (read-octets (first clients) 1))))
    (expect-nothing (first clients))
    (is (engine::parked-p (first connections)))))

(define-server-test a-peer-that-ends-while-its-answer-is-held-gets-it
  (with-holding (engine worker connections clients 1)
    (let ((connection (first connections)) (client (first clients)))
      (hold-answer engine worker connection client "a")
      (end-sending client)
      (is (not (engine::become-owner connection t)))
      (send-and-settle engine worker)
      (serve-queued engine worker)
      (send-and-settle engine worker)
      (is (equal "a" (decode (read-octets client 1))))
      (is (closed-by-server-p client)))))

(define-server-test a-peer-that-is-gone-when-its-answer-is-sent-takes-nobody-with-it
  (with-holding (engine worker connections clients 3)
    (hold-answers engine worker connections clients "aaa")
    (shut-for-good (second connections))
    (send-and-settle engine worker)
    (is (engine::gone-p (second connections)))
    (dolist (client (list (first clients) (third clients)))
      (is (equal "a" (decode (read-octets client 1)))))
    (is (engine::parked-p (first connections)))
    (is (engine::parked-p (third connections)))))

(define-server-test an-answer-for-which-there-is-no-room-waits-for-its-peer
  (dolist (sender *senders*)
    (with-holding (engine worker connections clients 2)
      (let* ((connection (first connections)) (client (first clients))
             (filled (fill-window connection)))
        (hold-answer engine worker connection client "a")
        (hold-answer engine worker (second connections) (second clients) "b")
        (funcall sender engine worker)
        (serve-queued engine worker)
        (is (equal "b" (decode (read-octets (second clients) 1))))
        (is (engine:connection-output connection))
        (is (engine::parked-p connection))
        (is (engine::connection-output-watched-p connection))
        (is (equal (list connection) (recorded (left-with-output (engine::engine-service engine))))
            "Its service has to look again at what comes meanwhile.")
        (read-octets client filled)
        (eventually ("the socket to take more")
          (platform:await-descriptor (engine:connection-descriptor connection) :output
                                     :until (platform:milliseconds)))
        (engine::handle-event engine worker (engine::connection-token connection))
        (is (equal "a" (decode (read-octets client 1))))
        (expect-nothing client)
        (is (engine::parked-p connection))))))

(defun send-three (place descriptor octets start end)
  "Sends no more than three octets of an answer; for SENDING-BY."
  (declare (ignore place))
  (platform:send-octets descriptor octets start (+ start (min 3 (- end start)))))

(define-server-test what-is-left-of-an-answer-follows-what-was-sent
  (dolist (sender *senders*)
    (dolist (outcome '(:park :close))
      (with-holding (engine worker connections clients 2)
        (let ((text (octets "0123456789")))
          (dolist (connection connections)
            ;; As something else than its descriptor may have sent an answer before.
            (setf (engine:connection-sender connection) (lambda (parts) (error "Who has sent ~A?" parts))
                  (engine::worker-connection worker) connection)
            (is (engine:hold-output connection text 0 10))
            (engine::settle-outcome engine connection outcome nil)))
        (sending-by (#'send-three)
          (funcall sender engine worker))
        (serve-queued engine worker)
        (dolist (client clients)
          (is (equal "0123456789" (decode (read-octets client 10)))))
        (case outcome
          (:park
           (mapc #'expect-nothing clients)
           (is (every #'engine::parked-p connections)))
          (t
           (is (every #'closed-by-server-p clients))))))))

;;; What is not held, and for how long

(define-server-test no-more-octets-are-held-than-there-is-room-for
  (loop for (size held-p) in `((,engine::+batch-octets+ t) (,(1+ engine::+batch-octets+) nil))
        do (with-holding (engine worker connections clients 1)
             (let ((connection (first connections)))
               (setf (engine::worker-connection worker) connection)
               (is (eq held-p (engine:hold-output connection (engine::make-octets size) 0 size)))
               (is (eq (and held-p :serving) (engine::connection-held connection)))
               (is (= (if held-p 1 0) (held-count worker)))
               (engine::settle-outcome engine connection :park nil)
               (send-and-settle engine worker)
               (when held-p
                 (is (= size (length (read-octets (first clients) size)))))
               (is (engine::parked-p connection))))))

(define-server-test no-more-answers-are-held-than-there-is-room-for
  (with-holding (engine worker connections clients (1+ platform:+ring-size+))
    (let ((text (make-string (length clients) :initial-element #\a)))
      (hold-answers engine worker connections clients text)
      (is (= platform:+ring-size+ (held-count worker)))
      (expect-octets (last clients) "a")
      (send-and-settle engine worker)
      (expect-octets (butlast clients) text)
      (is (every #'engine::parked-p connections)))))

(define-server-test only-the-worker-that-serves-a-connection-holds-its-answer
  (with-holding (engine worker connections clients 2)
    (setf (engine::worker-connection worker) (first connections))
    (is (not (engine:hold-output (second connections) (octets "a") 0 1)))
    (is (task-result (in-background ("somebody else")
                       (not (engine:hold-output (first connections) (octets "a") 0 1)))))))

(define-server-test a-worker-that-holds-enough-sends-before-it-takes-more
  (with-holding (engine worker connections clients engine::+most-held+)
    (engine::queue-events engine (list 7))
    (with-globals ((engine::*held-microseconds* (* 1000 1000 60)))
      (loop for (connection . more) on connections
            for client in clients
            do (hold-answer engine worker connection client "a")
               (engine::send-output-held-long engine worker)
               (is (if more (plusp (held-count worker)) (zerop (held-count worker)))))
      (expect-each clients "a"))))

(define-server-test a-worker-that-holds-for-long-sends-before-it-takes-more
  (with-holding (engine worker connections clients 1)
    (engine::queue-events engine (list 7))
    (with-globals ((engine::*held-microseconds* -1))
      (hold-answer engine worker (first connections) (first clients) "a")
      (is (eql 7 (engine::take-event-holding engine worker)))
      (expect-each clients "a"))))

(define-server-test no-answer-is-held-for-longer-because-others-were-added
  (with-holding (engine worker connections clients 2)
    (engine::queue-events engine (list 7))
    (with-globals ((engine::*held-microseconds* (* 1000 1000 30)))
      (hold-answer engine worker (first connections) (first clients) "a")
      ;; A minute ago.
      (decf (engine::output-batch-began (engine::ready-worker-batch worker)) (* 1000 1000 60))
      (hold-answer engine worker (second connections) (second clients) "b")
      (is (eql 7 (engine::take-event-holding engine worker)))
      (expect-octets clients "ab"))))

(define-server-test a-worker-sends-what-it-holds-before-it-does-something-else
  (with-holding (engine worker connections clients 4)
    (let ((pool (engine::engine-pool-state engine)))
      (flet ((hold-next ()
               (hold-answer engine worker (pop connections) (first clients) "a"))
             (check-sent ()
               (is (zerop (held-count worker)))
               (is (equal "a" (decode (read-octets (pop clients) 1))))))
        (hold-next)
        (is (null (engine::take-event-holding engine worker)) "It would turn to the poller.")
        (check-sent)
        (hold-next)
        (with-function (engine::run-due-timers (original engine worker) (check-sent))
          (engine::handle-event engine worker engine::+timer-token+))
        (hold-next)
        (with-function (engine::target-met-p (original pool) t)
          (with-function (engine::one-of-excess-p (original pool) t)
            (with-function (engine::suspend-worker (original engine worker) (check-sent))
              (setf (engine::pool-state-target pool) 0)
              (engine::keep-working-p engine worker pool))))
        (hold-next)
        (setf (engine::engine-phase engine) :stopping)
        (is (not (engine::keep-working-p engine worker pool)))
        (check-sent)))))

(define-server-test whoever-leaves-amid-late-answers-leaves-none-behind
  (with-holding (engine worker connections clients 3)
    (hold-answers engine worker connections clients "abc")
    (let ((left 0))
      (catch 'away
        (with-function (engine::requeue-connection (original engine connection)
                         (funcall original engine connection)
                         (when (= 1 (incf left)) (throw 'away nil)))
          (send-late engine worker)))
      (is (= 3 left)))
    (expect-octets clients "abc")
    (is (zerop (held-count worker)))
    (is (notany #'engine::connection-held connections))
    (is (engine::batch-locked-p (engine::ready-worker-batch worker)) "Nobody has it locked.")
    (engine::unlock-batch (engine::ready-worker-batch worker))))

(define-server-test who-finds-most-batches-held-for-long-holds-none-for-some-ticks
  (with-holding (engine worker connections clients 1)
    (let* ((batch (engine::batch-of worker))
           (tick (engine::output-batch-tick batch)))
      (is (engine::held-briefly-p batch tick))
      (setf (engine::output-batch-began batch) 0)
      (loop repeat 16 do (engine::note-batch-sent batch))
      (is (loop repeat 200
                never (engine::held-briefly-p batch tick))
          "It is not tried more often.")
      (is (loop for later from (1+ tick) to (+ tick 200)
                  thereis (engine::held-briefly-p batch later))
          "It is tried again."))))

(define-server-test a-worker-whose-answers-were-late-holds-none-for-some-ticks
  (with-holding (engine worker connections clients 3)
    (hold-answer engine worker (first connections) (first clients) "a")
    (let* ((batch (engine::ready-worker-batch worker))
           (tick (engine::output-batch-tick batch)))
      (is (engine::held-briefly-p batch tick))
      (send-late engine worker)
      (hold-answer engine worker (second connections) (second clients) "b")
      (expect-octets clients "ab")
      (is (not (engine::held-briefly-p batch tick)))
      (is (not (engine::held-briefly-p batch (1+ tick))))
      (is (loop for later from (+ tick 2) to (+ tick 200)
                  thereis (engine::held-briefly-p batch later))
          "It is tried again."))
    (hold-answer engine worker (third connections) (third clients) "c")
    (is (= 1 (held-count worker)))))

(defun waits-idly-p (engine)
  "True when the sentinel of ENGINE would wait in IDLE-WAIT."
  (let ((waits-p nil))
    (with-function (engine::wait-on (original condition-variable lock seconds) (setf waits-p t))
      (engine::idle-wait engine))
    waits-p))

(define-server-test the-sentinel-does-not-rest-while-an-answer-is-held
  (with-holding (engine worker connections clients 1)
    (push worker (engine::engine-workers engine))
    (pretend-to-wait engine)
    (is (waits-idly-p engine))
    (hold-answer engine worker (first connections) (first clients) "a")
    (is (= 1 (held-count worker)))
    (is (not (waits-idly-p engine)))
    (setf (engine::output-batch-sent-p (engine::ready-worker-batch worker)) t)
    (is (waits-idly-p engine) "Its worker finishes with what was sent, and a program may block that.")
    (setf (engine::output-batch-sent-p (engine::ready-worker-batch worker)) nil)
    (expect-nothing (first clients))
    (setf (engine::pool-state-clock-stopped-p (engine::engine-pool-state engine)) t)
    (engine::send-output-held-long engine worker)
    (expect-octets clients "a")
    (is (waits-idly-p engine))))

(defclass single-service (gathering-service)
  ()
  (:documentation "Wants each call of the system made by itself."))

(defmethod engine:calls-together-p ((service single-service))
  nil)

(define-server-test a-service-that-wants-each-call-made-by-itself-has-no-ring
  (where-rings-work
    (with-connections-at-rest (engine connections clients 1)
      (is (= 1 (length connections) (length clients)))
      (let ((worker (engine::make-pool-worker engine 1)))
        (change-class (engine::engine-service engine) 'single-service)
        (with-function (platform:make-ring (original) (error "A ring was made."))
          (is (null (engine::batch-of worker)))
          (is (null (engine::input-batch-of worker))))))))

(define-server-test answers-are-not-held-where-that-would-hold-them-up
  (where-rings-work
   (with-connection-at-rest (engine connection client)
     (let* ((worker (engine::make-pool-worker engine 1))
            (pool (engine::engine-pool-state engine)))
       (engine::queue-events engine (list 7))
       (flet ((pays-p () (engine::holding-pays-p engine worker)))
         (is (not (pays-p)) "The sentinel has not looked.")
         (pretend-calm engine)
         (is (pays-p))
         (setf (engine::pool-state-clock-stopped-p pool) t)
         (is (not (pays-p)) "The sentinel does not look.")
         (setf (engine::pool-state-clock-stopped-p pool) nil)
         (pretend-to-wait engine)
         (is (not (pays-p)) "Somebody else is free.")
         (platform:counter-add (engine::pool-state-waiting pool) -1)
         (setf (engine::engine-phase engine) :stopping)
         (is (not (pays-p)))
         (setf (engine::engine-phase engine) :running)
         (take-all engine)
         (is (not (pays-p)) "Nothing else has come."))))))

;;; The sentinel

(define-server-test what-the-sentinel-sends-is-left-to-workers
  (with-holding (engine worker connections clients 2)
    (end-after engine "z")
    (hold-answers engine worker connections clients "az")
    (send-late engine worker)
    (is (zerop (held-count worker)))
    (expect-octets clients "az")
    (is (every #'engine::parked-p connections))
    (send (first clients) "b")
    (await-input-at-rest (first connections))
    (serve-queued engine worker)
    (is (closed-by-server-p (second clients)))
    (engine::send-held-output engine worker)
    (is (equal "b" (decode (read-octets (first clients) 1))))))

(define-server-test what-is-not-late-the-sentinel-leaves-alone
  (with-holding (engine worker connections clients 1)
    (hold-answer engine worker (first connections) (first clients) "a")
    (push worker (engine::engine-workers engine))
    (with-globals ((engine::*late-microseconds* (* 1000 1000 60)))
      (engine::send-late-output engine)
      (is (= 1 (held-count worker))))
    (with-globals ((engine::*late-microseconds* -1))
      (engine::send-late-output engine)
      (is (zerop (held-count worker))))
    (expect-each clients "a")))

(defun check-sent-while-serving (engine worker connection client)
  "Checks CONNECTION, whose answer the sentinel has sent before its service was done with it."
  (is (null (engine::connection-held connection)))
  (is (null (engine::worker-connection worker)))
  (is (engine::parked-p connection))
  (is (null (engine::take-event engine)) "Its worker has seen to it.")
  (hold-answer-of-parked engine worker connection client "n")
  (is (eq :served (engine::connection-held connection)))
  (engine::send-held-output engine worker)
  (is (equal "n" (decode (read-octets client 1)))))

(defun hold-answer-of-parked (engine worker connection client text)
  "Like HOLD-ANSWER, for CONNECTION that is parked."
  (send client text)
  (await-input-at-rest connection)
  (engine::handle-event engine worker (engine::connection-token connection)))

(defmacro while-serving ((engine char) form &body body)
  "Evaluates BODY while the service of ENGINE, after it has given its answer to CHAR, evaluates FORM."
  `(progn
     (setf (gathering-after (engine::engine-service ,engine))
           (lambda (char) (when (char= char ,char) ,form)))
     ,@body))

(define-server-test a-connection-stays-its-workers-until-its-service-is-done-though-the-sentinel-sends
  (with-holding (engine worker connections clients 2)
    (let ((connection (first connections)) (client (first clients)))
      (hold-answer engine worker (second connections) (second clients) "b")
      (while-serving (engine #\a)
          (progn (send-late engine worker)
                 (is (equal "a" (decode (read-octets client 1))))
                 (is (not (engine::parked-p connection)) "It is served.")
                 (is (engine::parked-p (second connections))))
        (hold-answer engine worker connection client "a"))
      (is (equal "b" (decode (read-octets (second clients) 1))))
      (serve-queued engine worker)
      (forget-lateness worker)
      (check-sent-while-serving engine worker connection client))))

(define-server-test a-connection-that-ends-is-closed-by-its-worker-though-the-sentinel-has-sent
  (with-holding (engine worker connections clients 1)
    (end-after engine "a")
    (while-serving (engine #\a) (send-late engine worker)
      (hold-answer engine worker (first connections) (first clients) "a"))
    (is (equal "a" (decode (read-octets (first clients) 1))))
    (is (closed-by-server-p (first clients)))))

(define-server-test a-connection-that-breaks-under-the-sentinel-is-closed-by-its-worker
  (with-holding (engine worker connections clients 1)
    (let ((connection (first connections)))
      (while-serving (engine #\a) (progn (shut-for-good connection)
                                         (send-late engine worker)
                                         (is (not (engine::gone-p connection))))
        (hold-answer engine worker connection (first clients) "a"))
      (is (engine::gone-p connection))
      (is (null (engine::take-event engine))))))

(define-server-test what-the-sentinel-could-not-send-while-a-connection-is-served-its-worker-does
  (with-holding (engine worker connections clients 1)
    (let* ((connection (first connections)) (client (first clients))
           (filled (fill-window connection)))
      (while-serving (engine #\a) (send-late engine worker)
        (hold-answer engine worker connection client "a"))
      (is (engine::parked-p connection))
      (is (engine:connection-output connection))
      (read-octets client filled)
      (eventually ("the socket to take more")
        (platform:await-descriptor (engine:connection-descriptor connection) :output
                                   :until (platform:milliseconds)))
      (engine::handle-event engine worker (engine::connection-token connection))
      (is (equal "a" (decode (read-octets client 1)))))))

(define-server-test who-leaves-its-service-after-the-answer-loses-the-connection-alone
  (dolist (sent-p '(nil t))
    (with-holding (engine worker connections clients 2)
      (hold-answer engine worker (second connections) (second clients) "b")
      (is (catch 'left
            (while-serving (engine #\a) (progn (when sent-p
                                                 (send-late engine worker))
                                               (throw 'left t))
              (hold-answer engine worker (first connections) (first clients) "a"))
            nil))
      (is (equal "a" (decode (read-octets (first clients) 1))) "It was given.")
      (is (closed-by-server-p (first clients)))
      (is (equal "b" (decode (read-octets (second clients) 1))))
      (serve-queued engine worker)
      (is (engine::parked-p (second connections))))))

(define-server-test what-a-worker-finds-the-sentinel-at-is-sent-once
  (with-holding (engine worker connections clients 2)
    (hold-answers engine worker connections clients "aa")
    (with-function (engine::send-answers-singly (original batch)
                     (engine::send-held-output engine worker) ; the worker comes
                     (funcall original batch))
      (send-late engine worker))
    (is (zerop (held-count worker)))
    (expect-each clients "a")
    (mapc #'expect-nothing clients)
    (serve-queued engine worker)
    (is (every #'engine::parked-p connections))))

(define-server-test what-the-sentinel-has-taken-it-sends-though-it-is-not-late-any-more
  ;; The worker leaves what it finds locked.
  (with-holding (engine worker connections clients 1)
    (hold-answer engine worker (first connections) (first clients) "a")
    (with-globals ((engine::*late-microseconds* (* 1000 1000 60)))
      (send-late engine worker))
    (expect-each clients "a")))

(define-server-test a-worker-that-ends-while-the-sentinel-looks-loses-no-answer
  (with-holding (engine worker connections clients 1)
    (hold-answer engine worker (first connections) (first clients) "a")
    (let ((batch (engine::ready-worker-batch worker)))
      (is-true (engine::batch-locked-p batch))
      (let ((end (in-background ("the end") (engine::end-holding engine worker))))
        (is (not (poll (lambda () (task-done-p end)) 1/20)))
        (engine::unlock-batch batch)
        (task-result end)))
    (expect-each clients "a")
    (serve-queued engine worker)
    (is (engine::parked-p (first connections)))))

;;; In an engine that runs

(defun call-holding-behind-a-handler (function)
  (let ((first (make-gate)) (gate (make-gate)))
    (with-ready-engine (engine (lambda (char)
                                 (case char
                                   (#\v (await first) nil)
                                   (#\w (await gate) nil)))
                               :standby 1 :thread-limit 1 :service-class 'gathering-service)
      (with-connections (connections 3 *port*)
        (dolist (connection connections)
          (exchange-octets connection "x"))
        (wait-for-statistic engine :parked 3)
        (destructuring-bind (before quick blocked) connections
          (unwind-protect
               (progn
                 (send before "v")
                 (wait-for-statistic engine :busy 1)
                 ;; Both are told to the one worker at once, in this order.
                 (send quick "a")
                 (send blocked "w")
                 (open-gate first)
                 (is (equal "v" (decode (read-octets before 1))))
                 (eventually ("its service to be at it")
                   (= 5 (statistic engine :served)))
                 (funcall function engine gate quick blocked))
            (open-gate first)
            (open-gate gate)))))))

(defmacro with-held-behind-a-handler ((engine gate quick blocked) &body body)
  "Evaluates BODY while the one worker of ENGINE holds the answer to QUICK, a connection, and serves BLOCKED, until
GATE opens."
  `(where-rings-work
    (with-globals ((engine::*processors* 1)
                   (engine::*held-microseconds* (* 1000 1000 60)))
      (with-function (engine::holding-pays-p (original engine worker) (engine::serving-p engine))
        (call-holding-behind-a-handler (lambda (,engine ,gate ,quick ,blocked)
                                         (declare (ignorable ,engine ,gate ,quick ,blocked))
                                         ,@body))))))

(defmacro without-the-sentinels-help (&body body)
  "Evaluates BODY while no sentinel sends what workers hold."
  `(with-function (engine::send-late-output (original engine) nil)
     ,@body))

(define-server-test no-answer-waits-behind-a-handler-that-blocks
  (with-held-behind-a-handler (engine gate quick blocked)
    (is (equal "a" (decode (read-octets quick 1))))
    (open-gate gate)
    (is (equal "w" (decode (read-octets blocked 1))))
    (is (equal "b" (exchange-octets quick "b")))))

(define-server-test a-worker-that-is-destroyed-sends-what-it-holds
  (without-the-sentinels-help
    (with-held-behind-a-handler (engine gate quick blocked)
      (expect-nothing quick)
      (bt:destroy-thread (engine::worker-thread (first (engine::engine-workers engine))))
      (is (equal "a" (decode (read-octets quick 1))))
      (is (closed-by-server-p blocked))
      (is (equal "b" (exchange-octets quick "b")) "Another worker serves it."))))

(define-server-test a-hard-stop-sends-what-is-held
  (without-the-sentinels-help
    (with-held-behind-a-handler (engine gate quick blocked)
      (expect-nothing quick)
      (let ((stop (in-background ("a stop") (engine:stop-engine engine))))
        (eventually ("the stop to begin") (not (engine::serving-p engine)))
        (open-gate gate)
        (is (equal "a" (decode (read-octets quick 1))))
        (is (closed-by-server-p quick))
        (is (null (task-result stop)))
        (is (null (engine:accounting-problems engine)))))))

(define-server-test a-soft-stop-sends-what-is-held
  (without-the-sentinels-help
    (with-held-behind-a-handler (engine gate quick blocked)
      (let ((stop (in-background ("a stop") (engine:stop-engine engine :soft t))))
        (eventually ("the stop to begin") (engine::draining-p engine))
        (open-gate gate)
        (is (equal "a" (decode (read-octets quick 1))))
        (is (equal "w" (decode (read-octets blocked 1))))
        (disconnect quick)
        (disconnect blocked)
        (is (null (task-result stop)))))))

(define-server-test many-answers-that-are-held-come-each-once-and-in-order
  (where-rings-work
   (with-globals ((engine::*late-microseconds* 0)) ; the sentinel is always about to
     (with-function (engine::holding-pays-p (original engine worker) (engine::serving-p engine))
       (with-ready-engine (engine (constantly nil) :service-class 'gathering-service)
         (with-connections (connections 24 *port*)
           (let ((text "abcdefghijklmnopqrstuvwxyz"))
             (loop for char across text
                   do (send-each connections (string char))
                      (expect-each connections (string char)))
             (send-each connections text)
             (expect-each connections text))
           (mapc #'expect-nothing connections)))))))
