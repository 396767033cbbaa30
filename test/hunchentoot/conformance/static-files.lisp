(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* conformance/static-files :in conformance
  :description "Files: folders, single files, the document root, ranges, dates.")

(defparameter *file-octets* (test-octets 20000)
  "The contents of the file that is served; more than one of Hunchentoot's buffers.")

(defmacro with-site ((root) &body body)
  "Evaluates BODY with ROOT bound to a directory: file.bin, page.html and index.html in
it, sub/deep.txt below it.  The file secret.txt lies beside ROOT and must not be served."
  (let ((parent (gensym "PARENT")))
    `(with-directory (,parent)
       (let ((,root (merge-pathnames "root/" ,parent)))
         (write-file ,parent "secret.txt" "secret")
         (write-file ,root "file.bin" *file-octets*)
         (write-file ,root "page.html" "<p>Grüße</p>")
         (write-file ,root "index.html" "the index")
         (write-file ,root "sub/deep.txt" "deep")
         ,@body))))

(defmacro serving-site (&body body)
  "Evaluates BODY while all files of a site are served under /files/."
  (let ((root (gensym "ROOT")))
    `(with-site (,root)
       (with-globals ((hunchentoot:*dispatch-table*
                       (list (hunchentoot:create-folder-dispatcher-and-handler
                              "/files/" ,root))))
         (serving () () ,@body)))))

;;; Whole files

(define-server-test a-file-is-sent-whole-with-length-type-and-date
  (serving-site
    (let ((response (ask "/files/file.bin")))
      (is (= 200 (response-status response)))
      (is (null (octet-difference *file-octets* (response-body response))))
      (is (= 20000 (content-length response)))
      (is (string= "application/octet-stream" (content-type response)))
      (is (string= "bytes" (response-header response "accept-ranges")))
      (is (stringp (response-header response "last-modified"))))))

(define-server-test a-files-type-comes-from-its-name
  (serving-site
    (is (string= "text/html; charset=utf-8" (content-type (ask "/files/page.html"))))
    (is (string= "text/plain; charset=utf-8" (content-type (ask "/files/sub/deep.txt"))))))

(define-server-test (files-have-the-newer-types-too :needs :our-http)
  (with-site (root)
    (with-globals ((hunchentoot:*dispatch-table*
                    (list (hunchentoot:create-folder-dispatcher-and-handler "/files/" root))))
      (serving () ()
        (loop for (name type) in '(("a.mjs" "text/javascript; charset=utf-8")
                                   ("a.wasm" "application/wasm")
                                   ("a.webp" "image/webp") ("a.json" "application/json")
                                   ("a.woff2" "font/woff2")
                                   ("a.avif" "image/avif")
                                   ("a.WebManifest" "application/manifest+json")
                                   ("a.unknown" "application/octet-stream"))
              do (write-file root name "octets")
                 (is (equal type (content-type (ask (format nil "/files/~A" name)))) "~A" name))))))

(define-server-test files-are-served-one-after-the-other-on-a-connection
  (serving-site
    (with-connection (connection)
      (loop repeat 3
            do (is (string= "deep" (exchange-text connection "/files/sub/deep.txt")))
               (is (null (octet-difference
                          *file-octets*
                          (response-body (exchange connection "/files/file.bin")))))))))

(define-server-test head-of-a-file-is-its-head-only
  (serving-site
    (with-connection (connection)
      (let ((head (exchange connection "/files/file.bin" :method :head)))
        (is (= 200 (response-status head)))
        (is (= 20000 (content-length head))))
      (is (string= "deep" (exchange-text connection "/files/sub/deep.txt"))))))

(define-server-test an-empty-file-is-an-empty-reply
  (with-directory (directory)
    (let ((path (write-file directory "empty")))
      (serving () (("/" (hunchentoot:handle-static-file path)))
        (with-connection (connection)
          (loop repeat 2
                do (is (= 0 (content-length (exchange connection "/"))))))))))

(define-server-test missing-files-and-directories-are-404
  (serving-site
    (dolist (target '("/files/nowhere" "/files/sub" "/files/sub/" "/files/"
                      "/files/sub/nowhere.txt"))
      (is (= 404 (response-status (ask target))) "~A is not 404." target))))

(define-server-test a-file-may-be-served-under-another-name-and-type
  (with-site (root)
    (with-globals ((hunchentoot:*dispatch-table*
                    (list (hunchentoot:create-static-file-dispatcher-and-handler
                           "/other" (merge-pathnames "file.bin" root) "text/x-other"))))
      (serving () ()
        (let ((response (ask "/other")))
          (is (null (octet-difference *file-octets* (response-body response))))
          (is (string= "text/x-other; charset=utf-8" (content-type response)))
          (is (= 404 (response-status (ask "/other/"))))
          (is (= 404 (response-status (ask "/file.bin")))))))))

;;; The document root

