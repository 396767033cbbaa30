(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite taskmaster :in all
  :description "Arguments of the taskmaster, and what the acceptors make of them.")

(in-suite taskmaster)

(defun taskmaster (&rest initargs)
  (apply #'make-instance 'recycling:recycling-taskmaster initargs))

(test defaults-are-hunchentoots
  (let ((taskmaster (taskmaster)))
    (is (= recycling:*default-standby-thread-count* 8
           (recycling:taskmaster-standby-thread-count taskmaster)))
    (is (= 100 (hunchentoot:taskmaster-max-thread-count taskmaster)))
    (is (eq :unlimited (hunchentoot:taskmaster-max-accept-count taskmaster)))))

(test fewer-threads-than-the-default-standby-are-fine
  (is (= 3 (recycling:taskmaster-standby-thread-count (taskmaster :max-thread-count 3)))))

(test no-limit-is-fine
  (is (null (hunchentoot:taskmaster-max-thread-count (taskmaster :max-thread-count nil)))))

;;; What they do

(defun request-thread-name ()
  (bt:thread-name (bt:current-thread)))

(define-server-test (threads-are-named-as-asked :needs :our-engine)
  (serving (:taskmaster (taskmaster :worker-thread-name-format "shop ~A"))
      (("/name" (request-thread-name)))
    (is (uiop:string-prefix-p "shop 127.0.0.1:" (ask-text "/name")))))

(define-server-test (threads-have-hunchentoots-name-by-default :needs :our-engine)
  (serving () (("/name" (request-thread-name)))
    (is (uiop:string-prefix-p "http-worker-" (ask-text "/name")))))

(define-server-test (threads-are-recycled :needs :our-engine)
  (serving (:taskmaster (taskmaster :standby-thread-count 2 :max-thread-count 2))
      (("/name" (request-thread-name)))
    (is (<= (length (remove-duplicates (loop repeat 20 collect (ask-text "/name"))
                                       :test #'equal))
            2))))

(defmacro as-client ((name) &body body)
  "Evaluates BODY in a background task called NAME, with the server of this thread."
  (let ((server (gensym "SERVER")))
    `(let ((,server *server*))
       (in-background (,name)
         (let ((*server* ,server)) ,@body)))))

(defmacro with-busy-threads ((acceptor count &rest initargs) &body body)
  "Evaluates BODY while COUNT requests of ACCEPTOR, whose taskmaster is made of INITARGS, run;
/quick answers at once."
  `(let ((release (make-gate)) (entered (make-latch ,count)))
     (with-routes (("/slow" (count-down entered) (await release) "slow")
                   ("/quick" "quick"))
       (with-acceptor (,acceptor :taskmaster (taskmaster ,@initargs))
         (let ((slow (loop repeat ,count
                           collect (as-client ("slow client") (ask-text "/slow")))))
           (await entered)
           (unwind-protect (progn ,@body)
             (open-gate release)
             (is (every (lambda (task) (equal "slow" (task-result task))) slow))))))))

(define-server-test (threads-have-names-of-their-own :needs :our-engine)
  (with-busy-threads (acceptor 3)
    (let ((names (remove-if-not (lambda (name)
                                  (search (format nil ":~D-" (hunchentoot:acceptor-port acceptor))
                                          name))
                                ;; Threads of ECL's own are named by symbols.
                                (mapcar (lambda (thread) (string (bt:thread-name thread)))
                                        (bt:all-threads)))))
      (is (<= 3 (length names)))
      (is (equal names (remove-duplicates names :test #'string=))))))

(define-server-test (without-parking-an-idle-connection-keeps-its-thread :needs :our-engine)
  (serving (:parking nil) (("/yo" "Hey!"))
    (with-connection (connection)
      (is (equal "Hey!" (exchange-text connection "/yo")))
      (eventually ("the connection to be idle")
        (equal '(:idle) (mapcar (lambda (plist) (getf plist :state))
                                (recycling:list-connections *server*)))))))

(define-server-test (a-busy-thread-keeps-nobody-waiting :needs :our-engine)
  (with-busy-threads (acceptor 3 :standby-thread-count 1)
    (is (equal "quick" (ask-text "/quick")))))

(define-server-test (without-accept-count-who-comes-too-late-is-told-when-to-retry
                     :needs :our-engine)
  (with-busy-threads (acceptor 2 :max-thread-count 2 :max-accept-count nil)
    (let ((response (ask "/quick")))
      (is (= 503 (response-status response)))
      (is (equal "1" (response-header response "retry-after")))
      (is (equalp "close" (response-header response "connection"))))
    (is (= 1 (getf (recycling:stats acceptor) :refused)))))

(define-server-test (with-accept-count-some-wait-and-the-rest-is-refused :needs :our-engine)
  (with-busy-threads (acceptor 1 :max-thread-count 1 :max-accept-count 2)
    (let ((waiting (as-client ("waiting client") (ask-text "/quick"))))
      (eventually ("a client to be let in")
        (= 2 (getf (recycling:stats acceptor) :open)))
      (is (= 503 (response-status (ask "/quick"))))
      (is (not (task-done-p waiting)))
      (open-gate release)
      (is (equal "quick" (task-result waiting))))))

(define-server-test (by-default-who-comes-late-waits :needs :our-engine)
  (with-busy-threads (acceptor 2 :max-thread-count 2)
    (let ((waiting (as-client ("waiting client") (ask-text "/quick"))))
      (is (= 2 (getf (recycling:stats acceptor) :threads)))
      (is (not (task-done-p waiting)))
      (open-gate release)
      (is (equal "quick" (task-result waiting)))
      (is (zerop (getf (recycling:stats acceptor) :refused))))))

(define-server-test (a-raised-maximum-counts-at-once :needs :our-engine)
  (with-busy-threads (acceptor 1 :max-thread-count 1)
    (setf (hunchentoot:taskmaster-max-thread-count
           (hunchentoot::acceptor-taskmaster acceptor))
          2)
    (is (equal "quick" (ask-text "/quick")))))

(define-server-test (a-changed-accept-count-counts-at-once :needs :our-engine)
  (dolist (change (list (lambda (taskmaster count)
                          (setf (hunchentoot:taskmaster-max-accept-count taskmaster) count))
                        (lambda (taskmaster count)
                          (reinitialize-instance taskmaster :max-accept-count count))))
    (with-busy-threads (acceptor 1 :max-thread-count 1)
      (funcall change (hunchentoot::acceptor-taskmaster acceptor) nil)
      (is (= 503 (response-status (ask "/quick")))))))

(define-server-test (more-standby-threads-are-made-at-once :needs :our-engine)
  (with-acceptor (acceptor :taskmaster (taskmaster :standby-thread-count 2))
    (is (= 5 (setf (recycling:taskmaster-standby-thread-count
                    (hunchentoot::acceptor-taskmaster acceptor))
                   5)))
    (eventually ("three more threads")
      (= 5 (getf (recycling:stats acceptor) :threads)))
    (is (= 5 (hunchentoot:taskmaster-thread-count (hunchentoot::acceptor-taskmaster acceptor))))))

(define-server-test (threads-beyond-a-lowered-maximum-end :needs :our-engine)
  (with-globals ((engine::*suspension-seconds* 1/10)
                 (engine::*poll-milliseconds* 20))
    (with-busy-threads (acceptor 6 :standby-thread-count 6)
      (setf (hunchentoot:taskmaster-max-thread-count
             (hunchentoot::acceptor-taskmaster acceptor))
            2)
      (open-gate release)
      (eventually ("the others to end, as they come by")
        (or (= 2 (getf (recycling:stats acceptor) :threads))
            ;; Those of the blocking engine come by when they have accepted.
            (and (not recycling::*parking-by-default*)
                 (progn (ask-text "/quick") nil)))))))

(defun be-client (requests)
  "Makes REQUESTS requests, on one connection while the server keeps it; returns the texts."
  (loop with connection = nil
        repeat requests
        collect (let ((response (exchange (or connection (setf connection (connect)))
                                          "/quick")))
                  (when (equalp "close" (response-header response "connection"))
                    (disconnect (shiftf connection nil)))
                  (response-text response))
          into texts
        finally (when connection (disconnect connection))
                (return texts)))

(define-server-test (nobody-starves-behind-kept-connections :needs :our-engine)
  (with-routes (("/quick" "quick"))
    (with-acceptor (acceptor :taskmaster (taskmaster :max-thread-count 4))
      (let ((clients (loop repeat 40
                           collect (as-client ("client") (be-client 5)))))
        (is (every (lambda (task) (equal (make-list 5 :initial-element "quick")
                                         (task-result task)))
                   clients))
        (is (<= (getf (recycling:stats acceptor) :threads) 4))
        (eventually ("the last request to be counted")
          (= 200 (getf (recycling:stats acceptor) :served)))))))

(define-server-test (nobody-starves-behind-idle-connections :needs :our-engine)
  (with-routes (("/quick" "quick"))
    (with-acceptor (acceptor :taskmaster (taskmaster :max-thread-count 2))
      (with-connections (idle 2)
        (dolist (connection idle)
          (is (equal "quick" (exchange-text connection "/quick"))))
        (is (equal "quick" (ask-text "/quick")))))))

;;; How the system schedules them

(defun scheduling-of-this-thread ()
  "The number of the scheduling policy of the current thread, and of one that it makes, as text."
  (flet ((policy ()                     ; from proc(5)
           (let ((stat (with-open-file (stream (format nil "/proc/~D/stat"
                                                       (platform:thread-identity)))
                         (read-line stream))))
             (parse-integer (nth 38 (uiop:split-string
                                     (subseq stat (+ 2 (position #\) stat :from-end t)))))))))
    (format nil "~D ~D" (policy) (task-result (in-background ("a handler's thread") (policy))))))

(define-server-test (threads-interrupt-nobody-unless-the-program-wants-it :needs :our-engine)
  (if (first (modes))
      (loop for (initargs policies) in '((() "3 3") ; SCHED_BATCH
                                         ((:batch-scheduling nil) "0 0"))
            do (serving (:parking t :taskmaster (apply #'taskmaster initargs))
                   (("/policy" (scheduling-of-this-thread)))
                 (is (equal policies (ask-text "/policy")))))
      (skip "There is nothing to be chosen here.")))

;;; Which acceptor has which taskmaster

(define-server-test (a-taskmaster-serves-one-acceptor-at-a-time :needs :our-engine)
  (dolist (class '(recycling:parallel-easy-acceptor hunchentoot:easy-acceptor))
    (let* ((taskmaster (taskmaster))
           (second (let ((*acceptor-class* class)) (make-test-acceptor :taskmaster taskmaster))))
      (serving (:taskmaster taskmaster) (("/yo" "Hey!"))
        (is (report-p (error-of (lambda () (hunchentoot:start second)))
                      "TASKMASTER" (princ-to-string *server*)))
        (is (not (hunchentoot:started-p second)))
        ;; It has no power over the one that runs.
        (when (typep second 'recycling:parallel-acceptor)
          (hunchentoot:stop second))
        (recycling:abandon-acceptor second)
        (is (null (recycling:list-connections second)))
        (is (equal "Hey!" (ask-text "/yo")))
        (is (zerop (getf (recycling:stats second) :accepted)))
        (hunchentoot:stop *server*)
        (is (eq second (hunchentoot:start second)) "The taskmaster is free again.")
        (hunchentoot:stop second)))))

(define-server-test (a-replaced-taskmaster-serves-until-its-acceptor-stops :needs :our-engine)
  (serving () (("/yo" "Hey!"))
    (flet ((replace-by (taskmaster)
             (reinitialize-instance *server* :taskmaster taskmaster)
             (hunchentoot:start *server*)
             (is (equal "Hey!" (ask-text "/yo")))
             (hunchentoot:stop *server*)))
      (reinitialize-instance *server* :taskmaster (taskmaster :max-thread-count 3))
      (is (equal "Hey!" (ask-text "/yo")))
      (hunchentoot:stop *server*)
      (replace-by (make-instance 'hunchentoot:one-thread-per-connection-taskmaster))
      (replace-by (taskmaster)))))

(define-server-test (limits-that-are-reinitialised-count-at-once :needs :our-engine)
  (with-busy-threads (acceptor 1 :max-thread-count 1)
    (reinitialize-instance (recycling::acceptor-taskmaster* acceptor) :max-thread-count 2)
    (is (equal "quick" (ask-text "/quick")))))

(define-server-test (a-stock-acceptor-is-abandoned-only-on-our-threads :needs :our-engine)
  (let ((*acceptor-class* 'hunchentoot:easy-acceptor)
        (entered (make-latch 1))
        (never (make-gate)))
    (serving () (("/yo" "Hey!"))
      (is (report-p (error-of (lambda () (recycling:abandon-acceptor *server*)))
                    "ABANDON-ACCEPTOR" "HUNCHENTOOT:STOP"))
      (is (equal "Hey!" (ask-text "/yo")) "It goes on.")
      (hunchentoot:stop *server*)
      (is (eq *server* (recycling:abandon-acceptor *server*)) "There is nothing to destroy."))
    (serving (:taskmaster (taskmaster)) (("/hang" (count-down entered) (await never)))
      (with-connection (connection)
        (send-request connection "/hang")
        (await entered)
        (is (eq *server* (recycling:abandon-acceptor *server*)))
        (is (not (hunchentoot:started-p *server*)))))))
