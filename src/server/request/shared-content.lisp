(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; Shared content: the content of a request whose reply is deferred.  Several threads may read it.
;;;;
;;;; The thread of the handler shares it before any other thread can know of the deferred response.
;;;; It first receives the rest, so that the other threads do not use the connection:
;;;;
;;;;   the rest                              is received by
;;;;   is within the limit                   SHARE-CONTENT, to memory or a file
;;;;   is longer, or held back by the        the thread of the handler, as it reads, until the
;;;;   client until it is asked for          handler returns; other threads get CONTENT-LEFT
;;;;   was not received when the handler     the owner of the connection, which drops it
;;;;   returned
;;;;
;;;; The readers take turns.  At the end of its request the content is released: at once, or by the
;;;; thread that is reading, at the end of its turn.

(defstruct (sharing (:include opaque) (:constructor make-sharing (taker)) (:copier nil))
  "The rights of threads to read content."
  (taker nil :read-only t)              ; the thread that may receive from the connection
  (lock (bt:make-lock "content") :read-only t) ; held while HOLDER and OVER-P change
  (ended (bt:make-condition-variable) :read-only t) ; notified at the end of a turn
  (holder nil)                          ; the thread that has the turn, or NIL
  (over-p nil))                         ; its request has ended

(defun closed-to-thread-p (content)
  "True when CONTENT was not received wholly, and the current thread may not receive the rest."
  (let ((sharing (content-sharing content)))
    (and sharing
         (not (eq (bt:current-thread) (sharing-taker sharing)))
         (null (content-refusal content))
         (not (all-received-p content)))))

;;; Turns

(defun release-now (content)
  "Releases the memory and the file of CONTENT; the current thread has the turn, and defers
interrupts."
  (lose-rest content)
  (drop-prefetched content)
  (release-memory content))

(defun try-to-begin-content-turn (sharing)
  "Gives the turn to the current thread if no thread has it.  True when it did.  The caller holds
the lock of SHARING, and defers interrupts."
  (unless (sharing-holder sharing)
    (setf (sharing-holder sharing) (bt:current-thread))))

(defun end-content-turn (content sharing)
  "Ends the turn of the current thread.  Releases CONTENT if its request has ended."
  (flet ((ended-p (even-if-over)
           (with-lock-briefly ((sharing-lock sharing))
             (when (or even-if-over (not (sharing-over-p sharing)))
               (setf (sharing-holder sharing) nil)
               (bt:condition-notify (sharing-ended sharing))
               t))))
    (unless (ended-p nil)
      (release-now content)
      (ended-p t))))

(defun call-in-content-turn (content function)
  "Calls FUNCTION while no other thread reads CONTENT, which is shared.  Returns its values."
  (let ((sharing (content-sharing content)))
    (if (eq (bt:current-thread) (sharing-holder sharing))
        (funcall function)
        (with-acquired (taken (list nil) (when (first taken) (end-content-turn content sharing)))
          (wait-until (lambda ()
                        (when (try-to-begin-content-turn sharing)
                          (setf (first taken) t)))
                      (sharing-ended sharing) (sharing-lock sharing) nil 1/4)
          (funcall function)))))

(defun release-shared (content)
  "Releases CONTENT, whose request has ended.  If a thread is reading it, that thread does so at the
end of its turn."
  (let ((sharing (content-sharing content)))
    (when-taken (turn-p (with-lock-briefly ((sharing-lock sharing))
                          (setf (sharing-over-p sharing) t)
                          (try-to-begin-content-turn sharing)))
      (end-content-turn content sharing))))

;;; Receiving the rest

(defgeneric octets-due (content)
  (:documentation "How many octets of CONTENT, which was not received wholly, are to come at
least.")
  (:method ((content content-stream))
    (content-awaited content))
  (:method ((content chunked-content))
    (body-octets-due (content-decoder content))))

(defun prepare-body-buffer (content)
  "Gives CONTENT a body buffer to which octets can be appended.  If CONTENT is short, the buffer has
room for exactly all of it, and the reader gets that vector."
  (let ((body-buffer (content-body-buffer content))
        (size (content-size content)))
    (cond (body-buffer (compact-body-buffer body-buffer))
          (t
           (setf body-buffer (make-body-buffer)
                 (content-body-buffer content) body-buffer)
           (when (and size (<= size *body-buffer-memory*))
             (ensure-memory body-buffer size))))))

(defun receive-within (content most)
  "Receives the rest of CONTENT to its body buffer; waits for it.  NIL when that is more than MOST
octets, an integer or NIL for no limit, or when neither memory nor a file has room."
  (loop
    (let ((room (if most (- (1+ most) (prefetched-octets content)) +input-size+)))
      (cond ((all-received-p content) (return t))
            ((or (content-refusal content) (not (plusp room))) (return nil))
            ((not (await-input-of (content-io content)
                                  (min +input-size+ (octets-due content))))
             (error 'end-of-file :stream content))
            ((not (receive-some content room)) (return (all-received-p content)))))))

(defun receive-rest (content most)
  "Receives the rest of CONTENT, at most MOST octets, so that it can be read without its source.  A
failure is signalled to a reader that gets so far."
  (prepare-body-buffer content)
  (flet ((receive-it ()
           (handler-case (and (receive-within content most)
                              (memory-left-p content))
             (stream-timeout ()
               (setf (content-refusal content) (make-refusal :request-timeout)))
             ((or end-of-file descriptor-broken) (condition)
               (setf (content-refusal content) condition)))))
    (declare (dynamic-extent #'receive-it))
    (call-taking-content content #'receive-it)))

(defun share-content (content most)
  "Receives the rest of CONTENT, at most MOST octets, an integer or NIL for no limit; waits for the
client.  From now on any thread may read CONTENT.  Only the current thread may receive a longer
rest, see END-TAKING."
  (let ((size (content-size content)))
    (when (and (content-intact-p content)
               (null (content-invite content))
               (not (all-received-p content))
               (or (null size) (null most) (<= size most)))
      (receive-rest content most)))
  (setf (content-sharing content) (make-sharing (bt:current-thread))))

(defun end-taking (content)
  "Ends receiving of CONTENT, which is shared: a reader gets an error where the rest begins, and the
owner of the connection drops that."
  (unless (or (content-refusal content) (all-received-p content))
    (setf (content-lost-p content) t)))

(defun content-shared-p (content)
  "True when several threads may read CONTENT."
  (and (content-sharing content) t))
