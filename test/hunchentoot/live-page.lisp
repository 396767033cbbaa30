(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite live-page :in acceptors
  :description "The page that shows an acceptor at work: its events, and who gets them.")

(in-suite live-page)

(defmacro with-live-page ((&rest arguments) &body body)
  "Evaluates BODY while easy acceptors have the live page of ARGUMENTS at /live."
  `(with-pages ((recycling:make-live-page-dispatcher "/live" ,@arguments))
     ,@body))

(defun open-live-page (connection)
  "Has CONNECTION get the events of /live; returns the head of the response."
  (send-request connection "/live/events")
  (read-head connection))

(defun next-snapshot (connection)
  "The next snapshot that CONNECTION gets, an alist; NIL at the end."
  (let ((chunk (ignore-errors (read-chunk connection))))
    (when chunk
      (let ((text (decode chunk)))
        (is (eql 0 (search (format nil "retry: 1000~%event: snapshot~%data: {") text)))
        (parse-json (string-right-trim (list #\Newline) (subseq text (position #\{ text))))))))

(defun next-snapshot-until (connection predicate)
  "The first snapshot that CONNECTION gets for whose first server PREDICATE is true."
  (loop with deadline = (deadline-after *patience*)
        for snapshot = (next-snapshot connection)
        for server = (and snapshot (aref (member-of snapshot "servers") 0))
        do (cond ((null server) (lose-patience "a snapshot"))
                 ((funcall predicate server) (return server))
                 ((zerop (seconds-until deadline)) (lose-patience "a certain snapshot")))))

(defun workers-at (server uri)
  "The rows of the workers in SERVER, of a snapshot, that serve requests for URI."
  (remove uri (coerce (member-of server "workers") 'list)
          :key (lambda (row) (cdr (assoc "uri" row :test #'string=)))
          :test-not #'equal))

(defun await-worker-at (connection uri)
  "The row of a worker that serves a request for URI, once CONNECTION gets a snapshot with one."
  (first (workers-at (next-snapshot-until connection (lambda (server) (workers-at server uri)))
                     uri)))

(defun ask-where (number &rest headers)
  "The response to the question where the worker NUMBER is, with HEADERS."
  (ask (format nil "/live/worker?0-~A" number) :method :post :content "" :headers headers))

(defun where (number)
  "The answer of the server to the live page's question where the worker NUMBER is."
  (parse-json (response-text (ask-where number '("Live-Page" . "1")))))

;;; The page and its events

(define-server-test (the-live-page-is-served-with-a-strict-policy :needs :our-engine)
  (with-live-page ()
    (with-acceptor (acceptor)
      (let ((response (ask "/live")))
        (is (= 200 (response-status response)))
        (is (equal "text/html; charset=utf-8" (response-header response "content-type")))
        (is (equal "no-store" (response-header response "cache-control")))
        (is (equal "nosniff" (response-header response "x-content-type-options")))
        (is (eql 0 (search "default-src 'none'; script-src 'nonce-"
                           (response-header response "content-security-policy"))))
        (is (search "<title>Live</title>" (response-text response)))))))

(define-server-test (a-live-page-gets-a-snapshot-at-once-and-more-each-second :needs :our-engine)
  (with-live-page ()
    (serving () (("/yo" "Hey!"))
      (with-connection (page)
        (let ((head (open-live-page page)))
          (is (eql 0 (search "text/event-stream" (response-header head "content-type"))))
          (is (equal "no-cache" (response-header head "cache-control"))))
        (let* ((first (next-snapshot page))
               (server (aref (member-of first "servers") 0)))
          (is (equal (format nil "127.0.0.1:~D" (port-of *server*)) (member-of server "server")))
          (is (= 1 (member-of server "ready")))
          (is (plusp (length (member-of server "workers"))))
          (ask "/yo")
          (ask "/yo")
          (let ((later (next-snapshot-until page (lambda (server)
                                                   (<= 2 (member-of server "served"))))))
            (is (= (member-of later "served")
                   (member-of (member-of later "durations") "count")))
            (is (<= 1 (member-of later "open")))
            (is (= (member-of later "threads")
                   (reduce #'+ (member-of later "states") :key #'cdr)))))))))

(define-server-test (a-stop-ends-the-events-of-live-pages :needs :our-engine)
  (with-live-page ()
    (let ((acceptor (hunchentoot:start (make-test-acceptor))))
      (unwind-protect
           (let ((*server* acceptor))
             (with-connection (page)
               (open-live-page page)
               (is-true (next-snapshot page))
               (task-result (in-background ("stop") (hunchentoot:stop acceptor :soft t)))
               ;; There is one for each second in which this thread stood still.
               (loop with deadline = (deadline-after *patience*)
                     while (and (next-snapshot page) (plusp (seconds-until deadline))))
               (is (null (next-snapshot page)))))
        (stop-if-started acceptor)))))

(define-server-test (a-live-page-shows-the-servers-that-it-is-told :needs :our-engine)
  (let ((stopped (make-test-acceptor)))
    (with-acceptor (watched)
      (with-live-page (:servers (list watched stopped))
        (with-acceptor (acceptor)
          (with-connection (page)
            (open-live-page page)
            (let ((servers (member-of (next-snapshot page) "servers")))
              (is (equal (list (format nil "127.0.0.1:~D" (port-of watched)) 1)
                         (list (member-of (aref servers 0) "server")
                               (member-of (aref servers 0) "ready"))))
              (is (equalp '(0 #()) (list (member-of (aref servers 1) "ready")
                                         (member-of (aref servers 1) "workers")))))))))))

;;; Workers

(define-server-test (a-snapshot-tells-which-request-a-worker-serves :needs :our-engine)
  (let ((entered (make-gate)) (release (make-gate)) (began (platform:microseconds)))
    (with-live-page ()
      (serving () (("/slow" (open-gate entered) (await release) "slow"))
        (with-connections (connections 2)
          (destructuring-bind (page client) connections
            (open-live-page page)
            (send-request client "/slow?a=1")
            (await entered)
            (unwind-protect
                 (let ((row (await-worker-at page "/slow?a=1")))
                   (is (equal "GET" (member-of row "method")))
                   (is (equal "127.0.0.1" (member-of row "client")))
                   (is (find (member-of row "state") '("serving" "blocked") :test #'equal))
                   (is (<= 0 (member-of row "seconds")
                           (/ (- (platform:microseconds) began) 1000000))))
              (open-gate release))
            (is (equal "slow" (response-text (read-response client))))
            (is-true (next-snapshot-until page (lambda (server)
                                                 (null (workers-at server "/slow?a=1")))))))))))

(define-server-test (a-worker-that-sleeps-is-shown-as-blocked :needs (:our-engine :parking))
  (let ((entered (make-gate)) (release (make-gate)))
    (with-live-page ()
      (serving () (("/slow" (open-gate entered) (await release) "slow"))
        (with-connections (connections 2)
          (destructuring-bind (page client) connections
            (open-live-page page)
            (send-request client "/slow")
            (await entered)
            (unwind-protect
                 (is-true (next-snapshot-until
                           page (lambda (server)
                                  (let ((rows (workers-at server "/slow")))
                                    (and rows
                                         (equal "blocked" (member-of (first rows) "state")))))))
              (open-gate release))
            (read-response client)))))))

(define-server-test (hostile-text-of-a-client-is-a-string-in-a-snapshot :needs :our-engine)
  (let ((entered (make-gate)) (release (make-gate))
        (uri "/slow?a=</script><img/src=x>\"'&b=%22%0a%0adata:x"))
    (with-live-page ()
      (serving () (("/slow" (open-gate entered) (await release) "slow"))
        (with-connections (connections 2)
          (destructuring-bind (page client) connections
            (open-live-page page)
            (send client (octets (format nil "GET ~A HTTP/1.1~C~CHost: a~:*~:*~C~C~:*~:*~C~C"
                                         uri #\Return #\Newline)))
            (await entered)
            (unwind-protect
                 (is (equal uri (member-of (await-worker-at page uri) "uri")))
              (open-gate release))
            (read-response client)))))))

;;; Where a worker is

(defun wait-for-release (gate)
  "Waits for GATE.  Its name is looked for in a backtrace."
  (await gate)
  "slow")

(defun frame-told-p (answer name)
  "True if a frame in ANSWER, of WHERE, has NAME in it."
  (some (lambda (frame) (search name frame))
        (or (cdr (assoc "frames" answer :test #'string=)) #())))

(defmacro while-slow ((row page) &body body)
  "Evaluates BODY while a worker is in WAIT-FOR-RELEASE, with ROW bound to its row in a snapshot
that PAGE has got; then the request is answered as if nothing had been."
  (let ((entered (gensym "ENTERED")) (release (gensym "RELEASE")) (client (gensym "CLIENT")))
    `(let ((,entered (make-gate)) (,release (make-gate)))
       (with-live-page ()
         (serving () (("/slow" (open-gate ,entered) (wait-for-release ,release)))
           (with-connections (connections 2)
             (destructuring-bind (,page ,client) connections
               (open-live-page ,page)
               (send-request ,client "/slow")
               (await ,entered)
               (unwind-protect
                    (let ((,row (await-worker-at ,page "/slow")))
                      ,@body)
                 (open-gate ,release))
               (is (equal "slow" (response-text (read-response ,client)))))))))))

