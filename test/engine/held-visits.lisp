(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite held-visits :in held-output
  :description "Answers that a worker holds for connections that it visits, amid a function of a program.")

(in-suite held-visits)

(defclass visited-holding-service (gathering-service)
  ((outcome :initform :deferred :accessor visited-outcome
            :documentation "What SERVE-VISITOR returns, for a connection that is not sent anything more."))
  (:documentation "Has an answer for whoever is visited, which may be held."))

(defmethod engine:serve-visitor ((service visited-holding-service) connection)
  (give-gathered connection (octets "v"))
  (funcall (gathering-after service) #\v)
  (visited-outcome service))

(defmacro with-held-visits ((engine worker connections clients count &optional (deferred connections)) &body body)
  "Like WITH-HOLDING; DEFERRED, of CONNECTIONS, are parked, and wait for visits, whose answers are held."
  `(with-holding (,engine ,worker ,connections ,clients ,count)
     (change-class (engine::engine-service ,engine) 'visited-holding-service)
     (dolist (connection ,deferred)
       (park-deferred ,engine connection))
     (with-globals ((engine::*held-microseconds* (* 1000 1000 60)))
       ,@body)))

(defun visit-each (engine connections)
  (dolist (connection connections)
    (engine:visit-connection engine connection)))

(defun visits-text (clients)
  "What visits have for CLIENTS, an octet for each."
  (make-string (length clients) :initial-element #\v))

(define-server-test what-a-worker-has-for-those-that-it-visits-it-holds-and-sends-together
  (with-held-visits (engine worker connections clients 2)
    (visit-each engine connections)
    (mapc #'expect-nothing clients)
    (is (= 2 (held-count worker)))
    (is (notany #'engine::parked-p connections) "They are their worker's.")
    (engine::send-held-output engine worker)
    (expect-octets clients "vv")
    (is (every #'engine::parked-p connections))
    (is (every #'engine::connection-deferred-p connections))))

(define-server-test what-any-other-thread-has-is-sent-at-once
  (with-held-visits (engine worker connections clients 1)
    (task-result (in-background ("somebody else") (visit-each engine connections)))
    (with-resting-engine (other)
      (let ((engine::*worker* (engine::make-pool-worker other 1)))
        (visit-each engine connections)))
    (is (equal "vv" (decode (read-octets (first clients) 2))))
    (is (zerop (held-count worker)))
    (is (every #'engine::parked-p connections))))

(define-server-test whoever-is-not-visited-has-nothing-held
  (with-held-visits (engine worker connections clients 2)
    (setf (gathering-after (engine::engine-service engine))
          (lambda (char)
            (declare (ignore char))
            (is (not (engine:hold-output (second connections) (octets "a") 0 1)))))
    (visit-each engine (butlast connections))
    (is (not (engine:hold-output (first connections) (octets "a") 0 1)))
    (is (= 1 (held-count worker)))))

(define-server-test those-that-are-visited-wait-no-longer-than-until-enough-were
  (with-held-visits (engine worker connections clients (1+ engine::+most-held+))
    (visit-each engine (butlast connections 2))
    (mapc #'expect-nothing clients)
    (visit-each engine (last connections 2))
    (expect-octets (butlast clients) (visits-text (butlast clients)))
    (is (every #'engine::parked-p (butlast connections)))
    (expect-nothing (first (last clients)))
    (is (= 1 (held-count worker)))))

(define-server-test what-was-held-for-long-leaves-with-the-next-visit
  (with-held-visits (engine worker connections clients 2)
    (visit-each engine (butlast connections))
    (expect-nothing (first clients))
    (with-globals ((engine::*held-microseconds* -1))
      (visit-each engine (rest connections)))
    (expect-octets clients "vv")
    (is (every #'engine::parked-p connections))))

(define-server-test where-the-sentinel-does-not-look-nothing-of-a-visit-is-held
  (with-held-visits (engine worker connections clients 1)
    (setf (engine::pool-state-clock-stopped-p (engine::engine-pool-state engine)) t)
    (visit-each engine connections)
    (expect-octets clients "v")
    (is (every #'engine::parked-p connections))))

;;; What is sent amid a function of a program, which may have locks

(defmacro releasing-nothing (() &body body)
  "Evaluates BODY, which closes no connection."
  `(with-function (engine:release (original service connection)
                    (fail "A visit calls what closing calls."))
     ,@body))

(define-server-test amid-visits-no-connection-is-closed-but-left-to-workers
  (with-held-visits (engine worker connections clients engine::+most-held+ (rest connections))
    (end-after engine "z")
    (setf (visited-outcome (engine::engine-service engine)) :close)
    (hold-answer engine worker (first connections) (first clients) "z") ; of an event before
    (releasing-nothing ()
      (visit-each engine (rest connections)))
    (is (zerop (held-count worker)))
    (is (notany #'engine::gone-p connections))
    (serve-queued engine worker)
    (expect-octets clients (format nil "z~A" (visits-text (rest clients))))
    (is (every #'closed-by-server-p clients))
    (is (every #'engine::gone-p connections))))

(define-server-test a-visit-to-which-sending-fails-breaks-alone
  (with-held-visits (engine worker connections clients engine::+most-held+)
    (sending-by ((failing-at 1))
      (visit-each engine connections))
    (serve-queued engine worker)
    (is (engine::gone-p (second connections)))
    (is (closed-by-server-p (second clients)))
    (let ((others (remove (second clients) clients)))
      (expect-octets others (visits-text others))
      (is (every #'engine::parked-p (remove (second connections) connections))))))

(define-server-test who-has-sent-on-meanwhile-is-queued-for-workers
  (with-held-visits (engine worker connections clients engine::+most-held+)
    (visit-each engine (butlast connections))
    (send (first clients) "a")
    (await-input-at-rest (first connections))
    (engine::become-owner (first connections) nil) ; the kernel has reported that
    (visit-each engine (last connections))
    (is (equal (list (engine::connection-token (first connections))) (engine::queued-events engine)))
    (serve-queued engine worker)
    (engine::send-held-output engine worker)
    (is (equal "va" (decode (read-octets (first clients) 2))))))

(define-server-test a-visit-amid-another-sends-what-that-holds-and-leaves-the-rest-to-it
  (with-held-visits (engine worker connections clients engine::+most-held+)
    (let ((service (engine::engine-service engine)))
      (setf (gathering-after service)
            (lambda (char)
              (declare (ignore char))
              (setf (gathering-after service) (constantly nil))
              (visit-each engine (rest connections))
              (expect-octets clients (visits-text clients))
              (is (every #'engine::parked-p (rest connections)))
              (is (not (engine::parked-p (first connections))) "Its visit goes on.")))
      (visit-each engine (list (first connections))))
    (mapc #'expect-nothing clients)
    (is (every #'engine::parked-p connections))
    (is (notany #'engine::connection-held connections))
    (is (null (engine::take-event engine)))))

(define-server-test who-visits-while-a-worker-finishes-with-what-it-has-sent-adds-nothing-to-that
  (with-held-visits (engine worker connections clients 3 (rest connections))
    (end-after engine "z")
    (hold-answer engine worker (first connections) (first clients) "z")
    (engine:visit-connection engine (second connections))
    (with-function (engine:release (original service connection)
                     (engine:visit-connection engine (third connections))
                     (funcall original service connection))
      (sending-by ((failing-at 0))
        (engine::send-held-output engine worker)))
    (expect-octets (rest clients) "vv")
    (is (every #'engine::parked-p (rest connections)))
    (is (engine::gone-p (first connections)))))

(define-server-test who-leaves-a-visit-has-what-it-holds-sent-and-its-connection-closed-by-workers
  (with-held-visits (engine worker connections clients 2)
    (let ((service (engine::engine-service engine)))
      (visit-each engine (rest connections))
      (setf (gathering-after service) (lambda (char) (throw 'away char)))
      (releasing-nothing ()
        (is (eql #\v (catch 'away (visit-each engine (list (first connections)))))))
      (is (= 2 (held-count worker)))
      (mapc #'expect-nothing clients)
      (engine::send-held-output engine worker))
    (serve-queued engine worker)
    (expect-octets clients "vv")
    (is (closed-by-server-p (first clients)))
    (is (engine::parked-p (second connections)))))

(define-server-test who-leaves-while-visits-end-ends-each-of-them
  (with-held-visits (engine worker connections clients engine::+most-held+)
    (visit-each engine (butlast connections))
    (is (catch 'away
          (with-function (engine:input-buffered-p (original service connection)
                           (throw 'away t))
            (setf (visited-outcome (engine::engine-service engine)) :park)
            (dolist (connection connections) ; as if these, too, were to be read
              (setf (engine::connection-outcome connection) :park))
            (visit-each engine (last connections)))
          nil))
    (is (zerop (held-count worker)))
    (serve-queued engine worker)
    (expect-octets clients (visits-text clients))
    (is (every #'engine::gone-p connections))))

;;; What is left to workers, though something fails

(define-server-test who-leaves-a-visit-that-holds-nothing-has-its-connection-closed-by-workers
  (dolist (sent-p '(nil t))
    (with-held-visits (engine worker connections clients 1)
      (setf (gathering-after (engine::engine-service engine))
            (lambda (char)
              (when sent-p
                (send-late engine worker))
              (throw 'away char)))
      (with-function (engine:hold-output (original connection octets start end)
                       (and sent-p (funcall original connection octets start end)))
        (releasing-nothing ()
          (is (eql #\v (catch 'away (visit-each engine connections))))))
      (is (null (engine::connection-held (first connections))))
      (serve-queued engine worker)
      (expect-octets clients "v")
      (is (closed-by-server-p (first clients))))))

(define-server-test amid-visits-no-connection-is-closed-though-the-engine-stops
  (loop for (outcome after) in '((:deferred nil) (:close nil) (:deferred "a"))
        do (with-held-visits (engine worker connections clients 2)
             (setf (visited-outcome (engine::engine-service engine)) outcome)
             (visit-each engine (rest connections))
             (when after
               (engine::become-owner (second connections) nil)) ; as if more had come
             (setf (engine::engine-phase engine) :stopping)
             (with-globals ((engine::*held-microseconds* -1))
               (releasing-nothing ()
                 (visit-each engine (list (first connections)))))
             (expect-octets clients "vv")
             (is (every #'engine::parked-p connections))
             ;; What FINISH-STOP does then.
             (setf (engine::engine-phase engine) :stopped)
             (engine::end-input engine :keep-alive :writing)
             (is (every #'closed-by-server-p clients))
             (is (every #'engine::gone-p connections)))))

(define-server-test who-visits-when-the-engine-has-stopped-leaves-no-connection-open
  (dolist (outcome '(:deferred :close))
    (with-held-visits (engine worker connections clients 2)
      (setf (visited-outcome (engine::engine-service engine)) outcome
            (engine::engine-phase engine) :stopped)
      (with-function (engine::holding-pays-p (original engine worker) nil)
        (visit-each engine connections))
      (expect-octets clients "vv")
      (is (every #'closed-by-server-p clients))
      (is (every #'engine::gone-p connections)))))

(define-server-test a-stop-closes-what-visitors-park-meanwhile-though-a-worker-stays
  (with-held-visits (engine worker connections clients 1)
    (let ((connection (first connections))
          (engine::*worker* nil))
      (is-true (engine::become-owner connection nil) "Its visitor has it when STOP looks first.")
      (with-function (engine::release-resources-when-empty (original engine) nil)
        (with-function (engine::await-empty-pool (original engine seconds)
                         (is (engine::give-up-ownership connection))
                         (releasing-nothing ()
                           (visit-each engine connections)))
          (engine:stop-engine engine :timeout 0)))
      (is (equal "v" (decode (read-octets (first clients) 1))))
      (is (closed-by-server-p (first clients)))
      (is (engine::gone-p connection)))))

(define-server-test a-connection-that-a-program-was-given-amid-a-visit-stays-its-own-though-it-leaves-that
  (with-held-visits (engine worker connections clients 1)
    (let ((connection (first connections)))
      (setf (gathering-after (engine::engine-service engine))
            (lambda (char)
              (setf (engine::connection-outcome connection) :detached)
              (throw 'away char)))
      (with-function (engine:hold-output (original connection octets start end) nil)
        (is (eql #\v (catch 'away (visit-each engine connections)))))
      (serve-queued engine worker)
      (is (engine::gone-p connection))
      (is (= 1 (platform:send-octets (engine:connection-descriptor connection) (octets "d") 0 1)) "It is open.")
      (is (equal "vd" (decode (read-octets (first clients) 2))))
      (platform:close-descriptor (engine:connection-descriptor connection)))))

;;; A worker between two events

(defmacro between-events ((engine worker connections clients) &body body)
  "Evaluates BODY while WORKER of ENGINE, between two events, holds its answer to the first of CONNECTIONS, which ends with
that, and a program visits the two others when it does.  CLIENTS are theirs."
  `(with-held-visits (,engine ,worker ,connections ,clients 3 (rest ,connections))
     (end-after ,engine "z")
     (hold-answer ,engine ,worker (first ,connections) (first ,clients) "z")
     (setf (engine::ready-worker-stamp ,worker) 0)
     (with-function (engine:release (original service connection)
                      (visit-each ,engine (rest ,connections))
                      (funcall original service connection))
       ,@body)))

(define-server-test a-worker-that-ends-holds-nothing-more
  (between-events (engine worker connections clients)
    (engine::end-holding engine worker)
    (expect-octets clients "zvv")
    (is (every #'engine::parked-p (rest connections)))
    (is (closed-by-server-p (first clients)))))

(define-server-test a-worker-that-waits-holds-nothing
  (between-events (engine worker connections clients)
    (is (null (engine::take-event-holding engine worker)))
    (is (zerop (held-count worker)))
    (expect-octets clients "zvv")))

;;; The sentinel

(define-server-test a-visit-goes-on-though-the-sentinel-sends-what-it-holds
  (loop for (outcome gone-p) in '((:deferred nil) (:close t))
        do (with-held-visits (engine worker connections clients 1)
             (setf (visited-outcome (engine::engine-service engine)) outcome)
             (while-serving (engine #\v)
                 (progn (send-late engine worker)
                        (expect-octets clients "v")
                        (is (not (engine::parked-p (first connections))) "It is visited."))
               (visit-each engine connections))
             (is (null (engine::connection-held (first connections))))
             (serve-queued engine worker)
             (is (eq gone-p (engine::gone-p (first connections)))))))

(define-server-test a-visit-that-the-sentinel-has-sent-is-left-to-workers
  (with-held-visits (engine worker connections clients 2)
    (visit-each engine connections)
    (send-late engine worker)
    (expect-octets clients "vv")
    (serve-queued engine worker)
    (is (every #'engine::parked-p connections))
    (is (zerop (held-count worker)))))

(define-server-test a-visit-that-ends-as-the-sentinel-sends-leaves-that-to-it
  (with-held-visits (engine worker connections clients engine::+most-held+)
    (let ((batch (engine::batch-of worker)))
      (with-function (engine::output-due-p (original engine batch)
                       (and (funcall original engine batch)
                            (engine::batch-locked-p batch))) ; as the sentinel does just then
        (visit-each engine connections))
      (mapc #'expect-nothing clients)
      (is (= (length clients) (held-count worker)))
      (engine::unlock-batch batch))
    (engine::send-held-output engine worker)
    (expect-octets clients (visits-text clients))
    (is (every #'engine::parked-p connections))))

;;; Timers

(define-server-test what-a-timer-holds-for-long-leaves-before-the-next-one-is-called
  (with-held-visits (engine worker connections clients 2)
    (let ((counts (make-recorder)))     ; an error of a timer's function fails no test
      (flet ((first-timer ()
               (visit-each engine connections)
               (record counts (held-count worker))
               (setf engine::*held-microseconds* -1))
             (second-timer ()
               (record counts (held-count worker))))
        (let ((functions (list #'first-timer #'second-timer)))
          (with-function (engine::next-due-function (original engine now)
                           (values (pop functions) (and functions t)))
            (engine::run-due-timers engine worker))))
      (is (equal '(2 0) (recorded counts))))
    (expect-octets clients "vv")
    (is (every #'engine::parked-p connections))))

(define-server-test a-timer-is-called-though-the-worker-is-left-while-it-sends-before
  (with-held-visits (engine worker connections clients 1 '())
    (end-after engine "z")
    (let ((functions '()))
      (setf functions (list (lambda () (setf functions :called))))
      (hold-answer engine worker (first connections) (first clients) "z")
      (with-function (engine::next-due-function (original engine now)
                       (and (consp functions) (first functions)))
        (is (catch 'away
              (with-globals ((engine::*held-microseconds* -1))
                (with-function (engine:release (original service connection)
                                 (throw 'away t))
                  (engine::run-due-timers engine worker)))
              nil))
        (engine::run-due-timers engine worker))
      (is (eq :called functions)))))
