(in-package #:hunchentoot-recycling-taskmaster.http2)

;;;; Calls of libnghttp2, and what its structures look like on 64-bit systems.  Version 1.52 has all
;;;; that we call.

(cffi:define-foreign-library libnghttp2
  (t "libnghttp2.so.14"))

(cffi:use-foreign-library libnghttp2)

(defmacro nghttp2 (result name &rest arguments)
  "Calls the function of libnghttp2 whose name ends with NAME, and which returns a RESULT, a type of
CFFI, with ARGUMENTS: forms for pointers, and lists of another type and a form."
  `(cffi:foreign-funcall ,(concatenate 'string "nghttp2_" name)
                         ,@(loop for argument in arguments
                                 append (if (and (consp argument) (keywordp (first argument)))
                                            argument
                                            (list :pointer argument)))
                         ,result))

;;; Frames (RFC 9113, section 6): the type, the flags, and what error codes we use

(defconstant +data+ 0)
(defconstant +headers+ 1)
(defconstant +priority+ 2)
(defconstant +rst-stream+ 3)
(defconstant +settings+ 4)
(defconstant +ping+ 6)
(defconstant +end-stream+ 1)
(defconstant +ack+ 1)
(defconstant +no-error+ 0)
(defconstant +internal-error+ 2)
(defconstant +refused-stream+ 7)
(defconstant +cancel+ 8)
(defconstant +enhance-your-calm+ 11)

(defun frame-size (frame)
  (cffi:mem-ref frame :size 0))

(defun frame-stream (frame)
  (cffi:mem-ref frame :int32 8))

(defun frame-type (frame)
  (cffi:mem-ref frame :uint8 12))

(defun frame-flag-p (frame flag)
  (logtest flag (cffi:mem-ref frame :uint8 13)))

(defun frame-error-code (frame)
  "The error code of FRAME, which resets a stream."
  (cffi:mem-ref frame :uint32 16))

(defun frame-of-request-p (frame)
  "True if FRAME, of headers, begins a request."
  (and (= +headers+ (frame-type frame))
       (zerop (cffi:mem-ref frame :int 56))))

;;; Octets

(defun copy-octets (pointer octets start end)
  "Copies from POINTER into OCTETS from START to END."
  (declare (type octets octets) (type index start end))
  (cffi:with-pointer-to-vector-data (to octets)
    (cffi:foreign-funcall "memcpy" :pointer (cffi:inc-pointer to start) :pointer pointer
                                   :size (- end start) :pointer))
  octets)

(defun octets-at (pointer size)
  "A fresh vector of the SIZE octets at POINTER."
  (copy-octets pointer (make-octets size) 0 size))

;;; Callbacks.  They run under the lock of the session, in the thread that has called the library,
;;; and never leave it by a non-local exit.

(defconstant +failed+ -902)             ; the session is of no more use
(defconstant +stream-failed+ -521)      ; the stream is reset
(defconstant +deferred+ -508)           ; no content is there yet

(defmacro define-callback (name result arguments &body body)
  "Defines the callback NAME with ARGUMENTS.  It returns the value of BODY, a RESULT; 0 if that is
no integer; and +FAILED+ where BODY signals."
  `(cffi:defcallback ,name ,result ,arguments
     ,@(mapcar #'first arguments)
     (handler-case (let ((value (progn ,@body)))
                     (if (integerp value) value 0))
       (serious-condition () +failed+))))
