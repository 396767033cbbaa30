(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite visiting-together :in engine
  :description "What a thread has for many connections, and sends together.")

(in-suite visiting-together)

(defclass visited-together-service (told-of-missed-input octet-service)
  ((text :initform (octets "v") :accessor visited-text
         :documentation "What a visitor has for each connection, octets.")
   (after :initform (constantly :deferred) :accessor visited-after
          :documentation "Called with a connection that was visited; returns what SERVE-VISITOR does.")
   (gathered :initform (make-recorder) :reader visited-gathered
             :documentation "For each visit, whether what there was for it was gathered."))
  (:documentation "Has something for whoever is visited."))

(defmethod engine:serve-visitor ((service visited-together-service) connection)
  (let* ((text (visited-text service))
         (gathered-p (engine:gather-output (engine-of service) connection text 0 (length text))))
    (record (visited-gathered service) (and gathered-p t))
    (unless gathered-p
      (platform:send-octets (engine:connection-descriptor connection) text 0 (length text)))
    (funcall (visited-after service) connection)))

(defmethod engine:serve ((service visited-together-service) connection)
  "A worker has found that more was to be done for CONNECTION, or that its peer has sent something."
  (engine:serve-visitor service connection))

(defvar *visited-engine* nil
  "The engine of the service of a test.")

(defun engine-of (service)
  (declare (ignore service))
  *visited-engine*)

(defun park-deferred (engine connection)
  "Parks CONNECTION of ENGINE, which the caller owns, until somebody has something for it."
  (is (eq :parked (engine::settle-outcome engine connection :deferred nil))))

