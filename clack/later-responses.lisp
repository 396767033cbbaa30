(in-package #:clack.handler.recycling)

;;;; Where a response goes on that is not over when its function has returned; and responses that are forgotten.
;;;;
;;;;   the application has forgotten     and it was used by            then
;;;;   the responder                                                   500 is sent
;;;;   the writer, before it was closed  the function in its call only what was written is all
;;;;   the writer, before it was closed  somebody else, or later       the connection is closed: something is missing
;;;;
;;;; SBCL tells of what is forgotten when it has collected garbage.  Where nobody but the function has used responder
;;;; or writer, they may well be forgotten: then the young garbage is collected soon, so that a client whose
;;;; application counts on the function's return waits for a second or so at most.  Elsewhere it waits for the
;;;; :RESPONSE-TIMEOUT.  Invariant: such a collection comes no earlier after another than twenty times as long as that
;;;; has taken, or a second, and none is made where one has come by itself.
;;;;
;;;; Where garbage was collected amid the function, what that had counts as older, and a collection of the young tells
;;;; nothing of it.  Then older garbage is collected as well at the last look, a few times a minute at most.

(defmethod resume ((server clack-server) exchange deferral answer)
  (let* ((delayed (deferral-context deferral))
         (written (and (written-response-p answer) answer)))
    (handler-case (send-late delayed answer)
      ((or descriptor-broken stream-timeout) (condition)
        (error condition))              ; who abandons the connection drops ANSWER
      (error (condition)
        (drop-answer answer)
        (report-failure server exchange (delayed-content delayed) condition)))
    (cond ((not (eq :body (delayed-side delayed)))
           (conclude-delayed delayed))
          ((eq :none (written-framing written))
           (end-written written)
           (conclude-delayed delayed))
          (t
           (values :deferred (written-outbox written))))))

(defun send-late (delayed answer)
  "Sends ANSWER to DELAYED: a response, :EXPIRED or :FORGOTTEN."
  (flet ((say (status text)
           (send-text (delayed-server delayed) (delayed-exchange delayed) (delayed-content delayed) status text)))
    (case answer
      (:expired (say 504 "Gateway Timeout"))
      (:forgotten
       (tell (delayed-server delayed) :error "A responder was forgotten before it was called.")
       (say 500 "Internal Server Error"))
      (t (send-answer delayed answer)))))

(defmethod end-stream ((server clack-server) exchange deferral)
  (declare (ignore exchange))
  (let ((delayed (deferral-context deferral)))
    (setf (deferral-outbox deferral) nil)
    (end-written (delayed-written delayed))
    (conclude-delayed delayed)))

(defmethod outbox-of-answer ((server clack-server) answer)
  (and (to-be-written-p answer)
       (written-outbox answer)))

(defmethod drop-deferred ((server clack-server) deferral)
  (let ((delayed (deferral-context deferral)))
    (release-body (delayed-body delayed))
    (release-request (delayed-exchange delayed) (delayed-content delayed))))

(defun conclude-delayed (delayed)
  "Ends the request of DELAYED, whose response is over, and returns what is to become of its connection."
  (release-body (delayed-body delayed))
  (conclude-request (delayed-server delayed) (delayed-exchange delayed) (delayed-content delayed)))

;;; What is forgotten

(defmethod stream-forgotten ((server clack-server) deferral)
  (let ((delayed (deferral-context deferral)))
    (if (delayed-elsewhere-p delayed)
        (call-next-method)
        (close-forgotten (delayed-written delayed)))))

(defun close-forgotten (written)
  "Lets WRITTEN end after what was written."
  (setf (written-closed-p written) t)
  (close-outbox (written-outbox written)))

(defparameter *looks* '(1/10 1)
  "After how many seconds each it is looked whether responses that nobody but their functions has used are forgotten.")

(defun unused-p (delayed)
  "True while nobody but its function has answered or written DELAYED, and it is not over."
  (not (or (delayed-elsewhere-p delayed)
           (if (delayed-written delayed)
               (outbox-over-p (written-outbox (delayed-written delayed)))
               (not (deferral-pending-p (delayed-deferral delayed)))))))

(defun watch-forgotten (delayed)
  "Sees to it that DELAYED, which goes on, ends if it is forgotten."
  (let ((server (delayed-server delayed)))
    (cond ((not (unused-p delayed)))
          ((garbage-told-p)
           (setf (delayed-watched delayed) (milliseconds)
                 (delayed-mark delayed) (collection-mark)
                 (delayed-aged-p delayed) (not (eq (delayed-born delayed) (delayed-mark delayed))))
           (look-later server (list delayed) *looks*))
          ((and (delayed-written delayed) (server-response-timeout server))
           (schedule (exchange-engine (delayed-exchange delayed)) (server-response-timeout server)
                     (lambda ()
                       (when (unused-p delayed)
                         (close-written (delayed-written delayed)))))))))

(defparameter *lost-look-milliseconds* 5000
  "After how long a look that has not begun counts as lost: its thread may have been destroyed.")

(defun look-later (server more looks &optional (seconds (first looks)))
  "Has it looked whether those of MORE, a list of DELAYED of SERVER, are forgotten, for the first of LOOKS, after SECONDS."
  (when looks
    (uninterruptibly                    ; what is planned, and has no timer, takes up all that come later
      (let* ((now (milliseconds))
             (due (+ now (as-milliseconds seconds))))
        (when (bt:with-lock-held ((server-lock server))
                (let ((planned (assoc looks (server-looks server) :test #'eq)))
                  (cond ((null planned)
                         (push (list* looks due more) (server-looks server)))
                        (t
                         (setf (cddr planned) (append more (cddr planned)))
                         (when (< (+ (second planned) *lost-look-milliseconds*) now)
                           (setf (second planned) due))))))
          (schedule (server-engine server) seconds (lambda () (look server looks))))))))

(defun take-unused (server looks)
  "Those who wait for LOOKS of SERVER to begin, and are still unused; the caller's from now on."
  (remove-if-not #'unused-p
                 (bt:with-lock-held ((server-lock server))
                   (let ((planned (assoc looks (server-looks server) :test #'eq)))
                     (setf (server-looks server) (remove planned (server-looks server) :test #'eq))
                     (cddr planned)))))

(defun look (server looks)
  "Looks whether responses of SERVER that wait for the first of LOOKS are forgotten, and again for those that are not."
  ;; Who is destroyed amid planning would leave some for whom nobody looks.
  (multiple-value-bind (old aged) (uninterruptibly (plan-looks server looks))
    (cond (aged (collect-for server (append aged old) #'collect-older-garbage))
          (old (collect-for server old)))))

(defun plan-looks (server looks)
  "Plans the next looks for the responses of SERVER that wait for the first of LOOKS; returns those, lists of DELAYED, for
which the caller is to collect garbage: young garbage, and, as second value, older."
  ;; Where many responses come a little later, some always wait.  They came after this look was planned: to collect
  ;; garbage for each of their kind would have all threads wait again and again.
  (let ((since (- (milliseconds) (floor (* 500 (first looks)))))
        (unused (take-unused server looks)))
    (flet ((young-p (delayed) (> (delayed-watched delayed) since)))
      (let* ((young (remove-if-not #'young-p unused))
             (old (remove-if #'young-p unused))
             (fresh (remove-if #'delayed-aged-p old))
             (aged (remove-if-not #'delayed-aged-p old)))
        (when young
          (look-later server young looks))
        (values (and fresh (plan-next-look server fresh looks))
                (and aged (plan-next-older-look server aged looks)))))))

(defun plan-next-look (server old looks)
  "Plans the next look for OLD, a list of DELAYED of SERVER: for the rest of LOOKS, or again for the first of them where
garbage must not be collected yet.  Returns OLD if it is to be collected for them now; else NIL."
  (let* ((collect-p (some #'uncollected-p old))
         (seconds (and collect-p (seconds-to-collection server))))
    (cond (seconds
           (look-later server old looks seconds)
           '())
          (t
           (mark-collected old)
           (look-later server old (rest looks))
           (and collect-p old)))))

(defun plan-next-older-look (server aged looks)
  "Does what PLAN-NEXT-LOOK does, for AGED, a list of DELAYED of SERVER amid whose functions garbage was collected, and
older garbage: at the last of LOOKS."
  (let* ((last-p (null (rest looks)))
         (seconds (and last-p aged (seconds-to-older-collection server))))
    (cond (seconds
           (look-later server aged looks seconds)
           '())
          (last-p aged)
          (t
           (look-later server aged (rest looks))
           '()))))

(defun uncollected-p (delayed)
  "True when no garbage was collected since it was looked whether DELAYED is forgotten."
  (eq (delayed-mark delayed) (collection-mark)))

(defun mark-collected (delayed-list)
  "Notes for DELAYED-LIST that the next collection of garbage is that for their next look."
  (dolist (delayed delayed-list)
    (setf (delayed-mark delayed) (collection-mark))))

(defparameter *rest-after-collecting* 20
  "How many times as long as a collection for forgotten responses has taken, another one is not made.")

(defparameter *most-rest-milliseconds* 1000
  "For how long none is made at most, however long the last one has taken.")

(defun seconds-to (server slot rest)
  "NIL when the caller may collect garbage for SERVER now, since the moment in its SLOT has come, and nobody else for REST
milliseconds; else after how many seconds, a rational, somebody may."
  (bt:with-lock-held ((server-lock server))
    (let* ((now (milliseconds))
           (early (- (slot-value server slot) now)))
      (cond ((plusp early)
             (/ early 1000))
            (t
             (setf (slot-value server slot) (+ now rest))
             nil)))))

(defun seconds-to-collection (server)
  "What SECONDS-TO returns for young garbage."
  (seconds-to server 'collects-from 1000)) ; for a second, if the caller is destroyed amid it

(defparameter *rest-after-older-milliseconds* 10000
  "For how long no older garbage is collected, after it was, or 20 times as long as that took.")

(defun seconds-to-older-collection (server)
  "What SECONDS-TO returns for older garbage."
  (seconds-to server 'collects-older-from *rest-after-older-milliseconds*))

(defun collect-for (server delayed-list &optional (collect #'collect-young-garbage))
  "Calls COLLECT, which collects garbage, DELAYED-LIST of SERVER perhaps."
  (let ((start (milliseconds)))
    (funcall collect)
    (let ((end (milliseconds)))
      (setf (server-collects-older-from server)
            (max (server-collects-older-from server) (+ end (* *rest-after-collecting* (- end start)))))
      (setf (server-collects-from server)
            (+ end (min *most-rest-milliseconds* (* *rest-after-collecting* (- end start)))))))
  (mark-collected delayed-list))
