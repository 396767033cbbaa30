(in-package #:hunchentoot-recycling-taskmaster.base)

;;; Objects of ours are arguments of functions, which a backtrace shows, in logs and on error pages.
;;; Many hold what a client has sent: passwords, cookies, forms.  So structures do not print their
;;; slots, as structures usually do.

(defstruct (opaque (:constructor nil) (:copier nil) (:predicate nil))
  "What every structure of ours includes: it prints without its contents.")

(defmethod print-object ((object opaque) stream)
  (print-unreadable-object (object stream :type t :identity t)))
