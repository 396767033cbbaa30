(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; What one connection has of the budget of all clients (see the engine's memory-budget.lisp),
;;;; while what is kept for it grows, shrinks, and ends in whatever way.  One thread reserves; any
;;;; thread may close the account, once or more often: from then on nothing is reserved for a
;;;; connection that has ended.

(defstruct (memory-account (:include opaque) (:conc-name account-) (:constructor make-memory-account ()) (:copier nil))
  "Memory that is reserved for what comes over one connection."
  (octets 0)                            ; NIL when it was closed
  (since 0 :type fixnum))               ; when it last had none, in MILLISECONDS

(defun account-open-p (account)
  "True until ACCOUNT was closed."
  (and (account-octets account) t))

(defun account-size (account)
  "How many octets are reserved for ACCOUNT."
  (or (account-octets account) 0))

(defun change-account (account octets)
  "Adds OCTETS, which may be negative, to ACCOUNT; the caller changes the budget.  NIL when ACCOUNT
was closed."
  (loop for old = (account-octets account)
        while old
        when (compare-and-set (account-octets account) old (+ old octets))
          return t))

(defun reserve-for-account (account octets &optional (share 1))
  "Reserves OCTETS for ACCOUNT, of SHARE of the budget.  NIL where there is no memory, or ACCOUNT
was closed; the caller gives up what ACCOUNT is for then."
  (and (account-open-p account)
       (uninterruptibly
         (when (zerop (account-size account))
           (setf (account-since account) (milliseconds)))
         (when (reserve-client-memory octets share)
           (or (change-account account octets)
               (progn (release-client-memory octets)
                      nil))))
       ;; A vector that grows to twice its size is copied: what is allocated is twice what is added.
       (make-room-in-heap (* 2 octets))))

(defun reduce-account (account octets)
  "Releases what ACCOUNT has beyond OCTETS."
  (uninterruptibly
    (let ((more (- (account-size account) octets)))
      (when (and (plusp more) (change-account account (- more)))
        (release-client-memory more)))))

(defun close-account (account)
  "Releases what ACCOUNT has, and lets nothing more be reserved for it."
  (uninterruptibly
    (release-client-memory
     (loop for old = (account-octets account)
           while old
           when (compare-and-set (account-octets account) old nil)
             return old
           finally (return 0)))))
