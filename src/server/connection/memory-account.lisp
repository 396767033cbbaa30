(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; The share of one connection in the client memory budget (see memory-budget.lisp of the engine).
;;;; It grows and shrinks with the memory that the connection keeps.  One thread reserves.  Any
;;;; thread may close the account, even more than once; from then on no reservation succeeds, so
;;;; that none outlives the connection.

(defstruct (memory-account (:include opaque) (:conc-name account-)
                           (:constructor make-memory-account ()) (:copier nil))
  "The memory that is reserved for the input of one connection."
  (octets 0))                           ; NIL after closing

(defun account-open-p (account)
  "True until ACCOUNT was closed."
  (and (account-octets account) t))

(defun account-size (account)
  "How many octets are reserved for ACCOUNT."
  (or (account-octets account) 0))

(defun change-account (account octets)
  "Adds OCTETS, which may be negative, to ACCOUNT; the caller changes the budget.  Returns NIL when
ACCOUNT was closed."
  (loop for old = (account-octets account)
        while old
        when (compare-and-set (account-octets account) old (+ old octets))
          return t))

(defun reserve-for-account (account octets &optional (share 1))
  "Reserves OCTETS for ACCOUNT, within SHARE of the budget.  Returns NIL where there is no memory,
or ACCOUNT was closed; then the caller drops the data."
  (and (account-open-p account)
       (uninterruptibly
         (when (reserve-client-memory octets share)
           (or (change-account account octets)
               (progn (release-client-memory octets)
                      nil))))
       ;; A vector that grows to twice its size is copied, so the heap needs room for twice the
       ;; growth.
       (make-room-in-heap (* 2 octets))))

(defun reduce-account (account octets)
  "Releases all but OCTETS of the reservation of ACCOUNT."
  (uninterruptibly
    (let ((more (- (account-size account) octets)))
      (when (and (plusp more) (change-account account (- more)))
        (release-client-memory more)))))

(defun close-account (account)
  "Releases the reservation of ACCOUNT, and prevents further ones."
  (uninterruptibly
    (release-client-memory
     (loop for old = (account-octets account)
           while old
           when (compare-and-set (account-octets account) old nil)
             return old
           finally (return 0)))))
