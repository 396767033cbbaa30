(in-package #:hunchentoot-recycling-taskmaster-test)

;;; The chat in several processes; brokers.lisp has what becomes of messages, restarts.lisp what
;;; HAProxy does in front of processes.

(in-suite postgresql)

(defun chat-forms (database)
  "Forms of a program that serves examples/chat-processes.lisp."
  (list "(hunchentoot-recycling-taskmaster-scripts:load-own
          \"hunchentoot-recycling-taskmaster/postgresql\")"
        (format nil "(setf (uiop:getenv \"PGHOST\") ~S)
                     (load ~S)"
                (database-folder-name database) (project-file "examples/chat-processes.lisp"))
        "(hunchentoot-recycling-taskmaster-chat-processes:serve
          :port 0 :address \"127.0.0.1\" :access-log-destination nil)"))

(defun await-said (talk text)
  "Checks that TEXT comes by TALK, perhaps after others."
  (is (equal text (loop for heard = (hear-text talk)
                        until (or (equal text heard) (not (stringp heard)))
                        finally (return heard)))))

(define-server-test (a-chat-over-several-processes-is-one :needs :parking)
  (with-database (database)
    (with-program (one (chat-forms database))
      (with-program (other (chat-forms database))
        (let ((connections '()))
          (unwind-protect
               (let ((talks (loop for program in (list one other)
                                  for name in '("Ann" "Bob")
                                  do (await-serving program)
                                     (push (connect (port-of program)) connections)
                                  collect (open-talk (first connections)
                                                     :handshake
                                                     `(:target ,(format nil "/chat/socket?name=~A"
                                                                        name))))))
                 (await-said (first talks) "Bob came.")
                 (tell (first talks) "Hello")
                 (dolist (talk talks)
                   (await-said talk "Ann: Hello")))
            (mapc #'disconnect connections)))))))
