(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite clack/sockets :in clack
  :description "Connections that applications take over by :CLACK.IO, as websocket-driver does.")

(in-suite clack/sockets)

;;; An application that speaks the WebSocket protocol itself, as far as the tests want it

(defun io-of (environment)
  (getf environment :clack.io))

(defun write-frame (io kind payload &optional callback)
  (write-to-clack-socket io (websocket:encode-frame kind payload) callback))

(defun write-close (io &optional (code 1000) callback)
  (write-to-clack-socket io (websocket:encode-close code) callback))

(defparameter *line-end* (format nil "~C~C" #\Return #\Newline))

(defun begin-speaking (environment function &optional callback)
  "Answers the opening handshake of ENVIRONMENT piece by piece; FUNCTION gets each frame."
  (let ((io (io-of environment)))
    (set-clack-socket-callback (lambda (octets &key (start 0) end)
                                 (funcall function (subseq octets start end)))
                               io)
    (dolist (piece (list "HTTP/1.1 101 Switching Protocols" *line-end* "Upgrade: websocket"
                         *line-end*
                         "Connection: Upgrade" *line-end* "Sec-WebSocket-Accept: "
                         (websocket:accept-key (gethash "sec-websocket-key"
                                                        (getf environment :headers)))
                         *line-end* *line-end*))
      (buffer-for-clack-socket io (octets piece)))
    (flush-clack-socket io callback)))

(defmacro with-speaker ((environment frame function-form &rest arguments) &body body)
  "Evaluates BODY while an application speaks over the connections of requests for /ws:
FUNCTION-FORM is evaluated with ENVIRONMENT and FRAME, octets, for each frame; other requests are
answered.  Unless ARGUMENTS say otherwise, a client may be silent for ever: the machine may be busy,
and those of the tests do not answer pings by themselves."
  `(with-clack (,environment
                (if (equal "/ws" (getf ,environment :path-info))
                    (lambda (responder)
                      (declare (ignore responder))
                      (begin-speaking ,environment
                                      (lambda (,frame)
                                        (declare (ignorable ,frame))
                                        ,function-form)))
                    (text-response "plain"))
                ,@arguments :websocket-ping-seconds nil :websocket-idle-seconds nil)
     ,@body))

(defun frame-told (frame)
  "What a client's FRAME is: a list as HEAR returns it."
  (multiple-value-bind (kind end value more)
      (websocket:decode-message (websocket:make-message-decoder :message-octets (length frame))
                                frame 0 (length frame))
    (declare (ignore end))
    (list* kind value (and (eq :close kind) (list more)))))

(defun answer-frame (environment frame)
  "Echoes FRAME, as an application does; a close frame is echoed, too, and the socket closed."
  (destructuring-bind (kind value &rest rest) (frame-told frame)
    (declare (ignore rest))
    (case kind
      ((:text :binary) (write-frame (io-of environment) kind value))
      (:ping (write-frame (io-of environment) :pong value))
      (:close (write-close (io-of environment) value
                           (lambda () (close-clack-socket (io-of environment))))))))

(defmacro with-echoing (arguments &body body)
  `(with-speaker (environment frame (answer-frame environment frame) ,@arguments)
     ,@body))

;;; What comes

(define-server-test an-application-speaks-over-its-connection
  (with-echoing ()
    (with-talk (talk)
      (dolist (text (list "" "one" (make-string 200 :initial-element #\a)
                          (make-string 70000 :initial-element #\b)))
        (tell talk text)
        (is (string= text (hear-text talk))))
      (tell talk (frame :ping "?"))
      (is (equalp (list :pong (octets "?")) (hear talk)))
      (is (end-talk talk)))
    (is (equal "plain" (ask-text "/")))
    (is (equal "" (clack-log)))))

(define-server-test frames-are-handed-over-whole
  (let ((frames (make-recorder)))
    (with-speaker (environment frame (progn (record frames frame)
                                            (write-frame (io-of environment) :text "got")))
      (let ((sent (list (frame :text "piecemeal") (frame :binary (test-octets 200)) (frame :ping "")
                        (make-frame 1 (octets "frag") :fin nil) (make-frame 0 (octets "ment")))))
        (with-connection (connection)
          (send-in-pieces connection 1 (handshake-octets) sent)
          (is (= 101 (response-status (read-head connection))))
          (let ((talk (make-talk connection)))
            (loop repeat 5 do (is (string= "got" (hear-text talk))))))
        (is (equalp sent (subseq (recorded frames) 0 5)))))))

(define-server-test frames-that-come-together-are-handed-over-one-by-one
  (let ((frames (make-recorder))
        (sent (loop for i below 40 collect (frame :text (format nil "~V@{~A~:*~}" (* 40 i) i)))))
    (with-speaker (environment frame (progn (record frames frame)
                                            (write-frame (io-of environment) :text "got")))
      (with-talk (talk :more sent)      ; behind the handshake
        (loop repeat 40 do (is (string= "got" (hear-text talk)))))
      (is (equalp sent (subseq (recorded frames) 0 40))))))

(define-server-test a-burst-of-frames-is-answered-in-order
  (with-echoing ()
    (with-talk (talk)
      (let ((texts (loop for i below 500 collect (format nil "text ~D" i))))
        (apply #'tell talk texts)
        (dolist (text texts)
          (is (equal text (hear-text talk)))))
      (is (end-talk talk)))))

(defun frames-taken (pieces)
  "The frames that are taken off a buffered connection to which PIECES, vectors of octets, come one
after the other."
  (let ((socket (server::%make-program-socket nil nil nil nil t 100000 nil nil 0))
        (io (server::make-io nil))
        (frames '()))
    (dolist (piece pieces (progn (server::close-account (server::websocket-memory socket))
                                 (reverse frames)))
      (setf (server::io-input io) piece
            (server::io-start io) 0
            (server::io-end io) (length piece))
      (loop for frame = (server::take-frame socket io)
            while frame
            do (push frame frames)
            until (= (server::io-start io) (server::io-end io))))))

(test frames-are-taken-whole-wherever-they-are-cut
  (let* ((frames (list (frame :ping "") (frame :text "one") (frame :binary (test-octets 130))
                       (websocket:encode-frame :ping "?") (websocket:encode-close 1000)))
         (all (apply #'octets frames)))
    (flet ((piece (start end)
             (coerce (subseq all start end) 'base:octets)))
      (is (equalp frames (frames-taken (list (piece 0 nil)))))
      (is (equalp frames (frames-taken (loop for i below (length all) collect (piece i (1+ i))))))
      (is (loop for cut from 1 below (length all)
                always (equalp frames (frames-taken (list (piece 0 cut) (piece cut nil)))))))))

(define-server-test large-frames-are-handed-over-whole
  (with-echoing (:websocket-message-octets 3000000)
    ;; elsewhere octets are moved one by one
    (let* ((count (if (platform:readiness-supported-p) 3000000 200000))
           (octets (test-octets count)))
      (with-talk (talk)
        (tell talk (frame :binary octets))
        (let ((head (receive-many (talk-connection talk) 10)))
          (is (equalp (websocket:encode-frame-head :binary count) head)))
        (is (null (octet-difference octets (receive-many (talk-connection talk) count))))))))

(define-server-test what-does-not-fit-in-memory-ends-its-websocket
  (with-memory-for-all (80000)
    (with-echoing ()
      (check-messages-in-memory))))

(define-server-test what-is-too-long-is-refused-before-it-has-come
  (with-echoing (:websocket-message-octets 1000)
    (with-talk (talk)
      (tell talk (subseq (frame :binary (test-octets 1001)) 0 4)) ; without its mask
      (is (eql 1009 (hear-close talk)))
      (is (equal '(:end) (hear talk))))
    (with-talk (talk)                   ; also by fragments
      (tell talk (make-frame 2 (test-octets 600) :fin nil) (make-frame 9 (octets "ping"))
            (make-frame 0 (test-octets 600) :fin nil))
      (is (eql 1009 (second (hear-kind talk :close)))))
    (with-talk (talk)
      (tell talk (frame :binary (test-octets 600)) (frame :binary (test-octets 600)))
      (loop repeat 2 do (is (eq :binary (first (hear talk))))))))

(define-server-test other-protocols-get-octets-as-they-come
  (with-clack (environment
               (lambda (responder)
                 (declare (ignore responder))
                 (let ((io (io-of environment)))
                   (write-to-clack-socket io (octets "hello,") nil)
                   (set-clack-socket-callback
                    (lambda (octets &key (start 0) end)
                      (write-to-clack-socket io (subseq octets start end) nil)
                      (when (find (char-code #\!) octets)
                        (close-clack-socket io)))
                    io))))
    (with-connection (connection)
      (send connection (request-octets "/") "early")
      (is (equalp (octets "hello,early") (receive-many connection 11)))
      (send connection " bird!")
      (is (equalp (octets " bird!") (receive-rest connection))))))

;;; What the function that is called for the request may do

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
        (is (equal "mine" (decode (ask-raw (request-octets "/")))))))
    (is (equal '(handler:reply-already-sent) (recorded errors)))))

(define-server-test an-application-that-only-listens-may-still-answer
  (with-clack (environment (progn (set-clack-socket-callback (lambda (octets &key start end)
                                                     (list octets start end))
                                                   (io-of environment))
                                  (text-response "answered")))
    (with-connection (connection)
      (loop repeat 2 do (is (equal "answered" (exchange-text connection "/")))))))

(define-server-test an-application-that-listens-has-taken-the-connection-over
  (let ((io nil))
    (with-clack (environment (lambda (responder)
                               (declare (ignore responder))
                               (setf io (io-of environment))
                               (set-clack-socket-callback (lambda (octets &key start end)
                                                  (write-to-clack-socket io (subseq octets start
                                                                                    end) nil))
                                                io)))
      (with-connection (connection)
        (send-request connection "/")
        (send connection "more")
        (is (equalp (octets "more") (receive-many connection 4)))))))

(define-server-test an-application-that-listens-later-gets-what-has-come
  (let ((io nil) (got (make-recorder)))
    (with-clack (environment (lambda (responder)
                               (declare (ignore responder))
                               (setf io (io-of environment))
                               (write-to-clack-socket io (octets "hello") nil)))
      (with-connection (connection)
        (send-request connection "/")
        (is (equalp (octets "hello") (receive-many connection 5)))
        (send connection "waiting")
        (eventually ("nobody to serve the connection")
          (or (not *parking-p*)
              (= 1 (getf (handler:stats *server*) :deferred))))
        (set-clack-socket-callback (lambda (octets &key start end)
                           (record got (subseq octets start end)))
                         io)
        (eventually ("what has come to be handed over") ; in pieces, perhaps
          (<= (length "waiting") (reduce #'+ (recorded got) :key #'length)))
        (is (equalp (octets "waiting") (apply #'octets (recorded got))))))))

(define-server-test a-handshake-with-content-opens-no-websocket
  (with-echoing ()
    (with-talk (talk :handshake '(:headers (("Content-Length" . "0"))))
      (is (end-talk talk)))
    (is (= 400 (status-of-handshake-with-content :content "some")))
    (dolist (headers '((("Content-Length" . "4") ("Expect" . "100-continue"))
                       (("Transfer-Encoding" . "chunked"))
                       (("Transfer-Encoding" . "chunked") ("Expect" . "100-continue"))))
      (is (= 400 (status-of-handshake-with-content :headers headers)) "~S" headers))))

(define-server-test when-the-response-was-sent-it-is-too-late
  (let ((io nil))
    (with-clack (environment (progn (setf io (io-of environment))
                                    (text-response "answered")))
      (with-connection (connection)
        (is (equal "answered" (exchange-text connection "/")))
        (signals handler:cannot-defer (write-to-clack-socket io (octets "more") nil))
        (signals handler:cannot-defer (close-clack-socket io))
        (is (equal "answered" (exchange-text connection "/")))))))

(define-server-test an-application-that-fails-before-a-takeover-is-answered-500
  (with-clack (environment (progn (set-clack-socket-callback (lambda (octets &key start end)
                                                     (list octets start end))
                                                   (io-of environment))
                                  (error "It fails.")))
    (is (= 500 (response-status (ask "/"))))))

(define-server-test (an-application-that-writes-to-anothers-connection-that-has-ended-fails-with-500
                     :needs :noticed-leaving)
  (let ((io nil))
    (with-clack (environment (cond ((equal "/ws" (getf environment :path-info))
                                    (lambda (responder)
                                      (declare (ignore responder))
                                      (setf io (io-of environment))
                                      (begin-speaking environment #'identity)))
                                   ((equal "/later" (getf environment :path-info))
                                    (lambda (responder)
                                      (write-frame io :text "news")
                                      (funcall responder (text-response "told"))))
                                   (t
                                    (write-frame io :text "news")
                                    (text-response "told"))))
      (with-talk (talk)
        (is (equal "told" (ask-text "/")))
        (is (equal "told" (ask-text "/later")))
        (is (equal "news" (hear-text talk))))
      (eventually ("the connection to end") (zerop (figure :open)))
      (is (= 500 (response-status (ask "/"))))
      (is (= 500 (response-status (ask "/later"))))
      (is-true (await-log "The client gets no more octets")))))

(define-server-test taking-over-a-connection-whose-content-may-follow-fails-with-500
  (with-clack (environment (progn (write-to-clack-socket (io-of environment) (octets "taken") nil)
                                  (text-response "answered")))
    (is (= 500 (response-status (ask "/" :method :post :content "content"))))
    (is-true (await-log "cannot be deferred: only the thread"))))

(define-server-test an-application-that-fails-after-a-takeover-ends-the-connection
  (with-clack (environment (lambda (responder)
                             (declare (ignore responder))
                             (begin-speaking environment #'identity)
                             (error "It fails.")))
    (with-talk (talk)
      (is (eql 1011 (hear-close talk))))
    (is-true (await-log "It fails."))))

;;; Writing

(define-server-test callbacks-are-called-when-all-was-sent-in-their-order
  (let ((calls (make-recorder)))
    (with-clack (environment (lambda (responder)
                               (declare (ignore responder))
                               (begin-speaking environment #'identity
                                               (lambda () (record calls :switched)))
                               (let ((io (io-of environment)))
                                 (write-frame io :text "one" (lambda ()
                                                               (record calls :one)
                                                               (write-frame io :text "two"
                                                                            (lambda ()
                                                                              (record calls :two)))
                                                               (record calls :nested))))))
      (with-talk (talk)
        (is (string= "one" (hear-text talk)))
        (is (string= "two" (hear-text talk)))
        (eventually ("all to be called") (= 4 (recorded-count calls)))
        (is (equal '(:switched :one :nested :two) (recorded calls)))))))

(define-server-test a-callback-waits-for-a-slow-client
  (let ((called (make-gate "the callback to be called"))
        (octets (test-octets 6000000)))
    (with-clack (environment (lambda (responder)
                               (declare (ignore responder))
                               (begin-speaking environment #'identity)
                               (write-frame (io-of environment) :binary octets
                                            (lambda () (open-gate called)))))
      (with-talk (talk)
        (is (not (poll (lambda () (open-p called)) 1/10)))
        (receive-many (talk-connection talk) 10)
        (is (equalp octets (receive-many (talk-connection talk) (length octets))))
        (await called)))))

(define-server-test a-callback-waits-for-what-was-written-before-it-and-not-for-what-comes-behind
  (let ((calls (make-recorder)) (gate (make-gate "leave to write more")))
    (with-clack (environment (lambda (responder)
                               (declare (ignore responder))
                               (begin-speaking environment #'identity)
                               (flet ((write-much (call)
                                        (write-frame (io-of environment)
                                                     :binary (test-octets 200000)
                                                     (lambda () (record calls call)))))
                                 (write-much :first)
                                 (await gate)
                                 (loop repeat 30 do (write-much :more)))))
      (with-talk (talk)
        (hear talk)
        (eventually ("the first to be told") (equal '(:first) (recorded calls)))
        (open-gate gate)
        (eventually ("more to be told") (recorded-count calls :more))
        (is (not (poll (lambda () (= 31 (recorded-count calls))) 1/10)))))))

(define-server-test any-thread-may-write-and-close
  (let ((io nil))
    (with-speaker (environment frame (setf io (io-of environment)))
      (with-talk (talk)
        (tell talk "here")
        (eventually ("the application to listen") io)
        (task-result (in-background ("writing")
                       (dotimes (i 100) (write-frame io :text (princ-to-string i)))
                       (write-close io 3000)))
        (dotimes (i 100) (is (string= (princ-to-string i) (hear-text talk))))
        (is (eql 3000 (hear-close talk)))
        (say-close talk 3000)
        (is (equal '(:end) (hear talk)))))))

(define-server-test the-function-that-takes-over-may-go-on-writing
  (let ((gate (make-gate "the client to have the first text")))
    (with-clack (environment (lambda (responder)
                               (declare (ignore responder))
                               (begin-speaking environment #'identity)
                               (write-frame (io-of environment) :text "first")
                               (await gate)
                               (write-frame (io-of environment) :text "second")))
      (with-talk (talk)
        (is (string= "first" (hear-text talk)))
        (open-gate gate)
        (is (string= "second" (hear-text talk)))))))

(define-server-test a-client-that-reads-nothing-is-read-no-more
  ;; Each frame has an answer that is as long as what may wait; the client does not take any.  The
  ;; system takes some ten million octets on its way.
  (let ((answered (make-recorder))
        (answer (test-octets 300000)))
    (with-speaker (environment frame (progn (write-frame (io-of environment) :binary answer)
                                            (record answered :one)))
      (with-talk (talk)
        (tell talk (loop repeat 60 collect (frame :text "more")))
        (eventually ("some to be answered") (plusp (recorded-count answered)))
        (is (not (poll (lambda () (= 60 (recorded-count answered))) 1/2)))
        (loop repeat 60
              do (receive-many (talk-connection talk) (+ 10 (length answer))))
        (eventually ("all to be answered") (= 60 (recorded-count answered)))))))

(define-server-test a-thread-that-writes-goes-on-when-a-slow-client-has-made-room
  ;; The system takes some ten million octets on its way.
  (let* ((io nil) (payload (test-octets 300000))
         (sent (websocket:encode-frame :binary payload)))
    (with-speaker (environment frame (setf io (io-of environment))
                   :write-timeout nil)
      (with-talk (talk)
        (tell talk "here")
        (eventually ("the application to listen") io)
        (let ((writer (in-background ("writing")
                        (loop repeat 60 do (write-frame io :binary payload)))))
          (is (not (poll (lambda () (task-done-p writer)) 1/2)))
          (loop repeat 60
                do (is (null (octet-difference sent (receive-many (talk-connection talk)
                                                                  (length sent))))))
          (task-result writer))))))

(define-server-test a-client-that-takes-nothing-loses-the-connection
  (if (platform:readiness-supported-p)
      (let ((result nil))
        (with-clack (environment
                     (lambda (responder)
                       (declare (ignore responder))
                       (begin-speaking environment #'identity)
                       (setf result (handler-case
                                        (loop (write-frame (io-of environment)
                                                           :binary (test-octets 300000)))
                                      (handler:client-left () :over))))
                     :write-timeout 1/2)
          (with-talk (talk)
            (eventually ("the application to be told") result)
            (is (eq :over result)))))
      (skip "On this Lisp sending takes as long as the client likes.")))

;;; The end

(defmacro with-patient-closes (() &body body)
  "Evaluates BODY while servers wait for the answer to a close frame for as long as it takes."
  `(with-globals ((server::*close-answer-seconds* 3600))
     ,@body))

(defmacro with-recorded-kinds ((kinds &rest arguments) &body body)
  "Evaluates BODY while an application echoes, and KINDS records what it gets."
  `(let ((,kinds (make-recorder)))
     (with-speaker (environment frame
                                (progn (record ,kinds (if (= 8 (length frame))
                                                          (list :close
                                                                (websocket:close-payload-code
                                                                 (websocket:close-frame-payload
                                                                  frame)))
                                                          (first (frame-told frame))))
                                       (answer-frame environment frame))
                    ,@arguments)
       ,@body)))

(define-server-test an-application-that-closes-in-order-is-told-so-once
  (with-recorded-kinds (kinds)
    (loop repeat 10
          do (with-talk (talk)
               (tell talk "last")
               (say-close talk 4000)
               (is (string= "last" (hear-text talk)))
               (is (eql 4000 (hear-close talk)))
               (is (equal '(:end) (hear talk)))))
    (is (= 20 (recorded-count kinds)))
    (is (= 10 (recorded-count kinds '(:close 4000))))))

(define-server-test an-application-that-only-answers-a-close-frame-is-told-again
  ;; As websocket-driver does, which closes when it gets the second.
  (with-patient-closes ()
    (let ((codes (make-recorder)))
      (with-speaker (environment frame
                                 (let ((io (io-of environment)))
                                   (record codes (second (frame-told frame)))
                                   (write-close io 4000
                                                (and (= 2 (recorded-count codes))
                                                     (lambda () (close-clack-socket io))))))
        (with-talk (talk)
          (say-close talk 4000)
          (is (eql 4000 (hear-close talk)))
          (is (equal '(:end) (hear talk))))
        (eventually ("the end to be told again") (= 2 (recorded-count codes)))
        (is (equal '(4000 4000) (recorded codes)))))))

(define-server-test an-application-that-has-closed-is-called-no-more
  (let ((frames (make-recorder)))
    (with-patient-closes ()
      (with-speaker (environment frame (progn (record frames (frame-told frame))
                                              (write-close (io-of environment) 3000)
                                              (close-clack-socket (io-of environment))))
        (with-talk (talk)
          (tell talk "go")
          (is (eql 3000 (hear-close talk)))
          (tell talk "more" "and more")
          (say-close talk 3000)
          (is (equal '(:end) (hear talk))))
        (is (equal '((:text "go")) (recorded frames)))))))

(define-server-test (a-client-that-leaves-is-told-of-as-1006 :needs :noticed-leaving)
  (with-recorded-kinds (kinds)
    (with-talk (talk)
      (tell talk "last")
      (hear talk))
    (eventually ("the end to be told") (= 2 (recorded-count kinds)))
    (is (equal '(:text (:close 1006)) (recorded kinds)))
    (is (equal "plain" (ask-text "/")))))

(define-server-test an-application-that-closes-first-gets-the-clients-answer-before-its-callback
  (let ((calls (make-recorder)))
    (with-patient-closes ()
      (with-speaker (environment frame
                                 (let ((kind (first (frame-told frame)))
                                       (io (io-of environment)))
                                   (record calls kind)
                                   (write-close io 3001
                                                (lambda ()
                                                  (record calls (if (eq :text kind)
                                                                    :called :called-at-once))
                                                  (close-clack-socket io)))
                                   (when (eq :close kind)
                                     (record calls :written))))
        (with-talk (talk)
          (tell talk "go")
          (is (eql 3001 (hear-close talk)))
          (say-close talk 3001)
          (is (equal '(:end) (hear talk))))
        (eventually ("the callbacks to be called") (plusp (recorded-count calls :written)))
        (is (equal '(:text :close :called :called-at-once :written) (recorded calls)))))))

(define-server-test what-was-not-sent-has-no-callback
  (let ((called-p nil) (codes (make-recorder)))
    (with-speaker (environment frame
                               (let ((payload (websocket:close-frame-payload frame)))
                                 (if payload
                                     (record codes (websocket:close-payload-code payload))
                                     (write-frame (io-of environment) :binary (test-octets 6000000)
                                                  (lambda () (setf called-p t))))))
      (with-talk (talk)
        (tell talk "go")
        (next-octet (talk-connection talk)))
      (eventually ("the end to be told") (plusp (recorded-count codes))))
    (is (equal '(1006) (recorded codes)))
    (is (not called-p))))

(define-server-test a-client-that-does-not-answer-a-close-frame-is-not-waited-for-long
  (let ((called (make-gate "the callback to be called")))
    (with-globals ((server::*close-answer-seconds* 1/10))
      (with-speaker (environment frame (when (eq :text (first (frame-told frame)))
                                         (write-close (io-of environment) 3001
                                                      (lambda () (open-gate called)))))
        (with-talk (talk)
          (tell talk "go")
          (is (eql 3001 (hear-close talk)))
          (is (equal '(:end) (hear talk))))
        (await called)))))

(define-server-test an-application-that-fails-the-connection-does-not-wait
  (with-patient-closes ()
    (with-speaker (environment frame (write-close (io-of environment) 1002))
      (with-talk (talk)
        (tell talk "nonsense")
        (is (eql 1002 (hear-close talk)))
        (is (equal '(:end) (hear talk)))))))

(define-server-test an-application-that-closes-after-a-close-frame-waits-for-the-clients-answer
  (with-patient-closes ()
    (with-speaker (environment frame (progn (write-close (io-of environment) 3000)
                                            (close-clack-socket (io-of environment))))
      (with-talk (talk)
        (tell talk "go")
        (is (eql 3000 (hear-close talk)))
        (is (not (readable-p (talk-connection talk) 1/10)))
        (say-close talk 3000)
        (is (equal '(:end) (hear talk)))))))

(define-server-test what-was-buffered-leaves-before-the-end
  (with-speaker (environment frame
                             (progn (buffer-for-clack-socket (io-of environment)
                                                             (websocket:encode-frame :text "last"))
                                    (close-clack-socket (io-of environment))))
    (with-talk (talk)
      (tell talk "go")
      (is (string= "last" (hear-text talk)))
      (is (equal '(:end) (hear talk))))))

(define-server-test what-is-written-behind-a-close-frame-is-dropped-and-no-error
  (let ((written (make-recorder)))
    (with-speaker (environment frame (let ((io (io-of environment)))
                                       (when (eq :text (first (frame-told frame)))
                                         ;; a failure: the connection ends at once
                                         (write-close io 1002)
                                         (record written
                                                 (handler-case (progn (write-frame io :text "lost")
                                                                      (write-to-clack-socket
                                                                       io (octets "") nil)
                                                                      :dropped)
                                                   (error (condition) condition))))))
      (with-talk (talk)
        (tell talk "go")
        (is (eql 1002 (hear-close talk)))
        (is (equal '(:end) (hear talk))))
      (eventually ("the application to have written") (plusp (recorded-count written)))
      (is (equal '(:dropped) (recorded written))))))

(define-server-test an-application-that-closes-without-a-word-is-heard-out
  (with-speaker (environment frame (progn (write-frame (io-of environment) :text "bye")
                                          (close-clack-socket (io-of environment))))
    (with-talk (talk)
      (tell talk "go" "on" "and" "on")
      (is (string= "bye" (hear-text talk)))
      (is (equal '(:end) (hear talk))))))

(define-server-test an-error-of-the-application-ends-its-connection-only
  (with-speaker (environment frame
                             (if (member (second (frame-told frame)) '("fail" "more") :test #'equal)
                                 (error "It fails.")
                                 (answer-frame environment frame)))
    (with-talk (other)
      (with-talk (talk)
        (tell talk "fail" "more")
        (is (eql 1011 (hear-close talk)))
        (say-close talk 1011)
        (is (equal '(:end) (hear talk))))
      (is-true (await-log "It fails."))
      (tell other "fine")
      (is (string= "fine" (hear-text other))))
    (eventually ("the failure to be counted") (= 1 (figure :failed)))))

(define-server-test an-error-of-a-callback-ends-its-connection-only
  (with-speaker (environment frame (write-frame (io-of environment) :text "echo"
                                                (lambda () (error "It fails."))))
    (with-talk (talk)
      (tell talk "go")
      (is (string= "echo" (hear-text talk)))
      (is (eql 1011 (hear-close talk))))
    (is (equal "plain" (ask-text "/")))))

(define-server-test an-application-that-writes-when-the-client-has-left-is-told
  (let ((io nil))
    (with-speaker (environment frame (if io
                                         nil ; the end
                                         (setf io (io-of environment))))
      (with-talk (talk)
        (tell talk "here")
        (eventually ("the application to listen") io))
      (is (eq :over (eventually ("writing to fail")
                      (handler-case (progn (write-frame io :text "lost") nil)
                        (handler:client-left () :over))))))))

(define-server-test a-client-that-answers-pings-is-pinged-again
  (with-echoing (:websocket-ping-seconds 1/10
                 :websocket-idle-seconds 60) ; so that nobody is too slow for it
    (with-talk (talk)
      (loop repeat 5
            do (is (eq :ping (first (hear talk))))
               (tell talk (frame :pong ""))))))

(define-server-test silent-clients-are-pinged-and-then-count-as-gone
  (with-growing-limit (seconds)
    (with-recorded-kinds (kinds :websocket-ping-seconds (/ seconds 5)
                                :websocket-idle-seconds seconds)
      (with-talk (talk)
        (is (eq :ping (first (hear talk))))
        (is (equal '(:end) (hear-kind talk :end))))
      (with-prompt-connection (connection)
        (let ((talk (promptly (open-talk connection))))
          (promptly (tell talk "something")
                    (hear-kind talk :text))
          (is (eq :ping (first (hear-kind talk :ping)))
              "Also behind a frame of the application's.")
          (is (equal '(:end) (hear-kind talk :end)))))
      (eventually ("the ends to be told") (= 2 (recorded-count kinds '(:close 1006)))))))

(define-server-test stopping-the-server-ends-what-goes-on
  (let ((kinds (make-recorder)))
    (with-speaker (environment frame (let ((kind (first (frame-told frame))))
                                       (record kinds kind)
                                       (answer-frame environment frame)))
      (with-talk (talk)
        (tell talk "here")
        (is (string= "here" (hear-text talk)))
        (handler:stop *server*)
        (is (eql 1001 (hear-close talk)))
        (is (equal '(:end) (hear talk)))))
    (is (equal '(:text :close) (recorded kinds)))))

(define-server-test (a-hundred-that-are-silent-have-no-thread :needs :parking)
  (with-echoing (:worker-num 2)
    (with-connections (connections 100)
      (let ((talks (mapcar #'open-talk connections)))
        (eventually ("all to wait")
          (= 100 (getf (handler:stats *server*) :deferred)))
        ;; Each handshake held a worker for a moment: on a busy machine others were made meanwhile.
        (eventually ("their threads to end") (>= 10 (figure :threads)))
        (dolist (talk talks)
          (tell talk "still there")
          (is (string= "still there" (hear-text talk))))))))

(define-server-test many-writers-mix-no-octets
  (let ((ios (make-recorder)))
    (with-speaker (environment frame (if (equal '(:text "join") (frame-told frame))
                                         (record ios (io-of environment))
                                         (answer-frame environment frame)))
      (with-connections (connections 4)
        (let ((talks (mapcar #'open-talk connections)))
          (dolist (talk talks) (tell talk "join"))
          (eventually ("all to join") (= 4 (recorded-count ios)))
          (let ((tasks (loop for writer below 4
                             collect (let ((writer writer))
                                       (in-background ("writing")
                                         (dotimes (i 50)
                                           (dolist (io (recorded ios))
                                             (write-frame io :text (format nil "~D ~D" writer
                                                                           i)))))))))
            (dolist (talk talks)
              (let ((heard (loop repeat 200 collect (hear-text talk))))
                (dotimes (writer 4)
                  (is (equal (loop for i below 50 collect (format nil "~D ~D" writer i))
                             (remove-if-not (lambda (text)
                                              (char= (digit-char writer) (char text 0))) heard))))))
            (mapc #'task-result tasks)))))))

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
                 (is (equal "abcd" (decode (ask-raw (request-octets "/")))))
                 (is (equal '(:flushed list t) seen))))
          (setf handler::*socket-package* nil)
          (delete-package package)))))
