(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* fronts/crowds :in fronts
  :description "Many clients that stall, beside one that does not.")

(defparameter *crowd-size* 20
  "How many clients stall in most ways: more than there may be threads.")

(defparameter *crowd-seconds* 1
  "How many seconds the server waits for a client that stalls.")

(defun stall (connection kind)
  "Lets CONNECTION, to *SERVER*, stall in the way called KIND."
  (ecase kind
    (:handshake (send connection (as-octets '(22 3 1))))
    (:silent)
    (:idle (exchange-text connection "/word"))
    (:half-head (send connection "GET /word HTTP/1.1" :crlf "Host: loc"))
    (:slow-content (send connection "POST /word HTTP/1.1" :crlf "Host: localhost" :crlf
                         "Content-Length: 100000" :crlf :crlf))
    (:reads-nothing (send-request connection "/large"))))

(defun call-unless-late (function)
  "Calls FUNCTION, by which a client does something for which the server waits *CROWD-SECONDS*.
Signals its error only where the client was in time.  Else the machine is to blame, and FUNCTION is
called again."
  (loop
    (let ((deadline (deadline-after *crowd-seconds*)))
      (handler-case (return (funcall function))
        (error (condition)
          (when (plusp (seconds-until deadline))
            (error condition)))))))

(defun stalled (kind)
  "A connection to *SERVER* that has stalled in the way called KIND."
  (call-unless-late (lambda ()
                      (let* ((*make-connection* (if (eq :handshake kind)
                                                    '%make-connection
                                                    *make-connection*))
                             (connection (connect)))
                        (base:unless-returned (progn (stall connection kind)
                                                     connection)
                          (disconnect connection))))))

(defun outlive-crowd (crowd)
  "Asks *SERVER* again and again, until all connections of CROWD, pairs of a kind and a connection,
are closed.  Returns the milliseconds of the slowest answer but one: that a single one is slow may
be the machine's fault."
  (loop with deadline = (deadline-after (* 4 *patience*))
        for began = (platform:milliseconds)
        do (is (equal "word" (call-unless-late (lambda () (ask-text "/word")))))
        collect (- (platform:milliseconds) began) into times
        until (poll (lambda () (zerop (figure :open))) 1/20)
        do (loop for (kind . connection) in crowd
                 when (eq :slow-content kind)
                   do (try-to-send connection "x"))
           (when (zerop (seconds-until deadline))
             (lose-patience "the clients that stall to be given up" (* 4 *patience*)))
        finally (return (or (second (sort times #'>)) 0))))

(define-front-test (clients-that-stall-are-given-up-and-noticed-by-nobody
                    :modes (:plain :tls) :needs :parking)
  (with-globals ((http:*content-grace* *crowd-seconds*))
    (with-front (request :worker-num 1 :max-thread-count 4
                         :read-timeout *crowd-seconds* :write-timeout *crowd-seconds*)
        (reply 200 '() *large-answer*)
      (let ((crowd '()) (kinds (list (if (eq :tls *mode*) :handshake :silent)
                                     :idle :half-head :slow-content :reads-nothing)))
        (unwind-protect
             (progn
               (dolist (kind kinds)
                 (loop repeat (if (eq :reads-nothing kind) 5 *crowd-size*) ; memory is short
                       do (push (cons kind (stalled kind)) crowd)))
               (is (< (outlive-crowd crowd) (* 300 *patience*)))
               (loop for (kind least) in `((:handshake ,(if (eq :tls *mode*) *crowd-size* 0))
                                           (:idle ,*crowd-size*) (:head ,*crowd-size*)
                                           (:body ,*crowd-size*) (:write 5))
                     do (is (<= least (getf (figure :expired-by) kind)) "~A" kind)))
          (loop for (nil . connection) in crowd do (disconnect connection)))))))
