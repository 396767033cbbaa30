(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; The compression of replies, which an application asks for.
;;;;
;;;;   a reply                                              is sent
;;;;   of another type than the application wants, short,   unchanged
;;;;   coded already, with no-transform, or a part
;;;;   to a client that accepts none of the codings         unchanged, with Vary
;;;;   to any other client                                  coded, with Vary, and its strong entity
;;;;                                                        tag marked
;;;;
;;;; So that programs find their own entity tags in If-Match and If-None-Match, the mark of the
;;;; coding that the client likes best is removed from these.
;;;;
;;;;   what is compressed                 by
;;;;   whole content, and what a handler  the compressor of the worker for this coding, which is
;;;;   writes                             made when first needed
;;;;   what any thread writes             a compressor of its own
;;;;
;;;; What the memory budget has no room for is sent unchanged, but for what a handler writes.

(defstruct (compression (:include opaque) (:copier nil)
                        (:constructor make-compression (codings least types)))
  "What of an application's replies is compressed."
  (codings '() :type list :read-only t)
  (least 0 :type index :read-only t)    ; in octets
  (types '() :type list :read-only t))

(defparameter *most-of-file* (* 1024 1024)
  "Files of more octets are not compressed for each reply: a program has siblings of them.")

(defun compression-of (codings least types)
  "The COMPRESSION for arguments of an application; NIL where CODINGS, a list, or T for all, are
none.  Signals UNFIT-ARGUMENT where a library is missing."
  (let ((codings (if (eq t codings) '(:zstd :gzip) codings)))
    (dolist (coding codings)
      (unless (and (fboundp 'coding-library-p) (funcall 'coding-library-p coding))
        (unfit :compression " needs the library ~A, which cannot be loaded"
               (ecase coding (:gzip "libz") (:zstd "libzstd")))))
    (and codings (make-compression codings least types))))

(defun coding-of-client (exchange)
  "The coding that the client of EXCHANGE likes best of those that its application has; or NIL."
  (let ((compression (application-compression (exchange-application exchange)))
        (accepted (head-header (exchange-head exchange) :accept-encoding)))
    (and compression accepted
         (first (accepted-codings accepted (compression-codings compression))))))

(defun headers-for-program (exchange)
  "The header fields of the request of EXCHANGE, an alist, in which the entity tags have no mark of
the coding that its client would get."
  (let* ((headers (head-headers (exchange-head exchange)))
         (coding (and (or (assoc :if-none-match headers) (assoc :if-match headers))
                      (coding-of-client exchange))))
    (if coding
        (loop for (name . value) in headers
              collect (cons name (if (member name '(:if-none-match :if-match))
                                     (unmarked-tags value coding)
                                     value)))
        headers)))

(defun coding-of-reply (exchange status length type encoding cache-control file-p)
  "The coding for the reply of EXCHANGE with STATUS, LENGTH octets, of a file if FILE-P, or NIL if
that is unknown, and the header fields Content-Type, Content-Encoding and Cache-Control, each a
string or NIL; NIL for none.  The second value is true when that depends on the client (RFC 9110,
section 12.5.5).  The application of EXCHANGE has a COMPRESSION."
  (let ((compression (application-compression (exchange-application exchange))))
    (cond ((= 304 status) (values nil t)) ; its content might have depended on that
          ((and (/= 206 status)
                (or (null length)
                    (<= (compression-least compression) length (if file-p *most-of-file* length)))
                (null encoding)
                type
                (media-type-among-p type (compression-types compression))
                (not (and cache-control
                          (search "no-transform" (princ-to-string cache-control)
                                  :test #'char-equal))))
           (values (coding-of-client exchange) t)))))

(defun tag-to-send (exchange status tag coding)
  "TAG, an entity tag, a string, that a program gives the reply of EXCHANGE with STATUS and CODING,
or NIL, as the client gets it."
  (flet ((marked (coding)
           (if (uiop:string-prefix-p "\"" tag) (coded-tag tag coding) tag)))
    (cond (coding (marked coding))
          ;; The client has the coded content.
          ((= 304 status)
           (let ((marked (marked (coding-of-client exchange)))
                 (known (head-header (exchange-head exchange) :if-none-match)))
             (if (and known (search marked known)) marked tag)))
          (t tag))))

;;; Octets

(defparameter *compressor-octets* (list :gzip (* 268 1024) :zstd (* 1792 1024))
  "How many octets of memory a compressor has, by coding.")

(defun compress (compressor octets start end operation put
                 &optional (content (funcall 'compressor-content compressor)))
  "Compresses OCTETS from START to END as RUN-COMPRESSOR does, and calls PUT with each vector of
output, and its end."
  (let ((buffer (take-buffer)))
    (loop
      (multiple-value-bind (taken made done-p)
          (funcall 'run-compressor compressor content octets start end buffer operation)
        (incf start taken)
        (when (plusp made)
          (funcall put buffer made))
        (cond (done-p (return (return-buffer buffer)))
              ((= 0 taken made) (error "A compressor has failed.")))))))

(defun compressor-of-worker (coding)
  "The compressor for CODING of the current worker, prepared for another content."
  (let ((known (getf (worker-buffers-compressors *worker-buffers*) coding)))
    (if known
        (funcall 'reset-compressor known)
        (setf (getf (worker-buffers-compressors *worker-buffers*) coding)
              (funcall 'make-compressor coding)))))

(defun compressed (coding append)
  "The content that APPEND, a function, appends to an OUTPUT, or returns as octets or a PART of a
file in a list, in CODING, a fresh vector."
  (let* ((pieces '())
         (plain (reset-output (worker-buffers-plain *worker-buffers*)))
         (rest (funcall append plain))
         (compressor (compressor-of-worker coding)))
    (flet ((add (octets end operation)
             (compress compressor octets 0 end operation
                       (lambda (octets end) (push (subseq (the octets octets) 0 end) pieces)))))
      (etypecase rest
        (null (add (output-octets plain) (output-fill plain) :finish))
        (octets (add rest (length rest) :finish))
        (list (loop with (file) = rest  ; all of one
                    with octets = (make-octets +buffer-size+)
                    for position from 0 below (part-end file) by +buffer-size+
                    for count = (min +buffer-size+ (- (part-end file) position))
                    do (unless (read-file-octets (part-file file) position octets 0 count)
                         (error "A file became shorter while it was read."))
                       (add octets count :go-on)
                    finally (add octets 0 :finish)))))
    (let ((coded (make-octets (loop for piece in pieces sum (length (the octets piece))))))
      (loop for end = (length coded) then (- end (length piece))
            for piece of-type octets in pieces
            do (replace coded piece :start1 (- end (length piece))))
      coded)))

(defun code-content (coding wanted-p length append)
  "The length of LENGTH octets of content in CODING, or NIL for none; a function that appends them,
as APPEND does in no coding; and CODING, or NIL where there is no memory for it.  The length is NIL
where it is not known, since the content is not WANTED-P."
  (let ((reserved 0)
        (most (* 3 (or length 0))))     ; the content, its pieces in CODING, and these in one vector
    (cond ((null coding) (values length append nil))
          ((not wanted-p) (values nil append coding))
          ((not (and (make-room-in-heap most)
                     (change-reservation reserved most :share *waiting-share*)))
           (values length append nil))
          (t
           (let ((octets (unwind-protect (compressed coding append)
                           (change-reservation reserved 0))))
             (values (length octets)
                     (lambda (reply) (if (encode-body reply octets) nil octets))
                     coding))))))
