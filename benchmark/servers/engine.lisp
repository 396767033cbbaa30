;;;; The ready engine alone with a fixed answer: no Hunchentoot, and of HTTP only what
;;;; the answer depends on, as in native/limit.c.  What the engine costs shows against
;;;; the limit, and what our HTTP and Hunchentoot's objects cost, against this.

(defpackage #:engine-alone
  (:use #:common-lisp
        #:hunchentoot-recycling-taskmaster.base
        #:hunchentoot-recycling-taskmaster.platform
        #:hunchentoot-recycling-taskmaster.engine)
  (:export #:serve-alone))

(in-package #:engine-alone)

;;; Octets

(defun wire (&rest lines)
  "LINES as octets, with CR and LF between them."
  (map 'octets #'char-code
       (format nil (format nil "~~{~~a~~^~c~c~~}" #\Return #\Newline) lines)))

(declaim (type octets *head-end* *close-field*))
(defparameter *head-end* (wire "" "" "")
  "What ends a head.")

(defparameter *close-field* (wire "Connection: close")
  "What a client says that wants one answer only; those here write it so.")

(defparameter *path-offset* (length "GET /")
  "Where in a request the letter is that tells /slow from /yo.")

(defun answer (&rest more-fields)
  "The octets of the answer, with MORE-FIELDS in its head; its date stays that of now, as the
limit's does."
  (apply #'wire
         `("HTTP/1.1 200 OK" "Content-Type: text/plain" "Content-Length: 4" "Server: engine"
           ,(format nil "Date: ~a" (hunchentoot:rfc-1123-date))
           ,@more-fields "" "Hey!")))

(declaim (ftype (function (octets octets index index) (or index null)) place))
(defun place (wanted octets start end)
  "Where WANTED begins in OCTETS between START and END, or NIL."
  (declare (type octets wanted octets) (type index start end) (optimize speed))
  (loop with length = (length wanted)
        with first = (aref wanted 0)
        for position of-type fixnum from start to (- end length)
        when (and (= first (aref octets position))
                  (loop for offset of-type index from 1 below length
                        always (= (aref wanted offset) (aref octets (+ position offset)))))
          return position))

;;; Service

(defclass fixed-answer (service)
  ((seconds :initarg :seconds :reader handler-seconds
            :documentation "How long the handler sleeps.")
   (slow-seconds :initarg :slow-seconds :reader slow-handler-seconds
                 :documentation "How long that of /slow sleeps.")
   (kept :initform (answer) :reader kept-answer)
   (last :initform (answer "Connection: close") :reader last-answer))
  (:documentation "Answers every request by the same octets."))

(defstruct (desk (:constructor make-desk ()))
  "What a worker lends to the connection that it serves.  ALL-READ-P: did the last read find
less than it had room for?  Only then may the connection be parked, since an edge-triggered
poller tells of nothing that had come before."
  (buffer (make-octets 16384) :type octets :read-only t)
  (all-read-p nil))

(defvar *desk* nil
  "In the thread of a worker, its desk.")

(defmethod call-as-worker ((service fixed-answer) thunk)
  (let ((*desk* (make-desk)))
    (funcall thunk)))

(defmethod note ((service fixed-answer) level control &rest arguments)
  (format *error-output* "~a: ~?~%" level control arguments))

(defmethod refuse ((service fixed-answer) connection)
  (error "There is no limit of connections, so none is refused."))

(defmethod serve ((service fixed-answer) connection resuming-p)
  (declare (ignore resuming-p))
  (let* ((desk *desk*)
         (buffer (desk-buffer desk)))
    (loop
      (let* ((start (take-up desk connection))
             ;; A head that fills the buffer leaves no room, and so looks like the end.
             (count (receive-octets (connection-descriptor connection) buffer
                                    start (length buffer))))
        (setf (desk-all-read-p desk) (< count (- (length buffer) start))
              (connection-input connection) (and (desk-all-read-p desk) :read))
        (cond ((would-block-p count)
               (put-off desk connection 0 start)
               (return :park))
              ((not (plusp count)) (return :close))
              ((not (answer-all service desk connection (+ start count))) (return :close))
              ((desk-all-read-p desk) (return :park)))))))

;;; A head that has come in part is kept as the CONNECTION-DATA until the rest comes.

(defun put-off (desk connection start end)
  "Keep for CONNECTION what DESK has between START and END."
  (setf (connection-data connection)
        (and (< start end) (subseq (desk-buffer desk) start end))))

(defun take-up (desk connection)
  "Put to the beginning of DESK what was kept for CONNECTION; return where that ends."
  (let ((begun (shiftf (connection-data connection) nil)))
    (declare (type (or null octets) begun))
    (cond (begun (replace (desk-buffer desk) begun)
                 (length begun))
          (t 0))))

(defun answer-all (service desk connection end)
  "Answer all requests of CONNECTION that DESK has before END.  False when no more are to
follow; otherwise what is left is put off."
  (loop with buffer = (desk-buffer desk)
        with start of-type index = 0
        for head-end = (place *head-end* buffer start end)
        while head-end
        do (count-request connection)
           (unless (answer-one service connection
                               (char= #\s (code-char (aref buffer (+ start *path-offset*))))
                               (place *close-field* buffer start head-end))
             (return nil))
           (setf start (+ head-end (length *head-end*)))
        finally (put-off desk connection start end)
                (return t)))

(defun answer-one (service connection slow-p last-p)
  "Answer a request of CONNECTION, for /slow when SLOW-P, the last one when LAST-P.  False
when it is over then."
  (let ((answer (if last-p (last-answer service) (kept-answer service)))
        (seconds (if slow-p (slow-handler-seconds service) (handler-seconds service))))
    (declare (type octets answer))
    (when (plusp seconds)
      (sleep seconds))
    ;; So few octets fit, unless the peer takes none.
    (and (= (length answer)
            (send-octets (connection-descriptor connection) answer 0 (length answer)))
         (not last-p))))

;;; Server

(defun serve-alone (port delay-ms slow-ms backlog)
  "Serve on PORT of 127.0.0.1 with BACKLOG and handlers that sleep DELAY-MS and SLOW-MS
milliseconds, and never return.  Threads are limited as in a server of ours that comes as it is."
  (let ((service (make-instance 'fixed-answer :seconds (/ delay-ms 1000f0)
                                              :slow-seconds (/ slow-ms 1000f0)))
        (listener (usocket:socket-listen "127.0.0.1" port :reuse-address t :backlog backlog)))
    (defer-accepts listener 1)          ; as our acceptors do
    (start-engine (make-ready-engine service listener :standby 8 :thread-limit 100
                                                      :accept-limit :unlimited))
    (loop (sleep 3600))))

(in-package #:common-lisp-user)

(defun serve (port delay-ms slow-ms files backlog)
  "SERVE-ALONE on PORT with BACKLOG and handlers of DELAY-MS and SLOW-MS."
  (declare (ignore files))
  (sb-sys:enable-interrupt sb-unix:sigterm :default)
  (engine-alone:serve-alone port delay-ms slow-ms backlog))
