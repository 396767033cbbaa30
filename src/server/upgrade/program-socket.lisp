(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; A program socket: a connection over which a program speaks by itself, with a WebSocket library
;;;; of its own or in another protocol.  It writes octets from any thread, and is called with the
;;;; input; no worker waits for that.  program-input.lisp has the input and the end.
;;;;
;;;; If the request was for a WebSocket, the server notices close frames in both directions, so that
;;;; the TCP connection ends as RFC 6455 requires (websocket-state.lisp).  Output of the program:
;;;;
;;;;   state              a close frame                          other octets
;;;;   :OPEN              sent; the client's is awaited, unless  sent
;;;;                      the code is that of a failure
;;;;   :CLOSED-BY-CLIENT  sent; then the connection ends         dropped
;;;;   :CLOSING, :CLOSED  dropped                                dropped
;;;;   :GONE              dropped if a close frame was sent or   likewise
;;;;                      received; otherwise an error
;;;;
;;;; For other protocols, all is sent until the program has closed the connection; then it is an
;;;; error.
;;;;
;;;; Invariants: the program has put PUT octets into the shared queue, and all but the size of that
;;;; were sent, as far as is known.  A function that the program gives with its octets is called
;;;; once after they were sent, without a lock, one at a time.  A function that it gives with a
;;;; close frame waits, while HELD-P, until the program was informed about the end.

(defparameter *close-answer-seconds* 2
  "How many seconds a client has to answer a close frame of a program.")

(defstruct (program-socket (:include websocket)
                           (:constructor %make-program-socket
                               (application engine connection shared-queue frames-p most-octets
                                ping idle-milliseconds heard &optional request))
                           (:copier nil))
  "A connection over which a program speaks by itself."
  (frames-p nil :read-only t)           ; it speaks the WebSocket protocol
  (most-octets 0 :type unsigned-byte :read-only t) ; of payload, of a message and of a frame
  (ping nil :read-only t)               ; PING-MILLISECONDS while pings may be sent
  ;; The function of the program for the input of PROGRAM-SOCKET, or NIL.
  (reader nil)
  ;; A worker must read octets that came before there was a READER, or call functions in WRITTEN.
  (worker-wanted-p nil)
  (held nil :type (or null octets))     ; of a frame that has not come whole, FILL octets
  (fill 0 :type index)
  (message-size 0 :type unsigned-byte)  ; octets of payload of a message that has not ended
  (text-p nil)                          ; it is a text
  (buffered '() :type list)             ; pieces that wait for a flush, the last first
  (buffered-size 0 :type unsigned-byte) ; their octets, at most the high-water mark
  (put 0 :type unsigned-byte)
  ;; Functions to be called: lists of position, kind and function.
  (written '() :type list)
  (caller nil)                          ; the thread that calls them, if any
  (held-p nil)                          ; see above
  (teller nil)                          ; the thread that tells the program of the end
  (told 0 :type fixnum)                 ; how often it was
  ;; The payload of the close frame that was sent or received.
  (farewell nil :type (or null octets))
  (finished-p nil)                      ; the program has closed it
  (failed-p nil))                       ; and so has a failure of the program

(defun make-program-socket (exchange frames-p
                            &key (most-octets (* 1024 1024)) ping-seconds idle-seconds)
  "A PROGRAM-SOCKET on the connection of EXCHANGE, over which the program speaks from now on; in the
WebSocket protocol if FRAMES-P.  Then a message has at most MOST-OCTETS, an integer.  After
PING-SECONDS without input a ping is sent, and after IDLE-SECONDS the client counts as gone; reals,
or NIL for never."
  (let ((socket (%make-program-socket
                 (exchange-application exchange)
                 (exchange-engine exchange)
                 (exchange-connection exchange)
                 (queue-of-exchange exchange *high-water-mark* nil)
                 frames-p most-octets (and frames-p (as-milliseconds ping-seconds))
                 (as-milliseconds idle-seconds) (milliseconds) (words-of-upgrade exchange))))
    (setf (websocket-begun-p socket) t)
    socket))

(defun begin-to-speak (socket http)
  "Makes SOCKET the suspended exchange of HTTP, whose request the current thread serves.  From now
on, output of the program is sent at once."
  (setf (http-suspended-exchange http) socket)
  (begin-sending socket (http-io http)))

;;; Functions to call after a send

(defun due-p (socket entry)
  "True when ENTRY, of the list WRITTEN of SOCKET, is to be called."
  (destructuring-bind (position kind function) entry
    (declare (ignore function))
    (let* ((shared-queue (program-socket-shared-queue socket))
           (ended-p (shared-queue-ended-p shared-queue)))
      (and (or ended-p
               (<= position (- (program-socket-put socket) (octets-waiting-in shared-queue))))
           (ecase kind
             (:data (not ended-p))      ; it may not have been sent
             (:close (or (not (program-socket-held-p socket))
                         (eq (bt:current-thread) (program-socket-teller socket)))))))))

(defun become-caller-p (socket)
  "Makes the current thread the caller of the functions in WRITTEN of SOCKET.  NIL if there is a
caller already, perhaps the same thread."
  (with-websocket (socket)
    (unless (program-socket-caller socket)
      (setf (program-socket-caller socket) (bt:current-thread)))))

(defun next-written (socket)
  "Removes and returns the next function of SOCKET that is due.  If there is none, returns NIL, and
the current thread is not the caller any more."
  (with-websocket (socket)
    (let ((entry (find-if (lambda (entry) (due-p socket entry)) (program-socket-written socket))))
      (setf (program-socket-written socket)
            (remove entry (program-socket-written socket) :test #'eq))
      (unless entry
        (setf (program-socket-caller socket) nil))
      (third entry))))

(defun leave-calling (socket)
  "Ends the current thread's role as the caller for SOCKET, if one of the functions has exited
non-locally.  A worker calls the others, on which other threads rely."
  (when (with-websocket (socket)
          (when (eq (bt:current-thread) (program-socket-caller socket))
            (setf (program-socket-caller socket) nil)
            (program-socket-written socket)))
    (setf (program-socket-worker-wanted-p socket) t)
    (resume socket)))

(defun call-written (socket)
  "Calls the functions of SOCKET that are due.  True if there were any."
  (when (program-socket-written socket)
    (when (become-caller-p socket)
      (unwind-protect (loop for function = (next-written socket)
                            while function
                            do (call-program socket function)
                            count t into count
                            finally (return (plusp count)))
        (leave-calling socket)))))

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
  (unless (and (program-socket-frames-p socket)
               (close-websocket-with socket 1011 "The server failed."))
    (close-shared-queue (program-socket-shared-queue socket))
    (resume-websocket socket)))

;;; Writing

(defun note-close-written (socket payload)
  "Notes that a close frame with PAYLOAD was put into the queue of SOCKET.  The caller holds the
lock."
  (when (eq :open (websocket-state socket))
    (let ((code (close-payload-code payload)))
      (setf (program-socket-held-p socket) t
            (program-socket-farewell socket) payload
            (websocket-code socket) code
            (websocket-closing-end socket)
            (+ (milliseconds) (as-milliseconds *close-answer-seconds*)))
      (when (failure-code-p code)
        (step-websocket socket :fail))))
  (step-websocket socket :send-close)
  (when (over-p (websocket-state socket))
    (close-shared-queue (program-socket-shared-queue socket))))

(defun put-close (socket octets payload)
  "Puts OCTETS, a close frame with PAYLOAD, into the queue of SOCKET, if one may be sent.  The
caller holds the lock."
  (when (or (sending-p (websocket-state socket)) (close-owed-p (websocket-state socket)))
    (put-in-shared-queue (program-socket-shared-queue socket) octets :however-full)
    (note-close-written socket payload)
    :room))

(defun farewell-said-p (socket)
  "True when a close frame of SOCKET was sent or received."
  (or (program-socket-farewell socket)
      (/= +abnormal-end+ (websocket-code socket))))

(defun ends-at-boundary-p (octets)
  "True when a frame may follow OCTETS: they are a frame, or end with the head of an HTTP response."
  (let ((length (length octets)))
    (or (and (<= 4 length)
             (equalp #(13 10 13 10) (subseq octets (- length 4))))
        (whole-frame-p octets))))

(defun put-octets (socket octets)
  "Puts OCTETS, if any, into the shared queue of SOCKET.  Returns the same as PUT-WRITTEN.  The
caller holds the lock."
  (let* ((shared-queue (program-socket-shared-queue socket))
         (result (cond ((plusp (length octets)) (put-in-shared-queue shared-queue octets))
                       ((shared-queue-shut-p shared-queue) :over)
                       (t :room))))
    (if (and (eq :over result) (program-socket-frames-p socket) (farewell-said-p socket))
        :dropped
        result)))

(defun put-frames (socket octets)
  "Puts OCTETS into the queue of SOCKET, which speaks the WebSocket protocol.  Returns the same as
PUT-WRITTEN.  The caller holds the lock."
  (let ((payload (close-frame-payload octets)))
    (cond ((and payload (put-close socket octets payload)))
          ((not (sending-p (websocket-state socket)))
           (if (farewell-said-p socket) :dropped :over))
          (t
           (when (plusp (length octets))
             (setf (websocket-ping-milliseconds socket)
                   (and (ends-at-boundary-p octets) (program-socket-ping socket))))
           (put-octets socket octets)))))

(defun note-callback (socket callback kind)
  "Has CALLBACK, of KIND, called when all octets in the queue of SOCKET were sent.  The caller holds
the lock."
  (setf (program-socket-written socket)
        (append (program-socket-written socket)
                (list (list (program-socket-put socket) kind callback)))))

(defun put-written (socket octets callback)
  "Puts OCTETS, which must not change any more, into the queue of SOCKET.  CALLBACK, a function or
NIL, is called when they were sent.  Returns the same as PUT-IN-SHARED-QUEUE, or :DROPPED if a close
frame was sent before."
  (with-websocket (socket)
    (let ((result (if (program-socket-frames-p socket)
                      (put-frames socket octets)
                      (put-octets socket octets))))
      (when (member result '(:room :full))
        (incf (program-socket-put socket) (length octets)))
      (when (and callback (member result '(:room :full :dropped)))
        (note-callback socket callback
                       (if (or (eq :dropped result) (program-socket-held-p socket)) :close :data)))
      result)))

(defun write-to-program-socket (socket octets &optional callback)
  "Sends OCTETS, a vector that must not change any more, to SOCKET.  CALLBACK, a function without
arguments or NIL, is called in any thread when the system has accepted them.  Any thread may call
this.  It waits while the queue is full, for at most the write timeout.  Signals CLIENT-LEFT."
  (loop
    (ecase (put-written socket octets callback)
      ((:room :full :dropped)
       (when (or (owner-wanted-p (program-socket-shared-queue socket))
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
          (unless (shared-queue-shut-p (program-socket-shared-queue socket))
            (push octets (program-socket-buffered socket))
            (< *high-water-mark* (incf (program-socket-buffered-size socket) (length octets)))))
    (flush-program-socket socket)))

(defun take-buffered (socket)
  "Removes and returns the pieces that SOCKET keeps for a flush, newest first.  The caller holds the
lock."
  (setf (program-socket-buffered-size socket) 0)
  (shiftf (program-socket-buffered socket) '()))

(defun joined-octets (vectors)
  "The octets of VECTORS, a list, in one vector."
  (let ((octets (make-octets (reduce #'+ vectors :key #'length))) (fill 0))
    (dolist (vector vectors octets)
      (replace octets (the octets vector) :start1 fill)
      (incf fill (length vector)))))

(defun flush-program-socket (socket &optional callback)
  "Sends all kept pieces of SOCKET as WRITE-TO-PROGRAM-SOCKET does, with CALLBACK."
  (let ((parts (with-websocket (socket) (take-buffered socket))))
    (write-to-program-socket socket
                             (joined-octets (reverse parts))
                             callback)))

(defun finish-program-socket (socket)
  "Closes SOCKET when all its output was sent.  If that had a close frame, waits for the answer of
the client, but for at most *CLOSE-ANSWER-SECONDS*.  The program is not called any more."
  (when (program-socket-buffered socket)
    (handler-case (flush-program-socket socket)
      (client-left () nil)))            ; its end closes it anyway
  (with-websocket (socket)
    (setf (program-socket-finished-p socket) t)
    (unless (eq :closing (websocket-state socket))
      (close-shared-queue (program-socket-shared-queue socket))))
  (resume-websocket socket))

(defun listen-to-program-socket (socket function)
  "Has a worker call FUNCTION with the input of SOCKET, a vector of octets and :START and :END: with
one frame in the WebSocket protocol, otherwise with any number of octets; in order, one call at a
time.  With NIL, input stays in the system."
  (setf (program-socket-reader socket) function)
  (unless (owned-websocket-p socket)
    (setf (program-socket-worker-wanted-p socket) t)
    (resume socket)))
