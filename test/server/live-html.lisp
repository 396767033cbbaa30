(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite live-html :in all
  :description "The live page itself, without a server.")

(in-suite live-html)

(defun live-html ()
  "The live page, a string, and the value of its Content-Security-Policy."
  (multiple-value-bind (status type octets headers) (server:live-page '())
    (is (= 200 status))
    (is (equal "text/html; charset=utf-8" type))
    (values (decode octets) (getf headers :content-security-policy))))

(defun nonce-of (html tag)
  "The nonce of the only TAG, a name, in HTML."
  (first (cl-ppcre:all-matches-as-strings
          (format nil "(?<=<~A nonce=\")[^\"]+(?=\">)" tag) html)))

(test the-live-page-lets-nothing-run-but-its-own-script
  (multiple-value-bind (html policy) (live-html)
    (let ((nonce (nonce-of html "script")))
      (is (< 20 (length nonce)))
      (is (equal nonce (nonce-of html "style")))
      (is (eql 0 (search (format nil "default-src 'none'; script-src 'nonce-~A'; ~
                                      style-src 'nonce-~:*~A';"
                                 nonce)
                         policy)))
      (is (not (equal nonce (nonce-of (live-html) "script")))))
    (is (search "frame-ancestors 'none'" policy))
    (is (not (search "unsafe" policy)))
    (is (= 1 (length (cl-ppcre:all-matches-as-strings "<script" html))))
    (is (= 1 (length (cl-ppcre:all-matches-as-strings "<style" html))))
    (is (not (cl-ppcre:scan " (style|on[a-z]+)=" html)) "The policy forbids these attributes.")))

(test the-live-page-is-one-file-that-asks-no-other-server
  (let ((html (live-html)))
    (is (not (search "//" (cl-ppcre:regex-replace-all "(?m)(^| )// [^\\n]*" html ""))))
    (is (not (cl-ppcre:scan "(?i)<(link|script|img|iframe)[^>]* (src|href)=\"(?!data:)" html)))))

(test the-live-page-puts-text-of-clients-in-as-text-alone
  (let ((html (live-html)))
    (dolist (risk '("innerHTML" "outerHTML" "insertAdjacent" "document.write" "eval(" "Function("
                    "createContextualFragment" "srcdoc"))
      (is (not (search risk html)) "~A" risk))))

(test the-live-page-has-lines-that-people-can-read
  (is (<= (loop for line in (uiop:split-string (live-html) :separator '(#\Newline))
                maximize (length line))
          100)))
