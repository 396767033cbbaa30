(in-package #:clack.handler.recycling)

;;;; TLS of Clack applications: turns the keywords of Clack's handlers, and our own, into the
;;;; settings of a TLS context.

(defparameter *tls-keywords*
  '((:ssl-certificate-file :ssl-cert-file) (:ssl-privatekey-file :ssl-key-file)
    (:ssl-privatekey-password :ssl-key-password))
  "Lists of a setting in *TLS-ARGUMENTS* and the keyword that Clack's handlers have for it, where
the two differ.")

(defun tls-keyword (name)
  "The keyword of RUN for the TLS setting NAME."
  (or (second (assoc name *tls-keywords*)) name))

(defun tls-settings (arguments)
  "A plist of all TLS settings, with the values that ARGUMENTS, a plist for RUN, give them."
  (loop for name in *tls-arguments*
        collect name
        collect (getf arguments (tls-keyword name)
                      (if (eq name :ssl-minimum-protocol) :tls-1.2 nil))))

(defun clack-tls-context (arguments &optional ticket-key)
  "A TLS-CONTEXT with the settings in ARGUMENTS, a plist for RUN.  TICKET-KEY is that of an earlier
one, whose sessions it resumes.  Signals UNFIT-ARGUMENT."
  (handler-case
      (multiple-value-bind (context warnings)
          (context-of-settings (tls-settings arguments) ticket-key)
        (dolist (warning warnings)
          (warn "~A" warning))
        context)
    (unfit-argument (condition)
      (error 'unfit-argument :name (tls-keyword (unfit-argument-name condition))
                             :words (unfit-argument-words condition)))))

(defmethod encrypt ((server clack-server) socket-stream)
  (let ((context (handshake-context server)))
    (or (encrypted-stream socket-stream context)
        (make-tls-stream context socket-stream))))

(defmethod renew-files :after ((server clack-server))
  (when (encrypted-p server)
    (set-published (slot-value server 'tls-context)
                   (clack-tls-context (server-place server)
                                      (tls-context-ticket-key (handshake-context server))))))
