(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite files :in platform
  :description "Files as descriptors, and their transfer to sockets.")

(in-suite files)

(defmacro with-file-descriptor ((file octets) &body body)
  "Evaluates BODY with FILE bound to the descriptor of a file with OCTETS."
  (let ((directory (gensym "DIRECTORY")))
    `(with-directory (,directory)
       (let ((,file (platform:open-file
                     (platform:native-name (write-file ,directory "file" ,octets)))))
         (unwind-protect (progn ,@body)
           (platform:close-descriptor ,file))))))

(define-server-test files-tell-their-size-and-time
  (where-supported
   (with-file-descriptor (file (octets "twelve bytes"))
     (multiple-value-bind (size seconds nanoseconds) (platform:file-facts file)
       (is (= 12 size))
       (is (< (- (get-universal-time) 1000) seconds (+ (get-universal-time) 1000)))
       (is (typep nanoseconds '(integer 0 999999999)))))))

(define-server-test what-is-no-regular-file-tells-nothing
  (where-supported
   (with-directory (directory)
     (let ((file (platform:open-file (platform:native-name directory))))
       (is (null (platform:file-facts file)))
       (platform:close-descriptor file)
       (is (minusp (platform:open-file
                    (platform:native-name (merge-pathnames "nowhere" directory)))))))))

(define-server-test names-that-the-system-would-cut-short-are-no-names
  (where-supported
   (is (null (platform:native-name #p"/tmp/*.txt")) "A wild pathname is not the name of one file.")
   (is (null (platform:native-name
              (make-pathname :directory '(:absolute "tmp")
                             :name (format nil "a~Cb" (code-char 0))))))))

(define-server-test a-file-is-read-from-where-one-wants
  (where-supported
   (with-file-descriptor (file (octets "0123456789"))
     (let ((buffer (octets "......")))
       (is (platform:read-file-octets file 3 buffer 1 5))
       (is (equalp (octets ".3456.") buffer))
       (is (not (platform:read-file-octets file 8 buffer 0 6)))))))

(define-server-test a-file-goes-to-a-socket-by-itself
  (where-supported
   (with-descriptor (descriptor client)
     (with-file-descriptor (file (octets "0123456789"))
       (is (= 1 (platform:send-octets-before-more descriptor (octets "<") 0 1)))
       (is (= 5 (platform:send-file descriptor file 3 8)))
       (is (= 0 (platform:send-file descriptor file 10 20)))
       (is (equal "<34567" (decode (read-octets client 6))))))))

(defun doubled (number)
  "A function that the next test wraps."
  (* 2 number))

(test a-function-is-wrapped-once
  (when (platform:readiness-supported-p)
    (flet ((wrapper (function number) (1+ (funcall function number))))
      (platform:wrap-function 'doubled #'wrapper)
      (is (= 11 (funcall 'doubled 5)))
      (platform:wrap-function 'doubled #'wrapper)
      (is (= 11 (funcall 'doubled 5))))))

(define-server-test a-file-for-a-client-that-left-sends-no-signal
  (where-supported
   (with-directory (directory)
     (let ((signals 0)
           (path (write-file directory "file.bin" (test-octets 100000))))
       (with-descriptor (descriptor client)
         (let ((file (platform:open-file (platform:native-name path))))
           (unwind-protect
                (calling-on-broken-pipes ((lambda () (incf signals)))
                  (is (plusp (platform:send-file descriptor file 0 1000)))
                  (platform:shut-descriptor descriptor :output)
                  (is (= -32 (platform:send-file descriptor file 1000 100000)))) ; EPIPE
             (platform:close-descriptor file)))
         (is (equalp (subseq (test-octets 100000) 0 1000) (receive-rest client))))
       (is (zerop signals))))))
