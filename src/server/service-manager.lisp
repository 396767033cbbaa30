(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; What a program tells the service manager that has started it, systemd, say: see sd_notify(3).
;;;;
;;;;   message                         when
;;;;   READY=1                         the server accepts connections, and a reload is over
;;;;   RELOADING=1 MONOTONIC_USEC=...  a reload begins
;;;;   STOPPING=1                      a stop begins
;;;;   STATUS=...                      with READY=1, and in each period if it is another one
;;;;   WATCHDOG=1                      in each period, if the pool has served what it was asked to
;;;;
;;;; The main thread sends them all, so they come in order.  A worker only leaves it an errand.
;;;;
;;;; READY=1 and RELOADING=1 wait a while for a manager whose queue is full, since it would take the
;;;; start or the reload for failed without them.  The other messages never wait.  The manager can
;;;; do without STOPPING=1, and what a period has lost comes with the next one.

(defstruct (manager (:include opaque)
                    (:constructor make-manager (socket watchdog-seconds complaint)))
  "A service manager."
  (socket nil :type string :read-only t)
  (watchdog-seconds nil :type (or null real) :read-only t) ; it restarts what is silent for longer
  (complaint nil :type (or null string)) ; about its variables
  (due 0 :type integer)                 ; the moment of the next period
  (asked nil)                           ; the engine whose pool was asked to serve, and has not yet
  (status nil)                          ; the last one
  (served 0 :type integer)              ; requests, at that time
  (served-at 0 :type integer)           ; the moment of that
  (unheard-p nil))                      ; that it hears nothing was told

;;; The environment

(defun watchdog-complaint (name text)
  "A sentence, without its full stop, about the environment variable NAME, which is TEXT."
  (format nil "~A is ~S, not an integer above 0, so the watchdog is not fed" name text))

(defun take-manager ()
  "The MANAGER that the environment names, or NIL.  Removes its variables: programs that this one
starts must not speak in its name."
  (let ((socket (take-variable "NOTIFY_SOCKET")))
    (multiple-value-bind (microseconds unfit-microseconds) (take-number "WATCHDOG_USEC")
      (multiple-value-bind (process unfit-process) (take-number "WATCHDOG_PID")
        (when socket
          (make-manager socket
                        (and microseconds
                             (not unfit-process)
                             (member process (list nil (process-number)))
                             (/ microseconds 1000000))
                        (cond (unfit-microseconds
                               (watchdog-complaint "WATCHDOG_USEC" unfit-microseconds))
                              (unfit-process
                               (watchdog-complaint "WATCHDOG_PID" unfit-process)))))))))

;;; Messages

(defparameter *notification-seconds* 2
  "How many seconds READY=1 and RELOADING=1 wait for room in the queue of the service manager.")

(defun notify (manager server text &key (seconds 0))
  "Sends MANAGER, or NIL for none, TEXT about SERVER.  Waits for room up to SECONDS.  True when TEXT
was sent.  Tells the operator the first time that this fails."
  (when manager
    (let ((reason (send-notification (manager-socket manager) text seconds)))
      (when (and reason (not (shiftf (manager-unheard-p manager) t)))
        (tell-operator server :warning
                       (format nil "The service manager hears nothing: NOTIFY_SOCKET is ~S: ~A"
                               (manager-socket manager) reason)))
      (null reason))))

(defun rate-of-requests (manager served)
  "How many requests were served in a second since the last call, where there are SERVED by now."
  (let* ((now (milliseconds))
         (passed (- now (shiftf (manager-served-at manager) now)))
         (more (- served (shiftf (manager-served manager) served))))
    (if (plusp passed)
        (max 0 (round (* 1000 more) passed))
        0)))

(defun status-of (manager server)
  "A line about SERVER for MANAGER."
  (destructuring-bind (&key open busy served &allow-other-keys) (stats server)
    (format nil "~D connection~:P, ~D busy thread~:P, ~D request~:P/s, ~D request~:P served"
            open busy (rate-of-requests manager served) served)))

(defun notify-status (manager server)
  "Sends MANAGER the figures of SERVER, unless it has them already."
  (let ((status (status-of manager server)))
    (unless (equal status (manager-status manager))
      (setf (manager-status manager)
            (and (notify manager server (format nil "STATUS=~A" status))
                 status)))))

(defun notify-ready (manager server)
  "Tells MANAGER, or NIL for none, that SERVER has started, and the operator what is wrong with the
manager's variables."
  (when manager
    (when (manager-complaint manager)
      (tell-operator server :warning (manager-complaint manager)))
    (let ((status (status-of manager server)))
      (setf (manager-status manager)
            (and (notify manager server (format nil "READY=1~%STATUS=~A" status)
                         :seconds *notification-seconds*)
                 status)))))

(defun call-as-reload (manager server function)
  "Calls FUNCTION, a reload of SERVER, and tells MANAGER, or NIL for none, when it begins and ends."
  (notify manager server (format nil "RELOADING=1~%MONOTONIC_USEC=~D" (microseconds))
          :seconds *notification-seconds*)
  (funcall function)
  (notify manager server "READY=1" :seconds *notification-seconds*))

;;; In each period

(defun report-to-manager (manager server stopping-p on-answer)
  "Tells MANAGER, or NIL for none, about SERVER when a period is over, and asks the pool of SERVER
to serve, for the watchdog: ON-ANSWER, a function, is called in any thread when it has done so.  The
watchdog ends when the server begins to stop: STOPPING-P."
  (when (and manager (<= (manager-due manager) (milliseconds)))
    (let ((seconds (manager-watchdog-seconds manager))
          (engine (server-engine server)))
      (setf (manager-due manager)
            ;; The watchdog wants to be fed within half of its time.
            (+ (milliseconds) (max 10 (min 10000 (if seconds (floor (* 1000 seconds) 3) 10000)))))
      (notify-status manager server)
      ;; One question at a time, or a pool that hangs would collect them.
      (unless (or (null seconds) stopping-p (null engine) (eq engine (manager-asked manager)))
        (setf (manager-asked manager) engine)
        (call-when-pool-serves engine on-answer)))))

(defun feed-watchdog (manager server)
  "Tells the watchdog of MANAGER that the pool of SERVER has served."
  (setf (manager-asked manager) nil)
  (notify manager server "WATCHDOG=1"))
