(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* fronts/files :in fronts
  :description "Files as replies: conditions, ranges, compressed siblings, slow clients.")

(defun set-file-time (path date)
  "Lets the file PATH have been changed on DATE, as touch reads it."
  (uiop:run-program (list "touch" "-d" date (uiop:native-namestring path))))

(defun write-old-files (directory &rest names-and-parts)
  "Writes files to DIRECTORY that were changed at the same time, long ago; returns the first."
  (let ((files (loop for (name part) on names-and-parts by #'cddr
                     collect (write-file directory name part))))
    (dolist (file files (first files))
      (set-file-time file "2020-01-02 03:04:05 UTC"))))

(defmacro with-served-folder ((directory &rest arguments) &body body)
  "Evaluates BODY while the files in DIRECTORY, a new one, are served under /."
  `(with-directory (,directory)
     (with-front (request ,@arguments)
         (reply 200 '() (merge-pathnames (subseq (path request) 1) ,directory))
       ,@body)))

(defun ask-with (target &rest headers)
  "The response for TARGET to a request with HEADERS, names and values by turns."
  (ask target :headers (loop for (name value) on headers by #'cddr
                             when value collect (cons name value))))

(defun tag-of (target)
  (response-header (ask target) "etag"))

(define-front-test (files-are-sent-whole :modes (:plain :unparked :tls))
  (with-served-folder (directory)
    (dolist (size '(0 12155 1000000))
      (let ((octets (test-octets size)))
        (write-file directory "file.png" octets)
        (with-connection (connection)
          (loop repeat 2
                do (let ((response (exchange connection "/file.png")))
                     (is (= 200 (response-status response)))
                     (is (equal "image/png" (response-header response "content-type")))
                     (is (null (octet-difference octets (response-body response))))))
          (is (= size (content-length (exchange connection "/file.png" :method :head))))
          (is (equal "word" (exchange-text connection "/word"))))))))

(define-front-test (what-is-no-regular-file-is-not-found :needs :our-http)
  (with-served-folder (directory)
    (uiop:run-program (list "mkfifo" (uiop:native-namestring (merge-pathnames "pipe" directory))))
    (dolist (target '("/pipe" "/none" "/folder/"))
      (ensure-directories-exist (merge-pathnames "folder/" directory))
      (is (= 404 (response-status (ask target))) "~A" target))))

;;; Conditions and ranges

(define-front-test (a-client-that-has-a-file-is-told-so :modes (:plain) :needs :our-http)
  (with-served-folder (directory)
    (write-old-files directory "file" "text")
    (let* ((known (ask "/file"))
           (tag (response-header known "etag")) (date (response-header known "last-modified")))
      (is (equal "Thu, 02 Jan 2020 03:04:05 GMT" date))
      (loop for (status . headers)
              in `((304 "If-None-Match" ,tag) (304 "If-Modified-Since" ,date)
                   (304 "If-None-Match" ,(format nil "\"other\", W/~A ,\"third\"" tag))
                   (304 "If-None-Match" "*") (200 "If-None-Match" ,(string-trim "\"" tag))
                   (200 "If-None-Match" "\"other\"")
                   (200 "If-Modified-Since" "Thu, 02 Jan 2020 03:04:04 GMT")
                   ;; The tag has the last word, RFC 9110, section 13.1.3.
                   (200 "If-None-Match" "\"other\"" "If-Modified-Since" ,date)
                   (200 "If-Match" ,(format nil "\"other\",~A" tag)) (200 "If-Match" "*")
                   (412 "If-Match" "\"other\"") (412 "If-Match" ,(format nil "W/~A" tag)))
            for response = (apply #'ask-with "/file" headers)
            do (is (= status (response-status response)) "~S" headers)
               (is (equal tag (response-header response "etag")))
               (when (= 304 status)
                 (is (null (response-header response "content-length"))))))))

