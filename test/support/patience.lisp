(in-package #:hunchentoot-recycling-taskmaster-test)

;;; Every wait of every test goes through this file, so that it is bounded and
;;; fails with a sentence.  The one call of SLEEP in the tests is here.

(defvar *patience* (parse-integer (or (uiop:getenv "PATIENCE") "10"))
  "Seconds that any wait of a test may last before the test fails; the environment variable PATIENCE says another number,
for a machine that is busy with other things.")

(define-condition patience-lost (error)
  ((what :initarg :what :reader patience-lost-what)
   (seconds :initarg :seconds :reader patience-lost-seconds))
  (:report (lambda (condition stream)
             (format stream "After ~D second~:P still waiting for ~A."
                     (patience-lost-seconds condition)
                     (patience-lost-what condition))))
  (:documentation "What a test waited for did not happen in time."))

(defun lose-patience (what &optional (seconds *patience*))
  "Signals that WHAT, a noun phrase, did not come about within SECONDS."
  (error 'patience-lost :what what :seconds seconds))

(defun deadline-after (seconds)
  "The moment SECONDS from now, to be asked of by SECONDS-UNTIL."
  ;; The clock of GET-INTERNAL-REAL-TIME goes on SBCL in steps of 4 ms: what is to take a while would take less.
  (+ (platform:microseconds) (ceiling (* seconds 1000000))))

(defun seconds-until (deadline)
  "Seconds left until DEADLINE; zero when it has passed."
  (max 0 (/ (- deadline (platform:microseconds)) 1000000)))

(defun poll (predicate &optional (patience *patience*))
  "Calls PREDICATE in growing steps of 1 to 20 ms until it returns true, and
returns that value; or NIL when PATIENCE seconds have passed."
  (loop with deadline = (deadline-after patience)
        for step = 1/1000 then (min 1/50 (* 2 step))
        do (let ((value (funcall predicate)))
             (when value (return value)))
           (when (zerop (seconds-until deadline)) (return nil))
           (sleep step)))

(defmacro eventually ((what &key (patience '*patience*)) &body body)
  "Evaluates BODY again and again until it yields true, and returns that value.
When PATIENCE seconds pass before, signals PATIENCE-LOST with the noun phrase WHAT."
  `(or (poll (lambda () ,@body) ,patience)
       (lose-patience ,what ,patience)))
