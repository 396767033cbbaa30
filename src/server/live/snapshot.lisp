(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; What the live page shows of one moment, as JSON.

(defparameter *most-workers-shown* 100
  "How many workers of a server a snapshot tells of one by one: those that have been at their
requests for longest, where there are more.")

(defparameter *most-uri-shown* 300
  "How many characters of a request's target a snapshot has.")

(defvar *backtraces* 0
  "How often a worker was asked where it is, since the start of this Lisp.")

(defun cut-text (text length)
  "TEXT, a string, or its first LENGTH characters and an ellipsis."
  (if (> (length text) length)
      (format nil "~A..." (subseq text 0 length))
      text))

(defun request-facts (exchange)
  "A plist about the request of EXCHANGE, which another thread serves: for how many :SECONDS so far,
its :METHOD, its :URI and its :CLIENT, strings; () where it has none."
  (let ((head (exchange-head exchange))
        (http (exchange-http exchange)))
    (and head
         (list :seconds (/ (exchange-duration exchange) 1000000)
               :method (printed (head-method head))
               :uri (cut-text (head-uri head) *most-uri-shown*)
               :client (and http (http-address http))))))

(defun worker-row (worker)
  "The object for WORKER, a plist of LIST-WORKERS."
  (destructuring-bind (&key number activity seconds task current-p &allow-other-keys) worker
    (let ((request (and (typep task 'exchange)
                        (handler-case (request-facts task)
                          (error () '()))))) ; its thread has gone on to another one
      (list* :number number
             :state (string-downcase activity)
             ;; Since a worker may serve several requests in a row.
             :seconds (getf request :seconds seconds)
             (if current-p
                 (list* :here 1 request)
                 request)))))

(defun workers-shown (workers)
  "Those of WORKERS, a list of LIST-WORKERS, that a snapshot shows."
  (if (<= (length workers) *most-workers-shown*)
      workers
      (sort (subseq (stable-sort (copy-list workers) #'>
                                 :key (lambda (worker) (or (getf worker :seconds) -1)))
                    0 *most-workers-shown*)
            #'< :key (lambda (worker) (getf worker :number)))))

(defun workers-of (server)
  "The workers of SERVER as LIST-WORKERS returns them; () where it has none of ours."
  (let ((engine (server-engine server)))
    (and engine (list-workers engine))))

(defun server-snapshot (server workers-p)
  "A plist about SERVER, with its workers one by one if WORKERS-P."
  (let ((workers (loop for worker in (workers-of server)
                       ;; One that is only busy with the snapshot would wait without the page.
                       collect (if (and (getf worker :current-p) (null (getf worker :task)))
                                   (list* :activity :waiting :seconds nil worker)
                                   worker))))
    (list* :server (place-of server)
           :ready (if (ready-p server) 1 0)
           :states (loop for state in '(:serving :blocked :keep-alive :waiting :suspended :starting)
                         collect state
                         collect (count state workers
                                        :key (lambda (worker) (getf worker :activity))))
           :workers (map 'vector #'worker-row (and workers-p (workers-shown workers)))
           (stats server))))

(defun snapshot-octets (servers workers-p)
  "A snapshot of SERVERS, a list, and of this process, as JSON (RFC 8259), which has no line ends;
with the workers if WORKERS-P."
  (nth-value
   2 (json-page
      (list :at (milliseconds)
            :process (list :lisp (format nil "~A ~A" (lisp-implementation-type)
                                         (lisp-implementation-version))
                           :processors (processor-count)
                           :computed (/ (get-internal-run-time) internal-time-units-per-second)
                           :heap (heap-used)
                           :heap-limit (heap-octets)
                           :collected (collection-seconds)
                           :backtraces *backtraces*)
            :servers (map 'vector (lambda (server) (server-snapshot server workers-p))
                          servers)))))

(defun snapshots-event (snapshots)
  "An event (HTML Living Standard, section 9.2) with SNAPSHOTS, a list of results of
SNAPSHOT-OCTETS, as a JSON array."
  (let ((output (make-output)))
    (encode-string output (format nil "retry: 1000~%event: snapshots~%data: [") :utf-8)
    (loop for (octets . more) on snapshots
          do (encode-octets output octets)
             (encode-string output (if more "," "") :utf-8))
    (encode-string output (format nil "]~2%") :utf-8)
    (subseq (output-octets output) 0 (output-fill output))))

;;; Where a worker is

(defparameter *backtrace-seconds* 1/2
  "For how many seconds a worker may defer the interrupt by which it tells where it is.")

(defvar *backtrace-lock* (bt:make-lock "backtrace")
  "Held while a worker is asked where it is: so a client that asks often keeps one thread, not
all.")

(defun boring-frame-p (name)
  "True if NAME, of a function, tells nothing that those around it do not."
  (or (equal name "bogus stack frame")
      (and (consp name)
           (eq 'flet (first name))
           (or (stringp (second name))
               (member (symbol-name (second name)) '("BODY" "THUNK" "CLEANUP-FUN")
                       :test #'string=)))))

(defun frame-text (name)
  "NAME, of a function, as text of one line."
  (handler-case
      (let ((*package* (load-time-value (find-package '#:common-lisp)))
            (*print-case* :downcase) (*print-pretty* nil) (*print-circle* nil)
            (*print-length* 6) (*print-level* 4) (*print-readably* nil))
        (when (and (consp name)         ; what only SBCL calls a method
                   (symbolp (first name))
                   (member (symbol-name (first name)) '("FAST-METHOD" "SLOW-METHOD")
                           :test #'string=))
          (setf name (cons 'method (rest name))))
        (cut-text (if (stringp name) name (prin1-to-string name)) 200))
    (error () "?")))

(defun ask-worker (worker)
  "Where WORKER, a plist of LIST-WORKERS or NIL, is: a list of strings, the innermost function
first, or a keyword for why that is not told."
  (cond ((null (getf worker :thread)) :ended) ; or it is being made
        ((not (member (getf worker :activity) '(:serving :blocked))) :idle)
        (t
         (if (bt:acquire-lock *backtrace-lock* nil)
             (unwind-protect
                  (let ((names (frames-of-thread (getf worker :thread) *backtrace-seconds*)))
                    (incf *backtraces*)
                    (if (listp names)
                        (mapcar #'frame-text (remove-if #'boring-frame-p names))
                        names))
               (bt:release-lock *backtrace-lock*))
             :later))))

(defun find-worker (servers name)
  "The worker, a plist of LIST-WORKERS, called NAME: the index of its server in SERVERS, a list, a
hyphen and its number, in decimal digits; or NIL."
  (loop for server in servers
        for index from 0
          thereis (find-if (lambda (worker)
                             (string= name (format nil "~D-~D" index (getf worker :number))))
                           (workers-of server))))

(defun worker-page (servers name)
  "The page, three values, that tells as JSON (RFC 8259) where a worker of SERVERS, a list, is.
NAME is its name, as FIND-WORKER takes it, or NIL.  The member \"frames\" is null, or an array of
names of functions, the innermost first.  Then \"reason\" is null, or \"idle\", since it serves
nothing; \"busy\", since it allows no interrupt; \"later\", since another one is being asked;
\"ended\"; or \"unknown\", where this Lisp cannot tell."
  (let* ((worker (and name (find-worker servers name)))
         (frames (ask-worker worker)))
    (json-page (list* :reason (and (symbolp frames) frames (string-downcase frames))
                      :frames (and (consp frames) (coerce frames 'vector))
                      (and worker (worker-row worker))))))
