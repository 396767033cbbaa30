(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; A log throttle lets an event be logged at most once in ten seconds, with how often it happened.
;;;; Otherwise overload, or a client that tries again and again, would fill the log.

(defparameter *warning-milliseconds* 10000
  "The shortest time between two messages about the same event.")

(defstruct (log-throttle (:include opaque))
  "A counter of events that were not logged yet."
  (lock (bt:make-lock "log throttle") :read-only t)
  (count 0 :type integer)
  (burst 1 :type fixnum :read-only t)   ; messages in a row without a pause
  (silent-until nil :type (or null fixnum))) ; in MILLISECONDS, after BURST messages

(defun count-throttled (log-throttle now)
  "Counts an event of LOG-THROTTLE at NOW, in MILLISECONDS.  Returns the number of events for a
message now, or NIL for no message."
  (with-lock-briefly ((log-throttle-lock log-throttle))
    (incf (log-throttle-count log-throttle))
    (let ((until (or (log-throttle-silent-until log-throttle) now)))
      (unless (< now (- until (* *warning-milliseconds* (1- (log-throttle-burst log-throttle)))))
        (setf (log-throttle-silent-until log-throttle) (+ (max now until) *warning-milliseconds*))
        (shiftf (log-throttle-count log-throttle) 0)))))

(defun make-log-throttles ()
  "The log throttles of an application, an alist: for connections that were :REFUSED, or whose
address was crowded, for refusals of requests that are logged, and for failed handshakes by kind."
  (loop for name in (list* :refused :crowded-address :no-memory :tls-to-plain-http
                           :malformed-proxy-header :no-trusted-proxy :contradicting-proxies
                           (handshake-failure-kinds))
        collect (cons name (make-log-throttle))))

(defparameter *rare-control* "~A~@[: ~A~]."
  "The control string of LOG-RARELY.")

(defun log-rarely (log-throttle tell once often &optional reason)
  "Counts an event of LOG-THROTTLE, and logs it unless that was done just now: calls TELL, a
function of a control string and its arguments.  The message says ONCE or, after a number, OFTEN,
both strings, and the last REASON, a string or NIL."
  (let ((count (count-throttled log-throttle (milliseconds))))
    (when count
      (funcall tell *rare-control*
               (if (= 1 count) once (format nil "~D ~A since the last message" count often))
               (and reason (string-right-trim "." reason))))))

;;; Messages that clients can cause

(defstruct (throttle (:include opaque))
  "Log throttles by the control string of the message and the type of the condition in it."
  (lock (bt:make-lock "throttle") :read-only t)
  (entries (make-hash-table :test 'equal) :read-only t))

(defparameter *message-burst* 20
  "How many messages of one kind that clients can cause may follow each other without a pause.")

(defparameter *message-kinds* 100
  "How many kinds of messages a throttle distinguishes; all others share one entry.")

(defun count-message (throttle control arguments)
  "Counts a message of CONTROL, a string, and ARGUMENTS, a list, in THROTTLE.  Returns how many of
its kind came since the last one that was written, this one included; or NIL when it is not to be
written."
  (let* ((condition (find-if (lambda (argument) (typep argument 'condition)) arguments))
         (key (cons control (and condition (type-of condition))))
         (entries (throttle-entries throttle)))
    (count-throttled (with-lock-briefly ((throttle-lock throttle))
                       (unless (or (gethash key entries)
                                   (< (hash-table-count entries) *message-kinds*))
                         (setf key :other))
                       (or (gethash key entries)
                           (setf (gethash key entries)
                                 (make-log-throttle :burst *message-burst*))))
                     (milliseconds))))
