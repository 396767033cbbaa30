(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite acceptor-faults :in acceptors
  :description "What clients and handlers may do without harm to others.")

(in-suite acceptor-faults)

(defmacro surviving ((&rest routes) &body body)
  "Evaluates BODY with a server of two threads at most, of /yo and ROUTES; then the server
still serves."
  `(serving (:taskmaster (taskmaster :standby-thread-count 1 :max-thread-count 2))
       (("/yo" "Hey!") ,@routes)
     ,@body
     (loop repeat 4 do (is (equal "Hey!" (ask-text "/yo"))))))

(define-server-test (a-handler-that-kills-its-thread-harms-only-its-client :needs :our-engine)
  (surviving (("/kill" (kill-this-thread) "not dead")
              ("/left" (recycling:defer-reply (left :on-abandon 'kill-this-thread)
                         (recycling:write-outgoing (recycling:start-stream left) *large-answer*))))
    (loop repeat 3
          do (with-connection (connection)
               (send-request connection "/kill")
               (receive-rest connection)))
    (unless (unmet-need :noticed-leaving)
      (with-connection (connection)
        (send-request connection "/left")
        (read-head connection)
        (reset connection))
      (eventually ("its connection to end") (zerop (figure :open))))))

(define-server-test (a-handler-that-throws-harms-only-its-client :needs :our-engine)
  (surviving (("/throw" (throw 'nowhere 1)))
    (is (= 500 (response-status (ask "/throw"))))))

(define-server-test (a-handler-that-signals-harms-only-its-client :needs :our-engine)
  (surviving (("/error" (error "Broken.")))
    (is (= 500 (response-status (ask "/error"))))))

(define-server-test (a-handler-that-exhausts-the-stack-is-answered :needs :our-http)
  ;; Signalled and not done: threads of SBCL that take over the stack of one that has done so may
  ;; end the process.
  (surviving (("/" (error 'storage-condition))
              ("/later" (recycling:defer-reply (reply)
                          (recycling:complete-reply reply (lambda () (error 'storage-condition))))))
    (is (= 500 (response-status (ask "/"))))
    (is (= 500 (response-status (ask "/later"))))))

(define-server-test (destroyed-threads-are-replaced :needs (:our-engine :destroyed-accepts))
  (let ((entered (make-gate)) (never (make-gate)))
    (surviving (("/hang" (open-gate entered) (await never)))
      (with-connection (connection)
        (send-request connection "/hang")
        (await entered)
        (is (equal "Hey!" (ask-text "/yo")) "Another thread has begun.")
        (let ((victims (remove-if-not (lambda (thread)
                                        (uiop:string-prefix-p "http-worker-"
                                                              (bt:thread-name thread)))
                                      (bt:all-threads))))
          (mapc #'bt:destroy-thread victims)
          (is (closed-by-server-p connection))
          (eventually ("the pool to be refilled")
            (and (<= (length victims) (figure :ended))
                 (plusp (figure :standby)))))))))

(define-server-test (threads-that-fail-at-rest-are-told-of-and-replaced :needs :parking)
  (let ((log (make-string-output-stream)))
    (serving (:message-log-destination log) (("/yo" "Hey!")) ; with eight threads
      (loop for (name words) in '(("http-worker-" "A thread ends, and is replaced: On purpose.")
                                  ("hunchentoot-listener-" "The sentinel failed: On purpose."))
            do (dolist (thread (bt:all-threads))
                 (when (uiop:string-prefix-p name (string (bt:thread-name thread)))
                   (bt:interrupt-thread thread #'error "On purpose.")))
               (eventually ("it to be told") (search words (taken-from-log log)))
               (eventually ("another one to be made") (< 8 (figure :made))))
      (is (< 1 (figure :failed)))
      (eventually ("connections to be kept again")
        (not (equal "close" (connection-header (ask "/yo"))))))))

(defclass failing-at-first () ())

(defmethod hunchentoot:initialize-connection-stream ((acceptor failing-at-first) stream)
  (error "It is no good."))

(define-server-test (an-error-outside-of-handlers-ends-its-connection-and-is-counted
                     :needs :our-engine)
  (flet ((check ()
           (let ((log (make-string-output-stream)))
             (serving (:mixin 'failing-at-first :message-log-destination log) (("/" "body"))
               (is (equalp #() (ask-raw (request-octets "/"))))
               (eventually ("the failure to be counted") (= 1 (figure :failed)))
               (eventually ("it to be told")
                 (search "[ERROR]] Serving a connection failed: It is no good."
                         (taken-from-log log)))))))
    (check)
    (unless (unmet-need :tls-client)
      (over-tls (check)))))

;;; No descriptors

(defun limit-descriptors (program count)
  "Lets PROGRAM have COUNT descriptors from now on."
  (uiop:run-program (list "prlimit" (format nil "--nofile=~D:4000" count)
                          "--pid" (program-number program))))

(define-server-test (without-descriptors-those-that-idle-or-read-nothing-give-way :needs :parking)
  (dolist (target '("/yo" "/large"))
    (with-serving-program (program (page-form "/yo" "\"Hey!\"")
                                   (page-form "/large" "(hunchentoot:handle-static-file
                                                         sb-ext:*core-pathname*)")
                                   (signalled-acceptor ":idle-timeout 600 :write-timeout 600"))
      (with-connections (others 25)
        (dolist (connection others)
          (send-request connection target)
          (is (= 200 (response-status (read-head connection)))))
        ;; It has more descriptors now than it may.
        (limit-descriptors program 20)
        (with-connections (connections 25)
          (dolist (connection connections)
            (send-request connection "/yo"))
          (dolist (connection connections)
            (is (equal "Hey!" (response-text (read-response connection))))))
        (await-printed program "Too many open files")))))

(define-server-test (without-descriptors-connections-that-keep-threads-give-way :needs :parking)
  (with-serving-program (program (page-form "/yo" "\"Hey!\"")
                                 (signalled-acceptor
                                  ":idle-timeout 600 :taskmaster
                                   (make-instance
                                    'hunchentoot-recycling-taskmaster:recycling-taskmaster
                                    :parking nil)"))
    (with-connections (others 25)
      (dolist (connection others)
        (is (equal "Hey!" (exchange-text connection "/yo"))))
      (limit-descriptors program 20)
      (loop repeat 3 do (is (equal "Hey!" (ask-text "/yo")))))))

(define-server-test (who-finds-no-descriptor-waits-for-one :needs :parking)
  (dolist (parking '("t" "nil"))
    (with-serving-program (program (page-form "/yo" "\"Hey!\"")
                                   (signalled-acceptor (format nil ":parking ~A" parking)))
      (is (equal "Hey!" (ask-text "/yo")))
      (limit-descriptors program 3)
      (with-connection (waiting)
        (send-request waiting "/yo")
        (await-printed program "Too many open files")
        (limit-descriptors program 4000)
        (let ((response (read-response waiting)))
          (is (equal "Hey!" (response-text response)))
          (is (equalp "close" (response-header response "connection")))))
      (eventually ("connections to be kept again")
        (not (equal "close" (connection-header (ask "/yo"))))))))

(define-server-test (those-that-have-idled-longest-give-way-first :needs :parking)
  (with-serving-program (program (page-form "/yo" "\"Hey!\"")
                                 (page-form "/large" "(make-string 9000000 :initial-element #\\x)")
                                 (signalled-acceptor ":read-timeout 600 :write-timeout 600"))
    (flet ((yo-p (connection)
             (equal "Hey!" (ignore-errors (exchange-text connection "/yo")))))
      (with-connections (connections 22)
        (destructuring-bind (half large . idle) connections
          (send half (post-head "/yo" "Content-Length: 2") "a")
          (send-request large "/large")
          (read-head large)
          (dolist (connection (append idle (list (first idle))))
            (is (loop repeat 50 always (yo-p connection)) "The clock goes on meanwhile."))
          ;; It has all descriptors now that it may.
          (limit-descriptors program (length (uiop:run-program
                                              (list "ls" (format nil "/proc/~A/fd"
                                                                 (program-number program)))
                                              :output :lines)))
          (with-connections (others 5)
            (is (every #'yo-p others))
            ;; Once the others have their last replies, they give way to each other.
            (destructuring-bind (used . unused) (mapcar #'yo-p (subseq idle 0 6))
              (is-true used)
              (is (not (first unused)))
              (is (every #'identity (member t unused)) "~S" unused))
            (is (yo-p (first (last idle))))
            (send half "b")
            (is (equal "Hey!" (response-text (read-response half))))
            (is (= 9000000 (length (receive-many large 9000000))))))))))

;;; Methods that programs have

(defclass wrapping-acceptor () ((wrapped :initform (make-recorder) :reader wrapped)))

(defmethod hunchentoot:accept-connections :around ((acceptor wrapping-acceptor))
  (record (wrapped acceptor) :worker)
  (call-next-method))

(define-server-test (methods-around-accept-connections-wrap-each-worker :needs :our-engine)
  (with-acceptor (acceptor :mixin 'wrapping-acceptor
                           :taskmaster (taskmaster :standby-thread-count 2))
    (eventually ("both workers to begin")
      (= 2 (recorded-count (wrapped acceptor))))))

(defclass picky-taskmaster (recycling:recycling-taskmaster)
  ((seen :initform (make-recorder) :reader seen)))

(defmethod hunchentoot:handle-incoming-connection :around ((taskmaster picky-taskmaster) socket)
  (record (seen taskmaster) (usocket:get-peer-port socket))
  (when (oddp (recorded-count (seen taskmaster)))
    (call-next-method)))

(define-server-test (a-taskmaster-is-asked-once-for-a-connection-and-may-turn-it-away
                     :needs :our-engine)
  (let ((taskmaster (make-instance 'picky-taskmaster)))
    (serving (:taskmaster taskmaster) (("/yo" "Hey!"))
      (with-connection (connection)
        (loop repeat 3 do (is (equal "Hey!" (exchange-text connection "/yo")))))
      (is (= 1 (recorded-count (seen taskmaster))))
      (with-connection (connection)
        (send-request connection "/yo")
        (is (closed-by-server-p connection)))
      (is (equal "Hey!" (ask-text "/yo"))))))

(defclass reading-at-first () ())

(defmethod hunchentoot:initialize-connection-stream :before ((acceptor reading-at-first) stream)
  (loop until (eql 10 (read-byte stream))))

(define-server-test (a-method-that-makes-the-stream-has-the-time-of-a-handshake :needs :our-http)
  (serving (:mixin 'reading-at-first :handshake-timeout 1/2 :read-timeout 60) (("/yo" "Hey!"))
    (with-connection (connection)
      (send connection "Half a line")
      (is-true (closed-by-server-p connection))
      (eventually ("its end to be counted") (= 1 (getf (figure :expired-by) :handshake))))))

(define-server-test (a-method-that-reads-first-waits-for-a-limited-time :needs :our-http)
  (with-growing-limit (seconds)
    (serving (:mixin 'looking-within :idle-timeout seconds :read-timeout 60) (("/yo" "Hey!"))
      (with-prompt-connection (connection)
        (is (equal "Hey!" (promptly (exchange-text connection "/yo"))))
        (is-true (closed-by-server-p connection))))))

(define-server-test (where-a-method-reads-first-clients-may-take-their-time :needs :our-engine)
  (serving (:mixin 'looking-within) (("/large" *large-answer*) ("/yo" "Hey!"))
    (with-open-connection (connection (small-connection))
      (send-request connection "/large")
      (is-true (large-reply-p connection))
      (send connection (request-octets "/large") (post-head "/yo" "Content-Length: 2"))
      (is-true (large-reply-p connection))
      (send connection "ab")
      (is (equal "Hey!" (response-text (read-response connection)))))))
