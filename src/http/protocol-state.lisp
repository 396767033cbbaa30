(in-package #:hunchentoot-recycling-taskmaster.http)

;;;; May a connection be used for another request?  Both sides of it have a state, which events
;;;; change; what is decided follows from the states alone (RFC 9112, sections 9.3 and 9.6).  The
;;;; idea is h11's.
;;;;
;;;;   state      the client's side                          our side
;;;;   :IDLE      no request was read                        no head of a reply was sent, but of 100 (Continue)
;;;;   :BODY      content follows                            content follows
;;;;   :HELD      content follows when we have sent 100      -
;;;;   :DONE      the request was read to its end            the reply was written to its end
;;;;   :ERROR     it is refused, or will not be read on      the reply is cut short
;;;;   :SWITCHED  speaks another protocol                    likewise
;;;;
;;;;   event            what has happened
;;;;   :REQUEST         the head of a request without content was read
;;;;   :REQUEST-BODY    the head of one with content was read
;;;;   :REQUEST-HELD    likewise, and the client waits for 100 (Continue) before it sends that
;;;;   :LAST-REQUEST    the head has said that no other request will follow, see HEAD-KEEP-ALIVE-P
;;;;   :CONTINUE        100 (Continue) was sent
;;;;   :REQUEST-END     the content was read to its end
;;;;   :REQUEST-FAULT   the content was refused, does not come, or is more than will be read
;;;;   :REPLY           the head of a reply was sent whose end the client will know
;;;;   :LAST-REPLY      the head was sent of one that the connection does not outlive: it ends with that, or
;;;;                    the head says close
;;;;   :REPLY-END       all of the reply was written
;;;;   :REPLY-CUT       the rest of the reply will not be sent, or its handler has failed after its head
;;;;   :CLOSE           whoever answers wants this request to be the last, whatever the head has said
;;;;   :SWITCH          101 (Switching Protocols) was sent, or whoever answers talks on in another protocol
;;;;   :NEXT            the next request is awaited
;;;;
;;;; A head that is refused makes no request: it is answered, and its connection closed, without a
;;;; state.

(defmacro define-table (name value documentation)
  "DEFPARAMETER of NAME with VALUE, a form, and DOCUMENTATION, also for macros below."
  `(eval-when (:compile-toplevel :load-toplevel :execute)
     (defparameter ,name ,value ,documentation)))

(define-table *transitions*
  '(;; event         the client's side                       our side                        closed by
    (:request        ((:idle -> :done))                      ((:idle))                       :nobody)
    (:request-body   ((:idle -> :body))                      ((:idle))                       :nobody)
    (:request-held   ((:idle -> :held))                      ((:idle))                       :nobody)
    (:last-request   ((:body :held :done))                   ((:idle))                       :client)
    (:continue       ((:held -> :body))                      ((:idle)))
    (:request-end    ((:body :held -> :done))                :any)
    (:request-fault  ((:body :held :done :error -> :error)
                      (:switched))                           :any)
    (:reply          ((:body :done :error))                  ((:idle -> :body)))
    ;; RFC 9110, section 10.1.1: of a client that still waits then, content may come next, or a
    ;; request.
    (:reply          ((:held))                               ((:idle -> :body))              :us)
    (:last-reply     ((:body :held :done :error))            ((:idle -> :body))              :us)
    (:reply-end      :any                                    ((:body -> :done) (:switched)))
    (:reply-cut      ((:body :held :done :error :switched))
                     ((:idle :body :done :error :switched -> :error)))
    (:close          :any                                    :any                            :us)
    (:switch         ((:body :held :done :switched -> :switched) (:error))
                     ((:idle :body :done :switched -> :switched) (:error)))
    (:next           ((:done -> :idle))                      ((:done -> :idle))              :nobody))
  "A list of (EVENT CLIENT OURS CLOSES).  CLIENT and OURS are lists of (FROM ... -> TO), or (FROM
...) where the side stays as it is, or :ANY for whatever it is, which it stays.  CLOSES is who is
known to want the connection closed from then on, if anybody; or :NOBODY: the event is for a
connection that nobody wants closed.  An event that no entry has for the states of both sides is
illegal.")

;;; A state is a number: three bits for each side, and one for each of those who may close.

(deftype protocol-state ()
  "The state of both sides of a connection, as far as one request and its reply have got; 0 at
first."
  '(unsigned-byte 8))

(defparameter *sides* #(:idle :body :held :done :error :switched)
  "The states of a side, each at its number.")

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
          :documentation "The keyword of the event, or whatever was taken for one.")
   (state :initarg :state :reader illegal-event-state
          :documentation "The PROTOCOL-STATE in which it has no meaning."))
  (:report (lambda (condition stream)
             (let ((state (illegal-event-state condition)))
               (format stream "~S cannot happen while the client's side is ~S, and ours ~S."
                       (illegal-event-event condition) (client-side state) (our-side state)))))
  (:documentation "A defect of whoever reports an event, and not of the client."))

(setf (documentation 'illegal-event-event 'function)
      "The keyword of the event that ILLEGAL-EVENT is about, or whatever was taken for one."
      (documentation 'illegal-event-state 'function)
      "The PROTOCOL-STATE in which the event of ILLEGAL-EVENT has no meaning.")

;;; The table, looked up

(defun side-after (side clauses)
  "What SIDE becomes by CLAUSES, one side of an entry of *TRANSITIONS*; NIL where the event is
illegal."
  (if (eq :any clauses)
      side
      (dolist (clause clauses)
        (destructuring-bind (from &optional to) (split-clause clause)
          (when (member side from)
            (return (or to side)))))))

(defun split-clause (clause)
  (let ((arrow (position '-> clause)))
    (if arrow
        (list (subseq clause 0 arrow) (nth (1+ arrow) clause))
        (list clause))))

(defun state-by-entry (entry state)
  "The state after the event of ENTRY, of *TRANSITIONS*, in STATE; NIL where that is illegal."
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
  "True when STATE, an integer, is a number of two sides."
  (and (< (ldb (byte 3 0) state) (length *sides*))
       (< (ldb (byte 3 3) state) (length *sides*))))

(defconstant +illegal+ #b111
  "In the place of a state: no side has this number.")

(defun states-after (event)
  "A vector of the state after EVENT in each state, or +ILLEGAL+."
  (let ((states (make-array 256 :element-type 'protocol-state :initial-element +illegal+)))
    (dotimes (state 256 states)
      (when (possible-state-p state)
        (setf (aref states state)
              (or (some (lambda (entry)
                          (and (eq event (first entry))
                               (state-by-entry entry state)))
                        *transitions*)
                  +illegal+))))))

(defparameter *events* (remove-duplicates (mapcar #'first *transitions*))
  "All events.")

(defmacro states-after-event (event)
  "What STATES-AFTER returns for EVENT, a form, made when the code is loaded; NIL where that is no
event."
  `(case ,event
     ,@(loop for event in (remove-duplicates (mapcar #'first *transitions*))
             collect `(,event (load-time-value (states-after ,event))))))

;;; For those who serve

(defun next-state (state event)
  "The PROTOCOL-STATE after EVENT, a keyword, in STATE, one too.  Signals ILLEGAL-EVENT where EVENT
has no meaning in STATE."
  (declare (type protocol-state state) #.*plain-policy*)
  (let* ((states (states-after-event event))
         (after (if states
                    (aref (the (simple-array protocol-state (256)) states) state)
                    +illegal+)))
    (if (= +illegal+ after)
        (error 'illegal-event :event event :state state)
        after)))

(defun state-after-head (state head)
  "The PROTOCOL-STATE after HEAD was read in STATE, one in which nothing was read, or in which the
connection may be used again.  Signals ILLEGAL-EVENT otherwise."
  (declare (type protocol-state state) (type head head) #.*plain-policy*)
  (let ((after (next-state (if (reusable-p state) (next-state state :next) state)
                           (cond ((eq :none (head-framing head)) :request)
                                 ((head-expect-100-continue-p head) :request-held)
                                 (t :request-body)))))
    (if (head-keep-alive-p head)
        after
        (next-state after :last-request))))

(defun reusable-p (state)
  "True if the connection may be used for another request now: in STATE, a PROTOCOL-STATE, request
and reply have both come to their ends, and nobody wants it closed (RFC 9112, section 9.3)."
  (declare (type protocol-state state))
  (= state +both-done+))

(defun persists-p (state)
  "True if the connection may still come to be used again after STATE, a PROTOCOL-STATE, so that the
head of a reply need not say close (RFC 9112, section 9.6)."
  (declare (type protocol-state state))
  (and (zerop (logand state (logior +client-closes+ +we-close+)))
       (<= (ldb (byte 3 0) state) 3)    ; not after :DONE
       (<= (ldb (byte 3 3) state) 3)))

(defun last-request-read-p (state)
  "True if the client has said that its request is its last one, and that was read to its end, in
STATE, a PROTOCOL-STATE: nothing more of it is to be expected (RFC 9112, section 9.6)."
  (declare (type protocol-state state))
  (and (logtest +client-closes+ state)
       (eq :done (client-side state))))
