(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* form-limits :in acceptors
  :description "How much content an acceptor keeps in memory, by default and otherwise.")

(defparameter *urlencoded* "application/x-www-form-urlencoded")

(defun repeated (text size)
  "SIZE octets, at most, of TEXT again and again."
  (let* ((octets (octets text))
         (result (make-array (* (length octets) (floor size (length octets)))
                             :element-type '(unsigned-byte 8))))
    (copy-octets result 0 octets)
    ;; Doubled: millions of octets take long where the tests are evaluated.
    (loop for filled = (length octets) then (* 2 filled)
          while (< filled (length result))
          do (copy-octets result filled result filled))
    result))

(defun form-head (type framing)
  (octets "POST /form HTTP/1.1" :crlf "Host: localhost" :crlf "Content-Type: " type :crlf
          framing :crlf :crlf))

(defmacro serving-forms ((&rest initargs) &body body)
  "Evaluates BODY while an acceptor made of INITARGS tells how many parameters a form at /form has,
how many octets of content /raw gets, and serves /next; what they take, RUNS records."
  `(let ((runs (make-recorder)))
     (serving ,initargs
         (("/form" (let ((count (length (hunchentoot:post-parameters*))))
                     (record runs :form)
                     (shown count)))
          ("/raw" (let ((count (length (hunchentoot:raw-post-data :force-binary t))))
                    (record runs :raw)
                    (shown count)))
          ("/next" "next"))
       ,@body)))

(defun form-status (body &key (type *urlencoded*) chunked)
  "The status of the answer to a form with BODY, that of the reply to who sends as much as he can."
  (with-connection (connection)
    (cond (chunked
           (send connection (form-head type "Transfer-Encoding: chunked"))
           (try-to-send connection (chunk body) "0" :crlf :crlf))
          (t
           (send connection (form-head type (format nil "Content-Length: ~D" (length body))))
           (try-to-send connection body)))
    (response-status (read-response connection))))

;;; Forms without files

(define-server-test (forms-have-a-limit-on-octets :needs :our-engine)
  (serving-forms (:max-form-octets 10)
    (is (= 200 (form-status (octets "a=34567890"))))
    (is (= 413 (form-status (octets "a=345678901"))))
    (is (= 200 (form-status (octets "a=34567890") :chunked t)))
    (is (= 413 (form-status (octets "a=345678901") :chunked t)))
    (is (= 413 (form-status (octets "a=345678901") :type (string-upcase *urlencoded*))))
    (is (= 2 (recorded-count runs :form)))))

(define-server-test (forms-have-a-limit-on-fields :needs :our-engine)
  (serving-forms (:max-field-count 3)
    (dolist (chunked '(nil t))
      (is (= 200 (form-status (octets "a=1&b=2&c=3") :chunked chunked)))
      (is (= 413 (form-status (octets "a=1&b=2&c=3&d=4") :chunked chunked)))
      (is (= 413 (form-status (octets "&&&") :chunked chunked))))))

(define-server-test (forms-have-limits-by-default :needs :our-engine)
  (serving-forms ()
    (dolist (chunked '(nil t))
      (dolist (text '("a=b&" "&" "a[]=1&"))
        (is (= 413 (form-status (repeated text 3000000) :chunked chunked)))
        (is (= 413 (form-status (repeated text 100000) :chunked chunked))))
      (is (= 200 (form-status (octets "a=" (repeated "b" 1000000)) :chunked chunked))))
    (is (= 2 (recorded-count runs :form)))
    (is (string= (shown 9999)
                 (ask-text "/form" :method :post :content-type *urlencoded*
                                   :content (repeated "a=b&" (* 4 9999)))))))

(define-server-test (forms-whose-type-is-followed-by-anything-have-limits-too :needs :our-engine)
  (let ((many (repeated "a=b&" 100000))
        (large (octets "a=" (repeated "b" 3000000))))
    (serving-forms ()
      (dolist (rest (list "" "; charset=utf-8" ",x" "=x" "\"x" "(x)" ","
                          (format nil ",~A" *urlencoded*)))
        (let ((type (list *urlencoded* rest)))
          (is (= 413 (form-status many :type type)) "~A" rest)
          (is (= 413 (form-status large :type type)) "~A" rest)
          (is (= 200 (form-status (octets "a=b") :type type)) "~A" rest)))
      (is (= 413 (form-status many :type (list *urlencoded* :crlf "Content-Type: " *urlencoded*))))
      (dolist (type (list "text/plain" (format nil "~A-x" *urlencoded*)
                          (format nil "x ~A" *urlencoded*)))
        (is (= 200 (form-status many :type type)) "~A" type)))))

(define-server-test (limits-on-forms-can-be-left-out :needs :our-engine)
  (serving-forms (:max-form-octets nil :max-field-count nil)
    (is (= 200 (form-status (repeated "a=b&" 60000))))
    (is (= 200 (form-status (octets "a=" (repeated "b" 2200000)))))))

(define-server-test (forms-in-other-charsets-have-limits-too :needs :our-engine)
  (with-globals ((hunchentoot:*hunchentoot-default-external-format*
                  (flexi-streams:make-external-format :koi8-r :eol-style :lf)))
    (serving-forms ()
      (is (string= (shown 2) (ask-text "/form" :method :post :form '(("a" . "1") ("b" . "2")))))
      (is (= 413 (form-status (repeated "a=b&" 100000))))
      (is (= 413 (form-status (repeated "a=b&" 3000000)))))))

(define-server-test (a-form-that-was-read-raw-has-limits-too :needs :our-content)
  (serving () (("/" (hunchentoot:raw-post-data :force-binary t)
                    (shown (length (hunchentoot:post-parameters*)))))
    (flet ((status (octets)
             (response-status (ask "/" :method :post :content-type *urlencoded* :content octets))))
      (is (= 200 (status (octets "a=1&b=2"))))
      (is (= 413 (status (repeated "a=1&" 100000))))
      (is (= 413 (status (octets "a=" (repeated "x" 3000000))))))))

(define-server-test (a-form-that-is-too-large-is-refused-before-it-comes :needs :our-http)
  (serving-forms ()
    (with-connection (connection)
      (send connection (form-head *urlencoded* "Content-Length: 20000000"))
      (let ((response (read-response connection)))
        (is (= 413 (response-status response)))
        (is (equalp "close" (response-header response "connection"))))
      (end-sending connection)
      (is-true (closed-by-server-p connection)))
    (is (null (recorded runs)))))

(define-server-test a-query-of-many-fields-is-no-form
  (serving () (("/" (shown (length (hunchentoot:get-parameters*)))))
    (is (string= (shown 4000) (ask-text (format nil "/?~A" (octet-text (repeated "a=b&" 16000))))))
    (is (= 200 (response-status
                (ask (format nil "/?~A" (octet-text (repeated "&" 16000)))))))))

;;; Forms with files

(defun status-of-parts (&rest parts)
  (form-status (apply #'multipart parts) :type (multipart-type)))

(define-server-test (parts-of-forms-are-counted :needs :our-engine)
  (serving-forms (:max-field-count 2)
    (is (= 200 (status-of-parts (form-part "a" "1") (form-part "b" "2"))))
    (is (= 413 (status-of-parts (form-part "a" "1") (form-part "b" "2") (form-part "c" "3"))))
    (is (= 413 (status-of-parts (file-part) (file-part) (file-part)))))
  (serving-forms ()
    (is (= 413 (form-status (octets (loop repeat 10001 collect (form-part "a" "1")) "--b--")
                            :type (multipart-type))))))

(define-server-test (fields-beside-files-have-a-limit-together :needs :our-engine)
  (serving-uploads (("/form" (shown (length (hunchentoot:post-parameters*)))))
    (let ((field (repeated "x" 1000000)))
      (is (= 200
             (status-of-parts (form-part "a" field) (file-part :contents (repeated "y" 3000000)))))
      (is (= 413 (status-of-parts (form-part "a" field) (form-part "b" field)
                                  (form-part "c" (repeated "z" 100000))))))))

(define-server-test (a-long-boundary-gets-nobody-round-the-limits :needs :our-engine)
  (serving-forms (:max-field-count 2)
    (let ((boundary (make-string 200 :initial-element #\b)))
      (is (= 413 (form-status
                  (octets (loop repeat 3
                                collect (octets "--" boundary :crlf
                                                "Content-Disposition: form-data; name=\"a\""
                                                :crlf :crlf
                                                "1" :crlf))
                          "--" boundary "--" :crlf)
                  :type (format nil "multipart/form-data; boundary=~A" boundary)))))))

;;; Raw

(define-server-test (content-that-is-read-whole-has-a-limit :needs :our-content)
  (serving-forms (:max-raw-octets 1000)
    (dolist (framing '(:content :chunks))
      (flet ((answer (size)
               (let ((octets (test-octets size)))
                 (ask "/raw" :method :post framing
                      (if (eq framing :chunks) (list octets) octets)))))
        (is (= 200 (response-status (answer 1000))))
        (is (= 413 (response-status (answer 1001))))))
    (is (= 2 (recorded-count runs :raw)))))

(define-server-test (content-beyond-any-memory-is-refused-before-it-comes :needs :our-http)
  (serving-forms ()
    (with-connection (connection)
      (send connection "POST /raw HTTP/1.1" :crlf "Host: localhost" :crlf
            "Content-Length: 2000000000" :crlf :crlf)
      (is (= 413 (response-status (read-response connection)))))
    (is (null (recorded runs)))))

(define-server-test (endless-chunks-are-refused :needs :our-content)
  (serving-forms (:max-raw-octets 300000)
    (with-connection (connection)
      (send connection "POST /raw HTTP/1.1" :crlf "Host: localhost" :crlf
            "Transfer-Encoding: chunked" :crlf :crlf)
      (loop with chunk = (chunk (test-octets 10000))
            repeat 1000
            until (readable-p connection)
            do (try-to-send connection chunk))
      (is (= 413 (response-status (read-response connection)))))))

(define-server-test (a-streamed-reply-does-not-keep-content-beyond-the-limit :needs :our-content)
  (serving (:max-raw-octets 1000)
      (("/" (let ((stream (hunchentoot:send-headers)))
              (write-sequence (octets "early") stream)
              (values)))
       ("/kept" (let ((stream (hunchentoot:send-headers)))
                  (write-sequence (octets (shown (length (hunchentoot:raw-post-data
                                                          :force-binary t))))
                                  stream)
                  (values))))
    (is (string= "early" (ask-text "/" :method :post :content (test-octets 100000))))
    (is (string= "early" (ask-text "/" :method :post :chunks (list (test-octets 100000)))))
    (is (string= (shown 0) (ask-text "/kept" :method :post :content (test-octets 1001))))
    (is (string= (shown 1000) (ask-text "/kept" :method :post :content (test-octets 1000))))))

;;; All together

(define-server-test (content-of-all-requests-together-has-a-limit :needs :our-http)
  ;; What has come in part when it is asked for as a whole counts twice for a moment.
  (with-globals ((engine:*client-memory-share* (/ 300000 (platform:heap-octets))))
    (let ((entered (make-gate)) (leave (make-gate)))
      (serving () (("/hold" (hunchentoot:raw-post-data :force-binary t)
                            (open-gate entered)
                            (await leave)
                            "held")
                   ("/raw" (shown (length (hunchentoot:raw-post-data :force-binary t)))))
        (with-connections (connections 2)
          (destructuring-bind (first second) connections
            (send-request first "/hold" :method :post :content (test-octets 140000))
            (await entered)
            (let ((response (exchange second "/raw" :method :post :content (test-octets 200000))))
              (is (= 503 (response-status response)))
              (is (response-header response "retry-after")))
            (is (= 413 (response-status (ask "/raw" :method :post :content (test-octets 400000)))))
            (is (string= (shown 50000)
                         (ask-text "/raw" :method :post :content (test-octets 50000))))
            (open-gate leave)
            (is (string= "held" (response-text (read-response first))))))
        ;; Content is given back after the answer was sent.
        (eventually ("memory to be given back")
          (zerop (engine:client-memory-reserved)))
        (is (string= (shown 140000)
                     (ask-text "/raw" :method :post :content (test-octets 140000))))))
    (is (zerop (engine:client-memory-reserved)))))

;;; A request for another protocol

(defparameter *asking-for-another-protocol*
  '(("Connection" . "upgrade") ("Upgrade" . "x"))
  "Header fields of a request that asks for another protocol.")

(defun upgrading-post (type framing)
  "The head of a form of TYPE that asks for another protocol too."
  (octets "POST /form HTTP/1.1" :crlf "Host: localhost" :crlf
          (loop for (name . value) in *asking-for-another-protocol*
                collect (octets name ": " value :crlf))
          "Content-Type: " type :crlf framing :crlf :crlf))

(define-server-test
    (content-is-what-the-head-says-whatever-protocol-is-asked-for :needs :our-content)
  (serving-forms (:max-form-octets 10)
    (dolist (type (list *urlencoded* "multipart/form-data; boundary=b"))
      (dolist (framing '("Content-Length: 0" "X: no length"))
        (with-connection (connection)
          ;; What follows is a request, and no part of the form.
          (send connection (upgrading-post type framing) (request-octets "/next"))
          (is (= 200 (response-status (read-response connection))))
          (is (string= "next" (response-text (read-response connection)))))))
    (with-connection (connection)
      (send connection (upgrading-post *urlencoded* "Content-Length: 11") "a=345678901")
      (is (= 413 (response-status (read-response connection)))))
    (with-connection (connection)
      (send connection (upgrading-post *urlencoded* "Content-Length: 3") "a=b"
            (request-octets "/next"))
      (is (string= (shown 1) (response-text (read-response connection))))
      (is (string= "next" (response-text (read-response connection)))))))

;;; Files

(defun many-files (count)
  "A form with COUNT files of an octet each."
  (apply #'multipart (loop repeat count collect (file-part :contents (octets "x")))))

(defun status-of-files (count)
  (form-status (many-files count) :type (multipart-type)))

(define-server-test (files-of-forms-are-counted-before-they-are-made :needs :our-content)
  (let ((made (make-recorder)))
    (with-function (hunchentoot::make-tmp-file-name (original &rest arguments)
                     (record made :file)
                     (apply original arguments))
      (with-directory (directory)
        (with-globals ((hunchentoot:*tmp-directory* directory))
          (serving-forms (:max-file-count 2)
            (is (= 413 (status-of-files 3)))
            (is (= 0 (recorded-count made)))
            (is (= 200 (status-of-files 2)))
            (is (= 2 (recorded-count made))))
          (serving-forms ()
            (is (= 413 (status-of-files 101)))
            (is (= 2 (recorded-count made)))
            (is (= 200 (status-of-files 100))))
          (serving-forms (:max-file-count nil)
            (is (= 200 (status-of-files 101)))))))))

(define-server-test (large-files-of-forms-are-counted-too :needs :our-content)
  (with-directory (directory)
    (with-globals ((hunchentoot:*tmp-directory* directory))
      (serving-forms (:max-file-count 2)
        (flet ((status (count)
                 (form-status (apply #'multipart
                                     (loop repeat count
                                           collect (file-part :contents (test-octets 100000))))
                              :type (multipart-type))))
          (is (= 413 (status 3)))
          (is (= 200 (status 2)))
          (eventually ("the files to be deleted")
            (null (directory (merge-pathnames "hunchentoot-*" directory)))))))))
