(in-package #:hunchentoot-recycling-taskmaster)

;;;; A connection of a parallel acceptor, from its first octet to its last.

;;; The first request

(defun establish-link (acceptor socket connection)
  "Prepares CONNECTION for its first request.  The handshake of a TLS connection, which may
stall, happens here, under a deadline.  Signals PEER-GONE where nobody is there any more."
  (let* ((seconds (hunchentoot:acceptor-read-timeout acceptor))
         (socket-stream (socket-octet-stream socket))
         (link (make-link :socket-stream socket-stream
                          :wire (stream-wire socket-stream)
                          :remote (multiple-value-list (peer-name socket))
                          :local (name-of-our-end acceptor socket))))
    (limit-waits socket seconds)
    (setf (connection-data connection) link)
    (call-with-deadline connection :handshake seconds
                        (lambda ()
                          (setf (link-stream link)
                                (hunchentoot:initialize-connection-stream
                                 acceptor socket-stream))))
    link))

;;; Every request

(defun serve-request (acceptor socket connection)
  "Serves the next request of CONNECTION; returns what is to become of it."
  (let ((link (or (connection-data connection)
                  (establish-link acceptor socket connection))))
    (multiple-value-bind (outcome stream)
        (call-with-connection-stream
         (link-stream link)
         (lambda ()
           (when (if *head*
                     (process-head acceptor *head* link)
                     (process-one-request acceptor
                                          (lambda (&rest parts)
                                            (apply #'make-request acceptor link parts))))
             (count-request connection)))
         (lambda ()
           (setf *outcome* (give-away acceptor connection link))))
      (setf (link-stream link) stream)
      (cond ((eq outcome :detached) (give-away acceptor connection link))
            ((and (link-wire link) (not (settle-lent (link-wire link)))) :close)
            (t outcome)))))

(defun give-away (acceptor connection link)
  "Leaves the socket of CONNECTION, with LINK, to the program; returns what is to become of the
connection."
  (let ((wire (link-wire link)))
    (cond ((null wire)
           (setf (connection-outcome connection) :detached))
          ((null (wire-descriptor wire)) :close)
          ((hunchentoot:acceptor-ssl-p acceptor)
           ;; OpenSSL has the number of the descriptor, so it must be that.
           (if (hand-descriptor-over wire)
               (setf (connection-outcome connection) :detached)
               :close))
          (t
           (usocket:socket-stream (connection-usocket connection)) ; lends that
           (if (lent-open-p wire)
               (leave-to-program connection wire)
               :close)))))

(defun leave-to-program (connection wire)
  "Leaves the streams of CONNECTION, with WIRE, to the program; returns what is to become of the
connection: its own descriptor is closed, but nobody says good-bye."
  ;; So it is also if what follows fails.
  (setf (connection-outcome connection) :broken)
  (leave-to-lent wire)
  (setf (connection-data connection) nil
        (connection-socket connection) nil)
  :broken)

;;; Whose turn it is to read

(defun serve-connection (acceptor socket connection)
  "Serves what the current call of PROCESS-CONNECTION is for, after what the program has done before;
returns what is to become of CONNECTION."
  (cond ((ecase *connection-kind*
           (:own nil)
           (:wrapped (socket-asked-p socket))
           (:foreign t))
         ;; The program has read something, or might, and expects to be called once.
         (serve-to-the-end acceptor socket connection))
        (*head*
         (when (eq :wrapped *connection-kind*)
           (drop-head (socket-wire socket)))
         (serve-request acceptor socket connection))
        (t
         (serve-next acceptor socket connection))))

(defun serve-next (acceptor socket connection)
  "Serves the next request of CONNECTION, in the current call, after waiting for it if need be."
  (let ((link (or (connection-data connection)
                  (establish-link acceptor socket connection))))
    (flet ((serve-it (head)
             (let ((*head* head))
               (serve-request acceptor socket connection))))
      (cond ((ours-to-read-p link)
             (let ((head (await-request acceptor socket connection link)))
               (if (eq head :end) :close (serve-it head))))
            ((or (zerop (connection-served connection)) ; then there is somebody who wants something
                 (await-more acceptor socket connection link))
             (setf (connection-deadline connection) nil)
             (serve-it nil))
            (t :close)))))

(defun serve-to-the-end (acceptor socket connection)
  "Serves all requests of CONNECTION in the current call; returns what is to become of it then."
  (flet ((serve-it ()
           (serve-next acceptor socket connection)))
    (loop for outcome = (if (timed-p acceptor) (call-timed acceptor #'serve-it) (serve-it))
          while (and (eq outcome :park) (not (winding-down-p (worker-engine *worker*))))
          finally (return (if (eq outcome :park) :close outcome)))))

(defparameter *look-milliseconds* 250
  "How often a worker that waits for the next request of its connection looks whether it still should.")

(defun await-request (acceptor socket connection link)
  "Waits for the head of the next request of CONNECTION, over LINK; :END when none comes."
  (loop for input = (waiting-request connection acceptor link)
        while (eq input :none)
        unless (await-more acceptor socket connection link)
          return :end
        finally (setf (connection-deadline connection) nil)
                (return input)))

(defun await-more (acceptor socket connection link)
  "Waits until more of CONNECTION comes by SOCKET, over LINK.  NIL when nobody should wait for a request
any more."
  (unless (ours-to-read-p link)         ; else what was buffered has been read
    (when (listen-or-end-p (link-stream link))
      (return-from await-more t)))
  (finish-output (link-stream link))
  (unless (connection-deadline connection)
    ;; The sentinel will end it, so that its input is at the end.
    (set-deadline connection :idle (hunchentoot:acceptor-read-timeout acceptor) (milliseconds)))
  (loop until (await-input socket :until (+ (milliseconds) *look-milliseconds*))
        never (or (and (null (link-parser link))
                       (winding-down-p (worker-engine *worker*)))
                  ;; Nor for the rest of a head, when there was time enough for it.
                  (drain-over-p (worker-engine *worker*) (milliseconds)))))

(defmethod hunchentoot:process-connection ((acceptor parallel-acceptor) socket)
  "Serves one request when called by our taskmaster, who calls again for the next one, or all of them
where a method of the program expects that; otherwise all of them, as Hunchentoot does."
  (in-place-of-hunchentoots ((call-next-method)
                             ;; Of this acceptor: one that the engine knows may pass its connections on.
                             (and (eq :foreign (surroundings-kind (surroundings-of acceptor)))
                                  (primaries-after-ours #'hunchentoot:process-connection
                                                        (list acceptor socket)))
                             #'hunchentoot:process-connection (acceptor socket))
    (if *connection*
        (setf *outcome* :close          ; if this fails
              *outcome* (handler-case (serve-connection acceptor socket *connection*)
                          (peer-gone () :close))) ; a client may leave before we ask who it is
        (hunchentoots))))

;;; Before and between

(defun waiting-input (connection acceptor kind)
  "What a worker that was told of CONNECTION, of KIND, finds: the head of a request, which we have read;
:SOME input, which whoever comes first is to read; :NONE yet; or the :END."
  (let ((link (connection-data connection)))
    (cond ((minusp (connection-descriptor connection)) ; blocking reads
           :some)
          ((eq :foreign kind)
           (if (await-descriptor (connection-descriptor connection) :input :until (milliseconds))
               :some
               :none))
          ((and link (ours-to-read-p link))
           (waiting-request connection acceptor link (eq :wrapped kind)))
          ((hunchentoot:acceptor-ssl-p acceptor)
           (waiting-encrypted-input connection))
          (link
           (fill-input (link-wire link)))
          ((handler-case (let ((hunchentoot:*acceptor* acceptor))
                           (establish-link acceptor (connection-usocket connection) connection))
             (peer-gone () nil))
           (waiting-input connection acceptor kind))
          (t :end))))

(defun waiting-encrypted-input (connection)
  (let ((link (connection-data connection)))
    (if (if link
            (listen-or-end-p (link-stream link))
            (await-descriptor (connection-descriptor connection) :input
                              :until (milliseconds)))
        :some
        :none)))

(defun listen-or-end-p (stream)
  "True when STREAM has input, or its end."
  (handler-case (listen stream)
    ;; TLS streams signal the peer's end already here.  Who reads will see it too, and is
    ;; prepared for it.
    (error () t)))

(defmethod input-buffered-p ((taskmaster recycling-taskmaster) connection)
  (let* ((link (connection-data connection))
         (wire (and link (link-wire link))))
    (or (cond ((null link) nil)
              ((not (ours-to-read-p link)) (listen-or-end-p (link-stream link)))
              ;; A part of a head is no input to be served, and who read it has read all.
              ((link-parser link) nil)
              (t (input-waiting-p wire)))
        (progn (when wire (lend-no-buffers wire))
               nil))))

(defun leave-output (connection)
  "Leaves it to the engine to send what the socket of CONNECTION did not take of the answer."
  (let* ((link (connection-data connection))
         (wire (and link (link-wire link))))
    (when (and wire (wire-left wire))
      ;; With the parts go open files, which somebody has to close.
      (uninterruptibly
        (setf (connection-output connection) (take-left wire)))
      (lend-no-buffers wire))))

(defmethod all-read-p ((taskmaster recycling-taskmaster) connection)
  (let ((link (connection-data connection)))
    (and link
         (ours-to-read-p link)
         (if (link-parser link)         ; the part of a head that has come stays in the wire
             (wire-drained-p (link-wire link))
             (wire-all-read-p (link-wire link))))))

(defmethod give-notice ((taskmaster recycling-taskmaster) connection)
  "A request whose head came in part is answered 408 (RFC 9110, section 15.5.9); who has not begun
one was asked nothing, and is told nothing."
  (let ((link (connection-data connection)))
    (and link
         (link-parser link)
         (parser-begun-p (link-parser link))
         (wire-descriptor (link-wire link))
         (let ((refusal (make-refusal :request-timeout)))
           (multiple-value-call #'note-rejection (hunchentoot:taskmaster-acceptor taskmaster) link
             refusal (known-request-line (link-parser link)))
           (send-refusal-at-once (link-wire link) refusal)))))

(defmethod release ((taskmaster recycling-taskmaster) connection)
  (let ((link (connection-data connection))
        (socket (connection-socket connection)))
    (when socket
      (let* ((socket-stream (socket-octet-stream socket))
             (wire (stream-wire socket-stream)))
        (unwind-protect
             (progn
               (when (and link (link-stream link) (not (eq (link-stream link) socket-stream)))
                 (close (link-stream link)))
               ;; TLS streams close what they are made of.
               (when (open-stream-p socket-stream)
                 (finish-output socket-stream)))
          (when wire
            (drop-descriptor wire)
            (close-lent wire)))))))
