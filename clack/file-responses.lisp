(in-package #:clack.handler.recycling)

;;;; Files as responses: from the system's cache to the socket, as a whole, in part, or not at all,
;;;; where the client has them already.

(defun version-headers (headers version)
  "HEADERS, a plist, and what is known of the VERSION of a file where they do not say it."
  (flet ((add (name value)
           (unless (header name headers)
             (setf headers (list* name value headers)))))
    (add :last-modified (version-date version))
    (add :etag (version-tag version))
    (add :accept-ranges "bytes")
    headers))

(defun send-part-of-file (exchange status headers part)
  "Sends PART, of a file, as the content of a response with STATUS and HEADERS."
  (flet ((append-it (reply)
           (append-file reply part)))
    (declare (dynamic-extent #'append-it))
    (send-whole exchange status headers (- (part-end part) (part-position part)) #'append-it)))

(defun send-version (exchange status headers part version)
  "Sends what the client wants of PART, the VERSION of a file."
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
             (send-text exchange status "The file has no such range."
                        (list :content-range range))
             (send-part-of-file exchange status
                                (if range (list* :content-range range headers) headers)
                                part)))))))

(defun sent-from-descriptor-p (exchange status headers pathname)
  "Sends the file PATHNAME by its descriptor; NIL where that is no regular file that can be read."
  (call-with-file pathname (exchange-http exchange)
                  (lambda (part version)
                    (send-version exchange status headers part version))))

;;; Where files are not descriptors

(defun file-octets (pathname)
  "All octets of the file PATHNAME; NIL where there is none."
  (with-open-file (stream pathname :element-type 'octet :if-does-not-exist nil)
    (when stream
      (let ((octets (make-octets (file-length stream))))
        (read-sequence octets stream)
        octets))))

(defun sent-from-memory-p (exchange status headers pathname)
  "Sends the file PATHNAME by way of memory; NIL where there is none."
  (let ((octets (and (pathname-name pathname) (file-octets pathname))))
    (when octets
      (send-octet-vector exchange status headers octets)
      t)))

(defun send-file-response (exchange status headers pathname)
  "Sends the file PATHNAME with STATUS and HEADERS, or as much of it as the client wants; or 404
where there is none that can be read."
  (let ((headers (with-content-type headers (type-of-named-file pathname))))
    (unless (if (readiness-supported-p)
                (sent-from-descriptor-p exchange status headers pathname)
                (sent-from-memory-p exchange status headers pathname))
      (send-text exchange 404 "There is no such file."))))
