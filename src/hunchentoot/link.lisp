(in-package #:hunchentoot-recycling-taskmaster)

;;;; What a connection of the engine is to Hunchentoot.

(defstruct (link (:include opaque))
  "What we keep for a connection between its requests."
  (socket-stream nil)                   ; carries the octets of the socket
  (wire nil)                            ; of SOCKET-STREAM; NIL where that is none of ours
  (stream nil)                          ; as INITIALIZE-CONNECTION-STREAM returned it
  (parser nil)                          ; of a head, or empty lines before one, come in part
  (head-deadline nil)                   ; by when all of that must have come
  (awaited :idle :type keyword)         ; :HEAD for the rest of a head, :IDLE for a head
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

(defun current-link ()
  "The link over which the current request came; only where our own code has read it."
  (connection-data *connection*))

(defun ours-to-read-p (link)
  "True when the octets of LINK come to us as they are: no TLS, no stream of the program's."
  (and (link-wire link)
       (eq (link-stream link) (link-socket-stream link))))
