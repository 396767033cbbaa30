(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* fronts/http2 :in fronts
  :description "What HTTP/2 alone has.")

(define-front-test (handlers-of-one-client-run-side-by-side :modes (:http2))
  (let ((gate (make-gate)))
    (with-front (request) (progn (if (equal "/first" (path request)) (await gate) (open-gate gate))
                                 (reply 200 '() (path request)))
      (with-connection (connection)
        (with-http2 (connection)
          (dolist (target '("/first" "/second"))
            (let ((octets (request-octets target)))
              (submit-request connection (subseq octets 0 (- (length octets) 4)))))
          (flush-http2 connection))
        (dolist (target '("/first" "/second"))
          (is (equal target (response-text (read-response connection)))))))))

(define-front-test (a-client-chooses-http2-in-the-handshake :modes (:tls))
  (where-program (curl "curl")
    (with-front (request :http2 t) (reply 200 '() "")
      (loop for (option version) in '(("--http2" "2") ("--http1.1" "1.1"))
            do (is (equal (format nil "word~A" version)
                          (uiop:run-program
                           (list curl "-sk" option "--max-time" "60" "-w" "%{http_version}"
                                 (format nil "https://127.0.0.1:~D/word" (port-of *server*)))
                           :output :string)))))))

;;; In frames

(defun http2-frame (type flags stream &rest parts)
  "A frame of HTTP/2 (RFC 9113, section 4.1) with the octets of PARTS."
  (let* ((payload (octets parts)) (size (length payload)))
    (octets (vector 0 (ash size -8) (ldb (byte 8 0) size) type flags
                    0 0 (ash stream -8) (ldb (byte 8 0) stream))
            payload)))

(defun head-frame (stream fields)
  "A frame of headers without content, with FIELDS, a list of names and values (RFC 7541, section
6.2.2)."
  (http2-frame 1 5 stream (loop for text in fields
                                for name-p = t then (not name-p)
                                when name-p collect (vector 0)
                                collect (vector (length text)) collect text)))

(defparameter *whole-head* '(":method" "GET" ":scheme" "http" ":path" "/word" ":authority" "a"))

(defmacro with-frames ((connection) &body body)
  "Evaluates BODY with CONNECTION bound to one that has sent the preface, and sends octets."
  `(let ((*make-connection* '%make-connection))
     (with-connection (,connection)
       (try-to-send ,connection server:*preface* (http2-frame 4 0 0))
       ,@body)))

(defun receive-frame (connection)
  "The type of the next frame of CONNECTION, and its flags; NIL at its end."
  (let ((head (receive-few connection 9)))
    (when (= 9 (length head))
      (receive-few connection (+ (ash (aref head 1) 8) (aref head 2)))
      (values (aref head 3) (aref head 4)))))

(defun receive-reply (connection)
  "The types of the frames of CONNECTION up to the next that ends a stream, but for settings and
windows."
  (loop for (type flags) = (multiple-value-list (receive-frame connection))
        unless (member type '(4 8)) collect type
        until (or (member type '(nil 3)) (and (< type 2) (logtest 1 flags)))))

(define-front-test (a-port-without-tls-speaks-both-protocols-wherever-they-are-cut
                    :modes (:plain) :needs :parking)
  (with-front (request :http2 :cleartext) (reply 200 '() (content request))
    (flet ((send-cut (connection cut octets)
             (send connection (subseq octets 0 cut))
             (eventually ("it to be looked at")
               (and (= 1 (figure :parked)) (zerop (figure :busy))))
             (send connection (subseq octets cut))))
      (with-connection (connection)
        (send-cut connection 1 (request-octets "/" :method :post :content "content"))
        (is (equal "content" (response-text (read-response connection)))))
      (dolist (cut '(1 24))                ; all of the preface
        (eventually ("the last one to end") (zerop (figure :open)))
        (with-connection (connection)
          (send-cut connection cut
                    (octets server:*preface* (http2-frame 4 0 0) (head-frame 1 *whole-head*)))
          (is (member 1 (receive-reply connection))))))))

(define-front-test (a-client-may-use-its-limit-of-requests :modes (:http2))
  (with-front (request :http2-streams 1) (reply 200 '() "")
    (with-frames (connection)
      (is (equal '(1) (remove-duplicates
                       (loop for number from 1 by 2
                             repeat 300
                             do (send connection (head-frame number *whole-head*))
                             append (remove 0 (receive-reply connection)))))))))

(define-front-test (a-soft-stop-tells-a-client-amid-its-request :modes (:http2))
  (let ((entered (make-gate)) (release (make-gate)))
    (with-front (request) (progn (open-gate entered) (await release) (reply 200 '() ""))
      (with-frames (connection)
        (send connection (head-frame 1 (substitute "/" "/word" *whole-head* :test #'equal)))
        (await entered)
        (let ((stopping (as-client ("stop") (nth-value 1 (stop-front :soft t)))))
          (is (eql 7 (loop for type = (receive-frame connection)
                           while (member type '(4 8))
                           finally (return type))))
          (open-gate release)
          (is (member 1 (receive-reply connection)))
          (is (null (task-result stopping))))))))

(define-front-test (heads-of-any-length-and-content-of-none-are-sent :modes (:http2))
  (with-front (request) (reply 200 (list :x-long (make-string 90000 :initial-element #\x))
                               (content request))
    (with-frames (connection)
      (let ((head (head-frame 1 `(":method" "POST" ,@(cddr (substitute "/" "/word" *whole-head*
                                                                       :test #'equal))
                                            "content-length" "0"))))
        (setf (aref head 4) 4)          ; more frames follow
        (send connection head (http2-frame 0 1 1))
        (is (equal '(1) (receive-reply connection)))))))

(define-front-test (a-reset-without-an-error-ends-a-stream-too :modes (:http2))
  (with-answers (answers)
    (with-frames (connection)
      (send connection (head-frame 1 (substitute "/" "/word" *whole-head* :test #'equal)))
      (let ((writer (funcall (await-answer answers) 200 '())))
        (send connection (http2-frame 3 0 1 (vector 0 0 0 0)))
        (is (eq 'recycling:client-left
                (outcome (lambda () (loop (funcall writer "more"))))))))))

(define-front-test (a-malformed-head-resets-its-stream :modes (:http2))
  (with-front (request) (reply 200 '() "served")
    (dolist (fields (list '("X-Upper" "a") '("x y" "a") (list "x-a" (octets "b" :crlf "c: d"))
                          '("connection" "close") '("transfer-encoding" "chunked")
                          '("content-length" "5") '("content-length" "x") '(":path" "/other")
                          '(":unknown" "a") '("te" "gzip") '("upgrade" "websocket")))
      (with-frames (connection)
        (try-to-send connection (head-frame 1 (append *whole-head* fields)))
        (is (eql 3 (loop for type = (receive-frame connection)
                         until (member type '(nil 1 3)) ; the end, a head, a reset
                         finally (return type)))
            "~S" fields)))
    (is (equal "word" (ask-text "/word")))))

(define-front-test (a-client-that-floods-is-disconnected :modes (:http2))
  (with-front (request) (reply 200 '() "served")
    (loop for frames in (list (list (http2-frame 6 0 0 (vector 0 0 0 0 0 0 0 0)))
                              (list (http2-frame 4 0 0))
                              (lambda (number)
                                (list (head-frame number *whole-head*)
                                      (http2-frame 3 0 number (vector 0 0 0 8)))))
          do (with-frames (connection)
               (loop for number from 1 by 2
                     repeat 2000
                     do (try-to-send connection (if (functionp frames)
                                                    (funcall frames number)
                                                    frames)))
               (is-true (receive-rest connection)))
             (is (equal "word" (ask-text "/word"))))))

(define-front-test (http2-is-refused-where-it-cannot-be-had :modes (:unparked))
  (signals recycling:unfit-argument
    (with-front (request :http2 :cleartext) (reply 200 '() "")
      nil)))
