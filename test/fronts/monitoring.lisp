(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* fronts/monitoring :in fronts
  :description "Pages for those that watch servers: metrics, health, the live page.")

(defun make-page (kind path &rest arguments)
  "What serves the page KIND, such as :METRICS, at PATH: a dispatcher of Hunchentoot's front, or a
middleware of Clack's."
  (multiple-value-bind (package what) (ecase *front*
                                        (:hunchentoot (values '#:hunchentoot-recycling-taskmaster
                                                              '#:dispatcher))
                                        (:clack (values '#:clack.handler.recycling
                                                        '#:middleware)))
    (apply (uiop:find-symbol* (format nil "MAKE-~A-~A" kind what) package) path arguments)))

(defun answer-by-pages (pages request otherwise)
  "The answer to REQUEST of the first of PAGES that has one, or else of OTHERWISE."
  (ecase *front*
    (:hunchentoot (funcall (or (some (lambda (page) (funcall page request)) pages)
                               otherwise)))
    (:clack (funcall (reduce #'funcall pages :from-end t
                                             :initial-value (lambda (environment)
                                                              (declare (ignore environment))
                                                              (funcall otherwise)))
                     request))))

(defmacro watching ((request &rest arguments) (&rest pages) otherwise &body body)
  "Evaluates BODY while a server of ARGUMENTS has PAGES, each a list of arguments for MAKE-PAGE;
all other requests have the value of OTHERWISE as their answers."
  (let ((made (gensym "PAGES")))
    `(let ((,made (list ,@(loop for page in pages collect `(make-page ,@page)))))
       (with-front (,request ,@arguments)
           (answer-by-pages ,made ,request (lambda () ,otherwise))
         ,@body))))

