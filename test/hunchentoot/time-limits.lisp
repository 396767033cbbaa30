(in-package #:hunchentoot-recycling-taskmaster-test)

;;;; The limits of time and connections in docs/guide/limits.md, with acceptors and with
;;;; servers of Clack.

(def-suite* time-limits :in acceptors
  :description "Limits on time and on connections that each mean one thing.")

(defmacro with-each-server ((arguments &key threads) form &body body)
  "Evaluates BODY with *SERVER* bound to an acceptor, and then to a server of Clack, made with the
list of forms ARGUMENTS and with at most THREADS threads, NIL for the default.  They answer /next by
\"next\", and all else by the text that is the value of FORM."
  `(progn
     (serving (,@(when threads
                   `(:taskmaster (taskmaster :standby-thread-count 1 :max-thread-count ,threads)))
               ,@arguments)
         (("/next" "next")
          ("/" ,form))
       ,@body)
     (with-clack (environment (if (equal "/next" (getf environment :path-info))
                                  (text-response "next")
                                  (text-response ,form))
                              ,@(when threads `(:worker-num 1 :max-thread-count ,threads))
                              ,@arguments)
       ,@body)))

(defun ended-by (kind)
  (getf (figure :expired-by) kind))

(defun await-ended-by (kind)
  "Waits until a connection was ended for KIND, and checks that it was only one."
  (eventually ("the end of a connection to be counted") (plusp (ended-by kind)))
  (is (= 1 (ended-by kind))))

(defun await-next ()
  "Waits until a request to /next is answered as it should be."
  (is-true (eventually ("the next request to be served")
             (equal "next" (ignore-errors (ask-text "/next"))))))

;;; A client

(define-server-test (a-handshake-has-a-limit-of-its-own :needs (:parking :tls-client))
  (over-tls
    (with-growing-limit (seconds)
      (serving (:handshake-timeout seconds :read-timeout 60) (("/" "Hey!"))
        (let ((*make-connection* '%make-connection))
          (with-connection (connection)
            (send connection (as-octets '(22 3 1)))
            (is (closed-by-server-p connection))
            (await-ended-by :handshake)))
        (is (string= "Hey!" (promptly (ask-text "/"))))))))

(define-server-test (a-head-has-a-limit-of-its-own :needs :our-http)
  (with-each-server ((:head-timeout 1/2 :read-timeout 60)) "Hey!"
    (with-connection (connection)
      (send connection "GET / HT")
      (is (= 408 (response-status (read-response connection))))
      (is (closed-by-server-p connection))
      (await-ended-by :head))))

(define-server-test (a-connection-that-idles-has-a-limit-of-its-own :needs :our-http)
  (with-growing-limit (seconds)
    (with-each-server ((:idle-timeout seconds :read-timeout 60)) "Hey!"
      (with-prompt-connection (connection)
        (is (string= "Hey!" (promptly (exchange-text connection "/"))))
        (is (closed-by-server-p connection)))
      (with-connection (connection)
        (is (closed-by-server-p connection))))))

(define-server-test (a-client-that-sends-nothing-more-has-the-read-timeout :needs :our-http)
  (with-growing-limit (seconds)
    (with-each-server ((:read-timeout seconds))
        "Hey!"
      (loop for (octets status) in `((,(octets "GET / HT") 408) (,(octets) nil))
            do (with-prompt-connection (connection)
                 (is (string= "Hey!" (promptly (prog1 (exchange-text connection "/")
                                                 (send connection octets)))))
                 (when status
                   (is (= status (response-status (read-response connection)))))
                 (is (closed-by-server-p connection)))))))

(define-server-test (content-has-the-read-timeout-and-no-other :needs :our-content)
  (serving (:read-timeout 1/2 :head-timeout 60 :idle-timeout 60)
      (("/" (shown (hunchentoot:raw-post-data :force-text t))))
    (with-connection (connection)
      (send connection (post-head "/" "Content-Length: 3") "a")
      (is (= 408 (response-status (read-response connection))))
      (is (closed-by-server-p connection)))))

