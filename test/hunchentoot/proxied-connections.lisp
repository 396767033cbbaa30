(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* proxied-connections :in acceptors
  :description "Connections that begin with a header of the PROXY protocol.")

(defun ends-as-told ()
  "What a handler knows of both ends of its connection."
  (format nil "~A ~A ~A ~A ~A" (hunchentoot:remote-addr*) (hunchentoot:remote-port*)
          (hunchentoot:local-addr*) (hunchentoot:local-port*)
          (if (hunchentoot:ssl-p) "https" "http")))

(defmacro serving-proxied ((&rest initargs) &body body)
  "Evaluates BODY while *SERVER*, with INITARGS, wants a PROXY header from this machine."
  `(serving (:proxy-protocol t :trusted-proxies '("127.0.0.1" "10.0.0.0/8") ,@initargs)
       (("/ends" (ends-as-told)))
     ,@body))

(defun ends-told-by (connection expected)
  "Checks that the handler of /ends knows what EXPECTED, a list of source and destination, or of two
empty lists, tells."
  (let ((answer (exchange-text connection "/ends")))
    (if (first expected)
        (is (equal (format nil "~{~{~A ~A~} ~}http" expected) answer))
        (is (equal (format nil "127.0.0.1 ~D 127.0.0.1 ~D http" (client-port connection)
                           (port-of *server*))
                   answer)))))

(define-server-test (a-proxy-header-tells-both-ends-of-the-clients-connection :needs :our-engine)
  (serving-proxied ()
    (loop for (told octets) in *proxy-headers*
          do (with-connection (connection)
               (send connection octets)
               (dotimes (count 2)
                 (ends-told-by connection told))))
    (is (null (rejections)))))

(define-server-test (a-proxy-header-may-come-in-pieces-and-with-a-request :needs :our-engine)
  (serving-proxied (:defer-accept nil)
    (dolist (size '(1 7 100))
      (loop for (told octets) in *proxy-headers*
            when (< (length octets) 300)
              do (with-connection (connection)
                   (send-in-pieces connection size octets (request-octets "/ends"))
                   (is (= 200 (response-status (read-response connection))))
                   (ends-told-by connection told))))))

(define-server-test (a-connection-without-a-proxy-header-is-closed-and-counted :needs :our-engine)
  (serving-proxied ()
    (let ((count 0))
      (dolist (octets *malformed-proxy-headers*)
        (with-connection (connection)
          (try-to-send connection octets)
          (is-true (closed-by-server-p connection) "~S" octets))
        (incf count)
        (is (eql count (eventually ("a rejection")
                         (find count (list (cdr (assoc 400 (rejections)))))))
            "~S" octets))
      (with-connection (connection)
        (send connection (octets "PROXY UNKNOWN" :crlf))
        (ends-told-by connection '(() ())))
      (is (equal (list (cons 400 count)) (rejections))))))

(define-server-test (a-proxy-header-from-anybody-else-is-not-believed :needs :our-engine)
  (serving (:proxy-protocol t :trusted-proxies '("10.0.0.1")) (("/ends" (ends-as-told)))
    (dolist (parts (list (octets "PROXY TCP4 10.0.0.1 10.0.0.2 1 2" :crlf (request-octets "/ends"))
                         (octets "PROXY UNKNOWN" :crlf)
                         (binary-header #x20 0 '())
                         (request-octets "/ends")))
      (is (zerop (length (ask-raw parts)))))
    (is (equal '(400) (mapcar #'car (rejections))))))

(define-server-test (a-proxy-header-is-no-header-without-the-argument :needs :our-engine)
  (serving (:trusted-proxies '("127.0.0.1")) (("/ends" (ends-as-told)))
    (with-connection (connection)
      (send connection (octets "PROXY UNKNOWN" :crlf) (request-octets "/ends"))
      (is (= 400 (response-status (read-response connection)))))))

(define-server-test (half-a-proxy-header-is-ended-by-the-time-limit :needs :our-engine)
  (serving-proxied (:read-timeout 1)
    (with-connection (connection)
      (send connection "PROXY TCP4 192.")
      (is-true (closed-by-server-p connection)))
    (unless (uiop:featurep :abcl)       ; there the limit of the stream comes first
      (eventually ("the end to be counted")
        (plusp (figure :expired))))
    (with-connection (connection)
      (send connection (as-octets *signature*))
      (is-true (closed-by-server-p connection)))))

(define-server-test (a-proxys-check-that-says-nothing-is-no-failure :needs :our-engine)
  (serving-proxied ()
    (disconnect (connect))
    (with-connection (connection)
      (send connection (binary-header #x20 0 '()))
      (end-sending connection)
      (is-true (closed-by-server-p connection)))
    (with-connection (connection)
      (send connection (octets "PROXY UNKNOWN" :crlf)))
    (with-connection (connection)
      (send connection (octets "PROXY UNKNOWN" :crlf))
      (ends-told-by connection '(() ())))
    (is (null (rejections)))
    (is (zerop (figure :failed)))))

(define-server-test
    (fields-count-only-where-the-source-in-the-header-is-trusted-too :needs :our-engine)
  (flet ((client (source)
           (with-connection (connection)
             (send connection (format nil "PROXY TCP4 ~A 10.0.0.1 5000 80" source) :crlf)
             (first (uiop:split-string
                     (exchange-text connection "/ends"
                                    :headers '(("X-Forwarded-For" . "198.51.100.1"))))))))
    (serving-proxied ()
      (is (equal "192.0.2.1" (client "192.0.2.1")))
      (is (equal "198.51.100.1" (client "10.1.2.3"))))))

(define-server-test (methods-of-programs-find-no-proxy-header :needs :our-engine)
  (dolist (mixin '(wrapped-connections reading-connections))
    (serving-proxied (:mixin mixin)
      (loop for (told octets) in *proxy-headers*
            do (with-connection (connection)
                 (send connection octets)
                 (dotimes (count 2)
                   (ends-told-by connection told)))))))

(defclass reading-connections () ())

(defmethod hunchentoot:process-connection ((acceptor reading-connections) socket)
  (usocket:socket-stream socket)
  (call-next-method))

;;; Before TLS

(defun behind-a-header (header)
  "A function that makes a connection over TLS of a connected usocket, after HEADER."
  (lambda (socket)
    (let ((stream (usocket:socket-stream socket)))
      (write-sequence header stream)
      (finish-output stream))
    (funcall 'encrypted socket)))

(define-server-test (a-proxy-header-comes-before-tls :needs (:our-engine :tls-client))
  (over-tls
    (serving (:proxy-protocol t :trusted-proxies '("127.0.0.1"))
        (("/ends" (ends-as-told)))
      (loop for (told octets) in *proxy-headers*
            do (let ((*make-connection* (behind-a-header octets)))
                 (with-connection (connection)
                   (dotimes (count 2)
                     (let ((answer (exchange-text connection "/ends")))
                       (is (uiop:string-suffix-p answer "https"))
                       (when (first told)
                         (is (uiop:string-prefix-p (format nil "~{~{~A ~A~}~^ ~}" told)
                                                   answer)))))))))))
