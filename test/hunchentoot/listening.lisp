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

;;; Addresses

(defparameter *ipv6-p*
  ;; Asked once: usocket loses a descriptor where it has IPv6 for this Lisp not yet.
  (handler-case (progn (usocket:socket-close (usocket:socket-listen "::1" 0)) t)
    (error () nil))
  "True when this machine and this Lisp's usocket have IPv6.")

(defun dual-stack-p ()
  (let ((listener (usocket:socket-listen "::" 0)))
    (unwind-protect
         (handler-case (progn (disconnect (connect (usocket:get-local-port listener))) t)
           (error () nil))
      (usocket:socket-close listener))))

(define-server-test (both-ends-have-names-on-any-address :needs :our-engine)
  (loop for (address host expected) in `(("0.0.0.0" "127.0.0.1" "127.0.0.1")
                                         ,@(when *ipv6-p*
                                             '(("::1" "::1" "::1") ("::" "::1" "::1")))
                                         ,@(when (and *ipv6-p* (dual-stack-p))
                                             '(("::" "127.0.0.1" "127.0.0.1"))))
        do (serving (:address address) (("/who" (who-talks)))
             (let ((port (hunchentoot:acceptor-port *server*)))
               (with-open-connection (connection (connect port host))
                 (loop repeat 2
                       do (is (equal (format nil "~A ~D ~A ~D" expected (client-port connection)
                                             expected port)
                                     (exchange-text connection "/who"))))
                 (is (equal (format nil (if (find #\: expected) "[~A]:~D" "~A:~D") expected
                                    (client-port connection))
                            (getf (first (recycling:list-connections *server*)) :peer))))))))

(define-server-test (after-a-restart-elsewhere-our-end-has-the-new-port :needs :our-engine)
  (serving (:port (free-port)) (("/who" (who-talks))) ; the system gives it to nobody else
    (let* ((acceptor *server*)
           (port (hunchentoot:acceptor-port acceptor)))
      (hunchentoot:stop acceptor)
      (with-acceptor (other :port port)
        (reinitialize-instance acceptor :port 0)
        (hunchentoot:start acceptor)
        (let ((*server* acceptor))
          (is (uiop:string-suffix-p (ask-text "/who")
                                    (format nil " ~D" (hunchentoot:acceptor-port acceptor)))))))))

;;; Paths

(defmacro where-special (&body body)
  "Evaluates BODY where there are such listeners; elsewhere checks that they are refused."
  `(if (platform:readiness-supported-p)
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
    (is (eql 0 (hunchentoot:acceptor-port (make-test-acceptor :address nil :listen-path path))))
    (serving-path (path :listen-mode #o600) (("/who" (who-talks)))
      (let ((name (format nil "unix:~A" (uiop:native-namestring path))))
        (is (= #o600 (file-mode path)))
        (is (equal name (hunchentoot:acceptor-address *server*)))
        (is (eql 0 (hunchentoot:acceptor-port *server*)))
        (with-open-connection (connection (connect-to-path path))
          (loop repeat 3
                do (is (equal (format nil "unix: 0 ~A 0" name) (exchange-text connection "/who"))))
          (is (equal '("unix:") (mapcar (lambda (plist) (getf plist :peer))
                                        (recycling:list-connections *server*))))
          (exchange connection "/who" :headers '(("Connection" . "close")))
          (is (closed-by-server-p connection)))))))

(define-server-test (stopping-removes-the-file-and-starting-makes-it-again :needs :our-engine)
  (with-path (path)
    (serving-path ((uiop:native-namestring path)) (("/yo" "Hey!"))
      (loop repeat 5
            do (is (equal "Hey!" (ask-path path "/yo")))
               (hunchentoot:stop *server* :soft t)
               (is (file-gone-p path))
               (hunchentoot:start *server*)))))

(defun start-refused-p (&rest initargs)
  "True when an acceptor made with INITARGS does not start, tells why, and is left stopped."
  (let ((acceptor (apply #'make-test-acceptor :address nil initargs)))
    (and (handler-case (progn (hunchentoot:start acceptor) nil)
           (recycling:listen-failed (condition)
             (not (search "of all addresses" (princ-to-string condition)))))
         (not (hunchentoot:started-p acceptor)))))

(define-server-test (the-socket-of-a-dead-server-is-replaced-and-no-other-file :needs :our-engine)
  (with-path (path)
    (usocket:socket-close (path-listener path)) ; leaves its file
    (is (not (file-gone-p path)))
    (serving-path (path) (("/yo" "Hey!"))
      (is-true (start-refused-p :listen-path path))
      (is (equal "Hey!" (ask-path path "/yo")))
      (delete-file path)
      (let ((other (path-listener path)))
        (unwind-protect (progn (hunchentoot:stop *server*)
                               (is (not (file-gone-p path)) "It is another server's."))
          (usocket:socket-close other))))
    (delete-file path)
    (write-file (uiop:pathname-directory-pathname path) "socket" "precious")
    (is-true (start-refused-p :listen-path path))
    (is (equalp (octets "precious") (file-octets path)))
    (is-true (start-refused-p :listen-path "/nowhere/at/all"))
    (is-true (start-refused-p :listen-path (make-string 108 :initial-element #\x)))
    (is-true (start-refused-p :listen-path (format nil "~A~C" path (code-char 0))))))

(define-server-test
    (a-path-may-have-letters-that-mean-something-else-in-pathnames :needs :our-engine)
  (where-special
   (with-directory (directory)
     (let* ((name (format nil "~Aa[b]*\"\\c" (uiop:native-namestring directory)))
            (path (uiop:parse-native-namestring name)))
       (with-globals ((hunchentoot:*dispatch-table*
                       (list (recycling:make-metrics-dispatcher "/metrics"))))
         (serving-path (path) (("/yo" "Hey!"))
           (is (equal "Hey!" (ask-path path "/yo")))
           (is (search (format nil "{server=\"unix:~A\"}"
                               (cl-ppcre:regex-replace-all "[\"\\\\]" name "\\\\\\&"))
                       (ask-path path "/metrics")))))))))

;;; Deferred accepts

(define-server-test (a-silent-connection-is-the-kernels-alone-until-it-speaks :needs :our-engine)
  (where-special
   (loop for (defer-accept accepted) in '((60 1) (nil 2))
         do (serving (:defer-accept defer-accept) (("/yo" "Hey!"))
              (with-connection (connection)
                ;; It came first, so it would have been accepted first.
                (is (equal "Hey!" (ask-text "/yo")))
                (is (= accepted (figure :accepted)))
                (is (equal "Hey!" (exchange-text connection "/yo"))))))))

;;; Inherited descriptors

(defmacro with-inherited ((descriptor port) &body body)
  "Evaluates BODY, where descriptors can be inherited, with DESCRIPTOR bound to one that listens,
and PORT to where."
  (let ((listener (gensym "LISTENER")))
    `(where-special
      (with-listener (,listener)
        (let ((,descriptor (platform:socket-descriptor ,listener))
              (,port (usocket:get-local-port ,listener)))
          (declare (ignorable ,port))
          ,@body)))))

(defmacro serving-descriptor ((descriptor &rest initargs) (&rest routes) &body body)
  `(serving (:address nil :listen-fd ,descriptor ,@initargs) ,routes ,@body))

(define-server-test (an-inherited-descriptor-is-served-and-listens-on-after-a-stop
                     :needs :our-engine)
  (with-inherited (descriptor port)
    (serving-descriptor (descriptor) (("/yo" "Hey!"))
      (is (= port (hunchentoot:acceptor-port *server*)))
      (is (equal "127.0.0.1" (hunchentoot:acceptor-address *server*)))
      (loop repeat 3
            do (is (equal "Hey!" (ask-text "/yo")))
               (is (equal (list *server* '())
                          (multiple-value-list
                           (hunchentoot:stop *server* :timeout (* 3 *patience*)))))
               ;; It waits in the kernel, for the next server.
               (with-connection (connection port)
                 (send-request connection "/yo")
                 (hunchentoot:start *server*)
                 (is (equal "Hey!" (response-text (read-response connection)))))))))

(define-server-test (two-servers-share-an-inherited-descriptor :needs :our-engine)
  (with-inherited (descriptor port)
    (serving-descriptor (descriptor) (("/yo" "Hey!"))
      (let ((first *server*))
        (with-acceptor (second :address nil :listen-fd descriptor)
          (loop repeat 20 do (is (equal "Hey!" (ask-text "/yo"))))
          (hunchentoot:stop first)
          (loop repeat 20 do (is (equal "Hey!" (ask-text "/yo")))))))))

(define-server-test (an-inherited-descriptor-may-be-of-a-path :needs :our-engine)
  (with-path (path)
    (let ((listener (path-listener path)))
      (unwind-protect
           (serving-descriptor ((platform:socket-descriptor listener)) (("/who" (who-talks)))
             (is (equal (format nil "unix: 0 unix:~A 0" (uiop:native-namestring path))
                        (ask-path path "/who")))
             (hunchentoot:stop *server*)
             (is (not (file-gone-p path))))
        (usocket:socket-close listener))))
  (where-special
   (is-true (start-refused-p :listen-fd 1))
   (is-true (start-refused-p :listen-fd 19999))))

;;; Sockets of systemd

(defun call-with-neighbours (function)
  "Calls FUNCTION with two listeners, of which the second has the descriptor after the first's."
  (let ((listeners (list (usocket:socket-listen "127.0.0.1" 0))))
    (unwind-protect
         (loop for (before . nil) = listeners
               for next = (usocket:socket-listen "127.0.0.1" 0)
               do (push next listeners)
               until (= (platform:socket-descriptor next)
                        (1+ (platform:socket-descriptor before)))
               finally (funcall function before next))
      (mapc #'usocket:socket-close listeners))))

(defun reason-of-start (descriptor)
  "Why an acceptor of DESCRIPTOR cannot start, a string; NIL when it can."
  (handler-case (progn (hunchentoot:stop (hunchentoot:start (make-test-acceptor
                                                             :address nil :listen-fd descriptor)))
                       nil)
    (recycling:listen-failed (condition) (princ-to-string condition))))

(define-server-test (sockets-of-systemd-are-served-and-passed-on-to-nobody
                     :needs (:our-engine :systemd))
  (call-with-neighbours
   (lambda (first second)
     (with-globals ((platform::*first-inherited-descriptor* (platform:socket-descriptor first))
                    (platform::*handed-over* nil))
       (with-environment (("LISTEN_PID" (princ-to-string (process-number))) ("LISTEN_FDS" "2")
                          ("LISTEN_FDNAMES" "web:shop.socket"))
         (serving-descriptor ('(:systemd "shop.socket")) (("/yo" "Hey!"))
           (is (= (usocket:get-local-port second) (hunchentoot:acceptor-port *server*)))
           (is (equal "Hey!" (ask-text "/yo")))
           (is (closed-on-exec-p (platform:socket-descriptor second)))
           (dolist (name '("LISTEN_PID" "LISTEN_FDS" "LISTEN_FDNAMES"))
             (is (null (uiop:getenv name)) "~A" name)))
         ;; The variables are gone, and the names known.
         (serving-descriptor ('(:systemd "web")) (("/yo" "Hey!"))
           (is (= (usocket:get-local-port first) (hunchentoot:acceptor-port *server*))))
         (is (search "none is named \"mail\", only \"web\", \"shop.socket\""
                     (reason-of-start '(:systemd "mail")))))))))

(define-server-test (what-systemd-handed-to-others-or-did-not-hand-over-is-refused
                     :needs :our-engine)
  (where-special
   (with-globals ((platform::*handed-over* nil))
     (is (search "LISTEN_PID" (reason-of-start :systemd)))
     (with-environment (("LISTEN_PID" "1") ("LISTEN_FDS" "1"))
       (is (search "LISTEN_PID" (reason-of-start :systemd))))
     (with-environment (("LISTEN_PID" (princ-to-string (process-number))) ("LISTEN_FDS" "0"))
       (is (search "LISTEN_FDS" (reason-of-start :systemd)))))))

;;; Shared ports

(define-server-test (a-port-is-shared-by-those-who-both-want-to :needs :our-engine)
  (where-special
   (serving (:reuse-port t) (("/yo" "Hey!"))
     (let ((port (hunchentoot:acceptor-port *server*)))
       (is (plusp port))
       (with-acceptor (second :reuse-port t :port port)
         (is (= port (hunchentoot:acceptor-port second)))
         (loop repeat 20 do (is (equal "Hey!" (ask-text "/yo")))))
       (signals error (hunchentoot:start (make-test-acceptor :port port)))
       (is (equal "Hey!" (ask-text "/yo")))))))
