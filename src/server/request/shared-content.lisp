(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; Content that several threads may read: that of a request whose reply is deferred.
;;;;
;;;; The handler's thread shares it before any other thread can know of the deferred response, and
;;;; then receives what has yet to come, so that a thread that reads it touches no connection:
;;;;
;;;;   what has yet to come                  is taken from the connection by
;;;;   no more than the limit                SHARE-CONTENT, to memory or a file
;;;;   more; or the client waits to be       the handler's thread, as it reads, until the handler
;;;;   asked for it                          returns; other threads get CONTENT-LEFT
;;;;   either, when the handler has          the owner of the connection, which drops it
;;;;   returned
;;;;
;;;; Threads that read it take turns.  When its request is over it is released: at once, or by the
;;;; thread that reads at that moment, when its turn ends.

(defstruct (sharing (:include opaque) (:constructor make-sharing (taker)) (:copier nil))
  "Who may read content, and who does."
  (taker nil :read-only t)              ; the thread that may take it from the connection
  (lock (bt:make-lock "content") :read-only t) ; held while HOLDER and OVER-P change
  (ended (bt:make-condition-variable) :read-only t) ; notified when a turn has ended
  (holder nil)                          ; the thread whose turn it is, or NIL
  (over-p nil))                         ; its request is over

(defun others-content-p (content)
  "True when CONTENT has still to be taken from its connection, and the current thread may not."
  (let ((sharing (content-sharing content)))
    (and sharing
         (not (eq (bt:current-thread) (sharing-taker sharing)))
         (null (content-refusal content))
         (not (all-received-p content)))))

;;; Turns

(defun release-now (content)
  "Gives back all that CONTENT has in memory and in files; it is the current thread's turn."
  (uninterruptibly
    (lose-rest content)
    (drop-spooled content)
    (release-memory content)))

(defun content-turn-begun-p (sharing)
  "Makes it the current thread's turn if it is nobody's.  To be called under the lock of SHARING."
  (uninterruptibly
    (unless (sharing-holder sharing)
      (setf (sharing-holder sharing) (bt:current-thread)))))

(defun end-content-turn (content sharing)
  "Ends the current thread's turn; releases CONTENT if its request is over by then."
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
  "Calls FUNCTION while no other thread reads CONTENT, which is shared; returns what it does."
  (let ((sharing (content-sharing content)))
    (if (eq (bt:current-thread) (sharing-holder sharing))
        (funcall function)
        (with-acquired (taken (list nil) (when (first taken) (end-content-turn content sharing)))
          (wait-until (lambda ()
                        (when (content-turn-begun-p sharing)
                          (setf (first taken) t)))
                      (sharing-ended sharing) (sharing-lock sharing) nil 1/4)
          (funcall function)))))

(defun release-shared (content)
  "Releases CONTENT, whose request is over; a thread that reads it does so when its turn ends."
  (let ((sharing (content-sharing content)))
    (uninterruptibly
      (when (with-lock-briefly ((sharing-lock sharing))
              (setf (sharing-over-p sharing) t)
              (content-turn-begun-p sharing))
        (end-content-turn content sharing)))))

;;; Receiving the rest

(defgeneric octets-due (content)
  (:documentation "How many octets of CONTENT, not all of which was received, are to come.")
  (:method ((content content-stream))
    (content-awaited content))
  (:method ((content chunked-content))
    (body-octets-due (content-decoder content))))

(defun prepare-body-buffer (content)
  "Gives CONTENT a body-buffer to which octets can be appended.  Where CONTENT is short the
body-buffer has room for just all of it: the reader gets that vector then."
  (let ((body-buffer (content-body-buffer content))
        (size (content-size content)))
    (cond (body-buffer (compact-body-buffer body-buffer))
          (t
           (setf body-buffer (make-body-buffer)
                 (content-body-buffer content) body-buffer)
           (when (and size (<= size *body-buffer-memory*))
             (memory-made-p body-buffer size))))))

(defun rest-received-p (content most)
  "Receives what has yet to come of CONTENT to its body-buffer, waiting for it.  NIL when that is
more than MOST octets, an integer or NIL for no limit, or there is no room for them, nor in a file."
  (loop
    (let ((room (if most (- (1+ most) (spooled-octets content)) +input-size+)))
      (cond ((all-received-p content) (return t))
            ((or (content-refusal content) (not (plusp room))) (return nil))
            ((not (await-input-of (content-io content)
                                  (min +input-size+ (octets-due content))))
             (error 'end-of-file :stream content))
            ((not (receive-some content room)) (return (all-received-p content)))))))

(defun receive-rest (content most)
  "Receives what has yet to come of CONTENT, so that it can be read without its source, which keeps
what is more than MOST octets.  A failure is signalled to whoever reads up to it."
  (prepare-body-buffer content)
  (flet ((receive-it ()
           (handler-case (and (rest-received-p content most)
                              (memory-left-p content))
             (stream-timeout ()
               (setf (content-refusal content) (make-refusal :request-timeout)))
             ((or end-of-file descriptor-broken) (condition)
               (setf (content-refusal content) condition)))))
    (declare (dynamic-extent #'receive-it))
    (call-taking-content content #'receive-it)))

(defun share-content (content most)
  "Lets any thread read CONTENT from now on, after it has come: no more than MOST octets, an integer
or NIL for no limit.  The rest is the current thread's to take, see END-TAKING.  Waits for the
client."
  (let ((size (content-size content)))
    (when (and (content-intact-p content)
               (null (content-invite content))
               (not (all-received-p content))
               (or (null size) (null most) (<= size most)))
      (receive-rest content most)))
  (setf (content-sharing content) (make-sharing (bt:current-thread))))

(defun end-taking (content)
  "Lets no thread that reads CONTENT, which is shared, take more of it from its connection: a thread
that reads is told that the rest is lost, and the owner of the connection drops it."
  (unless (or (content-refusal content) (all-received-p content))
    (setf (content-lost-p content) t)))

(defun content-shared-p (content)
  "True when several threads may read CONTENT."
  (and (content-sharing content) t))
