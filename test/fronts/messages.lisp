(in-package #:hunchentoot-recycling-taskmaster-test)

;;;; What handlers that fail make the server tell people, as text and in JSON, and what clients
;;;; cannot do to it.

(def-suite* fronts/messages :in fronts
  :description "Errors of handlers, as clients get them and as the message log tells them.")

(defun count-messages (text)
  "How many messages TEXT has; their further lines begin with spaces."
  (count-if (lambda (line) (uiop:string-prefix-p "[" line)) (log-lines text)))

(defun told-objects (text)
  "The objects in TEXT, lines of JSON."
  (mapcar #'parse-json (log-lines text)))

(defun id-of (request)
  (if (listp request) (handler:request-id request) (recycling:request-id)))

(defun status-of-failure (connection target)
  "The status of the answer to a request for TARGET, after which CONNECTION is used again."
  (prog1 (response-status (exchange connection target))
    (is (equal "word" (exchange-text connection "/word")))))

;;; Which request failed, and where

(define-front-test an-error-is-answered-and-told-with-its-request
  (let ((id nil))
    (dolist (later-p '(nil t))
      (with-front (request) (progn (setf id (id-of request))
                                   (if later-p
                                       (later (answer)
                                         (list answer (fail-with '() '())))
                                       (list (fail-with '() '()))))
        (with-connection (connection)
          (is (= 500 (status-of-failure connection "/broken?secret=1"))))
        (let ((told (await-log (format nil "~%"))))
          (is (cl-ppcre:scan (format nil "^\\[[-0-9]{10} [:0-9]{8} \\[ERROR\\]\\] The reason, 0 ~
                                          and 0. \\[GET /broken HTTP/1.1 from 127.0.0.1, ~
                                          request ~A\\]\\n" id)
                             told)
              "~A" told)
          (is (= 1 (count-messages told)))
          (where-supported
           (is (search (format nil "]~%  ") told))
           (is (search "FAIL-WITH" told))))))))

(define-front-test an-error-is-told-in-json
  (let ((id nil))
    (with-front (request :message-log-format :json) (progn (setf id (id-of request))
                                                           (error "The reason."))
      (is (= 500 (response-status (ask "/broken?secret=1" :version "HTTP/1.0"))))
      (destructuring-bind (object) (told-objects (await-log (string #\Newline)))
        (is (equal '("time" "level" "message" "request" "request_id" "remote_address" "thread"
                     "backtrace")
                   (mapcar #'car object)))
        (is-true (cl-ppcre:register-groups-bind ((#'parse-integer year month day))
                     ("^(\\d{4})-(\\d\\d)-(\\d\\d)T[:0-9]{8}\\.[0-9]{3}Z$" (fact "time" object))
                   (<= 0 (- (get-universal-time) (encode-universal-time 0 0 0 day month year 0))
                       100000)))        ; today, or just before midnight
        (loop for (name value) in `(("level" "error") ("message" "The reason.")
                                    ("request" "GET /broken HTTP/1.0") ("request_id" ,id)
                                    ("remote_address" "127.0.0.1"))
              do (is (equal value (fact name object)) "~A" name))))))

(define-front-test each-request-has-an-identifier-of-its-own
  (let ((pairs '()) (state (make-random-state)))
    (loop repeat 2
          do (with-globals ((server::*request-ids* (make-random-state state))) ; as of one image
               (with-front (request)
                   (reply 200 '() (format nil "~A ~A" (id-of request) (id-of request)))
                 (with-connection (connection)
                   (loop repeat 20
                         do (push (uiop:split-string (exchange-text connection "/")) pairs))))))
    (is (every (lambda (pair) (string= (first pair) (second pair))) pairs))
    (is (= 40 (length (remove-duplicates (mapcar #'first pairs) :test #'string=))))))

;;; What clients send

(declaim (notinline fail-with-octets))
(defun fail-with-octets (octets)
  (declare (optimize (debug 3)))
  (error "~D octets are too few." (length octets)))

(define-front-test (octets-that-a-handler-passes-on-stand-in-no-backtrace :needs :our-http)
  (dolist (format '(:text :json))
    (with-front (request :message-log-format format) (fail-with-octets (content request))
      (is (= 500 (response-status (ask "/" :method :post :content *secret*
                                           :headers `(("Authorization" . ,*secret*))))))
      (let ((told (await-log "FAIL-WITH-OCTETS")))
        (is (equal '() (secrets-in told)))))))

;;; Identifiers that proxies tell

(defparameter *good-ids*
  (list "a" "7b6e1a54-43d2-4a5b-9c53-0f9d4a8f5d10" "!~\"\\{}"
        (make-string 200 :initial-element #\i))
  "Identifiers that a trusted proxy may tell.")

(defparameter *bad-ids*
  (list "" "two words" (format nil "a~Cb" #\Tab) (format nil "a~Cb" (code-char 233))
        (make-string 201 :initial-element #\i))
  "Values of X-Request-Id that are no identifiers.")

(defun id-told-for (id)
  "The content of the response to a request for / with ID as its X-Request-Id."
  (ask-text "/" :headers `(("X-Request-Id" . ,id))))

(defun new-id-p (text)
  (cl-ppcre:scan "^[0-9a-f]{26}$" text))

(define-front-test a-request-has-the-identifier-that-a-trusted-proxy-tells
  (loop for (trusted . believed-p) in '((("127.0.0.1") . t) (()) (("10.0.0.0/8" :unix)))
        do (with-front (request :trusted-proxies trusted) (reply 200 '() (id-of request))
             (dolist (id *good-ids*)
               (is (if believed-p (string= id (id-told-for id)) (new-id-p (id-told-for id)))))
             (dolist (id *bad-ids*)
               (is (new-id-p (id-told-for id)) "~S" id)))))

;;; Traces that clients tell

(define-front-test a-request-has-the-trace-that-its-client-tells
  (flet ((told (request)
           (multiple-value-list (recycling:request-trace request))))
    (with-front (request) (let ((here (told (and (listp request) request))))
                            (later (answer)
                              (in-background ("answering")
                                (funcall answer 200 '() (shown here (told request))))))
      (loop with ids = '("0af7651916cd43dd8448eb211c80319c" "b7ad6b7169203331" t)
            for (told . values) in `((,ids ,*traceparent*) ((nil) ,*traceparent* ,*traceparent*)
                                     ((nil) "00"))
            do (is (equal (shown told told) (response-text (apply #'ask-traced "/" values)))))
      (is (equal (shown '(nil) '(nil)) (ask-text "/"))))))

(define-front-test a-message-in-json-names-the-trace
  (with-front (request :message-log-format :json) (error "The reason.")
    (ask-traced "/" (concatenate 'string *traceparent* "-more"))
    (ask-traced "/")
    (is (equal '(nil "0af7651916cd43dd8448eb211c80319c")
               (mapcar (lambda (object) (fact "trace_id" object))
                       (told-objects (await-log (lambda (told)
                                                  (= 2 (count #\Newline told))))))))))

;;; Errors that cannot be told as they are

(define-condition without-report (error)
  ()
  (:report (lambda (condition stream)
             (declare (ignore condition stream))
             (error "It cannot be printed."))))

(define-condition told-report (error)
  ((text :initarg :text :reader told-text))
  (:report (lambda (condition stream) (write-string (told-text condition) stream))))

(defparameter *hard-to-tell*
  (let ((octets (make-array 10000000 :element-type '(unsigned-byte 8) :initial-element 255)))
    `(("/without" without-report "WITHOUT-REPORT")
      ("/circular" (simple-error :format-control "This is ~A."
                                 :format-arguments (,(circular 1 2)))
                   "This is (1 2 1 2 1")
      ("/long" (simple-error :format-control "~A"
                             :format-arguments (,(make-string 100000 :initial-element #\x)))
               "xxx... (99500 more characters)")
      ("/deep" (simple-error :format-control "This is ~A."
                             :format-arguments ,(list (loop with list = '()
                                                            repeat 100000
                                                            do (setf list (list list))
                                                            finally (return list))))
               "This is ((((")
      ("/large" (type-error :datum ,octets :expected-type string) "255 255")))
  "Targets, what to call ERROR with, and words of what is told.")

(define-front-test an-error-that-is-hard-to-tell-is-answered-and-told
  (dolist (format '(:text :json))
    (with-front (request :message-log-format format)
        (apply #'error (uiop:ensure-list (second (assoc (path request) *hard-to-tell*
                                                        :test #'equal))))
      (with-connection (connection)
        (loop for (target nil words) in *hard-to-tell*
              do (is (= 500 (status-of-failure connection target)))
                 (let ((told (await-log words)))
                   (is (< (length told) 40000))))))))

(define-front-test no-error-forges-what-is-told
  (with-front (request) (error 'told-report
                               :text (format nil "No.~C~%[ERROR] forged~C"
                                             #\Return (code-char 155)))
    (is (= 500 (response-status (ask "/"))))
    (let ((told (await-log "forged\\x9B")))
      (is (search (format nil " [ERROR]] No.\\x0D~%  [ERROR] forged\\x9B [GET / ") told))
      (is (= 1 (count-messages told))))))

;;; A log that is flooded, fails or stalls

(define-front-test no-client-floods-the-log
  (with-globals ((server::*warning-milliseconds* 10000000)) ; longer than the test
    (dolist (format '(:text :json))
      (with-front (request :message-log-format format) (error "It failed.")
        (with-connection (connection)
          (dolist (count '(200 40))
            (loop repeat count
                  do (is (= 500 (response-status (exchange connection "/")))))
            (loop for entry being the hash-values of
                    (server::throttle-entries
                     (server::application-throttle
                      (engine:engine-service (server:server-engine *server*))))
                  do (setf (cdr entry) (- (expt 10 12)))))) ; as after a long pause
        (stop-front)
        (let ((text (front-log)))
          (is (= 1 (count-of "181 since the last message; the last one: It failed." text)))
          (is (= 40 (if (eq :json format) (length (log-lines text)) (count-messages text)))))))))

(defclass broken-stream (stalled-stream)
  ()
  (:documentation "A stream that takes nothing, and says so."))

(defmethod trivial-gray-streams:stream-write-string
    ((stream broken-stream) string &optional start end)
  (declare (ignore string start end))
  (error "The stream is broken."))

(define-front-test a-log-that-nobody-reads-holds-up-nobody
  (let* ((stream (make-instance 'stalled-stream)) (*clack-stream* stream))
    (unwind-protect
         (with-front (request :worker-num 2) (error "It failed.")
           (with-connection (connection)
             (loop repeat 40
                   do (is (= 500 (response-status (exchange connection "/")))))
             (await (entered stream))
             (is (equal "word" (exchange-text connection "/word"))))
           (open-gate (stream-gate stream)))
      (open-gate (stream-gate stream)))
    (is (search "It failed." (text-written-to stream)) "The stop has written it.")))

(define-front-test what-a-log-does-not-take-is-counted
  (let ((*clack-stream* (make-instance 'broken-stream)))
    (with-front (request) (error "It failed.")
      (with-connection (connection)
        (loop repeat 5
              do (is (= 500 (response-status (exchange connection "/"))))))
      (stop-front)
      (is (plusp (figure :log-dropped))))))
