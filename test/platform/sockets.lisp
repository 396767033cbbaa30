(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* sockets :in acceptors
  :description "What the operating system, and the collector of the Lisp, do to connections.")

(defun listening-descriptor (acceptor)
  (platform:socket-descriptor (hunchentoot::acceptor-listen-socket acceptor)))

(define-server-test (what-a-server-opens-is-not-inherited-by-programs-that-are-started
                     :needs :parking)
  (let ((before (open-descriptors)))
    (serving () (("/" "body"))
      (with-connection (connection)
        (is (string= "body" (exchange-text connection "/")))
        (let ((opened (set-difference (open-descriptors) before :test #'equal)))
          (is (< 3 (length opened)))
          (loop for (number . target) in opened
                do (unless (member number (list (listening-descriptor *server*)
                                                (socket-descriptor (connection-socket connection))))
                     (is (closed-on-exec-p number) "~A" target))))))))

;; To collect garbage, a Lisp stops its threads by signals, which cut waits in the system short.
(define-server-test (collecting-garbage-neither-loses-nor-repeats-octets :needs :our-content)
  (let* ((octets (test-octets 3000000))
         (received nil))
    (flet ((collect-garbage-repeatedly ()
             ;; Java does not stop threads by signals.
             (loop repeat (rounds 10)
                   do (progn #+sbcl (sb-ext:gc) #+ecl (ext:gc t)))))
      (serving () (("/" (setf received (hunchentoot:raw-post-data :force-binary t))))
        (with-connection (connection)
          (send connection "POST / HTTP/1.1" :crlf "Host: l" :crlf "Content-Length: 3000000" :crlf
                :crlf)
          (loop for start from 0 below 3000000 by 600000
                do (send connection (subseq octets start (+ start 600000)))
                   (collect-garbage-repeatedly))
          (eventually ("the handler to have all") received)
          (collect-garbage-repeatedly)
          (is (null (octet-difference octets received)))
          (is (null (octet-difference octets (response-body (read-response connection))))))))))

(define-server-test (a-client-that-was-refused-and-sends-on-is-given-up :needs :our-engine)
  (dolist (piece (list (test-octets 65536) (test-octets 1)))
    (serving (:max-body-octets 10) (("/" "body"))
      (with-connection (connection)
        (let ((sender (in-background ("a tireless sender")
                        (ignore-errors
                         (send-request connection "/" :headers '(("Content-Length" . "10000000")))
                         (loop (send connection piece))))))
          (eventually ("the connection to be closed")
            (and (= 1 (figure :accepted))
                 (zerop (figure :open))))
          (task-result sender)
          (pass))))))
