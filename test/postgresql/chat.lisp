(in-package #:hunchentoot-recycling-taskmaster-test)

;;; The chat in three processes, behind HAProxy, with a PostgreSQL that is restarted.
;;; CHECK-CHAT-OVER-PROCESSES has arguments for a run with more clients, by hand.

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
                       (list* :size (hunchentoot-recycling-taskmaster:channel-size
                                     hunchentoot-recycling-taskmaster-chat::*everybody*)
                              (hunchentoot-recycling-taskmaster:broker-stats
                               (hunchentoot-recycling-taskmaster-chat-processes:chat-broker
                                hunchentoot:*acceptor*)))))")
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
  "The statistics of the broker of PROGRAM, and the :SIZE of its channel."
  (let ((*server* program))
    (with-standard-io-syntax (let ((*read-eval* nil)) (read-from-string (ask-text "/broker"))))))

;;; Clients

(defstruct (chatter (:constructor make-chatter (talk name expected)))
  "A client of the chat called NAME.  EXPECTED has the next number of each publisher, whose names
are p0, p1 and so on; COUNT is how many numbers have come, and WRONG tells of one that was not the
next."
  talk name expected (count 0) wrong)

(defun note-text (chatter text)
  "Notes TEXT, which has come to CHATTER, unless it is no number of a publisher."
  (let ((colon (position #\: text)))
    (when (and colon (char= #\p (char text 0)))
      (let ((publisher (parse-integer text :start 1 :end colon))
            (number (parse-integer text :start (1+ colon))))
        (if (= number (aref (chatter-expected chatter) publisher))
            (setf (aref (chatter-expected chatter) publisher) (1+ number)
                  (chatter-count chatter) (1+ (chatter-count chatter)))
            (setf (chatter-wrong chatter) text))))))

(defun note-octets (chatter octets end)
  "Takes OCTETS up to END, which have come to CHATTER."
  (let ((talk (chatter-talk chatter)) (start 0))
    (loop while (< start end)
          do (multiple-value-bind (kind next value)
                 (websocket:decode-message (talk-decoder talk) octets start end)
               (setf start next)
               (case kind
                 (:text (note-text chatter value))
                 (:ping (tell talk (frame :pong value))))))))

(defun follow-chat (chatter)
  "Reads what comes to CHATTER, to the end."
  (let* ((talk (chatter-talk chatter))
         (stream (connection-stream (talk-connection talk)))
         (socket (usocket:socket (connection-socket (talk-connection talk))))
         (buffer (make-array 16384 :element-type '(unsigned-byte 8))))
    (loop while (listen stream)         ; what the stream has read behind the handshake
          do (setf (aref buffer 0) (read-byte stream))
             (note-octets chatter buffer 1))
    (loop for end = (handler-case (nth-value 1 (sb-bsd-sockets:socket-receive socket buffer nil))
                      (sb-bsd-sockets:socket-error () nil))
          while (and end (plusp end))
          do (note-octets chatter buffer end))))

(defun say-numbers (chatter publisher count window gate)
  "Says the numbers below COUNT as CHATTER, the PUBLISHERth, of which at most WINDOW have not come
back.  Says the second half of them when GATE is open."
  (let ((expected (chatter-expected chatter)))
    (loop for number below count
          do (when (= number (floor count 2))
               (await gate (* 60 *patience*)))
             (eventually ("what was said to come back" :patience (* 60 *patience*))
               (< (- number (aref expected publisher)) window))
             (tell (chatter-talk chatter) (princ-to-string number)))))

(defun open-chatter (port number publishers)
  "The NUMBERth client of the chat on PORT."
  (let* ((name (format nil "~:[c~;p~]~D" (< number publishers) number))
         (connection (connect port)))
    (make-chatter (open-talk connection
                             :handshake (list :target (format nil "/chat/socket?name=~A" name)))
                  name (make-array publishers :initial-element 0))))

(defun close-chatter (chatter)
  (let ((socket (connection-socket (talk-connection (chatter-talk chatter)))))
    (ignore-errors (sb-bsd-sockets:socket-shutdown (usocket:socket socket) :direction :io))))

(defun call-with-chatters (function port count publishers)
  "Calls FUNCTION with COUNT clients of the chat on PORT, which read what comes."
  (let ((chatters '()) (readers '()))
    (unwind-protect
         (progn
           (dotimes (number count)
             (push (open-chatter port number publishers) chatters))
           (dolist (chatter chatters)
             (let ((chatter chatter))
               (push (in-background ("chatting") (follow-chat chatter)) readers)))
           (funcall function (reverse chatters)))
      (mapc #'close-chatter chatters)
      (mapc #'task-result readers)
      (dolist (chatter chatters)
        (disconnect (talk-connection (chatter-talk chatter)))))))

(defun check-chat-over-processes (&key (clients 30) (publishers 6) (messages 300) (window 10)
                                    (patience (* 6 *patience*)))
  "Checks that MESSAGES, of PUBLISHERS, reach CLIENTS of three processes, each once and in order for
each publisher, while PostgreSQL is away once.  A publisher waits when WINDOW of its messages have
not come back, and after the first half until PostgreSQL is away."
  (with-chat (database programs port)
    (call-with-chatters
     (lambda (chatters)
       (eventually ("all to have come" :patience patience)
         (= clients (reduce #'+ programs :key (lambda (program)
                                                (getf (chat-stats program) :size)))))
       (dolist (program programs)
         (is (= (/ clients 3) (getf (chat-stats program) :size))))
       (let* ((each (/ messages publishers))
              (away (make-gate "the database to be away"))
              (begin (platform:milliseconds))
              (sayers (loop for chatter in chatters
                            for publisher below publishers
                            collect (let ((chatter chatter) (publisher publisher))
                                      (in-background ("saying")
                                        (say-numbers chatter publisher each window away))))))
         (eventually ("a third to have come" :patience patience)
           (< (floor messages 3) (chatter-count (first chatters))))
         (stop-database database)
         (open-gate away)
         (eventually ("messages to wait for the database" :patience patience)
           (some (lambda (program) (plusp (getf (chat-stats program) :queued))) programs))
         (start-database database)
         (dolist (sayer sayers)
           (task-result sayer patience))
         (eventually ("all to have come to all" :patience patience)
           (every (lambda (chatter)
                    (or (<= messages (chatter-count chatter))
                        (chatter-wrong chatter)))
                  chatters))
         (format t "~&~D messages to ~D clients in ~,1F seconds.~%" messages clients
                 (/ (- (platform:milliseconds) begin) 1000)))
       (is (null (remove nil (mapcar #'chatter-wrong chatters))))
       (is (= (* clients messages) (reduce #'+ chatters :key #'chatter-count)))
       (is (plusp (reduce #'+ programs
                          :key (lambda (program) (getf (chat-stats program) :late)))))
       (dolist (program programs)
         (let ((stats (chat-stats program)))
           (format t "~&~{~A ~A~^, ~}~%" stats)
           (is (zerop (getf stats :lost)))
           (is (zerop (getf stats :refused))))))
     port clients publishers)))

(define-server-test a-chat-over-three-processes-misses-nothing-while-its-database-is-restarted
  (check-chat-over-processes))

(defun cookies-of (response)
  "The cookies that RESPONSE sets, as a client sends them."
  (format nil "~{~A~^; ~}"
          (loop for value in (response-header-values response "set-cookie")
                collect (subseq value 0 (position #\; value)))))

(define-server-test a-client-behind-haproxy-stays-with-the-process-of-its-session
  (with-chat (database programs port)
    (is (= 3 (length programs)))
    (dotimes (client 6)
      (let ((cookies nil))
        (loop for visit from 1 to 4
              do (with-connection (connection port)
                   (let ((response (exchange connection "/visits"
                                             :headers (and cookies `(("Cookie" . ,cookies))))))
                     (setf cookies (or cookies (cookies-of response)))
                     (is (search "process=" cookies))
                     (is (string= (princ-to-string visit) (response-text response))))))))))
