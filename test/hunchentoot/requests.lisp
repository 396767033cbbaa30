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

;;; Parameters

(define-server-test (queries-and-cookies-are-split-as-by-hunchentoot :needs :our-engine)
  (let* ((seed (fresh-seed))
         (dice (make-dice seed))
         (requests (flet ((random-text (&rest pieces)
                            (format nil "~{~A~}" (loop repeat (roll dice 20)
                                                       collect (elt pieces
                                                                    (roll dice (length pieces)))))))
                     (loop repeat (rounds 300)
                           collect (list (random-text "a" "b" "&" "=" "+" "4" "%41" "%C3%A9" "%C3")
                                         (format nil "a~Ab" (random-text "a" "b" "=" ";" "," " "
                                                                         "\"" "%41"))
                                         (format nil "1~A2" (random-text "a" "1" "." "," " ")))))))
    (format t "~&; comparing requests from seed ~D~%" seed)
    (flet ((answers (acceptor-class)
             (let ((*acceptor-class* acceptor-class))
               (quietly
                 (serving () (("/" (shown (hunchentoot:get-parameters*) (hunchentoot:cookies-in*)
                                          (multiple-value-list (hunchentoot:real-remote-addr)))))
                   (loop for (query cookies forwarded) in requests
                         for response = (ask (format nil "/?~A" query)
                                             :headers `(("Cookie" . ,cookies)
                                                        ("X-Forwarded-For" . ,forwarded)))
                         collect (list query cookies forwarded
                                       (if (= 200 (response-status response))
                                           (response-text response)
                                           (response-status response)))))))))
      (loop for ours in (answers *acceptor-class*)
            for expected in (answers 'hunchentoot:easy-acceptor)
            do (is (equal expected ours))))))

(define-server-test the-charset-of-content-rules-the-query-too
  (serving ()
      (("/" (shown (map 'list #'char-code (hunchentoot:get-parameter "a")))))
    (loop for (type . codes) in '(("text/plain; charset=iso-8859-1" 195 169)
                                  ("text/plain" 233)
                                  ("application/json; charset=iso-8859-1" 233))
          do (is (string= (shown codes) (ask-text "/?a=%C3%A9" :content-type type)) type))))

;;; Types of content

(defun random-type (dice)
  "A Content-Type with some parameters, most often well-formed."
  (flet ((one-of (&rest choices)
           (elt choices (roll dice (length choices)))))
    (coerce (format nil "~A~{~A~}~A"
                    (one-of "text/plain" "TEXT/b" "a/b" "text" "text/" "/b" "" "b é")
                    (loop repeat (roll dice 4)
                          collect (format nil "~A~A~A=~A~A" (one-of ";" "; " " ;" "	; ")
                                          (one-of "charset" "a" "boundary") (one-of "" "" " ")
                                          (one-of "" "" " ")
                                          (one-of "utf-8" "x" "--1" "\"quoted; x\"" "\"e\\\"f\""
                                                  "\"\"")))
                    (one-of "" "" "" " " ";" "; " "; a" ";a=" "; a= " ";a=\"b" " b" ",b"))
            'base:text)))

(test charsets-are-what-they-are-to-hunchentoot
  (let* ((seed (fresh-seed))
         (dice (make-dice seed)))
    (format t "~&; looking at types from seed ~D~%" seed)
    (is (null (loop repeat (rounds 20000)
                    for type = (random-type dice)
                    for ours = (http:media-type-parameter "charset" type "text")
                    for hunchentoots = (handler-case
                                           (nth-value 2 (hunchentoot::parse-content-type type))
                                         (error () :malformed))
                    ;; Hunchentoot's ends at what is no token's.
                    unless (or (member hunchentoots (list ours :malformed) :test #'equal)
                               (equal ours (format nil "~A,b" hunchentoots)))
                      collect type)))))

;;; Classes of programs

(defclass named-server () ())

(defmethod hunchentoot::acceptor-server-name ((acceptor named-server))
  (format nil "~A behind" (call-next-method)))

(define-server-test the-servers-name-is-what-its-method-says
  (serving (:mixin 'named-server) (("/" "hello"))
    (let ((name (response-header (ask "/") "server")))
      (is (search "Hunchentoot" name))
      (is (uiop:string-suffix-p name " behind")))))

;;; Replies

(define-server-test (a-reply-has-one-date-and-the-reason-that-is-registered :needs :our-http)
  (serving () (("/" (setf (hunchentoot:header-out :date) "Sun, 06 Nov 1994 08:49:37 GMT"
                          (hunchentoot:return-code*)
                          (parse-integer (hunchentoot:get-parameter "status")))
                    "Hey!"))
    (dolist (status '(200 302 404 413 414 416 500 503))
      (let ((response (ask (format nil "/?status=~D" status))))
        (is (equal (http:reason-phrase status) (response-reason response)))
        (is (= 1 (length (response-header-values response "date"))))
        (is (not (search "1994" (response-header response "date"))))))))

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
                      (write-part stream "half")
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
