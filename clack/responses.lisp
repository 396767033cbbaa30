(in-package #:clack.handler.recycling)

;;;; Whole responses as octets.  A response is a list (STATUS HEADERS BODY); HEADERS is a plist,
;;;; whose names may repeat.
;;;;
;;;;   BODY                     the server sends
;;;;   NIL                      a head
;;;;   a list                   its elements, strings in UTF-8 and octets, one after the other
;;;;   octets                   these octets
;;;;   a pathname               the file, ranges of it, or nothing where the client has this version
;;;;   not in the list          a head, and the pieces that the application gives to the writer; see
;;;;                            later-responses.lisp

(define-condition unfit-response (recycling-error)
  ((response :initarg :response :reader unfit-response-response))
  (:report (lambda (condition stream)
             (let ((*print-length* 10) (*print-level* 4))
               (format stream "The application has returned ~S, which is not a Clack response."
                       (unfit-response-response condition)))))
  (:documentation "Signalled when an application returns something that is not a response."))

(defun check-response (response)
  "Signals UNFIT-RESPONSE unless RESPONSE is a list of a final status (RFC 9110, section 15), and
perhaps a list of headers and a body."
  (unless (typep response '(cons (or (eql 101) (integer 200 999))
                            (or null
                                (cons list
                                 (or null
                                     (cons (or list pathname (vector octet)) null))))))
    (error 'unfit-response :response response)))

;;; Headers

(defun header-name (name)
  "NAME, of a header that an application has set, as a keyword if such a keyword exists, else as a
string."
  (if (keywordp name)
      name
      (or (find-symbol (string-upcase name) '#:keyword)
          (string name))))

(defun header (name headers)
  "The value of the first header NAME, a keyword, in the plist HEADERS; NIL where there is none."
  (loop for (other value) on headers by #'cddr
        when (eq name (header-name other))
          return value))

(defun announced-length (headers)
  "The Content-Length in HEADERS, an integer, or NIL where there is no valid one."
  (let* ((value (header :content-length headers))
         (length (if (stringp value) (parse-integer value :junk-allowed t) value)))
    (and (typep length 'content-size) length)))

(defun coding-of-response (exchange status headers &optional length type file-p)
  "The values of CODING-OF-REPLY for the response to EXCHANGE with STATUS, HEADERS, LENGTH and
FILE-P.  TYPE is the Content-Type where HEADERS have none."
  (and (application-compression (exchange-application exchange))
       (coding-of-reply exchange status length (or (header :content-type headers) type)
                        (header :content-encoding headers) (header :cache-control headers)
                        file-p)))

(defun encode-response-head (reply exchange status headers framing &optional type coding varied-p)
  "Appends the head of the response to EXCHANGE, with STATUS and HEADERS, to REPLY, an empty OUTPUT.
FRAMING is the number of octets of content, :CHUNKED, or NIL if the content ends with the
connection.  TYPE is the Content-Type where HEADERS have none, or NIL.  CODING and VARIED-P are the
values of CODING-OF-REPLY.  True if content follows.  Signals INVALID-HEADER."
  (let ((allowed-p (body-allowed-p status)) (said nil) (server-p nil)
        (wanted-p (content-wanted-p (head-method (exchange-head exchange)) status)))
    (encode-status-line reply status)
    (loop for (name value) on headers by #'cddr
          when value
            do (let ((name (header-name name)))
                 (case name
                   ;; The server sets these itself.
                   ((:content-length :transfer-encoding :keep-alive :date))
                   (:connection
                    (unless said
                      (setf said value)))
                   (:content-type
                    (setf type nil)
                    (when allowed-p
                      (encode-header reply name value)))
                   (:etag
                    (encode-header reply name (tag-to-send exchange status value coding)))
                   (t
                    (when (eq name :server)
                      (setf server-p t))
                    (encode-header reply name value)))))
    (when (and type allowed-p)
      (encode-header reply :content-type type))
    (when (and varied-p (not (equal "Accept-Encoding" (header :vary headers))))
      (encode-header reply :vary "Accept-Encoding"))
    (when coding
      (encode-header reply :content-encoding (coding-name coding)))
    (unless server-p
      (encode-header reply :server "recycling"))
    (cond ((not (and allowed-p framing)))
          ((eq :chunked framing) (encode-header reply :transfer-encoding "chunked"))
          (t (encode-header reply :content-length framing)))
    (multiple-value-bind (connection keep-alive)
        (settle-reply-connection exchange status
                                 (and (or framing (not wanted-p))
                                      (not (last-of-connection-p exchange)))
                                 said)
      (when (eql 101 status)
        (setf connection (or said "upgrade")))
      (when connection
        (encode-header reply :connection connection))
      (when keep-alive
        (encode-header reply :keep-alive keep-alive))
      (encode-date reply (get-universal-time))
      (encode-octets reply *line-end*)
      wanted-p)))

;;; Whole responses

(defun send-whole (exchange status headers length body &optional type)
  "Sends the response to the request of EXCHANGE with STATUS, HEADERS and LENGTH octets of content:
BODY, octets, a list of elements, or one of parts (see PART).  TYPE is as in ENCODE-RESPONSE-HEAD."
  (flet ((append-it (reply)
           (etypecase body
             ((cons part) (append-parts reply body))
             (list
              (dolist (element body)
                (etypecase element
                  (string (encode-string reply element :utf-8))
                  (null)
                  ((vector octet) (encode-octets reply (coerce element 'octets))))))
             (octets (if (encode-body reply body) nil body)))))
    (declare (dynamic-extent #'append-it))
    (multiple-value-bind (coding varied-p)
        (coding-of-response exchange status headers length type (typep body '(cons part)))
      (multiple-value-bind (length append coding)
          (code-content coding
                        (content-wanted-p (head-method (exchange-head exchange)) status)
                        length #'append-it)
        (with-reply (reply)
          (let ((rest (and (encode-response-head reply exchange status headers length type
                                                 coding varied-p)
                           (funcall append reply))))
            (note-event exchange :reply)
            (send-reply (http-io (exchange-http exchange)) reply rest)
            (note-event exchange :reply-end)))))))

(defun send-response (exchange response)
  "Sends RESPONSE, which CHECK-RESPONSE has let pass, to the request of EXCHANGE."
  (destructuring-bind (status &optional headers body) response
    (etypecase body
      (list
       (send-whole exchange status headers
                   ;; For HEAD, the application may announce the length that GET would have.
                   (or (and (eq :head (head-method (exchange-head exchange)))
                            (every #'null body)
                            (announced-length headers))
                       (loop for element in body
                             sum (etypecase element
                                   (string (encoded-length element :utf-8))
                                   (null 0)
                                   ((vector octet) (length element)))
                               of-type index))
                   body
                   ;; Applications rely on it, as Clack's handler for Hunchentoot has it.
                   (and (some #'stringp body) "text/html; charset=utf-8")))
      (pathname (send-file-response exchange status headers body))
      ((vector octet)
       (send-whole exchange status headers (length body) (coerce body 'octets))))))

(defun send-text (exchange status text &optional headers)
  "Sends TEXT, in ASCII, as the response to EXCHANGE, with STATUS and additional HEADERS, a plist."
  (send-response exchange (list status
                                (list* :content-type "text/plain; charset=us-ascii" headers)
                                (list text))))

;;; Files

(defun send-file-response (exchange status headers pathname)
  "Sends the file PATHNAME, or a compressed sibling of it, or the ranges for which the client has
asked, with STATUS and HEADERS.  Without a Content-Type in HEADERS, the name of the file gives one,
as with Clack's other handlers.  Sends 404 where there is no readable file."
  (let* ((tag (header :etag headers))
         (siblings-p (and (server-precompressed-files-p (exchange-application exchange))
                          (null tag)    ; the application's, for the file itself
                          (null (header :content-encoding headers))))
         (type (or (media-type-of-file pathname t) "application/octet-stream")))
    (flet ((send (status parts facts)
             (let ((all (append (and siblings-p '(:vary "Accept-Encoding"))
                                facts
                                (loop for (name value) on headers by #'cddr
                                      unless (getf facts (header-name name))
                                        collect name and collect value))))
               (case status
                 ((412 416)
                  (send-text exchange status "The file, or a part of it, is not as asked for."
                             facts))
                 (t
                  (send-whole exchange status all (parts-size parts) parts type))))))
      (cond ((answer-with-file pathname exchange status siblings-p tag
                               (or (header :content-type headers) type) #'send))
            ((and (not (readiness-supported-p))
                  (pathname-name pathname) ; or it is a folder
                  (with-open-file (stream pathname :element-type 'octet :if-does-not-exist nil)
                    (when stream
                      (let ((octets (make-octets (file-length stream))))
                        (read-sequence octets stream)
                        (send-whole exchange status headers (length octets) octets type)
                        t)))))
            (t
             (send-text exchange 404 "There is no such file."))))))
