(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite clack/files :in clack
  :description "Files as responses.")

(in-suite clack/files)

(defmacro with-served-file ((octets &optional (headers ''(:content-type "image/png"))) &body body)
  "Evaluates BODY while an application answers with a file of OCTETS, and HEADERS."
  `(with-directory (directory)
     (let ((file (merge-pathnames "file.bin" directory)))
       (with-open-file (stream file :direction :output :element-type '(unsigned-byte 8))
         (write-sequence ,octets stream))
       (with-clack (environment (list 200 ,headers (if (equal "/none" (getf environment :path-info))
                                                       (merge-pathnames "none" directory)
                                                       file)))
         ,@body))))

(define-server-test files-small-and-large-are-sent-whole
  (dolist (size '(0 12155 139616 1000000))
    (let ((octets (test-octets size)))
      (with-served-file (octets)
        (with-connection (connection)
          (loop repeat 2
                do (let ((answer (exchange connection "/")))
                     (is (= 200 (response-status answer)))
                     (is (equal "image/png" (response-header answer "content-type")))
                     (is (equal (princ-to-string size) (response-header answer "content-length")))
                     (is (equalp octets (response-body answer)))))
          (is (equal (princ-to-string size)
                     (response-header (exchange connection "/" :method :head) "content-length"))))))))

(defun type-of-file (name)
  "The Content-Type of the file NAME whose type the application does not say."
  (with-directory (directory)
    (let ((file (merge-pathnames name directory)))
      (with-open-file (stream file :direction :output)
        (write-string "x" stream))
      (with-clack (environment (list 200 '() file))
        (response-header (ask "/") "content-type")))))

(define-server-test files-whose-type-is-not-said-have-that-of-their-names
  (loop for (name type) in '(("a.html" "text/html") ("a.CSS" "text/css") ("a.js" "text/javascript")
                             ("a.txt" "text/plain") ("a.b.png" "image/png") ("a.woff2" "font/woff2")
                             ("a.json" "application/json") ("a.unheard" "application/octet-stream")
                             ("a" "application/octet-stream"))
        do (is (equal type (type-of-file name)) "~A" name)))

(define-server-test what-an-application-says-of-a-file-is-kept-and-its-length-is-true
  (with-served-file ((test-octets 10) '(:content-length 99 :etag "\"mine\"" :x-foo "bar"))
    (let ((answer (ask "/")))
      (is (equal '("10") (response-header-values answer "content-length")))
      (is (equal "application/octet-stream" (response-header answer "content-type")))
      (is (equal '("\"mine\"") (response-header-values answer "etag")))
      (is (equal "bar" (response-header answer "x-foo"))))))

(define-server-test a-file-that-is-not-there-is-not-found
  (with-served-file ((test-octets 10))
    (is (= 404 (response-status (ask "/none"))))))

(defmacro where-files-are-descriptors (() &body body)
  `(if (platform:readiness-supported-p)
       (progn ,@body)
       (skip "On this Lisp files are sent by way of memory, and always whole.")))

(define-server-test a-client-that-has-a-file-already-is-told-so
  (where-files-are-descriptors ()
    (with-served-file ((test-octets 100))
      (let* ((first (ask "/"))
             (tag (response-header first "etag"))
             (date (response-header first "last-modified")))
        (dolist (header `(("If-None-Match" . ,tag) ("If-Modified-Since" . ,date)))
          (let ((answer (ask "/" :headers (list header))))
            (is (= 304 (response-status answer)))
            (is (equal tag (response-header answer "etag")))
            (is (null (response-header answer "content-type")))
            (is (null (response-header answer "content-length")))))
        (is (= 200 (response-status (ask "/" :headers '(("If-None-Match" . "\"other\""))))))
        (is (= 412 (response-status (ask "/" :headers '(("If-Match" . "\"other\""))))))))))

(define-server-test parts-of-files-are-sent
  (where-files-are-descriptors ()
    (let ((octets (test-octets 1000)))
      (with-served-file (octets)
        (loop for (range start end) in '(("bytes=0-9" 0 10) ("bytes=990-" 990 1000) ("bytes=5-5" 5 6))
              do (let ((answer (ask "/" :headers `(("Range" . ,range)))))
                   (is (= 206 (response-status answer)))
                   (is (equal (format nil "bytes ~D-~D/1000" start (1- end))
                              (response-header answer "content-range")))
                   (is (equalp (subseq octets start end) (response-body answer)))))
        (let ((answer (ask "/" :headers '(("Range" . "bytes=2000-3000")))))
          (is (= 416 (response-status answer)))
          (is (equal "bytes */1000" (response-header answer "content-range"))))
        (is (= 200 (response-status (ask "/" :headers '(("Range" . "bytes=0-9") ("If-Range" . "\"other\""))))))))))

(define-server-test only-whole-responses-are-conditional
  (where-files-are-descriptors ()
    (with-directory (directory)
      (let ((file (merge-pathnames "file.bin" directory)))
        (with-open-file (stream file :direction :output :element-type '(unsigned-byte 8))
          (write-sequence (test-octets 10) stream))
        (with-clack (environment (list 403 '() file))
          (let ((answer (ask "/" :headers '(("Range" . "bytes=0-1") ("If-None-Match" . "*")))))
            (is (= 403 (response-status answer)))
            (is (= 10 (length (response-body answer))))))))))
