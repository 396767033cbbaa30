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

