(in-package #:hunchentoot-recycling-taskmaster)

;;;; Places to listen besides an address and a port: a path, an inherited descriptor, a shared port.

(defclass listening-acceptor (hunchentoot:acceptor)
  ((listen-path :initarg :listen-path :initform nil :reader acceptor-listen-path)
   (listen-mode :initarg :listen-mode :initform nil :reader acceptor-listen-mode)
   (listen-fd :initarg :listen-fd :initform nil :reader acceptor-listen-fd)
   (reuse-port :initarg :reuse-port :initform nil :reader acceptor-reuse-port-p)
   (defer-accept :initarg :defer-accept :reader acceptor-defer-accept)
   (sole-name :initform nil :accessor acceptor-sole-name
              :documentation "A list of the address and port of our end of every connection, where
all connections have the same; else NIL."))
  (:default-initargs
   ;; Connections wait for a worker in the kernel, which reduces this to its own maximum.
   :listen-backlog 1024
   ;; A worker can do nothing for a connection without input.
   :defer-accept 1)
  (:documentation "An acceptor that can listen on a path, on an inherited descriptor, or on a port
that it shares; PARALLEL-ACCEPTOR explains how."))

;;; Arguments

(defun special-arguments (acceptor)
  "A list of the names and values of those of these arguments of ACCEPTOR that are not NIL."
  (loop for (name value) in `((:listen-path ,(acceptor-listen-path acceptor))
                              (:listen-mode ,(acceptor-listen-mode acceptor))
                              (:listen-fd ,(acceptor-listen-fd acceptor))
                              (:reuse-port ,(acceptor-reuse-port-p acceptor)))
        when value collect (list name value)))

(defun check-listen-path (path)
  (unless (or (pathnamep path) (and (stringp path) (plusp (length path))))
    (hunchentoot:parameter-error "LISTEN-PATH must be a string or a pathname, not ~S." path)))

(defun check-listen-mode (mode path)
  (unless (typep mode '(integer 0 #o777))
    (hunchentoot:parameter-error
     "LISTEN-MODE must be an integer from 0 to #o777, such as #o660, not ~S." mode))
  (unless path
    (hunchentoot:parameter-error "LISTEN-MODE needs a LISTEN-PATH, whose mode it is.")))

(defun check-listen-fd (descriptor)
  (unless (typep descriptor 'inherited-designator)
    (hunchentoot:parameter-error
     "LISTEN-FD must be the number of a descriptor, :SYSTEMD, or a list of :SYSTEMD and a name, ~
      not ~S."
     descriptor)))

(defun own-place-p (acceptor)
  "True when ACCEPTOR was given an address or a port other than Hunchentoot's defaults."
  (or (hunchentoot:acceptor-address acceptor)
      (not (member (hunchentoot:acceptor-port acceptor)
                   (list 0 (default-port (hunchentoot:acceptor-ssl-p acceptor)))))))

(defun check-place (acceptor name)
  "Signals HUNCHENTOOT:PARAMETER-ERROR unless NAME alone says where ACCEPTOR listens."
  (when (own-place-p acceptor)
    (hunchentoot:parameter-error "~A says where to listen, so ADDRESS and PORT must not." name))
  (when (acceptor-reuse-port-p acceptor)
    (hunchentoot:parameter-error "REUSE-PORT needs a port, and ~A gives none." name))
  (unless (typep (acceptor-taskmaster* acceptor) 'recycling-taskmaster)
    (hunchentoot:parameter-error "~A needs a RECYCLING-TASKMASTER, not ~A."
                                 name (acceptor-taskmaster* acceptor))))

(defun check-listening (acceptor)
  (let ((path (acceptor-listen-path acceptor))
        (mode (acceptor-listen-mode acceptor))
        (descriptor (acceptor-listen-fd acceptor))
        (names (mapcar #'first (special-arguments acceptor))))
    (when (and names (not (special-listeners-supported-p)))
      (hunchentoot:parameter-error "~{~A~^, ~}: this needs SBCL under Linux." names))
    (when mode (check-listen-mode mode path))
    (when path (check-listen-path path))
    (when descriptor (check-listen-fd descriptor))
    (when (and path descriptor)
      (hunchentoot:parameter-error "LISTEN-PATH and LISTEN-FD exclude each other."))
    (when (or path descriptor)
      (check-place acceptor (if path :listen-path :listen-fd)))))

(defmethod initialize-instance :after ((acceptor listening-acceptor) &key)
  (check-listening acceptor)
  (when (or (acceptor-listen-path acceptor) (acceptor-listen-fd acceptor))
    (set-acceptor-name acceptor nil 0)))

;;; Listening

(defun open-listener (acceptor)
  "Opens the listener that the arguments of ACCEPTOR ask for; NIL where Hunchentoot can open it."
  (let ((path (acceptor-listen-path acceptor))
        (descriptor (acceptor-listen-fd acceptor))
        (backlog (hunchentoot:acceptor-listen-backlog acceptor)))
    (cond (path
           (open-path-listener path (acceptor-listen-mode acceptor) backlog))
          (descriptor
           (open-inherited-listener (inherited-descriptor descriptor)))
          ((acceptor-reuse-port-p acceptor)
           (open-shared-port-listener (hunchentoot:acceptor-address acceptor)
                                      (hunchentoot:acceptor-port acceptor)
                                      backlog)))))

(defmethod hunchentoot:start-listening :around ((acceptor listening-acceptor))
  (fill-standard-descriptors)
  (handler-bind ((error (lambda (condition)
                          (tell-where (hunchentoot:acceptor-address acceptor)
                                      (hunchentoot:acceptor-port acceptor)
                                      condition))))
    (call-next-method)))

(defmethod hunchentoot:start-listening ((acceptor listening-acceptor))
  (let ((listener (and (not (hunchentoot:started-p acceptor)) (open-listener acceptor))))
    (cond (listener
           (setf (acceptor-listener acceptor) listener)
           (unless (acceptor-reuse-port-p acceptor)
             (multiple-value-call #'set-acceptor-name acceptor (local-name listener)))
           (values))
          (t
           (call-next-method)))))

(defun defer-accepts-of (acceptor)
  "Sets :DEFER-ACCEPT on the listener of ACCEPTOR.  The process that made an inherited socket has
set its options, and a Unix-domain socket has no such option."
  (unless (or (acceptor-listen-path acceptor) (acceptor-listen-fd acceptor))
    (defer-accepts (acceptor-listener acceptor) (or (acceptor-defer-accept acceptor) 0))))

(defmethod hunchentoot:start-listening :after ((acceptor listening-acceptor))
  (setf (acceptor-sole-name acceptor) (sole-name (acceptor-listener acceptor)))
  (defer-accepts-of acceptor))

(defun our-end (acceptor socket)
  "A list of the address and port of our end of SOCKET, a connection of ACCEPTOR."
  (or (acceptor-sole-name acceptor)
      (multiple-value-list (local-name socket))))
