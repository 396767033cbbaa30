(in-package #:hunchentoot-recycling-taskmaster-test)

;;; The chat in three processes, behind HAProxy, with a PostgreSQL that is restarted.

(in-suite postgresql)

(defun chat-forms (database)
  "Forms of a program that serves examples/chat-processes.lisp, and pages for the test."
  (list "(hunchentoot-recycling-taskmaster-scripts:load-own
          \"hunchentoot-recycling-taskmaster/postgresql\")"
        (format nil "(setf (uiop:getenv \"PGHOST\") ~S)
                     (load ~S)"
                (database-folder-name database) (project-file "examples/chat-processes.lisp"))
        (page-form "/visits" "(progn (hunchentoot:start-session)
                                (princ-to-string
                                 (setf (hunchentoot:session-value :visits)
                                       (1+ (or (hunchentoot:session-value :visits) 0)))))")
        (page-form "/broker"
                   "(let ((*print-pretty* nil))
                      (prin1-to-string
                       (hunchentoot-recycling-taskmaster:broker-stats
                        (hunchentoot-recycling-taskmaster-chat-processes:chat-broker
                         hunchentoot:*acceptor*))))")
        "(hunchentoot-recycling-taskmaster-chat-processes:serve
          :port 0 :address \"127.0.0.1\" :trusted-proxies '(\"127.0.0.1\")
          :access-log-destination nil)"))

(defun call-with-chat-programs (function database count)
  "Calls FUNCTION with a list of COUNT programs that serve the chat."
  (labels ((begin (programs)
             (if (= count (length programs))
                 (progn (mapc #'await-serving programs)
                        (funcall function programs))
                 (call-with-lisp-program (lambda (program) (begin (cons program programs)))
                                         (format nil "~{~A~%~}" (chat-forms database))))))
    (begin '())))

(defun call-behind-haproxy (function programs)
  "Calls FUNCTION with the port of an HAProxy in front of PROGRAMS, three, as
deploy/haproxy-processes.cfg says."
  (where-program (haproxy "haproxy")
    (with-proxy-files (directory)
      (let ((port (free-port)))
        (apply #'call-with-proxy (lambda () (funcall function port))
               port (haproxy-command haproxy directory port (mapcar #'port-of programs)))))))

(defmacro with-chat ((database programs port) &body body)
  "Evaluates BODY with DATABASE, PROGRAMS, three that serve the chat, and PORT, of an HAProxy in
front of them."
  `(with-database (,database)
     (call-with-chat-programs (lambda (,programs)
                                (call-behind-haproxy (lambda (,port) ,@body) ,programs))
                              ,database 3)))

(defun chat-stats (program)
  "The statistics of the broker of PROGRAM."
  (let ((*server* program))
    (with-standard-io-syntax (let ((*read-eval* nil)) (read-from-string (ask-text "/broker"))))))

(defun chat-total (programs key)
  (reduce #'+ programs :key (lambda (program) (getf (chat-stats program) key))))

;;; Clients

(defun join-chat (connection name)
  "A talk over CONNECTION with the chat, as NAME, which has come."
  (let ((talk (open-talk connection
                         :handshake (list :target (format nil "/chat/socket?name=~A" name)))))
    (loop until (equal (format nil "~A came." name) (hear-text talk)))
    talk))

(defun follow-chat (talk numbers)
  "Hears what comes by TALK until six have said 50 numbers each.  NUMBERS, a vector, gets how
many of each publisher have come.  Returns a text that came out of order, or NIL."
  (loop until (every (lambda (number) (= 50 number)) numbers)
        do (let* ((text (second (hear-kind talk :text)))
                  (colon (position #\: text)))
             (when (and colon (char= #\p (char text 0)))
               (let ((publisher (parse-integer text :start 1 :end colon)))
                 (unless (= (aref numbers publisher) (parse-integer text :start (1+ colon)))
                   (return text))
                 (incf (aref numbers publisher)))))))

(define-server-test (a-chat-over-three-processes-misses-nothing-while-its-database-is-restarted
                     :needs :parking)
  (with-chat (database programs port)
    (with-connections (connections 30 port)
      (let* ((*patience* (* 6 *patience*))
             (away (make-gate "the database to be away"))
             (talks (loop for connection in connections
                          for name from 0
                          collect (join-chat connection (format nil "p~D" name))))
             (numbers (loop for nil in talks collect (make-array 6 :initial-element 0)))
             (followers (loop for talk in talks
                              for own in numbers
                              collect (let ((talk talk) (own own))
                                        (in-background ("following") (follow-chat talk own)))))
             (sayers (loop for talk in talks
                           for publisher below 6
                           collect (let ((talk talk))
                                     (in-background ("saying")
                                       (dotimes (number 50)
                                         (when (= 25 number)
                                           (await away))
                                         (tell talk (princ-to-string number))))))))
        (eventually ("a third to have come")
          (< 100 (reduce #'+ (first numbers))))
        (stop-database database)
        (open-gate away)
        (eventually ("messages to wait for the database") (plusp (chat-total programs :queued)))
        (start-database database)
        (mapc #'task-result sayers)
        (is (every #'null (mapcar #'task-result followers)))
        (is (zerop (chat-total programs :lost)))
        (is (zerop (chat-total programs :refused)))))))
