(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* fronts/hand-over :in fronts
  :description "A server that stops softly loses no request, and waits for nothing else.")

(defun stopping (&rest arguments)
  "Stops *SERVER* with ARGUMENTS in a task."
  (in-background ("stopping") (apply #'stop-front arguments)))

(define-front-test a-soft-stop-answers-those-whom-nobody-has-accepted
  (let ((gate (make-gate)))
    (with-front (request :worker-num 1 :max-thread-count 1)
        (progn (await gate)
               (reply 200 '() "late"))
      (with-connections (connections 5)
        (unwind-protect
             (progn
               (dolist (connection connections)
                 (send-request connection "/"))
               (eventually ("a request to be served") (= 1 (figure :busy)))
               (let ((stop (stopping :soft t)))
                 (eventually ("all to be accepted") (= 5 (figure :accepted)))
                 (open-gate gate)
                 (dolist (connection connections)
                   (is (equal "late" (response-text (read-response connection)))))
                 (task-result stop)))
          (open-gate gate))))))

(define-front-test a-server-that-will-stop-serves-and-closes-no-idle-connection
  (with-front (request) nil
    (with-connections (connections 2)
      (destructuring-bind (kept idle) connections
        (dolist (connection connections)
          (is (not (equal "close" (connection-header (exchange connection "/word"))))))
        (let ((stop (stopping :soft t :delay (* 4 *patience*))))
          (eventually ("the stop to begin") (equal "close" (connection-header (ask "/word"))))
          (dolist (response (list (ask "/word") (ask "/word") (exchange kept "/word")))
            (is (equal "word" (response-text response)))
            (is (equal "close" (connection-header response))))
          (is (closed-by-server-p kept))
          (is (not (readable-p idle)) "It is still open.")
          (is (not (task-done-p stop)))
          (stop-front)
          (task-result stop)
          (is (closed-by-server-p idle)))))))

(define-front-test a-soft-stop-takes-no-longer-than-it-may
  (with-globals ((engine::*held-seconds* (* 2 *patience*)))
    (with-front (request) nil
      (is (equal "word" (ask-text "/word")))
      (task-result (stopping :soft t :timeout 1/10)))))

(define-front-test (a-soft-stop-waits-for-those-whom-the-system-holds :modes (:plain)
                                                                      :needs :parking)
  (with-globals ((engine::*held-seconds* (* 4 *patience*)) (engine::*drain-seconds* 1/10))
    (with-front (request) nil
      (with-connection (idle)
        (is (equal "word" (exchange-text idle "/word")))
        (let ((stop (stopping :soft t)))
          (eventually ("the stop to begin") (equal "close" (connection-header (ask "/word"))))
          (is (not (readable-p idle 1)) "It has the moment, too, that those have.")
          (is (equal "word" (exchange-text idle "/word")))
          (is (equal "word" (ask-text "/word")))
          (stop-front)
          (task-result stop))))))

(define-front-test (half-a-head-holds-up-a-soft-stop-for-a-moment-only :needs :our-http)
  (with-front (request :read-timeout 1000) nil
    (with-connection (connection)
      (is (equal "word" (exchange-text connection "/word")))
      (send connection (subseq (request-octets "/word") 0 9))
      (task-result (stopping :soft t))
      (is (member (response-status-if-any connection) (if *parking-p* '(408) '(nil 408)))))))
