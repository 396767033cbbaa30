(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* clack/raw-bodies :in clack
  :description "The content of a request as the stream :RAW-BODY.")

(defmacro with-raw-body ((body &rest request) form &body checks)
  "Evaluates CHECKS with VALUE bound to that of FORM, which an application evaluates with BODY, the
content of a REQUEST that is sent in pieces."
  `(let ((value nil) (octets (request-octets "/" :method :post ,@request)))
     (with-clack (environment (let ((,body (getf environment :raw-body)))
                                (unless value
                                  (setf value ,form))
                                (text-response "read")))
       (with-connection (connection)
         (send-in-pieces connection (max 1 (ceiling (length octets) 7)) octets)
         (is (= 200 (response-status (read-response connection))))
         ;; The next request is looked for where it begins.
         (is (= 200 (response-status (exchange connection "/" :method :post :content "last"))))))
     ,@checks))

(define-server-test a-body-gives-characters-in-utf-8
  (let ((text (format nil "a~C~C~%z" (code-char #xE9) (code-char #x3042))))
    (with-raw-body (body :content text)
        (let ((string (make-string (length text))))
          (list (read-sequence string body) string
                (file-position body 0)
                (loop for char across (subseq text 0 3)
                      always (char= char (read-char body))
                      do (unread-char char body)
                      always (char= char (read-char body)))
                (read-line body) (peek-char nil body) (read-line body)
                (read-char body nil :eof)))
      (is (equal (list 5 text t t "" #\z "z" :eof) value))))
  (let* ((count (if (slow-lisp-p) 30000 3000000)) ; of three octets each, in a file
         (text (make-string count :initial-element (code-char #x3042))))
    (with-raw-body (body :content text)
        (let ((string (make-string (1+ count))))
          (list (read-sequence string body) (string= text string :end2 count)))
      (is (equal (list count t) value)))))

(define-server-test a-body-says-that-it-is-made-of-octets
  (with-raw-body (body :content "text") (stream-element-type body)
    (is (equal '(unsigned-byte 8) value))))

(define-server-test a-character-may-come-in-two-chunks
  (with-raw-body (body :chunks (list (octets "a" #(#xE3)) #(#x81 #x82) #(#xE3)))
      (list (read-char body) (char-code (read-char body)) (char-code (read-char body))
            (read-char body nil :eof))
    (is (equal '(#\a #x3042 #xFFFD :eof) value))))
