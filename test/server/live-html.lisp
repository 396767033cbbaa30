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

(defun digest-text (text)
  "The SHA-256 digest of TEXT in hexadecimal digits."
  (format nil "~(~{~2,'0X~}~)" (coerce (server::sha-256 (octets text)) 'list)))

(test digests-are-those-of-the-standard
  ;; The examples of FIPS 180-4's companion, and the lengths at which the padding changes.
  (is (equal "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" (digest-text "")))
  (is (equal "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
             (digest-text "abc")))
  (is (equal "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"
             (digest-text "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")))
  (is (equal "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318"
             (digest-text (make-string 55 :initial-element #\a))))
  (is (equal "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb"
             (digest-text (make-string 64 :initial-element #\a)))))

(test the-live-page-lets-nothing-run-but-its-own-script
  (multiple-value-bind (html policy) (live-html)
    (is (eql 0 (search "default-src 'none'; script-src 'sha256-" policy)))
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
