(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* fronts/requests :in fronts
  :description "Where a request begins and ends, and what its octets may cost.")

(define-front-test (heads-of-two-clients-are-kept-apart :modes (:plain :http2) :needs :parking)
  (with-front (request :worker-num 1 :max-thread-count 1) (reply 200 '() (path request))
    (flet ((half (target part)
             (let* ((octets (request-octets target)) (half (floor (length octets) 2)))
               (ecase part
                 (1 (subseq octets 0 half))
                 (2 (subseq octets half))))))
      (with-connections (connections 2)
        (destructuring-bind (one other) connections
          (flet ((send-half (connection target)
                   (send connection (half target 1))
                   (eventually ("all to be parked")
                     (and (= 2 (figure :parked)) (zerop (figure :busy))))))
            (is (equal "/other" (exchange-text other "/other")))
            (send-half one "/one")
            (send one (half "/one" 2))
            (is (equal "/one" (response-text (read-response one))))
            (send-half other "/other")
            (is (equal "/one" (exchange-text one "/one")))
            (send other (half "/other" 2))
            (is (equal "/other" (response-text (read-response other))))))))))

(define-front-test (requests-that-fill-any-buffer-exactly-are-all-answered
                    :modes (:plain :unparked :tls :http2))
  (let ((entered (make-gate)) (go-on (make-gate)))
    (flet ((request (number)            ; of 64 octets
             (octets (format nil "GET /~4,'0D HTTP/1.1" number) :crlf "Host: localhost" :crlf
                     "X-Padding: 012345678901" :crlf :crlf)))
      (is (= 64 (length (request 1))))
      (with-front (request) (progn (open-gate entered)
                                   (await go-on)
                                   (reply 200 '() (path request)))
        (with-connection (connection)
          (send connection (request 0))
          (await entered)
          (send connection (loop for number from 1 to 600 collect (request number)))
          (open-gate go-on)
          (is (loop for number from 0 to 600
                    always (equal (format nil "/~4,'0D" number)
                                  (response-text (read-response connection))))))))))

(define-front-test (a-stream-of-no-content-is-at-its-end-and-may-be-closed
                    :modes (:plain :unparked :http2) :needs :our-http)
  (with-front (request) (let ((stream (stream-of request)))
                          (reply 200 '() (prog1 (shown (read-byte stream nil) (listen stream))
                                           (close stream))))
    (with-connection (connection)
      (loop repeat 2
            do (dolist (keys '(() (:method :post :headers (("Content-Length" . "0")))))
                 (is (equal (shown nil nil) (apply #'exchange-text connection "/" keys))))))))

;;; Symbols and time

(defun keyword-count ()
  (let ((count 0))
    (do-symbols (symbol '#:keyword count)
      (declare (ignorable symbol))
      (incf count))))

(defun made-up-name (stem)
  "A word that nobody has used before."
  (format nil "~A-~36R" stem (random (expt 36 12) (make-random-state t))))

(define-front-test (what-a-client-sends-makes-no-symbols
                    :modes (:plain :unparked :http2) :needs :our-content)
  (quietly
    (with-front (request)
        (progn (when (eq :hunchentoot *front*)
                 (hunchentoot:raw-post-data :force-text t)
                 (hunchentoot::convert-parameter (hunchentoot:get-parameter "color") 'keyword))
               (reply 200 '() (content request)))
      (flet ((try-it ()
               (ask (format nil "/?color=~A" (made-up-name "color"))
                    :method :post :content "text"
                    :content-type (format nil "text/plain; charset=~A" (made-up-name "set"))
                    :headers (list (cons (made-up-name "X") "1")
                                   (cons "Cookie" (format nil "~A=1" (made-up-name "c")))))))
        (try-it)
        (let ((before (keyword-count)))
          (loop repeat 3 do (try-it))
          (is (= before (keyword-count))))))))

(defun characters (count char)
  (make-string count :initial-element char))

(defun times (count text)
  "TEXT so many times."
  (format nil "~V@{~A~:*~}" count text))

;; Where time grew with the square of the length, no client here would be patient enough.
(define-server-test (headers-cost-time-with-their-length :needs :our-content)
  (serving (:max-header-octets 1000000 :max-request-line-octets 1000000 :max-field-count nil)
      (("/" (shown (length (hunchentoot:cookies-in*)) (length (hunchentoot:get-parameters*))
                   (length (hunchentoot:post-parameters*)) (stringp (hunchentoot:host))
                   (length (hunchentoot:real-remote-addr)))))
    (let* ((size (if (slow-lisp-p) 30000 300000))
           (spaces (characters size #\Space)))
      (flet ((answered-p (target &rest headers)
               (quietly (< (response-status (ask target :method :post :content "a=1"
                                                        :headers headers))
                           501))))
        (loop for (name . value)
                in `(("Cookie" . ,(format nil "a= b~Ac" spaces))
                     ("Cookie" . ,(format nil "a=~Ac~Ad; e" spaces (characters size #\Tab)))
                     ("Cookie" . ,(format nil "~Aa~A" (characters size #\;) (characters size #\,)))
                     ("Cookie" . ,(format nil "a~Ab" (times (floor size 4) " ; ")))
                     ("Cookie" . ,(format nil "hunchentoot-session=~A:x" (characters size #\1)))
                     ("Content-Type" . ,(format nil "text/plain~A" (characters size #\;)))
                     ("Content-Type" . ,(format nil "text/plain~A" (times (floor size 4) ";a=b")))
                     ("X-Forwarded-For" . ,(format nil "a~Ab" spaces))
                     ("Connection" . ,(format nil "a~Ab" spaces)))
              do (is-true (answered-p "/" (cons name value)) "~A: ~A" name (subseq value 0 30)))
        (dolist (piece '("&" "a=b&" "%41" "+" "%" "a[1]="))
          (is-true (answered-p (format nil "/?~A" (times (floor size 6) piece))) "~A" piece))))))

(define-server-test (numbers-and-keywords-that-are-none-are-not-made :needs :our-content)
  (flet ((converted (text type)
           (hunchentoot::convert-parameter text type))
         (array-of (&rest names)
           (hunchentoot::compute-array-parameter "a" 'string
                                                 (loop for name in names
                                                       collect (cons name name)))))
    (is (eq :post (converted "post" 'keyword)))
    (is (null (converted (made-up-name "no-keyword") 'keyword)))
    (is (null (converted nil 'keyword)))
    (is (eql 12 (converted "12" 'integer)))
    (is (eql (expt 10 30) (converted (format nil "~D" (expt 10 30)) 'integer)))
    (is (null (converted (characters 101 #\1) 'integer)))
    (is (equalp #("a[0]" nil "a[2]") (array-of "a[0]" "a[2]" "b[7]" "a[x]" "a" "a[]")))
    (is (= 10000 (length (array-of "a[9999]"))))
    (is (equalp #("a[0]") (array-of "a[0]" "a[10000]" "a[99999999999999999999]")))))

(define-front-test (a-refused-request-by-head-gets-no-content :modes (:plain) :needs :our-http)
  (with-front (request) (reply 200 '() "content")
    (dolist (line '("HEAD / HTTP/1.1" "HEAD / HTTP/7.1"))
      (is (cl-ppcre:scan "^HTTP/1.1 [45].*\\n(?:\\S.*\\n)*Date: .* GMT\\r\\n(?:\\S.*\\n)*\\r\\n\\z"
                         (decode (ask-raw line :crlf :crlf)))))))

(define-front-test (who-asks-to-be-kept-is-told-for-how-long :needs :our-http)
  (loop for (told . arguments) in '(("timeout=7" :idle-timeout 7) ("timeout=9" :read-timeout 9)
                                    (nil :idle-timeout nil))
        do (with-front* (request arguments) nil
             (with-connection (connection)
               (let ((response (exchange connection "/word" :version "HTTP/1.0"
                                         :headers '(("Connection" . "keep-alive")))))
                 (is (equal told (response-header response "keep-alive")))
                 (is (equalp (and told "keep-alive") (response-header response "connection"))))
               (is (null (response-header (exchange connection "/word") "keep-alive")))))))
