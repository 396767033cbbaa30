(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite clack/running :in clack
  :description "RUN: its arguments, start and stop.")

(in-suite clack/running)

(defun hello (environment)
  (declare (ignore environment))
  (text-response "Hello"))

(define-server-test destroying-the-thread-of-run-stops-the-server-and-frees-its-port
  (let ((*clack-log* (make-string-output-stream)))
    (multiple-value-bind (server task) (start-clack 'hello '())
      (let ((port (port-of server)))
        (with-connection (connection port)
          (is (equal "Hello" (exchange-text connection "/")))
          (bt:destroy-thread (task-thread task))
          (eventually ("the end of the thread")
            (not (bt:thread-alive-p (task-thread task))))
          (is-true (closed-by-server-p connection)))
        (multiple-value-bind (again task) (start-clack 'hello (list :port port))
          (is (= port (port-of again)))
          (is (eq again (handler:stop again)))
          (is (eq again (handler:stop again)))
          (is (eq again (task-result task))))))))

(define-server-test (a-thread-of-run-that-is-destroyed-twice-frees-its-port :needs :deferred-ends)
  (let ((*clack-log* (make-string-output-stream))
        (begun (make-gate "a request to begin"))
        (gate (make-gate "leave to answer")))
    (multiple-value-bind (server task)
        (start-clack (lambda (environment)
                       (declare (ignore environment))
                       (open-gate begun)
                       (await gate)
                       (text-response "x"))
                     '())
      (with-connection (connection (port-of server))
        (send-request connection "/")
        (await begun)
        (platform:destroy-thread (task-thread task))
        (eventually ("the stop to begin")
          (not (engine:serving-p (server:application-engine server))))
        (platform:destroy-thread (task-thread task))
        (open-gate gate)
        (platform:join-thread (task-thread task) *patience*))
      (multiple-value-bind (again task) (start-clack 'hello (list :port (port-of server)))
        (is (= (port-of server) (port-of again)))
        (handler:stop again)
        (task-result task)))))

(test every-documented-argument-is-known
  (is (equal '(":json" ":parallel-acceptor" ":parallel-ssl-acceptor" ":systemd" ":text"
               ":unlimited")
             (sort (keyword-names
                    (handler::unknown-options
                     (loop for name in (keywords-of-docstring 'handler:run)
                           collect (intern (string-upcase (subseq name 1)) :keyword)
                           collect nil)))
                   #'string<))))

(define-server-test no-connection-waits-for-the-handler-of-another
  (let ((gate (make-gate "leave to answer")))
    (with-clack (environment (progn (when (equal "/slow" (getf environment :path-info))
                                      (await gate))
                                    (text-response "x"))
                             :worker-num 2)
      (with-connections (connections 5)
        (dolist (connection connections)
          (send-request connection "/slow"))
        (is (equal "x" (ask-text "/fast")))
        (open-gate gate)
        (dolist (connection connections)
          (is (equal "x" (response-text (read-response connection)))))))))

(define-server-test without-parking-it-is-all-the-same
  (with-clack (environment (text-response (getf environment :request-uri)
                                          (decode (read-octets-of (getf environment :raw-body)
                                                                  100)))
                           :parking nil)
    (with-connection (connection)
      (is (equal "/a" (exchange-text connection "/a")))
      (is (equal "/bcontent" (exchange-text connection "/b" :method :post :content "content")))
      (is (equal "/cchunks"
                 (exchange-text connection "/c" :method :post :chunks '("chu" "nks")))))))

(define-server-test applications-write-where-run-was-called
  (with-clack (environment (progn (write-string "Told." *error-output*)
                                  (text-response "x")))
    (is (equal "x" (ask-text "/")))
    (is-true (await-log "Told."))))

(define-server-test a-server-tells-its-statistics
  (with-clack (environment (text-response "x"))
    (ask "/")
    (let ((statistics (handler:stats *server*)))
      (is (plusp (getf statistics :accepted)))
      (is (plusp (getf statistics :threads))))))

(define-server-test a-server-lists-its-connections-until-it-stops
  (let ((server nil))
    (with-clack (environment (text-response "x"))
      (setf server *server*)
      (with-connection (connection)
        (is (equal "x" (exchange-text connection "/")))
        (is-true (eventually ("the connection in the list")
                   (equal '(1)
                          (mapcar (lambda (plist) (getf plist :served))
                                  (handler:list-connections *server*)))))))
    (is (null (handler:list-connections server)))))

(define-server-test a-server-listens-on-a-path
  (if (platform:special-listeners-supported-p)
      (with-directory (directory)
        (let ((path (merge-pathnames "socket" directory)) (seen nil))
          (with-clack (environment (progn (setf seen environment)
                                          (text-response "x"))
                                   :listen path)
            (with-open-connection (connection (connect-to-path path))
              (is (equal "x" (exchange-text connection "/"))))
            (is (equal (format nil "unix:~A" (uiop:native-namestring path))
                       (server:place-of *server*)))
            (is (equal '("unix:" 0) (known seen :remote-addr :remote-port))))
          (is (null (probe-file path)))))
      (skip "On this Lisp there are no such listeners.")))

(define-server-test a-path-that-names-no-file-is-refused
  (if (platform:special-listeners-supported-p)
      (dolist (path (list "" (format nil "~Aab~Cc" (uiop:temporary-directory) (code-char 0))))
        (is (typep (nth-value 1 (ignore-errors (handler:run 'hello :listen path
                                                            :on-start #'handler:stop)))
                   'platform:listen-failed)))
      (skip "On this Lisp there are no such listeners.")))

(defclass telling-stream (trivial-gray-streams:fundamental-character-output-stream)
  ((server :initform nil :accessor told-server)
   (characters :initform '() :accessor told-characters :documentation "The last first."))
  (:documentation "Takes characters, and has its server tell something itself when the first
comes."))

(defmethod trivial-gray-streams:stream-write-char ((stream telling-stream) character)
  (let ((server (shiftf (told-server stream) nil)))
    (when server
      (engine:note server :error "within")))
  (push character (told-characters stream))
  character)

(defmethod trivial-gray-streams:stream-line-column ((stream telling-stream))
  0)

(define-server-test a-stream-for-errors-may-tell-of-some-itself
  (let* ((stream (make-instance 'telling-stream))
         (*error-output* stream)
         (server (handler::make-clack-server 'hello '())))
    (setf (told-server stream) server)
    (engine:note server :error "without")
    (let ((text (coerce (reverse (told-characters stream)) 'string)))
      (is (search "within" text))
      (is (search "without" text)))))

(define-server-test too-many-connections-are-answered-503
  (let ((gate (make-gate "leave to answer")) (begun (make-gate "a request to begin")))
    (with-clack (environment (progn (open-gate begun)
                                    (await gate)
                                    (text-response "x"))
                             :max-thread-count 1 :max-accept-count nil)
      (with-connection (first)
        (send-request first "/")
        (await begun)
        (is (= 503 (response-status (ask "/"))))
        (open-gate gate)
        (is (equal "x" (response-text (read-response first))))))))

(define-server-test the-example-answers
  (load (merge-pathnames "examples/clack.lisp" (source-root)))
  (with-clack (environment (uiop:symbol-call '#:recycling-clack-demo '#:app environment))
    (is (equal "Hello from localhost." (ask-text "/")))
    (is (equal (string (code-char #x3042))
               (ask-text "/echo" :method :post :content (string (code-char #x3042)))))
    (is (equal (format nil "three~%two~%one~%none") (ask-text "/count")))
    (is (search "recycling-clack-demo" (ask-text "/source")))
    (is (= 404 (response-status (ask "/nothing"))))))
