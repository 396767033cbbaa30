(in-package #:hunchentoot-recycling-taskmaster-test)

(defun rival-requests ()
  "What is asked of us and of others, as in rival-requests.sexp, and each path of the application."
  (append
   (read-table "clack/rival-requests.sexp")
   `((:long ,(format nil "/env/~A" (make-string 2000 :initial-element #\x)))
     (:echo-octets "/echo" :method :post :content ,(test-octets 300)
      :content-type "application/octet-stream")
     (:echo-much "/echo" :method :post :content ,(test-octets 300000)
      :content-type "application/octet-stream")
     ,@(loop for path in '("list" "empty-strings" "utf-8" "untyped" "nil" "length" "length-in-text"
                           "headers" "repeated" "integer" "close" "octets" "no-octets" "file"
                           "file-untyped" "file-missing" "201" "204" "204-with-type" "302" "304"
                           "304-with-headers" "404" "500" "delayed" "delayed-nil" "delayed-file"
                           "stream" "stream-of-nothing" "error" "delayed-error" "no-response")
             collect (list (intern (format nil "/~:@(~A~)" path) :keyword) (format nil "/~A" path)))
     ,@(loop for path in '("list" "length" "length-of-nothing" "octets" "file" "nil" "delayed"
                           "stream" "404")
             collect (list (intern (format nil "HEAD/~:@(~A~)" path) :keyword)
                           (format nil "/~A" path) :method :head)))))
