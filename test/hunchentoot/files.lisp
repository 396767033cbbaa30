(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite sent-files :in acceptors
  :description "Files that our own code sends.")

(in-suite sent-files)

(defmacro serving-file ((octets &rest initargs) (path &rest routes) &body body)
  "Evaluates BODY while a file of OCTETS, whose pathname PATH is bound to, is served under /file,
besides ROUTES, by an acceptor made of INITARGS.  A file counts as just changed for a long time, but
not after MAKE-OLD."
  (let ((directory (gensym "DIRECTORY")))
    `(with-directory (,directory)
       (with-globals ((server:*settled-seconds* (* 60 *patience*)))
         (let ((,path (write-file ,directory "file.bin" ,octets)))
           (serving (,@initargs)
               (("/file" (hunchentoot:handle-static-file ,path))
                ,@routes)
             ,@body))))))

(defun tag-of (target)
  (response-header (ask target) "etag"))

(defun asked-with (&rest headers)
  "The response for /file to a request with HEADERS, names and values by turns."
  (ask "/file" :headers (loop for (name value) on headers by #'cddr
                              collect (cons name value))))

(defun make-old (path)
  "Lets the time of the file PATH be long ago, so that its next change will have another."
  (uiop:run-program (list "touch" "-d" "2020-01-02 03:04:05" (uiop:native-namestring path))))

(define-server-test (a-files-tag-is-strong-once-its-time-has-settled :needs :our-http)
  (serving-file ((octets "text")) (path)
    (is (uiop:string-prefix-p "W/\"" (tag-of "/file")))
    (make-old path)
    (let ((tag (tag-of "/file")))
      (is (uiop:string-prefix-p "\"" tag))
      (is (string= tag (tag-of "/file")))
      (write-file (uiop:pathname-directory-pathname path) "file.bin" (octets "other"))
      (is (string/= tag (tag-of "/file")))
      (is (string= "other" (ask-text "/file"))))))

(define-server-test (a-client-that-has-a-file-is-told-so :needs :our-http)
  (serving-file ((octets "text")) (path)
    (let* ((tag (tag-of "/file"))
           (response (asked-with "If-None-Match" (format nil "\"other\", ~A" tag))))
      (is (= 304 (response-status response)))
      (is (string= tag (response-header response "etag")))
      (is (= 200 (response-status (asked-with "If-None-Match" "\"other\""))))
      ;; The tag has the last word, RFC 9110, section 13.1.3.
      (is (= 200 (response-status
                  (asked-with "If-None-Match" "\"other\""
                              "If-Modified-Since"
                              (response-header (ask "/file") "last-modified")))))
      (is (= 412 (response-status (asked-with "If-Match" "\"other\"")))))))

(define-server-test (a-range-is-sent-only-of-the-version-that-was-meant :needs :our-http)
  (serving-file ((octets "0123456789")) (path)
    (make-old path)
    (let ((tag (tag-of "/file"))
          (date (response-header (ask "/file") "last-modified")))
      (dolist (validator (list tag date))
        (let ((part (asked-with "Range" "bytes=2-4" "If-Range" validator)))
          (is (= 206 (response-status part)))
          (is (string= "234" (response-text part)))))
      (dolist (validator (list "\"other\"" "Thu, 02 Jan 2020 03:04:06 GMT"))
        (let ((whole (asked-with "Range" "bytes=2-4" "If-Range" validator)))
          (is (= 200 (response-status whole)))
          (is (string= "0123456789" (response-text whole))))))))

(define-server-test (ranges-that-make-no-sense-are-refused-or-ignored :needs :our-http)
  (serving-file ((octets "0123456789")) (path)
    (is (= 416 (response-status (asked-with "Range" "bytes=5-3"))))
    (is (= 416 (response-status (asked-with "Range" "bytes=10-"))))
    (is (= 416 (response-status (asked-with "Range" "bytes=-0"))))
    (dolist (range '("bytes=-3" "bytes=7-"))
      (let ((response (asked-with "Range" range)))
        (is (= 206 (response-status response)))
        (is (equal "bytes 7-9/10" (response-header response "content-range")))
        (is (string= "789" (response-text response)))))
    (is (string= "0123456789" (response-text (asked-with "Range" "bytes=-1-2"))))
    (let ((response (ask "/file" :method :post :content "x"
                                 :headers '(("Range" . "bytes=1-2")))))
      (is (= 200 (response-status response)))
      (is (string= "0123456789" (response-text response))))))

(define-server-test (a-file-may-be-the-page-of-an-error :needs :our-http)
  (serving-file ((octets "0123456789"))
      (path ("/gone" (setf (hunchentoot:return-code*) 410)
                     (hunchentoot:handle-static-file path "text/x-page")))
    (let ((response (ask "/gone" :headers '(("Range" . "bytes=1-2")
                                            ("If-None-Match" . "*")))))
      (is (= 410 (response-status response)))
      (is (string= "0123456789" (response-text response)))
      (is (string= "text/x-page; charset=utf-8" (content-type response))))))

(define-server-test (a-program-may-set-the-tag-itself :needs :our-http)
  (serving-file ((octets "text"))
      (path ("/tagged" (setf (hunchentoot:header-out :etag) "\"mine\"")
                       (hunchentoot:handle-static-file path)))
    (is (string= "\"mine\"" (tag-of "/tagged")))
    (is (= 304 (response-status
                (ask "/tagged" :headers '(("If-None-Match" . "\"mine\""))))))))

(define-server-test (handlers-go-on-after-the-file-but-not-after-a-head :needs :our-http)
  (let ((steps (make-recorder)))
    (serving-file ((octets "text"))
        (path ("/then" (hunchentoot:handle-static-file path)
                       (record steps :after)
                       "not sent"))
      (with-connection (connection)
        (is (string= "text" (exchange-text connection "/then")))
        (exchange connection "/then" :method :head)
        (is (string= "text" (exchange-text connection "/then"))))
      ;; The client has the file before the handler goes on.
      (eventually ("the handlers to go on")
        (<= 2 (recorded-count steps :after))))
    (is (= 2 (recorded-count steps :after)))))

(defun large-file-follows-p (connection)
  (let ((head (read-head connection)))
    (and (= 200 (response-status head))
         (= *large-size* (content-length head))
         (whole-answer-p connection))))

(define-server-test (a-large-file-needs-no-thread-for-a-slow-client :needs :parking)
  (serving-file (*large-answer*
                 :taskmaster (taskmaster :standby-thread-count 1 :max-thread-count 1))
      (path ("/word" "word"))
    (with-connection (slow)
      (send slow (request-octets "/file") (request-octets "/word"))
      (wait-until-held-up 1)
      (is (string= "word" (ask-text "/word")))
      (delete-file path)                ; it is open
      (is (large-file-follows-p slow))
      (is (string= "word" (response-text (read-response slow)))))))

(define-server-test (a-large-range-arrives-whole :needs :our-http)
  (serving-file (*large-answer*) (path)
    (with-connection (connection)
      (send-request connection "/file" :headers '(("Range" . "bytes=1000-8000999")))
      (let ((head (read-head connection)))
        (is (= 206 (response-status head)))
        (is (null (octet-difference (subseq *large-answer* 1000 8001000)
                                    (receive-many connection 8000000))))))))

(define-server-test (a-file-whose-client-goes-is-closed :needs :parking)
  ;; The test for leaks looks for its descriptor.
  (serving-file (*large-answer*) (path)
    (let ((slow (connect)))
      (send-request slow "/file")
      (wait-until-held-up 1)
      (reset slow))
    (eventually ("the connection to be closed") (zerop (figure :open)))))

(define-server-test (a-stop-closes-the-files-of-slow-clients :needs :parking)
  (serving-file (*large-answer*) (path)
    (with-connection (slow)
      (send-request slow "/file")
      (wait-until-held-up 1)
      (hunchentoot:stop *server*)
      (is (not (large-file-follows-p slow))))))

(define-server-test (a-file-that-becomes-shorter-is-not-taken-for-whole :needs :parking)
  (serving-file (*large-answer* :write-timeout (* 6 *patience*)) (path)
    (with-connection (slow)
      (send-request slow "/file")
      (wait-until-held-up 1)
      (uiop:run-program (list "truncate" "-s" "1000" (uiop:native-namestring path)))
      (is (not (large-file-follows-p slow)))
      ;; At once, and not because the client took too long.
      (eventually ("the connection to be closed") (zerop (figure :open)))
      (is (zerop (figure :expired))))))

;;; What is no regular file

(defun make-pipe (directory)
  "Makes the named pipe, pipe, in DIRECTORY; returns its pathname."
  (let ((pipe (merge-pathnames "pipe" directory)))
    (uiop:run-program (list "mkfifo" (uiop:native-namestring pipe)))
    pipe))

(define-server-test (what-is-no-regular-file-is-not-found :needs :our-http)
  (with-directory (directory)
    (make-pipe directory)
    (write-file directory "a.txt" "text")
    (with-globals ((hunchentoot:*dispatch-table*
                    (list (hunchentoot:create-folder-dispatcher-and-handler "/" directory))))
      (dolist (traced '(nil t))
        (with-globals ((hunchentoot:*header-stream* (and traced (make-broadcast-stream))))
          (serving () ()
            (is (string= "text" (ask-text "/a.txt")))
            (dolist (path '("/pipe" "/a.txt/" "/none"))
              (is (= 404 (response-status (ask path))) "~A" path))))))))

(define-server-test (a-range-beyond-the-file-is-told-the-size :needs :our-http)
  (serving-file ((octets "text")) (path)
    (let ((response (asked-with "Range" "bytes=10-20")))
      (is (= 416 (response-status response)))
      (is (string= "bytes */4" (response-header response "content-range"))))))

(defun set-file-time (path date)
  (uiop:run-program (list "touch" "-d" date (uiop:native-namestring path))))

(defun check-odd-times (path)
  "Checks what /file, which is served from PATH, says of times that tell nothing, or have yet to
come."
  (dolist (date '("@0" "@1"))
    (set-file-time path date)
    (let ((response (asked-with "If-Modified-Since" "Thu, 01 Jan 1970 00:00:01 GMT"
                                "If-None-Match" "\"other\"" "Range" "bytes=0-1"
                                "If-Range" "Thu, 01 Jan 1970 00:00:01 GMT")))
      (is (= 200 (response-status response)))
      (is (null (response-header response "etag")))
      (is (null (response-header response "last-modified")))
      (is (= 200 (response-status (asked-with "If-Modified-Since"
                                              "Thu, 01 Jan 1970 00:00:01 GMT"))))
      (is (= 200 (response-status (ask "/file"))))
      (is (= 412 (response-status (asked-with "If-Match" "\"other\""))))))
  (set-file-time path "@2")
  (is (string= "Thu, 01 Jan 1970 00:00:02 GMT" (response-header (ask "/file") "last-modified")))
  (set-file-time path "2090-01-01")
  (eventually ("a reply within one second")
    (let ((response (ask "/file")))
      (equal (response-header response "date") (response-header response "last-modified")))))

(define-server-test (a-time-that-cannot-be-the-last-changes-is-not-told :needs :our-http)
  (serving-file ((octets "text")) (path)
    (check-odd-times path)))

(define-server-test (a-change-is-seen-by-the-time-of-a-file-or-its-size :needs :our-http)
  (serving-file ((octets "first")) (path)
    (flet ((change (text date)
             (write-file (uiop:pathname-directory-pathname path) "file.bin" (octets text))
             (set-file-time path date)
             (let ((response (ask "/file")))
               (is (string= text (response-text response)))
               (list (response-header response "etag")
                     (response-header response "last-modified")))))
      (let ((first (change "first" "2020-01-02 03:04:05"))
            (later (change "later" "2020-01-02 03:04:06"))
            (short (change "abc" "2020-01-02 03:04:06"))
            (long (change "and longer" "2020-01-02 03:04:06"))
            (finer (change "and longer" "2020-01-02 03:04:06.5")))
        (is (string/= (second first) (second later)))
        (is (= 5 (length (remove-duplicates (mapcar #'first (list first later short long finer))
                                            :test #'string=))))))))

(define-server-test (a-range-of-a-file-that-may-have-changed-is-not-sent :needs :our-http)
  (serving-file ((octets "0123456789")) (path)
    (let ((date (response-header (ask "/file") "last-modified")))
      (is (= 200 (response-status (asked-with "Range" "bytes=2-3" "If-Range" date)))
          "Its next change may have the same time.")
      (is (= 206 (response-status (asked-with "Range" "bytes=2-3")))))))

(define-server-test (an-empty-file-has-no-ranges :needs :our-http)
  (serving-file ((octets "")) (path)
    (dolist (range '("bytes=0-" "bytes=0-0" "bytes=5-3"))
      (let ((response (asked-with "Range" range)))
        (is (= 200 (response-status response)) "~A" range)
        (is (string= "" (response-text response)))
        (is (null (response-header response "content-range")))))))
