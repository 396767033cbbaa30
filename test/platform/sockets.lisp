(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite platform :in all
  :description "The interface to the operating system, on real sockets.")

(in-suite platform)

(defmacro with-listener ((listener) &body body)
  `(let ((,listener (usocket:socket-listen "127.0.0.1" 0 :reuse-address t :backlog 16
                                                         :element-type '(unsigned-byte 8))))
     (unwind-protect (progn ,@body)
       (platform:close-listener ,listener))))

(defun accepted-usocket (listener)
  "The next connection of LISTENER, as a usocket with a socket of the Lisp."
  #+sbcl (with-function (platform::accepted-socket (original socket)
                          (platform::stream-usocket socket))
           (platform:accept-connection listener))
  #-sbcl (platform:accept-connection listener))

(defmacro with-accepted ((server client) &body body)
  "Evaluates BODY with both ends of a connection: SERVER, which the platform accepted, and CLIENT,
of the tests' client.  SERVER is a usocket even if the platform would return a descriptor."
  (let ((listener (gensym "LISTENER")))
    `(with-listener (,listener)
       (with-connection (,client (usocket:get-local-port ,listener))
         (let ((,server (accepted-usocket ,listener)))
           (unwind-protect (progn ,@body)
             (platform:close-socket ,server)))))))

