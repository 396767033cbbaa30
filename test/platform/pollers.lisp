(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite pollers :in platform
  :description "Non-blocking descriptors and pollers, and their absence.")

(in-suite pollers)

(defmacro with-poller ((poller) &body body)
  "Evaluates BODY with a new POLLER.  On a platform without pollers, only checks that the library
says so."
  `(if (platform:readiness-supported-p)
       (let ((,poller (platform:make-poller)))
         (unwind-protect (progn ,@body)
           (platform:close-poller ,poller)))
       (signals error (platform:make-poller))))

(defmacro with-descriptor ((descriptor client) &body body)
  "Evaluates BODY with the server's end of a connection, a non-blocking DESCRIPTOR, and its CLIENT."
  (let ((listener (gensym "LISTENER")))
    `(with-listener (,listener)
       (platform:set-non-blocking (platform:listener-descriptor ,listener))
       (with-connection (,client (usocket:get-local-port ,listener))
         (let ((,descriptor (accepted-descriptor ,listener)))
           (unwind-protect (progn ,@body)
             (platform:close-descriptor ,descriptor)))))))

(defun accepted-descriptor (listener)
  (eventually ("a connection")
    (let ((result (platform:accept-descriptor (platform:listener-descriptor listener))))
      (and (>= result 0) result))))

(defun patient-milliseconds ()
  (* 1000 *patience*))

(defun patient-end ()
  "The moment at which a wait in a test ends."
  (platform:end-after *patience*))

(define-server-test a-poller-tells-once-of-what-comes
  (with-poller (poller)
    (with-descriptor (descriptor client)
      (platform:watch poller descriptor 42)
      (is (null (platform:await-ready poller 0)))
      (send client "x")
      (is (eql 42 (platform:await-ready poller (patient-milliseconds))))
      (is (null (platform:await-ready poller 0))
          "The poller returns a token once, even if nothing was read.")
      (send client "y")
      (is (eql 42 (platform:await-ready poller (patient-milliseconds)))))))

(define-server-test what-came-before-it-was-watched-is-told
  (with-poller (poller)
    (with-descriptor (descriptor client)
      (send client "x")
      (platform:await-descriptor descriptor :input :until (patient-end))
      (platform:watch poller descriptor 7)
      (is (eql 7 (platform:await-ready poller (patient-milliseconds)))))))

(define-server-test what-is-still-there-is-told-when-watched-again
  (with-poller (poller)
    (with-descriptor (descriptor client)
      (platform:watch poller descriptor 7)
      (send client "x")
      (is (eql 7 (platform:await-ready poller (patient-milliseconds))))
      (platform:rearm poller descriptor 7)
      (is (eql 7 (platform:await-ready poller (patient-milliseconds)))))))

(define-server-test a-peers-end-is-told-with-the-token
  (with-poller (poller)
    (with-descriptor (descriptor client)
      (platform:watch poller descriptor 42)
      (end-sending client)
      (let ((token (platform:await-ready poller (patient-milliseconds))))
        (is (platform:token-hangup-p token))
        (is (eql 42 (platform:plain-token token)))))))

(define-server-test large-tokens-come-back-whole
  (with-poller (poller)
    (with-descriptor (descriptor client)
      (let ((token (logior (1- (ash 1 31)) (ash (1- (ash 1 29)) 32))))
        (platform:watch poller descriptor token)
        (send client "x")
        (is (eql token (platform:await-ready poller (patient-milliseconds))))))))

