(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite contents :in all
  :description "The content of requests as streams, without Hunchentoot.")

(in-suite contents)

(defun content-of-length (stream size &key (turn-down (constantly nil)) invite)
  (server:make-content-stream stream size turn-down invite))

(defun read-up-to (stream count)
  "Up to COUNT octets of STREAM; fewer at its end."
  (let ((octets (make-array count :element-type '(unsigned-byte 8))))
    (subseq octets 0 (read-sequence octets stream))))

;;; Of known length

(define-server-test content-of-a-length-ends-where-it-ends
  (with-io (io stream client)
    (send client "abcdefgh")
    (let ((content (content-of-length stream 5)))
      (is (eql (char-code #\a) (read-byte content)))
      (is (= 4 (content-remaining content)))
      (is (listen content))
      (is (equalp (octets "bcde") (read-up-to content 10)))
      (is (not (listen content)))
      (is (null (read-byte content nil)))
      (is (zerop (length (read-up-to content 10))))
      (is (eql (char-code #\f) (read-byte stream))))))

(define-server-test content-that-breaks-off-is-not-taken-for-whole
  (with-io (io stream client)
    (send client "abc")
    (end-sending client)
    (flet ((content () (content-of-length stream 5)))
      (let ((content (content)))
        (loop repeat 2 do (signals end-of-file (read-up-to content 5))))
      (signals end-of-file (read-byte (content) nil))
      (signals end-of-file (server:drop-content (content) 5)))))

(define-server-test content-is-dropped-up-to-a-limit
  (with-io (io stream client)
    (send client "abcdefgh")
    (let ((content (content-of-length stream 5)))
      (read-byte content)
      (is (not (server:drop-content content 3)))
      (is (= 4 (content-remaining content)) "Nothing was dropped.")
      (is (server:drop-content content 4))
      (is (zerop (content-remaining content)))
      (is (eql (char-code #\f) (read-byte stream))))
    (clear-input stream)
    (send-and-fill io client "ab")
    (send client "cdef")
    (is (server:drop-content (content-of-length stream 5) 5) "Though it came in pieces.")
    (is (eql (char-code #\f) (read-byte stream)))
    (is (server:drop-content (content-of-length stream 0) 0))))

(define-server-test a-peer-that-takes-too-long-over-its-content-is-refused-once
  (with-io (io stream client)
    (platform:limit-waits stream 1/100)
    (dolist (make (list (lambda (turn-down) (content-of-length stream 5 :turn-down turn-down))
                        (lambda (turn-down) (chunked io :turn-down turn-down))))
      (let* ((refusals '())
             (content (funcall make (lambda (refusal) (push refusal refusals)))))
        (signals http:protocol-error (read-byte content))
        (is (equal '(:request-timeout) (mapcar #'http:protocol-error-refusal refusals)))
        (is (not (server:drop-content content 5)) "It is not waited for again.")
        (is (not (listen content)))
        (is (= 1 (length refusals)))))
    ;; A part is not taken for the whole by who reads on.
    (dolist (content (list (content-of-length stream 5) (chunked io)))
      (signals http:protocol-error (read-byte content))
      (signals http:protocol-error (read-byte content nil))
      (signals http:protocol-error (read-up-to content 5)))))

(define-server-test a-reader-that-reads-on-where-reading-was-left-is-told-so
  (with-io (io stream client)
    (dolist (content (list (content-of-length stream 5) (chunked io)))
      (catch 'out
        (call-reading-content content (lambda () (throw 'out nil))))
      (is (not (listen content)))
      (signals server:content-left (read-byte content nil))
      (signals server:content-left (read-up-to content 5))
      (signals server:content-left (all-content content)))))

(define-server-test an-end-of-file-of-something-else-is-not-that-of-content
  (with-io (io stream client)
    (dolist (content (list (content-of-length stream 5) (chunked io)))
      (catch 'out
        (call-reading-content content (lambda ()
                                        (handler-case (error 'end-of-file :stream *standard-input*)
                                          (end-of-file () (throw 'out nil))))))
      (signals server:content-left (read-byte content nil)))
    (let ((content (content-of-length stream 5)))
      (is (eq :handled (call-reading-content content (lambda ()
                                                       (handler-case (error 'end-of-file)
                                                         (end-of-file () :handled))))))
      (send client "abcde")
      (is (equalp (octets "abcde") (all-content content))))))

;; Nobody has what was taken, but the next request is where it is.
(define-server-test content-of-which-a-part-is-lost-can-be-dropped
  (with-io (io stream client)
    (send client "abcde" (chunks-of (octets "fghij") 5) "k")
    (dolist (content (list (content-of-length stream 5) (chunked io)))
      (catch 'out
        (server:keeping-content (content)
          (read-byte content)
          (throw 'out nil)))
      (signals server:content-left (read-byte content nil))
      (signals server:content-left (all-content content))
      (is-true (server:drop-content content 100)))
    (is (eql (char-code #\k) (read-byte stream)))))

(define-server-test (a-reader-that-leaves-listen-amid-it-may-have-lost-octets :needs :our-http)
  (with-io (io stream client)
    (dolist (make (list (lambda (invite) (content-of-length stream 5 :invite invite))
                        (lambda (invite) (chunked io :invite invite))))
      (let ((content (funcall make (lambda () (throw 'out nil)))))
        (is (null (catch 'out
                    (listen content))))
        (signals server:content-left (read-byte content nil))))))

(define-server-test content-that-was-refused-is-refused-again-however-it-came
  (with-io (io stream client)
    (flet ((spooled (content)
             (setf (content-body-buffer content) (make-body-buffer))
             (append-to-body-buffer (content-body-buffer content) (octets "abcde") 0 5)
             content))
      (dolist (content (list (content-of-length stream 5) (spooled (content-of-length stream 5))))
        (loop repeat 2
              do (signals http:protocol-error (all-content content 3)))))))

(define-server-test (a-reader-that-reads-on-where-reading-all-was-left-is-told-so
                     :needs :calls-by-name)
  (let ((left-p nil))
    (with-function (server::first-octets (original content octets count)
                     (unless (shiftf left-p t)
                       (throw 'out nil))
                     (funcall original content octets count))
      (with-io (io stream client)
        (send client (chunks-of (test-octets 100) 100))
        (let ((content (chunked io)))
          (catch 'out
            (all-content content))
          (is-true left-p)
          (signals server:content-left (all-content content)))))))

(define-server-test (a-reader-that-reads-on-where-the-connection-has-broken-is-told-so
                     :needs :our-http)
  (dolist (chunked-p '(nil t))
    (with-io (io stream client)
      (let ((content (if chunked-p (chunked io) (content-of-length stream 5))))
        (reset client)
        (loop repeat 2
              do (signals server:descriptor-broken (read-byte content nil)))))))

(define-server-test a-peer-that-holds-its-content-back-is-asked-for-it-once
  (with-io (io stream client)
    (let* ((asked 0)
           (invite (lambda () (incf asked) (send client "abc")))
           (content (content-of-length stream 3 :invite invite)))
      (is (not (server:drop-content content 100)) "Nobody wants it.")
      (is (zerop asked))
      (is (eql (char-code #\a) (read-byte content)))
      (is (equalp (octets "bc") (read-up-to content 2)))
      (is (= 1 asked))
      (let ((chunked (chunked io :invite (lambda () (incf asked) (send client "0" :crlf :crlf)))))
        (is (not (server:drop-content chunked 100)))
        (is (zerop (length (all-content chunked))))
        (is (= 2 asked))))
    ;; Who asks whether something has come wants it.
    (dolist (make (list (lambda (invite) (content-of-length stream 3 :invite invite))
                        (lambda (invite) (chunked io :invite invite))))
      (let ((asked 0))
        (is (not (listen (funcall make (lambda () (incf asked))))))
        (is (= 1 asked))))))

;; All requests without content share one stream.
(test the-content-of-requests-that-have-none-is-the-same-whatever-is-done-to-it
  (let ((content server:*no-content*))
    (catch 'out
      (call-taking-content content (lambda () (throw 'out nil))))
    (catch 'out
      (server:keeping-content (content) (throw 'out nil)))
    (is-true (server:drop-content content 0) "The next connection can be kept.")
    (is-true (close content))
    (is-true (open-stream-p content))
    (is (null (read-byte content nil)))))

(define-server-test content-of-a-length-is-read-whole-if-it-may-be
  (with-io (io stream client)
    (send client "abcdefgh")
    (is (equalp (octets "abcd") (all-content (content-of-length stream 4) 4)))
    (signals http:protocol-error (all-content (content-of-length stream 4) 3))
    (is (eql (char-code #\e) (read-byte stream)) "What is too much is not begun.")))

(define-server-test (content-that-came-before-is-read-before-what-follows :needs :our-http)
  (with-io (io stream client)
    (send client "cde, and the next request")
    (eventually ("the octets to come") (eq :some (server:fill-input io)))
    (let ((content (content-of-length stream 5)))
      (setf (content-body-buffer content) (make-body-buffer))
      (append-to-body-buffer (content-body-buffer content) (octets "ab") 0 2)
      (is (equalp (octets "abcde") (all-content content 5)))
      (is (eql (char-code #\,) (read-byte stream))))
    (let ((content (content-of-length stream 4))) ; all of which is in the buffer
      (is (equalp (octets " and") (all-content content)))
      (is (eql 0 (server:content-size content)) "The next request is looked for behind it.")
      (is (eql (char-code #\Space) (read-byte stream))))))

(define-server-test content-of-many-requests-has-a-share-of-the-heap
  (with-io (io stream client)
    (let* ((size (1+ *uncounted-octets*))
           (octets (test-octets size))
           (before (engine:client-memory-reserved))
           (sender (in-background ("client") (send client octets)))
           (content (content-of-length stream size)))
      (is (equalp octets (all-content content)))
      (task-result sender)
      (when (engine:client-memory-budget)
        (is (= (+ before size) (engine:client-memory-reserved)))
        (server:release-memory content)
        (server:release-memory content)
        (is (= before (engine:client-memory-reserved)))
        (is (eq :body-too-large
                (refusal-of (lambda ()
                              (all-content (content-of-length
                                            stream (1+ (engine:client-memory-budget)))))))
            "No request may have so much.")
        (is (= before (engine:client-memory-reserved)))))))

(defun refusal-of (thunk)
  "The keyword of the refusal that THUNK signals, or NIL."
  (handler-case (progn (funcall thunk) nil)
    (http:protocol-error (refusal) (http:protocol-error-refusal refusal))))

(define-server-test when-others-have-the-heap-content-is-refused
  (with-io (io stream client)
    (let ((room (engine:client-memory-budget))
          (before (engine:client-memory-reserved)))
      (when room
        (unwind-protect
             (progn
               (engine:reserve-client-memory room)
               (is (eq :no-memory
                       (refusal-of (lambda ()
                                     (all-content (content-of-length
                                                   stream (1+ *uncounted-octets*)))))))
               (is (= (+ before room) (engine:client-memory-reserved))))
          (engine:release-client-memory room))))))

(define-server-test content-that-is-refused-gives-its-memory-back
  (with-io (io stream client)
    (let ((before (engine:client-memory-reserved))
          (sender (in-background ("client")
                    (try-to-send client (chunks-of (test-octets 200000) 1000)))))
      (is (eq :body-too-large (refusal-of (lambda () (all-content (chunked io) 150000)))))
      (is (= before (engine:client-memory-reserved)))
      (server:drop-descriptor io)
      (disconnect client)
      (task-result sender))))

;;; Chunks

(defun chunks-of (octets size)
  "OCTETS in chunks of up to SIZE, with the last one."
  (octets (loop for start from 0 below (length octets) by size
                for end = (min (length octets) (+ start size))
                collect (format nil "~X" (- end start))
                collect :crlf
                collect (subseq octets start end)
                collect :crlf)
          "0" :crlf :crlf))

(defun chunked (io &key limit (turn-down (constantly nil)) invite)
  (server:make-chunked-content io (http:make-limits :body-octets limit) turn-down invite))

(defun all-content (content &optional limit)
  (server:read-all-content content limit :body-too-large))

(define-server-test chunks-are-one-stream-however-it-is-read
  (with-io (io stream client)
    (send client (chunks-of (octets "abcdefgh") 3) "rest")
    (let ((content (chunked io)))
      (is (eql (char-code #\a) (read-byte content)))
      (is (equalp (octets "bcde") (read-up-to content 4)))
      (is (equalp (octets "fgh") (read-up-to content 10)))
      (is (null (read-byte content nil)))
      (is (not (listen content)))
      (is (eql (char-code #\r) (read-byte stream))))))

(define-server-test a-stream-of-chunks-tells-whether-there-is-something-to-be-read
  (with-io (io stream client)
    (let ((content (chunked io)))
      (is (not (listen content)))
      (send-and-fill io client (octets "1" :crlf))
      (is (not (listen content)) "That is no content.")
      (send-and-fill io client (octets "a" :crlf "0" :crlf :crlf "rest"))
      (is (listen content))
      (is (eql (char-code #\a) (read-byte content)))
      (is (not (listen content)))
      (is (null (read-byte content nil))))))

(define-server-test all-of-a-body-is-read-whatever-its-size
  (dolist (size '(0 1 8191 8192 8193 16384 40000))
    (with-io (io stream client)
      (let* ((octets (test-octets size))
             (sender (in-background ("client")
                       (send client (chunks-of octets 1000) "rest"))))
        (is (equalp octets (all-content (chunked io))) "~D octets" size)
        (task-result sender)
        (is (eql (char-code #\r) (read-byte stream)))))))

(define-server-test chunks-that-break-off-are-not-taken-for-whole
  (with-io (io stream client)
    (send client "5" :crlf "abc")
    (end-sending client)
    (signals end-of-file (all-content (chunked io)))))

(define-server-test a-body-is-read-up-to-its-limit-and-no-further
  (dolist (size '(10 8192 9000))
    (with-io (io stream client)
      (let ((sender (in-background ("client")
                      (send client (chunks-of (test-octets size) 1000)
                            (chunks-of (test-octets size) 1000)))))
        (is (= size (length (all-content (chunked io) size))))
        (signals http:protocol-error (all-content (chunked io) (1- size)))
        (task-result sender)))))

(define-server-test chunks-are-dropped-up-to-a-limit
  (flet ((droppable-p (size limit)
           (let ((result nil))
             (with-io (io stream client)
               (let ((sender (in-background ("client")
                               (try-to-send client (chunks-of (test-octets size) 1000) "rest"))))
                 (setf result (and (server:drop-content (chunked io) limit) t))
                 (task-result sender)
                 (when result
                   (is (eql (char-code #\r) (read-byte stream))))))
             result)))
    (where-supported
     (is (eq t (droppable-p 0 1)))
     (is (eq t (droppable-p 4000 4096)))
     (is (eq t (droppable-p 12000 40000)))
     (is (eq nil (droppable-p 12000 4096)))
     (is (eq nil (droppable-p 1 0))))))

(define-server-test content-that-is-refused-is-told-and-is-over-then
  (with-io (io stream client)
    (let* ((refusals '())
           (content (chunked io :limit 5
                                :turn-down (lambda (refusal) (push refusal refusals)))))
      (send client "3" :crlf "abc" :crlf "3" :crlf "def" :crlf "0" :crlf :crlf)
      (is (equalp (octets "abc") (read-up-to content 3)))
      (signals http:protocol-error (read-byte content))
      (is (equal '(:body-too-large) (mapcar #'http:protocol-error-refusal refusals)))
      (signals http:protocol-error (read-byte content nil))
      (signals http:protocol-error (read-up-to content 3))
      (is (not (listen content)))
      (is (not (server:drop-content content 1000)) "What follows is no request.")
      (is (= 1 (length refusals))))))

(define-server-test malformed-content-that-is-dropped-does-not-end-well
  (with-io (io stream client)
    (send client "3" :crlf "abcdef" :crlf "0" :crlf :crlf)
    (is (not (server:drop-content (chunked io) 1000)))))

;;; Shared by threads

(define-server-test content-is-released-by-the-thread-that-reads-it-when-its-request-ends
  (with-io (io stream client)
    (send client "abcdef")
    (let ((content (content-of-length stream 5))
          (within (make-gate)) (leave (make-gate)))
      (server:share-content content 10)
      (is (eql (char-code #\f) (read-byte stream)))
      (let ((reading (in-background ("reading")
                       (server:with-content-turn (content)
                         (open-gate within)
                         (await leave)
                         (read-up-to content 3)))))
        (await within)
        (server:release-octets content) ; does not wait
        (open-gate leave)
        (is (equalp (octets "abc") (task-result reading))))
      (signals server:content-left (read-byte content)))))

(define-server-test content-that-is-not-all-received-is-the-sharing-threads-to-take
  (with-io (io stream client)
    (send client "abcdefgh")
    (let ((content (content-of-length stream 8)))
      (server:share-content content 3)
      (flet ((read-elsewhere ()
               (task-result (in-background ("elsewhere")
                              (handler-case (read-byte content)
                                (server:content-left () :left))))))
        (is (eql (char-code #\a) (read-byte content)))
        (is (eq :left (read-elsewhere)))
        (is (eql (char-code #\b) (read-byte content)) "The other's trying has changed nothing.")
        (server:end-taking content)
        (signals server:content-left (read-byte content))
        (is-true (server:drop-content content 10) "The owner of the connection may still drop it.")
        (is (eq :left (read-elsewhere)))))))

(define-server-test what-ends-shared-content-too-early-is-signalled-behind-what-came
  (with-io (io stream client)
    (send client "abc")
    (end-sending client)
    (let ((content (content-of-length stream 5)))
      (server:share-content content 10)
      (is (eql (char-code #\a) (task-result (in-background ("elsewhere") (read-byte content)))))
      (loop repeat 2
            do (signals end-of-file (read-up-to content 5)))
      (signals end-of-file (server:drop-content content 5)))))
