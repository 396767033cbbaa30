;;;; Serves /yo with Wookie.

(setf wookie-config:*enabled-plugins* '())

(defun answer (response)
  "Answer Hey! to RESPONSE's request."
  (wookie:send-response response :headers '(:content-type "text/plain") :body "Hey!"))

(defun serve (port delay-ms)
  "Run Wookie on PORT of 127.0.0.1; /yo answers Hey! from a timer of DELAY-MS
milliseconds, or at once where there is no delay."
  (let ((seconds (/ delay-ms 1000f0)))
    (wookie:defroute (:get "/yo" :regex nil) (request response)
      (if (plusp delay-ms)
          (as:delay (lambda () (answer response)) :time seconds)
          (answer response))))
  (as:with-event-loop (:catch-app-errors t)
    (wookie:start-server (make-instance 'wookie:listener :bind "127.0.0.1" :port port))))
