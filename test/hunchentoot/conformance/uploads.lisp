(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* conformance/uploads :in conformance
  :description "Files in multipart forms, and what becomes of their temporary files.")

;;; Multipart forms

(defparameter *boundary* "----a-boundary-47-11" "What separates the parts of our forms.")

(defun multipart-type ()
  "The content type of our forms."
  (format nil "multipart/form-data; boundary=~A" *boundary*))

(defun form-part (name contents &key file-name content-type)
  "The octets of one part of a form, which is a file when FILE-NAME is given."
  (octets "--" *boundary* :crlf
          (format nil "Content-Disposition: form-data; name=\"~A\"~@[; filename=\"~A\"~]"
                  name file-name)
          :crlf
          (and content-type (list "Content-Type: " content-type :crlf))
          :crlf contents :crlf))

(defun multipart (&rest parts)
  "The octets of a form made of PARTS."
  (octets parts "--" *boundary* "--" :crlf))

(defparameter *file-contents* (octets (test-octets 20000) :crlf "--" (test-octets 300))
  "The contents of an upload: every octet value, and things that look like boundaries.")

(defun file-part (&key (name "file") (contents *file-contents*) (file-name "some.bin"))
  "A part with a file."
  (form-part name contents :file-name file-name :content-type "application/x-test"))

(defun upload (target &rest parts)
  "The response to a POST of a form made of PARTS to TARGET."
  (ask target :method :post :content-type (multipart-type)
              :content (apply #'multipart parts)))

(defmacro serving-uploads ((&rest routes) &body body)
  "Evaluates BODY while uploads go to a directory of their own and ROUTES are served."
  `(with-directory (directory)
     (with-globals ((hunchentoot:*tmp-directory* directory))
       (serving () ,routes ,@body))))

;;; Promises

(define-server-test (the-file-of-an-upload-stays-when-it-is-moved :needs :octets-in-forms)
  (with-directory (elsewhere)
    (let ((kept (merge-pathnames "kept" elsewhere)))
      (serving-uploads (("/" (uiop:rename-file-overwriting-target
                              (first (hunchentoot:post-parameter "file")) kept)
                             "moved"))
        (with-connection (connection)
          (exchange connection "/" :method :post :content-type (multipart-type)
                                   :content (multipart (file-part)))
          ;; A second request on the connection comes after the end of the first.
          (exchange connection "/nowhere"))
        (is (null (octet-difference *file-contents* (file-octets kept))))))))

(define-server-test the-upload-hook-is-called-for-every-file
  (let ((paths (make-recorder)))
    (with-globals ((hunchentoot:*file-upload-hook* (lambda (path) (record paths path))))
      (serving-uploads (("/" (hunchentoot:post-parameters*) "taken"))
        (upload "/" (file-part) (form-part "field" "value") (file-part :name "other"))
        (is (= 2 (recorded-count paths)))
        (is (every #'pathnamep (recorded paths)))))))
