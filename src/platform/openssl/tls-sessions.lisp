(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; One TLS connection of a server, by OpenSSL on a non-blocking descriptor, for SBCL on Linux.
;;;;
;;;; Invariants:
;;;; - No thread is interrupted while it is in OpenSSL.  A thread that was destroyed there would
;;;;   never release the locks of OpenSSL and of malloc, and all other threads would hang.
;;;; - POINTER is NIL, or that of an SSL object, which only this session frees.
;;;; - One thread at a time is in OpenSSL for a session, and holds its LOCK.  A program that takes
;;;;   over the connection may read from it in one thread and write to it in others, while the
;;;;   server still sends its last reply.  No call waits for the peer, so the lock is soon free.
;;;; - After a failure other than a wait, OpenSSL is called again only to free the object; see
;;;;   SSL_get_error(3).

(defstruct (tls-session (:include opaque)
                        (:constructor %make-tls-session (pointer context))
                        (:copier nil))
  "A TLS connection."
  (pointer nil)                         ; to the SSL object, of CFFI; NIL once it was freed
  (lock (sb-thread:make-mutex :name "TLS session") :read-only t)
  (context nil :read-only t)            ; the callbacks of OpenSSL need it in a handshake
  (failed-p nil)
  (drained-p nil)) ; the last read has returned all octets that had arrived by then

(defmacro owning-session ((session handle) &body body)
  "Evaluates BODY, which calls OpenSSL for HANDLE, that of SESSION, or NIL.  Meanwhile, no other
thread does so, and no interrupt runs in this one."
  `(uninterruptibly
     (sb-thread:with-mutex ((tls-session-lock ,session))
       (let ((,handle (tls-session-pointer ,session)))
         ,@body))))

(defun call-with-tls-handle (session function)
  "The value of FUNCTION, called with the SSL object of SESSION; NIL where that was freed."
  (owning-session (session handle)
    (and handle (funcall function handle))))

(defun make-tls-session (context descriptor)
  "A TLS-SESSION of a server under CONTEXT, a TLS-CONTEXT, on DESCRIPTOR, a non-blocking socket,
before its handshake.  The caller must call END-TLS-SESSION in the end, and defers interrupts until
it has recorded the session.  Signals an error if OpenSSL has no memory."
  (let ((handle (openssl :pointer "SSL_new" (first (tls-context-handles context)))))
    (when (cffi:null-pointer-p handle)
      (error "OpenSSL cannot make a connection."))
    (openssl :int "SSL_set_fd" handle (:int descriptor))
    (openssl :void "SSL_set_accept_state" handle)
    (%make-tls-session handle context)))

;;; Calls that may fail, or have to wait.  The value is that of RECEIVE-OCTETS.

(defmacro calling-openssl ((session handle) call)
  "The value of the form CALL, a call of OpenSSL for HANDLE, that of SESSION, if it is positive;
+WOULD-BLOCK+, 0 at the end of input, or minus an error number."
  `(owning-session (,session ,handle)
     (cond ((and ,handle (not (tls-session-failed-p ,session)))
            ;; An earlier error on this thread would look like a failure of this call.
            (clear-errors)
            (let ((result ,call))
              (if (plusp result)
                  result
                  (case (openssl :int "SSL_get_error" ,handle (:int result))
                    ((2 3) +would-block+) ; SSL_ERROR_WANT_READ, SSL_ERROR_WANT_WRITE
                    (6 0)               ; SSL_ERROR_ZERO_RETURN
                    (t
                     (setf (tls-session-failed-p ,session) t)
                     (- +eio+))))))
           (t (- +ebadf+)))))

(defun tls-awaits (session)
  "The direction for which SESSION waits after a call that would block: :INPUT; or :OUTPUT, if
OpenSSL has data of its own to send first, such as new keys."
  (owning-session (session handle)
    (if (and handle
             (= 2 (openssl :int "SSL_want" handle))) ; SSL_WRITING
        :output
        :input)))

(defun receive-tls (session octets start end)
  "Reads the octets that SESSION has, at most END - START, into OCTETS from START.  Returns the
value of RECEIVE-OCTETS.  OpenSSL does not check the range."
  (declare (type octets octets) (type index start end))
  (calling-openssl (session handle)
    ;; When OpenSSL looks for the next record, it reads as much as fits into its buffer, which has
    ;; room for a record of 16 KiB.  When it is within a record, it reads only the rest of that, and
    ;; the descriptor may have more.
    (flet ((pending-p ()
             (/= 0 (openssl :int "SSL_has_pending" handle)))
           (octets-read ()
             (openssl :unsigned-long "BIO_number_read" (openssl :pointer "SSL_get_rbio" handle))))
      (let ((within-p (or (pending-p)
                          ;; "RB" within the body of a record, "RH" for its header.
                          (= (char-code #\B)
                             (sb-sys:sap-ref-8 (openssl :pointer "SSL_rstate_string" handle) 1))))
            (before (octets-read)))
        (prog1 (sb-sys:with-pinned-objects (octets)
                 (openssl :int "SSL_read" handle (sb-sys:sap+ (sb-sys:vector-sap octets) start)
                          (:int (- end start))))
          (setf (tls-session-drained-p session)
                (and (not within-p)
                     (<= 1 (- (octets-read) before) 4096)
                     (not (pending-p)))))))))

(defun send-tls (session octets start end)
  "Writes OCTETS from START to END to SESSION, as many as it accepts now.  Returns the value of
SEND-OCTETS.  The caller must write the octets that SESSION did not accept before any others."
  (declare (type octets octets) (type index start end))
  (calling-openssl (session handle)
    (sb-sys:with-pinned-objects (octets)
      (openssl :int "SSL_write" handle (sb-sys:sap+ (sb-sys:vector-sap octets) start)
               (:int (- end start))))))

(defun tls-session-protocol (session)
  "The name, a string, of the protocol that the handshake of SESSION has chosen; NIL if none (RFC
7301)."
  (owning-session (session handle)
    (cffi:with-foreign-objects ((name :pointer) (size :unsigned-int))
      (setf (cffi:mem-ref size :unsigned-int) 0)
      (when handle
        (openssl :void "SSL_get0_alpn_selected" handle name size))
      (and (plusp (cffi:mem-ref size :unsigned-int))
           (values (cffi:foreign-string-to-lisp (cffi:mem-ref name :pointer)
                                                :count (cffi:mem-ref size :unsigned-int)))))))

;;; The handshake, and the end

(defun shake-hands (session)
  "Continues the handshake of SESSION as far as the octets received so far allow.  Returns :DONE;
:INPUT or :OUTPUT, the direction in which the descriptor must be ready for the next call; or :FAILED
and OpenSSL's reason, a string, or NIL if the peer has left."
  (let ((result (calling-openssl (session handle)
                  (openssl :int "SSL_do_handshake" handle))))
    (cond ((plusp result) :done)
          ((would-block-p result) (tls-awaits session))
          (t
           (values :failed (openssl :string "ERR_reason_error_string"
                                    (:unsigned-long (openssl :unsigned-long "ERR_get_error"))))))))

(defun end-tls-session (session)
  "Sends a close alert to the peer of SESSION, if the descriptor accepts it now, and frees the SSL
object.  The descriptor stays open.  Another call has no effect."
  (owning-session (session handle)
    (when handle
      (unless (tls-session-failed-p session)
        (clear-errors)
        (openssl :int "SSL_shutdown" handle))
      (openssl :void "SSL_free" handle)
      (setf (tls-session-pointer session) nil))))
