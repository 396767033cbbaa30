;;;; What only our acceptors have: replies that come later, server-sent events and WebSockets.

(in-package #:work)

(sb-ext:add-package-local-nickname '#:recycling '#:hunchentoot-recycling-taskmaster)

(defvar *channel* (recycling:make-channel))

(defun later ()
  "Answers the number n of the query after ms milliseconds, by a timer."
  (let ((number (parameter "n"))
        (seconds (/ (integer-in (parameter "ms")) 1000)))
    (recycling:defer-reply (reply)
      (recycling:run-after
       seconds
       (lambda () (recycling:complete-reply reply number :content-type "text/plain"))))))

(defun events ()
  "Subscribes the client to all events."
  (recycling:defer-reply (reply)
    (recycling:subscribe *channel* (recycling:start-event-stream reply))))

(defun echo ()
  "Sends back each message of a WebSocket."
  (recycling:upgrade-to-websocket :on-text 'recycling:send-text))

(setf *handlers* (append *handlers* '(("/later" later) ("/events" events) ("/echo" echo))))

(defun publish-for-ever (acceptor &optional (id 1))
  "Publishes an event each second, by ACCEPTOR's timers."
  (recycling:run-after 1 (lambda () (publish-for-ever acceptor (1+ id))) :server acceptor)
  (recycling:publish *channel* (princ-to-string (real-us)) :id id))

(defun start-serving (acceptor)
  "Starts ACCEPTOR and publishes."
  (publish-for-ever (hunchentoot:start acceptor)))
