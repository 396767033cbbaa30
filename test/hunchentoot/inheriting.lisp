(in-package #:hunchentoot-recycling-taskmaster-test)

;;; Listeners that are not the acceptor's alone.

(in-suite listening)

;;; Inherited descriptors

(defmacro with-inherited ((descriptor port) &body body)
  "Evaluates BODY, where descriptors can be inherited, with DESCRIPTOR bound to one that listens,
and PORT to where."
  (let ((listener (gensym "LISTENER")))
    `(where-special
      (with-listener (,listener)
        (let ((,descriptor (platform:listener-descriptor ,listener))
              (,port (usocket:get-local-port ,listener)))
          (declare (ignorable ,port))
          ,@body)))))

(defmacro serving-descriptor ((descriptor &rest initargs) (&rest routes) &body body)
  `(serving (:address nil :listen-fd ,descriptor ,@initargs) ,routes ,@body))

(define-server-test (an-inherited-descriptor-is-served :needs :our-engine)
  (with-inherited (descriptor port)
    (serving-descriptor (descriptor) (("/yo" "Hey!"))
      (is (= port (hunchentoot:acceptor-port *server*)))
      (is (equal "127.0.0.1" (hunchentoot:acceptor-address *server*)))
      (loop repeat 10 do (is (equal "Hey!" (ask-text "/yo"))))
      (with-connection (connection)
        (loop repeat 3 do (is (equal "Hey!" (exchange-text connection "/yo"))))))))

(define-server-test (an-inherited-descriptor-accepts-as-its-maker-wants-it :needs :our-engine)
  (with-inherited (descriptor port)
    (serving-descriptor (descriptor :defer-accept 60) (("/yo" "Hey!"))
      (with-connection (connection port)
        (is (equal "Hey!" (ask-text "/yo")))
        (is (= 2 (getf (recycling:stats *server*) :accepted)))))))

(define-server-test (stopping-leaves-an-inherited-descriptor-listening :needs :our-engine)
  (with-inherited (descriptor port)
    (serving-descriptor (descriptor) (("/yo" "Hey!"))
      (loop repeat 3
            do (is (equal "Hey!" (ask-text "/yo")))
               (is (equal (list *server* '())
                          (multiple-value-list
                           (hunchentoot:stop *server* :timeout (* 3 *patience*)))))
               ;; It waits in the kernel, for the next server.
               (with-connection (connection port)
                 (send-request connection "/yo")
                 (hunchentoot:start *server*)
                 (let ((response (read-response connection)))
                   (is (equal "Hey!" (response-text response)))))))))

(define-server-test (others-accept-on-an-inherited-descriptor-after-a-stop :needs :our-engine)
  (where-special
   (with-listener (listener)
     (serving-descriptor ((platform:listener-descriptor listener)) ()
       (hunchentoot:stop *server* :soft t)
       (with-connection (connection (usocket:get-local-port listener))
         (let ((socket (eventually ("the connection to be accepted")
                         (platform:accept-connection listener))))
           (is (equal (client-port connection) (nth-value 1 (platform:peer-name socket))))
           (platform:close-socket socket)))))))

(defmacro with-inherited-listener ((listener port) &body body)
  "Evaluates BODY with LISTENER bound to one of an inherited descriptor, and PORT to where."
  (let ((descriptor (gensym "DESCRIPTOR")))
    `(with-inherited (,descriptor ,port)
       (let ((,listener (platform:open-inherited-listener ,descriptor)))
         (unwind-protect (progn
                           (platform:prepare-listener ,listener)
                           ,@body)
           (platform:close-listener ,listener))))))

(define-server-test an-inherited-descriptor-accepts-one-after-another-and-waits-in-between
  (with-inherited-listener (listener port)
    (is (not (blocking-p (platform:listener-descriptor listener))))
    (loop repeat 3
          do (let ((task (in-background ("who accepts") (platform:accept-connection listener))))
               (with-connection (client port)
                 (platform:close-socket (task-result task)))))))

(define-server-test a-descriptor-that-is-no-stream-socket-that-listens-is-refused
  (where-special
   (with-listener (listener)
     (with-connection (client (usocket:get-local-port listener))
       (let ((accepted (platform:accept-connection listener)))
         (signals platform:listen-failed
           (platform:open-inherited-listener accepted))
         (platform:close-socket accepted))))
   (with-path (path)
     (let ((packets (platform::path-socket 5))) ; SOCK_SEQPACKET
       (unwind-protect
            (progn
              (platform::bind-path packets (uiop:native-namestring path))
              (platform::listen-with-mode packets (uiop:native-namestring path) nil 5)
              (signals platform:listen-failed (platform:open-inherited-listener packets)))
         (platform:close-descriptor packets))))))

(define-server-test who-is-woken-at-an-inherited-descriptor-is-told-so
  (with-inherited-listener (listener port)
    (platform:wake-listener listener 1)
    (signals platform:listener-closed (platform:accept-connection listener))))

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
           (serving-descriptor ((platform:listener-descriptor listener)) (("/who" (who-talks)))
             (is (equal (format nil "unix: 0 unix:~A 0" (uiop:native-namestring path))
                        (ask-path path "/who")))
             (is (eql 0 (hunchentoot:acceptor-port *server*)))
             (hunchentoot:stop *server*)
             (is (not (file-gone-p path)))
             (hunchentoot:start *server*)
             (is (uiop:string-prefix-p "unix:" (ask-path path "/who"))))
        (usocket:socket-close listener)))))

(define-server-test (a-descriptor-that-does-not-listen-is-told-by-start :needs :our-engine)
  (where-special
   (is (cannot-start-p (make-test-acceptor :address nil :listen-fd 1)))
   (is (cannot-start-p (make-test-acceptor :address nil :listen-fd 19999)))))

(defun reason-of-start (descriptor)
  "Why an acceptor of DESCRIPTOR cannot start, a string; NIL when it can."
  (handler-case (progn (hunchentoot:stop (hunchentoot:start (make-test-acceptor
                                                             :address nil :listen-fd descriptor)))
                       nil)
    (platform:listen-failed (condition) (princ-to-string condition))))

(define-server-test (the-first-descriptor-of-systemd-is-served :needs :our-engine)
  (with-inherited (descriptor port)
    (with-globals ((platform::*first-inherited-descriptor* descriptor)
                   (platform::*handed-over* nil))
      (with-environment (("LISTEN_PID" (princ-to-string (process-number))) ("LISTEN_FDS" "1"))
        (serving-descriptor (:systemd) (("/yo" "Hey!"))
          (is (= port (hunchentoot:acceptor-port *server*)))
          (is (equal "Hey!" (ask-text "/yo"))))))))

(defun call-with-neighbours (function)
  "Calls FUNCTION with two listeners, of which the second has the descriptor after the first's."
  (let ((listeners (list (usocket:socket-listen "127.0.0.1" 0))))
    (unwind-protect
         (loop for (before . nil) = listeners
               for next = (usocket:socket-listen "127.0.0.1" 0)
               do (push next listeners)
               until (= (platform:listener-descriptor next)
                        (1+ (platform:listener-descriptor before)))
               finally (funcall function before next))
      (mapc #'usocket:socket-close listeners))))

(define-server-test (sockets-of-systemd-are-served-by-their-names :needs (:our-engine :systemd))
  (call-with-neighbours
   (lambda (first second)
     (with-globals ((platform::*first-inherited-descriptor* (platform:listener-descriptor first))
                    (platform::*handed-over* nil))
       (with-environment (("LISTEN_PID" (princ-to-string (process-number))) ("LISTEN_FDS" "2")
                          ("LISTEN_FDNAMES" "web:shop.socket"))
         (serving-descriptor ('(:systemd "shop.socket")) (("/yo" "Hey!"))
           (is (= (usocket:get-local-port second) (hunchentoot:acceptor-port *server*)))
           (is (equal "Hey!" (ask-text "/yo"))))
         ;; The variables are gone, and the names known.
         (serving-descriptor ('(:systemd "web")) (("/yo" "Hey!"))
           (is (= (usocket:get-local-port first) (hunchentoot:acceptor-port *server*))))
         (is (search "none is named \"mail\", only \"web\", \"shop.socket\""
                     (reason-of-start '(:systemd "mail")))))))))

(define-server-test (what-systemd-handed-over-is-passed-on-to-nobody :needs :our-engine)
  (with-inherited (descriptor port)
    (with-globals ((platform::*first-inherited-descriptor* descriptor)
                   (platform::*handed-over* nil))
      (with-environment (("LISTEN_PID" (princ-to-string (process-number)))
                         ("LISTEN_FDS" "1") ("LISTEN_FDNAMES" "http"))
        (is (not (closed-on-exec-p descriptor)))
        (serving-descriptor (:systemd) (("/yo" "Hey!"))
          (is (closed-on-exec-p descriptor))
          (dolist (name '("LISTEN_PID" "LISTEN_FDS" "LISTEN_FDNAMES"))
            (is (null (uiop:getenv name)) "~A" name))
          ;; It is still ours.
          (hunchentoot:stop *server*)
          (hunchentoot:start *server*)
          (is (equal "Hey!" (ask-text "/yo"))))))))

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
       (signals usocket:address-in-use-error
         (hunchentoot:start (make-test-acceptor :port port)))
       (is (equal "Hey!" (ask-text "/yo")))))))

(define-server-test a-shared-port-may-be-taken-again-at-once
  (where-special
   (let ((listener (platform:open-shared-port-listener "127.0.0.1" 0 5)))
     (unwind-protect (is (eql 1 (platform::socket-option (platform:listener-descriptor listener)
                                                         2))) ; SO_REUSEADDR
       (platform:close-listener listener)))))

(define-server-test (an-ipv6-port-is-shared-too :needs :our-engine)
  (where-special
   (where-ipv6
    (serving (:reuse-port t :address "::1") (("/who" (who-talks)))
      (with-open-connection (connection (connect (hunchentoot:acceptor-port *server*) "::1"))
        (is (uiop:string-prefix-p "::1 " (exchange-text connection "/who"))))))))
