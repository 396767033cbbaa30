(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; The connections of the ready engine, by descriptor.
;;;;
;;;; A token of the poller is a descriptor and the generation of its connection.  The generation is
;;;; a number that tells this connection from earlier ones with the same descriptor, for which a
;;;; late event may still be under way.  Pages of the table are made when needed and never move, so
;;;; readers need no lock.

(defconstant +page-bits+ 10)
(defconstant +generation-bits+ 30)

(deftype page ()
  `(simple-vector ,(ash 1 +page-bits+)))

(defconstant +page-count+ (ash 1 11))
(defconstant +most-descriptors+ (ash +page-count+ +page-bits+)
  "The table has room for smaller descriptors only.")

(defstruct (table (:include opaque) (:constructor make-table ()))
  "Connections by descriptor."
  (pages (make-array +page-count+ :initial-element nil) :type simple-vector)
  (lock (bt:make-lock "table") :read-only t)
  (generation 0))                       ; a fixnum; changes by COMPARE-AND-SET

(defun table-page (table descriptor)
  "The page for DESCRIPTOR; makes it if needed."
  (let ((number (ash descriptor (- +page-bits+)))
        (pages (table-pages table)))
    (or (svref pages number)
        (bt:with-lock-held ((table-lock table))
          (or (svref pages number)
              (set-published (svref pages number)
                       (make-array (ash 1 +page-bits+) :initial-element nil)))))))

(defun next-generation (table)
  "A number that no late event of TABLE carries."
  (loop for last = (table-generation table)
        for next = (ldb (byte +generation-bits+ 0) (1+ (the fixnum last)))
        until (compare-and-set (table-generation table) last next)
        finally (return next)))

(defun enter-connection (table connection)
  "Enters CONNECTION in TABLE for its descriptor."
  (let ((descriptor (connection-descriptor connection)))
    (set-published (svref (table-page table descriptor) (ldb (byte +page-bits+ 0) descriptor))
             connection)))

(defun forget-connection (table connection)
  "Removes CONNECTION, whose descriptor is still open, from TABLE, unless another one has its
place already."
  (let* ((descriptor (connection-descriptor connection))
         (page (table-page table descriptor))
         (place (ldb (byte +page-bits+ 0) descriptor)))
    (when (eq connection (svref page place))
      (setf (svref page place) nil))))

(defun connection-token (connection)
  (logior (connection-descriptor connection)
          (ash (connection-generation connection) 32)))

(defun find-connection (table token)
  "The connection that TOKEN was made for; NIL if it is gone."
  (declare (type table table) (type token token) #.*plain-policy*)
  (let* ((descriptor (ldb (byte 31 0) token))
         (page (svref (table-pages table) (ash descriptor (- +page-bits+))))
         (connection (and page (svref (the page page) (ldb (byte +page-bits+ 0) descriptor)))))
    (and connection
         (= (connection-generation connection) (ash token -32))
         connection)))

(defun map-connections (function table)
  "Calls FUNCTION with each connection in TABLE.  It may miss some that come or go meanwhile."
  (loop for page across (table-pages table)
        when page
          do (loop for connection across (the page page)
                   when connection do (funcall function connection))))
