(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite wires :in all
  :description "Octets between a descriptor and a request, without Hunchentoot.")

(in-suite wires)

;;; A wire, and its client

(defun call-with-wire (function descriptor)
  (let ((stream (server:make-descriptor-stream descriptor)))
    (platform:limit-waits stream *patience*)
    (server:call-with-kit
     (lambda ()
       (unwind-protect (funcall function (server:stream-wire stream) stream)
         (server:drop-descriptor (server:stream-wire stream)))))))

(defmacro with-wire ((wire stream client) &body body)
  "Evaluates BODY with a WIRE, its STREAM, and the CLIENT at its other end, in a worker with its kit."
  (let ((descriptor (gensym "DESCRIPTOR")))
    `(where-supported
      (with-descriptor (,descriptor ,client)
        (call-with-wire (lambda (,wire ,stream)
                          (declare (ignorable ,wire ,stream))
                          ,@body)
                        ,descriptor)))))

(defun await-arrival (wire)
  "Waits until something has come for WIRE that it has not received."
  (unless (platform:await-descriptor (server:wire-descriptor wire) :input
                                     :until (+ (platform:milliseconds) (* 1000 *patience*)))
    (lose-patience "octets for a wire")))

(defun unread (wire)
  "What WIRE has received and nobody has read."
  (subseq (server::wire-input wire) (server::wire-start wire) (server::wire-end wire)))

(defun send-and-fill (wire client octets)
  "Has CLIENT send OCTETS and WIRE receive them, without reading any."
  (let ((wanted (+ (length octets) (- (server::wire-end wire) (server::wire-start wire)))))
    (send client octets)
    (loop until (= wanted (- (server::wire-end wire) (server::wire-start wire)))
          do (await-arrival wire)
             (is (eq :some (server::fill-more-input wire))))))

(defun fill-socket (wire)
  "Sends zeros over WIRE until its socket takes no more."
  (let ((many (make-array 65536 :element-type '(unsigned-byte 8) :initial-element 0)))
    (loop while (plusp (platform:send-octets (server:wire-descriptor wire) many 0 65536)))))

;;; Input

(define-server-test a-wire-tells-what-has-come-and-that-nothing-will
  (with-wire (wire stream client)
    (is (eq :none (server:fill-input wire)))
    (is (not (listen stream)))
    (send client "abc")
    (await-arrival wire)
    (is (eq :some (server:fill-input wire)))
    (is (equalp (octets "abc") (unread wire)))
    (is (listen stream))
    (is (eql (char-code #\a) (read-byte stream)))
    (is (eq :some (server:fill-input wire)))
    (is (equalp (octets "bc") (unread wire)))
    (clear-input stream)
    (is (eq :none (server:fill-input wire)))
    (end-sending client)
    (await-arrival wire)
    (is (eq :end (server:fill-input wire)))
    (is (not (listen stream)))
    (is (null (read-byte stream nil)))))

(define-server-test a-wire-knows-when-the-poller-will-tell
  (with-wire (wire stream client)
    (send-and-fill wire client "ab")
    (is (server:wire-drained-p wire))
    (is (server:input-waiting-p wire) "Two octets are buffered.")
    (is (not (server:wire-all-read-p wire)))
    (read-byte stream)
    (read-byte stream)
    (is (server:wire-all-read-p wire))
    (is (not (server:input-waiting-p wire)))))

(define-server-test after-a-full-buffer-there-may-be-more
  (with-wire (wire stream client)
    (let ((octets (test-octets server::+input-size+)))
      (send-and-fill wire client octets)
      (is (not (server:wire-drained-p wire)))
      (clear-input stream)
      (is (not (server:wire-all-read-p wire)))
      (is (not (server:input-waiting-p wire)) "There was not, and now that is known.")
      (is (server:wire-all-read-p wire))
      (send-and-fill wire client octets)
      (end-sending client)
      (await-arrival wire)
      (clear-input stream)
      (is (server:input-waiting-p wire) "The end has come."))))

(define-server-test after-what-was-left-of-a-buffer-is-full-there-may-be-more
  (with-wire (wire stream client)
    (send-and-fill wire client (test-octets 100))
    (is (server:wire-drained-p wire))
    (send-and-fill wire client (test-octets (- server::+input-size+ 100)))
    (is (not (server:wire-drained-p wire)))))

(test two-buffers-for-input-and-one-for-output-fit-in-a-page-of-the-heap
  (loop for (count size) in (list (list 2 server::+input-size+) (list 1 (* 2 server::+input-size+))
                                  (list 1 server::+output-size+))
        do (is (<= (* count (+ size server::+vector-header-octets+)) (* 32 1024)))))

(define-server-test input-moves-to-the-front-and-then-grows
  (with-wire (wire stream client)
    (let ((first (test-octets server::+input-size+))
          (more (octets "and more")))
      (send-and-fill wire client first)
      (read-sequence (make-array 100 :element-type '(unsigned-byte 8)) stream)
      (send-and-fill wire client more)
      (is (equalp (octets (subseq first 100) more) (unread wire)))
      (is (= server::+input-size+ (length (server::wire-input wire))))
      (send-and-fill wire client first)
      (is (equalp (octets (subseq first 100) more first) (unread wire)))
      (is (= (* 2 server::+input-size+) (length (server::wire-input wire)))))))

(define-server-test octets-come-in-order-through-the-buffer-and-past-it
  (with-wire (wire stream client)
    (let ((head (test-octets 100)) (rest (reverse (test-octets 40000)))
          (read (make-array 40110 :element-type '(unsigned-byte 8) :initial-element 7)))
      (send-and-fill wire client head)
      (send client rest)
      (is (= 40105 (read-sequence read stream :start 5 :end 40105)))
      (is (equalp (octets head rest) (subseq read 5 40105)))
      (is (every (lambda (octet) (= 7 octet)) (octets (subseq read 0 5) (subseq read 40105))))
      (send client "xyz")
      (end-sending client)
      (is (= 3 (read-sequence read stream)))
      (is (equalp (octets "xyz") (subseq read 0 3))))))

(define-server-test dropped-octets-are-those-asked-for-and-no-others
  (with-wire (wire stream client)
    (send-and-fill wire client "abcdef")
    (is (= 2 (server::drop-input wire 2)))
    (is (equalp (octets "cdef") (unread wire)))
    (is (= 4 (server::drop-input wire 100)) "What is buffered, at most.")
    (send client "ghij")
    (await-arrival wire)
    (is (= 3 (server::drop-input wire 3)))
    (is (eql (char-code #\j) (read-byte stream)))
    (end-sending client)
    (is (zerop (server::drop-input wire 3)))))

(define-server-test who-waits-too-long-for-a-peer-is-told
  (with-wire (wire stream client)
    (platform:limit-waits stream 1/100)
    (signals server:stream-timeout (read-byte stream))
    (signals server:stream-timeout (server::drop-input wire 1))
    (fill-socket wire)
    (write-byte 1 stream)
    (signals server:stream-timeout (finish-output stream))
    (is (server:flushed-p wire stream) "It is not sent twice.")))

(define-server-test a-connection-that-was-reset-is-broken
  (with-wire (wire stream client)
    (when (reset client)
      (await-arrival wire)
      (signals server:descriptor-broken (server:fill-input wire))
      (write-byte 1 stream)
      (signals server:descriptor-broken (finish-output stream)))))

(define-server-test that-a-connection-was-reset-is-something-to-be-read
  (with-wire (wire stream client)
    (when (reset client)
      (await-arrival wire)
      (is (server:input-waiting-p wire)))))

(define-server-test a-wire-without-a-descriptor-is-at-its-end
  (with-wire (wire stream client)
    (send-and-fill wire client "ab")
    (write-byte 1 stream)
    (server:drop-descriptor wire)
    (is (eq :end (server:fill-input wire)))
    (is (not (open-stream-p stream)))
    (is (zerop (server::drop-input wire 3)))
    (is (server:flushed-p wire stream))))

;;; The end

(define-server-test who-closes-a-stream-ends-the-connection-and-leaves-the-descriptor-open
  (with-wire (wire stream client)
    (let ((descriptor (server:wire-descriptor wire)))
      (write-byte 1 stream)
      (is (close stream))
      (is (eql 1 (next-octet client)))
      (is (closed-by-server-p client))
      (is (not (open-stream-p stream)))
      (is (null (server:wire-descriptor wire)))
      (is (not (close stream)) "It is closed already.")
      (is (zerop (platform:receive-octets descriptor (octets ".") 0 1))
          "The engine has still to close it."))))

(define-server-test who-aborts-a-stream-sends-nothing-more
  (with-wire (wire stream client)
    (write-byte 1 stream)
    (is (close stream :abort t))
    (is (closed-by-server-p client))))

(define-server-test a-stream-that-was-given-its-descriptor-closes-it
  (where-supported
   (with-listener (listener)
     (platform:set-non-blocking (platform:listener-descriptor listener))
     (with-connection (client (usocket:get-local-port listener))
       (let ((stream (server:make-descriptor-stream (accepted-descriptor listener))))
         (is (server:hand-descriptor-over (server:stream-wire stream)))
         (write-byte 1 stream)
         (is (close stream))
         (is (eql 1 (next-octet client)))
         (is (closed-by-server-p client)))))))

;;; Buffers and parsers of a worker

(define-server-test buffers-are-lent-for-as-long-as-they-hold-something
  (with-wire (wire stream client)
    (send-and-fill wire client "ab")
    (write-byte 1 stream)
    (let ((input (server::wire-input wire)) (output (server::wire-output wire)))
      (read-byte stream)
      (server:lend-no-buffers wire)
      (is (eq input (server::wire-input wire)))
      (is (eq output (server::wire-output wire)))
      (read-byte stream)
      (finish-output stream)
      (server:lend-no-buffers wire)
      (is (null (server::wire-input wire)))
      (is (null (server::wire-output wire)))
      (is (eq :none (server::fill-more-input wire)))
      (write-byte 1 stream)
      (is (eq input (server::wire-input wire)) "It is used again.")
      (is (eq output (server::wire-output wire)))
      (is (null (server::kit-input server::*kit*)))
      (is (null (server::kit-output server::*kit*))))))

(define-server-test a-buffer-that-has-grown-is-not-kept
  (with-wire (wire stream client)
    (send-and-fill wire client (test-octets (1+ server::+input-size+)))
    (clear-input stream)
    (server:lend-no-buffers wire)
    (is (null (server::wire-input wire)))
    (is (null (server::kit-input server::*kit*)))))

(defun heap-in-use ()
  "How many octets of the heap are in use after garbage was collected; NIL where that is not known."
  (when (platform:heap-octets)
    (platform:collect-garbage)
    (platform:heap-used)))

(define-server-test buffers-that-other-threads-give-back-do-not-pile-up
  (flet ((take-elsewhere (kind)
           (server:call-with-kit (lambda () (server::take-buffer kind)))))
    (let ((before (heap-in-use)))
      (when before
        (server:call-with-kit
         (lambda ()
           (loop repeat 1000
                 do (server::return-buffer :input (take-elsewhere :input))
                    (server::return-buffer :output (take-elsewhere :output)))
           (is (> (* 8 1024 1024) (- (heap-in-use) before)))))))))

(test a-worker-has-one-parser-and-lends-it-fresh
  (server:call-with-kit
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

(defun read-uri (wire parser)
  (let ((result (server:read-head wire parser)))
    (if (keywordp result) result (http:head-uri result))))

(define-server-test heads-are-read-as-they-come
  (with-wire (wire stream client)
    (let ((parser (http:make-parser)))
      (is (eq :none (read-uri wire parser)))
      (send client "GET /1 HTTP/1.1" :crlf "Ho")
      (await-arrival wire)
      (is (eq :none (read-uri wire parser)))
      (send client "st: a" :crlf :crlf "GET /2 HTTP/1.1" :crlf "Host: a" :crlf :crlf "GET /3")
      (await-arrival wire)
      (is (equal "/1" (read-uri wire parser)))
      (is (equal "/2" (read-uri wire parser)))
      (is (eq :none (read-uri wire parser)))
      (end-sending client)
      (await-arrival wire)
      (is (eq :end (read-uri wire parser))))))
