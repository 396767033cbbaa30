(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite reply-streams :in all
  :description "What a handler writes itself, and what of it waits for the client.")

(in-suite reply-streams)

(defmacro with-reply-stream ((reply framing io client) &body body)
  "Evaluates BODY with REPLY, a stream for content with FRAMING, on an IO with the CLIENT at its
other end, in a worker with its worker buffers."
  (let ((stream (gensym "STREAM")))
    `(with-io (,io ,stream ,client)
       (let ((,reply (server:make-reply-stream ,io ,stream ,framing)))
         ,@body))))

(defun chunked-content (connection)
  "The content that comes in chunks from CONNECTION."
  (octets (loop for chunk = (read-chunk connection) while chunk collect chunk)))

(defmacro while-read ((content form) &body body)
  "Evaluates BODY, but for its last form, while somebody evaluates FORM, which reads what the client
gets; then the last, with CONTENT bound to what was read."
  (let ((task (gensym "TASK")))
    `(let ((,task (in-background ("client") ,form)))
       ,@(butlast body)
       (let ((,content (task-result ,task (* 3 *patience*))))
         ,@(last body)))))

;;; Chunks

(define-server-test what-is-not-flushed-becomes-one-chunk
  (with-reply-stream (reply :chunked io client)
    (write-sequence (octets "one ") reply)
    (write-byte 65 reply)
    (write-sequence (octets) reply)
    (write-sequence (list 66 67) reply)
    (write-sequence (octets "abcdefgh") reply :start 6)
    (is (not (readable-p client)))
    (finish-output reply)
    (is (string= "one ABCgh" (decode (read-chunk client))))
    (force-output reply)
    (write-byte 68 reply)
    (force-output reply)
    (is (string= "D" (decode (read-chunk client))))
    (is (server:end-reply reply))
    (is (null (read-chunk client)))
    (is (not (readable-p client)))))

