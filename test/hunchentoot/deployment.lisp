(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite deployment :in acceptors
  :description "docs/guide/service.md, word for word.")

(in-suite deployment)

(defun lisp-text (page)
  "The text of all Lisp code in the document PAGE, in its order."
  (format nil "~{~A~}" (mapcar #'example-text
                               (remove "lisp" (examples page)
                                       :key #'example-language :test-not #'string=))))

(defun evaluate-service (output)
  "Evaluates the program of docs/guide/service.md, whose standard output is OUTPUT; returns how many
forms it has."
  (let ((*package* *package*) (*standard-output* output) (*error-output* output))
    (with-input-from-string (in (lisp-text "docs/guide/service.md"))
      (loop for form = (read in nil in)
            until (eq form in)
            do (eval form)
            count t))))

(defun shop (name)
  (uiop:find-symbol* name '#:shop))

(defun call-with-shop (function)
  "Calls FUNCTION with a stream of what is logged, while the program of docs/guide/service.md is
loaded."
  (with-globals ((hunchentoot::*easy-handler-alist* '()))
    (let ((output (make-string-output-stream)))
      (unwind-protect
           (progn (is (< 6 (evaluate-service output)))
                  (funcall function output))
        (when (find-package '#:shop)
          (delete-package '#:shop))))))

(defmacro with-main-running ((task port) &body body)
  "Evaluates BODY while the main function of the program runs in TASK, with a socket on PORT as
systemd hands it over."
  (let ((descriptor (gensym "DESCRIPTOR")))
    `(with-inherited (,descriptor ,port)
       (with-globals ((platform::*first-inherited-descriptor* ,descriptor))
         (with-environment (("LISTEN_PID" (princ-to-string (process-number))) ("LISTEN_FDS" "1"))
           (call-with-termination-restored
            (lambda ()
              (let ((,task (in-background ("the main function")
                             (multiple-value-list (funcall (shop '#:main))))))
                (unwind-protect (progn ,@body)
                  (funcall (shop '#:ask-stop))
                  (task-result ,task))))))))))

(define-server-test (the-service-of-the-document-serves-and-ends-with-sigterm
                     :needs (:our-engine :systemd))
  (call-with-shop
   (lambda (output)
     (with-main-running (main port)
       (let* ((acceptor (symbol-value (shop '#:*server*)))
              (*server* acceptor))
         (eventually ("the server to start") (hunchentoot:started-p acceptor))
         (is (= port (hunchentoot:acceptor-port acceptor)))
         (is (equal "Welcome!" (ask-text "/")))
         (is (search "refused 0" (ask-text "/health")))
         (is (eq acceptor (funcall (shop '#:rotate-logs))))
         (is (not (task-done-p main)))
         (terminate-this-process)
         (is (equal (list acceptor '()) (task-result main)))
         (is (not (hunchentoot:started-p acceptor)))
         (is (search "\"GET / HTTP/1.1\" 200" (get-output-stream-string output))))))))

(define-server-test (the-service-answers-what-runs-when-it-is-told-to-end
                     :needs (:our-engine :systemd))
  (call-with-shop
   (lambda (output)
     (declare (ignore output))
     (let ((entered (make-latch 1)) (release (make-gate)))
       (with-routes (("/slow" (count-down entered) (await release) "slow"))
         (with-main-running (main port)
           (let* ((*server* (symbol-value (shop '#:*server*)))
                  (client (progn (eventually ("the server to start")
                                   (hunchentoot:started-p *server*))
                                 (as-client ("a client") (ask-text "/slow")))))
             (await entered)
             (terminate-this-process)
             (eventually ("the note") (symbol-value (shop '#:*stop-asked*)))
             (is (not (task-done-p main)))
             (open-gate release)
             (is (equal "slow" (task-result client))))))))))
