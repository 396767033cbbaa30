(in-package #:hunchentoot-recycling-taskmaster-benchmark)

;;;; A rival that runs.

(defparameter *patience-to-start* 120
  "Seconds that a server has to answer for the first time; a Lisp one may have to
be compiled first.")

(defstruct server
  "RIVAL running as PROCESS on PORT.  What it prints goes to the file LOG, its own files
are in DIRECTORY.  ANSWER is the first that it gave."
  rival process port directory log answer)

(defun server-name (server)
  "The name of SERVER's rival."
  (rival-name (server-rival server)))

(defun free-port ()
  "A port of 127.0.0.1 that nobody listens on now."
  (let ((socket (usocket:socket-listen "127.0.0.1" 0 :reuse-address t)))
    (unwind-protect (usocket:get-local-port socket)
      (usocket:socket-close socket))))

(defun read-available (socket)
  "All that comes through SOCKET until its end, or until nothing has come for two
seconds, as a string."
  (with-output-to-string (text)
    (loop while (usocket:wait-for-input socket :timeout 2 :ready-only t)
          for octet = (read-byte (usocket:socket-stream socket) nil)
          while octet
          do (write-char (code-char octet) text))))

(defparameter *line-end* (coerce '(#\Return #\Newline) 'string)
  "What ends a line of HTTP.")

(defun request-octets ()
  "A GET of /yo on a connection that is to be closed then."
  (map '(vector (unsigned-byte 8)) #'char-code
       (format nil "GET /yo HTTP/1.1~aHost: localhost~:*~aConnection: close~:*~a~:*~a" *line-end*)))

(defun ask (port)
  "The whole answer of the server on PORT to one request, or NIL if there is none."
  (handler-case
      (usocket:with-client-socket (socket stream "127.0.0.1" port
                                          :timeout 2 :element-type '(unsigned-byte 8))
        (write-sequence (request-octets) stream)
        (finish-output stream)
        (read-available socket))
    ((or usocket:socket-error stream-error) () nil)))

(defun head-length (answer)
  "The length of the head of ANSWER, with the empty line that ends it; NIL without one."
  (let ((end (search (format nil "~a~:*~a" *line-end*) answer)))
    (and end (+ end 4))))

(defun answer-body (answer)
  "What follows the head of ANSWER."
  (subseq answer (or (head-length answer) 0)))

(defun wait-for-answer (process port)
  "Ask the server of PROCESS on PORT until it answers, and return the answer.
UNAVAILABLE when it ends before that, or takes too long, or answers otherwise."
  (let ((answer (wait-until (lambda () (or (ask port) (not (running-p process))))
                            *patience-to-start* 0.1)))
    (cond ((not (running-p process)) (unavailable "it ended while starting"))
          ((not (stringp answer)) (unavailable "it did not answer within ~d s" *patience-to-start*))
          ((not (equal (answer-body answer) "Hey!"))
           (unavailable "it answers ~s" (first-line answer)))
          (t answer))))

(defun make-fresh-directory ()
  "A directory for temporary files that nobody else uses."
  (uiop:ensure-directory-pathname (first-line (output-of '("mktemp" "-d")))))

(defun start-server (rival delay-ms log)
  "Start RIVAL with a handler that waits DELAY-MS and return the SERVER once it
answers; what it prints goes to the file LOG.  UNAVAILABLE when it doesn't."
  (let* ((port (free-port))
         (directory (make-fresh-directory))
         (process (launch (command rival port delay-ms directory) :log log))
         (server (make-server :rival rival :process process :port port
                              :directory directory :log log))
         (started-p nil))
    (unwind-protect
         (progn (setf (server-answer server) (wait-for-answer process port)
                      started-p t)
                server)
      (unless started-p (stop-server server)))))

(defun alive-p (server)
  "Does SERVER still run?"
  (running-p (server-process server)))

(defun stop-server (server)
  "End SERVER and remove its directory."
  (end-process (server-process server))
  (uiop:delete-directory-tree (server-directory server) :validate t :if-does-not-exist :ignore))
