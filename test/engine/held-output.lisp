(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite held-output :in engine
  :description "Answers that a worker holds, and sends together.")

(in-suite held-output)

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
        (is-true (member connection (recorded (missed-input (engine::engine-service engine))))
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
    (with-function (platform::wait-on (original condition-variable lock seconds) (setf waits-p t))
      (engine::idle-wait engine 0))
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
  `(with-function (engine::send-late-output (original engine &rest arguments) nil)
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

(define-server-test a-stop-that-leaves-a-worker-behind-sends-what-that-holds
  (with-function (engine::late-p (original batch now) nil)
    (with-held-behind-a-handler (engine gate quick blocked)
      (expect-nothing quick)
      (is (= 1 (length (engine:stop-engine engine :timeout 0))))
      (is (equal "a" (decode (read-octets quick 1))))
      (open-gate gate)
      (is (equal "w" (decode (read-octets blocked 1))))
      (is (closed-by-server-p blocked)))))

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
