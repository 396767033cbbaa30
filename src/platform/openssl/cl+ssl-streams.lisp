(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; TLS connections that CL+SSL has made, for SBCL on Linux: connections of other acceptors, of
;;;; programs, and of workers that wait for the peer.
;;;;
;;;; Invariant: no thread is interrupted while it is in OpenSSL; see session.lisp.

;;; CL+SSL begins and ends these connections.

(defvar *handshaking-p* nil
  "True in a thread that is in the handshake of a server's TLS connection.")

(defun make-stream-guarded (make-stream &rest arguments)
  "Calls MAKE-STREAM, of CL+SSL, with ARGUMENTS.  The thread can be interrupted only while it
waits."
  (let ((*handshaking-p* t))
    (uninterruptibly
      (apply make-stream arguments))))

(defun wait-for-peer (wait &rest arguments)
  "Calls WAIT, of CL+SSL, with ARGUMENTS.  In a handshake, the thread can be interrupted during the
call."
  (if *handshaking-p*
      (interruptibly
        (apply wait arguments))
      (apply wait arguments)))

(wrap-function 'cl+ssl:make-ssl-server-stream 'make-stream-guarded)
(wrap-function 'cl+ssl::input-wait 'wait-for-peer)
(wrap-function 'cl+ssl::output-wait 'wait-for-peer)
