(in-package #:hunchentoot-recycling-taskmaster-test)

;;; A client's end of a connection over TLS: OpenSSL on a non-blocking descriptor.  What it wants is
;;; waited for, the descriptor's input or output, and nothing else: a descriptor that can be read
;;; may have a session ticket and no octet of the peer's (RFC 8446, section 4.6.1).

(defstruct (tls-connection (:include connection)
                           (:constructor %make-tls-connection (socket stream)))
  "A connection of the test client whose octets CL+SSL's STREAM encrypts.  Octets that were
decrypted, and not asked for yet, are in BUFFER from START below END."
  stream
  (buffer (make-array 16384 :element-type '(unsigned-byte 8)))
  (start 0)
  (end 0))

(defun encrypted (socket)
  "A connection over TLS, after the handshake, by SOCKET, a connected usocket."
  (handler-bind ((error (lambda (condition)
                          (declare (ignore condition))
                          (usocket:socket-close socket))))
    ;; By a number CL+SSL makes the descriptor non-blocking.
    (%make-tls-connection socket (cl+ssl:make-ssl-client-stream (socket-descriptor socket)
                                                                :verify nil))))

(defun tls-handle (connection)
  "OpenSSL's part of CONNECTION; NIL when it is closed."
  (cl+ssl::ssl-stream-handle (tls-connection-stream connection)))

(defun forget-tls-errors ()
  "Forgets what has failed in this thread: it would be taken for a failure of the next call."
  (loop until (zerop (cl+ssl::err-get-error))))

(defun await-tls (connection result deadline)
  "Waits until DEADLINE for what CONNECTION wanted when a call gave RESULT.  Returns true when that
came, NIL when it did not, and :BROKEN when nothing will."
  (let ((direction (case (cl+ssl::ssl-get-error (tls-handle connection) result)
                     (#.cl+ssl::+ssl-error-want-read+ :input)
                     (#.cl+ssl::+ssl-error-want-write+ :output))))
    (if direction
        (platform:await-descriptor (socket-descriptor (connection-socket connection)) direction
                                   :until (+ (platform:milliseconds)
                                             (ceiling (* 1000 (seconds-until deadline)))))
        :broken)))

(defun call-tls (connection function octets start seconds)
  "Calls FUNCTION, SSL_read or SSL_write, with OCTETS from START on, until it reads or writes some.
Returns how many; 0 at the end of CONNECTION; NIL when SECONDS have passed."
  (if (tls-handle connection)
      ;; What SSL_write was given once it must be given again, at the same place.
      (cffi:with-pointer-to-vector-data (pointer octets)
        (loop with deadline = (deadline-after seconds)
              for result = (progn
                             (forget-tls-errors)
                             (funcall function (tls-handle connection)
                                      (cffi:inc-pointer pointer start) (- (length octets) start)))
              when (plusp result)
                return result
              do (case (await-tls connection result deadline)
                   (:broken (return 0))
                   ((nil) (return nil)))))
      0))

(defmethod transmit ((connection tls-connection) octets)
  (loop with start = 0
        while (< start (length octets))
        do (let ((count (call-tls connection #'cl+ssl::ssl-write octets start *patience*)))
             (case count
               ((nil) (lose-patience "the server to read"))
               (0 (error "The server has closed the connection."))
               (t (incf start count))))))

(defmethod end-sending ((connection tls-connection))
  (forget-tls-errors)
  (cl+ssl::ssl-shutdown (tls-handle connection)) ; which only tells the peer
  (call-next-method))

(defmethod disconnect :before ((connection tls-connection))
  (ignore-errors (close (tls-connection-stream connection) :abort t)))

(defun filled-p (connection seconds)
  "Whether within SECONDS there are octets in the buffer of CONNECTION; :END when no more will
come."
  (or (< (tls-connection-start connection) (tls-connection-end connection))
      (let ((count (call-tls connection #'cl+ssl::ssl-read (tls-connection-buffer connection) 0
                             seconds)))
        (case count
          ((nil) nil)
          (0 :end)
          (t (setf (tls-connection-start connection) 0
                   (tls-connection-end connection) count)
             t)))))

(defmethod readable-p ((connection tls-connection) &optional (seconds 0))
  (and (filled-p connection seconds) t))

(defmethod next-octet ((connection tls-connection))
  (case (filled-p connection *patience*)
    ((nil) (lose-patience "the server to send or to hang up"))
    (:end nil)
    (t (prog1 (aref (tls-connection-buffer connection) (tls-connection-start connection))
         (incf (tls-connection-start connection))))))

(defmethod receive-many ((connection tls-connection) count)
  (receive-few connection count))
