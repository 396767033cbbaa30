(in-package #:hunchentoot-recycling-taskmaster)

;;;; What a connection of the engine is to Hunchentoot.

(defstruct link
  "What we keep for a connection between its requests."
  (socket-stream nil)                   ; carries the octets of the socket
  (stream nil)                          ; as INITIALIZE-CONNECTION-STREAM returned it
  (parser nil)                          ; of a head that has come in part
  (head-deadline nil)                   ; by when all of that head must have come
  (remote '() :type list)               ; address and port of the peer
  (local '() :type list))               ; address and port of our end

(defun connection-usocket (connection)
  "The socket of CONNECTION, made when it is wanted for the first time."
  (or (connection-socket connection)
      (let ((descriptor (connection-descriptor connection)))
        (setf (connection-socket connection)
              (descriptor-socket descriptor (make-descriptor-stream descriptor))))))

(defun link-descriptor-stream (link)
  "The stream of the socket of LINK where that is one of ours, on a descriptor; else NIL."
  (let ((stream (link-socket-stream link)))
    (and (typep stream 'descriptor-stream) stream)))

(defun encrypted-p (link)
  "True when what initialized the connection of LINK reads the descriptor by itself."
  (not (typep (link-stream link) 'descriptor-stream)))
