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
;;;;   event            meaning
;;;;   :REQUEST         the head of a request without content was read
;;;;   :REQUEST-BODY    the head of a request with content was read
;;;;   :REQUEST-HELD    likewise, and the client waits for 100 (Continue) before it sends content
;;;;   :LAST-REQUEST    by its head, the request is the client's last; see HEAD-KEEP-ALIVE-P
;;;;   :CONTINUE        100 (Continue) was sent
;;;;   :REQUEST-END     the content was read to its end
;;;;   :REQUEST-FAULT   the content was refused, does not arrive, or exceeds a limit
;;;;   :REPLY           the head of a reply was sent; the reply marks its own end
;;;;   :LAST-REPLY      the head of a reply was sent; the reply ends with the connection, or says
;;;;                    close
;;;;   :REPLY-END       all of the reply was written
;;;;   :REPLY-CUT       the rest of the reply will not be sent, or the handler failed after the head
;;;;   :CLOSE           the handler wants this request to be the last, regardless of the head
;;;;   :SWITCH          101 (Switching Protocols) was sent, or the handler continues in another
;;;;                    protocol
;;;;   :NEXT            the server waits for the next request
;;;;
;;;; A refused head does not become a request.  The server replies to it and closes the connection;
;;;; no state is involved.

(defparameter *transitions*
  '(;; event         client                               ours                            closes
    (:request        ((:idle -> :done))                   ((:idle))                       :nobody)
    (:request-body   ((:idle -> :body))                   ((:idle))                       :nobody)
    (:request-held   ((:idle -> :held))                   ((:idle))                       :nobody)
    (:last-request   ((:body :held :done))                ((:idle))                       :client)
    (:continue       ((:held -> :body))                   ((:idle)))
    (:request-end    ((:body :held -> :done))             :any)
    (:request-fault  ((:body :held :done :error -> :error)
                      (:switched))                        :any)
    (:reply          ((:body :done :error))               ((:idle -> :body)))
    ;; RFC 9110, section 10.1.1: a client that still waits for 100 may send its content next, or
    ;; another request, so the connection cannot be reused.
    (:reply          ((:held))                            ((:idle -> :body))              :us)
    (:last-reply     ((:body :held :done :error))         ((:idle -> :body))              :us)
    (:reply-end      :any                                 ((:body -> :done) (:switched)))
    (:reply-cut      ((:body :held :done :error :switched))
                     ((:idle :body :done :error :switched -> :error)))
    (:close          :any                                 :any                            :us)
    (:switch         ((:body :held :done :switched -> :switched) (:error))
                     ((:idle :body :done :switched -> :switched) (:error)))
    (:next           ((:done -> :idle))                   ((:done -> :idle))              :nobody))
  "A list of (EVENT CLIENT OURS CLOSES).  CLIENT and OURS are each a list of (FROM ... -> TO) or, if
the side does not change, (FROM ...); or :ANY, if the side may have any state and keeps it.  CLOSES
is :CLIENT or :US if that side wants the connection closed from then on; or :NOBODY if the event is
legal only while neither side wants that.  An event is illegal in every state that has no entry
here.")

;;; A state is a number: three bits for each side, and one bit for each side that wants to close.

