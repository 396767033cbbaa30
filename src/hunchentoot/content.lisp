(in-package #:hunchentoot-recycling-taskmaster)

;;;; The content of a request as a whole: all of it in a vector or a form, or dropped.  Forms with
;;;; files are uploads.lisp's.
;;;;
;;;; Hunchentoot lengthens its vector for each few octets that come in chunks, and copies it each
;;;; time; and it takes parameters apart a character at a time.  Where the content of a request is
;;;; one of our own streams, its functions are wrapped, and the same is done here; everywhere else,
;;;; and for what is not as usual, Hunchentoot's run.

(deftype own-content ()
  "What our own code reads content from."
  '(or content-stream chunked-content))

(defun content-asked-for-p (request)
  "True when a program has read the content of REQUEST, or has its stream."
  (slot-value request 'hunchentoot:raw-post-data))

;;; In a vector

(defun read-content (hunchentoots &rest arguments
                     &key (request hunchentoot:*request*) want-stream (already-read 0))
  "Reads the content of REQUEST, and leaves it there; by HUNCHENTOOTS, a function of ARGUMENTS, save
what comes in chunks."
  (declare (dynamic-extent arguments))
  (let ((content (request-content request)))
    (if (and (typep content 'chunked-content) (not want-stream) (zerop already-read))
        (setf (slot-value request 'hunchentoot:raw-post-data) (read-all-content content))
        (apply hunchentoots arguments))))

(wrap-content-reader 'read-content)

;;; Parameters

(defun usual-form-p (request force)
  "True when REQUEST has a form of the usual type and encoding, and is to have its parameters: because
nobody has read it, or, if FORCE, once more."
  (let ((content (request-content request)))
    ;; Most requests are asked, and have none.
    (and (not (eq content *no-content*))
         (typep content 'own-content)
         (let ((read (content-asked-for-p request)))
           (or (null read) (and force (typep read 'octets))))
         (member (hunchentoot:request-method request) hunchentoot:*methods-for-post-parameters*
                 :test #'eq)
         (string-equal "application/x-www-form-urlencoded"
                       (hunchentoot:header-in :content-type request))
         (encoding-of hunchentoot:*hunchentoot-default-external-format*))))

(defun read-parameters (hunchentoots &rest arguments
                        &key (request hunchentoot:*request*) force external-format)
  "Sees to it that the parameters in the content of REQUEST are known; by HUNCHENTOOTS, a function of
ARGUMENTS, save those of usual forms."
  (declare (dynamic-extent arguments))
  (if (and (null external-format) (usual-form-p request force))
      (or-bad-request
        (let ((octets (coerce (hunchentoot:raw-post-data :request request :force-binary t)
                              'octets)))
          (setf (slot-value request 'hunchentoot:post-parameters)
                (decoded-alist (latin-1-text octets 0 (length octets))
                               hunchentoot:*hunchentoot-default-external-format*))))
      (apply hunchentoots arguments)))

(wrap-form-reader 'read-parameters)

;;; Not read

(defun too-much-unasked-p (request head)
  "True when REQUEST has content for which its client will not be waited, see *UNASKED-LIMIT*."
  (let ((size (head-framing head)))
    (and (integerp size)
         (> size *unasked-limit*)
         (not (content-asked-for-p request)))))

(defun take-what-was-not-read (request head)
  "Takes the content of REQUEST that nobody has asked for before the reply is sent, as Hunchentoot
does: there are clients that look for a reply only when they have sent all.  A little is kept, as
there, for methods after this; much is dropped, or a client could fill the memory with it."
  (let ((framing (head-framing head)))
    (handler-case
        (cond ((or (eq framing :none) (content-asked-for-p request)))
              ((and (integerp framing) (<= framing *unread-limit*))
               (hunchentoot:raw-post-data :force-binary t))
              (t
               ;; For Hunchentoot that is: not to be read again.
               (setf (slot-value request 'hunchentoot:raw-post-data) t)
               (drop-content (request-content request) *unasked-limit*)))
      ;; The handler did without it, so its reply is sent; then the connection is closed.
      (protocol-error () nil))))
