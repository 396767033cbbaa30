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
  (with-globals ((engine::*tick* 1/100))
    (with-ready-engine (engine (constantly nil))
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
           (is (= 1 (recorded-count (fake-notes *service*))) "It is noted once.")))))))

(define-server-test without-descriptors-idle-connections-give-way
  (with-globals ((engine::*tick* 1/100))
    (with-ready-engine (engine (constantly nil))
      (with-connections (idle 8 *port*)
        (dolist (connection idle) (exchange-octets connection "i"))
        (wait-for-statistic engine :parked 8)
        (call-while-exhausted
         1
         (lambda (clients give-back)
           (declare (ignore give-back))
           (is (equal "x" (exchange-octets (funcall (first clients)) "x")))
           (is (plusp (getf (statistic engine :expired-by) :crowd)))
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
  (wait-for-statistic engine :ended 1)
  (is (null (engine::parked-connections (engine::engine-table engine))))
  (with-connection (other *port*)
    (is (equal "o" (exchange-octets other "o")))))

(define-server-test a-worker-destroyed-when-it-has-just-become-an-owner-leaves-nothing-behind
  (with-ready-engine (engine (constantly nil))
    (with-connection (connection *port*)
      (exchange-octets connection "a")
      (wait-for-statistic engine :parked 1)
      (call-with-ambush 'engine::become-owner #'identity
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
      (call-with-ambush 'engine::give-up-ownership #'identity
                        (lambda (ambush)
                          (send connection "b")
                          (destroy-in-ambush ambush)))
      (is (equal "b" (decode (read-octets connection 1))))
      (wait-for-statistic engine :ended 1)
      (is (equal "c" (exchange-octets connection "c")))
      (is (= 1 (statistic engine :open))))))
