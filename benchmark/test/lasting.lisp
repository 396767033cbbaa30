;;;; What our programs for late answers, events and WebSockets notice: a server that does what they
;;;; expect, and the opposite where it is told to, is faults.js.

(in-package #:hunchentoot-recycling-taskmaster-benchmark/test)
(in-suite ruler)

(defparameter *late-line*
  "ruler held=0~%~
   ruler requests=20 duration_us=500000 least_us=1 p50_us=1500 p90_us=2000 p99_us=3000 p999_us=4000 ~
   max_us=5000 connect_errors=1 read_errors=2 write_errors=3 timeouts=4 non_2xx=5 wrong=6 extra=7 ~
   in_flight=8 all_us=9000"
  "What our programs print, all of them together.")

(test our-programs-compile-without-warnings
  (if (missing-programs "cc")
      (skip "a C compiler is missing")
      (dolist (file (uiop:directory-files (ruler::benchmark-file "native/") "*.c"))
        (unless (uiop:string-prefix-p "tls" (pathname-name file)) ; needs OpenSSL's headers
          (is (string= "" (ruler::output-of (list "cc" "-fsyntax-only" "-Wall" "-Wextra" file))))))))

(test figures-of-late-answers-become-measures
  (let ((figures (ruler::lasting-figures (ruler::parse-ruler-lines (format nil *late-line*)))))
    (is (about-p (getf figures :rate) 40))
    (is (eql 10 (getf figures :errors)))
    (is (eql 13 (getf figures :wrong)))
    (is (eql 8 (getf figures :in-flight)))
    (is (about-p (getf figures :all) 9))
    (is (about-p (getf figures :p99) 3))))

(test wrong-answers-cost-the-contest
  (with-temporary-results ()
    (let ((result (ruler::new-result)))
      (ruler::record-sample result (sample "ours" 100 :requests 100 :wrong 1))
      (is (search "1 requests failed"
                  (ruler::disqualification
                   (first (ruler::summarize (ruler::read-samples result)))))))))

;;; The server

(defun call-with-faults (function)
  "Call FUNCTION with the process of the server of faults.js, and its port, if there is what it
takes; else skip the test."
  (if (missing-programs "cc" "node")
      (skip "Node or a C compiler is missing")
      (let ((port (ruler::free-port)))
        (uiop:with-temporary-file (:pathname log)
          (ruler::with-process (server (list "node" (ruler::benchmark-file "test/faults.js") port)
                                       :log log)
            (is (ruler::wait-until (lambda ()
                                     (ruler::ask-plainly port (ruler::request-text "/yo" nil)))
                                   10))
            (funcall function server port))))))

(defun figures-told (words)
  "The figures that the command WORDS prints."
  (ruler::parse-ruler-lines (ruler::output-of words)))

(defun figures-of-late-answers (port fault &key (ms 100) (when 0.5) (patience 1))
  "What our program tells of 20 requests, whose answers are to come after MS milliseconds from the
server on PORT with FAULT; WHEN they are made, in so many seconds or when all are connected."
  (figures-told (list (ruler::later-program) port (if (stringp when) 20 40) when
                      (format nil "/later?ms=~d&fault=~a" ms fault) patience)))

(defun figures-of-events (port fault)
  "What our program tells of 10 subscribers to events of the server on PORT with FAULT."
  (figures-told (list (ruler::events-program) port 10 0.6 (format nil "/events?fault=~a" fault))))

(defun figures-of-echoes (port fault &key (seconds 0.3) (size 200) (burst 1))
  "What our program tells of 10 WebSockets to the server on PORT with FAULT, and messages of SIZE
octets, BURST of them at a time."
  (figures-told (append (ruler::websocket-words port 10 seconds)
                        (list size (format nil "/echo?fault=~a" fault) burst))))

(defun sum-of-failures (figures)
  "How much went wrong by FIGURES."
  (loop for name in '("connect_errors" "read_errors" "write_errors" "timeouts" "non_2xx" "wrong"
                      "extra" "malformed" "missing" "disordered")
        sum (or (ruler::figure name figures) 0)))

(defun only-failure-p (name count figures)
  "Are there COUNT failures called NAME in FIGURES, and no others?"
  (and (eql count (ruler::figure name figures))
       (eql count (sum-of-failures figures))))

;;; Late answers

