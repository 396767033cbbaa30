(in-package #:hunchentoot-recycling-taskmaster-benchmark)

(defparameter *node-modules* "NODE_PATH=/usr/share/nodejs"
  "The setting with which any Node finds the modules of Debian's packages.")

(defun node-with-ws ()
  "The program that runs Node with *NODE-MODULES*; UNAVAILABLE without Node or without ws."
  (find-program "node")
  (when (string= "" (ws-version))
    (unavailable "Node does not find the module ws (Debian's package node-ws)"))
  (find-program "env"))

(defun ws-version ()
  "The version of the module ws; an empty string without one."
  (let ((said (output-of (list "env" *node-modules* (find-program "node")
                               "-p" "require('ws/package.json').version"))))
    (if (uiop:string-prefix-p "node:" said) "" (first-line said))))

(defclass ws (program-rival)
  ()
  (:default-initargs
   :finder #'node-with-ws
   :sets '()
   :services '(:messages)
   :version (lambda () (format nil "~a on Node ~a" (ws-version) (program-version "node" "--version"))))
  (:documentation "WebSockets of Node's ws with some number of processes."))

(defun ws-arguments (processes)
  "What follows the program: a function, as ARGUMENTS of a program rival are, for PROCESSES."
  (lambda (port delay-ms directory)
    (declare (ignore delay-ms directory))
    (list *node-modules* "node" (server-file "websocket.js") port (backlog) processes)))

(define-rival "ws-1" (ws)
  :label "Node's ws, 1 process"
  :color "#7cb342"
  :parameters "messages are sent back as they are, without compression; one process"
  :arguments (ws-arguments 1))

(define-rival "ws-cores" (ws)
  :label "Node's ws, 1 per core"
  :color "#558b2f"
  :parameters "the same in a cluster of one process per core"
  :arguments (ws-arguments (cores)))