(defun status-of (target &rest keys)
  (response-status (apply #'ask target keys)))

(defun await-served (count)
  (eventually ("the requests to be counted") (<= count (figure :served))))

;;; Prometheus

(defun member-of (object name)
  "The value of the member NAME of OBJECT, an alist of PARSE-JSON."
  (let ((pair (assoc name object :test #'string=)))
    (is-true pair "There is no ~A." name)
    (cdr pair)))

(defun metric-values (text name)
  "The labels and the values, two strings each, of the samples in TEXT, metrics, of NAME."
  (loop for line in (uiop:split-string text :separator '(#\Newline))
        for end = (position #\Space line :from-end t)
        when (cl-ppcre:scan (format nil "^~A[{ ]" name) line)
          collect (list (subseq line (length name) end) (subseq line (1+ end)))))

(defun metric-value (text name &optional (labels ""))
  "The value, an integer, of the sample in TEXT, metrics, of NAME whose labels have LABELS in them."
  (loop for (found value) in (metric-values text name)
        when (search labels found)
          return (parse-integer value :junk-allowed t)))

(defun check-by-promtool (text)
  "Checks that Prometheus' own tool, where it is installed, has nothing to say about TEXT."
  (let ((promtool (program-named "promtool")))
    (when promtool
      (is (equal "" (with-input-from-string (input text)
                      (uiop:run-program (list promtool "check" "metrics")
                                        :input input :output :string :error-output :output
                                        :ignore-error-status t)))))))

(defun check-metrics-of-failures (text)
  "Checks TEXT, metrics of a server that has served what the test below asks."
  (let ((samples (loop for line in (uiop:split-string text :separator '(#\Newline))
                       unless (or (equal "" line) (char= #\# (char line 0)))
                         collect (subseq line 0 (position #\Space line :from-end t)))))
    (is (every (lambda (sample) (search "server=\"" sample)) samples))
    (is (= (length samples) (length (remove-duplicates samples :test #'equal)))))
  (flet ((replies (class)
           (metric-value text "http_server_replies_total" (format nil "status=\"~A\"" class))))
    (is (equal '(942 21 37 0) (mapcar #'replies '("2xx" "4xx" "5xx" "none")))))
  (is (= 1000 (metric-value text "http_server_requests_total")))
  (is (= 1 (metric-value text "http_server_requests_in_progress")) "It is this one.")
  (is (< (* 1000 100) (metric-value text "http_server_sent_bytes_total")))
  (let ((buckets (metric-values text "http_server_request_duration_seconds_bucket")))
    (is (apply #'<= (mapcar (lambda (bucket) (parse-integer (second bucket))) buckets)))
    (is (search "le=\"+Inf\"" (first (first (last buckets)))))
    (is (string= "1000" (second (first (last buckets))))))
  (is (> 1000 (metric-value text "http_server_request_duration_seconds_sum")))
  (check-by-promtool text))

(define-front-test a-failing-application-shows-in-all-pages
  (watching (request) ((:metrics "/metrics") (:live-page "/live"))
      (cond ((equal "/broken" (path request)) (error "Broken."))
            ((equal "/none" (path request)) (reply 404 '() "none"))
            (t (reply 200 '() "Hey!")))
    (with-connection (connection)
      (loop for (target . count) in '(("/yo" . 942) ("/broken" . 37) ("/none" . 21))
            do (loop repeat count do (exchange connection target))))
    (await-served 1000)
    (is (= 37 (figure :errors)))
    (check-metrics-of-failures (ask-text "/metrics"))
    (with-connection (page)
      (open-live-page page)
      (is (= 37 (member-of (aref (member-of (next-snapshot page) "servers") 0) "errors"))))))

(define-front-test (pages-tell-of-their-server :modes (:plain))
  (watching (request) ((:metrics "/metrics") (:readiness "/ready") (:liveness "/alive"))
      (reply 200 '() "the app")
    (let ((response (ask "/metrics")))
      (is (equal "text/plain; version=0.0.4; charset=utf-8"
                 (response-header response "content-type")))
      (is (equal "no-store" (response-header response "cache-control")))
      (is (search (format nil "{server=\"127.0.0.1:~D\"}" (port-of *server*))
                  (response-text response))))
    (is (equal (format nil "ready~%") (ask-text "/ready")))
    (is (equal (format nil "alive~%") (ask-text "/alive?verbose")))
    (is (equal "" (ask-text "/alive" :method :head)))
    (is (equal "the app" (ask-text "/alive" :method :post :content "x")))
    (is (equal "the app" (ask-text "/alive/")))))

(define-front-test a-request-lasts-until-its-reply-is-sent
  (let ((answers (make-recorder)) (began nil) (ended nil))
    (with-front (request) (later (answer)
                            (setf began (platform:microseconds))
                            (record answers answer))
      (with-connection (connection)
        (send-request connection "/")
        (let ((answer (await-answer answers)))
          (setf ended (platform:microseconds))
          (funcall answer 200 '() "done"))
        (read-response connection))
      (await-served 1)
      (is (= 1 (getf (figure :durations) :count)))
      (is (<= (/ (- ended began) 1000000) (getf (figure :durations) :sum) *patience*)))))

(define-server-test (pages-show-the-servers-that-they-are-told :needs :our-engine)
  (let* ((stopped (make-test-acceptor :address nil)) (servers (list stopped)))
    (with-globals ((hunchentoot:*dispatch-table*
                    (list (recycling:make-readiness-dispatcher "/ready" :servers servers)
                          (recycling:make-live-page-dispatcher "/live" :servers servers)
                          (recycling:make-metrics-dispatcher "/metrics" :servers servers))))
      (with-acceptor (acceptor)
        (is (= 503 (status-of "/ready")) "It is not started.")
        (is (search "{server=\"*:" (ask-text "/metrics")))
        (with-connection (page)
          (open-live-page page)
          (is (search "*:" (member-of (aref (member-of (next-snapshot page) "servers") 0)
                                      "server"))))
        (setf (rest servers) (list acceptor))
        (is (eql 1 (member-of (parse-json (ask-text "/live/worker?1-1" :method :post :content ""
                                                    :headers '(("Live-Page" . "1"))))
                              "number")))
        (is (= 503 (status-of "/ready")) "One of them is not started.")))))

;;; Health

(define-front-test a-server-that-drains-is-not-ready-but-alive
  (watching (request) ((:readiness "/ready") (:liveness "/alive") (:live-page "/live"))
      (reply 200 '() "the app")
    (with-connections (connections 2)
      (destructuring-bind (kept page) connections
        (open-live-page page)
        (is (= 200 (response-status (exchange kept "/ready"))))
        (let ((stopping (in-background ("stop") (stop-front :soft t :delay (* 6 *patience*)))))
          (is-true (eventually ("the drain to be seen") (= 503 (status-of "/ready"))))
          (is (equal (format nil "not ready~%") (exchange-text kept "/ready")))
          (is (= 200 (status-of "/alive")))
          (is-true (next-snapshot-until page (lambda (server) (zerop (member-of server "ready")))))
          (stop-front)
          (task-result stopping))))))

;;; Clients that may see them

(defmacro seeing (pages arguments &body body)
  "Evaluates BODY with the function SEEN-P, of a target and keys for ASK, that is true if a server
of ARGUMENTS with PAGES answers by one of these."
  `(watching (request ,@arguments) ,pages (reply 404 '() "the app")
     (flet ((seen-p (target &rest keys)
              (with-connection (connection)
                (apply #'send-request connection target keys)
                (/= 404 (response-status (read-head connection)))))) ; events have no end
       ,@body)))

(define-front-test (a-page-is-for-this-machine-alone-unless-others-are-allowed :modes (:plain))
  (let ((asked (make-recorder)))
    (seeing ((:metrics "/metrics") (:live-page "/live") (:liveness "/all" :allow (constantly t))
             (:metrics "/far" :allow '("192.0.2.1" "10.0.0.0/8" :unix)) (:metrics "/no" :allow '())
             (:live-page "/far-live" :allow '("192.0.2.1"))
             (:metrics "/near" :allow '("192.0.2.1" "127.0.0.0/30"))
             (:metrics "/asks" :allow (lambda (address) (record asked address) nil)))
        ()
      (dolist (target '("/metrics" "/live" "/all" "/near"))
        (is-true (seen-p target) "~A" target))
      (dolist (target '("/far" "/no" "/asks" "/far-live" "/far-live/events" "/live/page"))
        (is (not (seen-p target)) "~A" target))
      (loop for (target . method) in '(("/live" . :post) ("/live/events" . :head)
                                       ("/live/worker?0-1" . :get))
            do (is (not (seen-p target :method method :headers '(("Live-Page" . "1"))))))
      (is (equal '("127.0.0.1") (recorded asked)))
      ;; What a proxy passes on is not of this machine.
      (dolist (header '(("X-Forwarded-For" . "127.0.0.1") ("Forwarded" . "for=127.0.0.1")))
        (dolist (target '("/metrics" "/near" "/live" "/live/events"))
          (is (not (seen-p target :headers (list header))) "~A ~S" target header))
        (is-true (seen-p "/all" :headers (list header))))
      (is (not (seen-p "/live/worker?0-1" :method :post :content ""
                                          :headers '(("Live-Page" . "1")
                                                     ("Forwarded" . "for=127.0.0.1"))))))))

(define-front-test (a-browser-that-another-site-leads-here-gets-no-page :modes (:plain))
  (seeing ((:metrics "/metrics") (:live-page "/live") (:readiness "/ready") (:liveness "/alive"))
      ()
    (loop for (host seen-p) in (read-table "fronts/hosts.sexp")
          do (dolist (target '("/metrics" "/live"))
               (is (eq seen-p (seen-p target :host host)) "~A ~A" host target))
             ;; A balancer on this machine may ask with the name of its site.
             (dolist (target '("/ready" "/alive"))
               (is-true (seen-p target :host host))))
    (is (not (seen-p "/live/events" :host "evil.example")))
    (is (not (seen-p "/live/worker?0-1" :host "evil.example" :method :post :content ""
                                        :headers '(("Live-Page" . "1")))))))

(define-front-test (behind-a-trusted-proxy-a-page-is-for-the-clients-that-it-names :modes (:plain))
  (seeing ((:metrics "/metrics") (:liveness "/alive")
           (:liveness "/far" :allow '("192.0.2.0/24"))
           (:metrics "/far-metrics" :allow '("192.0.2.0/24")))
      (:trusted-proxies '("127.0.0.1"))
    (loop for (client alive-p far-p) in '(("192.0.2.7" nil t) ("127.0.0.1" t nil))
          do (let ((headers `(("X-Forwarded-For" . ,client))))
               (is (eq alive-p (seen-p "/alive" :headers headers)) "~S" headers)
               (is (eq far-p (seen-p "/far" :headers headers)) "~S" headers)))
    (dolist (header '(("X-Forwarded-For" . "unknown") ("X-Forwarded-For" . "192.0.2.7,")
                      ("Forwarded" . "for=_hidden") ("Forwarded" . "proto=https")))
      (is (not (seen-p "/alive" :headers (list header))) "~S hides the client." header))
    (is-true (seen-p "/alive") "It is the proxy's own request.")
    (is-true (seen-p "/far-metrics" :host "shop.example"
                                    :headers '(("X-Forwarded-For" . "192.0.2.7"))))
    ;; A browser that another site leads here may claim to be the proxy, but with its own Host.
    (let ((headers '(("X-Forwarded-Host" . "localhost") ("X-Forwarded-For" . "127.0.0.1"))))
      (is (not (seen-p "/metrics" :host "evil.example:4242" :headers headers)))
      (is-true (seen-p "/metrics" :host "backend" :headers headers)))
    (loop for headers in '((("X-Forwarded-Host" . "evil.example")) (("X-Forwarded-For" . "::1")))
          for host in '("backend" "evil.example")
          do (is (not (seen-p "/metrics" :host host :headers headers)) "~S" headers))))

(define-front-test (a-page-with-arguments-that-make-no-sense-is-refused :modes (:plain))
  (dolist (arguments '((nil) ("/a" :allow ("nonsense")) ("/a" :allow (80)) ("/a" :allow :everybody)
                       ("/a" :allow ("127.0.0.1/8"))))
    (dolist (kind '(:metrics :live-page))
      (if (eq :clack *front*)
          (signals handler:unfit-argument (apply #'make-page kind arguments))
          (signals hunchentoot:parameter-error (apply #'make-page kind arguments))))))

(define-front-test (a-page-leaves-requests-of-other-handlers-to-the-application
                    :fronts (:clack) :modes (:plain))
  (dolist (page (list (make-page :liveness "/live") (make-page :live-page "/live" :servers '(1))))
    (is (equal '("the app")
               (third (answer-by-pages (list page)
                                       (list :path-info "/live" :request-method :get
                                             :remote-addr "127.0.0.1"
                                             :headers (make-hash-table))
                                       (lambda () (reply 200 '() "the app"))))))))

;;; The live page, and its events

(defun open-live-page (connection)
  "Has CONNECTION get the events of /live; returns the head of the response."
  (send-request connection "/live/events")
  (read-head connection))

(defun next-snapshots (connection)
  "The next snapshots that CONNECTION gets, a vector of alists; NIL at the end."
  (let ((chunk (ignore-errors (read-chunk connection))))
    (when chunk
      (let ((text (decode chunk)))
        (is (eql 0 (search (format nil "retry: 1000~%event: snapshots~%data: [{") text)))
        (parse-json (string-right-trim (list #\Newline) (subseq text (position #\[ text))))))))

(defun next-snapshot (connection)
  "The last of the next snapshots that CONNECTION gets, an alist; NIL at the end."
  (let ((snapshots (next-snapshots connection)))
    (and snapshots (aref snapshots (1- (length snapshots))))))

(defun next-snapshot-until (connection predicate)
  "What PREDICATE returns for the server in the first snapshot that CONNECTION gets for which that
is true."
  (loop with deadline = (deadline-after *patience*)
        for snapshot = (next-snapshot connection)
        do (when (or (null snapshot) (zerop (seconds-until deadline)))
             (lose-patience "a certain snapshot"))
           (let ((value (funcall predicate (aref (member-of snapshot "servers") 0))))
             (when value (return value)))))

(defun worker-at (server target)
  "The row of the worker in SERVER, of a snapshot, that serves a request for TARGET, or NIL."
  (find target (member-of server "workers")
        :key (lambda (row) (cdr (assoc "uri" row :test #'string=))) :test #'equal))

(defvar *streams* nil
  "A recorder of weak pointers to the streams of connections, for acceptors of the class NOTING.")

(defclass noting () ())

(defmethod hunchentoot:initialize-connection-stream :before ((acceptor noting) stream)
  (record *streams* (uiop:symbol-call '#:sb-ext '#:make-weak-pointer stream)))

(define-server-test (live-pages-that-were-closed-are-forgotten :needs :parking)
  (let ((*front* :hunchentoot) (streams (make-recorder)))
    (with-globals ((*streams* streams)
                   (hunchentoot:*dispatch-table* (list (make-page :live-page "/live"))))
      (serving (:mixin 'noting) ()
        (with-connections (connections 30)
          (mapc #'open-live-page connections))
        (eventually ("the connections to end") (zerop (figure :open)))
        (await-forgotten streams)
        (is (= 30 (recorded-count streams)))))))

(define-front-test (the-live-page-lets-nothing-run-but-its-own-script :modes (:plain))
  (watching (request) ((:live-page "/live")) nil
    (let* ((response (ask "/live")) (html (response-text response))
           (policy (response-header response "content-security-policy"))
           (nonce (first (cl-ppcre:all-matches-as-strings
                          "(?<=<script nonce=\")[^\"]+(?=\">)" html))))
      (is (equal "text/html; charset=utf-8" (response-header response "content-type")))
      (is (equal "no-store" (response-header response "cache-control")))
      (is (equal "nosniff" (response-header response "x-content-type-options")))
      (is (< 20 (length nonce)))
      (is (equal (format nil "default-src 'none'; script-src 'nonce-~A'; style-src 'nonce-~:*~A'; ~
                              connect-src 'self'; img-src data:; base-uri 'none'; ~
                              form-action 'none'; frame-ancestors 'none'" nonce)
                 policy))
      (is (not (search nonce (ask-text "/live"))) "Each page has its own.")
      (is (= 1 (length (cl-ppcre:all-matches-as-strings "<script" html))))
      (is (not (cl-ppcre:scan " (style|on[a-z]+)=" html)) "The policy forbids these attributes.")
      (is (not (cl-ppcre:scan "(?i)<(link|script|img|iframe)[^>]* (src|href)=\"(?!data:)" html)))
      (dolist (risk '("innerHTML" "outerHTML" "insertAdjacent" "document.write" "eval(" "srcdoc"
                      "Function(" "createContextualFragment"))
        (is (not (search risk html)) "~A" risk)))))

(define-front-test a-live-page-gets-a-snapshot-at-once-and-more-each-second
  (watching (request :reply-timeout 1/2) ((:live-page "/live")) (reply 200 '() "the app")
    (with-connection (page)
      (let ((head (open-live-page page)))
        (is (eql 0 (search "text/event-stream" (response-header head "content-type"))))
        (is (equal "no-cache" (response-header head "cache-control"))))
      (let* ((snapshot (next-snapshot page))
             (process (member-of snapshot "process"))
             (server (aref (member-of snapshot "servers") 0)))
        (is (<= (member-of process "computed")
                (/ (get-internal-run-time) internal-time-units-per-second)))
        (is (< (or (member-of process "heap") -1) (or (member-of process "heap_limit") 0)))
        (is (equal (format nil "127.0.0.1:~D" (port-of *server*)) (member-of server "server")))
        (is (= 1 (member-of server "ready"))))
      (loop repeat 2 do (ask "/yo"))
      (let ((later (next-snapshot-until page (lambda (server)
                                               (and (<= 2 (member-of server "served"))
                                                    server)))))
        (is (= (member-of later "served") (member-of (member-of later "durations") "count")))
        (is (= (member-of later "threads")
               (reduce #'+ (member-of later "states") :key #'cdr))))
      (is-true (next-snapshot page) "They outlast the time for replies.")
      (when *parking-p*
        (is-true (next-snapshot-until
                  page (lambda (server)
                         (zerop (member-of (member-of server "states") "serving"))))
                 "Not even the thread that makes the snapshot serves."))
      (task-result (in-background ("stop") (stop-front :soft t)))
      (loop with deadline = (deadline-after *patience*)
            while (and (next-snapshot page) (plusp (seconds-until deadline))))
      (is (null (next-snapshot page)) "A stop ends them."))))

(define-front-test (a-live-page-shows-what-was-before-it-was-opened :modes (:plain))
  (watching (request) ((:live-page "/live")) (reply 200 '() "the app")
    (ask "/yo")
    (when (eq :hunchentoot *front*)     ; Clack's servers start once
      (hunchentoot:stop *server*)
      (start-elsewhere *server*)
      (ask "/yo"))
    (eventually ("two snapshots that nobody sees") (< 2 (getf (figure :timers) :run)))
    (let ((snapshots (with-connection (page)
                       (open-live-page page)
                       (prog1 (next-snapshots page)
                         (is (= 1 (length (next-snapshots page))))))))
      (is (< 2 (length snapshots)))
      (flet ((workers (snapshot)
               (length (member-of (aref (member-of snapshot "servers") 0) "workers"))))
        (is (zerop (workers (aref snapshots 0))))
        (is (plusp (workers (aref snapshots (1- (length snapshots)))))))
      (is (apply #'<= (map 'list (lambda (snapshot) (member-of snapshot "at")) snapshots))))))

(define-front-test (the-snapshots-of-two-minutes-are-kept-whatever-fails :modes (:plain))
  (with-front (request) nil
    (let* ((engine (server:server-engine *server*))
           (feed (server::make-feed engine (list *server*))))
      (setf (server::feed-snapshots feed) (make-list 500))
      (server::keep-snapshots feed)
      (server::keep-snapshots (server::make-feed engine '(:no-server)))
      (eventually ("the old ones to be dropped") (= 119 (length (server::feed-snapshots feed))))
      (eventually ("the other feed to go on") (< 1 (getf (figure :timers) :failed))))))

;;; Where workers are

(defun wait-for-release (gate)
  "Waits for GATE.  Its name is looked for in a backtrace."
  (await gate)
  (reply 200 '() "slow"))

(defun ask-where (number &rest headers)
  "The response to the question where the worker NUMBER is, with HEADERS."
  (ask (format nil "/live/worker?0-~A" number) :method :post :content "" :headers headers))

(defun where (number)
  "The answer to the live page's question where the worker NUMBER is."
  (parse-json (response-text (ask-where number '("Live-Page" . "1")))))

(defmacro while-slow ((page target) &body body)
  "Evaluates BODY while a request for TARGET is in WAIT-FOR-RELEASE, and PAGE gets the events of
/live; then checks that it is answered as if nothing had been."
  `(let ((release (make-gate)))
     (watching (request) ((:live-page "/live")) (wait-for-release release)
       (with-connections (connections 2)
         (destructuring-bind (,page client) connections
           (open-live-page ,page)
           (send client "GET " ,target " HTTP/1.1" :crlf "Host: a" :crlf :crlf)
           (unwind-protect (progn ,@body)
             (open-gate release))
           (is (equal "slow" (response-text (read-response client)))))))))

(define-front-test a-snapshot-tells-which-request-a-worker-serves
  (let ((target "/slow?a=</script><img/src=x>\"'&b=%22%0a%0adata:x"))
    (while-slow (page target)
      (let ((row (next-snapshot-until page (lambda (server) (worker-at server target)))))
        (is (equal "GET" (member-of row "method")))
        (is (equal "127.0.0.1" (member-of row "client")))
        (is (<= 0 (member-of row "seconds") (* 2 *patience*)))
        (if *parking-p*
            (is-true (next-snapshot-until
                      page (lambda (server)
                             (equal "blocked" (member-of (worker-at server target) "state")))))
            (is (equal "serving" (member-of row "state")))))
      (open-gate release)
      (is-true (next-snapshot-until page (lambda (server) (not (worker-at server target))))))))

(define-front-test a-worker-tells-where-it-is-and-goes-on
  (while-slow (page "/slow")
    (let* ((row (next-snapshot-until page (lambda (server) (worker-at server "/slow"))))
           (number (member-of row "number"))
           (answer (where number)))
      (if (platform:functions-can-be-wrapped-p) ; as where threads can be asked
          (is-true (some (lambda (frame) (search "wait-for-release" frame))
                         (member-of answer "frames")))
          (is (equal "unknown" (member-of answer "reason"))))
      (is (= 403 (response-status (ask-where number)))
          "A form of another site can send no such header.")
      (is (equal "ended" (member-of (where 4711) "reason")))
      (is (equal "ended" (member-of (where "no-number") "reason")))
      (eventually ("an idle worker to be found")
        (loop for number from 1 to 20
              thereis (equal "idle" (member-of (where number) "reason")))))))
