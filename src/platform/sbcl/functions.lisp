(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; Functions of other libraries, and who called them; the heap.

(defun heap-octets ()
  "How many octets the heap of this Lisp may have, an integer."
  (sb-ext:dynamic-space-size))

(defun heap-used ()
  "How many octets of the heap are in use, those of garbage that was not collected included."
  (sb-kernel:dynamic-usage))

(defun collect-garbage ()
  "Collects all garbage there is.  All threads wait for that."
  (sb-ext:gc :full t))

(defun call-when-forgotten (object function)
  "Calls FUNCTION, of no arguments, which must not refer to OBJECT, in some thread when nobody has
OBJECT any more."
  (sb-ext:finalize object function :dont-save t))

(defun functions-can-be-wrapped-p ()
  "True: WRAP-FUNCTION has an effect."
  t)

(defun wrap-function (name wrapper)
  "From now on, calls of the global function NAME call WRAPPER, a function designator, with the
function that NAME means otherwise, and the arguments.  Lasts when NAME is defined anew; does
nothing the second time."
  (unless (sb-int:encapsulated-p name 'hunchentoot-recycling-taskmaster)
    (sb-int:encapsulate name 'hunchentoot-recycling-taskmaster
                        (lambda (function &rest arguments)
                          (declare (dynamic-extent arguments))
                          (apply wrapper function arguments)))))

(defun frames-above (caller)
  "The frame where a backtrace begins, and how many there are up to that of the function named
CALLER, which does not count; all of them where there is none."
  (let ((first nil) (count 0))
    (sb-debug::map-backtrace
     (lambda (frame)
       (when (eq caller (sb-di:debug-fun-name (sb-di:frame-debug-fun frame)))
         (return-from frames-above (values first count)))
       (unless first
         (setf first frame))
       (incf count))
     :count most-positive-fixnum)
    (values first count)))

(defun call-for-backtrace (function length caller)
  "A backtrace of the caller as a string, without the function named CALLER, a symbol, and those
that called it, with no more than LENGTH elements of any list and none of vectors that are no
strings; FUNCTION, of another library, would return it with all of them."
  (declare (ignore function))
  (handler-case
      (with-output-to-string (stream)
        (let ((sb-debug:*debug-print-variable-alist*
                (list* (cons '*print-length* length) (cons '*print-array* nil)
                       sb-debug:*debug-print-variable-alist*)))
          (multiple-value-bind (frame count) (frames-above caller)
            (sb-debug:print-backtrace :stream stream :from frame :count count
                                      :emergency-best-effort t))))
    (error (condition)
      (format nil "Could not generate backtrace: ~A." condition))))