(test late-answers-are-counted
  (call-with-faults
   (lambda (server port)
     (declare (ignore server))
     (dolist (fault '("none" "chunks"))
       (let ((figures (figures-of-late-answers port fault)))
         (is (eql 20 (ruler::figure "requests" figures)))
         (is (eql 20 (ruler::figure "sent" figures)))
         (is (eql 0 (sum-of-failures figures)))
         ;; Node's timers count in milliseconds, and may be early by one.
         (is (<= 99000 (ruler::figure "least_us" figures) (ruler::figure "max_us" figures)))
         (is (< 1 (ruler::figure "in_flight" figures) 20)))))))

(test all-are-in-flight-when-all-are-connected-first
  (call-with-faults
   (lambda (server port)
     (declare (ignore server))
     (let ((figures (figures-of-late-answers port "none" :when "open" :ms 300)))
       (dolist (name '("held" "requests" "in_flight"))
         (is (eql 20 (ruler::figure name figures))))
       (is (eql 0 (sum-of-failures figures)))))))

(test faults-of-late-answers-are-noticed
  (call-with-faults
   (lambda (server port)
     (declare (ignore server))
     (loop for (fault name) in '(("other" "wrong") ("more" "wrong") ("status" "non_2xx")
                                 ("lost" "read_errors") ("never" "timeouts"))
           do (dolist (when '(0.5 "open"))
                (let ((figures (figures-of-late-answers port fault :when when)))
                  (is (only-failure-p name 20 figures) "~a: ~s" fault figures)
                  (is (eql 0 (ruler::figure "requests" figures))))))
     (let ((figures (figures-of-late-answers port "twice" :when "open")))
       (is (only-failure-p "extra" 20 figures) "~s" figures))
     (is (only-failure-p "timeouts" 20 (figures-of-late-answers port "none" :ms 400 :patience 0.2)))
     (is (only-failure-p "connect_errors" 20
                         (figures-of-late-answers (ruler::free-port) "none"))))))

;;; Events

(test events-in-order-are-counted
  (call-with-faults
   (lambda (server port)
     (declare (ignore server))
     (dolist (fault '("none" "whole" "comments"))
       (let ((figures (figures-of-events port fault)))
         (is (eql 10 (ruler::figure "held" figures)))
         (is (< 5 (ruler::figure "expected" figures)))
         (is (eql (ruler::figure "expected" figures) (ruler::figure "least" figures)))
         (is (eql 0 (sum-of-failures figures)) "~a: ~s" fault figures)
         (is (eq (string= fault "comments") (plusp (ruler::figure "heartbeats" figures)))))))))

(test delays-of-events-count-from-their-times
  (call-with-faults
   (lambda (server port)
     (declare (ignore server))
     (let ((figures (figures-of-events port "late")))
       (is (<= 300000 (ruler::figure "least_us" figures)))
       (is (<= 300000 (ruler::figure "all_us" figures)))))))

(test faults-of-events-are-noticed
  (call-with-faults
   (lambda (server port)
     (declare (ignore server))
     (flet ((value (name fault)
              (ruler::figure name (figures-of-events port fault))))
       (is (plusp (value "missing" "gap")))
       (is (plusp (value "disordered" "gap")))
       (is (plusp (value "disordered" "repeat")))
       (is (eql 0 (value "missing" "repeat")))
       (is (eql 10 (value "malformed" "untimed")))
       (is (eql 10 (value "malformed" "unnumbered")))
       (is (eql 10 (value "non_2xx" "type")))
       (is (eql 10 (value "read_errors" "end")))))))

(test the-limit-of-events-gives-every-event
  (if (missing-programs "cc")
      (skip "a C compiler is missing")
      (uiop:with-temporary-file (:pathname log)
        (let ((port (ruler::free-port)))
          (ruler::with-process (server (list (ruler::c-program "publisher" "publisher.c" "client.c")
                                             port 10 1 50)
                                       :log log)
            (is (ruler::wait-until (lambda ()
                                     (ruler::ask-plainly port (ruler::request-text "/yo" nil)))
                                   5))
            (let ((figures (figures-of-events port "none")))
              (is (< 5 (ruler::figure "expected" figures)))
              (is (eql 0 (sum-of-failures figures)) "~s" figures))
            (ruler::wait-for-end server 5))
          (let ((figures (ruler::final-figures log)))
            (is (plusp (ruler::figure "writes" figures)))
            (is (plusp (ruler::figure "cpu_ns_per_write" figures))))))))

;;; WebSockets

(test echoes-are-counted
  (call-with-faults
   (lambda (server port)
     (declare (ignore server))
     (dolist (size '(20 125 126 65535 65536 300000))
       (let ((figures (figures-of-echoes port "none" :size size)))
         (is (plusp (ruler::figure "requests" figures)))
         (is (eql 0 (sum-of-failures figures)) "~d: ~s" size figures)))
     (let ((figures (figures-of-echoes port "fragments")))
       (is (plusp (ruler::figure "least" figures)))
       (is (plusp (ruler::figure "pings" figures)))
       (is (eql 0 (sum-of-failures figures))))
     (is (<= 100000 (ruler::figure "least_us" (figures-of-echoes port "late")))))))

(test faults-of-echoes-are-noticed
  (call-with-faults
   (lambda (server port)
     (declare (ignore server))
     (dolist (fault '("other" "shorter" "longer" "binary" "twice"))
       (is (plusp (ruler::figure "wrong" (figures-of-echoes port fault))) "~a" fault))
     (loop for (fault name) in '(("lost" "read_errors") ("closed" "read_errors") ("key" "non_2xx")
                                 ("masked" "malformed") ("reserved" "malformed")
                                 ("stray" "malformed"))
           for figures = (figures-of-echoes port fault)
           do (is (only-failure-p name 10 figures) "~a: ~s" fault figures)
              (is (eql 0 (ruler::figure "requests" figures))))
     (is (only-failure-p "timeouts" 10 (figures-of-echoes port "never" :seconds 2.3))))))

(test bursts-of-messages-are-echoed-one-by-one
  (call-with-faults
   (lambda (server port)
     (declare (ignore server))
     (let ((figures (figures-of-echoes port "none" :burst 16)))
       (is (<= 160 (ruler::figure "requests" figures)))
       (is (eql 0 (sum-of-failures figures))))
     (is (eql 160 (ruler::figure "alive" (figures-of-echoes port "none" :seconds "idle" :burst 16))))
     (dolist (fault '("other" "shorter" "longer" "binary" "twice"))
       (is (plusp (ruler::figure "wrong" (figures-of-echoes port fault :burst 16))) "~a" fault)))))

(test silent-websockets-are-asked-at-the-end
  (call-with-faults
   (lambda (server port)
     (declare (ignore server))
     (let ((figures (figures-of-echoes port "none" :seconds "idle")))
       (is (eql 10 (ruler::figure "held" figures)))
       (is (eql 10 (ruler::figure "alive" figures))))
     (let ((figures (figures-of-echoes port "other" :seconds "idle")))
       (is (eql 0 (ruler::figure "alive" figures)))
       (is (eql 10 (ruler::figure "wrong" figures)))))))

;;; In a run

(test each-workload-that-lasts-is-measured
  (call-with-faults
   (lambda (server port)
     (let ((ruler::*later-ms* 300)
           (ruler::*later-seconds* 1))
       (uiop:with-temporary-file (:pathname log)
         (flet ((figure (kind key)
                  (getf (ruler::measure-lasting
                         server port (ruler::make-workload :kind kind :delay-ms 0 :connections 10)
                         1 log)
                        key)))
           (is (eql 10 (figure :later :requests)))
           (is (eql 10 (figure :later-open :in-flight)))
           (is (plusp (figure :events :all)))
           (is (eql 0 (figure :events :wrong)))
           (is (plusp (figure :echo :cpu)))
           (is (eql 10 (figure :silent :alive)))
           (is (numberp (figure :silent :each)))))))))

(test messages-of-ws-come-back
  (handler-case (ruler::node-with-ws)
    (ruler:unavailable (condition)
      (skip "~a" condition))
    (:no-error (program)
      (declare (ignore program))
      (with-temporary-results ()
        (let ((figures (ruler::sample-figures
                        (first (ruler::read-samples
                                (small-run (list (ruler::find-rival "ws-1")) "echo-0ms-100"))))))
          (is (plusp (getf figures :rate)))
          (is (eql 0 (getf figures :wrong)))
          (is (eql 0 (getf figures :errors))))))))

;;; Ours

(defun library-exports-p (name)
  "Does the library, which is not loaded here, export NAME?"
  (search (format nil "#:~a" name)
          (uiop:read-file-string (merge-pathnames "src/package.lisp" ruler::*root*))))

(defun call-with-ours-deferred (name function)
  "Call FUNCTION with a server, ours with deferred replies, and a log, if the library exports NAME; else
skip the test."
  (if (or (not (library-exports-p name)) (missing-programs "cc"))
      (skip "~a is missing, or a C compiler" name)
      (with-temporary-results ()
        (let* ((result (ruler::new-result))
               (server (ruler::start-server (ruler::find-rival "ours-deferred") 0
                                            (ruler::log-file result "server"))))
          (unwind-protect (funcall function server (ruler::log-file result "load"))
            (ruler::stop-server server))))))

(defun figures-of-server (server kind connections log)
  "The figures of SERVER under a second of a workload of KIND and CONNECTIONS."
  (ruler::measure-lasting (ruler::server-process server) (ruler::server-port server)
                          (ruler::make-workload :kind kind :delay-ms 0 :connections connections)
                          1 log))

(test late-answers-of-ours-are-right
  (call-with-ours-deferred
   "defer-reply"
   (lambda (server log)
     (let* ((ruler::*later-ms* 500)
            (figures (figures-of-server server :later-open 200 log)))
       (is (eql 200 (getf figures :requests)))
       (is (eql 200 (getf figures :in-flight)))
       (is (eql 0 (getf figures :wrong)))
       (is (<= 500 (getf figures :p50)))))))

(test events-of-ours-come-to-all
  (call-with-ours-deferred
   "subscribe"
   (lambda (server log)
     (let ((figures (figures-of-server server :events 50 log)))
       (is (plusp (getf figures :requests)))
       (is (eql 0 (getf figures :wrong)))
       (is (eql 0 (getf figures :errors)))))))

(test messages-of-ours-come-back
  (call-with-ours-deferred
   "send-text"
   (lambda (server log)
     (let ((figures (figures-of-server server :echo 50 log)))
       (is (plusp (getf figures :requests)))
       (is (eql 0 (getf figures :wrong)))
       (is (eql 0 (getf figures :errors)))))))
