(in-package #:hunchentoot-recycling-taskmaster)

;;;; All that we use of Hunchentoot without its having promised it, for 1.2.38 and for
;;;; 1.3.x.  No other file says hunchentoot::, so this one alone is to be read again when a
;;;; new version of Hunchentoot appears.

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
  "Makes the names CERTIFICATE-FILE and KEY-FILE those that ACCEPTOR tells of."
  (setf (slot-value acceptor 'hunchentoot::ssl-certificate-file) certificate-file
        (slot-value acceptor 'hunchentoot::ssl-privatekey-file) key-file))

(defun take-listener (acceptor listener)
  "Makes ACCEPTOR, if it listens on LISTENER still, count as not listening, and tells its
connections, as STOP does, that no further request is to be read.  True then, for one caller only."
  (hunchentoot::with-lock-held ((hunchentoot::acceptor-shutdown-lock acceptor))
    (when (eq listener (acceptor-listener acceptor))
      ;; First: a START may follow what comes next.
      (setf (hunchentoot::acceptor-shutdown-p acceptor) t
            (slot-value acceptor 'hunchentoot::listen-socket) nil)
      t)))

(defun (setf taskmaster-process) (thread taskmaster)
  "Makes THREAD the one that programs wait for when they wait for the server to end."
  (setf (hunchentoot::acceptor-process taskmaster) thread))

(defun acceptor-taskmaster* (acceptor)
  (hunchentoot::acceptor-taskmaster acceptor))

(defun requests-in-progress (acceptor)
  (slot-value acceptor 'hunchentoot::requests-in-progress))

;;; A request made without INITIALIZE-INSTANCE, see requests.lisp

(defgeneric fill-hidden-slots (request uri content)
  (:documentation "Gives the slots of REQUEST whose names are Hunchentoot's own their values.")
  (:method ((request hunchentoot:request) uri content)
    (setf (slot-value request 'hunchentoot::uri) uri
          (slot-value request 'hunchentoot::content-stream) content
          (slot-value request 'hunchentoot::aux-data) '())))

(defgeneric fill-reply (reply)
  (:documentation "Gives the slots of REPLY the values with which a reply begins.")
  (:method ((reply hunchentoot:reply))
    (let ((content-type hunchentoot:*default-content-type*))
      (setf (slot-value reply 'hunchentoot:content-type) content-type
            (slot-value reply 'hunchentoot:content-length) nil
            (slot-value reply 'hunchentoot:headers-out) (list (cons :content-type content-type))
            (slot-value reply 'hunchentoot:return-code) hunchentoot:+http-ok+
            (slot-value reply 'hunchentoot::external-format)
            hunchentoot:*hunchentoot-default-external-format*
            (slot-value reply 'hunchentoot:cookies-out) '()))))

(defmacro with-bad-request (&body body)
  "Evaluates BODY; an error in it is the client's fault."
  `(hunchentoot::handler-case* (progn ,@body)
     (error (condition)
       (hunchentoot:log-message* :error "Error when creating REQUEST object: ~A" condition)
       (setf (hunchentoot:return-code*) hunchentoot:+http-bad-request+))))

(defun taken-over-p (function qualifiers new)
  "Makes Hunchentoot's method of the generic FUNCTION with QUALIFIERS for its requests one of the
generic function NEW; NIL where that was done before."
  (let ((specializers (list (find-class 'hunchentoot:request))))
    (unless (find-method new qualifiers specializers nil)
      (let ((method (find-method function qualifiers specializers)))
        (remove-method function method)
        (add-method new method)))))

(defgeneric hunchentoots-filling (request &rest initargs)
  (:documentation "What Hunchentoot does with a REQUEST that was made, and we do in
requests.lisp."))

(taken-over-p #'initialize-instance '(:after) #'hunchentoots-filling)

(defgeneric hunchentoots-session (request)
  (:documentation "The session that REQUEST names, as Hunchentoot finds it."))

(taken-over-p #'hunchentoot:session-verify '() #'hunchentoots-session)

(defvar *uri-format* hunchentoot::+utf-8+
  "The external format of what a request's target says, which has ASCII in it.")

(defvar *for-paths* (list nil)
  "What URL-DECODE is given besides text and format for a path, since 1.3.0: that a plus stays.")

(defparameter *plus-kept-p*
  (handler-case (equal "+" (apply 'hunchentoot:url-decode "+" *uri-format* *for-paths*))
    (error () nil))
  "True where a plus in a path stays; before 1.3.0 it is a space.")

(defun url-decoded (text external-format plus-p)
  "What the string TEXT, URL-encoded in EXTERNAL-FORMAT, is.  A plus is a space if PLUS-P."
  (apply 'hunchentoot:url-decode text external-format (if plus-p '() *for-paths*)))

(defun warn-of-charset (charset)
  (hunchentoot::hunchentoot-warn "Invalid character set ~S in request has been ignored." charset))

;;; What programs ask of a request, see guards.lisp

(wrap-function 'hunchentoot:real-remote-addr 'forwarded-address)
(wrap-function 'hunchentoot::keep-alive-p 'client-keeps-p)
(wrap-function 'hunchentoot::external-format-from-content-type 'guarded-format)
(wrap-function 'hunchentoot::convert-parameter 'converted-parameter)
(wrap-function 'hunchentoot::compute-array-parameter 'array-parameter)

;;; Content, see content.lisp

(defun wrap-form-reader (wrapper)
  "Makes WRAPPER, see WRAP-FUNCTION, what sees to it that the parameters in a request's content are
known."
  (wrap-function 'hunchentoot::maybe-read-post-parameters wrapper))

(defun wrap-content-reader (wrapper)
  "Makes WRAPPER, see WRAP-FUNCTION, what gives a request its raw post data."
  (wrap-function 'hunchentoot::get-post-data wrapper))

(define-condition upload-not-stored (recycling-error)
  ((cause :initarg :cause))
  (:report (lambda (condition stream)
             (format stream "The file of an upload cannot be made or written: ~A"
                     (slot-value condition 'cause))))
  (:documentation "No file can be made or written: the form is right, and the server is at fault."))

(deftype not-of-form ()
  "The errors of reading a form that do not say that the form is malformed."
  '(or protocol-error content-left upload-not-stored))

(defmacro or-bad-request (&body body)
  "Evaluates BODY; an error in it ends the request with 400, unless it is NOT-OF-FORM, or the
handler runs in another thread."
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
  "The folder that Hunchentoot has for uploads where no program chooses another.")

(defun upload-folder ()
  "The folder for uploads: that which the program has chosen, or one that nobody else may use."
  (or (and (equal *usual-folder* hunchentoot:*tmp-directory*)
           (private-folder))
      hunchentoot:*tmp-directory*))

(defun temporary-pathname (&optional (tries 10))
  "The pathname of a file for an upload, which is deleted at the end of the request; of TRIES at
most.  Signals UPLOAD-NOT-STORED where there can be none."
  ;; Hunchentoot looks whether there is a file, another's, which may go meanwhile: then PROBE-FILE
  ;; of SBCL signals an error.  The next name is another one.
  (let ((files hunchentoot::*tmp-files*))
    (handler-bind ((error (lambda (condition)
                            ;; It has no name yet: it is not the program's hook that fails.
                            (when (eq files hunchentoot::*tmp-files*)
                              (when (= tries 1)
                                (error 'upload-not-stored :cause condition))
                              (return-from temporary-pathname (temporary-pathname (1- tries)))))))
      (let ((hunchentoot:*tmp-directory* (upload-folder)))
        (hunchentoot::make-tmp-file-name)))))

(defun disown-temporary-pathname (pathname)
  "Leaves the file PATHNAME, of TEMPORARY-PATHNAME, alone at the end of the request: it is
another's."
  (setf hunchentoot::*tmp-files* (remove pathname hunchentoot::*tmp-files*)))

(defmacro or-log-form-error (&body body)
  "Evaluates BODY; an error in it is logged, and the form has no parameters, unless it is
NOT-OF-FORM."
  `(hunchentoot::handler-case* (progn ,@body)
     (error (condition)
       (when (typep condition 'not-of-form)
         (error condition))
       (hunchentoot:log-message* :error "While parsing multipart/form-data parameters: ~A"
                                 condition)
       nil)))

(defun warn-of-stray-octets (count)
  (hunchentoot::hunchentoot-warn "~A octets of stray data after form-data sent by client." count))

;;; Backtraces, see backtraces.lisp

(defun wrap-backtrace-maker (wrapper)
  "Makes WRAPPER, see WRAP-FUNCTION, what returns a backtrace of an error as a string."
  (wrap-function 'hunchentoot::get-backtrace wrapper))

;;; Our own code for a request uses these

(defun call-as-request (request thunk)
  "Calls THUNK in the dynamic context of REQUEST, and deletes uploaded files afterwards."
  (flet ((call-mapping-conditions ()
           (hunchentoot::with-mapped-conditions ()
             (funcall thunk))))
    (declare (dynamic-extent #'call-mapping-conditions))
    (call-keeping-files request #'call-mapping-conditions #'delete-files)))

(defun call-keeping-files (request thunk keep)
  "Calls THUNK in the dynamic context of REQUEST; calls KEEP, a function, with the pathnames, a
list, of the files that were uploaded meanwhile.  Returns what THUNK does."
  (catch 'hunchentoot::request-processed
    (let ((hunchentoot::*tmp-files* '())
          (hunchentoot::*headers-sent* nil)
          (hunchentoot:*request* request))
      (unwind-protect (funcall thunk)
        (funcall keep (take-temporary-files))))))

(defun take-temporary-files ()
  "The pathnames of the uploaded files of the current request, which are the caller's to delete
now."
  (shiftf hunchentoot::*tmp-files* '()))

(defun delete-files (files)
  "Deletes FILES, a list of pathnames, as far as they are still there."
  (dolist (path files)
    (when (pathnamep path)
      ;; The handler may have moved it away.  PROBE-FILE of SBCL signals an error when that happens
      ;; during the call.
      (ignore-errors (delete-file path)))))

(defun call-handler (acceptor request)
  "Calls the handler for REQUEST.  Returns its value, or NIL, the condition that it signalled
and a backtrace, if there was room for one; and last whether it was left by a throw."
  (let ((left-p t))
    (flet ((handle ()
             (multiple-value-prog1 (values (hunchentoot:handle-request acceptor request))
               (setf left-p nil))))
      (declare (dynamic-extent #'handle))
      (multiple-value-bind (content condition backtrace)
          ;; Hunchentoot catches errors; the stack is exhausted until it is left.
          (handler-case (call-as-handler #'handle)
            (storage-condition (condition) (values nil condition nil)))
        (when (typep condition 'storage-condition)
          (make-room-in-heap 0))        ; or the next handler would find none either
        (values content condition backtrace left-p)))))

(defun call-as-handler (thunk)
  "Calls THUNK as a handler, which may be left by Hunchentoot's ABORT-REQUEST-HANDLER; returns what
it does."
  (catch 'hunchentoot::handler-done
    (funcall thunk)))

(defmacro with-debugger (&body body)
  `(hunchentoot::with-debugger ,@body))

(defun headers-sent-p ()
  hunchentoot::*headers-sent*)

(defun end-of-request ()
  "Leaves the handler: HANDLE-STATIC-FILE does not return to it from a HEAD request."
  (throw 'hunchentoot::request-processed nil))

(defun note-headers-sent ()
  (setf hunchentoot::*headers-sent* t))

(defun open-content-stream (request stream)
  "Lets a program read on in STREAM, beyond the content of REQUEST: the protocol was switched."
  (setf (slot-value request 'hunchentoot::content-stream) stream))

(defparameter *methods-served*
  (let ((methods (find-symbol (string '#:+valid-request-methods+) '#:hunchentoot)))
    (and methods (symbol-value methods)))
  "Since 1.3.0 Hunchentoot takes but nine methods; NIL before.")

(defun method-served-p (method)
  (or (null *methods-served*)
      (find method *methods-served* :test #'string=)))

(defun drop-header (name)
  "Takes the header NAME, or the cookies, out of the reply."
  (if (eq name :set-cookie)
      (setf (hunchentoot:cookies-out*) '())
      (setf (slot-value hunchentoot:*reply* 'hunchentoot:headers-out)
            (remove name (hunchentoot:headers-out*) :key #'car))))

(defun keep-connection ()
  "Says, as Hunchentoot's own code does when it sends the head of a reply, that the connection is
kept."
  (setf hunchentoot::*finish-processing-socket* nil))

(defun log-handler-error (condition backtrace)
  (when hunchentoot:*log-lisp-errors-p*
    (hunchentoot:log-message* hunchentoot:*lisp-errors-log-level* "~A~@[~%~A~]" condition
                              (and hunchentoot:*log-lisp-backtraces-p* backtrace))))

;;; Messages, see message-log.lisp

(defparameter *client-caused-messages*
  '("Error when creating REQUEST object" "Error when reading POST parameters"
    "While parsing multipart/form-data" "Can't read request body" "Got Content-Length header"
    "Fake session identifier" "No session for session identifier" "Session with ID"
    "Error while processing connection" "Warning while processing connection"
    "Can't handle a new request")
  "How the control strings begin of messages that a client can have Hunchentoot write as often
as it likes.")

(defun client-caused (control)
  "True when CONTROL is a message of Hunchentoot's that a client can cause; and how an argument
is to be treated, a
function."
  (cond ((some (lambda (beginning) (uiop:string-prefix-p beginning control))
               *client-caused-messages*)
         (values t #'client-text))
        ((string= control "~A~@[~%~A~]") ; an error of a handler, and its backtrace
         (values t #'report-text))))

(defun start-output (status content)
  "Sends a reply by Hunchentoot's own code."
  (hunchentoot::start-output status content))

(defun wrap-start-of-output (wrapper)
  "Makes WRAPPER, see WRAP-FUNCTION, what Hunchentoot's own code sends a reply by."
  (wrap-function 'hunchentoot::start-output wrapper))

(defun note-what-hunchentoot-did (exchange)
  "Notes of EXCHANGE what we have not done ourselves: that a program wants its connection closed, or
that Hunchentoot's own code has sent the reply, and has said that the connection is kept."
  (cond (hunchentoot::*finish-processing-socket*
         (note-event exchange :close))
        ((eq :idle (our-side (exchange-protocol exchange)))
         (note-event exchange :reply)
         (note-event exchange :reply-end))))

(defun abandon-reply (stream io)
  "Ends the connection, which STREAM and IO carry, without the end of the reply: what was written is
sent, but no last chunk."
  (setf hunchentoot::*hunchentoot-stream* stream)
  (when (io-open-p io)
    (leave-output-to-engine io)))

;;; Replies that handlers stream, see streaming.lisp

(defun current-stream ()
  "The stream of the current connection, as programs know it."
  hunchentoot::*hunchentoot-stream*)

(defun handler-stream ()
  "CURRENT-STREAM in a handler; NIL elsewhere."
  (and (boundp 'hunchentoot::*hunchentoot-stream*)
       (current-stream)))

(defmethod chunga:chunked-stream-input-chunking-p ((stream content))
  "What HUNCHENTOOT:INPUT-CHUNKING-P asks."
  (null (content-size stream)))

(defun call-with-content-as-stream (content thunk)
  "Calls THUNK; in a thread that is in no handler, Hunchentoot's functions that take CONTENT find
that as the stream of the connection."
  (if (handler-stream)
      (funcall thunk)
      (let ((hunchentoot::*hunchentoot-stream* content))
        (funcall thunk))))

(defun (setf current-stream) (stream)
  (setf hunchentoot::*hunchentoot-stream* stream))

(defun bare-p (stream socket-stream)
  "True when nothing stands between STREAM and SOCKET-STREAM but what EXPECT-CHUNKED-BODY has put
there."
  (or (eq stream socket-stream)
      (and (typep stream 'chunga:chunked-stream)
           (eq socket-stream (chunga:chunked-stream-stream stream)))))

(defmethod chunga:chunked-stream-input-chunking-p ((stream reply-stream))
  "What HUNCHENTOOT:INPUT-CHUNKING-P asks."
  (chunga:chunked-stream-input-chunking-p (reply-stream-inner stream)))

(defun without-reply (exchange stream)
  "The stream beneath STREAM if that is one of the reply of EXCHANGE, which ends; else STREAM."
  (cond ((eq stream (http-stream (exchange-http exchange))) stream) ; it streamed nothing
        ((typep stream 'reply-stream)
         (note-event exchange (if (end-reply stream) :reply-end :reply-cut))
         (reply-stream-inner stream))
        (t stream)))

(defun copy-head (head)
  "Copies HEAD to Hunchentoot's *HEADER-STREAM*, if there is one."
  (let ((stream hunchentoot:*header-stream*))
    (when stream
      (format stream "~A ~A ~A~%~:{~A: ~A~%~}~%" (head-method head) (head-uri head)
              (head-protocol head)
              (loop for (name . value) in (head-headers head)
                    collect (list (string-capitalize name) value))))))

(defun announce-continue ()
  "Copies to Hunchentoot's *HEADER-STREAM*, if there is one, that the client is told to send its
content; NIL where the reply has begun."
  (unless (headers-sent-p)
    (when hunchentoot:*header-stream*
      (format hunchentoot:*header-stream* "HTTP/1.1 100 Continue~%"))
    t))

(defun rewrite-urls (content)
  "The string CONTENT with the session in its URLs where that is wanted."
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
  "Hunchentoot's version, and what its own method makes of it each time that it is asked for the
server's name; without these while there is any other method.")

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
            ;; Not remembered when it was redefined since.
            (compare-and-set (symbol-value '*server-name*) known (cons version name)))
          name))))

(defun expect-chunked-body (acceptor)
  "Makes INPUT-CHUNKING-P true for the current stream, and that stream one that decodes chunks."
  (unless (hunchentoot:acceptor-input-chunking-p acceptor)
    (hunchentoot::hunchentoot-error
     "The client sends a chunked body, but INPUT-CHUNKING-P is false for ~A." acceptor))
  (setf hunchentoot::*hunchentoot-stream*
        (chunga:make-chunked-stream hunchentoot::*hunchentoot-stream*)
        (chunga:chunked-stream-input-chunking-p hunchentoot::*hunchentoot-stream*) t))

(defun finish-request (acceptor exchange io)
  "Flushes the reply of EXCHANGE, to IO, and prepares Hunchentoot's current stream for the next
one."
  (let ((stream (without-reply exchange hunchentoot::*hunchentoot-stream*)))
    (unless (flushed-p io stream)
      (finish-output stream))
    ;; Where a program has put its own around that of the reply, its method has taken it off.
    (setf hunchentoot::*hunchentoot-stream*
          (without-reply exchange (hunchentoot:reset-connection-stream acceptor stream))))
  (note-what-hunchentoot-did exchange))

(defun connection-taken-p ()
  "True when a program has taken the connection of the current request away."
  (not hunchentoot::*close-hunchentoot-stream*))

(defun call-with-connection-stream (stream thunk left)
  "Calls THUNK, which processes requests on STREAM, in the dynamic context that handlers expect, and
returns true when the connection may be used again, or :DEFERRED when the reply comes later.
Returns what is to become of that, :PARK, :CLOSE, :DEFERRED or :DETACHED, and the stream for its
next request.  When a program leaves THUNK by a non-local exit after it has detached the socket,
calls the function LEFT."
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
