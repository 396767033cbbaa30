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
  "The live page, a string that has NONCE where a nonce is to be.")

(defun live-html (nonce)
  "The live page with NONCE, a string, in each place that is marked for it."
  (with-output-to-string (html)
    (loop for start = 0 then (+ place (length "NONCE"))
          for place = (search "NONCE" *live-html* :start2 start)
          do (write-string *live-html* html :start start :end place)
          while place
          do (write-string nonce html))))

(defun live-page (servers)
  "The live page: four values, of which the last is a plist of further headers.  SERVERS, a list,
makes no difference: the page asks for what it shows.  Nothing but its own script runs in it, which
has a nonce (Content Security Policy Level 3, section 2.3.1), and it asks no other server."
  (declare (ignore servers))
  ;; The state is made anew, or processes of one saved image would have the same nonces.
  (let ((nonce (format nil "~36R" (random (expt 2 128) (make-random-state t)))))
    (multiple-value-call #'values
      (text-page 200 "text/html; charset=utf-8" (live-html nonce))
      (list :content-security-policy
            (format nil "default-src 'none'; script-src 'nonce-~A'; style-src 'nonce-~:*~A'; ~
                         connect-src 'self'; img-src data:; base-uri 'none'; ~
                         form-action 'none'; frame-ancestors 'none'"
                    nonce)
            :x-content-type-options "nosniff"
            :referrer-policy "no-referrer"
            :cross-origin-resource-policy "same-origin"))))
