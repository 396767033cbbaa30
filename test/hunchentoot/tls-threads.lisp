(in-package #:hunchentoot-recycling-taskmaster-test)

;;; TLS connections that several threads of a program use: OpenSSL lets one at a time.

(def-suite tls-threads :in acceptors
  :description "HTTPS, and threads that share a stream.")

(in-suite tls-threads)

(defun call-with-tls-session (function)
  (with-directory (directory)
    (multiple-value-bind (key certificate) (make-certificate directory)
      (with-descriptor (descriptor client)
        (let ((session (platform:make-tls-session
                        (platform:make-tls-context (list (list certificate key nil))) descriptor)))
          (unwind-protect (funcall function session client)
            (platform:end-tls-session session)))))))

(define-server-test (a-tls-session-is-not-freed-while-another-thread-uses-it :needs :our-http)
  (let ((entered (make-gate)) (release (make-gate)))
    (call-with-tls-session
     (lambda (session client)
       (declare (ignore client))
       (with-function (platform::tls-failure-reason (original)
                        (open-gate entered)
                        (await release)
                        (funcall original))
         (let ((shaking (in-background ("a handshake") (platform:shake-hands session))))
           (await entered)
           (let ((ending (in-background ("an end") (platform:end-tls-session session))))
             (is (not (poll (lambda () (null (platform:tls-session-pointer session))) 1/5)))
             (open-gate release)
             (is (eq :input (task-result shaking)))
             (task-result ending)
             (is (null (platform:tls-session-pointer session)))
             (is (eq :failed (platform:shake-hands session))))))))))

(defun write-much (stream)
  "Writes to STREAM, until that fails."
  (ignore-errors
   (loop repeat 50
         do (write-sequence (make-array 3000 :element-type '(unsigned-byte 8)) stream)
            (finish-output stream))))

(define-server-test (over-tls-threads-may-write-to-one-stream-and-close-it :needs :our-http)
  (let ((before (sessions-of-others))
        (failures 0))
    (with-routes (("/shared"
                   (let* ((stream hunchentoot::*hunchentoot-stream*)
                          (tasks (append (loop repeat 3
                                               collect (in-background ("a writer")
                                                         (write-much stream)))
                                         (loop repeat 2
                                               collect (in-background ("closing")
                                                         (ignore-errors
                                                          (close stream :abort t)))))))
                     (write-much stream)
                     (handler-case (mapc #'task-result tasks)
                       (error () (incf failures)))
                     "shared")))
      (serving-tls ()
        (loop repeat 20
              do (with-connection (connection)
                   (let ((stream (cl+ssl:make-ssl-client-stream (connection-stream connection)
                                                                :verify nil)))
                     (send-encrypted stream "/shared")
                     ;; What comes are the octets of several threads, in pieces, and then the end.
                     (ignore-errors (read-everything stream))
                     (close stream :abort t))))
        (eventually ("the connections to be closed") (zerop (figure :open)))
        (is (uiop:string-prefix-p "HTTP/1.1 200" (ask-tls)))))
    (is (zerop failures))
    (is (or (null before) (<= (sessions-of-openssl) before)))))

(defun sessions-of-others ()
  "What SESSIONS-OF-OPENSSL returns when what other tests have left was collected, so that it does
not sink much further."
  (loop for before = nil then now
        for now = (progn (platform:collect-garbage)
                         (poll (constantly nil) 1/20) ; those who end them have threads of their own
                         (sessions-of-openssl))
        repeat 20
        until (eql before now)
        finally (return now)))

(define-server-test (a-detached-tls-connection-that-a-program-forgets-is-ended :needs :our-http)
  (with-globals ((engine::*poll-milliseconds* 20)) ; who waits clears his stack then
    (let ((before (sessions-of-others)))
      (with-routes (("/forget" (hunchentoot:detach-socket hunchentoot:*acceptor*)
                               "forgotten"))
        ;; One worker, since another that was suspended might keep the connection on its stack.
        (serving-tls (:taskmaster (taskmaster :max-thread-count 1))
          (with-connection (connection)
            (let ((stream (cl+ssl:make-ssl-client-stream (connection-stream connection)
                                                         :verify nil)))
              (send-encrypted stream "/forget")
              (is (search "forgotten" (read-until stream "forgotten")))
              ;; Each look collects all garbage, which takes seconds where the processors are busy.
              (eventually ("the connection to be garbage" :patience (* 6 *patience*))
                ;; Other requests overwrite what is left of it on stacks.
                (ask-tls)
                (platform:collect-garbage)
                (or (null before) (<= (sessions-of-openssl) before)))
              (is (null (next-clear-octet stream)) "Its descriptor is closed.")))))
      (is (or (null before) (<= (sessions-of-openssl) before))))))
