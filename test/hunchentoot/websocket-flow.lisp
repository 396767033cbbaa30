(in-package #:hunchentoot-recycling-taskmaster-test)

(in-suite websockets)

;;; Time

;;; What a slow machine does late must not decide: a client that is to stay has a minute, and one
;;; that is to count as gone says all that it has to say at once.

(define-server-test (a-silent-client-is-pinged-and-stays-when-it-answers :needs :our-engine)
  (serving-pushes (socket (:ping-seconds 1/10 :idle-seconds 60 :on-text 'echo-text))
    (with-talk (talk)
      (loop repeat 8
            do (is (eq :ping (first (hear talk))))
               (tell talk (frame :pong "")))
      (tell talk "here")
      (is (string= "here" (second (hear-kind talk :text)))))))

(define-server-test (a-client-that-does-not-answer-pings-counts-as-gone :needs :our-engine)
  (let ((ends (make-recorder)))
    (serving-websocket (:ping-seconds 1/10 :idle-seconds 1/4 :on-close (record-end ends)) ()
      (with-talk (talk :more (subseq (frame :text "half") 0 4))
        (is (eq :ping (first (hear talk))))
        (is (equal '(:end) (hear talk))))
      (await-end ends 1006))))

(define-server-test (what-is-sent-to-a-client-does-not-keep-it-alive :needs :our-engine)
  (let ((ends (make-recorder)) (socket nil))
    (serving-websocket (:ping-seconds 1/10 :idle-seconds 1/2
                        :on-open (lambda (it) (recycling:send-text (setf socket it) "news"))
                        :on-close (record-end ends))
        ()
      (with-talk (talk)
        (is (string= "news" (hear-text talk)))
        (eventually ("a silent client to count as gone")
          (handler-case (progn (recycling:send-text socket "more") nil)
            (recycling:client-left () t)))
        (let ((kinds (loop for kind = (first (hear talk))
                           until (eq :end kind)
                           collect kind)))
          (is (= 1 (count :ping kinds)))
          (is (equal '(:text) (remove-duplicates (remove :ping kinds))))))
      (await-end ends 1006))))

(define-server-test (a-handler-may-take-longer-than-a-client-may-be-silent :needs :our-engine)
  (with-globals ((engine::*tick* 1/100))
    (serving-websocket (:ping-seconds 1/4 :idle-seconds 60
                        :on-text (lambda (socket text)
                                   (when (string= "slow" text)
                                     (poll (constantly nil) 1))
                                   (recycling:send-text socket text)))
        ()
      (with-talk (talk)
        (dolist (text '("one" "two" "three" "slow"))
          (tell talk text)
          (is (string= text (second (hear-kind talk :text)))))
        (is (eq :ping (first (hear talk))))))))

(define-server-test (a-client-that-answers-a-ping-while-its-worker-is-late-stays
                     :needs (:our-engine :calls-by-name))
  (if *parking-p*
      (skip "A worker that has a deadline to look after reads first.")
      (let ((late-p t)
            (looked (make-gate "the worker to have looked for input"))
            (answered (make-gate "an answer to the ping")))
        (with-function (server::receive-messages (original socket io)
                         (prog1 (funcall original socket io)
                           (when (and late-p (server::websocket-pinged socket))
                             (setf late-p nil)
                             (open-gate looked)
                             (await answered)
                             (poll (constantly nil) 1)))) ; longer than it may be silent
          (serving-websocket (:ping-seconds 1/10 :idle-seconds 1/2 :on-text 'echo-text) ()
            (with-talk (talk)
              (is (eq :ping (first (hear talk))))
              (await looked)
              (tell talk "here")
              (open-gate answered)
              (is (string= "here" (second (hear-kind talk :text))))))))))

(defun silent-websocket (ping idle)
  "A WebSocket without a connection that was heard at 0, with PING and IDLE, in milliseconds or
NIL."
  (server::%make-websocket nil nil nil (server:make-shared-queue 100) nil nil nil nil ping idle 0))

(test a-client-that-is-pinged-late-has-the-time-that-others-have-from-when-the-ping-has-left
  (let ((socket (silent-websocket 100 500))
        (io (server::make-io nil)))
    (is (eql 100 (server::ping-moment socket)))
    (server::keep-time socket 99)
    (is (null (server::websocket-pinged socket)))
    (server::keep-time socket 100000)   ; nobody had time before
    (is (eq :open (server::websocket-state socket)))
    (is (eq :put (server::websocket-pinged socket)))
    (is (null (server::end-moment socket)))
    (server::note-ping-sent socket io)
    (is (null (server::end-moment socket)) "It has not left.")
    (server::take-incoming (server:websocket-shared-queue socket))
    (let ((before (platform:milliseconds)))
      (server::note-ping-sent socket io)
      (let ((end (server::end-moment socket)))
        (is (<= (+ before 400) end (+ (platform:milliseconds) 400)))
        (server::keep-time socket (1- end))
        (is (eq :open (server::websocket-state socket)))
        (server::keep-time socket end)
        (is (eq :gone (server::websocket-state socket)))))))

(define-server-test (a-client-that-had-no-chance-to-answer-a-ping-is-not-gone :needs :parking)
  ;; nine tenths of it are the client's, to answer
  (with-growing-limit (idle)
    (let ((ends (make-recorder)))
      (serving-pushes (socket (:ping-seconds (/ idle 10) :idle-seconds idle
                               :on-text 'echo-text :on-close (record-end ends)))
        (with-talk (talk)
          (recycling:send-binary (socket) *large-answer*)
          (poll (constantly nil) (+ idle 1/4)) ; longer than it may be idle, if it were
          (destructuring-bind (octets ping text)
              (promptly (list (receive-many (talk-connection talk) (+ 10 *large-size*))
                              (hear talk)
                              (progn (tell talk (frame :pong ""))
                                     (tell talk "here")
                                     (hear-kind talk :text))))
            (is (= (+ 10 *large-size*) (length octets)))
            (is (eq :ping (first ping)))
            (is (string= "here" (second text)))
            (is (null (recorded ends)))))))))

;;; Clients that take their time

(define-server-test (a-client-that-does-not-read-is-sent-no-more-than-its-mark :needs :parking)
  (serving-pushes (socket (:high-water-mark 100000 :ping-seconds nil))
    (with-talk (talk)
      ;; Else that sends what follows, and makes room, when it likes.
      (eventually ("the worker of the handshake to be done") (zerop (figure :busy)))
      (let* ((message (make-string 50000 :initial-element #\m))
             (sent (loop while (recycling:send-text (socket) message) count t)))
        (signals recycling:stream-full
          (loop repeat 1000 do (recycling:send-text (socket) message)))
        (signals recycling:stream-full (recycling:send-text (socket) message :wait 1/10))
        (let ((waiter (in-background ("waiting for room")
                        (recycling:send-text (socket) "last" :wait t))))
          (loop repeat (1+ sent) do (is (string= message (hear-text talk))))
          (is (string= "last" (second (loop for heard = (hear talk)
                                            until (equal '(:text "last") heard)
                                            finally (return heard)))))
          (is (task-result waiter)))))))

(define-server-test (a-handler-may-wait-for-its-own-client :needs :our-engine)
  (let ((message (make-string 50000 :initial-element #\m)))
    (serving-websocket (:high-water-mark 100000
                        :on-text (lambda (socket text)
                                   (dotimes (i (rounds 120))
                                     (recycling:send-text socket message :wait t))
                                   (recycling:send-text socket text :wait *patience*)))
        ;; on a slow Lisp it takes the client long to read all of that
        (:read-timeout 600 :write-timeout 600)
      (with-talk (talk)
        (tell talk "end")
        (loop repeat (rounds 120)
              do (unless (string= message (hear-text talk)) (fail "Another message came.")))
        (is (string= "end" (hear-text talk)))))))

(define-server-test
    (a-handler-does-not-wait-for-ever-for-its-own-client :needs (:our-engine :noticed-leaving))
  (let ((ends (make-recorder)) (message (make-string 50000 :initial-element #\m)))
    (serving-websocket (:high-water-mark 100000
                        :on-text (lambda (socket text)
                                   (declare (ignore text))
                                   (loop (recycling:send-text socket message :wait t)))
                        :on-close (record-end ends))
        (:write-timeout 1/4 :read-timeout 60)
      (with-talk (talk)
        (tell talk "go")
        (await-end ends 1006)))))

(define-server-test (a-handler-that-has-not-returned-does-not-wait :needs :our-engine)
  (serving ()
      (("/ws" (let ((socket (recycling:upgrade-to-websocket :high-water-mark 10)))
                (recycling:send-text socket "more than ten octets")
                (handler-case (recycling:send-text socket "x" :wait t)
                  (recycling:stream-full () (recycling:close-websocket socket :code 4001))))))
    (with-talk (talk)
      (is (string= "more than ten octets" (hear-text talk)))
      (is (eql 4001 (hear-close talk))))))

(define-server-test (pings-without-number-are-answered-as-far-as-there-is-room
                     :needs (:our-engine :full-duplex-client))
  (serving-echoes (ends)
    (with-talk (talk)
      (let* ((ping (frame :ping (make-array 125 :element-type '(unsigned-byte 8)
                                            :initial-element 1)))
             (flood (in-background ("a flood of pings")
                      (loop repeat (rounds 200) do (tell talk (loop repeat 200 collect ping)))
                      (tell talk "through"))))
        (is (string= "through" (second (hear-kind talk :text))))
        (task-result flood)
        (is (end-talk talk))))))

(define-server-test (a-client-that-never-pauses-still-gets-messages-of-others :needs :our-engine)
  (let ((stopped nil))
    (serving-pushes (socket ())
      (with-talk (talk)
        (let ((flood (in-background ("a flood of pongs")
                       (loop with pongs = (octets (loop repeat 2000 collect (frame :pong "")))
                             until stopped do (tell talk pongs)))))
          (unwind-protect (progn (recycling:send-text (socket) "news")
                                 (is (string= "news" (hear-text talk))))
            (setf stopped t))
          (task-result flood))))))

(define-server-test (nor-does-one-that-writes-to-a-stream :needs :our-engine)
  (serving ()
      (("/" (recycling:defer-reply (reply)
              (let ((stream (recycling:start-stream reply :high-water-mark 10)))
                (recycling:write-outgoing stream "more than ten octets" :wait t)
                (handler-case (recycling:write-outgoing stream "x" :wait t)
                  (recycling:stream-full () (recycling:close-outgoing stream)))))))
    (is (string= "more than ten octets" (ask-text "/")))))

;;; Handlers that take their time

(define-server-test (what-others-send-does-not-wait-for-a-handler :needs :parking)
  (let ((running (make-gate "the handler to run")) (go-on (make-gate "the test to go on"))
        (socket nil))
    (serving-websocket (:on-open (lambda (it) (setf socket it))
                        :on-text (lambda (socket text)
                                   (open-gate running)
                                   (await go-on)
                                   (recycling:send-text socket text)))
        ()
      (with-talk (talk)
        (tell talk "slow" "slower")
        (await running)
        (dolist (text '("one" "two" "three"))
          (recycling:send-text socket text)
          (is (string= text (hear-text talk))))
        (open-gate go-on)
        (is (string= "slow" (hear-text talk)))
        (is (string= "slower" (hear-text talk)))))))

(define-server-test (handlers-that-wait-for-each-other-go-on :needs :parking)
  (let ((sockets (make-recorder)) (message (make-string 30000 :initial-element #\m))
        (both (make-latch 2)))
    (serving-websocket (:high-water-mark 50000
                        :on-open (lambda (socket) (record sockets socket))
                        :on-text (lambda (socket text)
                                   (declare (ignore text))
                                   (count-down both)
                                   (await both)
                                   (let ((other (find socket (recorded sockets) :test-not #'eq)))
                                     (loop repeat 100
                                           do (recycling:send-text other message :wait t)))))
        ()
      (with-talk (talk)
        (with-talk (other)
          (eventually ("both to be open") (= 2 (recorded-count sockets)))
          (tell talk "go")
          (tell other "go")
          (let ((heard (in-background ("the other")
                         (loop repeat 100 count (string= message (hear-text other))))))
            (is (= 100 (loop repeat 100 count (string= message (hear-text talk)))))
            (is (= 100 (task-result heard 60)))))))))

(define-server-test (idle-websockets-hold-no-thread :needs :parking)
  (serving-echoes (ends)
    (with-connections (connections 100)
      (let ((talks (mapcar (lambda (connection) (open-talk connection)) connections)))
        (eventually ("all to be parked") (zerop (figure :busy)))
        (eventually ("threads that were made meanwhile to end") (<= (figure :threads) 40))
        (dolist (talk talks)
          (tell talk "still"))
        (is (every (lambda (talk) (string= "still" (hear-text talk))) talks))))))

;;; At random

(defun message-at-random (state)
  "A random text or vector of octets, of very different lengths."
  (let ((size (random (expt 10 (random 5 state)) state)))
    (if (zerop (random 2 state))
        (map-into (make-string size) (lambda () (code-char (+ 32 (random 900 state)))))
        (map-into (make-array size :element-type '(unsigned-byte 8))
                  (lambda () (random 256 state))))))

(defun frames-at-random (message state)
  "The octets of frames that carry MESSAGE, with pongs between them."
  (let* ((octets (if (stringp message) (text-octets message) message))
         (cuts (sort (loop repeat (random 4 state) collect (random (1+ (length octets)) state))
                     #'<))
         (ends (append cuts (list (length octets)))))
    (loop for start = 0 then end
          for (end . more) on ends
          for opcode = (if (stringp message) 1 2) then 0
          collect (make-frame opcode (subseq octets start end)
                              :fin (null more)
                              :mask (loop repeat 4 collect (random 256 state)))
          when more
            collect (make-frame 10 (octets "unasked")))))

(defun talk-at-random (seed)
  "Has a client send random messages in random pieces; true when all are echoed in order."
  (let* ((state (seeded-state seed))
         (messages (loop repeat 40 collect (message-at-random state)))
         (octets (octets (loop for message in messages collect (frames-at-random message state)))))
    (with-talk (talk)
      (let ((sender (in-background ("sending")
                      (loop with start = 0
                            while (< start (length octets))
                            do (let ((end (min (length octets) (+ start 1 (random 20000 state)))))
                                 (send (talk-connection talk) (subseq octets start end))
                                 (setf start end)))
                      (say-close talk))))
        (prog1 (and (loop for message in messages
                          always (equalp message (second (hear talk))))
                    (eql 1000 (hear-close talk))
                    (equal '(:end) (hear talk)))
          (task-result sender))))))

(define-server-test
    (messages-at-random-are-echoed-in-order :needs (:our-engine :full-duplex-client))
  (let ((seed (fresh-seed)) (count (max 3 (rounds 10))))
    (format t "~&Random messages: seed ~D~%" seed)
    (serving-echoes (ends)
      (let ((clients (loop for number below count
                           collect (let ((number number))
                                     (in-background ("a client")
                                       (talk-at-random (+ seed number)))))))
        (is (every (lambda (client) (task-result client 60)) clients) "Seed ~D" seed))
      (apply #'await-end ends (make-list count :initial-element 1000)))))

;;; Many who send more than the client takes

(defun flood (socket number stop)
  "Sends SOCKET texts of NUMBER that count up, those that it refuses too, until STOP, a function,
returns true."
  (loop for count from 0
        until (funcall stop)
        do (handler-case (recycling:send-text socket (format nil "~D ~D" number count))
             (recycling:stream-full () (bt:thread-yield)))))

(defun flaw-in-flood (talk senders count)
  "Hears COUNT texts of SENDERS; NIL, or the first that was broken or came out of order."
  (loop with next = (make-array senders :initial-element 0)
        repeat count
        do (let* ((text (hear-text talk))
                  (number (and (stringp text) (digit-char-p (char text 0))))
                  (place (and number (parse-integer text :start 2))))
             (unless (and number (>= place (aref next number)))
               (return text))
             (setf (aref next number) (1+ place)))))

(define-server-test (many-who-send-more-than-is-taken-mix-nothing :needs (:our-engine :parking))
  (serving-pushes (socket ())
    (with-open-connection
        (connection (connect-with-small-buffer (hunchentoot:acceptor-port *server*)))
      (let* ((talk (open-talk connection))
             (socket (socket))
             (over-p nil)
             (senders (loop for number below 3
                            collect (let ((number number))
                                      (in-background ("flooding")
                                        (flood socket number (lambda () over-p)))))))
        (unwind-protect (is (null (flaw-in-flood talk 3 30000)))
          (setf over-p t)
          (mapc #'task-result senders))))))

(defun call-interrupted (function)
  "Calls FUNCTION with a function that calls another one, which is left now and then, by an
interrupt."
  ;; SBCL dies of interrupts in interrupts, so the next one is sent when the code that was
  ;; interrupted goes on, not when the last one ends.
  (let* ((thread (bt:current-thread))
         (inside-p nil) (interrupt :none) (over-p nil)
         (interrupting (in-background ("interrupting")
                         (loop until over-p
                               do (cond ((eq :none interrupt)
                                         (setf interrupt :sent)
                                         (bt:interrupt-thread thread
                                                              (lambda ()
                                                                (setf interrupt :arrived)
                                                                (when (shiftf inside-p nil)
                                                                  (throw 'interrupted nil)))))
                                        (t (bt:thread-yield)))))))
    (unwind-protect (funcall function (lambda (inner)
                                        (when (eq :arrived interrupt)
                                          (setf interrupt :none))
                                        (catch 'interrupted
                                          (setf inside-p t)
                                          (funcall inner)
                                          (setf inside-p nil))))
      (setf over-p t)
      (task-result interrupting))))

(define-server-test (an-interrupted-sender-neither-cuts-a-frame-nor-keeps-the-right-to-send
                     :needs (:our-engine :parking))
  (let ((texts 3000))
    (serving-websocket (:on-text (lambda (socket text)
                                   (declare (ignore text))
                                   (call-interrupted
                                    (lambda (interruptible)
                                      (dotimes (count texts)
                                        (funcall interruptible
                                                 (lambda ()
                                                   (recycling:send-text socket
                                                                        (format nil "0 ~D" count)
                                                                        :wait 10))))))
                                   (recycling:send-text socket "last" :wait 10)))
        ()
      (with-talk (talk)
        (loop repeat 3
              do (tell talk "begin")
                 (is (equal "last" (flaw-in-flood talk 1 (1+ texts)))))))))
