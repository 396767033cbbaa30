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
;;;; two, the client's included.
;;;;
;;;; A function that the program gives with its octets is called when these were taken; one that it
;;;; gives with a close frame, or with what was dropped, only after the program was called with a
;;;; close frame: with it, libraries stop listening.

(defstruct (program-socket (:include websocket) (:copier nil))
  "A connection over which a program speaks by itself.  ON-MESSAGE is its function for the input."
  (farewells '() :type list)            ; functions for when the program knows of the end
  (told 0 :type fixnum))                ; how often the program was told of the end

(defun farewell-said-p (socket)
  "True when a close frame of SOCKET was sent or received."
  (/= +abnormal-end+ (websocket-code socket)))

;;; Any thread

(defun put-written (socket octets)
  "Puts OCTETS, which must not change any more, into the queue of SOCKET.  Returns the same as
PUT-IN-SHARED-QUEUE."
  (with-lock-briefly ((websocket-lock socket))
    (let ((state (websocket-state socket))
          (code (close-frame-code octets)))
      (cond ((and code (or (sending-p state) (close-owed-p state)))
             (when (eq :open state)
               (note-code socket code "")
               (when (failure-code-p code)
                 (step-websocket socket :receive-close)))
             (put-close socket octets)
             :room)
            ((sending-p state) (put-in-shared-queue (websocket-shared-queue socket) octets))
            (t :over)))))

(defun write-to-program-socket (socket octets &optional callback)
  "Sends OCTETS, a vector that must not change any more, to SOCKET.  CALLBACK, a function without
arguments or NIL, is called by the caller, or after the end.  Any thread may call this.  It waits
while the queue is full and the client takes octets.  Signals CLIENT-LEFT."
  (let ((result (put-waiting (websocket-shared-queue socket) t
                             (lambda () (put-written socket octets)))))
    (unless (eq :open (websocket-state socket))
      (resume-websocket socket))
    (unless (or (member result '(:room :full)) (farewell-said-p socket))
      (error 'client-left :source socket))
    (when (and callback
               (with-lock-briefly ((websocket-lock socket))
                 (cond ((or (plusp (program-socket-told socket))
                            (not (or (eq :over result) (close-frame-code octets)))))
                       (t
                        (setf (program-socket-farewells socket)
                              (append (program-socket-farewells socket) (list callback)))
                        nil))))
      (call-for-websocket socket callback))))

(defun finish-program-socket (socket)
  "Closes SOCKET when all its output was sent.  If that had a close frame, waits for the answer of
the client, but for at most *CLOSING-SECONDS*.  The program is not called any more."
  (setf (websocket-on-message socket) (constantly nil))
  (with-lock-briefly ((websocket-lock socket))
    (unless (eq :closing (websocket-state socket))
      (close-shared-queue (websocket-shared-queue socket))))
  (resume-websocket socket))

(defun listen-to-program-socket (socket function)
  "Has a worker call FUNCTION with the input of SOCKET, a vector of octets and :START and :END: with
one message or control frame after the other.  With NIL, input stays in the system."
  (setf (websocket-on-message socket) function)
  (resume-websocket socket))

;;; The owner of the connection

(defun call-reader (socket octets)
  "Calls the function of the program of SOCKET, if there is one, with OCTETS."
  (let ((reader (websocket-on-message socket)))
    (when reader
      (call-for-websocket socket reader octets :start 0 :end (length octets)))))

(defun tell-of-close (socket)
  "Calls the function of the program of SOCKET with a close frame, and then those that wait for
that."
  (call-reader socket (close-frame (websocket-code socket) (websocket-reason socket) 0))
  (dolist (function (with-lock-briefly ((websocket-lock socket))
                      (incf (program-socket-told socket))
                      (shiftf (program-socket-farewells socket) '())))
    (call-for-websocket socket function)))

(defmethod hand-over ((socket program-socket) kind value more)
  (case kind
    (:failure (call-next-method))
    (:close
     (with-lock-briefly ((websocket-lock socket))
       (step-websocket socket :receive-close)
       (note-code socket value more))
     (tell-of-close socket))
    (t
     (call-reader socket (encode-frame kind value :mask 0)))))

(defmethod abandon :after ((socket program-socket))
  (loop while (< (program-socket-told socket) (if (farewell-said-p socket) 2 1))
        do (tell-of-close socket)))

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
           (setf (connection-outcome connection) :detached
                 (io-owner base) :stream) ; whose CLOSE closes it
           (send-output base)
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
