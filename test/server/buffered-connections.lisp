(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite buffered-connections :in all
  :description "Octets between a descriptor and a request, without Hunchentoot.")

(in-suite buffered-connections)

;;; A buffered connection, and its client

(defun call-with-buffered-connection (function descriptor)
  (let ((stream (server:make-descriptor-stream descriptor)))
    (platform:limit-waits stream *patience*)
    (server:call-with-worker-buffers
     (lambda ()
       (unwind-protect (funcall function (server:stream-io stream) stream)
         (server:drop-descriptor (server:stream-io stream)))))))

(defmacro with-io ((io stream client) &body body)
  "Evaluates BODY with an IO, its STREAM, and the CLIENT at its other end, in a worker with its
worker buffers."
  (let ((descriptor (gensym "DESCRIPTOR")))
    `(where-supported
      (with-descriptor (,descriptor ,client)
        (call-with-buffered-connection (lambda (,io ,stream)
                                         (declare (ignorable ,io ,stream))
                                         ,@body)
                                       ,descriptor)))))

(defun await-arrival (io)
  "Waits until something has come for IO that it has not received."
  (unless (platform:await-descriptor (server:io-descriptor io) :input
                                     :until (+ (platform:milliseconds) (* 1000 *patience*)))
    (lose-patience "octets for a buffered connection")))

(defun unread (io)
  "What IO has received and nobody has read."
  (subseq (io-input io) (io-start io) (io-end io)))

(defun send-and-fill (io client octets)
  "Has CLIENT send OCTETS and IO receive them, without reading any."
  (let ((wanted (+ (length octets) (- (io-end io) (io-start io)))))
    (send client octets)
    (loop until (= wanted (- (io-end io) (io-start io)))
          do (await-arrival io)
             (is (eq :some (fill-more-input io))))))

(defun fill-socket (io)
  "Sends zeros over IO until its socket takes no more."
  (let ((many (make-array 65536 :element-type '(unsigned-byte 8) :initial-element 0)))
    (loop while (plusp (platform:send-octets (server:io-descriptor io) many 0 65536)))))

;;; Input

(define-server-test a-buffered-connection-tells-what-has-come-and-that-nothing-will
  (with-io (io stream client)
    (is (eq :none (server:fill-input io)))
    (is (not (listen stream)))
    (send client "abc")
    (await-arrival io)
    (is (eq :some (server:fill-input io)))
    (is (equalp (octets "abc") (unread io)))
    (is (listen stream))
    (is (eql (char-code #\a) (read-byte stream)))
    (is (eq :some (server:fill-input io)))
    (is (equalp (octets "bc") (unread io)))
    (clear-input stream)
    (is (eq :none (server:fill-input io)))
    (end-sending client)
    (await-arrival io)
    (is (eq :end (server:fill-input io)))
    (is (not (listen stream)))
    (is (null (read-byte stream nil)))))

(define-server-test a-buffered-connection-knows-when-the-poller-will-tell
  (with-io (io stream client)
    (send-and-fill io client "ab")
    (is (server:io-drained-p io))
    (is (server:input-waiting-p io) "Two octets are buffered.")
    (is (not (server:io-all-read-p io)))
    (read-byte stream)
    (read-byte stream)
    (is (server:io-all-read-p io))
    (is (not (server:input-waiting-p io)))))

(define-server-test after-a-full-buffer-there-may-be-more
  (with-io (io stream client)
    (let ((octets (test-octets +input-size+)))
      (send-and-fill io client octets)
      (is (not (server:io-drained-p io)))
      (clear-input stream)
      (is (not (server:io-all-read-p io)))
      (is (not (server:input-waiting-p io)) "There was not, and now that is known.")
      (is (server:io-all-read-p io))
      (send-and-fill io client octets)
      (end-sending client)
      (await-arrival io)
      (clear-input stream)
      (is (server:input-waiting-p io) "The end has come."))))

(define-server-test after-what-was-left-of-a-buffer-is-full-there-may-be-more
  (with-io (io stream client)
    (send-and-fill io client (test-octets 100))
    (is (server:io-drained-p io))
    (send-and-fill io client (test-octets (- +input-size+ 100)))
    (is (not (server:io-drained-p io)))))

(test two-buffers-for-input-and-one-for-output-fit-in-a-page-of-the-heap
  (loop for (count size) in (list (list 2 +input-size+) (list 1 (* 2 +input-size+))
                                  (list 1 +output-size+))
        do (is (<= (* count (+ size +vector-header-octets+)) (* 32 1024)))))

(define-server-test input-moves-to-the-front-and-then-grows
  (with-io (io stream client)
    (let ((first (test-octets +input-size+))
          (more (octets "and more")))
      (send-and-fill io client first)
      (read-sequence (make-array 100 :element-type '(unsigned-byte 8)) stream)
      (send-and-fill io client more)
      (is (equalp (octets (subseq first 100) more) (unread io)))
      (is (= +input-size+ (length (io-input io))))
      (send-and-fill io client first)
      (is (equalp (octets (subseq first 100) more first) (unread io)))
      (is (= (* 2 +input-size+) (length (io-input io)))))))

(define-server-test octets-come-in-order-through-the-buffer-and-past-it
  (with-io (io stream client)
    (let ((head (test-octets 100)) (rest (reverse (test-octets 40000)))
          (read (make-array 40110 :element-type '(unsigned-byte 8) :initial-element 7)))
      (send-and-fill io client head)
      (send client rest)
      (is (= 40105 (read-sequence read stream :start 5 :end 40105)))
      (is (equalp (octets head rest) (subseq read 5 40105)))
      (is (every (lambda (octet) (= 7 octet)) (octets (subseq read 0 5) (subseq read 40105))))
      (send client "xyz")
      (end-sending client)
      (is (= 3 (read-sequence read stream)))
      (is (equalp (octets "xyz") (subseq read 0 3))))))

(define-server-test dropped-octets-are-those-asked-for-and-no-others
  (with-io (io stream client)
    (send-and-fill io client "abcdef")
    (is (= 2 (drop-input io 2)))
    (is (equalp (octets "cdef") (unread io)))
    (is (= 4 (drop-input io 100)) "What is buffered, at most.")
    (send client "ghij")
    (await-arrival io)
    (is (= 3 (drop-input io 3)))
    (is (eql (char-code #\j) (read-byte stream)))
    (end-sending client)
    (is (zerop (drop-input io 3)))))

(define-server-test a-reader-that-waits-too-long-for-a-peer-is-told
  (with-io (io stream client)
    (platform:limit-waits stream 1/100)
    (signals server:stream-timeout (read-byte stream))
    (signals server:stream-timeout (drop-input io 1))
    (fill-socket io)
    (write-byte 1 stream)
    (signals server:stream-timeout (finish-output stream))
    (is (server:flushed-p io stream) "It is not sent twice.")))

(define-server-test a-connection-that-was-reset-is-broken
  (with-io (io stream client)
    (when (reset client)
      (await-arrival io)
      (signals server:descriptor-broken (server:fill-input io))
      (write-byte 1 stream)
      (signals server:descriptor-broken (finish-output stream)))))

(define-server-test that-a-connection-was-reset-is-something-to-be-read
  (with-io (io stream client)
    (when (reset client)
      (await-arrival io)
      (is (server:input-waiting-p io)))))

(define-server-test a-buffered-connection-without-a-descriptor-is-at-its-end
  (with-io (io stream client)
    (send-and-fill io client "ab")
    (write-byte 1 stream)
    (server:drop-descriptor io)
    (is (eq :end (server:fill-input io)))
    (is (not (open-stream-p stream)))
    (is (zerop (drop-input io 3)))
    (is (server:flushed-p io stream))))

;;; The end

(define-server-test a-writer-that-closes-a-stream-ends-the-connection-and-leaves-the-descriptor-open
  (with-io (io stream client)
    (let ((descriptor (server:io-descriptor io)))
      (write-byte 1 stream)
      (is (close stream))
      (is (eql 1 (next-octet client)))
      (is (closed-by-server-p client))
      (is (not (open-stream-p stream)))
      (is (null (server:io-descriptor io)))
      (is (not (close stream)) "It is closed already.")
      (is (zerop (platform:receive-octets descriptor (octets ".") 0 1))
          "The engine has still to close it."))))

(define-server-test a-writer-that-aborts-a-stream-sends-nothing-more
  (with-io (io stream client)
    (write-byte 1 stream)
    (is (close stream :abort t))
    (is (closed-by-server-p client))))

(define-server-test a-stream-that-was-given-its-descriptor-closes-it
  (where-supported
   (with-listener (listener)
     (platform:set-non-blocking (platform:listener-descriptor listener))
     (with-connection (client (usocket:get-local-port listener))
       (let ((stream (server:make-descriptor-stream (accepted-descriptor listener))))
         (is (server:hand-descriptor-over (server:stream-io stream)))
         (write-byte 1 stream)
         (is (close stream))
         (is (eql 1 (next-octet client)))
         (is (closed-by-server-p client)))))))

;;; Buffers and parsers of a worker

(define-server-test buffers-are-lent-for-as-long-as-they-hold-something
  (with-io (io stream client)
    (send-and-fill io client "ab")
    (write-byte 1 stream)
    (let ((input (io-input io)) (output (io-output io)))
      (read-byte stream)
      (server:lend-no-buffers io)
      (is (eq input (io-input io)))
      (is (eq output (io-output io)))
      (read-byte stream)
      (finish-output stream)
      (server:lend-no-buffers io)
      (is (null (io-input io)))
      (is (null (io-output io)))
      (is (eq :none (fill-more-input io)))
      (write-byte 1 stream)
      (is (eq input (io-input io)) "It is used again.")
      (is (eq output (io-output io)))
      (is (null (worker-buffers-input *worker-buffers*)))
      (is (null (worker-buffers-output *worker-buffers*))))))

(define-server-test a-buffer-that-has-grown-is-not-kept
  (with-io (io stream client)
    (send-and-fill io client (test-octets (1+ +input-size+)))
    (clear-input stream)
    (server:lend-no-buffers io)
    (is (null (io-input io)))
    (is (null (worker-buffers-input *worker-buffers*)))))

(defun heap-in-use ()
  "How many octets of the heap are in use after garbage was collected; NIL where that is not known."
  (when (platform:heap-octets)
    (platform:collect-garbage)
    (platform:heap-used)))

(define-server-test buffers-that-other-threads-give-back-do-not-pile-up
  (flet ((take-elsewhere (kind)
           (server:call-with-worker-buffers (lambda () (take-buffer kind)))))
    (let ((before (heap-in-use)))
      (when before
        (server:call-with-worker-buffers
         (lambda ()
           (loop repeat 1000
                 do (return-buffer :input (take-elsewhere :input))
                    (return-buffer :output (take-elsewhere :output)))
           (is (> (* 8 1024 1024) (- (heap-in-use) before)))))))))

(test a-worker-has-one-parser-and-lends-it-fresh
  (server:call-with-worker-buffers
   (lambda ()
     (let* ((limits (http:make-limits))
            (parser (server:take-parser limits))
            (half (octets "GET / HT")))
       (http:parse-head parser half 0 (length half))
       (server:return-parser parser)
       (let ((again (server:take-parser limits)))
         (is (eq parser again))
         (is (not (http:parser-begun-p again)))
         (is (not (eq again (server:take-parser limits))) "It is lent already."))))))

;;; Heads

(defun read-uri (io parser)
  (let ((result (server:read-head io parser)))
    (if (keywordp result) result (http:head-uri result))))

(define-server-test heads-are-read-as-they-come
  (with-io (io stream client)
    (let ((parser (http:make-parser)))
      (is (eq :none (read-uri io parser)))
      (send client "GET /1 HTTP/1.1" :crlf "Ho")
      (await-arrival io)
      (is (eq :none (read-uri io parser)))
      (send client "st: a" :crlf :crlf "GET /2 HTTP/1.1" :crlf "Host: a" :crlf :crlf "GET /3")
      (await-arrival io)
      (is (equal "/1" (read-uri io parser)))
      (is (equal "/2" (read-uri io parser)))
      (is (eq :none (read-uri io parser)))
      (end-sending client)
      (await-arrival io)
      (is (eq :end (read-uri io parser))))))
