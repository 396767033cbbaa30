(in-package #:hunchentoot-recycling-taskmaster-benchmark)

;;;; What is asked of the servers.

;;; Kinds: what one client does

(defstruct kind
  "What the clients of a workload do, known by KEY, by NAME in the names of workloads and by
TITLE to people.  They ask for PATH with the HEADERS, strings, and post POSTED octets if that
is a number; over TLS if TLS-P, and HANDSHAKE, :FULL or :RESUMED, tells how each request begins
a connection of its own then.  HANDLER, for people, stands for the delay where that says nothing.
Servers must not lack one of NEEDS; TOOLS are the load tools without which there is nothing to
measure.  LOADER is the load tool that loads the server, and SERVICE what the server is loaded
for, one of *SERVICES*.  COUNTED-P: is it also counted, with plain requests, who is served?
EXTRA-SECONDS is what a round takes beyond the load, about."
  key name title (path "/yo") headers posted tls-p handshake handler needs tools (loader :wrk)
  (service :plain) counted-p (extra-seconds 0))

(defparameter *browser-headers*
  '("Connection: keep-alive"
    "User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0"
    "Accept: text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"
    "Accept-Language: en-GB,en;q=0.7,de;q=0.3"
    "Accept-Encoding: gzip, deflate, br"
    "Referer: http://localhost/articles/2025/threads?page=2"
    "Cookie: session=9f86d081884c7d659a2feaa0c55ad015; theme=dark; lang=en; seen=17%2C23%2C42"
    "Upgrade-Insecure-Requests: 1"
    "Sec-Fetch-Dest: document"
    "Sec-Fetch-Mode: navigate"
    "Sec-Fetch-Site: same-origin")
  "What a browser sends besides Host.")

(defparameter *upload-octets* (* 10 1024 1024)
  "The size of an upload.")

