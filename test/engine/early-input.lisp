(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite early-input :in engine
  :description "What several connections have sent is received at once, and served by whoever is free.")

(in-suite early-input)

(defun park-all (engine connections)
  (dolist (connection connections)
    (is (eq :parked (engine::park engine connection)))))

(defun receive-at-once (engine worker connections)
  "What WORKER of ENGINE queues for events of all CONNECTIONS that it gets at once."
  (engine::receive-early engine worker (mapcar #'engine::connection-token connections)))

(defun early (engine)
  "What the service of ENGINE was given early."
  (recorded (gathering-early (engine::engine-service engine))))

(define-server-test what-several-have-sent-is-received-at-once-and-answered-to-each
  (with-holding (engine worker connections clients 3)
    (park-all engine connections)
    (loop for client in clients
          for text in '("a" "bc" "d")
          do (send client text))
    (mapc #'await-input-at-rest connections)
    (let ((entries (receive-at-once engine worker connections)))
      (is (equal connections entries))
      (is (notany #'engine::parked-p connections) "They are owned.")
      (is (equal '(("a" t) ("bc" t) ("d" t)) (early engine)))
      (engine::queue-events engine entries))
    (serve-queued engine worker)
    (send-and-settle engine worker)
    (serve-queued engine worker)
    (send-and-settle engine worker)
    (loop for client in clients
          for text in '("a" "bc" "d")
          do (is (equal text (decode (read-octets client (length text))))))
    (mapc #'expect-nothing clients)
    (is (every #'engine::parked-p connections))))

(define-server-test who-has-sent-nothing-or-ended-is-given-nothing
  (with-holding (engine worker connections clients 3)
    (park-all engine connections)
    (send (first clients) "a")
    (end-sending (second clients))
    (await-input-at-rest (first connections))
    (await-input-at-rest (second connections))
    (engine::queue-events engine (receive-at-once engine worker connections))
    (is (equal '(("a" t)) (early engine)))
    (serve-queued engine worker)
    (send-and-settle engine worker)
    (is (equal "a" (decode (read-octets (first clients) 1))))
    (is (closed-by-server-p (second clients)))
    (is (engine::parked-p (third connections)))))

(define-server-test who-sends-more-than-is-received-early-is-not-taken-to-have-sent-all
  (with-holding (engine worker connections clients 2)
    (park-all engine connections)
    (let ((text (make-string (1+ engine::+early-octets+) :initial-element #\a)))
      (send (first clients) text)
      (send (second clients) "b")
      (eventually ("all of it to come")
        (= (length text) (platform:unread-octets (engine:connection-descriptor (first connections)))))
      (await-input-at-rest (second connections))
      (receive-at-once engine worker connections)
      (is (equal (list (list (subseq text 1) nil) '("b" t)) (early engine))))))

(define-server-test who-cannot-be-given-what-it-has-sent-is-closed-alone
  (with-holding (engine worker connections clients 3)
    (park-all engine connections)
    (send-each clients "a")
    (mapc #'await-input-at-rest connections)
    (with-function (engine:take-input (original service connection octets start end all-p)
                     (if (eq connection (second connections))
                         (error "Of a test.")
                         (funcall original service connection octets start end all-p)))
      (engine::queue-events engine (receive-at-once engine worker connections)))
    (serve-queued engine worker)
    (send-and-settle engine worker)
    (is (closed-by-server-p (second clients)))
    (is (engine::gone-p (second connections)))
    (is (= 1 (statistic engine :failed)))
    (dolist (place '(0 2))
      (is (equal "a" (decode (read-octets (nth place clients) 1))))
      (is (engine::parked-p (nth place connections))))))

(define-server-test what-somebody-owns-is-marked-and-what-is-no-connection-is-queued-as-it-is
  (with-holding (engine worker connections clients 2)
    (destructuring-bind (owned parked) connections
      (park-all engine (list parked))
      (send-each clients "a")
      (mapc #'await-input-at-rest connections)
      (let ((listener (engine::engine-listener-descriptor engine)))
        (is (equal (list listener parked :probe engine::+timer-token+ :wakeup)
                   (engine::receive-early engine worker
                                          (list listener (engine::connection-token owned)
                                                (engine::connection-token parked)
                                                :probe engine::+timer-token+ :wakeup)))))
      (is (null (early engine)) "It is the only one.")
      (is (engine::arrived-p owned)))))

(define-server-test who-stops-receives-nothing-early
  (with-holding (engine worker connections clients 2)
    (park-all engine connections)
    (send-each clients "a")
    (mapc #'await-input-at-rest connections)
    (setf (engine::engine-phase engine) :stopping)
    (is (every #'integerp (receive-at-once engine worker connections)))
    (is (every #'engine::parked-p connections))))

(define-server-test where-there-is-no-ring-events-are-queued-and-nothing-is-held
  (with-connections-at-rest (engine connections clients 2)
    (with-function (platform:make-ring (original) nil)
      (call-with-holding-worker
       (lambda (worker)
         (park-all engine connections)
         (send-each clients "a")
         (mapc #'await-input-at-rest connections)
         (let ((entries (receive-at-once engine worker connections)))
           (is (every #'integerp entries))
           (engine::queue-events engine entries)
           (serve-queued engine worker)
           (expect-each clients "a")
           (is (zerop (held-count worker)))))
       engine))))

;;; What has something else to do first

(define-server-test who-lingers-gets-no-more-time-by-sending
  (with-holding (engine worker connections clients 2)
    (let ((lingering (first connections)))
      (engine::begin-to-linger lingering (platform:milliseconds))
      (let ((deadline (engine:connection-deadline lingering)))
        (park-all engine connections)
        (send-each clients "a")
        (mapc #'await-input-at-rest connections)
        (engine::queue-events engine (receive-at-once engine worker connections))
        (is (null (early engine)))
        (serve-queued engine worker)
        (is (engine::parked-p lingering))
        (is (eql deadline (engine:connection-deadline lingering)))))))

(define-server-test who-takes-no-output-gets-no-more-time-by-sending
  (with-holding (engine worker connections clients 2)
    (let ((slow (first connections)))
      (setf (slot-value (engine::engine-service engine) 'write-seconds) 60)
      (fill-window slow)
      (setf (engine:connection-output slow) (list (engine:make-octets-part (octets "x"))))
      (is (eq :parked (engine::send-pending-output engine slow)))
      (decf (engine::connection-write-end slow) 30000)
      (let ((end (engine::connection-write-end slow))
            (deadline (decf (engine:connection-deadline slow) 1000)))
        (park-all engine (rest connections))
        (send-each clients "a")
        (mapc #'await-input-at-rest connections)
        (engine::queue-events engine (receive-at-once engine worker connections))
        (is (null (early engine)))
        (serve-queued engine worker)
        (is (engine::parked-p slow))
        (is (eql end (engine::connection-write-end slow)))
        (is (eql deadline (engine:connection-deadline slow)))))))

(define-server-test who-is-to-be-ended-is-given-nothing
  (with-holding (engine worker connections clients 2)
    (destructuring-bind (over other) connections
      (engine::leave-end-to-worker engine over :close)
      (is (equal (list (engine::connection-token over)) (take-all engine)))
      (park-all engine (list other))
      (send-each clients "a")
      (mapc #'await-input-at-rest connections)
      (engine::queue-events engine (receive-at-once engine worker connections))
      (is (null (early engine)))
      (serve-queued engine worker)
      (is (zerop (engine:connection-served over)))
      (is (closed-by-server-p (first clients))))))

(define-server-test what-was-received-early-has-no-deadline-while-no-worker-is-free
  (with-holding (engine worker connections clients 2)
    (park-all engine connections)
    (dolist (connection connections)
      (make-overdue connection (platform:milliseconds)))
    (setf (engine::connection-deferred-p (first connections)) t)
    (send-each clients "a")
    (mapc #'await-input-at-rest connections)
    (engine::queue-events engine (receive-at-once engine worker connections))
    (dolist (connection connections)
      (engine::time-out-if-due engine connection (platform:milliseconds)))
    (serve-queued engine worker)
    (send-and-settle engine worker)
    (expect-each clients "a")))

(define-server-test a-worker-gets-no-ring-for-input-while-others-are-stuck
  (with-holding (engine worker connections clients 2)
    (pretend-calm engine nil)
    (park-all engine connections)
    (send-each clients "a")
    (mapc #'await-input-at-rest connections)
    (with-function (platform:make-ring (original) (error "A ring was made."))
      (let ((tokens (mapcar #'engine::connection-token connections)))
        (is (equal tokens (receive-at-once engine worker connections)))))
    (is (null (engine::ready-worker-batch worker)))
    (pretend-calm engine)
    (is (equal connections (receive-at-once engine worker connections)))
    (is (= 2 (length (early engine))))
    (pretend-calm engine nil)
    (is (not (null (engine::batch-for-input engine worker))) "What it has it uses.")))

(define-server-test as-many-as-a-ring-takes-are-received-at-once
  (with-holding (engine worker connections clients platform:+ring-size+)
    (park-all engine connections)
    (send-each clients "a")
    (mapc #'await-input-at-rest connections)
    (is (equal connections (receive-at-once engine worker connections)))
    (is (= platform:+ring-size+ (length (early engine))))))

(define-server-test whose-answer-comes-later-is-not-kept-from-visitors-by-the-queue
  (with-holding (engine worker connections clients 3)
    (park-all engine connections)
    (send-each clients "a")
    (mapc #'await-input-at-rest connections)
    (destructuring-bind (plain later reading) connections
      (setf (engine::connection-deferred-p later) t
            (engine::connection-deferred-p reading) t
            (gathered-octets (gathered-of later)) (list (char-code #\b))) ; it does not receive first
      (is (equal (list plain (engine::connection-token later) reading)
                 (receive-at-once engine worker connections)))
      (is (equal '(nil t nil) (mapcar #'engine::parked-p connections)))
      (is (not (null (engine::connection-deferred-p later)))))))

(define-server-test where-no-worker-can-be-made-what-goes-on-is-left-to-visitors
  (with-holding (engine worker connections clients 2)
    (setf (engine::engine-thread-limit engine) 0)
    (park-all engine connections)
    (send-each clients "a")
    (mapc #'await-input-at-rest connections)
    (setf (engine::connection-deferred-p (first connections)) t)
    (is (equal (list (engine::connection-token (first connections)) (second connections))
               (receive-at-once engine worker connections)))
    (is (equal '(t nil) (mapcar #'engine::parked-p connections)))))

(define-server-test what-is-left-to-visitors-while-a-stop-passes-by-is-closed
  (with-holding (engine worker connections clients 2)
    (park-all engine connections)
    (send-each clients "a")
    (mapc #'await-input-at-rest connections)
    (dolist (connection connections)
      (setf (engine::connection-deferred-p connection) t))
    (with-function (engine::room-p (original engine)
                     (setf (engine::engine-phase engine) :stopping)
                     nil)
      (engine::receive-early engine worker (mapcar #'engine::connection-token connections)))
    (is (every #'closed-by-server-p clients))))

;;; Stops

(defun receive-and-queue (engine worker connections clients)
  (park-all engine connections)
  (send-each clients "a")
  (mapc #'await-input-at-rest connections)
  (engine::queue-events engine (receive-at-once engine worker connections)))

(define-server-test what-is-queued-when-a-worker-ends-is-closed-with-a-stop-alone
  (dolist (phase '(:running :stopping))
    (with-holding (engine worker connections clients 2)
      (receive-and-queue engine worker connections clients)
      (setf (engine::engine-phase engine) phase)
      (engine::end-holding engine worker)
      (case phase
        (:running
         (is (notany #'engine::gone-p connections))
         (is (= 2 (length (take-all engine)))))
        (t
         (is (every #'closed-by-server-p clients))
         (is (null (take-all engine))))))))

(define-server-test what-is-queued-is-closed-before-the-last-worker-has-left
  (with-holding (engine worker connections clients 2)
    (receive-and-queue engine worker connections clients)
    (engine::queue-events engine (list (engine::engine-listener-descriptor engine)))
    (setf (engine::engine-phase engine) :stopping)
    (with-function (engine::retire (original worker)
                     (is (every #'engine::gone-p connections))
                     (funcall original worker))
      (is (not (engine::keep-working-p engine worker (engine::engine-pool-state engine)))))
    (is (every #'closed-by-server-p clients))))

(define-server-test a-hard-stop-closes-what-is-queued-though-a-worker-blocks
  (with-holding (engine worker connections clients 2)
    (receive-and-queue engine worker connections clients)
    (setf (engine::engine-phase engine) :stopping)
    (engine::end-input engine :keep-alive :serving :writing)
    (is (every #'engine::gone-p connections))
    (is (every #'closed-by-server-p clients))))

(defmacro stopping-after-reception ((engine) &body body)
  "Evaluates BODY, in which a worker of ENGINE receives early; a hard stop comes just after that."
  `(with-function (engine::receive-together (original engine batch entries)
                    (funcall original engine batch entries)
                    (setf (engine::engine-phase ,engine) :stopping)
                    (engine::end-input ,engine :keep-alive :serving :writing))
     ,@body))

(define-server-test what-is-queued-as-a-stop-begins-is-closed-though-a-worker-blocks
  (with-holding (engine worker connections clients 3)
    (park-all engine connections)
    (send-each clients "a")
    (mapc #'await-input-at-rest connections)
    (destructuring-bind (token . others) (mapcar #'engine::connection-token connections)
      (stopping-after-reception (engine)
        (is (eq (first connections) (engine::first-of-events engine worker token others)))))
    (is (every #'engine::gone-p (rest connections)))))

(define-server-test connections-that-are-queued-count-as-busy
  (with-holding (engine worker connections clients 2)
    (receive-and-queue engine worker connections clients)
    (is (= 2 (engine::busy-or-readable-count engine 10)))
    (is (= 1 (engine::busy-or-readable-count engine 1)))
    (serve-queued engine worker)
    (send-and-settle engine worker)
    (expect-each clients "a")
    (serve-queued engine worker)
    (is (zerop (engine::busy-or-readable-count engine 10)))))
