(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* forms :in acceptors
  :description "Forms with files, beside differential/: what differs, large ones, refusals.")

(defun shown-form ()
  "The parameters of the current request, with the contents of files in the place of their names."
  (apply #'shown
         (loop for (name . value) in (hunchentoot:post-parameters*)
               collect (if (consp value)
                           (list* name (octet-text (file-octets (first value))) (rest value))
                           (list name value)))))

(defun form-lines (&rest parts)
  "The octets of PARTS (see OCTETS), with a line end after each."
  (octets (loop for part in parts collect part collect :crlf)))

(defun disposition (rest)
  (format nil "Content-Disposition: form-data; ~A" rest))

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
    (is (= 1 (count-messages (taken-from-log log))) "Only the large head is told.")))

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
      (is (search "[ERROR" (taken-from-log log))))))

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
