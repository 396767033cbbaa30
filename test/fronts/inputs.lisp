(in-package #:hunchentoot-recycling-taskmaster-test)

;;;; What comes of octets that clients send, in one table.  The vectors of test/http/ say which
;;;; requests there are; FRONTS/VERDICTS tries them all over connections.

(def-suite* fronts/inputs :in fronts
  :description "Octets in; reply, counter, lines of the logs, and what becomes of the connection.")

(defun send-input (connection input)
  "Sends INPUT to CONNECTION, and after it a request for /word."
  (try-to-send connection (as-octets (input-octets (remove-if #'keywordp input))))
  (cond ((member :end input) (end-sending connection))
        ((not (member :late input)) (try-to-send connection (request-octets "/word")))))

(defun check-answers (connection input status next)
  "Checks that INPUT was answered by STATUS, NIL for not at all, and the request after it if NEXT."
  (when status
    (let ((response (read-response connection)))
      (is (= status (response-status response)) "~S: ~D" input (response-status response))
      (let ((close-p (equalp "close" (response-header response "connection"))))
        (is (if (= 200 status) (not (and next close-p)) close-p) "~S" input))))
  (if next
      (is (equal "word" (response-text (read-response connection))) "~S" input)
      (is-true (handler-case (closed-by-server-p connection)
                 (stream-error () t))   ; a reset, since not all was read
               "~S" input)))

(defun rejections ()
  "The statuses of rejected requests, and how many have each, of those that occur."
  (loop for (status count) on (getf (recycling:stats *server*) :rejected-by-status) by #'cddr
        unless (zerop count)
          collect (cons status count)))

(defun check-count (counted next)
  "Checks that a request with the status COUNTED, NIL for none, was counted, and the one after it if
NEXT."
  (eventually ("the requests to be counted")
    (and (equal (and counted (/= 200 counted) (list (cons counted 1))) (rejections))
         (or (not (eql 200 counted))
             (= (if next 2 1) (figure :served))))))

(defun check-line (input line status log)
  "Checks that LOG, a stream, has a line of the access log about LINE and STATUS first."
  (let ((text (eventually ("a line")
                (let ((text (taken-from-log log)))
                  (and (plusp (length text)) text)))))
    (is (cl-ppcre:scan (format nil "^127\\.0\\.0\\.1 - \\[[-0-9: ]+\\] ~
                                    \"~A\" ~D (-|\\d+) \"-\" \"-\""
                               (cl-ppcre:quote-meta-chars line) status)
                  text)
        "~S: ~A" input text)))

(defun check-row (input status line next &rest arguments &key told needs &allow-other-keys)
  "Checks a row of *INPUTS*."
  (declare (ignore needs))
  (let ((log (make-string-output-stream)) (runs (make-recorder)))
    (call-with-front-in-mode
     (lambda (request)
       (reply 200 '() (progn (when (equal "/read" (path request))
                               (content request))
                             (record runs t)
                             "text")))
     (append (and (eq :hunchentoot *front*) (list :access-log-destination log))
             (uiop:remove-plist-keys '(:told :needs) arguments))
     (lambda ()
       (with-connection (connection)
         (send-input connection input)
         (check-answers connection input (and (integerp status) status) next))
       (is (= (if (eql 200 status) 1 0) (recorded-count runs)))
       (let ((counted (if (consp status) (first status) status)))
         (when (eq :hunchentoot *front*)
           (check-count counted next)
           (when line
             (check-line input line counted log))))
       (let ((text (front-log)))
         (is (if told (search told text) (or (member :end input) (equal "" text)))
             "~S: ~A" input text))))))

(define-front-test (what-comes-in-is-answered-counted-and-logged :needs :our-engine)
  (dolist (row (read-table "fronts/inputs.sexp"))
    (let ((need (getf (nthcdr 4 row) :needs)))
      (unless (and need (unmet-need need))
        (apply #'check-row row)))))

;;; Who gets no thread, or no connection

(define-front-test (who-is-refused-stands-in-both-logs :needs :our-engine)
  (with-globals ((server::*warning-milliseconds* 300))
    (flet ((check (words &rest arguments)
             (let ((entered (make-gate)) (leave (make-gate)) (log (make-string-output-stream)))
               (call-with-front-in-mode
                (lambda (request)
                  (declare (ignore request))
                  (open-gate entered)
                  (await leave)
                  (reply 200 '() "slow"))
                (append (and (eq :hunchentoot *front*) (list :access-log-destination log))
                        arguments)
                (lambda ()
                  (with-connection (first)
                    (send-request first "/")
                    (await entered)
                    (with-connection (second)
                      (try-to-send second (request-octets "/word"))
                      (let ((response (read-response second)))
                        (is (= 503 (response-status response)))
                        (is (response-header response "retry-after")))
                      (is-true (await-log words))
                      (eventually ("it to be told how many were refused")
                        (with-connection (next)
                          (try-to-send next (request-octets "/word"))
                          (read-response next))
                        (search "connections were refused since the last message" (front-log)))
                      (when (eq :hunchentoot *front*)
                        (check-line words "-" 503 log)))
                    (open-gate leave)
                    (is (equal "slow" (response-text (read-response first))))))))))
      (check "[WARNING]] A connection was refused: all threads serve."
             :max-thread-count 1 :max-accept-count nil)
      (check "A connection was refused: too many come from 127.0.0.1."
             :max-address-connections 1 :defer-accept nil))))

(define-server-test (limits-are-changed-and-counts-begin-anew :needs :our-engine)
  (serving (:max-body-octets 10) (("/" "read"))
    (flet ((status (content)
             (response-status (ask "/" :method :post :content content))))
      (is (= 413 (status "12345678901")))
      (reinitialize-instance *server* :max-body-octets 11)
      (is (= 200 (status "12345678901")))
      (is (= 413 (status "123456789012")))
      (is (= 404 (response-status (ask "/nowhere"))) "That is no rejection.")
      (eventually ("the rejections to be counted") (equal '((413 . 2)) (rejections)))
      (hunchentoot:stop *server*)
      (hunchentoot:start *server*)
      (is (null (rejections))))))

;;; Octets that are no request yet

(define-front-test (empty-lines-do-not-prolong-an-idle-connection :needs :our-http)
  (with-front (request :read-timeout 1/2 :write-timeout 1/2) (reply 200 '() "text")
    (with-connection (connection)
      (let ((sender (in-background ("empty lines")
                      (handler-case (loop repeat (* 20 *patience*)
                                          do (send connection :crlf)
                                             (poll (constantly nil) 1/10))
                        (patience-lost () nil)
                        (error () :closed)))))
        (is (eq :closed (task-result sender (* 3 *patience*))))))))

;;; Forms, and content that is read whole, which Clack leaves to its applications

(defun form-row-octets (target type framing content &optional (fields '()))
  "A request for TARGET with CONTENT of TYPE, and more FIELDS."
  (octets "POST " target " HTTP/1.1" :crlf "Host: localhost" :crlf "Content-Type: " type :crlf
          (loop for field in fields collect field collect :crlf)
          (if (eq :chunked framing)
              (list "Transfer-Encoding: chunked" :crlf :crlf (chunk content) "0" :crlf)
              (format nil "Content-Length: ~D" (length content)))
          :crlf (if (eq :chunked framing) "" (list :crlf content))))

(defun forms ()
  "Lists of arguments of an acceptor, and lists of the status of the answer, a target, a type, and
octets of content."
  (flet ((parts (&rest parts) (list "/form" (multipart-type) (apply #'multipart parts)))
         (form (text &optional (type *urlencoded*)) (list "/form" type (octets text)))
         (files (count size)
           (list "/form" (multipart-type)
                 (apply #'multipart (loop repeat count
                                          collect (file-part :contents (test-octets size)))))))
    (let ((many (repeated "a=b&" 100000))
          (large (octets "a=" (repeated "b" 3000000)))
          (part (repeated "x" 1000000))
          (boundary (make-string 200 :initial-element #\b)))
      `(((:max-form-octets 10)
         (200 ,@(form "a=34567890")) (413 ,@(form "a=345678901"))
         (413 ,@(form "a=345678901" (string-upcase *urlencoded*)))
         (413 "/raw-first" ,*urlencoded* ,(octets "a=345678901")))
        ((:max-field-count 3)
         (200 ,@(form "a=1&b=2&c=3")) (413 ,@(form "a=1&b=2&c=3&d=4")) (413 ,@(form "&&&")))
        ((:max-field-count 2)
         (200 ,@(parts (form-part "a" "1") (form-part "b" "2")))
         (413 ,@(parts (form-part "a" "1") (form-part "b" "2") (form-part "c" "3")))
         (413 ,@(parts (file-part) (file-part) (file-part)))
         (413 "/form" ,(format nil "multipart/form-data; boundary=~A" boundary)
          ,(octets (loop repeat 3
                         collect (octets "--" boundary :crlf
                                         "Content-Disposition: form-data; name=\"a\"" :crlf :crlf
                                         "1" :crlf))
                   "--" boundary "--" :crlf)))
        (()
         ,@(loop for text in '("a=b&" "&" "a[]=1&")
                 collect (list 413 "/form" *urlencoded* (repeated text 100000)))
         (200 "/form" ,*urlencoded* ,(octets "a=" part))
         ,@(loop for rest in (list "" "; charset=utf-8" ",x" "=x" "\"x" "(x)" "," "/x" "@"
                                   (format nil ",~A" *urlencoded*))
                 for type = (list *urlencoded* rest)
                 collect (list 413 "/form" type many)
                 collect (list 413 "/form" type large)
                 collect (list* 200 (form "a=b" type)))
         (413 "/form" (,*urlencoded* :crlf "Content-Type: " ,*urlencoded*) ,many)
         ,@(loop for type in (list "text/plain" (format nil "~A-x" *urlencoded*)
                                   (format nil "x ~A" *urlencoded*))
                 collect (list 200 "/form" type many))
         (413 "/form" ,(multipart-type)
          ,(octets (loop repeat 10001 collect (form-part "a" "1")) "--b--"))
         (200 ,@(parts (form-part "a" part) (file-part :contents (repeated "y" 3000000))))
         (413 ,@(parts (form-part "a" part) (form-part "b" part)
                       (form-part "c" (subseq part 900000))))
         (200 ,@(files 100 1)) (413 ,@(files 101 1)))
        ((:max-form-octets nil :max-field-count nil :max-file-count nil)
         (200 "/form" ,*urlencoded* ,(repeated "a=b&" 60000))
         (200 "/form" ,*urlencoded* ,large)
         (200 ,@(files 101 1)))
        ((:max-file-count 2)
         (200 ,@(files 2 1)) (413 ,@(files 3 1)) (200 ,@(files 2 100000)) (413 ,@(files 3 100000)))
        ((:max-raw-octets 1000)
         (200 "/raw" "text/plain" ,(test-octets 1000))
         (413 "/raw" "text/plain" ,(test-octets 1001)))
        ((:max-body-octets 10)
         (200 "/stream" "text/plain" ,(test-octets 10))
         (413 "/stream" "text/plain" ,(test-octets 11)))))))

(define-server-test (forms-and-content-have-limits :needs :our-content)
  (with-directory (directory)
    (with-globals ((hunchentoot:*tmp-directory* directory))
      (loop for (initargs . rows) in (forms)
            do (with-routes (("/form" (shown (length (hunchentoot:post-parameters*))))
                             ("/raw-first" (hunchentoot:raw-post-data :force-binary t)
                                           (shown (length (hunchentoot:post-parameters*))))
                             ("/raw" (shown (length (hunchentoot:raw-post-data :force-binary t))))
                             ("/stream" (loop with stream = (hunchentoot:raw-post-data
                                                             :want-stream t)
                                              while (read-byte stream nil nil))
                                        "read"))
                 (call-with-acceptor
                  initargs
                  (lambda ()
                    (loop for (status target type content) in rows
                          do (dolist (framing '(:length :chunked))
                               (with-connection (connection)
                                 (try-to-send connection
                                              (form-row-octets target type framing content))
                                 (let ((response (read-response connection)))
                                   (is (= status (response-status response)) "~S ~A ~A ~A"
                                       initargs target framing type)
                                   (is (null (response-header response "retry-after"))))))
                          when (= 413 status)
                            sum 2 into rejected
                          finally (eventually ("the rejections to be counted")
                                    (equal (and (plusp rejected) (list (cons 413 rejected)))
                                           (rejections))))))))
      (eventually ("the files to be deleted")
        (null (directory (merge-pathnames "hunchentoot-*" directory)))))))

(define-server-test a-query-of-many-fields-is-no-form
  (serving () (("/" (shown (length (hunchentoot:get-parameters*)))))
    (is (string= (shown 4000)
                 (ask-text (format nil "/?~A" (octet-text (repeated "a=b&" 16000))))))))

(define-server-test
    (content-is-what-the-head-says-whatever-protocol-is-asked-for :needs :our-content)
  (serving () (("/form" (shown (length (hunchentoot:post-parameters*))))
               ("/next" "next"))
    (loop for (type content . count) in `((,*urlencoded* "" . 0) (,*urlencoded* "a=b" . 1)
                                          ("multipart/form-data; boundary=b" "" . 0))
          do (with-connection (connection)
               ;; What follows is a request, and no part of the form.
               (send connection (form-row-octets "/form" type :length (octets content)
                                                 '("Connection: upgrade" "Upgrade: x"))
                     (request-octets "/next"))
               (is (string= (shown count) (response-text (read-response connection))))
               (is (string= "next" (response-text (read-response connection))))))))
