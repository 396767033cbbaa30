(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite clack/response-mishaps :in clack
  :description "Responses that come from elsewhere, and whose function, client or writer does not do
what it should.")

(in-suite clack/response-mishaps)

(defun begun-elsewhere (responder)
  "A writer that another thread has got of RESPONDER."
  (elsewhere responder '(200 ())))

(defun write-much-to (writer)
  "Writes more to WRITER than may wait; what ends that, in another thread."
  (elsewhere (lambda ()
               (loop (funcall writer (make-string 100000 :initial-element #\x))))))

;;; Begun elsewhere, and never sent

(define-server-test an-application-that-has-begun-to-write-for-a-function-that-fails-is-told
  (with-later (given) (progn (record given (begun-elsewhere responder))
                             (error "It has failed."))
    (with-connection (connection)
      (is (= 500 (response-status (exchange connection "/"))))
      (is (eq 'handler:client-left (write-much-to (nth-given given))))
      (is (equal "word" (exchange-text connection "/word"))))
    (eventually ("the connection to end") (zerop (server-figure :open)))
    (is (= 2 (server-figure :served)) "Each request counts once.")))

(define-server-test a-writer-over-a-connection-that-is-taken-over-is-told
  (with-later (given) (let ((writer (begun-elsewhere responder))
                            (io (getf environment :clack.io)))
                        (write-to-clack-socket io (octets "mine") nil)
                        (close-clack-socket io)
                        writer)
    (is (equal "mine" (decode (ask-raw (request-octets "/")))))
    (is (eq 'handler:client-left (write-much-to (nth-given given))))
    (eventually ("the connection to end") (zerop (server-figure :open)))
    (is (= 1 (server-figure :served)))))

(define-server-test (an-application-that-begins-to-write-for-a-client-that-is-gone-is-told
                     :needs :parking)
  (with-later (given) responder
    (dolist (end '(disconnect reset))
      (setf (recorder-entries given) '())
      (let ((connection (connect)))
        (send-request connection "/")
        (nth-given given)
        (await-pending)
        (funcall end connection))
      (let ((writer (begun-elsewhere (nth-given given))))
        (is (eq 'handler:client-left (write-much-to writer)))))
    (eventually ("the connections to end") (zerop (server-figure :open)))
    (is (equal "" (clack-log)))))

(defmacro told-of-failure ((connection failure) &body body)
  "Checks that who begins to write over CONNECTION, where that ends with FAILURE, a form, is told;
then evaluates BODY."
  `(with-later (given) responder
     (with-connection (,connection)
       (send-request ,connection "/")
       (nth-given given)
       (await-pending)
       (with-function (handler::begin-written (original written) ,failure)
         (is (eq 'handler:client-left (write-much-to (begun-elsewhere (nth-given given))))))
       ,@body)))

(define-server-test an-application-that-begins-to-write-what-cannot-be-sent-is-told
  (told-of-failure (connection (error 'server:descriptor-broken :stream nil))
    (is-true (closed-by-server-p connection))))

(define-server-test an-application-that-begins-to-write-what-fails-to-begin-is-told
  (told-of-failure (connection (error "It has failed."))
    (is (= 500 (response-status (read-response connection))))
    (is (equal "word" (exchange-text connection "/word")))))

;;; Counted once, however it ends

(defun await-end-of-connections ()
  (eventually ("the connections to end") (zerop (server-figure :open))))

(define-server-test a-response-that-fails-behind-its-head-counts-once
  (with-later (given) responder
    (with-connection (connection)
      (send-request connection "/")
      (with-function (handler::begin-written (original written)
                       (funcall original written)
                       (error "It has failed."))
        (begun-elsewhere (nth-given given))
        (is-true (search (octets "200 OK") (receive-rest connection))))
      (await-end-of-connections)
      (is (= 1 (server-figure :served))))))

(define-server-test (a-response-whose-worker-is-destroyed-as-it-drops-it-counts-once
                     :needs (:parking :deferred-ends))
  (let ((destroyed-p nil))
    (with-function (server:drop-deferred (original server deferred-response)
                     (funcall original server deferred-response)
                     (unless (shiftf destroyed-p t)
                       (destroy-here (bt:current-thread))))
      (with-later (given) responder
        (with-connection (connection)
          (send-request connection "/")
          (nth-given given)
          (reset connection))
        (eventually ("the response to be dropped") destroyed-p)
        (await-end-of-connections)
        (is (= 1 (server-figure :served)))))))

(define-server-test an-application-that-waits-for-a-function-that-waits-for-him-is-let-go
  (with-later (given :reply-timeout 1/4) (write-much-to (begun-elsewhere responder))
    (with-connection (connection)
      (send-request connection "/")
      (is (eq 'handler:client-left (nth-given given)))
      (receive-rest connection))
    (is (equal "word" (ask-text "/word")))))

;;; The function's own writer

(define-server-test an-application-that-writes-within-the-function-is-told-that-the-client-has-left
  (let ((told (make-recorder)))
    (with-later (given) (let ((writer (funcall responder '(200 ()))))
                          (handler-case (loop (funcall writer
                                                       (make-string 100000 :initial-element #\x)))
                            (error (condition)
                              (record told (type-of condition))))
                          (record told (handler-case (funcall writer "more")
                                         (error (condition) (type-of condition))))
                          (record told (funcall writer nil :close t)))
      (let ((connection (connect)))
        (send-request connection "/")
        (next-octet connection)
        (reset connection))
      (eventually ("the function to be told") (= 3 (recorded-count told)))
      (is (equal '(handler:client-left handler:client-left nil) (recorded told)))
      (eventually ("the connection to end") (zerop (server-figure :open)))
      (is (equal "" (clack-log))))))

(define-server-test a-client-that-leaves-is-no-failure-of-the-function
  (with-later (given) (let ((writer (funcall responder '(200 ()))))
                        (record given (write-much-to writer))
                        (funcall writer "more"))
    (let ((connection (connect)))
      (send-request connection "/")
      (next-octet connection)
      (reset connection))
    (is (eq 'handler:client-left (nth-given given)))
    (eventually ("the connection to end") (zerop (server-figure :open)))
    (is (zerop (server-figure :failed)))
    (is (equal "" (clack-log)))))

(defun written-slowly-p (seconds pause)
  "Whether a client that calls PAUSE before it takes some of what three threads write gets it to its
end, where the write timeout is SECONDS."
  (let ((enough-p nil) (written (make-recorder)))
    (with-later (given :write-timeout seconds)
        (let ((writer (funcall responder '(200 ())))
              (piece (make-string 100000 :initial-element #\x)))
          (mapc #'task-result
                (loop repeat 3
                      collect (in-background ("writing")
                                (loop until enough-p do (record written (funcall writer piece))))))
          (funcall writer "end" :close t))
      (unwind-protect
           (with-open-connection (connection (small-connection))
             (send-request connection "/" :headers '(("Connection" . "close")))
             (eventually ("the writers to wait")
               (let ((count (recorded-count written)))
                 (and (plusp count)
                      (not (poll (lambda () (> (recorded-count written) count)) 1/8)))))
             (loop repeat 24            ; twice the time
                   do (funcall pause)
                      (receive-many connection *paced-octets*))
             (setf enough-p t)
             (and (search (octets "end") (receive-rest connection) :from-end t)
                  (eventually ("the function to return") (plusp (recorded-count given)))))
        (setf enough-p t)))))

(define-server-test (a-client-that-is-slow-but-takes-something-is-not-given-up :needs :our-http)
  (is-true (call-at-pace #'written-slowly-p)))

;;; A responder that fails

(defun injecting-response ()
  "A response that cannot be sent."
  (list 200 (list :x-own (format nil "a~%b")) '("never")))

(define-server-test an-application-that-cannot-answer-may-answer-otherwise
  (with-later (given)
      (loop for response in (list (injecting-response) (butlast (injecting-response))
                                  (text-response "otherwise"))
            collect (handler-case (funcall responder response)
                      (error (condition) (type-of condition))))
    (with-connection (connection)
      (loop repeat 2
            do (is (equal "otherwise" (exchange-text connection "/"))))
      (is (equal '(handler:invalid-header handler:invalid-header nil) (nth-given given)))
      (is (equal "word" (exchange-text connection "/word"))))))

(define-server-test an-application-that-has-failed-to-answer-within-the-function-may-do-it-later
  (with-growing-limit (seconds)
    (with-later (given :reply-timeout seconds)
        (progn (ignore-errors (funcall responder (injecting-response)))
               responder)
      (with-connection (connection)
        (is (null (promptly (send-request connection "/")
                            (elsewhere (nth-given given) (text-response "later")))))
        (is (equal "later" (response-text (read-response connection))))
        (is (= 504 (response-status (exchange connection "/"))) "Or never.")
        (is (equal "word" (exchange-text connection "/word")))))))

(define-server-test an-application-that-answers-a-client-that-has-left-is-not-disturbed
  (let ((gate (make-gate "the client to leave")) (told (make-recorder)))
    (with-later (given) (progn (await gate)
                               (record told
                                       (handler-case (funcall (funcall responder '(200 ())) "more")
                                         (error (condition) (type-of condition)))))
      (with-function (server:write-encoded (original io output)
                       (error 'server:descriptor-broken :stream nil))
        (open-gate gate)
        (with-connection (connection)
          (send-request connection "/")
          (is-true (closed-by-server-p connection)))
        (eventually ("the function to return") (plusp (recorded-count given))))
      (is (equal '(handler:client-left) (recorded told)))
      (eventually ("the connection to end") (zerop (server-figure :open)))
      (is (zerop (server-figure :failed)))
      (is (equal "" (clack-log))))))

;;; What cannot be written

(define-server-test what-cannot-be-written-is-told-and-the-rest-is-sent
  (let ((endless (list "endless")))
    (setf (rest endless) endless)
    (with-later (given) (funcall responder '(200 ()))
      (with-connection (connection)
        (send-request connection "/")
        (let ((writer (nth-given given))
              (text (make-array 10 :element-type 'character :fill-pointer 3
                                :initial-contents "abcdefghij"))
              (letters (make-array 3 :element-type 'character :displaced-to "..cde.."
                                   :displaced-index-offset 2))
              (octets (make-array 2 :element-type '(unsigned-byte 8) :displaced-to (octets "..fg..")
                                  :displaced-index-offset 2)))
          (loop for (chunk . arguments) in (list '("abc" :start 2 :end 10) '("abc" :start 4)
                                                 '("abc" :start 2 :end 1)
                                                 '("abc" :start -1) '(42) '(#(1 2 3)) '(list)
                                                 (list endless)
                                                 (list (copy-seq text) :end 4)
                                                 (list octets :end 3 :close t))
                do (let ((told (apply #'elsewhere writer chunk arguments)))
                     (is (and told (subtypep told 'error)) "~S" arguments)))
          (funcall writer text :start 1)
          (funcall writer letters)
          (funcall writer octets :start 1)
          (funcall writer octets :start 2)
          (funcall writer "end" :start 3 :close t))
        (is (equal "bccdeg" (response-text (read-response connection))))
        (is (equal "word" (exchange-text connection "/word")))))))

(define-server-test of-many-who-answer-at-once-one-is-heard
  (with-later (given) responder
    (with-connection (connection)
      (dotimes (number 20)
        (send-request connection "/")
        (let* ((responder (nth-given given number))
               (gate (make-gate "all to be ready"))
               (tasks (loop for i below 6
                            collect (let ((i i))
                                      (in-background ("answering")
                                        (await gate)
                                        (handler-case (progn (funcall responder
                                                                      (text-response
                                                                       (princ-to-string i)))
                                                             i)
                                          (handler:reply-already-sent () nil)))))))
          (open-gate gate)
          (let ((heard (remove nil (mapcar #'task-result tasks))))
            (is (= 1 (length heard)))
            (is (equal (princ-to-string (first heard))
                       (response-text (read-response connection))))))))))

(define-server-test a-writer-within-the-function-whose-head-could-not-be-sent-is-told
  (with-function (handler::begin-written (original written)
                   (declare (ignore original written))
                   (error 'server:descriptor-broken :stream nil))
    (with-later (given) (let ((writer (funcall responder '(200 ()))))
                          (list (handler-case (funcall writer "text")
                                  (handler:client-left () :left))
                                writer))
      (is (zerop (length (ask-raw (request-octets "/")))))
      (destructuring-bind (told writer) (nth-given given)
        (is (eq :left told))
        (is (eq 'handler:client-left (write-much-to writer)))))))