(define-server-test (a-worker-tells-where-it-is-and-goes-on :needs :our-engine)
  (while-slow (row page)
    (let ((number (member-of row "number")))
      (if (platform:functions-can-be-wrapped-p) ; as where threads can be asked
          (let ((answer (where number)))
            (is (null (member-of answer "reason")))
            (is (equal "/slow" (member-of answer "uri")))
            (is (frame-told-p answer "wait-for-release")))
          (is (equal "unknown" (member-of (where number) "reason")))))))

(define-server-test (a-worker-that-allows-no-interrupt-is-not-interrupted-later
                     :needs (:our-engine :deferred-ends))
  (let ((entered (make-gate)) (release (make-gate)) (interrupted-p nil))
    (with-live-page ()
      (serving ()
          (("/slow" (handler-bind ((condition (lambda (condition)
                                                (declare (ignore condition))
                                                (setf interrupted-p t))))
                      (platform:deferring-interrupts
                        (open-gate entered)
                        (await release))
                      "slow")))
        (with-connections (connections 2)
          (destructuring-bind (page client) connections
            (open-live-page page)
            (send-request client "/slow")
            (await entered)
            (unwind-protect
                 (let ((answer (where (member-of (await-worker-at page "/slow") "number"))))
                   (is (equal "busy" (member-of answer "reason")))
                   (is (null (member-of answer "frames"))))
              (open-gate release))
            (is (equal "slow" (response-text (read-response client))))
            (is (not interrupted-p))))))))

