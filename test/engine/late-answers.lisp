(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite late-answers :in held-output
  :description "What the sentinel does with answers that a worker holds for long.")

(in-suite late-answers)

(define-server-test what-the-sentinel-sends-is-left-to-workers
  (with-holding (engine worker connections clients 2)
    (end-after engine "z")
    (hold-answers engine worker connections clients "az")
    (send-late engine worker)
    (is (zerop (held-count worker)))
    (expect-octets clients "az")
    (is (every #'engine::parked-p connections))
    (send (first clients) "b")
    (await-input-at-rest (first connections))
    (serve-queued engine worker)
    (is (closed-by-server-p (second clients)))
    (engine::send-held-output engine worker)
    (is (equal "b" (decode (read-octets (first clients) 1))))))

(define-server-test what-is-not-late-the-sentinel-leaves-alone
  (with-holding (engine worker connections clients 1)
    (hold-answer engine worker (first connections) (first clients) "a")
    (push worker (engine::engine-workers engine))
    (with-globals ((engine::*late-microseconds* (* 1000 1000 60)))
      (engine::send-late-output engine)
      (is (= 1 (held-count worker))))
    (with-globals ((engine::*late-microseconds* -1))
      (engine::send-late-output engine)
      (is (zerop (held-count worker))))
    (expect-each clients "a")))

(define-server-test what-its-worker-is-about-to-send-the-sentinel-leaves-alone
  (with-holding (engine worker connections clients 2)
    (hold-answers engine worker connections clients "ab")
    (let ((batch (engine::ready-worker-batch worker)))
      (is (engine::batch-locked-p batch))
      (send-late engine worker)
      (mapc #'expect-nothing clients)
      (is (= 2 (held-count worker)))
      (engine::unlock-batch batch))
    (send-and-settle engine worker)
    (expect-octets clients "ab")))

(defun check-sent-while-serving (engine worker connection client)
  "Checks CONNECTION, whose answer the sentinel has sent before its service was done with it."
  (is (null (engine::connection-held connection)))
  (is (null (engine::worker-connection worker)))
  (is (engine::parked-p connection))
  (is (null (engine::take-event engine)) "Its worker has seen to it.")
  (hold-answer-of-parked engine worker connection client "n")
  (is (eq :served (engine::connection-held connection)))
  (engine::send-held-output engine worker)
  (is (equal "n" (decode (read-octets client 1)))))

(defun hold-answer-of-parked (engine worker connection client text)
  "Like HOLD-ANSWER, for CONNECTION that is parked."
  (send client text)
  (await-input-at-rest connection)
  (engine::handle-event engine worker (engine::connection-token connection)))

(defmacro while-serving ((engine char) form &body body)
  "Evaluates BODY while the service of ENGINE, after it has given its answer to CHAR, evaluates FORM."
  `(progn
     (setf (gathering-after (engine::engine-service ,engine))
           (lambda (char) (when (char= char ,char) ,form)))
     ,@body))

(define-server-test a-connection-stays-its-workers-until-its-service-is-done-though-the-sentinel-sends
  (with-holding (engine worker connections clients 2)
    (let ((connection (first connections)) (client (first clients)))
      (hold-answer engine worker (second connections) (second clients) "b")
      (while-serving (engine #\a)
          (progn (send-late engine worker)
                 (is (equal "a" (decode (read-octets client 1))))
                 (is (not (engine::parked-p connection)) "It is served.")
                 (is (engine::parked-p (second connections))))
        (hold-answer engine worker connection client "a"))
      (is (equal "b" (decode (read-octets (second clients) 1))))
      (serve-queued engine worker)
      (forget-lateness worker)
      (check-sent-while-serving engine worker connection client))))

(define-server-test a-connection-that-ends-is-closed-by-its-worker-though-the-sentinel-has-sent
  (with-holding (engine worker connections clients 1)
    (end-after engine "a")
    (while-serving (engine #\a) (send-late engine worker)
      (hold-answer engine worker (first connections) (first clients) "a"))
    (is (equal "a" (decode (read-octets (first clients) 1))))
    (is (closed-by-server-p (first clients)))))

(define-server-test a-connection-that-breaks-under-the-sentinel-is-closed-by-its-worker
  (with-holding (engine worker connections clients 1)
    (let ((connection (first connections)))
      (while-serving (engine #\a) (progn (shut-for-good connection)
                                         (send-late engine worker)
                                         (is (not (engine::gone-p connection))))
        (hold-answer engine worker connection (first clients) "a"))
      (is (engine::gone-p connection))
      (is (null (engine::take-event engine))))))

(define-server-test what-the-sentinel-could-not-send-while-a-connection-is-served-its-worker-does
  (with-holding (engine worker connections clients 1)
    (let* ((connection (first connections)) (client (first clients))
           (filled (fill-window connection)))
      (while-serving (engine #\a) (send-late engine worker)
        (hold-answer engine worker connection client "a"))
      (is (engine::parked-p connection))
      (is (engine:connection-output connection))
      (read-octets client filled)
      (eventually ("the socket to take more")
        (platform:await-descriptor (engine:connection-descriptor connection) :output
                                   :until (platform:milliseconds)))
      (engine::handle-event engine worker (engine::connection-token connection))
      (is (equal "a" (decode (read-octets client 1)))))))

(define-server-test who-leaves-its-service-after-the-answer-loses-the-connection-alone
  (dolist (sent-p '(nil t))
    (with-holding (engine worker connections clients 2)
      (hold-answer engine worker (second connections) (second clients) "b")
      (is (catch 'left
            (while-serving (engine #\a) (progn (when sent-p
                                                 (send-late engine worker))
                                               (throw 'left t))
              (hold-answer engine worker (first connections) (first clients) "a"))
            nil))
      (is (equal "a" (decode (read-octets (first clients) 1))) "It was given.")
      (is (closed-by-server-p (first clients)))
      (is (equal "b" (decode (read-octets (second clients) 1))))
      (serve-queued engine worker)
      (is (engine::parked-p (second connections))))))

(define-server-test what-a-worker-finds-the-sentinel-at-is-sent-once
  (with-holding (engine worker connections clients 2)
    (hold-answers engine worker connections clients "aa")
    (with-function (engine::send-answers-singly (original batch)
                     (engine::send-held-output engine worker) ; the worker comes
                     (funcall original batch))
      (send-late engine worker))
    (is (zerop (held-count worker)))
    (expect-each clients "a")
    (mapc #'expect-nothing clients)
    (serve-queued engine worker)
    (is (every #'engine::parked-p connections))))

(define-server-test what-the-sentinel-has-taken-it-sends-though-it-is-not-late-any-more
  ;; The worker leaves what it finds locked.
  (with-holding (engine worker connections clients 1)
    (hold-answer engine worker (first connections) (first clients) "a")
    (with-globals ((engine::*late-microseconds* (* 1000 1000 60)))
      (send-late engine worker))
    (expect-each clients "a")))

(define-server-test a-worker-that-ends-while-the-sentinel-looks-loses-no-answer
  (with-holding (engine worker connections clients 1)
    (hold-answer engine worker (first connections) (first clients) "a")
    (let ((batch (engine::ready-worker-batch worker)))
      (is-true (engine::batch-locked-p batch))
      (let ((end (in-background ("the end") (engine::end-holding engine worker))))
        (is (not (poll (lambda () (task-done-p end)) 1/20)))
        (engine::unlock-batch batch)
        (task-result end)))
    (expect-each clients "a")
    (serve-queued engine worker)
    (is (engine::parked-p (first connections)))))
