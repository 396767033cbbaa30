(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite deployment :in acceptors
  :description "docs/guide/deploy.md, word for word.")

(in-suite deployment)

(defun program-of-page (page)
  "The text of the Lisp code in the document PAGE that tests may run, in its order."
  (format nil "~{~A~}"
          (loop for example in (examples page)
                when (and (equal "lisp" (example-language example))
                          (not (uiop:string-prefix-p "not run"
                                                     (or (example-directive example) ""))))
                  collect (example-text example))))

(defparameter *service-manager*
  "(defvar *listener* (usocket:socket-listen \"127.0.0.1\" 0))
   (setf hunchentoot-recycling-taskmaster.platform::*first-inherited-descriptor*
         (hunchentoot-recycling-taskmaster.platform:socket-descriptor *listener*)
         (uiop:getenv \"LISTEN_PID\") (princ-to-string (cffi:foreign-funcall \"getpid\" :int))
         (uiop:getenv \"LISTEN_FDS\") \"1\")
   (format t \"~&serving ~D~%\" (usocket:get-local-port *listener*))
   (finish-output)
   "
  "What a process begins with, to find a socket as systemd hands it over.")

(define-server-test (the-service-of-the-document-serves-and-ends-with-sigterm
                     :needs (:parking :systemd))
  (with-serving-program (program *service-manager*
                                 (slow-page-forms)
                                 (program-of-page "docs/guide/deploy.md")
                                 "(shop:main)")
    (is (equal "Welcome!" (ask-text "/")))
    (is (equal (format nil "ready~%") (ask-text "/health")))
    (with-connection (client)
      (send-request client "/slow")
      (await-entered 1)
      (send-signals program "TERM")
      (await-printed program "Stopping")
      (release program)
      (is (equal "slow" (response-text (read-response client))))
      (is (eql 0 (program-exit program)))
      (is-true (printed-p program "\"GET / HTTP/1.1\" 200")))))

;;; The units

(defun unit-commands (name key)
  "The commands that the file NAME in deploy/ has for KEY, such as \"ExecReload\"."
  (loop for line in (uiop:split-string (configuration name) :separator '(#\Newline))
        when (uiop:string-prefix-p (format nil "~A=" key) line)
          collect (subseq line (1+ (length key)))))

(define-server-test (a-unit-is-reloaded-by-a-signal-for-which-a-bare-machine-has-the-program
                     :needs :systemd)
  (dolist (name '("shop.service" "shop@.service"))
    (destructuring-bind (command) (unit-commands name "ExecReload")
      (is (uiop:string-prefix-p "/bin/sh -c " command)) ; there may be no /bin/kill
      (call-with-command
       (lambda (program)
         (await-printed program "begins")
         (uiop:run-program (list "env" (format nil "MAINPID=~A" (program-number program))
                                 "sh" "-c" command))
         (is (eql 7 (program-exit program))))
       (constantly '("sh" "-c" "trap 'exit 7' HUP; echo begins; while :; do sleep 0.05; done"))))))
