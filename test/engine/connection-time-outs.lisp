(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite time-outs :in ready
  :description "What the sentinel ends, and what it must leave alone, one step at a time.")

(in-suite time-outs)

;;; Overdue

(defmacro with-overdue-connection ((engine connection client now) &body body)
  "Evaluates BODY with an ENGINE without threads, and CONNECTION, to CLIENT, which is parked and
overdue at NOW."
  `(with-connection-at-rest (,engine ,connection ,client)
     (let ((,now (platform:milliseconds)))
       (is (eq :parked (park ,engine ,connection)))
       (make-overdue ,connection ,now)
       ,@body)))

(define-server-test what-is-overdue-is-ended-and-counted
  (with-connection-at-rest (engine connection client)
    (let ((now (platform:milliseconds)))
      (is (eq :parked (park engine connection)))
      (time-out-if-due engine connection now)
      (is (not (gone-p connection)) "It has no deadline.")
      (setf (engine:connection-deadline connection) now)
      (time-out-if-due engine connection now)
      (is (not (gone-p connection)) "It may still come now.")
      (make-overdue connection now)
      (time-out-if-due engine connection now)
      (is (gone-p connection))
      (is (closed-by-server-p client))
      (is (= 1 (getf (statistic engine :expired-by) :idle)))
      (is (zerop (statistic engine :open))))))

(define-server-test a-deadline-that-is-renewed-before-the-sentinel-owns-its-connection-holds
  (with-overdue-connection (engine connection client now)
    (with-function (claim-parked (original connection)
                     (engine:set-deadline connection :idle 100 now)
                     (funcall original connection))
      (time-out-if-due engine connection now))
    (is (parked-p connection) "It can be told of again.")
    (is (zerop (statistic engine :expired)))))

(define-server-test what-comes-while-the-sentinel-owns-a-connection-is-looked-at-later
  (with-overdue-connection (engine connection client now)
    (with-function (claim-parked (original connection)
                     (engine:set-deadline connection :idle 100 now)
                     (prog1 (funcall original connection)
                       (is (not (become-owner connection nil)) "Somebody else is told.")))
      (time-out-if-due engine connection now))
    (is (parked-p connection))
    (is (eql (connection-token connection) (take-event engine)))))

(define-server-test a-deadline-that-a-worker-renews-before-it-is-shut-down-holds
  (with-connection-at-rest (engine connection client)
    (let ((now (platform:milliseconds)))
      (make-overdue connection now)
      (with-function (call-while-expiring (original connection function)
                       (engine:set-deadline connection :write 100 now)
                       (funcall original connection function))
        (time-out-if-due engine connection now))
      (is (zerop (statistic engine :expired)))
      (is (not (readable-p client)))
      (make-overdue connection now)
      (time-out-if-due engine connection now)
      (time-out-if-due engine connection now)
      (is (= 1 (statistic engine :expired)) "It is counted once.")
      (is (closed-by-server-p client))
      (is (not (gone-p connection)) "It is its owner's to close."))))

;;; A worker may own a connection and lose its processor before it begins to serve it.

(define-server-test a-client-that-sent-in-time-stays-though-a-worker-has-just-come-to-own-it
  (with-overdue-connection (engine connection client now)
    (send client "x")
    (await-input-at-rest connection)
    (dolist (left-p '(nil t))
      (when left-p
        (time-out-if-due engine connection now)
        (is (eql (connection-token connection) (take-event engine))))
      (is (become-owner connection nil))
      (time-out-if-due engine connection now)
      (is (zerop (statistic engine :expired)))
      (is (give-up-ownership connection)))
    (is (become-owner connection nil))
    (serve-connection engine (make-pool-worker engine 1) connection)
    (is (equal "x" (decode (read-octets client 1))))))

(define-server-test a-client-that-is-served-has-a-deadline-though-it-was-left-to-workers
  (with-overdue-connection (engine connection client now)
    (send client "x")
    (await-input-at-rest connection)
    (time-out-if-due engine connection now)
    (is (become-owner connection nil))
    (with-function (engine:serve (original service connection resuming-p)
                     (make-overdue connection now)
                     (time-out-if-due engine connection now)
                     :close)
      (serve-connection engine (make-pool-worker engine 1) connection))
    (is (= 1 (statistic engine :expired)))
    (is (closed-by-server-p client))))

(defun leave-rest (connection)
  "Puts octets into the send queue of CONNECTION."
  (engine:enqueue (engine:connection-queue connection)
                  (list (engine:make-octets-part (octets "rest")))))

(define-server-test a-client-that-takes-nothing-is-shut-down-though-a-worker-has-just-come-to-own-it
  (with-overdue-connection (engine connection client now)
    (leave-rest connection)
    (is (become-owner connection nil))
    (time-out-if-due engine connection now)
    (is (= 1 (statistic engine :expired)))))

(defmacro with-unsent-octets ((unsent count) &body body)
  "Evaluates BODY while UNSENT, at first COUNT, is how many octets the system says that no peer has
taken."
  `(let ((,unsent ,count))
     (with-function (platform:unsent-octets (original descriptor) ,unsent)
       ,@body)))

