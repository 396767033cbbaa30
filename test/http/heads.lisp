(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* http-head :in http
  :description "Octets become heads, or are refused with the right status.")

(test-vectors request-lines-follow-the-grammar "request-line"
  "RFC 9112, sections 2.2, 2.3 and 3.")

(test-vectors targets-have-one-of-four-forms "target"
  "RFC 9112, section 3.2.")

(test-vectors header-fields-follow-the-grammar "field"
  "RFC 9112, section 5, and RFC 9110, section 5.")

(test-vectors a-request-is-for-one-valid-host "host"
  "RFC 9112, sections 3.2 and 3.3.")

(test-vectors where-a-request-ends-is-never-in-doubt "framing"
  "RFC 9112, section 6, and RFC 9110, section 8.6.")

(test-vectors connections-persist-as-both-sides-want "connection"
  "RFC 9112, section 9, and RFC 9110, sections 7.6.1, 7.8 and 10.1.1.")

(test-vectors nothing-is-taken-beyond-its-limit "limit"
  "Each limit and its status.")

(test-vectors requests-follow-each-other "pipeline"
  "RFC 9112, section 9.3.2.")

(test-vectors no-request-hides-in-another "smuggling"
  "RFC 9112, sections 11.1 and 11.2.")

(defparameter *vector-files*
  '("request-line" "target" "field" "host" "framing" "connection" "limit" "pipeline"
    "chunked" "smuggling")
  "The names of all files with vectors of requests.")

(defun promised-refusals ()
  "The names of the refusals that vectors promise."
  (loop for file in *vector-files*
        append (loop for vector in (read-vectors file)
                     append (loop for (kind nil refusal) in (getf vector :gives)
                                  when (eq kind :refused)
                                    collect refusal))))

(defparameter *refusals-of-no-head*
  '(:request-timeout :form-too-large :too-many-fields :too-many-files :no-memory :connect-not-served
    :plain-http-to-tls :malformed-proxy-header :no-trusted-proxy
    :busy :handler-timeout)
  "The names of the refusals that only higher layers signal.")

