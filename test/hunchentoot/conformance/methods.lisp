(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* conformance/methods :in conformance
  :description "Request methods, and what is special about HEAD.")

(define-server-test every-common-method-reaches-the-handler
  (serving () (("/method" (shown (hunchentoot:request-method*))))
    (dolist (method '(:get :post :put :delete :patch :options :trace))
      (is (string= (shown method) (ask-text "/method" :method method))))))

(define-server-test methods-may-have-bodies
  (serving () (("/length" (shown (length (hunchentoot:raw-post-data :force-binary t)))))
    (dolist (method '(:get :post :put :delete :patch))
      (is (string= "5" (ask-text "/length" :method method :content "12345"))
          "The body of ~A got lost." method))))

(define-server-test an-unknown-method-is-served-or-refused-as-the-release-says
  (serving () (("/method" (shown (hunchentoot:request-method*))))
    (let ((response (ask "/method" :method "PROPFIND")))
      (if (unknown-methods-served-p)
          (is (string= ":PROPFIND" (response-text response)))
          (is (= 400 (response-status response)))))))

;;; HEAD

(define-server-test head-is-answered-with-the-head-of-get
  (serving () (("/" "Twelve bytes"))
    (let ((get (ask "/"))
          (head (ask "/" :method :head)))
      (is (= 200 (response-status head)))
      (is (string= "12" (response-header head "content-length")))
      (is (equal (body-headers get) (body-headers head))))))

(define-server-test head-is-answered-without-a-body-and-the-connection-goes-on
  (serving () (("/" "Twelve bytes"))
    (with-connection (connection)
      (loop repeat 3
            do (exchange connection "/" :method :head)
               (is (string= "Twelve bytes" (exchange-text connection "/")))))))

(define-server-test head-runs-the-handler
  (let ((methods (make-recorder)))
    (serving () (("/" (record methods (hunchentoot:request-method*)) "seen"))
      (ask "/" :method :head)
      (is (equal '(:head) (recorded methods))))))

(define-server-test head-ends-the-handler-in-send-headers
  (let ((steps (make-recorder)))
    (serving () (("/" (record steps :before)
                      (hunchentoot:send-headers)
                      (record steps :after)))
      (with-connection (connection)
        (is (= 200 (response-status (exchange connection "/" :method :head))))
        (is (= 200 (response-status (exchange connection "/" :method :head))))
        (is (equal '(:before :before) (recorded steps)))))))

(define-server-test head-of-a-missing-page-is-404-without-a-body
  (serving () ()
    (with-connection (connection)
      (loop repeat 2
            do (is (= 404 (response-status
                           (exchange connection "/nowhere" :method :head))))))))
