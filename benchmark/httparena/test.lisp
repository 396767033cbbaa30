(in-package #:recycling-benchmark-test)

;;;; The entry in HttpArena, by the requests with which its rules judge one.

(def-suite httparena :in benchmark)
(in-suite httparena)

(defparameter *items-json*
  "[{\"id\": 1, \"name\": \"Lamp\", \"price\": 328, \"quantity\": 15, \"active\": true,
     \"tags\": [\"new\"], \"rating\": {\"score\": 48, \"count\": 127}},
    {\"id\": 2, \"name\": \"Ladder\", \"price\": 2, \"quantity\": 3, \"active\": false,
     \"tags\": [], \"rating\": {\"score\": 1, \"count\": 2}}]"
  "A dataset.json of two items.")

(defun write-file (content folder name)
  (with-open-file (out (ensure-directories-exist (merge-pathnames name folder))
                       :direction :output :if-exists :supersede)
    (write-string content out)))

(defun arena-command (port folder database-port)
  "The command of a Lisp that serves the entry on PORT, with the data in FOLDER."
  (list "env" (format nil "PORT=~d" port)
        (format nil "DATA=~a" (uiop:native-namestring folder))
        (format nil "DATABASE_URL=postgres://bench:bench@127.0.0.1:~d/bench" database-port)
        "DATABASE_MAX_CONN=8"
        sb-ext:*runtime-pathname* "--noinform" "--non-interactive"
        "--eval" "(require :asdf)"
        "--eval" (format nil "(push ~s asdf:*central-registry*)" (uiop:native-namestring *root*))
        "--eval" "(mapc #'asdf:load-system '(:hunchentoot-recycling-taskmaster :postmodern :yason))"
        "--load" (source-file "httparena/server.lisp")
        "--eval" "(recycling-httparena:main)"))

(defun call-with-arena-server (function)
  "Calls FUNCTION with the port of a server that has the data and the rows of this test."
  (let ((folder (built-file "httparena-test/"))
        (port (free-port))
        (database-port (free-port)))
    (write-file *items-json* folder "dataset.json")
    (write-file "body { margin: 0 }" folder "static/reset.css")
    (write-file "let x = 1" folder "static/app.js")
    (let ((database (start-postgres :port database-port :addresses "127.0.0.1"
                                    :rows "httparena/rows.sql")))
      (unwind-protect
           (let ((server (launch (arena-command port folder database-port)
                                 :output (built-file "httparena.log"))))
             (unwind-protect
                  (if (wait-until (lambda () (connects-p port)) 300)
                      (funcall function port)
                      (fail "It did not start."))
               (end-child server)))
        (stop-postgres database)))))

(defun content-of (answer)
  (let ((end (search (concatenate 'string *line-end* *line-end*) answer)))
    (and end (subseq answer (+ 4 end)))))

(defun check-answer (port expected path &rest arguments)
  "Checks that the answer to PATH, asked for with ARGUMENTS as ASK takes them, is EXPECTED: its
whole content; or a list of parts of the whole answer."
  (let ((answer (apply #'ask port path arguments)))
    (if (stringp expected)
        (is (equal expected (content-of answer)) "~a: ~s" path answer)
        (dolist (part expected)
          (is (search part answer) "~a: ~a is not in ~s" path part answer)))))

(defun ask-in-pieces (port &rest pieces)
  "The answer to a request that comes in PIECES, strings, with pauses between them."
  (usocket:with-client-socket (socket stream "127.0.0.1" port :element-type '(unsigned-byte 8))
    (dolist (piece pieces)
      (write-sequence (map '(vector (unsigned-byte 8)) #'char-code piece) stream)
      (finish-output stream)
      (sleep 0.03))
    (map 'string #'code-char
         (loop for octet = (read-byte stream nil) while octet collect octet))))

(defun lines (&rest lines)
  (format nil "~{~a~a~}" (loop for line in lines collect line collect *line-end*)))

(test httparena-gets-the-answers-that-its-rules-ask-for
  (call-with-arena-server
   (lambda (port)
     (flet ((gives (expected path &rest arguments)
              (apply #'check-answer port expected path arguments)))
       ;; baseline, limited-conn
       (gives "55" "/baseline11?a=13&b=42")
       (gives "1110" "/baseline11?a=987&b=123")
       (gives "75" "/baseline11?a=13&b=42" :content "20" :fields '("Content-Type: text/plain"))
       (gives "955" "/baseline11?a=13&b=42" :content "900" :fields '("Content-Type: text/plain"))
       (is (equal "75" (content-of (ask-in-pieces port (lines "POST /baseline11?a=13&b=42 HTTP/1.1"
                                                              "Host: x" "Connection: close"
                                                              "Transfer-Encoding: chunked" ""
                                                              "2" "20" "0" "")))))
       (is (equal "55" (content-of (ask-in-pieces port "GET /baseli"
                                                  (lines "ne11?a=13&b=42 HTTP/1.1" "Host: x"
                                                         "Connection: close" "")))))
       (is (equal "75" (content-of (ask-in-pieces port (lines "POST /baseline11?a=13&b=42 HTTP/1.1"
                                                              "Host: x" "Connection: close"
                                                              "Content-Length: 2" "")
                                                  "2" "0"))))
       ;; pipelined
       (gives "ok" "/pipeline")
       (gives '("HTTP/1.1 200 OK" "Content-Type: text/plain") "/pipeline")
       ;; json
       (gives '("Content-Type: application/json" "\"count\":1" "\"total\":14760" "\"active\":true"
                "\"tags\":[\"new\"]" "\"rating\":{")
              "/json/1?m=3")
       (gives '("\"count\":2" "\"total\":12" "\"active\":false" "\"tags\":[]") "/json/50?m=2")
       ;; upload
       (gives "17" "/upload" :content "Hello, HttpArena!"
                             :fields '("Content-Type: application/octet-stream"))
       (gives "500000" "/upload" :content (make-string 500000 :initial-element #\x))
       ;; static
       (gives '("Content-Type: text/css" "body { margin: 0 }") "/static/reset.css")
       (gives '("javascript" "let x = 1") "/static/app.js")
       (gives '("HTTP/1.1 404") "/static/nonexistent.txt")
       ;; async-db
       (gives '("Content-Type: application/json" "\"count\":7" "\"active\":true" "\"rating\":{"
                "\"tags\":[\"fast\",\"new\"]")
              "/async-db?min=5&max=80&limit=7")
       (gives '("\"count\":50") "/async-db?min=10&max=400")
       (gives "{\"items\":[],\"count\":0}" "/async-db?min=9999&max=9999&limit=50")
       ;; echo-ws
       (gives '("HTTP/1.1 4") "/ws")
       (gives '("HTTP/1.1 101" "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=") "/ws"
              :fields '("Upgrade: websocket" "Connection: Upgrade" "Sec-WebSocket-Version: 13"
                        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="))))))
