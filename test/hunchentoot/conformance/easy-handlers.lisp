(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* conformance/easy-handlers :in conformance
  :description "define-easy-handler: types of parameters.")

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
