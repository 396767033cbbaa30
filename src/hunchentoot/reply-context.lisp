(in-package #:hunchentoot-recycling-taskmaster)

;;;; The dynamic context of a request whose reply comes later: Hunchentoot's variables, and what is to be deleted and given
;;;; back at the end.  Several threads may be in it at a time, the handler's among them.

(defstruct (reply-context (:include opaque)
                          (:constructor make-reply-context (acceptor request reply content session)))
  "What was bound while a handler ran."
  (acceptor nil :read-only t)
  (request nil :read-only t)
  (reply nil :read-only t)
  (content nil :read-only t)            ; of the request
  (session nil)
  (stream nil)                          ; Hunchentoot's
  (lock (bt:make-lock "reply context") :read-only t) ; held while FILES changes
  (files '()))                          ; temporary ones, deleted at the end; :DELETED from then on

(defun call-in-context (context function)
  (let* ((session (reply-context-session context))
         (hunchentoot:*acceptor* (reply-context-acceptor context))
         (hunchentoot:*reply* (reply-context-reply context))
         (hunchentoot:*session* session))
    (multiple-value-prog1
        (flet ((keep (files) (add-files context files)))
          (declare (dynamic-extent #'keep))
          (call-keeping-files (reply-context-request context) function #'keep))
      (unless (eq session hunchentoot:*session*) ; the handler may have begun one meanwhile
        (setf (reply-context-session context) hunchentoot:*session*)))))

(defun add-files (context files)
  "Has FILES deleted at the end of the reply of CONTEXT, or now, when that has come."
  (when (and files
             (with-lock-briefly ((reply-context-lock context))
               (cond ((eq :deleted (reply-context-files context)) t)
                     (t (setf (reply-context-files context) (append files (reply-context-files context)))
                        nil))))
    (delete-files files)))

(defun forget-files (context)
  "Deletes the temporary files of CONTEXT, whose reply is over."
  (uninterruptibly
    (let ((files (with-lock-briefly ((reply-context-lock context))
                   (shiftf (reply-context-files context) :deleted))))
      (unless (eq :deleted files)
        (delete-files files)))))

(defun forget-request (context)
  "Deletes the uploaded files of the request of CONTEXT, and counts what of its content is in memory as garbage."
  (forget-files context)
  (when (typep (reply-context-content context) 'content)
    (release-octets (reply-context-content context))))