(defun begin-to-write (engine connection seconds now)
  "Leaves octets of CONNECTION to ENGINE, whose peers have SECONDS to take some, at NOW."
  (engine:limit-taking (engine:connection-queue connection) seconds)
  (leave-rest connection)
  (look-at-output connection now)
  (is (eq :parked (leave-to-poller engine connection))))

(defun end-of-writing (engine connection now)
  "After how many milliseconds from NOW the sentinel of ENGINE, which looks four times a second,
ends CONNECTION; NIL when it does not within two minutes."
  (loop for passed from 0 to 120000 by 250
        do (time-out-if-due engine connection (+ now passed))
        when (gone-p connection)
          return passed))

(define-server-test a-client-that-takes-octets-at-once-and-then-none-has-its-time-once
  (with-connection-at-rest (engine connection client)
    (let ((now (platform:milliseconds)))
      (with-unsent-octets (unsent 1000)
        (begin-to-write engine connection 16 now)
        (setf unsent 900)
        (is (<= 16000 (or (end-of-writing engine connection now) 0) 18000))
        (is (= 1 (getf (statistic engine :expired-by) :write)))))))

(define-server-test a-client-that-takes-an-octet-now-and-then-is-not-ended
  (with-connection-at-rest (engine connection client)
    (let ((now (platform:milliseconds)) (looks 0))
      (with-function (platform:unsent-octets (original descriptor)
                       ;; It takes one every tenth time.
                       (- 1000 (floor (incf looks) 10)))
        (begin-to-write engine connection 16 now)
        (is (null (end-of-writing engine connection now)))))))

(define-server-test a-client-that-has-no-limit-of-time-is-never-ended
  (with-connection-at-rest (engine connection client)
    (let ((now (platform:milliseconds)))
      (begin-to-write engine connection nil now)
      (is (null (end-of-writing engine connection now))))))

(define-server-test a-client-that-takes-octets-stays-though-a-worker-has-just-come-to-own-it
  (with-connection-at-rest (engine connection client)
    (let ((now (platform:milliseconds)))
      (with-unsent-octets (unsent 1000)
        (begin-to-write engine connection 1 now)
        (is (become-owner connection nil))
        (time-out-if-due engine connection (+ now 500))
        (is (zerop (statistic engine :expired)) "It has time left.")
        (setf unsent 900)
        (time-out-if-due engine connection (+ now 5000))
        (is (zerop (statistic engine :expired)))
        (setf unsent 1000)
        (time-out-if-due engine connection (+ now 5000))
        (is (= 1 (statistic engine :expired)))))))

(define-server-test a-client-that-takes-none-of-its-answer-is-closed-though-more-has-come
  (with-overdue-connection (engine connection client now)
    (leave-rest connection)
    (send client "x")
    (await-input-at-rest connection)
    (time-out-if-due engine connection now)
    (is (= 1 (statistic engine :expired)))))

