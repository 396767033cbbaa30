(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite clack/socket-mishaps :in clack
  :description "Connections that applications take over, and whose clients or applications do not do
what they should.")

(in-suite clack/socket-mishaps)

(define-server-test (a-client-that-sends-too-long-a-close-frame-ends-like-everybody
                     :needs :noticed-leaving)
  ;; RFC 6455, section 5.5: a control frame has 125 octets at most.  The program says nothing to it,
  ;; nor closes.
  (let ((frames (make-recorder)))
    (with-globals ((server::*close-answer-seconds* 1/10))
      (with-speaker (environment frame (record frames frame))
        (dolist (count '(125 126 200 300 70000))
          (setf (recorder-entries frames) '())
          (with-talk (talk)
            (tell talk (make-frame 8 (close-payload 1000 (make-string (- count 2)
                                                                      :initial-element #\a))))
            (is (equal '(:end) (hear talk))))
          (eventually ("the connection to end") (zerop (figure :open)))
          (is (= 2 (recorded-count frames)))
          (is (equalp '(:close 1000) (subseq (frame-told (second (recorded frames))) 0 2))))
        (is (zerop (figure :failed)))
        (is (equal "" (clack-log)))))))

(define-server-test a-program-that-writes-too-long-a-close-frame-is-told-of-the-end
  (let ((frames (make-recorder)))
    (with-globals ((server::*close-answer-seconds* 1/10))
      (with-speaker (environment frame (unless (plusp (recorded-count frames))
                                         (record frames frame)
                                         (write-to-clack-socket (io-of environment)
                                                   (make-frame 8 (test-octets 256) :mask nil)
                                                   nil)))
        (with-talk (talk)
          (tell talk "go")
          (receive-rest (talk-connection talk)))
        (eventually ("the connection to end") (zerop (figure :open)))
        (is (zerop (figure :failed)))
        (is (equal "" (clack-log)))))))

(define-server-test a-message-may-be-as-long-as-is-said
  (with-echoing (:websocket-message-octets 1000)
    (with-talk (talk)
      (tell talk (frame :binary (test-octets 1000)))
      (is (equalp (list :binary (test-octets 1000)) (hear talk))))
    (with-talk (talk)
      (tell talk (frame :binary (test-octets 1001)))
      (is (eql 1009 (hear-close talk)))))
  (let ((frames (make-recorder)))
    (with-speaker (environment frame (record frames (length frame)) :websocket-message-octets 1000)
      (with-talk (talk)
        (tell talk (make-frame 2 (test-octets 500) :fin nil)
              (make-frame 0 (test-octets 499) :fin nil)
              (make-frame 0 (octets "x")))
        (eventually ("all to come") (= 3 (recorded-count frames)))
        (is (equal '(508 507 7) (recorded frames)))
        (tell talk (make-frame 2 (test-octets 500) :fin nil)
              (make-frame 0 (test-octets 500) :fin nil)
              (make-frame 0 (octets "x")))
        (is (eql 1009 (hear-close talk)))))))

(define-server-test a-callback-that-exhausts-memory-ends-its-connection-only
  (with-speaker (environment frame (if (equal "fail" (second (frame-told frame)))
                                       (error 'storage-condition)
                                       (answer-frame environment frame)))
    (with-talk (other)
      (with-talk (talk)
        (tell talk "fail")
        (is (eql 1011 (hear-close talk)))
        (say-close talk 1011)
        (is (equal '(:end) (hear talk))))
      (tell other "fine")
      (is (string= "fine" (hear-text other))))
    (eventually ("the failure to be counted") (= 1 (figure :failed)))))

(define-server-test what-is-no-octets-takes-nothing-over
  (with-clack (environment (write-to-clack-socket (io-of environment)
                                                  (if (equal "/string"
                                                             (getf environment :path-info))
                                                      "HTTP/1.1 101 Switching Protocols"
                                                      (vector 72 256 0))
                                                  nil))
    (dolist (path '("/string" "/large"))
      (is (= 500 (response-status (ask path)))))))

(define-server-test what-is-written-may-be-any-vector
  (let ((displaced (make-array 3 :element-type '(unsigned-byte 8) :displaced-index-offset 2
                                 :displaced-to (octets "..abc..")))
        (filled (make-array 10 :element-type '(unsigned-byte 8) :fill-pointer 2
                            :initial-element 100)))
    (with-clack (environment (let ((io (io-of environment)))
                               (buffer-for-clack-socket io displaced)
                               (buffer-for-clack-socket io filled)
                               (flush-clack-socket io nil)
                               (flush-clack-socket io nil)
                               (write-to-clack-socket io (vector 101 102) nil)
                               (write-to-clack-socket io (octets "") nil)
                               (close-clack-socket io)
                               (close-clack-socket io)
                               nil))
      (is (equal "abcddef" (decode (ask-raw (request-octets "/"))))))))

(define-server-test pieces-that-wait-for-a-flush-leave-when-they-are-more-than-the-mark
  (let ((release (make-gate)))
    (unwind-protect
         (with-clack (environment (let ((io (io-of environment)))
                                    (loop repeat 5
                                          do (buffer-for-clack-socket
                                              io (test-octets (floor server:*high-water-mark* 4))))
                                    (await release)
                                    (close-clack-socket io)
                                    nil))
           (with-connection (connection)
             (send-request connection "/")
             (is (equalp (test-octets (floor server:*high-water-mark* 4))
                         (read-octets connection (floor server:*high-water-mark* 4))))))
      (open-gate release))))

(define-server-test pieces-that-wait-for-a-flush-are-dropped-at-the-end
  (let ((ios (make-recorder)))
    (with-speaker (environment frame (let ((io (io-of environment)))
                                       (buffer-for-clack-socket io (test-octets 100))
                                       (record ios io)))
      (with-talk (talk)
        (tell talk "hello")
        (eventually ("the application to be called") (plusp (recorded-count ios))))
      (let ((socket (server:exchange-upgrade (first (recorded ios)))))
        (flet ((kept () (server::program-socket-buffered socket)))
          (eventually ("the pieces to be dropped") (null (kept)))
          (server:buffer-for-program-socket socket (test-octets 100))
          (is (null (kept)) "Nor is one taken after that."))))))

(define-server-test a-great-many-pieces-are-flushed-together
  (with-clack (environment (let ((io (io-of environment)))
                             (dotimes (i 20000)
                               (buffer-for-clack-socket io (vector (mod i 256))))
                             (flush-clack-socket io nil)
                             (close-clack-socket io)
                             nil))
    (let ((octets (ask-raw (request-octets "/"))))
      (is (= 20000 (length octets)))
      (is-true (loop for octet across octets for i from 0 always (= octet (mod i 256)))))))

(define-server-test frames-of-any-length-come-in-any-segments
  (with-echoing ()
    (with-talk (talk)
      (dolist (count '(0 1 125 126 127 65535 65536))
        (let* ((payload (test-octets count))
               (answer (websocket:encode-frame :binary payload))
               ;; In the head, of 14 octets at most, and behind it; long frames take long.
               (cuts (sample-on-slow-lisps (if (< count 1000)
                                               '(1 2 3 4 6 7 8 9 10 13 14 15)
                                               '(1 3 9 14))
                                           3)))
          (dolist (cut cuts)
            (let ((sent (frame :binary payload)))
              (send (talk-connection talk) (subseq sent 0 (min cut (length sent))))
              (send (talk-connection talk) (subseq sent (min cut (length sent))))))
          (loop repeat (length cuts)
                do (is (null (octet-difference answer (receive-many (talk-connection talk)
                                                                    (length answer)))))))))))

(define-server-test callbacks-may-close-and-write
  (let ((calls (make-recorder)))
    (with-speaker (environment frame
                    (let ((io (io-of environment)))
                      (write-frame io :text "bye"
                                   (lambda ()
                                     (record calls :sent)
                                     (close-clack-socket io)
                                     (close-clack-socket io)
                                     (record calls
                                             (handler-case (write-frame io :text "late")
                                               (error (condition) (type-of condition))))))))
      (with-talk (talk)
        (tell talk "go" "on")
        (is (equal "bye" (hear-text talk)))
        (is (equal '(:end) (hear talk))))
      (eventually ("all to be called") (= 2 (recorded-count calls)))
      (is (equal '(:sent handler:client-left) (recorded calls))))))

;;; Threads that end amid callbacks

(define-server-test (a-callback-may-end-its-thread :needs (:noticed-leaving :deferred-ends))
  (dolist (last '(:text :close))
    (let ((kinds (make-recorder)))
      (with-globals ((server::*close-answer-seconds* 1/10))
        (with-speaker (environment frame (let ((kind (if (websocket:close-frame-payload frame)
                                                         :close :text)))
                                           (record kinds kind)
                                           (when (eq last kind)
                                             (kill-this-thread))))
          (with-talk (talk)
            (tell talk "go")
            (eventually ("the application to be called") (plusp (recorded-count kinds))))
          (eventually ("the thread to end") (= 1 (recorded-count kinds last)))
          (eventually ("the connection to end") (zerop (figure :open)))
          (with-talk (talk)
            (tell talk "go")
            (eventually ("the application to be called again") (< 1 (recorded-count kinds :text)))
            (say-close talk)
            (receive-rest (talk-connection talk)))
          (eventually ("the connection to end") (zerop (figure :open)))
          (is (equal "plain" (ask-text "/"))))))))

(define-server-test (a-callback-of-what-was-sent-may-end-its-thread :needs :deferred-ends)
  (let ((kinds (make-recorder)))
    (with-speaker (environment frame (let ((kind (first (frame-told frame))))
                                       (record kinds kind)
                                       (when (eq :text kind)
                                         (write-frame (io-of environment) :text "sent"
                                                      #'kill-this-thread))))
      (with-talk (talk)
        (tell talk "go")
        (is (equal "sent" (hear-text talk)))
        (receive-rest (talk-connection talk)))
      (eventually ("the connection to end") (zerop (figure :open)))
      (is (equal "plain" (ask-text "/"))))))

(define-server-test (a-thread-that-ends-in-a-callback-leaves-those-of-others-to-others
                     :needs (:parking :deferred-ends))
  (let ((io nil) (caller nil) (inside (make-gate)) (called (make-gate)))
    (with-clack (environment (lambda (responder)
                               (declare (ignore responder))
                               (setf io (io-of environment))
                               (begin-speaking environment #'identity)))
      (with-talk (talk)
        (eventually ("the takeover") io)
        ;; Else a worker may call the functions.
        (eventually ("the worker to leave the connection") (= 1 (figure :deferred)))
        (let ((writer (bt:make-thread (lambda ()
                                        (write-frame io :text "one" (lambda ()
                                                                      (setf caller
                                                                            (bt:current-thread))
                                                                      (open-gate inside)
                                                                      (await (make-gate) 60)))))))
          (await inside)
          (write-frame io :text "two" (lambda () (open-gate called)))
          (is (equal "one" (hear-text talk)))
          (is (equal "two" (hear-text talk)))
          (platform:destroy-thread caller) ; WRITER, or a worker that still has the connection
          (await called)
          (is-true (platform:join-thread caller 10))
          (is-true (platform:join-thread writer 10)))))))
