(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; A deferred response: a reply that comes later.  Any thread may give the answer; the owner of
;;;; the connection sends it.  The states change by compare-and-set:
;;;;
;;;;   state        event                           becomes      action
;;;;   :PENDING     a thread answers                the answer   the connection is resumed
;;;;                the deadline has passed         :OVER        the owner answers: too late
;;;;                the handler has failed          :OVER        the handler's worker answers
;;;;   an answer    an owner comes                  :DONE        the owner sends the answer
;;;;   all others   the connection is closed        :OVER        the client counts as gone
;;;;
;;;; An answer that comes when it is :OVER is dropped; any other further one gets
;;;; REPLY-ALREADY-SENT.
;;;;
;;;; An answer may be a shared queue.  Then that is sent until it has ended, in the state :DONE.
;;;; The client's leaving changes no state: a client that has only closed its sending side still
;;;; gets its answer.  ON-LEAVING is called once.

(defstruct (deferred-response (:include suspended-exchange) (:copier nil))
  "A reply that comes later."
  ;; The exchange whose reply DEFERRED-RESPONSE is.
  (exchange nil :read-only t)
  (end nil :type (or null fixnum) :read-only t) ; its deadline, in MILLISECONDS
  ;; NIL, or the function without arguments that is called when the client of DEFERRED-RESPONSE
  ;; leaves before it was answered.
  (on-leaving nil :read-only t)
  (state :pending)
  ;; True when the client of DEFERRED-RESPONSE has left, as far as that is known.
  (left-p nil)
  ;; The SHARED-QUEUE that is sent now; NIL unless the answer of DEFERRED-RESPONSE is one.
  (shared-queue nil)
  ;; True when the answer of DEFERRED-RESPONSE is a stream without an end of its own, which ends
  ;; when its engine stops.
  (endless-p nil))

(defun defer-response (constructor exchange seconds on-leaving &rest slots)
  "Makes a DEFERRED-RESPONSE that of EXCHANGE, and returns it.  Its deadline is in SECONDS, a real,
NIL for none, or :DEFAULT for what the limits say.  CONSTRUCTOR, a function, makes it with SLOTS
besides."
  (setf (exchange-deferred-response exchange)
        (apply constructor
               :application (exchange-application exchange) :engine (exchange-engine exchange)
               :connection (exchange-connection exchange) :exchange exchange
               :on-leaving on-leaving
               :end (end-after (if (eq :default seconds)
                                   (limits-reply-seconds
                                    (application-limits (exchange-application exchange)))
                                   seconds))
               slots)))

(defgeneric send-deferred-response (application deferred-response answer)
  (:documentation "Has APPLICATION send the reply of DEFERRED-RESPONSE.  ANSWER is the one that was
given, or :EXPIRED when none has come in time.  Does not wait.  Returns an outcome as SERVE does;
:DEFERRED when ANSWER is a SHARED-QUEUE, whose head was written.  Where no content follows that,
APPLICATION takes it from DEFERRED-RESPONSE."))

(defgeneric end-stream (application deferred-response)
  (:documentation "Has APPLICATION end the exchange of DEFERRED-RESPONSE, a stream that was sent
wholly.  Returns an outcome as SERVE does."))

(defgeneric drop-deferred (application deferred-response)
  (:documentation "Has APPLICATION release its state for DEFERRED-RESPONSE, which is over.  May be
called again."))

(defun deferred-response-unsent-p (deferred-response)
  "True while the answer of DEFERRED-RESPONSE is still to come, or to be sent."
  (not (member (deferred-response-state deferred-response) '(:done :over))))

(defun deferred-response-over-p (deferred-response)
  "True when DEFERRED-RESPONSE has no answer, and its client does not wait for one any more."
  (eq :over (deferred-response-state deferred-response)))

(defun deferred-p (exchange)
  "True while the reply of EXCHANGE, or the rest of it, is still to come, and its connection waits
for that."
  (let ((deferred-response (exchange-deferred-response exchange)))
    (and deferred-response
         (eq deferred-response (http-suspended-exchange (exchange-http exchange)))
         (or (deferred-response-unsent-p deferred-response)
             (deferred-response-shared-queue deferred-response))
         t)))

;;; From any thread

(defun answer-deferred-response (deferred-response answer)
  "Gives DEFERRED-RESPONSE ANSWER, no keyword, and has it sent.  True when the client still waits
for it.  Signals REPLY-ALREADY-SENT if there was an answer before."
  (cond ((compare-and-set (deferred-response-state deferred-response) :pending answer)
         ;; An owner looks by itself.
         (unless (eq (bt:current-thread) (deferred-response-owner deferred-response))
           (resume deferred-response))
         t)
        (t
         (when (shared-queue-p answer)  ; nobody sends it
           (end-shared-queue answer))
         (unless (deferred-response-over-p deferred-response)
           (error 'reply-already-sent)))))

(defun withdraw-deferred-response (deferred-response)
  "Makes DEFERRED-RESPONSE drop any later answer, unless it has one.  True when it had none."
  (compare-and-set (deferred-response-state deferred-response) :pending :over))

;;; The client's leaving, and the end

(defun note-leaving (deferred-response)
  "Notes that the client of DEFERRED-RESPONSE is gone, and calls its ON-LEAVING function the first
time.  Logs an error of that."
  (let ((function (and (compare-and-set (deferred-response-left-p deferred-response) nil t)
                       (deferred-response-on-leaving deferred-response))))
    (when function
      (handler-case (funcall function)
        (error (condition)
          (log-message (suspended-exchange-engine deferred-response) :error
                       "What was to be done for a client's leaving failed: ~A" condition))))))

(defmethod abandon ((deferred-response deferred-response))
  (let* ((state (loop for state = (deferred-response-state deferred-response)
                      until (or (eq :done state)
                                (compare-and-set (deferred-response-state deferred-response)
                                                 state :over))
                      finally (return state)))
         (shared-queue (or (deferred-response-shared-queue deferred-response)
                           (and (shared-queue-p state) state))))
    (unwind-protect                     ; a program may end the thread halfway
         (cond (shared-queue
                ;; Threads that wait for room wake first: one of them may hold a lock that the
                ;; ON-LEAVING function needs.
                (end-queue (shared-queue-queue shared-queue))
                (note-leaving deferred-response)
                (end-shared-queue shared-queue))
               ((not (eq :done state)) (note-leaving deferred-response)))
      (drop-deferred (suspended-exchange-application deferred-response) deferred-response))))

;;; The owner of the connection

(defun take-answer (deferred-response)
  "The answer with which DEFERRED-RESPONSE continues; :EXPIRED if none has come in time; NIL while
that is to come."
  (loop
    (let ((state (deferred-response-state deferred-response))
          (end (deferred-response-end deferred-response)))
      (cond ((not (keywordp state))
             (when (compare-and-set (deferred-response-state deferred-response) state :done)
               (return state)))
            ((not (and (eq :pending state) end (<= end (milliseconds))))
             (return nil))
            ((withdraw-deferred-response deferred-response)
             (count-late (suspended-exchange-engine deferred-response) :deferred)
             (return :expired))))))

(defmethod continue-over ((deferred-response deferred-response) http)
  (let ((left-p (peer-left-p deferred-response))
        (answer (and (null (deferred-response-shared-queue deferred-response))
                     (take-answer deferred-response)))
        (outcome :deferred))
    (when answer
      (when (shared-queue-p answer)
        (setf (deferred-response-shared-queue deferred-response) answer))
      (setf outcome (send-deferred-response (suspended-exchange-application deferred-response)
                                            deferred-response answer)))
    (cond ((deferred-response-shared-queue deferred-response)
           (continue-stream deferred-response http left-p))
          (answer
           (setf (http-suspended-exchange http) nil)
           outcome)
          (t
           (when left-p
             (note-leaving deferred-response))
           (set-deadline-at (suspended-exchange-connection deferred-response) :deferred
                            (deferred-response-end deferred-response))
           :deferred))))

(defun continue-stream (deferred-response http left-p)
  "Sends as much of the stream of DEFERRED-RESPONSE as the client takes now over HTTP.  LEFT-P is
true if the client has left."
  (let ((shared-queue (deferred-response-shared-queue deferred-response)))
    ;; A client that has only closed its sending side gets the rest; for others sending fails.
    (cond ((or (not left-p) (shared-queue-shut-p shared-queue)))
          ((deferred-response-on-leaving deferred-response) (note-leaving deferred-response))
          (t (end-queue (shared-queue-queue shared-queue)))) ; no other code would end it
    (when (and (deferred-response-endless-p deferred-response)
               (not (running-p (suspended-exchange-engine deferred-response)))) ; even softly
      (close-shared-queue shared-queue))
    (let ((sent-p (and (not (shared-queue-ended-p shared-queue))
                       (send-queued shared-queue (http-io http)))))
      ;; It may be broken by now.  Then the worker that closes the connection abandons
      ;; DEFERRED-RESPONSE.
      (cond ((shared-queue-ended-p shared-queue) :broken)
            ((not sent-p) :deferred)
            (t
             (let ((parts (last-parts shared-queue)))
               (when parts
                 (check-sent (http-io http)
                             (write-parts (shared-queue-queue shared-queue) parts))))
             (note-event (deferred-response-exchange deferred-response)
                         (if (member (shared-queue-announced shared-queue) '(nil 0))
                             :reply-end
                             :reply-cut))
             (setf (http-suspended-exchange http) nil
                   (deferred-response-shared-queue deferred-response) nil)
             (end-shared-queue shared-queue)
             (end-stream (suspended-exchange-application deferred-response) deferred-response))))))
