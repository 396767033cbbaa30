(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite service-manager :in acceptors
  :description "What programs tell the service manager that has started them: sd_notify(3).")

(in-suite service-manager)

;;; A service manager: a datagram socket

(defstruct (manager (:constructor make-manager (name socket)))
  name socket
  (messages '()))                       ; the last first

(defun take-messages (manager)
  "The messages that MANAGER has got, the oldest first."
  (loop for message = (receive-datagram (manager-socket manager))
        while message do (push message (manager-messages manager)))
  (reverse (manager-messages manager)))

(defun got-p (manager line)
  "True when MANAGER has got a message with a line that begins with LINE."
  (some (lambda (message)
          (some (lambda (other) (uiop:string-prefix-p line other)) (log-lines message)))
        (take-messages manager)))

(defun await-message (manager line)
  (eventually ((format nil "the message ~A" line)) (got-p manager line)))

(defun forget-messages (manager)
  (take-messages manager)
  (setf (manager-messages manager) '()))

(defun states-of (manager)
  "The first lines of the messages of MANAGER, without the watchdog's."
  (loop for message in (take-messages manager)
        for line = (first (log-lines message))
        unless (string= "WATCHDOG=1" line)
          collect line))

(defun call-with-manager (function name watchdog-microseconds)
  "Calls FUNCTION with a manager whose socket is NAME, while the environment names that."
  (let ((socket (open-datagram-socket name)))
    (unwind-protect
         (with-environment (("NOTIFY_SOCKET" name)
                            ("WATCHDOG_USEC" watchdog-microseconds) ("WATCHDOG_PID" ""))
           (funcall function (make-manager name socket)))
      (close-datagram-socket socket))))

(defmacro with-manager ((manager &key (watchdog "")) &body body)
  "Evaluates BODY with MANAGER bound to a service manager, while the environment names it.
WATCHDOG, a string, is the number of microseconds for which its watchdog waits."
  (let ((directory (gensym "DIRECTORY")))
    `(with-directory (,directory)
       (call-with-manager (lambda (,manager) ,@body)
                          (uiop:native-namestring (merge-pathnames "notify" ,directory))
                          ,watchdog))))

;;; Order

(defun check-states (manager form)
  "Checks what the program of FORM tells MANAGER from its start to its end."
  (with-serving-program (program form)
    (await-message manager "READY=1")
    (send-signals program "TERM")
    (is (eql 0 (program-exit program)))
    (is (equal '("READY=1" "STOPPING=1") (states-of manager)))))

(define-server-test (a-service-manager-is-told-of-start-and-stop :needs :parking)
  (with-manager (manager)
    (check-states manager (signalled-acceptor)))
  ;; In the abstract namespace.
  (call-with-manager (lambda (manager) (check-states manager (clack-program)))
                     (format nil "@hunchentoot-recycling-taskmaster-~D" (process-number)) ""))

(define-server-test (a-service-manager-hears-nothing-of-a-start-that-fails :needs :parking)
  (with-manager (manager)
    (with-program (program (signalled-acceptor ":port -1"))
      (is (eql 1 (program-exit program :patience (patience-to-load))))
      (is (null (take-messages manager))))))

;;; The watchdog

(defun starved-p (manager seconds)
  "True when the watchdog of MANAGER is not fed for SECONDS."
  (forget-messages manager)
  (not (poll (lambda () (got-p manager "WATCHDOG=1")) seconds)))

(define-server-test (the-watchdog-is-fed-only-while-the-pool-serves :needs :parking)
  (with-manager (manager :watchdog "300000")
    (with-serving-program (program
                           (slow-page-forms)
                           (signalled-acceptor
                            ":taskmaster
                               (make-instance
                                'hunchentoot-recycling-taskmaster:recycling-taskmaster
                                :max-thread-count 1)"))
      (with-connection (idle)
        (is (equal "0" (exchange-text idle "/entered")))
        (loop repeat 3
              do (forget-messages manager)
                 (await-message manager "WATCHDOG=1")))
      (with-connection (client)
        (send-request client "/slow")
        (eventually ("the watchdog to be hungry" :patience (* 6 *patience*))
          (starved-p manager 1))
        (release program)
        (is (equal "slow" (response-text (read-response client)))))
      (await-message manager "WATCHDOG=1"))))

;;; The environment

(define-server-test (the-watchdog-of-another-process-is-not-fed :needs :parking)
  (with-manager (manager :watchdog "300000")
    (with-environment (("WATCHDOG_PID" "1"))
      (with-serving-program (program (signalled-acceptor))
        (await-message manager "READY=1")
        (is-true (starved-p manager 1))))))

(define-server-test (a-manager-that-is-not-there-is-ignored :needs :parking)
  (with-environment (("NOTIFY_SOCKET" "/nonexistent/notify")
                     ("WATCHDOG_USEC" "abc") ("WATCHDOG_PID" ""))
    (with-serving-program (program (page-form "/yo" "\"Hey!\"") (signalled-acceptor))
      (is (equal "Hey!" (ask-text "/yo")))
      (send-signals program "HUP")
      (await-printed program "renewed")
      (send-signals program "TERM")
      (is (eql 0 (program-exit program))))))

(define-server-test (programs-that-a-service-starts-do-not-speak-for-it :needs :parking)
  (with-manager (manager :watchdog "6000000")
    (with-serving-program (program
                           (page-form "/env" "(uiop:run-program '(\"env\") :output :string)")
                           (signalled-acceptor))
      (await-message manager "READY=1")
      (let ((environment (ask-text "/env")))
        (is (search "PATH=" environment))
        (is (not (search "NOTIFY_SOCKET" environment)))
        (is (not (search "WATCHDOG_" environment))))
      (await-message manager "WATCHDOG=1"))))

;;; The units

(defun write-units (directory)
  "Writes the units of the guide to DIRECTORY, with a program that exists; returns their files."
  (loop for name in '("shop.service" "shop@.service" "shop.socket")
        for text = (configuration name)
        collect (uiop:native-namestring
                 (write-file directory name
                             (if (search "/srv/shop/shop" text)
                                 (substituted text "/srv/shop/shop" "/bin/sh")
                                 text)))))

(defun analyzed (analyze &rest arguments)
  "The code and the output of the command ANALYZE with ARGUMENTS."
  (multiple-value-bind (output errors code)
      (uiop:run-program (cons analyze arguments)
                        :output :string :error-output :output :ignore-error-status t)
    (declare (ignore errors))
    (values code output)))

(test the-units-of-the-guide-are-without-mistakes-and-hardened
  (where-program (analyze "systemd-analyze")
    (with-directory (directory)
      (let ((units (write-units directory)))
        (multiple-value-bind (code output) (apply #'analyzed analyze "verify" units)
          (is (eql 0 code))
          (is (not (search "shop" output)) "~A" output))
        ;; The exposure is at most 2.0 of 10.
        (multiple-value-bind (code output)
            (analyzed analyze "security" "--offline=true" "--threshold=20" (first units))
          (is (eql 0 code) "~A" output))))))
