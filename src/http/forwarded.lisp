(in-package #:hunchentoot-recycling-taskmaster.http)

;;;; The client of a request, as proxies tell it: Forwarded (RFC 7239), and X-Forwarded-For,
;;;; X-Forwarded-Proto, X-Forwarded-Host and X-Forwarded-Port.
;;;;
;;;; Each proxy adds an element at the right end of a list: where its own client is.  A client may
;;;; send any list, so a list is read from its right end, and only as far as trusted proxies wrote
;;;; it:
;;;;
;;;;   the element names                    then
;;;;   a trusted proxy                      that proxy is the client, if there is no further element
;;;;   another address                      that is the client
;;;;   no address: unknown, or hidden       the last address that is known is the client's
;;;;   it is empty, or malformed            the same, and nothing else in it counts
;;;;
;;;; Text to the left of an element never changes how the element is read.  So the ends of elements
;;;; are found from the right, even where an element has quoted strings.

(defconstant +most-hops+ 100
  "How many elements of a list are read at most.")

(defstruct (origin (:include opaque) (:copier nil))
  "The client of a request, as far as trusted proxies tell it."
  ;; The IP-ADDRESS of the client of ORIGIN; NIL where the proxy that has connected tells none.
  (address nil :type (or null ip-address))
  ;; The port of the client of ORIGIN; 0 where no proxy tells it.
  (port 0 :type (unsigned-byte 16))
  ;; The scheme of the client's request of ORIGIN: :HTTP, :HTTPS, or NIL where no proxy tells it.
  (scheme nil :type (member nil :http :https))
  ;; The host, perhaps with a port, that the client of ORIGIN has asked for, a string; NIL where no
  ;; proxy tells it.
  (host nil :type (or null text))
  ;; The port at which the client of ORIGIN has asked, where its host names none; NIL where no
  ;; proxy tells it.
  (host-port nil :type (or null (unsigned-byte 16))))

;;; Elements of lists, from the right

(defun element-start (text end)
  "The start of the element of the list TEXT that ends at END: after the last comma that is not in a
quoted string."
  (declare (type text text) (type index end))
  (loop with quoted-p = nil
        for position of-type fixnum from (1- end) downto 0
        for char = (schar text position)
        do (cond ((char= char #\") (setf quoted-p (not quoted-p)))
                 ((and (char= char #\,) (not quoted-p))
                  (return (1+ position))))
        finally (return 0)))

(defmacro do-elements-from-end ((text start end) &body body)
  "Runs BODY, which may RETURN, for the elements of the list TEXT, the last first and at most
+MOST-HOPS+, with START and END around each without its surrounding white space."
  (let ((from (gensym "FROM")) (to (gensym "TO")))
    `(loop for ,to of-type fixnum = (length ,text) then (1- ,from)
           for ,from of-type fixnum = (element-start ,text ,to)
           repeat +most-hops+
           do (let* ((,start (text-run-end ,text ,from ,to +whitespace+))
                     (,end (text-run-start ,text ,start ,to +whitespace+)))
                ,@body)
           until (zerop ,from))))

;;; Addresses of clients

(defun obfuscated-p (text start end)
  "True if TEXT from START to END is an identifier by which a proxy hides something (RFC 7239,
section 6.3)."
  (and (< (1+ start) end)
       (char= #\_ (char text start))
       (loop for position from start below end
             for char = (char text position)
             always (or (find char "._-")
                        (and (< (char-code char) 128) (alphanumericp char))))))

(defun port-after (text start end)
  "The port of a node in TEXT, whose address ends at START and which ends at END.  It is 0 if there
is none, or if it is hidden; NIL if something else follows the address."
  (cond ((= start end) 0)
        ((char/= #\: (char text start)) nil)
        ((obfuscated-p text (1+ start) end) 0)
        (t (port-in text (1+ start) end))))

(defun address-with-port (text start address-end port-start end)
  "The IP-ADDRESS in TEXT from START to ADDRESS-END, and the port between PORT-START and END; NIL
unless both are well-formed."
  (let ((address (parse-ip-address text start address-end))
        (port (port-after text port-start end)))
    (and address port (values address port))))

(defun parse-node (text start end &optional bare-p)
  "The IP-ADDRESS and the port of the node that TEXT has from START to END (RFC 7239, section 6);
NIL if it has no address.  If BARE-P, an IPv6 address without a port needs no brackets."
  (let ((colon (position #\: text :start start :end end))
        (bracket (position #\] text :start start :end end)))
    (cond ((and (< start end) (char= #\[ (char text start)))
           (and colon bracket (< colon bracket) ; IPv4 has no brackets
                (address-with-port text (1+ start) bracket (1+ bracket) end)))
          ((and colon (find #\: text :start (1+ colon) :end end))
           (and bare-p (address-with-port text start end end end)))
          (t
           (address-with-port text start (or colon end) (or colon end) end)))))

;;; Schemes and hosts

(defun scheme-named (text start end)
  "The scheme of the client's request that TEXT names from START to END: :HTTPS, :HTTP or NIL.  Some
proxies name the schemes of WebSockets."
  (flet ((named-p (name)
           (string-equal name text :start2 start :end2 end)))
    (cond ((or (named-p "https") (named-p "wss")) :https)
          ((or (named-p "http") (named-p "ws")) :http))))

(defun host-named (text start end)
  "The host, perhaps with a port, that TEXT has from START to END; NIL if there is none."
  (declare (type text text) (type index start end))
  (multiple-value-bind (valid-p host-end) (authority-p text start end)
    (and valid-p (< start host-end) (text-part text start end))))

;;; X-Forwarded-For and its companions

(defun element-from-end (text depth)
  "The start and the end of the element of the list TEXT that is the DEPTHth from the end, or the
only one; NIL if there are several, but not so many."
  (let ((count 0))
    (do-elements-from-end (text start end)
      (incf count)
      (when (or (= count depth) (and (= count 1) (zerop (element-start text (length text)))))
        (return-from element-from-end (values start end))))
    nil))

(defun value-from-end (value depth function)
  "The result of FUNCTION, of a text, a start and an end, for an element of the list VALUE, a text
or NIL: that of the proxy which wrote the DEPTHth element of X-Forwarded-For from the end.  A list
of one element comes from a proxy that adds nothing to it."
  (and value
       (multiple-value-bind (start end) (element-from-end value depth)
         (and start (funcall function value start end)))))

(defun x-forwarded-origin (addresses scheme host port trusted-p)
  "The ORIGIN that X-Forwarded-For, -Proto, -Host and -Port tell, whose values are ADDRESSES,
SCHEME, HOST and PORT, texts or NIL.  TRUSTED-P is a function of an IP-ADDRESS."
  (let ((origin (make-origin)) (depth 0))
    (when addresses
      (do-elements-from-end (addresses start end)
        (multiple-value-bind (address port) (parse-node addresses start end t)
          (unless address
            (return))
          (incf depth)
          (setf (origin-address origin) address
                (origin-port origin) port)
          (unless (funcall trusted-p address)
            (return)))))
    (setf (origin-scheme origin) (value-from-end scheme (max 1 depth) #'scheme-named)
          (origin-host origin) (value-from-end host (max 1 depth) #'host-named)
          (origin-host-port origin) (value-from-end port (max 1 depth) #'port-in))
    origin))

;;; Forwarded

(defun pair-end (text start end)
  "The end of the pair of a name and a value that begins in TEXT at START: before the next semicolon
that is not in a quoted string, or END."
  (loop with quoted-p = nil
        for position from start below end
        for char = (char text position)
        do (cond ((char= char #\") (setf quoted-p (not quoted-p)))
                 ((and (char= char #\;) (not quoted-p))
                  (return position)))
        finally (return end)))

(defun value-bounds (text start end)
  "The start and the end, without quotation marks, of the token or the quoted string that TEXT has
from START to END; NIL if there is none.  No value that we know needs a backslash."
  (declare (type text text) (type index start end))
  (cond ((= start end) nil)
        ((char/= #\" (schar text start))
         (and (= end (text-run-end text start end +token+))
              (values start end)))
        ((and (< (1+ start) end)
              (char= #\" (schar text (1- end)))
              (not (find-if (lambda (char) (find char "\"\\"))
                            text :start (1+ start) :end (1- end))))
         (values (1+ start) (1- end)))))

(defparameter *forwarded-names*
  (loop for name in '("for" "by" "proto" "host") collect (coerce name 'text))
  "The parameters of Forwarded (RFC 7239, section 5), of which each element has one at most.")

(defun forwarded-pair (text start end)
  "The name, one of *FORWARDED-NAMES* or :OTHER, and the start and the end of its value, of the pair
in TEXT from START to END; NIL if it is malformed."
  (declare (type text text) (type index start end))
  (let ((name-end (text-run-end text start end +token+)))
    (and (< start name-end end)
         (char= #\= (schar text name-end))
         (multiple-value-bind (value-start value-end) (value-bounds text (1+ name-end) end)
           (and value-start
                (values (or (find-if (lambda (name) (text-spells-p text start name-end name))
                                     *forwarded-names*)
                            :other)
                        value-start value-end))))))

(defun forwarded-element (text start end)
  "An alist of the known names in the element of Forwarded that TEXT has from START to END, and
lists of the start and the end of their values.  :MALFORMED if it is empty, or not well-formed, or
has one of them twice."
  (declare (type text text) (type index start end))
  (loop with found = '() and count = 0
        for pair-end of-type fixnum = (pair-end text start end)
        for from of-type fixnum = (text-run-end text start pair-end +whitespace+)
        for to of-type fixnum = (text-run-start text from pair-end +whitespace+)
        unless (= from to)              ; pairs, but not elements, may be empty
          do (multiple-value-bind (name value-start value-end) (forwarded-pair text from to)
               (when (or (null name) (assoc name found :test #'eq))
                 (return :malformed))
               (incf count)
               (unless (eq name :other)
                 (push (list name value-start value-end) found)))
        do (setf start (min end (1+ pair-end)))
        until (= pair-end end)
        finally (return (if (zerop count) :malformed found))))

(defun forwarded-origin (forwarded trusted-p)
  "The ORIGIN that Forwarded tells, whose value is FORWARDED, a text.  TRUSTED-P is a function of an
IP-ADDRESS."
  (let ((origin (make-origin)))
    (do-elements-from-end (forwarded start end)
      (let ((pairs (forwarded-element forwarded start end)))
        (when (eq :malformed pairs)
          (return))
        (flet ((value-of (name function)
                 (let ((bounds (rest (assoc name pairs :test #'equal))))
                   (and bounds (funcall function forwarded (first bounds) (second bounds))))))
          (setf (origin-scheme origin) (or (value-of "proto" #'scheme-named)
                                           (origin-scheme origin))
                (origin-host origin) (or (value-of "host" #'host-named)
                                         (origin-host origin)))
          (multiple-value-bind (address port) (value-of "for" #'parse-node)
            (unless address
              (return))
            (setf (origin-address origin) address
                  (origin-port origin) port)
            (unless (funcall trusted-p address)
              (return))))))
    origin))

;;; Both

(defun contradict-p (value other)
  (and value other (not (equalp value other))))

(defun agreed-origin (origin other both-address-p)
  "ORIGIN, with the facts that only OTHER knows.  Refuses them if they contradict each other: one
was not written by a proxy, and nobody knows which.  If BOTH-ADDRESS-P, each was to tell an
address."
  (when (or (if both-address-p
                (not (eql (origin-address origin) (origin-address other)))
                (contradict-p (origin-address origin) (origin-address other)))
            (contradict-p (origin-scheme origin) (origin-scheme other))
            (contradict-p (origin-host origin) (origin-host other)))
    (refuse :contradicting-proxies))
  (make-origin :address (or (origin-address origin) (origin-address other))
               :port (if (plusp (origin-port origin)) (origin-port origin) (origin-port other))
               :scheme (or (origin-scheme origin) (origin-scheme other))
               :host (or (origin-host origin) (origin-host other))
               :host-port (origin-host-port other)))

(defun with-host-port (origin head)
  "ORIGIN, with its HOST-PORT in its host, or in that of the request HEAD; except where the host has
a port, or its scheme implies this one."
  (let ((host (or (origin-host origin) (head-host head)))
        (port (origin-host-port origin)))
    (when (and host port (/= port (default-port (eq :https (origin-scheme origin)))))
      (multiple-value-bind (name own-port) (host-and-port host nil)
        (unless (or own-port (string= "" name))
          (setf (origin-host origin) (coerce (format nil "~A:~D" name port) 'text)))))
    origin))

(defun origin-of-head (head trusted-p)
  "The ORIGIN of the request HEAD, which a trusted proxy has sent; NIL if HEAD has none of the
fields of proxies.  TRUSTED-P is a function that returns true for the IP-ADDRESS of a trusted proxy.
Signals PROTOCOL-ERROR if Forwarded and the others contradict each other."
  (let* ((headers (head-headers head))
         (forwarded (cdr (assoc :forwarded headers :test #'eq)))
         (addresses (cdr (assoc :x-forwarded-for headers :test #'eq)))
         (scheme (cdr (assoc :x-forwarded-proto headers :test #'eq)))
         (host (cdr (assoc :x-forwarded-host headers :test #'eq)))
         (port (cdr (assoc :x-forwarded-port headers :test #'eq)))
         (others (and (or addresses scheme host port)
                      (x-forwarded-origin addresses scheme host port trusted-p)))
         (origin (and forwarded (forwarded-origin forwarded trusted-p)))
         (told (if (and origin others)
                   (agreed-origin origin others addresses)
                   (or origin others))))
    (and told (with-host-port told head))))
