(in-package #:hunchentoot-recycling-taskmaster.http)

;;;; May a connection be used for another request?  Each of its two sides has a state, and events
;;;; change these states.  The answer depends on the two states alone (RFC 9112, sections 9.3 and
;;;; 9.6).  The idea comes from h11.
;;;;
;;;;   state      the client's side                      our side
;;;;   :IDLE      no request was read                    no reply was begun (100 (Continue) aside)
;;;;   :BODY      content follows                        content follows
;;;;   :HELD      content follows after we send 100      -
;;;;   :DONE      the request was read to its end        the reply was written to its end
;;;;   :ERROR     the request was refused or abandoned   the reply is cut short
;;;;   :SWITCHED  speaks another protocol                speaks another protocol
;;;;
;;;; A refused head does not become a request.  The server replies to it and closes the connection;
;;;; no state is involved.

(deftype protocol-state ()
  "The state of both sides of a connection during one request and its reply, three bits for each,
and one bit for each side that wants to close; 0 is the initial one."
  '(unsigned-byte 8))

(defparameter *sides* #(:idle :body :held :done :error :switched)
  "The states of a side.  The index of a state is its number.")

(defconstant +client-closes+ #b01000000)
(defconstant +we-close+ #b10000000)

(declaim (inline client-side our-side))
(defun client-side (state)
  "The state of the client's side in STATE, a PROTOCOL-STATE."
  (declare (type protocol-state state))
  (svref *sides* (ldb (byte 3 0) state)))

(defun our-side (state)
  "The state of our side in STATE, a PROTOCOL-STATE."
  (declare (type protocol-state state))
  (svref *sides* (ldb (byte 3 3) state)))

(defun refuse-event (event state)
  "Signals an error, since EVENT, a keyword, cannot happen in STATE: a defect of the caller."
  (error "~S cannot happen while the client's side is ~S, and ours ~S."
         event (client-side state) (our-side state)))

(defun state-after-head (state head)
  "The PROTOCOL-STATE after HEAD was read in STATE, the initial PROTOCOL-STATE or one for which
REUSABLE-P is true.  Signals an error in any other state."
  (declare (type protocol-state state) (type head head) #.*plain-policy*)
  (unless (or (zerop state) (reusable-p state))
    (refuse-event :request state))
  (logior (cond ((eq :none (head-framing head)) 3) ; :DONE
                ((head-expect-100-continue-p head) 2) ; :HELD
                (t 1))                               ; :BODY
          (if (head-keep-alive-p head) 0 +client-closes+)))

(defun next-state (state event)
  "The PROTOCOL-STATE after EVENT, a keyword, in STATE, a PROTOCOL-STATE.  Signals an error
if EVENT is illegal in STATE."
  (declare (type protocol-state state) #.*plain-policy*)
  (let* ((client (client-side state))
         (ours (our-side state))
         (closing (logand state (logior +client-closes+ +we-close+)))
         ;; Each clause is true if the event is legal.
         (legal-p
           (case event
             ((:reply                   ; the head was sent; the reply marks its own end
               :last-reply)             ; it ends with the connection, or says close
              (when (and (eq :idle ours) (member client '(:body :held :done :error)))
                ;; RFC 9110, section 10.1.1: a client that still waits for 100 may send its content
                ;; next, or another request, so the connection cannot be reused.
                (when (or (eq :last-reply event) (eq :held client))
                  (setf closing (logior closing +we-close+)))
                (setf ours :body)))
             (:reply-end                ; all of the reply was written
              (case ours
                (:body (setf ours :done))
                (:switched t)))
             (:reply-cut       ; the rest is not sent, or the handler failed after the head
              (unless (eq :idle client)
                (setf ours :error)))
             (:request-end              ; the content was read to its end
              (when (member client '(:body :held))
                (setf client :done)))
             (:request-fault            ; the content was refused, or does not arrive
              (case client
                (:switched t)
                (:idle nil)
                (t (setf client :error))))
             (:continue                 ; 100 (Continue) was sent
              (when (and (eq :held client) (eq :idle ours))
                (setf client :body)))
             (:close                    ; the handler wants this request to be the last
              (setf closing (logior closing +we-close+)))
             (:switch          ; 101 (Switching Protocols) was sent, or another protocol follows
              (unless (eq :idle client)
                (unless (eq :error client)
                  (setf client :switched))
                (unless (eq :error ours)
                  (setf ours :switched))
                t)))))
    (unless legal-p
      (refuse-event event state))
    (logior (the (integer 0 5) (position client (the simple-vector *sides*)))
            (ash (the (integer 0 5) (position ours (the simple-vector *sides*))) 3)
            closing)))

(defun reusable-p (state)
  "True if the connection may be used for another request now: in STATE, a PROTOCOL-STATE, the
request and the reply are complete, and neither side wants to close (RFC 9112, section 9.3)."
  (declare (type protocol-state state))
  (= state #b011011))

(defun persists-p (state)
  "True if the connection can still become reusable after STATE, a PROTOCOL-STATE, so that the head
of a reply need not say close (RFC 9112, section 9.6)."
  (declare (type protocol-state state))
  (and (zerop (logand state (logior +client-closes+ +we-close+)))
       (<= (ldb (byte 3 0) state) 3)    ; neither :ERROR nor :SWITCHED
       (<= (ldb (byte 3 3) state) 3)))

(defun last-request-read-p (state)
  "True if the client has announced its last request, and that was read to its end, in STATE, a
PROTOCOL-STATE.  The client will then send nothing more (RFC 9112, section 9.6)."
  (declare (type protocol-state state))
  (and (logtest +client-closes+ state)
       (eq :done (client-side state))))