(defun give-notice-of (engine text)
  (setf (slot-value (engine:engine-service engine) 'notice) text))

(define-server-test a-client-that-is-told-why-may-still-read-it
  (with-connection-at-rest (engine connection client)
    (let ((now (platform:milliseconds)))
      (give-notice-of engine "late")
      (is (eq :parked (park engine connection)))
      (make-overdue connection now)
      (time-out-if-due engine connection now)
      (is (equal "late" (decode (receive-rest client))))
      (is (connection-lingering-p connection))
      (is (parked-p connection))
      (is (eql (connection-token connection) (take-event engine))))))

(define-server-test no-notice-goes-into-an-unfinished-answer
  (with-connection-at-rest (engine connection client)
    (let ((now (platform:milliseconds)))
      (give-notice-of engine "late")
      (leave-rest connection)
      (is (eq :parked (park engine connection)))
      (make-overdue connection now)
      (time-out-if-due engine connection now)
      (is (gone-p connection))
      (is (equal "" (decode (receive-rest client)))))))

(define-server-test a-client-that-has-been-told-good-bye-is-told-nothing-more
  (with-connection-at-rest (engine connection client)
    (let ((now (platform:milliseconds)))
      (give-notice-of engine "late")
      (begin-to-linger connection now)
      (is (eq :parked (park engine connection)))
      (engine:set-deadline connection :linger -1 now)
      (time-out-if-due engine connection now)
      (is (gone-p connection))
      (is (equal "" (decode (receive-rest client)))))))

(define-server-test a-client-that-reads-nothing-but-keeps-sending-meets-the-write-deadline
  (with-globals ((*tick* 1/100))
    (with-ready-engine (engine #'large-answers :write-seconds 1/2)
      (with-connection (slow *port*)
        (send slow "L")
        (wait-until-writing engine 1)
        (eventually ("the write deadline")
          (try-to-send slow "a")
          (plusp (getf (statistic engine :expired-by) :write)))
        (wait-for-statistic engine :open 0)))))

(define-server-test a-request-that-came-by-the-end-of-a-drain-is-served
  (with-connections-at-rest (engine connections clients 2)
    (destructuring-bind (idle waiting) connections
      (send (second clients) "x")
      (await-input-at-rest waiting)
      (dolist (connection connections)
        (is (eq :parked (park engine connection))))
      (with-function (drain-time-out-p (original &rest arguments)
                       (progn t))
        (dolist (connection connections)
          (time-out-if-due engine connection (platform:milliseconds))))
      (is (gone-p idle))
      (is (parked-p waiting))
      (is (eql (connection-token waiting) (take-event engine))))))

(define-server-test a-request-that-came-before-its-deadline-waits-for-a-worker-however-long
  (with-connection-at-rest (engine connection client)
    (let ((now (platform:milliseconds)))
      (send client "x")
      (await-input-at-rest connection)
      (is (eq :parked (park engine connection)))
      (make-overdue connection now)
      (loop repeat 3
            do (time-out-if-due engine connection now)
               (is (parked-p connection)))
      (is (equal (list (connection-token connection)) (take-all engine))
          "It is told of once.")
      (is (zerop (statistic engine :expired))))))

(define-server-test what-a-service-was-told-of-and-did-not-want-does-not-wait-for-ever
  (dolist (seconds '(nil 100))
    (with-connection-at-rest (engine connection client)
      (change-class (engine:engine-service engine) 'indifferent-service)
      (setf (pool-state-idle (engine-pool-state engine)) (and seconds (* 1000 seconds)))
      (send client "x")
      (await-input-at-rest connection)
      (let ((now (platform:milliseconds)))
        (flet ((sweep ()
                 (with-function (drain-time-out-p (original &rest arguments) t)
                   (setf (pool-state-clock (engine-pool-state engine)) (incf now 1000))
                   (time-out-if-due engine connection now))))
          (is (eq :parked (park engine connection)))
          (sweep)
          (is (not (gone-p connection)))
          (handle-event engine (make-pool-worker engine 1)
                        (take-event engine))
          (is (parked-p connection))
          (sweep)
          (is (gone-p connection)))))))

(defclass piecemeal-service (octet-service)
  ()
  (:documentation "Reads all that has come of a request that never comes whole, and is overdue."))

(defmethod engine:serve ((service piecemeal-service) connection resuming-p)
  (declare (ignore resuming-p))
  (loop until (platform:would-block-p
               (platform:receive-octets (engine:connection-descriptor connection)
                                        (octets ".") 0 1)))
  (engine:set-deadline connection :head -1 (platform:milliseconds))
  (setf (engine:connection-input connection) :read)
  :park)

(define-server-test what-came-after-a-service-had-read-all-is-left-to-workers-again
  (with-overdue-connection (engine connection client now)
    (change-class (engine:engine-service engine) 'piecemeal-service)
    (loop repeat 3
          for worker = (make-pool-worker engine 1)
          do (send client "x")
             (await-input-at-rest connection)
             (loop repeat 2
                   do (time-out-if-due engine connection (platform:milliseconds)))
             (is (parked-p connection))
             (let ((tokens (take-all engine)))
               (is (equal (list (connection-token connection)) tokens))
               (poll (constantly nil) 1/100) ; so that the next deadline is another
               (handle-event engine worker (connection-token connection))))
    (is (not (platform:await-descriptor (engine:connection-descriptor connection) :input
                                        :until (platform:milliseconds))))
    (time-out-if-due engine connection (platform:milliseconds))
    (is (gone-p connection) "Nothing more has come.")))

(define-server-test a-client-that-sends-while-all-workers-are-held-is-served-after-its-deadline
  (with-globals ((*tick* 1/100))
    (with-growing-limit (seconds)
      (let ((*limit-began* (platform:microseconds)))
        (with-gated-engine (engine gate connections 2
                                   :standby 1 :thread-limit 1 :idle-seconds seconds)
          (destructuring-bind (held waiting) connections
            (promptly
              (exchange-octets waiting "a")
              (wait-for-statistic engine :busy 0) ; its worker may have answered, and not be done
              (send held "w")
              (wait-for-statistic engine :busy 1)
              (send waiting "b"))
            (is (not (readable-p waiting (* 3/2 seconds))))
            (open-gate gate)
            (is (equal "b" (decode (read-octets waiting 1))))))))))

(define-server-test what-is-parked-again-when-all-stops-is-closed
  (with-connections-at-rest (engine connections clients 2)
    (setf (engine-phase engine) :stopping)
    (destructuring-bind (again later) connections
      (park-again engine again)
      (requeue-connection engine later)
      (is (every #'gone-p connections))
      (is (every #'closed-by-server-p clients)))))

;;; Room for others

(define-server-test room-is-made-of-those-who-idle-and-of-nobody-else
  (with-connections-at-rest (engine connections clients 5)
    (destructuring-bind (idle waiting slow lingering owned) connections
      (send (second clients) "x")
      (await-input-at-rest waiting)
      (leave-rest slow)
      (begin-to-linger lingering (platform:milliseconds))
      (dolist (connection (list idle waiting slow lingering))
        (is (eq :parked (park engine connection))))
      (is (null (set-exclusive-or (list idle waiting)
                                  (parked-connections (engine-table engine)))))
      (evict-idle-connections engine)
      (is (gone-p idle))
      (is (closed-by-server-p (first clients)))
      (is (= 1 (getf (statistic engine :expired-by) :evicted)))
      (is (every #'parked-p (list waiting slow lingering)))
      (is (not (gone-p owned)))
      (is (eql (connection-token waiting) (take-event engine))
          "Its request is served.")
      (is (null (take-event engine))))))

(define-server-test a-client-that-is-being-answered-when-room-is-made-gets-all-of-it
  (with-connections-at-rest (engine connections clients 2)
    (destructuring-bind (slow lingering) connections
      (dolist (connection connections)
        (is (eq :parked (park engine connection))))
      (with-function (longest-idle (original engine)
                       (prog1 (funcall original engine)
                         ;; Meanwhile each sends a request, and is parked as it takes its answer.
                         (is (every #'claim-parked connections))
                         (leave-rest slow)
                         (begin-to-linger lingering (platform:milliseconds))
                         (is (every #'give-up-ownership connections))))
        (evict-idle-connections engine))
      (is (every #'parked-p connections))
      (is (zerop (getf (statistic engine :expired-by) :evicted))))))

(define-server-test those-who-have-idled-for-longest-give-way-first
  (with-connections-at-rest (engine connections clients 20)
    (loop for connection in (reverse connections)
          for seconds from 100
          do (engine:set-deadline connection :idle seconds 0)
             (is (eq :parked (park engine connection))))
    (evict-idle-connections engine)
    (is (notany #'gone-p (subseq connections 0 4)))
    (is (every #'gone-p (subseq connections 4)))))

(define-server-test a-client-that-sends-the-rest-of-a-request-gives-way-after-idle-ones
  (with-connections-at-rest (engine connections clients 20)
    (loop for connection in connections
          for (kind seconds) in (append '((:body 1) (:pause 2) (:body 3) (:pause 4))
                                        (loop repeat (- (length connections) 4)
                                              collect '(:idle 100)))
          do (engine:set-deadline connection kind seconds 0)
             (is (eq :parked (park engine connection))))
    (evict-idle-connections engine)
    (is (notany #'gone-p (subseq connections 0 4)))
    (is (every #'gone-p (subseq connections 4)))
    (evict-idle-connections engine)
    (is (every #'gone-p connections) "Or slow senders would lock others out.")))

(define-server-test a-client-that-is-about-to-be-parked-amid-a-request-is-not-shut-down
  (with-connection-at-rest (engine connection client)
    (let ((now (platform:milliseconds)))
      (dolist (kind '(:body :pause))
        (engine:set-deadline-at connection kind (- now 1))
        (time-out-if-due engine connection now)
        (is (zerop (statistic engine :expired))))
      (engine:set-deadline-at connection :body (- now 1))
      (is (eq :parked (park engine connection)))
      (time-out-if-due engine connection now)
      (is (= 1 (getf (statistic engine :expired-by) :body)))
      (is (closed-by-server-p client)))))

(define-server-test (output-that-finds-no-room-counts-all-the-same :needs :parking)
  (with-connections-at-rest (engine connections clients 2)
    (let ((filling (floor (* engine:*waiting-share* (or (engine:client-memory-budget) 0)))))
      (when (plusp filling)
        (engine:reserve-client-memory filling nil)
        (unwind-protect
             (destructuring-bind (first second) connections
               (flet ((leave-output (connection)
                        (engine:enqueue (engine:connection-queue connection)
                                        (list (engine:make-octets-part (base:make-octets 1000))))
                        (reserve-output engine connection))
                      (reserved (connection)
                        (send-queue-reserved (engine:connection-queue connection))))
                 (leave-output first)
                 (is (= 1000 (reserved first)))
                 (leave-to-poller engine first)
                 (leave-output second)
                 (is (= 1000 (reserved second)))
                 (is (zerop (reserved first)) "It gave way to the next.")
                 (release-output second)))
          (engine:release-client-memory filling))))))
