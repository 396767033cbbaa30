(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; The live page, for people who want to see a server at work.
;;;;
;;;;   request                  response
;;;;   GET, HEAD  /live         the page, live.html
;;;;   GET        /live/events  a stream of snapshots: those of two minutes, then one each second
;;;;   POST       /live/worker  where the worker is that the query names

(defparameter *live-html*
  #.(uiop:read-file-string (merge-pathnames "live.html"
                                            (or *compile-file-truename* *load-truename*))
                           :external-format :utf-8)
  "The live page, a string that has NONCE where a nonce is to be: live.html becomes a part of the
program when this file is compiled.")

(defun live-page ()
  "The live page: four values, of which the last is a plist of further headers.  Nothing but its
own script runs in it, which has a nonce (Content Security Policy Level 3, section 2.3.1), and it
asks no other server."
  ;; The state is made anew, or processes of one saved image would have the same nonces.
  (let ((nonce (format nil "~36R" (random (expt 2 128) (make-random-state t)))))
    (multiple-value-call #'values
      (text-page 200 "text/html; charset=utf-8"
                 (uiop:frob-substrings *live-html* '("NONCE") nonce))
      (list :content-security-policy
            (format nil "default-src 'none'; script-src 'nonce-~A'; style-src 'nonce-~:*~A'; ~
                         connect-src 'self'; img-src data:; base-uri 'none'; ~
                         form-action 'none'; frame-ancestors 'none'"
                    nonce)
            :x-content-type-options "nosniff"
            :referrer-policy "no-referrer"
            :cross-origin-resource-policy "same-origin"))))

(defun make-live-page (path servers allow)
  "A function of an exchange.  It returns what the request gets of the live page of SERVERS
at PATH, of which ALLOW is the argument: NIL; a function that makes a page; or a LIVE-FEED, for
ADD-VIEWER.  From the first request on the servers are watched.  Signals UNFIT-ARGUMENT."
  (flet ((test-below (name method)
           (make-page-test (format nil "~A/~A" (string-right-trim "/" path) name) allow
                           :methods (list method))))
    (let ((page-p (make-page-test path allow))
          (events-p (test-below "events" :get))
          (worker-p (test-below "worker" :post)))
      (lambda (exchange)
        (let* ((servers (or servers (list (exchange-application exchange))))
               (feed (watch-servers (exchange-engine exchange) servers)))
          (cond ((funcall page-p exchange) #'live-page)
                ((funcall events-p exchange) feed)
                ((funcall worker-p exchange)
                 (lambda () (answer-about-worker servers (exchange-head exchange))))))))))

;;; What the page shows of one moment, as JSON

(defun worker-row (worker)
  "The object for WORKER, a plist of LIST-WORKERS."
  (destructuring-bind (&key number activity seconds task &allow-other-keys) worker
    (let ((request
            (handler-case
                (let ((head (and (typep task 'exchange) (exchange-head task))))
                  (and head
                       (list :seconds (/ (exchange-duration task) 1000000)
                             :method (printed (head-method head))
                             :uri (shortened (head-uri head) 300)
                             :client (and (exchange-http task)
                                          (http-address (exchange-http task))))))
              (error () '()))))         ; its thread has gone on to another one
      (list* :number number
             :state (string-downcase activity)
             ;; Since a worker may serve several requests in a row.
             :seconds (getf request :seconds seconds)
             request))))

(defun server-snapshot (server workers-p)
  "A plist about SERVER, with its workers one by one if WORKERS-P."
  (let* ((workers (loop for worker in (workers-of server)
                        ;; One that is only busy with the snapshot would wait without the page.
                        collect (if (and (getf worker :current-p) (null (getf worker :task)))
                                    (list* :activity :waiting :seconds nil worker)
                                    worker)))
         (shown (and workers-p
                     (sort (copy-list workers) #'>
                           :key (lambda (worker) (or (getf worker :seconds) -1))))))
    (list* :server (place-of server)
           :ready (if (ready-p server) 1 0)
           :states (loop for state in '(:serving :blocked :keep-alive :waiting :suspended :starting)
                         collect state
                         collect (count state workers
                                        :key (lambda (worker) (getf worker :activity))))
           :workers (map 'vector #'worker-row
                         (subseq shown 0 (min 100 (length shown)))) ; those at work for longest
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
                           :collected (collection-seconds))
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

(defun answer-about-worker (servers head)
  "The page, three values, that tells as JSON (RFC 8259) where a worker of SERVERS, a list, is.  The
query of HEAD, of the request, is the index of its server in SERVERS, a hyphen and its number, in
decimal digits.  The member \"frames\" is null, or an array of names of functions, the innermost
first.  Then \"reason\" is null, or \"idle\", since it serves nothing; \"busy\", since it allows no
interrupt; \"ended\"; or \"unknown\", where this Lisp cannot tell.  The request has to have the
header field Live-Page.  A page of another site cannot send that without this server's permission,
so no link and no form makes a server interrupt its threads."
  (if (null (head-header head "Live-Page"))
      (text-page 403 "text/plain; charset=utf-8"
                 (format nil "Only the live page may ask that.~%"))
      (let* ((uri (head-uri head))
             (worker (loop for server in servers
                           for index from 0
                             thereis (find (subseq uri (1+ (or (position #\? uri) -1)))
                                           (workers-of server)
                                           :test #'string=
                                           :key (lambda (worker)
                                                  (format nil "~D-~D"
                                                          index (getf worker :number))))))
             (frames
               (cond ((null (getf worker :thread)) :ended) ; or it is being made
                     ((not (member (getf worker :activity) '(:serving :blocked))) :idle)
                     ;; It may defer the interrupt for half a second.
                     (t (frames-of-thread (getf worker :thread) 1/2))))
             (told-p (listp frames)))
        (flet ((frame-text (name)
                 (let ((*package* (load-time-value (find-package '#:common-lisp)))
                       (*print-case* :downcase) (*print-pretty* nil)
                       (*print-length* 6) (*print-level* 4))
                   (shortened (if (stringp name) name (prin1-to-string name)) 200))))
          (json-page (list* :reason (if told-p nil (string-downcase frames))
                            :frames (and told-p (map 'vector #'frame-text frames))
                            (and worker (worker-row worker))))))))

;;; The events of live pages
;;;
;;; A feed for each engine and list of servers takes a snapshot each second, by a timer of that
;;; engine, and keeps those of the last two minutes, so that a page that somebody opens when
;;; something is wrong shows how it came to that.  All pages that were opened through one engine
;;; share its feed.
;;;
;;;   event                       the feed of the engine
;;;   the engine's first request  is made, with a timer
;;;   the timer rings             keeps a snapshot, sends it to its viewers, sets the timer again
;;;   a page is opened            gets a viewer, to which it sends what it has kept
;;;   a page is closed            loses its viewer
;;;   the engine stops            loses its timer and all viewers, since their streams end

(defstruct (live-feed (:include opaque) (:constructor make-live-feed (engine servers)))
  "What the pages that were opened through ENGINE get: snapshots of SERVERS."
  (engine nil :read-only t)
  (servers '() :read-only t)
  (history '())                         ; SNAPSHOT-OCTETS without workers, the last first
  (viewers '()))                        ; functions, which send an event to an open page

(defvar *live-feeds* '()
  "The feeds of all engines.")

(defvar *live-feeds-lock* (bt:make-lock "live pages")
  "Guards *LIVE-FEEDS* and their viewers.")

(defun watch-servers (engine servers)
  "The feed of ENGINE for SERVERS, a list.  The first call makes it; it may be called for each
request."
  (flet ((known ()
           (find-if (lambda (feed)
                      (and (eq engine (live-feed-engine feed))
                           (equal servers (live-feed-servers feed))))
                    *live-feeds*)))
    (or (known)
        (with-lock-briefly (*live-feeds-lock*)
          (or (known)
              (let ((feed (make-live-feed engine servers)))
                (await-snapshot feed)
                (setf *live-feeds* (cons feed (remove-if #'engine-stopped-p *live-feeds*
                                                         :key #'live-feed-engine)))
                feed))))))

(defun await-snapshot (feed)
  "Has a timer keep a snapshot of FEED, send it to the viewers, and so on."
  (schedule (live-feed-engine feed) 1
            (lambda ()
              (await-snapshot feed)     ; first, so that a failure here does not end the feed
              (let ((kept (cons (snapshot-octets (live-feed-servers feed) nil)
                                (live-feed-history feed)))
                    (viewers (with-lock-briefly (*live-feeds-lock*) (live-feed-viewers feed))))
                (setf (live-feed-history feed)
                      (subseq kept 0 (min 119 (length kept)))) ; two minutes, with the next one
                (when viewers
                  (let ((event (snapshots-event
                                (list (snapshot-octets (live-feed-servers feed) t)))))
                    (dolist (viewer viewers)
                      (funcall viewer event))))))))

(defun add-viewer (feed shared-queue)
  "Sends the snapshots of FEED to SHARED-QUEUE: those of the last two minutes, then one each second,
which it shares with the other viewers.  A slow client misses some.  Ends when the client leaves or
the server stops.  The result has no meaning."
  (let ((viewer (lambda (event)
                  (let ((octets (framed event (shared-queue-framing shared-queue))))
                    (put-waiting shared-queue nil
                                 (lambda () (put-in-shared-queue shared-queue octets)))))))
    (with-lock-briefly (*live-feeds-lock*)
      (push viewer (live-feed-viewers feed)))
    (call-when-over shared-queue
                    (lambda ()
                      (with-lock-briefly (*live-feeds-lock*)
                        (setf (live-feed-viewers feed)
                              (remove viewer (live-feed-viewers feed))))))
    (funcall viewer (snapshots-event (reverse (cons (snapshot-octets (live-feed-servers feed) t)
                                                    (live-feed-history feed)))))))
