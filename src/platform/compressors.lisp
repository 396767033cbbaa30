(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; Compressors: gzip by zlib (zlib.h), and Zstandard by libzstd (zstd.h), each made once and used
;;;; for many contents.

(defparameter *compression-libraries*
  '((:gzip "libz.so.1" "libz.dylib") (:zstd "libzstd.so.1" "libzstd.dylib"))
  "For each coding, the names that its library has.")

(defun coding-library-p (coding)
  "Loads the library for CODING, :GZIP or :ZSTD.  NIL where there is none."
  (handler-case (cffi:load-foreign-library `(:or ,@(rest (assoc coding *compression-libraries*))))
    (error () nil)))

(defstruct (compressor (:include opaque) (:copier nil) (:predicate nil)
                       (:constructor make-compressor-of (coding memory step)))
  "A compressor of CODING."
  (coding nil :read-only t)
  (memory nil)                          ; a z_stream; or two buffers and a ZSTD_CCtx; NIL at the end
  (step nil :read-only t)               ; the library's function that compresses
  ;; A thread that a handler has left behind may still write to its reply, when COMPRESSOR is at
  ;; another one: contents are numbered.
  (lock (bt:make-lock "compressor") :read-only t)
  (content 0 :type fixnum))

(defmacro foreign (function result &rest arguments)
  "Calls FUNCTION, a name or a pointer, as FOREIGN-FUNCALL-POINTER does.  The library may be absent
when this is loaded."
  `(cffi:foreign-funcall-pointer ,(if (stringp function)
                                      `(cffi:foreign-symbol-pointer ,function)
                                      function)
                                 () ,@arguments ,result))

(defmacro word (memory index &optional (type :pointer))
  "The word of TYPE at INDEX, in eight octets each, of MEMORY."
  `(cffi:mem-ref ,memory ,type (* 8 ,index)))

(defun make-compressor (coding)
  "A compressor of CODING, whose library is loaded, of middling effort."
  (uninterruptibly
    (let ((memory (cffi:foreign-alloc :uint8 :count 112 :initial-element 0)))
      (ecase coding
        (:gzip
         (cffi:with-foreign-string (version "1")
           (foreign "deflateInit2_" :int
                    :pointer memory :int 4 :int 8 ; Z_DEFLATED
                    :int 31             ; a window of 32 KiB, and the header of gzip
                    :int 8 :int 0 :pointer version :int 112))
         (make-compressor-of coding memory (cffi:foreign-symbol-pointer "deflate")))
        (:zstd
         (let ((context (foreign "ZSTD_createCCtx" :pointer)))
           (loop for (parameter value) in '((100 3) (101 18)) ; level, and a window of 256 KiB
                 do (foreign "ZSTD_CCtx_setParameter" :size
                             :pointer context :int parameter :int value))
           (setf (word memory 6) context)
           (make-compressor-of coding memory
                               (cffi:foreign-symbol-pointer "ZSTD_compressStream2"))))))))

(defun reset-compressor (compressor)
  "Prepares COMPRESSOR for another content, and returns it."
  (bt:with-lock-held ((compressor-lock compressor))
    (uninterruptibly
      (incf (compressor-content compressor))
      (let ((memory (compressor-memory compressor)))
        (if (eq :gzip (compressor-coding compressor))
            (foreign "deflateReset" :int :pointer memory)
            (foreign "ZSTD_CCtx_reset" :size
                     :pointer (word memory 6) :int 1))))) ; the session only
  compressor)

(defun end-compressor (compressor)
  "Releases the memory of COMPRESSOR."
  (bt:with-lock-held ((compressor-lock compressor))
    (uninterruptibly
      (let ((memory (shiftf (compressor-memory compressor) nil)))
        (when memory
          (if (eq :gzip (compressor-coding compressor))
              (foreign "deflateEnd" :int :pointer memory)
              (foreign "ZSTD_freeCCtx" :size :pointer (word memory 6)))
          (cffi:foreign-free memory))))))

(defun run-compressor (compressor content octets start end target operation)
  "Compresses OCTETS from START to END as far as the output has room in TARGET, octets; or drops
them if COMPRESSOR is not at CONTENT, a number, any more.  OPERATION is :GO-ON; :FLUSH, so that the
output tells all of the content so far; or :FINISH, for its end.  Returns how many octets were
taken, and made, and whether that is all."
  (check-type octets octets)
  (assert (<= 0 start end (length octets)))
  (bt:with-lock-held ((compressor-lock compressor))
    (uninterruptibly                    ; the library's state would not be whole
      (let ((memory (compressor-memory compressor))
            (step (compressor-step compressor))
            (count (- end start))
            (room (length target)))
        (if (or (null memory) (/= content (compressor-content compressor)))
            (values count 0 t)
            (cffi:with-pointer-to-vector-data (in octets)
              (cffi:with-pointer-to-vector-data (out target)
                (ecase (compressor-coding compressor)
                  (:gzip
                   (setf (word memory 0) (cffi:inc-pointer in start)
                         (word memory 1 :unsigned-int) count
                         (word memory 3) out
                         (word memory 4 :unsigned-int) room)
                   (let* ((result (foreign step :int
                                           :pointer memory
                                           :int (getf '(:go-on 0 :flush 2 :finish 4) operation)))
                          (left (word memory 1 :unsigned-int))
                          (free (word memory 4 :unsigned-int)))
                     (values (- count left) (- room free)
                             (if (eq :finish operation) (= 1 result) (plusp free)))))
                  (:zstd
                   (setf (word memory 0) in (word memory 1 :size) end (word memory 2 :size) start
                         (word memory 3) out (word memory 4 :size) room (word memory 5 :size) 0)
                   (let ((left (foreign step :size
                                        :pointer (word memory 6)
                                        :pointer (cffi:inc-pointer memory 24) :pointer memory
                                        :int (getf '(:go-on 0 :flush 1 :finish 2) operation))))
                     (values (- (word memory 2 :size) start) (word memory 5 :size)
                             (if (eq :go-on operation)
                                 (= end (word memory 2 :size))
                                 (zerop left)))))))))))))
