(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; The content of a request: the part that all its kinds share, and reading all of it into memory.
;;;;
;;;; If content is not acceptable, or does not come in time, the function TURN-DOWN of the layer
;;;; above is called with the PROTOCOL-ERROR.  It may answer and leave by a throw.  If it returns,
;;;; the reader gets the error.  From then on there is no more content:
;;;;
;;;;   reason of the end                                    the next read signals
;;;;   a refusal                                            that PROTOCOL-ERROR
;;;;   the connection has ended, or is broken               that END-OF-FILE or DESCRIPTOR-BROKEN
;;;;   a reader has left a read by a non-local exit, for    CONTENT-LEFT
;;;;   example by a time limit of its own
;;;;
;;;; If a reader exits non-locally after it has consumed octets, those octets are lost, and the next
;;;; read signals CONTENT-LEFT, too.  But the rest can be dropped, so that the next request is found
;;;; behind it.
;;;;
;;;; Octets that came before the request was served are in the BODY-BUFFER, and are read first; see
;;;; body-prefetch.lisp.  If several threads may read, they take turns, and not all of them may
;;;; receive from the connection; see shared-content.lisp.

(defclass content (trivial-gray-streams:fundamental-binary-input-stream
                   trivial-gray-streams:trivial-gray-stream-mixin)
  ((source :initarg :source :reader content-source)
   (turn-down :initarg :turn-down :initform (constantly nil) :accessor content-turn-down
              :documentation "A function of a PROTOCOL-ERROR.")
   (invite :initarg :invite :initform nil :accessor content-invite
           :documentation "A function that asks the peer for content that it holds back; NIL when it
holds none back, or was asked.")
   (failure :initform nil :accessor content-failure
            :documentation "The condition that has ended it before all was read, and that each
further read signals; or NIL.")
   (lost-p :initform nil :accessor content-lost-p
           :documentation "True when octets were consumed and lost.")
   (body-buffer :initform nil :accessor content-body-buffer)
   (limits :initform nil :accessor content-limits)
   (sharing :initform nil :accessor content-sharing
            :documentation "A SHARING where several threads may read it, or NIL.")
   (refusal :initform nil :accessor content-refusal
            :documentation "The condition that follows the octets in BODY-BUFFER, most often a
PROTOCOL-ERROR; or NIL.")
   (place-p :initform nil :accessor content-place-p
            :documentation "True while it has one of the places for unfinished content: from the
service of its request until all has come.")
   (memory :initform 0 :accessor content-memory
           :documentation "How many octets are reserved for it; see RESERVE-MEMORY."))
  (:documentation "The content of one request as a stream of octets, which ends where the content
ends."))

(setf (documentation 'content-invite 'function)
      "A function without arguments that asks the client for CONTENT, which it holds back; NIL when
it holds none back, or was asked.")

(setf (documentation 'content-limits 'function)
      "The LIMITS of the request of CONTENT.")

(define-condition content-left (recycling-error stream-error)
  ()
  (:report "Not all of the content was read, and the rest of it is not to be had any more.")
  (:documentation "Signalled to a reader of content that is not available any more: after a read was
left by a non-local exit, as by a time limit; after the end of the request; in a thread other than
the handler's, where not all content of a deferred reply was received; and, for the body that
Clack's handler gives, after the rest was given up."))

(defgeneric content-io (content)
  (:documentation "The buffered connection from which CONTENT is read.")
  (:method ((content content))
    (content-source content)))

(defmethod stream-element-type ((stream content))
  '(unsigned-byte 8))

(defun refuse-content (content refusal)
  "Ends CONTENT because of REFUSAL, a PROTOCOL-ERROR or the keyword of one."
  (let ((refusal (if (keywordp refusal) (make-refusal refusal) refusal)))
    (setf (content-failure content) refusal)
    (release-content content)
    (funcall (content-turn-down content) refusal)
    (error refusal)))

(defun keep-reply-from (content)
  "Makes later refusals of CONTENT errors of its reader only: the reply to its request is decided."
  (setf (content-turn-down content) (constantly nil)))

(defun call-with-io (content function)
  "Calls FUNCTION, which uses the buffered connection of CONTENT: nobody answers meanwhile in place
of the handler."
  (let* ((io (content-io content))      ; NIL where there is no content
         (watch (and io (watch-of-io io))))
    (if watch
        (call-reading-under-watch watch function)
        (funcall function))))

(defun invite-content (content)
  "Asks the peer for CONTENT, if it waits for that (RFC 9110, section 10.1.1)."
  (let ((invite (content-invite content)))
    (when invite
      (setf (content-invite content) nil)
      (call-with-io content invite))))

(defun fail-behind-body-buffer (content)
  "Signals the condition that follows the octets in the body buffer of CONTENT, if there is one."
  (let ((condition (content-refusal content)))
    (typecase condition
      (null)
      (protocol-error (refuse-content content condition))
      (t (setf (content-failure content) condition)
         (error condition)))))

(defmacro reading-content ((content) &body body)
  "Evaluates BODY, which reads CONTENT from its source.  A peer that takes too long is refused, so
that no later read waits for it."
  (let ((stream (gensym "CONTENT")))
    `(let ((,stream ,content))
       (fail-behind-body-buffer ,stream)
       (invite-content ,stream)
       (handler-case (progn ,@body)
         (stream-timeout () (refuse-content ,stream :request-timeout))))))

(defun about-content-p (condition content)
  "True when CONDITION, a STREAM-ERROR, is about CONTENT.  A CONDITION of a program may have no
stream."
  (eq content (ignore-errors (stream-error-stream condition))))

(defun call-taking-content (content function)
  "Calls FUNCTION, which consumes octets of CONTENT.  A non-local exit out of it (by a time limit of
a handler, for example) may have consumed octets that were not counted, and the next request would
be looked for in the wrong place.  So it ends the content, and this request is the last one."
  (unless-returned (handler-bind ((end-of-file (lambda (condition)
                                                 (when (about-content-p condition content)
                                                   (setf (content-failure content) condition))))
                                  (descriptor-broken (lambda (condition)
                                                       (setf (content-failure content) condition))))
                     (call-with-io content function))
    (unless (content-failure content)
      (setf (content-failure content) (make-condition 'content-left :stream content)))))

(defmacro keeping-content ((content) &body body)
  "Evaluates BODY, which reads octets of CONTENT and stores them.  A non-local exit out of BODY
marks octets of CONTENT as lost."
  (let ((it (gensym "CONTENT")))
    `(let ((,it ,content))
       (unless-returned (progn ,@body)
         (setf (content-lost-p ,it) t)))))

(defun lose-rest (content)
  "Makes later reads of CONTENT signal that the rest of it is not available.  The caller has read
some or none of it."
  (unless (eql 0 (content-size content))
    (setf (content-lost-p content) t)))

(defun content-intact-p (content)
  "True when CONTENT has not failed, and no octets of it were lost."
  (not (or (content-failure content) (content-lost-p content))))

(defun content-readable-p (content)
  "True when the next read of CONTENT returns the octets that follow those that were read; see
CHECK-CONTENT."
  (and (content-intact-p content)
       (not (closed-to-thread-p content))))

(defun check-content (content)
  "Signals the reason why a read of CONTENT would not return the next octets, if there is one."
  (cond ((content-failure content)
         (error (content-failure content)))
        ((or (content-lost-p content) (closed-to-thread-p content))
         (error 'content-left :stream content))))

(defmacro with-content-turn ((content) &body body)
  "Evaluates BODY, which reads CONTENT, while no other thread reads it."
  (let ((it (gensym "CONTENT")) (function (gensym "READ")))
    `(let ((,it ,content))
       (flet ((,function () ,@body))
         (declare (dynamic-extent #',function))
         (if (content-sharing ,it)
             (call-in-content-turn ,it #',function)
             (,function))))))

(defun call-reading-content (content function)
  "Like CALL-TAKING-CONTENT, for a program.  Signals the failure of CONTENT."
  (with-content-turn (content)
    (check-content content)
    (prog1 (call-taking-content content function)
      (when (and (content-place-p content) (all-received-p content))
        (give-up-place content)))))

(defmethod trivial-gray-streams:stream-read-byte :around ((stream content))
  (call-reading-content stream #'call-next-method))

(defmethod trivial-gray-streams:stream-read-sequence :around
    ((stream content) sequence start end &key)
  (declare (ignore sequence start end))
  (call-reading-content stream #'call-next-method))

(defmethod trivial-gray-streams:stream-listen :around ((stream content))
  (with-content-turn (stream)
    (and (content-readable-p stream)
         (call-taking-content stream #'call-next-method))))

(defgeneric note-all-read (content)
  (:documentation "Notes that all of CONTENT, of known length, was read."))

(defgeneric content-size (content)
  (:documentation "How many octets of CONTENT were not read; NIL when the length is unknown."))

(defgeneric all-received-p (content)
  (:documentation "True when all of CONTENT was received from its source."))

(defgeneric content-at-hand (content)
  (:documentation "How many octets of CONTENT, an integer, can be read without waiting, as far as
that is known."))

(defun content-awaited (content)
  "How many octets of CONTENT, an integer, have yet to come; NIL when the length is unknown."
  (let ((size (content-size content)))
    (and size (- size (prefetched-octets content)))))

(defgeneric drop-content (content limit)
  (:documentation "Drops the rest of CONTENT after it has come.  NIL when that is more than LIMIT
octets, not acceptable, held back by the peer, or late.  Signals END-OF-FILE where the connection
ends before.")
  (:method :around ((content content) limit)
    (declare (ignore limit))
    (with-content-turn (content)
      (when (typep (content-failure content) 'end-of-file)
        (error (content-failure content)))
      (and (null (content-failure content))
           (null (content-invite content))
           (handler-case (call-taking-content content #'call-next-method)
             (protocol-error () nil))))))

;;; Prefetched octets

(defun prefetched-octets (content)
  "How many octets of CONTENT are in its body buffer: they came before its request was served, and
were not read."
  (let ((body-buffer (content-body-buffer content)))
    (if body-buffer (body-buffer-left body-buffer) 0)))

(defun read-prefetched (content sequence start end)
  "Moves octets of the body buffer of CONTENT to SEQUENCE from START, up to END.  Returns the
position after the last one."
  (let ((body-buffer (content-body-buffer content)))
    (if body-buffer
        (prog1 (read-body-buffer body-buffer sequence start end)
          (when (zerop (body-buffer-left body-buffer))
            (clear-body-buffer body-buffer)))
        start)))

(defun read-prefetched-octet (content)
  "The next octet of the body buffer of CONTENT, which has some."
  (let ((octets (make-octets 1)))
    (read-prefetched content octets 0 1)
    (aref octets 0)))

(defgeneric drop-prefetched (content)
  (:documentation "Drops the octets in the body buffer of CONTENT.  CONTENT-SIZE is correct
afterwards.")
  (:method ((content content))
    (when (content-body-buffer content)
      (clear-body-buffer (content-body-buffer content)))))

;;; Memory, from the client memory budget (see memory-budget.lisp of the engine)

(defparameter *uncounted-octets* (* 64 1024)
  "Content of at most so many octets needs no reservation.  Most content is smaller, a thread takes
more memory, and all threads write to the same counter.")

(defun reserve-memory (content octets)
  "Reserves memory for OCTETS more of CONTENT; refuses CONTENT when there is none."
  (let ((budget (and (> octets *uncounted-octets*)
                     (client-memory-budget))))
    (when budget
      (when (> (+ octets (content-memory content)) budget)
        (refuse-content content :body-too-large))
      (unless (and (change-reservation (content-memory content)
                                       (+ octets (content-memory content)))
                   (make-room-in-heap octets))
        (refuse-content content :no-memory)))))

(defun reserve-plentiful-memory (content octets)
  "Reserves memory for OCTETS, an integer, more of CONTENT.  True while memory is plentiful;
otherwise NIL, and the caller uses a file."
  (or (null (client-memory-budget))
      (and (plenty-p octets)
           (change-reservation (content-memory content) (+ octets (content-memory content))))))

(defun release-memory (content)
  "Releases the reservation of CONTENT."
  (change-reservation (content-memory content) 0))

(defun release-octets (content)
  "Releases the memory and the file of CONTENT; if another thread is reading it, when that read has
ended."
  (if (content-sharing content)
      (release-shared content)
      (uninterruptibly
        (drop-prefetched content)
        (release-memory content))))

(defun release-content (content)
  "Like RELEASE-OCTETS, at the end of the request of CONTENT; also releases its place."
  (release-octets content)
  (give-up-place content))

(defun leave-content (content)
  "Leaves the unread octets of CONTENT to a program that has taken its connection away.  A finalizer
on CONTENT releases its memory and file."
  (uninterruptibly
    (give-up-place content)
    (release-memory content)
    (let ((body-buffer (content-body-buffer content)))
      (when body-buffer
        (call-when-forgotten content (lambda () (clear-body-buffer body-buffer)))))))

(defun make-content-octets (content size)
  "A vector for SIZE octets of CONTENT, which is refused when there is no memory for them."
  (reserve-memory content size)
  (or (octets-if-room size)
      (refuse-content content :no-memory)))

;;; Reading all

(defun prefetched-whole (content size)
  "All SIZE octets of CONTENT, which count as read then, if they fill the memory of its body buffer:
that vector, which belongs to the caller from now on.  Otherwise NIL."
  (let ((body-buffer (content-body-buffer content)))
    (and body-buffer
         (null (body-buffer-file body-buffer))
         (zerop (body-buffer-start body-buffer))
         (= size (body-buffer-fill body-buffer) (length (body-buffer-memory body-buffer)))
         (let ((octets (body-buffer-memory body-buffer)))
           (uninterruptibly ; otherwise so many octets of the next request could be dropped
             (note-all-read content)
             (clear-body-buffer body-buffer))
           (reserve-memory content size) ; not earlier: the octets would count twice
           octets))))

(defun buffered-whole (content size)
  "All SIZE octets of CONTENT, which count as read then, in a new vector, if they are in the input
buffer of its connection, and the client need not be asked for them.  Otherwise NIL."
  (let ((io (content-io content)))
    (and (plusp size)
         (zerop (prefetched-octets content))
         (<= size (- (io-end io) (io-start io)))
         (null (content-invite content))
         (let ((octets (make-content-octets content size)))
           (uninterruptibly
             (copy-input io octets 0 size)
             (note-all-read content))
           octets))))

(defun read-known-content (content size judge)
  "The SIZE octets that are left of CONTENT, in a vector, after a call of JUDGE on them."
  (let ((octets (or (prefetched-whole content size)
                    (buffered-whole content size)
                    (read-octets-of-content content size))))
    (funcall judge octets 0 size)
    octets))

(defun read-octets-of-content (content size)
  "The SIZE octets that are left of CONTENT, in a new vector."
  (let ((octets (make-content-octets content size)))
    (read-sequence octets content)      ; signals an error when not all come
    octets))

(defun first-octets (content octets count)
  "A vector of the first COUNT of OCTETS, which belong to CONTENT and become garbage."
  (replace (or (octets-if-room count)
               (refuse-content content :no-memory))
           octets))

(defun read-unknown-content (content limit refusal judge)
  ;; Reads one octet beyond LIMIT, if there is one.
  (loop with most = (and limit (1+ limit))
        with octets = (make-content-octets content (if most (min most 8192) 8192))
        for fill = 0 then position
        for position = (read-sequence octets content :start fill)
        do (funcall judge octets fill position)
           (when (and limit (> position limit))
             (refuse-content content refusal))
        when (< position (length octets))
          do (return (first-octets content octets position))
        do (let ((size (* 2 (length octets))))
             (setf octets (replace (make-content-octets content (if most (min most size) size))
                                   octets)))))

(defun read-all-content (content limit refusal &optional (judge (constantly nil)))
  "The octets that are left of CONTENT, in a new vector.  If there are more than LIMIT, an integer
or NIL, refuses CONTENT with REFUSAL, a keyword; if the length is known, before any is read.  Calls
JUDGE with a vector, a start and an end for the octets as they come; JUDGE may refuse CONTENT, too."
  (with-content-turn (content)
    (let ((size (content-size content)))
      (when (and limit (content-intact-p content)
                 (> (or size (content-at-hand content)) limit))
        (refuse-content content refusal))
      (check-content content)
      (keeping-content (content)
        (if size
            (read-known-content content size judge)
            (read-unknown-content content limit refusal judge))))))