(define-server-test one-event-wakes-one-of-those-who-wait
  (with-poller (poller)
    (with-descriptor (descriptor client)
      (platform:watch poller descriptor 1)
      (let ((waiters (loop repeat 3
                           collect (in-background ("waiter")
                                     (platform:await-ready poller (patient-milliseconds))))))
        (send client "x")
        (eventually ("a thread to get the token") (some #'task-done-p waiters))
        (platform:wake-all poller)
        (is (equal '(1 :broadcast :broadcast)
                   (sort (mapcar #'task-result waiters)
                        (lambda (a b) (and (eql a 1) (not (eql b 1)))))))))))

(define-server-test a-broadcast-wakes-who-waits-and-who-comes-later
  (with-poller (poller)
    (let ((waiting (in-background ("waiter")
                     (platform:await-ready poller (patient-milliseconds)))))
      (platform:wake-all poller)
      (is (eq :broadcast (task-result waiting)))
      (is (eq :broadcast (platform:await-ready poller 0)))
      (is (eq :broadcast (platform:await-ready poller 0))))))

(define-server-test a-probe-is-told-once-and-in-its-turn
  (with-poller (poller)
    (with-descriptor (descriptor client)
      (platform:watch poller descriptor 42)
      (is (null (platform:await-ready poller 0)))
      (send client "x")
      (platform:await-descriptor descriptor :input :until (patient-end))
      (platform:send-probe poller)
      (platform:send-probe poller)
      (is (eql 42 (platform:await-ready poller 0)))
      (is (eq :probe (platform:await-ready poller 0)))
      (is (null (platform:await-ready poller 0)))
      (platform:send-probe poller)
      (is (eq :probe (platform:await-ready poller 0))))))

(define-server-test an-unwatched-descriptor-is-not-told
  (with-poller (poller)
    (with-descriptor (descriptor client)
      (platform:watch poller descriptor 1)
      (platform:unwatch poller descriptor)
      (send client "x")
      (platform:await-descriptor descriptor :input :until (patient-end))
      (is (null (platform:await-ready poller 0))))))

(define-server-test several-are-told-at-a-time-in-their-order
  (with-poller (poller)
    (with-descriptor (first first-client)
      (with-descriptor (second second-client)
        (flet ((tell-all (most)
                 (send first-client "x")
                 (platform:await-descriptor first :input :until (patient-end))
                 (send second-client "x")
                 (platform:await-descriptor second :input :until (patient-end))
                 (multiple-value-list (platform:await-ready poller 0 most))))
          (platform:watch poller first 1)
          (platform:watch poller second 2)
          (is (equal '(1 (2)) (tell-all 16)))
          (is (null (platform:await-ready poller 0 16)))
          (is (equal '(1 ()) (tell-all 1)))
          (is (eql 2 (platform:await-ready poller 0))))))))

(define-server-test a-wakeup-is-told-once
  (with-poller (poller)
    (is (null (platform:await-ready poller 0)))
    (platform:wake-one poller)
    (platform:wake-one poller)
    (is (eq :wakeup (platform:await-ready poller 0)))
    (is (null (platform:await-ready poller 0)))))

;;; Descriptors

(defmacro where-supported (&body body)
  `(if (platform:readiness-supported-p)
       (progn ,@body)
       (is (null (platform:readiness-supported-p)))))

(define-server-test signals-do-not-move-the-time-limit-of-a-read
  (where-supported
   (with-descriptor (descriptor client)
     (let ((stream (server:make-descriptor-stream descriptor)))
       (platform:limit-waits stream 1/2)
       (is (eq :timeout (result-despite-interrupts
                         (in-background ("reader")
                           (handler-case (read-byte stream nil)
                             (server:stream-timeout () :timeout))))))))))

(test the-ready-engine-is-there-where-its-words-are-wide-enough
  (is (eq (and (uiop:featurep '(:and :sbcl :linux :64-bit :little-endian)) t)
          (platform:readiness-supported-p))))

(define-server-test a-thread-knows-its-number
  (where-supported
   (is (file-gone-p (format nil "/proc/self/task/~D/no-such" (platform:thread-identity))))
   (is (not (file-gone-p (format nil "/proc/self/task/~D/stat" (platform:thread-identity)))))))

(defmacro recording-descriptors ((recorder) &body body)
  "Evaluates BODY while RECORDER records the first arguments of the functions that trust them."
  `(with-globals ,(loop for name in '(platform:receive-octets platform:drop-octets
                                      platform:send-octets platform:send-octets-before-more)
                        collect `((fdefinition ',name)
                                  (lambda (descriptor &rest arguments)
                                    (declare (ignore arguments))
                                    (record ,recorder descriptor)
                                    -9)))
     ,@body))

(defun uses-of-a-closed-stream (stream)
  "A list of functions that use STREAM, a closed descriptor stream, in all possible ways."
  (let ((io (server:stream-io stream)) (many (test-octets 100000)))
    (list (lambda () (write-byte 1 stream) (finish-output stream))
          (lambda () (write-sequence many stream))
          (lambda ()
            (server:with-reply (reply)
              (http:encode-string reply "text" :latin-1)
              (server:send-reply io reply many)))
          (lambda () (server:send-refusal-at-once io (http:make-refusal :request-timeout)))
          (lambda () (server:send-refusal io (http:make-refusal :request-timeout)))
          (lambda () (server:send-continue io)))))

(define-server-test nobody-uses-a-descriptor-that-was-closed
  (where-supported
   (with-descriptor (descriptor client)
     (let ((stream (server:make-descriptor-stream descriptor))
           (used (make-recorder)))
       (close stream)
       (recording-descriptors (used)
         (dolist (use (uses-of-a-closed-stream stream))
           (signals server:descriptor-broken (funcall use)))
         (is (eq :end (read-byte stream nil :end)))
         (is (zerop (read-sequence (test-octets 100000) stream))))
       (is (null (recorded used)))))))

(define-server-test ranges-beyond-a-vector-are-refused-before-the-system-sees-them
  (where-supported
   (with-descriptor (descriptor client)
     (let* ((stream (server:make-descriptor-stream descriptor))
            (io (server:stream-io stream))
            (few (test-octets 10)))
       (signals error (server::receive-directly io few 0 100000))
       (signals error (server::write-with-backpressure io few 0 100000))
       (is (equalp (test-octets 10) few))))))

(define-server-test octets-go-both-ways-without-blocking
  (where-supported
   (with-descriptor (descriptor client)
     (let ((buffer (octets "....")))
       (is (platform:would-block-p (platform:receive-octets descriptor buffer 0 4)))
       (send client "ab")
       (platform:await-descriptor descriptor :input :until (patient-end))
       (is (= 2 (platform:receive-octets descriptor buffer 1 4)))
       (is (equalp (octets ".ab.") buffer))
       (is (= 3 (platform:send-octets descriptor buffer 1 4)))
       (is (equalp (octets "ab.") (read-octets client 3)))
       (end-sending client)
       (platform:await-descriptor descriptor :input :until (patient-end))
       (is (zerop (platform:receive-octets descriptor buffer 0 4)))))))

(define-server-test octets-that-nobody-wants-are-dropped
  (where-supported
   (with-descriptor (descriptor client)
     (is (platform:would-block-p (platform:drop-octets descriptor 4)))
     (send client "abcdef")
     (platform:await-descriptor descriptor :input :until (patient-end))
     (is (= 4 (platform:drop-octets descriptor 4)))
     (let ((buffer (octets "....")))
       (is (= 2 (platform:receive-octets descriptor buffer 0 4)))
       (is (equalp (octets "ef..") buffer)))
     (end-sending client)
     (platform:await-descriptor descriptor :input :until (patient-end))
     (is (zerop (platform:drop-octets descriptor platform:+most-dropped+))))))

(define-server-test a-full-socket-takes-no-more-and-says-so
  (where-supported
   (with-descriptor (descriptor client)
     (let ((many (test-octets 65536)))
       (is (platform:would-block-p
            (loop for result = (platform:send-octets descriptor many 0 65536)
                  unless (plusp result) return result)))
       (is (not (platform:await-descriptor descriptor :output :until (platform:milliseconds))))))))

(define-server-test an-accept-without-a-connection-does-not-block
  (where-supported
   (with-listener (listener)
     (platform:set-non-blocking (platform:listener-descriptor listener))
     (is (platform:would-block-p
          (platform:accept-descriptor (platform:listener-descriptor listener)))))))

(define-server-test a-blocked-thread-is-told-from-a-running-one
  (where-supported
   (let* ((gate (make-gate)) (stop nil) (identity nil)
          (thread (in-background ("subject")
                    (setf identity (platform:thread-identity))
                    (loop until stop)
                    (await gate))))
     (eventually ("the subject to run") identity)
     (unwind-protect
          (progn
            (is (eq :running (platform:thread-state identity)))
            (setf stop t)
            (eventually ("the subject to block") (eq :blocked (platform:thread-state identity))))
       (open-gate gate)
       (task-result thread)))))

(define-server-test time-that-threads-wait-for-processors-is-counted
  (where-supported
   (let ((before (platform:processor-stall)) (stop nil))
     (when before                       ; else the system does not count it
       (let ((threads (loop repeat (1+ (platform:online-processors))
                            collect (in-background ("busy") (loop until stop)))))
         (unwind-protect
              (eventually ("a thread to wait for a processor")
                (< (+ before 10000) (platform:processor-stall)))
           (setf stop t)
           (mapc #'task-result threads)))))))

(define-server-test time-in-which-this-process-computes-is-not-idle
  (where-supported
   (with-globals ((platform::*system-files* "/nowhere/"))
     (is (null (platform:processor-stall)))
     (let* ((start (platform:microseconds))
            (idle (platform:processor-idle-time)))
       (loop until (< (+ start 100000) (platform:microseconds)))
       (let ((more-idle (- (platform:processor-idle-time) idle))
             (elapsed (- (platform:microseconds) start)))
         (is (< more-idle (* elapsed (platform:online-processors)))))))))

(define-server-test idle-time-of-processors-never-shrinks
  (where-supported
   (let ((times (loop repeat 20 collect (platform:processor-idle-time) do (bt:thread-yield))))
     (is (every #'integerp times))
     (is (apply #'<= times) "~S" times))))

(define-server-test a-listener-that-defers-tells-of-connections-when-octets-come
  (where-supported
   (with-listener (listener)
     (let ((descriptor (platform:listener-descriptor listener)))
       (platform:set-non-blocking descriptor)
       (is (zerop (platform:defer-accepts listener 60)))
       (with-connection (silent (usocket:get-local-port listener))
         (with-connection (client (usocket:get-local-port listener))
           (send client "x")
           (platform:close-descriptor (accepted-descriptor listener))
           (is (platform:would-block-p (platform:accept-descriptor descriptor))
               "The first connection is silent, and LISTENER holds it back."))
         (send silent "x")
         (platform:close-descriptor (accepted-descriptor listener)))))))

(define-server-test where-arrivals-are-stopped-connections-that-have-begun-still-come
  (where-supported
   (with-listener (listener)
     (let ((descriptor (platform:listener-descriptor listener))
           (port (usocket:get-local-port listener)))
       (platform:set-non-blocking descriptor)
       (platform:defer-accepts listener 60)
       (with-connections (connections 2 port)
         (send (first connections) "x")
         (is (platform:stop-arrivals listener))
         (signals usocket:connection-refused-error (connect port))
         (platform:close-descriptor (accepted-descriptor listener))
         (send (second connections) "x")
         (platform:close-descriptor (accepted-descriptor listener)))))))

(defun thread-facts (identity)
  "A list of the scheduling policy and the timer slack, in microseconds, of the thread IDENTITY,
from proc(5)."
  (flet ((line (name)
           (with-open-file (stream (format nil "/proc/~D/~A" identity name))
             (read-line stream))))
    (let ((stat (line "stat")))
      (list (parse-integer (nth 38 (uiop:split-string (subseq stat (+ 2 (position #\) stat
                                                                                :from-end t))))))
            (floor (parse-integer (line "timerslack_ns")) 1000)))))

(test a-thread-that-is-scheduled-as-batch-is-known-as-such
  (where-supported
   (is (equal '(3 100)                  ; SCHED_BATCH
              (task-result (in-background ("subject")
                             (platform:schedule-as-batch)
                             (platform:let-timers-be-late 100)
                             (thread-facts (platform:thread-identity))))))))

(test counters-lose-nothing
  (where-supported
   (let ((counter (platform:make-counter)))
     (mapc #'task-result
           (loop repeat 4
                 collect (in-background ("counting")
                           (loop repeat 10000 do (platform:counter-add counter 1)))))
     (platform:counter-add counter -1)
     (is (= 39999 (platform:counter-count counter))))))

;;; Alarms

(define-server-test a-timer-descriptor-tells-each-time-that-it-rings
  (where-supported
   (with-poller (poller)
     (let ((descriptor (platform:make-timer-descriptor)))
       (unwind-protect
            (progn
              (is (zerop (platform:watch poller descriptor 42)))
              (is (null (platform:await-ready poller 0)))
              (loop repeat 3
                    do (let ((moment (+ (platform:microseconds) 2000)))
                         (is (zerop (platform:arm-timer-descriptor descriptor moment)))
                         (is (eql 42 (platform:await-ready poller (patient-milliseconds))))
                         (is (<= moment (platform:microseconds)))
                         (is (null (platform:await-ready poller 0)))))
              (platform:arm-timer-descriptor descriptor 1)
              (is (eql 42 (platform:await-ready poller (patient-milliseconds))) "That has passed."))
         (platform:close-descriptor descriptor))))))

(define-server-test a-timer-descriptor-that-is-set-to-later-tells-nothing-before
  (where-supported
   (with-poller (poller)
     (let ((descriptor (platform:make-timer-descriptor)))
       (unwind-protect
            (progn
              (platform:watch poller descriptor 42)
              (platform:arm-timer-descriptor descriptor 1)
              (platform:arm-timer-descriptor descriptor (+ (platform:microseconds) 1000000000))
              (is (null (platform:await-ready poller 20))))
         (platform:close-descriptor descriptor))))))
