(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite listening :in acceptors
  :description "Where acceptors listen: IPv6, paths, inherited descriptors, shared ports.")

(in-suite listening)

(define-server-test
    (a-closed-standard-descriptor-does-not-become-a-socket :needs (:our-engine :parking))
  (call-while-closed
   0
   (lambda ()
     (serving () (("/yo" "Hey!"))
       (is (equal "/dev/null" (descriptor-target 0)))
       (is (equal "Hey!" (ask-text "/yo")))))))

(defun who-talks ()
  "What a handler knows of both ends."
  (format nil "~A ~A ~A ~A" (hunchentoot:remote-addr*) (hunchentoot:remote-port*)
          (hunchentoot:local-addr*) (hunchentoot:local-port*)))

;;; IPv6

(defparameter *ipv6-p*
  ;; Asked once: usocket loses a descriptor where it has IPv6 for this Lisp not yet.
  (handler-case (progn (usocket:socket-close (usocket:socket-listen "::1" 0)) t)
    (error () nil))
  "True when this machine and this Lisp's usocket have IPv6.")

(defun check-names (address host expected)
  "Checks that a server on ADDRESS tells a client from HOST that both ends are EXPECTED."
  (serving (:address address) (("/who" (who-talks)))
    (let ((port (hunchentoot:acceptor-port *server*)))
      (with-open-connection (connection (connect port host))
        (let ((answer (exchange-text connection "/who")))
          (is (equal (format nil "~A ~D ~A ~D" expected (client-port connection) expected port)
                     answer)))
        (let ((response (exchange connection "/who")))
          (is (= 200 (response-status response)) "It is kept."))))))

(defmacro where-ipv6 (&body body)
  `(if *ipv6-p*
       (progn ,@body)
       (skip "There is no IPv6 here.")))

(define-server-test (an-ipv6-address-is-served :needs :our-engine)
  (where-ipv6 (check-names "::1" "::1" "::1")))

(define-server-test (all-addresses-of-ipv6-are-served :needs :our-engine)
  (where-ipv6 (check-names "::" "::1" "::1")))

(define-server-test (an-ipv4-peer-of-an-ipv6-server-has-its-ipv4-address :needs :our-engine)
  (where-ipv6
   (if (dual-stack-p)
       (check-names "::" "127.0.0.1" "127.0.0.1")
       (skip "Sockets for IPv6 take no IPv4 here."))))

(defun dual-stack-p ()
  (let ((listener (usocket:socket-listen "::" 0)))
    (unwind-protect
         (handler-case (progn (disconnect (connect (usocket:get-local-port listener))) t)
           (error () nil))
      (usocket:socket-close listener))))

;;; IPv4

(define-server-test (all-addresses-of-ipv4-are-served :needs :our-engine)
  (check-names "0.0.0.0" "127.0.0.1" "127.0.0.1"))

(define-server-test (after-a-restart-elsewhere-our-end-has-the-new-port :needs :our-engine)
  (serving (:port (free-port)) (("/who" (who-talks))) ; the system gives it to nobody else
    (let* ((acceptor *server*)
           (port (hunchentoot:acceptor-port acceptor)))
      (flet ((check ()
               (is (uiop:string-suffix-p (ask-text "/who")
                                         (format nil " ~D" (hunchentoot:acceptor-port acceptor))))))
        (check)
        (hunchentoot:stop acceptor)
        (with-acceptor (other :port port)
          (reinitialize-instance acceptor :port 0)
          (hunchentoot:start acceptor)
          (let ((*server* acceptor)) (check)))))))

;;; Paths

(defmacro where-special (&body body)
  "Evaluates BODY where there are such listeners; elsewhere checks that they are refused."
  `(if (platform:special-listeners-supported-p)
       (progn ,@body)
       (is (report-p (error-of (lambda () (make-test-acceptor :listen-path "/tmp/socket")))
                     "LISTEN-PATH"))))

