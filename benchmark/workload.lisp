(in-package #:recycling-benchmark)

;;;; A workload: what clients ask, how many of them there are, what is measured.

(defstruct workload
  "A workload.

NAME         what it is called on the command line and in tables
TITLE        what it is, for readers
NEEDS        what a server must serve, a list
CONNECTIONS  how many clients there are, each of which asks again as soon as it has its answer
PATH         what they ask for, or what is asked for to see whether it works
EXPECT       what the answer to a GET of PATH must contain, or to a POST of CONTENT, a string or NIL
SCRIPT       the requests in wrk.lua; NIL for a plain GET of PATH
IDLE         how many other connections are held, each asked once before and once after
LASTING      NIL for load by wrk, else the mode of load.c
SECONDS      for how long, or within which time, a LASTING load runs; NIL for as long as others
ROUNDS       at most so many rounds; NIL for as many as others
BY           the figure that compares servers: :RATE, or where the workload gives that, :P99"
  name title needs (connections 100) (path "/hello") (expect "Hey!") content script (idle 0)
  lasting seconds rounds (by :rate))

(defun up-to-limit (count)
  "COUNT connections, or as many as a server may have descriptors for, but for a few of its own."
  (min count (- (most-descriptors) 500)))

(defparameter *workloads*
  (list
   (make-workload :name "hello" :needs '(:hello)
                  :title "keep-alive, instant handler, 100 connections")
   (make-workload :name "close" :needs '(:hello) :script "close"
                  :title "connection closed after each request, instant handler, 100 connections")
   (make-workload :name "file" :needs '(:file) :path "/file" :expect "xxxxxxxx" :connections 50
                  :title "keep-alive, file of 16 KiB, 50 connections")
   (make-workload :name "wait" :needs '(:wait) :path "/wait"
                  :title "keep-alive, handler of 1 ms, 100 connections")
   (make-workload :name "tls" :needs '(:hello :tls)
                  :title "TLS, keep-alive, instant handler, 100 connections")
   (make-workload :name "tls-close" :needs '(:hello :tls) :script "close" :connections 50
                  ;; wrk resumes its sessions, as browsers do.
                  :title (format nil "TLS, resumed connection for each request, instant handler, ~
                                      50 connections"))
   (make-workload :name "mix" :needs '(:mix) :script "mix" :path "/mix?a=13&b=42" :content "20"
                  :expect "75"
                  :title "GET, POST, and POST in chunks, one third each, 100 connections")
   (make-workload :name "json" :needs '(:json) :script "json" :path "/json/5?m=7"
                  :expect "\"total\":" :title "JSON of 1 to 50 items, 100 connections")
   (make-workload :name "upload" :needs '(:upload) :script "upload" :path "/upload"
                  :content "Hello" :expect "5" :connections 4
                  :title "upload of 2 MB, 4 connections")
   (make-workload :name "row" :needs '(:database) :script "row" :path "/row?id=7"
                  :expect "\"price\":" :title "one row of PostgreSQL as JSON, 100 connections")
   (make-workload :name "fortunes" :needs '(:database) :path "/fortunes"
                  :expect "&lt;script&gt;"
                  :title "twelve rows of PostgreSQL, sorted, as HTML, 100 connections")
   (let ((count (up-to-limit 10000)))
     (make-workload :name "idle" :needs '(:hello) :idle count :rounds 2
                    :title (format nil "keep-alive, instant handler, 100 connections beside ~:d ~
                                        idle ones" count)))
   (make-workload :name "echo" :needs '(:websocket) :lasting "echo" :path "/echo" :expect nil
                  :title "echo of 32 octets, 100 WebSockets")
   (let ((count (up-to-limit 10000)))
     (make-workload :name "events" :needs '(:events) :lasting "events" :path "/events" :expect nil
                    :connections count :seconds 5 :rounds 2 :by :p99
                    :title (format nil "a server-sent event each second, ~:d clients" count)))
   (let ((count (up-to-limit 40000)))
     (make-workload :name "later" :needs '(:later) :lasting "once" :path "/later?ms=3000&n="
                    :expect nil :connections count :seconds 20 :rounds 2 :by :p99
                    :title (format nil "~:d requests at once, each answered after 3 s" count))))
  "All workloads, in the order of tables.  Those that leave most memory behind are the last.")

(defun find-workload (name)
  "The workload NAME, or NIL."
  (find name *workloads* :key #'workload-name :test #'string=))

(defun tls-workload-p (workload)
  "T if WORKLOAD is over TLS, else NIL."
  (and (member :tls (workload-needs workload)) t))

(defun serves-p (server workload)
  "True if SERVER serves what WORKLOAD needs."
  (and (subsetp (workload-needs workload) (server-serves server))
       (or *sockets* (not (member :database (workload-needs workload))))))
