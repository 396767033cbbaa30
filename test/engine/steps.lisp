(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite steps :in ready
  :description "What becomes of a connection, one step at a time, in an engine without threads.")

(in-suite steps)

;;; An engine without threads, whose connections a test takes through their states by hand

(defun accept-at-rest (engine)
  "A connection that ENGINE, which has no threads, has accepted and owns."
  (platform:set-non-blocking (engine-listener-descriptor engine))
  (open-connection engine (accepted-descriptor (engine:engine-listener engine)) nil))

(defun call-with-connections-at-rest (function count)
  (with-resting-engine (engine)
    (setf (engine-phase engine) :running)
    (let ((clients '()) (connections '()))
      (unwind-protect
           (progn
             ;; One after the other: a listener has room for a few only.
             (loop repeat count
                   do (push (connect (usocket:get-local-port (engine:engine-listener engine)))
                            clients)
                      (push (accept-at-rest engine) connections))
             (funcall function engine connections clients))
        (dolist (connection connections)
          (unless (gone-p connection)
            (claim-parked connection)
            (drop-connection engine connection)))
        (mapc #'disconnect clients)))))

(defmacro with-connections-at-rest ((engine connections clients count) &body body)
  "Evaluates BODY with an ENGINE without threads, COUNT CONNECTIONS that the caller owns, and their
CLIENTS in the same order."
  `(call-with-connections-at-rest (lambda (,engine ,connections ,clients)
                                    (declare (ignorable ,engine ,connections ,clients))
                                    ,@body)
                                  ,count))

(defmacro with-connection-at-rest ((engine connection client) &body body)
  `(with-connections-at-rest (,engine connections clients 1)
     (let ((,connection (first connections)) (,client (first clients)))
       (declare (ignorable ,connection ,client))
       ,@body)))

(defun await-input-at-rest (connection)
  "Waits until something has come for CONNECTION."
  (is (platform:await-descriptor (engine:connection-descriptor connection) :input
                                 :until (patient-end))))

(defun make-overdue (connection now)
  (engine:set-deadline connection :idle -1 now))

;;; The last octets

(defclass satisfied-service (octet-service)
  ()
  (:documentation "Serves whatever has come as one request, and says that it has read all."))

(defmethod engine:serve ((service satisfied-service) connection resuming-p)
  (declare (ignore resuming-p))
  (engine:count-request connection 0)
  (setf (engine:connection-input connection) :read)
  :park)

(defclass indifferent-service (octet-service)
  ()
  (:documentation "Wants nothing of what comes."))

(defmethod engine:serve ((service indifferent-service) connection resuming-p)
  (declare (ignore connection resuming-p))
  :park)

(define-server-test a-client-that-lingers-has-a-time-and-a-number-of-octets
  (with-connections-at-rest (engine connections clients 2)
    (destructuring-bind (first second) connections
      (let ((now (platform:milliseconds)))
        (dolist (connection connections)
          (begin-to-linger connection now)
          (is (eql (+ now (* 1000 *linger-seconds*)) (engine:connection-deadline connection)))
          (is (eq :linger (engine:connection-deadline-kind connection))))
        (setf (connection-linger-octets first) 3)
        (send (first clients) "abc")
        (await-input-at-rest first)
        (is (eq :none (drop-arrivals first)) "So many may come.")
        (send (first clients) "d")
        (await-input-at-rest first)
        (is (eq :end (drop-arrivals first)))
        ;; A peer that sends as fast as it is read gets no more time either.
        (with-function (drop-arrivals (original connection) :some)
          (linger engine first)
          (is (eql (connection-token first) (take-event engine)))
          (make-overdue second now)
          (linger engine second)
          (is (gone-p second))
          (is (null (take-event engine))))))))

(define-server-test what-came-after-a-service-had-read-all-is-unread
  (with-connection-at-rest (engine connection client)
    (setf (engine:connection-input connection) :read)
    (watch-connection engine connection :input)
    (send client "x")
    (await-input-at-rest connection)
    (is (not (unread-p connection)) "Nobody was told of it.")
    (is (not (become-owner connection nil)))
    (is (unread-p connection))))

;;; Shutting down what somebody else owns

(defun descriptor-open-p (connection)
  "Whether the descriptor of CONNECTION, of which nothing has come, is open."
  (platform:would-block-p (platform:receive-octets (engine:connection-descriptor connection)
                                                   (octets ".") 0 1)))

(define-server-test a-descriptor-is-not-closed-while-somebody-else-shuts-it-down
  (with-connection-at-rest (engine connection client)
    (is (call-while-expiring
         connection
         (lambda ()
           (close-owned engine connection)
           (is (gone-p connection))
           (is (descriptor-open-p connection))
           (is (not (call-while-expiring connection (lambda () (fail "Twice.")))))))
        "It was owned.")
    (is (not (descriptor-open-p connection)))
    (is (closed-by-server-p client))
    (is (not (parked-p connection)))
    (is (null (parked-connections (engine-table engine))))
    (is (not (claim-parked connection)))
    (is (not (call-while-expiring connection (lambda () (fail "It is gone.")))))))

(define-server-test nobody-shuts-down-what-is-parked
  (with-connection-at-rest (engine connection client)
    (is (eq :parked (park engine connection)))
    (is (not (call-while-expiring connection (lambda () (fail "It is parked.")))))
    (is (parked-p connection))))

;;; What is told late, or to somebody else

(test a-late-token-of-a-descriptor-that-was-used-again-finds-nothing
  (dolist (descriptor '(5 1023 1024 5000))
    (let* ((table (make-table))
           (connections (loop repeat 3
                              collect (make-connection
                                       nil :descriptor descriptor
                                   :generation (next-generation table)))))
      (destructuring-bind (first second third) connections
        (enter-connection table first)
        (is (eq first (find-connection table (connection-token first))))
        (forget-connection table first)
        (is (null (find-connection table (connection-token first))))
        (enter-connection table second)
        (is (null (find-connection table (connection-token first))))
        (is (null (find-connection table (connection-token third))))
        (is (eq second (find-connection table (connection-token second))))))))

(test generations-begin-again-when-there-are-no-more
  (let ((table (make-table)))
    (setf (table-generation table) (- (expt 2 30) 2))
    (is (= (1- (expt 2 30)) (next-generation table)))
    (is (zerop (next-generation table)))))

(define-server-test a-worker-that-is-told-of-an-owned-connection-leaves-it-and-its-owner-looks-again
  (with-connection-at-rest (engine connection client)
    (let ((token (connection-token connection)))
      (is (null (own-connection engine token)))
      (is (not (give-up-ownership connection)))
      (is (not (parked-p connection)))
      (is (give-up-ownership connection) "Nothing more has come.")
      (is (eq connection (own-connection engine token)))
      (is (not (read-closed-p connection))))))

(define-server-test an-engine-that-stops-or-drains-parks-nobody
  (with-connections-at-rest (engine connections clients 2)
    (destructuring-bind (served late) connections
      (let ((worker (make-pool-worker engine 1)))
        (change-class (engine:engine-service engine) 'satisfied-service)
        (with-function (park (original engine connection)
                         (setf (engine-phase engine) :stopping)
                         (funcall original engine connection))
          (serve-connection engine worker late))
        (is (gone-p late) "It was parked when the engine had stopped.")
        (is (eq :close (serve-once engine served)))
        (is (null (worker-connection worker)))))))

(defclass giving-service (octet-service)
  ((engine :accessor giving-engine)
   (ending :accessor giving-ending :documentation "Called then; what it returns is the outcome."))
  (:documentation "Gives connections away."))

(defmethod engine:serve ((service giving-service) connection resuming-p)
  (declare (ignore resuming-p))
  (engine:detach (giving-engine service) connection)
  (funcall (giving-ending service)))

(defun check-given-away (engine connection client ending)
  "Checks that the descriptor of CONNECTION stays open when its service gives it away and then does
what ENDING does."
  (let ((worker (make-pool-worker engine 1))
        (service (change-class (engine:engine-service engine) 'giving-service)))
    (setf (giving-engine service) engine
          (giving-ending service) ending)
    (watch-connection engine connection :input)
    (catch 'away (serve-connection engine worker connection))
    (is (gone-p connection))
    (is (descriptor-open-p connection))
    (is (zerop (statistic engine :open)))
    (is (null (worker-connection worker)))
    (is (null (find-connection (engine-table engine)
                               (connection-token connection))))
    (loop while (told-now engine))      ; what was told before
    (send client "x")
    (await-input-at-rest connection)
    (is (null (told-now engine)) "It is not watched any more.")
    (platform:close-descriptor (engine:connection-descriptor connection))))

(define-server-test a-connection-that-was-given-away-is-not-the-engines-to-close
  (dolist (ending (list (constantly :close) (constantly :park) (constantly :detached)
                        (lambda () (throw 'away nil)) (lambda () (error "Of a test."))))
    (with-connection-at-rest (engine connection client)
      (check-given-away engine connection client ending))))

(defclass duplicating-service (giving-service)
  ((duplicate :accessor duplicate-descriptor))
  (:documentation "Gives away other descriptors of what its connections have."))

(defmethod engine:serve ((service duplicating-service) connection resuming-p)
  (declare (ignore resuming-p))
  (setf (duplicate-descriptor service)
        (platform::duplicate-descriptor (engine:connection-descriptor connection))
        (engine:connection-outcome connection) :broken)
  (funcall (giving-ending service)))

(defun check-other-descriptor (engine connection client ending)
  "Checks that the other descriptor of the socket of CONNECTION can be used when its service gives
that away and then does what ENDING does, and that nobody is told of it."
  (let ((service (change-class (engine:engine-service engine) 'duplicating-service)))
    (setf (giving-ending service) ending)
    (watch-connection engine connection :input)
    (catch 'away (serve-connection engine (make-pool-worker engine 1) connection))
    (is (gone-p connection))
    (loop while (told-now engine))
    (let ((duplicate (duplicate-descriptor service)))
      (unwind-protect
           (progn
             (send client "x")
             (is (platform:await-descriptor duplicate :input :until (patient-end)))
             (is (null (told-now engine)) "It is not watched any more.")
             (is (= 1 (platform:send-octets duplicate (octets "y") 0 1)))
             (is (equal "y" (decode (read-octets client 1)))))
        (platform:close-descriptor duplicate)))))

(define-server-test the-other-descriptor-of-a-socket-that-was-given-away-is-left-alone
  (dolist (ending (list (constantly :broken)
                        (lambda () (throw 'away nil)) (lambda () (error "Of a test."))))
    (with-connection-at-rest (engine connection client)
      (check-other-descriptor engine connection client ending))))

(define-server-test errors-of-a-service-are-counted-and-end-the-connection
  (with-ready-engine (engine (lambda (char) (when (char= char #\e) (error "Of a test."))))
    (with-connection (connection *port*)
      (is (equal "a" (exchange-octets connection "a")))
      (send connection "e")
      (is (closed-by-server-p connection)))
    (wait-for-statistic engine :open 0)
    (is (= 1 (statistic engine :failed)))
    (is (= 1 (recorded-count (fake-notes *service*))))
    (is (notany #'worker-connection (engine-workers engine)))))

(define-server-test a-client-that-is-served-is-not-idle
  (with-globals ((*tick* 1/100))
    (with-growing-limit (seconds)
      (let ((*limit-began* (platform:microseconds)))
        (with-gated-engine (engine gate connections 1 :idle-seconds seconds)
          (let ((connection (first connections)))
            (promptly
              (exchange-octets connection "a")
              (wait-for-statistic engine :parked 1)
              (send connection "w")
              (wait-for-statistic engine :busy 1))
            (is (not (readable-p connection (* 2 seconds))))
            (open-gate gate)
            (is (equal "w" (decode (read-octets connection 1))))))))))

(define-server-test the-end-of-the-input-is-not-forgotten-by-who-does-not-own-the-connection
  (loop for (over-p expected) in '((t :close) (nil :parked))
        do (with-connection-at-rest (engine connection client)
             (change-class (engine:engine-service engine) 'satisfied-service)
             (is (null (own-connection engine
                                       (logior (connection-token connection)
                                               (if over-p
                                                   (ash 1 platform::+hangup-bit+)
                                                   0)))))
             (is (eq expected (loop for result = (serve-once engine connection)
                                    unless (eq result :again) return result))))))

;;; The listener

(defmacro with-listening-engine ((engine descriptor) &body body)
  "Evaluates BODY with an ENGINE without threads that has been told of a connection to its listener,
which is DESCRIPTOR."
  `(with-resting-engine (,engine)
     (let ((,descriptor (engine-listener-descriptor ,engine)))
       (setf (engine-phase ,engine) :running)
       (platform:watch (engine-poller ,engine) ,descriptor ,descriptor)
       (with-connection (client (usocket:get-local-port (engine:engine-listener ,engine)))
         (eventually ("a connection to be told of")
           (eql ,descriptor (told-now ,engine)))
         (is (null (told-now ,engine)) "It is told once.")
         ,@body))))

(define-server-test a-listener-that-is-listened-to-again-tells-of-who-waits
  (with-listening-engine (engine descriptor)
    (rearm-listener engine)
    (is (eql descriptor (told-now engine)))
    (is (null (told-now engine)))))

(define-server-test after-many-connections-what-else-is-ready-has-its-turn
  (with-listening-engine (engine descriptor)
    (let ((worker (make-pool-worker engine 1)))
      (loop repeat (1- +accept-batch+)
            do (requeue-listener engine worker)
               (is (eql descriptor (take-event engine)))
               (is (null (told-now engine))))
      (requeue-listener engine worker)
      (is (null (take-event engine)))
      (is (eql descriptor (told-now engine))))))

;;; Accepting

(define-server-test only-who-comes-while-all-workers-serve-is-refused
  (with-connections-at-rest (engine connections clients 2)
    (let ((worker (make-pool-worker engine 1)))
      (is (= 2 (statistic engine :accepted) (statistic engine :open)))
      (loop for (limit refused-p) in '((:unlimited nil) (2 nil) (nil t))
            do (setf (engine:engine-accept-limit engine) limit)
               (is (not (engine::refused-p engine worker)) "~A" limit)
               (is (eq refused-p (and (engine::refused-p engine nil) t)) "~A" limit)))))

(define-server-test a-soft-stop-refuses-nobody-whom-a-worker-may-serve
  (loop for (limit refused) in '((nil 0) (0 1))
        do (with-listening-engine (engine descriptor)
             (setf (engine:engine-accept-limit engine) nil
                   (engine:engine-thread-limit engine) limit
                   (accept-open-p (engine-accept-state engine)) t)
             (platform:set-non-blocking descriptor)
             (accept-rest engine 1)
             (is (= 1 (statistic engine :accepted)))
             (is (= refused (statistic engine :refused)))
             (end-input engine :keep-alive :writing))))

(define-server-test a-soft-stop-accepts-nothing-more-once-another-stop-has-ended-that
  (with-listening-engine (engine descriptor)
    (platform:set-non-blocking descriptor)
    (dolist (trouble '(nil platform:descriptors-exhausted))
      (setf (accept-trouble (engine-accept-state engine)) trouble)
      (let ((begun (platform:milliseconds)))
        (accept-rest engine 10)
        (is (< (- (platform:milliseconds) begun) 5000))))
    (is (zerop (statistic engine :accepted)))))

(define-server-test trouble-with-accepting-is-over-when-it-succeeds-unless-descriptors-lack
  (with-resting-engine (engine)
    (loop for (trouble left) in '((platform:accept-failed nil)
                                  (platform:descriptors-exhausted platform:descriptors-exhausted))
          do (setf (accept-trouble (engine-accept-state engine)) trouble)
             (note-accepted engine)
             (is (eq left (accept-trouble (engine-accept-state engine)))))))

(define-server-test a-client-that-is-accepted-ends-the-trouble-with-accepting
  (with-resting-engine (engine)
    (platform:set-non-blocking (engine-listener-descriptor engine))
    (setf (accept-trouble (engine-accept-state engine)) 'platform:accept-failed)
    (with-connection (client (usocket:get-local-port (engine:engine-listener engine)))
      (let* ((worker (make-pool-worker engine 1))
             (connection (eventually ("a connection") (take-connection engine worker))))
        (is (null (accept-trouble (engine-accept-state engine))))
        (drop-connection engine connection)))))

(define-server-test trouble-with-accepting-is-over-when-nobody-waits-any-more
  (with-resting-engine (engine)
    (loop for (trouble left) in '((platform:accept-failed platform:accept-failed)
                                  (platform:descriptors-exhausted nil))
          do (setf (accept-trouble (engine-accept-state engine)) trouble
                   (accept-again-p (engine-accept-state engine)) t)
             (accept-again engine)
             (is (not (accept-again-p (engine-accept-state engine))) "Another process had them.")
             (is (eq left (accept-trouble (engine-accept-state engine)))))))

(defun fail-to-accept (engine)
  (note-failed-accept engine 24)) ; EMFILE

(defun call-with-a-failed-accept-beside (function)
  (with-listening-engine (engine descriptor)
    (let ((client nil))
      (platform:set-non-blocking descriptor)
      (platform:close-descriptor (platform:accept-descriptor descriptor))
      (setf (accept-open-p (engine-accept-state engine)) t)
      (fail-to-accept engine)
      (with-function (note-backlog-empty (original engine)
                       (setf client (connect (usocket:get-local-port
                                              (engine:engine-listener engine))))
                       (eventually ("another connection to be told of")
                         (eql descriptor (told-now engine)))
                       (fail-to-accept engine)
                       (funcall original engine))
        (unwind-protect (funcall function engine descriptor)
          (when client (disconnect client)))))))

(defmacro with-a-failed-accept-beside ((engine descriptor) &body body)
  "Evaluates BODY with an ENGINE without threads that could not accept.  Just after its listener,
DESCRIPTOR, was seen to be empty, somebody comes; another thread fails to accept that connection,
and notes it, before what was seen is noted."
  `(call-with-a-failed-accept-beside (lambda (,engine ,descriptor)
                                       (declare (ignorable ,descriptor))
                                       ,@body)))

(define-server-test a-client-is-accepted-as-trouble-with-accepting-ends-though-another-could-not
  (with-a-failed-accept-beside (engine descriptor)
    (is (equal '(nil t) (multiple-value-list (take-connection engine nil)))
        "It is tried again.")
    (is (null (accept-trouble (engine-accept-state engine)))))
  (with-a-failed-accept-beside (engine descriptor)
    (accept-again engine)
    (is (eql descriptor (told-now engine)) "Somebody is told of it again.")))

(define-server-test who-ends-input-does-not-rely-on-another-who-may-not
  (with-connection-at-rest (engine connection client)
    (let* ((gate (make-gate)) (within (make-gate))
           (other (in-background ("another who ends it")
                    (call-while-expiring connection (lambda ()
                                                      (open-gate within)
                                                      (await gate))))))
      (await within)
      (let ((ender (in-background ("who ends input")
                     (end-input-of engine connection '(:serving)))))
        (is (not (poll (lambda () (task-done-p ender)) 1/10)))
        (open-gate gate)
        (task-result ender)
        (task-result other))
      (is (zerop (platform:receive-octets (engine:connection-descriptor connection)
                                          (octets ".") 0 1))
          "Its input is at the end."))))

(define-server-test a-connection-is-closed-if-its-worker-dies-while-it-sees-to-others
  (with-connection-at-rest (engine connection client)
    (let ((worker (make-pool-worker engine 1)))
      (pretend-to-wait engine)
      (with-function (accept-and-park (original engine worker) (throw 'dead t))
        (is (catch 'dead (accept-others engine worker connection) nil)))
      (is (gone-p connection))
      (is (closed-by-server-p client)))))
