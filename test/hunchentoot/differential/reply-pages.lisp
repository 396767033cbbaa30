(in-package #:hunchentoot-recycling-taskmaster-test)

;;; The handlers of the differential test that make replies of all kinds.

;;; What a handler may return

(defparameter *letters* (format nil "a~C~C~C" (code-char #xE9) (code-char #x20AC)
                                (code-char #x1D11E))
  "Characters of one to four octets in UTF-8.")

(define-page "/string" "a string")
(define-page "/letters" *letters*)
(define-page "/empty" "")
(define-page "/nil" nil)
(define-page "/octets" (octets "octets"))
(define-page "/no-octets" (octets))
(define-page "/adjustable-octets"
  (make-array 3 :element-type '(unsigned-byte 8) :initial-contents '(1 2 3) :adjustable t))
(define-page "/filled-octets"
  (make-array 9 :element-type '(unsigned-byte 8) :initial-element 65 :fill-pointer 4))
(define-page "/displaced-octets"
  (make-array 3 :element-type '(unsigned-byte 8) :displaced-to (octets "abcdef")
                :displaced-index-offset 2))
(define-page "/filled-string"
  (make-array 9 :element-type 'character :initial-element #\x :fill-pointer 4))
(define-page "/base-string" (coerce "base" 'simple-base-string))
(define-page "/list" (list 104 105))
(define-page "/vector" (vector 104 105))
(define-page "/vector-of-others" (vector :a "b"))
(define-page "/symbol" 'symbol)
(define-page "/t" t)
(define-page "/integer" 42)
(define-page "/pathname" #p"/etc/passwd")
(define-page "/two-values" (values "first" nil))
(define-page "/no-values" (values))
;; Longer than what we copy behind a head; and so long that the kernel does not take it at once.
(define-page "/long-string" (make-string 100000 :initial-element #\x))
(define-page "/long-letters" (make-string 60000 :initial-element (code-char #xE9)))
(define-page "/long-octets" (test-octets 100000))
(define-page "/huge-string" (make-string 1000000 :initial-element #\x))
(define-page "/huge-octets" (test-octets 1000000))
(define-page "/long-lines" (format nil "~V{line~%~:*~}" 3000 '(nil)))

;;; Encodings

(defparameter *external-formats*
  '(("utf-8" :utf-8) ("latin-1" :latin-1) ("utf-16" :utf-16) ("utf-16le" :utf-16le)
    ("utf-32" :utf-32) ("us-ascii" :us-ascii) ("koi8-r" :koi8-r) ("cp1252" (:code-page :id 1252))
    ("utf-8-crlf" (:utf-8 :eol-style :crlf)) ("latin-1-cr" (:latin-1 :eol-style :cr))
    ("latin-1-crlf" (:latin-1 :eol-style :crlf)))
  "What the pages below call the external formats.")

(defun set-external-format (name)
  (setf (hunchentoot:reply-external-format*)
        (let ((format (second (assoc name *external-formats* :test #'string=))))
          (apply #'flexi-streams:make-external-format (uiop:ensure-list format)))))

(define-page "/encoded"
  (plain-text!)
  (set-external-format (asked))
  (format nil "one~%two ~C~%" (code-char #xE9)))
(define-page "/encoded-beyond"
  (plain-text!)
  (set-external-format (asked))
  *letters*)
(define-page "/encoded-and-empty" (set-external-format (asked)) "")
(define-page "/type"
  (setf (hunchentoot:content-type*) (asked))
  (if (asked "octets") (octets "typed") "typed"))
(define-page "/no-type" (setf (hunchentoot:content-type*) nil) "typed")
(define-page "/no-type-octets" (setf (hunchentoot:content-type*) nil) (octets "typed"))

;;; Status

(loop for (path each) in `(("/status" "a body") ("/status-octets" ,(octets "a body"))
                           ("/status-empty" "") ("/status-nil" nil))
      do (let ((value each))
           (define-page path
             (setf (hunchentoot:return-code*) (asked-number))
             value)))
(define-page "/status-aborted"
  (setf (hunchentoot:return-code*) (asked-number))
  (hunchentoot:abort-request-handler (asked "with")))
(define-page "/status-length"
  (setf (hunchentoot:return-code*) (asked-number)
        (hunchentoot:content-length*) 0)
  nil)

;;; Headers

(defun header-name (name)
  "NAME as a program would write it: with a colon for a keyword."
  (if (uiop:string-prefix-p ":" name)
      (intern (string-upcase (subseq name 1)) '#:keyword)
      name))

(define-page "/header"
  (setf (hunchentoot:header-out (header-name (asked "name"))) (asked "value"))
  "headed")
(define-page "/header-nil"
  (setf (hunchentoot:header-out (header-name (asked "name"))) nil)
  "headed")
(define-page "/header-nil-content"
  (setf (hunchentoot:header-out (header-name (asked "name"))) (asked "value"))
  nil)

(defparameter *header-values*
  (list 42 -1 0 1.5 2/3 (expt 10 30) :keyword 'symbol #\c '(a "b") #p"path"
        (code-char #xE9) (make-string 5000 :initial-element #\v) (string (code-char #xE9))
        (string (code-char #x20AC)) "" " padded " (format nil "a~Cb" #\Tab)
        (format nil "a~%b") (format nil "a~C~Cb: c" #\Return #\Newline)
        (format nil "a~Cb" (code-char 0)) (format nil "a~Cb" (code-char 127))
        (coerce "base" 'simple-base-string))
  "Values that a program may give to a header.")

(define-page "/header-value"
  (setf (hunchentoot:header-out :x-value) (nth (asked-number) *header-values*))
  "headed")
(define-page "/headers"
  (loop for name in '(:x-one "X-Two" "x-THREE" :x_four :etag :www-authenticate :te :dnt
                      :x-ua-compatible :content-md5 hunchentoot:session)
        for number from 1
        do (setf (hunchentoot:header-out name) number))
  (setf (hunchentoot:header-out :x-one) "again")
  "headed")
(define-page "/length"
  (setf (hunchentoot:content-length*) (asked-number))
  "four")
(define-page "/length-nil"
  (setf (hunchentoot:content-length*) (asked-number))
  nil)
(define-page "/length-then-error"
  (setf (hunchentoot:content-length*) 5)
  (error "After the length."))
(define-page "/no-cache" (hunchentoot:no-cache) "fresh")
(define-page "/modified"
  (hunchentoot:handle-if-modified-since 3000000000)
  (setf (hunchentoot:header-out :last-modified) (hunchentoot:rfc-1123-date 3000000000))
  "modified")

;;; Cookies

(define-page "/cookies"
  (hunchentoot:set-cookie "plain" :value "1")
  (hunchentoot:set-cookie "all" :value "a b;c" :expires 3000000000 :max-age 60 :path "/p"
                                :domain "example.org" :secure t :http-only t)
  (hunchentoot:set-cookie "empty")
  (hunchentoot:set-cookie "plain" :value "2")
  (hunchentoot:set-cookie "number" :value 42)
  (hunchentoot:set-cookie "latin" :value (string (code-char #xE9)))
  (hunchentoot:set-cookie "encoded" :value (hunchentoot:url-encode *letters*))
  (when (same-site-cookies-p)
    (apply #'hunchentoot:set-cookie "site" '(:value "1" :same-site "Lax")))
  "baked")
(define-page "/cookie-value"
  (hunchentoot:set-cookie "given" :value (asked))
  "baked")
(define-page "/cookie-beyond-latin-1"
  (hunchentoot:set-cookie "given" :value *letters*)
  "baked")
(define-page "/cookie-by-header"
  (setf (hunchentoot:header-out :set-cookie) "by=header")
  (hunchentoot:set-cookie "by" :value "function")
  "baked")
