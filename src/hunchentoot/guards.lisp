(in-package #:hunchentoot-recycling-taskmaster)

;;;; Functions of Hunchentoot that read what a client has sent, and that would intern it, match it
;;;; by a regular expression that backtracks, or read a number of any length.  We wrap them, so that
;;;; they take linear time for any input and make no symbols.

;;; Sessions

(defconstant +most-session-octets+ 512
  "The longest session identifier, in characters, that is looked up.  Hunchentoot's are far
shorter.")

(defmethod hunchentoot:session-verify ((request hunchentoot:request))
  (let* ((name (hunchentoot:session-cookie-name hunchentoot:*acceptor*))
         (id (or (hunchentoot:cookie-in name request)
                 (hunchentoot:get-parameter name request))))
    (and id
         (<= (length id) +most-session-octets+)
         (hunchentoots-session request))))

;;; Lists in header fields

(defun forwarded-address (hunchentoots &optional (request hunchentoot:*request*))
  "As REAL-REMOTE-ADDR for REQUEST; HUNCHENTOOTS is that function.  X-Forwarded-For says nothing
more where it was believed or not before."
  (declare (ignore hunchentoots))
  (let ((forwarded (and (not (behind-proxies-p (hunchentoot:request-acceptor request)))
                        (hunchentoot:header-in :x-forwarded-for request))))
    (if forwarded
        (let ((addresses (list-of-elements forwarded)))
          (values (first addresses) addresses))
        (hunchentoot:remote-addr request))))

(defun client-keeps-p (hunchentoots request)
  "As Hunchentoot's function KEEP-ALIVE-P for REQUEST; HUNCHENTOOTS is that function."
  (declare (ignore hunchentoots))
  (let ((options (list-of-elements (or (hunchentoot:header-in :connection request) ""))))
    (flet ((option-p (option)
             (member option options :test #'string-equal)))
      (let ((wanted-p (option-p "keep-alive")))
        (values (and (hunchentoot:acceptor-persistent-connections-p hunchentoot:*acceptor*)
                     (case (hunchentoot:server-protocol request)
                       (:http/1.1 (not (option-p "close")))
                       (:http/1.0 wanted-p)))
                wanted-p)))))

;;; Charsets

(defun guarded-format (hunchentoots type)
  "As EXTERNAL-FORMAT-OF-TYPE for TYPE; HUNCHENTOOTS is Hunchentoot's function for that, which
interns."
  (declare (ignore hunchentoots))
  (external-format-of-type type))

;;; Parameters of easy handlers

(defconstant +most-integer-characters+ 100
  "The longest text that is taken for an integer.")

(defun converted-parameter (hunchentoots argument type)
  "Converts the parameter ARGUMENT to TYPE as HUNCHENTOOTS, a function, does; but returns NIL for a
keyword that does not exist, and for an integer that is too long."
  (cond ((not (stringp argument))
         (funcall hunchentoots argument type))
        ((eq type 'keyword)
         (values (find-symbol (string-upcase argument) '#:keyword)))
        ((and (eq type 'integer) (> (length argument) +most-integer-characters+))
         nil)
        (t
         (funcall hunchentoots argument type))))

(defconstant +most-array-elements+ 10000
  "How many elements an array of parameters may have, since clients choose the indices.")

(defun element-index (name array-name)
  "The index of the parameter NAME in the array of parameters ARRAY-NAME; NIL where it is not in it,
or beyond +MOST-ARRAY-ELEMENTS+."
  (let ((start (length array-name)) (end (1- (length name))))
    (and (< start end)
         (char= #\[ (char name start))
         (char= #\] (char name end))
         (string= array-name name :end2 start)
         (let ((index (decimal-number name (1+ start) end +most-integer-digits+)))
           (and index
                (< index +most-array-elements+)
                index)))))

(defun array-parameter (hunchentoots name type parameters)
  "An array called NAME of PARAMETERS converted to TYPE, as HUNCHENTOOTS, a function, makes it; but
without elements that would make it too large."
  (funcall hunchentoots name type
           (remove-if-not (lambda (parameter) (element-index (car parameter) name)) parameters)))
