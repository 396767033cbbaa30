(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; The live page: live.html, which becomes a part of the program when this file is compiled.

(defmacro lines-of-file (name)
  "The lines of the file NAME, beside this one, as a constant list of strings."
  `'(,@(with-open-file (in (merge-pathnames name (or *compile-file-truename* *load-truename*))
                           :external-format :utf-8)
         (loop for line = (read-line in nil)
               while line collect line))))

(defun live-lines ()
  "The lines of the live page, a constant list of strings."
  ;; Not one string: some compilers have no constants of that length.  In a function: outside one,
  ;; ABCL expands the macro when the compiled file is loaded, where there is no live.html.
  (lines-of-file "live.html"))

(defparameter *live-html* (format nil "~{~A~%~}" (live-lines))
  "The live page, a string.")

(defun octets-of-text (text)
  "The string TEXT in UTF-8."
  (let ((output (make-output)))
    (encode-string output text :utf-8)
    (subseq (output-octets output) 0 (output-fill output))))

(defun digest-of-element (html name)
  "The source expression of Content-Security-Policy for the text of the first element NAME in HTML:
its SHA-256 digest in base 64 (Content Security Policy Level 3, section 2.3.1)."
  (let* ((tag (format nil "<~A>" name))
         (start (+ (length tag) (search tag html)))
         (end (search (format nil "</~A>" name) html :start2 start)))
    (format nil "'sha256-~A'"
            (cl-base64:usb8-array-to-base64-string
             (sha-256 (octets-of-text (subseq html start end)))))))

(defparameter *live-headers*
  (list :content-security-policy
        (format nil "default-src 'none'; script-src ~A; style-src ~A; connect-src 'self'; ~
                     img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
                (digest-of-element *live-html* "script")
                (digest-of-element *live-html* "style"))
        :x-content-type-options "nosniff"
        :referrer-policy "no-referrer"
        :cross-origin-resource-policy "same-origin")
  "A plist of headers of the live page.  Nothing but its own script runs in it, and it asks no other
server for anything.")

(defparameter *live-octets* (octets-of-text *live-html*)
  "The live page.")

(defun live-page (servers)
  "The live page: four values, of which the last is a plist of further headers.  SERVERS, a list,
makes no difference: the page asks for what it shows."
  (declare (ignore servers))
  (values 200 "text/html; charset=utf-8" *live-octets* *live-headers*))
