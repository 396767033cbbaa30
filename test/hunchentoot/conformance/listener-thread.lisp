(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* conformance/listener-thread :in conformance
  :description "The thread that programs wait for when they wait for the server to end.")

(defun first-hunchentoot-thread ()
  "What the main functions of many programs look for, to join it."
  (find-if (lambda (thread) (search "hunchentoot" (bt:thread-name thread)))
           (bt:all-threads)))

(defun listener-name ()
  "What Hunchentoot calls the thread of *SERVER* that lives from start to stop."
  (format nil "hunchentoot-listener-~A:~D" (hunchentoot:acceptor-address *server*)
          (hunchentoot:acceptor-port *server*)))

(define-server-test the-first-hunchentoot-thread-lives-until-the-stop
  (serving () (("/" "body"))
    (let ((thread (first-hunchentoot-thread)))
      (is (string= (listener-name) (bt:thread-name thread)))
      (is (eq thread (hunchentoot::acceptor-process
                      (hunchentoot::acceptor-taskmaster *server*))))
      (let ((main (in-background ("the main function")
                    ;; SBCL signals when a thread was destroyed: it ended all the same.
                    (ignore-errors (bt:join-thread thread))
                    :joined)))
        (is (string= "body" (ask-text "/")))
        (is (not (task-done-p main)))
        (stop-if-started *server*)
        (is (eq :joined (task-result main)))))))
