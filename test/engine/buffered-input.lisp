(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* buffered-input :in ready
  :description "No input waits unseen while a part is in a buffer and some answers come later.")

;;; An exhaustive search, as in ownership-model.lisp, of what can happen to one connection whose
;;; requests are all answered later: two workers get its events; another thread answers, as a
;;; resuming thread; somebody visits it for nothing, and the sentinel claims it once.  The client
;;; sends requests, several at once or one by one, and ends its half.
;;;
;;; The service has a buffer: it receives all that has come, and knows then that it has read all
;;; (DRAINED-P), until it is told that the engine has missed input.  Where it knows, it does not
;;; look before the connection is parked.
;;;
;;; What must hold: when nobody has anything to do, all requests that were sent are answered, and
;;; where the client has ended its half, the connection is closed; and it is not closed while a
;;; request was not read.

(eval-when (:compile-toplevel :load-toplevel :execute)
  (defparameter *buffer-fields*
    '((:word 5)                         ; the ownership
      (:to-send 2) (:to-end 1)          ; what the client still does
      (:socket 2) (:ended 1)            ; what has come, and was not received
      (:watched 1) (:pending 1)         ; as epoll(7) describes edge-triggered watching
      (:tokens 2)                       ; in the engine's queue
      (:buffer 2) (:drained 1)          ; the service's
      (:waits 2)                        ; for an answer: 0, no; 1, yes; 2, there is one
      (:awaited 1)                      ; who answers has to visit
      (:answered 2)
      (:visits 1) (:claims 1)           ; that somebody else will make
      ;; Where each thread is.  A worker's sibling may change places with it.
      (:worker 5) (:sibling 5) (:answerer 5) (:other 5))
    "Names and sizes in bits; together a fixnum.")

  (defparameter *buffer-places*
    '(:idle :found :found-over
      :serve :read :handle :resume :visiting :settle :look :look-for-end :watch :park :again
      :leave :give-up :queue :close)
    "Where a thread can be."))

(defun buffer-place (name)
  (position name *buffer-places*))

