;;;; Clack responses that come later: by a timer, by a pool of threads, and piece by piece, for any
;;;; number of clients.  No request holds a thread while it waits.
;;;;
;;;;   (asdf:load-system "clack-handler-recycling")
;;;;   (load "examples/clack-delayed.lisp")
;;;;   (clack:clackup 'recycling-clack-delayed:app :server :recycling :port 5000)
;;;;
;;;; Without Clack, in place of the last line; this one returns when it is interrupted:
;;;;
;;;;   (clack.handler.recycling:run 'recycling-clack-delayed:app :port 5000)

(defpackage #:recycling-clack-delayed
  (:documentation "A Clack application that answers later.")
  (:use #:common-lisp)
  (:import-from #:clack.handler.recycling #:run-after #:client-left)
  (:export #:app #:stop-pool))

(in-package #:recycling-clack-delayed)

(defun text (control &rest arguments)
  (list 200 '(:content-type "text/plain; charset=utf-8")
        (list (apply #'format nil control arguments))))

;;; By a timer

(defun after-a-moment (responder)
  "A response half a second later."
  (run-after 1/2 (lambda ()
                   (funcall responder (text "Half a second later.")))))

;;; By a pool of threads, which belongs to the program

(defvar *lock* (bt:make-lock "pool"))
(defvar *changed* (bt:make-condition-variable))
(defvar *jobs* '() "Functions without arguments, the last first; :STOP ends a thread.")
(defvar *threads* '())

(defun take-job ()
  (bt:with-lock-held (*lock*)
    (loop until *jobs* do (bt:condition-wait *changed* *lock*))
    (let ((job (first (last *jobs*))))
      (setf *jobs* (butlast *jobs*))
      job)))

(defun put-job (job)
  (bt:with-lock-held (*lock*)
    (push job *jobs*)
    (bt:condition-notify *changed*)))

(defun work ()
  (loop for job = (take-job)
        until (eq :stop job)
        do (funcall job)))

(defun start-pool (count)
  (bt:with-lock-held (*lock*)
    (unless *threads*
      (setf *threads* (loop repeat count collect (bt:make-thread #'work :name "pool"))))))

(defun stop-pool ()
  "Ends the threads of the pool."
  (loop repeat (length *threads*) do (put-job :stop))
  (mapc #'bt:join-thread *threads*)
  (setf *threads* '()))

(defun sum-of-primes (limit)
  (loop for number from 2 below limit
        when (loop for divisor from 2 to (isqrt number) never (zerop (mod number divisor)))
          sum number))

(defun computed (responder)
  "A response by the pool."
  (start-pool 2)
  (put-job (lambda ()
             (funcall responder
                      (handler-case
                          (text "The primes below 20,000 sum up to ~:D." (sum-of-primes 20000))
                        (error () '(500 (:content-type "text/plain") ("It failed."))))))))

;;; Piece by piece: a clock that ticks for whoever looks

(defun tick (writer left)
  "Writes an event, and LEFT more by timers, unless the client leaves."
  (handler-case
      (cond ((plusp left)
             (funcall writer (format nil "data: ~D~C~C" left #\Newline #\Newline))
             (run-after 1/10 (lambda () (tick writer (1- left)))))
            (t
             (funcall writer (format nil "data: over~C~C" #\Newline #\Newline) :close t)))
    (client-left () nil)))

(defun ticking (responder)
  "Events, a tenth of a second apart."
  (tick (funcall responder '(200 (:content-type "text/event-stream" :cache-control "no-cache")))
        5))

(defparameter *page* "<!DOCTYPE html>
<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Later</title>
<link rel=\"icon\" href=\"data:,\"></head><body>
<h1>Later</h1>
<h2>By a timer</h2><pre id=\"timer\">waiting</pre>
<h2>By a pool of threads</h2><pre id=\"primes\">waiting</pre>
<h2>Events</h2><pre id=\"events\">waiting</pre>
<script>
 for (const id of ['timer', 'primes']) {
   const show = text => document.getElementById(id).textContent = text;
   fetch('/' + id).then(response => response.text()).then(show, show);
 }
 const events = new EventSource('/events');
 events.onmessage = event => {
   document.getElementById('events').textContent = event.data;
   if (event.data == 'over') events.close();
 };
</script></body></html>
")

(defun app (environment)
  "The application: a function of an environment, a plist, that returns a response, or a function of
a responder."
  (let ((path (getf environment :path-info)))
    (cond ((string= path "/") (list 200 '(:content-type "text/html; charset=utf-8") (list *page*)))
          ((string= path "/timer") #'after-a-moment)
          ((string= path "/primes") #'computed)
          ((string= path "/events") #'ticking)
          (t (list 404 '(:content-type "text/plain") (list "There is nothing here."))))))
