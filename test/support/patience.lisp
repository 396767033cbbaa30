(in-package #:hunchentoot-recycling-taskmaster-test)

;;; Every wait of every test goes through this file, so that it is bounded and
;;; fails with a sentence.  The one call of SLEEP in the tests is here.

(defvar *patience* (parse-integer (or (uiop:getenv "PATIENCE") "10"))
  "Seconds that any wait of a test may last before the test fails; the environment variable PATIENCE
says another number, for a machine that is busy with other things.")

(defun slow-lisp-p ()
  "True on the Lisps that take milliseconds for what takes SBCL microseconds."
  (member (uiop:implementation-type) '(:ecl :abcl)))

(defun rounds (count)
  "COUNT, how often a test repeats a step; a tenth of it on a slow Lisp."
  (if (slow-lisp-p) (ceiling count 10) count))

(defun sample-on-slow-lisps (list &optional (step 5))
  "LIST; on a slow Lisp every element whose position is a multiple of STEP.  A prime number meets
all values of a factor in a list of combinations."
  (if (slow-lisp-p)
      (loop for rest = list then (nthcdr step rest)
            while rest collect (first rest))
      list))

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
  ;; The clock of GET-INTERNAL-REAL-TIME goes on SBCL in steps of 4 ms: what is to take a while
  ;; would take less.
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

;;; A client that must not be late

(defvar *limit* nil
  "The limit of time of the server, in seconds, that CALL-WITH-GROWING-LIMIT tries now.")

(defvar *limit-began* nil
  "When the limit has begun for the calls of CALL-PROMPTLY, in microseconds; NIL for each call.")

(defun come-too-late ()
  "Ends the current try of WITH-GROWING-LIMIT, which says nothing of the server: the client, or a
thread of the server, was late."
  (throw 'too-late nil))

(defun call-promptly (function)
  "The values of FUNCTION, which does what must be done within the current limit.  Ends the current
try, also where FUNCTION signals an error, if that has taken longer, or nearly as long."
  (let ((began (or *limit-began* (platform:microseconds))))
    (flet ((look ()
             (when (< (* 3/4 1000000 *limit*) (- (platform:microseconds) began))
               (come-too-late))))
      (handler-bind ((error (lambda (condition)
                              (declare (ignore condition))
                              (look))))
        (multiple-value-prog1 (funcall function)
          (look))))))

(defmacro promptly (&body body)
  "The values of BODY, the part of a try of WITH-GROWING-LIMIT that must not be late.  The server
may break it off when the limit has passed, so it has no checks in it."
  `(call-promptly (lambda () ,@body)))

(defun call-with-growing-limit (function)
  "Calls FUNCTION with seconds until it has come to its end."
  (loop for seconds in '(1/2 2 8 32)
        do (catch 'too-late
             (return (let ((*limit* seconds))
                       (funcall function seconds))))
        finally (lose-patience "a client that is not late" 32)))

(defmacro with-growing-limit ((seconds) &body body)
  "Evaluates BODY, a test of a limit of time of the server of SECONDS, which is short.  Where the
machine was so busy that a part of BODY that must be done PROMPTLY was not, BODY is evaluated again
with a longer limit."
  `(call-with-growing-limit (lambda (,seconds)
                              (declare (ignorable ,seconds))
                              ,@body)))

(defmacro with-prompt-connection ((connection) &body body)
  "Evaluates BODY as WITH-CONNECTION does, in WITH-GROWING-LIMIT; what is done PROMPTLY there must
be done within the limit from the opening of CONNECTION on."
  `(let ((*limit-began* (platform:microseconds)))
     (with-connection (,connection) ,@body)))
