(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite clack/responses :in clack
  :description "What an application returns, as the client gets it.")

(in-suite clack/responses)

(defmacro answered-with ((response &rest request) &body checks)
  "Evaluates CHECKS with ANSWER bound to what the client of an application that returns the value of
RESPONSE gets for REQUEST."
  `(with-clack (environment ,response)
     (let ((answer (ask "/" ,@request)))
       (declare (ignorable answer))
       ,@checks)))

(define-server-test a-list-of-strings-is-sent-in-utf-8-with-its-length
  (answered-with ((text-response "Hello" "" (string (code-char #x3042)) "World"))
    (is (= 200 (response-status answer)))
    (is (equal (format nil "Hello~CWorld" (code-char #x3042)) (response-text answer)))
    (is (equal "13" (response-header answer "content-length")))
    (is (equal "text/plain; charset=utf-8" (response-header answer "content-type")))
    (is (null (response-header answer "transfer-encoding")))))

(define-server-test strings-of-every-kind-are-sent
  (answered-with ((text-response (coerce "base" 'simple-base-string)
                             (make-array 3 :element-type 'character :initial-contents "abc"
                                         :fill-pointer 2)
                             (subseq "xyz" 1)))
    (is (equal "baseabyz" (response-text answer)))))

(define-server-test vectors-of-octets-are-sent-as-they-are
  (let ((octets (test-octets 100000)))
    (answered-with ((list 200 '(:content-type "application/octet-stream") octets))
      (is (equalp octets (response-body answer)))))
  (answered-with ((list 200 '()
                        (make-array 3 :element-type '(unsigned-byte 8) :initial-contents '(1 2 3)
                                  :adjustable t :fill-pointer 2)))
    (is (equalp #(1 2) (response-body answer)))))

(defun type-of-response (body &rest headers)
  "The values of Content-Type with which a response with BODY and HEADERS is sent."
  (answered-with ((list 200 headers body))
    (response-header-values answer "content-type")))

(define-server-test text-whose-type-is-not-said-is-html-in-the-charset-that-it-is-sent-in
  (is (equal '("text/html; charset=utf-8") (type-of-response '("<p>" "Hello"))))
  (is (equal '("text/html; charset=utf-8") (type-of-response (list (octets "<p>") "Hello"))))
  (is (equal '("text/css") (type-of-response '("p {}") :content-type "text/css")))
  (is (equal '("text/css") (type-of-response '("p {}") "Content-Type" "text/css")))
  (is (equal '() (type-of-response (octets "<p>"))))
  (is (equal '() (type-of-response (list (octets "<p>")))))
  (is (equal '() (type-of-response nil)))
  (with-clack (environment (lambda (responder)
                             (funcall responder '(200 () ("later")))))
    (is (equal "text/html; charset=utf-8" (response-header (ask "/") "content-type")))
    (is (equal "text/html; charset=utf-8"
               (response-header (ask "/" :method :head) "content-type")))))

(define-server-test long-strings-are-sent-whole
  (let ((text (make-string 300000 :initial-element (code-char #xE9))))
    (answered-with ((text-response "a" text "z"))
      (is (equal "600002" (response-header answer "content-length")))
      (is (equal (concatenate 'string "a" text "z") (response-text answer))))))

(define-server-test no-body-is-sent-where-there-is-none
  (answered-with ('(200 (:content-type "text/plain") nil))
    (is (equal "0" (response-header answer "content-length"))))
  (answered-with ('(200 () ("")))
    (is (equal "0" (response-header answer "content-length"))))
  (answered-with ('(404 ()))
    (is (= 404 (response-status answer)))
    (is (equal "0" (response-header answer "content-length")))))

(define-server-test some-statuses-have-no-content
  (dolist (status '(204 304))
    (answered-with ((list status '(:content-type "text/plain" :content-length 5 :x-foo "bar")
                          '("stray")))
      (is (= status (response-status answer)))
      (is (equal "bar" (response-header answer "x-foo")))
      (dolist (name '("content-type" "content-length" "transfer-encoding"))
        (is (null (response-header answer name)) "~A" name)))))

(define-server-test nothing-follows-what-has-no-content
  (with-clack (environment (list 304 '() '("stray")))
    (with-connection (connection)
      (loop repeat 3 do (is (= 304 (response-status (exchange connection "/"))))))))

(define-server-test a-head-has-the-headers-and-no-content
  (with-clack (environment (text-response "Hello"))
    (with-connection (connection)
      (let ((answer (exchange connection "/" :method :head)))
        (is (equal "5" (response-header answer "content-length"))))
      (is (equal "Hello" (exchange-text connection "/")))))
  (with-clack (environment '(200 (:content-length 4711) nil))
    (with-connection (connection)
      (is (equal "4711"
                 (response-header (exchange connection "/" :method :head) "content-length"))))))

(define-server-test headers-may-repeat-and-have-values-of-any-kind
  (answered-with ('(200 (:set-cookie "a=1" :set-cookie "b=2" :x-number 42 :x-nothing nil :x-true t
                         "X-String" "s"
                     :www-authenticate "Basic")
                ("x")))
    (is (equal '("a=1" "b=2") (response-header-values answer "set-cookie")))
    (is (equal "42" (response-header answer "x-number")))
    (is (null (response-header answer "x-nothing")))
    (is (equal "T" (response-header answer "x-true")))
    (is (equal "s" (response-header answer "x-string")))
    (is (equal "Basic" (response-header answer "www-authenticate")))))

(define-server-test what-only-the-server-knows-the-server-says
  (answered-with ('(200 (:content-length 99 :transfer-encoding "chunked" :date "yesterday"
                         :keep-alive "x") ("abc")))
    (is (equal '("3") (response-header-values answer "content-length")))
    (is (null (response-header answer "transfer-encoding")))
    (is (= 1 (length (response-header-values answer "date"))))
    (is (cl-ppcre:scan " GMT$" (response-header answer "date")))
    (is (equal "recycling" (response-header answer "server"))))
  (answered-with ('(200 (:server "mine") ("abc")))
    (is (equal '("mine") (response-header-values answer "server")))))

(define-server-test a-value-that-could-end-its-line-is-refused
  (dolist (value (list (format nil "a~Cb" #\Newline)
                       (format nil "a~C~CInjected: yes" #\Return #\Newline)
                       (string (code-char 0)) (string (code-char #x3042))))
    (with-clack (environment (list 200 (list :x-foo value) '("x")))
      (let ((answer (ask "/")))
        (is (= 500 (response-status answer)))
        (is (null (response-header answer "injected")))
        (is-true (await-log "X-FOO"))))))

;;; What is no response, and errors

(define-server-test what-is-no-response-is-an-error
  (dolist (response (list nil 42 "text" '(ok () ("x")) '(200 () 42) '(200 () (42)) '(200 () nil nil)
                          '(200 "x" ()) '(100 ()) '(102 ()) '(103 ()) '(199 ())
                          (circular 200 '() '("x"))
                          (list 200 (circular :x-foo "bar") '("x"))
                          (list 200 '() (circular "x"))
                          '(200 () . "x")
                          '(200 (:x-foo "bar" . "x") ("x"))
                          '(200 () ("x" . "y"))))
    (with-clack (environment response)
      (is (= 500 (response-status (ask "/")))))))

(define-server-test debugging-takes-errors-to-the-debugger-and-goes-on-with-500
  (let ((entered (make-gate "the debugger"))
        (leave (make-gate "leave of the debugger"))
        (seen nil))
    (flet ((debugger (condition)
             (setf seen (list (bt:thread-name (bt:current-thread)) (princ-to-string condition)))
             (open-gate entered)
             (await leave)
             (invoke-restart 'abort)))
      (call-with-debugger
       #'debugger
       (lambda ()
         (with-clack (environment (if (equal "/fine" (getf environment :path-info))
                                      (text-response "fine")
                                      (error "This is to be debugged."))
                                  :debug t)
           (with-connection (connection)
             (send-request connection "/")
             (await entered)
             (is (equal "fine" (ask-text "/fine")) "Others are served meanwhile.")
             (open-gate leave)
             (is (= 500 (response-status (read-response connection))))
             (is (equal "fine" (exchange-text connection "/fine"))))
           (is (search "clack-worker" (first seen)))
           (is (equal "This is to be debugged." (second seen)))))))))

(define-server-test debugging-does-not-mind-errors-that-an-application-handles
  (with-clack (environment (handler-case (error "handled")
                             (error () (text-response "handled")))
                           :debug t)
    (is (equal "handled" (ask-text "/")))))
