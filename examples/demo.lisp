;;;; The demonstration that `make serve` starts: an ordinary Hunchentoot
;;;; application on recycled threads.  The only line that another Hunchentoot
;;;; program would write differently is the class name in SERVE.
;;;;
;;;;   (asdf:load-system "hunchentoot-recycling-taskmaster")
;;;;   (load "examples/demo.lisp")
;;;;   (hunchentoot-recycling-taskmaster-demo:serve :port 4242)
;;;;   (hunchentoot-recycling-taskmaster-demo:stop)
;;;;
;;;; MAIN is the main function of `make serve', and of the program that `make executable' builds.

(defpackage #:hunchentoot-recycling-taskmaster-demo
  (:documentation "A small Hunchentoot application served by recycled threads.")
  (:use #:common-lisp)
  (:local-nicknames (#:recycling #:hunchentoot-recycling-taskmaster))
  (:export #:serve #:stop #:main))

(in-package #:hunchentoot-recycling-taskmaster-demo)

;; Their handlers are for any acceptor; alone each of them would start a server of its own.
(dolist (name '("chat" "clock" "deferred"))
  (load (make-pathname :name name :type "lisp" :defaults *load-truename*)))


;;; The page around everything

(defparameter *style*
  "body { margin: 0 auto; max-width: 44rem; padding: 2.5rem 1.25rem; line-height: 1.55;
        font-family: system-ui, sans-serif; color: #1f2933; background: #fbfaf8 }
 h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .5rem }
 h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem }
 a { color: #0b66a8 }
 code { font-family: ui-monospace, monospace; font-size: .92em }
 .by { color: #5b6770; font-size: .92rem }
 li { margin: .35rem 0 }
 input { font: inherit; padding: .25rem .5rem; border: 1px solid #b8b2a7; border-radius: 5px }
 button { font: inherit; padding: .25rem .8rem; border: 0; border-radius: 5px;
          color: #fff; background: #0b66a8 }
 @media (prefers-color-scheme: dark) {
   body { color: #e4e0d9; background: #1a1c1f } a { color: #6cb6e8 }
   .by { color: #9aa3ab }
   input { color: inherit; background: #26292d; border-color: #4a4f55 } }"
  "The style sheet of the demo's pages.")

(defun escape (thing)
  "THING as it may stand in HTML text or in an attribute's value."
  (hunchentoot:escape-for-html (princ-to-string thing)))

(defun page (title body)
  "An HTML page named TITLE (plain text) around BODY (HTML); marks the reply as such."
  (setf (hunchentoot:content-type*) "text/html; charset=utf-8")
  (format nil "<!DOCTYPE html>~%<html lang=\"en\"><head><meta charset=\"utf-8\">~%~
               <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">~%~
               <link rel=\"icon\" href=\"data:,\">~%<title>~A</title>~%<style>~A</style></head>~%~
               <body>~%~A~%</body></html>~%"
          (escape title) *style* body))

(defun this-thread ()
  "The name of the thread that serves this request."
  (bt:thread-name (bt:current-thread)))


;;; The handlers

(hunchentoot:define-easy-handler (front-page :uri "/") ()
  (page "Recycled threads"
        (format nil "<h1>Hunchentoot, served by recycled threads</h1>~%~
  <p class=\"by\">This page came from <code>~A</code>. Ask for it again: another
      worker may answer.</p>~%~
  <p><a href=\"/live\">See the server at work</a>: its workers, connections, rates and latency, live
      (from this machine only).</p>~%~
  <h2>What there is</h2>~%~
  <ul><li><a href=\"/yo\">/yo</a> &ndash; says hey</li>~%~
  <li><a href=\"/yo?name=Bob\">/yo?name=Bob</a> &ndash; says hey to Bob</li>~%~
  <li><form action=\"/yo\">or to <input name=\"name\" placeholder=\"your name\"
      aria-label=\"your name\"> <button>Say hey</button></form></li>~%~
  <li><a href=\"/nap\">/nap</a> &ndash; takes a second to answer; ask for it from a few tabs
      at once, and watch the workers live</li>~%~
  <li><a href=\"/chat\">/chat</a> &ndash; a chat, by WebSockets; open it in a few tabs</li>~%~
  <li><a href=\"/clock\">/clock</a> &ndash; the server's time, by server-sent events</li>~%~
  <li><a href=\"/later\">/later</a> &ndash; answers that come later: by a timer, a pool of threads,
      another server</li></ul>"
                (escape (this-thread)))))

(defvar *health*
  (recycling:make-readiness-dispatcher "/health")
  "Tells who asks on this machine whether the demo is ready.")

(pushnew *health* hunchentoot:*dispatch-table*)

(hunchentoot:define-easy-handler (yo :uri "/yo") (name)
  (setf (hunchentoot:content-type*) "text/html; charset=utf-8")
  (if (plusp (length name))
      (format nil "Hey ~A!" (escape name))
      "Hey!"))

(hunchentoot:define-easy-handler (nap :uri "/nap") ()
  (sleep 1)
  (page "Good morning"
        (format nil "<h1>Good morning</h1>~%<p><code>~A</code> slept for a second, ~
                     and the others went on serving.</p>~%<p><a href=\"/\">Back</a></p>"
                (escape (this-thread)))))


;;; Starting and stopping

(defvar *live-page* (recycling:make-live-page-dispatcher "/live")
  "The page that shows the server at work, for clients on this machine.")

(pushnew *live-page* hunchentoot:*dispatch-table*)

(defvar *server* nil
  "The acceptor that SERVE started, or NIL.")

(defun stop ()
  "Stops the demo once the requests that it is serving are answered, or after ten seconds;
true if it ran."
  (when *server*
    (hunchentoot:stop (shiftf *server* nil) :soft t :timeout 10)
    t))

(defun make-server (&rest where)
  "The acceptor of the demo.  WHERE are the arguments that say on what it listens."
  (setf hunchentoot:*hunchentoot-default-external-format*
        (flexi-streams:make-external-format :utf-8 :eol-style :lf))
  (apply #'make-instance 'recycling:parallel-easy-acceptor
         :document-root nil
         where))

(defun serve (&key (port 4242) address)
  "Starts the demo on PORT (0: any free one) of ADDRESS, a string (NIL: every
address of this machine), and returns its acceptor, which then accepts
connections.  A demo that runs already is stopped first."
  (stop)
  (setf *server* (hunchentoot:start (make-server :port port :address address))))


;;; As a program of its own

(defun setting (name default)
  "The environment variable NAME, or DEFAULT if it is unset or empty."
  (let ((value (uiop:getenv name)))
    (if (or (null value) (string= value "")) default value)))

(defun port ()
  "The number in PORT.  Signals an error if there is none."
  (let* ((text (setting "PORT" "4242"))
         (number (ignore-errors (parse-integer text))))
    (if (typep number '(integer 0 65535))
        number
        (error "PORT is ~S; it must be a number from 0 to 65535." text))))

(defun tell-where (&rest words)
  "Prints WORDS, which say where the demo serves."
  (format t "~&Serving on ~?~%" (first words) (rest words))
  (finish-output))

(defun serve-for-proxy ()
  "Serves on the socket that systemd hands over, to which a proxy on this machine connects: see
docs/guide/deploy.md."
  (recycling:serve-until-signalled
   (lambda () (make-server :listen-fd :systemd :trusted-proxies '(:unix)))
   :drain-timeout 30
   :on-start (lambda (acceptor)
               (declare (ignore acceptor))
               (tell-where "the socket of systemd"))))

(defun serve-for-browser ()
  "Serves on the PORT and ADDRESS that the environment names."
  (let ((address (setting "ADDRESS" "127.0.0.1")))
    (recycling:serve-until-signalled
     (lambda () (make-server :port (port) :address address))
     :drain-timeout 10
     :on-start (lambda (acceptor)
                 (tell-where "http://~A:~D/  (Ctrl-C stops it)"
                             address (hunchentoot:acceptor-port acceptor))))))

(defun main ()
  "Serves the demo until a signal ends it, and exits."
  (if (setting "LISTEN_FDS" nil)
      (serve-for-proxy)
      (serve-for-browser)))
