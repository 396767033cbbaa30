(in-package #:hunchentoot-recycling-taskmaster-benchmark)

(defclass progress ()
  ((left :initarg :left :accessor seconds-left
         :documentation "Seconds planned for what is still to do.")
   (planned :initform 0 :accessor seconds-planned
            :documentation "Seconds that were planned for what is done.")
   (taken :initform 0 :accessor seconds-taken
          :documentation "Seconds that it took."))
  (:documentation "How far a run is, and how good its plan was so far."))

(defun forget (progress seconds)
  "Of the plan of PROGRESS, SECONDS will not be needed."
  (decf (seconds-left progress) seconds))

(defun estimate (progress)
  "The seconds that PROGRESS still has to go, as the plan says, put right by how
long things have taken until now."
  (* (max 0 (seconds-left progress))
     (if (plusp (seconds-planned progress))
         (/ (seconds-taken progress) (seconds-planned progress))
         1)))

(defun call-with-step (progress seconds text function)
  "Say TEXT and how long PROGRESS will still take, and call FUNCTION, for which
SECONDS are planned.  Return what it returns, a string that ends the line first."
  (format t "~&~14@a left  ~a " (duration (estimate progress)) text)
  (finish-output)
  (let ((start (get-internal-real-time)))
    (unwind-protect (funcall function)
      (forget progress seconds)
      (incf (seconds-planned progress) seconds)
      (incf (seconds-taken progress)
            (/ (- (get-internal-real-time) start) internal-time-units-per-second)))))

(defmacro with-step ((progress seconds control &rest arguments) &body body)
  "Evaluate BODY as one step of PROGRESS, for which SECONDS are planned, under a line
made of CONTROL and ARGUMENTS."
  `(call-with-step ,progress ,seconds (format nil ,control ,@arguments)
                   (lambda () ,@body)))
