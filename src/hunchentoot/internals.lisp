(in-package #:hunchentoot-recycling-taskmaster)

;;;; All uses of Hunchentoot's unexported names, for 1.2.38 and 1.3.x.  No other file says
;;;; hunchentoot::, so only this one has to be checked when a new version of Hunchentoot appears.

;;; Defaults and slots

(defun default-max-thread-count ()
  hunchentoot::*default-max-thread-count*)

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

(defun set-acceptor-name (acceptor address port)
  "Makes ADDRESS, a string or NIL, and PORT those of ACCEPTOR."
  (setf (slot-value acceptor 'hunchentoot::address) address
        (slot-value acceptor 'hunchentoot::port) port))

(defun set-ssl-files (acceptor certificate-file key-file)
  "Makes CERTIFICATE-FILE and KEY-FILE, names of files, those that programs read of ACCEPTOR."
  (setf (slot-value acceptor 'hunchentoot::ssl-certificate-file) certificate-file
        (slot-value acceptor 'hunchentoot::ssl-privatekey-file) key-file))

(defun take-listener (acceptor listener)
  "If ACCEPTOR still listens on LISTENER, marks it as not listening, and, as STOP does, tells its
connections to read no further request.  True then, for only one caller."
  (hunchentoot::with-lock-held ((hunchentoot::acceptor-shutdown-lock acceptor))
    (when (eq listener (acceptor-listener acceptor))
      ;; First, since a START may follow as soon as there is no listen socket.
      (setf (hunchentoot::acceptor-shutdown-p acceptor) t
            (slot-value acceptor 'hunchentoot::listen-socket) nil)
      t)))

(defun (setf taskmaster-process) (thread taskmaster)
  "Makes THREAD the one that programs join to wait for the end of the server."
  (setf (hunchentoot::acceptor-process taskmaster) thread))

(defun acceptor-taskmaster* (acceptor)
  (hunchentoot::acceptor-taskmaster acceptor))

(defun requests-in-progress (acceptor)
  (slot-value acceptor 'hunchentoot::requests-in-progress))

;;; Making request objects, see requests.lisp

(defmacro with-bad-request (&body body)
  "Evaluates BODY.  An error in it makes the reply status 400."
  `(hunchentoot::handler-case* (progn ,@body)
     (error (condition)
       (hunchentoot:log-message* :error "Error when creating REQUEST object: ~A" condition)
       (setf (hunchentoot:return-code*) hunchentoot:+http-bad-request+))))

(defun taken-over-p (function qualifiers new)
  "Moves Hunchentoot's method of the generic FUNCTION with QUALIFIERS for its requests to the
generic function NEW; NIL where that was done before."
  (let ((specializers (list (find-class 'hunchentoot:request))))
    (unless (find-method new qualifiers specializers nil)
      (let ((method (find-method function qualifiers specializers)))
        (remove-method function method)
        (add-method new method)))))

(defgeneric hunchentoots-filling (request &rest initargs)
  (:documentation "Has Hunchentoot's :AFTER method of INITIALIZE-INSTANCE for REQUEST, which
requests.lisp replaces."))

(taken-over-p #'initialize-instance '(:after) #'hunchentoots-filling)

(defgeneric hunchentoots-session (request)
  (:documentation "The session of REQUEST, found by Hunchentoot's method."))

(taken-over-p #'hunchentoot:session-verify '() #'hunchentoots-session)

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

;;; Hunchentoot warns of what clients send, and its handler logs that.  But nothing muffles the
;;; warning, so it is also printed, which has no limit.  So we log it alone.

(defun warn-of-charset (charset)
  (hunchentoot:log-message* :warning "Warning while processing connection: Invalid character set ~
                                      '~A' in request has been ignored." charset))

(defun log-warning (warning)
  "Logs WARNING, of what a client has sent, and muffles it."
  (hunchentoot:log-message* :warning "Warning while processing connection: ~A" warning)
  (muffle-warning warning))

;;; The secret of sessions.  An image may be saved with it, and with the state of Hunchentoot's
;;; random numbers; but whoever has the file must not know those of its processes.

(defvar *random-secret* nil
  "The secret that was made at random, or NIL.")

(defun make-secret (hunchentoots)
  "Does what RESET-SESSION-SECRET does; HUNCHENTOOTS is that function."
  (setf *random-secret* (funcall hunchentoots)))

(wrap-function 'hunchentoot:reset-session-secret 'make-secret)

(defun renew-secret ()
  "Seeds Hunchentoot's random numbers from the system, and makes a new secret, unless the program
has chosen one."
  (setf hunchentoot::*the-random-state* (make-random-state t))
  (when (or (not (boundp 'hunchentoot:*session-secret*))
            (equal *random-secret* hunchentoot:*session-secret*))
    (hunchentoot:reset-session-secret)))

(call-in-saved-images 'renew-secret)

;;; Functions that read what a client has sent, see guards.lisp

(wrap-function 'hunchentoot:real-remote-addr 'forwarded-address)
(wrap-function 'hunchentoot::keep-alive-p 'client-keeps-p)
(wrap-function 'hunchentoot::external-format-from-content-type 'guarded-format)
(wrap-function 'hunchentoot::convert-parameter 'converted-parameter)
(wrap-function 'hunchentoot::compute-array-parameter 'array-parameter)

;;; Content, see post-data.lisp

(defun wrap-form-reader (wrapper)
  "Makes WRAPPER, see WRAP-FUNCTION, read the parameters in a request's content."
  (wrap-function 'hunchentoot::maybe-read-post-parameters wrapper))

(defun wrap-content-reader (wrapper)
  "Makes WRAPPER, see WRAP-FUNCTION, read a request's raw post data."
  (wrap-function 'hunchentoot::get-post-data wrapper))

(define-condition upload-not-stored (recycling-error)
  ((cause :initarg :cause))
  (:report (lambda (condition stream)
             (format stream "The file of an upload cannot be made or written: ~A"
                     (slot-value condition 'cause))))
  (:documentation "Signalled when the file of an upload cannot be made or written: the form is
right, and the server is at fault."))

(deftype not-of-form ()
  "The errors of reading a form that do not mean that the form is malformed."
  '(or protocol-error content-left upload-not-stored))

(defmacro or-bad-request (&body body)
  "Evaluates BODY.  An error in it ends the request with 400, unless it is NOT-OF-FORM, or BODY runs
outside of the handler's thread."
  `(hunchentoot::handler-case* (progn ,@body)
     (error (condition)
       (when (or (null *exchange*) (typep condition 'not-of-form))
         (error condition))
       (hunchentoot:log-message* :error "Error when reading POST parameters from body: ~A"
                                 condition)
       (setf (hunchentoot:return-code*) hunchentoot:+http-bad-request+)
       (hunchentoot:abort-request-handler))))

;;; Forms with files, see uploads.lisp

(defun request-content (request) (hunchentoot::content-stream request))

(defparameter *usual-folder* "/tmp/hunchentoot/"
  "Hunchentoot's default folder for uploads.")

(defun upload-folder ()
  "The folder for uploads: the one that the program has chosen, or a private one."
  (or (and (equal *usual-folder* hunchentoot:*tmp-directory*)
           (private-folder))
      hunchentoot:*tmp-directory*))

(defun temporary-pathname (&optional (tries 10))
  "A pathname for the file of an upload, which is deleted at the end of the request.  Tries TRIES
times.  Signals UPLOAD-NOT-STORED."
  ;; Hunchentoot looks for an existing file.  PROBE-FILE of SBCL signals an error if another process
  ;; deletes that file during the call.  The next try has another name.
  (let ((files hunchentoot::*tmp-files*))
    (handler-bind ((error (lambda (condition)
                            ;; No name was added yet, so it is not the program's hook that fails.
                            (when (eq files hunchentoot::*tmp-files*)
                              (when (= tries 1)
                                (error 'upload-not-stored :cause condition))
                              (return-from temporary-pathname (temporary-pathname (1- tries)))))))
      (let ((hunchentoot:*tmp-directory* (upload-folder)))
        (hunchentoot::make-tmp-file-name)))))

(defun disown-temporary-pathname (pathname)
  "Keeps the file PATHNAME, a value of TEMPORARY-PATHNAME, at the end of the request, since it
belongs to another thread or process."
  (setf hunchentoot::*tmp-files* (remove pathname hunchentoot::*tmp-files*)))

(defmacro or-log-form-error (&body body)
  "Evaluates BODY.  An error in it is logged, and gives NIL, no parameters, unless it is
NOT-OF-FORM."
  `(hunchentoot::handler-case* (progn ,@body)
     (error (condition)
       (when (typep condition 'not-of-form)
         (error condition))
       (hunchentoot:log-message* :error "While parsing multipart/form-data parameters: ~A"
                                 condition)
       nil)))

(defun warn-of-stray-octets (count)
  (hunchentoot:log-message* :warning "Warning while processing connection: ~A octets of stray ~
                                      data after form-data sent by client." count))

;;; Backtraces, see backtraces.lisp

(defun wrap-backtrace-maker (wrapper)
  "Makes WRAPPER, see WRAP-FUNCTION, return the backtrace of an error, a string."
  (wrap-function 'hunchentoot::get-backtrace wrapper))

;;; The dynamic context of a request

(defun call-as-request (request thunk)
  "Calls THUNK in the dynamic context of REQUEST, and deletes uploaded files afterwards."
  (flet ((call-mapping-conditions ()
           (hunchentoot::with-mapped-conditions ()
             (funcall thunk))))
    (declare (dynamic-extent #'call-mapping-conditions))
    (call-keeping-files request #'call-mapping-conditions #'delete-files)))

(defun call-keeping-files (request thunk keep)
  "Calls THUNK in the dynamic context of REQUEST, and returns its values.  At the end, calls KEEP, a
function, with a list of the pathnames of files that were uploaded during the call."
  (catch 'hunchentoot::request-processed
    (let ((hunchentoot::*tmp-files* '())
          (hunchentoot::*headers-sent* nil)
          (hunchentoot:*request* request))
      (unwind-protect (funcall thunk)
        (funcall keep (take-temporary-files))))))

(defun take-temporary-files ()
  "Removes and returns the pathnames of the uploaded files of the current request, which the caller
has to delete."
  (shiftf hunchentoot::*tmp-files* '()))

(defun delete-files (files)
  "Deletes those of FILES, a list of pathnames, that still exist."
  (dolist (path files)
    (when (pathnamep path)
      ;; The handler may have moved the file, and PROBE-FILE of SBCL signals an error when that
      ;; happens during the call.
      (ignore-errors (delete-file path)))))

(defun call-handler (acceptor request)
  "Calls the handler for REQUEST.  Returns its value, or NIL, the condition that it signalled and a
backtrace, which is NIL where memory is exhausted; and as fourth value true if it was left by a
throw."
  (let ((left-p t))
    (flet ((handle ()
             (multiple-value-prog1 (values (hunchentoot:handle-request acceptor request))
               (setf left-p nil))))
      (declare (dynamic-extent #'handle))
      (multiple-value-bind (content condition backtrace)
          ;; Hunchentoot catches errors.  An exhausted stack has to be unwound first.
          (handler-case (call-as-handler #'handle)
            (storage-condition (condition) (values nil condition nil)))
        (when (typep condition 'storage-condition)
          (make-room-in-heap 0))        ; or the next handler would run out of memory too
        (values content condition backtrace left-p)))))

(defun call-as-handler (thunk)
  "Calls THUNK as a handler, which Hunchentoot's ABORT-REQUEST-HANDLER can leave.  Returns its
values."
  (catch 'hunchentoot::handler-done
    (funcall thunk)))

(defmacro with-debugger (&body body)
  `(hunchentoot::with-debugger ,@body))

(defun headers-sent-p ()
  hunchentoot::*headers-sent*)

(defun end-of-request ()
  "Leaves the handler, as HANDLE-STATIC-FILE does for a HEAD request."
  (throw 'hunchentoot::request-processed nil))

(defun note-headers-sent ()
  (setf hunchentoot::*headers-sent* t))

(defun open-content-stream (request stream)
  "Makes STREAM the content stream of REQUEST, since the protocol was switched."
  (setf (slot-value request 'hunchentoot::content-stream) stream))

(defparameter *methods-served*
  (let ((methods (find-symbol (string '#:+valid-request-methods+) '#:hunchentoot)))
    (and methods (symbol-value methods)))
  "The methods that Hunchentoot serves, nine since 1.3.0; NIL before, for all.")

(defun method-served-p (method)
  (or (null *methods-served*)
      (find method *methods-served* :test #'string=)))

(defun drop-header (name)
  "Removes the header NAME, or the cookies, from the reply."
  (if (eq name :set-cookie)
      (setf (hunchentoot:cookies-out*) '())
      (setf (slot-value hunchentoot:*reply* 'hunchentoot:headers-out)
            (remove name (hunchentoot:headers-out*) :key #'car))))

(defun keep-connection ()
  "Records that the connection is kept, as Hunchentoot's own code does when it sends a head."
  (setf hunchentoot::*finish-processing-socket* nil))

(defun log-handler-error (condition backtrace)
  (when hunchentoot:*log-lisp-errors-p*
    (hunchentoot:log-message* hunchentoot:*lisp-errors-log-level* *error-control* condition
                              (and hunchentoot:*log-lisp-backtraces-p* backtrace))))

;;; Messages, see message-log.lisp

(defparameter *client-caused-messages*
  '("Error when creating REQUEST object" "Error when reading POST parameters"
    "While parsing multipart/form-data" "Can't read request body" "Got Content-Length header"
    "Fake session identifier" "No session for session identifier" "Session with ID"
    "Error while processing connection" "Warning while processing connection"
    "Can't handle a new request")
  "The beginnings of the control strings of Hunchentoot's messages that clients can cause at will.")

(defun client-caused (control)
  "True when CONTROL is a message of Hunchentoot's that a client can cause.  The second value is the
function that makes a text of an argument."
  (cond ((not (stringp control)) nil)   ; a program's: FORMAT takes functions, too
        ((some (lambda (beginning) (uiop:string-prefix-p beginning control))
               *client-caused-messages*)
         (values t #'client-text))
        ((string= control *error-control*)
         (values t #'report-text))))

(defun start-output (status content)
  "Sends a reply by Hunchentoot's own code."
  (hunchentoot::start-output status content))

(defun wrap-start-of-output (wrapper)
  "Makes WRAPPER, see WRAP-FUNCTION, send the replies of Hunchentoot's own code."
  (wrap-function 'hunchentoot::start-output wrapper))

(defun note-what-hunchentoot-did (exchange)
  "Notes events of EXCHANGE that our own code has not caused: the program wants the connection
closed, or Hunchentoot's code has sent the reply and kept the connection."
  (cond (hunchentoot::*finish-processing-socket*
         (note-event exchange :close))
        ((eq :idle (our-side (exchange-protocol exchange)))
         (note-event exchange :reply)
         (note-event exchange :reply-end))))

(defun abandon-reply (stream io)
  "Ends the connection of STREAM and IO in the middle of a reply.  Octets that were written are
sent, but no last chunk."
  (setf hunchentoot::*hunchentoot-stream* stream)
  (when (io-open-p io)
    (push-output io)))

;;; Replies that handlers stream, see streaming.lisp

(defun current-stream ()
  "The stream of the current connection, as programs know it."
  hunchentoot::*hunchentoot-stream*)

(defun handler-stream ()
  "CURRENT-STREAM in a handler; NIL elsewhere."
  (and (boundp 'hunchentoot::*hunchentoot-stream*)
       (current-stream)))

(defmethod chunga:chunked-stream-input-chunking-p ((stream content))
  "The answer to HUNCHENTOOT:INPUT-CHUNKING-P."
  (not (content-known-p stream)))

(defun call-with-content-as-stream (content thunk)
  "Calls THUNK.  In a thread that runs no handler, CONTENT stands for the stream of the connection,
for Hunchentoot's functions that read content."
  (if (handler-stream)
      (funcall thunk)
      (let ((hunchentoot::*hunchentoot-stream* content))
        (funcall thunk))))

(defun (setf current-stream) (stream)
  (setf hunchentoot::*hunchentoot-stream* stream))

(defun bare-p (stream socket-stream)
  "True when there is no stream between STREAM and SOCKET-STREAM, except one that
EXPECT-CHUNKED-BODY has made."
  (or (eq stream socket-stream)
      (and (typep stream 'chunga:chunked-stream)
           (eq socket-stream (chunga:chunked-stream-stream stream)))))

(defmethod chunga:chunked-stream-input-chunking-p ((stream reply-stream))
  "The answer to HUNCHENTOOT:INPUT-CHUNKING-P."
  (chunga:chunked-stream-input-chunking-p (reply-stream-inner stream)))

(defun without-reply (exchange stream)
  "If STREAM is the reply stream of EXCHANGE, ends the reply and returns the stream beneath it; else
returns STREAM."
  (cond ((eq stream (http-stream (exchange-http exchange))) stream) ; the reply was no stream
        ((typep stream 'reply-stream)
         (note-event exchange (if (end-reply stream) :reply-end :reply-cut))
         (reply-stream-inner stream))
        (t stream)))

(defun copy-head (head)
  "Copies HEAD, and the interim reply to it, to Hunchentoot's *HEADER-STREAM*, if there is one."
  (let ((stream hunchentoot:*header-stream*))
    (when stream
      (format stream "~A ~A ~A~%~:{~A: ~A~%~}~%" (head-method head) (head-uri head)
              (head-protocol head)
              (loop for (name . value) in (head-headers head)
                    collect (list (string-capitalize name) value)))
      (when (head-expect-100-continue-p head)
        (format stream "HTTP/1.1 100 Continue~%")))))

(defun rewrite-urls (content)
  "The string CONTENT, with the session in its URLs where Hunchentoot would add it."
  (if (and (hunchentoot:session hunchentoot:*request*)
           (hunchentoot::starts-with-one-of-p (or (hunchentoot:content-type*) "")
                                              hunchentoot:*content-types-for-url-rewrite*))
      (hunchentoot::maybe-rewrite-urls-for-session content)
      content))

(defun content-type-with-charset (content-type external-format)
  (hunchentoot::maybe-add-charset-to-content-type-header content-type external-format))

(defun cookie-text (cookie)
  (hunchentoot::stringify-cookie cookie))

(defvar *server-name* (list nil)
  "A cache: Hunchentoot's version, and the server's name that its own method makes of it.  Empty
while the program has a method, too.")

(defun forget-server-name ()
  (setf *server-name* (list nil)))

(call-when-redefined 'forget-server-name #'hunchentoot::acceptor-server-name)

(defun server-name-of (acceptor)
  (let ((known *server-name*)
        (version hunchentoot:*hunchentoot-version*))
    (if (eq version (car known))
        (cdr known)
        (let ((name (hunchentoot::acceptor-server-name acceptor)))
          (when (sole-method-p #'hunchentoot::acceptor-server-name)
            ;; Not stored if the function was redefined in the meantime.
            (compare-and-set (symbol-value '*server-name*) known (cons version name)))
          name))))

(defun expect-chunked-body (acceptor)
  "Makes the current stream one that decodes chunks, with INPUT-CHUNKING-P true."
  (unless (hunchentoot:acceptor-input-chunking-p acceptor)
    (hunchentoot::hunchentoot-error
     "The client sends a chunked body, but INPUT-CHUNKING-P is false for ~A." acceptor))
  (setf hunchentoot::*hunchentoot-stream*
        (chunga:make-chunked-stream hunchentoot::*hunchentoot-stream*)
        (chunga:chunked-stream-input-chunking-p hunchentoot::*hunchentoot-stream*) t))

(defun finish-request (acceptor exchange io)
  "Flushes the reply of EXCHANGE, to IO, and prepares Hunchentoot's current stream for the next
request."
  (let ((stream (without-reply exchange hunchentoot::*hunchentoot-stream*)))
    (unless (flushed-p io stream)
      (finish-output stream))
    ;; If a program has put a stream around the reply stream, its method has removed it.
    (setf hunchentoot::*hunchentoot-stream*
          (without-reply exchange (hunchentoot:reset-connection-stream acceptor stream))))
  (note-what-hunchentoot-did exchange))

(defun connection-taken-p ()
  "True when a program has taken the connection of the current request away."
  (not hunchentoot::*close-hunchentoot-stream*))

(defun call-with-connection-stream (stream thunk left)
  "Calls THUNK, which processes requests on STREAM, in the dynamic context that handlers expect.
THUNK returns true when the connection may be used again, or :DEFERRED when the reply comes later.
Returns the connection's outcome, :PARK, :CLOSE, :DEFERRED or :DETACHED, and the stream for its next
request.  If a program leaves THUNK by a non-local exit after it has detached the socket, calls the
function LEFT."
  (let ((hunchentoot::*hunchentoot-stream* stream)
        (hunchentoot::*close-hunchentoot-stream* t)
        (hunchentoot::*finish-processing-socket* t))
    (let ((reusable-p (unless-returned (funcall thunk)
                        (unless hunchentoot::*close-hunchentoot-stream*
                          (funcall left)))))
      (values (cond ((not hunchentoot::*close-hunchentoot-stream*) :detached)
                    ((eq :deferred reusable-p) :deferred)
                    (reusable-p :park)
                    (t :close))
              hunchentoot::*hunchentoot-stream*))))
