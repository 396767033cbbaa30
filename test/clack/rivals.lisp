(in-package #:hunchentoot-recycling-taskmaster-test)

;;;; The same application, served by us and, in processes of their own, by Woo and by Clack's handler for
;;;; Hunchentoot, where ASDF finds them: what it is told, and what its clients get, may differ only as
;;;; *RIVAL-DIFFERENCES* has it.

(def-suite clack/rivals :in clack
  :description "What others make of the same applications.")

(in-suite clack/rivals)

(defparameter *rivals*
  '((:woo "woo" "CLACK.HANDLER.WOO")
    (:hunchentoot "clack-handler-hunchentoot" "CLACK.HANDLER.HUNCHENTOOT"))
  "Names, systems and packages.")

(defparameter *rival-requests*
  '((:plain "/env")
    (:query "/env?a=1&b=%20")
    (:empty-query "/env?")
    (:encoded "/env%2cfoo%252c/%E3%81%82")
    (:slashes "/env///foo")
    (:plus "/env+foo")
    (:headers "/env" :headers (("X-Foo" . "bar") ("Cookie" . "a=1") ("Accept" . "*/*")))
    (:no-port "/env" :host "example.org")
    (:form "/env" :method :post :form (("name" . "eitaro")))
    (:list "/list") (:utf-8 "/utf-8") (:nil "/nil") (:repeated "/headers") (:octets "/octets") (:file "/file")
    (:not-modified "/304") (:not-found "/404") (:stream "/stream") (:delayed "/delayed")
    (:echo "/echo" :method :post :content "abc")
    (:echo-chunks "/echo" :method :post :chunks ("abc" "def"))
    (:head "/list" :method :head)
    (:error "/error"))
  "Names, targets and what else MAKE-REQUEST takes.")

(defparameter *rival-differences*
  '((:woo :plus "path-info" "A plus sign in a path is one (RFC 3986, section 3.3).")
    (:woo :empty-query "query-string" "An empty query is one.")
    (:woo :error "body" "We say what 500 means.")
    (:woo :error "content-type" "We say what 500 means.")
    (:woo :form "header content-length" "It is text, as all fields are.")
    (:hunchentoot :form "header content-length" "As with Woo, the table has all fields.")
    (:hunchentoot :form "header content-type" "As with Woo, the table has all fields.")
    (:hunchentoot :plus "path-info" "A plus sign in a path is one (RFC 3986, section 3.3).")
    (:hunchentoot :empty-query "query-string" "An empty query is one.")
    (:hunchentoot :not-modified "content-type" "304 has none.")
    (:hunchentoot :nil "content-type" "What the application says is sent.")
    (:hunchentoot :file "content-type" "What the application says is sent.")
    (:hunchentoot :error "content-type" "The text has a type.")
    (:hunchentoot :list "content-length" "It is known."))
  "Where we differ: from whom, at which request, in which fact, and why.")

;;; Facts

(defun environment-facts (text)
  "An alist of the lines of TEXT."
  (loop for line in (uiop:split-string text :separator '(#\Newline))
        for colon = (search ": " line)
        when colon
          collect (cons (subseq line 0 colon) (subseq line (+ 2 colon)))))

(defun reply-facts (target response)
  "An alist of what RESPONSE, to a request for TARGET, says."
  (let ((text (response-text response)))
    (list* (cons "status" (response-status response))
           (cons "content-type" (response-header response "content-type"))
           (cons "x-foo" (response-header response "x-foo"))
           (cons "set-cookie" (response-header-values response "set-cookie"))
           (if (uiop:string-prefix-p "/env" target)
               (environment-facts text)
               (list (cons "body" text))))))

(defun facts-by (port name target &rest keys)
  "The facts of the answer of who serves PORT to the request NAME; those of a failure where there is none."
  (handler-case (with-connection (connection port)
                  (reply-facts target (apply #'exchange connection target
                                             (append keys (list :host (format nil "localhost:~D" 4242))))))
    (error (condition) (list (cons "failure" (format nil "~A: ~A" name condition))))))

(defun differences-of (rival name ours theirs)
  "Sentences about where OURS and THEIRS, facts of the answer to the request NAME, differ though they should not."
  (loop for key in (remove-duplicates (mapcar #'car (append ours theirs)) :test #'string=)
        for our = (cdr (assoc key ours :test #'string=))
        for their = (cdr (assoc key theirs :test #'string=))
        unless (or (equal our their)
                   (find-if (lambda (difference)
                              (and (eq rival (first difference))
                                   (eq name (second difference))
                                   (string= key (third difference))))
                            *rival-differences*))
          collect (format nil "~A, ~A: ~A is ~S with us, and ~S with them." rival name key our their)))

;;; Rivals

(defun free-port ()
  "A port of this machine that was free just now."
  (let ((socket (usocket:socket-listen "127.0.0.1" 0 :reuse-address t)))
    (unwind-protect (usocket:get-local-port socket)
      (usocket:socket-close socket))))

(defun rival-program (system package port)
  "A program that serves the application on PORT by the handler in PACKAGE, of SYSTEM."
  (format nil "(asdf:load-system ~S)~%(load ~S)~%(funcall (find-symbol \"RUN\" ~S) ~
                (find-symbol \"APP\" \"RECYCLING-RIVAL-APPLICATION\") :address \"127.0.0.1\" :port ~D :debug nil)~%"
          system (uiop:native-namestring (rival-application)) package port))

(defun rival-application ()
  (merge-pathnames "test/clack/rival-application.lisp" (source-root)))

(defun listening-p (port)
  (handler-case (progn (usocket:socket-close (usocket:socket-connect "127.0.0.1" port))
                       t)
    (error () nil)))

(defun call-with-rival (system package function)
  "Calls FUNCTION with the port on which the handler in PACKAGE, of SYSTEM, serves the application."
  (uiop:with-temporary-file (:stream stream :pathname program :type "lisp")
    (let ((port (free-port)))
      (write-string (rival-program system package port) stream)
      (finish-output stream)
      (let ((process (uiop:launch-program (list (uiop:native-namestring
                                                 (merge-pathnames "scripts/lisp" (source-root)))
                                                (uiop:native-namestring program)))))
        (unwind-protect
             (progn
               (eventually ("another server to start" :patience 120)
                 (or (listening-p port)
                     (not (uiop:process-alive-p process))))
               (if (uiop:process-alive-p process)
                   (funcall function port)
                   (skip "~A cannot be loaded here." system)))
          (uiop:terminate-process process :urgent t)
          (uiop:wait-process process))))))

(defun compare-with-rival (rival port)
  "Checks that RIVAL, on PORT, does what our server does, but for known differences."
  (loop for (name target . keys) in *rival-requests*
        for ours = (apply #'facts-by (port-of *server*) name target keys)
        for theirs = (apply #'facts-by port name target keys)
        do (is (null (differences-of rival name ours theirs))
               "~{~A~%~}" (differences-of rival name ours theirs))))

(define-server-test others-do-the-same
  (load (rival-application))
  (loop for (rival system package) in *rivals*
        do (if (and (uiop:featurep :sbcl) (asdf:find-system system nil))
               (call-with-clack (find-symbol "APP" '#:recycling-rival-application) '()
                                (lambda ()
                                  (call-with-rival system package
                                                   (lambda (port)
                                                     (compare-with-rival rival port)))))
               (skip "ASDF does not find ~A." system))))
