(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* replies-in-turn :in acceptors
  :description
  "Replies that come later, and the requests behind them on the same connection, in order.")

(define-server-test (a-client-that-sends-on-behind-a-reply-that-does-not-come-in-time-is-served
                     :needs (:our-http :parking))
  (with-growing-limit (seconds)
    (let ((replies (make-recorder)))
      (serving () (("/" (recycling:defer-reply (reply :timeout seconds) (record replies reply)))
                   ("/word" "word"))
        (with-connection (connection)
          (is (string= "word" (exchange-text connection "/word")))
          (promptly (send-request connection "/")
                    (nth-reply replies)
                    (await-deferred 1)
                    (send-request connection "/word"))
          (is (= 504 (response-status (read-response connection))))
          (is (string= "word" (response-text (read-response connection)))))))))

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

(define-server-test
    (a-reply-leaves-though-the-timer-that-completes-it-blocks-then :needs (:our-http :parking))
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
      (send connection (request-octets "/now") (request-octets "/elsewhere")
            (request-octets "/plain"))
      (dolist (text '("now" "word" "plain"))
        (is (string= text (response-text (read-response connection)))))
      (send-request connection "/now" :headers '(("Connection" . "close")))
      (is (string= "now" (response-text (read-response connection))))
      (is (closed-by-server-p connection)))))

;;; What comes behind a reply that is awaited

(define-server-test
    (those-behind-a-deferred-reply-wait-and-are-answered-in-order :needs :our-engine)
  (serving-deferred (replies) ()
    (with-connection (connection)
      (send connection (request-octets "/") (request-octets "/word") (request-octets "/")
            (request-octets "/word"))
      (nth-reply replies)
      (await-deferred 1)
      (send-in-pieces connection 7 (request-octets "/word"))
      (is (not (readable-p connection 1/20)))
      (is (= 1 (recorded-count replies)) "The third is not served before the first was answered.")
      (complete replies "first")
      (is (string= "first" (response-text (read-response connection))))
      (is (string= "word" (response-text (read-response connection))))
      (complete replies "third")
      (is (string= "third" (response-text (read-response connection))))
      (loop repeat 2
            do (is (string= "word" (response-text (read-response connection)))))
      (send-request connection "/")
      (nth-reply replies)
      (await-deferred 1)
      (send-request connection "/word") ; while nobody reads
      (complete replies "last")
      (is (string= "last" (response-text (read-response connection))))
      (is (string= "word" (response-text (read-response connection)))))))

(define-server-test (large-replies-keep-their-order :needs :our-engine)
  (serving-deferred (replies) (("/large" *large-answer*))
    (with-open-connection
        (connection (connect-with-small-buffer (hunchentoot:acceptor-port *server*)))
      (send connection (request-octets "/large") (request-octets "/") (request-octets "/word"))
      (is-true (large-reply-p connection))
      (complete replies *large-answer*)
      (is-true (large-reply-p connection))
      (is (string= "word" (response-text (read-response connection)))))))

(define-server-test (what-comes-while-another-thread-answers-is-served-too :needs :parking)
  (dolist (second '("/word" "/later"))
    (let ((replies (make-recorder)) (amid (make-gate "the answer to be made"))
          (go-on (make-gate "to go on")))
      (serving (:read-timeout 60)       ; which would find it, too
          (("/first" (recycling:defer-reply (reply) (record replies reply)))
           ("/later" (recycling:defer-reply (reply) (recycling:complete-reply reply "word")))
           ("/word" "word"))
        (with-connection (connection)
          ;; which is read with the first
          (send connection (request-octets "/first") (request-octets second))
          (let ((reply (nth-reply replies)))
            (await-deferred 1)
            (let ((completing (in-background ("completing")
                                (recycling:complete-reply reply (lambda ()
                                                                  (open-gate amid)
                                                                  (await go-on)
                                                                  "first")))))
              (await amid)
              (send connection (request-octets "/word"))
              (eventually ("a worker to have got the event")
                (engine::arrived-p (server:suspended-exchange-connection
                                    (recycling::deferred-reply-deferred-response reply))))
              (open-gate go-on)
              (is-true (task-result completing))))
          (is (equal '("first" "word" "word")
                     (loop repeat 3 collect (response-text (read-response connection))))))))))

(define-server-test
    (what-comes-over-tls-while-another-thread-answers-is-served-too :needs (:parking :tls-client))
  (over-tls
    (let ((replies (make-recorder)) (held (make-gate)) (go-on (make-gate)) (amid (make-gate))
          (answer (make-gate)))
      (serving (:read-timeout 60)
          (("/hold" (open-gate held) (await go-on) "hold")
           ("/" (recycling:defer-reply (reply) (record replies reply)))
           ("/word" "word"))
        (with-connection (connection)
          (send connection (request-octets "/hold"))
          (await held)
          ;; A record each: OpenSSL has all of them in its buffer when it has read the first.
          (dolist (path '("/" "/word" "/word"))
            (send connection (request-octets path)))
          (poll (constantly nil) 1/20)
          (open-gate go-on)
          (let ((reply (nth-reply replies)))
            (await-deferred 1)
            (let ((completing (in-background ("completing")
                                (recycling:complete-reply reply (lambda ()
                                                                  (open-gate amid)
                                                                  (await answer)
                                                                  "first")))))
              (await amid)
              (send connection (request-octets "/word"))
              (eventually ("a worker to have got the event")
                (engine::arrived-p (server:suspended-exchange-connection
                                    (recycling::deferred-reply-deferred-response reply))))
              (open-gate answer)
              (is-true (task-result completing))))
          (is (equal '("hold" "first" "word" "word" "word")
                     (loop repeat 5 collect (response-text (read-response connection))))))))))
