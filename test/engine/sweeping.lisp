(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite sweeping :in ready
  :description "What the sentinel ends, and what it must leave alone, one step at a time.")

(in-suite sweeping)

;;; An engine without threads, whose connections a test takes through their states by hand

(defun accept-at-rest (engine)
  "A connection that ENGINE, which has no threads, has accepted and owns."
  (platform:set-non-blocking (engine::engine-listener-descriptor engine))
  (engine::open-connection engine (accepted-descriptor (engine::engine-listener engine)) nil))

(defun call-with-connections-at-rest (function count)
  (with-resting-engine (engine)
    (setf (engine::engine-phase engine) :running)
    (let ((clients '()) (connections '()))
      (unwind-protect
           (progn
             ;; One after the other: a listener has room for a few only.
             (loop repeat count
                   do (push (connect (usocket:get-local-port (engine::engine-listener engine)))
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
                                    (declare (ignorable ,engine ,clients))
                                    ,@body)
                                  ,count))

(defmacro with-connection-at-rest ((engine connection client) &body body)
  `(with-connections-at-rest (,engine connections clients 1)
     (let ((,connection (first connections)) (,client (first clients)))
       (declare (ignorable ,client))
       ,@body)))

(defun await-input-at-rest (connection)
  "Waits until something has come for CONNECTION."
  (is (platform:await-descriptor (engine:connection-descriptor connection) :input
                                 :until (patient-end))))

(defun make-overdue (connection now)
  (engine::set-deadline connection :idle -1 now))

;;; Overdue

(define-server-test what-is-overdue-is-ended-and-counted
  (with-connection-at-rest (engine connection client)
    (let ((now (platform:milliseconds)))
      (is (eq :parked (engine::park engine connection)))
      (engine::end-overdue-connection engine connection now)
      (is (not (engine::gone-p connection)) "It has no deadline.")
      (setf (engine:connection-deadline connection) now)
      (engine::end-overdue-connection engine connection now)
      (is (not (engine::gone-p connection)) "It may still come now.")
      (make-overdue connection now)
      (engine::end-overdue-connection engine connection now)
      (is (engine::gone-p connection))
      (is (closed-by-server-p client))
      (is (= 1 (getf (statistic engine :expired-by) :idle)))
      (is (zerop (statistic engine :open))))))

(define-server-test a-deadline-that-is-renewed-before-the-sentinel-owns-its-connection-holds
  (with-connection-at-rest (engine connection client)
    (let ((now (platform:milliseconds)))
      (is (eq :parked (engine::park engine connection)))
      (make-overdue connection now)
      (with-replaced-function (engine::claim-parked (original connection)
                                (engine::set-deadline connection :idle 100 now)
                                (funcall original connection))
        (engine::end-overdue-connection engine connection now))
      (is (engine::parked-p connection) "It can be told of again.")
      (is (zerop (statistic engine :expired))))))

(define-server-test what-comes-while-the-sentinel-owns-a-connection-is-looked-at-later
  (with-connection-at-rest (engine connection client)
    (let ((now (platform:milliseconds)))
      (is (eq :parked (engine::park engine connection)))
      (make-overdue connection now)
      (with-replaced-function (engine::claim-parked (original connection)
                                (engine::set-deadline connection :idle 100 now)
                                (prog1 (funcall original connection)
                                  (is (not (engine::become-owner connection nil)) "Somebody else is told.")))
        (engine::end-overdue-connection engine connection now))
      (is (engine::parked-p connection))
      (is (eql (engine::connection-token connection) (engine::take-from-tray engine))))))

(define-server-test a-deadline-that-a-worker-renews-before-it-is-shut-down-holds
  (with-connection-at-rest (engine connection client)
    (let ((now (platform:milliseconds)))
      (make-overdue connection now)
      (with-replaced-function (engine::call-while-expiring (original connection function)
                                (engine::set-deadline connection :write 100 now)
                                (funcall original connection function))
        (engine::end-overdue-connection engine connection now))
      (is (zerop (statistic engine :expired)))
      (is (not (readable-p client)))
      (make-overdue connection now)
      (engine::end-overdue-connection engine connection now)
      (engine::end-overdue-connection engine connection now)
      (is (= 1 (statistic engine :expired)) "It is counted once.")
      (is (closed-by-server-p client))
      (is (not (engine::gone-p connection)) "It is its owner's to close."))))

(defun give-notice-of (engine text)
  (setf (slot-value (engine::engine-service engine) 'notice) text))

(define-server-test who-is-told-why-may-still-read-it
  (with-connection-at-rest (engine connection client)
    (let ((now (platform:milliseconds)))
      (give-notice-of engine "late")
      (is (eq :parked (engine::park engine connection)))
      (make-overdue connection now)
      (engine::end-overdue-connection engine connection now)
      (is (equal "late" (decode (receive-rest client))))
      (is (engine::connection-lingering-p connection))
      (is (engine::parked-p connection))
      (is (eql (engine::connection-token connection) (engine::take-from-tray engine))))))

(define-server-test no-notice-goes-into-an-unfinished-answer
  (with-connection-at-rest (engine connection client)
    (let ((now (platform:milliseconds)))
      (give-notice-of engine "late")
      (setf (engine:connection-output connection) (list (engine:make-octets-part (octets "rest"))))
      (is (eq :parked (engine::park engine connection)))
      (make-overdue connection now)
      (engine::end-overdue-connection engine connection now)
      (is (engine::gone-p connection))
      (is (equal "" (decode (receive-rest client)))))))

(define-server-test who-has-been-told-good-bye-is-told-nothing-more
  (with-connection-at-rest (engine connection client)
    (let ((now (platform:milliseconds)))
      (give-notice-of engine "late")
      (engine::begin-to-linger connection now)
      (is (eq :parked (engine::park engine connection)))
      (engine::set-deadline connection :linger -1 now)
      (engine::end-overdue-connection engine connection now)
      (is (engine::gone-p connection))
      (is (equal "" (decode (receive-rest client)))))))

(define-server-test who-reads-nothing-but-keeps-sending-meets-the-write-deadline
  (with-globals ((engine::*tick* 1/100))
    (with-ready-engine (engine #'large-answers :write-seconds 1/2)
      (with-connection (slow *port*)
        (send slow "L")
        (wait-until-writing engine 1)
        (eventually ("the write deadline")
          (try-to-send slow "a")
          (plusp (getf (statistic engine :expired-by) :write)))
        (wait-for-statistic engine :open 0)))))

;;; Room for others

(define-server-test room-is-made-of-those-who-idle-and-of-nobody-else
  (with-connections-at-rest (engine connections clients 5)
    (destructuring-bind (idle waiting slow lingering owned) connections
      (send (second clients) "x")
      (await-input-at-rest waiting)
      (setf (engine:connection-output slow) (list (engine:make-octets-part (octets "rest"))))
      (engine::begin-to-linger lingering (platform:milliseconds))
      (dolist (connection (list idle waiting slow lingering))
        (is (eq :parked (engine::park engine connection))))
      (engine::make-room engine)
      (is (engine::gone-p idle))
      (is (closed-by-server-p (first clients)))
      (is (= 1 (getf (statistic engine :expired-by) :crowd)))
      (is (every #'engine::parked-p (list waiting slow lingering)))
      (is (not (engine::gone-p owned)))
      (is (eql (engine::connection-token waiting) (engine::take-from-tray engine))
          "Its request is served.")
      (is (null (engine::take-from-tray engine))))))

(define-server-test those-who-have-idled-for-longest-give-way-first
  (with-connections-at-rest (engine connections clients 20)
    (loop for connection in (reverse connections)
          for seconds from 100
          do (engine::set-deadline connection :idle seconds 0)
             (is (eq :parked (engine::park engine connection))))
    (engine::make-room engine)
    (is (notany #'engine::gone-p (subseq connections 0 4)))
    (is (every #'engine::gone-p (subseq connections 4)))))

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

(define-server-test who-is-told-of-an-owned-connection-leaves-it-and-its-owner-looks-again
  (with-connection-at-rest (engine connection client)
    (let ((token (engine::connection-token connection)))
      (is (null (engine::own-connection engine token)))
      (is (not (engine::give-up-ownership connection)))
      (is (not (engine::parked-p connection)))
      (is (engine::give-up-ownership connection) "Nothing more has come.")
      (is (eq connection (engine::own-connection engine token)))
      (is (not (engine::read-closed-p connection))))))

(defclass satisfied-service (octet-service)
  ()
  (:documentation "Serves whatever has come as one request, and says that it has read all."))

(defmethod engine:serve ((service satisfied-service) connection)
  (engine:count-request connection)
  :park)

(define-server-test the-end-of-the-input-is-not-forgotten-by-who-does-not-own-the-connection
  (loop for (over-p expected) in '((t :close) (nil :parked))
        do (with-connection-at-rest (engine connection client)
             (change-class (engine::engine-service engine) 'satisfied-service)
             (is (not (engine::become-owner connection over-p)))
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
       (with-connection (client (usocket:get-local-port (engine::engine-listener ,engine)))
         (eventually ("a connection to be told of")
           (eql ,descriptor (told-now ,engine)))
         (is (null (told-now ,engine)) "It is told once.")
         ,@body))))

(define-server-test a-listener-that-is-listened-to-again-tells-of-who-waits
  (with-listening-engine (engine descriptor)
    (engine::listen-again engine)
    (is (eql descriptor (told-now engine)))
    (is (null (told-now engine)))))

(define-server-test after-many-connections-what-else-is-ready-has-its-turn
  (with-listening-engine (engine descriptor)
    (let ((worker (engine::make-pool-worker engine 1)))
      (loop repeat (1- engine::+accept-batch+)
            do (engine::leave-listener engine worker)
               (is (eql descriptor (engine::take-from-tray engine)))
               (is (null (told-now engine))))
      (engine::leave-listener engine worker)
      (is (null (engine::take-from-tray engine)))
      (is (eql descriptor (told-now engine))))))
