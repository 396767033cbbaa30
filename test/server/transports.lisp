(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite transports :in all
  :description "Buffered connections that a stream carries.")

(in-suite transports)

(defclass scripted-stream (trivial-gray-streams:fundamental-binary-input-stream
                           trivial-gray-streams:fundamental-binary-output-stream
                           trivial-gray-streams:trivial-gray-stream-mixin)
  ((octets :initarg :octets :accessor scripted-octets
           :documentation "A list of those to be read; a condition in it is signalled.")
   (written :initform '() :accessor scripted-written)
   (flushed-p :initform nil :accessor scripted-flushed-p)
   (failure :initform nil :accessor scripted-failure
            :documentation "The condition that writing signals, or NIL."))
  (:documentation "A stream that would wait for ever after its last octet, and tells so."))

(defmethod stream-element-type ((stream scripted-stream))
  '(unsigned-byte 8))

(defmethod trivial-gray-streams:stream-read-byte ((stream scripted-stream))
  (let ((next (pop (scripted-octets stream))))
    (etypecase next
      (null (lose-patience "more than was sent"))
      (condition (error next))
      (integer next)
      (symbol next))))

(defmethod trivial-gray-streams:stream-read-sequence
    ((stream scripted-stream) sequence start end &key)
  (loop for position from start below end
        for octet = (read-byte stream nil)
        while octet
        do (setf (elt sequence position) octet)
        finally (return position)))

(defmethod trivial-gray-streams:stream-listen ((stream scripted-stream))
  (let ((next (first (scripted-octets stream))))
    (if (typep next 'condition) (error next) (integerp next))))

(defmethod trivial-gray-streams:stream-write-sequence
    ((stream scripted-stream) sequence start end &key)
  (when (scripted-failure stream)
    (error (scripted-failure stream)))
  (setf (scripted-flushed-p stream) nil
        (scripted-written stream) (append (scripted-written stream)
                                          (coerce (subseq sequence start end) 'list)))
  sequence)

(defmethod trivial-gray-streams:stream-finish-output ((stream scripted-stream))
  (setf (scripted-flushed-p stream) t)
  nil)

(defun scripted-io (&rest parts)
  "A buffered connection that a stream of PARTS, texts, conditions and :EOF, carries; and that
stream."
  (let ((stream (make-instance 'scripted-stream
                               :octets (loop for part in parts
                                             append (if (stringp part)
                                                        (coerce (octets part) 'list)
                                                        (list part))))))
    (values (server:make-transport-io (server:transport-for stream nil)) stream)))

(defun next-head (io)
  (server:read-head io (server:take-parser (http:make-limits))))

(test a-head-is-read-to-its-end-and-no-further
  (multiple-value-bind (io stream)
      (scripted-io (format nil "GET /a HTTP/1.1~C~CHost: h~C~C~C~C" #\Return #\Newline
                           #\Return #\Newline #\Return #\Newline)
                   "other octets")
    (is (string= "/a" (http:head-uri (next-head io))))
    (is (= (length "other octets") (length (scripted-octets stream)))
        "They are for others to read.")))

(test no-more-is-waited-for-than-is-wanted
  (multiple-value-bind (io) (scripted-io "abc")
    (let ((content (server:make-content-stream (server:io-stream io) 3 (constantly nil) nil)))
      (is (equalp (octets "ab") (read-up-to content 2)))
      (is (eql (char-code #\c) (read-byte content)))
      (is (null (read-byte content nil))))))

(test chunks-are-read-to-their-end-and-no-further
  (multiple-value-bind (io stream)
      (scripted-io (format nil "3~C~Cabc~C~C0~C~C~C~C" #\Return #\Newline #\Return #\Newline
                           #\Return #\Newline #\Return #\Newline)
                   "x")
    (let ((content (server:make-chunked-content io (http:make-limits) (constantly nil) nil)))
      (is (equalp (octets "abc") (read-up-to content 10)))
      (is (equal (coerce (octets "x") 'list) (scripted-octets stream))))))

(test octets-before-a-wait-that-was-too-long-are-not-lost
  (multiple-value-bind (io)
      (scripted-io "GE" (make-condition 'server:stream-timeout :stream nil)
                   (make-condition 'server:stream-timeout :stream nil))
    (let ((parser (server:take-parser (http:make-limits))))
      (signals server:stream-timeout (server:read-head io parser))
      (is (http:parser-begun-p parser)))))

(test what-breaks-a-stream-breaks-its-buffered-connection
  (multiple-value-bind (io) (scripted-io (make-condition 'simple-error))
    (signals server:descriptor-broken (next-head io))))

(test the-end-of-a-stream-is-the-end-of-its-buffered-connection
  (multiple-value-bind (io) (scripted-io :eof)
    (is (eq :end (next-head io)))))

(test what-is-written-to-a-stream-is-sent-at-once
  (multiple-value-bind (io stream) (scripted-io)
    (write-sequence (octets "reply") (server:io-stream io))
    (finish-output (server:io-stream io))
    (is (equal (coerce (octets "reply") 'list) (scripted-written stream)))
    (is-true (scripted-flushed-p stream))))

(test a-stream-that-fails-while-the-queue-is-flushed-ends-its-connection-and-fails-once
  (loop for (condition expected)
          in `((,(make-condition 'simple-error) server:descriptor-broken)
               (,(make-condition 'server:stream-timeout :stream nil) server:stream-timeout))
        do (multiple-value-bind (io stream) (scripted-io)
             (engine:enqueue (server:io-queue io)
                             (list (engine:make-octets-part (octets "reply"))))
             (setf (scripted-failure stream) condition)
             (is (typep (nth-value 1 (ignore-errors (server:flush-io io))) expected))
             (is (not (server:io-open-p io)))
             (is (null (server:io-unsent io)))
             (finishes (close (server:io-stream io)))
             (is (null (scripted-written stream))))))

(test a-reader-that-listens-to-a-stream-waits-for-nothing
  (is (server:input-waiting-p (scripted-io "a")))
  (is (not (server:input-waiting-p (scripted-io))))
  (is (server:input-waiting-p (scripted-io (make-condition 'simple-error)))))

;;; What waits for something else than input

(defstruct (halting-transport (:include transport)
                              (:constructor make-halting-transport (source base)))
  "A transport that has something of its own to send before it can be read, as TLS may.")

(defmethod transport-awaits ((transport halting-transport))
  :output)

(define-server-test (a-reader-that-reads-waits-for-what-the-transport-waits-for :needs :our-http)
  (with-io (io stream client)
    (let ((carried (make-io nil (make-halting-transport stream io))))
      (setf (io-milliseconds io) (* 10000 *patience*))
      (task-result (in-background ("waiting") ; nothing has come, but the socket takes octets
                     (await-peer carried :input)))
      (setf (io-milliseconds io) 10)
      (signals server:stream-timeout (await-peer io :input)))))
