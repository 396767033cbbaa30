(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* conformance/easy-handlers :in conformance
  :description "define-easy-handler: types of parameters, where they come from, who serves.")

;;; Parameter types

(hunchentoot:define-easy-handler (typed :uri "/easy/typed")
    (text
     (int :parameter-type 'integer)
     (char :parameter-type 'character)
     (key :parameter-type 'keyword)
     (flag :parameter-type 'boolean)
     (upper :parameter-type #'string-upcase)
     (called :real-name "another-name")
     (default :init-form "by default"))
  (shown text int char key flag upper called default))

(define-server-test simple-parameters-are-converted
  (serving () ()
    (is (string= (shown "t" 42 #\c :some-key t "LOUD" "n" "given")
                 (ask-text (uiop:strcat "/easy/typed?text=t&int=42&char=c&key=some-key&flag=no"
                                        "&upper=loud&another-name=n&default=given"))))))

(define-server-test unconvertible-parameters-are-nil
  (serving () ()
    (is (string= (shown nil nil nil nil nil nil nil "by default")
                 (ask-text "/easy/typed?int=many&char=several")))))

(hunchentoot:define-easy-handler (compound :uri "/easy/compound")
    ((list :parameter-type 'list)
     (numbers :parameter-type '(list integer))
     (array :parameter-type 'array)
     (int-array :parameter-type '(array integer))
     (table :parameter-type 'hash-table)
     (int-table :parameter-type '(hash-table integer keyword eq)))
  (flet ((entries (table)
           (sort (loop for key being the hash-keys of table using (hash-value value)
                       collect (cons key value))
                 #'string< :key #'car)))
    (shown list numbers array int-array
           (entries table) (entries int-table)
           (hash-table-test table) (hash-table-test int-table))))

(define-server-test compound-parameters-collect-their-parts
  (serving () ()
    (is (string= (shown '("a" "b") '(1 2) #(nil "one" "two") #(7)
                        '(("x" . "1") ("y" . "2")) '((:k . 9)) 'equal 'eq)
                 (ask-text (uiop:strcat "/easy/compound?list=a&list=b&numbers=1&numbers=2"
                                        "&array[2]=two&array[1]=one&int-array[0]=7"
                                        "&table{y}=2&table{x}=1&int-table{k}=9"))))))

(define-server-test arrays-and-hash-tables-are-there-even-when-empty
  (serving () ()
    (is (string= (shown nil nil #() #() nil nil 'equal 'eq)
                 (ask-text "/easy/compound")))))

;;; Where parameters come from

(hunchentoot:define-easy-handler (sources :uri "/easy/sources" :default-request-type :post)
    (unsaid
     (from-get :request-type :get)
     (from-both :request-type :both)
     (numbers :parameter-type '(list integer) :request-type :both))
  (shown unsaid from-get from-both numbers))

(define-server-test parameters-come-from-where-the-request-type-says
  (serving () ()
    (is (string= (shown "p" "g" "g" '(1 2))
                 (ask-text "/easy/sources?unsaid=g&from-get=g&from-both=g&numbers=1"
                           :method :post
                           :form '(("unsaid" . "p") ("from-get" . "p")
                                   ("from-both" . "p") ("numbers" . "2")))))
    (is (string= (shown nil nil "p" nil)
                 (ask-text "/easy/sources?unsaid=g" :method :post
                                                    :form '(("from-both" . "p")))))))

(hunchentoot:define-easy-handler (numbers-by-default :uri "/easy/numbers"
                                                     :default-parameter-type 'integer)
    (a (b :parameter-type 'string))
  (shown a b))

(define-server-test a-handler-has-a-default-parameter-type
  (serving () ()
    (is (string= (shown 1 "2") (ask-text "/easy/numbers?a=1&b=2")))))

;;; Who serves

(hunchentoot:define-easy-handler (for-one :uri "/easy/named" :acceptor-names '(easy-one)) ()
  "one")

(hunchentoot:define-easy-handler (for-two :uri "/easy/named" :acceptor-names '(easy-two)) ()
  "two")

(define-server-test acceptor-names-choose-who-serves-a-handler
  (serving (:name 'easy-one) ()
    (is (string= "one" (ask-text "/easy/named"))))
  (serving (:name 'easy-two) ()
    (is (string= "two" (ask-text "/easy/named"))))
  (serving (:name 'easy-three) ()
    (is (= 404 (response-status (ask "/easy/named"))))))
