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

;;; What they do

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

(define-server-test (threads-have-the-names-that-were-asked-for :needs :our-engine)
  (serving (:taskmaster (taskmaster :worker-thread-name-format "shop ~A"))
      (("/name" (bt:thread-name (bt:current-thread))))
    (is (uiop:string-prefix-p "shop 127.0.0.1:" (ask-text "/name"))))
  (with-busy-threads (acceptor 3)
    (let ((names (remove-if-not (lambda (name)
                                  (search (format nil ":~D-" (hunchentoot:acceptor-port acceptor))
                                          name))
                                ;; Threads of ECL's own are named by symbols.
                                (mapcar (lambda (thread) (string (bt:thread-name thread)))
                                        (bt:all-threads)))))
      (is (<= 3 (count-if (lambda (name) (uiop:string-prefix-p "http-worker-" name)) names)))
      (is (equal names (remove-duplicates names :test #'string=))))))

(define-server-test (the-pool-grows-when-handlers-block-and-shrinks-again :needs :our-engine)
  (with-acceptor (idle)
    (with-busy-threads (acceptor 20 :standby-thread-count 2)
      (is (equal "quick" (ask-text "/quick")))
      (is (<= 20 (figure :threads)))
      (open-gate release)
      (eventually ("the threads that are not needed any more to end")
        (= 2 (figure :threads)))
      (setf (recycling:taskmaster-standby-thread-count (hunchentoot::acceptor-taskmaster acceptor))
            5)
      (eventually ("more to be made") (= 5 (figure :threads))))
    (is (zerop (getf (recycling:stats idle) :ended)) "Those at rest stay.")))

(define-server-test (threads-at-rest-serve-at-once-when-handlers-block :needs :parking)
  (flet ((milliseconds ()
           (let ((entered (make-latch 8)))
             (serving (:taskmaster (taskmaster :max-thread-count 8))
                 (("/" (count-down entered) (await entered) "all"))
               (eventually ("threads to rest") (< 4 (figure :suspended)))
               (with-connections (connections 8)
                 (let ((began (platform:milliseconds)))
                   (dolist (connection connections)
                     (send-request connection "/"))
                   (mapc #'read-response connections)
                   (- (platform:milliseconds) began)))))))
    (is (> 1500 (min (milliseconds) (milliseconds) (milliseconds)))
        "They sleep for four seconds.")))

(defun (setf most-threads) (count)
  "Sets how many threads *SERVER* may have."
  (setf (hunchentoot:taskmaster-max-thread-count (hunchentoot::acceptor-taskmaster *server*))
        count))

(define-server-test (another-maximum-counts-at-once :needs :our-engine)
  (let ((gates (list (make-gate) (make-gate))) (entered (make-latch 5)))
    (serving (:taskmaster (taskmaster :max-thread-count 4 :standby-thread-count 1))
        (("/first" (count-down entered) (await (first gates)) "slow")
         ("/second" (await (second gates)) "slow"))
      (flet ((clients (count target)
               (loop repeat count
                     collect (as-client ("slow client") (ask-text target)))))
        (let ((first (clients 5 "/first")))
          (eventually ("four handlers to begin") (= 4 (figure :busy)))
          (setf (most-threads) 5)
          (await entered)
          (setf (most-threads) 2)
          (open-gate (first gates))
          (is (every (lambda (task) (equal "slow" (task-result task))) first)))
        ;; A worker may send its reply long before it is done.
        (eventually ("the threads that are too many to end")
          (and (zerop (figure :busy)) (<= (figure :threads) 2)))
        (let ((second (clients 5 "/second")))
          (eventually ("two handlers to begin") (= 2 (figure :busy)))
          (is (not (poll (lambda () (< 2 (figure :busy))) 1/5)))
          (open-gate (second gates))
          (is (every (lambda (task) (equal "slow" (task-result task))) second)))))))

(define-server-test (nobody-starves-behind-idle-connections :needs :our-engine)
  (dolist (accepted '(:unlimited 9))
    (serving (:taskmaster (taskmaster :max-thread-count 2 :max-accept-count accepted)
             :read-timeout 1000 :defer-accept nil)
        (("/quick" "quick"))
      (with-connections (idle (if *parking-p* 20 2))
        (dolist (connection idle)
          (is (equal "quick" (exchange-text connection "/quick"))))
        (is (equal "quick" (ask-text "/quick")))
        (is (<= (figure :threads) (if (eql 9 accepted) 3 2)))
        (is (eq *parking-p* (zerop (getf (figure :expired-by) :evicted)))))
      (when (platform:readiness-supported-p) ; else one that is silent keeps its thread
        (with-connections (silent 2)
          (eventually ("both to be accepted") (= 2 (figure :open)))
          (is (equal "quick" (ask-text "/quick")))))
      (eventually ("connections to be kept again")
        (not (equal "close" (connection-header (ask "/quick"))))))))

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

(define-server-test (threads-of-parked-connections-interrupt-nobody :needs :parking)
  (serving () (("/policy" (scheduling-of-this-thread)))
    (is (equal "3 3" (ask-text "/policy"))))) ; SCHED_BATCH

;;; Which acceptor has which taskmaster

(define-server-test (a-taskmaster-serves-one-acceptor-at-a-time :needs :our-engine)
  (let* ((taskmaster (taskmaster))
         (second (make-test-acceptor :taskmaster taskmaster)))
    (serving (:taskmaster taskmaster) (("/yo" "Hey!"))
      (is (report-p (error-of (lambda () (hunchentoot:start second)))
                    "TASKMASTER" (princ-to-string *server*)))
      (is (not (hunchentoot:started-p second)))
      ;; It has no power over the one that runs.
      (hunchentoot:stop second)
      (recycling:abandon-acceptor second)
      (is (null (recycling:list-connections second)))
      (is (equal "Hey!" (ask-text "/yo")))
      (is (zerop (getf (recycling:stats second) :accepted)))
      (hunchentoot:stop *server*)
      (is (eq second (hunchentoot:start second)) "The taskmaster is free again.")
      (hunchentoot:stop second))))

(test an-acceptor-of-hunchentoots-is-refused
  (is (report-p (error-of (lambda ()
                            (hunchentoot:start (make-instance 'hunchentoot:acceptor :port 0
                                                              :taskmaster (taskmaster)))))
                "PARALLEL-ACCEPTOR")))

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
      (replace-by (taskmaster)))))
