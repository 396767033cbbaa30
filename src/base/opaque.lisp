(in-package #:hunchentoot-recycling-taskmaster.base)

;;; A backtrace in a log or on an error page prints our objects, as arguments of functions.  Many of
;;; them hold data of a client: passwords, cookies, forms.  So our structures do not print their
;;; slots.

(defstruct (opaque (:constructor nil) (:copier nil) (:predicate nil))
  "The root of all our structures: it prints without its contents.")

(defmethod print-object ((object opaque) stream)
  (print-unreadable-object (object stream :type t :identity t)))
