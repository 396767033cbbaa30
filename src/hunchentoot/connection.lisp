(in-package #:hunchentoot-recycling-taskmaster)

;;;; A connection of a parallel acceptor, from its first octet to its last.

;;; The first request

(defun establish-link (acceptor socket connection)
  "Prepares CONNECTION for its first request.  The handshake of a TLS connection, which may
stall, happens here, under a deadline."
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
             (count-request connection))))
      (setf (link-stream link) stream)
      (if (eq outcome :detached)
          (give-away link)
          outcome))))

(defun give-away (link)
  "Leaves the socket of LINK to the program; returns what is to become of the connection."
  (let ((wire (link-wire link)))
    (if (or (null wire) (hand-descriptor-over wire))
        :detached
        :close)))

(defmethod hunchentoot:process-connection ((acceptor parallel-acceptor) socket)
  "Serves one request when called by our taskmaster, who calls again for the next one;
otherwise all of them, as Hunchentoot does."
  (if *connection*
      (setf *outcome* (serve-request acceptor socket *connection*))
      (call-next-method)))

;;; Before and between

(defun waiting-input (connection acceptor)
  "What a worker that was told of CONNECTION finds: the head of a request, which we have read;
:SOME input, which Hunchentoot is to read; :NONE yet; or the :END."
  (let ((link (connection-data connection)))
    (cond ((and link (ours-to-read-p link))
           (waiting-request connection acceptor link))
          ((minusp (connection-descriptor connection)) ; blocking reads
           :some)
          ((hunchentoot:acceptor-ssl-p acceptor)
           (waiting-encrypted-input connection))
          (link
           (fill-input (link-wire link)))
          (t
           (let ((hunchentoot:*acceptor* acceptor))
             (establish-link acceptor (connection-usocket connection) connection))
           (waiting-input connection acceptor)))))

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
    (and link (ours-to-read-p link) (wire-all-read-p (link-wire link)))))

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
            (drop-descriptor wire)))))))
