(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite proxy-protocol :in http
  :description "Headers of the PROXY protocol; fronts/proxies has what they tell.")

(in-suite proxy-protocol)

(defparameter *signature* '(13 10 13 10 0 13 10 #x51 #x55 #x49 #x54 10))

(defun binary-header (command family address-octets &key (signature *signature*) length (more '()))
  "A header of version 2: COMMAND and FAMILY are its 13th and 14th octets, MORE are its TLVs.  It
announces LENGTH, by default what follows."
  (let ((length (or length (+ (length address-octets) (length more)))))
    (as-octets (append signature
                       (list command family (ash length -8) (logand length 255))
                       address-octets more))))

(defparameter *ipv4-octets* '(192 0 2 1 10 0 0 1 #xC8 #x00 1 187))

(defparameter *ipv6-octets*
  (append '(#x20 1 #xD 184 0 0 0 0 0 0 0 0 0 0 0 1) '(0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 1)
          '(#xC8 #x00 1 187)))

(defparameter *path-octets* (make-list 216 :initial-element 47))

(defparameter *proxy-headers*
  (let ((ipv4 '(("192.0.2.1" 51200) ("10.0.0.1" 443)))
        (ipv6 '(("2001:db8::1" 51200) ("::1" 443)))
        (path '(("unix:" 0) ("unix:" 0)))
        (none '(() ())))
    (flet ((line (text) (octets text :crlf)))
      (list
       (list ipv4 (line "PROXY TCP4 192.0.2.1 10.0.0.1 51200 443"))
       (list ipv6 (line "PROXY TCP6 2001:db8::1 ::1 51200 443"))
       (list '(("192.0.2.1" 0) ("10.0.0.1" 65535)) (line "PROXY TCP4 192.0.2.1 10.0.0.1 0 65535"))
       (list none (line "PROXY UNKNOWN"))
       (list none (line "PROXY UNKNOWN ffff:: 1 2 3 anything"))
       (list none (line (format nil "PROXY UNKNOWN ~A" (make-string 91 :initial-element #\x))))
       (list ipv4 (binary-header #x21 #x11 *ipv4-octets*))
       (list ipv4 (binary-header #x21 #x11 *ipv4-octets* :more '(4 0 3 0 0 0)))
       (list ipv4 (binary-header #x21 #x11 *ipv4-octets*
                                 :more (make-list 4068 :initial-element 255)))
       (list ipv6 (binary-header #x21 #x21 *ipv6-octets*))
       (list ipv6 (binary-header #x21 #x21 *ipv6-octets* :more '(32 0 1 1)))
       (list path (binary-header #x21 #x31 *path-octets*))
       (list none (binary-header #x20 #x00 '()))
       (list none (binary-header #x20 #x11 *ipv4-octets*))
       (list none (binary-header #x20 #xFF '(1 2 3)))
       (list none (binary-header #x21 #x00 '()))
       (list none (binary-header #x21 #x00 '() :more '(1 2 3 4))))))
  "What headers tell, source and destination, and their octets.")

(defparameter *malformed-proxy-headers*
  (append
   (loop for input in (read-vectors "malformed-proxy") ; not version 1
         collect (as-octets (input-octets (list input))))
   (loop for (version family) in '((#x01 #x11) (#x11 #x11) (#x31 #x11) (#x22 #x11) (#x2F #x11)
                                   (#x21 #x10) (#x21 #x12) (#x21 #x13) (#x21 #x41) (#x21 #xFF)
                                   (#x21 #x21))
         collect (binary-header version family *ipv4-octets*))
   (list                                ; not version 2
    (as-octets '(13 10 13 10 0 13 10 #x51 #x55 #x49 #x54 13))
    (as-octets '(13 10 13 10 13))
    (as-octets '(13 10 71))
    (as-octets '(0))
    (as-octets '(22 3 1 2 0 1))        ; TLS
    (binary-header #x21 #x22 *ipv6-octets*)
    (binary-header #x21 #x32 *path-octets*)
    (binary-header #x21 #x03 '())
    (binary-header #x21 #x11 *ipv4-octets* :length 11)
    (binary-header #x21 #x11 '())
    (binary-header #x21 #x11 *ipv4-octets* :length 4081)
    (binary-header #x21 #x21 *ipv6-octets* :length 35)
    (binary-header #x21 #x31 *ipv6-octets*)))
  "What is no header of the PROXY protocol.")

(test any-octets-are-a-header-or-are-refused
  (dotimes (count 500)
    (let* ((octets (copy-seq (second (nth (random (length *proxy-headers*)) *proxy-headers*))))
           (end (min (length octets) 60)))
      (dotimes (change (1+ (random 3)))
        (setf (aref octets (random end)) (random 256)))
      (handler-case (http:decode-proxy-header (http:make-proxy-header) octets 0 end)
        (http:protocol-error (refusal)
          (is (eq :malformed-proxy-header (http:protocol-error-refusal refusal)))))))
  (pass))
