(in-package #:hunchentoot-recycling-taskmaster-test)

;;; One test for both fronts: Hunchentoot's, an acceptor, and Clack's, RUN.
;;;
;;;   (define-front-test (a-word-comes-back :modes (:plain :tls))
;;;     (with-front (request :max-body-octets 10)
;;;         (reply 200 '(:x-own "1") (content request))
;;;       (is (equal "abc" (ask-text "/" :method :post :content "abc")))))
;;;
;;; The first form is the handler, with REQUEST bound to what the front gives; its value must be
;;; that of REPLY, LATER, STREAMED or WEBSOCKET.  Any server answers /word by "word".  ARGUMENTS are
;;; those of CLACK.HANDLER.RECYCLING:RUN, for both fronts.  The test is a suite, with a test for
;;; each front and mode: A-WORD-COMES-BACK/CLACK-TLS.  Modes are :PLAIN, :UNPARKED, where each
;;; connection has a thread, by default these; :TLS; and :HTTP2, whose client turns what it is given
;;; into HTTP/2, see http2-connection.lisp.  The client's words, like EXCHANGE, are those of other
;;; tests; FIGURE, STOP-FRONT and FRONT-LOG ask *SERVER*.  Conditions and generic
;;; functions are the same symbols in the packages of both fronts.

(defvar *front* nil
  "In a test, :HUNCHENTOOT or :CLACK, the front that it tries; in a handler, that which called it.")

(defvar *mode* :plain
  "How the test tries it: :PLAIN, :UNPARKED, each connection having a thread, :TLS or :HTTP2.")

;;; What a handler asks

(defgeneric path (request)
  (:method ((request list)) (getf request :path-info))
  (:method ((request hunchentoot:request)) (hunchentoot:script-name request)))

(defgeneric header (request name)
  (:documentation "The value of the header of REQUEST with NAME, a string; NIL if there is none.")
  (:method ((request list) name)
    (gethash (string-downcase name) (getf request :headers)))
  (:method ((request hunchentoot:request) name)
    (hunchentoot:header-in (intern (string-upcase name) '#:keyword) request)))

(defgeneric content (request)
  (:documentation "The octets of the content of REQUEST, in any thread, as often as one likes.")
  (:method ((request list))
    (let ((body (getf request :raw-body)))
      (file-position body 0)
      (as-octets (loop for octet = (read-byte body nil)
                       while octet collect octet))))
  (:method ((request hunchentoot:request))
    (or (hunchentoot:raw-post-data :request request :force-binary t) (octets))))

(defgeneric client (request)
  (:documentation "What REQUEST tells of its client: a list of address, port, scheme and host.")
  (:method ((request list))
    (list (getf request :remote-addr) (getf request :remote-port) (getf request :url-scheme)
          (gethash "host" (getf request :headers))))
  (:method ((request hunchentoot:request))
    (list (hunchentoot:remote-addr request) (hunchentoot:remote-port request)
          (if (hunchentoot:ssl-p) "https" "http") (hunchentoot:host request))))

;;; Replies

(defun reply (status headers content)
  "The whole reply with STATUS, HEADERS, a plist, and CONTENT: a string, octets, a pathname, NIL."
  (ecase *front*
    (:clack (clack-response status headers content))
    (:hunchentoot
     (setf (hunchentoot:return-code*) status)
     (loop for (name value) on headers by #'cddr
           do (case name
                (:content-type (setf (hunchentoot:content-type*) value))
                (:content-length (setf (hunchentoot:content-length*) value))
                (t (setf (hunchentoot:header-out name) value))))
     (typecase content
       (pathname (hunchentoot:handle-static-file content (getf headers :content-type)))
       (null "")
       (t content)))))

(defun clack-response (status headers content)
  (list status headers (if (stringp content) (list content) content)))

(defmacro later ((answer) &body body)
  "Leaves the reply to others, and evaluates BODY with ANSWER bound to a function that any thread
may call, now or later: with status, headers and content it gives the whole reply; without content
it returns a writer.  That is a function of data, a string, octets or NIL, and perhaps :START and
:END; it sends them at once, or waits while the client is slow.  With :CLOSE true the reply ends."
  `(call-later (lambda (,answer) ,@body)))

(defun call-later (function)
  (ecase *front*
    (:clack (lambda (responder)
              (funcall function
                       (lambda (status headers &optional (content nil whole-p))
                         (funcall responder (if whole-p
                                                (clack-response status headers content)
                                                (list status headers)))))))
    (:hunchentoot (recycling:defer-reply (reply)
                    (funcall function
                             (lambda (status headers &optional (content nil whole-p))
                               (answer-deferred reply status headers content whole-p)))))))

(defun answer-deferred (reply status headers content whole-p)
  "Completes REPLY, or returns a writer of it unless WHOLE-P."
  (let ((keys (list* :status status
                     :headers (loop for (name value) on headers by #'cddr
                                    unless (eq :content-type name) collect (cons name value))
                     (when (getf headers :content-type)
                       (list :content-type (getf headers :content-type))))))
    (if whole-p
        (apply #'recycling:complete-reply reply (or content "") keys)
        (let ((stream (apply #'recycling:start-stream reply keys)))
          (lambda (data &key (start 0) end close)
            (when data
              (unless stream (error 'recycling:client-left))
              (recycling:write-outgoing stream data :start start :end end :wait t))
            (when (and close stream)
              (recycling:close-outgoing stream)))))))

(defmacro streamed ((write status &optional headers) &body body)
  "Sends a reply with STATUS and HEADERS that BODY, in the handler's thread, writes piece by piece
by (FUNCALL WRITE DATA), and that ends with BODY."
  `(call-streaming ,status ,headers (lambda (,write) ,@body)))

(defun call-streaming (status headers function)
  (ecase *front*
    (:clack (lambda (responder)
              (let ((writer (funcall responder (list status headers))))
                (funcall function writer)
                (funcall writer nil :close t))))
    (:hunchentoot
     (reply status headers nil)
     (let ((stream (hunchentoot:send-headers)))
       (funcall function (lambda (data &key (start 0) end)
                           (write-sequence (if (stringp data) (octets data) data) stream
                                           :start start :end end)
                           (finish-output stream)))))))

;;; WebSockets

(defvar *websocket-options* '()
  "In a handler of Hunchentoot's front, the arguments of UPGRADE-TO-WEBSOCKET.")

(defun websocket (request &rest functions &key on-open on-text on-binary on-close)
  "Opens a WebSocket over the connection of REQUEST.  FUNCTIONS are called with the server's end;
ON-TEXT and ON-BINARY with the message, ON-CLOSE with the code besides."
  (ecase *front*
    (:clack (lambda (responder)
              (declare (ignore responder))
              (apply #'speak-websocket request functions)))
    (:hunchentoot (apply #'recycling:upgrade-to-websocket
                         :on-open on-open :on-text on-text :on-binary on-binary
                         :on-close (and on-close (lambda (socket code reason)
                                                   (declare (ignore reason))
                                                   (funcall on-close socket code)))
                         *websocket-options*))))

(defun websocket-say (socket message)
  "Sends MESSAGE, a string or octets, to the client of SOCKET, in any thread; waits for room."
  (if (recycling:websocket-p socket)
      (if (stringp message)
          (recycling:send-text socket message :wait t)
          (recycling:send-binary socket message :wait t))
      (write-to-clack-socket socket (websocket:encode-frame (if (stringp message) :text :binary)
                                                            message)
                             nil)))

(defun websocket-end (socket code)
  "Closes SOCKET with CODE, in any thread."
  (if (recycling:websocket-p socket)
      (recycling:close-websocket socket :code code)
      (write-to-clack-socket socket (websocket:encode-close code) nil)))

(defparameter *lost-frame* (make-array 8 :element-type '(unsigned-byte 8)
                                         :initial-contents '(#x88 #x82 0 0 0 0 3 238))
  "What an application gets at the end of a client that has said nothing: a close frame with 1006.")

(defun speak-websocket (environment &key on-open on-text on-binary on-close)
  "Speaks the protocol over the socket of ENVIRONMENT, as far as tests want it, in the way that
websocket-driver does."
  (let ((io (getf environment :clack.io))
        (decoder (websocket:make-message-decoder :message-octets 10000000)))
    (flet ((take (octets &key (start 0) (end (length octets)))
             (multiple-value-bind (kind position value)
                 (websocket:decode-message decoder octets start end)
               (declare (ignore position))
               (ecase kind
                 ((nil :pong))
                 (:text (funcall on-text io value))
                 (:binary (funcall on-binary io value))
                 (:ping (write-to-clack-socket io (websocket:encode-frame :pong value) nil))
                 (:failure
                  (if (not (equalp *lost-frame* (subseq octets start end)))
                      (write-to-clack-socket io (websocket:encode-close value) nil)
                      (when on-close (funcall on-close io 1006))))
                 (:close
                  (when on-close (funcall on-close io value))
                  (write-to-clack-socket io (websocket:encode-close value)
                                         (lambda () (close-clack-socket io))))))))
      (set-clack-socket-callback #'take io)
      (write-to-clack-socket
       io
       (octets "HTTP/1.1 101 Switching Protocols" :crlf "Upgrade: websocket" :crlf
               "Connection: Upgrade" :crlf "Sec-WebSocket-Accept: "
               (websocket:accept-key (header environment "sec-websocket-key")) :crlf :crlf)
       nil)
      (when on-open (funcall on-open io)))))

;;; Servers

(defparameter *names-at-hunchentoot*
  '(:worker-num :standby-thread-count :ssl-cert-file :ssl-certificate-file
    :ssl-key-file :ssl-privatekey-file :ssl-key-password :ssl-privatekey-password)
  "Arguments of Clack's front that have another name at Hunchentoot's, each with that.")

(defun acceptor-arguments (arguments)
  "The initargs of an acceptor for ARGUMENTS, and the arguments of its WebSockets."
  (loop with taskmaster = (list :parking *parking-p*)
        for (given value) on arguments by #'cddr
        for name = (getf *names-at-hunchentoot* given given)
        for socket-p = (uiop:string-prefix-p "WEBSOCKET-" name)
        if (member name '(:standby-thread-count :max-thread-count :max-accept-count))
          append (list name value) into threads
        else if socket-p
          append (list (intern (subseq (string name) 10) '#:keyword) value) into sockets
        else
          append (list name value) into others
        finally (return (values (list* :taskmaster (apply #'make-instance
                                                          'recycling:recycling-taskmaster
                                                          (append threads taskmaster))
                                       others)
                                sockets))))

(defun call-with-front (handler arguments function)
  "Calls FUNCTION while a server of *FRONT*, made with ARGUMENTS, answers by HANDLER."
  (flet ((handle (front request)
           (let ((*front* front))
             (if (equal "/word" (path request))
                 (reply 200 '(:content-type "text/plain") "word")
                 (funcall handler request)))))
    (ecase *front*
      (:clack (call-with-clack (lambda (request) (handle :clack request)) arguments function))
      (:hunchentoot
       (multiple-value-bind (initargs sockets) (acceptor-arguments arguments)
         (flet ((dispatch (request)
                  (lambda ()
                    (let ((*websocket-options* sockets))
                      (handle :hunchentoot request)))))
           (let* ((*clack-log* (or *clack-stream* (make-string-output-stream)))
                  (*acceptor-class* (if (getf arguments :ssl-cert-file)
                                        'recycling:parallel-easy-ssl-acceptor
                                        *acceptor-class*)))
             (with-globals ((hunchentoot:*dispatch-table* (list #'dispatch)))
               (call-with-acceptor (list* :message-log-destination *clack-log* initargs)
                                   function)))))))))

(defvar *failures* 0
  "How often the server of a test fails outside of its handlers.")

(defun call-with-failures (function)
  "Calls FUNCTION; then checks that *SERVER* has failed *FAILURES* times."
  (multiple-value-prog1 (funcall function)
    (is (eql *failures* (figure :failed)))))

(defun call-with-front-in-mode (handler arguments function)
  (if (eq :tls *mode*)
      (with-directory (directory)
        (multiple-value-bind (key certificate) (funcall 'make-certificate directory)
          (let ((*make-connection* 'encrypted))
            (call-with-front handler
                             (list* :ssl-cert-file certificate :ssl-key-file key arguments)
                             function))))
      (let* ((http2-p (eq :http2 *mode*))
             (*make-connection* (if http2-p 'make-http2-connection *make-connection*)))
        (call-with-front handler (if http2-p (list* :http2 :cleartext arguments) arguments)
                         function))))

(defmacro with-front* ((request arguments) handler &body body)
  "Like WITH-FRONT; ARGUMENTS is a form whose value is the plist."
  `(call-with-front-in-mode (lambda (,request) (declare (ignorable ,request)) ,handler)
                            ,arguments
                            (lambda () (call-with-failures (lambda () ,@body)))))

(defmacro with-front ((request &rest arguments) handler &body body)
  "Evaluates BODY with *SERVER* bound to a server that is made with ARGUMENTS, a plist, and answers
by the value of HANDLER, a form, with REQUEST bound."
  `(with-front* (,request (list ,@arguments)) ,handler ,@body))

(defun figure (name)
  "The statistic NAME of *SERVER*."
  (getf (recycling:stats *server*) name))

(defun front-log ()
  "All messages of *SERVER* since this was called last; AWAIT-LOG waits for one."
  (clack-log))

(defun stop-front (&rest arguments &key soft timeout delay)
  "Stops *SERVER* with ARGUMENTS."
  (declare (ignore soft timeout delay))
  (if (typep *server* 'hunchentoot:acceptor)
      (apply #'hunchentoot:stop *server* arguments)
      (apply #'handler:stop *server* arguments)))

;;; Tests of what comes later

(defun await-answer (answers)
  "The first of ANSWERS, a recorder of what LATER has bound, when it is there; takes it out."
  (eventually ("a reply to be left to others")
    (bt:with-lock-held ((recorder-lock answers))
      (let ((answer (first (last (recorder-entries answers)))))
        (setf (recorder-entries answers) (butlast (recorder-entries answers)))
        answer))))

(defun await-pending (count)
  "Waits until COUNT replies are to come, and the handlers have returned."
  (eventually ("replies to be left to others")
    (= count (figure (if *parking-p* :deferred :busy)))))

(defmacro with-answers ((answers &rest arguments) &body body)
  "Evaluates BODY while a server, made with ARGUMENTS, leaves the replies to others, and records in
ANSWERS, a variable, the functions that give them."
  `(let ((,answers (make-recorder)))
     (with-front (request ,@arguments) (later (answer) (record ,answers answer))
       ,@body)))

(defmacro with-pending ((answer connection request &rest arguments) &body body)
  "Evaluates BODY with ANSWER bound to the function that answers a request of REQUEST, octets, over
CONNECTION, when its handler has returned.  ARGUMENTS are of the server."
  `(with-answers (answers ,@arguments)
     (with-connection (,connection)
       (send ,connection ,request)
       (let ((,answer (await-answer answers)))
         (await-pending 1)
         ,@body))))

(defun outcome (function &rest arguments)
  "What FUNCTION returns in another thread; or the name of the error that it signals."
  (task-result (in-background ("elsewhere")
                 (handler-case (apply function arguments)
                   (error (condition) (type-of condition))))))

;;; Tests

(defun call-front-test (front mode needs function)
  (let ((*front* front)
        (*mode* mode)
        (*parking-p* (and *parking-p* (not (eq :unparked mode)))))
    (call-server-test (append (case mode (:tls '(:tls-client)) (:http2 '(:parking))) needs)
                      function)))

(defun variant-name (name front mode)
  "The name of the test NAME for FRONT in MODE."
  (intern (format nil "~A/~A~:[-~A~;~]" name front (eq :plain mode) mode)
          '#:hunchentoot-recycling-taskmaster-test))

(defun make-suite-here (name)
  "Makes a suite NAME in the current one."
  (let ((here fiveam::*suite*))
    (make-suite name :in (if (symbolp here) here (fiveam::name here)))))

(defmacro define-front-test (name-and-options &body body)
  "Defines the suite NAME, which has a test of BODY for each front and mode.  NAME-AND-OPTIONS is
the name, or a list of it and of :MODES, :FRONTS, and :NEEDS, as for DEFINE-SERVER-TEST."
  (destructuring-bind (name &key (modes '(:plain :unparked)) (fronts '(:hunchentoot :clack)) needs)
      (uiop:ensure-list name-and-options)
    (unless (platform:readiness-supported-p)
      (setf modes (set-difference modes '(:unparked :http2)))) ; there :PLAIN is the same
    `(progn
       (defun ,name () ,@body)
       (make-suite-here ',name)
       ,@(loop for front in fronts
               append (loop for mode in modes
                            collect `(fiveam:test (,(variant-name name front mode) :suite ,name)
                                       (call-front-test ,front ,mode ',(uiop:ensure-list needs)
                                                        ',name)))))))
