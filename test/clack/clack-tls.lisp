(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite clack/tls :in clack
  :description "Clack applications over TLS.")

(in-suite clack/tls)

(defmacro with-clack-over-tls ((environment response &rest arguments) &body body)
  "Like WITH-CLACK, over TLS."
  `(with-directory (directory)
     (multiple-value-bind (key certificate) (make-certificate directory)
       (let ((*make-connection* 'encrypted))
         (with-clack (,environment ,response :ssl-key-file key :ssl-cert-file certificate
                                   ,@arguments)
           ,@body)))))

(define-server-test (requests-over-tls-are-told-as-such :needs :tls-client)
  (let ((seen nil))
    (with-clack-over-tls (environment (progn (setf seen environment)
                                             (text-response "secret"))
                                      :ssl t)
      (with-connection (connection)
        (loop repeat 2 do (is (equal "secret" (exchange-text connection "/"))))))
    (is (equal '("https" "localhost" 443) (known seen :url-scheme :server-name :server-port)))))

(define-server-test (bodies-files-and-streams-go-over-tls :needs :tls-client)
  (with-clack-over-tls (environment
                        (lambda (responder)
                          (let ((writer (funcall responder '(200 ()))))
                            (funcall writer (read-octets-of (getf environment :raw-body) 300000))
                            (funcall writer nil :close t))))
    (let ((content (test-octets 200000)))
      (is (equalp content (response-body (ask "/" :method :post :content content)))))))

(define-server-test (responses-come-later-over-tls :needs :tls-client)
  (let ((given (make-recorder)))
    (with-clack-over-tls (environment (lambda (responder) (record given responder)))
      (with-connection (connection)
        (send-request connection "/")
        (elsewhere (nth-given given) (text-response "later"))
        (is (equal "later" (response-text (read-response connection))))
        (send-request connection "/")
        (let ((writer (elsewhere (nth-given given 1) '(200 ())))
              (piece (test-octets 100000)))
          (let ((writing (in-background ("writing")
                           (loop repeat 20 do (funcall writer piece))
                           (funcall writer nil :close t))))
            (is (= 2000000 (length (response-body (read-response connection)))))
            (task-result writing)))
        (send-request connection "/")
        (elsewhere (nth-given given 2) (text-response "again"))
        (is (equal "again" (response-text (read-response connection))))))))

(define-server-test (threads-write-over-tls-while-the-function-waits-for-them :needs :tls-client)
  (with-clack-over-tls (environment
                        (lambda (responder)
                          (let ((writer (funcall responder '(200 ())))
                                (piece (test-octets 100000)))
                            (mapc #'task-result
                                  (loop repeat 3
                                        collect (in-background ("writing")
                                                  (loop repeat 5 do (funcall writer piece)))))
                            (funcall writer (read-octets-of (getf environment :raw-body) 300000)
                                     :close t))))
    (is (= 1700000
           (length (response-body (ask "/" :method :post :content (test-octets 200000))))))))

(define-server-test (without-parking-tls-is-spoken-too :needs :tls-client)
  (with-clack-over-tls (environment (text-response "secret") :parking nil)
    (is (equal "secret" (ask-text "/")))))
