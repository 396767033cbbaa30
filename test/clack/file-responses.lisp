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
                     (response-header (exchange connection "/" :method :head)
                                      "content-length"))))))))

(defun type-of-file (name)
  "The Content-Type of the file NAME whose type the application does not say."
  (with-directory (directory)
    (let ((file (merge-pathnames name directory)))
      (with-open-file (stream file :direction :output)
        (write-string "x" stream))
      (with-clack (environment (list 200 '() file))
        (response-header (ask "/") "content-type")))))

(define-server-test files-whose-type-is-not-said-have-that-of-their-names
  (loop for (name type) in '(("a.html" "text/html; charset=utf-8")
                             ("a.CSS" "text/css; charset=utf-8")
                             ("a.js" "text/javascript; charset=utf-8")
                             ("a.txt" "text/plain; charset=utf-8") ("a.b.png" "image/png")
                             ("a.woff2" "font/woff2")
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

(define-server-test a-pipe-is-not-found-through-clack
  (where-files-are-descriptors ()
    (with-directory (directory)
      (let ((pipe (make-pipe directory)))
        (with-clack (environment (list 200 '() pipe))
          (is (= 404 (response-status (ask "/")))))))))

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
        (loop for (range start end) in '(("bytes=0-9" 0 10) ("bytes=990-" 990 1000)
                                         ("bytes=-10" 990 1000) ("bytes=-2000" 0 1000)
                                         ("bytes=5-5" 5 6))
              do (let ((answer (ask "/" :headers `(("Range" . ,range)))))
                   (is (= 206 (response-status answer)))
                   (is (equal (format nil "bytes ~D-~D/1000" start (1- end))
                              (response-header answer "content-range")))
                   (is (equalp (subseq octets start end) (response-body answer)))))
        (let ((answer (ask "/" :headers '(("Range" . "bytes=2000-3000")))))
          (is (= 416 (response-status answer)))
          (is (equal "bytes */1000" (response-header answer "content-range"))))
        (is (= 200 (response-status (ask "/" :headers '(("Range" . "bytes=0-9")
                                                        ("If-Range" . "\"other\""))))))))))

(define-server-test a-time-that-cannot-be-the-last-changes-is-not-told-through-clack
  (where-files-are-descriptors ()
    (with-served-file ((octets "text"))
      (check-odd-times file))))

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

;;; Compressed siblings, and Cache-Control; see compressed-files.lisp

(defmacro with-clack-folder ((directory &rest arguments) &body body)
  "Evaluates BODY while an application serves the files in DIRECTORY, a new folder, under /, with a
server made with ARGUMENTS."
  `(with-directory (,directory)
     (with-clack (environment (list 200 '()
                                    (merge-pathnames (subseq (getf environment :path-info) 1)
                                                     ,directory))
                              ,@arguments)
       ,@body)))

(define-server-test a-client-gets-the-compressed-sibling-that-it-likes-best-through-clack
  (where-files-are-descriptors ()
    (with-clack-folder (directory :precompressed-files t)
      (write-script directory)
      (check-negotiation "/app.js")
      (check-conditions "/app.js")
      (check-odd-siblings directory))))

(define-server-test a-sibling-is-sent-on-every-lisp
  (with-clack-folder (directory :precompressed-files t)
    (write-script directory)
    (check-response (asked-for "/app.js" "gzip") 200 "gzipped" "gzip")
    (check-response (asked-for "/app.js" nil) 200 "plain" nil)
    (write-siblings directory "old.txt" "plain" "old.txt.gz" "gzipped")
    (make-new (merge-pathnames "old.txt" directory))
    (check-response (asked-for "/old.txt" "gzip") 200 "plain" nil)
    (is (= 404 (response-status (asked-for "/none.txt" "gzip"))))))

(define-server-test without-the-option-siblings-are-not-sent-through-clack
  (with-clack-folder (directory)
    (write-script directory)
    (let ((response (asked-for "/app.js" "br")))
      (is (string= "plain" (response-text response)))
      (dolist (name '("vary" "content-encoding" "cache-control"))
        (is (null (response-header response name)))))))

(define-server-test what-an-application-says-of-a-file-is-true-of-what-is-sent
  (with-directory (directory)
    (let ((file (write-script directory)) (headers '()))
      (with-clack (environment (list 200 headers file)
                               :precompressed-files t :file-cache-control "max-age=60")
        (loop for (set text coding . expected)
                in '(((:etag "\"mine\"") "plain" nil "etag" "\"mine\"")
                     ((:content-encoding "zstd") "plain" "zstd")
                     (("Cache-Control" "private" :vary "Cookie" "Vary" "Origin") "brotli" "br"
                      "cache-control" "private" "vary" "Cookie, Origin, Accept-Encoding")
                     (() "brotli" "br" "cache-control" "max-age=60" "vary" "Accept-Encoding"))
              do (setf headers set)
                 (let ((response (asked-for "/" "br")))
                   (is (string= text (decode (response-body response))))
                   (is (equal coding (response-header response "content-encoding")))
                   (loop for (name value) on expected by #'cddr
                         do (is (equal (list value) (response-header-values response name))))))))))

(define-server-test files-have-the-cache-control-of-the-option-through-clack
  (where-files-are-descriptors ()
    (with-clack-folder (directory :file-cache-control "max-age=60")
      (check-cache-control directory t)))
  (dolist (function (list 'long-if-hashed #'long-if-hashed))
    (with-clack-folder (directory :file-cache-control function)
      (check-cache-control directory nil))))
