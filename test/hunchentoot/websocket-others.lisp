(in-package #:hunchentoot-recycling-taskmaster-test)

(in-suite websockets)

;;; WebSocket clients that others have written, where they are installed: Debian's
;;; python3-websockets and node-ws, and Chromium.

(defun program-works-p (&rest command)
  "True when COMMAND, a program and its arguments, runs here, and says that all is well."
  (handler-case (eql 0 (nth-value 2 (uiop:run-program command :ignore-error-status t)))
    (error () nil)))

(defun output-of (command)
  "What COMMAND prints, within a limit of time; what it says of errors is part of that."
  (task-result (in-background ((first command))
                 (string-trim '(#\Newline #\Space)
                              (uiop:run-program command :output :string :error-output :output
                                                        :ignore-error-status t)))
               60))

(defparameter *python-client* "
import asyncio, sys, websockets
async def talk(url):
    async with websockets.connect(url, subprotocols=['other', 'echo'], compression='deflate',
                                  max_size=None) as ws:
        assert ws.subprotocol == 'echo', ws.subprotocol
        for text in ['', 'one', 'x' * 70000, '\\u20ac' * 1000]:
            await ws.send(text)
            assert await ws.recv() == text
        await ws.send(bytes(range(256)) * 1000)
        assert await ws.recv() == bytes(range(256)) * 1000
        await ws.send(['frag', 'men', 'ts'])
        assert await ws.recv() == 'fragments'
        await (await ws.ping(b'?'))
        for number in range(500):
            await ws.send(str(number))
        for number in range(500):
            assert await ws.recv() == str(number)
        await ws.send('close')
        try:
            await ws.recv()
        except websockets.exceptions.ConnectionClosed:
            print(ws.close_code, ws.close_reason)
asyncio.run(talk(sys.argv[1]))
")

(defparameter *node-client* "
const WebSocket = require('ws');
const ws = new WebSocket(process.argv[1], ['other', 'echo']);
const texts = ['', 'one', 'x'.repeat(70000), '\\u20ac'.repeat(1000)];
for (let number = 0; number < 500; number++) texts.push(String(number));
let heard = 0;
ws.on('open', () => { ws.ping('?'); for (const text of texts) ws.send(text); });
ws.on('pong', data => { if (String(data) !== '?') throw data; heard++; });
ws.on('message', data => {
  if (String(data) !== texts[heard - 1]) throw heard;
  if (++heard > texts.length) ws.send('close');
});
ws.on('close', (code, reason) => console.log(code, String(reason)));
")

(defun answer-outside-client (socket text)
  "Echoes TEXT, and ends SOCKET when that says so."
  (if (string= "close" text)
      (recycling:close-websocket socket :code 4000 :reason "bye")
      (recycling:send-text socket text)))

(defun talk-with-outside-client (&rest command)
  "What COMMAND, a client with its arguments, prints that talks with a server whose address is its
last argument."
  (let ((ends (make-recorder)))
    (serving-websocket (:on-text 'answer-outside-client :on-binary 'echo-binary
                        :subprotocols '("echo")
                        :on-close (record-end ends))
        ()
      (prog1 (output-of (append command
                                (list (format nil "ws://127.0.0.1:~D/ws"
                                              (hunchentoot:acceptor-port *server*)))))
        (await-end ends 4000)))))

(define-server-test (pythons-websockets-talk-to-it :needs :our-engine)
  (if (program-works-p "/usr/bin/python3" "-c" "import websockets")
      (is (equal "4000 bye" (talk-with-outside-client "/usr/bin/python3" "-c" *python-client*)))
      (skip "Debian's python3-websockets is not installed.")))

(define-server-test (nodes-ws-talks-to-it :needs :our-engine)
  (let ((node '("env" "NODE_PATH=/usr/share/nodejs" "node" "-e")))
    (if (apply #'program-works-p (append node '("require('ws')")))
        (is (equal "4000 bye"
                   (apply #'talk-with-outside-client (append node (list *node-client*)))))
        (skip "Debian's node-ws is not installed."))))

(defparameter *browser-page* "<!DOCTYPE html><title>wait</title><img src=/wait><script>
let heard = '';
const ws = new WebSocket('ws://' + location.host + '/ws', 'echo');
ws.onopen = () => ws.send('one');
ws.onmessage = event => { heard += event.data.length + ' ';
                          ws.send(event.data === 'one' ? 'x'.repeat(70000) : 'close'); };
ws.onclose = event => fetch('/heard', { method: 'POST',
                                        body: heard + event.code + event.reason + event.wasClean });
</script>")

(defun chromium ()
  "The name of Chromium's program; NIL where it is not installed."
  (find-if (lambda (name) (program-works-p name "--version")) '("chromium" "chromium-browser")))

(defun talk-with-chromium (chromium)
  "What a page in CHROMIUM tells of its talk with a server."
  (let ((told (make-recorder)))
    (serving ()
        (("/" *browser-page*)
         ;; The browser waits for the image before it prints the page and ends.
         ("/wait" (eventually ("the browser to have talked") (recorded told)) "")
         ("/heard" (record told (hunchentoot:raw-post-data :force-text t)))
         ("/ws"
          (recycling:upgrade-to-websocket :on-text 'answer-outside-client :subprotocols '("echo"))))
      (output-of (list chromium "--headless" "--no-sandbox" "--disable-gpu" "--dump-dom"
                       (format nil "http://127.0.0.1:~D/" (hunchentoot:acceptor-port *server*))))
      (recorded told))))

(define-server-test (chromium-talks-to-it :needs :our-engine)
  (let ((chromium (chromium)))
    (if chromium
        (is (equal '("3 70000 4000byetrue") (talk-with-chromium chromium)))
        (skip "Chromium is not installed."))))

;;; What the demo links to

(in-suite demo)

(define-server-test (the-demo-links-to-examples-that-work :needs :our-engine)
  (call-with-demo
   (lambda (acceptor)
     (declare (ignore acceptor))
     (let ((page (ask-text "/")))
       (dolist (target '("/chat" "/clock" "/later"))
         (is (search (format nil "<a href=\"~A\">" target) page))
         (is (= 200 (response-status (ask target))))))
     (is (search "1,709,600,813" (ask-text "/later/primes")))
     (with-talk (talk :handshake '(:target "/chat/socket?name=Ann"))
       (is (string= "Ann came; 1 is here now." (hear-text talk)))
       (tell talk " Is anybody here? ")
       (is (string= "Ann: Is anybody here?" (hear-text talk)))
       (is (end-talk talk)))
     (with-connection (connection)
       (send-request connection "/clock/seconds")
       (is (= 200 (response-status (read-head connection))))
       (is (search "event: second" (decode (read-chunk connection))))))))