(define-server-test an-accepted-connection-carries-octets-both-ways
  (with-accepted (server client)
    (let ((stream (platform:socket-octet-stream server)))
      (send client "ping")
      (is (= (char-code #\p) (read-byte stream)))
      (write-sequence (octets "pong") stream)
      (finish-output stream)
      (is (equalp (octets "pong") (read-octets client 4))))))

(define-server-test a-descriptor-stands-for-its-socket
  (when (platform:readiness-supported-p)
    (with-listener (listener)
      (with-connection (client (usocket:get-local-port listener))
        (let ((server (platform:accept-connection listener)))
          (is (not (platform:await-input server :until (platform:milliseconds))))
          (send client "ping")
          (is (platform:await-input server :until (platform:end-after *patience*)))
          (is (eql 4 (platform::discard-available-input server 10 (platform:end-after 1))))
          (is (eql 0 (platform::discard-available-input server 10 (platform:end-after 1))))
          (is (equal (list "127.0.0.1" (client-port client))
                     (multiple-value-list (platform:peer-name server))))
          (is (platform:shut-down server :output))
          (is (closed-by-server-p client))
          (is (platform:close-socket server))
          (is (not (platform:close-socket server))))))))

(define-server-test both-ends-are-named
  (with-accepted (server client)
    (is (equal (list "127.0.0.1" (client-port client))
               (multiple-value-list (platform:peer-name server))))
    (is (equal "127.0.0.1" (platform:local-name server)))))

(define-server-test a-peer-that-has-left-has-no-name
  (with-accepted (server client)
    (if (reset client)
        (progn (platform:await-input server :until (platform:end-after *patience*))
               (if (uiop:featurep :abcl)
                   (is (equal "127.0.0.1" (platform:peer-name server)) "Java remembers it.")
                   (signals platform:peer-gone (platform:peer-name server))))
        (skip "This Lisp cannot reset a connection."))))

(define-server-test waking-a-listener-ends-an-accept
  (with-listener (listener)
    (let ((waiting (in-background ("accept")
                     (handler-case (platform:accept-connection listener)
                       (platform:listener-closed () :closed)))))
      (is (not (task-done-p waiting)))
      (platform:wake-listener listener 1)
      (is (eq :closed (task-result waiting)))
      (signals platform:listener-closed (platform:accept-connection listener)))))

(define-server-test a-connection-that-waits-is-seen
  (with-listener (listener)
    (with-connection (client (usocket:get-local-port listener))
      (eventually ("the connection to be seen") (platform:pending-connection-p listener))
      (let ((server (platform:accept-connection listener)))
        (is (if (platform:readiness-supported-p)
                (typep server 'platform:descriptor)
                (usocket:usocket-p server)))
        (platform:close-socket server)))))

(define-server-test awaiting-input-ends-with-octets-with-the-end-or-with-the-time
  (with-accepted (server client)
    (is (not (platform:await-input server :until (platform:milliseconds))))
    (is (not (platform:await-input server :until (platform:end-after 1/50))))
    (send client "x")
    (is (platform:await-input server :until (platform:milliseconds)))
    (is (platform:await-input server :until (platform:end-after *patience*)))
    (read-byte (platform:socket-octet-stream server))
    (end-sending client)
    (is (platform:await-input server))
    (is (null (read-byte (platform:socket-octet-stream server) nil nil)))))

(defun result-despite-interrupts (task)
  "The TASK-RESULT of TASK.  Its thread is interrupted every few milliseconds until it has ended."
  (eventually ("a wait to end in spite of interrupts")
    (or (task-done-p task)
        (progn (ignore-errors (bt:interrupt-thread (task-thread task) (constantly nil)))
               nil)))
  (task-result task))

(define-server-test interrupts-neither-prolong-nor-shorten-a-wait-for-input
  (with-accepted (server client)
    (let* ((begun (platform:milliseconds))
           (waiting (in-background ("waiting")
                      (list (platform:await-input server :until (platform:end-after 1/2))
                            (platform:milliseconds)))))
      (destructuring-bind (input-p ended) (result-despite-interrupts waiting)
        (is (not input-p))
        (is (<= 500 (- ended begun)))))))

(define-server-test shutting-input-down-ends-a-read-elsewhere
  (with-accepted (server client)
    (let ((reading (in-background ("read")
                     (read-byte (platform:socket-octet-stream server) nil :end))))
      (platform:shut-down server :input)
      (is (eq :end (task-result reading)))
      (is (null (receive-nothing-but-octets client server))))))

(defun receive-nothing-but-octets (client server)
  "Checks that SERVER can still send to CLIENT; NIL if it can."
  (let ((stream (platform:socket-octet-stream server)))
    (write-byte 7 stream)
    (finish-output stream)
    (unless (eql 7 (next-octet client))
      :lost)))

(define-server-test a-limited-wait-ends-a-read-with-an-error
  (with-accepted (server client)
    (platform:limit-waits server 1/10)
    (signals error (read-byte (platform:socket-octet-stream server)))
    (signals error (platform:read-stream-octets (platform:socket-octet-stream server)
                                                (test-octets 2) 0 2))
    #+ecl (signals error (platform:write-stream-octets (platform:socket-octet-stream server)
                                                       (test-octets 9000000) 0 9000000))))

;;; To collect garbage, a Lisp stops its threads by signals, which cut waits in the system short.

(defun collect-garbage-repeatedly ()
  "Collects garbage, except on ABCL, since Java does not stop threads by signals."
  (loop repeat (rounds 10)
        do (progn #+sbcl (sb-ext:gc) #+ecl (ext:gc t))))

(define-server-test collecting-garbage-loses-nothing-of-what-is-received
  (with-accepted (server client)
    (platform:limit-waits server *patience*)
    (let* ((sent (test-octets 80000))
           (received (test-octets 80010))
           (reading (in-background ("reading")
                      (platform:read-stream-octets (platform:socket-octet-stream server)
                                                   received 10 80010))))
      (loop for start below 80000 by 10000
            do (send client (subseq sent start (+ start 10000)))
               (collect-garbage-repeatedly))
      (is (= 80000 (task-result reading)))
      (is (null (octet-difference sent (subseq received 10))))
      (is (null (octet-difference (test-octets 10) (subseq received 0 10)))))))

(define-server-test collecting-garbage-neither-loses-nor-repeats-what-is-sent
  (with-accepted (server client)
    (platform:limit-waits server *patience*)
    (let* ((octets (test-octets 9000000))
           (stream (platform:socket-octet-stream server))
           (writing (in-background ("writing")
                      (write-sequence octets stream :end 100)
                      (platform:write-stream-octets stream octets 100 9000000))))
      (collect-garbage-repeatedly)
      (is (null (octet-difference octets (receive-many client 9000000))))
      (task-result writing))))

(define-server-test octets-that-never-come-end-at-the-end-of-their-stream
  (with-accepted (server client)
    (let ((received (test-octets 20)))
      (send client (octets "more"))
      (end-sending client)
      (is (= 4 (platform:read-stream-octets (platform:socket-octet-stream server) received 2 20)))
      (is (equalp (octets "more") (subseq received 2 6)))
      (is (zerop (platform:read-stream-octets (platform:socket-octet-stream server)
                                              received 0 20))))))

(define-server-test octets-that-nobody-can-have-are-an-error
  (with-accepted (server client)
    (disconnect client)
    (signals error
      (loop repeat 100
            do (platform:write-stream-octets (platform:socket-octet-stream server)
                                             (test-octets 100000) 0 100000)))))

(define-server-test closing-gently-lets-the-last-answer-arrive
  (with-accepted (server client)
    (let ((stream (platform:socket-octet-stream server)))
      (send client "more than is read")
      (read-byte stream)
      (write-sequence (octets "answer") stream)
      (finish-output stream)
      (platform:close-gently server)
      (is (equalp (octets "answer") (receive-rest client))))))

(define-server-test closing-gently-waits-for-what-may-still-come
  (with-globals ((platform::*discard-seconds* *patience*)
                 (platform::*discard-pause* *patience*))
    (with-accepted (server client)
      (let ((closing (in-background ("closing") (platform:close-gently server t))))
        (is (closed-by-server-p client) "The client sees the end at once.")
        (send client "more")
        (is (not (poll (lambda () (task-done-p closing)) 1/5)))
        (end-sending client)
        (task-result closing)
        (is (not (platform:socket-open-p server)))))))

(define-server-test a-client-that-is-closed-unread-gets-what-was-said-and-is-not-waited-for
  (with-globals ((platform::*discard-seconds* (* 2 *patience*))
                 (platform::*discard-pause* (* 2 *patience*)))
    (with-accepted (server client)
      (send client (test-octets 10000))
      (is (platform:await-input server :until (patient-end)))
      (let ((stream (platform:socket-octet-stream server)))
        (write-sequence (octets "no") stream)
        (finish-output stream))
      (task-result (in-background ("closing") (platform:close-unread server)))
      (is (equalp (octets "no") (read-octets client 2)))
      (is (eq :end (read-byte (connection-stream client) nil :end))
            "The connection was not reset."))))

(defmacro with-tireless-sender ((client) &body body)
  "Evaluates BODY while a task sends to CLIENT's server as fast as it can, until the connection is
closed."
  (let ((sender (gensym "SENDER")))
    `(let ((,sender (in-background ("tireless sender")
                      (loop while (handler-case (progn (send ,client *many-octets*) t)
                                    (error () nil))))))
       (multiple-value-prog1 (progn ,@body)
         (task-result ,sender)))))

(defparameter *many-octets* (test-octets 65536))

(define-server-test closing-gently-takes-a-limited-time-whatever-the-peer-sends
  (with-globals ((platform::*discard-octets* most-positive-fixnum)
                 (platform::*discard-seconds* 1/5))
    (with-accepted (server client)
      (with-tireless-sender (client)
        (task-result (in-background ("closing") (platform:close-gently server)))
        (is (not (platform:socket-open-p server)))))))

(define-server-test closing-gently-takes-a-limited-number-of-octets
  (with-globals ((platform::*discard-octets* 100000)
                 (platform::*discard-seconds* 3600))
    (with-accepted (server client)
      (with-tireless-sender (client)
        (task-result (in-background ("closing") (platform:close-gently server)))
        (is (not (platform:socket-open-p server)))))))

(define-server-test closing-gently-does-not-wait-for-a-peer-that-drips
  (with-globals ((platform::*discard-seconds* 1/2))
    (with-accepted (server client)
      (send client "x")
      (let ((closing (in-background ("closing") (platform:close-gently server))))
        (eventually ("the server to close")
          (try-to-send client "x")
          (task-done-p closing))
        (task-result closing)
        (is (not (platform:socket-open-p server)))))))

(define-server-test closing-twice-is-harmless
  (with-accepted (server client)
    (platform:close-gently server)
    (platform:close-gently server)
    (is (closed-by-server-p client))))

(define-server-test closing-gently-what-its-stream-has-closed-touches-nobody-else
  (with-listener (listener)
    (with-accepted (server client)
      (close (platform:socket-octet-stream server))
      ;; The new connection most likely gets the descriptor number that is free now.
      (with-connection (other-client (usocket:get-local-port listener))
        (let ((other (accepted-usocket listener)))
          (platform:close-gently server)
          (send other-client "ping")
          (is (= (char-code #\p) (read-byte (platform:socket-octet-stream other))))
          (platform:close-socket other))))))

(test the-clock-goes-forward
  (let ((before (platform:milliseconds)))
    (is (integerp before))
    (eventually ("time to pass") (> (platform:milliseconds) before))))

(define-server-test a-thread-that-joins-a-thread-learns-whether-it-has-ended
  (let* ((gate (make-gate))
         (thread (bt:make-thread (lambda () (await gate)))))
    (is (not (platform:join-thread thread 1/100)))
    (open-gate gate)
    (is (platform:join-thread thread *patience*))
    (is (platform:join-thread thread 0) "It has ended already.")))

(test there-is-a-processor
  (is (plusp (platform:processor-count))))

(test what-accept-says-is-known-by-its-number
  (let ((kinds (if (uiop:featurep :linux)
                   '((11 :none) (4 :gone) (103 :gone) (71 :again) (100 :again) (101 :again)
                     (112 :again) (113 :again) (24 :exhausted) (23 :exhausted) (105 :exhausted)
                     (12 :exhausted) (22 :closed) (9 :closed) (1 :other) (9999 :other) (nil :other))
                   '((35 :none) (53 :gone) (24 :exhausted) (22 :closed) (1 :other)))))
    (loop for (number kind) in kinds
          do (is (eq kind (platform:accept-failure-kind number)) "~A" number))))

(test failures-to-accept-are-conditions-of-their-kind
  (loop for (kind class) in '((:again platform:network-trouble)
                              (:exhausted platform:descriptors-exhausted)
                              (:closed platform:listener-closed)
                              (:other platform:accept-failed))
        do (is (eq class (type-of (platform:make-accept-failure kind "why"))))))
