;;;; What the servers have in common that run under a Hunchentoot acceptor.

(defun take-upload ()
  "Answer Hey! to a body that has come."
  (setf (hunchentoot:content-type*) "text/plain")
  (hunchentoot:raw-post-data :force-binary t)
  "Hey!")

(defun upload-dispatcher ()
  "A dispatcher for uploads."
  (hunchentoot:create-prefix-dispatcher "/upload" 'take-upload))

(defun file-dispatcher (files)
  "A dispatcher for the directory FILES."
  (hunchentoot:create-folder-dispatcher-and-handler "/files/" files))

(defun start-with (dispatchers port backlog acceptor-class &rest initargs)
  "Start and return an instance of ACCEPTOR-CLASS, made with INITARGS, that listens on PORT of
127.0.0.1 with BACKLOG and asks DISPATCHERS in their order."
  (setf hunchentoot:*dispatch-table* dispatchers)
  (hunchentoot:start
   (apply #'make-instance acceptor-class
          :address "127.0.0.1" :port port :listen-backlog backlog
          :access-log-destination nil :message-log-destination nil
          initargs)))

(defun serve-for-ever (starter arguments)
  "Call STARTER with ARGUMENTS and never return."
  ;; Nothing is worth an orderly exit here, with hundreds of threads to wait for.
  (sb-sys:enable-interrupt sb-unix:sigterm :default)
  (apply starter arguments)
  (loop (sleep 3600)))
