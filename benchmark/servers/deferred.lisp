;;;; Serves with replies that are deferred, by a timer or by another thread, events and WebSockets.
;;;; Loaded by the child process of a rival, after the library.

(load (merge-pathnames "acceptor.lisp" *load-truename*))

;;; What is used of the library, all of it.  What it lacks is an error of the handlers that use it, and
;;; of no others, so that what there is can be measured.

(dolist (name '("DEFER-REPLY" "COMPLETE-REPLY" "RUN-AFTER"
                "START-EVENT-STREAM" "MAKE-CHANNEL" "SUBSCRIBE" "PUBLISH"
                "UPGRADE-TO-WEBSOCKET" "SEND-TEXT"))
  (multiple-value-bind (symbol status) (find-symbol name '#:hunchentoot-recycling-taskmaster)
    (when (eq status :external)
      (import symbol))))

(defun answer (reply &optional (content "Hey!"))
  "Complete REPLY with CONTENT."
  (complete-reply reply content :content-type "text/plain"))

;;; A pool of two threads that complete replies

(require "sb-concurrency")

(defvar *jobs* (sb-concurrency:make-mailbox :name "jobs")
  "The replies to be completed.")

(defun add-job (reply)
  "Let one of the pool complete REPLY."
  (sb-concurrency:send-message *jobs* reply))

(defun start-pool (count)
  "Start COUNT threads that complete replies."
  (loop repeat count
        do (sb-thread:make-thread (lambda () (loop (answer (sb-concurrency:receive-message *jobs*))))
                                  :name "pool")))

;;; Handlers of one request

(defun integer-parameter (name default)
  "The integer of the query's parameter NAME, or DEFAULT."
  (let ((text (hunchentoot:get-parameter name)))
    (if text (parse-integer text) default)))

(defun answer-later ()
  "Answer the number n of the query after ms milliseconds, by a timer."
  (let ((number (princ-to-string (integer-parameter "n" 0)))
        (seconds (/ (integer-parameter "ms" 5000) 1000)))
    (defer-reply (reply :timeout (+ seconds 60))
      (run-after seconds (lambda () (answer reply number))))))

(defun answer-after (milliseconds)
  "A handler that answers after MILLISECONDS, by a timer."
  (let ((seconds (/ milliseconds 1000)))
    (lambda ()
      (defer-reply (reply :timeout 60)
        (run-after seconds (lambda () (answer reply)))))))

(defun answer-now ()
  "Defer the reply, and complete it at once."
  (defer-reply (reply :timeout 60)
    (answer reply)))

(defun answer-from-pool ()
  "Let a thread of the pool answer."
  (defer-reply (reply :timeout 60)
    (add-job reply)))

(defun answer-plainly ()
  "Answer without deferring anything."
  (setf (hunchentoot:content-type*) "text/plain")
  "Hey!")

;;; Events

(defvar *channel* (and (fboundp 'make-channel) (funcall 'make-channel))
  "Who subscribes to events.")

(defparameter *period* 1
  "Seconds from one event to the next.")

(defun real-us ()
  "Microseconds of the system's clock since 1970."
  (multiple-value-bind (seconds microseconds) (sb-ext:get-time-of-day)
    (+ (* 1000000 seconds) microseconds)))

(defun publish-for-ever (acceptor &optional (id 1))
  "Publish the event ID, and the next one a *PERIOD* later, on the threads of ACCEPTOR."
  (run-after *period* (lambda () (publish-for-ever acceptor (1+ id))) :server acceptor)
  (publish *channel* (princ-to-string (real-us)) :id id))

(defun stream-events ()
  "Subscribe the client to all events from now on."
  (defer-reply (reply)
    (subscribe *channel* (start-event-stream reply))))

;;; WebSockets

(defun echo ()
  "Send back each message."
  (upgrade-to-websocket :on-text 'send-text))

;;; The server

(defun yo-handler (delay-ms pool-p)
  "The handler of /yo: it answers after DELAY-MS; if there is no delay, from the pool if POOL-P."
  (cond ((plusp delay-ms) (answer-after delay-ms))
        (pool-p 'answer-from-pool)
        (t 'answer-now)))

(defun make-dispatchers (delay-ms slow-ms files pool-p)
  "Dispatchers for all that is served; DELAY-MS and POOL-P as for YO-HANDLER, the rest as with
servers/hunchentoot.lisp.  They are asked in this order."
  (append (loop for (path handler) in `(("/yo" ,(yo-handler delay-ms pool-p))
                                        ("/slow" ,(answer-after slow-ms))
                                        ("/later" answer-later)
                                        ("/events" stream-events)
                                        ("/echo" echo)
                                        ("/1ms" ,(answer-after 1))
                                        ("/now" answer-now)
                                        ("/pool" answer-from-pool)
                                        ("/plain" answer-plainly))
                collect (hunchentoot:create-prefix-dispatcher path handler))
          (list (file-dispatcher files) (upload-dispatcher))))

(defun start-acceptor (port delay-ms slow-ms files backlog &key pool (publish t) reuse-port)
  "Serve on PORT of 127.0.0.1 with BACKLOG, after DELAY-MS and the rest as in MAKE-DISPATCHERS; POOL:
/yo is answered from there.  PUBLISH: is there to be an event each *PERIOD*?  REUSE-PORT as the
acceptor has it."
  (start-pool 2)
  (let ((acceptor (start-with (make-dispatchers delay-ms slow-ms files pool) port backlog
                              'hunchentoot-recycling-taskmaster:parallel-easy-acceptor
                              :reuse-port reuse-port)))
    (when (and publish *channel*)
      (publish-for-ever acceptor))
    acceptor))

(defun serve (&rest arguments)
  "Call START-ACCEPTOR with ARGUMENTS and never return."
  (serve-for-ever #'start-acceptor arguments))
