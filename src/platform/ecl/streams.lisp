(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; The streams of sockets on ECL, which are FILEs of C.
;;;;
;;;; If the socket has a time limit (SO_RCVTIMEO, SO_SNDTIMEO), any signal ends a wait in the
;;;; system, see signal(7), and the garbage collector stops threads by signals.  ECL (21.2.1) then
;;;; repeats the whole transfer, so that octets are lost or sent twice.  So no function here waits
;;;; within a transfer of several octets: it reads one octet, or octets that have already arrived;
;;;; and it writes to the socket itself.
;;;;
;;;; A program that reads or writes such a stream itself still meets this defect of ECL, as it does
;;;; with Hunchentoot alone.

(ffi:clines "#include <errno.h>" "#include <sys/ioctl.h>" "#include <sys/socket.h>"
            "#include <sys/time.h>"
            "#ifndef MSG_NOSIGNAL
             #define MSG_NOSIGNAL 0
             #endif"
            "static int hrt_available(int descriptor) {
               int count;
               return ioctl(descriptor, FIONREAD, &count) < 0 ? 0 : count; }"
            "static long hrt_send(int descriptor, unsigned char *octets, long count) {
               long sent = send(descriptor, octets, count, MSG_DONTWAIT | MSG_NOSIGNAL);
               return sent < 0 ? -(long)errno : sent; }"
            "static long hrt_send_limit(int descriptor) {
               struct timeval t; socklen_t size = sizeof t;
               return getsockopt(descriptor, SOL_SOCKET, SO_SNDTIMEO, &t, &size) < 0
                      ? -(long)errno : 1000L * t.tv_sec + t.tv_usec / 1000; }")

(defconstant +eagain+ #+linux 11 #-linux 35)

(defconstant +most-read-singly+ 4096
  "The maximum number of octets that are read one by one before the next look at the socket: the
size of a FILE's buffer.")

(defun own-descriptor (stream octets)
  "The descriptor of STREAM, one half of a socket's stream, if it is a stream of the Lisp and C can
read OCTETS; else NIL."
  (and (typep stream 'file-stream)
       (typep octets 'octets)
       (let ((descriptor (ext:file-stream-fd stream)))
         (and (>= (send-limit descriptor) 0) ; else it is not a socket
              descriptor))))

(defun send-limit (descriptor)
  "The time limit of writes to DESCRIPTOR, a socket, in milliseconds, 0 for none; or minus an error
number."
  (ffi:c-inline (descriptor) (:int) :long "hrt_send_limit(#0)" :one-liner t))

(defun available-count (descriptor)
  "The number of octets that can be read from DESCRIPTOR, a socket, without a wait."
  (ffi:c-inline (descriptor) (:int) :int "hrt_available(#0)" :one-liner t))

(defun read-singly (stream octets start end)
  "Reads OCTETS from START to END one by one.  Returns the position after the last octet, and true
at the end of STREAM."
  (loop for position from start below end
        for octet = (read-byte stream nil)
        while octet
        do (setf (aref octets position) octet)
        finally (return (values position (< position end)))))

(defmethod read-stream-octets ((stream two-way-stream) octets start end)
  (let ((descriptor (own-descriptor (two-way-stream-input-stream stream) octets)))
    (if (null descriptor)
        (call-next-method)
        (loop with position = start
              while (< position end)
              do (let ((here (min (available-count descriptor) (- end position))))
                   (if (plusp here)
                       (setf position (read-sequence octets stream :start position
                                                                   :end (+ position here)))
                       (multiple-value-bind (next end-p)
                           (read-singly stream octets position
                                        (min end (+ position +most-read-singly+)))
                         (setf position next)
                         (when end-p
                           (return (- position start))))))
              finally (return (- position start))))))

(defun send-now (descriptor octets start end)
  "Sends OCTETS from START to END, as many as DESCRIPTOR, a socket, accepts now.  Returns their
number, or minus an error number."
  (ffi:c-inline (descriptor octets start (- end start)) (:int :object :long :long) :long
                "hrt_send(#0, (#1)->vector.self.b8 + #2, #3)" :one-liner t))

(defun await-room-to-send (descriptor)
  "Waits until DESCRIPTOR, a socket, accepts more octets.  Signals an error after the time limit of
its writes."
  (let ((limit (send-limit descriptor)))
    (unless (poll-descriptor descriptor :output (and (plusp limit) (+ (milliseconds) limit)))
      (error "The peer has received nothing for ~D ms." limit))))

(defmethod write-stream-octets ((stream two-way-stream) octets start end)
  (let ((descriptor (own-descriptor (two-way-stream-output-stream stream) octets)))
    (cond ((null descriptor)
           (call-next-method))
          (t
           (finish-output stream)       ; a program may have written before
           (loop while (< start end)
                 do (let ((count (send-now descriptor octets start end)))
                      (cond ((>= count 0) (incf start count))
                            ((= count (- +eagain+)) (await-room-to-send descriptor))
                            ((/= count (- +eintr+))
                             (error "send failed: error number ~D." (- count))))))))))
