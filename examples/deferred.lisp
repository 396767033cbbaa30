;;;; Answers that come later: the handler returns, and its thread turns to other requests.  A timer,
;;;; a pool of threads, or a thread that has asked another server gives the answer.
;;;;
;;;;   sbcl --load examples/deferred.lisp        and open http://127.0.0.1:4245/later

(require "asdf")

(unless (find-package '#:hunchentoot-recycling-taskmaster)
  (asdf:load-asd (merge-pathnames "../hunchentoot-recycling-taskmaster.asd" *load-truename*))
  (asdf:load-system "hunchentoot-recycling-taskmaster"))

(defpackage #:hunchentoot-recycling-taskmaster-later
  (:documentation "Answers that come later.")
  (:use #:common-lisp)
  (:local-nicknames (#:recycling #:hunchentoot-recycling-taskmaster))
  (:export #:serve))

(in-package #:hunchentoot-recycling-taskmaster-later)

(defun in-thread (name function)
  (bt:make-thread function :name name))

;;; By a timer: no thread waits.

(hunchentoot:define-easy-handler (by-timer :uri "/later/timer") ()
  (setf (hunchentoot:content-type*) "text/plain")
  (recycling:defer-reply (reply)
    (recycling:run-after 2 (lambda ()
                             (recycling:complete-reply reply "Two seconds later.")))))

;;; By lparallel, where that is loaded and has a kernel; else by a thread

(defun sum-of-primes (limit)
  (loop for number from 2 below limit
        when (loop for divisor from 2 to (isqrt number) never (zerop (mod number divisor)))
          sum number))

(defun call-in-pool (function)
  "Calls FUNCTION in a thread of lparallel's kernel, or in a new one.  Returns a string that says in
which."
  (let ((kernel (uiop:find-symbol* '#:*kernel* '#:lparallel nil)))
    (cond ((and kernel (symbol-value kernel))
           (uiop:symbol-call '#:lparallel '#:submit-task
                             (uiop:symbol-call '#:lparallel '#:make-channel) function)
           "lparallel")
          (t
           (in-thread "primes" function)
           "a thread of its own"))))

(hunchentoot:define-easy-handler (by-pool :uri "/later/primes") ()
  (setf (hunchentoot:content-type*) "text/plain")
  (recycling:defer-reply (reply)
    (call-in-pool (lambda ()
                    (handler-case
                        (recycling:complete-reply
                         reply (format nil "The primes below 200,000 sum up to ~:D."
                                       (sum-of-primes 200000)))
                      (error (condition) (recycling:fail-reply reply :reason condition)))))))

;;; By another server

(defun fetch (host port path)
  "What HOST answers on PORT to a request for PATH, with its head."
  (let ((socket (usocket:socket-connect host port :timeout 5)))
    (unwind-protect
         (let ((stream (usocket:socket-stream socket)))
           (dolist (line (list (format nil "GET ~A HTTP/1.1" path)
                               "Host: localhost" "Connection: close" ""))
             (format stream "~A~C~C" line #\Return #\Newline))
           (finish-output stream)
           (with-output-to-string (out)
             (loop for line = (read-line stream nil)
                   while line
                   do (write-line (string-right-trim '(#\Return) line) out))))
      (usocket:socket-close socket))))

(hunchentoot:define-easy-handler (by-request :uri "/later/fetch") ()
  (setf (hunchentoot:content-type*) "text/plain")
  (let ((port (hunchentoot:acceptor-port hunchentoot:*acceptor*)))
    (recycling:defer-reply (reply :timeout 10)
      (in-thread "fetch"
                 (lambda ()
                   (handler-case
                       (recycling:complete-reply reply (fetch "127.0.0.1" port "/later/timer"))
                     (error (condition) (recycling:fail-reply reply :reason condition))))))))

(hunchentoot:define-easy-handler (later-page :uri "/later") ()
  (setf (hunchentoot:content-type*) "text/html; charset=utf-8")
  "<!DOCTYPE html>
<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Later</title>
<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">
<link rel=\"icon\" href=\"data:,\">
<style>
 :root { color-scheme: light dark }
 body { margin: 0 auto; max-width: 44rem; padding: 2.5rem 1.25rem;
        font-family: system-ui, sans-serif; line-height: 1.55 }
 pre { padding: .8rem; border: 1px solid #8886; border-radius: 5px;
       white-space: pre-wrap }
</style></head><body>
<h1>Answers that come later</h1>
<h2>By a timer</h2><pre id=\"timer\">waiting</pre>
<h2>By a pool of threads</h2><pre id=\"primes\">waiting</pre>
<h2>By another server</h2><pre id=\"fetch\">waiting</pre>
<p><a href=\"/\">Home</a></p>
<script>
 for (const id of ['timer', 'primes', 'fetch']) {
   const show = text => document.getElementById(id).textContent = text;
   fetch('/later/' + id).then(response => response.text()).then(show, show);
 }
</script></body></html>
")

(defun serve (&key (port 4245) (address "127.0.0.1"))
  "Starts this on PORT of ADDRESS, and returns its acceptor."
  (let ((acceptor (hunchentoot:start
                   (make-instance 'recycling:parallel-easy-acceptor
                                  :port port :address address :document-root nil))))
    (format t "~&http://~A:~D/later~%" address (hunchentoot:acceptor-port acceptor))
    acceptor))

;; The demo loads this file for its handlers only.
(unless (find-package '#:hunchentoot-recycling-taskmaster-demo)
  (hunchentoot:define-easy-handler (front-page :uri "/") ()
    (hunchentoot:redirect "/later"))
  (serve))
