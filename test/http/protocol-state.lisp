(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* http-protocol-state :in http
  :description "The reuse of a connection, in all states and after all events.")

(defparameter *protocol-events*
  '(:continue :request-end :request-fault :reply :last-reply :reply-end :reply-cut :close :switch))

(defun head-from (&rest lines)
  "The head of the request in LINES."
  (let ((octets (octets (format nil "~{~A~C~:*~*~C~}" (loop for line in lines
                                                            append (list line #\Return #\Newline)))
                        :crlf)))
    (http:parse-head (http:make-parser) octets 0 (length octets))))

(defun state-of (&rest lines)
  (http:state-after-head 0 (apply #'head-from lines)))

(defun first-states ()
  "The states after heads of all kinds."
  (loop for content in '(("X: y") ("Content-Length: 1")
                         ("Content-Length: 1" "Expect: 100-continue"))
        append (loop for option in '("keep-alive" "close")
                     collect (apply #'state-of "POST / HTTP/1.1" "Host: a"
                                    (format nil "Connection: ~A" option)
                                    content))))

(defun state-after (state &rest events)
  "The state after EVENTS, one after the other, in STATE; NIL if one of them is illegal."
  (handler-case (reduce #'http:next-state events :initial-value state)
    (error () nil)))

(defun states-from (states)
  "A list of STATES and all states to which events lead from them."
  (let ((found states))
    (labels ((visit (state)
               (dolist (event *protocol-events*)
                 (let ((after (state-after state event)))
                   (when (and after (not (member after found)))
                     (push after found)
                     (visit after))))))
      (mapc #'visit states))
    found))

(defun all-states ()
  (cons 0 (states-from (first-states))))

(defun call-for-steps (function)
  "Calls FUNCTION with each reachable state of a connection, each event, and the state after that
event or NIL."
  (dolist (state (all-states))
    (dolist (event *protocol-events*)
      (funcall function state event (state-after state event)))))

(defmacro for-all-steps ((state event after) &body body)
  `(call-for-steps (lambda (,state ,event ,after)
                     (declare (ignorable ,state ,event ,after))
                     ,@body)))

(defun sides (state)
  (list (http:client-side state) (http:our-side state)))

(test all-states-and-events-of-the-protocol-occur
  (let ((states (all-states)) (legal '()))
    (is (< 60 (length states) 256))
    (for-all-steps (state event after)
      (when after (pushnew event legal)))
    (is (null (set-difference *protocol-events* legal)))
    (is (null (set-exclusive-or '(:idle :body :held :done :error :switched)
                                (remove-duplicates (mapcar #'http:client-side states)))))
    (is (null (set-exclusive-or '(:idle :body :done :error :switched)
                                (remove-duplicates (mapcar #'http:our-side states)))))))

(test illegal-events-signal-and-say-what-they-are
  (for-all-steps (state event after)
    (unless after
      (handler-case (progn (http:next-state state event) (fail "~S in ~S" event (sides state)))
        (error (condition)
          (is (search (prin1-to-string event) (princ-to-string condition)))))))
  (signals error (http:next-state 0 :nonsense)))

(test a-connection-is-reused-only-when-both-sides-are-done
  (dolist (state (all-states))
    (is (eq (http:reusable-p state)
            (and (equal '(:done :done) (sides state)) (http:persists-p state)))
        "~S" (sides state))))

(test a-connection-persists-as-long-as-it-can-come-to-be-used-again
  (dolist (state (states-from (first-states)))
    (is (eq (http:persists-p state) (some #'http:reusable-p (states-from (list state))))
        "~S" (sides state))))

(test no-event-makes-a-connection-persist-that-does-not
  (for-all-steps (state event after)
    (when (and after (not (http:persists-p state)))
      (is (not (http:persists-p after)) "~S in ~S" event (sides state)))))

(defun sides-after (event client ours)
  "The sides after EVENT where they are CLIENT and OURS; NIL where EVENT is illegal."
  (case event
    ((:reply :last-reply)
     (and (eq :idle ours) (member client '(:body :held :done :error)) (list client :body)))
    (:reply-end (case ours (:body (list client :done)) (:switched (list client ours))))
    (:reply-cut (if (eq :idle client) nil (list client :error)))
    (:request-end (and (member client '(:body :held)) (list :done ours)))
    (:request-fault (case client
                      ((:body :held :done :error) (list :error ours))
                      (:switched (list client ours))))
    (:continue (and (eq :held client) (eq :idle ours) (list :body :idle)))
    (:close (list client ours))
    (:switch (if (eq :idle client)
                 nil
                 (substitute-if :switched (lambda (side) (not (eq :error side)))
                                (list client ours))))))

(test events-change-the-sides-that-they-are-about
  (for-all-steps (state event after)
    (is (equal (apply #'sides-after event (sides state)) (and after (sides after)))
        "~S in ~S" event (sides state))))

(test a-client-that-waits-may-send-content-or-a-request-next
  (let ((held (state-of "POST / HTTP/1.1" "Host: a" "Content-Length: 1" "Expect: 100-continue")))
    (is (not (http:persists-p (state-after held :reply))))
    (is (http:reusable-p (state-after held :continue :request-end :reply :reply-end)))))

(test whoever-wants-it-closed-has-it-closed
  (for-all-steps (state event after)
    (when (and after
               (member event
                       '(:last-reply :close :request-fault :reply-cut :switch)))
      (is (not (http:persists-p after)) "~S in ~S" event (sides state)))))

(test only-a-client-that-has-said-all-is-not-expected-again
  (for-all-steps (state event after)
    (when after
      (case event
        (:request-fault (is (not (http:last-request-read-p after))))
        ((:close :last-reply)
         (is (eq (http:last-request-read-p state) (http:last-request-read-p after)))))))
  (is (http:last-request-read-p
       (state-after (state-of "POST / HTTP/1.0" "Content-Length: 1") :request-end)))
  (is (not (http:last-request-read-p
            (state-after (state-of "GET / HTTP/1.1" "Host: a") :reply :reply-end)))))

;;; Heads

(test the-state-of-a-request-is-in-its-head
  (flet ((facts (&rest lines)
           (let ((state (apply #'state-of lines)))
             (list (http:client-side state) (http:persists-p state)))))
    (is (equal '(:done t) (facts "GET / HTTP/1.1" "Host: a")))
    (is (equal '(:done nil) (facts "GET / HTTP/1.1" "Host: a" "Connection: close")))
    (is (equal '(:done nil) (facts "GET / HTTP/1.0")))
    (is (equal '(:done t) (facts "GET / HTTP/1.0" "Connection: keep-alive")))
    (is (equal '(:body t) (facts "POST / HTTP/1.1" "Host: a" "Content-Length: 1")))
    (is (equal '(:done t) (facts "POST / HTTP/1.1" "Host: a" "Content-Length: 0")))
    (is (equal '(:body nil) (facts "POST / HTTP/1.0" "Content-Length: 1")))
    (is (equal '(:body t) (facts "POST / HTTP/1.1" "Host: a" "Transfer-Encoding: chunked")))
    (is (equal '(:held t) (facts "POST / HTTP/1.1" "Host: a" "Content-Length: 1"
                                 "Expect: 100-continue")))
    (is (equal '(:held nil) (facts "POST / HTTP/1.1" "Host: a" "Content-Length: 1"
                                   "Connection: close" "Expect: 100-continue")))))

(test a-head-is-read-only-where-the-connection-may-be-used
  (let ((head (head-from "GET / HTTP/1.1" "Host: a")))
    (dolist (state (all-states))
      (if (or (zerop state) (http:reusable-p state))
          (is (= (http:state-after-head 0 head) (http:state-after-head state head)))
          (signals error (http:state-after-head state head))))))
