(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; One TLS connection of a server, by OpenSSL on a non-blocking descriptor, for SBCL on Linux.
;;;;
;;;; Invariants:
;;;; - No thread is interrupted while it is in OpenSSL.  A thread that was destroyed there would
;;;;   never release the locks of OpenSSL and of malloc, and all other threads would hang.
;;;; - HANDLE is NIL, or an SSL object, which only this session frees.
;;;; - One thread at a time is in OpenSSL for a session, and holds its LOCK.  A program that takes
;;;;   over the connection may read from it in one thread and write to it in others, while the
;;;;   server still sends its last reply.  No call waits for the peer, so the lock is soon free.
;;;; - After a failure other than a wait, OpenSSL is called again only to free the object; see
;;;;   SSL_get_error(3).

(defstruct (tls-session (:include opaque)
                        (:constructor %make-tls-session (handle descriptor &optional context))
                        (:copier nil))
  "A TLS connection on DESCRIPTOR."
  (handle nil)                          ; a CFFI pointer; NIL once it was freed
  (descriptor 0 :type descriptor :read-only t)
  (lock (sb-thread:make-mutex :name "TLS session") :read-only t)
  (context nil :read-only t)            ; the callbacks of OpenSSL need it in a handshake
  (failed-p nil)
  ;; True if OpenSSL reads all octets that are there; see SSL_set_read_ahead(3).
  (greedy-p nil)
  ;; True if the last read from the descriptor did not fill OpenSSL's buffer.
  (short-read-p nil)
  (octets-read 0 :type (unsigned-byte 62))) ; total from the descriptor

(defvar *tls-sessions* (make-counter)
  "The number of open sessions.")

(defun tls-session-count ()
  "The number of open TLS-SESSIONs in this process, an integer."
  (counter-count *tls-sessions*))

(defmacro openssl (name result &rest arguments)
  "Calls the function NAME of OpenSSL, which returns a RESULT, a type, with ARGUMENTS, lists of type
and value."
  `(sb-alien:alien-funcall
    (sb-alien:extern-alien ,name (function ,result ,@(mapcar #'first arguments)))
    ,@(mapcar #'second arguments)))

(defmacro openssl-of (session name result &rest arguments)
  "Calls the function NAME of OpenSSL for the SSL object of SESSION, see OPENSSL."
  `(openssl ,name ,result (sb-sys:system-area-pointer (tls-session-handle ,session)) ,@arguments))

(defmacro owning-session ((session) &body body)
  "Evaluates BODY, which calls OpenSSL for SESSION.  Meanwhile, no other thread does so, and no
interrupt runs in this one."
  `(uninterruptibly
     (sb-thread:with-mutex ((tls-session-lock ,session))
       ,@body)))

(defun tls-session-pointer (session)
  "OpenSSL's SSL object of SESSION, a CFFI pointer; NIL once SESSION was ended."
  (tls-session-handle session))

(defun make-tls-session (context descriptor)
  "A TLS-SESSION of a server under CONTEXT, a TLS-CONTEXT, on DESCRIPTOR, a non-blocking socket,
before its handshake.  The caller must call END-TLS-SESSION in the end, and defers interrupts until
it has recorded the session.  Signals an error if OpenSSL has no memory."
  (keeping (context)                    ; else its handle might be freed meanwhile
    (let ((handle (openssl "SSL_new" sb-sys:system-area-pointer
                           (sb-sys:system-area-pointer (tls-context-handle context)))))
      (when (zerop (sb-sys:sap-int handle))
        (error "OpenSSL cannot make a connection."))
      (openssl "SSL_set_fd" sb-alien:int
               (sb-sys:system-area-pointer handle) (sb-alien:int descriptor))
      (openssl "SSL_set_accept_state" sb-alien:void (sb-sys:system-area-pointer handle))
      (counter-add *tls-sessions* 1)
      (let ((session (%make-tls-session handle descriptor context)))
        (note-greed session)
        session))))

(defun note-greed (session)
  "Records whether OpenSSL reads more from the descriptor of SESSION than the current record."
  (setf (tls-session-greedy-p session)
        (= 1 (openssl-of session "SSL_get_read_ahead" sb-alien:int))))

;;; Results of OpenSSL

(defconstant +ssl-error-want-read+ 2)
(defconstant +ssl-error-want-write+ 3)
(defconstant +ssl-error-zero-return+ 6)

(defun tls-result (session result)
  "The value of RECEIVE-OCTETS for RESULT, of a call for SESSION that has failed."
  (let ((error (openssl-of session "SSL_get_error" sb-alien:int (sb-alien:int result))))
    (cond ((or (= error +ssl-error-want-read+) (= error +ssl-error-want-write+)) +would-block+)
          ((= error +ssl-error-zero-return+) 0)
          (t
           (setf (tls-session-failed-p session) t)
           (- +eio+)))))

(defmacro calling-openssl ((session) call)
  "The value of the form CALL, a call of OpenSSL for SESSION, if it is positive; else TLS-RESULT of
it."
  `(owning-session (,session)
     (cond ((and (tls-session-handle ,session) (not (tls-session-failed-p ,session)))
            ;; An earlier error on this thread would look like a failure of this call.
            (openssl "ERR_clear_error" sb-alien:void)
            (let ((result ,call))
              (if (plusp result) result (tls-result ,session result))))
           (t (- +ebadf+)))))

(defun tls-awaits (session)
  "The direction for which SESSION waits after a call that would block: :INPUT; or :OUTPUT, if
OpenSSL has data of its own to send first, such as new keys."
  (owning-session (session)
    (if (and (tls-session-handle session)
             (= 2 (openssl-of session "SSL_want" sb-alien:int))) ; SSL_WRITING
        :output
        :input)))

;;; Octets

(defconstant +surely-short+ 4096
  "If a call of OpenSSL has read at most this number of octets from a descriptor, it has not filled
its buffer.  The buffer has room for a record of 16 KiB.")

;;; When OpenSSL looks for the next record, it reads as much as fits into its buffer.  When it has
;;; the header of a record, it reads only the rest of that record, and the descriptor may have more.

(defun within-record-p (session)
  "True if OpenSSL has the header of a record of SESSION without the whole record, or may have it."
  (or (/= 0 (openssl-of session "SSL_has_pending" sb-alien:int))
      (= (char-code #\B)                ; "RB" for the body, "RH" for the header
         (sb-sys:sap-ref-8 (openssl-of session "SSL_rstate_string" sb-sys:system-area-pointer) 1))))

(defun note-octets-read (session within-p)
  "Records whether OpenSSL has emptied the descriptor of SESSION in its last call.  WITHIN-P is the
value of WITHIN-RECORD-P before that call."
  (let* ((total (openssl "BIO_number_read" sb-alien:unsigned-long
                         (sb-sys:system-area-pointer
                          (openssl-of session "SSL_get_rbio" sb-sys:system-area-pointer))))
         (count (- total (tls-session-octets-read session))))
    ;; OpenSSL's buffer tells nothing about the descriptor, where more octets may have arrived.
    (setf (tls-session-octets-read session) total
          (tls-session-short-read-p session) (and (plusp count)
                                                  (tls-session-greedy-p session)
                                                  (not within-p)
                                                  (<= count +surely-short+)))))

(defmacro noting-octets-read ((session) call)
  "The value of CALL, a call of OpenSSL that may read from the descriptor of SESSION.  Records
whether the call has emptied the descriptor."
  (let ((within-p (gensym "WITHIN-P")))
    `(let ((,within-p (within-record-p ,session)))
       (prog1 ,call
         (note-octets-read ,session ,within-p)))))

(defun tls-drained-p (session)
  "True if the last read from SESSION has returned all octets that had arrived by then."
  (owning-session (session)
    (and (tls-session-handle session)
         (tls-session-short-read-p session)
         (zerop (openssl-of session "SSL_has_pending" sb-alien:int)))))

(defun receive-tls (session octets start end)
  "Reads the octets that SESSION has, at most END - START, into OCTETS from START.  Returns the
value of RECEIVE-OCTETS."
  (declare (type octets octets) (type index start end))
  (assert (<= start end (length octets))) ; OpenSSL checks nothing
  (calling-openssl (session)
    (noting-octets-read (session)
      (sb-sys:with-pinned-objects (octets)
        (openssl-of session "SSL_read" sb-alien:int
                    (sb-sys:system-area-pointer
                     (sb-sys:sap+ (sb-sys:vector-sap octets) start))
                    (sb-alien:int (- end start)))))))

(defun send-tls (session octets start end)
  "Writes OCTETS from START to END to SESSION, as many as it accepts now.  Returns the value of
SEND-OCTETS.  The caller must write the octets that SESSION did not accept before any others."
  (declare (type octets octets) (type index start end))
  (assert (<= start end (length octets))) ; OpenSSL checks nothing
  (calling-openssl (session)
    (sb-sys:with-pinned-objects (octets)
      (openssl-of session "SSL_write" sb-alien:int
                  (sb-sys:system-area-pointer
                   (sb-sys:sap+ (sb-sys:vector-sap octets) start))
                  (sb-alien:int (- end start))))))

;;; The handshake, and the end

(defun tls-failure-reason ()
  "OpenSSL's reason, a string, for its first recorded failure on this thread; NIL for none."
  (let ((number (openssl "ERR_peek_error" sb-alien:unsigned-long)))
    (unless (zerop number)
      (openssl "ERR_reason_error_string" sb-alien:c-string (sb-alien:unsigned-long number)))))

(defun shake-hands (session)
  "Continues the handshake of SESSION as far as the octets received so far allow.  Returns :DONE;
:INPUT or :OUTPUT, the direction in which the descriptor must be ready for the next call; or :FAILED
and OpenSSL's reason, a string, or NIL if the peer has left."
  (let* ((reason nil)
         (result (calling-openssl (session)
                   (let ((result (noting-octets-read (session)
                                   (openssl-of session "SSL_do_handshake" sb-alien:int))))
                     (unless (plusp result)
                       (setf reason (tls-failure-reason)))
                     result))))
    (cond ((plusp result) :done)
          ((would-block-p result) (tls-awaits session))
          (t (values :failed reason)))))

(defun end-tls-session (session)
  "Sends a close alert to the peer of SESSION, if the descriptor accepts it now, and frees the SSL
object.  The descriptor stays open.  Another call has no effect."
  (owning-session (session)
    (when (tls-session-handle session)
      (unless (tls-session-failed-p session)
        (openssl "ERR_clear_error" sb-alien:void)
        (openssl-of session "SSL_shutdown" sb-alien:int))
      (openssl-of session "SSL_free" sb-alien:void)
      (setf (tls-session-handle session) nil)
      (counter-add *tls-sessions* -1))))

(defun abandon-tls-session (session)
  "Ends SESSION and closes its descriptor, unless SESSION was ended before."
  (when (tls-session-handle session)
    (end-tls-session session)
    (close-descriptor (tls-session-descriptor session))))
