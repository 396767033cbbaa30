(in-package #:hunchentoot-recycling-taskmaster)

;;;; All uses of Hunchentoot's unexported names, for 1.2.38 and 1.3.x, besides those that the
;;;; package imports: only these two files have to be checked when a new version appears.

;;; Acceptors

(defun acceptor-listener (acceptor)
  "The usocket that ACCEPTOR listens on, or NIL."
  (slot-value acceptor 'hunchentoot::listen-socket))

(defun (setf acceptor-listener) (listener acceptor)
  "Makes ACCEPTOR, which is not listening, listen on LISTENER."
  (setf (slot-value acceptor 'hunchentoot::listen-socket) listener))

(defun stop-listening (acceptor listener)
  "Frees the port of ACCEPTOR, if that still listens on LISTENER, which may be NIL, and, as STOP
does, tells its connections to read no further request.  Otherwise another thread has done so, and
ACCEPTOR may have been started again."
  (when (hunchentoot::with-lock-held ((hunchentoot::acceptor-shutdown-lock acceptor))
          (when (eq listener (acceptor-listener acceptor))
            ;; First, since a START may follow as soon as there is no listen socket.
            (setf (hunchentoot::acceptor-shutdown-p acceptor) t
                  (slot-value acceptor 'hunchentoot::listen-socket) nil)
            listener))
    (close-listener listener)))

(defun set-acceptor-name (acceptor address port)
  "Makes ADDRESS, a string or NIL, and PORT those of ACCEPTOR."
  (setf (slot-value acceptor 'hunchentoot::address) address
        (slot-value acceptor 'hunchentoot::port) port))

(defun make-secret ()
  "Seeds Hunchentoot's random numbers from the system, since an image may have been saved with them,
and makes a secret for sessions."
  (setf hunchentoot::*the-random-state* (make-random-state t))
  (hunchentoot:reset-session-secret))

;;; Functions of Hunchentoot that others here take the place of

(loop for (name wrapper) in '((hunchentoot:real-remote-addr forwarded-address)
                              (hunchentoot::external-format-from-content-type
                               external-format-of-type)
                              (hunchentoot::convert-parameter converted-parameter)
                              (hunchentoot::compute-array-parameter array-parameter)
                              (hunchentoot::get-post-data read-content)
                              (hunchentoot::maybe-read-post-parameters read-parameters)
                              (hunchentoot::get-backtrace short-backtrace)
                              (start-output start-output-here)
                              (hunchentoot:handle-static-file serve-file))
      do (wrap-function name wrapper))

(let ((filling (find-method #'initialize-instance '(:after)
                            (list (find-class 'hunchentoot:request)) nil)))
  (when filling                         ; requests.lisp has another
    (remove-method #'initialize-instance filling)))

;;; Requests

(defvar *uri-format* hunchentoot::+utf-8+
  "The external format of a request's target, a superset of ASCII.")

(defparameter *plus-kept-p*
  (handler-case (equal "+" (funcall 'hunchentoot:url-decode "+" *uri-format* nil))
    (error () nil))
  "True where a plus in a path stays; before 1.3.0 it is a space.")

;;; Replies

(defun rewrite-urls (content)
  "The string CONTENT, with the session in its URLs where Hunchentoot would add it."
  (if (hunchentoot::starts-with-one-of-p (or (hunchentoot:content-type*) "")
                                         hunchentoot:*content-types-for-url-rewrite*)
      (hunchentoot::maybe-rewrite-urls-for-session content)
      content))