(define-server-test (a-worker-without-a-request-is-not-asked :needs :our-engine)
  (with-live-page ()
    (with-acceptor (acceptor)
      (eventually ("an idle worker to be found")
        (loop for number from 1 to 20
              thereis (equal "idle" (member-of (where number) "reason"))))
      (is (equal "ended" (member-of (where 4711) "reason")))
      (is (equal "ended" (member-of (where "no-number") "reason"))))))

(define-server-test (only-the-live-page-may-ask-where-a-worker-is :needs :our-engine)
  (with-live-page ()
    (with-acceptor (acceptor)
      (is (= 403 (response-status (ask-where 1))) "A form of another site can send no such header.")
      (is (= 404 (status-of "/live/worker?0-1" :headers '(("Live-Page" . "1"))))
          "A link, which is followed by GET, asks nothing."))))

(define-server-test (questions-where-workers-are-are-counted :needs (:our-engine :deferred-ends))
  (while-slow (row page)
    (flet ((asked ()
             (member-of (member-of (next-snapshot page) "process") "backtraces")))
      (let ((before (asked)))
        (where (member-of row "number"))
        ;; Some snapshots may have come before the question.
        (is-true (loop with deadline = (deadline-after *patience*)
                       thereis (< before (asked))
                       while (plusp (seconds-until deadline))))))))

;;; Who sees it

(define-server-test (the-live-page-is-protected-like-the-metrics :needs :our-engine)
  (flet ((statuses (&rest headers)
           (list (status-of "/live" :headers headers)
                 (status-of "/live/events" :headers headers)
                 (status-of "/live/worker?0-1" :method :post :content ""
                            :headers (list* '("Live-Page" . "1") headers)))))
    (with-live-page (:allow '("192.0.2.1"))
      (with-acceptor (acceptor)
        (is (equal '(404 404 404) (statuses)))))
    (with-live-page ()
      (with-acceptor (acceptor)
        (is (equal '(404 404 404) (statuses '("X-Forwarded-For" . "127.0.0.1"))))
        (is (= 404 (status-of "/live/events" :method :post :content "")))
        (is (= 404 (status-of "/live/")))
        (is (= 404 (status-of "/live/page")))))
    (let ((asked (make-recorder)))
      (with-live-page (:allow (lambda (address) (record asked address) nil))
        (with-acceptor (acceptor)
          (is (equal '(404 404 404) (statuses)))
          (is (equal '("127.0.0.1" "127.0.0.1" "127.0.0.1") (recorded asked))))))))

(test a-live-page-with-arguments-that-make-no-sense-is-refused
  (signals hunchentoot:parameter-error (recycling:make-live-page-dispatcher :live))
  (signals hunchentoot:parameter-error
    (recycling:make-live-page-dispatcher "/live" :allow '("nonsense"))))
