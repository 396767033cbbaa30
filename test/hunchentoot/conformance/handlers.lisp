(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* conformance/handlers :in conformance
  :description "What no request of differential/ asks for.")

;;; Replies

(define-server-test a-header-cannot-smuggle-another
  (serving () (("/" (setf (hunchentoot:header-out :x-one)
                          (format nil "1~C~CX-Two: 2" #\Return #\Newline))
                    "sent")
               ("/cookie" (hunchentoot:set-cookie
                           "a" :value (format nil "1~CX-Two: 2" #\Newline))
                          "sent"))
    (is (null (response-header (ask "/") "x-two")))
    (is (null (response-header (ask "/cookie") "x-two")))))

(define-server-test octets-arrive-in-order-however-they-are-written
  (let ((octets (test-octets 400000)))
    (dolist (sizes '((1 15 16 17 255 256 4000 4097 32751 32752 32760 32767 32768 32769 70000 3 9000)
                     ;; The end of a large piece comes to where that of a flushed one was.
                     (4 32753 3)))
      (serving () (("/" (loop with stream = (hunchentoot:send-headers)
                              for number from 0
                              for size = (elt sizes (mod number (length sizes)))
                              for start = 0 then end
                              for end = (min (length octets) (+ start size))
                              while (< start end)
                              do (if (= 1 size)
                                     (write-byte (aref octets start) stream)
                                     (write-sequence octets stream :start start :end end))
                                 (when (zerop (mod number 3))
                                   (finish-output stream)))))
        (is (null (octet-difference octets (response-body (ask "/")))))))))

(define-server-test a-plain-acceptor-serves-its-document-root-and-nothing-else
  (with-directory (root)
    (write-file root "page.html" "<p>Grüße</p>")
    (let ((*acceptor-class* 'recycling:parallel-acceptor))
      (serving (:document-root root) (("/page.html" "by the dispatch table")
                                      ("/handler" "by the dispatch table"))
        (is (string= "<p>Grüße</p>" (ask-text "/page.html")))
        (is (= 404 (response-status (ask "/handler"))))))))

;;; Connections

(defclass only-request (hunchentoot:request) ()
  (:documentation "A request that is its connection's last, which the program decides after the
reply."))

(defmethod hunchentoot:process-request :after ((request only-request))
  (setf hunchentoot::*finish-processing-socket* t))

(define-server-test a-program-may-end-the-connection-after-the-reply
  (serving (:request-class 'only-request) (("/" "body"))
    (with-connection (connection)
      (is (string= "body" (exchange-text connection "/")))
      (is (closed-by-server-p connection)))))

(define-server-test pipelined-requests-are-answered-in-order
  (serving () (("/" (hunchentoot:query-string*)))
    (with-connection (connection)
      (send connection (loop for number below 20
                             collect (request-octets (format nil "/?~D" number))))
      (dotimes (number 20)
        (is (string= (princ-to-string number)
                     (response-text (read-response connection))))))))

;;; What a handler knows

(define-server-test text-and-octets-at-once-are-refused
  (serving () (("/" (handler-case (hunchentoot:raw-post-data :force-text t :force-binary t)
                      (hunchentoot:parameter-error () "refused"))))
    (is (string= "refused" (ask-text "/" :method :post :content "body")))))
