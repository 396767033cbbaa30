(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite clack/responses :in clack
  :description "What an application returns, as the client gets it.")

(in-suite clack/responses)

(defparameter *responses*
  (let ((letter (string (code-char #x3042)))
        (long (make-string 300000 :initial-element (code-char #xE9)))
        (octets (test-octets 100000)))
    `(((200 (:content-type "text/plain; charset=utf-8") ("Hello" "" ,letter "World"))
       ,(format nil "Hello~AWorld" letter) "content-length" "13"
       "content-type" "text/plain; charset=utf-8" "transfer-encoding" nil)
      ((200 () (,(coerce "base" 'simple-base-string)
                ,(make-array 3 :element-type 'character :initial-contents "abc" :fill-pointer 2)
                ,(subseq "xyz" 1)))
       "baseabyz")
      ((200 () ("a" ,long "z")) ,(format nil "a~Az" long) "content-length" "600002")
      ((200 () ("a" ,long ,long "z")) ,(format nil "a~A~:*~Az" long) "content-length" "1200002")
      ((200 (:content-type "application/octet-stream") ,octets) ,octets)
      ((200 () ,(make-array 3 :element-type '(unsigned-byte 8) :initial-contents '(65 66 67)
                            :adjustable t :fill-pointer 2))
       "AB" "content-type" nil)
      ;; The type where none is said: text is HTML
      ((200 () ("<p>" "Hello")) "<p>Hello" "content-type" "text/html; charset=utf-8")
      ((200 () (,(octets "<p>") "Hello")) "<p>Hello" "content-type" "text/html; charset=utf-8")
      ((200 ("Content-Type" "text/css") ("p {}")) "p {}" "content-type" "text/css")
      ((200 () (,(octets "<p>"))) "<p>" "content-type" nil)
      (,(lambda (responder) (funcall responder '(200 () ("later")))) "later"
       "content-type" "text/html; charset=utf-8")
      ;; Without content
      ((200 () nil) "" "content-length" "0" "content-type" nil)
      ((200 () ("")) "" "content-length" "0")
      ((404 ()) "" "content-length" "0")
      ((204 (:content-type "text/plain" :content-length 5 :x-foo "bar") ("stray")) ""
       "x-foo" "bar" "content-type" nil "content-length" nil "transfer-encoding" nil)
      ((304 (:content-type "text/plain" :content-length 5 :x-foo "bar") ("stray")) ""
       "x-foo" "bar" "content-type" nil "content-length" nil "transfer-encoding" nil)
      ;; Headers
      ((200 (:x-number 42 :x-nothing nil :x-true t "X-String" "s" :www-authenticate "Basic") ("x"))
       "x" "x-number" "42" "x-nothing" nil "x-true" "T" "x-string" "s" "www-authenticate" "Basic")
      ((200 (:content-length 99 :transfer-encoding "chunked" :date "yesterday" :keep-alive "x")
        ("abc"))
       "abc" "content-length" "3" "transfer-encoding" nil "server" "recycling")
      ((200 (:server "mine") ("abc")) "abc" "server" "mine")))
  "Lists of a response, the text or octets that the client gets, and headers with their values.")

(define-server-test responses-are-sent-as-they-are-meant
  (loop for (response content . headers) in *responses*
        do (with-clack (environment response)
             (with-connection (connection)
               (dolist (method '(:get :head :get))
                 (let ((answer (exchange connection "/" :method method)))
                   (is (= (if (consp response) (first response) 200) (response-status answer)))
                   (is (equalp (if (eq :head method) "" content)
                               (if (stringp content)
                                   (response-text answer)
                                   (if (eq :head method) "" (response-body answer)))))
                   (loop for (name value) on headers by #'cddr
                         do (is (equal (and value (list value))
                                       (response-header-values answer name))
                                "~A: ~A" method name))
                   (is (cl-ppcre:scan " GMT$" (response-header answer "date")))))))))

(define-server-test headers-may-repeat-and-tell-heads-a-length
  (with-clack (environment '(200 (:set-cookie "a=1" :set-cookie "b=2" :content-length 4711) nil))
    (let ((answer (ask "/" :method :head)))
      (is (equal '("a=1" "b=2") (response-header-values answer "set-cookie")))
      (is (equal "4711" (response-header answer "content-length"))))))

;;; What is no response, and errors

(define-server-test what-is-no-response-is-an-error
  (dolist (response (list nil 42 "text" '(ok () ("x")) '(200 () 42) '(200 () (42)) '(200 () nil nil)
                          '(200 "x" ()) '(100 ()) '(102 ()) '(103 ()) '(199 ())
                          (circular 200 '() '("x"))
                          '(200 () . "x")
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
                                      (lambda (responder)
                                        (declare (ignore responder))
                                        (error "This is to be debugged.")))
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
