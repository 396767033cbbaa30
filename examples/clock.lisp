;;;; A clock by server-sent events: a page whose time comes from the server, every second, to every
;;;; browser that has it open.  One thread publishes to all of them, and ends when none is left.
;;;;
;;;;   sbcl --load examples/clock.lisp        and open http://127.0.0.1:4244/clock

(require "asdf")

(unless (find-package '#:hunchentoot-recycling-taskmaster)
  (asdf:load-asd (merge-pathnames "../hunchentoot-recycling-taskmaster.asd" *load-truename*))
  (asdf:load-system "hunchentoot-recycling-taskmaster"))

(defpackage #:hunchentoot-recycling-taskmaster-clock
  (:documentation "A clock by server-sent events.")
  (:use #:common-lisp)
  (:local-nicknames (#:recycling #:hunchentoot-recycling-taskmaster))
  (:export #:serve))

(in-package #:hunchentoot-recycling-taskmaster-clock)

(defvar *seconds* (recycling:make-channel)
  "The channel on which each second is published.")

(defvar *lock* (bt:make-lock "clock"))

(defvar *ticking-p* nil
  "True while there is a thread that publishes; guarded by the lock.")

(defun time-text ()
  (multiple-value-bind (second minute hour) (get-decoded-time)
    (format nil "~2,'0D:~2,'0D:~2,'0D" hour minute second)))

(defun goes-on-p ()
  "True while anybody listens; otherwise the clock has stopped."
  (bt:with-lock-held (*lock*)
    (setf *ticking-p* (plusp (recycling:channel-size *seconds*)))))

(defun tick ()
  (loop while (goes-on-p)
        do (recycling:publish *seconds* (time-text) :event "second" :id (get-universal-time))
           (sleep 1)))

(defun ensure-ticking ()
  (unless (bt:with-lock-held (*lock*) (shiftf *ticking-p* t))
    (bt:make-thread #'tick :name "clock")))

(hunchentoot:define-easy-handler (seconds :uri "/clock/seconds") ()
  (recycling:defer-reply (reply :timeout nil)
    (let ((stream (recycling:start-event-stream reply)))
      (when stream
        (recycling:send-event stream (time-text) :event "second" :retry 2000)
        (recycling:subscribe *seconds* stream)
        (ensure-ticking)))))

(hunchentoot:define-easy-handler (clock-page :uri "/clock") ()
  (setf (hunchentoot:content-type*) "text/html; charset=utf-8")
  "<!DOCTYPE html>
<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Clock</title>
<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">
<link rel=\"icon\" href=\"data:,\">
<style>
 :root { color-scheme: light dark }
 body { margin: 0 auto; max-width: 44rem; padding: 2.5rem 1.25rem;
        font-family: system-ui, sans-serif; line-height: 1.55 }
 #time { font-size: 4rem; font-variant-numeric: tabular-nums } .by { opacity: .75 }
</style></head><body>
<h1>The server's time</h1>
<p id=\"time\">&ndash;</p>
<p class=\"by\" id=\"state\">Not connected.</p>
<p><a href=\"/\">Home</a></p>
<script>
 const show = (id, text) => document.getElementById(id).textContent = text;
 const events = new EventSource('/clock/seconds');
 let count = 0;
 events.addEventListener('second', event => {
   show('time', event.data);
   show('state', ++count + (count === 1 ? ' event' : ' events') + ' so far, by one request.');
 });
 events.onerror = () => show('state', 'Not connected; trying again.');
</script></body></html>
")

(defun serve (&key (port 4244) (address "127.0.0.1"))
  "Starts the clock on PORT of ADDRESS, and returns its acceptor."
  (let ((acceptor (hunchentoot:start
                   (make-instance 'recycling:parallel-easy-acceptor
                                  :port port :address address :document-root nil))))
    (format t "~&http://~A:~D/clock~%" address (hunchentoot:acceptor-port acceptor))
    acceptor))

;; The demo loads this file for its handlers only.
(unless (find-package '#:hunchentoot-recycling-taskmaster-demo)
  (hunchentoot:define-easy-handler (front-page :uri "/") ()
    (hunchentoot:redirect "/clock"))
  (serve))
