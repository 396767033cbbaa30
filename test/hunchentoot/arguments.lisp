(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite arguments :in acceptors
  :description "What MAKE-INSTANCE and REINITIALIZE-INSTANCE of acceptors and taskmasters take.")

(in-suite arguments)

(defparameter *bad-arguments*
  '((:port "4242") (:port 70000) (:port -1) (:port nil) (:port 80.5)
    (:address 127) (:address "") (:address :localhost) (:address #(127 0 0))
    (:address #(127 0 0 256)) (:address #(127 0 0 -1))
    (:listen-backlog "x") (:listen-backlog -1) (:listen-backlog nil)
    (:read-timeout "x") (:read-timeout -1) (:write-timeout :never)
    (:taskmaster nil) (:taskmaster hunchentoot:one-thread-per-connection-taskmaster)
    (:access-log-test 42)
    (:access-log-format :xml) (:access-log-format nil) (:access-log-format "combined")
    (:file-cache-control 60) (:file-cache-control :none)
    (:session-cookie-attributes :lax)
    (:message-log-format :combined) (:message-log-format nil)
    (:defer-accept 0) (:defer-accept 1.5))
  "Arguments of acceptors that make no sense.")

(defun report-p (condition &rest words)
  "True when CONDITION is a PARAMETER-ERROR whose report has all of WORDS."
  (and (typep condition 'hunchentoot:parameter-error)
       (let ((*print-pretty* nil))
         (every (lambda (word) (search word (princ-to-string condition))) words))))

(test nonsense-is-refused-with-name-and-value-and-what-is-allowed
  (loop for (name value) in *bad-arguments*
        for condition = (error-of (lambda ()
                                    (make-instance 'recycling:parallel-easy-acceptor name value)))
        do (is (report-p condition (string name) "must be" (prin1-to-string value))
               "~S ~S: ~A" name value condition)))

(test nonsense-is-refused-by-reinitialize-instance-and-changes-nothing
  (let ((acceptor (make-test-acceptor :port 4242 :name 'before)))
    (loop for (name value) in *bad-arguments*
          for condition = (error-of (lambda ()
                                      (reinitialize-instance acceptor :name 'after name value)))
          do (is (report-p condition (string name)) "~S ~S: ~A" name value condition))
    (is (eql 4242 (hunchentoot:acceptor-port acceptor)))
    (is (eq 'before (hunchentoot:acceptor-name acceptor)))))

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
                                 (:defer-accept nil 1 255))
        do (dolist (value values)
             (is (typep (make-instance 'recycling:parallel-easy-acceptor name value)
                        'hunchentoot:acceptor)
                 "~S ~S" name value)))
  (dolist (taskmaster (list (make-instance 'hunchentoot:one-thread-per-connection-taskmaster)
                            (make-instance 'hunchentoot:single-threaded-taskmaster)
                            (taskmaster)))
    (is (eq taskmaster
            (recycling::acceptor-taskmaster*
             (handler-bind ((warning #'muffle-warning))
               (make-instance 'recycling:parallel-acceptor :taskmaster taskmaster)))))))

(defclass taskmaster-of-somebody (hunchentoot:one-thread-per-connection-taskmaster) ()
  (:documentation "A taskmaster that somebody has chosen."))

(defun stock-warnings (taskmaster)
  "What MAKE-INSTANCE of an acceptor with TASKMASTER warns of, strings."
  (let ((warnings '()))
    (handler-bind ((warning (lambda (warning)
                              (push (princ-to-string warning) warnings)
                              (muffle-warning warning))))
      (make-instance 'recycling:parallel-acceptor :taskmaster taskmaster))
    warnings))

(test stock-taskmasters-are-warned-of
  (let ((warnings (stock-warnings (make-instance 'hunchentoot:one-thread-per-connection-taskmaster
                                              :max-thread-count 20 :max-accept-count 30))))
    (is (= 1 (length warnings)))
    (is (search "recycling-taskmaster :max-thread-count 20 :max-accept-count 30)"
                (first warnings))))
  (is (search ":max-thread-count 1)"
              (first (stock-warnings (make-instance 'hunchentoot:single-threaded-taskmaster)))))
  ;; NIL is a number, too: no limit, and 503 when every thread serves.
  (is (search "recycling-taskmaster :max-thread-count nil)"
              (first
               (stock-warnings (make-instance 'hunchentoot:one-thread-per-connection-taskmaster
                                              :max-thread-count nil :max-accept-count nil)))))
  (is (search "recycling-taskmaster :max-thread-count 20 :max-accept-count nil)"
              (first
               (stock-warnings (make-instance 'hunchentoot:one-thread-per-connection-taskmaster
                                              :max-thread-count 20 :max-accept-count nil)))))
  (is (null (stock-warnings (taskmaster))))
  (is (null (stock-warnings (make-instance 'taskmaster-of-somebody)))))

(define-server-test (a-vector-of-octets-is-an-address :needs :our-engine)
  (serving (:address (vector 127 0 0 1)) (("/yo" "Hey!"))
    (is (equal "Hey!" (ask-text "/yo")))))

(define-server-test (a-format-is-looked-for-at-the-start :needs :our-engine)
  (let ((acceptor (make-test-acceptor :access-log-format 'format-defined-later)))
    (fmakunbound 'format-defined-later)
    (check-sentence ((hunchentoot:start acceptor) hunchentoot:parameter-error)
                    "ACCESS-LOG-FORMAT" "FORMAT-DEFINED-LATER")
    (is (not (hunchentoot:started-p acceptor)))
    (setf (fdefinition 'format-defined-later) (constantly "a line"))
    (unwind-protect
         (progn (hunchentoot:start acceptor)
                (is (hunchentoot:started-p acceptor)))
      (hunchentoot:stop acceptor)
      (fmakunbound 'format-defined-later))))

(define-server-test (a-format-that-names-no-function-is-refused-at-the-start :needs :our-engine)
  (dolist (format '(when progn))
    (let ((acceptor (make-test-acceptor :access-log-format format)))
      (unwind-protect
           (check-sentence ((hunchentoot:start acceptor) hunchentoot:parameter-error)
                           "ACCESS-LOG-FORMAT" (string format))
        (stop-if-started acceptor)))))

(test parking-is-taken-for-the-taskmaster
  (dolist (parking '(nil t))
    (let ((taskmaster (taskmaster :parking (not parking))))
      (make-instance 'recycling:parallel-acceptor :taskmaster taskmaster :parking parking)
      (is (eq parking (recycling::taskmaster-parking-p taskmaster)))
      (let ((stock (make-instance 'hunchentoot:single-threaded-taskmaster)))
        (is (report-p (error-of (lambda ()
                                  (make-instance 'recycling:parallel-acceptor
                                                 :parking parking :taskmaster stock)))
                      "PARKING" "RECYCLING-TASKMASTER"))))))

;;; The taskmaster

(test what-else-a-count-may-be-is-told
  (dolist (initargs '((:max-thread-count 0) (:standby-thread-count 9 :max-thread-count 8)))
    (is (report-p (error-of (lambda () (apply #'taskmaster initargs))) "MAX-THREAD-COUNT" "NIL")))
  (dolist (count '(10 "many" 0))
    (is (report-p (error-of (lambda () (taskmaster :max-thread-count 10 :max-accept-count count)))
                  "MAX-ACCEPT-COUNT" ":UNLIMITED" "NIL" (prin1-to-string count)))))

(test names-of-threads-tell-them-apart
  (dolist (control '("none" "" "~~" 42))
    (is (report-p (error-of (lambda () (taskmaster :worker-thread-name-format control)))
                  "WORKER-THREAD-NAME-FORMAT" (prin1-to-string control))))
  (is (equal "<~A>" (recycling:taskmaster-worker-thread-name-format
                     (taskmaster :worker-thread-name-format "<~A>")))))

(test a-taskmaster-is-reinitialised-as-it-is-made
  (let ((taskmaster (taskmaster :standby-thread-count 4 :max-thread-count 10)))
    (dolist (initargs '((:max-thread-count 0) (:max-thread-count 3) (:standby-thread-count 11)
                        (:max-accept-count 5) (:worker-thread-name-format "none")))
      (is (report-p (error-of (lambda () (apply #'reinitialize-instance taskmaster initargs)))
                    (string (first initargs)))
          "~S" initargs))
    (is (= 10 (hunchentoot:taskmaster-max-thread-count taskmaster)))
    (reinitialize-instance taskmaster :max-thread-count 5 :standby-thread-count nil
                                      :worker-thread-name-format nil)
    (is (= 5 (recycling:taskmaster-standby-thread-count taskmaster)))
    (is (stringp (recycling:taskmaster-worker-thread-name-format taskmaster)))))

(define-server-test (limits-that-are-reinitialised-count-at-once :needs :our-engine)
  (with-busy-threads (acceptor 1 :max-thread-count 1)
    (reinitialize-instance (recycling::acceptor-taskmaster* acceptor) :max-thread-count 2)
    (is (equal "quick" (ask-text "/quick")))))
