(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* fronts/lifecycle :in fronts
  :description "Threads, connections, and the end of a server.")

(defmacro with-held-requests ((count &rest arguments) &body body)
  "Evaluates BODY while COUNT requests of a server made with ARGUMENTS are at /slow, on connections
of a list SLOW, until the gate RELEASE opens, which it does at the end."
  `(let ((entered (make-latch ,count)) (release (make-gate)))
     (with-front (request ,@arguments)
         (progn
           (when (equal "/slow" (path request))
             (count-down entered)
             (await release (* 3 *patience*)))
           (reply 200 '(:content-type "text/plain") (path request)))
       (with-connections (slow ,count)
         (unwind-protect
              (progn
                (dolist (connection slow)
                  (send-request connection "/slow"))
                (await entered)
                ,@body)
           (open-gate release))))))

(defun expect-replies (connections text)
  (dolist (connection connections)
    (is (equal text (response-text (read-response connection))))))

(defun await-refused-connections ()
  (eventually ("the port to be shut")
    (handler-case (progn (disconnect (connect)) nil)
      (error () t))))

;;; Threads

(define-front-test (handlers-that-wait-or-compute-hold-up-nobody
                    :modes (:plain :unparked :tls :http2))
  (let ((entered (make-latch 16)) (gate (make-gate)))
    (with-front (request)
        (progn
          (count-down entered)
          (if (equal "/wait" (path request))
              (await gate (* 3 *patience*))
              (loop until (open-p gate)))
          (reply 200 '(:content-type "text/plain") "done"))
      (with-connections (others 10)
        (dolist (connection others)
          (is (equal "word" (exchange-text connection "/word"))))
        (with-connections (held 16)
          (unwind-protect
               (progn
                 ;; All at once: whoever is told of one request may be told of others with it.
                 (loop for connection in held
                       for number from 0
                       do (send-request connection (if (< number 14) "/wait" "/compute")))
                 (dolist (connection others)
                   (send-request connection "/word"))
                 (expect-replies others "word")
                 (await entered)
                 (is (equal "word" (ask-text "/word"))))
            (open-gate gate))
          (expect-replies held "done"))))))

(define-front-test (connections-that-idle-have-no-threads
                    :modes (:plain :tls :http2) :needs :parking)
  (with-front (request :worker-num 1 :max-thread-count 2)
      nil
    (with-connections (connections 100)
      (loop repeat 2
            do (dolist (connection connections)
                 (is (equal "word" (exchange-text connection "/word"))))
               (eventually ("all connections to be parked")
                 (and (= 100 (figure :parked)) (zerop (figure :busy)))))
      (is (<= (figure :threads) 2)))
    (eventually ("their ends to be noticed") (zerop (figure :open)))))

(define-front-test (a-timer-has-a-thread-while-all-serve :modes (:unparked))
  (dolist (count '(2 :unlimited))
    (with-held-requests (1 :worker-num 1 :max-thread-count 1 :max-accept-count count)
      (recycling:run-after 1/10 (lambda () (open-gate release)) :server *server*)
      (expect-replies slow "/slow"))))

(define-front-test clients-beyond-the-limits-wait-or-are-refused
  (with-held-requests (1 :worker-num 1 :max-thread-count 1 :max-accept-count 2)
    (with-connection (waiting)
      (send-request waiting "/word")
      (eventually ("a client to be let in") (= 1 (figure :queued)))
      (let ((response (ask "/word")))
        (is (= 503 (response-status response)))
        (is (equal "1" (response-header response "retry-after")))
        (is (equalp "close" (response-header response "connection"))))
      (is (= 1 (figure :refused)))
      (is (not (readable-p waiting 1/10)))
      (open-gate release)
      (expect-replies slow "/slow")
      (expect-replies (list waiting) "word"))
    (is (equal "word" (ask-text "/word"))))
  (with-held-requests (1 :worker-num 1 :max-thread-count 1 :max-accept-count nil
                         :max-address-connections 2)
    (is-true (eventually ("clients to be refused, who then count for no address")
               (is (= 503 (response-status (ask "/word"))))
               (< 2 (getf (figure :refused-by) :threads))))
    (open-gate release)
    (expect-replies slow "/slow")))

(define-front-test (without-parking-replies-are-the-last-while-others-wait :modes (:unparked))
  (with-front (request :worker-num 1 :max-thread-count 1) nil
    (with-connections (connections 2)
      (destructuring-bind (kept waiting) connections
        (is (equal "word" (exchange-text kept "/word")))
        (send-request waiting "/word")
        (eventually ("a reply that is the last") ; one that pauses for long is just closed
          (let ((response (ignore-errors (exchange kept "/word"))))
            (or (null response) (equal "close" (connection-header response)))))
        (expect-replies (list waiting) "word")))))

(define-front-test clients-that-leave-before-they-are-looked-at-are-no-failure
  (with-held-requests (1 :worker-num 1 :max-thread-count 1 :max-address-connections 99
                         :defer-accept nil)
    (loop repeat 5
          do (reset (connect))
             (let ((connection (connect)))
               (send connection (post-head "/word" (octets "Expect: 100-continue" :crlf
                                                           "Content-Length: 3")))
               (reset connection)))
    (open-gate release)
    (expect-replies slow "/slow")
    (is (equal "word" (ask-text "/word")))))

(define-front-test (connections-that-idle-do-not-count-as-waiting :modes (:plain) :needs :parking)
  (with-held-requests (1 :worker-num 1 :max-thread-count 2 :max-accept-count 3)
    (with-connections (connections 5)
      (destructuring-bind (held . idle) connections
        (dolist (connection idle)
          (is (equal "word" (exchange-text connection "/word"))))
        (send-request held "/slow")
        (eventually ("both threads to be held") (= 2 (figure :busy)))
        (with-connection (waiting)
          (send-request waiting "/word")
          (eventually ("a client to be let in") (= 7 (figure :accepted)))
          (is (not (readable-p waiting)))
          (open-gate release)
          (expect-replies (list waiting) "word"))
        (expect-replies (cons held slow) "/slow")
        (is (zerop (figure :refused)))))))

;;; What comes while a connection is served

(define-front-test (timers-take-no-client-its-place :modes (:plain :unparked :http2))
  (let ((entered (make-gate)) (release (make-gate)))
    (with-front (request :worker-num 1 :max-thread-count 1 :max-accept-count 2)
        (reply 200 '() "word")
      (recycling:run-after 0 (lambda ()
                               (open-gate entered)
                               (await release))
                           :server *server*)
      (await entered)
      (with-connections (connections 2)
        (unwind-protect
             (loop for connection in connections
                   for count from 1
                   do (send-request connection "/")
                      (eventually ("a client to come")
                        (<= count (figure :accepted))))
          (open-gate release))
        (expect-replies connections "word")))))

(define-front-test (what-comes-during-a-request-is-answered-after-it :modes (:plain :unparked :tls))
  (with-held-requests (2)
    (destructuring-bind (kept ended) slow
      (send-request kept "/first")
      (send kept (request-octets "/second") (request-octets "/third"))
      (unless (eq :tls *mode*)
        (send-request ended "/last")
        (end-sending ended))
      (open-gate release)
      (dolist (text '("/slow" "/first" "/second" "/third"))
        (is (equal text (response-text (read-response kept)))))
      (is (equal "word" (exchange-text kept "/word")))
      (unless (eq :tls *mode*)
        (is (equal "/slow" (response-text (read-response ended))))
        (is (equal "/last" (response-text (read-response ended))))
        (is (closed-by-server-p ended))))))

(define-front-test (a-request-that-came-in-time-waits-for-a-thread :modes (:plain :tls)
                                                                   :needs :parking)
  (with-growing-limit (seconds)
    (let ((entered (make-gate)) (release (make-gate)) (*limit-began* (platform:microseconds)))
      (with-front (request :worker-num 1 :max-thread-count 1 :idle-timeout seconds)
          (progn
            (open-gate entered)
            (await release (* 3 *patience*))
            (reply 200 '() "slow"))
        (unwind-protect
             (with-connections (connections 3)
               (destructuring-bind (asking idle slow) connections
                 (promptly (exchange-text asking "/word")
                           (exchange-text idle "/word")
                           (send-request slow "/slow")
                           (await entered)
                           (send-request asking "/word"))
                 (is (closed-by-server-p idle) "Its time is over, and that of the other one.")
                 (eventually ("it to be queued") (= 1 (figure :queued)))
                 (open-gate release)
                 (is (equal "word" (response-text (read-response asking))))))
          (open-gate release))))))

(define-front-test (a-client-that-never-pauses-leaves-others-their-turn :modes (:plain :tls :http2)
                                                                        :needs :parking)
  (with-front (request :worker-num 1 :max-thread-count 1)
      nil
    (let ((requests (loop repeat 3000 collect (request-octets "/word"))))
      (is-true
       (loop repeat 5                   ; a machine may be late once
             thereis (with-connection (greedy)
                       (let* ((before (figure :served))
                              (reading (as-client ("a client that never pauses")
                                         (send greedy requests)
                                         (loop repeat 3000 do (read-response greedy)))))
                         (eventually ("its requests to be served")
                           (< (+ before 30) (figure :served)))
                         (is (equal "word" (ask-text "/word")))
                         (prog1 (< (figure :served) (+ before 3000))
                           (task-result reading)))))))))

;;; The end

(define-front-test a-soft-stop-answers-every-request-and-says-that-it-is-the-last
  (with-held-requests (3)
    (with-connection (idle)
      (is (equal "word" (exchange-text idle "/word")))
      (let ((stopping (as-client ("stop") (nth-value 1 (stop-front :soft t)))))
        (is (closed-by-server-p idle))
        (await-refused-connections)
        (is (not (task-done-p stopping)))
        (open-gate release)
        (dolist (connection slow)
          (let ((response (read-response connection)))
            (is (equal "/slow" (response-text response)))
            (is (equalp "close" (response-header response "connection"))))
          (is (closed-by-server-p connection)))
        (is (null (task-result stopping)))))))

(define-front-test (a-soft-stop-leaves-a-moment-for-requests-that-are-under-way :needs :our-http)
  (with-globals ((engine::*drain-seconds* (* 4 *patience*)))
    (with-front (request) nil
      (with-connection (connection)
        (is (equal "word" (exchange-text connection "/word")))
        (let ((stopping (as-client ("stop") (nth-value 1 (stop-front :soft t)))))
          (await-refused-connections)
          (let ((response (exchange connection "/word")))
            (is (equal "word" (response-text response)))
            (is (equalp "close" (response-header response "connection"))))
          (is (null (task-result stopping))))))))

(define-front-test (a-hard-stop-gives-requests-that-run-their-time
                    :modes (:plain :unparked :http2))
  (with-held-requests (2)
    (let ((stopping (as-client ("stop") (nth-value 1 (stop-front :timeout (* 3 *patience*))))))
      (await-refused-connections)
      (is (not (task-done-p stopping)))
      (open-gate release)
      (expect-replies slow "/slow")
      (is (null (task-result stopping))))))

(define-front-test a-soft-stop-tells-of-those-that-it-has-not-served
  (with-held-requests (1 :worker-num 1 :max-thread-count 1 :max-accept-count 2)
    (with-connection (waiting)
      (send-request waiting "/word")
      (eventually ("a client to be let in") (= 1 (figure :queued)))
      (is (equal '(:active :queued)
                 (mapcar (lambda (left) (getf left :state))
                         (nth-value 1 (stop-front :soft t :timeout 1/10)))))
      (is-true (closed-by-server-p waiting)))
    (open-gate release)
    (expect-replies slow "/slow")
    (eventually ("all connections to end") (zerop (figure :open)))))

(define-front-test (a-hard-stop-waits-for-no-client :modes (:plain :unparked :tls)
                                                    :needs :our-http)
  (let ((answers (make-recorder)))
    (with-front (request)
        (cond ((equal "/later" (path request)) (later (answer) (record answers answer)))
              (t (reply 200 '() *large-answer*)))
      (with-connections (connections (if *parking-p* 4 3)) ; else a thread waits for the last one
        (destructuring-bind (idle half later &optional unread) connections
          (is (equal "word" (exchange-text idle "/word")))
          (send half "GET /word HTTP/1.1" :crlf)
          (send-request later "/later")
          (when unread
            (send-request unread "/large")
            (is (= 200 (response-status (read-head unread)))))
          (await-answer answers)
          (is (null (nth-value 1 (stop-front :timeout (* 3 *patience*)))))
          (is (every #'closed-by-server-p (list idle half later)))
          (when unread
            (is-true (cut-answer-p unread))))))))