(define-server-test a-large-vector-becomes-one-chunk
  (with-reply-stream (reply :chunked io client)
    (let ((octets (test-octets 100000)))
      (while-read (content (list (read-chunk client) (read-chunk client) (read-chunk client)))
        (write-byte 1 reply)
        (write-sequence octets reply)
        (server:end-reply reply)
        (progn (is (equalp (as-octets '(1)) (first content)))
               (is (null (octet-difference octets (second content))))
               (is (null (third content))))))))

(define-server-test octets-arrive-in-order-however-they-are-written
  (let* ((octets (test-octets 400000))
         (sizes '(1 15 16 17 255 256 4000 4097 32751 32752 32760 32767 32768 32769 70000 3 9000)))
    (with-reply-stream (reply :chunked io client)
      (while-read (content (chunked-content client))
        (loop for number from 0
              for start = 0 then end
              for end = (min (length octets) (+ start (elt sizes (mod number (length sizes)))))
              while (< start end)
              do (if (= 1 (- end start))
                     (write-byte (aref octets start) reply)
                     (write-sequence octets reply :start start :end end))
                 (when (zerop (mod start 7))
                   (finish-output reply)))
        (server:end-reply reply)
        (is (null (octet-difference octets content)))))))

(define-server-test single-octets-fill-one-buffer-after-the-other
  (let ((octets (test-octets (+ 10 (* 2 +output-size+)))))
    (with-reply-stream (reply :chunked io client)
      (while-read (content (chunked-content client))
        (loop for octet across octets do (write-byte octet reply))
        (server:end-reply reply)
        (is (null (octet-difference octets content)))))))

(define-server-test who-sends-what-was-written-sends-whole-chunks
  (with-reply-stream (reply :chunked io client)
    (write-sequence (octets "abc") reply)
    (send-output io)            ; who reads on does that
    (is (string= "abc" (decode (read-chunk client))))
    (write-sequence (octets "def") reply)
    (finish-output reply)
    (is (string= "def" (decode (read-chunk client))))))

(define-server-test what-is-no-octet-spoils-no-chunk
  (with-reply-stream (reply :chunked io client)
    (write-byte 65 reply)
    (signals error (write-byte 256 reply))
    (signals error (write-sequence (list 66 :no-octet) reply))
    (signals error (write-sequence (vector 66 "c") reply))
    (write-byte 67 reply)
    (server:end-reply reply)
    (is (string= "AC" (decode (read-chunk client))))
    (is (null (read-chunk client)))))

(define-server-test no-chunk-is-lengthened-after-it-has-left
  (let ((large (test-octets (1+ +output-size+))))
    (with-reply-stream (reply :chunked io client)
      (while-read (content (chunked-content client))
        (write-sequence (octets "four") reply)
        (finish-output reply)
        (let ((end (reply-content-chunk-end (reply-stream-content reply))))
          (write-sequence large reply)
          ;; The end of the large chunk fills the buffer as far as the chunk before did.
          (is (= end (io-fill io))))
        (write-sequence (octets "abc") reply)
        (server:end-reply reply)
        (is (null (octet-difference (octets "four" large "abc") content)))))))

(define-server-test a-writer-that-leaves-a-large-chunk-unfinished-ends-the-connection
  (with-reply-stream (reply :chunked io client)
    (with-function (await-taker (original io) (throw 'leave :left))
      (is (eq :left (catch 'leave (write-sequence (test-octets 9000000) reply)))))
    (is (null (server:io-descriptor io)))
    (is (null (server:io-unsent io)))
    (signals error (write-byte 1 reply) (finish-output reply))))

;;; Other framings

(define-server-test content-of-known-length-ends-by-itself
  (with-reply-stream (reply 5 io client)
    (write-sequence (octets "ab") reply)
    (write-byte 99 reply)
    (write-sequence (list 100 101) reply)
    (finish-output reply)
    (is (string= "abcde" (decode (read-octets client 5))))
    (is (server:end-reply reply))
    (is (not (readable-p client)))))

(define-server-test no-more-is-sent-than-was-announced
  (with-reply-stream (reply 3 io client)
    (write-byte 97 reply)
    (signals server:content-too-long (write-sequence (octets "bcde") reply))
    (signals server:content-too-long (write-byte 102 reply))
    (is (server:end-reply reply))
    (is (string= "abc" (decode (read-octets client 3))))
    (is (not (readable-p client)))))

(define-server-test a-writer-that-writes-less-than-was-announced-is-found-out
  (with-reply-stream (reply 3 io client)
    (write-sequence (octets "ab") reply)
    (is (not (server:end-reply reply)))
    (is (string= "ab" (decode (read-octets client 2))))))

(define-server-test content-without-framing-leaves-as-it-is
  (with-reply-stream (reply :plain io client)
    (write-sequence (octets "abc") reply)
    (is (server:end-reply reply)
        "Nothing is missing, though only the end of the connection tells that.")
    (is (string= "abc" (decode (read-octets client 3))))
    (is (not (readable-p client)))))

(define-server-test where-there-is-no-content-none-is-sent
  (with-reply-stream (reply :none io client)
    (write-byte 97 reply)
    (write-sequence (octets "abc") reply)
    (finish-output reply)
    (is (server:end-reply reply))
    (is (not (readable-p client)))))

(define-server-test a-large-vector-leaves-whole-without-chunks
  (let ((octets (test-octets 3000000)))
    (with-reply-stream (reply :plain io client)
      (while-read (content (receive-many client (+ 2 (length octets))))
        (write-byte 1 reply)
        (write-sequence octets reply)
        (write-byte 2 reply)
        (finish-output (server:reply-stream-inner reply))
        (is (null (octet-difference (octets (as-octets '(1)) octets (as-octets '(2))) content)))))))

(define-server-test ranges-beyond-a-vector-are-refused
  (dolist (framing '(:chunked :plain 100000))
    (with-reply-stream (reply framing io client)
      (signals error (trivial-gray-streams:stream-write-sequence reply (test-octets 10) 0 60000))
      (signals error (trivial-gray-streams:stream-write-sequence reply (test-octets 10) 0 11))))
  (with-reply-stream (reply :chunked io client)
    (write-byte 97 reply)
    (signals error (trivial-gray-streams:stream-write-sequence reply (test-octets 10) 0 11))
    (server:end-reply reply)
    (is (string= "a" (decode (chunked-content client))) "Nothing of it was written.")))

(define-server-test after-the-end-of-a-reply-its-stream-is-that-of-the-connection
  (with-reply-stream (reply :chunked io client)
    (is (server:end-reply reply))
    (is (null (read-chunk client)))
    (is (server:end-reply reply) "Once more, nothing happens.")
    (write-byte 97 reply)
    (write-sequence (octets "bc") reply)
    (finish-output reply)
    (is (string= "abc" (decode (read-octets client 3))))))

(define-server-test a-writer-that-closes-the-stream-of-a-reply-ends-both
  (with-reply-stream (reply :chunked io client)
    (write-byte 97 reply)
    (is (open-stream-p reply))
    (is (close reply))
    (is (not (open-stream-p reply)))
    (is (string= "a" (decode (chunked-content client))))
    (is (closed-by-server-p client))
    (is (not (close reply)) "It is closed already.")
    (signals error (write-byte 98 reply) (finish-output reply))))

(define-server-test a-writer-that-aborts-the-stream-of-a-reply-leaves-it-without-end
  (with-reply-stream (reply :chunked io client)
    (write-byte 97 reply)
    (finish-output reply)
    (write-byte 98 reply)
    (close reply :abort t)
    (is (string= "a" (decode (read-chunk client))))
    (is (closed-by-server-p client))))

(define-server-test the-stream-of-a-reply-reads-what-the-client-sends
  (with-reply-stream (reply :plain io client)
    (is (not (listen reply)))
    (send client "abcd")
    (await-arrival io)
    (is (listen reply))
    (is (eql 97 (read-byte reply)))
    (let ((octets (test-octets 2)))
      (is (= 2 (read-sequence octets reply)))
      (is (equalp (octets "bc") octets)))
    (clear-input reply)
    (end-sending client)
    (is (null (read-byte reply nil)))))

;;; What a client does not take

(define-server-test what-a-client-does-not-take-is-kept
  (with-reply-stream (reply :chunked io client)
    (fill-socket io)
    (let ((octets (test-octets 100000)))
      (write-sequence octets reply :end 10)
      (finish-output reply)
      (write-sequence octets reply :start 10 :end 20)
      (finish-output reply)
      (write-sequence octets reply :start 20)
      (finish-output reply)
      (server:end-reply reply)
      (is (server:io-unsent io))
      (is (server:flushed-p io (server:reply-stream-inner reply)) "The engine sends the rest.")
      (while-read (content (progn
                             (loop while (zerop (next-octet client)))
                             ;; The first digit of the first chunk was read already.
                             (read-response-line client)
                             (octets (read-octets client 10)
                                     (progn (read-response-line client)
                                            (chunked-content client)))))
        (server:send-unsent io)
        (is (null (octet-difference octets content)))))))

(define-server-test a-handler-waits-when-more-than-the-mark-is-kept
  (with-globals ((server:*high-water-mark* 100000))
    (with-reply-stream (reply :plain io client)
      (fill-socket io)
      (write-sequence (test-octets 90000) reply)
      (is (<= 1 (engine:queued-octets (server:io-queue io)) 100000))
      (let ((waited (make-recorder)))
        (with-function (await-taker (original io)
                         (record waited (engine:queued-octets (server:io-queue io)))
                         (throw 'leave :waited))
          (is (eq :waited (catch 'leave
                            (loop repeat 5 do (write-sequence (test-octets 9000) reply))))))
        (is (< 100000 (first (recorded waited)) (+ 100000 (* 2 +output-size+))))))))

(define-server-test a-handler-goes-on-when-no-more-than-the-mark-is-kept
  (with-globals ((server:*high-water-mark* 100000))
    (with-reply-stream (reply :plain io client)
      (let ((octets (test-octets 9000000)))
        (while-read (content (receive-many client (length octets)))
          (write-sequence octets reply)
          (is (>= 100000 (engine:queued-octets (server:io-queue io))))
          (server:end-reply reply)
          (server:send-unsent io)
          (is (null (octet-difference octets content))))))))

(define-server-test a-client-that-takes-nothing-is-waited-for-once
  (with-reply-stream (reply :chunked io client)
    (engine:limit-taking (server:io-queue io) 1/100)
    (signals server:stream-timeout (write-sequence (test-octets 9000000) reply))
    (is (null (server:io-descriptor io)))
    (is (null (server:io-unsent io)))
    (with-function (await-taker (original io) (error "Somebody waits again."))
      (signals server:descriptor-broken
        (write-byte 1 reply)
        (finish-output reply))
      (server:end-reply reply)
      (is (not (close reply))))
    (is (< (length (receive-many client 9000000)) 9000000))))

(define-server-test a-client-that-takes-nothing-of-single-octets-is-waited-for-once
  (with-globals ((server:*high-water-mark* 0))
    (with-reply-stream (reply :chunked io client)
      (fill-socket io)
      (engine:limit-taking (server:io-queue io) 1/100)
      (signals server:stream-timeout (loop (write-byte 1 reply)))
      (is (null (server:io-descriptor io)))
      (is (null (server:io-unsent io))))))

(define-server-test what-is-kept-leaves-before-what-is-written-after-it
  (with-reply-stream (reply :plain io client)
    (let ((large (test-octets 100000)))
      (engine:enqueue (server:io-queue io)
                      (list (engine:make-octets-part (octets "xabcx") 1 4)))
      (with-function (server:flush-io (original io))     ; as if the socket took nothing
        (write-sequence (octets "def") reply)
        (finish-output reply)
        (queue-buffered io)
        (write-sequence large reply)
        (finish-output reply)
        (is (not (readable-p client))))
      (while-read (content (receive-many client (+ 6 (length large))))
        (finish-output reply)
        (is (null (octet-difference (octets "abcdef" large) content)))))))

(define-server-test what-is-kept-leaves-when-more-is-flushed
  (with-reply-stream (reply :plain io client)
    (engine:enqueue (server:io-queue io)
                      (list (engine:make-octets-part (octets "xabcx") 1 4)))
    (is (= 3 (engine:queued-octets (server:io-queue io))))
    (finish-output reply)
    (is (null (server:io-unsent io)))
    (is (string= "abc" (decode (read-octets client 3))))))

(define-server-test nothing-is-left-where-nobody-would-send-it
  (with-reply-stream (reply :plain io client)
    (fill-socket io)
    (let* ((octets (test-octets 50000))
           (reader (in-background ("client")
                     (loop while (zerop (next-octet client)))
                     (receive-many client (1- (length octets))))))
      (setf (aref octets 0) 1
            (io-owner io) :stream)
      (write-sequence octets reply)
      (finish-output reply)
      (is (null (server:io-unsent io)))
      (setf (io-owner io) :engine)     ; it is the test's to close
      (is (null (octet-difference (subseq octets 1) (task-result reader)))))))

(defmacro with-slow-kernel ((clock &rest steps) &body body)
  "Evaluates BODY while nobody has to wait for a client to take octets: the time passes at once, as
CLOCK, a variable with milliseconds, tells, without room for more.  The kernel holds as many octets
as STEPS say, one after the other, whenever it is asked.  Then there is room."
  (let ((left (gensym "STEPS")) (held (gensym "HELD")))
    `(let* ((,clock 1000)
            (,left (append ,@steps))
            (,held 0))
       (with-function (platform:milliseconds (original) ,clock)
         (with-function (platform:unsent-octets (original descriptor)
                          (if ,left (setf ,held (pop ,left)) ,held))
           (with-function (platform:await-descriptor (original descriptor direction &rest more)
                            (setf ,clock (getf more :until))
                            (null ,left))
             ,@body))))))

(define-server-test a-client-that-takes-a-little-has-as-much-time-again
  (with-io (io stream client)
    (engine:limit-taking (server:io-queue io) 16/10)
    (with-slow-kernel (clock (make-list 16 :initial-element 900)
                             (make-list 16 :initial-element 800)
                             '(700))
      (await-taker io)
      (is (= (+ 1000 3300) clock))
      (is (open-stream-p stream)))))

(define-server-test a-client-that-takes-nothing-any-more-is-given-up
  (with-io (io stream client)
    (engine:limit-taking (server:io-queue io) 16/10)
    ;; What was on its way arrives after the wait began.
    (with-slow-kernel (clock '(900) (make-list 17 :initial-element 800) '(700))
      (signals server:stream-timeout (await-taker io))
      (is (= (+ 1000 100 1600) clock))
      (is (not (open-stream-p stream))))))

(define-server-test a-writer-that-does-not-know-what-the-kernel-holds-waits-once
  (with-io (io stream client)
    (engine:limit-taking (server:io-queue io) 16/10)
    (with-slow-kernel (clock '(900) (make-list 20 :initial-element -22))
      (signals server:stream-timeout (await-taker io))
      (is (= (+ 1000 1600) clock)))))

(define-server-test reads-and-writes-have-limits-of-their-own
  (with-reply-stream (reply :plain io client)
    (platform:limit-waits (server:reply-stream-inner reply) 7)
    (is (= 7000 (wait-limit io)
           (engine:send-queue-milliseconds (server:io-queue io))))
    (engine:limit-taking (server:io-queue io) 1/100)
    (is (= 7000 (wait-limit io)))
    (is (= 10 (engine:send-queue-milliseconds (server:io-queue io))))
    (engine:limit-taking (server:io-queue io) nil)
    (is (null (engine:send-queue-milliseconds (server:io-queue io))))))

(define-server-test a-wait-for-a-client-to-take-octets-has-the-limit-of-writes
  (with-io (io stream client)
    (fill-socket io)
    (platform:limit-waits stream nil)
    (engine:limit-taking (server:io-queue io) 1/100)
    (with-function (platform:await-descriptor (original descriptor direction &rest more)
                     (if (getf more :until)
                         (apply original descriptor direction more)
                         (error "There is no limit.")))
      (signals server:stream-timeout (await-taker io)))))