(define-server-test an-acceptor-serves-its-document-root
  (with-site (root)
    (serving (:document-root root) ()
      (is (string= "the index" (ask-text "/")))
      (is (string= "deep" (ask-text "/sub/deep.txt")))
      (is (= 404 (response-status (ask "/nowhere")))))))

(define-server-test an-acceptor-without-document-root-has-no-files
  (serving (:document-root nil) ()
    (is (= 404 (response-status (ask "/"))))
    (is (= 404 (response-status (ask "/index.html"))))))

(defun plain-acceptor-class ()
  "The sister of *ACCEPTOR-CLASS* that is no easy acceptor."
  (if (ours-p)
      (uiop:find-symbol* '#:parallel-acceptor '#:hunchentoot-recycling-taskmaster)
      'hunchentoot:acceptor))

(define-server-test a-plain-acceptor-serves-its-document-root-and-nothing-else
  (with-site (root)
    (let ((*acceptor-class* (plain-acceptor-class)))
      (serving (:document-root root) (("/page.html" "by the dispatch table")
                                      ("/handler" "by the dispatch table"))
        (is (string= "<p>Grüße</p>" (ask-text "/page.html")))
        (is (string= "the index" (ask-text "/")))
        (is (= 404 (response-status (ask "/handler"))))))))

(define-server-test no-path-leads-out-of-a-folder
  (with-site (root)
    (with-globals ((hunchentoot:*dispatch-table*
                    (list (hunchentoot:create-folder-dispatcher-and-handler
                           "/files/" root))))
      (serving (:document-root root) ()
        (dolist (path '("../secret.txt" "%2e%2e/secret.txt" "..%2fsecret.txt"
                        "sub/../../secret.txt" "..\\secret.txt" "/../secret.txt"
                        "./../secret.txt" ".."))
          (dolist (folder '("/files/" "/"))
            (let ((response (ask (uiop:strcat folder path))))
              (is (<= 400 (response-status response) 499) "~A~A is served." folder path)
              (is (string/= "secret" (response-text response))))))))))

;;; Dates

(define-server-test a-file-not-modified-is-not-sent-again
  (serving-site
    (with-connection (connection)
      (let* ((date (response-header (exchange connection "/files/file.bin")
                                    "last-modified"))
             (again (exchange connection "/files/file.bin"
                              :headers `(("If-Modified-Since" . ,date)))))
        (is (= 304 (response-status again)))
        (is (string= "deep" (exchange-text connection "/files/sub/deep.txt")))))))

(define-server-test a-file-modified-since-is-sent
  (serving-site
    (is (= 200 (response-status
                (ask "/files/file.bin"
                     :headers '(("If-Modified-Since" . "Wed, 02 Jan 1980 03:04:05 GMT"))))))))

(define-server-test a-handler-may-answer-if-modified-since-itself
  (let ((time (encode-universal-time 5 4 3 2 1 2020 0)))
    (serving () (("/" (hunchentoot:handle-if-modified-since time)
                      (setf (hunchentoot:header-out :last-modified)
                            (hunchentoot:rfc-1123-date time))
                      "fresh"))
      (is (string= "fresh" (ask-text "/")))
      (is (= 304 (response-status
                  (ask "/" :headers `(("If-Modified-Since"
                                       . ,(hunchentoot:rfc-1123-date time))))))))))

;;; Ranges

(defun ask-range (range)
  "The response to a request for RANGE of the file, as in \"0-9\"."
  (ask "/files/file.bin" :headers `(("Range" . ,(format nil "bytes=~A" range)))))

(defun range-served-p (range start end)
  "Whether a request for RANGE is answered 206 with the octets from START to END,
inclusive."
  (let ((response (ask-range range)))
    (and (= 206 (response-status response))
         (null (octet-difference (subseq *file-octets* start (1+ end))
                                 (response-body response)))
         (= (- (1+ end) start) (content-length response))
         (string= (format nil "bytes ~D-~D/20000" start end)
                  (response-header response "content-range")))))

(define-server-test a-range-of-a-file-is-sent-alone
  (serving-site
    (is (range-served-p "0-0" 0 0))
    (is (range-served-p "100-8999" 100 8999))
    (is (range-served-p "0-19999" 0 19999))
    (is (range-served-p "19999-19999" 19999 19999))
    (is (range-served-p "19000-" 19000 19999))))

(define-server-test a-range-beyond-the-file-is-refused
  (serving-site
    (let ((response (ask-range "0-20000")))
      (is (= 416 (response-status response)))
      (is (string= "bytes 0-19999/20000" (response-header response "content-range"))))))

(define-server-test a-range-of-unknown-form-is-ignored
  (serving-site
    (let ((response (ask "/files/file.bin" :headers '(("Range" . "lines=1-2")))))
      (is (= 200 (response-status response)))
      (is (= 20000 (content-length response))))))
