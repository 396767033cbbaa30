(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* misplaced-tls :in acceptors
  :description "TLS on a port for plain HTTP.")

(defparameter *client-hello*
  (coerce '(22 3 1 0 5 1 0 0 1 3) 'octet-vector)
  "What begins as a TLS connection does.")

(define-server-test (a-client-that-speaks-tls-to-a-plain-port-is-not-answered-in-text
                     :needs :our-engine)
  (with-messages (messages)
    (serving () (("/yo" "Hey!"))
      (dolist (octets (list *client-hello* (subseq *client-hello* 0 1) (subseq *client-hello* 0 2)))
        (is (equalp #() (ask-raw octets))))
      (eventually ("the rejections to be counted") (equal '((400 . 3)) (rejections)))
      (is (= 3 (figure :rejected)))
      (is (zerop (figure :failed)))
      (is (search "[INFO]] A client speaks TLS where plain HTTP is spoken."
                  (eventually ("the message") (and (search "TLS" (messages)) (messages)))))
      (is (<= (count-of "TLS" (messages)) 3))
      (is (equal "Hey!" (ask-text "/yo"))))))

(define-server-test (openssl-has-no-connection-to-a-plain-port :needs (:our-engine :tls))
  (serving () (("/yo" "Hey!"))
    (is (not (served-p (talk-by-openssl))))
    (eventually ("the rejection to be counted") (= 1 (figure :rejected)))))

(define-server-test (what-only-looks-like-tls-is-answered-as-http :needs :our-engine)
  (serving () (("/yo" "Hey!"))
    ;; Where a stream waits for its peer, a line is read at a time.
    (dolist (octets '((21 3 3 0 2 2 40 13 10) (23 3 3 0 1 0 13 10) (13 10 1 22 3 13 10)))
      (let ((answer (decode (ask-raw (coerce octets 'octet-vector)))))
        (is (uiop:string-prefix-p "HTTP/1.1 400 " answer))))))
