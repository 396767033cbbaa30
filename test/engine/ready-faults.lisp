(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite ready-faults :in engine
  :description "What goes wrong under the ready engine, and is survived.")

(in-suite ready-faults)

;;; No descriptor left

(defun call-while-exhausted (clients function)
  "Calls FUNCTION while this process can open no descriptor, with a list of CLIENTS functions
that connect to *PORT* all the same, and with a function that ends the want."
  (let* ((sockets (loop repeat clients collect (client-socket)))
         (connections '()))
    (unwind-protect
         (call-without-descriptors
          (lambda (give-back)
            (funcall function
                     (loop for socket in sockets
                           collect (let ((socket socket))
                                     (lambda ()
                                       (let ((connection (%make-connection
                                                          (connect-socket socket *port*))))
                                         (push connection connections)
                                         connection))))
                     give-back)))
      (mapc #'disconnect connections))))

(define-server-test without-descriptors-connections-wait-and-are-served-later
  (with-globals ((*tick* 1/100))
    (with-ready-engine (engine (constantly nil))
      ;; Who is accepted before it has sent something may have to give way.
      (platform:defer-accepts (engine:engine-listener engine) 60)
      ;; More than a few, since something else in this process may close a descriptor late.
      (call-while-exhausted
       12
       (lambda (clients give-back)
         (let ((waiting (mapcar #'funcall clients)))
           (dolist (connection waiting) (send connection "x"))
           (eventually ("accepting to fail again and again") (> (statistic engine :failed) 3))
           (is (< (statistic engine :accepted) 12))
           (is (engine:winding-down-p engine))
           (funcall give-back)
           (dolist (connection waiting)
             (is (equalp (octets "x") (read-octets connection 1))))
           (eventually ("the trouble to be over") (not (engine:winding-down-p engine)))
           (is (= 1 (length (error-notes *service*))) "It is noted once.")))))))

(define-server-test without-descriptors-idle-connections-give-way
  (with-globals ((*tick* 1/100))
    (with-ready-engine (engine (constantly nil))
      (with-connections (idle 8 *port*)
        (dolist (connection idle) (exchange-octets connection "i"))
        (wait-for-statistic engine :parked 8)
        (call-while-exhausted
         1
         (lambda (clients give-back)
           (declare (ignore give-back))
           (is (equal "x" (exchange-octets (funcall (first clients)) "x")))
           (is (plusp (getf (statistic engine :expired-by) :evicted)))
           (is (closed-by-server-p (first idle)))))))))

;;; Threads destroyed where it hurts

(defstruct ambush
  "Where the first thread to come, the victim, is stopped until a gate opens."
  (lock (bt:make-lock "ambush")) (victim nil)
  (reached (make-gate "a thread to fall into the ambush")) (gate (make-gate)))

(defun stop-in-ambush (ambush)
  "Holds the first thread that comes until the gate of AMBUSH opens."
  (when (bt:with-lock-held ((ambush-lock ambush))
          (unless (ambush-victim ambush)
            (setf (ambush-victim ambush) (bt:current-thread))))
    (open-gate (ambush-reached ambush))
    (await (ambush-gate ambush))))

(defun call-with-ambush (name test function)
  "Calls FUNCTION with an ambush for the first thread to which the function NAME returns a value
that meets TEST."
  (let ((original (fdefinition name))
        (ambush (make-ambush)))
    (setf (fdefinition name)
          (lambda (&rest arguments)
            (let ((values (multiple-value-list (apply original arguments))))
              (when (funcall test (first values))
                (stop-in-ambush ambush))
              (values-list values))))
    (unwind-protect (funcall function ambush)
      (open-gate (ambush-gate ambush))
      (setf (fdefinition name) original))))

(defun destroy-in-ambush (ambush)
  "Destroys the thread that is in AMBUSH, and lets it go."
  (await (ambush-reached ambush))
  (bt:destroy-thread (ambush-victim ambush))
  (open-gate (ambush-gate ambush)))

(defun check-after-destruction (engine connection)
  "Checks that ENGINE has closed CONNECTION, whose worker was destroyed, and serves others."
  (is (closed-by-server-p connection))
  (wait-for-statistic engine :open 0)
  (eventually ("no connection to be counted") (zerop (counted-connections engine)))
  (await-ended engine 1)
  (is (null (parked-connections (engine-table engine))))
  (with-connection (other *port*)
    (is (equal "o" (exchange-octets other "o")))))

(define-server-test a-worker-destroyed-when-it-has-just-become-an-owner-leaves-nothing-behind
  (with-ready-engine (engine (constantly nil))
    (with-connection (connection *port*)
      (exchange-octets connection "a")
      (wait-for-statistic engine :parked 1)
      (call-with-ambush 'become-owner #'identity
                        (lambda (ambush)
                          (send connection "x")
                          (destroy-in-ambush ambush)))
      (check-after-destruction engine connection))))

(define-server-test a-worker-destroyed-when-it-has-just-accepted-leaves-nothing-behind
  (with-ready-engine (engine (constantly nil))
    (call-with-ambush 'platform:accept-descriptor (lambda (result) (>= result 0))
                      (lambda (ambush)
                        (with-connection (connection *port*)
                          (destroy-in-ambush ambush)
                          (check-after-destruction engine connection))))))

(define-server-test a-worker-destroyed-when-it-was-just-told-leaves-nothing-behind
  (with-ready-engine (engine (constantly nil))
    (with-connection (connection *port*)
      (call-with-ambush 'platform:await-ready #'integerp
                        (lambda (ambush)
                          ;; Workers that wait already are not in the way of the ambush.
                          (loop do (send connection "x")
                                   (eventually ("an answer, or the ambush")
                                     (or (readable-p connection) (open-p (ambush-reached ambush))))
                                until (open-p (ambush-reached ambush))
                                do (next-octet connection))
                          (destroy-in-ambush ambush)))
      (check-after-destruction engine connection))))

(define-server-test a-worker-destroyed-when-it-has-just-parked-leaves-the-connection-open
  (with-ready-engine (engine (constantly nil))
    (with-connection (connection *port*)
      (exchange-octets connection "a")
      (wait-for-statistic engine :parked 1)
      (call-with-ambush 'give-up-ownership #'identity
                        (lambda (ambush)
                          (send connection "b")
                          (destroy-in-ambush ambush)))
      (is (equal "b" (decode (read-octets connection 1))))
      (await-ended engine 1)
      (is (equal "c" (exchange-octets connection "c")))
      (is (= 1 (statistic engine :open))))))

;;; Suspension: with one processor, one of two workers is suspended.

(defmacro with-one-awake ((engine gate connections count) &body body)
  "Evaluates BODY as WITH-GATED-ENGINE does, with two workers, of whom one is suspended, and no
more: on a busy machine another one would be made meanwhile."
  `(with-globals ((*processors* 1))
     (with-gated-engine (,engine ,gate ,connections ,count :standby 2 :thread-limit 2)
       ,@body)))

(defun check-suspended (engine)
  "Checks that one worker of ENGINE, which had two, was destroyed and replaced, and that who is
suspended is listed, and nobody else."
  (wait-for-statistic engine :made 3)
  (wait-for-statistic engine :ended 1)
  (wait-for-statistic engine :threads 2)
  (is (every (lambda (worker) (eq :suspended (worker-state worker)))
             (engine-suspended engine)))
  (with-connection (other *port*)
    (is (equal "o" (exchange-octets other "o"))))
  (is (null (stop-patiently engine)))
  (is (null (engine:accounting-problems engine))))

(defun destroy-where (name test prepare)
  "Destroys the first worker to which NAME returns what meets TEST, after PREPARE was called with an
engine and a connection; and checks the engine."
  (where-supported
   (call-with-ambush name test
                     (lambda (ambush)
                       (with-one-awake (engine gate connections 1)
                         (funcall prepare engine (first connections))
                         (destroy-in-ambush ambush)
                         (open-gate gate)
                         (check-suspended engine))))))

(define-server-test a-worker-destroyed-at-the-beginning-of-its-suspension-leaves-the-list
  (destroy-where 'begin-suspension (constantly t) (constantly nil)))

(defun have-one-resumed (engine connection)
  (wait-for-statistic engine :suspended 1)
  (send connection "w"))

(define-server-test a-worker-destroyed-when-it-was-just-resumed-leaves-the-list
  (destroy-where 'await-resume #'identity #'have-one-resumed))

(define-server-test a-worker-destroyed-at-the-end-of-its-suspension-leaves-the-list
  (destroy-where 'end-suspension (constantly t) #'have-one-resumed))

(define-server-test a-worker-destroyed-while-suspended-leaves-the-list
  (with-one-awake (engine gate connections 1)
    (let ((victim (eventually ("a worker to be suspended") (first (engine-suspended engine)))))
      (bt:destroy-thread (worker-thread victim))
      (eventually ("it to leave the list")
        (not (member victim (engine-suspended engine))))
      (check-suspended engine))))

(define-server-test nobody-who-belongs-to-the-floor-ends-while-suspended
  (with-globals ((*suspension-seconds* 0))
    (with-one-awake (engine gate connections 1)
      (wait-for-statistic engine :suspended 1)
      (engine:resize-pool engine)       ; has it look around
      (is (not (poll (lambda () (plusp (statistic engine :ended))) 1/5))))))

(define-server-test a-worker-that-was-left-behind-gives-the-poller-back-when-it-ends
  (with-gated-engine (engine gate connections 1)
    (send-each connections "w")
    (wait-for-statistic engine :busy 1)
    (is (= 1 (length (engine:stop-engine engine :timeout 0))))
    (is (engine-resources-held-p engine) "It uses it still.")
    (open-gate gate)
    (is-true (eventually ("the poller to be given back")
               (not (engine-resources-held-p engine))))))

;;; No /proc

(define-server-test the-pool-grows-where-the-system-does-not-tell-of-threads
  (where-supported
   (with-globals ((platform::*system-files* "/nowhere/"))
     (with-gated-engine (engine gate blocked 6)
       (send-each blocked "w")
       (wait-for-statistic engine :busy 6)
       (with-connection (connection *port*)
         (is (equal "q" (exchange-octets connection "q"))))
       (open-gate gate)
       (expect-each blocked "w")))))

(define-server-test the-pool-grows-with-no-descriptor-left
  (with-gated-engine (engine gate blocked 6)
    (dolist (connection blocked)
      (exchange-octets connection "x"))
    (call-while-exhausted
     0
     (lambda (clients give-back)
       (declare (ignore clients give-back))
       (send-each blocked "w")
       (wait-for-statistic engine :busy 6)
       (open-gate gate)
       (expect-each blocked "w")))))

;;; No thread

(define-server-test threads-that-cannot-be-made-are-tried-again-after-a-tick-and-noted-once
  (let ((allowed (make-gate)) (first-failure nil))
    (with-gated-engine (engine gate blocked 4
                               :standby 1
                               :making (lambda (number)
                                         (when (and (> number 1) (not (open-p allowed)))
                                           (unless first-failure
                                             (setf first-failure (platform:milliseconds)))
                                           (error "No more threads."))))
      (send-each blocked "w")
      (eventually ("several failures") (>= (statistic engine :failed) 4))
      (is (>= (- (platform:milliseconds) first-failure) (* 3 900 *tick*))
          "A tick lies between two.")
      (is (= 1 (length (error-notes *service*))))
      (open-gate allowed)
      (wait-for-statistic engine :busy 4)
      (is (= 1 (length (error-notes *service*)))))))

;;; What accept(2) says

(defun failing-accepts (number times)
  "A replacement for ACCEPT-DESCRIPTOR that fails with the error NUMBER at first, TIMES times."
  (let ((left (platform:make-counter)))
    (platform:counter-add left times)
    (lambda (original listener)
      (cond ((plusp (platform:counter-count left))
             (platform:counter-add left -1)
             (- number))
            (t
             (funcall original listener))))))

(defmacro with-failing-accepts ((engine number times) &body body)
  "Evaluates BODY while a ready ENGINE runs, the first TIMES accepts of which fail with error
NUMBER."
  `(with-globals ((*tick* 1/100))
     (where-supported
      (call-with-function 'platform:accept-descriptor (failing-accepts ,number ,times)
                          (lambda ()
                            (with-ready-engine (,engine (constantly nil))
                              ,@body))))))

(define-server-test a-connection-that-was-aborted-has-the-next-one-accepted-at-once
  (with-failing-accepts (engine 103 3)  ; ECONNABORTED
    (with-connection (connection *port*)
      (is (equal "x" (exchange-octets connection "x"))))
    (is (zerop (statistic engine :failed)))
    (is (null (recorded (fake-notes *service*))))))

(define-server-test network-trouble-passes-and-harms-no-idle-connection
  (with-failing-accepts (engine 100 3)  ; ENETDOWN
    (with-connection (connection *port*)
      (is (equal "x" (exchange-octets connection "x")))
      (is (not (engine:winding-down-p engine)))
      (is (= 3 (statistic engine :failed)))
      (is (= 1 (length (error-notes *service*))))
      (is (zerop (statistic engine :expired))))))

(define-server-test what-keeps-failing-is-told-once-and-ends-no-connection
  (let ((refused (make-gate)))
    (where-supported
     (with-globals ((*tick* 1/100))
       (with-ready-engine (engine (constantly nil))
         (with-connection (idle *port*)
           (exchange-octets idle "i")
           (with-function (platform:accept-descriptor (original listener)
                            (if (open-p refused)
                                (funcall original listener)
                                -1))    ; EPERM
             (with-connection (connection *port*)
               (eventually ("several failures") (>= (statistic engine :failed) 3))
               (is (not (engine:winding-down-p engine)))
               (is (= 1 (length (error-notes *service*))))
               (open-gate refused)
               (is (equal "x" (exchange-octets connection "x")))))
           (is (zerop (statistic engine :expired)))
           (is (equal "j" (exchange-octets idle "j")))))))))

(define-server-test a-descriptor-beyond-the-table-is-refused
  (with-resting-engine (engine)
    (with-function (platform:accept-descriptor (original listener) +most-descriptors+)
      (is (equal '(nil t) (multiple-value-list (take-connection engine nil)))))
    (is (= 1 (statistic engine :refused)))
    (is (zerop (statistic engine :open)))))

(define-server-test a-client-that-was-accepted-first-is-served-though-accepting-the-second-fails
  (where-supported
   (with-globals ((*processors* 4))
     (with-ready-engine (engine (constantly nil) :standby 4)
       (eventually ("several to wait")
         (< 2 (platform:counter-count (pool-state-waiting (engine-pool-state engine)))))
       (with-function (accept-and-park (original engine worker) (error "Broken."))
         (with-connection (connection *port*)
           (is (equal "x" (exchange-octets connection "x"))))
         (is (plusp (statistic engine :failed))))))))

(define-server-test a-client-that-is-refused-by-a-program-that-unwinds-is-closed
  (with-resting-engine (engine)
    (with-descriptor (descriptor client)
      (with-function (engine:give-notice (original service connection) (throw 'unwound nil))
        (catch 'unwound
          (refuse-connection engine (open-connection engine descriptor nil) :threads)))
      (is (closed-by-server-p client))
      (is (zerop (statistic engine :open)))
      ;; WITH-DESCRIPTOR closes it, too: that number must still be nobody's.
      (is (null (descriptor-target descriptor))))))

;;; A start that fails

(define-server-test a-listener-that-cannot-be-watched-fails-the-start
  (where-supported
   (with-listener (listener)
     (let ((engine (engine:make-ready-engine
                    (make-instance 'octet-service :meanings (constantly nil)) listener :standby 1)))
       (with-function (platform:watch (original poller descriptor token &rest more)
                        (if (eql descriptor token)
                            -1
                            (apply original poller descriptor token more)))
         (signals start-refused (engine:start-engine engine)))
       (is (zerop (statistic engine :threads)))))))

(define-server-test a-start-that-fails-early-leaves-no-descriptor
  (where-supported
   (with-listener (listener)
     (let ((engine (engine:make-ready-engine
                    (make-instance 'octet-service :meanings (constantly nil)) listener :standby 1)))
       (with-function (platform:make-poller (original) (error "No poller."))
         (signals error (engine:start-engine engine)))
       (is (null (engine:accounting-problems engine)))))))

(define-server-test an-engine-that-was-never-started-has-no-descriptors
  (where-supported
   (with-listener (listener)
     (let ((before (length (open-descriptors))))
       (engine:make-ready-engine (make-instance 'octet-service :meanings (constantly nil))
                                 listener :standby 1)
       (is (= before (length (open-descriptors))))))))
