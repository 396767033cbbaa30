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
            :x-content-type-options "nosniff"))))

(defun make-live-page (path servers allow)
  "A function of an exchange.  It returns what the request gets of the live page of SERVERS
at PATH, of which ALLOW is the argument: NIL; a function that makes a page; or a FEED, of which it
gets SEND-SNAPSHOTS.  From the first request on the servers are watched, so that a page that
somebody opens when something is wrong shows how it came to that.  Signals UNFIT-ARGUMENT."
  (flet ((test-below (name method)
           (make-page-test (format nil "~A/~A" path name) allow
                           :methods (list method))))
    (let ((page-p (make-page-test path allow))
          (events-p (test-below "events" :get))
          (worker-p (test-below "worker" :post))
          (feeds '())                   ; one for each engine
          (lock (bt:make-lock "live page")))
      (lambda (exchange)
        (let* ((servers (or servers (list (exchange-application exchange))))
               (engine (exchange-engine exchange))
               (feed (or (find engine feeds :key #'feed-engine)
                         (with-lock-briefly (lock)
                           (or (find engine feeds :key #'feed-engine)
                               (let ((feed (make-feed engine servers)))
                                 (keep-snapshots feed)
                                 (push feed feeds)
                                 feed))))))
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
                       (list :method (princ-to-string (head-method head))
                             :uri (head-uri head)
                             :client (http-address (exchange-http task)))))
              (error () '()))))         ; its thread has gone on to another one
      (list* :number number
             :state (string-downcase activity)
             :seconds seconds
             request))))

(defun server-snapshot (server workers-p)
  "A plist about SERVER, with its workers if WORKERS-P."
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
           :workers (map 'vector #'worker-row (and workers-p workers))
           (stats server))))

(defun snapshot (servers workers-p)
  "A snapshot of SERVERS, a list, with their workers if WORKERS-P, and of this process: the octets
of JSON (RFC 8259), without line ends."
  (encoded
   (lambda (output)
     (encode-json output
                  (list :at (milliseconds)
                        :process (list :lisp (format nil "~A ~A" (lisp-implementation-type)
                                                     (lisp-implementation-version))
                                       :computed (/ (get-internal-run-time)
                                                    internal-time-units-per-second)
                                       :heap (heap-used)
                                       :heap-limit (heap-octets)
                                       :collected (collection-seconds))
                        :servers (map 'vector (lambda (server) (server-snapshot server workers-p))
                                      servers))))))

(defstruct (feed (:include opaque) (:constructor make-feed (engine servers)))
  "What the pages that were opened through ENGINE show: SERVERS, with snapshots of the last two
minutes, the last first."
  (engine nil :read-only t)
  (servers '() :read-only t)
  (snapshots '()))

(defun keep-snapshots (feed)
  "Has a timer keep a snapshot for FEED each second."
  (schedule (feed-engine feed) 1
            (lambda ()
              (keep-snapshots feed)     ; first, so that a failure here does not end the feed
              (let ((kept (cons (snapshot (feed-servers feed) nil) (feed-snapshots feed))))
                (setf (feed-snapshots feed) (subseq kept 0 (min 119 (length kept))))))))

(defun send-snapshots (feed shared-queue &optional (kept (feed-snapshots feed)))
  "Sends events (HTML Living Standard, section 9.2) to SHARED-QUEUE, each an array of snapshots:
those that FEED has KEPT and one of now, and one each second, until the client leaves or the server
stops.  A slow client misses some."
  (unless (shared-queue-shut-p shared-queue)
    (schedule (shared-queue-engine shared-queue) 1
              (lambda () (send-snapshots feed shared-queue '())))
    (let ((event (encoded
                  (lambda (output)
                    (encode-string output (format nil "retry: 1000~%event: snapshots~%data: [")
                                   :utf-8)
                    (dolist (octets (reverse kept))
                      (encode-octets output octets)
                      (encode-string output "," :utf-8))
                    (encode-octets output (snapshot (feed-servers feed) t))
                    (encode-string output (format nil "]~2%") :utf-8)))))
      (put-waiting shared-queue nil
                   (let ((octets (framed event shared-queue)))
                     (lambda () (put-in-shared-queue shared-queue octets)))))))

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
                     (t (frames-of-thread (getf worker :thread) 1/2)))))
        (flet ((frame-text (name)
                 (let ((*package* (load-time-value (find-package '#:common-lisp)))
                       (*print-case* :downcase) (*print-pretty* nil)
                       (*print-length* 6) (*print-level* 4))
                   (if (stringp name) name (prin1-to-string name)))))
          (values 200 "application/json"
                  (encoded (lambda (output)
                             (encode-json
                              output
                              (list* :reason (unless (listp frames) (string-downcase frames))
                                     :frames (and (listp frames)
                                                  (map 'vector #'frame-text frames))
                                     (and worker (worker-row worker)))))))))))
