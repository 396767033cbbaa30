(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite acceptors :in all
  :description "Starting, stopping and abandoning acceptors, and what they survive.")

(in-suite acceptors)

(define-server-test (an-acceptor-starts-and-stops-and-keeps-its-port :needs :our-engine)
  (with-routes (("/yo" "Hey!"))
    (let* ((acceptor (make-test-acceptor))
           (*server* acceptor)
           (ports (loop repeat 20
                        do (is (not (hunchentoot:started-p acceptor)))
                           (is (eq acceptor (hunchentoot:start acceptor)))
                           (is (hunchentoot:started-p acceptor))
                        collect (hunchentoot:acceptor-port acceptor)
                        do (is (equal "Hey!" (ask-text "/yo")))
                           (is (eq acceptor (hunchentoot:stop acceptor))))))
      (is (= 1 (length (remove-duplicates ports))))
      (is (eq acceptor (hunchentoot:stop acceptor :soft t)) "It is stopped already."))))

(defclass never-made () ())
(defclass never-made-either (never-made) ())

(define-server-test (a-start-leaves-no-class-for-a-request-to-finalize :needs :parking)
  ;; SBCL does so amid dispatch, and then fails to make instances of the subclass.
  (serving () ()
    (is-true (uiop:symbol-call '#:sb-mop '#:class-finalized-p (find-class 'never-made)))))

(define-server-test (starting-twice-is-refused-and-harmless :needs :our-engine)
  (serving () (("/yo" "Hey!"))
    (let ((condition (nth-value 1 (ignore-errors (hunchentoot:start *server*)))))
      (is (typep condition 'hunchentoot:hunchentoot-error))
      (is (search "already listening" (princ-to-string condition))))
    (is (equal "Hey!" (ask-text "/yo")))))

(defclass threadless-taskmaster (recycling:recycling-taskmaster) ())

(defmethod hunchentoot:start-thread ((taskmaster threadless-taskmaster) thunk &key name)
  (declare (ignore thunk name))
  (error "There are no threads today."))

(define-server-test (start-without-threads-leaves-the-port-free :needs :our-engine)
  (let ((acceptor (make-test-acceptor :taskmaster (make-instance 'threadless-taskmaster))))
    (is (eq 'simple-error (outcome #'hunchentoot:start acceptor)))
    (is (not (hunchentoot:started-p acceptor)))))

(define-server-test (hard-stop-does-not-wait-for-a-long-request :needs :our-engine)
  (with-busy-threads (acceptor 1)
    (is (= 1 (length (nth-value 1 (hunchentoot:stop acceptor :timeout 0)))))
    (hunchentoot:start acceptor)
    (is (equal "quick" (ask-text "/quick")) "It starts again beside what was left.")))

(define-server-test (stop-in-a-handler-is-refused-with-a-reason :needs :our-engine)
  (let ((the-acceptor nil))
    (serving () (("/stop" (handler-case (hunchentoot:stop the-acceptor :soft t)
                            (recycling:stop-from-worker (condition)
                              (princ-to-string condition)))))
      (setf the-acceptor *server*)
      (is (search "another thread" (ask-text "/stop")))
      (is (hunchentoot:started-p *server*)))))

(define-server-test (a-handler-may-stop-another-server :needs :our-engine)
  (with-acceptor (other)
    (serving () (("/stop" (hunchentoot:stop other) "stopped"))
      (is (equal "stopped" (ask-text "/stop"))))
    (is (not (hunchentoot:started-p other)))))

;;; Several threads at once

(define-server-test (several-threads-may-stop-an-acceptor :needs :our-engine)
  (with-busy-threads (acceptor 1)
    (let ((stops (loop for soft in '(t t nil)
                       collect (let ((soft soft))
                                 (in-background ("stop") (hunchentoot:stop acceptor :soft soft))))))
      (eventually ("the hard stop to end the soft ones")
        (every #'task-done-p stops))
      (is (not (hunchentoot:started-p acceptor))))))

;;; The last resort

(define-server-test (abandoning-frees-port-and-threads-whatever-they-do :needs :our-engine)
  (let ((entered (make-latch 1)) (never (make-gate)))
    (serving () (("/hang" (count-down entered) (await never)) ("/yo" "Hey!"))
      (with-connection (connection)
        (send-request connection "/hang")
        (await entered)
        (is (eq *server* (recycling:abandon-acceptor *server*)))
        (is (not (hunchentoot:started-p *server*)))
        (is (closed-by-server-p connection)))
      (hunchentoot:start *server*)
      (is (equal "Hey!" (ask-text "/yo"))))))

(define-server-test (abandoning-tells-of-threads-that-do-not-end-and-can-be-retried :needs :parking)
  (let ((entered (make-latch 1)) (never (make-gate)) (gate (make-gate)) (told 0))
    (serving () (("/hang" (unwind-protect (progn (count-down entered) (await never))
                            (await gate))))
      (with-connection (connection)
        (send-request connection "/hang")
        (await entered)
        (is (eq *server*
                (handler-bind ((recycling:recycling-taskmaster-corrupted-error
                                 (lambda (condition)
                                   (incf told)
                                   (is (search "did not end" (princ-to-string condition)))
                                   (open-gate gate)
                                   (invoke-restart (find-restart 'recycling:retry condition)))))
                  (recycling:abandon-acceptor *server*))))
        (is (plusp told))))))

;;; Figures

(define-server-test (stats-tell-what-happened :needs :our-engine)
  (serving (:taskmaster (taskmaster :standby-thread-count 3)) (("/yo" "Hey!"))
    (loop repeat 5 do (ask "/yo"))
    (eventually ("the connections to be closed, and the requests to be counted")
      (and (zerop (figure :open))
           (= 5 (figure :served))))
    ;; A thread that has just served neither serves nor waits for a moment.
    (is-true (eventually ("every thread to wait or serve")
               (let ((stats (recycling:stats *server*)))
                 (= (getf stats :threads) (+ (getf stats :standby) (getf stats :busy))))))
    (let ((stats (recycling:stats *server*)))
      (is (= 5 (getf stats :accepted)))
      (is (= (getf stats :threads) (- (getf stats :made) (getf stats :ended))))
      (is (every #'zerop (remove-if #'keywordp (getf stats :expired-by))))
      (is (zerop (getf stats :refused)))
      (is (plusp (getf stats :uptime))))))

(define-server-test (connections-are-listed-with-what-they-do :needs :our-engine)
  (with-busy-threads (acceptor 1)
    (with-connection (kept)
      (is (equal "quick" (exchange-text kept "/quick")))
      (flet ((state-of (port)
               (let ((peer (format nil "127.0.0.1:~D" port)))
                 (find peer (recycling:list-connections acceptor)
                       :key (lambda (plist) (getf plist :peer)) :test #'equal))))
        (eventually ("the kept connection to rest")
          (member (getf (state-of (client-port kept)) :state) '(:parked :idle)))
        (is (= 1 (getf (state-of (client-port kept)) :served)))
        (is (= 1 (+ (figure :parked) (figure :keep-alive-waiting))))
        (let ((active (find :active (recycling:list-connections acceptor)
                            :key (lambda (plist) (getf plist :state)))))
          (is (zerop (getf active :served)))
          (is (integerp (getf active :worker)))
          (is (realp (getf active :seconds)))
          (is (<= 0 (getf active :age) (* 10 *patience*)))))
      (is (= 2 (length (recycling:list-connections acceptor))))))
  (is (null (recycling:list-connections (make-test-acceptor)))))
