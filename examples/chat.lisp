;;;; A chat: a page, and a WebSocket for each browser that has it open.  What one says is published
;;;; on a channel, to which all are subscribed: it is encoded once, and no WebSocket has a thread
;;;; while nobody says anything.
;;;;
;;;;   sbcl --load examples/chat.lisp        and open http://127.0.0.1:4243/chat in a few tabs

(require "asdf")

(unless (find-package '#:hunchentoot-recycling-taskmaster)
  (asdf:load-asd (merge-pathnames "../hunchentoot-recycling-taskmaster.asd" *load-truename*))
  (asdf:load-system "hunchentoot-recycling-taskmaster"))

(defpackage #:hunchentoot-recycling-taskmaster-chat
  (:documentation "A chat by WebSockets.")
  (:use #:common-lisp)
  (:local-nicknames (#:recycling #:hunchentoot-recycling-taskmaster))
  (:export #:serve))

(in-package #:hunchentoot-recycling-taskmaster-chat)

(defvar *everybody* (recycling:make-channel)
  "The channel to which all who chat are subscribed.")

(defun tell-everybody (control &rest arguments)
  (recycling:publish *everybody* (apply #'format nil control arguments)))

(defun short (text count)
  "TEXT without white space around it, and no more than COUNT characters of it."
  (let ((text (string-trim '(#\Space #\Tab #\Return #\Newline) text)))
    (subseq text 0 (min count (length text)))))

(hunchentoot:define-easy-handler (chat-socket :uri "/chat/socket") (name)
  (let ((name (if (plusp (length (short (or name "") 20))) (short name 20) "Somebody")))
    (recycling:upgrade-to-websocket
     :message-octets 4000
     :on-open (lambda (socket)
                (recycling:subscribe *everybody* socket)
                ;; A channel with a name may have subscribers in other processes, too.
                (tell-everybody "~A came~@[; ~D ~:*~[~;is~:;are~] here now~]." name
                                (unless (recycling:channel-name *everybody*)
                                  (recycling:channel-size *everybody*))))
     :on-text (lambda (socket text)
                (when (plusp (length (short text 500)))
                  (unless (tell-everybody "~A: ~A" name (short text 500))
                    (recycling:send-text socket "Not sent; try again later."))))
     :on-close (lambda (socket code reason)
                 (declare (ignore socket code reason))
                 (tell-everybody "~A left." name)))))

(hunchentoot:define-easy-handler (chat-page :uri "/chat") ()
  (setf (hunchentoot:content-type*) "text/html; charset=utf-8")
  "<!DOCTYPE html>
<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Chat</title>
<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">
<link rel=\"icon\" href=\"data:,\">
<style>
 :root { color-scheme: light dark }
 body { margin: 0 auto; max-width: 44rem; padding: 2.5rem 1.25rem;
        font-family: system-ui, sans-serif; line-height: 1.55 }
 #log { min-height: 12rem; padding: .8rem; border: 1px solid #8886; border-radius: 5px;
        white-space: pre-wrap; overflow-wrap: anywhere }
 form { display: flex; gap: .5rem; margin-top: .8rem }
 input { font: inherit; padding: .25rem .5rem }
 #text { flex: 1 } button { font: inherit } .by { opacity: .75 }
</style></head><body>
<h1>Chat</h1>
<p class=\"by\" id=\"state\">Not connected.</p>
<div id=\"log\" aria-live=\"polite\"></div>
<form id=\"form\"><input id=\"text\" autocomplete=\"off\" aria-label=\"what you say\"
 placeholder=\"Say something\">
<button>Send</button></form>
<p><a href=\"/\">Home</a></p>
<script>
 const name = new URLSearchParams(location.search).get('name')
              || 'Guest ' + Math.floor(Math.random() * 1000);
 const show = (id, text) => document.getElementById(id).textContent = text;
 const log = document.getElementById('log'), text = document.getElementById('text');
 let socket, pause = 500;
 function connect() {
   socket = new WebSocket(location.protocol.replace('http', 'ws') + '//' + location.host
                          + '/chat/socket?name=' + encodeURIComponent(name));
   socket.onopen = () => { pause = 500; show('state', 'You are ' + name + '.'); };
   socket.onmessage = event => { log.append(event.data + '\\n'); };
   socket.onclose = () => { show('state', 'Not connected; trying again.');
                            setTimeout(connect, pause); pause = Math.min(2 * pause, 10000); };
 }
 connect();
 document.getElementById('form').onsubmit = event => {
   event.preventDefault();
   if (text.value && socket.readyState === WebSocket.OPEN) {
     socket.send(text.value); text.value = '';
   }
 };
</script></body></html>
")

(defun serve (&key (port 4243) (address "127.0.0.1"))
  "Starts the chat on PORT of ADDRESS, and returns its acceptor."
  (let ((acceptor (hunchentoot:start
                   (make-instance 'recycling:parallel-easy-acceptor
                                  :port port :address address :document-root nil))))
    (format t "~&http://~A:~D/chat~%" address (hunchentoot:acceptor-port acceptor))
    acceptor))

;; The demo and the chat in several processes load this file for its handlers only.
(unless (or (find-package '#:hunchentoot-recycling-taskmaster-demo)
            (find-package '#:hunchentoot-recycling-taskmaster-chat-processes))
  (hunchentoot:define-easy-handler (front-page :uri "/") ()
    (hunchentoot:redirect "/chat"))
  (serve))
