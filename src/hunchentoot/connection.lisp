(in-package #:hunchentoot-recycling-taskmaster)

;;;; A connection of a parallel acceptor, from its first octet to its last.

;;; The first request

(defun establish-link (acceptor socket connection)
  "Prepares CONNECTION for its first request.  The handshake of a TLS connection, which may
stall, happens here, under a deadline.  Signals PEER-GONE where nobody is there any more."
  (let* ((seconds (hunchentoot:acceptor-read-timeout acceptor))
         (socket-stream (socket-octet-stream socket))
         (link (make-link :base (stream-wire socket-stream)
                          :remote (multiple-value-list (peer-name socket))
                          :local (name-of-our-end acceptor socket))))
    (limit-waits socket seconds)
    (when (link-base link)
      (limit-writes (link-base link) (hunchentoot:acceptor-write-timeout acceptor)))
    (settle-wire link socket-stream
                 (call-with-deadline connection :handshake seconds
                                     (lambda ()
                                       (hunchentoot:initialize-connection-stream
                                        acceptor socket-stream))))
    (setf (connection-data connection) link)))

(defun link-of (acceptor socket connection)
  "The link of CONNECTION, established when it has none."
  (or (connection-data connection)
      (establish-link acceptor socket connection)))

;;; Every request

(defun serve-request (acceptor socket exchange)
  "Serves the request of EXCHANGE; returns what is to become of its connection."
  (let* ((connection (exchange-connection exchange))
         (link (link-of acceptor socket connection)))
    (multiple-value-bind (outcome stream)
        (call-with-connection-stream
         (link-stream link)
         (lambda ()
           (prog1 (process-head acceptor exchange link)
             (count-request connection)))
         (lambda ()
           (setf (exchange-outcome exchange) (give-away acceptor connection link))))
      (setf (link-stream link) stream)
      (cond ((eq outcome :detached) (give-away acceptor connection link))
            ((and (link-base link) (not (settle-lent (link-base link)))) :close)
            (t outcome)))))

(defun give-away (acceptor connection link)
  "Leaves the socket of CONNECTION, with LINK, to the program; returns what is to become of the
connection."
  (let ((base (link-base link)))
    (pace-wire (link-wire link) nil nil)
    (cond ((null base)
           (setf (connection-outcome connection) :detached))
          ((null (wire-descriptor base)) :close)
          ((hunchentoot:acceptor-ssl-p acceptor)
           (finish-output (link-stream link))
           ;; OpenSSL has the number of the descriptor, so it must be that.  Once it is the program's, it
           ;; may be another connection's at any moment.
           (uninterruptibly
             (detach (worker-engine *worker*) connection)
             (setf (connection-outcome connection) :detached)
             (unless (hand-descriptor-over base) ; the program has just closed it
               (close-socket (connection-descriptor connection))))
           :detached)
          (t
           (usocket:socket-stream (connection-usocket connection)) ; lends that
           (if (lent-open-p base)
               (leave-to-program connection base)
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
;;;
;;;   the exchange ...              and PROCESS-CONNECTION's caller   in one call
;;;   has its head                  calls it for each request         that request is served
;;;   has none, was not asked for   calls it for each request         the next request is read and served;
;;;                                                                   if none has come and the engine can
;;;                                                                   park, it does
;;;   the program has read, or has  expects one call for a            all requests are read and served
;;;   a method in our place         connection

(defun serve-connection (acceptor socket exchange)
  "Serves what the current call of PROCESS-CONNECTION is for, EXCHANGE, after what the program has done
before; returns what is to become of its connection."
  (cond ((ecase (exchange-kind exchange)
           (:own nil)
           (:wrapped (socket-asked-p socket))
           (:foreign t))
         (serve-to-the-end acceptor socket exchange))
        ((exchange-head exchange)
         (when (eq :wrapped (exchange-kind exchange))
           (drop-head (link-wire (exchange-link exchange))))
         (serve-request acceptor socket exchange))
        (t
         (serve-next acceptor socket exchange
                     (not (connection-parkable-p (exchange-connection exchange)))))))

(defun serve-next (acceptor socket exchange wait-p)
  "Serves the next request of the connection of EXCHANGE, in the current call; waits for it if WAIT-P.
Returns what is to become of the connection."
  (let* ((connection (exchange-connection exchange))
         (link (link-of acceptor socket connection))
         (head (if (link-waits-p link)
                   (read-next-request acceptor socket connection link)
                   (await-request acceptor socket connection link wait-p))))
    (case head
      (:end :close)
      (:none :park)
      (t
       (setf (exchange-head exchange) head)
       (serve-request acceptor socket exchange)))))

(defun serve-to-the-end (acceptor socket exchange)
  "Serves all requests of the connection of EXCHANGE in the current call, one after the other; returns
what is to become of it then."
  (flet ((serve-it ()
           (serve-next acceptor socket exchange t)))
    (loop for outcome = (call-timed acceptor exchange #'serve-it)
          while (and (eq outcome :park) (not (winding-down-p (worker-engine *worker*))))
          finally (return (if (eq outcome :park) :close outcome)))))

(defparameter *look-milliseconds* 250
  "How often a worker that waits for the next request of its connection looks whether it still should.")

(defun await-request (acceptor socket connection link wait-p)
  "The head of the next request of CONNECTION, over LINK, which does not wait; :END when none comes, and
:NONE when it has not come and WAIT-P is false."
  (loop for input = (waiting-request connection acceptor link)
        while (and wait-p (eq input :none))
        unless (await-more acceptor socket connection link)
          return :end
        finally (unless (eq input :none)
                  (setf (connection-deadline connection) nil))
                (return input)))

(defun read-next-request (acceptor socket connection link)
  "Like AWAIT-REQUEST, over LINK, which waits."
  (if (or (zerop (connection-served connection)) ; then there is somebody who wants something
          (await-more acceptor socket connection link))
      (let ((seconds (hunchentoot:acceptor-read-timeout acceptor)))
        (setf (link-head-deadline link) (end-after seconds))
        (call-with-deadline connection :head seconds
                            (lambda ()
                              (waiting-request connection acceptor link))))
      :end))

(defun await-more (acceptor socket connection link)
  "Waits until more of CONNECTION comes by SOCKET, over LINK.  NIL when nobody should wait for a request
any more."
  (when (and (link-waits-p link)        ; else what was buffered has been read
             (input-waiting-p (link-wire link)))
    (return-from await-more t))
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
    (if *exchange*
        (setf (exchange-outcome *exchange*) :close ; if this fails
              (exchange-outcome *exchange*)
              (handler-case (serve-connection acceptor socket *exchange*)
                (peer-gone () :close))) ; a client may leave before we ask who it is
        (hunchentoots))))

;;; Before and between

(defun waiting-input (connection acceptor kind)
  "What a worker that was told of CONNECTION, of KIND, finds: the head of a request, which we have read;
:SOME input, which whoever comes first is to read; :NONE yet; or the :END."
  (let ((link (connection-data connection)))
    (cond ((not (connection-parkable-p connection)) ; its worker waits
           :some)
          ((eq :foreign kind)
           (octets-waiting connection))
          ((and link (link-waits-p link))
           (if (input-waiting-p (link-wire link)) :some (octets-waiting connection)))
          ((and link (eq :wrapped kind))
           (waiting-request connection acceptor link t))
          (link
           (whole-request connection acceptor link))
          ((and (hunchentoot:acceptor-ssl-p acceptor) (eq :none (octets-waiting connection)))
           :none)
          ((and (hunchentoot:acceptor-ssl-p acceptor) (eq :wrapped kind))
           :some)                       ; the program may read before the handshake
          ((established-p acceptor connection)
           (waiting-input connection acceptor kind))
          (t :end))))

(defun octets-waiting (connection)
  "Whether the descriptor of CONNECTION has :SOME input, or :NONE."
  (if (await-descriptor (connection-descriptor connection) :input :until (milliseconds))
      :some
      :none))

(defun established-p (acceptor connection)
  "Establishes the link of CONNECTION, outside of the methods of the program.  NIL when nobody is there any
more, or the handshake failed."
  (handler-bind ((error (lambda (condition)
                          (when (hunchentoot:acceptor-ssl-p acceptor)
                            (note-failed-handshake acceptor condition)
                            (return-from established-p nil)))))
    (handler-case (let ((hunchentoot:*acceptor* acceptor))
                    (establish-link acceptor (connection-usocket connection) connection))
      (peer-gone () nil))))

(defun note-failed-handshake (acceptor condition)
  "Tells in the message log of ACCEPTOR, as Hunchentoot does, of CONDITION, which ended a handshake."
  (when hunchentoot:*log-lisp-errors-p*
    (complain acceptor hunchentoot:*lisp-errors-log-level* "~A" condition)))

(defmethod input-buffered-p ((taskmaster recycling-taskmaster) connection)
  (let* ((link (connection-data connection))
         (wire (and link (link-wire link))))
    (cond ((null link) nil)
          ;; A part of a request is no input to be served, and who read it has read all.
          ((and (null (link-parser link)) (null (link-reception link)) (input-waiting-p wire)) t)
          (t
           (lend-no-buffers wire)
           nil))))

(defun output-settled-p (connection)
  "Leaves it to the engine to send what the socket of CONNECTION did not take of the answer; where a worker
keeps the connection, it waits for the peer.  NIL when that is gone, or takes none in time."
  (let* ((link (connection-data connection))
         (wire (and link (link-wire link))))
    (cond ((not (and wire (wire-left wire))) t)
          ((connection-parkable-p connection)
           (leave-output connection wire)
           t)
          (t
           (handler-case (progn (send-left wire) t)
             ((or descriptor-broken stream-timeout) () nil))))))

(defun leave-output (connection wire)
  "Leaves it to the engine to send what is LEFT of WIRE, which is that of CONNECTION."
  ;; With the parts go open files, which somebody has to close.
  (uninterruptibly
    (setf (connection-sender connection) (wire-sender wire)
          (connection-output connection) (take-left wire)))
  (lend-no-buffers wire))

(defmethod all-read-p ((taskmaster recycling-taskmaster) connection)
  (let ((link (connection-data connection)))
    (and link
         (not (link-waits-p link))
         (if (link-parser link)         ; the part of a head that has come stays in the wire
             (wire-drained-p (link-wire link))
             (wire-all-read-p (link-wire link))))))

(defmethod give-notice ((taskmaster recycling-taskmaster) connection)
  "A request that came in part is answered 408 (RFC 9110, section 15.5.9); who has not begun one was
asked nothing, and is told nothing."
  (let ((link (connection-data connection)))
    (and link
         (wire-open-p (link-wire link))
         (not (link-waits-p link))      ; nor may we
         (let ((refusal (reject-late (hunchentoot:taskmaster-acceptor taskmaster) link)))
           (and refusal
                (send-refusal-at-once (link-wire link) refusal))))))

(defun reject-late (acceptor link)
  "Counts and logs the request that came in part over LINK; returns its refusal, or NIL when there is
none."
  (let ((parser (link-parser link)))
    (cond ((link-reception link)
           (reject-reception acceptor link))
          ((and parser (parser-begun-p parser))
           (let ((refusal (make-refusal :request-timeout)))
             (multiple-value-call #'note-rejection acceptor link refusal
               (known-request-line parser))
             refusal)))))

(defmethod release ((taskmaster recycling-taskmaster) connection)
  (let ((link (connection-data connection))
        (socket (connection-socket connection)))
    (when socket
      (let* ((socket-stream (socket-octet-stream socket))
             (wire (stream-wire socket-stream)))
        (when link
          (abandon-reception link))
        (unwind-protect
             (progn
               (when (and link (not (eq (link-stream link) socket-stream)))
                 ;; TLS streams close what they are made of.
                 (when wire
                   (leave-end-to-engine wire))
                 (close-outer-stream (hunchentoot:taskmaster-acceptor taskmaster)
                                     (link-stream link)))
               (when (open-stream-p socket-stream)
                 (finish-output socket-stream)))
          (when wire
            (drop-descriptor wire)
            (close-lent wire)))))))

(defun close-outer-stream (acceptor stream)
  "Closes STREAM, which INITIALIZE-CONNECTION-STREAM has made for ACCEPTOR of a socket's."
  (handler-bind ((error (lambda (condition)
                          (declare (ignore condition))
                          ;; TLS ends with a farewell.  Who is gone does not get it: that is no
                          ;; failure, and OpenSSL's conditions do not tell it from others.
                          (when (hunchentoot:acceptor-ssl-p acceptor)
                            (close stream :abort t)
                            (return-from close-outer-stream nil)))))
    (close stream)))
