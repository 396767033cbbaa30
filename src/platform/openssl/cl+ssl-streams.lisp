(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; TLS connections that CL+SSL has made, for SBCL on Linux: of acceptors that are none of ours, of
;;;; programs, and where a worker waits for the peer.
;;;;
;;;; Invariant: no thread is interrupted while it is in OpenSSL; see session.lisp.

(defun tls-on-descriptor-p (stream descriptor)
  "True when STREAM, CL+SSL's, reads and writes DESCRIPTOR."
  (eql descriptor (cl+ssl::ssl-get-fd (cl+ssl::ssl-stream-handle stream))))

(defun adopt-tls-stream (stream descriptor)
  "A TLS-SESSION, which CL+SSL's STREAM, on DESCRIPTOR, ends."
  (let ((session (%make-tls-session (cl+ssl::ssl-stream-handle stream) descriptor)))
    (openssl-of session "SSL_ctrl" sb-alien:long
                (sb-alien:int +control-mode+) (sb-alien:long +tls-modes+)
                (sb-sys:system-area-pointer (sb-sys:int-sap 0)))
    session))

(defun follow-tls-stream (session stream)
  "Notes whether STREAM, see ADOPT-TLS-STREAM, has ended SESSION.  Returns SESSION."
  (setf (tls-session-handle session) (cl+ssl::ssl-stream-handle stream))
  session)

;;; The handshake, and the end, are CL+SSL's.

(defvar *handshaking-p* nil
  "True in a thread that makes a TLS connection for a server.")

(defun make-stream-guarded (make-stream &rest arguments)
  "Calls MAKE-STREAM, of CL+SSL, with ARGUMENTS; the thread can be interrupted only where it waits."
  (let ((*handshaking-p* t))
    (deferring-interrupts
      (without-broken-pipes
        (apply make-stream arguments)))))

(defun wait-for-peer (wait &rest arguments)
  "Calls WAIT, of CL+SSL, with ARGUMENTS; in a handshake, the thread can be interrupted meanwhile."
  (if *handshaking-p*
      (interruptibly
        (apply wait arguments))
      (apply wait arguments)))

(defun shut-tls-down (shut-down handle)
  "Calls SHUT-DOWN, of CL+SSL, with HANDLE, whose peer may be gone."
  (without-broken-pipes
    (funcall shut-down handle)))

(wrap-function 'cl+ssl:make-ssl-server-stream 'make-stream-guarded)
(wrap-function 'cl+ssl::input-wait 'wait-for-peer)
(wrap-function 'cl+ssl::output-wait 'wait-for-peer)
(wrap-function 'cl+ssl::ssl-shutdown 'shut-tls-down)
