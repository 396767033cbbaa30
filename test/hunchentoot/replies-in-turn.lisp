(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* replies-in-turn :in acceptors
  :description "Requests that follow each other on a connection, and the replies to them, in order.")

(define-server-test (a-client-that-sends-on-while-a-reply-is-awaited-is-served-after-it
                     :needs (:our-http :parking))
  (serving-deferred (replies) ()
    (with-connection (connection)
      (is (string= "word" (exchange-text connection "/word")))
      (loop repeat 3
            do (send-request connection "/")
               (nth-reply replies)
               (await-deferred 1)
               (send-request connection "/word")
               (eventually ("a worker to have seen that")
                 (zerop (figure :busy)))
               (complete replies "first")
               (is (string= "first" (response-text (read-response connection))))
               (is (string= "word" (response-text (read-response connection))))))))

(define-server-test (a-client-that-sends-on-behind-a-reply-that-does-not-come-in-time-is-served
                     :needs (:our-http :parking))
  (let ((replies (make-recorder)))
    (serving () (("/" (recycling:defer-reply (reply :timeout 1/2) (record replies reply)))
                 ("/word" "word"))
      (with-connection (connection)
        (is (string= "word" (exchange-text connection "/word")))
        (send-request connection "/")
        (nth-reply replies)
        (await-deferred 1)
        (send-request connection "/word")
        (is (= 504 (response-status (read-response connection))))
        (is (string= "word" (response-text (read-response connection))))))))

(define-server-test (a-request-that-comes-in-pieces-is-served-when-it-is-whole :needs (:our-http :parking))
  (serving () (("/" "word"))
    (with-connection (connection)
      (dolist (size '(1 7 100))
        (is (string= "word" (exchange-text connection "/")))
        (send-in-pieces connection size (request-octets "/"))
        (is (string= "word" (response-text (read-response connection))))))))

(define-server-test (a-head-that-was-received-in-part-has-a-deadline :needs (:our-http :parking))
  (serving (:read-timeout (/ *patience* 20)) (("/" "word"))
    (with-connection (connection)
      (is (string= "word" (exchange-text connection "/")))
      (send connection (subseq (request-octets "/") 0 10))
      (is (= 408 (response-status (read-response connection))))
      (is (closed-by-server-p connection)))))

(define-server-test (content-may-come-with-its-head-or-later :needs (:our-http :parking))
  (serving () (("/" (hunchentoot:raw-post-data :force-text t)))
    (with-connection (connection)
      (loop for length in '(1 100 1900 2048 5000 100000)
            for content = (make-string length :initial-element #\c)
            for request = (request-octets "/" :method "POST" :content content)
            do (send connection request)
               (is (string= content (response-text (read-response connection))))
               (send connection (subseq request 0 (- (length request) (ceiling length 2))))
               (is (not (readable-p connection 1/50)))
               (send connection (subseq request (- (length request) (ceiling length 2))))
               (is (string= content (response-text (read-response connection))))))))

(define-server-test (requests-that-come-together-are-answered-in-order :needs (:our-http :parking))
  (serving () (("/" (hunchentoot:get-parameter "n")))
    (with-connection (connection)
      (dolist (count '(1 2 20 200))
        (apply #'send connection (loop for n below count
                                       collect (request-octets (format nil "/?n=~D" n))))
        (loop for n below count
              do (is (string= (princ-to-string n) (response-text (read-response connection)))))))))

;;; Replies that come later

(define-server-test (a-function-of-a-timer-may-complete-many-replies :needs (:our-http :parking))
  (serving-deferred (replies) ()
    (with-connections (connections 20)
      (loop for connection in connections
            for count from 1
            do (send-request connection "/")
               (nth-reply replies count))
      (await-deferred 20)
      (let ((waiting (recorded replies)))
        (recycling:run-after 0 (lambda ()
                                 (loop for reply in waiting
                                       for count from 0
                                       do (recycling:complete-reply reply (princ-to-string count))))
                             :server *server*))
      (loop for connection in connections
            for count from 0
            do (is (string= (princ-to-string count) (response-text (read-response connection))))
               (is (string= "word" (exchange-text connection "/word")))))))

(define-server-test (a-reply-leaves-though-the-timer-that-completes-it-blocks-then :needs (:our-http :parking))
  (serving-deferred (replies) ()
    (let ((gate (make-gate)))
      (unwind-protect
           (with-connection (connection)
             (send-request connection "/")
             (nth-reply replies)
             (await-deferred 1)
             (recycling:run-after 0 (lambda ()
                                      (complete replies "first")
                                      (await gate))
                                  :server *server*)
             (is (string= "first" (response-text (read-response connection))))
             (is (string= "word" (exchange-text connection "/word"))))
        (open-gate gate)))))

(defun complete-elsewhere (reply)
  "Completes REPLY by \"word\" in another thread, before this returns."
  (task-result (in-background ("elsewhere") (recycling:complete-reply reply "word"))))

(define-server-test (deferred-replies-come-in-order :needs (:our-http :parking))
  (serving () (("/now" (recycling:defer-reply (reply) (recycling:complete-reply reply "now")))
               ("/elsewhere" (recycling:defer-reply (reply) (complete-elsewhere reply)))
               ("/plain" "plain"))
    (with-connection (connection)
      (loop repeat 3
            do (is (string= "now" (exchange-text connection "/now")))
               (is (string= "word" (exchange-text connection "/elsewhere")))
               (is (string= "plain" (exchange-text connection "/plain"))))
      (send connection (request-octets "/now") (request-octets "/elsewhere") (request-octets "/plain"))
      (dolist (text '("now" "word" "plain"))
        (is (string= text (response-text (read-response connection)))))
      (send-request connection "/now" :headers '(("Connection" . "close")))
      (is (string= "now" (response-text (read-response connection))))
      (is (closed-by-server-p connection)))))

(define-server-test (a-connection-is-closed-after-its-last-reply :needs (:our-http :parking))
  (serving () (("/" "word"))
    (with-connection (connection)
      (is (string= "word" (exchange-text connection "/")))
      (send-request connection "/" :headers '(("Connection" . "close")))
      (is (string= "word" (response-text (read-response connection))))
      (is (closed-by-server-p connection)))))
