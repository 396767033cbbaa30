(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite clack/raw-bodies :in clack
  :description "The content of a request as a stream.")

(in-suite clack/raw-bodies)

(defun read-octets-of (stream count)
  "Up to COUNT octets of STREAM."
  (let* ((octets (make-array count :element-type '(unsigned-byte 8)))
         (end (read-sequence octets stream)))
    (subseq octets 0 end)))

(defmacro with-raw-body ((body &rest request) form &body checks)
  "Evaluates CHECKS with VALUE bound to that of FORM, which an application evaluates with BODY, the
content of a REQUEST that is sent in pieces."
  `(let ((value nil) (octets (request-octets "/" :method :post ,@request)))
     (with-clack (environment (let ((,body (getf environment :raw-body)))
                                (setf value ,form)
                                (text-response "read")))
       (with-connection (connection)
         (send-in-pieces connection (max 1 (ceiling (length octets) 7)) octets)
         (is (= 200 (response-status (read-response connection))))
         ;; The next request is looked for where it begins.
         (is (= 200 (response-status (exchange connection "/" :method :post :content "last"))))))
     ,@checks))

(defmacro once (form)
  "The value of FORM the first time that it is evaluated for VALUE; that value later."
  `(or value ,form))

(define-server-test octets-are-read-as-they-came
  (let ((content (test-octets 3000)))
    (with-raw-body (body :content content) (once (read-octets-of body 4000))
      (is (equalp content value)))))

(define-server-test chunks-are-read-to-their-end
  (with-raw-body (body :chunks '("abc" "de")) (once (read-octets-of body 10))
    (is (equalp (octets "abcde") value))))

(define-server-test a-body-is-read-again-from-any-position
  (with-raw-body (body :content "0123456789")
      (once (list (decode (read-octets-of body 4)) (file-position body)
                  (file-position body 0) (decode (read-octets-of body 20))
                  (file-position body 8) (decode (read-octets-of body 20))
                  (read-byte body nil :eof)))
    (is (equal '("0123" 4 t "0123456789" t "89" :eof) value))))

(define-server-test a-body-of-chunks-is-read-again
  (with-raw-body (body :chunks '("abc" "def"))
      (once (list (read-byte body) (file-position body 0) (decode (read-octets-of body 20))
                  (file-position body 3) (read-byte body)))
    (is (equal '(97 t "abcdef" t 100) value))))

(define-server-test there-is-no-position-beyond-the-end
  (with-raw-body (body :content "ab") (once (list (file-position body 3) (read-byte body)))
    (is (equal '(nil 97) value))))

(define-server-test a-body-gives-characters-in-utf-8
  (let ((text (format nil "a~C~C~%z" (code-char #xE9) (code-char #x3042))))
    (with-raw-body (body :content text)
        (once (let ((string (make-string (length text))))
                (list (read-sequence string body) string
                      (file-position body 0)
                      (read-char body) (progn (unread-char #\a body) (read-line body))
                      (peek-char nil body) (read-line body) (read-char body nil :eof))))
      (is (equal (list 5 text t #\a (subseq text 0 3) #\z "z" :eof) value)))))

(define-server-test a-character-may-come-in-two-chunks
  (with-raw-body (body :chunks (list (octets "a" #(#xE3)) #(#x81 #x82) #(#xE3)))
      (once (list (read-char body) (char-code (read-char body)) (char-code (read-char body))
                  (read-char body nil :eof)))
    (is (equal '(#\a #x3042 #xFFFD :eof) value))))

(define-server-test a-request-without-content-has-an-empty-body
  (with-clack (environment (let ((body (getf environment :raw-body)))
                             (text-response (prin1-to-string
                                             (list (read-byte body nil :eof)
                                                   (read-char body nil :eof)
                                                   (file-position body) (file-position body 0)
                                                   (close body) (read-octets-of body 3))))))
    (loop repeat 2 do (is (equal "(:EOF :EOF 0 T T #())" (ask-text "/"))))))

(defun check-large-body (content &rest request)
  "Checks that an application gets CONTENT of REQUEST, which is too large to be kept in memory, as
often as it likes."
  (let ((value nil))
    (with-clack (environment
                 (let ((body (getf environment :raw-body)))
                   (unless value
                     (setf value (list (read-octets-of body 200001)
                                       (file-position body 99990) (read-octets-of body 20)
                                       (file-position body 0) (read-octets-of body 200001)
                                       (file-position body 10) (file-position body 200000)
                                       (read-byte body nil :eof)
                                       (and (handler::raw-body-file body) :file))))
                   (text-response "read")))
      (with-connection (connection)
        (is (= 200 (response-status (apply #'exchange connection "/" :method :post request))))
        (is (= 200 (response-status (exchange connection "/" :method :post :content "last"))))))
    (is (equalp (list content t (subseq content 99990 100010) t content t t :eof :file) value))))

(define-server-test a-character-may-be-at-any-place-of-a-large-body
  (if (platform:readiness-supported-p)
      (with-globals ((handler:*raw-body-memory* 5000))
        (let ((text (make-string 30000 :initial-element (code-char #x3042))))
          (with-raw-body (body :content text)
              (once (let ((string (make-string 30001)))
                      (list (read-sequence string body) (string= text string :end2 30000))))
            (is (equal '(30000 t) value)))))
      (skip "On this Lisp there are no temporary files.")))

(defmacro check-blocks (content size &rest request)
  "Checks that an application gets CONTENT, octets in blocks of SIZE, of REQUEST from any position
on, and not from a file."
  `(let ((count (length ,content)))
     (with-raw-body (body ,@request)
         (once (list (read-octets-of body (1+ count))
                     (file-position body (- count 10)) (read-octets-of body 20)
                     (file-position body 0) (read-octets-of body count) (read-byte body nil :eof)
                     (file-position body (floor ,size 2)) (read-octets-of body ,size)
                     (handler::raw-body-file body)))
       (is (equalp (list ,content t (subseq ,content (- count 10)) t ,content :eof
                         t (subseq ,content (floor ,size 2) (min count (+ ,size (floor ,size 2))))
                         nil)
                   value)
           "~D octets" count))))

(define-server-test a-body-of-several-blocks-is-read-again
  (let ((size handler::+block-size+))
    (dolist (count (list (1- size) size (1+ size) (+ 1000 (* 3 size))))
      (let ((content (test-octets count)))
        (check-blocks content size :content content)
        (check-blocks content size :chunks (list (subseq content 0 1000) (subseq content 1000)))))))

(define-server-test a-character-may-be-at-any-place-of-several-blocks
  (let ((text (make-string 100000 :initial-element (code-char #x3042))))
    (with-raw-body (body :content text)
        (once (let ((string (make-string 100001)))
                (list (read-sequence string body) (string= text string :end2 100000))))
      (is (equal '(100000 t) value)))))

(define-server-test a-body-whose-request-is-over-has-nothing-of-later-ones
  (let ((bodies (make-recorder)) (octets (make-array 10 :element-type '(unsigned-byte 8))))
    (with-clack (environment (let ((body (getf environment :raw-body)))
                               (record bodies body)
                               (text-response (princ-to-string (length (read-octets-of body
                                                                                       500000)))))
                             :max-early-octets 0)
      (loop for value below 3
            do (is (equal "400000" (ask-text "/" :method :post
                                                 :content
                                             (make-array 400000 :element-type '(unsigned-byte 8)
                                                                :initial-element value))))))
    (dolist (body (recorded bodies))
      (is (eq :gone (handler-case (progn (file-position body 0)
                                         (read-sequence octets body))
                      (error () :gone)))))))

(define-server-test a-large-body-goes-to-a-file-and-is-read-again
  (if (platform:readiness-supported-p)
      (with-globals ((handler:*raw-body-memory* 5000))
        (let ((content (test-octets 200000)))
          (check-large-body content :content content)
          (check-large-body content
                            :chunks (list (subseq content 0 70000) (subseq content 70000)))))
      (skip "On this Lisp there are no temporary files.")))

(define-server-test (what-could-not-be-kept-cannot-be-read-again :needs (:calls-by-name :our-http))
  (unless (platform:readiness-supported-p)
    (with-globals ((handler:*raw-body-memory* 5000))
      (with-clack (environment (let ((body (getf environment :raw-body)))
                                 (text-response (princ-to-string (length (read-octets-of body
                                                                                         100001)))
                                                (handler-case (progn (file-position body 0)
                                                                     (read-byte body))
                                                  (error () "lost")))))
        (is (equal "100000lost" (ask-text "/" :method :post :content (test-octets 100000)))))))
  (pass))

(define-server-test what-an-application-does-not-read-is-no-request
  (with-clack (environment (text-response (getf environment :path-info)))
    (with-connection (connection)
      (dolist (content (list (octets (request-octets "/inner")) (test-octets 100000)))
        (is (equal "/outer" (exchange-text connection "/outer" :method :post :content content))))
      (is (equal "/next" (exchange-text connection "/next")))
      (is (equal "/chunks" (exchange-text connection "/chunks" :method :post
                                                               :chunks
                                          (list (request-octets "/inner")))))
      (is (equal "/next" (exchange-text connection "/next"))))))

(define-server-test a-client-that-waits-to-send-content-is-told-when-it-is-read
  (with-clack (environment (text-response (decode (read-octets-of (getf environment :raw-body)
                                                                  10))))
    (with-connection (connection)
      (send connection "POST / HTTP/1.1" :crlf "Host: a" :crlf "Content-Length: 4" :crlf
            "Expect: 100-continue" :crlf :crlf)
      (is (= 100 (response-status (read-response connection))))
      (send connection "late")
      (is (equal "late" (response-text (read-response connection)))))))

(define-server-test content-that-is-not-waited-for-is-taken
  (with-clack (environment (text-response (decode (read-octets-of (getf environment :raw-body)
                                                                  10))))
    (with-connection (connection)
      (send connection "POST / HTTP/1.1" :crlf "Host: a" :crlf "Content-Length: 5" :crlf
            "Expect: 100-continue" :crlf :crlf "early")
      (let ((response (read-response connection)))
        (when (= 100 (response-status response))
          (setf response (read-response connection)))
        (is (equal "early" (response-text response)))))))

(define-server-test an-application-may-answer-before-all-content-has-come
  (with-clack (environment (lambda (responder)
                             (let ((writer (funcall responder '(200 ()))))
                               (funcall writer
                                        (octets (vector (read-byte (getf environment :raw-body)))))
                               (funcall writer
                                        (octets (vector (read-byte (getf environment :raw-body))))
                                        :close t)))
                           :max-early-octets 0)
    (with-connection (connection)
      (send connection "POST / HTTP/1.1" :crlf "Host: a" :crlf "Content-Length: 2" :crlf :crlf "a")
      (read-head connection)
      (is (equal "a" (chunk-text connection)))
      (send connection "b")
      (is (equal "b" (chunk-text connection))))))

(define-server-test a-client-that-waits-to-send-content-that-nobody-reads-is-answered
  (with-clack (environment (text-response "No, thanks."))
    (let ((answer (ask-raw "POST / HTTP/1.1" :crlf "Host: a" :crlf "Content-Length: 4" :crlf
                           "Expect: 100-continue" :crlf :crlf)))
      (is (search "No, thanks." (decode answer)))
      (is (not (search "100 Continue" (decode answer)))))))

(define-server-test content-beyond-the-limit-is-refused
  (with-clack (environment (progn (read-octets-of (getf environment :raw-body) 100)
                                  (text-response "read"))
                           :max-body-octets 10)
    (is (= 413 (response-status (ask "/" :method :post :content "12345678901"))))
    (with-connection (connection)
      (let ((response (exchange connection "/" :method :post :chunks '("123456" "78901"))))
        (is (= 413 (response-status response)))
        (is (equalp "close" (response-header response "connection"))))
      (is-true (closed-by-server-p connection)))))

(define-server-test a-client-that-leaves-amid-content-is-no-failure-of-the-application
  (let ((begun (make-recorder)) (cut (make-recorder)))
    (with-function (server:note-event (original exchange event)
                     (when (eq :reply-cut event)
                       (record cut event))
                     (funcall original exchange event))
      (with-clack (environment (let ((body (getf environment :raw-body)))
                                 (read-byte body)
                                 (record begun t)
                                 (text-response (decode (read-octets-of body 10)))))
        (loop for leave in '(disconnect reset)
              for count from 1
              do (let ((connection (connect)))
                   (send connection "POST / HTTP/1.1" :crlf "Host: a" :crlf "Content-Length: 9"
                         :crlf :crlf "half")
                   (eventually ("the application to read") (= count (recorded-count begun)))
                   (funcall leave connection))
                 (eventually ("the application to be left") (= count (recorded-count cut))))
        (is (equal "ll" (ask-text "/" :method :post :content "all")))
        (is (equal "" (clack-log)))))))

(define-server-test
    (content-of-an-application-that-ends-its-thread-is-given-back :needs :deferred-ends)
  (let ((reserved (engine:client-memory-reserved))
        (read (make-gate "the content to be read")))
    (with-clack (environment (progn (read-octets-of (getf environment :raw-body) 300000)
                                    (open-gate read)
                                    (kill-this-thread))
                             :max-early-octets 0)
      (is (zerop (length (ask-raw (request-octets "/"
                                                  :method :post :content (test-octets 300000))))))
      (await read)
      (is-true (eventually ("the memory to be given back")
                 (= reserved (engine:client-memory-reserved)))))))

(define-server-test (a-thread-that-is-destroyed-while-it-ends-its-turn-still-ends-it
                     :needs (:deferred-ends :calls-by-name))
  (let ((first-p t))
    (with-function (handler::end-reading-turn (original body)
                     (when (shiftf first-p nil)
                       (destroy-here (bt:current-thread)))
                     (funcall original body))
      (with-clack (environment (let ((body (getf environment :raw-body)))
                                 (platform:join-thread (bt:make-thread (lambda () (read-byte body)))
                                                       10)
                                 (text-response "read")))
        (with-connection (connection)
          (is (= 200
                 (response-status (exchange connection "/" :method :post :chunks '("abc" "de")))))
          (is (null first-p)))))))

(define-server-test an-application-that-handles-an-error-of-reading-may-read-again-and-answer
  (dolist (answer '(nil t))
    (let ((read (make-recorder)))
      (with-clack (environment (let ((body (getf environment :raw-body)))
                                 (flet ((read-all (responder)
                                          (handler-bind ((error (lambda (condition)
                                                                  (declare (ignore condition))
                                                                  (file-position body 0)
                                                                  (record read (read-byte body))
                                                                  (when responder
                                                                    (funcall responder
                                                                             (text-response
                                                                              "failed"))))))
                                            (loop while (read-byte body nil nil)))))
                                   (if answer
                                       (lambda (responder) (read-all responder))
                                       (read-all nil)))))
        (with-connection (connection)
          (send connection "POST / HTTP/1.1" :crlf "Host: a" :crlf "Transfer-Encoding: chunked"
                :crlf :crlf "2" :crlf "ab" :crlf)
          (send connection "zzz" :crlf :crlf)
          (is (= (if answer 200 400) (response-status (read-response connection)))))
        (is (equal (list (char-code #\a)) (recorded read)))
        (eventually ("the worker to be free") (zerop (figure :busy)))))))

(define-server-test (what-interrupts-reading-and-is-no-error-may-be-continued :needs :calls-by-name)
  (let ((read nil))
    (with-clack (environment (let ((body (getf environment :raw-body)) (first-p t))
                               (with-function (handler::prepare-window (original body count)
                                                (when (shiftf first-p nil)
                                                  (restart-case (signal 'serious-condition)
                                                    (read-on () nil)))
                                                (funcall original body count))
                                 (handler-bind ((serious-condition (lambda (condition)
                                                                     (declare (ignore condition))
                                                                     (invoke-restart 'read-on))))
                                   (setf read (decode (read-octets-of body 10)))))
                               (text-response "read")))
      (with-connection (connection)
        (is (= 200 (response-status (exchange connection "/" :method :post :chunks '("abc" "de")))))
        (is (equal "abcde" read))))))

(define-server-test (a-thread-that-reads-amid-its-own-reading-does-not-wait-for-itself
                     :needs :calls-by-name)
  (with-clack (environment (let ((body (getf environment :raw-body)))
                             (with-function (handler::prepare-window (original body count)
                                              (read-byte body)
                                              (funcall original body count))
                               (text-response (decode (read-octets-of body 10))))))
    (with-connection (connection)
      (is (= 500 (response-status (exchange connection "/" :method :post :chunks '("abc" "de"))))))
    (is-true (await-log "is being read by this thread"))))

(define-server-test (a-thread-that-reads-while-another-thread-does-waits-for-its-turn
                     :needs :calls-by-name)
  (let ((reading (make-gate "the first to read")) (go-on (make-gate "leave to go on"))
        (order (make-recorder)))
    (with-function (handler::prepare-window (original body count)
                     (unless (open-p reading)
                       (open-gate reading)
                       (await go-on)
                       (record order :first))
                     (funcall original body count))
      (with-clack (environment (let* ((body (getf environment :raw-body))
                                      (first (in-background ("the first") (read-byte body)))
                                      (second (in-background ("the second")
                                                (await reading)
                                                (read-byte body)
                                                (record order :second))))
                                 (await reading)
                                 (poll (lambda () (plusp (recorded-count order))) 1/10)
                                 (open-gate go-on)
                                 (task-result first)
                                 (task-result second)
                                 (text-response "read")))
        (is (equal "read" (ask-text "/" :method :post :chunks '("abc"))))))
    (is (equal '(:first :second) (recorded order)))))

;; As by a time limit of the application's own.
(define-server-test (an-application-that-reads-on-where-it-left-is-told-so-and-its-client-gets-500
                     :needs :our-http)
  (dolist (framing '("Content-Length: 2" "Transfer-Encoding: chunked"))
    (let ((first-p t))
      (with-function (server:invite-content (original content)
                       (when (shiftf first-p nil)
                         (throw 'left nil))
                       (funcall original content))
        (with-clack (environment (let ((body (getf environment :raw-body)))
                                   (catch 'left
                                     (read-octets-of body 10))
                                   (text-response (decode (read-octets-of body 10))))
                                 :max-early-octets 0)
          (with-connection (connection)
            (send connection "POST / HTTP/1.1" :crlf "Host: a" :crlf framing :crlf :crlf)
            (is (= 500 (response-status (read-response connection)))))
          (is (null first-p))
          (is-true (await-log "Not all of the content was read")))))))

(define-server-test (an-application-that-leaves-reading-before-all-is-kept-reads-no-body-with-a-hole
                     :needs :calls-by-name)
  (dolist (request (list (list :content (test-octets 200000)) '(:chunks ("abc" "de"))))
    (let ((first-p t))
      (with-function (handler::keep-taken (original body start end)
                       (when (shiftf first-p nil)
                         (throw 'left nil))
                       (funcall original body start end))
        (with-clack (environment (let ((body (getf environment :raw-body)))
                                   (catch 'left
                                     (read-byte body))
                                   (text-response
                                    (princ-to-string (length (read-octets-of body 200000)))))
                                 :max-early-octets 0)
          (with-connection (connection)
            (send connection (apply #'request-octets "/" :method :post request))
            (is (= 500 (response-status (read-response connection)))))
          (is (null first-p)))))))

(define-server-test (an-application-that-leaves-reading-a-file-again-reads-the-right-octets-later
                     :needs :our-http)
  (let ((content (test-octets 300000)) (left-p nil))
    (with-globals ((handler:*raw-body-memory* 1000))
      (with-function (platform:read-file-octets (original file position octets start end)
                       (multiple-value-prog1 (funcall original file position octets start end)
                         (unless (shiftf left-p t)
                           (throw 'left nil))))
        (with-raw-body (body :content content)
            (once (progn (read-octets-of body 300000)
                         (file-position body 0)
                         (catch 'left
                           (read-byte body))
                         (file-position body 299999) ; in the part that was in memory before
                         (list (read-octets-of body 10)
                               (file-position body 0)
                               (read-octets-of body 300000))))
          (is-true left-p)
          (is (equalp (list (subseq content 299999) t content) value)))))))

(define-server-test (an-application-that-leaves-reading-amid-it-reads-the-same-again
                     :needs :our-http)
  (let ((content (test-octets 500000)) (pieces 0))
    (with-globals ((handler:*raw-body-memory* 1000))
      (with-function (handler::octets-there (original body wanted)
                       (when (= 3 (incf pieces))
                         (throw 'left nil))
                       (funcall original body wanted))
        (with-raw-body (body :content content)
            (once (progn (catch 'left
                           (read-octets-of body 500000))
                         (list (file-position body) (read-octets-of body 500000))))
          (is (equalp (list 0 content) value)))))))

(define-server-test (an-application-that-leaves-while-the-body-goes-to-a-file-has-what-was-read
                     :needs (:our-http :calls-by-name))
  (let ((content (test-octets 200000)) (left-p nil))
    (with-globals ((handler:*raw-body-memory* 100000))
      (with-function (handler::leave-window (original body)
                       (funcall original body)
                       (unless (shiftf left-p t)
                         (throw 'left nil)))
        (with-clack (environment (let ((body (getf environment :raw-body)))
                                   (let ((first (read-octets-of body 500)))
                                     (catch 'left
                                       (read-octets-of body 200000))
                                     (file-position body 0)
                                     (text-response (if (equalp first (read-octets-of body 500))
                                                        "same" "other"))))
                                 :max-early-octets 0)
          (is (equal "same" (ask-text "/" :method :post :content content)))
          (is-true left-p))))))

(define-server-test (an-application-that-leaves-reading-characters-amid-it-reads-the-same-again
                     :needs :our-http)
  (dolist (read (list #'read-line (lambda (body) (read-sequence (make-string 10) body))))
    (let ((reads 0))
      (with-function (handler::octets-there (original body wanted)
                       (when (= 4 (incf reads))
                         (throw 'left nil))
                       (funcall original body wanted))
        (with-raw-body (body :content (format nil "abcdef~%g"))
            (once (list (read-char body)
                        (catch 'left (funcall read body))
                        (file-position body)
                        (progn (unread-char #\a body) (file-position body))
                        (multiple-value-list (read-line body))
                        (multiple-value-list (read-line body))))
          (is (equal '(#\a nil 1 0 ("abcdef" nil) ("g" t)) value)))))))

;;; Clients that are slow

(define-server-test (a-client-that-sends-content-slowly-holds-a-share-of-the-threads-of-clack
                     :needs :counted-waits)
  (with-clack (environment (progn (read-octets-of (getf environment :raw-body) 50000)
                                  (text-response "read"))
                           :worker-num 6 :max-thread-count 6 :max-early-octets 0 :read-timeout 60)
    (with-connections (connections 8)
      (dolist (connection connections)
        (send connection "POST / HTTP/1.1" :crlf "Host: a" :crlf "Content-Length: 50000"
              :crlf :crlf "a"))
      (eventually ("clients to be given up")
        (<= 5 (getf (figure :expired-by) :body)))
      (loop repeat 5 do (is (equal "read" (ask-text "/" :method :post :content "all")))))))
