(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* forms :in acceptors
  :description "Forms with files: the parameters are what Hunchentoot's own code makes of them.")

;;; The same as Hunchentoot's

(defun stored-text (path)
  "The octets that a client sent for the file PATH, as characters with these codes."
  (if (and (files-of-forms-changed-p)
           (not (typep hunchentoot:*acceptor* 'recycling:parallel-acceptor)))
      (alexandria:read-file-into-string path)
      (octet-text (file-octets path))))

(defun shown-form ()
  "The parameters of the current request, with the contents of files in the place of their names."
  (apply #'shown
         (loop for (name . value) in (hunchentoot:post-parameters*)
               collect (if (consp value)
                           (list* name (stored-text (first value)) (rest value))
                           (list name value)))))

(defun form-as-seen-by (class content-type body)
  "What a handler of an acceptor of CLASS sees of a form, and how many files Hunchentoot made for
it."
  (let ((*acceptor-class* class) (files :none))
    (serving-uploads (("/" (let ((seen (shown-form)))
                             (setf files (length hunchentoot::*tmp-files*))
                             seen)))
      (with-connection (connection)
        (send-request connection "/" :method :post :content-type content-type :content body)
        ;; Hunchentoot reads on beyond the Content-Length where the form has not ended.
        (end-sending connection)
        (let ((text (response-text (read-response connection))))
          (list text files))))))

(defun form-lines (&rest parts)
  "The octets of PARTS (see OCTETS), with a line end after each."
  (octets (loop for part in parts collect part collect :crlf)))

(defun disposition (rest)
  (format nil "Content-Disposition: form-data; ~A" rest))

(defparameter *forms*
  (flet ((field (text &rest more) (apply #'form-lines "--b" (disposition text) more)))
    `(("fields"
       ,(field "name=\"a\"" "" "1") ,(field "name=\"b\"" "" "") ,(field "name=\"a\"" "" "2"))
      ("no part")
      ("files"
       ,(field "name=f; filename=\"x.bin\"" "Content-Type: application/x-test" ""
               (test-octets 9000))
       ,(field "name=\"g\"; filename=\"y.txt\"" "" "no type")
       ,(field "name=\"h\"; filename=\"z\"" "content-type: text/plain; charset=utf-8" "" "text")
       ,(field "name=\"i\"; filename=\"z\"" "Content-Type: odd" "" "text"))
      ("an empty file" ,(field "name=\"f\"; filename=\"empty\"" "" ""))
      ("no file was chosen"
       ,(field "name=\"f\"; filename=\"\"" "Content-Type: application/octet-stream" "" ""))
      ("names and texts in UTF-8"
       ,(field "name=\"ä€\"; filename=\"日本.txt\"" "" "ü")
       ,(field "name=\"ö\"" "" "ß €"))
      ("texts that are not UTF-8" ,(field "name=\"a\"" "" (as-octets '(65 255 66))))
      ("nearly delimiters"
       ,(field "name=\"a\"; filename=\"f\"" "" "--" "-b" "--a" "--" (list :crlf :crlf "-- b"))
       ,(field "name=\"c\"" "" (list "- -b" :crlf :crlf :crlf)))
      ("delimiters with more on their line"
       ,(form-lines "--bc" (disposition "name=\"a\"") "" "1")
       ,(form-lines "--b 	" (disposition "name=\"b\"") "" "2")
       ,(form-lines "--b-" (disposition "name=\"c\"") "" "3"))
      ("line ends in the content"
       ,(field "name=\"a\"" "" (list :crlf "x" '(:crlf) (string #\Newline) (string #\Return)))
       ,(field "name=\"f\"; filename=\"f\"" "" (list :crlf :crlf (string #\Return))))
      ("a preamble" ,(form-lines "preamble" "") ,(field "name=\"a\"" "" "1"))
      ("parts that are no fields"
       ,(form-lines "--b" "" "no head") ,(form-lines "--b" "X-Some: thing" "" "no disposition")
       ,(form-lines "--b" "Content-Disposition: attachment; name=\"a\"" "" "1")
       ,(form-lines "--b" "Content-Dispositioo: form-data; name=\"a\"" "" "1")
       ,(field "filename=\"f\"" "" "a file without a name") ,(field "name=\"a\"" "" "1"))
      ("no blank line before the next part"
       ,(form-lines "--b" (disposition "name=\"a\"") "") ,(field "name=\"b\"" "" "2"))
      ("odd heads"
       ,(field "name=a" "" "1") ,(field "NAME=\"b\"" "" "2") ,(field "name=\"c;d\"" "" "3")
       ,(field "name=\"g\"; filename" "" "5")
       ,(field "filename=\"f\"; name=\"i\"" "" "7")
       ,(form-lines "--b" "content-disposition:   FORM-DATA;name=\"j\"" "" "8")
       ,(form-lines "--b" (disposition "name=\"k\"") "Folded: one" " two" "" "9"))
      ("many fields"
       ,(loop for i below 300
              collect (field (format nil "name=\"~D\"" i) "" (format nil "~R" i))))))
  "Lists of a name and the parts of a form with the boundary b.")

(defun same-form-p (content-type body)
  "True when our code makes of a form what Hunchentoot's does, and not more files: Hunchentoot makes
some for parts that it drops."
  (quietly
    (let ((hunchentoots (form-as-seen-by 'hunchentoot:easy-acceptor content-type body))
          (ours (form-as-seen-by *acceptor-class* content-type body)))
      (or (and (equal (first hunchentoots) (first ours))
               (>= (second hunchentoots) (second ours)))
          (format t "~&~S~%~S~%" hunchentoots ours)))))

(defparameter *forms-that-hunchentoot-loses* '("parts that are no fields")
  "Forms of which Hunchentoot's own code has nothing: it fails at a part without
Content-Disposition.")

(define-server-test forms-mean-what-they-mean-to-hunchentoot
  (loop for (name . parts) in *forms*
        for body = (octets parts (form-lines "--b--"))
        ;; Where its functions can be wrapped, its acceptors have ours as well.
        unless (and (member name *forms-that-hunchentoot-loses* :test #'string=)
                    (not (platform:functions-can-be-wrapped-p)))
          do (let ((same (same-form-p "multipart/form-data; boundary=b" body)))
               (is-true same "~A" name))))

(defparameter *long-boundary* (make-string 80 :initial-element #\x)
  "Longer than RFC 2046 allows; Hunchentoot takes it.")

(define-server-test boundaries-are-found-where-hunchentoot-finds-them
  (flet ((body (boundary)
           (form-lines (list "--" boundary) (disposition "name=\"a\"") "" "1"
                     (list "--" boundary "--"))))
    (loop for (type boundary) in `(("multipart/form-data; boundary=\"quoted; b\"" "quoted; b")
                                   ("Multipart/Form-Data; charset=utf-8; BOUNDARY=--x" "--x")
                                   ("multipart/form-data" "b")
                                   (,(format nil "multipart/form-data; boundary=~A" *long-boundary*)
                                    ,*long-boundary*))
          for same = (same-form-p type (body boundary))
          do (is-true same "~A" type))))

(define-server-test what-follows-a-form-is-dropped
  (let ((body (octets (form-lines "--b" (disposition "name=\"a\"") "" "1" "--b--")
                      "an epilogue" (test-octets 300000))))
    (quietly
      (serving () (("/" (shown-form)))
        (with-connection (connection)
          (dolist (framing (list (list :content body)
                                 (list :chunks (list (subseq body 0 50) (subseq body 50)))
                                 (list :content body)))
            (let ((text (apply #'exchange-text connection "/" :method :post
                               :content-type "multipart/form-data; boundary=b" framing)))
              (is (string= (shown '("a" "1")) text)))))))))

;;; Otherwise than Hunchentoot's

(defparameter *our-forms*
  (flet ((field (name text) (form-lines "--b" (disposition name) "" text)))
    `((,(octets (field "name=\"a\"" "1") "--b--") "a" "1") ; without a line end
      (,(form-lines "--b" (disposition "name=\"a\"") "" "1--b" "2 --b--" "--b--")
       "a" ,(octet-text (octets "1--b" :crlf "2 --b--")))
      (,(octets (field "name=\"a\\\"b\"" "1") "--b--") "a\"b" "1")
      (,(octets (field "name=\"re[d+\\d]\\\"\\\\\"; filename=\"C:\\me\\a.txt\"" "1") "--b--")
       "re[d+\\d]\"\\" "1" "C:\\me\\a.txt" "")
      (,(octets (field "name=\"a\" ; filename=\"f\"" "1") "--b--") "a" "1" "f" "")
      (,(octets "--b" :crlf (disposition "name=a") :crlf
                (as-octets (loop repeat 5000 collect 13 collect 120)) :crlf :crlf
                "1" :crlf "--b--" :crlf)
       "a" "1")
      (,(form-lines "--b" (disposition "name=\"a\"")
                    (list "X: " (make-string http:+part-head-octets+ :initial-element #\x))
                    "" "1" "--b--"))))
  "Lists of a form, and what it has: nothing, or the name of a field, its value, and for a file its
name and type.")

(define-server-test (forms-mean-what-they-should-where-hunchentoot-differs :needs :our-content)
  (let ((log (make-string-output-stream)))
    (serving (:message-log-destination log) (("/" (shown-form)))
      (loop for (form . field) in *our-forms*
            do (is (string= (if field (shown field) "")
                            (ask-text "/" :method :post :content form
                                          :content-type "multipart/form-data; boundary=b"))
                   "~S" field)))
    (is (= 1 (count-messages (get-output-stream-string log))) "Only the large head is told.")))

;;; Large ones

(defun large-form (size)
  (multipart (form-part "before" "1") (file-part :contents (test-octets size))
             (form-part "after" "2")))

(define-server-test (ten-mebibytes-arrive-as-they-were-sent :needs :octets-in-forms)
  (let* ((size (* 10 1024 1024)) (contents nil) (path nil)
         (form (large-form size)))
    (serving-uploads (("/" (setf path (first (hunchentoot:post-parameter "file"))
                                 contents (file-octets path))
                           (shown (hunchentoot:post-parameter "before")
                                  (hunchentoot:post-parameter "after"))))
      (dolist (framing (list (list :content form)
                             (list :chunks (list (subseq form 0 100000) (subseq form 100000)))))
        (let ((text (apply #'ask-text "/" :method :post :content-type (multipart-type) framing)))
          (is (string= (shown "1" "2") text))
          (is (null (octet-difference (test-octets size) contents)))
          (eventually ("the temporary file to be deleted")
            (file-gone-p path)))))))

;;; Hunchentoot counts the names of files without a lock, and each process counts for itself

(define-server-test (a-file-that-somebody-else-makes-meanwhile-is-left-alone :needs :our-content)
  (let ((others nil))
    (with-globals ((hunchentoot:*file-upload-hook*
                    (lambda (path)
                      (setf others path)
                      (alexandria:write-string-into-file "another's" path))))
      (serving-uploads (("/" (hunchentoot:post-parameter "file") "taken"))
        (is (= 500 (response-status (upload "/" (file-part)))))
        (is (string= "another's" (uiop:read-file-string others)))))))

;;; Files that cannot be stored are no fault of the client's

(define-server-test (uploads-to-a-folder-that-cannot-be-made-are-answered-500 :needs :our-content)
  (with-directory (directory)
    (let ((log (make-string-output-stream)))
      (write-file directory "file" "no folder")
      (with-globals ((hunchentoot:*tmp-directory* (merge-pathnames "file/folder/" directory)))
        (serving (:message-log-destination log)
            (("/" (hunchentoot:post-parameters*) "taken")
             ("/twice" (ignore-errors (hunchentoot:post-parameters*))
                       (hunchentoot:post-parameters*)
                       "taken")
             ("/raw" (ignore-errors (hunchentoot:post-parameters*))
                     (hunchentoot:raw-post-data :force-binary t))
             ("/word" "word"))
          (let ((form (large-form 20000)))
            (is (equalp form (response-body (ask "/raw" :method :post :chunks (list form)
                                                        :content-type (multipart-type))))
                "The whole content is there still."))
          ;; They are written when their form has come to its end, and while it comes.
          (dolist (size '(5 20000 150000))
            (dolist (target '("/" "/twice"))
              (with-connection (connection)
                (is (= 500 (response-status
                            (exchange connection target
                                      :method :post :content-type (multipart-type)
                                      :content (large-form size)))))
                (is (string= "word" (exchange-text connection "/word"))))))))
      (is (search "[ERROR" (get-output-stream-string log))))))

(define-server-test (a-hook-that-refuses-an-upload-costs-no-connection :needs :our-content)
  (with-globals ((hunchentoot:*file-upload-hook* (lambda (path)
                                                   (declare (ignore path))
                                                   (setf (hunchentoot:return-code*)
                                                         hunchentoot:+http-forbidden+)
                                                   (hunchentoot:abort-request-handler
                                                    "No files."))))
    (serving-uploads (("/" (shown (hunchentoot:post-parameter "file")))
                      ("/word" "word"))
      (dolist (content (list :content :chunks))
        (with-connection (connection)
          (let ((form (multipart (file-part))))
            (is (= 403 (response-status (exchange connection "/"
                                                  :method :post :content-type (multipart-type)
                                                                 content
                                                  (if (eq :chunks content) (list form) form)))))
            (is (string= "word" (exchange-text connection "/word")))))))))
