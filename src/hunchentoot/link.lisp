(in-package #:hunchentoot-recycling-taskmaster)

;;;; What a connection of the engine is to Hunchentoot.

(defstruct (link (:include opaque))
  "What we keep for a connection between its requests."
  (base nil)                            ; the wire of the socket's descriptor; NIL where there is none
  ;; What requests are read off, and replies written to: BASE itself, or one that TLS or a stream
  ;; carries.
  (wire nil)
  ;; The stream that programs get: of WIRE, or the one that INITIALIZE-CONNECTION-STREAM has made.
  (stream nil)
  (parser nil)                          ; of a head, or empty lines before one, come in part
  (head-deadline nil)                   ; by when all of that must have come
  (awaited :idle :type keyword)         ; what that is the deadline of, as AWAITED-OF has it
  (reception nil)                       ; of content, whose request is not served before
  (content nil)                         ; received so, of the request that is served next
  (over-p nil)                          ; the peer has said that it would send no more, and all came
  (remote '() :type list)               ; address and port of the peer
  (local '() :type list))               ; address and port of our end

(defun link-address (link)
  "The address of the peer of LINK, a string."
  (first (link-remote link)))

(defun connection-usocket (connection)
  "The socket of CONNECTION, made when it is wanted for the first time."
  (or (connection-socket connection)
      (let ((descriptor (connection-descriptor connection)))
        (setf (connection-socket connection)
              (descriptor-socket descriptor (make-descriptor-stream descriptor)
                                 (connection-peer connection))))))

(defun socket-wire (socket)
  "The wire of SOCKET; NIL where it is none of ours."
  (stream-wire (socket-octet-stream socket)))

(defun current-head ()
  "The head of the current request; NIL where our own code has not read it."
  (and *exchange* (exchange-head *exchange*)))

(defun exchange-link (exchange)
  "The link over which the request of EXCHANGE came."
  (connection-data (exchange-connection exchange)))

(defun current-link ()
  "The link over which the current request came; only where our own code has read it."
  (exchange-link *exchange*))

(defun link-waits-p (link)
  "True when reading LINK waits for the peer, so that a request is not to be read before it has come."
  (wire-waits-p (link-wire link)))

(defun settle-wire (link socket-stream stream)
  "Gives LINK its wire for STREAM, which INITIALIZE-CONNECTION-STREAM has made of SOCKET-STREAM."
  (let* ((base (link-base link))
         (plain-p (and base (eq stream socket-stream)))
         (wire (if plain-p base (make-transport-wire (transport-for stream base)))))
    (setf (link-wire link) wire
          (link-stream link) (if (wire-waits-p wire) stream (wire-stream wire)))))
