(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* deferred-races :in acceptors
  :description "Deferred replies at random: completion races with the deadline, the client's
leaving, and stop; each request has one answer, or its connection ends.")

(defvar *race-requests* (parse-integer (or (uiop:getenv "RACES")
                                           ;; others take minutes
                                           (if (uiop:featurep :sbcl) "8000" "1000")))
  "How many requests the random test makes in each mode; the environment variable RACES says another
number.")

(defparameter *round-of-races* 5000
  "After how many of them the acceptor is stopped, and the next one started.")

;;;   what the handler does                                      and the client may get
;;;   :inside    completes the reply                             200
;;;   :pool      has it completed by another thread              200
;;;   :both      has it completed by two                         200, of one of them
;;;   :deadline  likewise, after it was late, perhaps            200, 504
;;;   :stream    has another thread write it                     200
;;;   :error     fails when another thread may have completed    200, 500
;;;   :fail      has it failed by another thread                 500
;;;   :forget    forgets it, seldom                              504
;;; At the end of a burst of requests the client may leave, or send no more.

(defstruct (race (:constructor make-race (number action)))
  "A request, what was to become of it, and what did."
  number action
  (delay 0)                             ; of who completes it, in thousandths of a second
  (deferred-response nil)
  (completions '())                     ; what COMPLETE-REPLY has returned, or :AGAIN
  (told 0)                              ; how often ON-ABANDON was called
  (answer nil))                         ; a status; :ENDED, :LEFT

(defvar *races* #() "The races of the current round by number.")

(defun random-action (state)
  (if (zerop (random 400 state))
      :forget
      (aref #(:inside :pool :pool :pool :both :deadline :deadline :stream :error :fail)
            (random 10 state))))

;;; Who completes replies

(defstruct (pool (:constructor make-pool ()))
  "Functions that threads of the test call, the last first."
  (jobs '()) (lock (bt:make-lock "pool")) (over-p nil))

(defvar *pool* (make-pool))

(defun hand-over-to-pool (function)
  (bt:with-lock-held ((pool-lock *pool*))
    (push function (pool-jobs *pool*))))

(defun work-for-pool (pool)
  (loop
    (let ((job (bt:with-lock-held ((pool-lock pool)) (pop (pool-jobs pool)))))
      (cond (job (funcall job))
            ((pool-over-p pool) (return t))
            (t (poll (lambda () (or (pool-jobs pool) (pool-over-p pool))) 1/100))))))

(defun complete-race (race complete)
  "Calls COMPLETE, which completes the reply of RACE, after the delay of that, and notes what it
returns."
  (when (plusp (race-delay race))
    (poll (constantly nil) (/ (race-delay race) 1000)))
  (let ((result (handler-case (and (funcall complete) t)
                  (recycling:reply-already-sent () :again))))
    (bt:with-lock-held ((pool-lock *pool*))
      (push result (race-completions race)))))

(defun write-race (race stream)
  (when stream
    (handler-case (progn
                    (loop for char across (princ-to-string (race-number race))
                          do (recycling:write-outgoing stream (string char)))
                    (recycling:close-outgoing stream))
      (recycling:client-left () nil))))

;;; The handler

(defun run-race (race)
  (recycling:defer-reply (reply :timeout (ecase (race-action race)
                                           (:deadline (/ (random 3) 1000))
                                           (:forget 1/5)
                                           ((:inside :pool :both :stream :error :fail) 60))
                                :on-abandon (lambda () (incf (race-told race))))
    (setf (race-deferred-response race) (recycling::deferred-reply-deferred-response reply))
    (flet ((completer ()
             (lambda ()
               (complete-race race (lambda ()
                                     (recycling:complete-reply
                                      reply (princ-to-string (race-number race))))))))
      (ecase (race-action race)
        (:inside (funcall (completer)))
        ((:pool :deadline :error) (hand-over-to-pool (completer)))
        (:both (hand-over-to-pool (completer)) (hand-over-to-pool (completer)))
        (:fail (hand-over-to-pool (lambda ()
                                    (complete-race race (lambda () (recycling:fail-reply reply))))))
        (:stream (hand-over-to-pool (lambda ()
                                      (let ((stream nil))
                                        (complete-race race (lambda ()
                                                              (setf stream (recycling:start-stream
                                                                            reply))))
                                        (write-race race stream)))))
        (:forget))))
  (when (eq :error (race-action race))
    (error "It fails.")))

;;; The clients

(defun note-answers (connection races)
  "Reads the answers to RACES, a list, from CONNECTION.  True when there was one for each."
  (loop for race in races
        do (let ((response (read-response connection)))
             (when (and (= 200 (response-status response))
                        (not (equal (princ-to-string (race-number race)) (response-text response))))
               (error "The answer ~A is not for ~D." (response-text response) (race-number race)))
             (setf (race-answer race) (response-status response)))
        finally (return t)))

(defun run-burst (connection races state)
  "Makes the requests of RACES, a list, on CONNECTION.  True when that can be used again."
  (let ((octets (octets (loop for race in races
                              collect (request-octets (format nil "/?n=~D" (race-number race)))))))
    (if (zerop (random 10 state))
        (send-in-pieces connection 20 octets)
        (send connection octets))
    (case (random 25 state)
      (0 (poll (constantly nil) (/ (random 4 state) 1000))
         (if (zerop (random 2 state)) (reset connection) (disconnect connection))
         (dolist (race races)
           (setf (race-answer race) :left))
         nil)
      (1 (end-sending connection)
         (note-answers connection races)
         nil)
      (t (note-answers connection races)))))

(defun racing-client (numbers state stopping-p)
  "Makes the requests of the races with NUMBERS, a list, in random bursts.  Returns how many; fewer
only when the function STOPPING-P is true by then."
  (let ((count 0))
    (handler-bind ((error (lambda (condition)
                            (when (and (funcall stopping-p)
                                       (not (typep condition 'patience-lost)))
                              (return-from racing-client count)))))
      (loop while numbers
            do (with-connection (connection)
                 (loop repeat (1+ (random 20 state))
                       while numbers
                       do (let ((races (loop repeat (1+ (random 5 state))
                                             while numbers
                                             collect (aref *races* (pop numbers)))))
                            (incf count (length races))
                            (unless (run-burst connection races state)
                              (return)))))))
    count))

;;; A round

(defun possible-answers (action)
  (ecase action
    ((:inside :pool :both :stream) '(200))
    (:deadline '(200 504))
    (:error '(200 500))
    (:fail '(500))
    (:forget '(504))))

(defun race-fault (race stopped-p)
  "What is wrong with RACE, which is over, a string; NIL when nothing is.  STOPPED-P tells that its
acceptor may have been stopped before it was."
  (let* ((answer (race-answer race))
         (completions (race-completions race))
         (deferred-response (race-deferred-response race))
         (status-p (integerp answer)))
    (cond ((and (null answer) (not stopped-p)) "has no answer")
          ((and status-p (not (member answer (possible-answers (race-action race)))))
           "has a wrong answer")
          ((> (count t completions) 1) "was completed twice")
          ((and status-p (null deferred-response)) "was answered without its handler")
          ((and status-p (plusp (race-told race)) (not stopped-p)
                (member :pool (possible-answers (race-action race))))
           "was answered, and counts as abandoned")
          ((> (race-told race) 1) "was told twice of its client's leaving")
          ((and (eql 504 answer) (member t completions))
           "came too late for its client, and not for who completed it")
          ((and (eql 200 answer) (not (member t completions))) "was answered by nobody")
          ((and deferred-response (not (member (server::deferred-response-state deferred-response)
                                               '(:done :expired :gone))))
           "still waits"))))

(defun stop-amid-races (acceptor state announce)
  "Stops ACCEPTOR, softly or not, at some moment within two seconds, after calling ANNOUNCE."
  (poll (constantly nil) (random 2.0 state))
  (funcall announce)
  (hunchentoot:stop acceptor :soft (zerop (random 2 state))))

(defun call-with-pool (function)
  "Calls FUNCTION while threads complete what is handed over to them; returns when they have
completed all."
  (let* ((pool (setf *pool* (make-pool)))
         (threads (loop repeat 2 collect (in-background ("pool") (work-for-pool pool)))))
    (unwind-protect (funcall function)
      (setf (pool-over-p pool) t)
      (dolist (thread threads)
        (task-result thread 60)))))

(defun make-races (count state)
  (coerce (loop for number below count
                collect (let ((race (make-race number (random-action state))))
                          (when (zerop (random 20 state))
                            (setf (race-delay race) (random 5 state)))
                          race))
          'vector))

(defun round-of-races (count seed)
  "Lets four clients make COUNT requests of a new acceptor, which may be stopped meanwhile."
  (let* ((state (seeded-state seed))
         (stop-p (zerop (random 2 state)))
         (stopping nil)
         (memory (engine:client-memory-reserved)))
    (setf *races* (make-races count state))
    ;; A client that waits for a processor is not given up.
    (serving (:read-timeout 600 :write-timeout 600)
        (("/" (run-race (aref *races* (parse-integer (hunchentoot:get-parameter "n"))))))
      (call-with-pool
       (lambda ()
         (let ((clients (loop for first below 4
                              collect (let ((state (seeded-state (+ seed first 1)))
                                            (numbers (loop for number from first below count by 4
                                                           collect number)))
                                        (as-client ("racing client")
                                          (racing-client numbers state (lambda () stopping)))))))
           (when stop-p
             (stop-amid-races *server* state (lambda () (setf stopping t))))
           (dolist (client clients)
             (is (<= 0 (task-result client 300) count)))
           ;; Who has left at once may have a handler that begins later, and needs the pool.
           (unless stop-p
             (eventually ("all connections to end") (zerop (figure :open)))))))
      (unless stop-p
        ;; Where the streams are the Lisp's own, a client that leaves may break them in ways of its
        ;; own.
        (when (platform:readiness-supported-p)
          (is (zerop (figure :failed)))))
      (hunchentoot:stop *server*)
      (is (null (engine:accounting-problems (server:server-engine *server*)))))
    (let ((faults (loop for race across *races*
                        for fault = (race-fault race stop-p)
                        when fault collect (list fault race))))
      (is (null faults) "~D faults; the first: ~S" (length faults) (first faults)))
    (is (= memory (engine:client-memory-reserved)))
    (setf *races* #())))

(define-server-test (each-deferred-request-has-one-answer-whatever-races :needs :our-engine)
  (let ((seed (random (expt 2 30) (make-random-state t))))
    (format t "~&[seed ~D] " seed)
    (loop for left = *race-requests* then (- left *round-of-races*)
          for number from 0
          while (plusp left)
          do (round-of-races (min left *round-of-races*) (+ seed (* 100 number))))))
