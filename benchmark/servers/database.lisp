;;;; Work that needs PostgreSQL.  Loaded where there is one.

(in-package #:work)

(defvar *connection* nil)

(defun use-database (socket-folder)
  "Connects to the database whose Unix socket is in SOCKET-FOLDER.  A connection for each thread is
kept in a pool."
  (setf cl-postgres:*unix-socket-dir* socket-folder
        postmodern:*max-pool-size* nil
        *connection* (list "bench" "bench" "" :unix :pooled-p t)))

(postmodern:defprepared row-of "SELECT id, name, price FROM items WHERE id = $1" :row)
(postmodern:defprepared all-fortunes "SELECT id, message FROM fortunes" :rows)

(defun row-json (id)
  "The row ID in JSON."
  (destructuring-bind (id name price) (postmodern:with-connection *connection* (row-of id))
    (json (object "id" id "name" name "price" price))))

(defun fortunes-html ()
  "The twelve fortunes and one more, sorted, as a page."
  (let ((rows (postmodern:with-connection *connection* (all-fortunes))))
    (push (list 0 "Additional fortune added at request time.") rows)
    (cl-who:with-html-output-to-string (stream nil :prologue "<!DOCTYPE html>")
      (:html (:head (:title "Fortunes"))
             (:body (:table (:tr (:th "id") (:th "message"))
                            (loop for (id message) in (sort rows #'string< :key #'second)
                                  do (cl-who:htm (:tr (:td (cl-who:str id))
                                                      (:td (cl-who:esc message)))))))))))
