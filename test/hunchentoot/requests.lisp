(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite requests :in all
  :description "Requests and replies made without MAKE-INSTANCE are what it would have made.")

(in-suite requests)

;;; Asked for the server itself

(define-server-test (options-for-the-server-or-its-root-are-answered :needs :our-reader)
  (flet ((status (target &rest keys)
           (with-connection (connection)
             (apply #'send-request connection target :method :options keys)
             (response-status (read-response connection)))))
    (serving (:document-root nil) (("/own" "Hey!"))
      (is (= 204 (status "*")))
      (is (= 204 (status "/")))
      (is (= 204 (status "/" :version "HTTP/1.0" :host nil)) "So HAProxy checks.")
      (is (= 404 (status "/elsewhere")))
      (is (= 200 (status "/own"))))
    (serving () (("/" "Hey!"))
      (is (= 200 (status "/"))))
    (serving () (("/" (setf (hunchentoot:return-code*) 404) "A page of the program's."))
      (is (= 404 (status "/"))))))

;;; Their parameters

(defun random-text (dice alphabet size)
  "A string of up to SIZE characters of ALPHABET."
  (let ((text (make-string (roll dice (1+ size)))))
    (map-into text (lambda () (char alphabet (roll dice (length alphabet)))))))

(defun outcome-of (function text)
  "What FUNCTION makes of TEXT, or :ERROR."
  (handler-case (funcall function text)
    (error () :error)))

(defun check-same-outcomes (ours hunchentoots alphabet)
  "Checks that the two functions make the same of some thousand strings."
  (let* ((seed (fresh-seed))
         (dice (make-dice seed)))
    (format t "~&; comparing 5,000 strings from seed ~D~%" seed)
    (is (null (loop repeat 5000
                    for text = (random-text dice alphabet 24)
                    unless (equal (outcome-of ours text) (outcome-of hunchentoots text))
                      collect text)))))

(defun as-text (string)
  (coerce string 'base:text))

(test queries-are-split-as-by-hunchentoot
  (check-same-outcomes
   (lambda (query)
     (let ((flexi-streams:*substitution-char* #\?))
       (recycling::query-alist (as-text query) recycling::*uri-format* t)))
   (lambda (query)
     (let ((flexi-streams:*substitution-char* #\?))
       (hunchentoot::form-url-encoded-list-to-alist (cl-ppcre:split "&" query)
                                                    hunchentoot::+utf-8+)))
   ;; What is no ASCII, too: a client may send it, though it should not.
   (concatenate 'string "ab&&==%4+~C3 " (list (code-char 233)))))

(test escapes-end-with-their-element
  (let ((text (as-text "a=%41")))
    (is (equal "A" (recycling::decoded-ascii text 2 5 t)))
    (is (null (recycling::decoded-ascii text 2 4 t)))
    (is (null (recycling::decoded-ascii text 2 3 t)))))

(test a-plus-is-a-space-where-it-means-one
  (is (equal "a b" (recycling::decoded-ascii (as-text "%61+b") 0 5 t)))
  (is (equal "a+b" (recycling::decoded-ascii (as-text "%61+b") 0 5 nil))))

(test cookies-are-split-as-by-hunchentoot
  (check-same-outcomes
   (lambda (header) (recycling::cookie-alist (as-text header)))
   (lambda (header)
     (hunchentoot::cookies-to-alist (cl-ppcre:split "\\s*[,;]\\s*" header)))
   (coerce '(#\a #\b #\= #\; #\, #\Space #\Tab #\" #\%) 'string)))

(test lists-are-split-as-by-hunchentoot
  (check-same-outcomes
   (lambda (header) (recycling::list-of-elements header))
   (lambda (header) (cl-ppcre:split "\\s*,\\s*" header))
   (coerce '(#\a #\1 #\. #\, #\, #\Space #\Tab) 'string)))

;;; The charsets of their content

(defun random-type (dice)
  "A Content-Type with some parameters, most often well-formed."
  (flet ((one-of (&rest choices)
           (elt choices (roll dice (length choices)))))
    (as-text (format nil "~A~{~A~}~A"
                     (one-of "text/plain" "TEXT/b" "a/b" "text" "text/" "/b" "" "b é")
                     (loop repeat (roll dice 4)
                           collect (format nil "~A~A~A=~A~A" (one-of ";" "; " " ;" "	; ")
                                           (one-of "charset" "a" "boundary") (one-of "" "" " ")
                                           (one-of "" "" " ")
                                           (one-of "utf-8" "x" "--1" "\"quoted; x\"" "\"e\\\"f\""
                                                   "\"\"")))
                     (one-of "" "" "" " " ";" "; " "; a" ";a=" "; a= " ";a=\"b" " b" ",b")))))

(defun charset-to-hunchentoot (type)
  "The charset that Hunchentoot's own code finds in TYPE; :MALFORMED where it signals an error."
  (handler-case (nth-value 2 (hunchentoot::parse-content-type type))
    (error () :malformed)))

(defun charset-to-us (type)
  (handler-case (http:media-type-parameter "charset" type "text")
    (http:malformed-media-type () :malformed)))

(test charsets-are-what-they-are-to-hunchentoot
  (let* ((seed (fresh-seed))
         (dice (make-dice seed))
         (types (loop repeat (rounds 20000) collect (random-type dice))))
    (format t "~&; looking at ~:D types from seed ~D~%" (length types) seed)
    (is (< (rounds 1000) (count-if #'stringp (mapcar #'charset-to-us types))))
    (is (< (rounds 1000) (count :malformed (mapcar #'charset-to-us types))))
    (is (null (loop for type in types
                    for ours = (charset-to-us type)
                    for hunchentoots = (charset-to-hunchentoot type)
                    ;; Hunchentoot's ends at what is no token's.
                    unless (or (equal ours hunchentoots)
                               (equal ours (format nil "~A,b" hunchentoots)))
                      collect type)))))

(test types-that-we-take-for-forms-are-those-that-hunchentoot-takes
  (flet ((hunchentoots (type)
           (handler-case (multiple-value-bind (type subtype) (hunchentoot::parse-content-type type)
                           (format nil "~(~A/~A~)" type subtype))
             (error () nil))))
    (dolist (name '("application/x-www-form-urlencoded" "multipart/form-data"))
      (dolist (rest '("" ",x" "=x" "\"x" "(x)" "/x" ":x" "@" " x" ";" "; charset=utf-8" "x" "-x"
                      "é"))
        (let ((type (as-text (format nil "~A~A" name rest))))
          (is (eq (and (string= name (hunchentoots type)) t)
                  (and (http:media-type-p name type) t))
              "~A" type)
          (is (eq (and (http:media-type-p name type) t)
                  (and (http:media-type-p name (string-upcase type)) t))))))))

(define-server-test the-charset-of-content-rules-the-query-too
  (serving ()
      (("/" (shown (map 'list #'char-code (hunchentoot:get-parameter "a")))))
    (loop for (type . codes) in '(("text/plain; charset=iso-8859-1" 195 169)
                                  ("text/plain" 233)
                                  ("application/json; charset=iso-8859-1" 233))
          do (is (string= (shown codes) (ask-text "/?a=%C3%A9" :content-type type)) type))))

;;; Their classes

(defmacro with-request-class ((name &rest slots) &body body)
  "Evaluates BODY while NAME names a class of requests with SLOTS, which is gone afterwards."
  `(unwind-protect
        (progn (eval '(defclass ,name (hunchentoot:request) ,slots))
               ,@body)
     (setf (find-class ',name) nil)))

(define-server-test slots-of-a-program-begin-as-it-says
  (with-request-class (marked-request (mark :initform (list 1 2) :reader mark-of))
    (serving (:request-class 'marked-request)
        (("/" (princ-to-string (funcall 'mark-of hunchentoot:*request*))))
      (is (string= "(1 2)" (ask-text "/")))
      (is (string= "(1 2)" (ask-text "/"))))))

(define-server-test slots-of-hunchentoot-that-a-program-changes-begin-as-it-says
  (with-request-class (remembering-request (hunchentoot::aux-data :initform '((:mark . "own"))))
    (serving (:request-class 'remembering-request)
        (("/" (hunchentoot:aux-request-value :mark)))
      (is (string= "own" (ask-text "/"))))))

(define-server-test default-initargs-of-a-program-hold
  (unwind-protect
       (progn
         (eval '(defclass defaulting-request (hunchentoot:request)
                 ((mark :initarg :mark :reader default-mark-of))
                 (:default-initargs :mark 42)))
         (serving (:request-class 'defaulting-request)
             (("/" (princ-to-string (funcall 'default-mark-of hunchentoot:*request*))))
           (is (string= "42" (ask-text "/")))))
    (setf (find-class 'defaulting-request) nil)))

(define-server-test a-method-defined-later-runs-for-the-next-request
  (with-request-class (later-request (mark :initform "before" :reader later-mark-of))
    (let ((method nil))
      (unwind-protect
           (serving (:request-class 'later-request)
               (("/" (funcall 'later-mark-of hunchentoot:*request*)))
             (is (string= "before" (ask-text "/")))
             (setf method (eval '(defmethod initialize-instance :after
                                  ((request later-request) &key)
                                  (setf (slot-value request 'mark) "after"))))
             (is (string= "after" (ask-text "/"))))
        (when method
          (remove-method #'initialize-instance method))))))

(define-server-test the-servers-name-is-what-the-methods-of-now-say
  (serving () (("/" "hello"))
    (flet ((name ()
             (response-header (ask "/") "server")))
      (let ((usual (name)) (method nil))
        (is (search "Hunchentoot" usual))
        (is (string= usual (name)))
        (unwind-protect
             (progn
               (setf method (eval '(defmethod hunchentoot::acceptor-server-name :around
                                    ((acceptor hunchentoot:acceptor))
                                    (format nil "~A behind" (call-next-method)))))
               (is (string= (format nil "~A behind" usual) (name)))
               (is (string= (format nil "~A behind" usual) (name))))
          (remove-method #'hunchentoot::acceptor-server-name method))
        (is (string= usual (name)))))))

(define-server-test a-class-redefined-is-used-by-the-next-request
  (with-request-class (changing-request (mark :initform "before" :reader changing-mark-of))
    (serving (:request-class 'changing-request)
        (("/" (funcall 'changing-mark-of hunchentoot:*request*)))
      (is (string= "before" (ask-text "/")))
      (eval '(defclass changing-request (hunchentoot:request)
              ((other :initform nil)
               (mark :initform "after" :reader changing-mark-of))))
      (is (string= "after" (ask-text "/"))))))

(defun call-with-definition (name definition thunk)
  "Calls THUNK while the function NAME is DEFINITION, a function of the former one and the
arguments."
  (let ((former (fdefinition name)))
    (unwind-protect
         (progn (setf (fdefinition name)
                      (lambda (&rest arguments) (apply definition former arguments)))
                (funcall thunk))
      (setf (fdefinition name) former))))

(define-server-test a-class-that-gets-anothers-name-is-used-by-the-next-request
  (with-request-class (renamed-request (mark :initform "before" :reader renamed-mark-of))
    (serving (:request-class 'renamed-request)
        (("/" (funcall 'renamed-mark-of hunchentoot:*request*)))
      (is (string= "before" (ask-text "/")))
      (with-request-class (other-request (mark :initform "after" :reader renamed-mark-of))
        (setf (find-class 'renamed-request) (find-class 'other-request))
        (is (string= "after" (ask-text "/")))))))

(define-server-test a-slot-added-later-begins-as-the-program-says
  (with-request-class (growing-request (mark :initform "first" :reader growing-mark-of))
    (serving (:request-class 'growing-request)
        (("/" (funcall 'growing-mark-of hunchentoot:*request*))
         ("/added" (funcall 'added-mark-of hunchentoot:*request*)))
      (is (string= "first" (ask-text "/")))
      (eval '(defclass growing-request (hunchentoot:request)
              ((mark :initform "first" :reader growing-mark-of)
               (added :initform "added" :reader added-mark-of))))
      (is (string= "added" (ask-text "/added"))))))

(define-server-test (each-request-counts-where-a-program-serves-the-connection :needs :our-engine)
  (serving (:mixin 'called-once) (("/yo" "Hey!"))
    (with-connection (connection)
      (loop repeat 3 do (is (equal "Hey!" (exchange-text connection "/yo")))))
    (eventually ("all to be counted") (= 3 (figure :served)))))
