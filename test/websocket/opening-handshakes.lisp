(in-package #:hunchentoot-recycling-taskmaster-test)

;;; RFC 6455, section 4.2: the requests that open a WebSocket, and the replies to them.

(def-suite* websocket-handshake :in websocket
  :description "From a request to 101 or a refusal.")

(defparameter *opening-fields*
  '(:host "a" :connection "Upgrade" :upgrade "websocket" :sec-websocket-version "13"
    :sec-websocket-key "dGhlIHNhbXBsZSBub25jZQ==")
  "The request in the RFC's example.")

(defun answer-to (fields &key (method :get) (protocol :http/1.1) subprotocols)
  "A list of the values of ACCEPT-HANDSHAKE for a request with FIELDS before the usual ones; or, if
the request is refused, a list of the status and the names of the headers."
  (let ((fields (append fields *opening-fields*)))
    (handler-case (multiple-value-list
                   (websocket:accept-handshake method protocol (lambda (name) (getf fields name))
                                               subprotocols))
      (websocket:handshake-refused (condition)
        (assert (typep condition 'base:recycling-error))
        (assert (search (websocket:handshake-refused-reason condition) (princ-to-string condition)))
        (cons (websocket:handshake-refused-status condition)
              (mapcar #'car (websocket:handshake-refused-headers condition)))))))

(test keys-are-answered-as-others-do
  (loop for (key answer) in '(("dGhlIHNhbXBsZSBub25jZQ==" "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")
                              ("AAAAAAAAAAAAAAAAAAAAAA==" "ICX+Yqv66kxgM0FcWaLWlFLwTAI=")
                              ("/////////////////////w==" "XXpj4jYzLM2yUE0C7TIgMwTQh2g="))
        do (is (equal answer (websocket:accept-key key)))
           (is (equal (list answer nil) (answer-to (list :sec-websocket-key key))))))

(test requests-are-accepted-or-refused
  (loop for (answer field . values)
          in (read-table "websocket/handshakes.sexp")
        do (dolist (value values)
             (is (equal answer (answer-to (list field value))) "~A: ~S" field value)))
  (dolist (method '(:post :head "get"))
    (is (equal '(405 :allow) (answer-to '() :method method))))
  (is (equal '(400) (answer-to '() :protocol :http/1.0))))

(test the-server-prefers-among-what-the-client-speaks
  (loop for (chosen offered . ours) in '(("b" "a, b" "b" "a") ("a" "a, b" "a" "b")
                                         ("b" "a,b,c" "x" "b") (nil "a, b" "c") (nil "a, b")
                                         (nil "A" "a") (nil nil "a") (nil "" "a")
                                         ("graphql-ws" " mqtt ,, graphql-ws" "graphql-ws"))
        do (is (equal chosen (second (answer-to (list :sec-websocket-protocol offered)
                                                :subprotocols ours))))))

(test the-answer-has-the-fields-that-a-client-checks
  (is (equal '((:upgrade . "websocket") (:connection . "Upgrade") (:sec-websocket-accept . "x=")
               (:sec-websocket-protocol . "chat"))
             (websocket:handshake-headers "x=" "chat"))))
