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

(defparameter *accepted* '("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" nil)
  "The reply to the request in the RFC's example.")

(test keys-are-answered-as-others-do
  (loop for (key answer) in '(("dGhlIHNhbXBsZSBub25jZQ==" "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")
                              ("AAAAAAAAAAAAAAAAAAAAAA==" "ICX+Yqv66kxgM0FcWaLWlFLwTAI=")
                              ("/////////////////////w==" "XXpj4jYzLM2yUE0C7TIgMwTQh2g="))
        do (is (equal answer (websocket:accept-key key))))
  (is (equal *accepted* (answer-to '()))))

(test fields-are-lists-of-words-in-any-case
  (dolist (connection '("upgrade" "keep-alive, Upgrade" "keep-alive,UPGRADE ,x" ",upgrade,"))
    (is (equal *accepted* (answer-to (list :connection connection))) "~S" connection))
  (dolist (upgrade '("WebSocket" "h2c, websocket" "WEBSOCKET"))
    (is (equal *accepted* (answer-to (list :upgrade upgrade))) "~S" upgrade)))

(defparameter *upgrade-required* '(426 :upgrade :connection :sec-websocket-version)
  "The refusal of a request that does not ask for a WebSocket.")

(test who-does-not-ask-for-a-websocket-is-told-how
  (dolist (fields '((:connection nil) (:connection "keep-alive") (:connection "upgrades")
                    (:upgrade nil) (:upgrade "h2c") (:upgrade "websocket/13") (:upgrade "")))
    (is (equal *upgrade-required* (answer-to fields)) "~S" fields)))

(test other-versions-are-told-ours
  (dolist (version '(nil "8" "7" "0" "" "13, 8" "013" "14"))
    (is (equal *upgrade-required* (answer-to (list :sec-websocket-version version))) "~S" version))
  (handler-case (progn (websocket:accept-handshake :get :http/1.1 (constantly "Upgrade, websocket"))
                       (fail "It was accepted."))
    (websocket:handshake-refused (condition)
      (is (equal "13" (cdr (assoc :sec-websocket-version
                                  (websocket:handshake-refused-headers condition))))))))

(test keys-are-16-octets
  (dolist (key '(nil "" "dGhlIHNhbXBsZSBub25jZQ=" "dGhlIHNhbXBsZSBub25jZQ"
                 "dGhlIHNhbXBsZSBub25jZQ==="
                 "dGhlIHNhbXBsZSBub25jZQ==," "dGhlIHNhbXBsZSBub25jZQ--" "dGhlIHNhbXBsZSBub25jZQQ="
                 "dGhlIHNhbXBsZSBub25j\\Q==" "dGhlIHNhbXBsZSBub25j Q=="
                 "dGhlIHNhbXBsZSBub25jZQ==,dGhlIHNhbXBsZSBub25jZQ=="))
    (is (equal '(400) (answer-to (list :sec-websocket-key key))) "~S" key))
  (dolist (key '("AAAAAAAAAAAAAAAAAAAAAA==" "++++++++++//////////+w=="))
    (is (stringp (first (answer-to (list :sec-websocket-key key)))) "~S" key)))

(test other-requests-open-nothing
  (is (equal '(405 :allow) (answer-to '() :method :post)))
  (is (equal '(405 :allow) (answer-to '() :method :head)))
  (is (equal '(405 :allow) (answer-to '() :method "get")))
  (is (equal '(400) (answer-to '() :protocol :http/1.0))))

(test a-request-with-content-opens-nothing
  (is (equal *accepted* (answer-to '(:content-length "0"))))
  (is (equal '(400) (answer-to '(:content-length "4"))))
  (is (equal '(400) (answer-to '(:content-length "10"))))
  (is (equal '(400) (answer-to '(:transfer-encoding "chunked")))))

(test the-server-prefers-among-what-the-client-speaks
  (flet ((chosen (offered &rest ours)
           (second (answer-to (list :sec-websocket-protocol offered) :subprotocols ours))))
    (is (equal "b" (chosen "a, b" "b" "a")))
    (is (equal "a" (chosen "a, b" "a" "b")))
    (is (equal "b" (chosen "a,b,c" "x" "b")))
    (is (equal nil (chosen "a, b" "c")))
    (is (equal nil (chosen "a, b")))
    (is (equal nil (chosen "A" "a")) "Names are compared with case.")
    (is (equal nil (chosen nil "a")))
    (is (equal nil (chosen "" "a")))
    (is (equal "graphql-ws" (chosen " mqtt ,, graphql-ws" "graphql-ws")))))

(test a-subprotocol-that-is-no-token-is-refused
  (dolist (offered '("a b" "a, b/c" "\"a\"" "a;b" #.(string (code-char 233))))
    (is (equal '(400) (answer-to (list :sec-websocket-protocol offered))) "~S" offered)))

(test extensions-are-ignored
  (is (equal *accepted*
             (answer-to '(:sec-websocket-extensions
                          "permessage-deflate; client_max_window_bits")))))

(test the-answer-has-the-fields-that-a-client-checks
  (is (equal '((:upgrade . "websocket") (:connection . "Upgrade") (:sec-websocket-accept . "x="))
             (websocket:handshake-headers "x=" nil)))
  (is (equal '((:upgrade . "websocket") (:connection . "Upgrade") (:sec-websocket-accept . "x=")
               (:sec-websocket-protocol . "chat"))
             (websocket:handshake-headers "x=" "chat"))))
