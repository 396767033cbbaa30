(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; A program socket: a connection over which a program speaks by itself, with a WebSocket library
;;;; of its own.  It writes octets from any thread, and is called with the input; no worker waits
;;;; for that.
;;;;
;;;; The server decodes what comes, and calls the program with each whole message, and each control
;;;; frame, as a frame of a client.  It answers what the decoder refuses with a close frame.  It
;;;; notices close frames in both directions, so that the TCP connection ends as RFC 6455 requires
;;;; (websocket-frames.lisp).  Output of the program:
;;;;
;;;;   state              a close frame                          other octets
;;;;   :OPEN              sent; the client's is awaited, unless  sent
;;;;                      the code is that of a failure
;;;;   :CLOSED-BY-CLIENT  sent; then the connection ends         dropped
;;;;   :CLOSING, :CLOSED  dropped                                dropped
;;;;   :GONE              dropped if a close frame was sent or   likewise
;;;;                      received; otherwise an error
;;;;
;;;; A program that has not closed the connection itself gets a close frame at the end, as if from
;;;; the client.  It has the code of the client's close frame, or of the server's, or 1006 if there
;;;; was none.  Some libraries answer the first close frame, and close at the next one: so they get
;;;; two, the client's included.  A program that has failed is not called again.
;;;;
;;;; A function that the program gives with its octets is called once all that waited was sent.  One
;;;; that it gives with a close frame, or with what was dropped, is called after the program was
;;;; called with a close frame, or at the end.  They are called without a lock, one at a time.

(defstruct (program-socket (:include websocket)
                           (:constructor %make-program-socket
                               (application engine connection on-message on-close ping-milliseconds
                                idle-milliseconds request))
                           (:copier nil))
  "A connection over which a program speaks by itself.  ON-MESSAGE is its function for the input."
  (written '() :type list)              ; functions for when all was sent
  (farewells '() :type list)            ; functions for when the program knows of the end
  (calling-p nil)                       ; a thread calls them
  (told 0 :type fixnum)                 ; how often the program was told of the end
  (finished-p nil))                     ; the program has closed it

(defun make-program-socket (exchange message-octets ping-seconds idle-seconds)
  "A PROGRAM-SOCKET on the connection of EXCHANGE; MESSAGE-OCTETS, PING-SECONDS and IDLE-SECONDS are
as MAKE-WEBSOCKET takes them."
  (make-websocket exchange nil nil
                  :message-octets message-octets :ping-seconds ping-seconds
                  :idle-seconds idle-seconds :strings-p nil
                  :constructor #'%make-program-socket))

(defun farewell-said-p (socket)
  "True when a close frame of SOCKET was sent or received."
  (/= +abnormal-end+ (websocket-code socket)))

;;; Calling the program

(defun call-reader (socket octets)
  "Calls the function of the program of SOCKET with OCTETS, if it still wants any."
  (let ((reader (websocket-on-message socket)))
    (when (and reader
               (not (program-socket-finished-p socket))
               (not (websocket-failed-p socket)))
      (call-for-websocket socket nil reader octets :start 0 :end (length octets)))))

(defun tell-of-close (socket)
  "Calls the function of the program of SOCKET with a close frame."
  (call-reader socket (close-frame (websocket-code socket) (websocket-reason socket) 0))
  (incf (program-socket-told socket)))

(defun call-written (socket)
  "Calls the functions of SOCKET that are due, unless a thread, perhaps this one, does so already.
True if there were any."
  (flet ((next ()
           (with-lock-briefly ((websocket-lock socket))
             (unless (program-socket-calling-p socket)
               (let* ((shared-queue (websocket-shared-queue socket))
                      (function (cond ((and (program-socket-written socket)
                                            (zerop (octets-waiting-in shared-queue))
                                            (not (shared-queue-ended-p shared-queue)))
                                       (pop (program-socket-written socket)))
                                      ((plusp (program-socket-told socket))
                                       (pop (program-socket-farewells socket))))))
                 (setf (program-socket-calling-p socket) (and function t))
                 function)))))
    (loop for function = (next)
          while function
          do (unwind-protect (call-for-websocket socket nil function)
               (setf (program-socket-calling-p socket) nil))
          count t into count
          finally (return (plusp count)))))

;;; Writing

(defun put-written (socket octets callback)
  "Puts OCTETS, which must not change any more, into the queue of SOCKET.  CALLBACK, a function or
NIL, is called when they were sent.  Returns the same as PUT-IN-SHARED-QUEUE, or :DROPPED if a close
frame was sent before."
  (with-lock-briefly ((websocket-lock socket))
    (let* ((shared-queue (websocket-shared-queue socket))
           (state (websocket-state socket))
           (code (close-frame-code octets))
           (result (cond ((and code (or (sending-p state) (close-owed-p state)))
                          (when (eq :open state)
                            (note-code socket code "")
                            (when (failure-code-p code)
                              (step-websocket socket :fail)))
                          (put-close socket octets)
                          :room)
                         ((not (sending-p state))
                          (if (farewell-said-p socket) :dropped :over))
                         ((plusp (length octets)) (put-in-shared-queue shared-queue octets))
                         ((shared-queue-shut-p shared-queue) :over)
                         (t :room))))
      (when (and (eq :over result) (farewell-said-p socket))
        (setf result :dropped))
      (when (and callback (member result '(:room :full :dropped)))
        (if (or code (eq :dropped result))
            (setf (program-socket-farewells socket)
                  (append (program-socket-farewells socket) (list callback)))
            (setf (program-socket-written socket)
                  (append (program-socket-written socket) (list callback)))))
      result)))

(defun write-to-program-socket (socket octets &optional callback)
  "Sends OCTETS, a vector that must not change any more, to SOCKET.  CALLBACK, a function without
arguments or NIL, is called in any thread when the system has accepted them.  Any thread may call
this.  It waits while the queue is full, for at most the write timeout.  Signals CLIENT-LEFT."
  (let ((result (put-waiting (websocket-shared-queue socket)
                             (or (write-seconds (suspended-exchange-application socket)) t)
                             (lambda () (put-written socket octets callback)))))
    (when (eq :refused result)
      (end-websocket socket))
    (unless (eq :open (websocket-state socket))
      (resume-websocket socket))
    (call-written socket)
    (when (member result '(:refused :over))
      (error 'client-left :source socket))))

(defun finish-program-socket (socket)
  "Closes SOCKET when all its output was sent.  If that had a close frame, waits for the answer of
the client, but for at most *CLOSING-SECONDS*.  The program is not called any more."
  (with-lock-briefly ((websocket-lock socket))
    (setf (program-socket-finished-p socket) t)
    (unless (eq :closing (websocket-state socket))
      (close-shared-queue (websocket-shared-queue socket))))
  (resume-websocket socket))

(defun listen-to-program-socket (socket function)
  "Has a worker call FUNCTION with the input of SOCKET, a vector of octets and :START and :END: with
one message or control frame after the other.  With NIL, input stays in the system."
  (setf (websocket-on-message socket) function)
  (resume-websocket socket))

;;; The owner of the connection

(defmethod hand-over ((socket program-socket) kind value more)
  (case kind
    (:failure (call-next-method))
    (:close
     (with-lock-briefly ((websocket-lock socket))
       (step-websocket socket :receive-close)
       (note-code socket value more))
     (tell-of-close socket))
    (t (call-reader socket (frame-of kind value 0)))))

(defmethod continue-over ((socket program-socket) http)
  (loop
    (when (and (null (websocket-on-message socket)) (peer-left-p socket))
      (close-shared-queue (websocket-shared-queue socket)))
    (let* ((outcome (continue-websocket socket (http-io http)))
           (called-p (and (member outcome '(:deferred :again))
                          (call-written socket)))) ; which may have written, or closed it
      (unless (and called-p (eq :deferred outcome))
        (return outcome)))))

(defmethod abandon ((socket program-socket))
  (unwind-protect
       (progn
         (call-written socket)
         (say-farewell socket)
         (end-websocket socket)
         (loop while (< (program-socket-told socket) (if (farewell-said-p socket) 2 1))
               do (tell-of-close socket))
         (call-written socket))
    (end-websocket socket)              ; the program may have ended the thread
    (setf (websocket-on-message socket) nil)
    (drop-incomplete-message socket)))

;;; Detaching: a program takes a connection away.

(defun give-away (application connection http)
  "Leaves the socket of CONNECTION, with HTTP, to a program under APPLICATION.  Returns the outcome
for CONNECTION."
  (let ((base (http-base http)))
    (abandon-content http)              ; a non-local exit out of the request has not done so
    (cond ((null base)
           (setf (connection-outcome connection) :detached))
          ((null (io-descriptor base)) :close)
          ((encrypted-p application)
           (finish-output (http-stream http))
           ;; OpenSSL has the number of the descriptor, so the program must get this one.  From then
           ;; on that number may at any moment be that of another connection.
           (detach (worker-engine *worker*) connection)
           (setf (connection-outcome connection) :detached)
           (send-output base)
           (setf (io-owner base) :stream) ; whose CLOSE closes it
           (unless (io-descriptor base) ; the program has just closed it
             (close-socket (connection-descriptor connection)))
           :detached)
          (t
           (usocket:socket-stream (connection-usocket connection)) ; lends that
           (if (lent-open-p base)
               (leave-to-program connection base)
               :close)))))

(defun leave-to-program (connection io)
  "Leaves the streams of CONNECTION, with IO, to the program.  Returns the outcome for CONNECTION:
its own descriptor is closed, without a farewell."
  ;; This outcome holds also if one of the next steps fails.
  (setf (connection-outcome connection) :broken)
  (send-output io)
  (set-blocking (lisp-stream-descriptor (io-lent io)) t) ; as programs expect
  (carry-by io (io-lent io))
  (setf (connection-data connection) nil
        (connection-socket connection) nil)
  :broken)
