(in-package #:hunchentoot-recycling-taskmaster.http2)

;;;; A stream, which carries one request and its reply: a virtual connection.  All but its making of
;;;; an HTTP connection happens under the lock of its session.
;;;;
;;;;   REPLY      what comes next from the queue
;;;;   :HEAD      a head in the form of HTTP/1.1
;;;;   :CONTENT   content, LEFT octets of which are announced
;;;;   :ENDED     nothing: the reply was submitted whole, or the stream is reset

(defvar *session* nil
  "The session for which the current thread is in libnghttp2.")

(defstruct (session (:include suspended-exchange) (:copier nil))
  "The HTTP/2 of one client."
  (streams-lock (bt:make-lock "HTTP/2") :read-only t)
  (pointer nil)                         ; of libnghttp2; NIL when it is over
  (most 0 :type fixnum :read-only t)    ; streams at a time
  (limits nil :read-only t)
  (read-p nil)                          ; a head is being read, and these are its fields, the last
  (fields '())                          ; first, how many there are, and their octets; or :TOO-LARGE
  (field-count 0 :type fixnum)
  (field-octets 0 :type fixnum)
  (events '() :type list)               ; streams that have something for a worker
  (reserved 0 :type index)              ; octets of content that no stream has taken yet
  ;; Within the last seconds, since a moment in MILLISECONDS: resets and refusals, and frames that
  ;; carry nothing.
  (counted-since 0 :type fixnum)
  (resets 0 :type fixnum)
  (trifles 0 :type fixnum)
  (flooded-p nil)
  (farewell nil :type (member nil :notice :last)) ; the GOAWAY that was sent
  (noticed 0 :type fixnum)              ; when the first was
  (over-p nil)                          ; no more frames are expected
  ;; How many octets the client had not got at the last look, and when that was less than before.
  (left most-positive-fixnum :type fixnum)
  (moved 0 :type fixnum)
  (scratch (make-octets 0) :type octets)) ; for octets of files

(defstruct (http2-stream (:include virtual-connection) (:conc-name stream-)
                         (:constructor make-http2-stream
                             (id session peer queue fields content-p chunks-p))
                         (:copier nil))
  "One stream of SESSION."
  (id 0 :type fixnum :read-only t)
  (session nil :read-only t)
  (fields '())                          ; of its head, until that is made; or :TOO-LARGE
  (content-p nil :read-only t)
  (chunks-p nil :read-only t)           ; its content has no length, and is given as chunks
  (arrived '() :type list)              ; conses of octets and how many of them the window counts,
  (last '() :type list)                 ; and the last cons of that list, if there is one
  (taken 0 :type index)                 ; octets of the first of them
  (bodyless-p nil)                      ; the reply is to HEAD
  (reply :head :type (member :head :content :ended))
  (left nil :type (or null unsigned-byte))
  (armed-p nil))                        ; an event is to be made when its queue is empty

(defun session-queue (session)
  "The send queue of the connection of SESSION."
  (connection-queue (suspended-exchange-connection session)))

(defmacro with-library ((session) &body body)
  "Evaluates BODY, which is short and does not wait, unless SESSION is over, while no other thread
uses it."
  (let ((value (gensym "SESSION")))
    `(let ((,value ,session))
       (with-lock-briefly ((session-streams-lock ,value))
         (when (session-pointer ,value)
           (let ((*session* ,value))
             ,@body))))))

(defmacro with-session ((session) &body body)
  "Evaluates BODY as WITH-LIBRARY does, and then sends what SESSION has."
  (let ((value (gensym "SESSION")) (more-p (gensym "MORE-P")))
    `(let ((,value ,session) (,more-p nil))
       (multiple-value-prog1 (with-library (,value)
                               (multiple-value-prog1 (progn ,@body)
                                 (setf ,more-p (wants-p ,value "write"))))
         (when ,more-p
           (send-more (session-queue ,value)))))))

(defmacro wants-p (session what)
  "True if SESSION wants to \"read\" or to \"write\", as WHAT says."
  `(plusp (nghttp2 :int ,(concatenate 'string "session_want_" what) (session-pointer ,session))))

(defun call-workers (session &optional (wake-p t))
  "Has workers called for the streams of SESSION that have something for them; not WAKE-P is for one
that will look itself."
  (let ((events (shiftf (session-events session) '())))
    (when events
      (queue-events (suspended-exchange-engine session) (nreverse events) nil wake-p))))

(defun find-stream (session id)
  "The stream ID of SESSION that is not released yet; or NIL."
  (declare (type fixnum id))
  (loop for stream across (connection-virtuals (suspended-exchange-connection session))
        when (and stream (= id (stream-id stream)))
          return stream))

(defun stream-count (session)
  "How many streams of SESSION are not released yet."
  (count-if #'identity (connection-virtuals (suspended-exchange-connection session))))

;;; Its beginning

(defun enter-stream (session stream)
  "Makes STREAM one of SESSION."
  (let* ((connection (suspended-exchange-connection session))
         (streams (connection-virtuals connection))
         (place (position nil streams)))
    (unless place
      (setf place (length streams)
            (connection-virtuals connection)
            (replace (make-array (* 2 place) :initial-element nil) streams)))
    (incf (connection-served connection))
    (setf (svref (connection-virtuals connection) place) stream)))

(defun begin-stream (session id content-p)
  "Makes the stream ID of SESSION, whose head has come.  Content follows if CONTENT-P."
  (let* ((base (suspended-exchange-connection session))
         (fields (shiftf (session-fields session) '()))
         (queue (make-send-queue +no-descriptor+ (session-streams-lock session)))
         (stream (make-http2-stream
                  id session (connection-peer base) queue
                  (if (listp fields) (nreverse fields) fields)
                  content-p
                  (and content-p
                       (not (and (listp fields)
                                 (assoc #.(map 'octets #'char-code "content-length") fields
                                        :test #'equalp)))))))
    (setf (send-queue-carrier queue) (connection-queue base)
          (send-queue-sender queue) (lambda (parts)
                                      (declare (ignore parts))
                                      (advance stream)
                                      +would-block+)
          (send-queue-arm queue) (lambda ()
                                   (when (send-queue-parts queue)
                                     (setf (stream-armed-p stream) t)))
          (send-queue-shut queue) (lambda ()
                                    (reset-stream stream +cancel+)
                                    (queue-events (suspended-exchange-engine session)
                                                  (list stream))))
    (enter-stream session stream)
    (push stream (session-events session))))

(defmethod begin-http-connection (application (stream http2-stream))
  (let* ((session (stream-session stream))
         (base (connection-data (suspended-exchange-connection session)))
         (limits (application-limits application))
         (socket (connection-usocket stream))
         (io (socket-io socket)))
    (limit-waits socket (read-seconds application))
    (limit-taking (connection-queue stream) (write-seconds application)
                  (limits-reply-rate limits))
    (setf (io-connection io) stream
          (io-receiver io) (lambda (octets start end)
                             (take-content-of stream octets start end)))
    (let* ((fields (shiftf (stream-fields stream) '()))
           (head (handler-case (if (listp fields)
                                   (make-http/2-head fields (stream-content-p stream) limits)
                                   (make-refusal :headers-too-large))
                   (protocol-error (refusal) refusal))))
      (setf (stream-bodyless-p stream) (and (typep head 'head) (eq :head (head-method head)))
            (connection-data stream)
            (make-http-connection :phase :requests :base io :io io :stream (io-stream io)
                                  :carrier base :head head
                                  :remote (http-remote base) :local (http-local base)
                                  :trusted (http-trusted base))))))

;;; Its content

(defun put-content (stream octets size)
  "Adds OCTETS, for which the window counts SIZE, to the content of STREAM."
  (let ((session (stream-session stream)))
    (change-reservation (session-reserved session) (+ size (session-reserved session)) :share nil)
    (cond ((stream-arrived stream)
           (push (cons octets size) (cdr (stream-last stream)))
           (pop (stream-last stream)))
          (t
           (push stream (session-events session))
           (setf (stream-arrived stream) (list (cons octets size))
                 (stream-last stream) (stream-arrived stream))))))

(defun consume (session id size)
  "Opens the windows of SESSION and of its stream ID, if that is one yet, by SIZE."
  (change-reservation (session-reserved session) (- (session-reserved session) size))
  (nghttp2 :int "session_consume" (session-pointer session) (:int32 id) (:size size)))

(defun take-content-of (stream octets start end)
  "Takes content of STREAM into OCTETS from START below END.  Returns what RECEIVE-OCTETS does."
  (let ((session (stream-session stream))
        (position start))
    (with-session (session)
      (loop for (found . size) = (first (stream-arrived stream))
            while (and found (< position end))
            do (let* ((taken (stream-taken stream))
                      (count (min (- end position) (- (length (the octets found)) taken))))
                 (replace octets (the octets found) :start1 position :start2 taken
                                                    :end2 (+ taken count))
                 (incf position count)
                 (cond ((< (+ taken count) (length found))
                        (setf (stream-taken stream) (+ taken count)))
                       (t
                        (setf (stream-taken stream) 0)
                        (pop (stream-arrived stream))
                        (when (plusp size)
                          (consume session (stream-id stream) size)))))))
    (cond ((< start position) (- position start))
          ((virtual-connection-over-p stream) 0)
          (t +would-block+))))

;;; Its reply

(defun advance (stream)
  "Gives the library what the queue of STREAM has."
  (let* ((session (stream-session stream))
         (*session* session))
    (when (session-pointer session)
      (loop while (eq :head (stream-reply stream))
            while (submit-head stream (connection-queue stream)))
      (case (stream-reply stream)
        (:content (nghttp2 :int "session_resume_data" (session-pointer session)
                           (:int32 (stream-id stream))))
        (:ended (note-sent (connection-queue stream)
                           (send-queue-size (connection-queue stream))))))))

(defparameter *status-name* (map 'octets #'char-code ":status")
  "The name of the field that has the status.")

(defun submit-head (stream queue)
  "Submits the head at the beginning of QUEUE, of STREAM.  NIL if it has not come whole."
  (let* ((part (first (send-queue-parts queue)))
         (octets (and part (the (or null octets) (part-octets part))))
         (start (if part (part-position part) 0))
         (end (and octets (encoded-head-end octets start (part-end part))))
         (length nil)
         (status 0))
    (cond ((null octets) nil)
          ((and (null end) (rest (send-queue-parts queue)))
           (merge-parts queue))
          ((null end) nil)
          (t
           (cffi:with-pointer-to-vector-data (from octets)
             (cffi:with-pointer-to-vector-data (name *status-name*)
               ;; 40 octets for each field, of which the head has 4 or more.
               (cffi:with-foreign-pointer (fields (* 10 (- end start)))
                 (let ((count 0))
                   (flet ((put (name name-size value value-size)
                            (let ((field (cffi:inc-pointer fields (* 40 count))))
                              (setf (cffi:mem-ref field :pointer 0) name
                                    (cffi:mem-ref field :pointer 8) value
                                    (cffi:mem-ref field :size 16) name-size
                                    (cffi:mem-ref field :size 24) value-size
                                    (cffi:mem-ref field :uint8 32) 0)
                              (incf count))))
                     (put name 7 (cffi:inc-pointer from (+ start 9)) 3)
                     (setf status
                           (map-encoded-head
                            (lambda (name name-start name-end value-start value-end)
                              (case name
                                ;; RFC 9113, section 8.2.2
                                ((:connection :keep-alive :proxy-connection :transfer-encoding
                                  :upgrade))
                                (t
                                 (when (eq :content-length name)
                                   (setf length (encoded-number octets value-start value-end)))
                                 (put (cffi:inc-pointer from name-start) (- name-end name-start)
                                      (cffi:inc-pointer from value-start)
                                      (- value-end value-start)))))
                            octets start end)))
                   (submit-fields stream status length fields count)))))
           (note-sent queue (- end start))
           t))))

(defun merge-parts (queue)
  "Makes one part of the first two of QUEUE, whose octets are a head that came in pieces."
  (destructuring-bind (first second &rest others) (send-queue-parts queue)
    (let ((octets (concatenate 'octets
                               (subseq (part-octets first) (part-position first) (part-end first))
                               (subseq (part-octets second) (part-position second)
                                       (part-end second)))))
      (setf (send-queue-parts queue) (cons (make-octets-part octets) others))
      (unless others
        (setf (send-queue-last queue) (send-queue-parts queue)))
      t)))

(defun submit-fields (stream status length fields count)
  "Submits FIELDS, a pointer to COUNT of them, with STATUS as the head of the reply of STREAM.
LENGTH is that of the content, if it is announced."
  (let ((pointer (session-pointer (stream-session stream)))
        (id (stream-id stream)))
    (cond ((eql 101 status)             ; there is none (RFC 9113, section 8.6)
           (reset-stream stream +internal-error+))
          ((< status 200)
           (nghttp2 :int32 "submit_headers" pointer (:uint8 0) (:int32 id) (cffi:null-pointer)
                    fields (:size count) (cffi:null-pointer)))
          ((or (stream-bodyless-p stream) (not (body-allowed-p status)) (eql 0 length))
           (setf (stream-reply stream) :ended)
           (nghttp2 :int "submit_response" pointer (:int32 id) fields (:size count)
                    (cffi:null-pointer)))
          (t
           (setf (stream-reply stream) :content
                 (stream-left stream) length)
           (cffi:with-foreign-pointer (provider 16)
             (setf (cffi:mem-ref provider :pointer 0) (cffi:null-pointer)
                   (cffi:mem-ref provider :pointer 8) (cffi:callback give-content))
             (nghttp2 :int "submit_response" pointer (:int32 id) fields (:size count)
                      provider))))))

(define-callback give-content :ssize
    ((pointer :pointer) (id :int32) (to :pointer) (size :size) (flags :pointer) (source :pointer)
     (data :pointer))
  ;; It copies content of the stream ID, as much as there is and a window for.
  (let* ((session *session*)
         (stream (find-stream session id))
         (left (and stream (stream-left stream)))
         (most (if left (min size left) size))
         (count (if stream (copy-parts session (connection-queue stream) to most) 0)))
    (flet ((end ()                      ; NGHTTP2_DATA_FLAG_EOF
             (setf (cffi:mem-ref flags :uint32) 1)
             count))
      (cond ((null stream) (end))       ; it was released, since its reply is over
            ((minusp count) count)
            (t
             (when left
               (decf (stream-left stream) count))
             (let ((queue (connection-queue stream)))
               (note-sent queue count)
               (when (eql 0 (stream-left stream))
                 (setf (stream-reply stream) :ended)
                 (note-sent queue (send-queue-size queue)))
               (when (and (null (send-queue-parts queue)) (shiftf (stream-armed-p stream) nil))
                 (push stream (session-events session))))
             (cond ((eql 0 (stream-left stream)) (end))
                   ((zerop count) +deferred+)
                   (t count)))))))

(defun copy-parts (session queue to size)
  "Copies up to SIZE octets of the parts of QUEUE to the pointer TO.  Returns how many; or
+STREAM-FAILED+ if a file has become shorter."
  (let ((count 0))
    (declare (type fixnum count))
    (dolist (part (send-queue-parts queue) count)
      (let* ((start (part-position part))
             (end (min (part-end part) (+ start (- size count))))
             (octets (part-octets part)))
        (when (part-file part)
          (when (< (length (session-scratch session)) (- end start))
            (setf (session-scratch session) (make-octets (max 16384 (- end start)))))
          (setf octets (session-scratch session))
          (unless (read-file-octets (part-file part) start octets 0 (- end start))
            (return +stream-failed+))
          (setf end (- end start)
                start 0))
        (cffi:with-pointer-to-vector-data (from octets)
          (cffi:foreign-funcall "memcpy" :pointer (cffi:inc-pointer to count)
                                         :pointer (cffi:inc-pointer from start)
                                         :size (- end start) :pointer))
        (when (= size (incf count (- end start)))
          (return count))))))

;;; Its end

(defun reset-stream (stream code)
  "Resets STREAM with CODE, unless its reply has ended."
  (let ((session (stream-session stream)))
    (when (and (session-pointer session) (not (eq :ended (stream-reply stream))))
      (setf (stream-reply stream) :ended)
      (nghttp2 :int "submit_rst_stream" (session-pointer session) (:uint8 0)
               (:int32 (stream-id stream)) (:uint32 code)))))

(defun note-reset (stream)
  "Notes that STREAM was closed by either side before its reply had ended."
  (setf (virtual-connection-over-p stream) t
        (stream-reply stream) :ended)
  (unless (send-queue-dead-p (connection-queue stream))
    (end-under-lock (connection-queue stream)))
  (push stream (session-events (stream-session stream))))

(defmethod release :around ((application http-service) (stream http2-stream))
  "Ends STREAM for its client, and returns NIL: nothing more is to be read of it."
  (unwind-protect (call-next-method)
    (let* ((session (stream-session stream))
           (http (connection-data stream))
           (connection (suspended-exchange-connection session)))
      (with-session (session)
        (let ((place (position stream (connection-virtuals connection))))
          (when place
            ;; The library asks for content, and finds that there is no stream any more.
            (if (and http (eq :over (http-phase http)) (eq :content (stream-reply stream))
                     (null (stream-left stream)))
                (nghttp2 :int "session_resume_data" (session-pointer session)
                         (:int32 (stream-id stream)))
                (reset-stream stream +internal-error+))
            (loop for (nil . size) in (shiftf (stream-arrived stream) '())
                  do (consume session (stream-id stream) size))
            (setf (svref (connection-virtuals connection) place) nil))))
      (when (session-farewell session)
        (resume session))))
  nil)
