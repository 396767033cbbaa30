(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite acceptors :in all
  :description "Starting, stopping and abandoning acceptors, and what they survive.")

(in-suite acceptors)

(define-server-test (stopping-frees-the-port-a-hundred-times :needs :our-engine)
  (with-routes (("/yo" "Hey!"))
    (let* ((acceptor (make-test-acceptor))
           (*server* acceptor)
           (ports (loop repeat 100
                        do (hunchentoot:start acceptor)
                        collect (hunchentoot:acceptor-port acceptor)
                        do (unless (equal "Hey!" (ask-text "/yo"))
                             (fail "The server does not answer."))
                           (hunchentoot:stop acceptor))))
      (is (= 1 (length (remove-duplicates ports)))))))

(define-server-test (started-p-tells-the-truth :needs :our-engine)
  (let ((acceptor (make-test-acceptor)))
    (is (not (hunchentoot:started-p acceptor)))
    (is (eq acceptor (hunchentoot:start acceptor)))
    (is (hunchentoot:started-p acceptor))
    (is (eq acceptor (hunchentoot:stop acceptor)))
    (is (not (hunchentoot:started-p acceptor)))))

(define-server-test (stopping-what-is-not-started-is-harmless :needs :our-engine)
  (let ((acceptor (make-test-acceptor)))
    (is (eq acceptor (hunchentoot:stop acceptor)))
    (hunchentoot:start acceptor)
    (hunchentoot:stop acceptor)
    (is (eq acceptor (hunchentoot:stop acceptor :soft t)))))

(define-server-test (starting-twice-is-refused-and-harmless :needs :our-engine)
  (serving () (("/yo" "Hey!"))
    (signals hunchentoot:hunchentoot-error (hunchentoot:start *server*))
    (is (equal "Hey!" (ask-text "/yo")))))

(define-server-test (a-port-in-use-is-told-by-start :needs :our-engine)
  (with-acceptor (acceptor)
    (let ((other (make-test-acceptor :port (hunchentoot:acceptor-port acceptor))))
      (signals error (hunchentoot:start other))
      (is (not (hunchentoot:started-p other))))))

