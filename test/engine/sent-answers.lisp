(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite sent-answers :in held-output
  :description "What becomes of connections whose answers were held, and sent.")

(in-suite sent-answers)

(defun failing-at (&rest failing)
  "A function for SENDING-BY that sends all answers but those at the places FAILING."
  (lambda (place descriptor octets start end)
    (if (member place failing)
        -105                            ; ENOBUFS
        (platform:send-octets descriptor octets start end))))

(define-server-test a-connection-to-which-sending-fails-is-closed-at-once-and-alone
  (dolist (sender *senders*)
    (dolist (text '("ab" "zb"))
      (with-holding (engine worker connections clients 2)
        (end-after engine "z")
        (hold-answers engine worker connections clients text)
        ;; Who is closed gently would linger.
        (with-function (engine:more-may-come-p (original service connection) t)
          (sending-by ((failing-at 0))
            (funcall sender engine worker))
          (serve-queued engine worker))
        (is (engine::gone-p (first connections)))
        (is (closed-by-server-p (first clients)))
        (expect-octets (rest clients) "b")
        (is (engine::parked-p (second connections)))))))

(define-server-test a-connection-that-breaks-while-it-is-served-is-closed-at-once-by-its-worker
  (dolist (char '(#\a #\z))
    (with-holding (engine worker connections clients 1)
      (end-after engine "z")
      (while-serving (engine char) (sending-by ((failing-at 0))
                                     (send-late engine worker))
        (with-function (engine:more-may-come-p (original service connection) t)
          (hold-answer engine worker (first connections) (first clients) (string char))))
      (is (engine::gone-p (first connections)))
      (is (closed-by-server-p (first clients)))
      (is (null (engine::take-event engine))))))

(define-server-test an-error-of-a-service-over-a-sent-answer-ends-its-connection-alone
  (with-holding (engine worker connections clients 3)
    (hold-answers engine worker connections clients "abc")
    (destructuring-bind (before failing after) connections
      (with-function (engine:input-buffered-p (original service connection)
                       (if (eq connection failing)
                           (error "Of a test.")
                           (funcall original service connection)))
        (engine::send-held-output engine worker))
      (serve-queued engine worker)
      (expect-octets clients "abc")
      (is (closed-by-server-p (second clients)))
      (is (engine::gone-p failing))
      (is (engine::parked-p before))
      (is (engine::parked-p after))
      (is (= 1 (statistic engine :failed))))))

(define-server-test who-has-no-memory-for-what-is-left-of-an-answer-loses-that-connection-alone
  (dolist (sender *senders*)
    (with-holding (engine worker connections clients 3)
      (hold-answers engine worker connections clients "abc")
      (with-function (engine::answer-left (original batch place)
                       (if (= 1 place)
                           (error "Of a test.")
                           (funcall original batch place)))
        (funcall sender engine worker))
      (serve-queued engine worker)
      (is (engine::gone-p (second connections)))
      (is (= 1 (statistic engine :failed)))
      (dolist (place '(0 2))
        (is (equal (string (char "abc" place)) (decode (read-octets (nth place clients) 1))))
        (is (engine::parked-p (nth place connections)))))))

(define-server-test no-connection-is-kept-from-the-collector-once-its-answer-was-sent
  (dolist (sender *senders*)
    (with-holding (engine worker connections clients 3)
      (end-after engine "z")
      (hold-answers engine worker connections clients "abz")
      (funcall sender engine worker)
      (expect-octets clients "abz")
      (let ((batch (engine::ready-worker-batch worker)))
        (is (every #'null (engine::output-batch-connections batch)))))))

(define-server-test what-several-have-sent-meanwhile-is-received-at-once
  (with-holding (engine worker connections clients 2)
    (hold-answers engine worker connections clients "ab")
    (send-each clients "c")
    (mapc #'await-input-at-rest connections)
    (is (null (receive-at-once engine worker connections)) "Their worker has them.")
    (engine::send-held-output engine worker)
    (expect-octets clients "ab")
    (is (equal '(("c" t) ("c" t)) (early engine)))
    (serve-queued engine worker)
    (send-and-settle engine worker)
    (expect-each clients "c")
    (is (every #'engine::parked-p connections))))

(define-server-test who-has-sent-more-as-a-stop-begins-is-closed-though-the-worker-blocks
  (with-holding (engine worker connections clients 2)
    (hold-answers engine worker connections clients "ab")
    (stopping-after-reception (engine)
      (engine::send-held-output engine worker))
    (expect-octets clients "ab")
    (is (every #'engine::gone-p connections))))

;;; Who leaves again and again

(defmacro leaving-each-release ((released) &body body)
  "Evaluates BODY, which is left by a non-local exit whenever a service is to release a connection, one of those that are
then recorded in RELEASED; checks that it was left."
  `(let ((,released (make-recorder)))
     (is (catch 'away
           (with-function (engine:release (original service connection)
                            (record ,released connection)
                            (throw 'away t))
             ,@body)
           nil))
     ,released))

(define-server-test who-leaves-amid-each-connection-that-breaks-leaves-none-behind
  (dolist (sender '(engine::send-held-output engine::end-holding))
    (with-holding (engine worker connections clients 4)
      (hold-answers engine worker connections clients "abcd")
      (is (= 3 (recorded-count
                (leaving-each-release (released)
                  (sending-by ((failing-at 1 2 3))
                    (funcall sender engine worker))))))
      (is (zerop (held-count worker)))
      (serve-queued engine worker)
      (is (equal "a" (decode (read-octets (first clients) 1))))
      (is (engine::parked-p (first connections)))
      (is (every #'engine::gone-p (rest connections)))
      (is (every #'closed-by-server-p (rest clients))))))

(define-server-test who-leaves-amid-a-stop-closes-also-those-that-were-answered-for-the-last-time
  (with-holding (engine worker connections clients 4)
    (end-after engine "z")
    (hold-answers engine worker connections clients "abzz")
    (send-each (subseq clients 0 2) "c")
    (mapc #'await-input-at-rest (subseq connections 0 2))
    (is (null (receive-at-once engine worker (subseq connections 0 2))) "Their worker has them.")
    (is (= 4 (recorded-count
              (leaving-each-release (released)
                (stopping-after-reception (engine)
                  (engine::send-held-output engine worker))))))
    (expect-octets clients "abzz")
    (is (every #'engine::gone-p connections))))

(define-server-test a-worker-that-leaves-amid-what-was-queued-gives-back-its-ring
  (with-holding (engine worker connections clients 3)
    (receive-and-queue engine worker connections clients)
    (setf (engine::engine-phase engine) :stopping)
    (let ((closed (make-recorder)))
      (with-function (platform:close-ring (original ring)
                       (record closed ring)
                       (funcall original ring))
        (is (= 3 (recorded-count
                  (leaving-each-release (released)
                    (engine::end-holding engine worker))))))
      (is (= 1 (recorded-count closed))))
    (is (every #'closed-by-server-p clients))
    (is (null (engine::engine-event-queue engine)))))

;;; Whoever comes next

(define-server-test what-was-sent-is-not-sent-again-though-its-worker-was-left-amid-that
  (dolist (next '(engine::send-held-output engine::end-holding))
    (with-holding (engine worker connections clients 3)
      (hold-answers engine worker connections clients "abc")
      (is (catch 'away
            (with-function (engine:release (original service connection)
                             (send-late engine worker)
                             (throw 'away t))
              (sending-by ((failing-at 1))
                (engine::send-held-output engine worker)))
            nil))
      (send-late engine worker)
      (funcall next engine worker)
      (serve-queued engine worker)
      (is (closed-by-server-p (second clients)))
      (loop for place in '(0 2)
            for client = (nth place clients)
            do (is (equal (string (char "abc" place)) (decode (read-octets client 1))))
               (expect-nothing client)
               (is (engine::parked-p (nth place connections)))))))

(define-server-test what-the-sentinel-has-just-sent-its-worker-does-not-send
  (with-holding (engine worker connections clients 2)
    (hold-answers engine worker connections clients "ab")
    (with-function (engine::batch-with-answers (original worker)
                     (prog1 (funcall original worker)
                       (send-late engine worker)))
      (with-function (platform:send-through-ring (original &rest arguments)
                       (fail "There is nothing to be sent."))
        (engine::send-held-output engine worker)))
    (expect-octets clients "ab")
    (mapc #'expect-nothing clients)
    (serve-queued engine worker)
    (is (every #'engine::parked-p connections))))

(define-server-test a-worker-that-was-faster-than-the-sentinel-was-not-late
  (with-holding (engine worker connections clients 2)
    (hold-answer engine worker (first connections) (first clients) "a")
    (send-and-settle engine worker)
    (send-late engine worker)
    (hold-answer engine worker (second connections) (second clients) "b")
    (is (= 1 (held-count worker)))
    (send-and-settle engine worker)
    (expect-octets clients "ab")))
