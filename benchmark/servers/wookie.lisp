;;;; Serves with Wookie.

(setf wookie-config:*enabled-plugins* '())

(defun answer (response)
  "Answer Hey! to RESPONSE's request."
  (wookie:send-response response :headers '(:content-type "text/plain") :body "Hey!"))

(defun serve-delayed (path delay-ms)
  "Answer to PATH from a timer of DELAY-MS milliseconds, or at once where there is no delay."
  (let ((seconds (/ delay-ms 1000f0)))
    (wookie:defroute (:get path :regex nil) (request response)
      (if (plusp delay-ms)
          (as:delay (lambda () (answer response)) :time seconds)
          (answer response)))))

(defun serve-uploads ()
  "Answer to /upload when the whole body has come."
  (wookie:defroute (:post "/upload" :regex nil :chunk t) (request response)
    (let ((body (make-array (parse-integer (gethash "content-length"
                                                    (wookie:request-headers request)))
                            :element-type '(unsigned-byte 8)))
          (have 0))
      (wookie:with-chunking request (chunk last-p :start start :end end)
        (replace body chunk :start1 have :start2 start :end2 end)
        (incf have (- end start))
        (when last-p
          (answer response))))))

(defun serve (port delay-ms slow-ms files backlog)
  "Run Wookie on PORT of 127.0.0.1 with BACKLOG: /yo waits DELAY-MS milliseconds, /slow SLOW-MS."
  (declare (ignore files))
  (serve-delayed "/yo" delay-ms)
  (serve-delayed "/slow" slow-ms)
  (serve-uploads)
  (as:with-event-loop (:catch-app-errors t)
    (wookie:start-server (make-instance 'wookie:listener :bind "127.0.0.1" :port port
                                                         :backlog backlog))))
