(in-package #:hunchentoot-recycling-taskmaster-benchmark)

;;;; A rival is a server that can be measured: what it needs, how it is started,
;;;; how it is drawn.  Each has a file in rivals/; their order there is theirs in
;;;; every table and chart.

(defvar *rivals* '()
  "All rivals, in the order in which tables and charts show them.")

(defclass rival ()
  ((name :initarg :name :reader rival-name :type string
         :documentation "What it is called on the command line and in tables of tabs.")
   (label :initarg :label :reader rival-label :type string
          :documentation "What it is called in charts and reports.")
   (family :initarg :family :initform :other :reader rival-family
           :type (member :ours :part :limit :other)
           :documentation "Whether it is ours, a part of ours, the limit, or somebody to
compare with.")
   (color :initarg :color :reader rival-color :type string
          :documentation "Its colour in all charts, as #rrggbb.")
   (parameters :initarg :parameters :initform "defaults" :reader rival-parameters :type string
               :documentation "How it is set up, for the report.")
   (note :initarg :note :initform nil :reader rival-note :type (or null string)
         :documentation "What the reader of its figures has to know.")
   (tls :initarg :tls :initform nil :reader rival-tls
        :documentation "What its class has to know to set it up for TLS; NIL where it is not.")
   (lacks :initarg :lacks :initform '() :reader rival-lacks :type list
          :documentation "What it can't do, a property list from :WAIT (before it answers),
:FILES or :UPLOADS to a sentence that says why.")
   (caveats :initarg :caveats :initform '() :reader rival-caveats :type list
            :documentation "What its figures do not mean, a property list from :WAIT (where it
waits before it answers), :SHORT-WAIT (where it does so for few milliseconds), :FILES or :UPLOADS to
a sentence that says why.")
   (standard-workloads :initarg :standard-workloads :initform '() :reader rival-standard-workloads
                       :type list
                       :documentation "The names of the workloads under which it is measured in the
standard run; all, if that is NIL.")
   (services :initarg :services :initform '(:plain) :reader rival-services :type list
             :documentation "What kinds of service it is set up for, of *SERVICES*.")
   (sets :initarg :sets :initform '(:standard) :reader rival-sets :type list
         :documentation "In which runs it takes part that don't name their servers: some of
:QUICK and :STANDARD.  All take part in the full run."))
  (:documentation "A server that can be measured."))

(defparameter *services*
  '((:plain . "plain requests")
    (:later . "late answers: GET /later?ms=M&n=N is answered with N after M milliseconds")
    (:many . "the same by several processes, for more clients than one may have descriptors")
    (:events . "events: GET /events is answered with a stream of those that events.c wants")
    (:messages . "WebSockets: /echo is one that sends back what it gets"))
  "The kinds of service, and what a server does that is set up for one.  All answer GET /yo.")

(defgeneric prepare (rival)
  (:documentation "Find or build all that RIVAL needs.  UNAVAILABLE if it can't be had."))

(defun backlog ()
  "How many connections may wait in the listen queue of a server: as many as the system lets
them.  All get the same, as far as they can be told."
  (or (parse-integer (or (file-line "/proc/sys/net/core/somaxconn") "") :junk-allowed t)
      128))

(defparameter *slow-ms* 100
  "How long the handler of /slow waits, in milliseconds.")

(defgeneric command (rival port delay-ms directory certificate)
  (:documentation "The words of the command that runs RIVAL in the foreground, listening
on PORT of 127.0.0.1.  But for what it lacks, it answers
  GET /yo          with \"Hey!\", after DELAY-MS milliseconds,
  GET /slow        with the same after *SLOW-MS*,
  GET /files/NAME  with that file of the SERVED-FILES,
  POST /upload     with \"Hey!\", when its handler has got the whole body as octets;
of that GET /yo only if its RIVAL-SERVICES lack :PLAIN, and what *SERVICES* says of the others.
DIRECTORY is a fresh one for files that RIVAL may need.  With CERTIFICATE, a directory with the
CERTIFICATE-FILES, it does so over TLS 1.3, and 1.2 where it likes, and gives tickets for resumption
as it does by itself; that is asked only of those with a RIVAL-TLS.  Its listen queue is one of
(BACKLOG).  PREPARE has been called."))

(defgeneric version (rival)
  (:documentation "The version of RIVAL, a string.  PREPARE has been called."))

(defgeneric libraries (rival)
  (:documentation "The libraries that RIVAL is made of directly, with their versions:
strings.  PREPARE has been called.")
  (:method ((rival rival))
    '()))

(defmacro define-rival (name (class) &rest initargs)
  "Add to *RIVALS* an instance of CLASS with INITARGS; one of the same NAME is
replaced where it stands."
  `(add-rival (make-instance ',class :name ,name ,@initargs)))

(defun add-rival (rival)
  "Add RIVAL to *RIVALS* or put it in the place of its namesake."
  (let ((place (member (rival-name rival) *rivals* :key #'rival-name :test #'string=)))
    (if place
        (setf (first place) rival)
        (setf *rivals* (append *rivals* (list rival))))
    rival))

(defun find-rival (name)
  "The rival called NAME, or NIL."
  (find name *rivals* :key #'rival-name :test #'string=))

;;; A result may name rivals that are known no more.

(defun label-of (name)
  "The label of the rival called NAME, or NAME."
  (let ((rival (find-rival name)))
    (if rival (rival-label rival) name)))

(defun color-of (name)
  "The colour of the rival called NAME, or grey."
  (let ((rival (find-rival name)))
    (if rival (rival-color rival) "#757575")))

(defun family-of (name)
  "The family of the rival called NAME, or :OTHER."
  (let ((rival (find-rival name)))
    (if rival (rival-family rival) :other)))

;;; Programs

(defclass program-rival (rival)
  ((finder :initarg :finder :reader program-finder
           :documentation "Function of no arguments to the program file; UNAVAILABLE if
it can't be had.")
   (arguments :initarg :arguments :reader program-arguments
              :documentation "Function of port, delay in ms and fresh directory, and the directory
of a certificate where it is set up for TLS, to the words that follow the program.")
   (version :initarg :version :reader version
            :documentation "Function of no arguments to the version."))
  (:documentation "A rival that is an executable program."))

(defmethod prepare ((rival program-rival))
  (funcall (program-finder rival)))

(defmethod command ((rival program-rival) port delay-ms directory certificate)
  (cons (funcall (program-finder rival))
        (apply (program-arguments rival) port delay-ms directory
               (and certificate (list certificate)))))

(defmethod version :around ((rival program-rival))
  (funcall (call-next-method)))

;;; Lisp systems

(defclass lisp-rival (rival)
  ((system :initarg :system :reader lisp-system :type string
           :documentation "The ASDF system to load.")
   (server :initarg :server :reader lisp-server :type string
           :documentation "The file in servers/ that then defines SERVE, a function of port,
delay, *SLOW-MS*, the directory of the SERVED-FILES, the BACKLOG, and more.")
   (arguments :initarg :arguments :initform "" :reader lisp-arguments :type string
              :documentation "What more SERVE gets, as text: its symbols are known only in
the child, once the system is there."))
  (:documentation "A rival that is a Lisp system, run in a Lisp process of its own.  Its RIVAL-TLS
takes the place of ARGUMENTS over TLS; it is followed there by Hunchentoot's arguments for the
certificate."))

(defmethod prepare ((rival lisp-rival))
  (unless (asdf:find-system (lisp-system rival) nil)
    (unavailable "ASDF does not find the system ~a" (lisp-system rival))))

(defun system-version (name)
  "The version of the ASDF system NAME, or that it says none."
  (or (asdf:component-version (asdf:find-system name)) "unknown"))

(defmethod version ((rival lisp-rival))
  (system-version (lisp-system rival)))

(defun libraries-of (name)
  "The libraries that the ASDF system NAME depends on, and those that parts of the same project do, with
their versions."
  (loop for dependency in (asdf:system-depends-on (asdf:find-system name))
        for system = (and (stringp dependency) (asdf:find-system dependency nil))
        when system
          append (if (string= (asdf:primary-system-name dependency) (asdf:primary-system-name name))
                     (libraries-of dependency)
                     (list (format nil "~a ~a" dependency (system-version dependency))))))

(defmethod libraries ((rival lisp-rival))
  (libraries-of (lisp-system rival)))

(defun server-file (name)
  "The file NAME of servers/, where the small programs for the rivals are."
  (merge-pathnames name (benchmark-file "servers/")))

(defun serve-arguments (port delay-ms)
  "What every SERVE gets first, on PORT with a delay of DELAY-MS."
  (list port delay-ms *slow-ms* (uiop:native-namestring (served-files)) (backlog)))

(defun more-arguments (rival certificate)
  "What SERVE gets after the SERVE-ARGUMENTS for RIVAL, over TLS if CERTIFICATE is not NIL."
  (if certificate
      (format nil "~a ~{:ssl-certificate-file ~s :ssl-privatekey-file ~s~}" (rival-tls rival)
              (mapcar #'uiop:native-namestring (certificate-files certificate)))
      (lisp-arguments rival)))

(defmethod command ((rival lisp-rival) port delay-ms directory certificate)
  (declare (ignore directory))
  (flet ((form (control &rest arguments)
           (list "--eval" (apply #'format nil control arguments))))
    `(,sb-ext:*runtime-pathname* ; the Lisp that runs this
      "--noinform" "--non-interactive"
      ,@(form "(require :asdf)")
      ,@(form "(push ~s asdf:*central-registry*)" (uiop:native-namestring *root*))
      ,@(form "(asdf:load-system ~s)" (lisp-system rival))
      "--load" ,(server-file (format nil "~a.lisp" (lisp-server rival)))
      ;; What loading has left would be collected while it is measured.
      ,@(form "(sb-ext:gc :full t)")
      ,@(form "(serve ~{~s ~} ~a)" (serve-arguments port delay-ms)
              (more-arguments rival certificate)))))
