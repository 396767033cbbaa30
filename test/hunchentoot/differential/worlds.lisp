(in-package #:hunchentoot-recycling-taskmaster-test)

;;; The worlds of the differential test: how the acceptor is made and what the global
;;; variables are, while cases are tried.

(defstruct world
  name
  call                                  ; calls a function with the variables set
  initargs                              ; returns those for MAKE-TEST-ACCEPTOR
  clients)                              ; how many cases are tried at a time

(let ((lock (bt:make-lock "session ids")))
  (defmethod hunchentoot:next-session-id :around ((acceptor t))
    "Hunchentoot counts without a lock.  Of cases that are tried at the same time two got the same
number once in a while, and one of them lost its session."
    (bt:with-lock-held (lock)
      (call-next-method))))

(defvar *worlds* '()
  "The worlds, the last defined first.")

(defmacro define-world ((name &key (clients 8)) documentation (&rest bindings) &rest initargs)
  "Defines the world NAME, a keyword, with variables set as in WITH-GLOBALS, an acceptor made
of INITARGS, and so many CLIENTS at a time."
  (declare (ignore documentation))
  `(push (make-world :name ,name
                     :call (lambda (function) (with-globals ,bindings (funcall function)))
                     :initargs (lambda () (list ,@initargs))
                     :clients ,clients)
         *worlds*))

(defun find-world (name)
  (or (find name *worlds* :key #'world-name)
      (error "There is no world called ~S." name)))

(define-world (:plain) "As an acceptor is by default." ()
  :mixin 'observed)

(define-world (:unobserved) "Without any method of the program." ())

(define-world (:errors-shown) "Error pages that tell the error."
    ((hunchentoot:*show-lisp-errors-p* t)
     (hunchentoot:*show-lisp-backtraces-p* nil))
  :mixin 'observed)

(define-world (:backtraces-shown) "Error pages with a backtrace."
    ((hunchentoot:*show-lisp-errors-p* t)
     (hunchentoot:*show-lisp-backtraces-p* t)))

(define-world (:templates) "Error pages from files, and a document root."
    ((hunchentoot:*show-lisp-errors-p* t)
     (hunchentoot:*show-lisp-backtraces-p* nil))
  :mixin 'observed
  :document-root *documents*
  :error-template-directory (merge-pathnames "errors/" *documents*))

(define-world (:headers-traced :clients 1) "With a header stream, which all share."
    ((*trace* (make-string-output-stream))
     (hunchentoot:*header-stream* *trace*))
  :mixin 'observed)

(define-world (:sessions-in-cookies-only) "Without rewriting of URLs."
    ((hunchentoot:*rewrite-for-session-urls* nil))
  :mixin 'observed)

(define-world (:sessions-bound) "Sessions that hold for one address only."
    ((hunchentoot:*use-remote-addr-for-sessions* t)
     (hunchentoot:*use-user-agent-for-sessions* nil))
  :mixin 'observed)

(define-world (:logs-written :clients 1) "The logs as Hunchentoot writes them, to streams."
    ((*trace* (make-string-output-stream))
     (*access-text* (make-string-output-stream))
     (hunchentoot:*log-lisp-backtraces-p* nil))
  :access-log-destination *access-text* :message-log-destination *trace*)

(define-world (:latin-1) "A program that speaks ISO 8859-1."
    ((hunchentoot:*hunchentoot-default-external-format*
      (flexi-streams:make-external-format :latin-1 :eol-style :lf)))
  :mixin 'observed)

(define-world (:put-forms) "A program that takes forms by other methods, and other defaults."
    ((hunchentoot:*methods-for-post-parameters* '(:post :put :patch))
     (hunchentoot:*default-content-type* "text/x-default")
     (hunchentoot:*content-types-for-url-rewrite* '("text/x-default")))
  :mixin 'observed)

(define-world (:one-request-each) "Without persistent connections." ()
  :mixin 'observed :persistent-connections-p nil)

(define-world (:no-chunks-out) "Without chunked output." ()
  :mixin 'observed :output-chunking-p nil)

(define-world (:no-chunks-in) "Without chunked input." ()
  :mixin 'observed :input-chunking-p nil)

(define-world (:impatient :clients 32) "With time limits that a test can wait out." ()
  :mixin 'observed :read-timeout 1 :write-timeout 1)

(define-world (:no-timeouts) "Without time limits." ()
  :mixin 'observed :read-timeout nil :write-timeout nil)

;;; A program of its own mind

(defclass differing-request (hunchentoot:request)
  ((seen :initform '() :accessor seen))
  (:documentation "A request with methods around everything."))

(defclass differing-reply (hunchentoot:reply) ()
  (:documentation "A reply with defaults of its own."))

(defclass differing (observed) ()
  (:documentation "A mixin for an acceptor that overrides what can be overridden."))

(defmethod initialize-instance :after ((reply differing-reply) &key)
  (setf (hunchentoot:header-out :x-default reply) "by default"
        (hunchentoot:header-out :server reply) nil
        (hunchentoot:content-type* reply) "text/plain"
        (hunchentoot:reply-external-format reply)
        (flexi-streams:make-external-format :latin-1 :eol-style :crlf)))

(defmethod initialize-instance :after ((request differing-request) &key)
  (push (hunchentoot:script-name request) (seen request)))

(defmethod hunchentoot:process-request :around ((request differing-request))
  (push :around (seen request))
  (call-next-method)
  (hunchentoot:log-message* :info "~S" (list (seen request) (hunchentoot:return-code*)
                                             (hunchentoot:content-length*)
                                             (hunchentoot:content-type*))))

(defmethod hunchentoot:process-request :before ((request differing-request))
  (push :before (seen request))
  (setf (hunchentoot:header-out :x-before) "set before"))

(defmethod hunchentoot:process-request :after ((request differing-request))
  (push :after (seen request)))

(defmethod hunchentoot:handle-request :around ((acceptor differing) request)
  (push :handle (seen request))
  (setf (hunchentoot:header-out :x-handle) "set around")
  (unwind-protect (call-next-method)
    (push :handled (seen request))))

(defmethod hunchentoot:acceptor-dispatch-request ((acceptor differing) request)
  (push :dispatch (seen request))
  (if (string= "/own" (hunchentoot:script-name request))
      (shown (seen request))
      (call-next-method)))

(defmethod hunchentoot:acceptor-status-message ((acceptor differing) status &key error)
  (case status
    (404 (format nil "nothing at ~A" (hunchentoot:script-name*)))
    (410 (error "No message for this."))
    (500 (format nil "failed: ~A" error))
    (t (call-next-method))))

(defmethod hunchentoot:header-in (name (request differing-request))
  (if (eq name :user-agent)
      "always the same"
      (call-next-method)))

(define-world (:subclasses) "A program that overrides what it can." ()
  :mixin 'differing :request-class 'differing-request :reply-class 'differing-reply)

(defclass extended-request (hunchentoot:request)
  ((extra :initform (list 1 2) :accessor extra)
   (given :initarg :given :accessor given)
   (hunchentoot:session :initform :overridden))
  (:default-initargs :given "by default")
  (:documentation "A request with more slots, and no methods."))

(defclass extended-reply (hunchentoot:reply)
  ((extra :initform (list 3 4) :accessor extra)
   (hunchentoot:headers-out :initform (list (cons :x-initial "set"))))
  (:documentation "A reply with more slots and other initial values, and no methods."))

(define-world (:extended) "A program that adds slots." ()
  :mixin 'observed :request-class 'extended-request :reply-class 'extended-reply)

(define-page "/extended"
  (if (typep hunchentoot:*request* 'extended-request)
      (shown (push 0 (extra hunchentoot:*request*)) (given hunchentoot:*request*)
             (push 0 (extra hunchentoot:*reply*)) (hunchentoot:session hunchentoot:*request*))
      "not extended"))

(defclass stream-wrapping (observed) ()
  (:documentation "A mixin for an acceptor that puts a stream of its own around the connection."))

(defmethod hunchentoot:initialize-connection-stream ((acceptor stream-wrapping) stream)
  (declare (ignore stream))
  (flexi-streams:make-flexi-stream (call-next-method)))

(defmethod hunchentoot::acceptor-server-name ((acceptor stream-wrapping))
  (format nil "~A behind" (call-next-method)))

(define-world (:streams-wrapped) "A program with a stream, and a name, of its own." ()
  :mixin 'stream-wrapping)

;;; The servers

(defclass said-secure (hunchentoot:easy-acceptor) ()
  (:documentation "Hunchentoot's acceptor, which says that it speaks TLS, and does not."))

(defmethod hunchentoot:acceptor-ssl-p ((acceptor said-secure))
  t)

(defstruct contestant
  "A server whose answers are compared."
  name class initargs
  (tls-p nil)                           ; whether it is asked over TLS
  ;; The class of Hunchentoot's that it is compared with, and what entries of the table call its
  ;; mode: :PARKED or :PORTABLE.
  reference mode)

(defun compared-with (reference mode class tls-p)
  "A contestant of CLASS in MODE, asked over TLS if TLS-P, to be compared with the class REFERENCE."
  (make-contestant :name (if tls-p (list :tls mode) mode)
                   :class class :initargs (list :parking (eq mode :parked))
                   :tls-p tls-p :reference reference :mode mode))

(defparameter *contestants*
  (loop for mode in '(:parked :portable)
        collect (compared-with 'hunchentoot:easy-acceptor mode
                               'recycling:parallel-easy-acceptor nil)
        ;; Over TLS Hunchentoot's acceptor loses answers, and waits for what has come.  What it
        ;; answers is the same, save where it says by which scheme it was asked.
        collect (compared-with 'said-secure mode 'recycling:parallel-easy-ssl-acceptor t))
  "All that there are.")

(defun contestants ()
  "Those that can be told apart, and asked, here."
  (remove-if-not (lambda (contestant)
                   (and (or (platform:readiness-supported-p)
                            (eq :portable (contestant-mode contestant)))
                        (not (and (contestant-tls-p contestant) (unmet-need :tls-client)))))
                 *contestants*))

(defun reference-contestant (class)
  "The contestant of CLASS, one of Hunchentoot's, that others are compared with."
  (make-contestant :name :stock :class class :initargs '()))

(defvar *certificate-initargs* '()
  "Those that name key and certificate.")

(defparameter *names-mentioned* (list :|| :m-search)
  "Keywords that some cases have to find, whatever ran before them.")

(defparameter *names-made-up* '("X-NEVER-HEARD-OF" "NEVER-HEARD-OF")
  "Names of headers and methods in the cases, which Hunchentoot interns.")

(defun forget-names ()
  "Makes a new start, as after loading a program that does not mention *NAMES-MADE-UP*."
  (dolist (name *names-made-up*)
    (let ((symbol (find-symbol name '#:keyword)))
      (when symbol (unintern symbol '#:keyword)))))

(defun serve-cases (world initargs cases)
  "Normalised observations of CASES at a server in WORLD, made of INITARGS too."
  (let* ((acceptor (apply #'make-test-acceptor
                          (append initargs (funcall (world-initargs world)))))
         (*server* (hunchentoot:start acceptor)))
    (unwind-protect
         (let ((observations (observe-all cases (world-clients world))))
           (stop-if-started acceptor)
           (add-access-text (first (last observations)))
           (loop for observation in observations
                 collect (normalised observation (hunchentoot:acceptor-port acceptor))))
      (stop-if-started acceptor))))

(defun observe-in-world (world contestant cases)
  "Normalised observations of CASES at a server of CONTESTANT in WORLD."
  (let ((*acceptor-class* (contestant-class contestant))
        (*acceptor-initargs* (constantly '()))
        (*make-connection* (if (contestant-tls-p contestant) 'encrypted *make-connection*)))
    (forget-names)
    (funcall (world-call world)
             (lambda ()
               (with-globals ((hunchentoot:*dispatch-table* (page-dispatchers)))
                 (serve-cases world
                              (append (and (contestant-tls-p contestant) *certificate-initargs*)
                                      (contestant-initargs contestant))
                              cases))))))
