(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite lending :in all
  :description "The Lisp's own stream beside a buffered connection: either may be used, and nothing
is lost or sent twice.")

(in-suite lending)

(defun call-with-lent (function io stream)
  (let ((socket (platform:descriptor-socket (server:io-descriptor io) stream)))
    (unwind-protect (funcall function (lambda () (usocket:socket-stream socket)))
      (server:close-lent io))))

(defmacro with-lending ((lend io stream client) &body body)
  "Evaluates BODY with an IO, its STREAM, and the CLIENT at its other end.  The local function LEND
returns the Lisp's own stream beside it, as a program that asks for that gets it."
  (let ((function (gensym "FUNCTION")))
    `(with-io (,io ,stream ,client)
       (call-with-lent (lambda (,function)
                         (flet ((,lend () (funcall ,function)))
                           ,@body))
                       ,io ,stream))))

(defun read-single-octets (stream count)
  "The next COUNT octets of STREAM, each read for itself."
  (as-octets (loop repeat count collect (read-byte stream))))

;;; Input

(define-server-test octets-that-came-before-are-handed-out-once-by-whoever-is-read
  (with-lending (lend io stream client)
    (send-and-fill io client "abcd")
    (is (eql (char-code #\a) (read-byte stream)))
    (let ((lent (lend)))
      (is (eql (char-code #\b) (read-byte lent)))
      (is (eql (char-code #\c) (read-byte stream)))
      (is (eq lent (lend)))
      (is (eql (char-code #\d) (read-byte lent)))
      (end-sending client)
      (is (null (read-byte stream nil)))
      (is (null (read-byte lent nil))))))

(define-server-test octets-that-lent-has-received-are-there-for-the-buffered-connection
  (with-lending (lend io stream client)
    (send client "a")
    (is (eql (char-code #\a) (read-byte stream)))
    (is (server:io-all-read-p io))
    (let ((lent (lend)))
      (send client "bc")
      (is (eql (char-code #\b) (read-byte lent)))
      (is (server:settle-lent io))
      (is (not (server:io-all-read-p io)) "The poller has nothing to tell of.")
      (is (server:input-waiting-p io))
      (is (eql (char-code #\c) (read-byte stream))))))

(define-server-test more-than-a-buffer-that-lent-has-is-read-in-order
  (with-lending (lend io stream client)
    (let ((many (test-octets (+ 100 (* 2 +input-size+)))))
      (send-and-fill io client many)
      (is (eql (aref many 0) (read-byte (lend))))
      (server:lend-no-buffers io)       ; the next one is as small as usual
      (is (eq :some (server:fill-input io)))
      (is (eq :some (fill-more-input io)))
      (is (null (octet-difference (subseq many 1 (1+ (* 2 +input-size+))) (unread io))))
      (is (null (octet-difference (subseq many 1)
                                  (read-single-octets stream (1- (length many)))))))))

(define-server-test large-reads-get-first-what-lent-has
  (with-lending (lend io stream client)
    (let* ((many (test-octets (+ 100 +input-size+)))
           (read (make-array (length many) :element-type '(unsigned-byte 8))))
      (send-and-fill io client (subseq many 0 50))
      (lend)
      (send client (subseq many 50))
      (is (= (length many) (read-sequence read stream)))
      (is (null (octet-difference many read))))))

(define-server-test octets-that-lent-has-can-be-dropped
  (with-lending (lend io stream client)
    (send-and-fill io client "abcd")
    (is (eql (char-code #\a) (read-byte (lend))))
    (is (= 2 (drop-input io 2)))
    (is (eql (char-code #\d) (read-byte stream)))))

;;; Output

(define-server-test what-was-written-to-either-leaves-in-order
  (with-lending (lend io stream client)
    (write-byte 1 stream)
    (let ((lent (lend)))
      (write-byte 2 lent)
      (write-byte 3 stream)
      (finish-output stream)
      (write-byte 4 lent)
      (is (server:settle-lent io))
      (is (equalp (as-octets '(1 2 3 4)) (receive-many client 4))))))

(define-server-test what-is-left-of-a-reply-leaves-before-the-descriptor-is-given-to-lent
  (with-lending (lend io stream client)
    (let ((lent (lend)) (large (test-octets 9000000)))
      (engine:enqueue (server:io-queue io) (list (engine:make-octets-part large)))
      (server:flush-io io)
      (is (server:io-unsent io))
      (let ((task (in-background ("server")
                    (server:leave-to-lent io)
                    (write-byte 1 lent)
                    (finish-output lent))))
        (is (null (octet-difference large (receive-many client (length large)))))
        (task-result task)
        (is (eql 1 (next-octet client)))
        (is (not (server:io-unsent io)))
        (is (blocking-p (server:io-descriptor io)))))))

(define-server-test what-a-handler-streams-and-what-it-writes-to-lent-leaves-in-order
  (with-lending (lend io stream client)
    (let ((reply (server:make-reply-stream io stream :plain))
          (large (test-octets 100000)))
      (write-byte 1 reply)
      (let* ((lent (lend))
             (reader (in-background ("client") (receive-many client (+ 3 (length large))))))
        (write-byte 2 lent)
        (write-sequence large reply)
        (finish-output reply)
        (write-byte 3 lent)
        (write-byte 4 reply)
        (finish-output reply)
        (is (null (octet-difference (octets (as-octets '(1 2)) large (as-octets '(3 4)))
                                    (octets (task-result reader) (read-octets client 1)))))))))

;;; Time limits

(define-server-test the-time-limit-of-a-buffered-connection-is-that-of-lent
  (with-lending (lend io stream client)
    (platform:limit-waits stream 1/8)
    (let ((lent (lend)))
      (is (= 125 (platform:lisp-stream-milliseconds lent)))
      (platform:limit-waits stream nil)
      (is (= -1 (platform:lisp-stream-milliseconds lent))))))

(define-server-test a-time-limit-that-is-set-on-lent-is-that-of-the-buffered-connection
  (with-lending (lend io stream client)
    (let ((limit nil))
      (platform:limit-waits stream nil)
      (setf (platform:lisp-stream-milliseconds (lend)) 10)
      (with-function (platform:await-descriptor (original descriptor direction &rest more)
                       (setf limit (getf more :until))
                       (funcall original descriptor direction :until (platform:milliseconds)))
        (signals server:stream-timeout (read-byte stream)))
      (is (not (null limit))))))

;;; The end

(define-server-test a-program-that-closes-lent-ends-the-buffered-connection
  (with-lending (lend io stream client)
    (let ((lent (lend)))
      (is (server:lent-open-p io))
      (close lent)
      (is (not (server:lent-open-p io)))
      (is (eq lent (lend)) "There is no other, and nothing to be handed over.")
      (write-byte 1 stream)
      (is (not (server:settle-lent io)))
      (is (null (server:io-descriptor io)))
      (is (not (open-stream-p stream))))))

(define-server-test a-buffered-connection-whose-lent-was-closed-takes-and-gives-nothing
  (with-lending (lend io stream client)
    (send client "a")
    (await-arrival io)
    (close (lend))
    (is (null (read-byte stream nil)))
    (write-byte 1 stream)
    (signals server:descriptor-broken (finish-output stream))
    (is (not (readable-p client)))))
