(in-package #:clack.handler.recycling)

;;;; Files as responses.  The kernel sends a file from its cache to the socket: all of it, a part,
;;;; or nothing where the client has the same version already.

(defun version-headers (headers version)
  "HEADERS, a plist, with Last-Modified, ETag and Accept-Ranges of the VERSION of a file added where
they are missing."
  (flet ((add (name value)
           (unless (header name headers)
             (setf headers (list* name value headers)))))
    (add :last-modified (version-date version))
    (add :etag (version-tag version))
    (add :accept-ranges "bytes")
    headers))

(defun send-part-of-file (exchange status headers part)
  "Sends PART of a file as the content of the response to EXCHANGE, with STATUS and HEADERS."
  (flet ((append-it (reply)
           (append-file reply part)))
    (declare (dynamic-extent #'append-it))
    (send-whole exchange status headers (- (part-end part) (part-position part)) #'append-it)))

(defun send-version (exchange status headers part version)
  "Sends the octets of PART, the VERSION of a file, for which the client has asked; see RFC 9110,
sections 13 and 14."
  (let* ((head (exchange-head exchange))
         (headers (version-headers headers version))
         (tag (header :etag headers)))
    (ecase (if (= 200 status)
               (precondition head tag (header :last-modified headers))
               :proceed)
      (:not-modified (send-nothing exchange 304 headers))
      (:failed (send-text exchange 412 "The file is not as the request wants it."))
      (:proceed
       (multiple-value-bind (status range) (settle-range part version head status tag)
         (if (and range (= 416 status))
             (send-text exchange status "The range lies beyond the end of the file."
                        (list :content-range range))
             (send-part-of-file exchange status
                                (if range (list* :content-range range headers) headers)
                                part)))))))

(defun sent-from-descriptor-p (exchange status headers pathname)
  "Sends the file PATHNAME through a descriptor; NIL where it is no readable regular file."
  (call-with-file pathname (exchange-http exchange)
                  (lambda (part version)
                    (send-version exchange status headers part version))))

;;; On Lisps without descriptors

(defun file-octets (pathname)
  "All octets of the file PATHNAME; NIL where there is none."
  (with-open-file (stream pathname :element-type 'octet :if-does-not-exist nil)
    (when stream
      (let ((octets (make-octets (file-length stream))))
        (read-sequence octets stream)
        octets))))

(defun sent-from-memory-p (exchange status headers pathname)
  "Reads the file PATHNAME into memory and sends it; NIL where there is none."
  (let ((octets (and (pathname-name pathname) (file-octets pathname))))
    (when octets
      (send-octet-vector exchange status headers octets)
      t)))

(defun send-file-response (exchange status headers pathname)
  "Sends the file PATHNAME, or the part for which the client has asked, with STATUS and HEADERS.
Without a Content-Type in HEADERS, the name of the file gives one, as with Clack's other handlers.
Sends 404 where there is no readable file."
  (let ((headers (with-content-type headers
                   (or (media-type-of-file pathname) "application/octet-stream"))))
    (unless (if (readiness-supported-p)
                (sent-from-descriptor-p exchange status headers pathname)
                (sent-from-memory-p exchange status headers pathname))
      (send-text exchange 404 "There is no such file."))))
