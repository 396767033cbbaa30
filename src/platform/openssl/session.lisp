(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; One TLS connection of a server, by OpenSSL on a non-blocking descriptor, for SBCL on Linux.
;;;;
;;;; Invariants:
;;;; - No thread is interrupted while it is in OpenSSL.  Who is destroyed there leaves locks of OpenSSL
;;;;   and of malloc taken, for which every thread waits in the end.
;;;; - HANDLE is NIL, or an SSL object, which this session alone frees.
;;;; - One thread at a time is in OpenSSL for a session, and has its LOCK.  A program that takes the connection
;;;;   away may read it in one thread, and write to it in others, the server's last reply among them.  No call
;;;;   waits for the peer, so the lock is soon free.
;;;; - After a failure that is no wait OpenSSL is not called again but to free the object, see
;;;;   SSL_get_error(3).

(defstruct (tls-session (:include opaque) (:constructor %make-tls-session (handle descriptor &optional context))
                        (:copier nil))
  "A TLS connection on DESCRIPTOR."
  (handle nil)                          ; of CFFI; NIL when it was freed
  (descriptor 0 :type descriptor :read-only t)
  (lock (sb-thread:make-mutex :name "TLS session") :read-only t)
  (context nil :read-only t)            ; which callbacks of OpenSSL look for in a handshake
  (failed-p nil)
  (kernel-p nil)                        ; the kernel encrypts what is sent
  ;; OpenSSL reads as much as there is, see SSL_set_read_ahead(3).
  (greedy-p nil)
  ;; The last read of the descriptor got less than it could have.
  (short-read-p nil)
  (octets-read 0 :type (unsigned-byte 62))) ; off the descriptor, in all

(setf (documentation 'tls-session-kernel-p 'function)
      "True when the kernel encrypts what is sent to SESSION, so that files can be sent without a
copy.")

(defvar *tls-sessions* (make-counter)
  "How many sessions are open.")

(defun tls-session-count ()
  "How many TLS-SESSIONs are open in this process, an integer."
  (counter-count *tls-sessions*))

(defmacro openssl (name result &rest arguments)
  "Calls the function NAME of OpenSSL, which returns RESULT, with ARGUMENTS, lists of type and
value."
  `(sb-alien:alien-funcall
    (sb-alien:extern-alien ,name (function ,result ,@(mapcar #'first arguments)))
    ,@(mapcar #'second arguments)))

(defmacro openssl-of (session name result &rest arguments)
  "Calls the function NAME of OpenSSL for the SSL object of SESSION, see OPENSSL."
  `(openssl ,name ,result (sb-sys:system-area-pointer (tls-session-handle ,session)) ,@arguments))

(defmacro owning-session ((session) &body body)
  "Evaluates BODY, which calls OpenSSL for SESSION, while no other thread does, and nobody
interrupts this one."
  `(uninterruptibly
     (sb-thread:with-mutex ((tls-session-lock ,session))
       ,@body)))

(defun tls-session-pointer (session)
  "The SSL object of OpenSSL that SESSION has, a CFFI pointer, for as long as SESSION is not ended;
NIL then."
  (tls-session-handle session))

(defun make-tls-session (context descriptor)
  "A TLS-SESSION of a server by CONTEXT, a TLS-CONTEXT, on DESCRIPTOR, a socket that does not block,
before its handshake.  The caller sees to it that END-TLS-SESSION is called.  Signals an error where
OpenSSL has no memory."
  (uninterruptibly
    (keeping (context)                  ; or its handle might be freed meanwhile
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
          session)))))

(defun note-greed (session)
  "Notes whether OpenSSL reads more of the descriptor of SESSION than the record at hand, where it
can."
  (setf (tls-session-greedy-p session)
        (= 1 (openssl-of session "SSL_get_read_ahead" sb-alien:int))))

(defmacro without-broken-pipes (&body body)
  "Evaluates BODY; if that writes where nobody reads any more, the thread gets no SIGPIPE: OpenSSL
has no flag against that as send(2) has.  See SEND-FILE."
  `(flet ((body () ,@body))
     (declare (dynamic-extent #'body))
     (if (broken-pipes-ignored-p)
         (body)
         (call-without-broken-pipes #'body))))

(defun call-without-broken-pipes (function)
  (sb-alien:with-alien ((broken-pipe (array sb-alien:unsigned-long 16)) ; sigset_t
                        (blocked (array sb-alien:unsigned-long 16))
                        (no-time (array sb-alien:long 2)))
    (macrolet ((call (name &rest arguments)
                 `(system-call ,name sb-alien:int
                               ,@(loop for argument in arguments
                                       collect (if (integerp argument)
                                                   `(sb-alien:int ,argument)
                                                   `(sb-sys:system-area-pointer ,argument)))))
               (address (variable)
                 `(sb-alien:alien-sap (sb-alien:addr ,variable)))
               (nowhere () `(sb-sys:int-sap 0)))
      (dotimes (index 16)
        (setf (sb-alien:deref broken-pipe index) 0))
      (setf (sb-alien:deref broken-pipe 0) (ash 1 (1- sb-unix:sigpipe))
            (sb-alien:deref no-time 0) 0
            (sb-alien:deref no-time 1) 0)
      (call "pthread_sigmask" 0 (address broken-pipe) (address blocked)) ; SIG_BLOCK
      (unwind-protect (funcall function)
        (call "sigtimedwait" (address broken-pipe) (nowhere) (address no-time))
        (call "pthread_sigmask" 2 (address blocked) (nowhere)))))) ; SIG_SETMASK

;;; What OpenSSL says

(defconstant +ssl-error-want-read+ 2)
(defconstant +ssl-error-want-write+ 3)
(defconstant +ssl-error-zero-return+ 6)

(defun tls-result (session result)
  "What RESULT, of a call for SESSION that has failed, means: what RECEIVE-OCTETS returns."
  (let ((error (openssl-of session "SSL_get_error" sb-alien:int (sb-alien:int result))))
    (cond ((or (= error +ssl-error-want-read+) (= error +ssl-error-want-write+)) +would-block+)
          ((= error +ssl-error-zero-return+) 0)
          (t
           (setf (tls-session-failed-p session) t)
           (- +eio+)))))

(defmacro calling-openssl ((session) call)
  "The value of the form CALL of OpenSSL for SESSION if that is positive, else what TLS-RESULT makes
of it."
  `(owning-session (,session)
     (cond ((and (tls-session-handle ,session) (not (tls-session-failed-p ,session)))
            ;; What failed on this thread before would be taken for a failure of this call.
            (openssl "ERR_clear_error" sb-alien:void)
            (let ((result ,call))
              (if (plusp result) result (tls-result ,session result))))
           (t (- +ebadf+)))))

(defun tls-awaits (session)
  "What SESSION, for which a call returned that it would block, waits for: :INPUT; or :OUTPUT, where
OpenSSL has something of its own to send first, such as new keys."
  (owning-session (session)
    (if (and (tls-session-handle session)
             (= 2 (openssl-of session "SSL_want" sb-alien:int))) ; SSL_WRITING
        :output
        :input)))

;;; Octets

(defconstant +surely-short+ 4096
  "A call of OpenSSL that has read no more octets off a descriptor than these did not fill its
buffer, which has room for a record of 16 KiB, whatever was in it before.")

;;; OpenSSL reads as much as it has room for when it looks for a record.  Of a record whose header
;;; it has it reads just the rest, and more may have come.

(defun amid-record-p (session)
  "True when OpenSSL has the header of a record for SESSION, and not all of that record, or may have
it."
  (or (/= 0 (openssl-of session "SSL_has_pending" sb-alien:int))
      (= (char-code #\B)                ; "RB" for the body, "RH" for the header
         (sb-sys:sap-ref-8 (openssl-of session "SSL_rstate_string" sb-sys:system-area-pointer) 1))))

(defun note-octets-read (session amid-p)
  "Notes whether OpenSSL has emptied the descriptor of SESSION in its last call, if it has read that
at all.  AMID-P says whether it was AMID-RECORD-P before."
  (let* ((total (openssl "BIO_number_read" sb-alien:unsigned-long
                         (sb-sys:system-area-pointer
                          (openssl-of session "SSL_get_rbio" sb-sys:system-area-pointer))))
         (count (- total (tls-session-octets-read session))))
    ;; OpenSSL's buffer says nothing about the descriptor: more may have arrived since it was read.
    (setf (tls-session-octets-read session) total
          (tls-session-short-read-p session) (and (plusp count)
                                                  (tls-session-greedy-p session)
                                                  (not amid-p)
                                                  (<= count +surely-short+)))))

(defmacro noting-octets-read ((session) call)
  "The value of CALL, of OpenSSL, which may read the descriptor of SESSION; notes whether it emptied
that."
  (let ((amid-p (gensym "AMID-P")))
    `(let ((,amid-p (amid-record-p ,session)))
       (prog1 ,call
         (note-octets-read ,session ,amid-p)))))

(defun tls-drained-p (session)
  "True when SESSION had handed out all that had come when it was last read."
  (owning-session (session)
    (and (tls-session-handle session)
         (tls-session-short-read-p session)
         (zerop (openssl-of session "SSL_has_pending" sb-alien:int)))))

(defun receive-tls (session octets start end)
  "Reads what SESSION has, at most END - START octets, to OCTETS from START.  Returns what
RECEIVE-OCTETS does."
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
  "Writes OCTETS from START to END to SESSION, as many as it takes now.  Returns what SEND-OCTETS
does.  What it did not take is to be given again before all else."
  (declare (type octets octets) (type index start end))
  (assert (<= start end (length octets))) ; OpenSSL checks nothing
  (calling-openssl (session)
    (without-broken-pipes
      (sb-sys:with-pinned-objects (octets)
        (openssl-of session "SSL_write" sb-alien:int
                    (sb-sys:system-area-pointer
                     (sb-sys:sap+ (sb-sys:vector-sap octets) start))
                    (sb-alien:int (- end start)))))))

;;; Files, where the kernel encrypts

(defconstant +bio-ctrl-get-ktls-send+ 73)
(defconstant +bio-ctrl-get-ktls-receive+ 76)

(defun kernel-does-p (bio question)
  "True when the kernel does for BIO, a pointer, what QUESTION asks, a number for BIO_ctrl."
  (= 1 (openssl "BIO_ctrl" sb-alien:long
                (sb-sys:system-area-pointer bio)
                (sb-alien:int question) (sb-alien:long 0)
                (sb-sys:system-area-pointer (sb-sys:int-sap 0)))))

(defun note-kernel (session)
  "Notes what the kernel does of the encryption of SESSION, after its handshake."
  (setf (tls-session-kernel-p session)
        (kernel-does-p (openssl-of session "SSL_get_wbio" sb-sys:system-area-pointer)
                       +bio-ctrl-get-ktls-send+))
  ;; It hands out one record at a time.
  (when (kernel-does-p (openssl-of session "SSL_get_rbio" sb-sys:system-area-pointer)
                       +bio-ctrl-get-ktls-receive+)
    (setf (tls-session-greedy-p session) nil
          (tls-session-short-read-p session) nil)))

(defun send-file-tls (session file position end)
  "Writes FILE, a descriptor, from POSITION to END to SESSION, of which TLS-SESSION-KERNEL-P is
true, as many octets as it takes now.  Returns what SEND-FILE does."
  (calling-openssl (session)
    (without-broken-pipes
      (openssl-of session "SSL_sendfile" sb-alien:long ; of OpenSSL 3.0, as kernel TLS
                  (sb-alien:int file) (sb-alien:long position)
                  (sb-alien:unsigned-long (- end position)) (sb-alien:int 0)))))

;;; The handshake, and the end

(defun tls-failure-reason ()
  "What OpenSSL says of its last failure on this thread, a string; NIL where it says nothing."
  (let ((number (openssl "ERR_peek_error" sb-alien:unsigned-long)))
    (unless (zerop number)
      (openssl "ERR_reason_error_string" sb-alien:c-string (sb-alien:unsigned-long number)))))

(defun shake-hands (session)
  "Takes the handshake of SESSION as far as what has come allows.  Returns :DONE; :INPUT or :OUTPUT,
which its descriptor has to be ready for before it goes on; or :FAILED, and as second value what
OpenSSL says of that, a string, or NIL where the peer is gone."
  (let* ((reason nil)
         (result (calling-openssl (session)
                   (let ((result (noting-octets-read (session)
                                   (without-broken-pipes
                                     (openssl-of session "SSL_do_handshake" sb-alien:int)))))
                     (if (plusp result)
                         (note-kernel session)
                         (setf reason (tls-failure-reason)))
                     result))))
    (cond ((plusp result) :done)
          ((would-block-p result) (tls-awaits session))
          (t (values :failed reason)))))

(defun end-tls-session (session)
  "Says good-bye to the peer of SESSION, if that takes it now, and frees what OpenSSL has for it;
the descriptor stays open.  May be called again."
  (owning-session (session)
    (when (tls-session-handle session)
      (unless (tls-session-failed-p session)
        (openssl "ERR_clear_error" sb-alien:void)
        (without-broken-pipes
          (openssl-of session "SSL_shutdown" sb-alien:int)))
      (openssl-of session "SSL_free" sb-alien:void)
      (setf (tls-session-handle session) nil)
      (counter-add *tls-sessions* -1))))

(defun abandon-tls-session (session)
  "Ends SESSION, and closes its descriptor, where nobody has ended it."
  (when (tls-session-handle session)
    (end-tls-session session)
    (close-descriptor (tls-session-descriptor session))))
