(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; The input of a connection over which a program speaks by itself, and its end.
;;;;
;;;;   the owner finds, for the WebSocket protocol  action
;;;;   a part of a frame                            keep it
;;;;   a frame                                      call the program with it
;;;;   a frame, or a message, that is too long      send a close frame with code 1009,
;;;;                                                and read no more
;;;;   a frame, and no memory for it                likewise with code 1013
;;;;   a close frame                                note it, and call the program with it; close
;;;;                                                when the program has answered, or after
;;;;                                                *CLOSE-ANSWER-SECONDS*
;;;;   the engine stops                             send a close frame with code 1001
;;;;   the program has failed                       send a close frame with code 1011, and do
;;;;                                                not call it again
;;;;   the end                                      close the connection
;;;;
;;;; For other protocols, the program is called with octets as they come.  At the end the connection
;;;; is closed when all output was sent.  Input is not read while the client does not take the
;;;; output, nor while the program has no function for it.
;;;;
;;;; A program that speaks the WebSocket protocol, and has not closed the connection itself, gets a
;;;; close frame at the end, as if from the client.  It has the code of the client's close frame, or
;;;; of the server's, or 1006 if there was none.  Some libraries answer the first close frame, and
;;;; close at the next one: so they get two, the client's included.

;;; Frames

(defun too-long-p (socket size)
  "True when SIZE octets of payload, of a frame or a message, are more than SOCKET accepts."
  (> size (program-socket-most-octets socket)))

(defun refuse-input (socket io code reason)
  "Ends SOCKET with CODE and REASON: its input over IO is refused."
  (setf (io-start io) (io-end io)
        (program-socket-held socket) nil
        (program-socket-fill socket) 0)
  (reduce-account (websocket-memory socket) 0)
  (with-websocket (socket)
    (when (eq :open (websocket-state socket))
      (step-websocket socket :fail)
      (step-websocket socket :send-close)
      (setf (websocket-code socket) code
            (websocket-reason socket) reason)
      (put-in-shared-queue (program-socket-shared-queue socket)
                           (encode-close code reason)
                           :however-full)))
  (close-shared-queue (program-socket-shared-queue socket)))

(defun hold-input (socket io extent exact-p)
  "Moves input of IO, of a frame of EXTENT octets, or more unless EXACT-P, to the HELD octets of
SOCKET.  NIL where there is no memory."
  (let* ((fill (program-socket-fill socket))
         (held (program-socket-held socket))
         (count (min (- extent fill) (- (io-end io) (io-start io))))
         (size (+ fill count)))
    (when (or (null held) (< (length held) size))
      (let ((grown-size (if exact-p (min extent (max 64 (* 2 size))) 14)))
        (unless (reserve-for-account (websocket-memory socket)
                                     (- grown-size (length held))
                                     *waiting-share*)
          (return-from hold-input nil))
        (let ((grown (make-octets grown-size)))
          (when held
            (replace grown held :end2 fill))
          (setf held grown
                (program-socket-held socket) grown))))
    (copy-input io held fill size)
    (setf (program-socket-fill socket) size)))

(defun take-held (socket extent)
  "Removes and returns the HELD octets of SOCKET, a frame of EXTENT octets."
  (let ((held (shiftf (program-socket-held socket) nil)))
    (setf (program-socket-fill socket) 0)
    (if (= extent (length held)) held (subseq held 0 extent))))

(defun take-frame (socket io)
  "The next frame of SOCKET, in a new vector, if it has come wholly over IO; otherwise NIL, or
:TOO-LONG or :NO-MEMORY if it is refused."
  (loop
    (multiple-value-bind (extent exact-p head)
        (if (program-socket-held socket)
            (frame-extent (program-socket-held socket) 0 (program-socket-fill socket))
            (frame-extent (io-input io) (io-start io) (io-end io)))
      (cond ((too-long-p socket (- extent head)) (return :too-long))
            ((and exact-p (program-socket-held socket) (= extent (program-socket-fill socket)))
             (return (take-held socket extent)))
            ((and exact-p
                  (null (program-socket-held socket))
                  (<= extent (- (io-end io) (io-start io))))
             (let ((frame (make-octets extent)))
               (copy-input io frame 0 extent)
               (return frame)))
            ((= (io-start io) (io-end io)) (return nil))
            ((not (hold-input socket io extent exact-p)) (return :no-memory))))))

(defun count-in-message (socket frame)
  "Adds FRAME to the size of the message that SOCKET receives, unless it is a control frame."
  (cond ((control-frame-p frame))
        ((continuation-frame-p frame)
         (incf (program-socket-message-size socket) (frame-payload-size frame)))
        (t
         (setf (program-socket-message-size socket) (frame-payload-size frame)
               (program-socket-text-p socket) (text-frame-p frame)))))

(defun memory-for-frame (socket frame)
  "How many octets of memory to reserve for SOCKET while its program handles FRAME: for the parts
that a library keeps of an unfinished message, and for the object that it makes of a finished one."
  (let ((size (program-socket-message-size socket))
        (memory (websocket-memory socket)))
    (cond ((control-frame-p frame) 0)
          ((not (final-frame-p frame)) size)
          ((zerop (account-size memory)) 0) ; it came in one piece, as most do
          ((program-socket-text-p socket) (* 5 size)) ; octets and a string
          (t (* 2 size)))))

(defun reserve-for-frame (socket frame)
  "Reserves memory for the use of FRAME by the program of SOCKET.  NIL where there is none."
  (let ((more (- (memory-for-frame socket frame) (account-size (websocket-memory socket)))))
    (or (not (plusp more))
        (reserve-for-account (websocket-memory socket) more
                             (if (final-frame-p frame) 1 *waiting-share*)))))

(defun release-for-frame (socket frame)
  "Releases the reservation of SOCKET for FRAME, with which its program was called, except for an
unfinished message."
  (when (and (final-frame-p frame) (not (control-frame-p frame)))
    (setf (program-socket-message-size socket) 0))
  (reduce-account (websocket-memory socket) (program-socket-message-size socket)))

;;; Calling the program

(defun tell-program (socket octets)
  "Calls the program of SOCKET with OCTETS, if it still wants any."
  (let ((reader (program-socket-reader socket)))
    (when (and reader
               (not (program-socket-finished-p socket))
               (not (program-socket-failed-p socket)))
      (call-program socket (lambda () (funcall reader octets :start 0 :end (length octets)))))))

(defun hand-to-program (socket io octets)
  "Calls the program of SOCKET with OCTETS, which have come over IO."
  (lend-no-buffers io)                  ; it may take long
  (tell-program socket octets))

(defun call-telling (socket function)
  "Calls FUNCTION, which informs the program of SOCKET about its end."
  (setf (program-socket-teller socket) (bt:current-thread))
  (incf (program-socket-told socket))
  (unwind-protect (funcall function)
    (setf (program-socket-teller socket) nil
          (program-socket-held-p socket) nil)))

(defun hand-close-over (socket io frame payload)
  "Handles FRAME, a close frame with PAYLOAD, which has come for SOCKET over IO."
  (with-websocket (socket)
    (when (receiving-p (websocket-state socket))
      (step-websocket socket :receive-close))
    (setf (program-socket-farewell socket) payload
          (websocket-code socket) (close-payload-code payload)
          (websocket-closing-end socket)
          (+ (milliseconds) (as-milliseconds *close-answer-seconds*))))
  (call-telling socket (lambda () (hand-to-program socket io frame)))
  (when (over-p (websocket-state socket))
    (close-shared-queue (program-socket-shared-queue socket))))

(defun hand-frame-over (socket io frame)
  "Calls the program of SOCKET with FRAME, which has come over IO."
  (unwind-protect
       (let ((payload (close-frame-payload frame)))
         (if payload
             (hand-close-over socket io frame payload)
             (hand-to-program socket io frame)))
    (release-for-frame socket frame)))

(defun handle-frame (socket io frame)
  "Handles FRAME, a result of TAKE-FRAME for SOCKET and IO other than NIL."
  (flet ((refuse-as-too-long ()
           (refuse-input socket io 1009 "A message is larger than this server takes."))
         (refuse-for-memory ()
           (refuse-input socket io 1013 "There is no memory for the message now.")))
    (case frame
      (:too-long (refuse-as-too-long))
      (:no-memory (refuse-for-memory))
      (t
       (count-in-message socket frame)
       (cond ((too-long-p socket (program-socket-message-size socket)) (refuse-as-too-long))
             ((not (reserve-for-frame socket frame)) (refuse-for-memory))
             (t (hand-frame-over socket io frame)))))))

(defmethod handle-input ((socket program-socket) io)
  (if (program-socket-frames-p socket)
      (let ((frame (take-frame socket io)))
        (when frame
          (handle-frame socket io frame)))
      (let ((octets (make-octets (- (io-end io) (io-start io)))))
        (copy-input io octets 0 (length octets))
        (hand-to-program socket io octets))))

(defmethod reads-on-p ((socket program-socket))
  (and (program-socket-reader socket)
       (not (shared-queue-shut-p (program-socket-shared-queue socket)))
       (call-next-method)))

(defmethod note-end-of-input ((socket program-socket))
  (if (program-socket-frames-p socket)
      (end-websocket socket)
      (close-shared-queue (program-socket-shared-queue socket))))

;;; Going on

(defmethod continue-over ((socket program-socket) http resuming-p)
  (cond ((not resuming-p)
         (setf (program-socket-worker-wanted-p socket) nil)
         (loop for outcome = (continue-speaking socket http nil)
               for called-p = (and (member outcome '(:deferred :again))
                                   (written-called-p socket))
               while (and called-p (eq :deferred outcome))
               finally (return outcome)))
        ((program-socket-worker-wanted-p socket)
         nil)
        (t
         (continue-speaking socket http t))))

(defun continue-speaking (socket http resuming-p)
  (let ((end (websocket-closing-end socket)))
    (when (or (and end (>= (milliseconds) end))
              (and (null (program-socket-reader socket)) (peer-left-p socket)))
      (close-shared-queue (program-socket-shared-queue socket))))
  (setf (websocket-owner socket) (bt:current-thread))
  (unwind-protect (continue-websocket socket (http-io http) resuming-p)
    (setf (websocket-owner socket) nil)))

(defun written-called-p (socket)
  "Calls the functions of the program that are due after a send to SOCKET; true if there were any."
  (when (program-socket-written socket)
    (setf (websocket-owner socket) (bt:current-thread))
    (unwind-protect (call-written socket)
      (setf (websocket-owner socket) nil))))

(defmethod say-going-away ((socket program-socket))
  (cond ((running-p (suspended-exchange-engine socket)) nil)
        ((program-socket-frames-p socket) (call-next-method))
        (t (close-shared-queue (program-socket-shared-queue socket)))))

;;; The end

(defun tell-of-end (socket)
  "Informs the program of SOCKET, which speaks the WebSocket protocol, about its end."
  (let* ((said-p (farewell-said-p socket))
         (payload (or (program-socket-farewell socket)
                      (close-payload (websocket-code socket) (websocket-reason socket)))))
    (loop while (and (< (program-socket-told socket) (if said-p 2 1))
                     (program-socket-reader socket)
                     (not (program-socket-finished-p socket))
                     (not (program-socket-failed-p socket)))
          do (call-telling socket
                           (lambda () (tell-program socket (client-close-frame payload)))))))

(defun end-with-program (socket)
  "Calls the program of SOCKET, whose connection is about to be closed, for the last time."
  (call-written socket)
  (say-farewell socket)
  (end-websocket socket)
  (when (program-socket-frames-p socket)
    (tell-of-end socket))
  (setf (program-socket-held-p socket) nil)
  (call-written socket))

(defmethod abandon ((socket program-socket))
  (unwind-protect (end-with-program socket)
    (end-websocket socket)              ; the program may have ended the thread
    (with-websocket (socket) (take-buffered socket))
    (setf (program-socket-reader socket) nil)
    (drop-incomplete-message socket)))

(defmethod drop-incomplete-message ((socket program-socket))
  (setf (program-socket-held socket) nil
        (program-socket-fill socket) 0)
  (close-account (websocket-memory socket)))
