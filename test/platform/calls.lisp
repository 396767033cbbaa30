(in-package #:hunchentoot-recycling-taskmaster-test)

;;; System calls one by one: their flags, their errors, and the names that they return.

(in-suite platform)

;;; Opened descriptors

(defun descriptor-flags (descriptor)
  "The flags of DESCRIPTOR from proc(5), including close-on-exec."
  (with-open-file (stream (format nil "/proc/self/fdinfo/~D" descriptor))
    (loop for line = (read-line stream)
          when (uiop:string-prefix-p "flags:" line)
            return (parse-integer line :start (length "flags:") :radix 8))))

(defun closed-on-exec-p (descriptor)
  (logtest #o2000000 (descriptor-flags descriptor)))

(defun blocking-p (descriptor)
  (not (logtest #o4000 (descriptor-flags descriptor))))

(define-server-test what-is-opened-is-not-inherited-by-programs-that-are-started
  (with-poller (poller)
    (dolist (descriptor (list (platform::poller-descriptor poller)
                              (platform::poller-broadcast poller)
                              (platform::poller-probe poller)
                              (platform::poller-wakeup poller)))
      (is (closed-on-exec-p descriptor))))
  (where-supported
   (with-descriptor (descriptor client)
     (is (closed-on-exec-p descriptor))
     (is (not (blocking-p descriptor)))
     (let ((duplicate (platform::duplicate-descriptor descriptor)))
       (is (closed-on-exec-p duplicate))
       (platform:close-descriptor duplicate)))
   (with-file-descriptor (file (octets "file"))
     (is (closed-on-exec-p file)))
   (let ((descriptor (platform:make-timer-descriptor)))
     (is (closed-on-exec-p descriptor))
     (is (not (blocking-p descriptor)))
     (platform:close-descriptor descriptor))
   (let ((descriptor (platform::path-socket)))
     (is (closed-on-exec-p descriptor))
     (platform:close-descriptor descriptor))))

(define-server-test a-poller-that-cannot-be-made-keeps-no-descriptor
  (where-supported
   ;; A poller has an epoll descriptor and three more.  Each of them may fail to open.
   (dolist (allowed '(0 1 2))
     (let ((left allowed) (opened '()))
       (with-function (platform::make-eventfd (original count)
                        (cond ((minusp (decf left)) -24) ; EMFILE
                              (t (first (push (funcall original count) opened)))))
         (signals error (platform:make-poller)))
       (is (= allowed (length opened)))
       (is (every #'null (mapcar #'descriptor-target opened)))))
   (with-function (platform:watch (original poller descriptor token &rest more) -28) ; ENOSPC
     (signals error (platform:make-poller)))))

(define-server-test calls-that-fail-say-so
  (where-supported
   (signals error (platform::check-call -9 "test"))
   (is (= 3 (platform::check-call 3 "test")))
   (with-descriptor (descriptor client)
     (is (zerop (platform:unsent-octets descriptor)))
     (is (zerop (platform:unread-octets descriptor))))
   (with-file-descriptor (file (octets "file"))
     (is (minusp (platform:unsent-octets file)) "A file is not a socket.")
     (is (minusp (platform::socket-option file 3)))
     (is (minusp (platform:send-file file file 0 4))))
   (is (null (platform:thread-state 1)) "That is a thread of another process.")
   (is (zerop (platform:thread-run-time 1)))))

;;; Calls that do not wait, and that send no signal

(define-server-test nothing-waits-on-a-descriptor-that-a-program-has-made-blocking
  (where-supported
   (with-descriptor (descriptor client)
     (platform:set-blocking descriptor)
     (is (blocking-p descriptor))
     (let ((task (in-background ("caller")
                   (list (platform:receive-octets descriptor (octets "....") 0 4)
                         (platform:drop-octets descriptor 4)
                         (loop with many = (test-octets 65536)
                               for result = (platform:send-octets descriptor many 0 65536)
                               unless (plusp result) return result)
                         (platform:send-octets-before-more descriptor (octets "x") 0 1)))))
       (unwind-protect
            (progn
              (eventually ("the calls to return") (task-done-p task))
              (is (every #'platform:would-block-p (task-result task))))
         (platform:shut-descriptor descriptor :io)
         (task-result task)))
     (platform:set-non-blocking descriptor)
     (is (not (blocking-p descriptor))))))

(define-server-test octets-for-a-client-that-left-send-no-signal
  (where-supported
   (let ((signals 0))
     (with-descriptor (descriptor client)
       (platform:shut-descriptor descriptor :output)
       (calling-on-broken-pipes ((lambda () (incf signals)))
         (is (= -32 (platform:send-octets descriptor (octets "x") 0 1))) ; EPIPE
         (is (= -32 (platform:send-octets-before-more descriptor (octets "x") 0 1)))))
     (is (zerop signals)))))

(define-server-test a-wait-for-output-is-not-ended-by-input
  (where-supported
   (with-descriptor (descriptor client)
     (let ((many (test-octets 65536)))
       (loop while (plusp (platform:send-octets descriptor many 0 65536)))
       (send client "x")
       (is (platform:await-descriptor descriptor :input :until (patient-end)))
       (is (not (platform:await-descriptor descriptor :output :until (platform:milliseconds))))
       (is (platform:await-descriptor descriptor :input
                                      :until (+ (platform:milliseconds) (expt 2 40)))
           "The system cannot wait so long in one call.")))))

(define-server-test an-accept-is-cut-short-although-nobody-comes
  (where-supported
   (with-globals ((platform::*accept-seconds* 1))
     (with-listener (listener)
       (platform:prepare-listener listener)
       (let ((task (in-background ("accept") (platform:accept-connection listener))))
         (eventually ("the accept to return") (task-done-p task))
         (is (null (task-result task)))
         (with-connection (client (usocket:get-local-port listener))
           (let ((server (accepted-usocket listener)))
             (let ((reader (in-background ("read")
                             (read-byte (platform:socket-octet-stream server)))))
               (poll (lambda () (task-done-p reader)) 3/2)
               (send client "x")
               (is (eql (char-code #\x) (task-result reader))
                   "A read may take longer than an accept."))
             (platform:close-socket server))))))))

(define-server-test nobody-waits-for-who-writes-to-a-pipe
  (where-supported
   (with-directory (directory)
     (let ((pipe (merge-pathnames "pipe" directory)))
       (uiop:run-program (list "mkfifo" (uiop:native-namestring pipe)))
       (let ((task (in-background ("open") (platform:open-file (platform:native-name pipe)))))
         (eventually ("the file to be open") (task-done-p task))
         (let ((file (task-result task)))
           (is (not (minusp file)))
           (is (null (platform:file-facts file)) "It is not a regular file.")
           (platform:close-descriptor file)))))))

;;; Octets that a peer sends after the last reply

(defmacro with-slow-closing ((server client closing) &body body)
  "Evaluates BODY while CLOSING, a task, closes SERVER gently.  CLIENT has sent octets that the
server has not read, and the server waits for CLIENT without a limit."
  `(with-globals ((platform::*discard-seconds* *patience*)
                  (platform::*discard-pause* *patience*))
     (with-accepted (,server ,client)
       (send ,client "x")
       (is (platform:await-input ,server :until (patient-end)))
       (let ((,closing (in-background ("closing") (platform:close-gently ,server))))
         ,@body))))

(define-server-test a-client-that-is-closed-gently-sees-the-end-and-has-time-to-end-too
  (with-slow-closing (server client closing)
    (is (closed-by-server-p client) "The client sees the end at once.")
    (is (not (poll (lambda () (task-done-p closing)) 1/5)) "The client may send more.")
    (end-sending client)
    (task-result closing)
    (is (not (platform:socket-open-p server)))))

(define-server-test shutting-down-tells-whether-somebody-was-there
  (with-accepted (server client)
    (is-true (platform:shut-down server :output))
    (is (closed-by-server-p client))
    (is-true (platform:shut-down server :io))
    (platform:close-socket server)
    (is (null (platform:shut-down server :io)))))

(define-server-test a-client-that-is-silent-after-the-last-answer-is-not-waited-for-for-long
  (with-globals ((platform::*discard-seconds* *patience*))
    (with-accepted (server client)
      (send client "x")
      (is (platform:await-input server :until (patient-end)))
      (let ((begun (platform:milliseconds)))
        (platform:close-gently server)
        (is (< (- (platform:milliseconds) begun) (* 500 *patience*)))))))

(defun octet-from (socket)
  "The next octet of SOCKET, a socket or a descriptor; the octet must have arrived."
  (if (integerp socket)
      (let ((octets (base:make-octets 1)))
        (platform:receive-octets socket octets 0 1)
        (aref octets 0))
      (read-byte (platform:socket-octet-stream socket))))

(define-server-test no-more-than-so-many-octets-are-dropped
  (with-globals ((platform::*discard-octets* 10))
    (with-accepted (server client)
      (send client (test-octets 100))
      (is (platform:await-input server :until (patient-end)))
      (platform::discard-input server)
      (is (= (aref (test-octets 100) 10) (octet-from server))))))

(test what-is-there-is-dropped-up-to-a-number-and-a-time
  (flet ((dropped (count most end)
           (let ((stream (flexi-streams:make-in-memory-input-stream (test-octets count))))
             (list (platform::discard-available-input
                    (make-instance 'usocket:stream-usocket :socket nil :stream stream) most end)
                   (loop while (read-byte stream nil) count t)))))
    (let ((later (+ (platform:milliseconds) 1000000)))
      (is (equal '(4 6) (dropped 10 4 later)))
      (is (equal '(10 0) (dropped 10 20 later)))
      (is (equal '(nil 0) (dropped 0 4 later)) "The input has ended.")
      (is (equal '(4096 904) (dropped 5000 10000 0))
          "DISCARD-AVAILABLE-INPUT seldom reads the clock."))))

(define-server-test what-usocket-signals-is-known-for-what-it-means
  (where-supported
   (with-listener (listener)
     (flet ((accepted (class)
              (with-function (platform::%accept (original listener)
                               (error class :socket listener))
                (handler-case (platform:accept-connection listener)
                  (platform:accept-failed (condition) (type-of condition))))))
       (is (null (accepted 'usocket:connection-aborted-error)))
       (is (eq 'platform:listener-closed (accepted 'usocket:bad-file-descriptor-error)))
       (is (eq 'platform:listener-closed (accepted 'usocket:invalid-argument-error)))
       (is (eq 'platform:descriptors-exhausted (accepted 'usocket:no-buffers-error)))
       (is (eq 'platform:accept-failed (accepted 'usocket:operation-not-permitted-error)))))))

;;; Unix-domain sockets

(define-server-test paths-are-as-long-as-the-system-takes-them
  (where-supported
   (flet ((address (length)
            (platform::path-address (make-string length :initial-element #\x))))
     (is (= 110 (length (address 107))) "The path is between a family and a zero.")
     (signals platform:listen-failed (address 108)))))

(defun connect-without-waiting (path)
  "A descriptor connected to PATH; NIL if no client can connect now."
  (let ((descriptor (platform::path-socket #o4001)))
    (cond ((zerop (platform::call-with-address "connect" descriptor
                                                  (platform::path-address path)))
           descriptor)
          (t
           (platform:close-descriptor descriptor)
           nil))))

(define-server-test a-program-that-has-no-room-for-another-client-answers-all-the-same
  (where-supported
   (with-directory (directory)
     (let* ((path (uiop:native-namestring (merge-pathnames "socket" directory)))
            (listener (path-listener path))
            (clients (loop for descriptor = (connect-without-waiting path)
                           while descriptor collect descriptor))
            (task (in-background ("look") (platform::abandoned-p path))))
       (unwind-protect
            (progn
              (is (plusp (length clients)))
              (eventually ("the check to end") (task-done-p task))
              (is (not (task-result task))))
         (mapc #'platform:close-descriptor clients)
         (usocket:socket-close listener))
       (is-true (platform::abandoned-p path))))))

;;; The events of a poller

(define-server-test many-are-told-at-a-time-in-their-order-and-not-more-than-asked-for
  (with-poller (poller)
    (with-descriptor (first first-client)
      (with-descriptor (second second-client)
        (with-descriptor (third third-client)
          (let ((tokens (list 1 (1+ (ash 1 60)) (+ 3 (ash 5 32)))))
            (flet ((tell-all (most)
                     (loop for client in (list first-client second-client third-client)
                           for descriptor in (list first second third)
                           do (send client "x")
                              (platform:await-descriptor descriptor :input :until (patient-end)))
                     (multiple-value-list (platform:await-ready poller 0 most))))
              (mapc (lambda (descriptor token) (platform:watch poller descriptor token))
                    (list first second third) tokens)
              (is (equal (list (first tokens) (rest tokens)) (tell-all 16)))
              (is (equal (list (first tokens) (list (second tokens))) (tell-all 2)))
              (is (eql (third tokens) (platform:await-ready poller 0))))))))))

(define-server-test what-is-unwatched-can-be-watched-anew
  (with-poller (poller)
    (with-descriptor (descriptor client)
      (is (zerop (platform:watch poller descriptor 1)))
      (is (minusp (platform:watch poller descriptor 2)) "The poller watches it already.")
      (is (zerop (platform:unwatch poller descriptor)))
      (is (minusp (platform:unwatch poller descriptor)))
      (is (zerop (platform:watch poller descriptor 3)))
      (send client "x")
      (is (eql 3 (platform:await-ready poller (patient-milliseconds)))))))

(define-server-test a-worker-that-waits-for-input-is-not-told-of-room-for-output
  (with-poller (poller)
    (with-descriptor (descriptor client)
      (platform:watch poller descriptor 1)
      (is (null (platform:await-ready poller 0)))
      (platform:rearm poller descriptor 1 t)
      (is (eql 1 (platform:await-ready poller 0)))
      (platform:rearm poller descriptor 1)
      (is (null (platform:await-ready poller 0))))))

;;; Names

(test addresses-are-written-as-people-write-them
  (where-supported
   (loop for (octets text) in '(((0 0 0 0) "0.0.0.0") ((127 0 0 1) "127.0.0.1")
                                ((9 10 99 100) "9.10.99.100") ((101 109 200 255) "101.109.200.255"))
         do (is (string= text (platform::dotted-text (as-octets (append '(7) octets)) 1)))
            (is (string= text (platform::address-string (as-octets octets)))))))

(test addresses-of-ipv6-are-written-as-people-write-them
  (flet ((text (&rest octets)
           (platform::address-string (coerce octets '(simple-array (unsigned-byte 8) (16))))))
    (is (string= "10.2.3.4" (text 0 0 0 0 0 0 0 0 0 0 255 255 10 2 3 4))
        "The address is mapped to IPv6.")
    (is (not (search "10.2.3.4" (text 0 0 0 0 0 0 0 0 0 1 255 255 10 2 3 4))))
    (is (not (string= "10.2.3.4" (text 0 0 0 0 0 0 0 0 0 0 255 254 10 2 3 4))))
    (is (search "abcd" (text #xab #xcd 0 1 0 2 0 3 0 4 0 5 0 6 0 7)))))

(test names-of-sockets-are-told-whole
  (where-supported
   (flet ((name (&rest octets)
            (let ((vector (base:make-octets 128)))
              (replace vector octets)
              (multiple-value-list (platform::name-of vector (length octets))))))
     (is (equal '("10.1.2.3" 258) (name 2 0 1 2 10 1 2 3 0 0 0 0 0 0 0 0)))
     (is (equal '("10.1.2.3" 65535)
                (apply #'name (append '(10 0 255 255 0 0 0 0)
                                     '(0 0 0 0 0 0 0 0 0 0 255 255 10 1 2 3)
                                     '(0 0 0 0)))))
     (is (equal '("unix:" 0) (name 1 0)) "The socket has no name.")
     (is (equal '("unix:/a" 0) (name 1 0 47 97 0)))
     (is (equal '("unix:/a" 0) (name 1 0 47 97 0 98)))
     (is (equal '("unix:@a" 0) (name 1 0 0 97)) "The name is abstract."))))

(define-server-test what-is-known-of-a-peer-is-what-the-system-tells
  (where-supported
   (with-listener (listener)
     (platform:set-non-blocking (platform:listener-descriptor listener))
     (with-connection (client (usocket:get-local-port listener))
       (destructuring-bind (descriptor peer)
           (eventually ("a connection")
             (let ((accepted (multiple-value-list
                              (platform:accept-descriptor
                               (platform:listener-descriptor listener)))))
               (and (>= (first accepted) 0) accepted)))
         (dolist (known (list peer nil))
           (is (equal (list "127.0.0.1" (client-port client))
                      (multiple-value-list (platform:descriptor-peer-name descriptor known)))))
         (platform:close-descriptor descriptor))))))

;;; Streams of the Lisp

(define-server-test what-is-put-before-a-stream-is-read-before-what-that-had-read-ahead
  (where-supported
   (with-accepted (server client)
     (let ((stream (platform:socket-octet-stream server))
           (read (make-array 4 :element-type '(unsigned-byte 8))))
       (send client "xyz")
       (is (= (char-code #\x) (read-byte stream)))
       (platform:put-read-ahead stream (octets "-ab-") 1 3)
       (is (= 4 (read-sequence read stream)))
       (is (equalp (octets "abyz") read))))))

(define-server-test characters-that-were-unread-are-taken-with-what-a-stream-had-read-ahead
  (where-supported
   (with-accepted (server client)
     (let ((stream (uiop:symbol-call '#:sb-sys '#:make-fd-stream
                                     (platform:listener-descriptor server)
                                     :input t :element-type :default :buffering :full
                                     :external-format :latin-1)))
       (send client "vwxyz")
       (is (char= #\v (read-char stream)))
       (is (char= #\w (read-char stream)))
       (unread-char #\w stream)
       (is (equalp (octets "wxyz") (platform:take-read-ahead stream)))
       (is (equalp (octets "") (platform:take-read-ahead stream)) "The stream has no octets left.")
       (setf (platform:lisp-stream-milliseconds stream) 1500)
       (is (eql 1500 (platform:lisp-stream-milliseconds stream)))
       (is (= 1.5 (uiop:symbol-call '#:sb-impl '#:fd-stream-timeout stream)))))))

;;; Time

(test seconds-are-rounded-up-and-a-past-end-is-no-time
  (is (null (platform:as-milliseconds nil)))
  (is (= 1 (platform:as-milliseconds 1/10000)))
  (is (= 1500 (platform:as-milliseconds 3/2)))
  (is (null (platform:end-after nil)))
  (is (null (platform:milliseconds-left nil)))
  (is (zerop (platform:milliseconds-left (- (platform:milliseconds) 1000))))
  (is (<= 1 (platform:milliseconds-left (+ (platform:milliseconds) 100000)) 100000)))

(test both-clocks-are-one
  (where-supported
   (let* ((before (platform:milliseconds))
          (between (platform:microseconds))
          (after (platform:milliseconds)))
     (is (<= before (floor between 1000) after)))))
