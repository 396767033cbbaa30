(in-package #:hunchentoot-recycling-taskmaster-test)

;;; After a test there must be no thread and no descriptor more than before.

(defparameter *highest-descriptor* 511
  "The leak check looks at descriptors up to this number.  Systems give out the
lowest number that is free, so a leak is soon among them.")

(defun incidental-thread-p (thread)
  "Whether THREAD is made by the Lisp itself when it feels like it."
  (search "finalizer" (princ-to-string (bt:thread-name thread)) :test #'char-equal))

(defun incidental-target-p (target)
  "Whether a descriptor on TARGET is opened by the Lisp itself when it feels like it."
  (some (lambda (ending) (uiop:string-suffix-p target ending))
        '(".so" ".fas" "random" "/null")))

(defun open-descriptors ()
  "Pairs of number and target for every open descriptor; NIL where the system
does not tell."
  (loop for number to *highest-descriptor*
        for target = (descriptor-target number)
        when (and target (not (incidental-target-p target)))
          collect (cons number target)))

(defun leaks-since (threads descriptors)
  "Noun phrases for what there is now beyond the lists THREADS and DESCRIPTORS."
  (append
   (loop for thread in (set-difference (bt:all-threads) threads)
         unless (incidental-thread-p thread)
           collect (format nil "thread ~S" (bt:thread-name thread)))
   (loop for (number . target) in (set-difference (open-descriptors) descriptors
                                                  :test #'equal)
         collect (format nil "descriptor ~D on ~A" number target))))

(defun call-without-leaks (function)
  "Calls FUNCTION; then checks, in the sense of FiveAM, that all threads and
descriptors that it brought into being are gone within *PATIENCE* seconds."
  (let ((threads (bt:all-threads))
        (descriptors (open-descriptors)))
    (multiple-value-prog1 (funcall function)
      (poll (lambda () (null (leaks-since threads descriptors))))
      (let ((leaks (leaks-since threads descriptors)))
        (is (null leaks) "Left behind: ~{~A~^, ~}." leaks)))))
