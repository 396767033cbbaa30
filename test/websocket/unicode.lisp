(in-package #:hunchentoot-recycling-taskmaster-test)

;;; UTF-8 against references that compute without a table.

(def-suite* websocket-utf-8 :in websocket
  :description "Every character arrives, and what is no text fails.")

(defun character-octets (code)
  "The octets of the character of CODE; for an invalid code, the octets by the same rule."
  (as-octets
   (cond ((< code #x80) (list code))
         ((< code #x800) (list (+ #xC0 (ash code -6)) (+ #x80 (mod code 64))))
         ((< code #x10000) (list (+ #xE0 (ash code -12)) (+ #x80 (mod (ash code -6) 64))
                                 (+ #x80 (mod code 64))))
         (t (list (+ #xF0 (ash code -18)) (+ #x80 (mod (ash code -12) 64))
                  (+ #x80 (mod (ash code -6) 64)) (+ #x80 (mod code 64)))))))

(defun octets-text (octets)
  "The string that a decoder makes of OCTETS, in UTF-8."
  (let ((frame (make-frame 1 octets :mask nil)))
    (nth-value 2 (websocket:decode-message (websocket:make-message-decoder :role :client)
                                           frame 0 (length frame)))))

(defparameter *utf-8-grammar*
  (cl-ppcre:create-scanner
   ;; RFC 3629, section 4, of octets as characters
   (format nil "^(?:[\\x00-\\x7F]|[\\xC2-\\xDF][\\x80-\\xBF]|\\xE0[\\xA0-\\xBF][\\x80-\\xBF]~
                |[\\xE1-\\xEC\\xEE\\xEF][\\x80-\\xBF]{2}|\\xED[\\x80-\\x9F][\\x80-\\xBF]~
                |\\xF0[\\x90-\\xBF][\\x80-\\xBF]{2}|[\\xF1-\\xF3][\\x80-\\xBF]{3}~
                |\\xF4[\\x80-\\x8F][\\x80-\\xBF]{2})*\\z")))

(defun text-with-odd-octets (dice)
  "Octets of up to ten characters, often of the first or last one of a range, and often with an
octet that no text has there."
  (let ((octets (apply #'octets
                       (loop repeat (1+ (roll dice 10))
                             collect (character-octets (if (zerop (roll dice 2))
                                                           (pick dice #(0 #x7F #x80 #x7FF #x800
                                                                        #xD7FF #xD800 #xDFFF #xE000
                                                                        #xFFFF #x10000 #x10FFFF
                                                                        #x110000 #xFFF #x1000))
                                                           (* 17 (roll dice 65536))))))))
    (when (zerop (roll dice 2))
      (setf (aref octets (roll dice (length octets)))
            (pick dice #(0 #x7F #x80 #x8F #x90 #x9F #xA0 #xBF #xC0 #xC1 #xC2 #xDF #xE0 #xE1 #xEC
                         #xED #xEE #xEF #xF0 #xF1 #xF3 #xF4 #xF5 #xF7 #xF8 #xFF))))
    octets))

(test what-is-no-text-fails
  (let ((dice (seeded-dice)) (wrong '()))
    (dotimes (i (if (slow-lisp-p) 1000 30000))
      (let ((octets (text-with-odd-octets dice)))
        (unless (equalp (events-of-whole (make-frame 1 octets))
                        (if (cl-ppcre:scan *utf-8-grammar* (decode octets :latin-1))
                            (list (list :text octets))
                            '((:failure 1007))))
          (push octets wrong))))
    (is (null wrong) "~S" wrong)))
