(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite steps :in ready
  :description "What becomes of a connection, one step at a time, in an engine without threads.")

(in-suite steps)

;;; An engine without threads, whose connections a test takes through their states by hand

(defun accept-at-rest (engine)
  "A connection that ENGINE, which has no threads, has accepted and owns."
  (platform:set-non-blocking (engine::engine-listener-descriptor engine))
  (engine::open-connection engine (accepted-descriptor (engine:engine-listener engine)) nil))

(defun call-with-connections-at-rest (function count)
  (with-resting-engine (engine)
    (setf (engine::engine-phase engine) :running)
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
          (unless (engine::gone-p connection)
            (engine::claim-parked connection)
            (engine::drop-connection engine connection)))
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
          (engine::begin-to-linger connection now)
          (is (eql (+ now (* 1000 engine::*linger-seconds*)) (engine:connection-deadline connection)))
          (is (eq :linger (engine:connection-deadline-kind connection))))
        (setf (engine::connection-linger-octets first) 3)
        (send (first clients) "abc")
        (await-input-at-rest first)
        (is (eq :none (engine::drop-arrivals first)) "So many may come.")
        (send (first clients) "d")
        (await-input-at-rest first)
        (is (eq :end (engine::drop-arrivals first)))
        ;; A peer that sends as fast as it is read gets no more time either.
        (with-function (engine::drop-arrivals (original connection) :some)
          (engine::linger engine first)
          (is (eql (engine::connection-token first) (engine::take-event engine)))
          (make-overdue second now)
          (engine::linger engine second)
          (is (engine::gone-p second))
          (is (null (engine::take-event engine))))))))

(define-server-test what-came-after-a-service-had-read-all-is-unread
  (with-connection-at-rest (engine connection client)
    (setf (engine:connection-input connection) :read)
    (engine::watch-connection engine connection :input)
    (send client "x")
    (await-input-at-rest connection)
    (is (not (engine::unread-p connection)) "Nobody was told of it.")
    (is (not (engine::become-owner connection nil)))
    (is (engine::unread-p connection))))

;;; Shutting down what somebody else owns

(defun descriptor-open-p (connection)
  "Whether the descriptor of CONNECTION, of which nothing has come, is open."
  (platform:would-block-p (platform:receive-octets (engine:connection-descriptor connection)
                                                   (octets ".") 0 1)))

(define-server-test a-descriptor-is-not-closed-while-somebody-else-shuts-it-down
  (with-connection-at-rest (engine connection client)
    (is (engine::call-while-expiring
         connection
         (lambda ()
           (engine::close-owned engine connection)
           (is (engine::gone-p connection))
           (is (descriptor-open-p connection))
           (is (not (engine::call-while-expiring connection (lambda () (fail "Twice.")))))))
        "It was owned.")
    (is (not (descriptor-open-p connection)))
    (is (closed-by-server-p client))
    (is (not (engine::parked-p connection)))
    (is (null (engine::parked-connections (engine::engine-table engine))))
    (is (not (engine::claim-parked connection)))
    (is (not (engine::call-while-expiring connection (lambda () (fail "It is gone.")))))))

(define-server-test nobody-shuts-down-what-is-parked
  (with-connection-at-rest (engine connection client)
    (is (eq :parked (engine::park engine connection)))
    (is (not (engine::call-while-expiring connection (lambda () (fail "It is parked.")))))
    (is (engine::parked-p connection))))

;;; What is told late, or to somebody else

