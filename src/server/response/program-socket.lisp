(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; A program socket: a connection over which a program speaks by itself, with a WebSocket library
;;;; of its own or in another protocol.  It writes octets from any thread, and is called with the
;;;; input; no worker waits for that.
;;;;
;;;; If the request was for a WebSocket, the server decodes what comes, and calls the program with
;;;; each whole message, and each control frame, as a frame of a client.  It answers what the
;;;; decoder refuses with a close frame.  It notices close frames in both directions, so that the
;;;; TCP connection ends as RFC 6455 requires (websocket-frames.lisp).  Output of the program:
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
;;;; For other protocols, the program is called with octets as they come, and all that it writes is
;;;; sent until it has closed the connection; then it is an error.
;;;;
;;;; Invariants: the program has put PUT octets into the shared queue, and all but the size of that
;;;; were sent, as far as is known.  A function that the program gives with its octets is called
;;;; once after they were sent, without a lock, one at a time.  A function that it gives with a
;;;; close frame waits, while HELD-P, until the program was informed about the end.

(defparameter *close-answer-seconds* 2
  "How many seconds a client has to answer a close frame of a program.")

(defstruct (program-socket (:include websocket)
                           (:constructor %make-program-socket
                               (application engine connection shared-queue memory decoder
                                on-message on-close ping idle-milliseconds request))
                           (:copier nil))
  "A connection over which a program speaks by itself.  ON-MESSAGE is its function for the input."
  (ping nil :read-only t)               ; PING-MILLISECONDS while pings may be sent
  (buffered '() :type list)             ; pieces that wait for a flush, the last first
  (buffered-size 0 :type unsigned-byte) ; their octets, at most the high-water mark
  (put 0 :type unsigned-byte)
  ;; Functions to be called: lists of position, kind and function.
  (written '() :type list)
  (calling-p nil)                       ; a thread calls them
  (held-p nil)                          ; see above
  (teller nil)                          ; the thread that tells the program of the end
  (told 0 :type fixnum)                 ; how often it was
  (finished-p nil)                      ; the program has closed it
  (failed-p nil))                       ; and so has a failure of the program

(defun make-program-socket (exchange frames-p &key most-octets ping-seconds idle-seconds)
  "A PROGRAM-SOCKET on the connection of EXCHANGE, over which the program speaks from now on; in the
WebSocket protocol if FRAMES-P.  Then a message has at most MOST-OCTETS, an integer.  After
PING-SECONDS without input a ping is sent, and after IDLE-SECONDS the client counts as gone; reals,
or NIL for never."
  (make-websocket exchange nil nil
                  :message-octets most-octets :idle-seconds idle-seconds
                  :ping-seconds (and frames-p ping-seconds) :frames-p frames-p :strings-p nil
                  :constructor #'%make-program-socket))

(defun begin-to-speak (socket http)
  "Makes SOCKET the suspended exchange of HTTP, whose request the current thread serves.  From now
on, output of the program is sent at once."
  (setf (http-suspended-exchange http) socket)
  (begin-shared-queue (websocket-shared-queue socket) (http-io http)))

(defun farewell-said-p (socket)
  "True when a close frame of SOCKET was sent or received."
  (/= +abnormal-end+ (websocket-code socket)))

;;; Calling the program

(defun call-program (socket function)
  "Calls FUNCTION, of a program, without arguments.  A failure ends SOCKET."
  (multiple-value-bind (condition backtrace) (call-catching function)
    (when condition
      (fail-program-socket socket condition backtrace))))

(defun fail-program-socket (socket condition backtrace)
  "Ends SOCKET because its program has failed with CONDITION, which has BACKTRACE, a string or NIL."
  (log-callback-failure socket "What speaks over the connection" condition backtrace)
  (count-failure (suspended-exchange-engine socket))
  (setf (program-socket-failed-p socket) t)
  (unless (and (websocket-decoder socket)
               (close-websocket-with socket 1011 "The server failed."))
    (close-shared-queue (websocket-shared-queue socket))
    (resume-websocket socket)))

(defun call-reader (socket octets)
  "Calls the function of the program of SOCKET with OCTETS, if it still wants any."
  (let ((reader (websocket-on-message socket)))
    (when (and reader
               (not (program-socket-finished-p socket))
               (not (program-socket-failed-p socket)))
      (call-program socket (lambda () (funcall reader octets :start 0 :end (length octets)))))))

(defun tell-of-close (socket code reason)
  "Calls the function of the program of SOCKET with a close frame with CODE and REASON.  Then the
functions that it has given with a close frame are due."
  (setf (program-socket-teller socket) (bt:current-thread))
  (incf (program-socket-told socket))
  (unwind-protect (call-reader socket (close-of-client code reason))
    (setf (program-socket-teller socket) nil
          (program-socket-held-p socket) nil)))

(defun due-p (socket position kind)
  "True when a function of KIND in the list WRITTEN of SOCKET, with POSITION, is to be called."
  (let* ((shared-queue (websocket-shared-queue socket))
         (ended-p (shared-queue-ended-p shared-queue)))
    (and (or ended-p
             (<= position (- (program-socket-put socket) (octets-waiting-in shared-queue))))
         (ecase kind
           (:data (not ended-p))        ; it may not have been sent
           (:close (or (not (program-socket-held-p socket))
                       (eq (bt:current-thread) (program-socket-teller socket))))))))

(defun call-written (socket)
  "Calls the functions in WRITTEN of SOCKET that are due, unless a thread, perhaps this one, does so
already.  True if there were any."
  (let ((caller-p nil))
    (flet ((next ()
             (with-websocket (socket)
               (when (or caller-p (not (program-socket-calling-p socket)))
                 (let ((entry (find-if (lambda (entry)
                                         (due-p socket (first entry) (second entry)))
                                       (program-socket-written socket))))
                   (setf (program-socket-written socket)
                         (remove entry (program-socket-written socket) :test #'eq)
                         caller-p (and entry t)
                         (program-socket-calling-p socket) caller-p)
                   (third entry))))))
      (when (program-socket-written socket)
        (unwind-protect (loop for function = (next)
                              while function
                              do (call-program socket function)
                              count t into count
                              finally (return (plusp count)))
          (when caller-p                ; one has exited non-locally: a worker calls the others
            (setf (program-socket-calling-p socket) nil)
            (resume socket)))))))

;;; Writing

(defun put-close-of-program (socket octets code)
  "Puts OCTETS, a close frame with CODE, into the queue of SOCKET.  The caller holds the lock."
  (when (eq :open (websocket-state socket))
    (setf (program-socket-held-p socket) t
          (websocket-code socket) code
          (websocket-closing-end socket)
          (+ (milliseconds) (as-milliseconds *close-answer-seconds*)))
    (when (failure-code-p code)
      (step-websocket socket :fail)))
  (put-close socket octets)
  :room)

(defun put-written (socket octets callback)
  "Puts OCTETS, which must not change any more, into the queue of SOCKET.  CALLBACK, a function or
NIL, is called when they were sent.  Returns the same as PUT-IN-SHARED-QUEUE, or :DROPPED if a close
frame was sent before."
  (with-websocket (socket)
    (let* ((shared-queue (websocket-shared-queue socket))
           (frames-p (websocket-decoder socket))
           (state (websocket-state socket))
           (size (length octets))
           (code (and frames-p (close-frame-code octets)))
           (result (cond ((and code (or (sending-p state) (close-owed-p state)))
                          (put-close-of-program socket octets code))
                         ((and frames-p (not (sending-p state))) :over)
                         ((plusp size)
                          (when frames-p ; is it a frame, or the end of the head of a response?
                            (setf (websocket-ping-milliseconds socket)
                                  (and (or (whole-frame-p octets)
                                           (and (<= 4 size)
                                                (equalp #(13 10 13 10) (subseq octets (- size 4)))))
                                       (program-socket-ping socket))))
                          (put-in-shared-queue shared-queue octets))
                         ((shared-queue-shut-p shared-queue) :over)
                         (t :room))))
      (when (and (eq :over result) frames-p (farewell-said-p socket))
        (when (and code (zerop (program-socket-told socket)))
          (setf (program-socket-held-p socket) t)) ; the server has closed it, and is to tell first
        (setf result :dropped))
      (when (member result '(:room :full))
        (incf (program-socket-put socket) size))
      (when (and callback (member result '(:room :full :dropped)))
        (setf (program-socket-written socket)
              (append (program-socket-written socket)
                      (list (list (program-socket-put socket)
                                  (if (or (eq :dropped result) (program-socket-held-p socket))
                                      :close
                                      :data)
                                  callback)))))
      result)))

(defun write-to-program-socket (socket octets &optional callback)
  "Sends OCTETS, a vector that must not change any more, to SOCKET.  CALLBACK, a function without
arguments or NIL, is called in any thread when the system has accepted them.  Any thread may call
this.  It waits while the queue is full, for at most the write timeout.  Signals CLIENT-LEFT."
  (loop
    (ecase (put-written socket octets callback)
      ((:room :full :dropped)
       (when (or (owner-wanted-p (websocket-shared-queue socket))
                 (not (eq :open (websocket-state socket))))
         (resume-websocket socket))
       (call-written socket)
       (return))
      (:refused
       (unless (await-room-in-websocket
                socket (or (write-seconds (suspended-exchange-application socket)) t))
         (end-websocket socket)
         (resume socket)))
      (:over (error 'client-left :source socket)))))

(defun buffer-for-program-socket (socket octets)
  "Keeps OCTETS, a vector that must not change any more, for FLUSH-PROGRAM-SOCKET; drops it if
SOCKET has ended.  Flushes when more than *HIGH-WATER-MARK* octets are kept; then it may wait and
signal as WRITE-TO-PROGRAM-SOCKET does."
  (when (with-websocket (socket)
          (unless (shared-queue-shut-p (websocket-shared-queue socket))
            (push octets (program-socket-buffered socket))
            (< *high-water-mark* (incf (program-socket-buffered-size socket) (length octets)))))
    (flush-program-socket socket)))

(defun flush-program-socket (socket &optional callback)
  "Sends all kept pieces of SOCKET as WRITE-TO-PROGRAM-SOCKET does, with CALLBACK."
  (let* ((pieces (with-websocket (socket)
                   (setf (program-socket-buffered-size socket) 0)
                   (reverse (shiftf (program-socket-buffered socket) '()))))
         (octets (make-octets (reduce #'+ pieces :key #'length)))
         (fill 0))
    (dolist (piece pieces)
      (replace octets (the octets piece) :start1 fill)
      (incf fill (length piece)))
    (write-to-program-socket socket octets callback)))

(defun finish-program-socket (socket)
  "Closes SOCKET when all its output was sent.  If that had a close frame, waits for the answer of
the client, but for at most *CLOSE-ANSWER-SECONDS*.  The program is not called any more."
  (when (program-socket-buffered socket)
    (handler-case (flush-program-socket socket)
      (client-left () nil)))            ; its end closes it anyway
  (with-websocket (socket)
    (setf (program-socket-finished-p socket) t)
    (unless (eq :closing (websocket-state socket))
      (close-shared-queue (websocket-shared-queue socket))))
  (resume-websocket socket))

(defun listen-to-program-socket (socket function)
  "Has a worker call FUNCTION with the input of SOCKET, a vector of octets and :START and :END: with
one message or control frame in the WebSocket protocol, otherwise with any number of octets; in
order, one call at a time.  With NIL, input stays in the system."
  (setf (websocket-on-message socket) function)
  (unless (owned-websocket-p socket)
    (resume socket)))

;;; The owner of the connection

(defmethod hand-over ((socket program-socket) kind value)
  (call-reader socket (if kind (frame-of-client kind value) value)))

(defmethod note-close ((socket program-socket) code reason)
  (with-websocket (socket)
    (step-websocket socket :receive-close)
    (setf (websocket-code socket) code
          (websocket-reason socket) reason
          (websocket-closing-end socket)
          (+ (milliseconds) (as-milliseconds *close-answer-seconds*))))
  (tell-of-close socket code reason)
  (when (over-p (websocket-state socket))
    (close-shared-queue (websocket-shared-queue socket))))

(defmethod continue-over ((socket program-socket) http)
  (loop
    (let ((end (websocket-closing-end socket)))
      (when (or (and end (>= (milliseconds) end))
                (and (null (websocket-on-message socket)) (peer-left-p socket)))
        (close-shared-queue (websocket-shared-queue socket))))
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
         (when (websocket-decoder socket)
           (loop while (and (< (program-socket-told socket) (if (farewell-said-p socket) 2 1))
                            (websocket-on-message socket)
                            (not (program-socket-finished-p socket))
                            (not (program-socket-failed-p socket)))
                 do (tell-of-close socket (websocket-code socket) (websocket-reason socket))))
         (setf (program-socket-held-p socket) nil)
         (call-written socket))
    (end-websocket socket)              ; the program may have ended the thread
    (setf (program-socket-buffered socket) '()
          (websocket-on-message socket) nil)
    (drop-incomplete-message socket)))

;;; Detaching: a program takes a connection away.

(defun give-away (application connection http)
  "Leaves the socket of CONNECTION, with HTTP, to a program under APPLICATION.  Returns the outcome
for CONNECTION."
  (let ((base (http-base http)))
    (setf (io-pace (http-io http)) nil)
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
           (if (hand-descriptor-over base)
               (end-when-forgotten base)
               ;; The program has just closed it.
               (close-socket (connection-descriptor connection)))
           :detached)
          (t
           (usocket:socket-stream (connection-usocket connection)) ; lends that
           (if (lent-open-p base)
               (leave-to-program connection base)
               :close)))))

(defun end-when-forgotten (base)
  "Registers a finalizer that ends the TLS session on BASE, which a program has taken away."
  (let ((session (io-tls base)))
    (when session
      (call-when-forgotten (io-stream base) (lambda () (abandon-tls-session session))))))

(defun leave-to-program (connection io)
  "Leaves the streams of CONNECTION, with IO, to the program.  Returns the outcome for CONNECTION:
its own descriptor is closed, without a farewell."
  ;; This outcome holds also if one of the next steps fails.
  (setf (connection-outcome connection) :broken)
  (leave-to-lent io)
  (setf (connection-data connection) nil
        (connection-socket connection) nil)
  :broken)
