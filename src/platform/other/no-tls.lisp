(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; Platforms where no TLS session is made: a stream of CL+SSL encrypts, or nothing does.

(macrolet ((unsupported (&rest names)
             `(progn ,@(loop for name in names
                             collect `(defun ,name (&rest arguments)
                                        (declare (ignore arguments))
                                        (error "~A needs SBCL under Linux." ',name))))))
  (unsupported make-tls-session tls-session-pointer shake-hands receive-tls send-tls
               tls-awaits tls-drained-p end-tls-session abandon-tls-session))