(define-front-test (parts-of-files-are-sent :modes (:plain) :needs :our-http)
  (with-served-folder (directory)
    (write-old-files directory "file" "0123456789" "empty" "")
    (loop for (status text range . headers)
            in `((206 "0" "bytes=0-0") (206 "789" "bytes=7-") (206 "789" "bytes=-3")
                 (206 "0123456789" "bytes=-20") (206 "234" "Bytes=2-4")
                 (206 "234" "bytes=2-4" "If-Range" ,(tag-of "/file"))
                 (200 "0123456789" "bytes=2-4" "If-Range" "Thu, 02 Jan 2020 03:04:05 GMT")
                 (200 "0123456789" "bytes=2-4" "If-Range" "\"other\"")
                 ,@(loop for range in '("bytes=-1-2" "bytes=1-2,4-5" "lines=1-2" "bytes=" "bytes=-"
                                        "bytes=1" "bytes= 1-2" "" "bytes=a-b" "bytes=+1-2")
                         collect (list 200 "0123456789" range))
                 (416 nil "bytes=10-20") (416 nil "bytes=5-3") (416 nil "bytes=-0"))
          for response = (apply #'ask-with "/file" "Range" range headers)
          do (is (= status (response-status response)) "~A ~S" range headers)
             (when text
               (is (equal text (response-text response)) "~A ~S" range headers))
             (is (equal (ecase status
                          (200 nil)
                          (206 (let ((start (parse-integer text :end 1)))
                                 (format nil "bytes ~D-~D/10" start (+ start (length text) -1))))
                          (416 (if (eq :clack *front*) "bytes */10" "bytes 0-9/10")))
                        (response-header response "content-range"))))
    (let ((response (ask "/file" :method :post :content "x" :headers '(("Range" . "bytes=1-2")))))
      (is (= 200 (response-status response)) "Only a GET has ranges."))
    (is (= 200 (response-status (ask-with "/empty" "Range" "bytes=0-"))))))

(define-front-test (a-changed-file-has-another-tag :modes (:plain) :needs :our-http)
  (with-served-folder (directory)
    (let ((tags '()))
      (loop for (text time) in '(("first" "2020-01-02 03:04:05") ("later" "2020-01-02 03:04:06")
                                 ("short" "2020-01-02 03:04:06.5") ("longer" "2020-01-02 03:04:06"))
            do (set-file-time (write-file directory "file" text) time)
               (is (equal text (ask-text "/file")))
               (push (tag-of "/file") tags))
      (is (every (lambda (tag) (uiop:string-prefix-p "\"" tag)) tags))
      (is (= 4 (length (remove-duplicates tags :test #'string=))))
      ;; A file that may change once more at the same time.
      (set-file-time (merge-pathnames "file" directory) "2090-01-01")
      (let ((tag (tag-of "/file")))
        (is (uiop:string-prefix-p "W/\"" tag))
        (is (= 200 (response-status (ask-with "/file" "Range" "bytes=0-1" "If-Range" tag)))))
      (eventually ("a reply within one second")
        (let ((response (ask "/file")))
          (equal (response-header response "date") (response-header response "last-modified"))))
      ;; A time that builders give to all files says nothing.
      (set-file-time (merge-pathnames "file" directory) "@1")
      (is (null (tag-of "/file")))
      (is (null (response-header (ask "/file") "last-modified")))
      (is (= 200 (response-status (ask-with "/file" "If-Modified-Since"
                                            "Thu, 01 Jan 1970 00:00:01 GMT"))))
      (is (= 412 (response-status (ask-with "/file" "If-Match" "\"other\"")))))))

(define-front-test (what-a-program-says-of-a-file-is-kept :modes (:plain) :needs :our-http)
  (with-directory (directory)
    (let ((file (write-old-files directory "a.txt" "plain" "a.txt.br" "brotli"))
          (status 200) (headers '()))
      (with-front (request :precompressed-files t)
          (reply status headers file)
        (loop for (given set text . expected)
                in '((200 () "brotli" "content-encoding" "br" "vary" "Accept-Encoding"
                      "content-type" "text/plain; charset=utf-8")
                     (200 (:etag "\"mine\"") "plain" "etag" "\"mine\"" "content-encoding" nil)
                     (200 (:content-encoding "zstd") "plain" "content-encoding" "zstd")
                     (200 (:cache-control "private" :vary "Cookie") "brotli"
                      "cache-control" "private" "vary" ("Accept-Encoding" "Cookie"))
                     (200 (:content-type "text/x-own" :content-length 99) "brotli"
                      "content-length" "6")
                     ;; The page of an error is no version of what was asked for.
                     (410 () "brotli" "content-range" nil))
              do (setf status given headers set)
                 (let ((response (apply #'ask-with "/" "Accept-Encoding" "br"
                                        (and (= 410 given)
                                             '("Range" "bytes=0-1" "If-None-Match" "*")))))
                   (is (= given (response-status response)))
                   (is (equal text (decode (response-body response))) "~S" set)
                   (loop for (name value) on expected by #'cddr
                         do (is (equal (uiop:ensure-list value)
                                       (response-header-values response name))
                                "~S ~A" set name))))
        (setf status 200 headers '(:etag "\"mine\""))
        (is (= 304 (response-status (ask-with "/" "If-None-Match" "\"mine\""))))))))

;;; Compressed siblings; the server does not look whether they are compressed

(defmacro with-siblings ((directory) &body body)
  `(with-served-folder (,directory :precompressed-files t)
     (write-old-files ,directory "a.js" "plain" "a.js.br" "brotli" "a.js.gz" "gzipped")
     ,@body))

(defun check-sent (response status text coding)
  "Checks that RESPONSE has STATUS, TEXT with CODING, a string or NIL, and a Vary."
  (is (= status (response-status response)))
  (is (equal text (decode (response-body response))))
  (is (equal coding (response-header response "content-encoding")))
  (is (equal "Accept-Encoding" (response-header response "vary"))))

(define-front-test (a-client-gets-the-best-compressed-sibling-that-it-accepts
                    :modes (:plain) :needs :our-http)
  (with-siblings (directory)
    (loop for (accepted text coding)
            in '((nil "plain" nil) ("deflate" "plain" nil) ("gzip, deflate, br" "brotli" "br")
                 ("gzip" "gzipped" "gzip") ("br;q=0, gzip" "gzipped" "gzip")
                 ("br;q=0, gzip;q=0" "plain" nil) ("identity;q=0" "plain" nil))
          for response = (ask-with "/a.js" "Accept-Encoding" accepted)
          do (check-sent response 200 text coding)
             (is (eql 0 (search "text/javascript" (response-header response "content-type")))))
    ;; An older one, a folder, and one without its file are none.
    (write-old-files directory "old.txt" "plain" "old.txt.gz" "gzipped" "folder.txt" "plain"
                     "folder.txt.gz/a" "a" "lonely.txt.gz" "gzipped" "bare" "plain"
                     "bare.gz" "gzipped")
    (set-file-time (merge-pathnames "old.txt" directory) "2020-01-02 03:04:06 UTC")
    (check-sent (ask-with "/old.txt" "Accept-Encoding" "gzip") 200 "plain" nil)
    (check-sent (ask-with "/folder.txt" "Accept-Encoding" "gzip") 200 "plain" nil)
    (check-sent (ask-with "/bare" "Accept-Encoding" "gzip") 200 "gzipped" "gzip")
    (is (= 404 (response-status (ask-with "/lonely.txt" "Accept-Encoding" "gzip"))))
    (is (equal "application/gzip" (response-header (ask "/bare.gz") "content-type"))))
  (with-served-folder (directory)
    (write-old-files directory "a.js" "plain" "a.js.br" "brotli")
    (let ((response (ask-with "/a.js" "Accept-Encoding" "br")))
      (is (equal "plain" (response-text response)) "Nobody has asked for siblings.")
      (is (null (response-header response "vary"))))))

(define-front-test (conditions-and-ranges-are-about-the-sibling :modes (:plain) :needs :our-http)
  (with-siblings (directory)
    (let* ((plain (ask "/a.js")) (coded (ask-with "/a.js" "Accept-Encoding" "br"))
           (tag (response-header coded "etag")) (date (response-header coded "last-modified")))
      (flet ((check (accepted status text coding &rest headers)
               (check-sent (apply #'ask-with "/a.js" "Accept-Encoding" accepted headers)
                           status text coding)))
        (check "br" 200 "brotli" "br" "If-None-Match" (response-header plain "etag"))
        (check nil 200 "plain" nil "If-None-Match" tag)
        (check "br" 304 "" nil "If-None-Match" tag)
        (check "br" 206 "rot" "br" "Range" "bytes=1-3" "If-Range" tag)
        (check "gzip" 200 "gzipped" "gzip" "Range" "bytes=1-3" "If-Range" tag)
        ;; The file and its siblings have the same date, which does not say what octets are meant.
        (is (equal date (response-header plain "last-modified")))
        (check "br" 200 "brotli" "br" "Range" "bytes=1-3" "If-Range" date))
      (dolist (response (list (ask-with "/a.js" "Accept-Encoding" "br" "Range" "bytes=6-")
                              (ask-with "/a.js" "Accept-Encoding" "br" "If-Match" "\"other\"")))
        (is (<= 412 (response-status response) 416))
        (is (equal tag (response-header response "etag")))
        (is (null (response-header response "content-encoding")))))))

;;; Media types

(define-front-test (the-type-of-a-file-is-that-of-its-name :modes (:plain) :needs :our-files)
  (with-served-folder (directory)
    (loop for (name type old) in '(("a.html" "text/html; charset=utf-8")
                                   ("a.CSS" "text/css; charset=utf-8")
                                   ("a.js" "text/javascript; charset=utf-8") ("a.b.png" "image/png")
                                   ("a.woff2" "font/woff2") ("a" "application/octet-stream")
                                   ("a.mjs" "text/javascript; charset=utf-8")
                                   ("a.wasm" "application/wasm") ("a.avif" "image/avif")
                                   ("a.WebManifest" "application/manifest+json")
                                   ("a.csv" "text/csv; charset=utf-8"
                                    "text/comma-separated-values; charset=utf-8"))
          do (write-file directory name "x")
             (is (equal (or (and (eq :hunchentoot *front*) old) type)
                        (response-header (ask (format nil "/~A" name)) "content-type"))
                 "~A" name))))

(test hunchentoots-media-types-differ-from-ours-only-where-that-is-told
  (let ((different (loop for (type . ends) in http::*file-types*
                         append (loop for end in ends
                                      for other = (hunchentoot:mime-type
                                                   (make-pathname :name "a" :type end))
                                      unless (or (null other) (string= type other))
                                        collect end))))
    ;; Tables of other versions of Hunchentoot may differ less.
    (is (null (set-difference different
                              (loop for row in (table-rows "docs/differences.md" "extension")
                                    append (quoted-words (first row)))
                              :test #'string=))
        "~A" different)))

;;; Clients that do not take them

(defmacro with-slow-client ((slow file &rest arguments) &body body)
  "Evaluates BODY while SLOW, a connection, takes nothing of its reply, the large FILE."
  `(with-directory (directory)
     (let ((,file (write-file directory "file" *large-answer*)))
       (with-front (request ,@arguments) (reply 200 '() ,file)
         (with-connection (,slow)
           (send-request ,slow "/")
           (eventually ("a client to hold up its reply")
             (and (= 1 (figure :writing)) (zerop (figure :busy))))
           ,@body)))))

(define-front-test (a-large-file-needs-no-thread-for-a-slow-client
                    :modes (:plain :tls) :needs :parking)
  (with-slow-client (slow file :worker-num 1 :max-thread-count 1)
    (send-request slow "/word")
    (is (equal "word" (ask-text "/word")))
    (delete-file file)                  ; it is open
    (is-true (large-reply-p slow))
    (is (equal "word" (response-text (read-response slow))))))

(define-front-test (a-file-that-becomes-shorter-is-not-taken-for-whole
                    :modes (:plain) :needs :parking)
  (with-slow-client (slow file :write-timeout (* 6 *patience*))
    (uiop:run-program (list "truncate" "-s" "1000" (uiop:native-namestring file)))
    (is (not (large-reply-p slow)))
    ;; At once, and not because the client took too long.
    (eventually ("the connection to be closed") (zerop (figure :open)))
    (is (zerop (figure :expired)))))

(define-front-test (a-file-that-has-less-than-the-system-says-is-not-taken-for-whole
                    :modes (:plain) :needs :parking)
  (let ((file #p"/sys/kernel/uevent_seqnum")) ; a number, and 4096 octets, it says
    (with-front (request) (reply 200 '() file)
      (with-connection (connection)
        (is (= (if (probe-file file) 500 404) (response-status (exchange connection "/"))))
        (is (equal "word" (exchange-text connection "/word")))))))

;; The test for leaks looks for the descriptor of the file.
(define-front-test (the-file-of-a-client-that-goes-is-closed :modes (:plain) :needs :parking)
  (with-slow-client (slow file)
    (reset slow)
    (eventually ("the connection to be closed") (zerop (figure :open))))
  (with-slow-client (slow file)
    (stop-front)
    (is (not (large-reply-p slow)))))
