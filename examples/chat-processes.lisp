;;;; The chat in several processes: what one says in any of them, all read.  PostgreSQL carries it.
;;;;
;;;;   createdb chat
;;;;   CHAT_PORT=4241 sbcl --load examples/chat-processes.lisp     and the same for 4242 and 4243
;;;;   haproxy -f deploy/haproxy-processes.cfg
;;;;
;;;; The database is that of PGHOST, PGPORT, PGDATABASE, PGUSER and PGPASSWORD, by default chat on
;;;; this machine.

(require "asdf")

(unless (find-package '#:hunchentoot-recycling-taskmaster.postgresql)
  (asdf:load-asd (merge-pathnames "../hunchentoot-recycling-taskmaster.asd" *load-truename*))
  (asdf:load-system "hunchentoot-recycling-taskmaster/postgresql"))

(defpackage #:hunchentoot-recycling-taskmaster-chat-processes
  (:documentation "The chat, in one of several processes.")
  (:use #:common-lisp)
  (:local-nicknames (#:recycling #:hunchentoot-recycling-taskmaster)
                    (#:postgresql #:hunchentoot-recycling-taskmaster.postgresql))
  (:export #:chat-acceptor #:chat-broker #:serve))

(load (merge-pathnames "chat.lisp" *load-truename*)) ; the page and the WebSocket

(in-package #:hunchentoot-recycling-taskmaster-chat-processes)

(defclass chat-acceptor (recycling:parallel-easy-acceptor)
  ((broker :initarg :broker :reader chat-broker))
  (:default-initargs :document-root nil)
  (:documentation "An acceptor that opens its broker before clients come, and closes it when the
last of them has left."))

(defmethod hunchentoot:start :before ((acceptor chat-acceptor))
  (recycling:open-broker (chat-broker acceptor)))

(defmethod hunchentoot:stop :after ((acceptor chat-acceptor) &key soft)
  (declare (ignore soft))
  (recycling:close-broker (chat-broker acceptor)))

(defun setting (name default)
  (or (uiop:getenv name) default))

(defun make-broker ()
  "A broker on the database that the environment names."
  (make-instance 'postgresql:postgresql-broker
                 :host (setting "PGHOST" "localhost")
                 :port (parse-integer (setting "PGPORT" "5432"))
                 :database (setting "PGDATABASE" "chat")
                 :user (setting "PGUSER" "chat")
                 :password (uiop:getenv "PGPASSWORD")))

;; For HAProxy.
(push (recycling:make-readiness-dispatcher "/ready") hunchentoot:*dispatch-table*)

(defun make-acceptor (&rest initargs)
  "An acceptor of INITARGS for the chat, on whose broker everybody is."
  (let ((broker (make-broker)))
    (setf hunchentoot-recycling-taskmaster-chat::*everybody*
          (recycling:make-channel :name "chat" :broker broker))
    (apply #'make-instance 'chat-acceptor :broker broker initargs)))

(defun serve (&rest initargs)
  "Serves the chat by an acceptor of INITARGS until a signal ends the process."
  (recycling:serve-until-signalled
   (lambda () (apply #'make-acceptor initargs))
   :drain-delay 6                       ; as HAProxy needs it
   :on-start (lambda (acceptor)
               (format t "~&serving ~D~%" (hunchentoot:acceptor-port acceptor))
               (finish-output))))

(when (uiop:getenv "CHAT_PORT")
  (serve :port (parse-integer (uiop:getenv "CHAT_PORT")) :address "127.0.0.1"
         :trusted-proxies '("127.0.0.1")))
