(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite visiting-together :in engine
  :description "What a thread has for many connections, and sends together.")

(in-suite visiting-together)

(defclass visited-together-service (octet-service)
  ((text :initform (octets "v") :accessor visited-text
         :documentation "What a visitor has for each connection, octets.")
   (after :initform (constantly :deferred) :accessor visited-after
          :documentation "Called with a connection that was visited; returns what SERVE-VISITOR does.")
   (left :initform (make-recorder) :reader gathering-left
         :documentation "Connections of which it was told that they have output left.")
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

(defmethod engine:note-output-left ((service visited-together-service) connection)
  (record (gathering-left service) connection))

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

(defun call-visiting-many (engine function)
  "Calls FUNCTION as somebody who visits so many that it pays."
  (engine:call-visiting engine engine::*worth-a-ring* function))

(defmacro visiting-many ((engine) &body body)
  `(call-visiting-many ,engine (lambda () ,@body)))

(defun visit-all (engine connections)
  (dolist (connection connections)
    (engine:visit-connection engine connection)))

(defun serve-what-is-queued (engine)
  "Handles all that is queued in ENGINE, as one of its workers."
  (let* ((worker (engine::make-pool-worker engine 1))
         (engine::*worker* worker))
    (serve-queued engine worker)))

;;; One after the other

(define-server-test what-is-gathered-leaves-when-all-were-visited
  (with-deferred-connections (engine service connections clients 3)
    (visiting-many (engine)
      (visit-all engine connections)
      (mapc #'expect-nothing clients)
      (is (notany #'engine::parked-p connections) "They are their visitor's."))
    (expect-octets clients "vvv")
    (is (every #'engine::parked-p connections))
    (is (notany #'engine::connection-held connections))
    (is (equal '(t t t) (recorded (visited-gathered service))))))

(define-server-test more-than-there-is-room-for-is-sent-in-between
  (with-deferred-connections (engine service connections clients (+ 3 platform:+ring-size+))
    (visiting-many (engine)
      (visit-all engine connections)
      (is (= 3 (count-if-not #'readable-p clients))))
    (expect-octets clients (make-string (length clients) :initial-element #\v))
    (is (every #'engine::parked-p connections))))

(define-server-test each-gets-its-own
  (with-deferred-connections (engine service connections clients 3)
    (visiting-many (engine)
      (loop for connection in connections
            for text in '("a" "b" "c")
            do (setf (visited-text service) (octets text))
               (engine:visit-connection engine connection)))
    (expect-octets clients "abc")
    (mapc #'expect-nothing clients)))

(define-server-test what-is-large-is-sent-at-once
  (with-deferred-connections (engine service connections clients 1)
    (setf (visited-text service) (octets (make-string (1+ engine::+most-gathered-octets+) :initial-element #\l)))
    (visiting-many (engine)
      (visit-all engine connections)
      (read-octets (first clients) (length (visited-text service))))
    (is (equal '(nil) (recorded (visited-gathered service))))
    (is (every #'engine::parked-p connections))))

(define-server-test who-visits-few-or-others-gathers-nothing
  (with-deferred-connections (engine service connections clients 2)
    (engine:call-visiting engine 2 (lambda () (visit-all engine connections)))
    (with-resting-engine (other)
      (visiting-many (other)
        (visit-all engine connections)))
    (is (equal '(nil nil nil nil) (recorded (visited-gathered service))))
    (dolist (client clients)
      (is (equal "vv" (decode (read-octets client 2)))))))

(define-server-test where-the-system-makes-no-ring-all-is-sent-at-once
  (with-deferred-connections (engine service connections clients 2)
    (with-function (platform:make-ring (original) nil)
      (visiting-many (engine) (visit-all engine connections)))
    (is (equal '(nil nil) (recorded (visited-gathered service))))
    (expect-octets clients "vv")))

(define-server-test a-worker-gathers-with-the-ring-that-it-has
  (with-deferred-connections (engine service connections clients 2)
    (pretend-calm engine)
    (let* ((worker (engine::make-pool-worker engine 1))
           (engine::*worker* worker))
      (unwind-protect
           (progn
             (engine:call-visiting engine 2 (lambda () (visit-all engine connections)))
             (is (engine::input-batch-of worker) "It keeps its ring.")
             (is (zerop (held-count worker))))
        (engine::end-holding engine worker)))
    (is (equal '(t t) (recorded (visited-gathered service))))
    (expect-octets clients "vv")))

;;; What becomes of a connection

(define-server-test who-was-visited-for-the-last-time-is-closed-by-a-worker
  (with-deferred-connections (engine service connections clients 2)
    (setf (visited-after service) (lambda (connection)
                                    (if (eq connection (first connections)) :close :deferred)))
    (visiting-many (engine) (visit-all engine connections))
    (expect-octets clients "vv")
    (is (not (engine::gone-p (first connections))))
    (serve-what-is-queued engine)
    (is (engine::gone-p (first connections)))
    (is (closed-by-server-p (first clients)))
    (is (engine::parked-p (second connections)))))

(define-server-test a-peer-that-is-gone-when-it-is-sent-to-takes-nobody-with-it
  (with-deferred-connections (engine service connections clients 3)
    (shut-for-good (second connections))
    (visiting-many (engine) (visit-all engine connections))
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
      (visiting-many (engine) (visit-all engine connections))
      (is (equal "v" (decode (read-octets (second clients) 1))))
      (is (engine:connection-output connection))
      (is (engine::parked-p connection))
      (is (engine::connection-output-watched-p connection))
      (is (equal (list connection) (recorded (gathering-left service))))
      (read-octets client filled)
      (setf (visited-text service) (octets "w"))
      (eventually ("the socket to take more")
        (platform:await-descriptor (engine:connection-descriptor connection) :output
                                   :until (platform:milliseconds)))
      (engine:visit-connection engine connection)
      (is (equal "vw" (decode (read-octets client 2))))
      (is (engine::parked-p connection)))))

(define-server-test who-is-visited-again-meanwhile-gets-that-after-it
  (with-deferred-connections (engine service connections clients 1)
    (let ((connection (first connections)) (client (first clients)))
      (visiting-many (engine)
        (engine:visit-connection engine connection)
        (setf (visited-text service) (octets "w"))
        (engine:visit-connection engine connection)
        (task-result (in-background ("somebody else") (engine:visit-connection engine connection)))
        (expect-nothing client))
      (is (equal "v" (decode (read-octets client 1))))
      (expect-nothing client)
      (serve-what-is-queued engine)
      (is (equal "w" (decode (read-octets client 1))))
      (expect-nothing client)
      (is (engine::parked-p connection)))))

(define-server-test a-visit-that-fails-later-ends-when-all-was-sent
  (dolist (end (list (lambda () (error "as a program may")) (lambda () (throw 'away nil))))
    (with-deferred-connections (engine service connections clients 3)
      (setf (visited-after service) (lambda (connection)
                                      (if (eq connection (second connections)) (funcall end) :deferred)))
      (visiting-many (engine)
        (dolist (connection connections)
          (catch 'away (engine:visit-connection engine connection)))
        (is (null (engine::engine-event-queue engine))
            "A worker might close it now, and its descriptor be another connection's when something is sent."))
      (expect-octets clients "vvv")
      (serve-what-is-queued engine)
      (is (engine::gone-p (second connections)))
      (is (engine::parked-p (first connections)))
      (is (engine::parked-p (third connections))))))

(define-server-test who-leaves-amid-the-visits-has-sent-what-was-gathered
  (with-deferred-connections (engine service connections clients 2)
    (catch 'away
      (visiting-many (engine)
        (visit-all engine connections)
        (throw 'away nil)))
    (expect-octets clients "vv")
    (is (every #'engine::parked-p connections))))

(define-server-test who-was-visited-while-a-stop-passed-by-is-closed
  (with-deferred-connections (engine service connections clients 1)
    (visiting-many (engine)
      (visit-all engine connections)
      (setf (engine::engine-phase engine) :stopping))
    (expect-octets clients "v")
    (is (engine::gone-p (first connections)))))

(define-server-test visits-amid-visits-leave-with-the-others
  (with-deferred-connections (engine service connections clients 2)
    (visiting-many (engine)
      (visit-all engine (list (first connections)))
      (visiting-many (engine)
        (visit-all engine (rest connections)))
      (mapc #'expect-nothing clients))
    (expect-octets clients "vv")))
