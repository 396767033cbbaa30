(in-package #:hunchentoot-recycling-taskmaster)

;;;; A reply that comes later, as programs know it, with the dynamic context of its request:
;;;; Hunchentoot's variables, and what is to be deleted and given back at the end.  Several threads
;;;; may be in it at a time, the handler's among them.

(defstruct (deferred-reply (:include opaque) (:copier nil)
                           (:constructor make-deferred-reply
                               (deferred-response acceptor request reply content session)))
  "A reply that comes later, and what was bound while its handler ran."
  (deferred-response nil :read-only t)
  (acceptor nil :read-only t)
  (request nil :read-only t)
  (reply nil :read-only t)
  (content nil :read-only t)            ; of the request
  (session nil)
  (stream nil)                          ; Hunchentoot's
  (lock (bt:make-lock "deferred reply") :read-only t) ; held while FILES changes
  (files '()))                          ; temporary ones, deleted at the end; :DELETED from then on

(setf (documentation 'deferred-reply-p 'function)
      "True when the argument is a reply that DEFER-REPLY has deferred.")

(defun call-in-context (context function)
  (let* ((session (deferred-reply-session context))
         (hunchentoot:*acceptor* (deferred-reply-acceptor context))
         (hunchentoot:*reply* (deferred-reply-reply context))
         (hunchentoot:*session* session))
    (multiple-value-prog1
        (flet ((keep (files) (add-files context files)))
          (declare (dynamic-extent #'keep))
          (call-keeping-files (deferred-reply-request context) function #'keep))
      (unless (eq session hunchentoot:*session*) ; the handler may have begun one meanwhile
        (setf (deferred-reply-session context) hunchentoot:*session*)))))

(defun add-files (context files)
  "Has FILES deleted at the end of the reply of CONTEXT, or now, when that has come."
  (when (and files
             (with-lock-briefly ((deferred-reply-lock context))
               (cond ((eq :deleted (deferred-reply-files context)) t)
                     (t (setf (deferred-reply-files context) (append files (deferred-reply-files context)))
                        nil))))
    (delete-files files)))

(defun forget-files (context)
  "Deletes the temporary files of CONTEXT, whose reply is over."
  (uninterruptibly
    (let ((files (with-lock-briefly ((deferred-reply-lock context))
                   (shiftf (deferred-reply-files context) :deleted))))
      (unless (eq :deleted files)
        (delete-files files)))))

(defun forget-request (context)
  "Deletes the uploaded files of the request of CONTEXT, and counts what of its content is in memory
as garbage."
  (forget-files context)
  (when (typep (deferred-reply-content context) 'content)
    (release-octets (deferred-reply-content context))))
