(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* compressed-files :in acceptors
  :description "Compressed siblings of files, Cache-Control and media types.")

;;; The same for both sides.  The octets of a sibling are not really compressed: the server does not
;;; look into them.

(defun write-siblings (directory &rest names-and-texts)
  "Writes files to DIRECTORY, with the same old time, and returns the pathname of the first."
  (let ((files (loop for (name text) on names-and-texts by #'cddr
                     collect (write-file directory name (octets text)))))
    (mapc #'make-old files)
    (first files)))

(defun make-new (path)
  "Lets the time of the file PATH be a little after that of MAKE-OLD."
  (uiop:run-program (list "touch" "-d" "2020-01-02 03:04:06" (uiop:native-namestring path))))

(defun asked-for (target accepted &rest headers)
  "The response for TARGET to a request with ACCEPTED as its Accept-Encoding, if any, and HEADERS,
names and values."
  (ask target :headers (append (and accepted `(("Accept-Encoding" . ,accepted)))
                               (loop for (name value) on headers by #'cddr
                                     collect (cons name value)))))

(defun check-response (response status text coding)
  "Checks that RESPONSE has STATUS, TEXT as its content with CODING, a string or NIL, and a Vary."
  (is (= status (response-status response)))
  (is (string= text (decode (response-body response))))
  (is (equal (and coding (list coding)) (response-header-values response "content-encoding")))
  (is (equal '("Accept-Encoding") (response-header-values response "vary"))))

(defun check-negotiation (target)
  "Checks that the server sends the file at TARGET, whose text is \"plain\", or a sibling with the
text \"brotli\" or \"gzipped\", as clients like."
  (loop for (accepted text coding) in '((nil "plain" nil) ("deflate" "plain" nil)
                                        ("gzip, deflate, br" "brotli" "br")
                                        ("gzip" "gzipped" "gzip")
                                        ("br;q=0.1, gzip" "gzipped" "gzip")
                                        ("br;q=0, gzip;q=0" "plain" nil) ("*" "brotli" "br")
                                        ("identity, gzip;q=0.9" "plain" nil)
                                        ("identity;q=0, gzip" "gzipped" "gzip")
                                        ("identity;q=0" "plain" nil))
        for response = (asked-for target accepted)
        do (check-response response 200 text coding)
           (is (uiop:string-prefix-p "text/javascript" (response-header response "content-type")))
           (is (equal (princ-to-string (length text))
                      (response-header response "content-length")))
           (let ((head (with-connection (connection)
                         (exchange connection target
                                   :method :head
                                   :headers (and accepted
                                                 `(("Accept-Encoding" . ,accepted)))))))
             (dolist (name '("content-length" "content-encoding" "content-type" "vary" "etag"))
               (is (equal (response-header response name) (response-header head name))
                   "~A" name)))))

