(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite soft-stop :in ready
  :description "A soft stop loses no request that has come.")

(in-suite soft-stop)

(defun stop-softly (engine)
  "Begins a soft stop of ENGINE; returns its task once it has begun."
  (let ((stop (in-background ("soft stop")
                (engine:stop-engine engine :soft t))))
    (eventually ("the engine to drain")
      (draining-p engine))
    stop))

(define-server-test requests-on-kept-connections-are-served-while-an-engine-drains
  (with-growing-limit (seconds)
    (with-globals ((*drain-seconds* seconds))
      (with-ready-engine (engine (constantly nil))
        (with-connections (connections 10 *port*)
          (send-each connections "a")
          (expect-each connections "a")
          (wait-for-statistic engine :parked 10)
          (let ((stop (promptly
                        (prog1 (stop-softly engine)
                          (send-each connections "b")))))
            (expect-each connections "b")
            (is (every #'closed-by-server-p connections))
            (is (null (task-result stop)))
            (is (null (engine:accounting-problems engine)))))))))

(define-server-test connections-that-nobody-has-accepted-are-served-by-a-soft-stop
  (with-globals ((*drain-seconds* 1000))
    (with-gated-engine (engine gate connections 6 :standby 1 :thread-limit 1)
      (send (first connections) "w")
      (wait-for-statistic engine :busy 1)
      (send-each (rest connections) "a")
      (let ((stop (stop-softly engine)))
        (open-gate gate)
        (expect-each (rest connections) "a")
        (mapc #'disconnect connections)
        (is (null (task-result stop)))))))

(defun connection-refused-p (port)
  "True when the system refuses a new connection to PORT."
  (handler-case (progn (disconnect (connect port)) nil)
    (usocket:connection-refused-error () t)))

(define-server-test a-soft-stop-serves-connections-that-began-before-others-were-refused
  (with-globals ((*arrival-seconds* 1000))
    (with-ready-engine (engine (constantly nil))
      (platform:defer-accepts (engine:engine-listener engine) 60)
      (with-connection (held *port*)
        (let ((stop (stop-softly engine)))
          (eventually ("new connections to be refused") (connection-refused-p *port*))
          (is (equal "a" (exchange-octets held "a")))
          (is (null (stop-patiently engine)))
          (is (null (task-result stop))))))))

(define-server-test without-descriptors-a-soft-stop-waits-for-some-and-loses-no-connection
  (with-globals ((*drain-seconds* 1000))
    (with-ready-engine (engine (constantly nil))
      (call-while-exhausted
       12
       (lambda (clients give-back)
         (let ((waiting (mapcar #'funcall clients)))
           (send-each waiting "x")
           (eventually ("accepting to fail") (accept-trouble (engine-accept-state engine)))
           (with-function (evict-idle-connections (original engine)
                            ;; The sentinel makes some as well, but then the stop would find no
                            ;; want.
                            (unless (eq (bt:current-thread) (sentinel-of engine))
                              (funcall give-back))
                            (funcall original engine))
             (let ((stop (stop-softly engine)))
               (expect-each waiting "x")
               (mapc #'disconnect waiting)
               (is (null (task-result stop)))
               (is (null (engine:accounting-problems engine)))))))))))

(define-server-test a-soft-stop-tries-again-where-the-network-failed-under-an-accept
  (with-globals ((*drain-seconds* 1000))
    (with-gated-engine (engine gate connections 4 :standby 1 :thread-limit 1)
      (send (first connections) "w")
      (wait-for-statistic engine :busy 1)
      (send-each (rest connections) "a")
      (let ((failures (list t t)))
        (with-function (platform:accept-descriptor (original listener)
                         (cond ((not (and failures (draining-p engine)))
                                (funcall original listener))
                               ((eq (bt:current-thread) (sentinel-of engine))
                                -11)    ; EAGAIN
                               (t
                                (pop failures)
                                -71)))  ; EPROTO
          (let ((stop (stop-softly engine)))
            (eventually ("the failures") (null failures))
            (open-gate gate)
            (expect-each (rest connections) "a")
            (mapc #'disconnect connections)
            (is (null (task-result stop)))))))))

(define-server-test where-connections-keep-coming-a-soft-stop-accepts-no-longer-than-it-may
  (with-resting-engine (engine)
    (setf (accept-open-p (engine-accept-state engine)) t)
    (let ((count 0))
      (with-function (accept-and-park (original engine worker)
                       (< (incf count) 100000000))
        (let ((begun (platform:milliseconds)))
          (accept-rest engine 1/10)
          (is (<= 100 (- (platform:milliseconds) begun)))
          (is (< 1 count 100000000)))))))

(define-server-test idle-connections-hold-up-a-soft-stop-for-a-moment-only
  (with-ready-engine (engine (constantly nil))
    (with-connection (idle *port*)
      (is (equal "a" (exchange-octets idle "a")))
      (let ((stop (stop-softly engine)))
        (is (closed-by-server-p idle))
        (is (null (task-result stop)))))))

(define-server-test a-soft-stop-goes-on-where-another-has-just-begun-and-was-destroyed
  (with-ready-engine (engine (constantly nil))
    (with-connection (idle *port*)
      (is (equal "a" (exchange-octets idle "a")))
      (advance-phase engine :draining) ; that thread did no more
      (let ((stop (stop-softly engine)))
        (is (closed-by-server-p idle))
        (is (null (task-result stop)))))))

;;; The end of the process

(define-server-test at-the-exit-of-the-process-all-workers-end
  (dolist (drains-p '(nil t))
    (let ((begun (make-gate)) (gate (make-gate)))
      (with-globals ((*drain-seconds* 1000))
        (with-ready-engine (engine (lambda (char)
                                     (declare (ignore char))
                                     ;; It was read: what is not would reset the connection.
                                     (open-gate begun)
                                     (await gate)
                                     nil)
                                   :standby 3)
          (with-connection (connection *port*)
            (send connection "w")
            (await begun)
            (let ((stop (and drains-p (stop-softly engine))))
              (when stop
                (eventually ("it to accept nothing more") (not (accepting-p engine))))
              (stop-for-exit)
              (is-true (wait-for-statistic engine :threads 0) "~A" drains-p)
              (is (closed-by-server-p connection))
              (open-gate gate)
              (when stop
                (task-result stop)))))))))

(define-server-test an-engine-that-drains-ends-without-waiting-where-nothing-is-open
  (with-ready-engine (engine (constantly nil))
    (with-globals ((*drain-seconds* 1000))
      (is (null (task-result (stop-softly engine)))))))

(define-server-test a-program-that-stops-softly-while-another-does-cuts-nothing-off
  (with-globals ((*drain-seconds* 1000))
    (with-gated-engine (engine gate connections 6 :standby 1 :thread-limit 1)
      (send (first connections) "w")
      (wait-for-statistic engine :busy 1)
      (send-each (rest connections) "a")
      (let ((first-stop (stop-softly engine))
            (second-stop (stop-softly engine)))
        (open-gate gate)
        (expect-each (rest connections) "a")
        (mapc #'disconnect connections)
        (is (null (task-result first-stop)))
        (is (null (task-result second-stop)))))))

(define-server-test a-soft-stop-ends-with-a-hard-one
  (with-globals ((*drain-seconds* 1000))
    (with-ready-engine (engine (constantly nil))
      (with-connection (idle *port*)
        (is (equal "a" (exchange-octets idle "a")))
        (wait-for-statistic engine :busy 0) ; its worker may have answered, and not be done
        (let ((stop (stop-softly engine)))
          (is (null (stop-patiently engine)))
          (is (null (task-result stop))))))))

(define-server-test a-soft-stop-whose-time-runs-out-tells-of-requests-that-wait-for-a-worker
  (with-gated-engine (engine gate connections 4 :standby 1 :thread-limit 1)
    (with-connection (idle *port*)
      (dolist (connection (cons idle connections)) ; or the stop might have no time to accept them
        (exchange-octets connection "x"))
      (wait-for-statistic engine :busy 0)
      (send (first connections) "w")
      (wait-for-statistic engine :busy 1)
      (send-each (rest connections) "a")
      (let ((left (engine:stop-engine engine :soft t :timeout 1/2)))
        (is (= 1 (count-if (lambda (plist) (getf plist :worker)) left)) "One is served.")
        (is (= 3 (count :queued left :key (lambda (plist) (getf plist :state)))))
        (is (= 4 (length left)) "The idle connection lacks nothing."))
      (open-gate gate))))

;;; Left amid

(define-server-test a-stop-that-is-left-leaves-no-worker-waiting-for-ever
  (with-globals ((*processors* 1)) ; the others are suspended
    (with-ready-engine (engine (constantly nil) :standby 6)
      (eventually ("workers to be suspended")
        (plusp (worker-count engine :suspended)))
      (catch 'left
        (with-function (close-timers (original timers)
                         (throw 'left nil))
          (stop-patiently engine)))
      (wait-for-statistic engine :threads 0)
      (is (null (stop-patiently engine)))
      (is (null (engine:accounting-problems engine))))))

;;; Beside another stop
;;;
;;; Who stops a server may close its listener next, and the number of that may be a new listener's
;;; then.

(define-server-test nobody-has-stopped-a-ready-engine-while-another-who-stops-it-may-accept
  (with-ready-engine (engine (constantly nil))
    (check-waiting-for-who-accepts engine)))

(define-server-test a-hard-stop-ends-the-wait-of-a-soft-one-for-arrivals
  (with-globals ((*arrival-seconds* 1000))
    (with-ready-engine (engine (constantly nil))
      (let ((stop (stop-softly engine)))
        (is (null (stop-patiently engine)))
        (is (null (task-result stop)))))))
