(in-package #:hunchentoot-recycling-taskmaster-test)

;;; RFC 6455, section 4.2: the requests that open a WebSocket, and the replies to them.

(def-suite* websocket-handshake :in websocket
  :description "From a request to 101 or a refusal.")

(defun hex-digits (octets)
  (format nil "~(~{~2,'0X~}~)" (coerce octets 'list)))

(test sha-1-is-what-others-compute
  (loop for (text digest)
          in '(("abc" "a9993e364706816aba3e25717850c26c9cd0d89d")
               ("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"
                "84983e441c3bd26ebaae4aa1f95129e5e54670f1"))
        do (is (equal digest (hex-digits (websocket::sha-1 (encode text))))))
  ;; These sizes are near the ends of blocks.
  (loop for (count digest)
          in '((0 "da39a3ee5e6b4b0d3255bfef95601890afd80709")
               (1 "86f7e437faa5a7fce15d1ddcb9eaeaea377667b8")
               (55 "c1c8bbdc22796e28c0e15163d20899b65621d65a")
               (56 "c2db330f6083854c99d4b5bfb6e8f29f201be699")
               (57 "f08f24908d682555111be7ff6f004e78283d989a")
               (63 "03f09f5b158a7a8cdad920bddc29b81c18a551f5")
               (64 "0098ba824b5c16427bd7a1122a5a442a25ec644d")
               (65 "11655326c708d70319be2610e8a57d9a5b959d3b")
               (119 "ee971065aaa017e0632a8ca6c77bb3bf8b1dfc56")
               (120 "f34c1488385346a55709ba056ddd08280dd4c6d6")
               (128 "ad5b3fdbcb526778c2839d2f151ea753995e26a0")
               (1000 "291e9a6c66994949b57ba5e650361e98fc36b1ba"))
        do (is (equal digest (hex-digits (websocket::sha-1 (payload-octets `(:times ,count "a")))))
               "~D octets" count)))

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

(test the-key-of-the-rfc-is-answered-as-there
  (is (equal "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" (websocket:accept-key "dGhlIHNhbXBsZSBub25jZQ==")))
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
