(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* client-input :in all
  :description "What a client sends is not interned, and costs time with its length only.")

;;; No symbols

(defun keyword-count ()
  (let ((count 0))
    (do-symbols (symbol '#:keyword count)
      (declare (ignorable symbol))
      (incf count))))

(defun made-up-name (stem)
  "A word that nobody has used before."
  (format nil "~A-~36R" stem (random (expt 36 12) (make-random-state t))))

(defmacro with-own-constructor ((class) &body body)
  "Evaluates BODY while CLASS names a class of requests with an INITIALIZE-INSTANCE of its own."
  `(with-request-class (,class)
     (let ((method (eval '(defmethod initialize-instance :after ((request ,class) &key)))))
       (unwind-protect (progn ,@body)
         (remove-method #'initialize-instance method)))))

(define-server-test (what-a-client-sends-makes-no-symbols :needs :our-content)
  (with-own-constructor (watched-request)
    (dolist (class '(hunchentoot:request watched-request))
      (serving (:request-class class)
          (("/" (shown (length (hunchentoot:raw-post-data :force-text t))
                       (hunchentoot::convert-parameter (hunchentoot:get-parameter "color")
                                                       'keyword))))
        (flet ((asks ()
                 (quietly
                   (ask (format nil "/?color=~A" (made-up-name "color"))
                        :method :post :content "text"
                        :content-type (format nil "text/plain; charset=~A" (made-up-name "set"))
                        :headers (list (cons (made-up-name "X") "1")
                                       (cons "Cookie" (format nil "~A=1" (made-up-name "c"))))))))
          (asks)
          (let ((before (keyword-count)))
            (loop repeat 3 do (asks))
            (is (= before (keyword-count)) "~A" class)))))))

(test keywords-are-found-and-not-made
  (flet ((converted (text)
           (hunchentoot::convert-parameter text 'keyword)))
    (cond ((platform:functions-can-be-wrapped-p)
           (is (eq :post (converted "post")))
           (is (null (converted (made-up-name "no-keyword"))))
           (is (null (converted nil))))
          (t (skip "Functions of Hunchentoot cannot be wrapped here.")))))

;;; Time

(defun seconds-of (function argument)
  "The least time of the processor, in seconds, that FUNCTION takes for ARGUMENT, of several
measurements of many calls."
  (let ((calls 1))
    (flet ((measured ()
             (let ((start (get-internal-run-time)))
               (loop repeat calls do (funcall function argument))
               (/ (- (get-internal-run-time) start) internal-time-units-per-second))))
      (loop while (< (measured) 1/50) do (setf calls (* 2 calls)))
      (/ (loop repeat 3 minimize (measured)) calls))))

(defun linear-p (function make size)
  "True when FUNCTION takes, for what the function MAKE makes of twice SIZE, no more than three
times as long as for SIZE; measured up to three times, since other threads of this process, and
collections, use the processor as well."
  (loop repeat 3
          thereis (<= (seconds-of function (funcall make (* 2 size)))
                      (* 3 (seconds-of function (funcall make size))))))

(defun characters (count char)
  (make-string count :initial-element char))

(defun request-of (headers &optional (uri "/") (class 'hunchentoot:request))
  "A request with the alist HEADERS for URI, made as Hunchentoot makes one."
  (let ((hunchentoot:*reply* (make-instance 'hunchentoot:reply))
        (hunchentoot:*session* nil)
        (hunchentoot:*acceptor* (make-instance 'hunchentoot:acceptor :message-log-destination nil)))
    (make-instance class :headers-in headers :uri uri :method :get :server-protocol :http/1.1
                         :acceptor hunchentoot:*acceptor* :remote-addr "127.0.0.1" :remote-port 1
                         :local-addr "127.0.0.1" :local-port 2 :content-stream nil)))

(defparameter *costly-requests*
  (list
   (list "spaces in a cookie" 4000
         (lambda (size) (list (cons :cookie (format nil "a= b~Ac" (characters size #\Space))))))
   (list "spaces and Tabs in cookies" 4000
         (lambda (size) (list (cons :cookie (format nil "a=~Ac~Ad; e" (characters size #\Space)
                                                    (characters size #\Tab))))))
   (list "separators in a cookie" 4000
         (lambda (size) (list (cons :cookie (format nil "~Aa~A" (characters size #\;)
                                                    (characters size #\,))))))
   (list "separators and spaces in a cookie" 4000
         (lambda (size)
           (list (cons :cookie (format nil "a~{~A~}b" (loop repeat size collect " ; "))))))
   (list "the digits of a session" 20000
         (lambda (size) (list (cons :cookie (format nil "hunchentoot-session=~A:x"
                                                    (characters size #\1))))))
   (list "a Content-Type" 4000
         (lambda (size)
           (list (cons :content-type (format nil "text/plain~A" (characters size #\;))))))
   (list "parameters of a Content-Type" 4000
         (lambda (size) (list (cons :content-type
                                    (format nil "text/plain~{~A~}"
                                            (loop repeat size collect ";a=b")))))))
  "Names, sizes, and functions of a size that make headers.")

(define-server-test headers-cost-time-with-their-length
  (loop for (name size make) in *costly-requests*
        do (is-true (linear-p #'request-of make size) "~A" name)))

(define-server-test (a-query-costs-time-with-its-length)
  (dolist (piece '("&" "a=b&" "%41" "+" "%"))
    (flet ((request (uri) (quietly (request-of '() uri))))
      (is-true (linear-p #'request
                         (lambda (size) (format nil "/?~{~A~}" (loop repeat size collect piece)))
                         2000)
               "~A" piece))))

(define-server-test
    (functions-that-programs-call-take-time-with-their-arguments :needs :our-content)
  (flet ((forwarded (headers)
           (hunchentoot:real-remote-addr (request-of headers)))
         (options (headers)
           (let ((hunchentoot:*acceptor* (make-instance 'hunchentoot:acceptor)))
             (hunchentoot::keep-alive-p (request-of headers)))))
    (is-true (linear-p #'forwarded
                       (lambda (size) (list (cons :x-forwarded-for
                                                  (format nil "a~Ab" (characters size #\Space)))))
                       4000))
    (is-true (linear-p #'options
                       (lambda (size) (list (cons :connection
                                                  (format nil "a~Ab" (characters size #\Space)))))
                       4000)))
  (flet ((origin (text)
           (http:host-and-port text 80)))
    (is-true (linear-p #'origin (lambda (size) (format nil "l:~A" (characters size #\1))) 20000)))
  (flet ((integer-of (text)
           (hunchentoot::convert-parameter text 'integer))
         (array-of (name)
           (hunchentoot::compute-array-parameter "a" 'string (list (cons name "1")))))
    (is-true (linear-p #'integer-of (lambda (size) (characters size #\1)) 20000))
    (is-true (linear-p #'array-of (lambda (size) (format nil "a[~A]" (characters size #\1)))
                       20000))))

;;; What it is, beside what it costs

(defparameter *requests-in-two-ways*
  '(("/a%20b+c?d=e&f=%C3%A9&&g" (("Cookie" . "a= b   c; d=\"e\"; f")))
    ("/a%C3%A9?x=%41%20+" (("Content-Type" . "text/plain; charset=iso-8859-1")))
    ("/a" (("Content-Type" . "text/plain; charset=\"utf-8\"") ("Cookie" . "  ;a=1 , b=2;,")))
    ("/a?b" (("Content-Type" . "application/json; charset=unknown")))
    ("http://h/a%20b?c=d" ()) ("HTTP://h/a" ()) ("hTTps://h:1/" ()) ("http://h?a=b" ()))
  "Targets and headers.")

(defun shown-head ()
  (shown (hunchentoot:script-name*) (hunchentoot:query-string*) (hunchentoot:get-parameters*)
         (hunchentoot:cookies-in*)))

(define-server-test requests-are-the-same-however-they-are-made
  (with-own-constructor (initialised-request)
    (flet ((seen (class)
             (quietly
               (with-globals ((hunchentoot:*dispatch-table* (list (constantly #'shown-head))))
                 (with-acceptor (acceptor :request-class class)
                   (loop for (target headers) in *requests-in-two-ways*
                         collect (ask-text target :headers headers)))))))
      (let ((ours (seen 'hunchentoot:request)))
        (is (equal ours (seen 'initialised-request)))
        (is (search "(\"a\" . \" b   c\")" (first ours)))))))

(define-server-test (the-scheme-of-a-target-is-in-any-case :needs :our-reader)
  (serving () (("/who" (shown (hunchentoot:script-name*))))
    (dolist (target '("http://l/who" "HTTP://l/who" "hTTpS://l:80/who?a=b"))
      (is (string= (shown "/who") (ask-text target)) "~A" target))))

(define-server-test (numbers-that-are-too-long-are-none :needs :our-content)
  (is (eql 12 (hunchentoot::convert-parameter "12" 'integer)))
  (is (eql (expt 10 30) (hunchentoot::convert-parameter (format nil "~D" (expt 10 30)) 'integer)))
  (is (null (hunchentoot::convert-parameter (characters 101 #\1) 'integer)))
  (flet ((array-of (&rest names)
           (hunchentoot::compute-array-parameter "a" 'string
                                                 (loop for name in names
                                                       collect (cons name name)))))
    (is (equalp #("a[0]" nil "a[2]") (array-of "a[0]" "a[2]" "b[7]" "a[x]" "a" "a[]")))
    (is (= 10000 (length (array-of "a[9999]"))))
    (is (equalp #("a[0]") (array-of "a[0]" "a[10000]" "a[99999999999999999999]")))))

(test ports-are-numbers-of-five-digits
  (loop for (authority . parts) in '(("host" "host" 80) ("host:" "host" 80)
                                     ("host:8080" "host" 8080)
                                     ("[::1]:81" "[::1]" 81) ("[::1]" "[::1]" 80)
                                     ("host:000080" "host" nil) ("host:1x" "host" nil))
        do (is (equal parts (multiple-value-list (http:host-and-port authority 80))) "~A"
               authority)))
