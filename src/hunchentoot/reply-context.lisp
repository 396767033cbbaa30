(in-package #:hunchentoot-recycling-taskmaster)

;;;; The DEFERRED-REPLY that programs get for a reply that comes later.  It keeps the dynamic
;;;; context of the request: Hunchentoot's variables, and the files to delete at the end.  Several
;;;; threads may use the context at a time, the handler's among them.

(defstruct (deferred-reply (:include opaque) (:copier nil)
                           (:constructor make-deferred-reply
                               (deferred-response acceptor request reply session
                                &aux (handlers-session session))))
  "A reply that comes later, with the values that were bound while its handler ran.  Since a program
may keep it after its request is over, the end of the request removes the large objects."
  (deferred-response nil :read-only t)
  (acceptor nil :read-only t)
  (request nil)                         ; NIL from the end on, like the next four
  (reply nil)
  (session nil)
  (handlers-session nil)                ; that of the handler when it deferred the reply
  (stream nil)                          ; Hunchentoot's
  (lock (bt:make-lock "deferred reply") :read-only t) ; held while REQUEST to FILES change
  (files '()))                          ; temporary ones, deleted at the end; :DELETED from then on

(setf (documentation 'deferred-reply-p 'function)
      "True when OBJECT, the argument, is a reply that DEFER-REPLY has deferred.")

(defun objects-of (context)
  "The request, the reply and the session of CONTEXT.  Signals CLIENT-LEFT when its reply is over."
  (multiple-value-bind (request reply session)
      (with-lock-briefly ((deferred-reply-lock context))
        (values (deferred-reply-request context)
                (deferred-reply-reply context)
                (deferred-reply-session context)))
    (unless request
      (error 'client-left))
    (values request reply session)))

(defun keep-session (context session)
  "Lets SESSION be that of CONTEXT, unless its reply is over."
  (with-lock-briefly ((deferred-reply-lock context))
    (when (deferred-reply-request context)
      (setf (deferred-reply-session context) session))))

(defun settle-session (context)
  "Called in the handler's thread when the handler has returned.  A session that the handler began
or changed after it had deferred the reply becomes that of CONTEXT.  Otherwise the session of
CONTEXT, which another thread may have begun meanwhile, becomes that of the current thread."
  (with-lock-briefly ((deferred-reply-lock context))
    (when (deferred-reply-request context)
      (if (eq hunchentoot:*session* (deferred-reply-handlers-session context))
          (setf hunchentoot:*session* (deferred-reply-session context))
          (setf (deferred-reply-session context) hunchentoot:*session*)))))

(defun call-in-context (context function)
  (multiple-value-bind (request reply session) (objects-of context)
    (let ((hunchentoot:*acceptor* (deferred-reply-acceptor context))
          (hunchentoot:*reply* reply)
          (hunchentoot:*session* session)
          (*engine-of-context*
            (suspended-exchange-engine (deferred-reply-deferred-response context))))
      (multiple-value-prog1
          (flet ((keep (files) (add-files context files)))
            (declare (dynamic-extent #'keep))
            (call-as-request request function #'keep))
        (unless (eq session hunchentoot:*session*) ; the handler may have begun one meanwhile
          (keep-session context hunchentoot:*session*))))))

(defun add-files (context files)
  "Has FILES deleted at the end of the reply of CONTEXT, or at once when the reply is over."
  (when (and files
             (with-lock-briefly ((deferred-reply-lock context))
               (cond ((eq :deleted (deferred-reply-files context)) t)
                     (t (setf (deferred-reply-files context)
                              (append files (deferred-reply-files context)))
                        nil))))
    (delete-files files)))

(defun end-context (context)
  "Deletes the temporary files of CONTEXT, whose reply is over, and removes the objects of its
request from it."
  (let ((files (with-lock-briefly ((deferred-reply-lock context))
                 (setf (deferred-reply-request context) nil
                       (deferred-reply-reply context) nil
                       (deferred-reply-session context) nil
                       (deferred-reply-handlers-session context) nil
                       (deferred-reply-stream context) nil)
                 (shiftf (deferred-reply-files context) :deleted))))
    (unless (eq :deleted files)
      (delete-files files))))