(test each-refusal-has-a-vector
  (is (null (set-exclusive-or (mapcar #'first http::*refusals*)
                              (append *refusals-of-no-head* (promised-refusals))))))

(test each-vector-cites-its-rule
  (dolist (file *vector-files*)
    (dolist (vector (read-vectors file))
      (is (search "RFC " (getf vector :rfc)) "~A cites none." (getf vector :name)))))

(test a-refusal-tells-what-to-answer-and-why
  (handler-case (http:refuse :request-timeout)
    (http:protocol-error (refusal)
      (is (typep refusal 'base:recycling-error))
      (is (= 408 (http:protocol-error-status refusal)))
      (is (not (search "RFC" (http:protocol-error-reason refusal))) "The client gets a sentence.")
      (is (search (http:protocol-error-reason refusal) (princ-to-string refusal))))))

(defun request-octets-of (&rest lines)
  "The octets of LINES, each with its line end."
  (as-octets (input-octets lines)))

(defun head-of (&rest lines)
  "The head in LINES."
  (let ((octets (apply #'request-octets-of lines)))
    (values (http:parse-head octets 0 (length octets)))))

(test names-that-the-program-mentions-are-keywords
  (let ((head (head-of "GET / HTTP/1.1" "Host: a" "x-mentioned-In-A-Test: yes" "")))
    (is (equal '(:x-mentioned-in-a-test . "yes") (second (http:head-headers head))))
    (is (equal "yes" (http:head-header head :x-mentioned-in-a-test)))
    (is (equal "yes" (http:head-header head "X-Mentioned-In-A-Test")))))

(test names-that-nobody-mentions-are-strings
  (let ((head (head-of "GET / HTTP/1.1" "Host: a" "x-unheard-Of-1: yes" "")))
    (is (equal '("X-UNHEARD-OF-1" . "yes") (second (http:head-headers head))))
    (is (equal "yes" (http:head-header head "x-unheard-of-1")))
    (is (null (http:head-header head "x-unheard-of")))))

(test repeated-fields-are-joined-however-they-are-spelled
  (is (equal '((:host . "a") ("X-UNHEARD-OF-1" . "1,2,3") ("X^" . "4") ("X~" . "5"))
             (http:head-headers
              (head-of "GET / HTTP/1.1" "Host: a" "X-Unheard-Of-1: 1" "x-unheard-of-1: 2"
                       "X-UNHEARD-OF-1: 3" "X^^: 4" "X~: 5" "")))))

(test every-known-name-is-found-in-any-case
  (dolist (name http::*header-names*)
    (dolist (sent (list name (string-upcase name) (string-downcase name)))
      (let ((octets (octets sent)))
        (is (string-equal name (http::word-in http::*headers* octets 0 (length octets) 32)))))))

(test what-only-looks-like-a-known-name-is-none
  (dolist (name http::*header-names*)
    (dolist (sent (list (subseq name 1)
                        (subseq name 0 (1- (length name)))
                        (format nil "~A~C" name (code-char 0))
                        (format nil "~A-" name)
                        (format nil "~A~V@{-~}" name 40 nil)))
      (dolist (behind '(0 1 20))        ; of octets there
        (let ((octets (octets (format nil "~A~V@{:~}" sent behind nil))))
          (is (string-equal sent (http::word-in http::*headers* octets 0 (length sent) 32))))))))

(test texts-have-every-character
  (dotimes (size 20)
    (let* ((octets (coerce (loop repeat (+ size 10) for octet from 120 collect octet)
                           'base:octets))
           (wanted (map 'string #'code-char octets)))
      (dotimes (start 8)
        (let ((part (subseq wanted start (+ start size))))
          (is (string= part (http:latin-1-text octets start (+ start size))))
          (is (string= part (http:text-part (coerce wanted 'base:text)
                                             start (+ start size)))))))))

(test a-head-keeps-nothing-of-the-buffer
  (let* ((octets (request-octets-of "GET /a HTTP/1.1" "Host: a" "X-Unheard-Of-2: b" ""))
         (head (http:parse-head octets 0 (length octets)))
         (before (head-plist head)))
    (fill octets 0)
    (is (equal before (head-plist head)))))

(test ranges-outside-the-octets-are-errors
  (let ((octets (request-octets-of "GET / HTTP/1.1")))
    (signals error (http:parse-head octets 0 (1+ (length octets))))
    (signals error (http:parse-head octets 3 2))
    (signals error (http:parse-head octets -1 2))
    (signals error (http:parse-head "GET / HTTP/1.1" 0 2))))

;;; Lists and words, for other fields

(test a-host-and-its-port-are-told-apart
  (loop for (authority . told) in '(("example.org" "example.org" 80)
                                    ("example.org:8080" "example.org" 8080)
                                    ("example.org:" "example.org" 80)
                                    ("example.org:x" "example.org" nil)
                                    ("example.org:000080" "example.org" nil) ; six digits
                                    ("[::1]" "[::1]" 80)
                                    ("[::1]:8080" "[::1]" 8080))
        do (is (equal told (multiple-value-list (http:host-and-port authority 80)))
               "~A" authority)))

(test lists-are-taken-apart
  (is (equal '("a" "" "b c" "d" "") (http:list-elements (format nil " a ,,b c~C, d," #\Tab))))
  (is (equal '("" "") (http:list-elements " , ")))
  (is (equal '("a") (http:list-elements (coerce "a" 'simple-base-string)))))

(test tokens-are-told-from-other-strings
  (dolist (token '("a" "13" "!#$%&'*+-.^_`|~" "permessage-deflate"))
    (is (http:token-p token) "~S" token))
  (dolist (other (list "" " " "a b" "a/b" "\"a\"" "a;b" "a," (string (code-char 233))
                       (string (code-char 321)))) ; 65 in its lowest octet
    (is (not (http:token-p other)) "~S" other)))
