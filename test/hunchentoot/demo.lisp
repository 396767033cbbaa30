(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite demo :in acceptors
  :description "What `make serve' serves.")

(in-suite demo)

(defun call-with-demo (function)
  "Calls FUNCTION while examples/demo.lisp is served; what it defines for requests goes afterwards."
  (with-globals ((hunchentoot::*easy-handler-alist* '())
                 (hunchentoot:*dispatch-table* hunchentoot:*dispatch-table*)
                 (hunchentoot:*hunchentoot-default-external-format*
                  hunchentoot:*hunchentoot-default-external-format*))
    (load (merge-pathnames "examples/demo.lisp" (source-root)))
    (flet ((demo (name &rest arguments)
             (apply #'uiop:symbol-call '#:hunchentoot-recycling-taskmaster-demo name arguments)))
      (let ((*server* (demo '#:serve :port 0 :address "127.0.0.1")))
        (setf (hunchentoot:acceptor-access-log-destination *server*) nil)
        (unwind-protect (funcall function)
          (demo '#:stop))))))

(define-server-test (the-demo-says-hey-and-links-to-pages-that-work :needs :our-engine)
  (call-with-demo
   (lambda ()
     (is (equal "Hey!" (ask-text "/yo")))
     (is (equal "Hey &lt;Bob&gt;!" (ask-text "/yo?name=%3CBob%3E")))
     (is (search "<title>Live</title>" (ask-text "/live")))
     (let ((page (ask-text "/")))
       (dolist (target '("/live" "/chat" "/clock" "/later"))
         (is (search (format nil "<a href=\"~A\">" target) page))
         (is (= 200 (response-status (ask target))))))
     (is (search "1,709,600,813" (ask-text "/later/primes")))
     (with-talk (talk :handshake '(:target "/chat/socket?name=Ann"))
       (is (string= "Ann came; 1 is here now." (hear-text talk)))
       (tell talk " Is anybody here? ")
       (is (string= "Ann: Is anybody here?" (hear-text talk)))
       (is (end-talk talk)))
     (with-connection (connection)
       (send-request connection "/clock/seconds")
       (is (= 200 (response-status (read-head connection))))
       (is (search "event: second" (decode (read-chunk connection))))))))
