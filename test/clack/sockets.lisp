(in-package #:hunchentoot-recycling-taskmaster-test)

;;; What websocket-driver and others need of :CLACK.IO.  test/fronts/websockets.lisp has what an
;;; application that speaks the WebSocket protocol over it can rely on.

(def-suite* clack/sockets :in clack
  :description "Connections that applications take over by :CLACK.IO.")

(defun io-of (environment)
  (getf environment :clack.io))

(defun write-frame (io kind payload &optional callback)
  (write-to-clack-socket io (websocket:encode-frame kind payload) callback))

(defun write-close (io code &optional callback)
  (write-to-clack-socket io (websocket:encode-close code) callback))

(defun begin-speaking (environment function &optional callback)
  "Answers the opening handshake of ENVIRONMENT piece by piece; FUNCTION gets each frame."
  (let ((io (io-of environment)))
    (set-clack-socket-callback (lambda (octets &key (start 0) end)
                                 (funcall function (subseq octets start end)))
                               io)
    (dolist (piece (list "HTTP/1.1 101 Switching Protocols" :crlf "Upgrade: websocket" :crlf
                         "Connection: Upgrade" :crlf "Sec-WebSocket-Accept: "
                         (websocket:accept-key (gethash "sec-websocket-key"
                                                        (getf environment :headers)))
                         :crlf :crlf))
      (write-to-clack-socket io (octets piece) nil))
    (write-to-clack-socket io (octets) callback)))

(defmacro with-speaker ((io frame form &rest arguments) &body body)
  "Evaluates BODY while an application speaks over the connections of requests for /ws: FORM is
evaluated with IO, and with FRAME, octets, for each frame; other requests are answered."
  (let ((environment (gensym "ENVIRONMENT")))
    `(with-clack (,environment
                  (if (equal "/ws" (getf ,environment :path-info))
                      (lambda (responder)
                        (declare (ignore responder))
                        (let ((,io (io-of ,environment)))
                          (declare (ignorable ,io))
                          (begin-speaking ,environment (lambda (,frame)
                                                         (declare (ignorable ,frame))
                                                         ,form))))
                      (text-response "plain"))
                  ,@arguments :websocket-ping-seconds nil :websocket-idle-seconds nil)
       ,@body)))

(defun frame-told (frame)
  "What a client's FRAME is: a list as HEAR returns it."
  (multiple-value-bind (kind end value more)
      (websocket:decode-message (websocket:make-message-decoder :message-octets (length frame))
                                frame 0 (length frame))
    (declare (ignore end))
    (list* kind value (and (eq :close kind) (list more)))))

(defun text-told-p (frame)
  (eq :text (first (frame-told frame))))

;;; What comes

(define-server-test messages-are-handed-over-in-one-frame-wherever-they-are-cut
  (let* ((seed (fresh-seed)) (state (seeded-state seed)) (frames (make-recorder))
         (messages (list* '(:ping "") '(:text "fragment")
                          (loop for length in (list 0 1 125 126 127 65535 65536 (rounds 3000000))
                                collect (list :binary (test-octets length)))))
         (sent (list* (frame :ping "") (octets (make-frame 1 (octets "frag") :fin nil)
                                               (make-frame 0 (octets "ment")))
                      (loop for (kind octets) in (cddr messages) collect (frame kind octets)))))
    (format t "~&Frames cut at random: seed ~D~%" seed)
    (with-speaker (io frame (progn (record frames (frame-told frame))
                                   (write-frame io :text "got"))
                   :websocket-message-octets 3000000)
      (loop for longest in '(1 3 100 100000)
            for expected = (if (= 1 longest) (subseq sent 0 6) sent)
            do (setf (recorder-entries frames) '())
               (with-talk (talk)
                 (loop with octets = (apply #'octets expected) and start = 0
                       while (< start (length octets))
                       do (let ((end (min (length octets)
                                          (+ start 1
                                             (random (if (< 1000 start) 100000 longest) state)))))
                            (send (talk-connection talk) (subseq octets start end))
                            (setf start end)))
                 (dolist (frame expected) (is (string= "got" (hear-text talk)) "~S" (length frame)))
                 (is (every #'equalp messages (recorded frames))))
               (eventually ("the end to be told") (= (1+ (length expected))
                                                     (recorded-count frames)))))))

(defun asking-for-websocket (target)
  "The octets of a request for TARGET by which an application may take the connection over."
  (request-octets target :headers '(("Upgrade" . "websocket"))))

;;; Who has taken a connection over

(define-server-test what-is-returned-or-answered-after-a-takeover-is-not-sent
  (let ((errors (make-recorder)))
    (dolist (late (list (lambda (responder)
                          (handler-case (funcall responder (text-response "later"))
                            (error (condition) (record errors (type-of condition)))))
                        (text-response "at once")
                        nil))
      (with-clack (environment (progn (write-to-clack-socket (io-of environment) (octets "mine")
                                                             nil)
                                      (close-clack-socket (io-of environment))
                                      late))
        (is (equal "mine" (decode (ask-raw (asking-for-websocket "/")))))))
    (is (equal '(handler:reply-already-sent) (recorded errors)))))

(define-server-test an-application-that-only-listens-has-the-connection-when-it-answers-later
  (let ((io nil) (got (make-recorder)))
    (flet ((listen-to (io)
             (set-clack-socket-callback (lambda (octets &key (start 0) end)
                                          (record got (frame-told (subseq octets start end))))
                                        io)))
      (with-clack (environment (cond ((equal "/now" (getf environment :path-info))
                                      (listen-to (io-of environment))
                                      (text-response "answered"))
                                     (t (lambda (responder)
                                          (declare (ignore responder))
                                          (setf io (io-of environment))
                                          (write-to-clack-socket io (octets "hello") nil)))))
        (with-connection (connection)
          (loop repeat 2
                do (send connection (asking-for-websocket "/now"))
                   (is (equal "answered" (response-text (read-response connection)))))
          (send connection (asking-for-websocket "/"))
          (is (equalp (octets "hello") (receive-many connection 5)))
          (send connection (frame :text "waiting"))
          (eventually ("nobody to serve the connection")
            (or (not *parking-p*) (= 1 (figure :deferred))))
          (listen-to io)
          (eventually ("what has come to be handed over")
            (equal '((:text "waiting")) (recorded got))))
        (with-connection (connection)   ; nobody listens
          (send connection (asking-for-websocket "/"))
          (is (equalp (octets "hello") (receive-many connection 5)))
          (handler:stop *server*))
        (is (zerop (figure :failed)))))))

(define-server-test what-takes-nothing-over-is-answered
  (let ((io nil))
    (with-clack (environment
                 (let ((path (getf environment :path-info)))
                   (cond ((equal "/word" path)
                          (setf io (io-of environment))
                          (text-response "word"))
                         ((equal "/string" path)
                          (write-to-clack-socket (io-of environment) "HTTP/1.1 101" nil))
                         ((equal "/large" path)
                          (write-to-clack-socket (io-of environment) (vector 72 256 0) nil))
                         (t (set-clack-socket-callback #'list (io-of environment))
                            (error "It fails.")))))
      (dolist (path '("/string" "/large" "/"))
        (is (= 500 (response-status (ask path :headers '(("Upgrade" . "websocket")))))))
      (is (= 500 (response-status (ask "/"))) "No WebSocket was asked for.")
      (is-true (await-log "cannot be deferred"))
      (with-connection (connection)
        (is (equal "word" (exchange-text connection "/word")))
        (signals handler:cannot-defer (write-to-clack-socket io (octets "more") nil))
        (signals handler:cannot-defer (close-clack-socket io))
        (is (equal "word" (exchange-text connection "/word")))))))

(define-server-test (who-writes-when-the-client-has-left-is-told :needs :noticed-leaving)
  (let ((io nil))
    (with-clack (environment (cond ((equal "/ws" (getf environment :path-info))
                                    (lambda (responder)
                                      (declare (ignore responder))
                                      (setf io (io-of environment))
                                      (begin-speaking environment #'identity)))
                                   (t (write-frame io :text "news")
                                      (text-response "told"))))
      (with-talk (talk)
        (is (equal "told" (ask-text "/")))
        (is (equal "news" (hear-text talk))))
      (eventually ("the connection to end") (zerop (figure :open)))
      (signals handler:client-left (write-frame io :text "lost"))
      (is (= 500 (response-status (ask "/"))))
      (is-true (await-log "The client gets no more octets")))))

(define-server-test an-application-that-fails-after-a-takeover-ends-the-connection
  (dolist (callback (list nil (lambda () (error "It fails."))))
    (with-clack (environment (lambda (responder)
                               (declare (ignore responder))
                               (begin-speaking environment #'identity callback)
                               (unless callback
                                 (error "It fails."))))
      (with-talk (talk)
        (is (eql 1011 (hear-close talk))))
      (is-true (await-log "It fails.")))))

;;; Writing

(define-server-test callbacks-are-called-when-their-octets-were-taken
  (let ((calls (make-recorder)))
    (with-clack (environment (lambda (responder)
                               (declare (ignore responder))
                               (flet ((note (call) (lambda () (record calls call))))
                                 (let ((io (io-of environment)))
                                   (begin-speaking environment #'identity (note :switched))
                                   (write-frame io :text "one" (lambda ()
                                                                 (write-frame io :text "two"
                                                                              (note :two))
                                                                 (record calls :one)))))))
      (with-talk (talk)
        (is (string= "one" (hear-text talk)))
        (is (string= "two" (hear-text talk)))
        (eventually ("all to be called") (= 3 (recorded-count calls)))
        (is (equal '(:switched :two :one) (recorded calls)))))))

(define-server-test what-is-written-may-be-any-vector-in-any-pieces
  (let ((displaced (make-array 3 :element-type '(unsigned-byte 8) :displaced-index-offset 2
                                 :displaced-to (octets "..abc..")))
        (filled (make-array 10 :element-type '(unsigned-byte 8) :fill-pointer 2
                            :initial-element 100)))
    (with-clack (environment (let ((io (io-of environment)))
                               (dotimes (i 20000)
                                 (write-to-clack-socket io (vector (mod i 256)) nil))
                               (write-to-clack-socket io displaced nil)
                               (write-to-clack-socket io filled nil)
                               (write-to-clack-socket io (vector 101 102) nil)
                               (write-to-clack-socket io (octets "") nil)
                               (write-to-clack-socket io (octets "last") nil)
                               (close-clack-socket io)
                               (close-clack-socket io)
                               nil))
      (let ((octets (ask-raw (asking-for-websocket "/"))))
        (is (equal "abcddeflast" (decode (subseq octets 20000))))
        (is-true (loop for octet across (subseq octets 0 20000)
                       for i from 0
                       always (= octet (mod i 256))))))))

;;; The end

(define-server-test an-application-that-closes-first-gets-the-clients-answer-before-its-callback
  (let ((calls (make-recorder)))
    (with-speaker (io frame
                      (let ((kind (first (frame-told frame))))
                        (record calls kind)
                        (write-close io 3001 (lambda ()
                                               (record calls (if (eq :text kind)
                                                                 :called :called-too))
                                               (close-clack-socket io)))
                        (when (eq :close kind)
                          (record calls :written))))
      (with-talk (talk)
        (tell talk "go")
        (is (eql 3001 (hear-close talk)))
        (say-close talk 3001)
        (is (equal '(:end) (hear talk))))
      (eventually ("the callbacks to be called") (plusp (recorded-count calls :written)))
      (is (equal '(:text :close :written :called :called-too) (recorded calls)))
      (setf (recorder-entries calls) '())
      (with-talk (talk)                 ; whose client does not answer
        (tell talk "go")
        (is (eql 3001 (hear-close talk)))
        (is (equal '(:end) (hear talk))))
      (eventually ("the callback to be called") (plusp (recorded-count calls :called)))))
  (with-speaker (io frame (when (text-told-p frame)
                            (write-close io 3001)
                            (close-clack-socket io)))
    (with-talk (talk)
      (tell talk "go")
      (is (eql 3001 (hear-close talk)))
      (is (not (readable-p (talk-connection talk) 1/4)) "It waits for the client's.")
      (say-close talk 3001)
      (is (equal '(:end) (hear talk))))))

(define-server-test another-thread-may-end-a-connection
  (dolist (end (list (lambda (io) (write-close io 3001)) #'close-clack-socket))
    (let ((socket nil) (called (make-gate)))
      (with-speaker (io frame (when (text-told-p frame)
                                (setf socket io)
                                (in-background ("ending") (funcall end io))))
        (with-talk (talk)
          (tell talk "go")
          (loop until (equal '(:end) (hear talk))))
        (eventually ("the end") (zerop (figure :open)))
        (handler-case (write-close socket 3001 (lambda () (open-gate called)))
          (handler:client-left () (open-gate called)))
        (is-true (await called))))))

(define-server-test an-application-that-does-not-close-its-socket-gets-a-close-frame-twice
  (let ((told (make-recorder)))
    (with-speaker (io frame (when (record told (frame-told frame))
                              (write-close io 3002)))
      (with-talk (talk)
        (say-close talk 3001 "Enough."))
      (eventually ("the end") (zerop (figure :open))))
    (is (equal '((:close 3001 "Enough.") (:close 3001 "Enough.")) (recorded told)))))

(define-server-test an-application-may-answer-a-close-frame-when-its-client-sends-no-more
  (let ((gate (make-gate)))
    (with-speaker (io frame
                      (when (eq :close (first (frame-told frame)))
                        (in-background ("answering")
                          (await gate)
                          (write-close io 3001 (lambda () (close-clack-socket io))))))
      (with-talk (talk)
        (say-close talk 3001)
        (end-sending (talk-connection talk))
        (is (not (readable-p (talk-connection talk) 1/4)))
        (open-gate gate)
        (is (eql 3001 (hear-close talk)))))))

(define-server-test an-application-that-closes-as-the-server-stops-is-told-before-its-callback
  (let ((calls (make-recorder)) (socket nil))
    (with-speaker (io frame (progn (setf socket io)
                                   (record calls (first (frame-told frame)))))
      (with-talk (talk)
        (tell talk "go")
        (eventually ("the message") (recorded calls))
        (let ((stop (in-background ("a soft stop")
                      (handler:stop *server* :soft t :timeout 10))))
          (is (eql 1001 (hear-close talk)))
          (write-close socket 1000 (lambda ()
                                     (record calls :called)
                                     (close-clack-socket socket)))
          (say-close talk 1001)
          (task-result stop))))
    (is (equal '(:text :close :called) (recorded calls)))))

(define-server-test an-application-that-fails-the-connection-does-not-wait
  (with-globals ((server::*closing-seconds* 1000))
    (let ((written (make-recorder)))
      (with-speaker (io frame (when (text-told-p frame)
                                (write-close io 1002)
                                (record written (handler-case (progn (write-frame io :text "lost")
                                                                     :dropped)
                                                  (error (condition) condition)))))
        (with-talk (talk)
          (tell talk "nonsense")
          (is (eql 1002 (hear-close talk)))
          (is (equal '(:end) (hear talk))))
        (eventually ("the application to have written") (recorded written))
        (is (equal '(:dropped) (recorded written)))))))

;;; Clack's package

(define-server-test the-methods-of-clack-come-when-its-package-does
  (if (find-package '#:clack.socket)
      (skip "Clack's own package is loaded.")
      (let ((package (make-package '#:clack.socket :use '()))
            (seen nil))
        (unwind-protect
             (flet ((name (text) (intern text package)))
               (mapc #'name '("READ-CALLBACK" "WRITE-SEQUENCE-TO-SOCKET" "WRITE-BYTE-TO-SOCKET"
                              "CLOSE-SOCKET"
                              "WRITE-SEQUENCE-TO-SOCKET-BUFFER" "WRITE-BYTE-TO-SOCKET-BUFFER"
                              "FLUSH-SOCKET-BUFFER"
                              "SOCKET-ASYNC-P"))
               (with-clack (environment
                            (let ((io (io-of environment)))
                              (funcall (fdefinition (list 'setf (name "READ-CALLBACK"))) 'list io)
                              (setf seen (list (funcall (name "READ-CALLBACK") io)
                                               (funcall (name "SOCKET-ASYNC-P") io)))
                              (funcall (name "WRITE-SEQUENCE-TO-SOCKET-BUFFER") io (octets "a"))
                              (funcall (name "WRITE-BYTE-TO-SOCKET-BUFFER") io 98)
                              (funcall (name "FLUSH-SOCKET-BUFFER") io
                                       :callback (lambda () (push :flushed seen)))
                              (funcall (name "WRITE-SEQUENCE-TO-SOCKET") io (octets "c"))
                              (funcall (name "WRITE-BYTE-TO-SOCKET") io 100)
                              (funcall (name "CLOSE-SOCKET") io)
                              nil))
                 (is (equal "abcd" (decode (ask-raw (asking-for-websocket "/")))))
                 (is (equal '(:flushed list t) seen))))
          (setf handler::*socket-package* nil)
          (delete-package package)))))
