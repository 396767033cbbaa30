(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* conformance/redirects :in conformance
  :description "Redirects, and HTTP's basic authorisation.")

(defun location (response)
  "Where RESPONSE sends the client."
  (response-header response "location"))

(define-server-test a-path-is-redirected-to-on-the-host-that-was-asked
  (serving () (("/" (hunchentoot:redirect "/there?a=1")))
    (let ((response (ask "/" :host "example.org:8080")))
      (is (= 302 (response-status response)))
      (is (string= "http://example.org:8080/there?a=1" (location response)))
      (is (search "http://example.org:8080/there?a=1" (response-text response))))))

(define-server-test a-full-url-is-redirected-to-as-it-is
  (serving () (("/" (hunchentoot:redirect "https://else.where/x" :port 99)))
    (is (string= "https://else.where/x" (location (ask "/"))))))

(define-server-test a-redirect-may-change-host-port-protocol-and-code
  (serving () (("/host" (hunchentoot:redirect "/x" :host "example.org"))
               ("/port" (hunchentoot:redirect "/x" :port 8443))
               ("/protocol" (hunchentoot:redirect "/x" :protocol :https))
               ("/code" (hunchentoot:redirect "/x" :code 307)))
    (is (string= "http://example.org/x" (location (ask "/host"))))
    (is (string= "http://localhost:8443/x" (location (ask "/port" :host "localhost:80"))))
    (is (string= "https://localhost/x" (location (ask "/protocol"))))
    (is (= 307 (response-status (ask "/code"))))))

(define-server-test a-redirect-ends-the-handler-and-keeps-the-connection
  (let ((steps (make-recorder)))
    (serving () (("/" (hunchentoot:redirect "/x")
                      (record steps :after)))
      (with-connection (connection)
        (is (= 302 (response-status (exchange connection "/"))))
        (is (= 302 (response-status (exchange connection "/"))))
        (is (null (recorded steps)))))))

(define-server-test a-redirect-carries-the-session-for-clients-without-its-cookie
  (serving-sessions (("/go" (hunchentoot:start-session)
                            (hunchentoot:redirect "/get"))
                     ("/go-without" (hunchentoot:start-session)
                                    (hunchentoot:redirect "/get" :add-session-id nil)))
    (is (search "/get?hunchentoot-session=" (location (ask "/go"))))
    (is (string= "http://localhost/get" (location (ask "/go-without"))))
    (is (string= "http://localhost/get"
                 (location (ask "/go" :headers (cookie-header (new-session))))))))

(define-server-test only-3xx-are-codes-for-a-redirect
  (serving () (("/" (hunchentoot:redirect "/x" :code 200)))
    (is (= 500 (response-status (ask "/"))))))

;;; Authorisation

(defun credentials (encoded)
  "An alist of headers with the Basic credentials ENCODED in base64."
  `(("Authorization" . ,(format nil "Basic ~A" encoded))))

(define-server-test user-and-password-are-decoded
  (serving () (("/" (shown (multiple-value-list (hunchentoot:authorization)))))
    (is (string= (shown '("nanook" "igloo"))
                 (ask-text "/" :headers (credentials "bmFub29rOmlnbG9v"))))
    ;; Only the first colon separates.
    (is (string= (shown '("a" "b:c")) (ask-text "/" :headers (credentials "YTpiOmM="))))))

(define-server-test without-basic-credentials-there-is-no-authorisation
  (serving () (("/" (shown (hunchentoot:authorization))))
    (is (string= "NIL" (ask-text "/")))
    (is (string= "NIL" (ask-text "/" :headers '(("Authorization" . "Bearer token")))))))

(define-server-test require-authorization-asks-for-credentials
  (serving () (("/" (if (equal "nanook" (hunchentoot:authorization))
                        "welcome"
                        (hunchentoot:require-authorization "The \"realm\""))))
    (with-connection (connection)
      (let ((response (exchange connection "/")))
        (is (= 401 (response-status response)))
        (is (string= "Basic realm=\"The \\\"realm\\\"\""
                     (response-header response "www-authenticate")))
        (is (search "could not verify" (response-text response))))
      (is (string= "welcome"
                   (exchange-text connection "/"
                                  :headers (credentials "bmFub29rOmlnbG9v")))))))
