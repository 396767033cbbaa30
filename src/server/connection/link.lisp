(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; What the server keeps of a connection of the engine between its requests.

(define-record (link (:include opaque))
  "What is kept for a connection between its requests."
  (base nil
   :documentation "The wire of the descriptor of the socket of LINK; NIL where there is none.")
  (wire nil
   :documentation "What requests are read off, and replies written to, over LINK: LINK-BASE, or a wire that
TLS or a stream carries.")
  (stream nil
   :documentation "The stream of LINK that programs get: that of LINK-WIRE, or what PROGRAM-STREAM has
made.")
  (shaking-p nil)                       ; its TLS handshake is not done
  (parser nil)                          ; of a head, or empty lines before one, come in part
  (head-deadline nil)                   ; by when all of that must have come
  (awaited :idle :type keyword)         ; what that is the deadline of, as AWAITED-OF has it
  (body-prefetch nil)                   ; of content, whose request is not served before
  (content nil
   :documentation "What was received early of the content of the request that is answered next over LINK, a
stream; NIL where nothing was, or the request was answered.")
  (continuation nil
   :documentation "What goes on over LINK, a CONTINUATION; NIL while requests are read.")
  (over-p nil
   :documentation "True when the client of LINK has said that it would send no more, and all has come.")
  (remote '() :type list
   :documentation "Address and port of the client of LINK, a list.")
  (local '() :type list
   :documentation "Address and port of our end of LINK, a list."))

(setf (documentation 'make-link 'function)
      "A new LINK; each keyword is one of its slots.")

(defun link-address (link)
  "The address of the peer of LINK, a string."
  (first (link-remote link)))

(defun connection-usocket (connection)
  "The socket of CONNECTION, made when it is wanted for the first time."
  (or (connection-socket connection)
      (let ((descriptor (connection-descriptor connection)))
        (setf (connection-socket connection)
              (descriptor-socket descriptor
                                 (make-descriptor-stream descriptor (connection-queue connection))
                                 (connection-peer connection))))))

(defun socket-wire (socket)
  "The wire of SOCKET; NIL where it is none of ours."
  (stream-wire (socket-octet-stream socket)))

(defun link-to-socket (application socket)
  "A link for the connection of SOCKET to APPLICATION, yet without a wire to be read.  Signals PEER-GONE where
nobody is there any more."
  (let ((link (make-link :base (stream-wire (socket-octet-stream socket))
                         :remote (multiple-value-list (peer-name socket))
                         :local (name-of-our-end application socket))))
    (limit-waits socket (idle-seconds application))
    (when (link-base link)
      (let ((limits (application-limits application)))
        (limit-taking (wire-queue (link-base link)) (write-seconds application)
                      (limits-reply-rate limits) (limits-reply-grace limits))))
    link))

(defun link-waits-p (link)
  "True when reading LINK waits for the peer, so that a request is not to be read before it has come."
  (wire-waits-p (link-wire link)))

(defun settle-wire (link connection socket-stream stream)
  "Gives LINK, of CONNECTION, its wire for STREAM, which PROGRAM-STREAM has made of SOCKET-STREAM."
  (let* ((base (link-base link))
         (encrypted (and base (wire-encrypted base)))
         (wire (cond ((and base (eq stream socket-stream)) base)
                     ((and encrypted (eq stream (wire-stream encrypted))) encrypted)
                     (t (make-transport-wire (transport-for stream base))))))
    (setf (wire-connection (wire-base wire)) connection
          (connection-queue connection) (wire-queue (wire-base wire)) ; not that of the socket
          (link-wire link) wire
          (link-stream link) (if (wire-waits-p wire) stream (wire-stream wire)))))

(defun abandon-body-prefetch (link)
  "Gives back what was received early over LINK for a request that was answered, or will not be."
  (when (or (link-body-prefetch link) (link-content link))
    (uninterruptibly                    ; or who is destroyed amid it would leave some to nobody
      (when (link-body-prefetch link)
        (drop-body-prefetch (shiftf (link-body-prefetch link) nil))
        (release-input (link-wire link)))
      (when (link-content link)
        (release-content (shiftf (link-content link) nil))))))