(defparameter *kinds*
  (list
   (make-kind :key :keep-alive :name "keep" :title "keep-alive" :counted-p t)
   (make-kind :key :close :name "close" :title "connection closed after each request"
              :headers '("Connection: close") :counted-p t)
   (make-kind :key :idle :name "idle" :title "keep-alive beside thousands of idle connections"
              :tools '(:idle) :counted-p t :extra-seconds 10)
   (make-kind :key :browser :name "browser" :title "keep-alive, requests as browsers send them"
              :path "/yo?article=4711&view=full&highlight=thread+pool&page=2"
              :headers *browser-headers* :tools '(:wrk) :counted-p t)
   (make-kind :key :file16k :name "file16k" :title "keep-alive" :handler "file of 16 KiB"
              :path "/files/16k.bin" :needs '(:files) :tools '(:wrk) :counted-p t)
   (make-kind :key :file1m :name "file1m" :title "keep-alive" :handler "file of 1 MiB"
              :path "/files/1m.bin" :needs '(:files) :tools '(:wrk) :counted-p t)
   (make-kind :key :upload :name "upload" :title "keep-alive" :handler "upload of 10 MiB"
              :path "/upload" :posted *upload-octets* :needs '(:uploads) :tools '(:wrk))
   (make-kind :key :mixed :name "mixed"
              :title "keep-alive" :handler "instant handler beside one of 100 ms for one in ten"
              :needs '(:wait) :tools '(:wrk) :counted-p t :extra-seconds 3)
   (make-kind :key :burst :name "burst" :title "all at once, from rest"
              :tools '(:burst) :loader :burst :extra-seconds 1)
   (make-kind :key :tls-keep-alive :name "tls-keep" :title "TLS, keep-alive" :tls-p t
              :tools '(:certificate :wrk) :counted-p t)
   (make-kind :key :tls-full :name "tls-full" :title "TLS, whole handshake for each request"
              :tls-p t :handshake :full :tools '(:certificate :tls) :loader :tls)
   (make-kind :key :tls-resumed :name "tls-resumed"
              :title "TLS, resumed connection for each request"
              :tls-p t :handshake :resumed :tools '(:certificate :tls) :loader :tls)
   (make-kind :key :tls-file16k :name "tls-file16k" :title "TLS, keep-alive"
              :handler "file of 16 KiB" :path "/files/16k.bin" :tls-p t :needs '(:files)
              :tools '(:certificate :wrk) :counted-p t)
   (make-kind :key :tls-file1m :name "tls-file1m" :title "TLS, keep-alive"
              :handler "file of 1 MiB" :path "/files/1m.bin" :tls-p t :needs '(:files)
              :tools '(:certificate :wrk) :counted-p t)
   (make-kind :key :later :name "later" :title "new connections, some thousand each second"
              :handler "answer after 5 s" :service :later :tools '(:deferred) :loader :deferred
              :extra-seconds 10)
   (make-kind :key :later-open :name "later-open" :title "asked when all are connected"
              :handler "answer after 5 s" :service :later :tools '(:deferred) :loader :deferred
              :extra-seconds 10)
   (make-kind :key :later-many :name "later-many" :title "asked when all are connected"
              :handler "answer after 5 s" :service :many :tools '(:deferred) :loader :deferred
              :extra-seconds 15)
   (make-kind :key :events :name "events" :title "server-sent events"
              :handler "an event each second" :service :events :tools '(:events) :loader :events
              :extra-seconds 10)
   (make-kind :key :echo :name "echo" :title "WebSockets" :handler "messages of 32 octets sent back"
              :service :messages :tools '(:websocket) :loader :websocket)
   (make-kind :key :echo16 :name "echo16" :title "WebSockets, sixteen messages at a time"
              :handler "messages of 32 octets sent back"
              :service :messages :tools '(:websocket) :loader :websocket)
   (make-kind :key :silent :name "silent" :title "WebSockets" :handler "nobody says anything"
              :service :messages :tools '(:websocket) :loader :websocket :extra-seconds 10))
  "All kinds.")

(defun find-kind (key)
  "The kind of KEY."
  (find key *kinds* :key #'kind-key))

(defun delay-title (delay-ms)
  "A handler that waits DELAY-MS, for people."
  (if (zerop delay-ms) "instant handler" (format nil "handler of ~d ms" delay-ms)))

;;; Workloads

(defstruct workload
  "CONNECTIONS clients of KIND, the key of one, that each ask again as soon as they are
answered, by a handler that waits DELAY-MS milliseconds."
  kind delay-ms connections)

(defun kind-of (workload)
  "The kind of WORKLOAD itself."
  (find-kind (workload-kind workload)))

(defun series-name (workload)
  "What WORKLOAD has in common with those that differ in connections only: keep-1ms."
  (format nil "~a-~dms" (kind-name (kind-of workload)) (workload-delay-ms workload)))

(defun series-title (workload)
  "SERIES-NAME for people."
  (let ((kind (kind-of workload)))
    (format nil "~a, ~a" (kind-title kind)
            (or (kind-handler kind) (delay-title (workload-delay-ms workload))))))

(defun workload-name (workload)
  "What WORKLOAD is called on the command line and in files: keep-1ms-100."
  (format nil "~a-~d" (series-name workload) (workload-connections workload)))

(defun workload-title (workload)
  "What WORKLOAD is called in charts and reports."
  (format nil "~a, ~a connections" (series-title workload)
          (grouped (workload-connections workload))))

(defun slow-clients (workload)
  "How many of the clients of WORKLOAD ask the slow handler."
  (if (eq (workload-kind workload) :mixed)
      (ceiling (workload-connections workload) 10)
      0))

(defun measured-clients (workload)
  "How many clients of WORKLOAD are measured: all but those of the slow handler."
  (- (workload-connections workload) (slow-clients workload)))

(defun workload-needs (workload)
  "What a server must not lack for WORKLOAD; :SHORT-WAIT, which nobody lacks who has :WAIT, tells
waits of a few milliseconds, to which the steps of a timer matter."
  (append (when (plusp (workload-delay-ms workload)) '(:wait))
          (when (< 0 (workload-delay-ms workload) 10) '(:short-wait))
          (kind-needs (kind-of workload))))

(defun caveat (rival workload)
  "What the figures of RIVAL under WORKLOAD do not mean, a sentence; or NIL."
  (loop for need in (workload-needs workload)
          thereis (getf (rival-caveats rival) need)))

(defun obstacle (rival workload)
  "Why RIVAL can't take part under WORKLOAD, a sentence; or NIL."
  (let ((kind (kind-of workload)))
    (cond ((and (kind-tls-p kind) (not (rival-tls rival)))
           "it is not set up for TLS here")
          ((not (member (kind-service kind) (rival-services rival)))
           "it is not set up for this here")
          (t (loop for need in (workload-needs workload)
                     thereis (getf (rival-lacks rival) need))))))

;;; Setups: servers with the same run side by side

(defstruct (setup (:constructor make-setup (delay-ms tls-p)))
  "What a server is started for: a handler that waits DELAY-MS milliseconds, over TLS if TLS-P."
  delay-ms tls-p)

(defun setup-of (workload)
  "The setup that a server needs for WORKLOAD."
  (make-setup (workload-delay-ms workload) (kind-tls-p (kind-of workload))))

(defun setup-title (setup)
  "SETUP for people."
  (format nil "~d ms~:[~; over TLS~]" (setup-delay-ms setup) (setup-tls-p setup)))

(defun setup-name (setup)
  "SETUP in the names of logs."
  (format nil "~dms~:[~;-tls~]" (setup-delay-ms setup) (setup-tls-p setup)))

(defun setups (workloads)
  "The setups of WORKLOADS, each once, those without TLS first."
  (sort (remove-duplicates (mapcar #'setup-of workloads) :test #'equalp :from-end t)
        #'< :key (lambda (setup)
                   (+ (setup-delay-ms setup) (if (setup-tls-p setup) most-positive-fixnum 0)))))

(defparameter *workloads*
  (flet ((workload (kind delay-ms connections)
           (make-workload :kind kind :delay-ms delay-ms :connections connections)))
    (append (loop for delay-ms in '(0 1 10)
                  append (loop for kind in '(:keep-alive :close)
                               append (loop for connections in '(10 100 400 1000)
                                            collect (workload kind delay-ms connections))))
            (list (workload :idle 0 100)
                  (workload :idle 1 100)
                  (workload :browser 0 100)
                  (workload :file16k 0 50)
                  (workload :file1m 0 50)
                  (workload :upload 0 4)
                  (workload :mixed 0 200)
                  (workload :burst 100 100)
                  (workload :tls-keep-alive 0 100)
                  (workload :tls-full 0 50)
                  (workload :tls-resumed 0 50)
                  (workload :tls-file16k 0 50)
                  (workload :tls-file1m 0 50)
                  (workload :later 0 18000)
                  (workload :later-open 0 18000)
                  (workload :later-many 0 40000)
                  (workload :events 0 10000)
                  (workload :echo 0 100)
                  (workload :echo16 0 100)
                  (workload :silent 0 10000))))
  "The whole matrix, and what is no part of one.")

(defparameter *quick-workloads* '("keep-0ms-100" "close-0ms-100" "keep-1ms-100" "close-1ms-100")
  "The names of the few workloads of the quick run.")

(defparameter *standard-workloads*
  '("keep-0ms-100" "keep-0ms-1000" "close-0ms-100" "keep-1ms-100" "keep-1ms-400" "close-1ms-100"
    "keep-10ms-400" "browser-0ms-100" "file16k-0ms-50" "upload-0ms-4" "mixed-0ms-200"
    "tls-keep-0ms-100" "tls-full-0ms-50" "tls-resumed-0ms-50" "tls-file16k-0ms-50"
    "tls-file1m-0ms-50")
  "The names of the workloads of the standard run, which is what the README shows: something of
everything, and what is hard on us.")

(defun workloads-of-set (set)
  "The workloads of the run called SET: :QUICK, :STANDARD or :FULL."
  (ecase set
    (:quick (mapcar #'find-workload *quick-workloads*))
    (:standard (remove-if-not (lambda (workload)
                                (member (workload-name workload) *standard-workloads*
                                        :test #'string=))
                              *workloads*))
    (:full *workloads*)))

(defun find-workload (name)
  "The workload called NAME, or NIL."
  (find name *workloads* :key #'workload-name :test #'string=))

(defun title-of (name)
  "The title of the workload called NAME; NAME itself when it is known no more."
  (let ((workload (find-workload name)))
    (if workload (workload-title workload) name)))

(defun select-workloads (patterns)
  "The workloads that some of PATTERNS name.  A pattern is a name, or some of its
parts: \"close\" is every workload that closes, \"0ms-100\" all of the 0 ms ones
with 100 connections.  Those over TLS are meant only by patterns with \"tls\", and those of another
service than :PLAIN only by patterns with the beginning of their names.  An error when a pattern names
none."
  (flet ((matches-p (pattern workload)
           (let ((wanted (split pattern '(#\-)))
                 (parts (split (workload-name workload) '(#\-))))
             (flet ((tls-p (parts) (and (member "tls" parts :test #'string=) t)))
               (and (subsetp wanted parts :test #'string=)
                    (eq (tls-p wanted) (tls-p parts))
                    (or (eq (kind-service (kind-of workload)) :plain)
                        (member (first parts) wanted :test #'string=)))))))
    (dolist (pattern patterns)
      (unless (some (lambda (workload) (matches-p pattern workload)) *workloads*)
        (mistake "No workload is called ~a.  There are:~{ ~a~}."
               pattern (mapcar #'workload-name *workloads*))))
    (remove-if-not (lambda (workload)
                     (some (lambda (pattern) (matches-p pattern workload)) patterns))
                   *workloads*)))
