(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; Streams of the Lisp on sockets that the engine reads and writes itself, for programs and
;;;; libraries that ask for one, for SBCL on Linux.
;;;;
;;;; Such a stream has a duplicate of the socket's descriptor.  So a program that closes the stream
;;;; never closes a descriptor that the engine still uses.

(defconstant +f-dupfd-cloexec+ 1030)

(defun duplicate-descriptor (descriptor)
  "A duplicate of DESCRIPTOR, closed on exec.  Signals an error if no descriptor is left."
  (declare (type descriptor descriptor))
  (check-call (system-call "fcntl" sb-alien:int (sb-alien:int descriptor)
                           (sb-alien:int +f-dupfd-cloexec+) (sb-alien:int 0))
              "fcntl"))

(defun open-lisp-stream (descriptor)
  "A socket of the Lisp for a duplicate of DESCRIPTOR, and its stream, of octets and characters.
The duplicate is closed when the stream is closed or has become garbage."
  (let ((socket (lisp-socket (duplicate-descriptor descriptor))))
    (values socket
            (sb-bsd-sockets:socket-make-stream socket :input t :output t :element-type :default
                                                      :buffering :full :auto-close t))))

(defun lisp-stream-descriptor (stream)
  "The descriptor, an integer, of STREAM, which must be open."
  (sb-sys:fd-stream-fd stream))

;;; Time limits

(defun lisp-stream-milliseconds (stream)
  "The time limit of each wait on STREAM, in milliseconds, an integer; -1 for no limit."
  (or (as-milliseconds (sb-impl::fd-stream-timeout stream)) -1))

(defun (setf lisp-stream-milliseconds) (milliseconds stream)
  (setf (sb-impl::fd-stream-timeout stream)
        (and (>= milliseconds 0) (/ milliseconds 1000.0)))
  milliseconds)

;;; The octets that a stream has read ahead.  Its buffer is a structure of SBCL with the octets from
;;; HEAD to TAIL in foreign memory.

(defun pushed-back-octets (stream)
  "Takes the characters that were unread to STREAM out of it; returns their octets."
  (let* ((characters (sb-impl::fd-stream-instead stream))
         (text (reverse (coerce characters 'string))))
    (setf (fill-pointer characters) 0)
    (coerce (sb-ext:string-to-octets text :external-format (stream-external-format stream))
            'octets)))

(defun take-read-ahead (stream)
  "Takes the octets that STREAM has read ahead out of it; returns them, a vector."
  (let* ((buffer (sb-impl::fd-stream-ibuf stream))
         (head (sb-impl::buffer-head buffer))
         (count (- (sb-impl::buffer-tail buffer) head))
         (octets (make-octets count)))
    (dotimes (position count)
      (setf (aref octets position)
            (sb-sys:sap-ref-8 (sb-impl::buffer-sap buffer) (+ head position))))
    (setf (sb-impl::buffer-head buffer) 0
          (sb-impl::buffer-tail buffer) 0)
    (if (zerop (length (sb-impl::fd-stream-instead stream)))
        octets
        (concatenate 'octets (pushed-back-octets stream) octets))))

(defun put-read-ahead (stream octets start end)
  "Makes STREAM return OCTETS from START to END next, before the octets that it has read ahead."
  (let* ((later (take-read-ahead stream))
         (count (- end start))
         (size (+ count (length later))))
    (when (> size (sb-impl::buffer-length (sb-impl::fd-stream-ibuf stream)))
      (sb-impl::release-buffer
       (shiftf (sb-impl::fd-stream-ibuf stream) (sb-impl::alloc-buffer size))))
    (let* ((buffer (sb-impl::fd-stream-ibuf stream))
           (memory (sb-impl::buffer-sap buffer)))
      (loop for position from 0 below count
            do (setf (sb-sys:sap-ref-8 memory position) (aref octets (+ start position))))
      (loop for octet across later
            for position from count
            do (setf (sb-sys:sap-ref-8 memory position) octet))
      (setf (sb-impl::buffer-head buffer) 0
            (sb-impl::buffer-tail buffer) size)))
  stream)
