;;;; The program that the public benchmark HttpArena measures.  Its answers follow the rules of the
;;;; profiles baseline, pipelined, limited-conn, json, upload, static, async-db and echo-ws.
;;;;
;;;;   PORT                where it listens                              (default: 8080)
;;;;   DATA                folder of dataset.json and static/            (default: /data/)
;;;;   DATABASE_URL        postgres://user:password@host:port/database   (none: no rows)
;;;;   DATABASE_MAX_CONN   how many connections PostgreSQL allows        (default: 256)

(defpackage #:recycling-httparena
  (:use #:common-lisp)
  (:local-nicknames (#:recycling #:hunchentoot-recycling-taskmaster))
  (:export #:main))

(in-package #:recycling-httparena)

(defun setting (name default)
  "The environment variable NAME, or DEFAULT if it is missing or empty."
  (or (uiop:getenvp name) default))

(defun data-file (name)
  (merge-pathnames name (uiop:ensure-directory-pathname (setting "DATA" "/data/"))))

(defun answer (type text)
  (setf (hunchentoot:content-type*) type)
  text)

;;; baseline, limited-conn, pipelined and upload

(defun sum-of (&rest numbers)
  (answer "text/plain" (princ-to-string (reduce #'+ (remove nil numbers)))))

(hunchentoot:define-easy-handler (baseline :uri "/baseline11")
    ((a :parameter-type 'integer :request-type :get)
     (b :parameter-type 'integer :request-type :get))
  (sum-of a b (and (eq :post (hunchentoot:request-method*))
                   (parse-integer (hunchentoot:raw-post-data :force-text t)))))

(hunchentoot:define-easy-handler (pipeline :uri "/pipeline") ()
  (answer "text/plain" "ok"))

(hunchentoot:define-easy-handler (upload :uri "/upload") ()
  (loop with stream = (hunchentoot:raw-post-data :want-stream t)
        with buffer = (make-array 65536 :element-type '(unsigned-byte 8))
        for count = (read-sequence buffer stream)
        while (plusp count)
        sum count into octets
        finally (return (sum-of octets))))

;;; json

(defvar *items* #()
  "The objects of dataset.json.")

(defun parse-json (input)
  (yason:parse input :json-arrays-as-vectors t :json-booleans-as-symbols t))

(defun object (&rest names-and-values)
  (alexandria:plist-hash-table names-and-values :test #'equal))

(defun items-answer (items)
  "ITEMS, a vector of objects, and their number."
  (answer "application/json"
          (with-output-to-string (out)
            (yason:encode (object "items" items "count" (length items)) out))))

(defun with-total (item factor)
  (let ((copy (alexandria:copy-hash-table item)))
    (setf (gethash "total" copy) (* factor (gethash "price" item) (gethash "quantity" item)))
    copy))

(defun json ()
  "Answers /json/COUNT?m=FACTOR."
  (let ((count (parse-integer (hunchentoot:script-name*) :start (length "/json/")))
        (factor (parse-integer (or (hunchentoot:get-parameter "m") "1"))))
    (items-answer (map 'vector (lambda (item) (with-total item factor))
                       (subseq *items* 0 (min count (length *items*)))))))

;;; async-db: each thread of the pool has a connection of its own, so there are as many threads as
;;; PostgreSQL allows connections.

(defvar *database* nil
  "What POSTMODERN:WITH-CONNECTION takes, or NIL.")

(defun database-from-url (url)
  "What POSTMODERN:WITH-CONNECTION takes for URL."
  (cl-ppcre:register-groups-bind (user password host port name)
      ("^postgres(?:ql)?://([^:@/]+):([^@/]*)@([^:/]+)(?::(\\d+))?/([^?]+)" url)
    (list name user password host :port (if port (parse-integer port) 5432) :pooled-p t)))

(postmodern:defprepared items-between
    "SELECT id, name, category, price, quantity, active, tags, rating_score, rating_count
     FROM items WHERE price BETWEEN $1 AND $2 LIMIT $3"
    :rows)

(defun item-of-row (row)
  (destructuring-bind (id name category price quantity active tags score count) row
    (object "id" id "name" name "category" category "price" price "quantity" quantity
            "active" (if active 'yason:true 'yason:false)
            "tags" (parse-json tags)
            "rating" (object "score" score "count" count))))

(hunchentoot:define-easy-handler (async-db :uri "/async-db")
    ((min :parameter-type 'integer :init-form 10) (max :parameter-type 'integer :init-form 50)
     (limit :parameter-type 'integer :init-form 50))
  (items-answer
   (handler-case
       (if *database*
           (postmodern:with-connection *database*
             (map 'vector #'item-of-row (items-between min max (max 1 (min limit 50)))))
           #())
     ((or cl-postgres:database-error usocket:socket-error) () #()))))

;;; echo-ws

(hunchentoot:define-easy-handler (echo :uri "/ws") ()
  (recycling:upgrade-to-websocket :on-text #'recycling:send-text
                                  :on-binary #'recycling:send-binary))

;;; The server

(defun make-server ()
  (let ((connections (parse-integer (setting "DATABASE_MAX_CONN" "256"))))
    (setf postmodern:*max-pool-size* connections)
    (make-instance 'recycling:parallel-easy-acceptor
                   :port (parse-integer (setting "PORT" "8080"))
                   :document-root nil :access-log-destination nil
                   :taskmaster (make-instance 'recycling:recycling-taskmaster
                                              :max-thread-count connections))))

(defun main ()
  "Serves until a signal ends it."
  (setf *items* (with-open-file (in (data-file "dataset.json") :external-format :utf-8)
                  (parse-json in))
        *database* (database-from-url (setting "DATABASE_URL" "")))
  (push (hunchentoot:create-prefix-dispatcher "/json/" #'json) hunchentoot:*dispatch-table*)
  (push (hunchentoot:create-folder-dispatcher-and-handler "/static/" (data-file "static/"))
        hunchentoot:*dispatch-table*)
  (recycling:serve-until-signalled #'make-server))
