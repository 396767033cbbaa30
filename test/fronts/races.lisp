(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* fronts/races :in fronts
  :description "Replies at random: answers race with each other, with errors of handlers, with
clients that leave, and with a stop.  Each request has one answer, or its connection ends.")

(defun possible-statuses (action)
  "The statuses of a reply to a request for ACTION, the beginning of a path."
  (cdr (assoc action '(("inside" 200) ("pool" 200 504) ("both" 200 504) ("stream" 200 504)
                       ("error" 200 500) ("forget" 504))
              :test #'string=)))

(defun action-of (path)
  (subseq path 1 (position #\/ path :start 1)))

(defun race (answer path jobs)
  "Does with ANSWER what PATH says, perhaps by functions in JOBS, a recorder, that others call."
  (flet ((give ()
           (handler-case (funcall answer 200 '() path)
             (recycling:reply-already-sent () nil)))
         (write-all ()
           (handler-case (let ((writer (funcall answer 200 '())))
                           (loop for char across path do (funcall writer (string char)))
                           (funcall writer nil :close t))
             (recycling:client-left () nil))))
    (alexandria:switch ((action-of path) :test #'string=)
      ("inside" (give))
      ("pool" (record jobs #'give))
      ("both" (record jobs #'give) (record jobs #'give))
      ("stream" (record jobs #'write-all))
      ("error" (record jobs #'give) (error "On purpose.")))))

(defun work (jobs over-p)
  "Calls the functions in JOBS, a recorder, until OVER-P returns true."
  (loop
    (let ((job (bt:with-lock-held ((recorder-lock jobs)) (pop (recorder-entries jobs)))))
      (cond (job (funcall job))
            ((funcall over-p) (return t))
            (t (poll (lambda () (or (recorder-entries jobs) (funcall over-p))) 1/100))))))

(defun race-burst (connection paths state)
  "Asks for PATHS over CONNECTION in pieces, perhaps leaves, and reads the answers.  True while
CONNECTION may be used; signals an error for an answer that is wrong."
  (send-in-pieces connection (1+ (random (if (zerop (random 2 state)) 40 10000) state))
                  (mapcar #'request-octets paths))
  (let ((end (random 25 state)))
    (case end
      ((0 1)
       (if (= 0 end) (disconnect connection) (reset connection))
       nil)
      (t
       ;; A stream that is not closed by then would be cut.
       (when (find "stream" paths :key #'action-of :test #'string=)
         (setf end nil))
       (when (eql 2 end)
         (end-sending connection))
       (dolist (path paths (not (eql 2 end)))
         (let ((response (read-response connection)))
           (unless (and (member (response-status response) (possible-statuses (action-of path)))
                        (or (/= 200 (response-status response))
                            (equal path (response-text response))))
             (error "~A was answered ~S." path response))))))))

(defun race-client (count state stopped-p)
  "Makes COUNT requests in bursts; fewer when the function STOPPED-P returns true."
  (let ((paths (loop for number below count
                     collect (format nil "/~A/~D"
                                     (if (zerop (random 200 state))
                                         "forget"
                                         (aref #("inside" "pool" "pool" "both" "stream" "error")
                                               (random 6 state)))
                                     number))))
    (handler-bind ((error (lambda (condition)
                            (when (and (funcall stopped-p)
                                       (not (typep condition 'patience-lost)))
                              (return-from race-client t)))))
      (loop while paths
            do (with-connection (connection)
                 (loop while (and paths
                                  (race-burst connection
                                         (loop repeat (1+ (random 5 state))
                                               while paths collect (pop paths))
                                         state)))))
      t)))

(define-front-test (each-request-has-one-answer-whatever-races :modes (:plain :unparked :tls))
  (let ((seed (random (expt 2 30) (make-random-state t))))
    (format t "~&[seed ~D] " seed)
    (dolist (stop '(nil (:soft t) (:timeout 1)))
      (let* ((jobs (make-recorder)) (stopped-p nil) (over-p nil))
        (with-front (request :reply-timeout 1/5 :read-timeout 600 :write-timeout 600)
            (later (answer) (race answer (path request) jobs))
          (let ((workers (loop repeat 2
                               collect (in-background ("worker")
                                         (work jobs (lambda () over-p)))))
                (clients (loop for number below 4
                               collect (let ((state (seeded-state (+ seed number))))
                                         (as-client ("client")
                                           (race-client (rounds 250) state
                                                        (lambda () stopped-p)))))))
            (unwind-protect
                 (progn
                   (when stop
                     (eventually ("requests to be served") (< 50 (figure :served)))
                     (setf stopped-p t)
                     (apply #'stop-front stop))
                   (dolist (client clients)
                     (is-true (task-result client 300)))
                   (unless stop
                     (eventually ("all connections to end") (zerop (figure :open)))))
              (setf over-p t)
              (mapc #'task-result workers))))))))
