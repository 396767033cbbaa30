(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; The heap, functions of other libraries, and backtraces.

(defun heap-octets ()
  "The maximum size of the heap of this Lisp, in octets, an integer."
  (sb-ext:dynamic-space-size))

(defun heap-used ()
  "The number of octets of the heap in use, an integer, with garbage that was not collected yet."
  (sb-kernel:dynamic-usage))

(defun collection-seconds ()
  "For how many seconds of processor time garbage was collected since the start of this Lisp, a
rational."
  (/ sb-ext:*gc-run-time* internal-time-units-per-second))

(defun collect-garbage ()
  "Collects all garbage.  All threads stop meanwhile."
  (sb-ext:gc :full t))

(defun call-when-forgotten (object function)
  "Calls FUNCTION, a function without arguments, in some thread after OBJECT has become garbage.
FUNCTION must not refer to OBJECT."
  (sb-ext:finalize object function :dont-save t))

(defun functions-can-be-wrapped-p ()
  "True: WRAP-FUNCTION has an effect."
  t)

(defun wrap-function (name wrapper)
  "Wraps the global function NAME: from now on, its calls call WRAPPER, a function designator, with
the original function and the arguments.  A redefinition of NAME does not undo that.  A second call
for NAME has no effect."
  (unless (sb-int:encapsulated-p name 'hunchentoot-recycling-taskmaster)
    (sb-int:encapsulate name 'hunchentoot-recycling-taskmaster
                        (lambda (function &rest arguments)
                          (declare (dynamic-extent arguments))
                          (apply wrapper function arguments)))))

(defun call-in-saved-images (function)
  "Has FUNCTION, a symbol, called without arguments when a process of an image that is saved from
now on begins."
  (pushnew function sb-ext:*init-hooks*))

(defun frames-above (caller)
  "The first frame of a backtrace, and the number of frames before that of the function named
CALLER; the number of all frames if there is no such function."
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
  "A backtrace of the caller, a string.  It ends before the function named CALLER, a symbol, and has
at most LENGTH elements of each list and no elements of vectors other than strings.  FUNCTION, of
another library, which returns a backtrace with all of them, is not called here."
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
