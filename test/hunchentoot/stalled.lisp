(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* content-that-does-not-come :in acceptors
  :description "Clients that announce content and keep it to themselves.")

;;; Too slow

(defun begin-post (connection target framing &rest body)
  "Sends a request for TARGET with the header line FRAMING, and BODY, which may be a part."
  (send connection (format nil "POST ~A HTTP/1.1" target) :crlf "Host: localhost" :crlf
        "Content-Type: application/x-www-form-urlencoded" :crlf framing :crlf :crlf body))

(defparameter *stalling*
  '(("Content-Length: 10" "a=1") ("Transfer-Encoding: chunked" "5" :crlf "a=1"))
  "Header lines and parts of content that announce more than they send.")

(defmacro with-stalling-posts ((connections &optional (target "/")) &body body)
  "Evaluates BODY with CONNECTIONS on which each content of *STALLING* was sent to TARGET: so they
stall at the same time."
  `(with-connections (,connections (length *stalling*))
     (loop for connection in ,connections
           for content in *stalling*
           do (apply #'begin-post connection ,target content))
     ,@body))

(define-server-test (a-client-that-stalls-amid-content-is-told-so :needs :our-http)
  (let ((runs (make-recorder)))
    (serving (:read-timeout 1/2 :idle-timeout 60) ; a client may be late
        (("/raw" (hunchentoot:raw-post-data) (record runs :raw))
         ("/form" (hunchentoot:post-parameters*) (record runs :form))
         ("/stream" (let ((stream (hunchentoot:raw-post-data :want-stream t)))
                      (loop while (read-byte stream nil))
                      (record runs :stream)))
         ("/handles" (handler-case (hunchentoot:raw-post-data)
                       (error () (record runs :error)))))
      (dolist (target '("/raw" "/form" "/stream" "/handles"))
        (with-stalling-posts (connections target)
          (loop for connection in connections
                for content in *stalling*
                do (let ((response (read-response connection)))
                     (is (= 408 (response-status response)) "~A ~A" target content)
                     (is (equalp "close" (response-header response "connection"))))
                   (end-sending connection)
                   (is-true (closed-by-server-p connection)))))
      (is (null (recorded runs))))))

(define-server-test (a-client-that-stalls-is-waited-for-once :needs :our-http)
  ;; The reply comes after one wait; a second one would hold the connection for as long again.
  (with-growing-limit (seconds)
    (serving (:read-timeout seconds :idle-timeout 60) (("/" (hunchentoot:raw-post-data)))
      (with-stalling-posts (connections)
        (dolist (connection connections)
          (is (= 408 (response-status (read-response connection)))))
        (is-true (promptly (eventually ("the workers to be free")
                             (zerop (figure :busy)))))))))

(define-server-test (a-client-that-stalls-amid-content-that-nobody-wants-gets-the-reply
                     :needs :our-http)
  (serving (:read-timeout 1 :idle-timeout 60) (("/" "unwanted"))
    (with-stalling-posts (connections)
      (dolist (connection connections)
        (is (string= "unwanted" (response-text (read-response connection))))
        (end-sending connection)
        (is-true (closed-by-server-p connection))))))

;;; Held back until it is asked for

(defun begin-to-expect (connection target &optional (framing "Content-Length: 4"))
  (send connection (format nil "POST ~A HTTP/1.1" target) :crlf "Host: localhost" :crlf
        "Expect: 100-continue" :crlf framing :crlf :crlf))

(define-server-test (content-is-asked-for-when-it-is-wanted :needs :our-http)
  (let ((entered (make-gate)) (go-on (make-gate)))
    (serving () (("/" (open-gate entered)
                      (await go-on)
                      (hunchentoot:raw-post-data :force-text t)))
      (with-connection (connection)
        (begin-to-expect connection "/")
        (await entered)
        (is (not (readable-p connection)))
        (open-gate go-on)
        (is (= 100 (response-status (read-response connection))))
        (send connection "body")
        (is (string= "body" (response-text (read-response connection))))
        (is (string= "body" (exchange-text connection "/" :method :post :content "body")))))))

(define-server-test (content-is-asked-for-once-however-it-is-read :needs :our-http)
  (flet ((stream-text (stream)
           (decode (coerce (loop for octet = (read-byte stream nil nil) while octet collect octet)
                           'octet-vector))))
    (serving () (("/form" (hunchentoot:post-parameter "a"))
                 ("/stream" (stream-text (hunchentoot:raw-post-data :want-stream t)))
                 ("/own" (stream-text (slot-value hunchentoot:*request*
                                                  'hunchentoot::content-stream))))
      (dolist (target '("/form" "/stream" "/own"))
        (with-connection (connection)
          (begin-to-expect connection target
                           (octets "Content-Length: 6" :crlf "Content-Type: " *urlencoded*))
          (is (= 100 (response-status (read-response connection))) "~A" target)
          (send connection "a=body")
          (is (search "body" (response-text (read-response connection)))))))))

(define-server-test (content-that-nobody-wants-is-not-asked-for :needs :our-http)
  (let ((runs (make-recorder)))
    (serving () (("/" (record runs :handler) "unwanted")
                 ("/stream" (record runs :handler)
                            (write-sequence (octets "unwanted") (hunchentoot:send-headers))
                            (values)))
      (dolist (target '("/" "/stream"))
        (dolist (framing '("Content-Length: 4" "Transfer-Encoding: chunked"))
          (with-connection (connection)
            (begin-to-expect connection target framing)
            (let ((response (read-response connection)))
              (is (= 200 (response-status response)))
              (is (equalp "close" (response-header response "connection")))
              (is (string= "unwanted" (response-text response))))
            ;; What comes now may be the content, or the next request; nobody can tell.
            (try-to-send connection "GET / HTTP/1.1" :crlf "Host: localhost" :crlf :crlf)
            (ignore-errors (end-sending connection)) ; it may be closed by now
            (is-true (closed-by-server-p connection)))))
      (is (= 4 (recorded-count runs))))))

(define-server-test (a-refusal-comes-in-place-of-100 :needs :our-http)
  (serving (:max-raw-octets 3) (("/" (hunchentoot:raw-post-data)))
    (with-connection (connection)
      (begin-to-expect connection "/")
      (is (= 413 (response-status (read-response connection)))))))

;;; Left amid reading

(define-server-test (a-handler-that-leaves-amid-reading-content-has-no-request-after-it
                     :needs :our-http)
  (let ((runs (make-recorder)) (reading-p nil))
    (with-routes (("/leave" (let ((content (hunchentoot:raw-post-data :want-stream t)))
                              (setf reading-p t)
                              (catch 'late
                                (read-sequence (make-array 10 :element-type '(unsigned-byte 8))
                                               content))
                              (setf reading-p nil)
                              "left"))
                  ("/next" (record runs :next) "next"))
      (with-function (platform:await-descriptor (original &rest arguments)
                       ;; A part of the content was read when there is a wait for more.
                       (when (and reading-p (worker-p))
                         (throw 'late nil))
                       (apply original arguments))
        (loop for (line first second) in '(("Content-Length: 10" ("01234") ("56789"))
                                           ("Transfer-Encoding: chunked"
                                            ("5" :crlf "01234" :crlf)
                                            ("5" :crlf "56789" :crlf "0" :crlf :crlf)))
              do (serving () ()
                   (with-connection (connection)
                     (begin-post connection "/leave" line first)
                     (is (string= "left" (response-text (read-response connection))))
                     (try-to-send connection second (request-octets "/next"))
                     (is (closed-by-server-p connection)))))))
    (is (null (recorded runs)))))
