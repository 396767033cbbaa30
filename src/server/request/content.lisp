(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; The content of a request: what its streams have in common, and content as a whole in memory.
;;;;
;;;; Where content is not acceptable, or does not come in time, a function that the layer above gave
;;;; is called with the PROTOCOL-ERROR.  It may answer and leave by a throw; if it returns, the
;;;; error is signalled to whoever reads.  From then on there is no more content:
;;;;
;;;;   what has ended it                                   who reads on gets
;;;;   a refusal                                           that PROTOCOL-ERROR
;;;;   a connection that has ended, or is broken           that END-OF-FILE, or DESCRIPTOR-BROKEN
;;;;   who was reading has left that, by a time limit      CONTENT-LEFT
;;;;   of its own, say
;;;;
;;;; Where a program has left what it does with octets that were taken, so that nobody has them, who
;;;; reads on gets CONTENT-LEFT as well; but the rest can be dropped, and the next request be looked
;;;; for behind it.
;;;;
;;;; What came before the request was served is in the BODY-BUFFER, and is read first; see
;;;; body-prefetch.lisp.  Where several threads may read, they take turns, and not all of them may
;;;; take from the source; see shared-content.lisp.

(defclass content (trivial-gray-streams:fundamental-binary-input-stream
                   trivial-gray-streams:trivial-gray-stream-mixin)
  ((source :initarg :source :reader content-source)
   (turn-down :initarg :turn-down :initform (constantly nil) :accessor content-turn-down
              :documentation "A function of a PROTOCOL-ERROR.")
   (invite :initarg :invite :initform nil :accessor content-invite
           :documentation "A function that tells the peer to send the content that it holds back
until then; NIL when it does not, or was told.")
   (failure :initform nil :accessor content-failure
            :documentation "The condition that has ended it before all was read, and is signalled to
who reads on, or NIL.")
   (lost-p :initform nil :accessor content-lost-p
           :documentation "True when nobody has some of the octets that were taken.")
   (body-buffer :initform nil :accessor content-body-buffer)
   (limits :initform nil :accessor content-limits)
   (sharing :initform nil :accessor content-sharing
            :documentation "A SHARING where several threads may read it, or NIL.")
   (refusal :initform nil :accessor content-refusal
            :documentation "The condition, a PROTOCOL-ERROR most often, that is behind what
BODY-BUFFER has, or NIL.")
   (place-p :initform nil :accessor content-place-p
            :documentation "True while it counts as unfinished: from when its request is served
until all has come.")
   (memory :initform 0 :accessor content-memory
           :documentation "How many octets are reserved for it; see RESERVE-MEMORY."))
  (:documentation "The content of one request as a stream of octets, which ends where that ends."))

(setf (documentation 'content-invite 'function)
      "A function without arguments that tells the client to send CONTENT, which it holds back until
then; NIL when it does not, or was told.")

(setf (documentation 'content-limits 'function)
      "The LIMITS that the request of CONTENT is under.")

(define-condition content-left (recycling-error stream-error)
  ()
  (:report "Not all of the content was read, and the rest of it is not to be had any more.")
  (:documentation "Signalled to a thread that reads on after reading content was left by a non-local
exit, as by a time limit; after the request is over; in a thread that is not the handler's, where
not all of the content of a deferred reply was received; or, of the body that Clack's handler gives,
after nobody takes more of it."))

(defgeneric content-io (content)
  (:documentation "The buffered connection off which CONTENT is read.")
  (:method ((content content))
    (content-source content)))

(defmethod stream-element-type ((stream content))
  '(unsigned-byte 8))

(defun refuse-content (content refusal)
  "Ends CONTENT because of REFUSAL, a PROTOCOL-ERROR or the keyword that names one."
  (let ((refusal (if (keywordp refusal) (make-refusal refusal) refusal)))
    (setf (content-failure content) refusal)
    (release-content content)
    (funcall (content-turn-down content) refusal)
    (error refusal)))

(defun keep-reply-from (content)
  "Lets what is refused of CONTENT from now on be told to who reads it, and to nobody else: the
reply to its request is decided."
  (setf (content-turn-down content) (constantly nil)))

(defun invite-content (content)
  "Tells the peer, if it waits for that, to send CONTENT (RFC 9110, section 10.1.1)."
  (let ((invite (content-invite content)))
    (when invite
      (setf (content-invite content) nil)
      (funcall invite))))

(defun fail-behind-body-buffer (content)
  "Signals what is behind that which the body-buffer of CONTENT has, if there is something: nothing
more is to be read then."
  (let ((condition (content-refusal content)))
    (typecase condition
      (null)
      (protocol-error (refuse-content content condition))
      (t (setf (content-failure content) condition)
         (error condition)))))

(defmacro reading-content ((content) &body body)
  "Evaluates BODY, which reads CONTENT off its source.  A peer that takes too long is refused: who
would wait for it once more, waits in vain."
  (let ((stream (gensym "CONTENT")))
    `(let ((,stream ,content))
       (fail-behind-body-buffer ,stream)
       (invite-content ,stream)
       (handler-case (progn ,@body)
         (stream-timeout () (refuse-content ,stream :request-timeout))))))

(defun about-content-p (condition content)
  "True when CONDITION, a STREAM-ERROR, perhaps a program's that tells no stream, is about CONTENT."
  (eq content (ignore-errors (stream-error-stream condition))))

(defun call-taking-content (content function)
  "Calls FUNCTION, which takes octets of CONTENT.  Who leaves it before it is done, by a time limit
of a handler's own, say, may have taken some that nobody counted, and the next request would be
looked for where it does not begin: there is no more content then, and this is the last request."
  (unless-returned (handler-bind ((end-of-file (lambda (condition)
                                                 (when (about-content-p condition content)
                                                   (setf (content-failure content) condition))))
                                  (descriptor-broken (lambda (condition)
                                                       (setf (content-failure content) condition))))
                     (funcall function))
    (unless (content-failure content)
      (setf (content-failure content) (make-condition 'content-left :stream content)))))

(defmacro keeping-content ((content) &body body)
  "Evaluates BODY, which reads octets of CONTENT and puts them where they belong: where it is left
before its end, they are LOST."
  (let ((it (gensym "CONTENT")))
    `(let ((,it ,content))
       (unless-returned (progn ,@body)
         (setf (content-lost-p ,it) t)))))

(defun lose-rest (content)
  "Lets who reads on CONTENT be told that the rest of it is not to be had; the caller has read some
or none of it."
  (unless (eql 0 (content-size content))
    (setf (content-lost-p content) t)))

(defun content-intact-p (content)
  "True when nothing has ended CONTENT, nor were octets of it lost."
  (not (or (content-failure content) (content-lost-p content))))

(defun content-readable-p (content)
  "True when who reads CONTENT gets what follows what was read; see CHECK-CONTENT."
  (and (content-intact-p content)
       (not (others-content-p content))))

(defun check-content (content)
  "Signals why who reads CONTENT would not get what follows what was read, if there is a reason."
  (cond ((content-failure content)
         (error (content-failure content)))
        ((or (content-lost-p content) (others-content-p content))
         (error 'content-left :stream content))))

(defmacro with-content-turn ((content) &body body)
  "Evaluates BODY, which reads CONTENT, while no other thread does so."
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
        (give-place-up content)))))

(defmethod trivial-gray-streams:stream-read-byte :around ((stream content))
  (call-reading-content stream #'call-next-method))

(defmethod trivial-gray-streams:stream-read-sequence :around ((stream content) sequence start end &key)
  (declare (ignore sequence start end))
  (call-reading-content stream #'call-next-method))

(defmethod trivial-gray-streams:stream-listen :around ((stream content))
  (with-content-turn (stream)
    (and (content-readable-p stream)
         (call-taking-content stream #'call-next-method))))

(defgeneric note-all-read (content)
  (:documentation "Notes that nothing of CONTENT, of known length, is left to be read."))

(defgeneric content-size (content)
  (:documentation "How many octets of CONTENT were not read; NIL when nobody knows."))

(defgeneric all-received-p (content)
  (:documentation "True when nothing of CONTENT is still to be taken from its source."))

(defgeneric content-at-hand (content)
  (:documentation "How many octets of CONTENT, an integer, can be read without waiting, as far as
that is known."))

(defun content-awaited (content)
  "How many octets of CONTENT, an integer, have yet to come; NIL when nobody knows."
  (let ((size (content-size content)))
    (and size (- size (spooled-octets content)))))

(defgeneric drop-content (content limit)
  (:documentation "Drops what is left of CONTENT after it has come.  NIL when that is more than
LIMIT octets, not acceptable, held back by the peer until it is asked for, or does not come in time.
Signals END-OF-FILE where the connection ends before.")
  (:method :around ((content content) limit)
    (declare (ignore limit))
    (with-content-turn (content)
      (when (typep (content-failure content) 'end-of-file)
        (error (content-failure content)))
      (and (null (content-failure content))
           (null (content-invite content))
           (handler-case (call-taking-content content #'call-next-method)
             (protocol-error () nil))))))

;;; What came before

(defun spooled-octets (content)
  "How many octets of CONTENT came before its request was served, and were not read."
  (let ((body-buffer (content-body-buffer content)))
    (if body-buffer (body-buffer-left body-buffer) 0)))

(defun read-spooled (content sequence start end)
  "Moves octets of CONTENT that came before to SEQUENCE from START, up to END; returns the position
after the last one."
  (let ((body-buffer (content-body-buffer content)))
    (if body-buffer
        (prog1 (read-body-buffer body-buffer sequence start end)
          (when (zerop (body-buffer-left body-buffer))
            (clear-body-buffer body-buffer)))
        start)))

(defun read-spooled-octet (content)
  "The next octet of CONTENT, of which some came before."
  (let ((octets (make-octets 1)))
    (read-spooled content octets 0 1)
    (aref octets 0)))

(defgeneric drop-spooled (content)
  (:documentation "Drops what came of CONTENT before: what CONTENT says of its size holds
afterwards, too.")
  (:method ((content content))
    (when (content-body-buffer content)
      (clear-body-buffer (content-body-buffer content)))))

;;; Memory, of the budget of all clients (see the engine's memory-budget.lisp)

(defparameter *uncounted-octets* (* 64 1024)
  "So many are not reserved: most content has less, a thread takes more, and the account is a place
in memory that all threads write to.")

(defun reserve-memory (content octets)
  "Makes sure that there is memory for OCTETS more of CONTENT; else refuses it."
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
otherwise NIL: the caller uses a file."
  (or (null (client-memory-budget))
      (and (plenty-p octets)
           (change-reservation (content-memory content) (+ octets (content-memory content))))))

(defun release-memory (content)
  "Gives back what was reserved for CONTENT."
  (change-reservation (content-memory content) 0))

(defun release-octets (content)
  "Gives back all that CONTENT has in memory and in files; where another thread reads it, when that
has read."
  (if (content-sharing content)
      (release-shared content)
      (uninterruptibly
        (drop-spooled content)
        (release-memory content))))

(defun release-content (content)
  "Like RELEASE-OCTETS; and nobody will wait for more of CONTENT.  To be called at the end of its
request."
  (uninterruptibly
    (release-octets content)
    (give-place-up content)))

(defun leave-content (content)
  "Leaves what came of CONTENT and was not read to a program that has taken its connection away.
When nobody has CONTENT any more, what that has in memory and in files is given back."
  (uninterruptibly
    (give-place-up content)
    (release-memory content)
    (let ((body-buffer (content-body-buffer content)))
      (when body-buffer
        (call-when-forgotten content (lambda () (clear-body-buffer body-buffer)))))))

(defun make-content-octets (content size)
  "A vector for SIZE octets of CONTENT, which is refused when there is no memory for them."
  (reserve-memory content size)
  (or (octets-if-room size)
      (refuse-content content :no-memory)))

;;; As a whole

(defun spooled-whole (content size)
  "All SIZE octets of CONTENT, which count as read then, where they are a vector in the memory of
its body-buffer: that, which is its caller's from then on; else NIL."
  (let ((body-buffer (content-body-buffer content)))
    (and body-buffer
         (null (body-buffer-file body-buffer))
         (zerop (body-buffer-start body-buffer))
         (= size (body-buffer-fill body-buffer) (length (body-buffer-memory body-buffer)))
         (let ((octets (body-buffer-memory body-buffer)))
           (uninterruptibly             ; or as many of the next request would be dropped
             (note-all-read content)
             (clear-body-buffer body-buffer))
           (reserve-memory content size) ; not before: the octets would count twice
           octets))))

(defun buffered-whole (content size)
  "All SIZE octets of CONTENT, which count as read then, in a vector of their own, where the buffer
of its buffered connection has them, and nobody has to be asked for them; else NIL."
  (let ((io (content-io content)))
    (and (plusp size)
         (zerop (spooled-octets content))
         (<= size (- (io-end io) (io-start io)))
         (null (content-invite content))
         (let ((octets (make-content-octets content size)))
           (uninterruptibly
             (copy-input io octets 0 size)
             (note-all-read content))
           octets))))

(defun read-known-content (content size judge)
  (let ((octets (or (spooled-whole content size)
                    (buffered-whole content size)
                    (read-octets-of-content content size))))
    (funcall judge octets 0 size)
    octets))

(defun read-octets-of-content (content size)
  "The SIZE octets that are left of CONTENT, in a vector of their own."
  (let ((octets (make-content-octets content size)))
    (read-sequence octets content)      ; signals why not all come
    octets))

(defun first-octets (content octets count)
  "A vector of the first COUNT of OCTETS, which are of CONTENT and give way to it."
  (replace (or (octets-if-room count)
               (refuse-content content :no-memory))
           octets))

(defun read-unknown-content (content limit refusal judge)
  ;; One octet beyond LIMIT is read, if there is one.
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
  "The octets that are left of CONTENT, in a vector of their own.  Where they are more than LIMIT,
an integer or NIL, CONTENT is refused with REFUSAL, a keyword; before any is read where their number
is known.  JUDGE is called with the octets as they come, a start and an end, and may refuse it too."
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
