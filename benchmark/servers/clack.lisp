;;;; Serves with one of Clack's handlers.

(load (merge-pathnames "application.lisp" *load-truename*))

(defun serve (port delay-ms slow-ms files backlog run
              &rest arguments &key (answer #'wait-and-answer) &allow-other-keys)
  "Call RUN, the function of a handler, with what MAKE-APPLICATION makes of DELAY-MS, SLOW-MS, FILES and
ANSWER, for PORT of 127.0.0.1, with BACKLOG if the handler knows that, and with ARGUMENTS."
  ;; Nothing is worth an orderly exit here.
  (sb-sys:enable-interrupt sb-unix:sigterm :default)
  (apply run (make-application delay-ms slow-ms files answer)
         :port port :address "127.0.0.1" :backlog backlog :debug nil :allow-other-keys t
         arguments))
