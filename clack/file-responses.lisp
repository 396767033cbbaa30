(in-package #:clack.handler.recycling)

;;;; Files as responses.  The kernel sends a file from its cache to the socket: all of it, a part,
;;;; or nothing where the client has the same version already.

(defun with-headers (headers &rest others)
  "HEADERS, a plist, with those of OTHERS, names and values or NIL, added that are missing."
  (loop for (name value) on others by #'cddr
        when (and value (not (header name headers)))
          do (setf headers (list* name value headers)))
  headers)

(defun version-headers (headers version coding)
  "HEADERS, a plist, with Last-Modified, ETag and Accept-Ranges of the VERSION, with CODING or NIL,
of a file added where they are missing."
  (with-headers headers
    :last-modified (version-date version)
    :etag (coded-tag (version-tag version) coding)
    :accept-ranges "bytes"))

(defun with-vary (headers)
  "HEADERS, a plist, with a single Vary, which has Accept-Encoding in it."
  (loop for (name value) on headers by #'cddr
        if (and value (eq :vary (header-name name)))
          collect value into values
        else
          collect name into others and collect value into others
        finally (return (list* :vary (vary-by-encoding
                                      (and values (format nil "~{~A~^, ~}" values)))
                               others))))

(defun caching-headers (exchange status headers pathname)
  "HEADERS, a plist, of the response to EXCHANGE with STATUS, with what tells caches about the file
PATHNAME."
  (let* ((server (exchange-application exchange))
         (rule (server-file-cache-control server))
         (headers (if (eql 200 status)
                      (with-headers headers :cache-control (cache-control-of rule pathname))
                      headers)))
    (if (server-precompressed-files-p server)
        (with-vary headers)
        headers)))

(defun version-headers-of (headers)
  "Those of HEADERS, a plist, that say which version of a file an answer without it is about."
  (loop for (name value) on headers by #'cddr
        when (member (header-name name) '(:vary :etag :last-modified))
          collect name and collect value))

(defun send-version (exchange status headers part version coding)
  "Sends the octets of PART, the VERSION of a file with CODING or NIL, for which the client has
asked; see RFC 9110, sections 13 and 14."
  (let* ((head (exchange-head exchange))
         (headers (version-headers headers version coding))
         (tag (header :etag headers)))
    (ecase (if (= 200 status)
               (precondition head tag (header :last-modified headers))
               :proceed)
      (:not-modified (send-nothing exchange 304 headers))
      (:failed (send-text exchange 412 "The file is not as the request wants it."
                          (version-headers-of headers)))
      (:proceed
       (multiple-value-bind (status range)
           (settle-range part version head status tag (header :vary headers))
         (if (and range (= 416 status))
             (send-text exchange status "The range lies beyond the end of the file."
                        (list* :content-range range (version-headers-of headers)))
             (send-whole exchange status
                         (with-headers (if range (list* :content-range range headers) headers)
                           :content-encoding (coding-name coding))
                         (- (part-end part) (part-position part)) part)))))))

(defun file-octets (pathname)
  "All octets of the file PATHNAME, on Lisps without descriptors; NIL where there is none."
  (with-open-file (stream pathname :element-type 'octet :if-does-not-exist nil)
    (when stream
      (let ((octets (make-octets (file-length stream))))
        (read-sequence octets stream)
        octets))))

(defun sent-file-p (exchange status headers pathname sibling coding)
  "Sends the file SIBLING, which has PATHNAME with CODING, or is PATHNAME if that is NIL, as the
response to EXCHANGE with STATUS and HEADERS; NIL where it is no readable regular file."
  (flet ((headers ()
           (caching-headers exchange status headers pathname)))
    (if (readiness-supported-p)
        (call-with-file sibling
                        (lambda (part version)
                          (send-version exchange status (headers) part version coding)))
        (let ((octets (and (pathname-name sibling) (file-octets sibling))))
          (when octets
            (send-octet-vector exchange status
                               (with-headers (headers) :content-encoding (coding-name coding))
                               octets)
            t)))))

(defun sibling-wanted-p (exchange headers)
  "True when a compressed sibling may be sent in place of a file, as the response to EXCHANGE with
HEADERS."
  (and (server-precompressed-files-p (exchange-application exchange))
       (not (header :content-encoding headers))
       (not (header :etag headers))))   ; the application's, for the file itself

(defun send-file-response (exchange status headers pathname)
  "Sends the file PATHNAME, or a compressed sibling of it, or the part for which the client has
asked, with STATUS and HEADERS.  Without a Content-Type in HEADERS, the name of the file gives one,
as with Clack's other handlers.  Sends 404 where there is no readable file."
  (let ((headers (with-content-type headers
                   (or (media-type-of-file pathname t) "application/octet-stream"))))
    (multiple-value-bind (sibling coding)
        (and (sibling-wanted-p exchange headers)
             (coded-sibling pathname (exchange-head exchange)))
      (or (and sibling
               (sent-file-p exchange status headers pathname sibling coding))
          (sent-file-p exchange status headers pathname pathname nil)
          (send-text exchange 404 "There is no such file.")))))
