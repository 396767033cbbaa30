(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite io-output :in all
  :description "Octets and replies that leave over a buffered connection.")

(in-suite io-output)

(define-server-test octets-leave-in-the-order-in-which-they-were-written
  (with-io (io stream client)
    (let* ((large (test-octets (+ 1 +output-size+)))
           (exact (test-octets +output-size+))
           (reader (in-background ("client")
                     (receive-many client (+ 4 (length large) (* 2 (length exact)))))))
      (write-byte 1 stream)
      (write-sequence large stream)
      (write-sequence #(0 2 3 0) stream :start 1 :end 3)
      (write-sequence exact stream)
      (loop for octet across exact do (write-byte octet stream))
      (write-byte 4 stream)
      (finish-output stream)
      (finish-output stream)
      (is (equalp (octets (as-octets '(1)) large (as-octets '(2 3)) exact exact (as-octets '(4)))
                  (task-result reader)))
      (is (not (readable-p client)) "Nothing is sent twice."))))

(define-server-test what-the-socket-does-not-take-at-once-leaves-later
  (with-io (io stream client)
    (let* ((large (test-octets 9000000))
           (writer (in-background ("server") (write-sequence large stream) (finish-output stream))))
      (is (null (octet-difference large (receive-many client (length large)))))
      (task-result writer))))

(define-server-test a-writer-that-waits-for-its-peer-sends-first-what-it-has-written
  (with-io (io stream client)
    (flet ((answer ()
             (in-background ("client")
               (next-octet client)
               (send client "ab"))))
      (let ((client (answer)))
        (write-byte 1 stream)
        (is (eql (char-code #\a) (read-byte stream)))
        (task-result client))
      (clear-input stream)
      (let ((client (answer)))
        (write-byte 1 stream)
        (is (plusp (drop-input io 1)))
        (task-result client)))))

(define-server-test what-was-written-is-kept-until-it-is-flushed-and-may-be-dropped
  (with-io (io stream client)
    (write-byte 1 stream)
    (is (not (server:flushed-p io stream)))
    (is (not (readable-p client)))
    (clear-output stream)
    (is (server:flushed-p io stream))
    (write-byte 2 stream)
    (force-output stream)
    (is (eql 2 (next-octet client)))))

(defun send-large-reply (io size)
  "Sends a reply of three octets and a body of SIZE over IO; returns all of it."
  (let ((body (test-octets size)))
    (server:with-reply (reply)
      (http:encode-octets reply (as-octets '(1 2 3)))
      (server:send-reply io reply body)
      ;; Whoever is served next uses the same buffer.
      (http:encode-octets (http:reset-output reply) (as-octets '(9 9 9))))
    (octets (as-octets '(1 2 3)) body)))

(defun send-reply-of (io octets)
  (server:with-reply (reply)
    (http:encode-octets reply octets)
    (server:send-reply io reply nil)))

(define-server-test replies-leave-after-what-was-written-and-each-is-made-anew
  (with-io (io stream client)
    (write-byte 0 stream)
    (send-reply-of io (as-octets '(1 2)))
    (send-reply-of io (as-octets '(3)))
    (is (equalp (as-octets '(0 1 2 3)) (read-octets client 4)))
    (is (not (readable-p client)))))

(define-server-test a-reply-that-is-taken-in-part-arrives-whole
  (with-io (io stream client)
    (let ((large (test-octets 9000000)))
      (send-reply-of io large)
      (is (server:io-unsent io))
      (let ((writer (in-background ("server") (finish-output stream))))
        (is (null (octet-difference large (receive-many client (length large)))))
        (task-result writer)))))

(define-server-test a-reply-of-which-nothing-is-taken-arrives-whole
  (with-io (io stream client)
    (fill-socket io)
    (send-reply-of io (as-octets '(1 2 3)))
    (is (server:io-unsent io))
    (let ((reader (in-background ("client")
                    (loop while (zerop (next-octet client)))
                    (read-octets client 2))))
      (finish-output stream)
      (is (equalp (as-octets '(2 3)) (task-result reader))))))

(define-server-test a-reply-that-the-socket-does-not-take-is-left
  (with-io (io stream client)
    (fill-socket io)
    (let ((reply (send-large-reply io 5000)))
      (is (server:io-unsent io))
      (write-byte 4 stream)
      (let ((reader (in-background ("client")
                      (loop while (zerop (next-octet client)))
                      (receive-many client (length reply)))))
        (finish-output stream)
        (is (null (server:io-unsent io)))
        (is (equalp (octets (subseq reply 1) (as-octets '(4))) (task-result reader)))))))

(define-server-test what-is-left-leaves-before-the-descriptor-is-given-away
  (with-io (io stream client)
    (fill-socket io)
    (let* ((reply (send-large-reply io 5000))
           (reader (in-background ("client")
                     (loop while (zerop (next-octet client)))
                     (receive-many client (1- (length reply))))))
      (is (server:hand-descriptor-over io))
      (is (null (server:io-unsent io)))
      (setf (io-owner io) :engine)     ; it is the test's to close
      (is (equalp (subseq reply 1) (task-result reader))))))

(define-server-test the-files-of-what-is-left-are-closed-with-the-buffered-connection
  (with-directory (directory)
    (let ((file (write-file directory "large" (test-octets 100000))))
      (with-io (io stream client)
        (fill-socket io)
        (let ((part (engine:open-file-part (uiop:native-namestring file))))
          (setf (engine:part-end part) 100000)
          (server:with-reply (reply)
            (http:encode-octets reply (as-octets '(1 2 3)))
            (server:send-reply io reply part))
          (is (server:io-unsent io))
          (server:drop-descriptor io)
          (is (null (server:io-unsent io))))))))

(define-server-test a-file-is-let-go-of-once
  (where-supported
    (with-directory (directory)
      (let* ((name (uiop:native-namestring (write-file directory "file" "text")))
             (part (engine:open-file-part name)))
        (engine:drop-parts (list part))
        (is (null (engine:file-part-file part)))
        (let ((other (engine:open-file-part name)))
          (engine:drop-parts (list part))
          (is (platform:file-facts (engine:file-part-file other)) "That is another's.")
          (engine:drop-parts (list other)))))))

(define-server-test a-reply-that-cannot-be-sent-is-dropped
  (with-io (io stream client)
    (when (reset client)
      (await-arrival io)
      (ignore-errors (server:fill-input io))
      (signals server:descriptor-broken (send-large-reply io 5000))
      (is (null (server:io-unsent io))))))
