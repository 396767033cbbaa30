(in-package #:hunchentoot-recycling-taskmaster-test)

;;; A WebSocket client of octets: the library's encoder and decoder in the role of a client, over a
;;; connection of the tests; and servers to talk to.

(defstruct (talk (:constructor make-talk (connection)))
  "A client's end of a WebSocket."
  connection
  (decoder (websocket:make-message-decoder :role :client))
  (octet (make-array 1 :element-type '(unsigned-byte 8))))

(defparameter *handshake-key* "dGhlIHNhbXBsZSBub25jZQ==")

(defun handshake-octets
    (&key (target "/ws") (method :get) (version "HTTP/1.1") (upgrade "websocket")
       (connection "Upgrade") (key *handshake-key*) (websocket-version "13") (host "localhost")
       headers content)
  "The octets of an opening handshake; a header that is NIL is left out."
  (request-octets target :method method :version version :host host :content content
                         :headers `(("Upgrade" . ,upgrade) ("Connection" . ,connection)
                                    ("Sec-WebSocket-Key" . ,key)
                                    ("Sec-WebSocket-Version" . ,websocket-version)
                                    ,@headers)))

(defun open-talk (connection &key more handshake)
  "Opens a WebSocket over CONNECTION by a handshake of HANDSHAKE, behind which the octets of MORE
come at once."
  (send connection (apply #'handshake-octets handshake) more)
  (let ((head (read-head connection)))
    (unless (and (= 101 (response-status head))
                 ;; RFC 6455, section 1.3
                 (equal "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
                        (response-header head "sec-websocket-accept")))
      (error 'broken-response :what "no WebSocket was opened"))
    (values (make-talk connection) head)))

(defmacro with-talk ((talk &rest keys) &body body)
  "Evaluates BODY with TALK bound to a new WebSocket of a client to *SERVER*; KEYS are those of
BEGIN-TALK."
  (let ((connection (gensym "CONNECTION")))
    `(with-connection (,connection)
       (let ((,talk (open-talk ,connection ,@keys)))
         (declare (ignorable ,talk))
         ,@body))))

(defun frame (kind payload)
  "The octets of a whole frame of a client."
  (websocket:encode-frame kind payload :mask #x3D21FA37))

(defun tell (talk &rest parts)
  "Sends PARTS, octets of frames; a string is a text."
  (send (talk-connection talk)
        (mapcar (lambda (part) (if (stringp part) (frame :text part) part)) parts)))

(defun say-close (talk &optional (code 1000) (reason ""))
  (tell talk (websocket:encode-close code reason 1)))

(defun hear (talk)
  "What comes next: a list of kind and value as DECODE-MESSAGE returns them, for a close frame the
reason too; (:END) at the end."
  (loop
    (let ((octet (next-octet (talk-connection talk))))
      (unless octet
        (return '(:end)))
      (setf (aref (talk-octet talk) 0) octet)
      (multiple-value-bind (kind end value more)
          (websocket:decode-message (talk-decoder talk) (talk-octet talk) 0 1)
        (declare (ignore end))
        (when kind
          (return (list* kind value (and (eq :close kind) (list more)))))))))

(defun hear-text (talk)
  "The next text that comes; anything else as HEAR returns it."
  (let ((heard (hear talk)))
    (if (eq :text (first heard)) (second heard) heard)))

(defun hear-close (talk)
  "The code of the close frame that comes next; anything else as HEAR returns it."
  (let ((heard (hear talk)))
    (if (eq :close (first heard)) (second heard) heard)))

(defun hear-kind (talk kind)
  "What comes of KIND next, after anything else."
  (loop for heard = (hear talk)
        until (member (first heard) (list kind :end))
        finally (return heard)))

(defun end-talk (talk)
  "Closes TALK in order; true when the server does so too."
  (say-close talk)
  (and (eql 1000 (second (hear-kind talk :close)))
       (equal '(:end) (hear talk))))

;;; Servers

(defmacro serving-websocket ((&rest arguments) (&rest initargs) &body body)
  "Evaluates BODY while *SERVER*, made of INITARGS, upgrades requests for /ws by ARGUMENTS, and
serves /plain.  Unless ARGUMENTS say otherwise, a client may be silent for ever: the machine may be
busy, and those of the tests do not answer pings by themselves."
  `(serving ,initargs
       (("/ws" (recycling:upgrade-to-websocket ,@arguments :ping-seconds nil :idle-seconds nil))
        ("/plain" "plain"))
     ,@body))

(defun echo-text (socket text)
  (recycling:send-text socket text))

(defun echo-binary (socket octets)
  (recycling:send-binary socket octets))

(defun record-end (recorder)
  "An ON-CLOSE, of either front, that records codes."
  (lambda (socket code &optional reason)
    (declare (ignore socket reason))
    (record recorder code)))

(defmacro serving-echoes ((ends &rest initargs) &body body)
  "Evaluates BODY while *SERVER* echoes what is sent to /ws; ENDS is bound to a recorder of the
codes of the ends."
  `(let ((,ends (make-recorder)))
     (serving-websocket (:on-text 'echo-text :on-binary 'echo-binary :on-close (record-end ,ends))
         ,initargs
       ,@body)))

(defmacro serving-pushes ((socket arguments &rest initargs) &body body)
  "Evaluates BODY with SOCKET bound to a function that returns the server's end of the WebSocket
that was opened last, waiting for it; ARGUMENTS are of UPGRADE-TO-WEBSOCKET."
  (let ((opened (gensym "OPENED")))
    `(let ((,opened nil))
       (serving-websocket (:on-open (lambda (socket) (setf ,opened socket)) ,@arguments)
           ,initargs
         (flet ((,socket () (eventually ("a WebSocket to be open") ,opened)))
           ,@body)))))

(defun await-end (ends &rest codes)
  "Checks that ENDS has recorded CODES, and nothing else, a moment later."
  (eventually ("a WebSocket to end") (<= (length codes) (recorded-count ends)))
  (is (equal codes (recorded ends))))
