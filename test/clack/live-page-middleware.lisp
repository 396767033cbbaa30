(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite clack/live-page :in clack
  :description "The page that shows the server of a Clack application at work.")

(in-suite clack/live-page)

(define-server-test the-live-page-of-a-clack-server-gets-its-events
  (serving-watched ((handler:make-live-page-middleware "/live"))
    (is (equal "the app" (ask-text "/")))
    (let ((response (ask "/live")))
      (is (equal "text/html; charset=utf-8" (response-header response "content-type")))
      (is (search "script-src 'nonce-" (response-header response "content-security-policy"))))
    (with-connection (page)
      (let ((head (open-live-page page)))
        (is (equal "text/event-stream" (response-header head "content-type"))))
      (let ((server (aref (member-of (next-snapshot page) "servers") 0)))
        (is (equal (format nil "127.0.0.1:~D" (port-of *server*)) (member-of server "server"))))
      (is (<= 2 (member-of (next-snapshot-until page (lambda (server)
                                                       (<= 2 (member-of server "served"))))
                           "served"))
          "A timer sends the later ones."))))

(define-server-test the-events-of-a-clack-server-outlast-the-time-for-replies
  (call-with-clack (watched-app (handler:make-live-page-middleware "/live"))
                   '(:reply-timeout 1/2)
                   (lambda ()
                     (with-connection (page)
                       (open-live-page page)
                       (is-true (loop repeat 3 always (next-snapshot page)))))))

(define-server-test a-worker-of-a-clack-server-tells-where-it-is
  (let* ((entered (make-gate)) (release (make-gate))
         (app (lambda (environment)
                (when (equal "/slow" (getf environment :path-info))
                  (open-gate entered)
                  (wait-for-release release))
                (text-response "the app"))))
    (call-with-clack (funcall (handler:make-live-page-middleware "/live") app) '()
      (lambda ()
        (with-connections (connections 2)
          (destructuring-bind (page client) connections
            (open-live-page page)
            (send-request client "/slow")
            (await entered)
            (unwind-protect
                 (let ((answer (where (member-of (await-worker-at page "/slow") "number"))))
                   (if (platform:functions-can-be-wrapped-p) ; as where threads can be asked
                       (is (frame-told-p answer "wait-for-release"))
                       (is (equal "unknown" (member-of answer "reason")))))
              (open-gate release))
            (is (equal "the app" (response-text (read-response client))))))))))

(define-server-test the-live-page-of-a-clack-server-is-protected-like-the-metrics
  (serving-watched ((handler:make-live-page-middleware "/live" :allow '("192.0.2.0/24"))
                    (handler:make-live-page-middleware "/here"))
    (is (equal "the app" (ask-text "/live")))
    (is (equal "the app" (ask-text "/live/events")))
    (is (equal "the app" (ask-text "/here/events" :headers '(("Forwarded" . "for=127.0.0.1")))))
    (is (= 403 (response-status (ask "/here/worker?0-1" :method :post :content ""))))
    (is (equal "the app" (ask-text "/here/worker?0-1")))))

(test a-live-page-middleware-of-another-handler-leaves-requests-to-the-application
  (let ((app (watched-app (handler:make-live-page-middleware "/live" :servers '(1)))))
    (is (equal "the app"
               (first (third (funcall app (list :path-info "/live/events" :request-method :get
                                                :remote-addr "127.0.0.1"
                                                :headers (make-hash-table)))))))))
