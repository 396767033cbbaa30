(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; A connection over which a program speaks by itself: the WebSocket protocol, by a library of its
;;;; own, or any other.  It writes whatever it likes, from any thread, and is called with what
;;;; comes; no worker waits for that.  What is done with what comes, and at the end, is in
;;;; program-input.lisp.
;;;;
;;;; Where the request was one for a WebSocket, close frames are noticed in both directions, so that
;;;; the TCP connection ends as RFC 6455 has it (websocket-state.lisp).  What the program writes is
;;;;
;;;;   in the state       a close frame                          anything else
;;;;   :OPEN              sent; the client's is awaited, unless  sent
;;;;                      its code tells of a failure
;;;;   :CLOSED-BY-CLIENT  sent; then the connection ends         dropped
;;;;   :CLOSING, :CLOSED  dropped                                dropped
;;;;   :GONE              dropped, if a close frame was sent     likewise
;;;;                      or has come; else an error
;;;;
;;;; Where it was not, all is sent until the program has closed the connection; then it is an error.
;;;;
;;;; Invariants: PUT octets were put into the shared send queue by the program, and those up to PUT
;;;; less its size were sent, as far as is known.  A function that the program has given with what
;;;; it wrote is called once that was sent, without a lock, one at a time; one given with a close
;;;; frame not before the program was told of the end, while HELD-P.

(defparameter *close-answer-seconds* 2
  "How many seconds a client has to answer a close frame of a program.")

(define-record (program-socket (:include websocket)
                               (:constructor %make-program-socket
                                   (application engine connection shared-queue frames-p most-octets
                                    ping idle-milliseconds heard))
                               (:copier nil))
  "A connection over which a program speaks by itself."
  (frames-p nil :read-only t)           ; it speaks the WebSocket protocol
  (most-octets 0 :type unsigned-byte :read-only t) ; of payload, of a message and of a frame
  (ping nil :read-only t)               ; PING-MILLISECONDS while pings may be sent
  (reader nil
   :documentation "The program's function that is called with what comes for PROGRAM-SOCKET, or
NIL.")
  ;; To read octets that came before there was a READER, or to call functions in WRITTEN.
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

(define-condition program-socket-over (recycling-error)
  ((socket :initarg :socket :initform nil :reader program-socket-over-socket))
  (:report (lambda (condition stream)
             (write-string (if (program-socket-over-socket condition)
                               "The connection has ended."
                               "The connection cannot be taken over.")
                           stream)))
  (:documentation "A program writes to a connection that has ended, or to whose client it took too
long; or to one that it cannot take over, or not any more."))

(setf (documentation 'program-socket-over-socket 'function)
      "The PROGRAM-SOCKET of a PROGRAM-SOCKET-OVER; NIL where the connection cannot become one.")

(defun make-program-socket (exchange frames-p &key (most-octets (* 1024 1024)) ping-seconds idle-seconds)
  "A PROGRAM-SOCKET over the connection of EXCHANGE, which the program speaks over from now on: the
WebSocket protocol if FRAMES-P.  A message may have MOST-OCTETS then, an integer.  PING-SECONDS is
after how many without anything from the client a ping is sent, and IDLE-SECONDS after how many it
counts as gone, reals; NIL for never."
  (let ((socket (%make-program-socket
                 (exchange-application exchange) (exchange-engine exchange) (exchange-connection exchange)
                 (make-shared-queue *high-water-mark* :engine (exchange-engine exchange))
                 frames-p most-octets (and frames-p (as-milliseconds ping-seconds))
                 (as-milliseconds idle-seconds) (milliseconds))))
    (setf (websocket-begun-p socket) t)
    socket))

(defun begin-to-speak (socket http)
  "Makes HTTP, which has the request that the current thread serves, one over which SOCKET goes on:
what the program writes from now on is sent at once."
  (setf (http-suspended-exchange http) socket)
  (when (lendable-p (http-io http))
    (lend-sending socket)))

;;; Functions that are called when something was sent

(defun due-p (socket entry)
  "True when ENTRY, of what is WRITTEN of SOCKET, is to be called."
  (destructuring-bind (position kind function) entry
    (declare (ignore function))
    (let* ((shared-queue (program-socket-shared-queue socket))
           (ended-p (shared-queue-ended-p shared-queue)))
      (and (or ended-p
               (<= position (- (program-socket-put socket) (shared-queue-size shared-queue))))
           (ecase kind
             (:data (not ended-p))      ; it may not have been sent
             (:close (or (not (program-socket-held-p socket))
                         (eq (bt:current-thread) (program-socket-teller socket)))))))))

(defun become-caller-p (socket)
  "Makes the current thread the one that calls what is WRITTEN of SOCKET; NIL where another one
does, or it does so already."
  (with-websocket (socket)
    (unless (program-socket-caller socket)
      (setf (program-socket-caller socket) (bt:current-thread)))))

(defun next-written (socket)
  "The next function of SOCKET that is to be called, which is forgotten then; NIL where there is
none, and the caller is no longer who calls them."
  (with-websocket (socket)
    (let ((entry (find-if (lambda (entry) (due-p socket entry)) (program-socket-written socket))))
      (setf (program-socket-written socket) (remove entry (program-socket-written socket) :test #'eq))
      (unless entry
        (setf (program-socket-caller socket) nil))
      (third entry))))

(defun leave-calling (socket)
  "Lets others call what is WRITTEN of SOCKET if the current thread still does, as where one of the
functions has ended that; who has put more in meanwhile has left it to it."
  (when (with-websocket (socket)
          (when (eq (bt:current-thread) (program-socket-caller socket))
            (setf (program-socket-caller socket) nil)
            (program-socket-written socket)))
    (setf (program-socket-worker-wanted-p socket) t)
    (resume socket)))

(defun call-written (socket)
  "Calls the functions of SOCKET that are to be called by now.  True if there were any."
  (when (program-socket-written socket)
    (with-acquired (caller-p (become-caller-p socket) (when caller-p (leave-calling socket)))
      (when caller-p
        (loop for function = (next-written socket)
              while function
              do (call-program socket function)
              count t into count
              finally (return (plusp count)))))))

(defun call-program (socket function)
  "Calls FUNCTION, a program's, without arguments.  If that fails, SOCKET ends."
  (handler-case (funcall function)
    (serious-condition (condition)      ; also of an exhausted stack
      (fail-program-socket socket condition))))

(defun fail-program-socket (socket condition)
  "Ends SOCKET, since the program has failed with CONDITION."
  (log-message (suspended-exchange-engine socket) :error "What speaks over a connection failed: ~A" condition)
  (count-failure (suspended-exchange-engine socket))
  (setf (program-socket-failed-p socket) t)
  (unless (and (program-socket-frames-p socket)
               (close-websocket-with socket 1011 "The server failed."))
    (close-shared-queue (program-socket-shared-queue socket))
    (resume-websocket socket)))

;;; Writing

(defun note-close-written (socket payload)
  "Notes that a close frame with PAYLOAD was put into SOCKET.  Under the lock."
  (when (eq :open (websocket-state socket))
    (let ((code (close-payload-code payload)))
      (setf (program-socket-held-p socket) t
            (program-socket-farewell socket) payload
            (websocket-code socket) code
            (websocket-closing-end socket) (+ (milliseconds) (as-milliseconds *close-answer-seconds*)))
      (when (failure-code-p code)
        (step-websocket socket :fail))))
  (step-websocket socket :send-close)
  (when (over-p (websocket-state socket))
    (close-shared-queue (program-socket-shared-queue socket))))

(defun put-close (socket octets payload)
  "Puts OCTETS, a close frame with PAYLOAD, into SOCKET, if one may be sent.  Under the lock."
  (when (or (sending-p (websocket-state socket)) (close-owed-p (websocket-state socket)))
    (put-in-shared-queue (program-socket-shared-queue socket) octets :however-full)
    (note-close-written socket payload)
    :room))

(defun farewell-said-p (socket)
  "True when a close frame of SOCKET was sent, or has come."
  (or (program-socket-farewell socket)
      (/= +abnormal-end+ (websocket-code socket))))

(defun ends-at-boundary-p (octets)
  "True when a frame may follow OCTETS: they are one, or end a head of HTTP."
  (let ((length (length octets)))
    (or (and (<= 4 length)
             (equalp #(13 10 13 10) (subseq octets (- length 4))))
        (whole-frame-p octets))))

(defun put-octets (socket octets)
  "Puts OCTETS into the shared send queue of SOCKET, if there are any.  Returns what PUT-WRITTEN
does.  Under the lock."
  (let* ((shared-queue (program-socket-shared-queue socket))
         (result (cond ((plusp (length octets)) (put-in-shared-queue shared-queue octets))
                       ((shared-queue-over-p shared-queue) :over)
                       (t :room))))
    (if (and (eq :over result) (program-socket-frames-p socket) (farewell-said-p socket))
        :dropped
        result)))

(defun put-frames (socket octets)
  "Puts OCTETS into SOCKET, which speaks the WebSocket protocol.  Returns what PUT-WRITTEN does.
Under the lock."
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
  "Has CALLBACK, of KIND, called when all was sent that is in SOCKET.  Under the lock."
  (setf (program-socket-written socket)
        (append (program-socket-written socket)
                (list (list (program-socket-put socket) kind callback)))))

(defun put-written (socket octets callback)
  "Puts OCTETS, which nobody changes any more, into SOCKET; CALLBACK, a function or NIL, is called
when they were sent.  Returns what PUT-IN-SHARED-QUEUE does; :DROPPED where a close frame was sent
before."
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
  "Has OCTETS, a vector that nobody changes any more, sent to SOCKET; CALLBACK, a function without
arguments or NIL, is called in some thread when the system has taken them.  Any thread may write;
while too much is on its way to the client it waits, at most for the write timeout.  Signals
PROGRAM-SOCKET-OVER."
  (loop
    (ecase (put-written socket octets callback)
      ((:room :full :dropped)
       (resume-websocket socket)
       (call-written socket)
       (return))
      (:refused
       (resume-websocket socket)
       (unless (await-room-in-websocket socket (or (write-seconds (suspended-exchange-application socket)) t))
         (end-websocket socket)
         (resume socket)))
      (:over (error 'program-socket-over :socket socket)))))

(defun buffer-for-program-socket (socket octets)
  "Keeps OCTETS, a vector that nobody changes any more, for FLUSH-PROGRAM-SOCKET; drops it where
SOCKET has ended.  Flushes once more than *HIGH-WATER-MARK* octets are kept, and may then wait and
signal as WRITE-TO-PROGRAM-SOCKET does."
  (when (with-websocket (socket)
          (unless (shared-queue-over-p (program-socket-shared-queue socket))
            (push octets (program-socket-buffered socket))
            (< *high-water-mark* (incf (program-socket-buffered-size socket) (length octets)))))
    (flush-program-socket socket)))

(defun take-buffered (socket)
  "The pieces that SOCKET keeps for a flush, the last first; from now on it keeps none.  Under the
lock."
  (setf (program-socket-buffered-size socket) 0)
  (shiftf (program-socket-buffered socket) '()))

(defun flush-program-socket (socket &optional callback)
  "Has all that was buffered for SOCKET sent, as WRITE-TO-PROGRAM-SOCKET does; CALLBACK as there."
  (let ((parts (with-websocket (socket) (take-buffered socket))))
    (write-to-program-socket socket
                             (if parts
                                 (joined-octets (reverse parts) (octets-of parts))
                                 (make-octets 0))
                             callback)))

(defun finish-program-socket (socket)
  "Closes SOCKET when all that was written to it was sent; where a close frame was sent, when the
client has answered, but after *CLOSE-ANSWER-SECONDS* at the latest.  The program is not called any
more."
  (when (program-socket-buffered socket)
    (handler-case (flush-program-socket socket)
      (program-socket-over () nil)))    ; as at its end, which closes it anyhow
  (with-websocket (socket)
    (setf (program-socket-finished-p socket) t)
    (unless (eq :closing (websocket-state socket))
      (close-shared-queue (program-socket-shared-queue socket))))
  (resume-websocket socket))

(defun listen-to-program-socket (socket function)
  "Lets FUNCTION, of octets and :START and :END, be called by a worker with what comes for SOCKET:
with a frame where it speaks the WebSocket protocol, else with any number of octets; in their order,
one call at a time.  NIL: what comes is left to the system."
  (setf (program-socket-reader socket) function)
  (unless (owned-websocket-p socket)
    (setf (program-socket-worker-wanted-p socket) t)
    (resume socket)))