(defun check-said-of-version (response known)
  "Checks that RESPONSE says the same of the version of a file that it is about as KNOWN."
  (dolist (name '("etag" "last-modified" "vary"))
    (is (stringp (response-header response name)))
    (is (equal (response-header known name) (response-header response name)))))

(defun check-conditions (target)
  "Checks conditions and ranges of the file at TARGET, see CHECK-NEGOTIATION."
  (let* ((plain (asked-for target nil))
         (coded (asked-for target "br"))
         (tag (response-header coded "etag")))
    (is (string/= tag (response-header plain "etag")))
    (let ((known (asked-for target "br" "If-None-Match" tag)))
      (is (= 304 (response-status known)))
      (is (equal tag (response-header known "etag")))
      (is (equal "Accept-Encoding" (response-header known "vary"))))
    (check-response (asked-for target "br" "If-None-Match" (response-header plain "etag"))
                    200 "brotli" "br")
    (check-response (asked-for target nil "If-None-Match" tag) 200 "plain" nil)
    ;; A range is one of the octets that are sent.
    (let ((part (asked-for target "br" "Range" "bytes=1-3")))
      (check-response part 206 "rot" "br")
      (is (equal "bytes 1-3/6" (response-header part "content-range"))))
    (check-response (asked-for target "br" "Range" "bytes=1-3" "If-Range" tag) 206 "rot" "br")
    (check-response (asked-for target "gzip" "Range" "bytes=1-3" "If-Range" tag)
                    200 "gzipped" "gzip")
    ;; The file and its siblings have the same date, so a date does not say which octets are meant.
    (let ((date (response-header plain "last-modified")))
      (is (equal date (response-header coded "last-modified")))
      (check-response (asked-for target "br" "Range" "bytes=1-3" "If-Range" date)
                      200 "brotli" "br")
      (check-response (asked-for target nil "Range" "bytes=1-3" "If-Range" date) 200 "plain" nil))
    (let ((beyond (asked-for target "br" "Range" "bytes=6-")))
      (is (= 416 (response-status beyond)))
      (is (equal "bytes */6" (response-header beyond "content-range")))
      (check-said-of-version beyond coded)
      (is (null (response-header beyond "content-encoding"))))
    (let ((failed (asked-for target "br" "If-Match" "\"other\"")))
      (is (= 412 (response-status failed)))
      (check-said-of-version failed coded)
      (is (null (response-header failed "content-encoding"))))))

(defun check-odd-siblings (directory)
  "Checks what siblings the server ignores of files in DIRECTORY, which it serves under /."
  (write-siblings directory "old.txt" "plain" "old.txt.gz" "gzipped")
  (make-new (merge-pathnames "old.txt" directory)) ; later than its sibling
  (check-response (asked-for "/old.txt" "gzip") 200 "plain" nil)
  (write-siblings directory "new.txt" "plain" "new.txt.gz" "gzipped")
  (make-new (merge-pathnames "new.txt.gz" directory))
  (check-response (asked-for "/new.txt" "gzip") 200 "gzipped" "gzip")
  (write-siblings directory "bare" "plain" "bare.gz" "gzipped")
  (check-response (asked-for "/bare" "gzip") 200 "gzipped" "gzip")
  (write-siblings directory "a.b.txt" "plain" "a.b.txt.gz" "gzipped" "a.b.gz" "other")
  (check-response (asked-for "/a.b.txt" "gzip") 200 "gzipped" "gzip")
  ;; Itself it is a file like others.
  (let ((response (asked-for "/new.txt.gz" "br")))
    (check-response response 200 "gzipped" nil)
    (is (equal "application/gzip" (response-header response "content-type"))))
  ;; A folder is no sibling, and without a file there is none.
  (write-siblings directory "folder.txt" "plain" "folder.txt.gz/a" "a" "lonely.txt.gz" "gzipped")
  (check-response (asked-for "/folder.txt" "gzip") 200 "plain" nil)
  (is (= 404 (response-status (asked-for "/lonely.txt" "gzip")))))

;;; Our acceptors

(defmacro serving-folder ((directory &rest initargs) (&rest routes) &body body)
  "Evaluates BODY while the files in DIRECTORY, a new folder, are served under /, besides ROUTES, by
an acceptor made of INITARGS."
  `(with-directory (,directory)
     (serving (:document-root ,directory ,@initargs) ,routes ,@body)))

(defun write-script (directory)
  (write-siblings directory "app.js" "plain" "app.js.br" "brotli" "app.js.gz" "gzipped"))

(define-server-test (a-client-gets-the-compressed-sibling-that-it-likes-best :needs :our-http)
  (serving-folder (directory :precompressed-files t) ()
    (write-script directory)
    (check-negotiation "/app.js")))

(define-server-test (conditions-and-ranges-are-about-the-sibling :needs :our-http)
  (serving-folder (directory :precompressed-files t) ()
    (write-script directory)
    (check-conditions "/app.js")))

(define-server-test (a-sibling-that-is-old-or-no-file-is-ignored :needs :our-http)
  (serving-folder (directory :precompressed-files t) ()
    (check-odd-siblings directory)))

(define-server-test (no-path-leads-to-a-sibling-outside-of-the-folder :needs :our-http)
  (with-directory (outer)
    (write-siblings outer "secret.txt" "hidden" "secret.txt.gz" "hidden" "inner/a.txt" "plain")
    (serving (:document-root (merge-pathnames "inner/" outer) :precompressed-files t) ()
      (dolist (target '("/../secret.txt" "/%2e%2e/secret.txt" "/../secret"
                        "/a.txt/../../secret.txt"))
        (is (not (search "hidden" (decode (response-body (asked-for target "gzip"))))))))))

(define-server-test (without-the-option-files-are-sent-as-hunchentoot-does :needs :our-http)
  (serving-folder (directory) ()
    (write-script directory)
    (let ((response (asked-for "/app.js" "br, gzip")))
      (is (string= "plain" (response-text response)))
      (dolist (name '("vary" "content-encoding" "cache-control"))
        (is (null (response-header response name)))))))

(define-server-test (what-a-handler-says-of-a-file-is-true :needs :our-http)
  (let ((file nil))
    (serving-folder (directory :precompressed-files t :file-cache-control "max-age=60")
        (("/tagged" (setf (hunchentoot:header-out :etag) "\"mine\"")
                    (hunchentoot:handle-static-file file))
         ("/coded" (setf (hunchentoot:header-out :content-encoding) "zstd")
                   (hunchentoot:handle-static-file file))
         ("/private" (setf (hunchentoot:header-out :cache-control) "private"
                           (hunchentoot:header-out :vary) "Cookie")
                     (hunchentoot:handle-static-file file))
         ("/gone" (setf (hunchentoot:return-code*) 410)
                  (hunchentoot:handle-static-file file)))
      (setf file (write-script directory))
      (check-response (asked-for "/tagged" "br") 200 "plain" nil)
      (check-response (asked-for "/coded" "br") 200 "plain" "zstd")
      (let ((response (asked-for "/private" "br")))
        (is (string= "brotli" (decode (response-body response))))
        (is (equal '("private") (response-header-values response "cache-control")))
        (is (equal '("Cookie, Accept-Encoding") (response-header-values response "vary"))))
      (let ((response (asked-for "/gone" "br")))
        (check-response response 410 "brotli" "br")
        (is (null (response-header response "cache-control")))))))

(define-server-test (a-large-sibling-arrives-whole :needs :our-http)
  (serving-folder (directory :precompressed-files t) ()
    (write-siblings directory "large.txt" "plain")
    (write-file directory "large.txt.gz" *large-answer*)
    (let ((response (asked-for "/large.txt" "gzip")))
      (is (equal "gzip" (response-header response "content-encoding")))
      (is (null (octet-difference *large-answer* (response-body response)))))))

;;; Cache-Control

(defun long-if-hashed (pathname)
  "The Cache-Control for PATHNAME."
  (cond ((search "fails" (pathname-name pathname)) (error "No rule."))
        ((search "-9f1c" (pathname-name pathname)) "public, max-age=31536000, immutable")))

(defun check-cache-control (directory fixed-p)
  "Checks the Cache-Control of files in DIRECTORY, which are served under /: \"max-age=60\" if
FIXED-P, otherwise that of LONG-IF-HASHED."
  (write-siblings directory "a-9f1c.css" "plain" "a.css" "plain" "fails.css" "plain")
  (flet ((said (target &rest headers)
           (let ((response (apply #'asked-for target nil headers)))
             (cons (response-status response)
                   (response-header-values response "cache-control")))))
    (if fixed-p
        (let ((tag (response-header (asked-for "/a.css" nil) "etag")))
          (is (equal '(200 "max-age=60") (said "/a.css")))
          (is (equal '(304 "max-age=60") (said "/a.css" "If-None-Match" tag)))
          (is (equal '(206 "max-age=60") (said "/a.css" "Range" "bytes=0-1")))
          (is (equal '(416) (said "/a.css" "Range" "bytes=9-")))
          (is (equal '(412) (said "/a.css" "If-Match" "\"other\"")))
          (is (equal '(404) (said "/none.css"))))
        (progn
          (is (equal '(200 "public, max-age=31536000, immutable") (said "/a-9f1c.css")))
          (is (equal '(200) (said "/a.css")))
          (is (equal '(500) (said "/fails.css")))))))

(define-server-test (files-have-the-cache-control-of-the-option :needs :our-http)
  (serving-folder (directory :file-cache-control "max-age=60") ()
    (check-cache-control directory t))
  (dolist (function (list 'long-if-hashed #'long-if-hashed))
    (serving-folder (directory :file-cache-control function) ()
      (check-cache-control directory nil))))

;;; Media types

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

(define-server-test (files-of-hunchentoot-keep-their-media-types :needs :our-http)
  (serving-folder (directory) ()
    (loop for (name type) in '(("a.html" "text/html; charset=utf-8")
                               ("a.csv" "text/comma-separated-values; charset=utf-8")
                               ("a.ico" "image/x-icon") ("a.woff2" "font/woff2")
                               ("a.js" "text/javascript; charset=utf-8")
                               ("a.unheard" "application/octet-stream"))
          do (write-file directory name (octets "x"))
             (is (string= type (content-type (ask (format nil "/~A" name))))))))
