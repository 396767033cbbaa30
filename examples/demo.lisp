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
 table { border-collapse: collapse; width: 100% }
 td { padding: .3rem .5rem; border-bottom: 1px solid #e3e0da; vertical-align: top }
 td.n { text-align: right; font-variant-numeric: tabular-nums; font-weight: 600 }
 td.k { white-space: nowrap }
 .threads { display: flex; flex-wrap: wrap; gap: 4px; margin: .6rem 0 }
 .threads i, .key i { display: inline-block; width: 18px; height: 18px; border-radius: 4px }
 .key i { width: 11px; height: 11px; border-radius: 3px; margin: 0 .3rem 0 .9rem }
 .key i:first-child { margin-left: 0 }
 .serving { background: #d9622b } .idle { background: #eab08f }
 .standby { background: #2f8f6b } .suspended { background: #b8b2a7 }
 input { font: inherit; padding: .25rem .5rem; border: 1px solid #b8b2a7; border-radius: 5px }
 button { font: inherit; padding: .25rem .8rem; border: 0; border-radius: 5px;
          color: #fff; background: #0b66a8 }
 @media (prefers-color-scheme: dark) {
   body { color: #e4e0d9; background: #1a1c1f } a { color: #6cb6e8 }
   .by { color: #9aa3ab } td { border-color: #34383d } .suspended { background: #5d5a54 }
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


;;; What the server knows of itself

(defparameter *meanings*
  '(:threads "worker threads alive"
    :standby "of them waiting for something to do"
    :busy "of them having a connection"
    :keep-alive-waiting "of the busy ones, waiting for their client's next request"
    :suspended "of those on standby, resting until they are needed"
    :made "threads made since the start"
    :ended "threads ended since the start"
    :resumes "times a resting thread was called back"
    :suspends "times a thread went to rest"
    :accepted "connections accepted"
    :open "connections open now"
    :parked "of them waiting for a request, without a thread"
    :deferred "of them waiting for a reply that comes later, without a thread"
    :writing "of them waiting for a slow client to take its reply, without a thread"
    :queued "of them waiting for a thread"
    :refused "connections answered 503 for want of room"
    :refused-by "the same by reason"
    :expired "connections ended for taking too long or holding up others"
    :expired-by "the same by kind"
    :rejected "requests answered with an error for what they are: no HTTP, too large, too slow"
    :rejected-by-status "the same by status"
    :handshakes-failed "handshakes of TLS that failed"
    :handshakes-failed-by "the same by kind"
    :failed "errors outside of handlers"
    :stalls "times serving a connection made no progress"
    :served "requests served"
    :durations "how long they took"
    :ready-wait "seconds that a ready connection last waited for a thread"
    :ready-waits "samples of that"
    :decisions "how often the number of threads was decided about, by kind"
    :timers "functions to be called later: how many there are, and what became of others"
    :memory "octets reserved for what clients make the process keep"
    :memory-limit "octets that may be"
    :uptime "seconds since the start"
    :log-dropped "lines of the access log that could not be written")
  "A few words for each key of HUNCHENTOOT-RECYCLING-TASKMASTER:STATS.")

(defun thread-squares (stats)
  "One coloured square for each worker thread that STATS counts, as HTML."
  (let* ((idle (getf stats :keep-alive-waiting 0))
         (busy (getf stats :busy 0))
         (suspended (getf stats :suspended 0))
         (kinds `(("serving" ,(- busy idle))
                  ("idle" ,idle)
                  ("standby" ,(- (getf stats :threads 0) busy suspended))
                  ("suspended" ,suspended))))
    (format nil "<div class=\"threads\">~{<i class=\"~A\"></i>~}</div>~%~
                 <div class=\"key by\">~:{<i class=\"~A\"></i>~:*~A~}</div>"
            (loop for (kind count) in kinds
                  append (loop repeat count collect kind))
            kinds)))

(defun kinds-text (plist)
  "PLIST of kinds and how often each occurred, as a person reads it: those that did."
  (format nil "~:[none~;~:*~{~A~^, ~}~]"
          (loop for (kind count) on plist by #'cddr
                unless (eql count 0)
                  collect (format nil "~:D ~(~A~)" count kind))))

(defun histogram-text (histogram)
  "The count and the mean of HISTOGRAM, as a person reads them."
  (let ((count (getf histogram :count)))
    (format nil "~:D~@[, ~,4F s on average~]" count
            (and (plusp count) (/ (getf histogram :sum) count)))))

(defun figure-text (value)
  "VALUE as a person reads it."
  (typecase value
    (null "&ndash;")
    (integer (format nil "~:D" value))
    (real (format nil "~,VF" (if (< value 1) 4 1) value))
    (cons (escape (if (getf value :buckets) (histogram-text value) (kinds-text value))))
    (t (escape value))))

(defun stats-table (stats)
  "The plist STATS as an HTML table."
  (format nil "<table>~%~:{<tr><td class=\"k\"><code>~A</code></td>~
               <td class=\"n\">~A</td><td>~A</td></tr>~%~}</table>"
          (loop for (key value) on stats by #'cddr
                collect (list (escape (string-downcase key))
                              (figure-text value)
                              (escape (getf *meanings* key ""))))))


;;; The handlers

(hunchentoot:define-easy-handler (front-page :uri "/") ()
  (let ((stats (recycling:stats hunchentoot:*acceptor*)))
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
      at once, then look here again</li>~%~
  <li><a href=\"/chat\">/chat</a> &ndash; a chat, by WebSockets; open it in a few tabs</li>~%~
  <li><a href=\"/clock\">/clock</a> &ndash; the server's time, by server-sent events</li>~%~
  <li><a href=\"/later\">/later</a> &ndash; answers that come later: by a timer, a pool of threads,
      another server</li></ul>~%~
  <h2>Its threads</h2>~%~A~%<h2>Its counters</h2>~%~A~%~
  <p class=\"by\">The same at the REPL:
      <code>(recycling:stats acceptor)</code></p>"
                  (escape (this-thread)) (thread-squares stats) (stats-table stats)))))

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
