(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; What is told once in ten seconds at most, with how often it happened: overload, or a client
;;;; that tries again and
;;;; again, would fill the log.

(defparameter *warning-milliseconds* 10000
  "How long after a message of something the next one of that comes at the earliest.")

(defstruct (log-throttle (:include opaque))
  "What has happened, and no message has told of."
  (lock (bt:make-lock "log throttle") :read-only t)
  (count 0 :type integer)
  (burst 1 :type fixnum :read-only t)   ; how many messages may follow each other at once
  (silent-until nil :type (or null fixnum))) ; in MILLISECONDS, once BURST messages have told of it

(setf (documentation 'make-log-throttle 'function)
      "Something that has not happened yet, for COUNT-THROTTLED; each keyword is one of its slots."
      (documentation 'log-throttle-silent-until 'function)
      "Until when nothing is told of LOG-THROTTLE, in MILLISECONDS; NIL before the first time.")

(defun count-throttled (log-throttle now)
  "Counts that LOG-THROTTLE has happened.  How many times a message is to tell of NOW, in
MILLISECONDS, or NIL for no message."
  (with-lock-briefly ((log-throttle-lock log-throttle))
    (incf (log-throttle-count log-throttle))
    (let ((until (or (log-throttle-silent-until log-throttle) now)))
      (unless (< now (- until (* *warning-milliseconds* (1- (log-throttle-burst log-throttle)))))
        (setf (log-throttle-silent-until log-throttle) (+ (max now until) *warning-milliseconds*))
        (shiftf (log-throttle-count log-throttle) 0)))))

(defun make-log-throttles ()
  "What is told seldom, an alist: connections that were :REFUSED, clients that speak TLS where
it is not spoken, and handshakes that failed, by kind."
  (loop for name in (list* :refused :tls-to-plain-http (handshake-failure-kinds))
        collect (cons name (make-log-throttle))))

(defparameter *rare-control* "~A~@[: ~A~]."
  "The control string of LOG-RARELY.")

(defun log-rarely (log-throttle tell once often &optional reason)
  "Has TELL, a function of a control string and its arguments, tell that what ONCE says has
happened, or, after a number, OFTEN, both strings, and the REASON of the last time, a string or NIL;
unless LOG-THROTTLE was told just now."
  (let ((count (count-throttled log-throttle (milliseconds))))
    (when count
      (funcall tell *rare-control*
               (if (= 1 count) once (format nil "~D ~A since the last message" count often))
               reason))))

;;; Messages that clients can cause, by what they say

(defstruct (throttle (:include opaque))
  "What was told lately, by the control string of the message and the type of the condition in it."
  (lock (bt:make-lock "throttle") :read-only t)
  (entries (make-hash-table :test 'equal) :read-only t))

(setf (documentation 'make-throttle 'function)
      "A throttle, for COUNT-MESSAGE, that has seen no message; each keyword is one of its slots.")

(defparameter *message-burst* 20
  "How many messages of a kind that clients can cause may follow each other at once.")

(defparameter *message-kinds* 100
  "How many kinds of messages a throttle tells apart; all others share one.")

(defun throttle-entry (throttle key)
  "What THROTTLE has for KEY."
  (let ((entries (throttle-entries throttle)))
    (with-lock-briefly ((throttle-lock throttle))
      (let ((key (if (or (gethash key entries) (< (hash-table-count entries) *message-kinds*))
                     key
                     :other)))
        (or (gethash key entries)
            (setf (gethash key entries) (make-log-throttle :burst *message-burst*)))))))

(defun count-message (throttle control arguments)
  "Counts a message in THROTTLE that has CONTROL, a string, and ARGUMENTS, a list.  How many
such messages there were since
the last one that was written, this one among them, an integer; or NIL when it is not to be
written."
  (let ((condition (find-if (lambda (argument) (typep argument 'condition)) arguments)))
    (count-throttled (throttle-entry throttle (cons control (and condition (type-of condition))))
                     (milliseconds))))
