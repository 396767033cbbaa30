(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* requests :in all
  :description "What Hunchentoot's objects for requests and replies have.")

(define-server-test (options-for-the-server-or-its-root-are-answered :needs :our-reader)
  (flet ((status (target &rest keys)
           (response-status (apply #'ask target :method :options keys))))
    (serving (:document-root nil) (("/own" "Hey!"))
      (is (= 204 (status "*")))
      (is (= 204 (status "/")))
      (is (= 204 (status "/" :version "HTTP/1.0" :host nil)) "So HAProxy checks.")
      (is (= 404 (status "/elsewhere")))
      (is (= 200 (status "/own"))))
    (serving () (("/" (setf (hunchentoot:return-code*) 404) "A page of the program's."))
      (is (= 404 (status "/"))))))

;; Where functions of Hunchentoot's are wrapped, its own acceptors read heads by the same code, so
;; that differential/ would see no mistake in it.
(define-server-test parameters-cookies-and-addresses-are-what-the-head-says
  (serving () (("/" (shown (hunchentoot:get-parameters*) (hunchentoot:cookies-in*)
                           (nth-value 1 (hunchentoot:real-remote-addr)))))
    (loop for (query headers . told) in (read-table "hunchentoot/heads.sexp")
          do (is (string= (apply #'shown told)
                          (ask-text (format nil "/?~A" query) :headers headers))))))

(define-server-test (nothing-interim-comes-after-the-reply-has-begun :needs :our-http)
  (serving () (("/" (setf (hunchentoot:content-length*) 4)
                    (let ((reply (hunchentoot:send-headers))
                          (content (slot-value hunchentoot:*request*
                                               'hunchentoot::content-stream)))
                      (finish-output reply)
                      (loop repeat 4 do (write-byte (read-byte content) reply)))))
    (let ((text (ask-parts "POST / HTTP/1.1" :crlf "Host: localhost" :crlf "Content-Length: 4" :crlf
                           "Expect: 100-continue" :crlf :crlf "body")))
      (is (<= (search "HTTP/1.1 200" text) (search "HTTP/1.1 " text :from-end t)) "~A" text)
      (is (uiop:string-suffix-p text "body")))))

(define-server-test (a-handler-that-aborts-the-stream-of-its-reply-cuts-it :needs :our-http)
  (serving () (("/" (let ((stream (hunchentoot:send-headers)))
                      (write-parts stream "half")
                      (close stream :abort t))))
    (let ((text (ask-parts (request-octets "/"))))
      (is (search "half" text))
      (is (not (search (format nil "~C~C0~2:*~C~C" #\Return #\Newline) text)) "It has no end."))))

(define-server-test (each-request-counts-where-a-program-serves-the-connection :needs :our-engine)
  (serving (:mixin 'looking-within) (("/yo" "Hey!")
                                     ("/never" (recycling:defer-reply (reply) reply)))
    (with-connection (connection)
      (loop repeat 3 do (is (equal "Hey!" (exchange-text connection "/yo"))))
      (send-request connection "/never")
      (eventually ("it to wait") (= 4 (+ (figure :served) (figure :in-progress))))
      (hunchentoot:stop *server*)
      (is (= 1 (figure :rejected)) "It is cut off, without an answer."))))
