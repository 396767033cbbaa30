(in-package #:hunchentoot-recycling-taskmaster-test)

;;;; What acceptors, taskmasters and Clack's RUN take as arguments, in one table.

(def-suite* arguments :in fronts
  :description "Arguments of acceptors and taskmasters, and of Clack's RUN.")

(defgeneric made (front initargs)
  (:documentation "What FRONT makes of INITARGS, a plist: :ACCEPTOR, :TASKMASTER, :LATER, an
acceptor that gets them by REINITIALIZE-INSTANCE, :ANEW, one that has kept all it had then, or :RUN,
a server of Clack's, which is stopped at once.")
  (:method ((front (eql :acceptor)) initargs)
    (apply #'make-instance 'recycling:parallel-easy-acceptor initargs))
  (:method ((front (eql :taskmaster)) initargs)
    (apply #'taskmaster initargs))
  (:method ((front (eql :later)) initargs)
    (apply #'reinitialize-instance (make-test-acceptor) initargs))
  (:method ((front (eql :anew)) initargs)
    (let ((acceptor (make-test-acceptor :port 4242 :name 'before)))
      (unwind-protect (apply #'reinitialize-instance acceptor :name 'after initargs)
        (is (eq 'before (hunchentoot:acceptor-name acceptor)))
        (is (eql 4242 (hunchentoot:acceptor-port acceptor))))))
  (:method ((front (eql :run)) initargs)
    (apply #'handler:run (constantly '(200 () ("Hello")))
           (append initargs '(:port 0 :on-start handler:stop)))))

(defun printed (value)
  (let ((*print-pretty* nil)) (prin1-to-string value)))

(defun check-rows (rows)
  "Checks that what ROWS, see arguments.sexp, have is refused."
  (loop for (fronts argument values . words) in rows
        for names = (uiop:ensure-list argument)
        do (dolist (front fronts)
             (dolist (value values)
               (let* ((value (if (eq value 'not-a-number) (no-number) value))
                      (condition (error-of (lambda ()
                                             (made front (append names (list value)))))))
                 (is (apply #'report-p condition (string (first (last names)))
                            (if (keywordp argument)
                                (list* (printed value) words)
                                words))
                     "~A: ~S ~S: ~A" front argument value condition))))))

(define-server-test what-makes-no-sense-is-refused-with-name-and-value-and-what-is-allowed
  (check-rows (read-table "fronts/arguments.sexp"))
  (when (platform:readiness-supported-p)
    (check-rows (read-table "fronts/places.sexp"))))

(test what-programs-pass-to-hunchentoot-is-taken
  (loop for (name . values) in '((:port 0 80 65535)
                                 (:address nil "127.0.0.1" "::1" "localhost" #(127 0 0 1)
                                  #(0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 1))
                                 (:listen-backlog 0 5 4096)
                                 (:read-timeout nil 0 1/2 0.5 20)
                                 (:write-timeout nil 20.0d0)
                                 (:access-log-format :combined :json identity not-defined-yet)
                                 (:access-log-destination nil "/tmp/x.log" #p"/tmp/x.log")
                                 (:document-root nil "/tmp/" #p"/tmp/")
                                 (:name shop "shop")
                                 (:max-body-octets nil 1)
                                 (:defer-accept nil 1 255))
        do (dolist (value values)
             (is (typep (made :acceptor (list name value)) 'hunchentoot:acceptor)
                 "~S ~S" name value))))

(define-server-test a-vector-of-octets-is-an-address
  (serving (:address (vector 127 0 0 1)) (("/yo" "Hey!"))
    (is (equal "Hey!" (ask-text "/yo")))))

(define-server-test what-run-does-not-know-is-told-and-what-clack-passes-is-taken
  (let ((*clack-stream* (make-string-output-stream)))
    (with-clack (environment (text-response "x") :use-thread t :silent t :max-thred-count 1
                             :swank-port nil :allow-other-keys t :head-timeout 20 :debug nil
                             :worker-num 110) ; more than threads, as Woo takes it
      (is (equal "x" (ask-text "/")))
      (destructuring-bind (warning &optional place) (log-lines (await-log "Listening on "))
        (is-true (search "[WARNING]] The argument :MAX-THRED-COUNT is unknown, and has no effect."
                         warning))
        (is-true (search "Listening on 127.0.0.1:" place))))))

;;; What is found at the start

(defparameter *missing-addresses-told-p*
  ;; Asked once: where usocket fails in its own code, as on ECL, it loses a descriptor.
  ;; 192.0.2.0/24 is for documents (RFC 5737).
  (handler-case (progn (usocket:socket-close (usocket:socket-listen "192.0.2.1" 0)) nil)
    (usocket:socket-error () t)
    (condition () nil))
  "True where usocket signals an error of its own for an address that this machine has not.")

(define-server-test a-place-where-nobody-can-listen-is-named
  (with-acceptor (acceptor)
    (let ((port (hunchentoot:acceptor-port acceptor)))
      (flet ((tells-p (type words &rest initargs)
               (loop for condition in (list (error-of (lambda ()
                                                        (hunchentoot:start
                                                         (apply #'make-test-acceptor initargs))))
                                            (error-of (lambda () (made :run initargs))))
                     always (and (typep condition `(and recycling:listen-failed ,type))
                                 (every (lambda (word) (search word (princ-to-string condition)))
                                        words)))))
        (loop for (address name) in '(("127.0.0.1" "127.0.0.1") (nil "all addresses"))
              do (is-true (tells-p (if (uiop:featurep :abcl)
                                       t
                                       'usocket:address-in-use-error)
                                   (list (princ-to-string port) name "something else listens there")
                                   :port port :address address)))
        (when *missing-addresses-told-p*
          (is-true (tells-p 'usocket:socket-error '("192.0.2.1" "port 0")
                            :port 0 :address "192.0.2.1"))
          (unless (uiop:featurep :abcl) ; usocket has no condition for that there
            (is-true (tells-p t '("no-such-host.invalid")
                              :port 0 :address "no-such-host.invalid"))))))))

(define-server-test (a-port-that-needs-a-privilege-is-refused-in-a-sentence :needs :parking)
  (if (equal '("1024") (ignore-errors
                        (lines-of "/proc/sys/net/ipv4/ip_unprivileged_port_start")))
      (call-with-command
       (lambda (program)
         (is (eql 1 (program-exit program :patience (patience-to-load))))
         (is-true (printed-p program "Cannot listen on port 80 of 127.0.0.1: this is not ")))
       (lambda (directory)
         (unprivileged (command-for directory
                                    (list (serving-form ":port 80 :address \"127.0.0.1\""))))))
      (skip "Here every process may listen on all ports.")))

;;; Taskmasters

(test hunchentoots-taskmasters-become-ours-with-their-numbers
  (loop for (threads accepted class . initargs)
          in '((20 30 hunchentoot:one-thread-per-connection-taskmaster
                :max-thread-count 20 :max-accept-count 30)
               (20 nil hunchentoot:one-thread-per-connection-taskmaster :max-thread-count 20
                :max-accept-count nil)
               ;; NIL is a number, too: no limit.
               (nil nil hunchentoot:one-thread-per-connection-taskmaster
                :max-thread-count nil :max-accept-count nil)
               (1 :unlimited hunchentoot:single-threaded-taskmaster))
        for taskmaster = (hunchentoot::acceptor-taskmaster
                          (made :acceptor (list :taskmaster (apply #'make-instance class
                                                                   initargs))))
        do (is (typep taskmaster 'recycling:recycling-taskmaster))
           (is (eql threads (hunchentoot:taskmaster-max-thread-count taskmaster)))
           (is (eql accepted (hunchentoot:taskmaster-max-accept-count taskmaster)))))

(defclass taskmaster-of-somebody (hunchentoot:one-thread-per-connection-taskmaster) ())

(test taskmasters-of-other-classes-are-refused
  (is (report-p (error-of (lambda ()
                            (made :acceptor (list :taskmaster
                                                  (make-instance 'taskmaster-of-somebody)))))
                "TASKMASTER" "RECYCLING-TASKMASTER")))

(test what-is-refused-changes-no-taskmaster
  (let ((taskmaster (taskmaster :standby-thread-count 4 :max-thread-count 10)))
    (flet ((refused-p (function)
             (and (report-p (error-of function) "THREAD-COUNT")
                  (= 4 (recycling:taskmaster-standby-thread-count taskmaster))
                  (= 10 (hunchentoot:taskmaster-max-thread-count taskmaster)))))
      (dolist (initargs '((:max-thread-count 0) (:max-accept-count 5)))
        (is-true (refused-p (lambda () (apply #'reinitialize-instance taskmaster initargs)))))
      (dolist (nonsense '(0 "2" 1/2))
        (is-true (refused-p (lambda ()
                              (setf (hunchentoot:taskmaster-max-thread-count taskmaster)
                                    nonsense))))
        (is-true (refused-p (lambda ()
                              (setf (recycling:taskmaster-standby-thread-count taskmaster)
                                    nonsense)))))
      (is-true (refused-p (lambda ()
                            (setf (hunchentoot:taskmaster-max-accept-count taskmaster) 10)))))
    (setf (hunchentoot:taskmaster-max-accept-count taskmaster) 12)
    (dolist (maximum '(12 nil))
      (signals hunchentoot:parameter-error
        (setf (hunchentoot:taskmaster-max-thread-count taskmaster) maximum)))
    (setf (hunchentoot:taskmaster-max-thread-count taskmaster) 3)
    (is (= 3 (recycling:taskmaster-standby-thread-count taskmaster)) "It is lowered, too.")))

;;; TLS

(defparameter *tls-names-of-clack*
  '((:ssl-certificate-file . :ssl-cert-file) (:ssl-privatekey-file . :ssl-key-file)
    (:ssl-privatekey-password . :ssl-key-password))
  "What acceptors call an argument, and what RUN does.")

(defun tls-name (front name)
  (or (and (eq front :run) (cdr (assoc name *tls-names-of-clack*)))
      name))

(defmethod made ((front (eql :tls-acceptor)) initargs)
  (apply #'make-instance 'recycling:parallel-ssl-acceptor :port 0 initargs))

(defun mistakes-in-tls (directory)
  "Lists of an argument of acceptors, a value that is wrong beside a certificate and a key in
DIRECTORY, and words of the error; a list of several arguments has their values, and then comes the
one to blame."
  (multiple-value-bind (certificate key) (issue directory "localhost")
    (multiple-value-bind (locked-certificate locked-key) (issue directory "locked" :password "hush")
      (let ((other (make-key (file-in directory "other" "key")))
            (rsa (file-in directory "rsa" "key"))
            (text (uiop:native-namestring (write-file directory "text.pem" "nothing of the kind")))
            (broken (uiop:native-namestring
                     (write-file directory "broken.pem"
                                 (format nil "~{-----BEGIN ~A-----~%AAAA~%-----END ~:*~A-----~%~}"
                                         '("CERTIFICATE" "PRIVATE KEY"))))))
        (openssl "genrsa" "-out" rsa "2048")
        `((:ssl-certificate-file ,key ,key "no certificate" "no start line")
          (:ssl-certificate-file ,broken ,broken "no certificate")
          (:ssl-certificate-file "/nowhere/c.pem" "/nowhere/c.pem" "No such file or directory")
          (:ssl-certificate-file nil "a file in PEM format")
          (:ssl-privatekey-file ,certificate ,certificate "no private key")
          (:ssl-privatekey-file ,text ,text "no private key")
          (:ssl-privatekey-file ,broken ,broken "no private key")
          (:ssl-privatekey-file "/nowhere/k.pem" "/nowhere/k.pem" "No such file or directory")
          (:ssl-privatekey-file nil "a file in PEM format")
          (:ssl-privatekey-file ,other ,other "another key" ,certificate)
          (:ssl-privatekey-file ,rsa ,rsa "another key" ,certificate) ; of another kind
          ((:ssl-certificate-file ,locked-certificate :ssl-privatekey-file ,locked-key)
           :ssl-privatekey-file "without a password" ,locked-key)
          ((:ssl-certificate-file ,locked-certificate :ssl-privatekey-file ,locked-key
            :ssl-privatekey-password "told")
           :ssl-privatekey-file "with its password" ,locked-key)
          (:ssl-privatekey-password (:told) "a string")
          (:ssl-certificates (("file")) "a list of lists")
          (:ssl-certificates (,(pathname certificate) ,(pathname key)) "a list of lists")
          (:ssl-certificates ((,certificate ,key "told" "more")) "a list of lists")
          (:ssl-certificates ((,key ,certificate)) ,certificate "no private key")
          (:ssl-certificates ((,certificate ,other)) ,other "another key" ,certificate)
          (:ssl-certificates (("/nowhere/c.pem" ,key)) "/nowhere/c.pem" "No such file or directory")
          (:ssl-minimum-protocol :tls-1.1 "TLS-1.2")
          (:ssl-minimum-protocol nil "TLS-1.2")
          (:ssl-ciphers :all "ALL")
          (:ssl-ciphers "NONSENSE" "NONSENSE" "no cipher match")
          (:ssl-ciphers "TLS_MINE" "TLS_MINE" "no cipher match")
          (:ssl-client-ca-file 5 "5")
          (:ssl-client-ca-file "/nowhere/ca.pem" "/nowhere/ca.pem" "No such file or directory")
          (:ssl-client-ca-file ,key ,key "no certificate")
          (:ssl-client-ca-file ,broken ,broken "no certificate")
          (:ssl-verify-client t "REQUIRED")
          (:ssl-verify-client :required "SSL-CLIENT-CA-FILE")
          (:ssl-verify-client :optional "SSL-CLIENT-CA-FILE"))))))

(defun good-pair (directory &optional (name "localhost"))
  (list :ssl-certificate-file (file-in directory name "pem")
        :ssl-privatekey-file (file-in directory name "key")))

(defun error-about-tls (front directory initargs)
  "The error that FRONT signals for INITARGS beside the certificate and the key in DIRECTORY."
  (error-of (lambda ()
              (made front (loop for (name value) on (append initargs (good-pair directory))
                                  by #'cddr
                                collect (tls-name front name)
                                collect value)))))

(define-server-test (mistakes-in-what-tls-is-made-of-are-told-with-openssls-words :needs :tls)
  (with-directory (directory)
    (let ((rows (mistakes-in-tls directory)))
      (dolist (front '(:tls-acceptor :run))
        (loop for (argument value . words) in rows
              do (multiple-value-bind (initargs blamed)
                     (if (listp argument) (values argument value) (values (list argument value)
                                                                          argument))
                   (let ((condition (error-about-tls front directory initargs)))
                     (is (apply #'report-p condition (string (tls-name front blamed)) words)
                         "~A: ~S: ~A" front initargs condition)
                     (is (not (search "told" (princ-to-string condition) :test #'char-equal))
                         "A password is printed."))))))
    (is (typep (made :tls-acceptor (list* :ssl-privatekey-password "hush"
                                          (good-pair directory "locked")))
               'recycling:parallel-ssl-acceptor))
    (let ((both (join-files directory "both.pem" (file-in directory "localhost" "pem")
                            (file-in directory "localhost" "key"))))
      (is (null (error-about-tls :tls-acceptor directory
                                 (list :ssl-certificate-file both :ssl-privatekey-file both)))))))

(define-server-test (a-file-that-may-not-be-read-is-told-so :needs :tls)
  (with-directory (directory)
    (issue directory "localhost")
    (if (call-without-privilege (constantly t))
        (dolist (place (list (file-in directory "localhost" "key") directory))
          (change-mode place #o000)
          (unwind-protect
               (is-true (call-without-privilege
                         (lambda ()
                           (report-p (error-about-tls :tls-acceptor directory '())
                                     "SSL-" "Permission denied"))))
            (change-mode place #o700)))
        (skip "On this platform the superuser reads everything."))))