(define-server-test (a-client-that-takes-nothing-has-the-write-timeout :needs :our-http)
  (with-each-server ((:write-timeout 1/2 :read-timeout 60 :min-reply-rate nil))
      (make-string 20000000 :initial-element #\a)
    (with-connection (connection)
      (send-request connection "/")
      (eventually ("the client to be given up") (zerop (figure :open))))))

(define-server-test (a-soft-stop-has-a-limit-of-its-own :needs :our-http)
  (let ((gate nil))
    (with-each-server (()) (progn (await gate) "Hey!")
      (setf gate (make-gate))
      (with-connection (connection)
        (send-request connection "/")
        (eventually ("the handler to begin") (= 1 (figure :busy)))
        (multiple-value-bind (server left)
            (if (typep *server* 'hunchentoot:acceptor)
                (hunchentoot:stop *server* :soft t :timeout 1/2)
                (handler:stop *server* :soft t :timeout 1/2))
          (declare (ignore server))
          (is (plusp (length left))))
        (open-gate gate)
        (is (string= "Hey!" (response-text (read-response connection))))))))

;;; Connections

(define-server-test (a-connection-ends-with-the-last-request-that-it-may-serve :needs :our-http)
  (with-each-server ((:max-connection-requests 2)) "Hey!"
    (loop repeat 2
          do (with-connection (connection)
               (is (null (response-header (exchange connection "/") "connection")))
               (is (string-equal "close"
                                 (response-header (exchange connection "/") "connection")))
               (is (closed-by-server-p connection))))))

;;; Connections of one address

(defun check-refused (connection)
  "Checks that CONNECTION, over which no request was sent, is answered 503 and closed."
  (let ((response (read-response connection)))
    (is (= 503 (response-status response)))
    (is (string= "1" (response-header response "retry-after"))))
  (is (closed-by-server-p connection)))

(defun refused-for-address ()
  (getf (figure :refused-by) :address))

(defun admitted ()
  "A connection over which a request was served; opened as soon as the server lets one in."
  (eventually ("a connection to be let in")
    (let ((connection (handler-case (connect) ; a handshake, perhaps
                        (error () nil))))
      (cond ((null connection) nil)
            ((equal "next" (handler-case (exchange-text connection "/next")
                             (error () nil)))
             connection)
            (t
             (disconnect connection)
             nil)))))

(defmacro with-admitted ((connection) &body body)
  "Evaluates BODY with CONNECTION bound to the value of ADMITTED."
  `(with-open-connection (,connection (admitted)) ,@body))

(define-server-test (an-address-has-no-more-connections-than-it-may :needs :our-engine)
  (with-each-server ((:max-address-connections 2 :defer-accept nil)) "Hey!"
    (with-admitted (first)
      (with-admitted (second)
        (loop for count from (1+ (refused-for-address))
              repeat 2
              do (with-connection (third)
                   (check-refused third)
                   (eventually ("the refusal to be counted") (= count (refused-for-address)))))
        (is (string= "Hey!" (exchange-text second "/"))))
      (with-admitted (another)
        (is (string= "Hey!" (exchange-text first "/")))
        (is (string= "Hey!" (exchange-text another "/")))))))

(define-server-test (a-connection-counts-for-its-address-until-it-ends :needs :our-engine)
  (with-each-server ((:max-address-connections 1 :defer-accept nil
                      :read-timeout 1/2 :idle-timeout 60))
      (error "Broken.")
    (dolist (end (list #'disconnect
                       (lambda (connection)
                         (exchange connection "/next" :headers '(("Connection" . "close"))))
                       (lambda (connection)
                         (send-request connection "/")
                         (disconnect connection))
                       (lambda (connection)
                         (send connection "no HTTP" :crlf :crlf))
                       (lambda (connection)
                         (send connection "GET / HT")))) ; the sentinel ends it
      (with-admitted (connection)
        (with-connection (refused)
          (check-refused refused))
        (funcall end connection)
        (with-admitted (next)
          (with-connection (refused)
            (check-refused refused)))))))

(define-server-test (a-connection-that-a-program-has-detached-counts-no-more :needs :our-http)
  (let ((stream nil))
    (serving (:max-address-connections 1 :defer-accept nil)
        (("/next" "next")
         ("/take" (hunchentoot:detach-socket hunchentoot:*acceptor*)
                  (setf stream hunchentoot::*hunchentoot-stream*)
                  "taken"))
      (with-admitted (connection)
        (is (string= "taken" (exchange-text connection "/take")))
        (with-admitted (next)
          (with-connection (refused)
            (check-refused refused)))
        (close stream)
        (is (closed-by-server-p connection))))))

(define-server-test (a-failed-handshake-counts-no-more :needs (:our-engine :tls-client))
  (over-tls
    (serving (:max-address-connections 1 :defer-accept nil) (("/next" "next"))
      (let ((*make-connection* '%make-connection))
        (with-connection (connection)
          (send connection (as-octets '(22 9 9 0 1 0)))
          (receive-rest connection)))
      (with-admitted (connection)       ; perhaps refused at first
        (let ((*make-connection* '%make-connection)
              (before (refused-for-address)))
          (with-connection (refused)
            (is (closed-by-server-p refused)))
          (eventually ("the refusal to be counted") (< before (refused-for-address))))))))

(define-server-test (a-trusted-proxy-has-as-many-connections-as-it-opens :needs :our-engine)
  (with-each-server ((:max-address-connections 1 :trusted-proxies '("127.0.0.0/8"))) "Hey!"
    (with-connections (connections 3)
      (dolist (connection connections)
        (is (string= "Hey!" (exchange-text connection "/"
                                           :headers '(("X-Forwarded-For" . "192.0.2.1")))))))
    (is (zerop (refused-for-address)))))

(defun proxied (address)
  "A connection that begins with a PROXY header, which tells that the client has ADDRESS."
  (let ((connection (connect)))
    (send connection
          (format nil "PROXY TCP~D ~A ~:*~A 1 2" (if (find #\: address) 6 4) address) :crlf)
    connection))

(define-server-test (with-the-proxy-protocol-connections-count-for-their-clients :needs :our-engine)
  (with-each-server ((:max-address-connections 1
                      :proxy-protocol t :trusted-proxies '("127.0.0.1" "10.0.0.1")))
      "Hey!"
    (let ((served '()))
      (unwind-protect
           (progn
             (dolist (address '("192.0.2.1" "192.0.2.2" "2001:db8::1" "2001:db8:0:1::1"
                                "10.0.0.1" "10.0.0.1"))
               (push (proxied address) served)
               (is (string= "Hey!" (exchange-text (first served) "/"))))
             ;; The same in other words, and in the same network of 64 bits
             (dolist (address '("192.0.2.1" "::ffff:192.0.2.2" "2001:db8::ffff:1"))
               (with-open-connection (refused (proxied address))
                 (check-refused refused)))
             (eventually ("the refusals to be counted") (= 3 (refused-for-address))))
        (mapc #'disconnect served))
      (eventually ("a client to be let in again")
        (with-open-connection (connection (proxied "192.0.2.1"))
          (equal "Hey!" (handler-case (exchange-text connection "/")
                          (error () nil))))))))

(define-server-test (connections-to-a-path-count-for-no-address :needs :systemd)
  (with-directory (directory)
    (let ((path (merge-pathnames "socket" directory)))
      (with-routes (("/next" "next"))
        (let ((acceptor (make-instance *acceptor-class* :listen-path path :max-address-connections 1
                                                        :access-log-destination nil
                                                        :message-log-destination nil)))
          (hunchentoot:start acceptor)
          (unwind-protect
               (with-open-connection (first (connect-to-path path))
                 (is (string= "next" (exchange-text first "/next")))
                 (with-open-connection (second (connect-to-path path))
                   (is (string= "next" (exchange-text second "/next")))))
            (stop-if-started acceptor)))))))

(define-server-test (the-limit-of-an-address-can-be-changed-for-new-connections :needs :our-engine)
  (serving (:defer-accept nil) (("/next" "next"))
    (with-admitted (first)
      (reinitialize-instance *server* :max-address-connections 1)
      (with-admitted (second)
        (with-connection (refused)
          (check-refused refused)))
      (is (string= "next" (exchange-text first "/next")))
      (reinitialize-instance *server* :max-address-connections nil)
      (with-admitted (second)
        (with-admitted (third)
          (is (string= "next" (exchange-text second "/next"))))))))

;;; A handler

(define-server-test (a-handler-beyond-its-limit-is-answered-503-in-its-place :needs :our-http)
  (let ((gate nil) (seen nil))
    (with-each-server ((:handler-timeout 1/2) :threads 1)
        (progn (await gate (* 3 *patience*))
               (push (recycling:request-timed-out-p) seen)
               "too late")
      (setf gate (make-gate)
            seen '())
      (with-connection (connection)
        (send-request connection "/")
        (let ((response (read-response connection)))
          (is (= 503 (response-status response)))
          (is (string-equal "close" (response-header response "connection"))))
        (is (closed-by-server-p connection) "The handler runs on, but our side has ended.")
        (is (null seen))
        (is (= 1 (ended-by :handler)))
        (open-gate gate)
        (eventually ("the handler to end") seen))
      (is (equal '(t) seen))
      (is (= 1 (ended-by :handler)))
      (await-next))))

(define-server-test (a-handler-within-its-limit-is-not-disturbed :needs :our-http)
  (let ((seen '()))
    (with-each-server ((:handler-timeout 60))
        (progn (push (recycling:request-timed-out-p) seen)
               (recycling:call-when-timed-out (lambda () (push :called seen)))
               "in time")
      (with-connection (connection)
        (loop repeat 3
              do (is (string= "in time" (exchange-text connection "/")))))
      (is (zerop (ended-by :handler))))
    (is (equal '(nil nil nil nil nil nil) seen))))

(define-server-test (a-late-handler-is-told-by-a-function-that-may-free-it :needs :our-http)
  (with-each-server ((:handler-timeout 1/2) :threads 1)
      (let ((gate (make-gate)))
        (recycling:call-when-timed-out (lambda () (open-gate gate)))
        (await gate)
        ;; It has passed: called at once.
        (let ((called-p nil))
          (recycling:call-when-timed-out (lambda () (setf called-p t)))
          (is-true called-p))
        "too late")
    (is (= 503 (response-status (ask "/"))))
    (await-next)))

(define-server-test (a-function-that-fails-for-a-late-handler-harms-nothing :needs :our-http)
  (let ((gate nil))
    (with-each-server ((:handler-timeout 1/2))
        (progn (recycling:call-when-timed-out (lambda () (error "On purpose.")))
               (await gate)
               "too late")
      (setf gate (make-gate))
      (is (= 503 (response-status (ask "/"))))
      (open-gate gate)
      (await-next))))

(define-server-test (a-late-answer-to-head-has-no-content :needs :our-http)
  (let ((gate nil))
    (with-each-server ((:handler-timeout 1/2))
        (progn (await gate)
               "too late")
      (setf gate (make-gate))
      (with-connection (connection)
        (send-request connection "/" :method :head)
        (is (= 503 (response-status (read-response connection :head t))))
        (is (closed-by-server-p connection))
        (open-gate gate)))))

(define-server-test (a-handler-that-fails-late-has-no-second-reply :needs :our-http)
  (let ((gate nil))
    (with-each-server ((:handler-timeout 1/2))
        (progn (await gate)
               (error "Too late, on purpose."))
      (setf gate (make-gate))
      (with-connection (connection)
        (send-request connection "/")
        (is (= 503 (response-status (read-response connection))))
        (open-gate gate)
        (is (closed-by-server-p connection)))
      (await-next))))

(defmacro with-begun-response ((connection gate) &body body)
  "Evaluates BODY with CONNECTION bound to a new connection over which a response has begun, in
time, whose handler waits for GATE."
  `(with-connection (,connection)
     (send-request ,connection "/")
     (unwind-protect (progn (promptly (read-head ,connection)
                                      (next-octet ,connection))
                            ,@body)
       (open-gate ,gate))))

(define-server-test (a-streamed-reply-beyond-the-limit-is-cut :needs :our-http)
  (with-growing-limit (seconds)
    (let ((gate (make-gate)))
      (serving (:handler-timeout seconds)
          (("/" (let ((stream (hunchentoot:send-headers)))
                  (write-sequence (test-octets 10) stream)
                  (finish-output stream)
                  (await gate (* 3 *patience*))
                  (write-sequence (test-octets 10) stream)))
           ("/next" "next"))
        (with-begun-response (connection gate)
          (let ((octets (receive-rest connection)))
            (is-true (search (test-octets 10) octets))
            (is-false (search (format nil "0~C~C" #\Return #\Newline) (decode octets)
                              :start2 (- (length octets) 5))))
          (is (= 1 (ended-by :handler))))
        (await-next)
        (eventually ("the handler to end") (zerop (figure :busy)))
        (is (zerop (figure :failed)))))))

(define-server-test (a-written-response-beyond-the-limit-is-cut :needs :our-http)
  (with-growing-limit (seconds)
    (let ((gate (make-gate)))
      (with-clack (environment (lambda (responder)
                                 (let ((writer (funcall responder '(200 ()))))
                                   (funcall writer "begun")
                                   (await gate (* 3 *patience*))
                                   (ignore-errors (funcall writer "more"))
                                   (ignore-errors (funcall writer nil :close t))))
                               :handler-timeout seconds)
        (with-begun-response (connection gate)
          (is-true (search "begun" (decode (receive-rest connection))))
          (is (= 1 (ended-by :handler))))))))

(defun await-timeout ()
  "Waits in a handler until that is late."
  (let ((gate (make-gate)))
    (recycling:call-when-timed-out (lambda () (open-gate gate)))
    (await gate (* 4 *patience*))
    "too late"))

(defmacro serving-beside-late-handlers (routes &body body)
  "Evaluates BODY while an acceptor serves ROUTES, and one for LET-LIMIT-PASS; again where it was
late."
  `(with-growing-limit (seconds)
     (serving (:handler-timeout seconds :max-early-octets 0)
         (("/late" (await-timeout))
          ,@routes)
       ,@body)))

(defun let-limit-pass ()
  "Returns when each handler that runs has run for longer than it may."
  (is (= 503 (response-status (ask "/late")))))

(defun text-in-time (connection)
  "The text of the next response over CONNECTION.  Ends the try where that is 503: then the handler
was late before it waited for something else."
  (let ((response (read-response connection)))
    (when (= 503 (response-status response))
      (come-too-late))
    (response-text response)))

(define-server-test (a-handler-that-waits-for-content-is-not-late :needs :our-content)
  (let ((begun-p nil))
    (serving-beside-late-handlers (("/" (setf begun-p t)
                                        (shown (hunchentoot:raw-post-data :force-text t))))
      (setf begun-p nil)
      (with-connection (connection)
        (send connection (post-head "/" "Content-Length: 3") "a")
        (eventually ("the handler to begin") begun-p)
        (let-limit-pass)
        (try-to-send connection "bc")
        (is (string= (shown "abc") (text-in-time connection)))))))

(define-server-test (a-deferred-reply-has-a-limit-of-its-own :needs :our-http)
  (let ((reply nil))
    (serving-beside-late-handlers (("/" (recycling:defer-reply (deferred) (setf reply deferred))))
      (setf reply nil)
      (with-connection (connection)
        (send-request connection "/")
        (eventually ("the reply to be deferred") reply)
        (let-limit-pass)
        (recycling:complete-reply reply "later")
        (is (string= "later" (text-in-time connection)))))))

(define-server-test (a-deferred-reply-of-a-late-handler-is-dropped :needs :our-http)
  (let ((gate (make-gate)) (reply nil))
    (serving (:handler-timeout 1/2 :reply-timeout 60)
        (("/" (recycling:defer-reply (deferred)
                (setf reply deferred)
                (await gate))))
      (with-connection (connection)
        (send-request connection "/")
        (is (= 503 (response-status (read-response connection))))
        (open-gate gate)
        (is (closed-by-server-p connection))
        (eventually ("the reply to be withdrawn")
          (and reply (recycling:reply-abandoned-p reply)))
        (is (null (recycling:complete-reply reply "later")))))))

(define-server-test (a-late-handler-is-answered-for-over-tls :needs (:our-http :tls-client))
  (let ((gate (make-gate)))
    (over-tls
      (serving (:handler-timeout 1/2)
          (("/" (await gate) "too late"))
        (with-connection (connection)
          (send-request connection "/")
          (is (= 503 (response-status (read-response connection))))
          (open-gate gate))))))

;;; A request that waits for a thread

(defmacro with-late-request ((arguments gate served connection) &body body)
  "Evaluates BODY with each server, made with ARGUMENTS, when a request over CONNECTION has waited
for longer than a second, and than *LIMIT*, for its one thread, which waits for GATE.  SERVED is the
number of calls of the handler."
  `(let ((,gate nil) (,served 0))
     (with-each-server (,arguments :threads 1)
         (progn (incf ,served)
                (await ,gate (* 4 *patience*))
                "Hey!")
       (setf ,gate (make-gate)
             ,served 0)
       (unwind-protect
            (with-connection (holder)
              (send-request holder "/")
              (eventually ("the thread to be held, or an answer in its place")
                (or (= 1 ,served) (readable-p holder)))
              (unless (= 1 ,served)
                (come-too-late))
              (with-connection (,connection)
                (send-request ,connection "/")
                (poll (constantly nil) (+ *limit* 9/10))
                ,@body))
         (open-gate ,gate)))))

(define-server-test (a-request-that-waits-too-long-for-a-thread-is-answered-503
                     :needs (:our-http :noticed-leaving))
  (with-growing-limit (seconds)
    (with-late-request ((:queue-timeout seconds) gate served late)
      (open-gate gate)
      (is (string= "Hey!" (response-text (read-response holder))))
      (let ((response (read-response late)))
        (when (= 200 (response-status response))
          (come-too-late))              ; the sentinel, which learns how long requests wait
        (is (= 503 (response-status response)))
        (is (string= "1" (response-header response "retry-after"))))
      (is (closed-by-server-p late))
      (is (= 1 served))
      (await-ended-by :queue)
      (await-next))))

(define-server-test (a-request-waits-for-a-thread-without-a-limit-by-default :needs :our-http)
  (with-growing-limit (seconds)
    (with-late-request (() gate served late)
      (open-gate gate)
      (is (string= "Hey!" (response-text (read-response holder))))
      (disconnect holder)               ; without parking it has the thread
      (is (string= "Hey!" (response-text (read-response late))))
      (is (= 2 served))
      (is (zerop (ended-by :queue))))))

(define-server-test (a-request-whose-client-left-while-it-waited-is-not-served
                     :needs (:our-http :noticed-leaving))
  (with-growing-limit (seconds)
    (with-late-request (() gate served left)
      (disconnect left)
      (open-gate gate)
      (is (string= "Hey!" (response-text (read-response holder))))
      (eventually ("the request to be dropped, or served")
        (or (= 2 served) (plusp (ended-by :left))))
      (when (= 2 served)
        (come-too-late))                ; the sentinel, likewise
      (await-ended-by :left)
      (await-next)
      (is (= 1 served)))))
