(in-package #:hunchentoot-recycling-taskmaster-test)

;;; The form in which tests that start servers or threads are written.

(defun unmet-need (need)
  "Why a test that has NEED cannot run now, as a sentence; NIL when it can.  NEED is :OUR-ENGINE,
:OUR-HTTP, :OUR-CONTENT, :OUR-FILES, :OUR-READER, :PARKING, :OCTETS-IN-FORMS, :SYSTEMD, :TLS,
:TLS-CLIENT, :FULL-DUPLEX-CLIENT, :DESTROYED-ACCEPTS or :NOTICED-LEAVING."
  (ecase need
    (:our-content
     (or (unmet-need :our-engine)
         (unless (platform:functions-can-be-wrapped-p)
           "Hunchentoot's own reading of raw post data does not keep this promise.")))
    (:our-engine
     (unless (ours-p)
       (format nil "~A is known not to keep this promise." *acceptor-class*)))
    (:our-http
     (unless (and (ours-p) (platform:functions-can-be-wrapped-p))
       "Hunchentoot's own taking of content and writing of replies does not keep this promise."))
    (:our-files
     (when (eq :hunchentoot *front*)
       (unmet-need :our-http)))
    (:our-reader
     (unless (ours-p)
       "Hunchentoot's own reading of requests does not keep this promise."))
    (:parking
     (unless (and (ours-p) *parking-p*)
       "Without parking connections keep their threads."))
    (:octets-in-forms
     (when (and (not (ours-p)) (files-of-forms-changed-p))
       "rfc2388 writes files as characters of the default encoding of this Lisp."))
    (:systemd
     (unless (platform:readiness-supported-p)
       "On this Lisp nobody accepts on a socket that systemd hands over."))
    (:tls
     (when (uiop:featurep :hunchentoot-no-ssl)
       "Hunchentoot is built without TLS."))
    (:tls-client
     (unless (uiop:featurep '(:and :sbcl (:not :hunchentoot-no-ssl)))
       "There is no client for TLS on this Lisp that waits for what OpenSSL wants."))
    (:full-duplex-client
     (when (uiop:featurep :abcl)
       "On ABCL nobody can write to a channel while another thread waits for its input."))
    (:destroyed-accepts
     (why-accepting-threads-survive))
    (:noticed-leaving
     (unless (platform:readiness-supported-p)
       "On this Lisp a worker that keeps a connection notices that its client has left when it
sends."))))

(defun call-server-test (needs function)
  "Calls FUNCTION without leaks, or records why it is skipped for want of one of NEEDS."
  (let ((reason (some #'unmet-need needs)))
    (if reason
        (skip "~A" reason)
        (call-without-leaks function))))

(defmacro define-server-test (name-and-options &body body)
  "Defines the FiveAM test NAME, which checks besides what BODY checks that no thread and
no descriptor is left behind.  NAME-AND-OPTIONS is the name, or a list of the name and
:NEEDS with what UNMET-NEED knows, one or a list: without them the test is skipped, with a
reason.  BODY may begin with a documentation string.  The name is also a function that runs BODY."
  (destructuring-bind (name &key needs) (uiop:ensure-list name-and-options)
    (multiple-value-bind (forms declarations documentation)
        (alexandria:parse-body body :documentation t)
      (declare (ignore declarations))
      ;; FiveAM evaluates a test's body when it is loaded, so the work is in a
      ;; function, which is compiled with the file.
      `(progn
         (defun ,name ()
           ,@(and documentation (list documentation))
           (call-server-test ',(uiop:ensure-list needs) (lambda () ,@forms)))
         (fiveam:test ,name
           ,@(and documentation (list documentation))
           (,name))))))