(deftype protocol-state ()
  "The state of both sides of a connection during one request and its reply; 0 is the initial one."
  '(unsigned-byte 8))

(defparameter *sides* #(:idle :body :held :done :error :switched)
  "The states of a side.  The index of a state is its number.")

(defconstant +client-closes+ #b01000000)
(defconstant +we-close+ #b10000000)
(defconstant +both-done+ #b011011)

(declaim (inline client-side our-side))
(defun client-side (state)
  "The state of the client's side in STATE, a PROTOCOL-STATE: :IDLE, :BODY, :HELD, :DONE, :ERROR or
:SWITCHED."
  (declare (type protocol-state state))
  (svref *sides* (ldb (byte 3 0) state)))

(defun our-side (state)
  "The state of our side in STATE, a PROTOCOL-STATE: :IDLE, :BODY, :DONE, :ERROR or :SWITCHED."
  (declare (type protocol-state state))
  (svref *sides* (ldb (byte 3 3) state)))

(define-condition illegal-event (recycling-error)
  ((event :initarg :event :reader illegal-event-event
          :documentation "The event, a keyword, or another object that the caller passed as one.")
   (state :initarg :state :reader illegal-event-state
          :documentation "The PROTOCOL-STATE in which the event is illegal."))
  (:report (lambda (condition stream)
             (let ((state (illegal-event-state condition)))
               (format stream "~S cannot happen while the client's side is ~S, and ours ~S."
                       (illegal-event-event condition) (client-side state) (our-side state)))))
  (:documentation "The calling code reported an event that is illegal in the state of the
connection.  This is a defect of that code, not of the client."))

;;; The table, looked up

(defun side-after (side clauses)
  "The state that follows SIDE by CLAUSES, one side of an entry of *TRANSITIONS*; NIL if the event
is illegal."
  (if (eq :any clauses)
      side
      (dolist (clause clauses)
        (let ((arrow (member '-> clause)))
          (when (member side (ldiff clause arrow))
            (return (or (second arrow) side)))))))

(defun state-by-entry (entry state)
  "The state after the event of ENTRY, of *TRANSITIONS*, in STATE; NIL if the event is illegal."
  (destructuring-bind (client ours &optional closes) (rest entry)
    (let ((client (side-after (client-side state) client))
          (ours (side-after (our-side state) ours))
          (closing (logand state (logior +client-closes+ +we-close+))))
      (and client
           ours
           (not (and (eq :nobody closes) (plusp closing)))
           (logior (position client *sides*)
                   (ash (position ours *sides*) 3)
                   closing
                   (ecase closes
                     ((nil :nobody) 0)
                     (:client +client-closes+)
                     (:us +we-close+)))))))

(defun possible-state-p (state)
  "True if STATE, an integer, encodes valid states of both sides."
  (and (< (ldb (byte 3 0) state) (length *sides*))
       (< (ldb (byte 3 3) state) (length *sides*))))

(defconstant +illegal+ #b111
  "Stands for an illegal event in a table of states; no state has this number.")

(defun states-after (event)
  "A vector that maps each state to the state after EVENT, or to +ILLEGAL+."
  (let ((states (make-array 256 :element-type 'protocol-state :initial-element +illegal+)))
    (dotimes (state 256 states)
      (when (possible-state-p state)
        (loop for entry in *transitions*
              for after = (and (eq event (first entry)) (state-by-entry entry state))
              when after
                do (setf (aref states state) after))))))

(defparameter *events* (remove-duplicates (mapcar #'first *transitions*))
  "All events.")

(defparameter *states-after*
  (loop for event in *events* collect event collect (states-after event))
  "A plist from all events to the results of STATES-AFTER.")

;;; The interface for servers

(defun next-state (state event)
  "The PROTOCOL-STATE after EVENT, a keyword, in STATE, a PROTOCOL-STATE.  Signals ILLEGAL-EVENT if
EVENT is illegal in STATE."
  (declare (type protocol-state state) #.*plain-policy*)
  (let* ((states (getf *states-after* event))
         (after (if states
                    (aref (the (simple-array protocol-state (256)) states) state)
                    +illegal+)))
    (if (= +illegal+ after)
        (error 'illegal-event :event event :state state)
        after)))

(defun state-after-head (state head)
  "The PROTOCOL-STATE after HEAD was read in STATE, the initial PROTOCOL-STATE or one for which
REUSABLE-P is true.  Signals ILLEGAL-EVENT in any other state."
  (declare (type protocol-state state) (type head head) #.*plain-policy*)
  (let ((after (next-state (if (reusable-p state) (next-state state :next) state)
                           (cond ((eq :none (head-framing head)) :request)
                                 ((head-expect-100-continue-p head) :request-held)
                                 (t :request-body)))))
    (if (head-keep-alive-p head)
        after
        (next-state after :last-request))))

(defun reusable-p (state)
  "True if the connection may be used for another request now: in STATE, a PROTOCOL-STATE, the
request and the reply are complete, and neither side wants to close (RFC 9112, section 9.3)."
  (declare (type protocol-state state))
  (= state +both-done+))

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
