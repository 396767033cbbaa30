(in-package #:hunchentoot-recycling-taskmaster.postgresql)

;;;; The connections of both threads of an opening, which come and go with the database.

(defparameter *longest-pause* 5
  "The maximum time between two attempts to connect, in seconds.")

(defun pause-seconds (attempt)
  "How long to wait after the ATTEMPTth failure in a row, in seconds: twice as long each time, and
at random, so that many processes do not come at the same time."
  (let ((longest (min *longest-pause* (* 1/10 (expt 2 (min attempt 10))))))
    (* longest (+ 1/2 (random 0.5)))))

(defun connection-arguments (broker)
  (list (broker-database broker) (broker-user broker) (broker-password broker)
        (broker-host broker) (broker-port broker) (broker-use-ssl broker)
        "postgres" "hunchentoot-recycling-taskmaster"))

(defun note-connected (opening link)
  "Notes that LINK of OPENING is connected."
  (let* ((broker (opening-broker opening))
         (since (with-state (broker)
                  (setf (link-connected-p link) t)
                  (incf (link-connections link))
                  (when (and (eq link (opening-publisher opening))
                             (or (link-away-since link) (< 1 (link-connections link))))
                    (setf (opening-late-through opening) (opening-sequence opening)))
                  (shiftf (link-away-since link) nil))))
    (when since
      (report broker "The ~A is connected again after ~,1F seconds." (link-name link)
              (/ (- (milliseconds) since) 1000)))))

(defun note-away (opening link condition)
  "Notes that LINK of OPENING is not connected, because of CONDITION."
  (let ((broker (opening-broker opening)))
    (when (with-state (broker)
            (setf (link-connected-p link) nil)
            (unless (link-away-since link)
              (setf (link-away-since link) (milliseconds))))
      (report broker "The ~A has no database: ~A" (link-name link) condition))))

(defun pause (opening link attempt)
  "Waits after the ATTEMPTth failure in a row, unless OPENING is closed."
  (wait-until (lambda () (closed-p opening))
              (link-changed link) (broker-state-lock (opening-broker opening))
              (pause-seconds attempt) nil))

(defun run-link (opening link run)
  "Connects LINK of OPENING, and calls RUN with OPENING and the connection.  True if RUN returns;
NIL after an error."
  (handler-case
      (with-connection (connection (connection-arguments (opening-broker opening)))
        (note-connected opening link)
        (funcall run opening connection)
        t)
    (error (condition)
      (note-away opening link condition)
      nil)))

(defun keep-connected (opening link run)
  "The life of the thread of LINK: calls RUN as RUN-LINK does, again after each error, until RUN
returns or OPENING is closed."
  (loop with attempt = 0
        for start = (milliseconds)
        until (or (closed-p opening)
                  (run-link opening link run))
        do (when (<= (as-milliseconds *longest-pause*) (- (milliseconds) start))
             (setf attempt 0))          ; the connection was good for a while
           (pause opening link (incf attempt))))

(defun start-link (opening link run &optional (finish (constantly nil)))
  "Makes the thread of LINK of OPENING, which calls RUN, and at its end FINISH with OPENING."
  (setf (link-thread link)
        (call-making-thread
         (lambda ()
           (bt:make-thread (lambda ()
                             (unwind-protect (keep-connected opening link run)
                               (with-state ((opening-broker opening))
                                 (setf (link-connected-p link) nil))
                               (funcall finish opening)))
                           :name (format nil "broker-~A" (link-name link)))))))