(defmacro with-deferred-connections ((engine service connections clients count) &body body)
  "Evaluates BODY with an ENGINE without threads, its SERVICE, COUNT CONNECTIONS that wait for a visitor, and their CLIENTS in
the same order.  Where the system sends nothing together, does nothing."
  `(where-rings-work
    (with-connections-at-rest (,engine ,connections ,clients ,count)
      (let ((,service (change-class (engine::engine-service ,engine) 'visited-together-service))
            (*visited-engine* ,engine))
        (declare (ignorable ,service))
        (dolist (connection ,connections)
          (park-deferred ,engine connection))
        ,@body))))

(defun make-visits (engine visits)
  "Visits those of VISITS, a list, that are connections of ENGINE, and calls those that are functions."
  (engine:visit-together engine
                         (lambda (visit)
                           (if (functionp visit)
                               (funcall visit)
                               (engine:visit-connection engine visit)))
                         visits))

(defun visit-few (engine &rest visits)
  "Makes VISITS, as MAKE-VISITS does; so few that a thread without a ring makes none for them."
  (make-visits engine visits))

(defun visit-many (engine &rest visits)
  "Makes VISITS, as MAKE-VISITS does, as if there were so many that any thread makes a ring for them."
  (let ((engine::*worth-a-ring* 1))
    (make-visits engine visits)))

(defun serve-what-is-queued (engine)
  "Handles all that is queued in ENGINE, as one of its workers."
  (let* ((worker (engine::make-pool-worker engine 1))
         (engine::*worker* worker))
    (serve-queued engine worker)))

;;; One after the other

(define-server-test what-is-gathered-leaves-when-all-were-visited
  (with-deferred-connections (engine service connections clients 3)
    (apply #'visit-many engine
           (append connections
                   (list (lambda ()
                           (mapc #'expect-nothing clients)
                           (is (notany #'engine::parked-p connections) "They are their visitor's.")))))
    (expect-octets clients "vvv")
    (is (every #'engine::parked-p connections))
    (is (notany #'engine::connection-held connections))
    (is (equal '(t t t) (recorded (visited-gathered service))))))

(define-server-test more-than-there-is-room-for-is-sent-in-between
  (with-deferred-connections (engine service connections clients (+ 3 platform:+ring-size+))
    (apply #'visit-many engine
           (append connections
                   (list (lambda () (is (= 3 (count-if-not #'readable-p clients)))))))
    (expect-octets clients (make-string (length clients) :initial-element #\v))
    (is (every #'engine::parked-p connections))))

(define-server-test so-much-for-each-is-gathered-that-there-is-room-for-all
  (with-deferred-connections (engine service connections clients platform:+ring-size+)
    (setf (visited-text service) (octets (make-string engine::+most-gathered-octets+ :initial-element #\l)))
    (apply #'visit-many engine connections)
    (is (notany #'null (recorded (visited-gathered service))))
    (dolist (client clients)
      (is (equalp (visited-text service) (read-octets client (length (visited-text service)))))
      (expect-nothing client))))

(define-server-test each-gets-its-own
  (with-deferred-connections (engine service connections clients 3)
    (apply #'visit-many engine
           (loop for connection in connections
                 for text in '("a" "b" "c")
                 collect (let ((text text))
                           (lambda () (setf (visited-text service) (octets text))))
                 collect connection))
    (expect-octets clients "abc")
    (mapc #'expect-nothing clients)))

(define-server-test what-is-large-is-sent-at-once
  (with-deferred-connections (engine service connections clients 1)
    (setf (visited-text service) (octets (make-string (1+ engine::+most-gathered-octets+) :initial-element #\l)))
    (visit-many engine (first connections)
                (lambda () (read-octets (first clients) (length (visited-text service)))))
    (is (equal '(nil) (recorded (visited-gathered service))))
    (is (every #'engine::parked-p connections))))

(define-server-test who-visits-few-or-others-gathers-nothing
  (with-deferred-connections (engine service connections clients 2)
    (apply #'visit-few engine connections)
    (with-resting-engine (other)
      (apply #'visit-many other
             (mapcar (lambda (connection)
                       (lambda () (engine:visit-connection engine connection)))
                     connections)))
    (is (equal '(nil nil nil nil) (recorded (visited-gathered service))))
    (dolist (client clients)
      (is (equal "vv" (decode (read-octets client 2)))))))

(define-server-test where-the-system-makes-no-ring-all-is-sent-at-once
  (with-deferred-connections (engine service connections clients 2)
    (with-function (platform:make-ring (original) nil)
      (apply #'visit-many engine connections))
    (is (equal '(nil nil) (recorded (visited-gathered service))))
    (expect-octets clients "vv")))

(define-server-test a-worker-gathers-with-the-ring-that-it-has
  (with-deferred-connections (engine service connections clients 2)
    (as-a-worker (engine worker)
      (apply #'visit-few engine connections)
      (is (engine::input-batch-of worker) "It keeps its ring.")
      (is (zerop (held-count worker))))
    (is (equal '(t t) (recorded (visited-gathered service))))
    (expect-octets clients "vv")))

;;; What becomes of a connection

(define-server-test who-was-visited-for-the-last-time-is-closed-by-a-worker
  (with-deferred-connections (engine service connections clients 2)
    (setf (visited-after service) (lambda (connection)
                                    (if (eq connection (first connections)) :close :deferred)))
    (apply #'visit-many engine connections)
    (expect-octets clients "vv")
    (is (not (engine::gone-p (first connections))))
    (serve-what-is-queued engine)
    (is (engine::gone-p (first connections)))
    (is (closed-by-server-p (first clients)))
    (is (engine::parked-p (second connections)))))

(define-server-test a-peer-that-is-gone-when-it-is-sent-to-takes-nobody-with-it
  (with-deferred-connections (engine service connections clients 3)
    (shut-for-good (second connections))
    (apply #'visit-many engine connections)
    (is (equal "v" (decode (read-octets (first clients) 1))))
    (is (equal "v" (decode (read-octets (third clients) 1))))
    (is (not (engine::gone-p (second connections))) "What a program wants done then, a worker does.")
    (serve-what-is-queued engine)
    (is (engine::gone-p (second connections)))
    (is (engine::parked-p (first connections)))
    (is (engine::parked-p (third connections)))))

(define-server-test what-there-is-no-room-for-waits-for-its-peer
  (with-deferred-connections (engine service connections clients 2)
    (let* ((connection (first connections)) (client (first clients))
           (filled (fill-window connection)))
      (apply #'visit-many engine connections)
      (is (equal "v" (decode (read-octets (second clients) 1))))
      (is (engine:connection-output connection))
      (is (engine::parked-p connection))
      (is (engine::connection-output-watched-p connection))
      (is-true (member connection (recorded (missed-input service))))
      (read-octets client filled)
      (setf (visited-text service) (octets "w"))
      (eventually ("the socket to take more")
        (platform:await-descriptor (engine:connection-descriptor connection) :output
                                   :until (platform:milliseconds)))
      (engine:visit-connection engine connection)
      (is (equal "vw" (decode (read-octets client 2))))
      (is (engine::parked-p connection)))))

(define-server-test who-takes-not-all-has-the-time-for-writing-whatever-else-it-had
  (with-deferred-connections (engine service connections clients 1)
    (let ((connection (first connections)))
      (setf (slot-value service 'write-seconds) 60)
      (fill-window connection)
      (setf (visited-after service) (lambda (connection)
                                      (engine::set-deadline connection :deferred 3600000 (platform:milliseconds))
                                      :deferred))
      (visit-many engine connection)
      (is (engine::parked-p connection))
      (is (engine::connection-write-end connection))
      (is (eq :write (engine::connection-deadline-kind connection))))))

(define-server-test who-is-visited-again-meanwhile-gets-that-after-it
  (with-deferred-connections (engine service connections clients 1)
    (let ((connection (first connections)) (client (first clients)))
      (visit-many engine
                  connection
                  (lambda () (setf (visited-text service) (octets "w")))
                  connection
                  (lambda ()
                    (task-result (in-background ("somebody else") (engine:visit-connection engine connection)))
                    (expect-nothing client)))
      (is (equal "v" (decode (read-octets client 1))))
      (expect-nothing client)
      (serve-what-is-queued engine)
      (is (equal "w" (decode (read-octets client 1))))
      (expect-nothing client)
      (is (engine::parked-p connection)))))

(define-server-test who-has-parked-a-connection-has-no-more-to-do-with-it
  (with-deferred-connections (engine service connections clients 1)
    (let ((connection (first connections)))
      (with-function (engine::serve-visit (original engine connection)
                       (prog1 (funcall original engine connection)
                         ;; Somebody else owns it by now, and holds its next answer.
                         (engine::claim-parked connection)
                         (setf (engine::connection-held connection) :serving)))
        (engine:visit-connection engine connection))
      (is (eq :serving (engine::connection-held connection)))
      (is (engine::owned-p connection))
      (is (null (engine::engine-event-queue engine)))
      (setf (engine::connection-held connection) nil))
    (expect-octets clients "v")))

;;; Who leaves

(define-server-test a-visit-that-fails-later-ends-when-all-was-sent
  (dolist (end (list (lambda () (error "as a program may")) (lambda () (throw 'away nil))))
    (with-deferred-connections (engine service connections clients 3)
      (setf (visited-after service) (lambda (connection)
                                      (if (eq connection (second connections)) (funcall end) :deferred)))
      (catch 'away
        (apply #'visit-many engine
               (append connections
                       (list (lambda ()
                               (is (null (engine::engine-event-queue engine))
                                   "A worker might close it now, and its descriptor be another connection's when something is sent."))))))
      (expect-octets clients "vvv")
      (serve-what-is-queued engine)
      (is (engine::gone-p (second connections)))
      (is (engine::parked-p (first connections)))
      (is (engine::parked-p (third connections))))))

(define-server-test who-leaves-amid-the-visits-has-made-the-others-and-sent-what-was-gathered
  (dolist (visit '(visit-few visit-many))
    (with-deferred-connections (engine service connections clients 3)
      (is (catch 'away
            (funcall visit engine
                     (first connections)
                     (lambda () (throw 'away t))
                     (second connections)
                     (lambda () (throw 'away t))
                     (third connections))
            nil))
      (expect-octets clients "vvv")
      (is (every #'engine::parked-p connections)))))

(define-server-test who-leaves-while-visits-end-ends-the-others-too
  (with-deferred-connections (engine service connections clients 4)
    (is (catch 'away
          (with-function (engine::settle-sent (original engine connection batch place)
                           (unless (member connection (list (first connections) (fourth connections)))
                             (throw 'away t))
                           (funcall original engine connection batch place))
            (apply #'visit-many engine connections))
          nil))
    (expect-octets clients "vvvv")
    (serve-what-is-queued engine)
    (loop for connection in connections
          for (left-p) on '(nil t t nil)
          do (is (if left-p (engine::gone-p connection) (engine::parked-p connection))))))

(define-server-test thousands-that-are-left-are-each-called
  (let ((count 0))
    (is (eql 1 (catch 'away
                 (engine::call-for-all (lambda (number)
                                         (incf count)
                                         (throw 'away number))
                                       (loop for number from 1 to 20000 collect number)))))
    (is (= 20000 count))))

(define-server-test who-was-visited-while-a-stop-passed-by-is-closed
  (with-deferred-connections (engine service connections clients 1)
    (visit-many engine
                (first connections)
                (lambda () (setf (engine::engine-phase engine) :stopped)))
    (expect-octets clients "v")
    (is (engine::gone-p (first connections)))))

;;; Visits amid visits

(define-server-test visits-amid-visits-leave-when-they-are-over
  (with-deferred-connections (engine service connections clients 2)
    (visit-many engine
                (first connections)
                (lambda ()
                  (visit-many engine (second connections))
                  (expect-octets (rest clients) "v")
                  (expect-nothing (first clients))))
    (expect-octets clients "v")
    (mapc #'expect-nothing clients)
    (is (equal '(t t) (recorded (visited-gathered service))))
    (is (every #'engine::parked-p connections))))

(define-server-test who-visits-others-amid-a-visit-still-owns-its-connection
  (with-deferred-connections (engine service connections clients (* 2 platform:+ring-size+))
    (destructuring-bind (host . guests) connections
      ;; What is checked amid a visit would fail as an error of a program does.
      (let ((found '()))
        (setf (visited-after service)
              (lambda (connection)
                (when (eq connection host)
                  (dolist (guest guests)
                    (engine:visit-connection engine guest))
                  (push (list (engine::owned-p host) (engine::connection-held host) (readable-p (first clients)))
                        found))
                :deferred))
        (visit-many engine host)
        (is (equal '((t :gathered nil)) found))
        (expect-octets clients (make-string (length clients) :initial-element #\v))
        (is (equal platform:+ring-size+ (count t (recorded (visited-gathered service))))
            "There is no room for the others.")
        (is (every #'engine::parked-p connections))))))

(define-server-test who-is-visited-when-a-visit-ends-gets-that-too
  (with-deferred-connections (engine service connections clients 3)
    (destructuring-bind (first second third) connections
      (with-function (engine::settle-sent (original engine connection batch place)
                       (when (eq connection first)
                         (engine:visit-connection engine third))
                       (funcall original engine connection batch place))
        (visit-many engine first second))
      (expect-octets clients "vvv")
      (mapc #'expect-nothing clients)
      (is (every #'engine::parked-p connections)))))
