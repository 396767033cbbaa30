;;;; What requests ask for, the same for all Lisp servers.  Loaded by their processes, after the
;;;; libraries.

(defpackage #:work
  (:use #:common-lisp)
  (:export #:prepare #:use-database #:serve))

(in-package #:work)

(defvar *data* nil
  "The folder with the file that is served, file.bin, and the items, items.json.")

(defun integer-in (text &optional (default 0))
  "The integer that TEXT, a string or NIL, begins with; or DEFAULT."
  (or (and text (parse-integer text :junk-allowed t))
      default))

(defun wait ()
  "Blocks for a millisecond, as a handler does that waits for something."
  (sleep 0.001))

(defun sum (&rest texts)
  "The sum of the integers that TEXTS are, in decimal; one that is NIL counts nothing."
  (princ-to-string (reduce #'+ texts :key #'integer-in)))

(defun count-octets (stream)
  "How many octets STREAM has, in decimal."
  (loop with buffer = (make-array 65536 :element-type '(unsigned-byte 8))
        for count = (read-sequence buffer stream)
        while (plusp count)
        sum count into all
        finally (return (princ-to-string all))))

(defun file ()
  "The file that is served: 16 KiB."
  (merge-pathnames "file.bin" *data*))

(defun real-us ()
  "Microseconds since 1970."
  (multiple-value-bind (seconds microseconds) (sb-ext:get-time-of-day)
    (+ (* 1000000 seconds) microseconds)))

;;; JSON

(defun json (thing)
  "THING in JSON: hash tables, vectors, strings, numbers and Yason's truth values."
  (with-output-to-string (stream)
    (yason:encode thing stream)))

(defun object (&rest names-and-values)
  "An object of JSON."
  (loop with object = (make-hash-table :test #'equal :size 12)
        for (name value) on names-and-values by #'cddr
        do (setf (gethash name object) value)
        finally (return object)))

(defun parse-items ()
  "The items of items.json, a vector of objects."
  (with-open-file (stream (merge-pathnames "items.json" *data*) :external-format :utf-8)
    (yason:parse stream :json-arrays-as-vectors t :json-booleans-as-symbols t)))

(defvar *items* #()
  "The items.")

(defun prepare (data)
  "Prepares for work with DATA, a folder as *DATA* is."
  (setf *data* data
        *items* (parse-items)))

(defun with-total (item factor)
  "ITEM with its total, price times quantity times FACTOR."
  (let ((copy (object)))
    (maphash (lambda (name value) (setf (gethash name copy) value)) item)
    (setf (gethash "total" copy)
          (* factor (gethash "price" item) (gethash "quantity" item)))
    copy))

(defun items-json (count factor)
  "The first COUNT items, with totals, and their number, in JSON."
  (let ((items (map 'vector (lambda (item) (with-total item factor))
                    (subseq *items* 0 (max 1 (min count (length *items*)))))))
    (json (object "items" items "count" (length items)))))