(test a-late-token-of-a-descriptor-that-was-used-again-finds-nothing
  (dolist (descriptor '(5 1023 1024 5000))
    (let* ((table (engine::make-table))
           (connections (loop repeat 3
                              collect (engine::make-connection
                                       nil :descriptor descriptor
                                           :generation (engine::next-generation table)))))
      (destructuring-bind (first second third) connections
        (engine::enter-connection table first)
        (is (eq first (engine::find-connection table (engine::connection-token first))))
        (engine::forget-connection table first)
        (is (null (engine::find-connection table (engine::connection-token first))))
        (engine::enter-connection table second)
        (is (null (engine::find-connection table (engine::connection-token first))))
        (is (null (engine::find-connection table (engine::connection-token third))))
        (is (eq second (engine::find-connection table (engine::connection-token second))))))))

(test generations-begin-again-when-there-are-no-more
  (let ((table (engine::make-table)))
    (setf (engine::table-generation table) (- (expt 2 30) 2))
    (is (= (1- (expt 2 30)) (engine::next-generation table)))
    (is (zerop (engine::next-generation table)))))

(define-server-test a-worker-that-is-told-of-an-owned-connection-leaves-it-and-its-owner-looks-again
  (with-connection-at-rest (engine connection client)
    (let ((token (engine::connection-token connection)))
      (is (null (engine::own-connection engine token)))
      (is (not (engine::give-up-ownership connection)))
      (is (not (engine::parked-p connection)))
      (is (engine::give-up-ownership connection) "Nothing more has come.")
      (is (eq connection (engine::own-connection engine token)))
      (is (not (engine::read-closed-p connection))))))

(define-server-test an-engine-that-stops-or-drains-parks-nobody
  (with-connections-at-rest (engine connections clients 2)
    (destructuring-bind (served late) connections
      (let ((worker (engine::make-pool-worker engine 1)))
        (change-class (engine:engine-service engine) 'satisfied-service)
        (with-function (engine::park (original engine connection)
                         (setf (engine::engine-phase engine) :stopping)
                         (funcall original engine connection))
          (engine::serve-connection engine worker late))
        (is (engine::gone-p late) "It was parked when the engine had stopped.")
        (is (eq :close (engine::serve-once engine served)))
        (is (null (engine::worker-connection worker)))))))

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
  (let ((worker (engine::make-pool-worker engine 1))
        (service (change-class (engine:engine-service engine) 'giving-service)))
    (setf (giving-engine service) engine
          (giving-ending service) ending)
    (engine::watch-connection engine connection :input)
    (catch 'away (engine::serve-connection engine worker connection))
    (is (engine::gone-p connection))
    (is (descriptor-open-p connection))
    (is (zerop (statistic engine :open)))
    (is (null (engine::worker-connection worker)))
    (is (null (engine::find-connection (engine::engine-table engine)
                                       (engine::connection-token connection))))
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
    (engine::watch-connection engine connection :input)
    (catch 'away (engine::serve-connection engine (engine::make-pool-worker engine 1) connection))
    (is (engine::gone-p connection))
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
    (is (notany #'engine::worker-connection (engine::engine-workers engine)))))

(define-server-test a-client-that-is-served-is-not-idle
  (with-globals ((engine::*tick* 1/100))
    (with-gated-engine (engine gate connections 1 :idle-seconds 1/5)
      (let ((connection (first connections)))
        (is (equal "a" (exchange-octets connection "a")))
        (wait-for-statistic engine :parked 1)
        (send connection "w")
        (wait-for-statistic engine :busy 1)
        (is (not (readable-p connection 1/2)))
        (open-gate gate)
        (is (equal "w" (decode (read-octets connection 1))))))))

(define-server-test the-end-of-the-input-is-not-forgotten-by-who-does-not-own-the-connection
  (loop for (over-p expected) in '((t :close) (nil :parked))
        do (with-connection-at-rest (engine connection client)
             (change-class (engine:engine-service engine) 'satisfied-service)
             (is (null (engine::own-connection engine
                                               (logior (engine::connection-token connection)
                                                       (if over-p
                                                           (ash 1 platform::+hangup-bit+)
                                                           0)))))
             (is (eq expected (loop for result = (engine::serve-once engine connection)
                                    unless (eq result :again) return result))))))

;;; The listener

(defmacro with-listening-engine ((engine descriptor) &body body)
  "Evaluates BODY with an ENGINE without threads that has been told of a connection to its listener,
which is DESCRIPTOR."
  `(with-resting-engine (,engine)
     (let ((,descriptor (engine::engine-listener-descriptor ,engine)))
       (setf (engine::engine-phase ,engine) :running)
       (platform:watch (engine::engine-poller ,engine) ,descriptor ,descriptor)
       (with-connection (client (usocket:get-local-port (engine:engine-listener ,engine)))
         (eventually ("a connection to be told of")
           (eql ,descriptor (told-now ,engine)))
         (is (null (told-now ,engine)) "It is told once.")
         ,@body))))

(define-server-test a-listener-that-is-listened-to-again-tells-of-who-waits
  (with-listening-engine (engine descriptor)
    (engine::rearm-listener engine)
    (is (eql descriptor (told-now engine)))
    (is (null (told-now engine)))))

(define-server-test after-many-connections-what-else-is-ready-has-its-turn
  (with-listening-engine (engine descriptor)
    (let ((worker (engine::make-pool-worker engine 1)))
      (loop repeat (1- engine::+accept-batch+)
            do (engine::requeue-listener engine worker)
               (is (eql descriptor (engine::take-event engine)))
               (is (null (told-now engine))))
      (engine::requeue-listener engine worker)
      (is (null (engine::take-event engine)))
      (is (eql descriptor (told-now engine))))))

;;; Accepting

(define-server-test only-who-comes-while-all-workers-serve-is-refused
  (with-connections-at-rest (engine connections clients 2)
    (let ((worker (engine::make-pool-worker engine 1)))
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
                   (engine::engine-accepting-p engine) t)
             (platform:set-non-blocking descriptor)
             (engine::accept-rest engine 1)
             (is (= 1 (statistic engine :accepted)))
             (is (= refused (statistic engine :refused)))
             (engine::end-input engine :keep-alive :writing))))

(define-server-test a-soft-stop-accepts-nothing-more-once-another-stop-has-ended-that
  (with-listening-engine (engine descriptor)
    (platform:set-non-blocking descriptor)
    (dolist (trouble '(nil platform:descriptors-exhausted))
      (setf (engine::engine-accept-trouble engine) trouble)
      (let ((begun (platform:milliseconds)))
        (engine::accept-rest engine 10)
        (is (< (- (platform:milliseconds) begun) 5000))))
    (is (zerop (statistic engine :accepted)))))

(define-server-test trouble-with-accepting-is-over-when-it-succeeds-unless-descriptors-lack
  (with-resting-engine (engine)
    (loop for (trouble left) in '((engine::accept-failed nil)
                                  (engine::descriptors-exhausted engine::descriptors-exhausted))
          do (setf (engine::engine-accept-trouble engine) trouble)
             (engine::note-accepted engine)
             (is (eq left (engine::engine-accept-trouble engine))))))

(define-server-test a-client-that-is-accepted-ends-the-trouble-with-accepting
  (with-resting-engine (engine)
    (platform:set-non-blocking (engine::engine-listener-descriptor engine))
    (setf (engine::engine-accept-trouble engine) 'engine::accept-failed)
    (with-connection (client (usocket:get-local-port (engine:engine-listener engine)))
      (let* ((worker (engine::make-pool-worker engine 1))
             (connection (eventually ("a connection") (engine::take-connection engine worker))))
        (is (null (engine::engine-accept-trouble engine)))
        (engine::drop-connection engine connection)))))

(define-server-test trouble-with-accepting-is-over-when-nobody-waits-any-more
  (with-resting-engine (engine)
    (loop for (trouble left) in '((engine::accept-failed engine::accept-failed)
                                  (engine::descriptors-exhausted nil))
          do (setf (engine::engine-accept-trouble engine) trouble
                   (engine::engine-accept-again-p engine) t)
             (engine::accept-again engine)
             (is (not (engine::engine-accept-again-p engine)) "Another process had them.")
             (is (eq left (engine::engine-accept-trouble engine))))))

(defun fail-to-accept (engine)
  (engine::note-failed-accept engine 24)) ; EMFILE

(defun call-with-a-failed-accept-beside (function)
  (with-listening-engine (engine descriptor)
    (let ((client nil))
      (platform:set-non-blocking descriptor)
      (platform:close-descriptor (platform:accept-descriptor descriptor))
      (setf (engine::engine-accepting-p engine) t)
      (fail-to-accept engine)
      (with-function (engine::note-backlog-empty (original engine)
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
    (is (equal '(nil t) (multiple-value-list (engine::take-connection engine nil)))
        "It is tried again.")
    (is (null (engine::engine-accept-trouble engine))))
  (with-a-failed-accept-beside (engine descriptor)
    (engine::accept-again engine)
    (is (eql descriptor (told-now engine)) "Somebody is told of it again.")))

(define-server-test who-ends-input-does-not-rely-on-another-who-may-not
  (with-connection-at-rest (engine connection client)
    (let* ((gate (make-gate)) (within (make-gate))
           (other (in-background ("another who ends it")
                    (engine::call-while-expiring connection (lambda ()
                                                              (open-gate within)
                                                              (await gate))))))
      (await within)
      (let ((ender (in-background ("who ends input")
                     (engine::end-input-of engine connection '(:serving)))))
        (is (not (poll (lambda () (task-done-p ender)) 1/10)))
        (open-gate gate)
        (task-result ender)
        (task-result other))
      (is (zerop (platform:receive-octets (engine:connection-descriptor connection)
                                          (octets ".") 0 1))
          "Its input is at the end."))))

(define-server-test a-connection-is-closed-if-its-worker-dies-while-it-sees-to-others
  (with-connection-at-rest (engine connection client)
    (let ((worker (engine::make-pool-worker engine 1)))
      (pretend-to-wait engine)
      (with-function (engine::accept-and-park (original engine worker) (throw 'dead t))
        (is (catch 'dead (engine::accept-others engine worker connection) nil)))
      (is (engine::gone-p connection))
      (is (closed-by-server-p client)))))
