(in-package #:clack.handler.recycling)

;;;; TLS of Clack applications: the keywords of Clack's handlers, and ours, as settings of a
;;;; context.

(defparameter *tls-keywords*
  '((:ssl-certificate-file :ssl-cert-file) (:ssl-privatekey-file :ssl-key-file)
    (:ssl-privatekey-password :ssl-key-password))
  "What a setting of *TLS-ARGUMENTS* is called by Clack's handlers, where that is another name.")

(defun tls-keyword (name)
  "The keyword of RUN for the setting NAME."
  (or (second (assoc name *tls-keywords*)) name))

(defun tls-settings (arguments)
  "All settings of TLS in ARGUMENTS, a plist for RUN."
  (loop for name in *tls-arguments*
        collect name
        collect (getf arguments (tls-keyword name)
                      (if (eq name :ssl-minimum-protocol) :tls-1.2 nil))))

(defun clack-tls-context (arguments)
  "The TLS-CONTEXT that ARGUMENTS, a plist for RUN, want.  Signals UNFIT-ARGUMENT."
  (handler-case
      (let ((settings (tls-settings arguments)))
        (check-argument-types settings *tls-argument-types*)
        (multiple-value-bind (context warnings) (context-of-settings settings '())
          (dolist (warning warnings)
            (warn "~A" warning))
          context))
    (unfit-argument (condition)
      (error 'unfit-argument :name (tls-keyword (unfit-argument-name condition))
                             :words (unfit-argument-words condition)))))

(defmethod encrypt ((server clack-server) socket-stream)
  (let ((context (handshake-context server)))
    (or (encrypted-stream socket-stream context)
        (make-tls-stream context socket-stream))))