(defmacro with-path ((path) &body body)
  "Evaluates BODY, where there are sockets on paths, with PATH bound to a pathname for one."
  (let ((directory (gensym "DIRECTORY")))
    `(where-special
      (with-directory (,directory)
        (let ((,path (merge-pathnames "socket" ,directory)))
          ,@body)))))

(defmacro serving-path ((path &rest initargs) (&rest routes) &body body)
  `(serving (:address nil :listen-path ,path ,@initargs) ,routes ,@body))

(defun ask-path (path target)
  "The text of the answer to a request for TARGET on the Unix-domain socket PATH."
  (with-open-connection (connection (connect-to-path path))
    (exchange-text connection target)))

(define-server-test (a-path-is-served-and-its-connections-are-kept :needs :our-engine)
  (with-path (path)
    (serving-path (path) (("/yo" "Hey!"))
      (with-open-connection (connection (connect-to-path path))
        (loop repeat 3 do (is (equal "Hey!" (exchange-text connection "/yo"))))
        (is (equal '("unix:") (mapcar (lambda (plist) (getf plist :peer))
                                      (recycling:list-connections *server*))))
        (is (equalp "close" (response-header
                             (exchange connection "/yo" :headers '(("Connection" . "close")))
                             "connection")))
        (is (closed-by-server-p connection)))
      (let ((stats (recycling:stats *server*)))
        (is (= 4 (getf stats :served)))
        (is (= 1 (getf stats :accepted)))))))

(define-server-test (a-request-over-a-path-has-names :needs :our-engine)
  (with-path (path)
    (serving-path (path) (("/who" (who-talks)))
      (let ((name (format nil "unix:~A" (uiop:native-namestring path))))
        (is (equal (format nil "unix: 0 ~A 0" name) (ask-path path "/who")))
        (is (equal name (hunchentoot:acceptor-address *server*)))
        (is (eql 0 (hunchentoot:acceptor-port *server*)))))))

(define-server-test (an-acceptor-of-a-path-has-no-port-before-it-starts :needs :our-engine)
  (with-path (path)
    (is (eql 0 (hunchentoot:acceptor-port (make-instance 'recycling:parallel-acceptor
                                                         :listen-path path))))))

(define-server-test (starting-twice-is-refused-on-special-listeners-too :needs :our-engine)
  (with-path (path)
    (dolist (initargs `((:listen-path ,path) (:reuse-port t)))
      (with-routes (("/yo" "Hey!"))
        (let ((acceptor (apply #'make-test-acceptor :address nil initargs)))
          (hunchentoot:start acceptor)
          (unwind-protect
               (let ((listener (recycling::acceptor-listener acceptor)))
                 (signals hunchentoot:hunchentoot-error (hunchentoot:start acceptor))
                 (is (eq listener (recycling::acceptor-listener acceptor))))
            (stop-if-started acceptor)))))))

(define-server-test (the-file-of-a-path-has-the-mode-asked-for :needs :our-engine)
  (with-path (path)
    (dolist (mode '(#o600 #o666))
      (serving-path (path :listen-mode mode) ()
        (is (= mode (file-mode path)))))))

(define-server-test (stopping-removes-the-file-and-starting-makes-it-again :needs :our-engine)
  (with-path (path)
    (serving-path ((uiop:native-namestring path)) (("/yo" "Hey!"))
      (loop repeat 10
            do (is (equal "Hey!" (ask-path path "/yo")))
               (hunchentoot:stop *server*)
               (is (file-gone-p path))
               (hunchentoot:start *server*)))))

(define-server-test (a-soft-stop-of-a-path-answers-what-runs :needs :our-engine)
  (with-path (path)
    (let ((entered (make-latch 1)) (release (make-gate)))
      (serving-path (path) (("/slow" (count-down entered) (await release) "slow"))
        (let ((client (in-background ("slow client") (ask-path path "/slow"))))
          (await entered)
          (let* ((acceptor *server*)
                 (stopping (in-background ("stop") (hunchentoot:stop acceptor :soft t))))
            (eventually ("connections to be refused")
              (handler-case (progn (disconnect (connect-to-path path)) nil)
                (error () t)))
            (is (not (task-done-p stopping)))
            (open-gate release)
            (is (equal "slow" (task-result client)))
            (is (equal (list acceptor '()) (multiple-value-list (task-result stopping))))))))))

(define-server-test (the-socket-of-a-dead-server-is-replaced :needs :our-engine)
  (with-path (path)
    (usocket:socket-close (path-listener path)) ; leaves its file
    (is (not (file-gone-p path)))
    (serving-path (path) (("/yo" "Hey!"))
      (is (equal "Hey!" (ask-path path "/yo"))))))

(defun cannot-start-p (acceptor)
  "True when ACCEPTOR does not start, tells why, and is left stopped."
  (and (handler-case (progn (hunchentoot:start acceptor) nil)
         (platform:listen-failed () t))
       (not (hunchentoot:started-p acceptor))))

(define-server-test (the-socket-of-a-server-that-answers-is-not-replaced :needs :our-engine)
  (with-path (path)
    (serving-path (path) (("/yo" "Hey!"))
      (is (cannot-start-p (make-test-acceptor :address nil :listen-path path)))
      (is (equal "Hey!" (ask-path path "/yo"))))))

(define-server-test (a-file-that-is-no-socket-is-not-replaced :needs :our-engine)
  (with-path (path)
    (write-file (uiop:pathname-directory-pathname path) "socket" "precious")
    (is (cannot-start-p (make-test-acceptor :address nil :listen-path path)))
    (is (equalp (octets "precious") (file-octets path)))))

(define-server-test (a-path-that-is-too-long-or-nowhere-is-told-by-start :needs :our-engine)
  (where-special
   (is (cannot-start-p (make-test-acceptor :address nil :listen-path "/nowhere/at/all")))
   (is (cannot-start-p (make-test-acceptor :address nil :listen-path
                                           (make-string 200 :initial-element #\x))))))

(define-server-test (stopping-leaves-the-file-of-another-server :needs :our-engine)
  (with-path (path)
    (serving-path (path) ()
      (delete-file path)
      (let ((other (path-listener path)))
        (unwind-protect (progn (hunchentoot:stop *server*)
                               (is (not (file-gone-p path))))
          (usocket:socket-close other))))))

(define-server-test
    (a-path-may-have-letters-that-mean-something-else-in-pathnames :needs :our-engine)
  (where-special
   (with-directory (directory)
     (let ((path (uiop:parse-native-namestring
                  (format nil "~Aa[b]*c" (uiop:native-namestring directory)))))
       (serving-path (path) (("/yo" "Hey!"))
         (is (equal "Hey!" (ask-path path "/yo"))))))))

(define-server-test a-path-on-which-nobody-can-listen-leaves-no-file
  (with-path (path)
    (let ((name (uiop:native-namestring path))
          (descriptor (platform::path-socket)))
      (platform::bind-path descriptor name)
      (platform:close-descriptor descriptor)
      (is (not (file-gone-p path)))
      (signals platform:listen-failed (platform::listen-with-mode -1 name nil 5))
      (is (file-gone-p path)))))

(define-server-test a-path-that-cannot-get-its-mode-is-not-listened-on
  (with-path (path)
    (let ((name (uiop:native-namestring path))
          (descriptor (platform::path-socket)))
      (unwind-protect
           (progn
             (platform::bind-path descriptor name)
             (delete-file path)
             (signals platform:listen-failed
               (platform::listen-with-mode descriptor name #o600 5)))
        (platform:close-descriptor descriptor)))))

;;; Deferred accepts

(define-server-test (a-silent-connection-is-the-kernels-alone :needs :our-engine)
  (where-special
   (serving (:defer-accept 60) (("/yo" "Hey!"))
     (with-connection (connection)
       ;; It came first, so it would have been accepted first.
       (is (equal "Hey!" (ask-text "/yo")))
       (is (= 1 (getf (recycling:stats *server*) :accepted)))
       (is (equal "Hey!" (exchange-text connection "/yo")))))))

(define-server-test (a-silent-connection-is-accepted-after-a-second :needs :our-engine)
  (where-special
   (serving () (("/yo" "Hey!"))
     (with-connection (connection)
       (eventually ("the connection") (= 1 (getf (recycling:stats *server*) :accepted)))))))

(define-server-test (connections-are-accepted-at-once-on-demand :needs :our-engine)
  (where-special
   (serving (:defer-accept nil) (("/yo" "Hey!"))
     (with-connection (connection)
       (is (equal "Hey!" (ask-text "/yo")))
       (is (= 2 (getf (recycling:stats *server*) :accepted)))))))
