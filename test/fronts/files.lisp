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

(define-front-test (files-are-sent-whole :modes (:plain :unparked :tls :http2))
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

(define-front-test (names-are-relative-and-files-told-apart :modes (:plain) :needs :parking)
  (with-directory (directory)
    (write-old-files directory "one.txt" "one" "another.txt" "another")
    (with-globals ((*default-pathname-defaults* directory)
                   (server::*versions* (make-array 1 :initial-element nil)))
      (with-front (request) (reply 200 '() (pathname (subseq (path request) 1)))
        (loop repeat 2
              do (dolist (name '("one" "another"))
                   (is (equal name (ask-text (format nil "/~A.txt" name))))))))))

(define-front-test (what-is-no-regular-file-is-not-found
                    :modes (:plain :unparked :http2) :needs :our-http)
  (with-served-folder (directory)
    (uiop:run-program (list "mkfifo" (uiop:native-namestring (merge-pathnames "pipe" directory))))
    (dolist (target '("/pipe" "/none" "/folder/"))
      (ensure-directories-exist (merge-pathnames "folder/" directory))
      (is (= 404 (response-status (ask target))) "~A" target))))

;;; Conditions and ranges

(defun multipart-content (response type size sections)
  "The octets that RESPONSE should have, a multipart/byteranges with SECTIONS of a file of TYPE and
SIZE: lists of a position and of the octets, or of a string, from there."
  (let ((boundary (subseq (response-header response "content-type")
                          (length "multipart/byteranges; boundary="))))
    (octets (loop for (start content) in sections
                  collect (list :crlf "--" boundary :crlf "Content-Type: " type :crlf
                                (format nil "Content-Range: bytes ~D-~D/~D"
                                        start (+ start (length content) -1) size)
                                :crlf :crlf content))
            :crlf "--" boundary "--" :crlf)))

(defun check-sections (response type whole content)
  "Checks that RESPONSE, a 206, has of WHOLE, a string of TYPE, what CONTENT says: a string, or a
list of strings."
  (if (stringp content)
      (let ((start (search content whole)))
        (is (equal type (response-header response "content-type")))
        (is (equal (format nil "bytes ~D-~D/~D" start (+ start (length content) -1) (length whole))
                   (response-header response "content-range")))
        (is (equal content (response-text response))))
      (is (equalp (multipart-content response type (length whole)
                                     (loop for text in content
                                           collect (list (search text whole) text)))
                  (response-body response)))))

(define-front-test (a-file-is-sent-as-the-table-of-ranges-and-conditions-says
                    :modes (:plain) :needs :our-http)
  (with-directory (directory)
    (let ((file (write-old-files directory "file" "0123456789" "file.br" "abcdefghij" "empty" ""))
          (date "Thu, 02 Jan 2020 03:04:05 GMT"))
      (with-front (request :precompressed-files t)
          (cond ((equal "/empty" (path request))
                 (reply 200 '() (merge-pathnames "empty" directory)))
                ((equal "/own" (path request))
                 (reply 200 '(:etag "\"mine\"" :content-type "image/x-own") file))
                (t
                 (reply 200 '() file)))
        (loop with tag = (tag-of "/file")
              with coded = (response-header (ask-with "/file" "Accept-Encoding" "br") "etag")
              for row in (read-table "fronts/ranges.sexp")
              for (method target status content . fields)
                = (with-variables row `(("tag" . ,tag) ("coded" . ,coded) ("date" . ,date)))
              for own-p = (equal "/own" target)
              for coded-p = (and (member "br" fields :test #'equal) (not own-p))
              for type = (if own-p "image/x-own" "application/octet-stream")
              for response = (ask target :method method
                                         :headers (loop for (name value) on fields by #'cddr
                                                        collect (cons name value)))
              for range = (response-header response "content-range")
              do (is (= status (response-status response)) "~S" row)
                 (is (equal date (response-header response "last-modified")) "~S" row)
                 (unless (equal "/empty" target)
                   (is (equal (cond (own-p "\"mine\"") (coded-p coded) (t tag))
                              (response-header response "etag"))
                       "~S" row))
                 (is (equal (and coded-p (<= status 206) "br")
                            (response-header response "content-encoding"))
                     "~S" row)
                 (case status
                   (206
                    (check-sections response type (if coded-p "abcdefghij" "0123456789") content))
                   (416
                    (is (equal (if (eq :clack *front*) "bytes */10" "bytes 0-9/10") range)))
                   (t
                    (is (null range) "~S" row)
                    (when content
                      (is (equal content (response-text response)) "~S" row))
                    (when (= 200 status)
                      (is (equal type (response-header response "content-type")) "~S" row))
                    (when (= 304 status)
                      (is (null (content-length response)) "~S" row)))))))))

(define-front-test (ranges-of-a-large-file-are-sent :modes (:plain :unparked :tls) :needs :our-http)
  (with-served-folder (directory)
    (write-file directory "file.png" *large-answer*)
    (with-connection (connection)
      (loop for last = nil then type
            repeat 2
            for response = (exchange connection "/file.png"
                                     :headers '(("Range" . "bytes=5000000-,0-9,10-4000000")))
            for type = (response-header response "content-type")
            do (is (= 206 (response-status response)))
               (is (string/= last type) "Nobody knows the boundary before.")
               (is (null (octet-difference
                          (multipart-content response "image/png" *large-size*
                                             (loop for (start end) in '((5000000 nil) (0 10)
                                                                        (10 4000001))
                                                   collect (list start
                                                                 (subseq *large-answer*
                                                                         start end))))
                          (response-body response)))))
      (is (equal "word" (exchange-text connection "/word"))))))

(define-front-test (a-changed-file-has-another-tag :modes (:plain :http2) :needs :our-http)
  (with-served-folder (directory)
    (let ((tags '()))
      (loop for (text time) in '(("first" "2020-01-02 03:04:05") ("later" "2020-01-02 03:04:06")
                                 ("short" "2020-01-02 03:04:06.5")
                                 ("longer" "2020-01-02 03:04:06.5"))
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
      (write-file directory "new" "new")
      (is (uiop:string-prefix-p "W/\"" (tag-of "/new")))
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

(define-front-test (what-a-program-says-of-a-file-is-kept :modes (:plain :http2) :needs :our-http)
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
     (write-old-files ,directory "a.js" "plain" "a.js.br" "brotli" "a.js.gz" "gzipped"
                      "a.js.zst" "zstd")
     ,@body))

(defun check-sent (response status text coding)
  "Checks that RESPONSE has STATUS, TEXT with CODING, a string or NIL, and a Vary."
  (is (= status (response-status response)))
  (is (equal text (decode (response-body response))))
  (is (equal coding (response-header response "content-encoding")))
  (is (equal "Accept-Encoding" (response-header response "vary"))))

(define-front-test (a-client-gets-the-best-compressed-sibling-that-it-accepts
                    :modes (:plain :http2) :needs :our-http)
  (with-siblings (directory)
    (loop for (accepted text coding)
            in '((nil "plain" nil) ("deflate" "plain" nil) ("gzip, deflate, br" "brotli" "br")
                 ("gzip" "gzipped" "gzip") ("br;q=0, gzip" "gzipped" "gzip")
                 ("br;q=0.8, gzip;q=0.9" "gzipped" "gzip") ("zstd, gzip" "zstd" "zstd")
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

;;; Media types

(define-front-test (the-type-of-a-file-is-that-of-its-name :modes (:plain :http2) :needs :our-files)
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

(defmacro with-slow-client ((slow file &rest arguments &key range &allow-other-keys) &body body)
  "Evaluates BODY while SLOW, a connection, takes nothing of its reply, RANGE of the large FILE, or
all of that."
  `(with-directory (directory)
     (let ((,file (write-file directory "file" *large-answer*)))
       (with-front (request ,@(alexandria:remove-from-plist arguments :range)) (reply 200 '() ,file)
         (with-connection (,slow)
           (send-request ,slow "/" :headers (list (cons "Range" ,range)))
           (eventually ("a client to hold up its reply")
             (and (= 1 (figure :writing)) (zerop (figure :busy))))
           ,@body)))))

(define-front-test (a-large-file-needs-no-thread-for-a-slow-client
                    :modes (:plain :tls :http2) :needs :parking)
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
                    :modes (:plain :http2) :needs :parking)
  (let ((file #p"/sys/kernel/uevent_seqnum")) ; a number, and 4096 octets, it says
    (with-front (request :compression '(:gzip) :compression-types '("application/octet-stream"))
        (reply 200 '() file)
      (with-connection (connection)
        (loop for (coding limit) in '(("identity" 4096) ("gzip" 0))
              do (with-globals ((server::*file-copy-limit* limit))
                   (is (= (if (probe-file file) 500 404)
                          (response-status
                           (exchange connection "/"
                                     :headers `(("Accept-Encoding" . ,coding))))))))
        (is (equal "word" (exchange-text connection "/word")))
        (eventually ("no memory to be in use") (zerop (figure :memory)))))))

;; The test for leaks looks for the descriptor of the file.
(define-front-test (the-file-of-a-client-that-goes-is-closed :modes (:plain :tls) :needs :parking)
  (dolist (range (list nil
                       (format nil "bytes=~{~D-~D~^,~}" ; so that some of them wait
                               (loop for start from 0 below *large-size* by 1125000
                                     collect start
                                     collect (+ start 1124999)))))
    (with-slow-client (slow file :range range)
      (reset slow)
      (eventually ("the connection to be closed") (zerop (figure :open))))
    (with-slow-client (slow file :range range)
      (stop-front)
      (is (not (large-reply-p slow))))))
