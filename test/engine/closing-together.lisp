(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite closing-together :in engine
  :description "Connections that end at the same time are closed by one call of the system.")

(in-suite closing-together)

(defun hold-last-answers (engine worker connections clients)
  "Has WORKER hold the last answer, an a, to each of CLIENTS, which CONNECTIONS of ENGINE are to."
  (end-after engine "a")
  (hold-answers engine worker connections clients (make-string (length clients) :initial-element #\a)))

(defun send-last-answers (engine worker connections)
  "Has WORKER send what it holds, and checks that each of CONNECTIONS of ENGINE is released, once."
  (let ((released (make-recorder)))
    (with-function (engine:release (original service connection) (record released connection))
      (engine::send-held-output engine worker))
    (is (= (length connections) (recorded-count released)))
    (is (null (set-exclusive-or connections (recorded released))))))

(defun check-lingering (connection)
  "Checks that CONNECTION waits for the end of its peer."
  (is (engine::connection-lingering-p connection))
  (is (engine::parked-p connection)))

(define-server-test connections-that-end-together-are-closed-each
  (with-holding (engine worker connections clients 3)
    (hold-last-answers engine worker connections clients)
    (with-function (platform:close-descriptor (original descriptor)
                     (fail "~D was closed already." descriptor))
      (send-last-answers engine worker connections))
    (expect-each clients "a")
    (is (every #'closed-by-server-p clients))
    (is (every #'engine::gone-p connections))
    (is (zerop (statistic engine :open)))))

(define-server-test connections-that-the-system-does-not-close-together-are-closed-one-by-one
  (with-holding (engine worker connections clients 3)
    (hold-last-answers engine worker connections clients)
    (with-function (platform:close-through-ring (original ring descriptors count results)
                     ;; It takes one of three.
                     (fill results platform:+not-made+)
                     (platform:close-descriptor (aref descriptors 0))
                     (setf (aref results 0) 0)
                     results)
      (send-last-answers engine worker connections))
    (expect-each clients "a")
    (is (every #'closed-by-server-p clients))
    (is (zerop (statistic engine :open)))))

(define-server-test who-has-sent-more-or-may-is-closed-gently-among-others
  (dolist (sent-p '(t nil))
    (with-holding (engine worker connections clients 3)
      (destructuring-bind (first gentle third) connections
        (hold-last-answers engine worker connections clients)
        (when sent-p
          (send (second clients) "more")
          (await-input-at-rest gentle))
        (with-function (engine:more-may-come-p (original service connection)
                         (and (not sent-p) (eq connection gentle)))
          (send-last-answers engine worker connections))
        (expect-each clients "a")
        (is (engine::gone-p first))
        (is (engine::gone-p third))
        (check-lingering gentle)))))

(define-server-test who-was-not-asked-whether-more-has-come-is-closed-gently
  (with-holding (engine worker connections clients 2)
    (hold-last-answers engine worker connections clients)
    (send (first clients) "more")
    (await-input-at-rest (first connections))
    (with-function (platform:receive-through-ring (original ring descriptors octets positions count results)
                     (fill results platform:+not-made+))
      (send-last-answers engine worker connections))
    (expect-each clients "a")
    (mapc #'check-lingering connections)))

(define-server-test a-descriptor-is-not-closed-with-others-while-somebody-else-shuts-it-down
  (with-holding (engine worker connections clients 2)
    (destructuring-bind (first second) connections
      (hold-last-answers engine worker connections clients)
      (is (engine::call-while-expiring first
                                       (lambda ()
                                         (engine::send-held-output engine worker)
                                         (is (engine::gone-p first))
                                         (is (descriptor-open-p first))))
          "It was owned.")
      (is (not (descriptor-open-p first)))
      (is (engine::gone-p second))
      (expect-each clients "a")
      (is (every #'closed-by-server-p clients)))))

(define-server-test who-leaves-amid-the-end-of-one-leaves-no-other-open
  (dolist (place '(0 1 2 3))
    (with-holding (engine worker connections clients 4)
      (let ((leaving (nth place connections))
            (gentle (nthcdr 2 connections)))
        (hold-last-answers engine worker connections clients)
        (with-function (engine:more-may-come-p (original service connection)
                         (member connection gentle))
          (with-function (engine:release (original service connection)
                           (when (eq connection leaving) (throw 'away t)))
            (is (catch 'away
                  (engine::send-held-output engine worker)
                  nil))))
        (expect-each clients "a")
        (is (every #'closed-by-server-p clients))
        (dolist (connection connections)
          (if (and (member connection gentle) (not (eq connection leaving)))
              (check-lingering connection)
              (is (engine::gone-p connection))))))))
