(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite clack/written-responses :in clack
  :description "Responses that are written by any thread: framing, slow clients, clients that leave,
writers left open.")

(in-suite clack/written-responses)

(defun chunk-text (connection)
  (decode (read-chunk connection)))

(defun small-connection ()
  "A connection to *SERVER* that takes little before it is read."
  (connect-with-small-buffer (port-of *server*)))

(define-server-test a-writer-is-used-when-the-function-has-returned
  (with-later (given) (let ((writer (funcall responder '(200 (:content-type "text/x")))))
                        (funcall writer "one ")
                        writer)
    (with-connection (connection)
      (dolist (number '(0 1))
        (send-request connection "/")
        (let ((head (read-head connection)))
          (is (equal "text/x" (response-header head "content-type")))
          (is-true (chunked-p head)))
        (is (equal "one " (chunk-text connection)))
        (let ((writer (nth-given given number)))
          (is (null (elsewhere writer "xtwox" :start 1 :end 4)))
          (is (equal "two" (chunk-text connection)) "It leaves at once.")
          (await-pending)
          (elsewhere writer nil)
          (elsewhere writer "")
          (elsewhere writer (octets "octets"))
          (is (equal "octets" (chunk-text connection)))
          (is (null (elsewhere writer (string (code-char #x3042)) :close t)))
          (is (equal (string (code-char #x3042)) (chunk-text connection)))
          (is (null (read-chunk connection)))
          (signals handler:reply-already-sent (funcall writer "more"))
          (is (null (funcall writer nil :close t)) "It is closed already."))
        (is (equal "word" (exchange-text connection "/word")))))))

(define-server-test any-thread-begins-to-write-later
  (with-later (given) responder
    (with-connection (connection)
      (dolist (number '(0 1))
        (send-request connection "/")
        (nth-given given number)
        (when (= 0 number)
          (await-pending))
        (let ((writer (elsewhere (nth-given given number) '(203 ()))))
          (is (= 203 (response-status (read-head connection))) "The head leaves at once.")
          (elsewhere writer "one")
          (is (equal "one" (chunk-text connection)))
          (send connection (request-octets "/word"))
          (is (not (readable-p connection 1/20)) "The next request waits.")
          (elsewhere writer "two" :close t)
          (is (equal "two" (chunk-text connection)))
          (is (null (read-chunk connection)))
          (is (equal "word" (response-text (read-response connection)))))))))

(define-server-test written-responses-are-framed-for-clients-of-all-kinds
  (with-later (given)
      (let ((writer (funcall responder (if (equal "/6" (getf environment :path-info))
                                           '(200 (:content-length "6"))
                                           '(200 ())))))
        (in-background ("writing")
          (funcall writer "abc")
          (funcall writer "def")
          (funcall writer nil :close t)))
    (with-connection (connection)
      (loop repeat 3
            do (is (equal "abcdef" (exchange-text connection "/")))
               (let ((answer (exchange connection "/6")))
                 (is (equal "6" (response-header answer "content-length")))
                 (is (equal "abcdef" (response-text answer))))
               (is (= 200 (response-status (exchange connection "/" :method :head))))))
    (is (equal "abcdef" (response-text (ask "/" :headers '(("Connection" . "close"))))))
    (let ((old (decode (ask-raw (request-octets "/" :version "HTTP/1.0")))))
      (is (cl-ppcre:scan "abcdef$" old))
      (is (not (search "chunked" old))))
    (mapc #'task-result (recorded given))))

(define-server-test no-more-than-was-announced-is-written
  (with-later (given) (funcall responder '(200 (:content-length 6)))
    (with-connection (connection)
      (send-request connection "/")
      (let ((writer (nth-given given)))
        (elsewhere writer "abc")
        (is (eq 'handler:content-too-long (elsewhere writer "defg")))
        (elsewhere writer "def" :close t))
      (is (equal "abcdef" (response-text (read-response connection))))
      (send-request connection "/")
      (elsewhere (nth-given given 1) "abc" :close t)
      (read-head connection)
      (is (equal "abc" (decode (receive-rest connection)))
          "The client sees that the rest is missing."))))

(define-server-test many-threads-write-one-response
  (with-later (given) (funcall responder '(200 ()))
    (with-connection (connection)
      (send-request connection "/")
      (let* ((writer (nth-given given))
             (tasks (loop for letter across "abcd"
                          collect (let ((piece (make-string 1000 :initial-element letter)))
                                    (in-background ("writing")
                                      (loop repeat 50 do (funcall writer piece)))))))
        (mapc #'task-result tasks)
        (funcall writer nil :close t)
        (let ((text (response-text (read-response connection))))
          (is (= 200000 (length text)))
          (is-true (loop for start from 0 below (length text) by 1000
                         always (= 1000 (count (char text start) text :start start
                                               :end (+ start 1000))))))
        (is (equal "word" (exchange-text connection "/word")))))))

(define-server-test (a-thread-that-is-destroyed-while-it-ends-its-turn-to-write-still-ends-it
                     :needs (:deferred-ends :calls-by-name))
  (let ((first-p t))
    (with-function (handler::end-turn (original written)
                     (when (shiftf first-p nil)
                       (destroy-here (bt:current-thread)))
                     (funcall original written))
      (with-clack (environment (lambda (responder)
                                 (let ((writer (funcall responder
                                                        '(200 (:content-type "text/plain")))))
                                   (platform:join-thread
                                    (bt:make-thread (lambda () (funcall writer "one "))) 10)
                                   (funcall writer "two" :close t))))
        (is (equal "one two" (ask-text "/")))
        (is (null first-p))))))

(define-server-test threads-write-while-the-function-waits-for-them
  (with-later (given) (let ((writer (funcall responder '(200 ())))
                            (piece (make-string 100000 :initial-element #\x)))
                        (mapc #'task-result
                              (loop repeat 3
                                    collect (in-background ("writing")
                                              (loop repeat 10 do (funcall writer piece)))))
                        (funcall writer "end" :close t))
    (with-connection (connection)
      (loop repeat 2
            do (is (= 3000003 (length (response-text (exchange connection "/")))))))))

(define-server-test what-another-thread-writes-leaves-while-the-function-runs
  (let ((gate (make-gate "leave to return")))
    (with-later (given) (let ((writer (funcall responder '(200 ()))))
                          (record given writer)
                          (await gate)
                          (funcall writer "end" :close t))
      (with-connection (connection)
        (send-request connection "/")
        (elsewhere (nth-given given) "one")
        (read-head connection)
        (is (equal "one" (chunk-text connection)))
        (open-gate gate)
        (is (equal "end" (chunk-text connection)))
        (is (null (read-chunk connection)))))))

(define-server-test a-client-that-holds-content-back-is-not-waited-for-when-the-response-has-begun
  (with-later (given) (funcall responder '(200 ()))
    (with-connection (connection)
      (send connection
            (octets "POST / HTTP/1.1" :crlf "Host: localhost" :crlf "Content-Length: 5" :crlf
                    "Expect: 100-continue" :crlf :crlf))
      (elsewhere (nth-given given) "one" :close t)
      (is (equal "one" (response-text (read-response connection))))
      (is-true (closed-by-server-p connection)))))

;;; Slow clients

(define-server-test an-application-that-writes-waits-for-a-slow-client
  (with-later (given :write-timeout 60) (funcall responder '(200 ()))
    (with-open-connection (connection (small-connection))
      (send-request connection "/")
      (let* ((writer (nth-given given))
             (written (make-recorder))
             (start 0)
             (writing (in-background ("writing")
                        (loop while (< start *large-size*)
                              do (let ((end (min *large-size* (+ start 50000))))
                                   (funcall writer *large-answer* :start start :end end)
                                   (record written end)
                                   (setf start end)))
                        (funcall writer nil :close t))))
        (eventually ("the writer to wait")
          (let ((count (recorded-count written)))
            (and (plusp count)
                 (not (poll (lambda () (> (recorded-count written) count)) 1/4)))))
        (is (< start *large-size*) "It waits.")
        (is (equal "word" (ask-text "/word")))
        (is (equalp *large-answer* (response-body (read-response connection))))
        (task-result writing)
        (is (equal "word" (exchange-text connection "/word")))))))

(define-server-test a-writer-of-more-than-may-wait-returns-when-half-of-that-was-taken
  (with-later (given :write-timeout 60) (funcall responder '(200 ()))
    (with-open-connection (connection (small-connection))
      (send-request connection "/")
      ;; Before the function has returned, it would wait for the thread that writes.
      (await-pending)
      (let* ((writer (nth-given given))
             (writing (in-background ("writing") (funcall writer *large-answer*))))
        (is (not (poll (lambda () (task-done-p writing)) 1/10)))
        (read-head connection)
        (is (= *large-size* (length (read-chunk connection))))
        (task-result writing)
        (elsewhere writer nil :close t)
        (is (null (read-chunk connection)))))))

(define-server-test a-writer-in-the-function-waits-for-no-longer-than-the-client-takes-nothing
  (with-clack (environment (lambda (responder)
                             (let ((writer (funcall responder '(200 ()))))
                               (loop for start from 0 below *large-size* by 50000
                                     do (funcall writer *large-answer* :start start
                                                                       :end (min *large-size*
                                                                                 (+ start 50000))))
                               (funcall writer nil :close t)))
                           :write-timeout 60)
    (with-open-connection (connection (small-connection))
      (send-request connection "/")
      (is (equalp *large-answer* (response-body (read-response connection)))))))

;; As a handler of a time limit does.
(define-server-test (a-thread-that-writes-amid-a-write-of-its-own-thread-does-not-wait-for-itself
                     :needs :our-http)
  (let ((nested '()) (written (make-gate "the writes amid the first one")))
    (with-function (server:send-unsent (original io)
                     (loop while nested
                           do (funcall (pop nested)))
                     (funcall original io))
      (with-later (given :write-timeout 60)
          (let ((writer (funcall responder '(200 ()))))
            (setf nested (list (lambda () (funcall writer *large-answer*))
                               (lambda () (funcall writer "the end" :close t))
                               (lambda () (open-gate written))))
            (funcall writer *large-answer*)
            (signals handler:reply-already-sent (funcall writer "more")))
        (with-open-connection (connection (small-connection))
          (send-request connection "/")
          ;; A client that reads at once may keep up with the first write, which then does not wait.
          (await written)
          (read-head connection)
          (loop repeat 2 do (is (= *large-size* (length (read-chunk connection)))))
          (is (equal "the end" (chunk-text connection)))
          (is (null (read-chunk connection))))))))

(define-server-test (a-thread-that-writes-amid-its-own-reading-does-not-wait-for-itself-either
                     :needs :our-http)
  (let ((nested nil))
    (with-function (server:invite-content (original content)
                     (when nested
                       (funcall (shiftf nested nil)))
                     (funcall original content))
      (with-clack (environment (lambda (responder)
                                 (let ((writer (funcall responder '(200 ()))))
                                   (setf nested (lambda () (funcall writer "amid ")))
                                   (funcall writer (octets (vector (read-byte (getf environment
                                                                                    :raw-body)))))
                                   (funcall writer nil :close t)))
                               :max-early-octets 0)
        (with-connection (connection)
          (send connection "POST / HTTP/1.1" :crlf "Host: a" :crlf "Content-Length: 1" :crlf :crlf)
          (read-head connection)
          (send connection "x")
          (is (equal "amid " (chunk-text connection)))
          (is (equal "x" (chunk-text connection)))
          (is (null (read-chunk connection)))
          (is (null nested)))))))

(define-server-test what-another-thread-writes-leaves-whole-while-the-function-runs
  (let ((gate (make-gate "leave to return")))
    (with-later (given :write-timeout 60) (let ((writer (funcall responder '(200 ()))))
                                            (record given writer)
                                            (await gate)
                                            (funcall writer nil :close t))
      (with-open-connection (connection (small-connection))
        (send-request connection "/")
        (let ((writing (let ((writer (nth-given given)))
                         (in-background ("writing") (funcall writer *large-answer*)))))
          (read-head connection)
          (is (= *large-size* (length (read-chunk connection))))
          (open-gate gate)
          (task-result writing)
          (is (null (read-chunk connection))))))))

(define-server-test (a-client-that-takes-nothing-is-given-up :needs :our-http)
  (with-later (given :write-timeout 1/4) (funcall responder '(200 ()))
    (with-open-connection (connection (small-connection))
      (send-request connection "/")
      (is (eq 'handler:client-left
              (elsewhere (lambda (writer) (loop (funcall writer *large-answer*)))
                         (nth-given given))))
      (eventually ("the connection to end") (zerop (server-figure :open))))))

;;; Clients that leave, and functions that fail

(define-server-test (an-application-that-writes-for-a-client-that-has-left-is-told
                     :needs :noticed-leaving)
  (with-later (given) (funcall responder '(200 ()))
    (dolist (end '(disconnect reset))
      (setf (recorder-entries given) '())
      (let ((connection (connect)))
        (send-request connection "/")
        (let ((writer (nth-given given)))
          (elsewhere writer "one")
          (read-head connection)
          (funcall end connection)
          (is (eq 'handler:client-left
                  (elsewhere (lambda ()
                               (loop (funcall writer (make-string 10000 :initial-element #\x)))))))
          (is (null (funcall writer nil :close t)) "Who cleans up is not disturbed."))))
    (eventually ("the connections to end") (zerop (server-figure :open)))
    (is (zerop (server-figure :failed)))
    (is (equal "" (clack-log)))))

(define-server-test an-application-that-waits-for-a-client-that-leaves-is-woken-up
  (with-later (given :write-timeout 60) (funcall responder '(200 ()))
    (let ((connection (small-connection)))
      (send-request connection "/")
      (let ((writing (in-background ("writing")
                       (handler-case (loop (funcall (nth-given given) *large-answer*))
                         (handler:client-left () :left)))))
        (read-head connection)
        (poll (constantly nil) 1/10)
        (reset connection)
        (is (eq :left (task-result writing)))))))

(define-server-test a-function-that-fails-amid-its-response-cuts-it-for-all-writers
  (with-later (given) (let ((writer (funcall responder '(200 ()))))
                        (record given writer)
                        (funcall writer "half")
                        (error "Amid the response."))
    (let ((answer (decode (ask-raw (request-octets "/")))))
      (is (search "half" answer))
      (is (not (search (format nil "0~C~C~C~C" #\Return #\Newline #\Return #\Newline) answer))))
    (signals handler:client-left (funcall (nth-given given) "more"))
    (is-true (await-log "Amid the response."))))

(define-server-test a-stop-ends-responses-that-are-written
  (with-later (given) (funcall responder '(200 ()))
    (with-connection (connection)
      (send-request connection "/")
      (let ((writer (nth-given given)))
        (await-pending)
        (handler:stop *server*)
        (signals handler:client-left (funcall writer "late"))))))

;;; Writers that are left open

(defun check-writer-stays-open (connection)
  "Checks that a request over CONNECTION is answered by one chunk, \"one\", and that its response
goes on after half a second."
  (send-request connection "/")
  (read-head connection)
  (is (equal "one" (chunk-text connection)))
  (is (not (readable-p connection 1/2))))

(define-server-test a-writer-that-was-used-elsewhere-stays-open
  (with-later (given :reply-timeout 1/10) (let ((writer (funcall responder '(200 ()))))
                                               (elsewhere writer "one")
                                               writer)
    (with-connection (connection)
      (check-writer-stays-open connection)
      (funcall (nth-given given) "two" :close t)
      (is (equal "two" (chunk-text connection)))
      (is (null (read-chunk connection))))))

(define-server-test without-a-timeout-a-writer-stays-open
  (with-later (given :reply-timeout nil) (let ((writer (funcall responder '(200 ()))))
                                              (funcall writer "one")
                                              writer)
    (with-connection (connection)
      (check-writer-stays-open connection)
      (funcall (nth-given given) nil :close t)
      (is (null (read-chunk connection))))))

(define-server-test a-writer-that-was-closed-in-time-leaves-no-timer
  (with-later (given) (funcall responder '(200 ()))
    (with-connection (connection)
      (send-request connection "/")
      (let ((writer (nth-given given)))
        ;; Where no connections are parked, the timer is set when the function has returned.
        (eventually ("the timer to be set") (= 1 (getf (server-figure :timers) :pending)))
        (funcall writer nil :close t))
      (read-response connection)
      (eventually ("the timer to be cancelled") (zerop (getf (server-figure :timers) :pending))))))

;;; Timers

(define-server-test a-timer-answers
  (with-later (given)
      (handler:run-after 1/50 (lambda () (funcall responder (text-response "in time"))))
    (with-connection (connection)
      (loop repeat 3 do (is (equal "in time" (exchange-text connection "/"))))
      (is (null (handler:cancel-timer (nth-given given)))))
    (let ((gate (make-gate "a timer")))
      (is-true (handler:cancel-timer (handler:run-after 60 #'identity :server *server*)))
      (handler:run-after 0 (lambda ()
                             (handler:run-after 0 (lambda () (open-gate gate))))
                         :server *server*)
      (await gate)
      (is-true (open-p gate)))))

(define-server-test timers-that-make-no-sense-are-refused
  (with-later (given) nil
    (signals handler:unfit-argument (handler:run-after -1 #'identity :server *server*))
    (signals handler:unfit-argument (handler:run-after (no-number) #'identity :server *server*))
    (signals handler:unfit-argument (handler:run-after 1 nil :server *server*))
    (signals handler:unfit-argument (handler:run-after 1 42 :server *server*))
    (signals handler:unfit-argument (handler:run-after 1 #'identity))
    (signals handler:unfit-argument (handler:run-after 1 #'identity :server 42))
    (signals handler:unfit-argument (handler:cancel-timer 42))
    (handler:stop *server*)
    (signals handler:unfit-argument (handler:run-after 1 #'identity :server *server*))))

(define-server-test the-example-answers-later
  (load (merge-pathnames "examples/clack-delayed.lisp" (source-root)))
  (with-clack (environment (uiop:symbol-call '#:recycling-clack-delayed '#:app environment))
    (unwind-protect
         (progn
           (is (search "<h1>Later" (ask-text "/")))
           (is (equal "Half a second later." (ask-text "/timer")))
           (is (search "21,171,191" (ask-text "/primes")))
           (is (cl-ppcre:scan "^data: 5\\n\\ndata: 4\\n\\n(?s:.*)data: over\\n\\n$"
                              (ask-text "/events")))
           (is (= 404 (response-status (ask "/nothing")))))
      (uiop:symbol-call '#:recycling-clack-delayed '#:stop-pool))))
