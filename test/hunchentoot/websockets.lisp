(in-package #:hunchentoot-recycling-taskmaster-test)

;;; What Hunchentoot's front has of its own; test/fronts/websockets.lisp has what both do.

(def-suite* websockets :in acceptors
  :description "WebSockets as Hunchentoot's handlers open and use them.")

;;; Opening handshakes, and their answers

(defun answer-to-handshake (&rest keys &key method &allow-other-keys)
  "The head of the answer of *SERVER* to a handshake of KEYS."
  (with-connection (connection)
    (send connection (apply #'handshake-octets keys))
    (if (member method '(nil :get))
        (read-head connection)
        (read-response connection :head (eq :head method)))))

(defun status-of-handshake (&rest keys)
  (response-status (apply #'answer-to-handshake keys)))

(define-server-test (the-answer-to-a-handshake-switches-protocols-or-says-why-not
                     :needs :our-engine)
  (serving-echoes (ends)
    (let ((head (answer-to-handshake)))
      (is (= 101 (response-status head)))
      (is (string-equal "websocket" (response-header head "upgrade")))
      (is (string-equal "Upgrade" (response-header head "connection")))
      (dolist (name '("content-length" "transfer-encoding" "content-type" "keep-alive"
                      "sec-websocket-extensions" "sec-websocket-protocol"))
        (is (null (response-header head name)) "~A" name)))
    (loop for (status . keys) in '((426 :upgrade nil)
                                   (400 :key nil)
                                   (400 :version "HTTP/1.0")
                                   (405 :method :head)
                                   (101 :connection "keep-alive, Upgrade"))
          do (is (= status (apply #'status-of-handshake keys)) "~S" keys))
    (let ((answer (answer-to-handshake :websocket-version "8")))
      (is (equal "Upgrade Required" (response-reason answer))
          "Hunchentoot 1.2.38 does not know that status.")
      (is (equal "13" (response-header answer "sec-websocket-version")))
      (is (string-equal "websocket" (response-header answer "upgrade")))
      (is (string-equal "Upgrade" (response-header answer "connection"))))
    (is (equal "GET" (response-header (answer-to-handshake :method :post :content "") "allow")))
    (with-connection (connection)
      (send connection (handshake-octets :key "too short"))
      (is (= 400 (response-status (read-response connection))))
      (let ((talk (open-talk connection)))
        (tell talk "The connection was kept.")
        (is (string= "The connection was kept." (hear-text talk)))))))

(define-server-test (a-handler-that-goes-on-to-answer-opens-no-websocket :needs :our-engine)
  (let ((ends (make-recorder)) (sockets (make-recorder)))
    (flet ((upgrade ()
             (record sockets (recycling:upgrade-to-websocket :on-close (record-end ends)))))
      (serving ()
          (("/ws" (upgrade) (error "After all."))
           ("/elsewhere" (upgrade) (hunchentoot:redirect "/ws"))
           ("/twice" (upgrade) (upgrade))
           ("/late" (upgrade)
                    (recycling:defer-reply (reply) (recycling:complete-reply reply "late"))))
        (loop for (target . status) in '(("/ws" . 500) ("/elsewhere" . 302) ("/twice" . 500)
                                         ("/late" . 500))
              do (let ((head (answer-to-handshake :target target)))
                   (is (= status (response-status head)) "~A" target)
                   (is (null (response-header head "upgrade")))
                   (is (null (response-header head "sec-websocket-accept")))))
        (await-end ends 1006 1006 1006 1006)
        (dolist (socket (recorded sockets))
          (is (not (recycling:websocket-open-p socket)))
          (signals recycling:client-left (recycling:send-text socket "word")))))))

(define-server-test (pages-of-other-origins-are-refused :needs :our-engine)
  (let ((asked (make-recorder)))
    (serving ()
        (("/same" (recycling:upgrade-to-websocket))
         ("/any" (recycling:upgrade-to-websocket :origins :any))
         ("/none" (recycling:upgrade-to-websocket :origins '()))
         ("/list"
          (recycling:upgrade-to-websocket :origins '("https://a.example" "http://b.example:8080")))
         ("/function" (recycling:upgrade-to-websocket :origins (lambda (origin)
                                                                 (record asked origin)
                                                                 (search "good" origin)))))
      (loop for (target host origin status)
              in '(("/same" "a.example" "http://a.example" 101)
                   ("/same" "a.example" "https://A.Example" 101) ; TLS may have been taken off
                   ("/same" "a.example:80" "http://a.example" 101)
                   ("/same" "a.example" "http://a.example:80" 101)
                   ("/same" "a.example:443" "https://a.example" 101)
                   ("/same" "a.example:8080" "http://a.example:8080" 101)
                   ("/same" "[::1]:8080" "http://[::1]:8080" 101)
                   ("/same" "[::1]" "http://[::1]" 101)
                   ("/same" "a.example:8080" "http://a.example" 403)
                   ("/same" "a.example" "http://b.example" 403)
                   ("/same" "a.example" "http://a.example.b.example" 403)
                   ("/same" "a.example" "null" 403)
                   ("/any" "a.example" "http://b.example" 101)
                   ("/none" "a.example" "http://a.example" 403)
                   ("/list" "x" "https://a.example" 101)
                   ("/list" "x" "http://b.example:8080" 101)
                   ("/list" "x" "http://b.example" 403)
                   ("/function" "x" "http://good.example" 101)
                   ("/function" "x" "http://bad.example" 403))
            do (is (= status (status-of-handshake :target target :host host
                                                  :headers `(("Origin" . ,origin))))
                   "~A ~A ~A" target host origin))
      (is (= 101 (status-of-handshake :target "/none")) "Who tells no origin is no browser.")
      (is (equal '("http://good.example" "http://bad.example") (recorded asked))))))

(define-server-test
    (the-first-subprotocol-of-the-server-that-the-client-offers-is-chosen :needs :our-engine)
  (let ((chosen (make-recorder)))
    (serving ()
        (("/ws" (record chosen (nth-value 1 (recycling:upgrade-to-websocket
                                             :subprotocols '("chat.v2" "chat.v1"))))))
      (loop for (offered expected) in '(("chat.v1, chat.v2" "chat.v2") ("chat.v1" "chat.v1")
                                        ("Chat.V1" nil) ("other" nil))
            do (is (equal expected
                          (response-header (answer-to-handshake :headers `(("Sec-WebSocket-Protocol"
                                                                            . ,offered)))
                                           "sec-websocket-protocol"))))
      (is (equal '("chat.v2" "chat.v1" nil nil) (recorded chosen))))))

;;; The functions of programs

(define-server-test (messages-that-nobody-wants-end-the-websocket :needs :our-engine)
  (let ((ends (make-recorder)))
    (serving-websocket (:on-text 'echo-text :on-close (record-end ends)) ()
      (with-talk (talk)
        (tell talk (frame :binary (octets "octets")))
        (is (eql 1003 (hear-close talk)))
        (say-close talk 1003)
        (is (equal '(:end) (hear talk))))
      (await-end ends 1003))))

(define-server-test (an-error-of-a-callback-is-told-with-its-place :needs :our-engine)
  (flet ((break-down (&rest arguments)
           (list (fail-with '() arguments))))
    (dolist (callback '(:on-open :on-text :on-binary :on-close))
      (let ((text (with-message-text (log)
                      (("/ws" (apply #'recycling:upgrade-to-websocket
                                     callback #'break-down
                                     '(:on-text echo-text :on-binary echo-binary))
                              nil))
                    (with-talk (talk :handshake '(:target "/ws?secret=1"))
                      (if (eq :on-binary callback)
                          (tell talk (frame :binary (octets "one")))
                          (tell talk "one"))
                      (say-close talk 1000)
                      (loop until (equal '(:end) (hear talk)))))))
        (is (= 1 (count-messages text)))
        (is (search (format nil "[ERROR]] ~A of GET /ws HTTP/1.1 from 127.0.0.1 failed: The reason"
                            callback)
                    text)
            "~A" text)
        (where-supported (is (search "FAIL-WITH" text)))))))

(define-server-test (the-end-is-told-by-no-thread-of-the-program :needs :parking)
  (let ((lock (bt:make-lock "the program's")) (ends (make-recorder)))
    (serving-pushes (socket (:on-close (lambda (socket code reason)
                                         (declare (ignore socket reason))
                                         (bt:with-lock-held (lock)
                                           (record ends code)))))
      (with-talk (talk)
        (socket)
        (reset (talk-connection talk))
        (bt:with-lock-held (lock)
          (eventually ("sending to fail")
            (handler-case (progn (recycling:send-text (socket) "to whom?") nil)
              (recycling:client-left () t))))
        (await-end ends 1006)))))

(define-server-test (who-does-not-wait-is-told-when-there-is-no-room :needs :parking)
  (serving-pushes (socket (:high-water-mark 100000 :ping-seconds nil))
    (with-talk (talk)
      ;; Else the worker of the handshake sends what follows, and makes room, when it likes.
      (eventually ("the worker to be done") (zerop (figure :busy)))
      (let* ((message (make-string 50000 :initial-element #\m))
             (sent (loop while (recycling:send-text (socket) message) count t)))
        (signals recycling:stream-full
          (loop repeat 1000 do (recycling:send-text (socket) message)))
        (signals recycling:stream-full (recycling:send-text (socket) message :wait 1/10))
        (let ((waiter (in-background ("waiting for room")
                        (recycling:send-text (socket) "last" :wait t))))
          (loop repeat (1+ sent) do (is (string= message (hear-text talk))))
          (loop until (equal '(:text "last") (hear talk)))
          (is (task-result waiter)))))))

(define-server-test (a-handler-that-has-not-returned-does-not-wait :needs :our-engine)
  (serving ()
      (("/ws" (let ((socket (recycling:upgrade-to-websocket :high-water-mark 10)))
                (recycling:send-text socket "more than ten octets")
                (handler-case (recycling:send-text socket "x" :wait t)
                  (recycling:stream-full () (recycling:close-websocket socket :code 4001))))))
    (with-talk (talk)
      (is (string= "more than ten octets" (hear-text talk)))
      (is (eql 4001 (hear-close talk))))))

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
      (with-connections (connections 2)
        (let* ((talks (mapcar #'open-talk connections))
               (tasks (progn (eventually ("both to be open") (= 2 (recorded-count sockets)))
                             (loop for talk in talks
                                   do (tell talk "go")
                                   collect (let ((talk talk))
                                             (in-background ("a client")
                                               (loop repeat 100
                                                     always (string= message
                                                                     (hear-text talk)))))))))
          (is (every (lambda (task) (task-result task 60)) tasks)))))))

;;; The end

(define-server-test (a-close-frame-is-the-last :needs :our-engine)
  (let ((channel (recycling:make-channel)))
    (serving-pushes (socket (:on-text 'echo-text))
      (with-talk (talk)
        (recycling:subscribe channel (socket))
        (recycling:publish channel "before")
        (signals error (recycling:close-websocket (socket) :code 1006))
        (is-true (recycling:close-websocket (socket) :code 3000 :reason "bye"))
        (is (not (recycling:close-websocket (socket) :code 1000)) "Once is enough.")
        (recycling:publish channel "behind")
        (signals recycling:client-left (recycling:send-text (socket) "behind"))
        (is (string= "before" (hear-text talk)))
        (is (equal '(:close 3000 "bye") (hear talk)))
        (say-close talk)
        (is (equalp (octets) (receive-rest (talk-connection talk)))))
      (eventually ("the channel to be empty") (zerop (recycling:channel-size channel))))))

(define-server-test (a-soft-stop-ends-streams-of-events-and-waits-for-talks :needs :our-engine)
  (let ((channel (recycling:make-channel)))
    (serving ()
        (("/" (recycling:defer-reply (reply :timeout nil)
                (recycling:subscribe channel (recycling:start-event-stream reply))))
         ("/ws" (recycling:upgrade-to-websocket :on-text 'echo-text)))
      (with-connection (connection)
        (send-request connection "/")
        (read-head connection)
        (recycling:publish channel "news")
        (is (search "news" (decode (read-chunk connection))))
        (with-talk (talk)
          (let* ((server *server*)
                 (stop (in-background ("stopping")
                         (hunchentoot:stop server :soft t :delay (* 2 *patience*)))))
            (eventually ("the stop to begin") (equal "close" (connection-header (ask "/nowhere"))))
            (tell talk "word")
            (is (string= "word" (hear-text talk)))
            (hunchentoot:stop server :soft t)
            (is (eql 1001 (hear-close talk)))
            (say-close talk 1001)
            (is (null (read-chunk connection)) "It ends in order.")
            (is (closed-by-server-p connection))
            (task-result stop))))
      (is (zerop (recycling:channel-size channel))))))

(define-server-test (a-program-that-abandons-the-acceptor-tells-the-end-once :needs :our-engine)
  (serving-echoes (ends)
    (with-talk (talk)
      ;; Its worker may have sent the handshake, and not have begun with the WebSocket.
      (tell talk "begun?")
      (is (string= "begun?" (hear-text talk)))
      (let ((acceptor *server*))
        (task-result (in-background ("abandoning") (recycling:abandon-acceptor acceptor))))
      (await-end ends 1001))))

(test what-is-no-websocket-is-told-at-once
  (signals type-error (recycling:send-text nil "x"))
  (signals type-error (recycling:send-binary nil (octets "x")))
  (signals type-error (recycling:close-websocket nil)))

;;; A browser

(defparameter *browser-page* "<!DOCTYPE html><title>wait</title><img src=/wait><script>
let heard = '';
const ws = new WebSocket('ws://' + location.host + '/ws', 'echo');
ws.onopen = () => ws.send('one');
ws.onmessage = event => { heard += event.data.length + ' ';
                          ws.send(event.data === 'one' ? 'x'.repeat(70000) : 'close'); };
ws.onclose = event => fetch('/heard', { method: 'POST',
                                        body: heard + event.code + event.reason + event.wasClean });
</script>")

(define-server-test (chromium-talks-to-it :needs :parking)
  (let ((chromium (find-chromium)) (told (make-recorder)))
    (if (null chromium)
        (skip "There is no Chromium: apt-get install chromium")
        (serving ()
            (("/" *browser-page*)
             ;; The browser waits for the image before it prints the page and ends.
             ("/wait" (eventually ("the browser to have talked") (recorded told)) "")
             ("/heard" (record told (hunchentoot:raw-post-data :force-text t)))
             ("/ws"
              (recycling:upgrade-to-websocket
               :subprotocols '("echo")
               :on-text (lambda (socket text)
                          (if (string= "close" text)
                              (recycling:close-websocket socket :code 4000 :reason "bye")
                              (recycling:send-text socket text))))))
          (let ((address (format nil "http://127.0.0.1:~D/" (port-of *server*))))
            (task-result (in-background ("Chromium")
                           (uiop:run-program (list chromium "--headless" "--no-sandbox"
                                                   "--disable-gpu" "--dump-dom" address)
                                             :output nil :ignore-error-status t))
                         60))
          (is (equal '("3 70000 4000byetrue") (recorded told)))))))
