(in-package #:hunchentoot-recycling-taskmaster)

;;;; The content of a request as a whole: all of it in a vector or a form, or dropped.  Forms with
;;;; files are uploads.lisp's.
;;;;
;;;; Hunchentoot takes whatever comes into memory, where it lengthens its vector for each few octets
;;;; that come in chunks, and copies it each time; and it takes parameters apart a character at a
;;;; time.  Where the content of a request is one of our own streams, its functions are wrapped, and
;;;; the same is done here, within limits; everywhere else Hunchentoot's run.

(defun own-content (request)
  "The content of REQUEST, if there is any and it is one of our own streams."
  (let ((content (request-content request)))
    (and (not (eq content *no-content*))
         (typep content 'content)
         content)))

(defun content-of (request head)
  "What OWN-CONTENT returns for REQUEST, whose HEAD says at once that most have none."
  (and (not (eq :none (head-framing head)))
       (own-content request)))

(defun content-asked-for-p (request)
  "True when a program has read the content of REQUEST, or has its stream."
  (slot-value request 'hunchentoot:raw-post-data))

(defun (setf raw-post-data*) (value request)
  (setf (slot-value request 'hunchentoot:raw-post-data) value))

;;; In a vector

(defun read-content (hunchentoots &rest arguments
                     &key (request hunchentoot:*request*) want-stream (already-read 0))
  "Reads the content of REQUEST, and leaves it there; by HUNCHENTOOTS, a function of ARGUMENTS,
where it is none of ours, or just its stream is wanted."
  (declare (dynamic-extent arguments))
  (let ((content (own-content request)))
    (cond ((or (null content) (plusp already-read))
           (apply hunchentoots arguments))
          (want-stream
           ;; Who reads content as it comes may have made up another pace with the client.
           (pace-io (content-io content) nil nil)
           (invite-content content)
           (apply hunchentoots arguments))
          ((and (headers-sent-p)        ; asked amid the reply, by Hunchentoot or who logs it
                (not (content-shared-p content)))
           (take-unasked request content (limits-raw-octets (content-limits content)))
           (content-asked-for-p request))
          (t
           (with-content-turn (content)
             (or (content-asked-for-p request) ; another thread has read it meanwhile
                 (keeping-content (content)
                   (setf (raw-post-data* request)
                         (read-all-content content (limits-raw-octets (content-limits content))
                                           :body-too-large)))))))))

(wrap-content-reader 'read-content)

;;; Parameters

(defparameter *form-type* "application/x-www-form-urlencoded")

(defun content-of-type-p (request type)
  "True when the Content-Type of REQUEST names the media type TYPE, whatever follows that."
  (let ((header (hunchentoot:header-in :content-type request)))
    (and header
         (media-type-p type header))))

(defun method-with-parameters-p (request)
  "True when REQUEST has one of the methods with which a form may come."
  (member (hunchentoot:request-method request) hunchentoot:*methods-for-post-parameters*
          :test #'eq))

(defun form-wanted-p (request force)
  "True when REQUEST, which has content of ours, has a form without files, and is to have its
parameters: because nobody has read it, or, if FORCE, once more."
  (let ((read (content-asked-for-p request)))
    (and (or (null read) (and force (typep read 'octets)))
         (method-with-parameters-p request)
         (content-of-type-p request *form-type*))))

(defun field-counter (content limit)
  "A function of octets of a form, a start and an end, that refuses CONTENT when there are more than
LIMIT fields, NIL for no limit, in all octets that it was called with."
  (let ((fields 1))
    (lambda (octets start end)
      (when limit
        (incf fields (octet-count (load-time-value (char-code #\&)) octets start end))
        (when (> fields limit)
          (refuse-content content :too-many-fields))))))

(defun form-octets (request content)
  "The octets of the form that REQUEST has as its CONTENT, which are left there too; no more than
the limits allow."
  (let* ((limits (content-limits content))
         (most (limits-form-octets limits))
         (judge (field-counter content (limits-field-count limits)))
         (read (content-asked-for-p request)))
    (cond ((null read)
           (keeping-content (content)
             (setf (raw-post-data* request)
                   (read-all-content content most :form-too-large judge))))
          ((and most (> (length read) most))
           (refuse-content content :form-too-large))
          (t
           (funcall judge read 0 (length read))
           read))))

(defconstant +octets-for-decoding+ 8
  "How many octets of memory an octet of a form takes when it is decoded: as a character of the
whole, and as one of a name or value.")

(defun read-form (request content external-format)
  "Gives REQUEST, which has a form as its CONTENT, the parameters in that, in EXTERNAL-FORMAT or, if
that is NIL, in Hunchentoot's default."
  (let* ((octets (form-octets request content))
         (default hunchentoot:*hunchentoot-default-external-format*)
         (ascii-p (and (null external-format) (encoding-of default) t)))
    (declare (type octets octets))
    (reserve-memory content (* +octets-for-decoding+ (length octets)))
    (setf (slot-value request 'hunchentoot:post-parameters)
          (query-alist (latin-1-text octets 0 (length octets)) (or external-format default)
                       ascii-p))))

(defun read-parameters (hunchentoots &rest arguments
                        &key (request hunchentoot:*request*) force external-format)
  "Sees to it that the parameters in the content of REQUEST are known; by HUNCHENTOOTS, a function
of ARGUMENTS, where that is none of ours."
  (declare (dynamic-extent arguments))
  (let ((content (own-content request)))
    ;; Most requests are asked, and have none.
    (if content
        (form-read-p request content force external-format)
        (apply hunchentoots arguments))))

(defun form-read-p (request content &optional force external-format)
  "Gives REQUEST, with CONTENT of ours, the parameters in the form that it has, in EXTERNAL-FORMAT
or, if that is NIL, in Hunchentoot's default; NIL where it has none, or, unless FORCE, it was read."
  (with-content-turn (content)
    (if (form-wanted-p request force)
        (progn (or-bad-request (read-form request content external-format))
               t)
        (let ((boundary (unread-boundary request)))
          (when boundary
            (or-bad-request (read-multipart request content boundary external-format))
            t)))))

(wrap-form-reader 'read-parameters)

;;; Received before the handler is called

(defun early-octets-of-type (limits type)
  "How many octets of content with TYPE, the text of a Content-Type or NIL, are received before its
handler is called, under LIMITS: no more than the handler could have as a whole, for more is
refused, or read as a stream.  Files of a form have no limit of their own."
  (let ((most (limits-early-octets limits))
        (whole (cond ((null type) (limits-raw-octets limits))
                     ((media-type-p "multipart/form-data" type) nil)
                     ((media-type-p *form-type* type) (limits-form-octets limits))
                     (t (limits-raw-octets limits)))))
    (if whole (min most whole) most)))

;;; Not read

(defun unshared-content-of (request head)
  "What CONTENT-OF returns for REQUEST, with HEAD, unless other threads may read it: then it was
received before."
  (let ((content (content-of request head)))
    (and content
         (not (content-shared-p content))
         content)))

(defun too-much-unasked-p (request head)
  "True when REQUEST, with HEAD, has content that nobody has asked for, and so much of it has yet to
come that the client will not be waited for."
  (let ((content (unshared-content-of request head)))
    (and content
         (not (content-asked-for-p request))
         (too-much-to-come-p content))))

(defun drop-unasked (request content)
  ;; For Hunchentoot T is: not to be read again.
  (setf (raw-post-data* request) t)
  (drop-content content *unasked-limit*))

(defun take-unasked (request content most)
  "Takes the CONTENT of REQUEST, which nobody has asked for, before the reply is sent.  It is kept
as raw post data if it has not more than MOST octets, an integer or NIL for no limit, otherwise
dropped.  Where not all of it has been taken then, this is the last request of its connection."
  (let ((size (content-size content)))
    (unless (handler-case
                (if (or (not (content-readable-p content))
                        (content-invite content)
                        (and size most (> size most)))
                    (drop-unasked request content)
                    (setf (raw-post-data* request)
                          (read-all-content content most :body-too-large)))
              ;; The handler did without it, so its reply is sent.
              (protocol-error () nil))
      (setf (raw-post-data* request) t)
      (note-event *exchange* :request-fault))))

(defun take-what-was-not-read (request head)
  "Takes the content of REQUEST, with HEAD, that nobody has asked for before the reply is sent, as
Hunchentoot does: there are clients that look for a reply only when they have sent all.  A little is
kept, as there, for methods after this; much is dropped, or a client could fill the memory with it."
  (let ((content (unshared-content-of request head)))
    (cond ((or (null content) (content-asked-for-p request)))
          ((content-size content)
           (take-unasked request content *unread-limit*))
          (t
           (drop-unasked request content)))))
