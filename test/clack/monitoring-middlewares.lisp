(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite clack/monitoring :in clack
  :description "Pages for those that watch servers of Clack applications.")

(in-suite clack/monitoring)

(defun watched-app (&rest middlewares)
  "An application that says \"the app\", behind MIDDLEWARES."
  (let ((app (lambda (environment)
               (declare (ignore environment))
               (text-response "the app"))))
    (dolist (middleware middlewares app)
      (setf app (funcall middleware app)))))

(defmacro serving-watched ((&rest middlewares) &body body)
  `(call-with-clack (watched-app ,@middlewares) '() (lambda () ,@body)))

(define-server-test pages-of-a-clack-server-tell-of-it
  (serving-watched ((handler:make-metrics-middleware "/metrics")
                    (handler:make-stats-middleware "/stats")
                    (handler:make-connections-middleware "/connections")
                    (handler:make-readiness-middleware "/ready")
                    (handler:make-liveness-middleware "/live"))
    (is (equal "the app" (ask-text "/")))
    (eventually ("the request to be counted") (= 1 (getf (handler:stats *server*) :served)))
    (let ((response (ask "/metrics")))
      (is (equal "text/plain; version=0.0.4; charset=utf-8"
                 (response-header response "content-type")))
      (is (string= "1" (metric-value (response-text response) "http_server_requests_total")))
      (is (string= "1" (metric-value (response-text response)
                                     "http_server_request_duration_seconds_count")))
      (when (promtool-p)
        (is (equal "" (complaints-of-promtool (response-text response))))))
    (is (equal (format nil "127.0.0.1:~D" (port-of *server*))
               (member-of (aref (json-of "/stats") 0) "server")))
    (is (find "active" (json-of "/connections")
              :key (lambda (object) (string-downcase (member-of object "state"))) :test #'equal))
    (is (equal (format nil "ready~%") (ask-text "/ready")))
    (is (equal (format nil "alive~%") (ask-text "/live")))))

(define-server-test a-failing-application-of-clacks-shows-in-all-pages
  (call-with-clack
   (let ((app (lambda (environment)
                (let ((path (getf environment :path-info)))
                  (cond ((equal path "/broken") (error "Broken."))
                        ((equal path "/none") '(404 () ("none")))
                        (t (text-response "Hey!")))))))
     (dolist (middleware (list (handler:make-metrics-middleware "/metrics")
                               (handler:make-stats-middleware "/stats")
                               (handler:make-live-page-middleware "/live"))
                         app)
       (setf app (funcall middleware app))))
   '()
   (lambda () (check-counted-replies #'handler:stats))))

(define-server-test pages-of-a-clack-server-are-for-this-machine-alone
  (serving-watched ((handler:make-liveness-middleware "/live")
                    (handler:make-liveness-middleware "/far" :allow '("192.0.2.0/24"))
                    (handler:make-liveness-middleware "/all" :allow (constantly t)))
    (is (equal "the app" (ask-text "/far")))
    (is (equal "the app" (ask-text "/live" :method :post :content "x")))
    (is (equal "" (ask-text "/live" :method :head)))
    (dolist (header '(("X-Forwarded-For" . "127.0.0.1") ("Forwarded" . "for=127.0.0.1")))
      (is (equal "the app" (ask-text "/live" :headers (list header))))
      (is (equal (format nil "alive~%") (ask-text "/all" :headers (list header)))))))

(define-server-test a-browser-that-another-site-leads-here-gets-the-application
  (serving-watched ((handler:make-metrics-middleware "/metrics")
                    (handler:make-live-page-middleware "/live")
                    (handler:make-liveness-middleware "/alive"))
    (is (equal (format nil "alive~%") (ask-text "/alive" :host "evil.example")))
    (dolist (path '("/metrics" "/live" "/live/events"))
      (is (equal "the app" (ask-text path :host "evil.example:4242"))))
    (is (string/= "the app" (ask-text "/metrics" :host "localhost:4242")))))

(define-server-test a-browser-that-another-site-leads-here-is-no-trusted-proxy-of-a-clack-server
  (call-with-clack (watched-app (handler:make-metrics-middleware "/metrics"))
                   '(:trusted-proxies ("127.0.0.1"))
                   (lambda ()
                     (flet ((text (host)
                              (ask-text "/metrics" :host host
                                        :headers '(("X-Forwarded-Host" . "localhost")))))
                       (is (equal "the app" (text "evil.example:4242")))
                       (is (string/= "the app" (text "localhost:4242")))))))

(define-server-test behind-a-trusted-proxy-pages-of-a-clack-server-are-for-the-clients-it-names
  (call-with-clack (watched-app (handler:make-liveness-middleware "/live"))
                   '(:trusted-proxies ("127.0.0.1"))
                   (lambda ()
                     (loop for (client text) in `(("192.0.2.7" "the app")
                                                  ("127.0.0.1" ,(format nil "alive~%")))
                           do (is (equal text
                                         (ask-text "/live"
                                                   :headers `(("X-Forwarded-For" . ,client)))))))))

(define-server-test a-clack-server-that-drains-is-not-ready
  ;; Without parking, a connection that idles ends at the next look of its worker.
  (with-globals ((engine::*drain-seconds* (/ *patience* 2))
                 (server::*look-milliseconds* (* 6000 *patience*)))
    (let ((server nil) (stopping nil))
      (serving-watched ((handler:make-readiness-middleware "/ready"))
        (setf server *server*)
        (with-connection (connection)
          (is (= 200 (response-status (exchange connection "/ready"))))
          (setf stopping (in-background ("stop") (handler:stop server :soft t)))
          (eventually ("the drain") (not (server:ready-p server)))
          (is (= 503 (response-status (exchange connection "/ready")))))
        (task-result stopping))
      (is (not (server:ready-p server))))))

(test a-middleware-of-another-handler-leaves-requests-to-the-application
  (let ((app (watched-app (handler:make-liveness-middleware "/live"))))
    (is (equal "the app" (first (third (funcall app (list :path-info "/live" :request-method :get
                                                          :remote-addr "127.0.0.1"
                                                          :headers (make-hash-table)))))))))

(test a-middleware-with-arguments-that-make-no-sense-is-refused
  (signals handler:unfit-argument (handler:make-metrics-middleware "/a" :allow '("nonsense"))))
