(in-package #:hunchentoot-recycling-taskmaster-test)

;;; Requests from keyword arguments to octets.

(defparameter *urlencoded* "application/x-www-form-urlencoded"
  "The type of forms without files.")

(defun percent-encode (string &optional (charset :utf-8))
  "STRING as it may stand in a query or a form: in CHARSET, everything but letters,
digits and hyphens escaped."
  (with-output-to-string (out)
    (loop for octet across (encode string charset)
          for char = (code-char octet)
          do (if (or (char= char #\-)
                     (and (alphanumericp char) (< octet 128)))
                 (write-char char out)
                 (format out "%~2,'0X" octet)))))

(defun form-encode (parameters &optional (charset :utf-8))
  "The alist PARAMETERS of strings as application/x-www-form-urlencoded."
  (format nil "~{~A=~A~^&~}"
          (loop for (name . value) in parameters
                collect (percent-encode name charset)
                collect (percent-encode value charset))))

(defun chunk (part)
  "PART (see OCTETS) as one chunk of the chunked transfer coding."
  (let ((octets (octets part)))
    (octets (format nil "~X" (length octets)) :crlf octets :crlf)))

(defun header-lines (headers)
  "The alist HEADERS of names and values as a list of parts; a value of NIL is left out."
  (loop for (name . value) in headers
        when value collect (list (format nil "~A: ~A" name value) :crlf)))

(defun request-body (content form chunks)
  "The body that SEND-REQUEST was given, and the headers that frame it."
  (cond (chunks
         (values (octets (mapcar #'chunk chunks) "0" :crlf :crlf)
                 '(("Transfer-Encoding" . "chunked"))))
        ((or content form)
         (let ((octets (octets (or content (form-encode form)))))
           (values octets `(("Content-Length" . ,(length octets))))))))

(defun request-octets (target &key (method :get) (version "HTTP/1.1") (host "localhost")
                                headers content form chunks
                                (content-type
                                 (and form "application/x-www-form-urlencoded")))
  "The octets of a request for TARGET.  METHOD is a keyword or string; HOST is the Host
header or NIL; HEADERS is an alist of strings.  The body is CONTENT (see OCTETS), or the
alist FORM urlencoded, or the list CHUNKS of parts in the chunked coding."
  (multiple-value-bind (body framing) (request-body content form chunks)
    (octets (format nil "~A ~A ~A" method target version) :crlf
            (header-lines `(("Host" . ,host) ("Content-Type" . ,content-type)
                            ,@framing ,@headers))
            :crlf body)))

(defun post-head (target framing)
  "The head of a request for TARGET with content, of which the header lines FRAMING tell."
  (octets (format nil "POST ~A HTTP/1.1" target) :crlf "Host: localhost" :crlf framing :crlf :crlf))
