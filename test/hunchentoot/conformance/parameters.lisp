(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* conformance/parameters :in conformance
  :description "GET and POST parameters, as strings.")

;;; GET

(define-server-test get-parameters-are-decoded
  (serving () (("/" (shown (hunchentoot:get-parameter "q"))))
    (is (string= (shown "a b c&d=ä") (ask-text "/?q=a+b%20c%26d%3D%C3%A4")))))

(define-server-test a-missing-parameter-is-nil-and-an-empty-one-is-empty
  (serving () (("/" (shown (hunchentoot:get-parameter "a") (hunchentoot:get-parameter "b")
                           (hunchentoot:get-parameter "c"))))
    (is (string= (shown "" "" nil) (ask-text "/?a=&b")))))

(define-server-test get-parameters-keep-their-order-and-repetitions
  (serving () (("/" (shown (hunchentoot:get-parameters*) (hunchentoot:get-parameter "a"))))
    (is (string= (shown '(("a" . "1") ("b" . "2") ("a" . "3")) "1")
                 (ask-text "/?a=1&b=2&a=3")))))

(define-server-test parameter-names-are-decoded-and-case-sensitive
  (serving () (("/" (shown (hunchentoot:get-parameter "Größe")
                           (hunchentoot:get-parameter "größe"))))
    (is (string= (shown "1" nil) (ask-text "/?Gr%C3%B6%C3%9Fe=1")))))

(define-server-test a-value-may-contain-an-equals-sign
  (serving () (("/" (shown (hunchentoot:get-parameter "a"))))
    (is (string= (shown "b=c") (ask-text "/?a=b=c")))))

;;; POST

(define-server-test post-parameters-are-decoded
  (serving () (("/" (shown (hunchentoot:post-parameters*))))
    (is (string= (shown '(("name" . "Jürgen & Co") ("empty" . "") ("name" . "+")))
                 (ask-text "/" :method :post
                               :form '(("name" . "Jürgen & Co") ("empty" . "")
                                       ("name" . "+")))))))

(define-server-test post-parameters-may-come-in-chunks
  (serving () (("/" (shown (hunchentoot:post-parameters*))))
    (is (string= (shown '(("alpha" . "1") ("beta" . "22")))
                 (ask-text "/" :method :post
                               :content-type "application/x-www-form-urlencoded"
                               :chunks '("alp" "ha=1&b" "eta=2" "2"))))))

(define-server-test post-parameters-need-a-form-content-type
  (serving () (("/" (shown (hunchentoot:post-parameters*))))
    (is (string= "NIL" (ask-text "/" :method :post :content "a=1"
                                     :content-type "text/plain")))
    (is (string= "NIL" (ask-text "/" :method :post :content "a=1")))))

(define-server-test only-listed-methods-have-post-parameters
  (serving () (("/" (shown (hunchentoot:post-parameter "a"))))
    (is (string= "NIL" (ask-text "/" :method :put :form '(("a" . "1")))))
    (with-globals ((hunchentoot:*methods-for-post-parameters* '(:post :put)))
      (is (string= (shown "1") (ask-text "/" :method :put :form '(("a" . "1"))))))))

(define-server-test an-undecodable-form-is-a-bad-request
  (serving () (("/" (shown (hunchentoot:post-parameters*))))
    (is (= 400 (response-status
                (ask "/" :method :post :content "a=%zz"
                         :content-type "application/x-www-form-urlencoded"))))))

;;; Both

(define-server-test parameter-looks-at-get-before-post
  (serving () (("/" (shown (hunchentoot:parameter "a") (hunchentoot:parameter "b")
                           (hunchentoot:parameter "c"))))
    (is (string= (shown "get" "post" nil)
                 (ask-text "/?a=get" :method :post :form '(("a" . "post") ("b" . "post")))))))

(define-server-test parameters-can-be-recomputed-in-another-charset
  (serving () (("/" (hunchentoot:recompute-request-parameters :external-format :latin-1)
                    (shown (hunchentoot:get-parameter "a")
                           (hunchentoot:post-parameter "b"))))
    (is (string= (shown "Ã¤" "ü")
                 (ask-text "/?a=%C3%A4" :method :post :content "b=%FC"
                                        :content-type
                                        "application/x-www-form-urlencoded")))))

(define-server-test the-default-charset-of-parameters-can-be-changed
  (serving () (("/" (shown (hunchentoot:post-parameter "b"))))
    (with-globals ((hunchentoot:*hunchentoot-default-external-format*
                    (flexi-streams:make-external-format :latin-1 :eol-style :lf)))
      ;; The reply is now in Latin-1, too, as its content type tells.
      (is (string= (shown "ü")
                   (ask-text "/" :method :post :content "b=%FC"
                                 :content-type "application/x-www-form-urlencoded"))))))