(defmacro buffer-field (name)
  `(the fixnum (svref *world* ,(position name *buffer-fields* :key #'first))))

(defun thread-field (thread)
  (position thread *buffer-fields* :key #'first))

(defun buffer-world (requests end-p)
  "The beginning: a worker has accepted the connection, whose client sends REQUESTS and then ends
its half, if END-P."
  (let ((*world* (make-array (length *buffer-fields*) :initial-element 0)))
    (setf (buffer-field :word) (ownership-word :owned)
          (buffer-field :to-send) requests
          (buffer-field :to-end) (if end-p 1 0)
          (buffer-field :visits) 1
          (buffer-field :claims) 1
          (svref *world* (thread-field :worker)) (buffer-place :serve))
    *world*))

(defun buffer-number (world)
  "A number that tells WORLD from all others, but for which worker is where."
  (let ((number 0) (shift 0)
        (worker (thread-field :worker)) (sibling (thread-field :sibling)))
    (declare (type fixnum number shift))
    (loop for (nil size) in *buffer-fields*
          for index from 0
          for value = (cond ((= index worker) (min (svref world worker) (svref world sibling)))
                            ((= index sibling) (max (svref world worker) (svref world sibling)))
                            (t (svref world index)))
          do (setf number (logior number (ash (the (unsigned-byte 5) value) shift)))
             (incf shift size))
    number))

;;; The steps of a thread

(defun go-to (place)
  (setf (svref *world* *thread*) (buffer-place place)))

(defun visiting-thread-p ()
  (not (member *thread* (list (thread-field :worker) (thread-field :sibling)))))

(defun ownership-event (event)
  "EVENT happens to the ownership, which was as the value tells."
  (shiftf (buffer-field :word)
          (aref (ownership-changes event) (buffer-field :word))))

(defun ownable-p (word)
  (not (bits-p word :owned :closed)))

(defun to-be-read-p ()
  (or (plusp (buffer-field :socket)) (plusp (buffer-field :ended))))

(defun note-arrival ()
  (when (plusp (buffer-field :watched))
    (setf (buffer-field :pending) 1)))

(defun mistaken-p (mistake)
  "True where the threads make MISTAKE."
  (eq mistake *omission*))

(defun miss-input (mistake)
  "The service is told that the engine has missed input, unless the threads make MISTAKE."
  (unless (mistaken-p mistake)
    (setf (buffer-field :drained) 0)))

(defun receive-all ()
  "Receives what has come, if that is anything."
  (setf (buffer-field :drained) 1)
  (when (plusp (buffer-field :socket))
    (setf (buffer-field :buffer) (buffer-field :socket)
          (buffer-field :socket) 0)
    t))

(defun watch-it ()
  (when (zerop (buffer-field :watched))
    (setf (buffer-field :watched) 1)
    (when (to-be-read-p)
      (note-arrival)))
  (go-to :park))

(defun take-kernel-event (place place-over)
  "Takes the kernel's event: the thread is at PLACE next, or at PLACE-OVER where the client's half
has ended."
  (when (plusp (buffer-field :pending))
    (setf (buffer-field :pending) 0)
    (when (to-be-read-p)
      (go-to (if (plusp (buffer-field :ended)) place-over place)))))

(defun end-turn ()
  (go-to :idle))

(defun serve-again ()
  "What is to be done once more is a worker's: resuming threads read nothing."
  (go-to (if (visiting-thread-p) :leave :serve)))

(defun give-up ()
  "The owner parks the connection, whatever has come, and queues a token of it."
  (unless (bits-p (ownership-event :park) :arrived)
    (go-to :queue)))

(defun look-for-answer ()
  "The service looks whether there is an answer to be sent."
  (ecase (buffer-field :waits)
    (0 (go-to :again))
    (1 (setf (buffer-field :awaited) 1)
     (go-to :watch))
    (2 (setf (buffer-field :waits) 0
             (buffer-field :awaited) 0)
     (incf (buffer-field :answered))
     (go-to :settle))))

(defun settle ()
  "A request was answered: is another one there?"
  (cond ((plusp (buffer-field :buffer)) (go-to :again))
        ((plusp (buffer-field :drained)) (go-to :look))
        ((receive-all) (go-to :again))
        ((plusp (buffer-field :ended)) (go-to :again)) ; who reads will see it
        (t (go-to :look))))

(defun look-at-ownership ()
  (let ((word (buffer-field :word)))
    (cond ((bits-p word :arrived)
           (ownership-event :park)
           (go-to :again))
          ((mistaken-p :look) (go-to :look-for-end))
          ((bits-p word :read-closed) (go-to :close))
          (t (go-to :watch)))))

(defun close-it ()
  (when (or (plusp (buffer-field :socket)) (plusp (buffer-field :buffer)))
    (violate "It is closed, and a request was not read"))
  (ownership-event :end)
  (setf (buffer-field :watched) 0
        (buffer-field :pending) 0)
  (end-turn))

(defun buffer-choices (place)
  "Functions, each of which makes the step that the current thread, which is at PLACE, may make."
  (ecase place
    ((:found :found-over)
     (one-of (if (ownable-p (ownership-event (if (eq place :found) :ready :ready-over)))
                 (go-to :serve)
                 (end-turn))))
    (:serve (one-of (cond ((plusp (buffer-field :waits))
                           (setf (buffer-field :drained) 0) ; it was woken by an event, perhaps
                           (look-for-answer))
                          (t (go-to :read)))))
    (:read (one-of (cond ((plusp (buffer-field :buffer))
                          (decf (buffer-field :buffer))
                          (go-to :handle))
                         ((receive-all))
                         ((plusp (buffer-field :ended)) (go-to :close))
                         (t (go-to :look)))))
    (:handle (one-of (progn (setf (buffer-field :waits) 1)
                            (go-to :visiting))))
    (:visiting (one-of (look-for-answer)))
    (:settle (one-of (settle)))
    (:look (one-of (look-at-ownership)))
    (:look-for-end (one-of (go-to (if (bits-p (buffer-field :word) :read-closed) :close :watch))))
    (:watch (one-of (watch-it)))
    (:park (one-of (if (bits-p (ownership-event :park) :arrived)
                       (go-to :again)
                       (end-turn))))
    (:again (one-of (serve-again)))
    (:leave (one-of (progn (miss-input :leave)
                           (go-to :give-up))))
    (:give-up (one-of (give-up)))
    (:queue (one-of (progn (setf (buffer-field :tokens) (min 3 (1+ (buffer-field :tokens))))
                           (end-turn))))
    (:close (one-of (close-it)))
    (:resume (one-of (cond ((not (ownable-p (ownership-event :ready))) (end-turn))
                           ((plusp (buffer-field :waits)) (go-to :visiting))
                           (t (go-to :leave)))))))

(defun idle-worker-choices ()
  (one-of (take-kernel-event :found :found-over)
          (when (plusp (buffer-field :tokens))
            (decf (buffer-field :tokens))
            (go-to :found))))

(defun idle-answerer-choices ()
  (one-of (when (= 1 (buffer-field :waits))
            (setf (buffer-field :waits) 2)
            (when (plusp (buffer-field :awaited))
              (go-to :resume)))))

(defun other-choices ()
  (one-of (when (plusp (buffer-field :visits))
            (decf (buffer-field :visits))
            (go-to :resume))
          (when (plusp (buffer-field :claims))
            (decf (buffer-field :claims))
            (when (ownable-p (ownership-event :claim))
              (go-to :leave)))))

(defun sending-client-choices ()
  (unless (bits-p (buffer-field :word) :closed)
    (cons (lambda ()
            (when (and (zerop (buffer-field :to-send)) (plusp (buffer-field :to-end)))
              (setf (buffer-field :to-end) 0
                    (buffer-field :ended) 1)
              (note-arrival)))
          (loop for count from 1 to (buffer-field :to-send)
                collect (let ((count count))
                          (lambda ()
                            (decf (buffer-field :to-send) count)
                            (incf (buffer-field :socket) count)
                            (note-arrival)))))))

(defun next-buffer-worlds (*world*)
  "The worlds that one step of anybody makes of *WORLD*."
  (flet ((made-by (choices)
           (loop for choice in choices
                 for next = (copy-seq *world*)
                 do (let ((*world* next))
                      (funcall choice))
                 unless (equalp next *world*)
                   collect next)))
    (append (made-by (sending-client-choices))
            (loop for (thread idle-choices) in '((:worker idle-worker-choices)
                                                 (:sibling idle-worker-choices)
                                                 (:answerer idle-answerer-choices)
                                                 (:other other-choices))
                  append (let* ((*thread* (thread-field thread))
                                (place (nth (svref *world* *thread*) *buffer-places*)))
                           (made-by (if (eq :idle place)
                                        (funcall idle-choices)
                                        (buffer-choices place))))))))

(defun check-last-world (*world* requests end-p)
  "Checks *WORLD*, in which nobody has anything to do, and whose client has sent REQUESTS, and ended
its half if END-P."
  (unless (= requests (buffer-field :answered))
    (violate "~D of ~D requests are answered" (buffer-field :answered) requests))
  (when (and end-p (not (bits-p (buffer-field :word) :closed)))
    (violate "The connection is not closed")))

(defun describe-buffer-world (world)
  "A list of what in WORLD is not 0."
  (loop for (name) in *buffer-fields*
        for value across world
        unless (zerop value)
          collect (list name (if (member name '(:worker :sibling :answerer :other))
                                 (nth value *buffer-places*)
                                 value))))

(defun search-buffer-worlds (requests end-p)
  "Tries every order of steps.  Returns how many worlds there are; or, when one is not as it must
be, text that tells how it came to be."
  (let ((seen (make-number-set 21))
        (path '()))                     ; lists: a world, and those that are to be tried after it
    (flet ((enter (world)
             (when (note-number seen (buffer-number world))
               (push (list world) path)
               (let ((nexts (next-buffer-worlds world)))
                 (setf (rest (first path)) nexts)
                 (when (null nexts)
                   (check-last-world world requests end-p))))))
      (handler-case
          (loop initially (enter (buffer-world requests end-p))
                while path
                do (if (rest (first path))
                       (enter (pop (rest (first path))))
                       (pop path))
                finally (return (number-set-count seen)))
        (model-violation (violation)
          (format nil "~A:~%~{~S~^~%~}" violation
                  (loop for (world) in (reverse path)
                        for last = '() then description
                        for description = (describe-buffer-world world)
                        collect (set-difference description last :test #'equal))))))))

(test no-order-of-steps-leaves-a-request-in-a-buffer-or-behind-it
  (if (platform:readiness-supported-p)
      (loop for (requests end-p) in '((3 nil) (3 t))
            do (let ((result (search-buffer-worlds requests end-p)))
                 (is (integerp result) "~A" result)))
      (skip "There is no ready engine here.")))

(test the-search-notices-who-does-not-tell-of-missed-input-or-looks-twice
  (if (platform:readiness-supported-p)
      ;; A resuming thread, or the sentinel; and one that looks for the end after it has looked for
      ;; events.
      (loop for (mistake requests end-p) in '((:leave 3 nil) (:look 2 t))
            do (let ((*omission* mistake))
                 (is (stringp (search-buffer-worlds requests end-p)) "~A" mistake)))
      (skip "There is no ready engine here.")))
