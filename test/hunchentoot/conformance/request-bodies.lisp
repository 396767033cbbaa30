(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* conformance/request-bodies :in conformance
  :description "raw-post-data in all its forms, and what follows a body on its connection.")

(defmacro serving-bodies ((&rest routes) &body body)
  "Evaluates BODY while ROUTES are served, and /next, which shows that the connection
is in order."
  `(serving () (("/next" "next") ,@routes)
     ,@body))

(defun post (target content &rest keys)
  "The text of the response to a POST of CONTENT to TARGET."
  (apply #'ask-text target :method :post :content content keys))

(defun next-is-served-p (connection)
  "Whether another request on CONNECTION gets its own answer."
  (string= "next" (exchange-text connection "/next")))

;;; Text and octets

(define-server-test a-body-is-octets-by-default
  (serving-bodies (("/" (shown (coerce (hunchentoot:raw-post-data) 'list))))
    (is (string= (shown '(0 255 13 10))
                 (post "/" #(0 255 13 10) :content-type "application/octet-stream")))
    (is (string= (shown '(97)) (post "/" "a")))))

(define-server-test a-body-with-a-charset-is-a-string
  (serving-bodies (("/" (shown (hunchentoot:raw-post-data))))
    (is (string= (shown "Grüße")
                 (post "/" "Grüße" :content-type "text/plain; charset=utf-8")))
    (is (string= (shown "Grüße")
                 (post "/" (encode "Grüße" :latin-1)
                       :content-type "text/plain; charset=iso-8859-1")))))

(define-server-test a-body-can-be-forced-to-text-and-to-octets
  (serving-bodies (("/text" (shown (hunchentoot:raw-post-data :force-text t)))
                   ("/octets" (shown (coerce (hunchentoot:raw-post-data :force-binary t)
                                             'list))))
    (is (string= (shown "ä") (post "/text" "ä")))
    (is (string= (shown '(195 164))
                 (post "/octets" "ä" :content-type "text/plain; charset=utf-8")))))

(define-server-test a-body-is-decoded-in-the-external-format-asked-for
  (serving-bodies (("/" (shown (hunchentoot:raw-post-data :external-format :latin-1))))
    (is (string= (shown "Ã¤") (post "/" "ä" :content-type "text/plain; charset=utf-8")))))

(define-server-test text-and-octets-at-once-are-refused
  (serving-bodies (("/" (handler-case (hunchentoot:raw-post-data :force-text t
                                                                 :force-binary t)
                          (hunchentoot:parameter-error () "refused"))))
    (is (string= "refused" (post "/" "body")))))

(define-server-test a-body-can-be-asked-for-again
  (serving-bodies (("/" (shown (hunchentoot:raw-post-data :force-text t)
                               (hunchentoot:raw-post-data :force-text t)
                               (length (hunchentoot:raw-post-data :force-binary t)))))
    (is (string= (shown "body" "body" 4) (post "/" "body")))))

(define-server-test a-request-without-body-has-no-raw-post-data
  (serving-bodies (("/" (shown (length (hunchentoot:raw-post-data :force-binary t)))))
    (is (string= "0" (ask-text "/")))
    (is (string= "0" (post "/" "")))))

(define-server-test a-form-is-there-both-raw-and-parsed
  (serving-bodies (("/" (shown (hunchentoot:post-parameter "a")
                               (hunchentoot:raw-post-data :force-text t))))
    (is (string= (shown "1" "a=1") (ask-text "/" :method :post :form '(("a" . "1")))))))

(define-server-test a-large-body-is-read-whole
  (let ((octets (test-octets 300000))
        (received nil))
    (serving-bodies (("/" (setf received (hunchentoot:raw-post-data :force-binary t))
                          "read"))
      (is (string= "read" (post "/" octets)))
      (is (null (octet-difference octets received))))))

;;; Chunked

(define-server-test a-chunked-body-is-joined
  (serving-bodies (("/" (hunchentoot:raw-post-data :force-text t)))
    (is (string= "one two three"
                 (ask-text "/" :method :post :chunks '("one" " two " "three"))))))

(defun chunga-warns-p ()
  "False where Chunga can't warn of an extension of a chunk: it gives its warning arguments that
this Lisp refuses, since the class of the warning has none."
  (handler-case (progn (make-condition 'chunga:chunga-warning
                                       :stream nil :format-control "" :format-arguments '())
                       t)
    (error () nil)))

(defun extensions-read-p ()
  "False where Hunchentoot's own code reads, and Chunga can't warn of what it ignores."
  (or (ours-p) (chunga-warns-p)))

(define-server-test chunks-are-not-taken-when-input-chunking-is-off
  (let ((runs (make-recorder)))
    (serving (:input-chunking-p nil) (("/" (record runs :handler) "read"))
      (with-connection (connection)
        (send-request connection "/" :method :post :chunks '("one"))
        (receive-rest connection)
        (is (null (recorded runs)))))))

;;; What the handler leaves unread

(define-server-test a-body-that-nobody-reads-is-skipped
  (serving-bodies (("/" "ignored"))
    (with-connection (connection)
      (is (string= "ignored" (exchange-text connection "/" :method :post
                                                           :content (test-octets 20000))))
      (is (string= "ignored" (exchange-text connection "/" :method :post
                                                           :chunks '("one" "two"))))
      (is (next-is-served-p connection)))))

;;; The stream

(define-server-test a-body-can-be-read-as-a-stream-of-octets
  (serving-bodies (("/" (let ((stream (hunchentoot:raw-post-data :want-stream t))
                              (octets (octets "6 here")))
                          (shown (read-sequence octets stream) (coerce octets 'list)))))
    (with-connection (connection)
      (is (string= (shown 6 '(1 2 3 253 254 255))
                   (exchange-text connection "/" :method :post
                                                 :content #(1 2 3 253 254 255))))
      (is (next-is-served-p connection)))))

(define-server-test the-stream-of-a-body-ends-where-the-body-ends
  (serving-bodies (("/" (let ((stream (hunchentoot:raw-post-data :want-stream t)))
                          (shown (loop while (read-byte stream nil nil) count t)))))
    (with-connection (connection)
      (is (string= "5000" (exchange-text connection "/" :method :post
                                                        :content (test-octets 5000))))
      (is (next-is-served-p connection)))))

(define-server-test the-stream-of-a-body-is-read-as-text-through-a-flexi-stream
  (serving-bodies (("/" (let ((stream (flexi-streams:make-flexi-stream
                                       (hunchentoot:raw-post-data :want-stream t)
                                       :external-format :utf-8)))
                          (shown (read-line stream) (read-line stream nil)))))
    (is (string= (shown "Grüße" "€") (post "/" (format nil "Grüße~%€"))))))

(define-server-test the-stream-of-a-chunked-body-ends-where-the-body-ends
  (serving-bodies (("/" (let ((stream (hunchentoot:raw-post-data :want-stream t)))
                          (decode (coerce (loop for octet = (read-byte stream nil nil)
                                                while octet collect octet)
                                          'octet-vector)))))
    (with-connection (connection)
      (is (string= "one two" (exchange-text connection "/" :method :post
                                                           :chunks '("one" " two"))))
      (is (next-is-served-p connection)))))
