(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* crowds :in acceptors
  :description "Many clients that stall, beside one that does not.")

(defparameter *crowd-size* 110
  "How many clients stall in each way: more than there may be threads by default.")

(defparameter *crowd-seconds* 1
  "How many seconds the server waits for a client that stalls.")

(defparameter *threads-for-crowds* 10
  "How many threads more there may be beside clients that stall.")

(defparameter *unread-answer* (make-array (* 12 1024 1024) :element-type '(unsigned-byte 8)
                                                           :initial-element 120)
  "What clients ask for and do not read.")

(defun stall (connection kind)
  "Lets CONNECTION, to *SERVER*, stall in the way called KIND."
  (ecase kind
    (:handshake (send connection (coerce '(22 3 1) 'octet-vector)))
    (:silent)
    (:idle (exchange-text connection "/word"))
    (:half-head (send connection "GET /word HTTP/1.1" :crlf "Host: loc"))
    (:slow-content (send connection "POST /word HTTP/1.1" :crlf "Host: localhost" :crlf
                         "Content-Length: 100000" :crlf :crlf))
    (:reads-nothing (send-request connection "/unread"))))

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
                      (let ((connection (connect)))
                        (base:unless-returned (progn (stall connection kind)
                                                     connection)
                          (disconnect connection))))))

(defun make-crowd (kinds)
  "Pairs of one of KINDS and a connection to *SERVER* that has stalled so, *CROWD-SIZE* of each
kind."
  (loop for kind in kinds
        append (loop repeat *crowd-size*
                     collect (cons kind (stalled kind)))))

(defun send-slow-content (crowd)
  "Sends another octet on those connections of CROWD on which content comes slowly."
  (loop for (kind . connection) in crowd
        when (eq :slow-content kind)
          do (try-to-send connection "x")))

(defun outlive-crowd (crowd)
  "Asks *SERVER* again and again until all connections of CROWD are closed.  Returns the most
threads that there were, and the milliseconds of the slowest answer but one: that a single one is
slow may be the machine's fault."
  (loop with deadline = (deadline-after (* 4 *patience*))
        for began = (platform:milliseconds)
        do (is (equal "word" (call-unless-late (lambda () (ask-text "/word")))))
        collect (- (platform:milliseconds) began) into times
        maximize (figure :threads) into threads
        until (poll (lambda () (zerop (figure :open))) 1/20)
        do (send-slow-content crowd)
           (when (zerop (seconds-until deadline))
             (lose-patience "the clients that stall to be given up" (* 4 *patience*)))
        finally (return (values threads (or (second (sort times #'>)) 0)))))

(defun call-after-crowd (function kinds &key (make-connection *make-connection*))
  "Calls FUNCTION when an acceptor with time limits of a second has closed all clients that stall in
the ways KINDS, on connections by MAKE-CONNECTION; with how many threads there were more than
before, and with the milliseconds of the slowest answer but one to a client that did not stall."
  (serving (:read-timeout *crowd-seconds* :write-timeout *crowd-seconds*
            :content-grace *crowd-seconds*)
      (("/word" "word") ("/unread" *unread-answer*))
    (let ((idle (progn (ask-text "/word") (figure :threads)))
          (crowd '()))
      (unwind-protect
           (progn
             (setf crowd (let ((*make-connection* make-connection)) (make-crowd kinds)))
             (multiple-value-bind (threads slowest) (outlive-crowd crowd)
               (funcall function (- threads idle) slowest)))
        (loop for (nil . connection) in crowd do (disconnect connection))))))

(defun check-not-noticed (threads slowest)
  "Checks that a crowd took no THREADS, and was not waited for by the SLOWEST answer."
  (is (<= threads *threads-for-crowds*))
  (is (< slowest (* 300 *patience*)))
  (is (zerop (figure :failed))))

(define-server-test (clients-that-stall-are-given-up-and-noticed-by-nobody :needs :parking)
  (call-after-crowd #'check-not-noticed '(:idle :half-head :slow-content :reads-nothing)))

(define-server-test (clients-that-stall-over-tls-are-given-up-and-noticed-by-nobody
                     :needs (:parking :tls-client))
  (over-tls
    (call-after-crowd #'check-not-noticed '(:silent :half-head :slow-content :reads-nothing))))

(define-server-test (clients-that-stall-in-handshakes-are-given-up :needs (:our-engine :tls-client))
  (over-tls
    (call-after-crowd (lambda (threads slowest)
                        ;; Without parking others may have to wait for the deadline.
                        (if *parking-p*
                            (check-not-noticed threads slowest)
                            (is (< slowest (* 500 *patience*))))
                        (is (= *crowd-size* (getf (figure :expired-by) :handshake))))
                      '(:handshake) :make-connection '%make-connection)))
