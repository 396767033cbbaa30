;;;; What is asked over TLS.  nginx is the server here: it starts fast, and can be told to resume
;;;; nothing.

(in-package #:hunchentoot-recycling-taskmaster-benchmark/test)
(in-suite ruler)

(defparameter *tls-line*
  "ruler requests=2000 duration_us=1000000 p50_us=1500 p90_us=2000 p99_us=3000 p999_us=4000 ~
   max_us=5000 connect_errors=1 read_errors=2 write_errors=3 timeouts=4 non_2xx=5 handshakes=2001 ~
   resumed=1901 declined=20 ticketless=30 clients=50 served=1995 unserved=1 least=20 most=40"
  "What our TLS program prints.")

(test figures-of-handshakes-become-measures
  (let ((figures (ruler::wrk-figures (ruler::parse-ruler-lines (format nil *tls-line*)))))
    (is (about-p (getf figures :rate) 2000))
    (is (eql 50 (getf figures :unresumed)))
    (is (eql 1 (getf figures :unserved)))
    (is (eql 1/2 (getf figures :evenness))))
  (is (equal '(:unserved 0 :evenness 1/2)
             (ruler::handshake-figures '(("handshakes" . 3) ("unserved" . 0) ("least" . 1)
                                         ("most" . 2)))))
  (is (null (ruler::handshake-figures '(("requests" . 3))))))

(test who-is-refused-is-counted-with-and-without-tls
  (is (eql 15 (ruler::refusals (ruler::parse-ruler-lines (format nil *tls-line*)))))
  (is (eql 7 (ruler::refusals '(("served" . 3) ("errors" . 7))))))

(test who-has-no-tls-is-left-out-of-it-only
  (let ((limit (ruler::find-rival "limit"))
        (nginx (ruler::find-rival "nginx")))
    (is (search "TLS" (ruler::obstacle limit (ruler::find-workload "tls-keep-0ms-100"))))
    (is (null (ruler::obstacle limit (ruler::find-workload "keep-0ms-100"))))
    (is (null (ruler::obstacle nginx (ruler::find-workload "tls-file1m-0ms-50"))))))

(test servers-are-started-once-for-each-setup
  (let ((setups (ruler::setups (ruler::select-workloads '("tls" "keep" "close")))))
    (is (equalp (list (ruler::make-setup 0 nil) (ruler::make-setup 1 nil) (ruler::make-setup 10 nil)
                      (ruler::make-setup 0 t))
                setups))
    (is (equal "0 ms over TLS" (ruler::setup-title (fourth setups))))))

(test nginx-has-a-certificate-over-tls-only
  (let ((plain (ruler::nginx-configuration 80 nil))
        (tls (ruler::nginx-configuration 80 #p"/certificate/")))
    (is (not (search "ssl" plain)))
    (is (search "listen 127.0.0.1:80 ssl " tls))
    (is (search "ssl_certificate_key /certificate/key.pem;" tls))
    (dolist (text (list plain tls))
      (is (not (find #\@ text))))))

(test lisp-servers-get-the-certificate-at-the-end
  (let ((ours (ruler::find-rival "ours"))
        (certificate #p"/certificate/"))
    (is (search "parallel-easy-ssl-acceptor :ssl-certificate-file \"/certificate/cert.pem\""
                (ruler::more-arguments ours certificate)))
    (is (not (search "ssl" (ruler::more-arguments ours nil))))))

(test wrk-asks-by-https-for-what-is-over-tls
  (if (missing-programs "wrk")
      (skip "wrk is missing")
      (flet ((words (name)
               (ruler::native-words (ruler::load-command 80 (ruler::find-workload name) 1))))
        (is (find "https://127.0.0.1:80/files/16k.bin" (words "tls-file16k-0ms-50") :test #'equal))
        (is (search "OPENSSL_CONF=" (second (words "tls-keep-0ms-100"))))
        (is (find "http://127.0.0.1:80/files/16k.bin" (words "file16k-0ms-50") :test #'equal)))))

(test one-cipher-is-offered
  (if (missing-programs "openssl")
      (skip "openssl is missing")
      (is (equal "TLS_AES_128_GCM_SHA256"
                 (first (ruler::split
                         (ruler::output-of
                          (ruler::with-one-cipher '("openssl" "ciphers" "-s" "-tls1_3")))
                         '(#\: #\Newline)))))))

(test the-certificate-has-a-key-on-p-256
  (if (missing-programs "openssl")
      (skip "openssl is missing")
      (let* ((directory (ruler::make-certificate))
             (text (ruler::output-of (list "openssl" "x509" "-noout" "-text" "-in"
                                           (first (ruler::certificate-files directory))))))
        (ruler::remove-directory directory)
        (is (search "prime256v1" text))
        (is (search "DNS:localhost" text))
        (is (not (uiop:directory-exists-p directory))))))

;;; A server

(defun missing-for-tls ()
  "Why nothing can be asked of a server over TLS here, or NIL."
  (handler-case (progn (mapc #'ruler::find-program '("cc" "openssl" "nginx"))
                       (ruler::tls-program)
                       nil)
    (ruler:unavailable (condition) (princ-to-string condition))))

(defun forgetful-nginx ()
  "nginx as in the benchmark, but that it resumes no connection."
  (make-instance 'ruler:program-rival
                 :name "forgetful" :label "forgetful" :color "#000000" :tls t
                 :finder (lambda () (ruler::find-program "nginx")) :version (constantly "1")
                 :arguments (lambda (port delay-ms directory certificate)
                              (declare (ignore delay-ms))
                              (let ((file (merge-pathnames "nginx.conf" directory)))
                                (with-open-file (stream file :direction :output)
                                  (write-string (uiop:frob-substrings
                                                 (ruler::nginx-configuration port certificate)
                                                 '("tickets on") "tickets off")
                                                stream))
                                (list "-p" directory "-c" file)))))

(defun call-with-tls-server (rival function)
  "Call FUNCTION with a server, RIVAL over TLS, and a result."
  (with-temporary-results ()
    (ruler::call-with-certificate
     t
     (lambda (certificate)
       (let* ((result (ruler::new-result))
              (server (ruler::start-server rival 0 (ruler::log-file result "server")
                                           :certificate certificate)))
         (unwind-protect (funcall function server result)
           (ruler::stop-server server)))))))

(defun figures-of-load (server result mode)
  "What our program prints of half a second of load on SERVER in MODE; its log is in RESULT."
  (let ((log (ruler::log-file result "load")))
    (ruler::with-process (load (ruler::tls-words (ruler::server-port server)
                                                 (ruler::find-workload "tls-full-0ms-50") 1/2 mode)
                               :log log)
      (ruler::wait-for-end load 10))
    (ruler::final-figures log)))

(defun check-load (figures)
  "Check FIGURES, of FIGURES-OF-LOAD, for what is so in each mode."
  (flet ((value (name) (ruler::figure name figures)))
    (is (plusp (value "requests")))
    (is (eql (value "requests") (value "served")))
    (is (zerop (ruler::refusals figures)))
    (is (<= (value "p50_us") (value "p99_us") (value "max_us")))))

(test connections-are-resumed-when-they-are-to-be
  (if (missing-for-tls)
      (skip (missing-for-tls))
      (call-with-tls-server
       (ruler::find-rival "nginx")
       (lambda (server result)
         (flet ((load-in (mode)
                  (let ((figures (figures-of-load server result mode)))
                    (check-load figures)
                    (lambda (name) (ruler::figure name figures)))))
           (let ((full (load-in :full)))
             (is (zerop (funcall full "resumed")))
             (is (null (funcall full "declined")))
             (is (<= (funcall full "requests") (funcall full "handshakes"))))
           (let ((resumed (load-in :resumed)))
             (is (eql (+ 50 (funcall resumed "resumed")) (funcall resumed "handshakes")))
             (is (zerop (funcall resumed "declined")))
             (is (zerop (funcall resumed "ticketless"))))
           (is (<= (funcall (load-in :keep-alive) "handshakes") 50)))))))

(test connections-that-are-not-resumed-are-counted
  (if (missing-for-tls)
      (skip (missing-for-tls))
      (call-with-tls-server
       (forgetful-nginx)
       (lambda (server result)
         (let ((figures (figures-of-load server result :resumed)))
           (check-load figures)
           (is (zerop (ruler::figure "resumed" figures)))
           (is (eql (- (ruler::figure "handshakes" figures) 50)
                    (getf (ruler::handshake-figures figures) :unresumed))))))))

(test answers-over-tls-are-checked
  (if (missing-for-tls)
      (skip (missing-for-tls))
      (call-with-tls-server
       (ruler::find-rival "nginx")
       (lambda (server result)
         (declare (ignore result))
         (is (equal "Hey!" (ruler::answer-body (ruler::server-answer server))))
         (is (ruler::server-hung-up-p server))
         (is (null (ruler::check-answer server (ruler::find-workload "tls-file1m-0ms-50"))))
         (is (null (ruler::ask-plainly (ruler::free-port) "GET / HTTP/1.1")))
         (is (null (ruler::ask-by-tls (ruler::free-port) "GET / HTTP/1.1")))))))

(test a-run-over-tls-has-a-certificate-of-its-own
  (if (missing-for-tls)
      (skip (missing-for-tls))
      (with-temporary-results ()
        (let ((samples (ruler::read-samples
                        (small-run (list (ruler::find-rival "nginx")) "tls-resumed-0ms-50"))))
          (is (eql 2 (length samples)))
          (dolist (sample samples)
            (is (plusp (getf (ruler::sample-figures sample) :cpu)))
            (is (eql 0 (getf (ruler::sample-figures sample) :unresumed)))
            (is (eql 0 (getf (ruler::sample-figures sample) :errors))))))))
