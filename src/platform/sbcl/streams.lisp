(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; The Lisp's own streams on sockets that we read and write ourselves, for programs and libraries
;;;; that want one, for SBCL on Linux.
;;;;
;;;; Such a stream has a duplicate of the socket's descriptor: whoever closes it closes its own
;;;; number only, and never one that the engine still uses.

(defconstant +f-dupfd-cloexec+ 1030)

(defun duplicate-descriptor (descriptor)
  "A new descriptor, closed on exec, of what DESCRIPTOR is open on.  Signals an error when there is
no descriptor left."
  (declare (type descriptor descriptor))
  (check-call (system-call "fcntl" sb-alien:int (sb-alien:int descriptor)
                           (sb-alien:int +f-dupfd-cloexec+) (sb-alien:int 0))
              "fcntl"))

(defun open-lisp-stream (descriptor)
  "A socket of the Lisp's own for a duplicate of DESCRIPTOR, and its stream, of octets and
characters.  It closes the duplicate when it is closed, or when nobody has it any more."
  (uninterruptibly
    (let ((socket (lisp-socket (duplicate-descriptor descriptor))))
      (values socket
              (sb-bsd-sockets:socket-make-stream socket :input t :output t :element-type :default
                                                        :buffering :full :auto-close t)))))

(defun lisp-stream-descriptor (stream)
  "The descriptor of STREAM, which is open."
  (sb-sys:fd-stream-fd stream))

;;; Time limits

(defun lisp-stream-milliseconds (stream)
  "How long one wait on STREAM may take; -1 for no limit."
  (or (as-milliseconds (sb-impl::fd-stream-timeout stream)) -1))

(defun (setf lisp-stream-milliseconds) (milliseconds stream)
  (setf (sb-impl::fd-stream-timeout stream)
        (and (>= milliseconds 0) (/ milliseconds 1000.0)))
  milliseconds)

;;; What a stream has read ahead.  Its buffer is a structure of SBCL's: octets from HEAD to TAIL in
;;; memory of the system's.

(defun pushed-back-octets (stream)
  "The octets of the characters that were unread to STREAM; it has them no more."
  (let* ((characters (sb-impl::fd-stream-instead stream))
         (text (reverse (coerce characters 'string))))
    (setf (fill-pointer characters) 0)
    (coerce (sb-ext:string-to-octets text :external-format (stream-external-format stream))
            'octets)))

(defun take-read-ahead (stream)
  "The octets that STREAM has read and not handed out; it has them no more."
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
  "Makes OCTETS from START to END what STREAM hands out next."
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
