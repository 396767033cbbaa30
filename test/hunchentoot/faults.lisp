(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite acceptor-faults :in acceptors
  :description "What clients and handlers may do without harm to others.")

(in-suite acceptor-faults)

(defun still-serves-p ()
  (equal "Hey!" (ask-text "/yo")))

(defmacro surviving ((&rest routes) &body body)
  "Evaluates BODY with a server of two threads at most, of /yo and ROUTES; then the server
still serves."
  `(serving (:taskmaster (taskmaster :standby-thread-count 1 :max-thread-count 2))
       (("/yo" "Hey!") ,@routes)
     ,@body
     (loop repeat 4 do (is (still-serves-p)))))

(define-server-test (a-client-that-connects-and-hangs-up-harms-nobody :needs :our-engine)
  (surviving ()
    (loop repeat 20 do (disconnect (connect)))))

(define-server-test (a-client-that-resets-harms-nobody :needs :our-engine)
  (surviving ()
    (loop repeat 20
          do (let ((connection (connect)))
               (send connection "GET /yo HTTP/1.1")
               (reset connection)))))

(define-server-test (half-a-request-holds-up-nobody-else :needs :our-engine)
  (surviving ()
    (with-connection (connection)
      (send connection "GET /yo HTTP/1.1" :crlf "Host: loc")
      (is (still-serves-p))
      (send connection "alhost" :crlf :crlf)
      (is (equal "Hey!" (response-text (read-response connection)))))))

(define-server-test (a-handler-that-kills-its-thread-harms-only-its-client :needs :our-engine)
  (surviving (("/kill" (kill-this-thread) "not dead"))
    (loop repeat 3
          do (with-connection (connection)
               (send-request connection "/kill")
               (receive-rest connection)))))

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
  (surviving ()
    (let ((victims (remove-if-not (lambda (thread)
                                    (uiop:string-prefix-p "http-worker-"
                                                          (bt:thread-name thread)))
                                  (bt:all-threads))))
      (is (plusp (length victims)))
      (mapc #'bt:destroy-thread victims)
      (eventually ("the pool to be refilled")
        (and (= (length victims) (getf (recycling:stats *server*) :ended))
             (plusp (getf (recycling:stats *server*) :standby)))))))

(defun process-of (acceptor)
  "The thread that programs wait for when they wait for the end of ACCEPTOR."
  (hunchentoot::acceptor-process (hunchentoot::acceptor-taskmaster acceptor)))

(define-server-test (a-sentinel-destroyed-from-outside-has-a-successor :needs :our-engine)
  (serving (:taskmaster (taskmaster :standby-thread-count 2)) (("/yo" "Hey!"))
    (let ((sentinel (process-of *server*)))
      (platform:destroy-thread sentinel)
      (eventually ("the taskmaster to have another process")
        (ask-text "/yo")
        (not (eq sentinel (process-of *server*))))
      (is (bt:thread-alive-p (process-of *server*))))))

(define-server-test (stop-signals-nothing-when-the-sentinel-was-destroyed :needs :our-engine)
  (with-acceptor (acceptor)
    (platform:destroy-thread (process-of acceptor))
    (finishes (hunchentoot:stop acceptor))
    (is (not (hunchentoot:started-p acceptor)))))

;;; Around methods that programs have

(defclass wrapping-acceptor () ((wrapped :initform (make-recorder) :reader wrapped)))

(defmethod hunchentoot:accept-connections :around ((acceptor wrapping-acceptor))
  (record (wrapped acceptor) :worker)
  (call-next-method))

(define-server-test (methods-around-accept-connections-wrap-each-worker :needs :our-engine)
  (with-acceptor (acceptor :mixin 'wrapping-acceptor
                           :taskmaster (taskmaster :standby-thread-count 2))
    (eventually ("both workers to begin")
      (= 2 (recorded-count (wrapped acceptor))))
    (is (equal '(:worker :worker) (recorded (wrapped acceptor))))))

(defclass picky-taskmaster (recycling:recycling-taskmaster)
  ((seen :initform (make-recorder) :reader seen)))

(defmethod hunchentoot:handle-incoming-connection :around ((taskmaster picky-taskmaster) socket)
  (record (seen taskmaster) (usocket:get-peer-port socket))
  (when (oddp (recorded-count (seen taskmaster)))
    (call-next-method)))

(define-server-test (a-taskmaster-may-turn-connections-away :needs :our-engine)
  (serving (:taskmaster (make-instance 'picky-taskmaster)) (("/yo" "Hey!"))
    (is (equal "Hey!" (ask-text "/yo")))
    (with-connection (connection)
      (send-request connection "/yo")
      (is (closed-by-server-p connection)))
    (is (equal "Hey!" (ask-text "/yo")))))

(define-server-test (a-taskmaster-is-asked-once-for-a-connection :needs :our-engine)
  (let ((taskmaster (make-instance 'picky-taskmaster)))
    (serving (:taskmaster taskmaster) (("/yo" "Hey!"))
      (with-connection (connection)
        (loop repeat 3 do (is (equal "Hey!" (exchange-text connection "/yo")))))
      (is (= 1 (recorded-count (seen taskmaster)))))))

;;; Our taskmaster under a foreign acceptor, and a foreign taskmaster under ours

(define-server-test hunchentoots-acceptor-runs-on-our-taskmaster
  (let ((*acceptor-class* 'hunchentoot:easy-acceptor))
    (serving (:taskmaster (taskmaster :standby-thread-count 2)) (("/yo" "Hey!"))
      (with-connection (connection)
        (is (equal "Hey!" (exchange-text connection "/yo")))
        (is (equal "Hey!" (exchange-text connection "/yo"))))
      (is (equal "Hey!" (ask-text "/yo"))))))

(define-server-test (our-acceptor-runs-on-hunchentoots-taskmaster :needs :our-engine)
  (serving (:taskmaster (make-instance 'hunchentoot:one-thread-per-connection-taskmaster))
      (("/yo" "Hey!"))
    (with-connection (connection)
      (is (equal "Hey!" (exchange-text connection "/yo")))
      (is (equal "Hey!" (exchange-text connection "/yo"))))))

(define-server-test (our-taskmaster-keeps-the-timeouts-of-a-foreign-acceptor :needs :our-engine)
  (let ((*acceptor-class* 'hunchentoot:easy-acceptor))
    (with-growing-limit (seconds)
      (serving (:taskmaster (taskmaster) :read-timeout seconds :write-timeout seconds)
          (("/" "body"))
        (let ((*limit-began* (platform:microseconds)))
          (with-connections (connections 3)
            (destructuring-bind (silent half idle) connections
              (declare (ignorable silent))
              (is (string= "body" (promptly (send half "GET / HTTP/1.1")
                                            (exchange-text idle "/"))))
              (loop for connection in connections
                    do (is (closed-by-server-p connection))))))))))

(define-server-test (a-client-whose-address-cannot-be-asked-for-any-more-is-no-failure
                     :needs :our-engine)
  (serving () (("/yo" "Hey!"))
    (with-globals (((fdefinition 'platform:peer-name)
                    (lambda (socket)
                      (declare (ignore socket))
                      (error 'platform:peer-gone))))
      (with-connection (connection)
        (try-to-send connection (request-octets "/yo"))
        (is (closed-by-server-p connection))))
    (is (string= "Hey!" (ask-text "/yo")))
    (is (zerop (figure :failed)))))

(define-server-test (a-client-that-does-not-wait-for-its-refusal-is-no-failure :needs :our-http)
  (serving () (("/yo" "Hey!"))
    (with-globals (((fdefinition 'platform:send-octets) (constantly -32))) ; EPIPE
      (with-connection (connection)
        (send connection (format nil "No request~C~C~:*~:*~C~C" #\Return #\Newline))
        (is (closed-by-server-p connection))))
    (is (string= "Hey!" (ask-text "/yo")))
    (is (zerop (figure :failed)))))
