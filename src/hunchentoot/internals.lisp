(in-package #:hunchentoot-recycling-taskmaster)

;;;; All uses of Hunchentoot's unexported names, for 1.2.38 and 1.3.x, besides those that the
;;;; package imports: only these two files have to be checked when a new version appears.

;;; Acceptors

(defun default-max-thread-count ()
  hunchentoot::*default-max-thread-count*)

(defun acceptor-taskmaster* (acceptor)
  (hunchentoot::acceptor-taskmaster acceptor))

(defun requests-in-progress (acceptor)
  (slot-value acceptor 'hunchentoot::requests-in-progress))

(defun acceptor-listener (acceptor)
  "The usocket that ACCEPTOR listens on, or NIL.  Signals PARAMETER-ERROR on LispWorks, where
Hunchentoot has none to give."
  (unless (slot-exists-p acceptor 'hunchentoot::listen-socket)
    (hunchentoot:parameter-error "~A has no listen socket to share; this Lisp is not supported."
                                 acceptor))
  (slot-value acceptor 'hunchentoot::listen-socket))

(defun (setf acceptor-listener) (listener acceptor)
  "Makes ACCEPTOR, which is not listening, listen on LISTENER."
  (setf (slot-value acceptor 'hunchentoot::listen-socket) listener))

(defun take-listener (acceptor listener)
  "If ACCEPTOR still listens on LISTENER, marks it as not listening, and, as STOP does, tells its
connections to read no further request.  True then, for only one caller."
  (hunchentoot::with-lock-held ((hunchentoot::acceptor-shutdown-lock acceptor))
    (when (eq listener (acceptor-listener acceptor))
      ;; First, since a START may follow as soon as there is no listen socket.
      (setf (hunchentoot::acceptor-shutdown-p acceptor) t
            (slot-value acceptor 'hunchentoot::listen-socket) nil)
      t)))

(defun set-acceptor-name (acceptor address port)
  "Makes ADDRESS, a string or NIL, and PORT those of ACCEPTOR."
  (setf (slot-value acceptor 'hunchentoot::address) address
        (slot-value acceptor 'hunchentoot::port) port))

(defun set-ssl-files (acceptor certificate-file key-file)
  "Makes CERTIFICATE-FILE and KEY-FILE, names of files, those that programs read of ACCEPTOR."
  (setf (slot-value acceptor 'hunchentoot::ssl-certificate-file) certificate-file
        (slot-value acceptor 'hunchentoot::ssl-privatekey-file) key-file))

(defun server-name-of (acceptor)
  (hunchentoot::acceptor-server-name acceptor))

(defun (setf taskmaster-process) (thread taskmaster)
  "Makes THREAD the one that programs join to wait for the end of the server."
  (setf (hunchentoot::acceptor-process taskmaster) thread))

;;; The secret of sessions.  An image may be saved with it, and with the state of Hunchentoot's
;;; random numbers; but whoever has the file must not know those of its processes.

(defvar *random-secret* nil
  "The secret that was made at random, or NIL.")

(defun make-secret (hunchentoots)
  "Does what RESET-SESSION-SECRET does; HUNCHENTOOTS is that function."
  (setf *random-secret* (funcall hunchentoots)))

(defun renew-secret ()
  "Seeds Hunchentoot's random numbers from the system, and makes a new secret, unless the program
has chosen one."
  (setf hunchentoot::*the-random-state* (make-random-state t))
  (when (or (not (boundp 'hunchentoot:*session-secret*))
            (equal *random-secret* hunchentoot:*session-secret*))
    (hunchentoot:reset-session-secret)))

(call-in-saved-images 'renew-secret)

;;; Functions of Hunchentoot that others here take the place of

(loop for (name wrapper) in '((hunchentoot:reset-session-secret make-secret)
                              (hunchentoot:real-remote-addr forwarded-address)
                              (hunchentoot::keep-alive-p client-keeps-p)
                              (hunchentoot::external-format-from-content-type guarded-format)
                              (hunchentoot::convert-parameter converted-parameter)
                              (hunchentoot::compute-array-parameter array-parameter)
                              (hunchentoot::get-post-data read-content)
                              (hunchentoot::maybe-read-post-parameters read-parameters)
                              (hunchentoot::get-backtrace short-backtrace)
                              (hunchentoot::start-output start-output-here)
                              (hunchentoot:handle-static-file serve-file))
      do (wrap-function name wrapper))

(defun take-over (function qualifiers new)
  "Moves Hunchentoot's method of the generic FUNCTION with QUALIFIERS for its requests to the
generic function NEW, unless that was done before."
  (let ((specializers (list (find-class 'hunchentoot:request))))
    (unless (find-method new qualifiers specializers nil)
      (let ((method (find-method function qualifiers specializers)))
        (remove-method function method)
        (add-method new method)))))

(defgeneric hunchentoots-filling (request &rest initargs)
  (:documentation "Has Hunchentoot's :AFTER method of INITIALIZE-INSTANCE for REQUEST."))

(take-over #'initialize-instance '(:after) #'hunchentoots-filling)

(defgeneric hunchentoots-session (request)
  (:documentation "The session of REQUEST, found by Hunchentoot's method."))

(take-over #'hunchentoot:session-verify '() #'hunchentoots-session)

;;; Requests

(defun chunga-keeps-spelling-p ()
  "True if the loaded Chunga, which reads heads for Hunchentoot, leaves names of header fields
without a keyword as the client spells them.  Before 1.1.9 it interned them."
  (let ((name (car (first (flexi-streams:with-input-from-sequence
                              (stream (map 'vector #'char-code
                                           (format nil "X-Of-No-Program:a~C~C~:*~:*~C~C"
                                                   #\Return #\Newline)))
                            (chunga:with-character-stream-semantics
                              (chunga:read-http-headers stream)))))))
    (when (symbolp name)
      (unintern name '#:keyword))
    (stringp name)))

(setf *spelling-kept-p* (chunga-keeps-spelling-p))

(defvar *uri-format* hunchentoot::+utf-8+
  "The external format of a request's target, a superset of ASCII.")

(defvar *for-paths* (list nil)
  "Further arguments of URL-DECODE for a path, since 1.3.0: a plus stays.")

(defparameter *plus-kept-p*
  (handler-case (equal "+" (apply 'hunchentoot:url-decode "+" *uri-format* *for-paths*))
    (error () nil))
  "True where a plus in a path stays; before 1.3.0 it is a space.")

(defun url-decoded (text external-format plus-p)
  "The string TEXT, URL-decoded in EXTERNAL-FORMAT.  A plus is a space if PLUS-P."
  (apply 'hunchentoot:url-decode text external-format (if plus-p '() *for-paths*)))

(defparameter *methods-served*
  (let ((methods (find-symbol (string '#:+valid-request-methods+) '#:hunchentoot)))
    (and methods (symbol-value methods)))
  "The methods that Hunchentoot serves, nine since 1.3.0; NIL before, for all.")

(defun request-content (request)
  (hunchentoot::content-stream request))

(defun (setf request-content) (stream request)
  (setf (slot-value request 'hunchentoot::content-stream) stream))

(defparameter *usual-folder* "/tmp/hunchentoot/"
  "Hunchentoot's default folder for uploads.")

(defun temporary-pathname (&optional (tries 10))
  "A pathname for the file of an upload, in the folder that the program has chosen or a private one.
It is deleted at the end of the request.  Tries TRIES times.  Signals UPLOAD-NOT-STORED."
  ;; Hunchentoot looks for an existing file.  PROBE-FILE of SBCL signals an error if another process
  ;; deletes that file during the call.  The next try has another name.
  (let ((files *tmp-files*))
    (handler-bind ((error (lambda (condition)
                            ;; No name was added yet, so it is not the program's hook that fails.
                            (when (eq files *tmp-files*)
                              (when (= tries 1)
                                (error 'upload-not-stored :cause condition))
                              (return-from temporary-pathname (temporary-pathname (1- tries)))))))
      (let ((hunchentoot:*tmp-directory*
              (or (and (equal *usual-folder* hunchentoot:*tmp-directory*) (private-folder))
                  hunchentoot:*tmp-directory*)))
        (hunchentoot::make-tmp-file-name)))))

;;; Replies

(defun start-output (status content)
  "Sends a reply by Hunchentoot's own code."
  (hunchentoot::start-output status content))

(defun rewrite-urls (content)
  "The string CONTENT, with the session in its URLs where Hunchentoot would add it."
  (if (hunchentoot::starts-with-one-of-p (or (hunchentoot:content-type*) "")
                                         hunchentoot:*content-types-for-url-rewrite*)
      (hunchentoot::maybe-rewrite-urls-for-session content)
      content))

(defun content-type-with-charset (content-type external-format)
  (hunchentoot::maybe-add-charset-to-content-type-header content-type external-format))

(defun cookie-text (cookie)
  (hunchentoot::stringify-cookie cookie))
