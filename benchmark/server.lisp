(in-package #:hunchentoot-recycling-taskmaster-benchmark)

;;;; A rival that runs.

(defparameter *patience-to-start* 120
  "Seconds that a server has to answer for the first time; a Lisp one may have to
be compiled first.")

(defstruct server
  "RIVAL running as PROCESS on PORT, over TLS if TLS-P.  What it prints goes to the file LOG, its
own files are in DIRECTORY.  ANSWER is the first that it gave, to a client that wanted one only;
HUNG-UP-P: did it hang up then?  LEFT-AT is when, in internal real time, it was last left alone."
  rival process port tls-p directory log answer hung-up-p (left-at (get-internal-real-time)))

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
seconds, as a string; and whether it has ended."
  (let ((ended-p nil))
    (values (with-output-to-string (text)
              (loop while (usocket:wait-for-input socket :timeout 2 :ready-only t)
                    for octet = (read-byte (usocket:socket-stream socket) nil)
                    do (setf ended-p (null octet))
                    until ended-p
                    do (write-char (code-char octet) text)))
            ended-p)))

(defparameter *line-end* (coerce '(#\Return #\Newline) 'string)
  "What ends a line of HTTP.")

(defun request-text (path body)
  "A GET of PATH, or a POST of BODY unless that is NIL, on a connection to be closed then."
  (format nil "~:{~a~a~}~@[~a~]"
          (loop for line in `(,(format nil "~:[GET~;POST~] ~a HTTP/1.1" body path)
                              "Host: localhost"
                              "Connection: close"
                              ,@(and body `(,(format nil "Content-Length: ~d" (length body))))
                              "")
                collect (list line *line-end*))
          body))

(defun ask-plainly (port request)
  "All that the server on PORT answers to REQUEST, a string, and whether it closed the connection;
or NIL if it does not answer."
  (handler-case
      (usocket:with-client-socket (socket stream "127.0.0.1" port
                                          :timeout 2 :element-type '(unsigned-byte 8))
        (write-sequence (map '(vector (unsigned-byte 8)) #'char-code request) stream)
        (finish-output stream)
        (multiple-value-bind (answer ended-p) (read-available socket)
          (and (plusp (length answer))
               (values answer ended-p))))
    ((or usocket:socket-error stream-error) () nil)))

(defun ask (server &key (path "/yo") body)
  "The whole answer of SERVER to one request for PATH, with BODY if that is not NIL, on a connection
to be closed then, and whether the server closed it; or NIL if there is no answer."
  (funcall (if (server-tls-p server) #'ask-by-tls #'ask-plainly)
           (server-port server) (request-text path body)))

(defun head-length (answer)
  "The length of the head of ANSWER, with the empty line that ends it; NIL without one."
  (let ((end (search (format nil "~a~:*~a" *line-end*) answer)))
    (and end (+ end 4))))

(defun answer-body (answer)
  "What follows the head of ANSWER."
  (subseq answer (or (head-length answer) 0)))

(defun wait-for-answer (server)
  "Ask SERVER until it answers, and return the answer, and whether it hung up then.  UNAVAILABLE
when it ends before that, or takes too long, or answers otherwise."
  (let ((answer nil)
        (hung-up-p nil))
    (wait-until (lambda ()
                  (setf (values answer hung-up-p) (ask server))
                  (or answer (not (alive-p server))))
                *patience-to-start* 0.1)
    (cond ((not (alive-p server))
           (unavailable "it ended while starting; what it printed is in logs/~a"
                        (file-namestring (server-log server))))
          ((not (stringp answer)) (unavailable "it did not answer within ~d s" *patience-to-start*))
          ((not (equal (answer-body answer) "Hey!"))
           (unavailable "it answers ~s" (first-line answer)))
          (t (values answer hung-up-p)))))

(defun start-server (rival delay-ms log &key certificate)
  "Start RIVAL with a handler that waits DELAY-MS, over TLS with CERTIFICATE, a directory, unless
that is NIL, and return the SERVER once it answers; what it prints goes to the file LOG.
UNAVAILABLE when it doesn't."
  (let* ((port (free-port))
         (directory (make-fresh-directory))
         (process (launch (command rival port delay-ms directory certificate) :log log))
         (server (make-server :rival rival :process process :port port
                              :tls-p (and certificate t) :directory directory :log log))
         (started-p nil))
    (unwind-protect
         (progn (setf (values (server-answer server) (server-hung-up-p server))
                      (wait-for-answer server)
                      started-p t)
                server)
      (unless started-p (stop-server server)))))

(defun alive-p (server)
  "Does SERVER still run?"
  (running-p (server-process server)))

(defun stop-server (server)
  "End SERVER and remove its directory."
  (end-process (server-process server))
  (remove-directory (server-directory server)))

;;; Who hangs up should say so

(defun announces-end-p (answer)
  "Does the head of ANSWER tell a client that the connection ends then?"
  (or (uiop:string-prefix-p "HTTP/1.0" answer)
      (loop for line in (uiop:split-string (subseq answer 0 (head-length answer))
                                           :separator '(#\Newline))
            for (name value) = (fields line #\:)
              thereis (and (string-equal name "Connection")
                           (search "close" value :test #'char-equal)))))

(defun silent-close-p (server)
  "Does SERVER hang up on clients that want one answer only, without saying so in that answer?
wrk reads nothing but the answer, so it asks again, and counts a read error when it finds the
connection closed."
  (and (server-hung-up-p server)
       (not (announces-end-p (server-answer server)))))

;;; What is to be measured must work first

(defun expected-size (kind)
  "How many octets the body has that KIND asks for."
  (or (loop for (name . size) in *served-sizes*
            when (uiop:string-suffix-p (kind-path kind) name)
              return size)
      (length "Hey!")))

(defun good-answer-p (answer kind)
  "Is ANSWER, a string or NIL, what a request of KIND is to get?"
  (and answer
       (uiop:string-prefix-p "HTTP/1.1 200" answer)
       (= (expected-size kind) (length (answer-body answer)))))

(defun check-answer (server workload)
  "UNAVAILABLE unless SERVER answers a request of WORKLOAD as it should.  That it answers those for
/yo is known since it was started."
  (let* ((kind (kind-of workload))
         (path (kind-path kind)))
    (unless (string= path "/yo")
      (let ((answer (ask server :path path :body (and (kind-posted kind) "Hello"))))
        (unless (good-answer-p answer kind)
          (unavailable "to a request for ~a it answers ~:[nothing~;~:*~s~]" path
                       (and answer (first-line answer))))))))

;;; Rest

(defparameter *rest* 10
  "Seconds that a server is left alone before a burst, for its threads to go to rest.")

(defun await-rest (server)
  "Wait until SERVER was left alone long enough."
  (let ((waited (/ (- (get-internal-real-time) (server-left-at server))
                   internal-time-units-per-second)))
    (sleep (max 0 (- *rest* waited)))))

(defun leave-alone (server)
  "From now on SERVER is at rest."
  (setf (server-left-at server) (get-internal-real-time)))
