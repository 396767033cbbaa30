(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite clack/later-responses :in clack
  :description "Responses that are given when their functions have returned, by any thread.")

(in-suite clack/later-responses)

(defmacro with-later ((given &rest arguments) form &body body)
  "Evaluates BODY while a server, made with ARGUMENTS, answers /word by \"word\", and for all else
evaluates FORM with RESPONDER and ENVIRONMENT bound in a function that the application returns;
values of FORM are recorded in GIVEN."
  `(let ((,given (make-recorder)))
     (with-clack (environment (if (equal "/word" (getf environment :path-info))
                                  (text-response "word")
                                  (lambda (responder)
                                    (declare (ignorable responder))
                                    (record ,given ,form)))
                              ,@arguments)
       ,@body)))

(defun nth-given (given &optional (number 0))
  "What was recorded in GIVEN under NUMBER, when it is."
  (eventually ("a response to be left to others") (> (recorded-count given) number))
  (nth number (recorded given)))

(defun elsewhere (function &rest arguments)
  "What FUNCTION returns in another thread; or the name of the condition that it has signalled."
  (task-result (in-background ("elsewhere")
                 (handler-case (apply function arguments)
                   (error (condition) (type-of condition))))))

(defun server-figure (name)
  (getf (handler:stats *server*) name))

(defun await-pending (&optional (count 1))
  "Waits until COUNT responses are to come, and nobody else has to do with them."
  (eventually ("responses to wait") (= count (server-figure (if *parking-p* :deferred :busy)))))

;;; Whole responses

(define-server-test any-thread-answers-later
  (with-later (given) responder
    (with-connection (connection)
      (loop for (body text) in (list (list '("la" nil "ter") "later")
                                     (list (octets "octets") "octets")
                                     (list nil "") (list '() ""))
            for number from 0
            do (send-request connection "/")
               (let ((responder (nth-given given number)))
                 (when (evenp number)
                   (await-pending))
                 (is (null (elsewhere responder
                                      (list 201 '(:content-type "text/plain" :x-own "1") body)))))
               (let ((answer (read-response connection)))
                 (is (= 201 (response-status answer)))
                 (is (equal "1" (response-header answer "x-own")))
                 (is (equal text (response-text answer))))
               (is (equal "word" (exchange-text connection "/word"))
                   "The connection is used again.")))))

(define-server-test an-application-that-answers-a-client-that-ends-amid-its-content-is-told-nothing
  (with-later (given :max-early-octets 0)
      (handler-case (funcall responder '(200 () ("nobody's")))
        (error (condition) condition))
    (with-connection (connection)
      (send connection "POST / HTTP/1.1" :crlf "Host: a" :crlf "Content-Length: 9"
            :crlf :crlf "half")
      (end-sending connection)
      (is-true (closed-by-server-p connection)))
    (is (null (nth-given given)))
    (is (equal "" (clack-log)))))

(define-server-test a-file-is-sent-later
  (with-directory (directory)
    (let ((file (write-file directory "file.txt" "in the file")))
      (with-later (given) responder
        (with-connection (connection)
          (send-request connection "/")
          (elsewhere (nth-given given) (list 200 '() (pathname file)))
          (is (equal "in the file" (response-text (read-response connection)))))))))

(define-server-test (a-pending-response-holds-no-thread :needs :parking)
  (with-later (given :worker-num 1 :max-thread-count 1) responder
    (with-connections (connections 20)
      (dolist (connection connections)
        (send-request connection "/"))
      (await-pending 20)
      (is (equal "word" (ask-text "/word")))
      (dolist (responder (recorded given))
        (funcall responder (text-response "later")))
      (dolist (connection connections)
        (is (equal "later" (response-text (read-response connection))))))))

(define-server-test an-application-that-answers-before-the-function-has-returned-is-heard
  (with-later (given) (elsewhere responder (text-response "early"))
    (with-connection (connection)
      (loop repeat 2 do (is (equal "early" (exchange-text connection "/"))))
      (is (equal '(nil nil) (recorded given))))))

(define-server-test a-response-is-given-once-whoever-gives-it
  (with-later (given) responder
    (with-connection (connection)
      (send-request connection "/")
      (let ((responder (nth-given given)))
        (signals handler:unfit-response (funcall responder '(200 () 42)))
        (is (null (funcall responder (text-response "once"))))
        (signals handler:reply-already-sent (funcall responder (text-response "twice")))
        (is (eq 'handler:reply-already-sent (elsewhere responder '(200 ()))))
        (is (equal "once" (response-text (read-response connection))))
        (signals handler:reply-already-sent (funcall responder (text-response "thrice")))))))

(define-server-test (a-responder-that-a-program-keeps-keeps-nothing-of-the-request :needs :parking)
  (dolist (end '(:answered :left :late))
    (let ((responders (make-recorder)) (cookies (make-recorder)))
      (with-clack (environment (let ((cookie (gethash "cookie" (getf environment :headers))))
                                 (record cookies
                                         (uiop:symbol-call '#:sb-ext '#:make-weak-pointer cookie))
                                 (lambda (responder) (record responders responder)))
                               :reply-timeout (if (eq :late end) 1/10 60))
        (with-connections (connections 30)
          (dolist (connection connections)
            (send-request connection "/"
                          :headers `(("Cookie" .
                                      ,(format nil "a=~A"
                                               (make-string 3998 :initial-element #\x))))))
          (eventually ("the functions to have run") (= 30 (recorded-count responders)))
          (ecase end
            (:answered (dolist (responder (recorded responders))
                         (funcall responder (text-response "later")))
             (dolist (connection connections)
               (is (string= "later" (response-text (read-response connection))))))
            (:late (dolist (connection connections)
                     (is (= 504 (response-status (read-response connection))))))
            (:left (await-pending 30)
             (mapc #'reset connections)))
          (await-forgotten cookies)
          (eventually ("the responses to be over") (= 30 (server-figure :served)))
          (dolist (responder (recorded responders))
            (is (equal (if (eq :answered end) 'handler:reply-already-sent 'handler:client-left)
                       (elsewhere (lambda ()
                                    (funcall (funcall responder '(200 ())) "too late")))))))))))

(define-server-test (a-responder-that-a-program-keeps-keeps-no-content :needs :parking)
  (dolist (end '(:within :answered :written :left :late))
    (let ((given (make-recorder)) (bodies (make-recorder)))
      (with-clack (environment (let ((body (getf environment :raw-body)))
                                 (record bodies
                                         (uiop:symbol-call '#:sb-ext '#:make-weak-pointer body))
                                 (lambda (responder)
                                   (when (eq :within end)
                                     (funcall responder (text-response "later")))
                                   (record given responder)))
                               :reply-timeout (if (eq :late end) 1/10 60))
        (with-connections (connections 30)
          (dolist (connection connections)
            (send-request connection "/"
                          :method :post :content (make-string 20000 :initial-element #\x)))
          (eventually ("the functions to have run") (= 30 (recorded-count given)))
          (ecase end
            (:within)
            (:answered (dolist (responder (recorded given))
                         (funcall responder (text-response "later"))))
            (:written (dolist (responder (recorded given))
                        (record given (funcall responder '(200 ())))
                        (funcall (first (last (recorded given))) "later" :close t)))
            (:late)
            (:left (await-pending 30)
             (mapc #'reset connections)))
          (unless (eq :left end)
            (dolist (connection connections)
              (is (= (if (eq :late end) 504 200) (response-status (read-response connection))))))
          (await-forgotten bodies)
          (eventually ("the responses to be over") (= 30 (server-figure :served)))
          (is (<= 30 (recorded-count given)) "The program has kept them."))))))

(define-server-test those-behind-a-later-response-wait-and-are-answered-in-order
  (with-later (given) responder
    (with-connection (connection)
      (send connection (request-octets "/") (request-octets "/word") (request-octets "/")
            (request-octets "/word"))
      (nth-given given)
      (await-pending)
      (is (not (readable-p connection 1/20)))
      (is (= 1 (recorded-count given)))
      (dolist (number '(0 1))
        (elsewhere (nth-given given number) (text-response (princ-to-string number)))
        (is (equal (princ-to-string number) (response-text (read-response connection))))
        (is (equal "word" (response-text (read-response connection))))))))

(define-server-test clients-of-all-kinds-get-later-responses
  (with-later (given) (let ((answer (text-response "later")))
                        (in-background ("answering") (funcall responder answer)))
    (with-connection (connection)
      (loop repeat 2
            do (let ((head (exchange connection "/" :method :head)))
                 (is (equal "5" (response-header head "content-length")))))
      (let ((last (exchange connection "/" :headers '(("Connection" . "close")))))
        (is (string-equal "close" (response-header last "connection")))
        (is (equal "later" (response-text last))))
      (is-true (closed-by-server-p connection)))
    (is (cl-ppcre:scan "later$" (decode (ask-raw (request-octets "/" :version "HTTP/1.0")))))
    (mapc #'task-result (recorded given))))

(define-server-test what-cannot-be-sent-later-is-told-and-answered-500
  (with-later (given) responder
    (with-connection (connection)
      (loop for response in (list '(200 () (42)) (list 200 (list :x-own (format nil "a~%b")) '("x"))
                                  (list 200 (list :x-own (format nil "a~%b"))))
            for number from 0
            do (send-request connection "/")
               (elsewhere (nth-given given number) response)
               (is (= 500 (response-status (read-response connection))))
               (eventually ("a line of the log") (plusp (length (clack-log)))))
      (is (equal "word" (exchange-text connection "/word"))))))

;;; Nobody answers

(define-server-test a-response-that-everybody-has-forgotten-is-504-when-its-time-is-over
  (with-later (given :reply-timeout 1/10) nil
    (with-connection (connection)
      (loop repeat 2
            do (is (= 504 (response-status (exchange connection "/"))))
               (is (equal "word" (exchange-text connection "/word"))
                   "The connection is used again."))
      (is (= 2 (getf (server-figure :expired-by) :deferred)) "Each counts once."))))

(define-server-test a-client-that-is-not-answered-in-time-gets-504
  (with-later (given :reply-timeout 1/10) responder
    (with-connection (connection)
      (dolist (number '(0 1))
        (is (= 504 (response-status (exchange connection "/"))))
        (is (null (funcall (nth-given given number) (text-response "late"))))
        (signals handler:reply-already-sent
                 (funcall (nth-given given number) (text-response "later"))))
      (is (= 504 (response-status (exchange connection "/"))))
      (let ((writer (funcall (nth-given given 2) '(200 ()))))
        (signals handler:client-left (funcall writer "late")))
      (is (equal "word" (exchange-text connection "/word"))))))

(define-server-test without-a-timeout-a-response-may-take-any-time
  (with-later (given :reply-timeout nil) responder
    (with-connection (connection)
      (send-request connection "/")
      (nth-given given)
      (is (not (readable-p connection 1/2)))
      (funcall (nth-given given) (text-response "at last"))
      (is (equal "at last" (response-text (read-response connection)))))))

(define-server-test an-application-that-fails-without-an-answer-is-answered-500
  (with-later (given) (progn (record given responder)
                             (error "It has failed."))
    (with-connection (connection)
      (is (= 500 (response-status (exchange connection "/"))))
      (is-true (await-log "It has failed."))
      (is (null (funcall (nth-given given) (text-response "late"))))
      (is (equal "word" (exchange-text connection "/word"))))))

(define-server-test a-client-that-leaves-harms-nobody
  (with-later (given) responder
    (with-connection (connection)
      (send-request connection "/")
      (nth-given given)
      (await-pending))
    (is (null (elsewhere (nth-given given) (text-response "x"))))
    (eventually ("the connection to end") (zerop (server-figure :open)))
    (is (equal "word" (ask-text "/word")))
    (is (zerop (server-figure :failed)))
    (is (equal "" (clack-log)))))

(define-server-test a-soft-stop-waits-for-responses
  (with-later (given) responder
    (with-connection (connection)
      (send-request connection "/")
      (let ((responder (nth-given given)))
        (await-pending)
        (let ((stop (in-background ("stopping") (handler:stop *server* :soft t))))
          (eventually ("the stop to begin")
            (engine:winding-down-p (server:application-engine *server*)))
          (is (null (poll (lambda () (task-done-p stop)) 3/2)))
          (elsewhere responder (text-response "in time"))
          (let ((answer (read-response connection)))
            (is (equal "in time" (response-text answer)))
            (is (string-equal "close" (response-header answer "connection"))))
          (is-true (closed-by-server-p connection))
          (is (equal (list *server* '()) (multiple-value-list (task-result stop)))))))))

(define-server-test a-stop-gives-up-responses-in-time
  (dolist (arguments '(() (:soft t :timeout 1/2)))
    (with-later (given) responder
      (with-connection (connection)
        (send-request connection "/")
        (let ((responder (nth-given given)))
          (await-pending)
          (when *parking-p*
            (eventually ("no worker to have to do with it") (zerop (server-figure :busy))))
          (multiple-value-bind (server left) (apply #'handler:stop *server* arguments)
            (is (eq *server* server))
            ;; Without parking, a thread has the response, and may end before the list is made.
            (when (and arguments *parking-p*)
              (is (equal '(:deferred) (states-left left))
                  "The caller is told of what it has waited for in vain.")))
          (is-true (closed-by-server-p connection))
          (is (null (funcall responder (text-response "late")))))))))

;;; The content of the request

(define-server-test content-can-be-read-later-and-anywhere
  (dolist (count '(5 100000 1000000))
    (let ((content (test-octets count)))
      (with-globals ((handler:*raw-body-memory* 50000))
        (with-later (given) (list responder (getf environment :raw-body))
          (with-connection (connection)
            (send-in-pieces connection 300000 (request-octets "/" :method :post :content content))
            ;; the function may not have returned
            (destructuring-bind (responder body) (nth-given given)
              (let ((seen (elsewhere #'read-octets-of body (1+ count))))
                (is (equalp content seen))
                (is-true (elsewhere #'file-position body 0))
                (is (equalp (subseq content 0 3) (elsewhere #'read-octets-of body 3)))
                (funcall responder (list 200 '() seen))
                (is (equalp content (response-body (read-response connection))))
                (is (equal "word" (exchange-text connection "/word")))
                ;; What was in a file is gone; whoever asks is told, at worst.
                (file-position body 0)
                (let ((late (elsewhere #'read-octets-of body 3)))
                  (is (or (eq 'simple-error late) (equalp (subseq content 0 3) late))))))))))))

(define-server-test content-can-be-read-elsewhere-while-the-function-waits
  (with-globals ((handler:*raw-body-memory* 50000))
    (with-later (given)
        (funcall responder (list 200 '() (elsewhere #'read-octets-of (getf environment :raw-body)
                                                    1000000)))
      (let ((content (test-octets 300000)))
        (with-connection (connection)
          (loop repeat 2
                do (send-in-pieces connection 100000
                                   (request-octets "/" :method :post :content content))
                   (is (equalp content (response-body (read-response connection))))))))))

(define-server-test content-that-is-refused-is-answered-before-anybody-waits
  (with-later (given :max-body-octets 10) responder
    (with-connection (connection)
      (is (= 413 (response-status (exchange connection "/"
                                            :method :post :chunks '("0123456789" "x"))))))))

(define-server-test (a-later-response-takes-no-more-content-than-a-whole-one :needs :our-http)
  ;; A client that sends for ever would fill the disk, and hold its worker.
  (dolist (request (list (list "Transfer-Encoding: chunked" :crlf :crlf "30D40"
                               :crlf (test-octets 200000))
                         (list "Content-Length: 1000000" :crlf :crlf "some")))
    (with-globals ((server:*unasked-limit* 50000) (server:*unread-limit* 1000))
      (with-later (given :max-early-octets 0) (list responder (getf environment :raw-body))
        (with-connection (connection)
          (apply #'send connection "POST / HTTP/1.1" :crlf "Host: localhost" :crlf request)
          (destructuring-bind (responder body) (nth-given given)
            (await-pending)
            (is (eq 'handler:content-left (elsewhere #'read-octets-of body 1000000)))
            (elsewhere responder (text-response "later"))
            (is (equal "later" (response-text (read-response connection))))
            (is-true (closed-by-server-p connection))))))))

(define-server-test (an-application-that-has-lost-octets-of-a-body-may-answer-later
                     :needs :calls-by-name)
  (let ((left-p nil))
    (with-function (handler::keep-taken (original body start end)
                     (unless (shiftf left-p t)
                       (throw 'left nil))
                     (funcall original body start end))
      (with-later (given :max-early-octets 0) (progn (catch 'left
                                                       (read-byte (getf environment :raw-body)))
                                                     (list responder (getf environment :raw-body)))
        (with-connection (connection)
          (send-request connection "/" :method :post :content (test-octets 200000))
          (destructuring-bind (responder body) (nth-given given)
            (await-pending)
            (is (eq 'handler:content-left (elsewhere #'read-octets-of body 10)) "There was more.")
            (elsewhere responder (text-response "later")))
          (is (equal "later" (response-text (read-response connection))))
          (is-true left-p)
          (is (equal "word" (exchange-text connection "/word"))))))))

(define-server-test content-that-nobody-has-taken-is-not-taken-for-its-end
  ;; Held back by a client that is not asked for it before the response begins, or is over.
  (dolist (framing '("Content-Length: 20" "Transfer-Encoding: chunked"))
    (with-later (given) (list (funcall responder '(200 ())) (getf environment :raw-body))
      (with-connection (connection)
        (send connection "POST / HTTP/1.1" :crlf "Host: localhost" :crlf framing
              :crlf "Expect: 100-continue" :crlf :crlf)
        (destructuring-bind (writer body) (nth-given given)
          (await-pending)               ; or the function would still take the content
          (elsewhere writer "begun")
          (read-head connection)
          (is (eq 'handler:content-left (elsewhere #'read-octets-of body 10)) "~A" framing)
          (elsewhere writer "" :close t))))
    (let ((bodies (make-recorder)))
      (with-clack (environment (progn (record bodies (getf environment :raw-body))
                                      (text-response "word")))
        (with-connection (connection)
          (send connection "POST / HTTP/1.1" :crlf "Host: localhost" :crlf framing
                :crlf "Expect: 100-continue" :crlf :crlf)
          (is (equal "word" (response-text (read-response connection))))
          (is (eq 'handler:content-left (elsewhere #'read-octets-of (nth-given bodies) 10)) "~A"
              framing))))))