(define-server-test (start-without-threads-leaves-the-port-free :needs :our-engine)
  (let ((acceptor (make-test-acceptor :taskmaster (make-instance 'threadless-taskmaster))))
    (signals error (hunchentoot:start acceptor))
    (is (not (hunchentoot:started-p acceptor)))))

(defclass threadless-taskmaster (recycling:recycling-taskmaster) ())

(defmethod hunchentoot:start-thread ((taskmaster threadless-taskmaster) thunk &key name)
  (declare (ignore thunk name))
  (error "There are no threads today."))

(define-server-test (soft-stop-waits-for-every-request-and-answers-it :needs :our-engine)
  (with-busy-threads (acceptor 3)
    (let ((stopping (in-background ("stop") (hunchentoot:stop acceptor :soft t))))
      (eventually ("the port to be shut")
        (handler-case (progn (disconnect (connect)) nil)
          (error () t)))
      (is (not (task-done-p stopping)))
      (open-gate release)
      (is (equal (list acceptor '()) (multiple-value-list (task-result stopping)))))))

(define-server-test (soft-stop-of-an-acceptor-reports-what-it-leaves :needs :our-engine)
  (with-busy-threads (acceptor 2)
    (is (= 2 (length (nth-value 1 (hunchentoot:stop acceptor :soft t :timeout 1/10)))))
    (is (not (hunchentoot:started-p acceptor)))))

(define-server-test (hard-stop-does-not-wait-for-a-long-request :needs :our-engine)
  (with-busy-threads (acceptor 1)
    (is (= 1 (length (nth-value 1 (hunchentoot:stop acceptor :timeout 0)))))
    (hunchentoot:start acceptor)
    (is (equal "quick" (ask-text "/quick")) "It starts again beside what was left.")))

(define-server-test (stopping-ends-idle-connections :needs :our-engine)
  (serving () (("/yo" "Hey!"))
    (with-connection (connection)
      (is (equal "Hey!" (exchange-text connection "/yo")))
      (hunchentoot:stop *server* :soft t)
      (is (closed-by-server-p connection)))))

(define-server-test (stop-in-a-handler-is-refused-with-a-reason :needs :our-engine)
  (let ((the-acceptor nil))
    (serving () (("/stop" (handler-case (hunchentoot:stop the-acceptor :soft t)
                            (recycling:stop-from-worker (condition)
                              (princ-to-string condition)))))
      (setf the-acceptor *server*)
      (is (search "another thread" (ask-text "/stop")))
      (is (hunchentoot:started-p *server*)))))

;;; Two who stop, and a start in between

(defmacro holding-who-leaves ((function reached gate) &body body)
  "Evaluates BODY while the first thread that returns from FUNCTION, a name, opens the gate REACHED and is
held until GATE opens, which it does at the end."
  (let ((first-p (gensym "FIRST-P")) (lock (gensym "LOCK")))
    `(let ((,reached (make-gate)) (,gate (make-gate)) (,first-p t) (,lock (bt:make-lock "first")))
       (with-function (,function (original &rest arguments)
                        (multiple-value-prog1 (apply original arguments)
                          (when (bt:with-lock-held (,lock) (shiftf ,first-p nil))
                            (open-gate ,reached)
                            (await ,gate))))
         (unwind-protect (progn ,@body)
           (open-gate ,gate))))))

(defun stop-and-start-beside (acceptor first-stop reached gate)
  "Stops ACCEPTOR and starts it again while FIRST-STOP, a task, is held where REACHED tells, until GATE opens.
Checks that it then serves, whatever FIRST-STOP does."
  (await reached)
  (hunchentoot:stop acceptor)
  (hunchentoot:start acceptor)
  (open-gate gate)
  (task-result first-stop)
  (is (hunchentoot:started-p acceptor))
  (is (not (hunchentoot::acceptor-shutdown-p acceptor)))
  (is (equal "Hey!" (ask-text "/yo"))))

(define-server-test (a-stop-that-returns-late-leaves-alone-what-was-started-meanwhile
                     :needs :our-engine)
  (serving () (("/yo" "Hey!"))
    (holding-who-leaves (engine:stop-engine reached gate)
      (stop-and-start-beside *server* (in-background ("the first stop")
                                        (hunchentoot:stop *server* :soft t))
                             reached gate))))

(define-server-test (abandoning-late-leaves-alone-what-was-started-meanwhile :needs :our-engine)
  (serving () (("/yo" "Hey!"))
    (holding-who-leaves (engine:abandon-engine reached gate)
      (stop-and-start-beside *server* (in-background ("abandoning")
                                        (recycling:abandon-acceptor *server*))
                             reached gate))))

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

(defun corrupt (acceptor &optional (delta 1))
  "Makes ACCEPTOR count DELTA more serving workers than there are."
  (incf (svref (engine::engine-counts (recycling::acceptor-engine acceptor))
               (engine::state-index :serving))
        delta))

(define-server-test (abandoning-tells-of-corruption-and-can-ignore-it :needs :our-engine)
  (with-acceptor (acceptor)
    (corrupt acceptor)
    (let ((signalled 0))
      (is (eq acceptor
              (handler-bind ((recycling:recycling-taskmaster-corrupted-error
                               (lambda (condition)
                                 (incf signalled)
                                 (is (search "serving" (princ-to-string condition)))
                                 (invoke-restart (find-restart 'ignore condition)))))
                (recycling:abandon-acceptor acceptor))))
      (is (= 1 signalled)))))

(define-server-test (abandoning-can-be-retried-after-repair :needs :our-engine)
  (with-acceptor (acceptor)
    (corrupt acceptor)
    (is (eq acceptor
            (handler-bind ((recycling:recycling-taskmaster-corrupted-error
                             (lambda (condition)
                               (corrupt acceptor -1)
                               (invoke-restart (find-restart 'recycling:retry condition)))))
              (recycling:abandon-acceptor acceptor))))))

;;; Figures

(define-server-test (stats-tell-what-happened :needs :our-engine)
  (serving (:taskmaster (taskmaster :standby-thread-count 3)) (("/yo" "Hey!"))
    (loop repeat 5 do (ask "/yo"))
    (eventually ("the connections to be closed")
      (zerop (getf (recycling:stats *server*) :open)))
    ;; A thread that has just served neither serves nor waits for a moment.
    (is-true (eventually ("every thread to wait or serve")
               (let ((stats (recycling:stats *server*)))
                 (= (getf stats :threads) (+ (getf stats :standby) (getf stats :busy))))))
    (let ((stats (recycling:stats *server*)))
      (is (= 5 (getf stats :served)))
      (is (= 5 (getf stats :accepted)))
      (is (= (getf stats :threads) (- (getf stats :made) (getf stats :ended))))
      (is (zerop (getf stats :parked)))
      (is (every #'zerop (remove-if #'keywordp (getf stats :expired-by))))
      (is (typep (getf stats :ready-wait) '(or null (real 0))))
      (is (zerop (getf stats :refused)))
      (is (plusp (getf stats :uptime))))))

(define-server-test (stats-tell-of-connections-between-requests :needs :our-engine)
  (serving () (("/yo" "Hey!"))
    (with-connection (connection)
      (exchange connection "/yo")
      (eventually ("the connection to rest")
        (= 1 (+ (getf (recycling:stats *server*) :parked)
                (getf (recycling:stats *server*) :idling)))))))

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
        (let ((active (find :active (recycling:list-connections acceptor)
                            :key (lambda (plist) (getf plist :state)))))
          (is (zerop (getf active :served)))
          (is (integerp (getf active :worker)))
          (is (realp (getf active :seconds)))))
      (is (= 2 (length (recycling:list-connections acceptor))))))
  (is (null (recycling:list-connections (make-test-acceptor)))))

(test stats-of-an-acceptor-that-never-ran-are-zero
  (is (zerop (getf (recycling:stats (make-instance 'recycling:parallel-acceptor)) :threads))))

(define-server-test stats-work-on-any-acceptor
  (let ((acceptor (make-instance 'hunchentoot:easy-acceptor :port 0 :address "127.0.0.1")))
    (hunchentoot:start acceptor)
    (unwind-protect (is (integerp (getf (recycling:stats acceptor) :threads)))
      (hunchentoot:stop acceptor))))
