(in-package #:hunchentoot-recycling-taskmaster-test)

;;; RFC 6455, sections 5.5.1 and 7: all states and steps.

(def-suite* websocket-state :in websocket
  :description "The states of a WebSocket, and the side that closes.")

(defparameter *all-websocket-states* '(:open :closing :closed-by-client :failed :closed :gone))

(defparameter *all-steps* '(:send :send-close :receive :receive-close :fail :end))

(defun state-after-steps (state &rest steps)
  "The state after STEPS in STATE; NIL if one of them is illegal."
  (handler-case (reduce #'websocket:next-websocket-state steps :initial-value state)
    (websocket:misplaced-step () nil)))

(test all-states-of-a-websocket-are-reached-and-known
  (let ((found (list :open)))
    (loop for state in '(:open :closing :closed-by-client :failed :closed)
          do (dolist (step *all-steps*)
               (let ((after (state-after-steps state step)))
                 (when after (pushnew after found)))))
    (is (null (set-exclusive-or found *all-websocket-states*))))
  (is (null (set-exclusive-or (mapcar #'first websocket::*websocket-steps*)
                              *all-websocket-states*))))

(test illegal-steps-signal-and-say-what-they-are
  (dolist (state *all-websocket-states*)
    (dolist (step (cons :nonsense *all-steps*))
      (unless (state-after-steps state step)
        (handler-case (progn (websocket:next-websocket-state state step)
                             (fail "~S in ~S" step state))
          (websocket:misplaced-step (condition)
            (is (typep condition 'base:recycling-error))
            (is (eq step (websocket:misplaced-step-step condition)))
            (is (eq state (websocket:misplaced-step-state condition)))
            (is (search (prin1-to-string step) (princ-to-string condition))))))))
  (signals websocket:misplaced-step (websocket:next-websocket-state :nonsense :send)))

(test messages-are-sent-only-while-it-is-open
  (dolist (state *all-websocket-states*)
    (is (eq (websocket:sending-p state) (and (state-after-steps state :send) t)) "~S" state)
    (is (eq (websocket:sending-p state) (eq :open state)))))

(test messages-are-received-until-the-client-has-closed
  (dolist (state *all-websocket-states*)
    (is (eq (websocket:receiving-p state) (and (state-after-steps state :receive) t)) "~S" state)
    (is (eq (websocket:receiving-p state) (and (state-after-steps state :receive-close) t)))
    (is (eq (websocket:receiving-p state) (and (state-after-steps state :fail) t)))))

(test close-is-sent-once
  (dolist (state *all-websocket-states*)
    (let ((after (state-after-steps state :send-close)))
      (is (eq (and after t)
              (or (eq :open state) (websocket:close-owed-p state)))
          "~S" state)
      (when after
        (is (null (state-after-steps after :send-close)))
        (is (null (state-after-steps after :send)))
        (is (not (websocket:close-owed-p after)))))))

(test close-is-answered-and-then-we-close
  (is (eq :closed (state-after-steps :open :receive-close :send-close)))
  (is (eq :closed (state-after-steps :open :send-close :receive-close)))
  (is (eq :closed (state-after-steps :open :send-close :receive :receive-close)))
  (is (websocket:over-p :closed))
  (is (not (websocket:over-p :closing)) "The server waits for the client's close frame.")
  (is (not (websocket:over-p :closed-by-client)) "The server has to send its close frame first."))

(test a-failure-is-told-to-the-client-unless-close-was-sent
  (is (websocket:close-owed-p (state-after-steps :open :fail)))
  (is (eq :closed (state-after-steps :open :fail :send-close)))
  (is (eq :closed (state-after-steps :open :send-close :fail))))

(test the-connection-may-end-at-any-time
  (dolist (state *all-websocket-states*)
    (is (eq :gone (state-after-steps state :end)) "~S" state))
  (is (websocket:over-p :gone)))

(test states-say-one-thing-at-a-time
  (dolist (state *all-websocket-states*)
    (is (not (and (websocket:over-p state)
                  (or (websocket:sending-p state) (websocket:receiving-p state)
                      (websocket:close-owed-p state)))))
    (is (or (websocket:over-p state) (websocket:receiving-p state) (websocket:close-owed-p state))
        "~S waits for something." state)))
