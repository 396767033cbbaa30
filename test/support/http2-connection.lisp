(in-package #:hunchentoot-recycling-taskmaster-test)

;;; A client's end of a connection that speaks HTTP/2, by libnghttp2, to tests that speak HTTP/1.1:
;;; a request that they send becomes one of HTTP/2, and what comes is given in the form of HTTP/1.1,
;;; the responses in the order of their requests.  Content without a length comes in chunks.  A
;;; stream that is reset is the end of the connection, and so is a request that says so.

(defvar *http2* nil
  "The connection for which the current thread is in libnghttp2.")

(defstruct (http2-connection (:include connection)
                             (:constructor make-http2-connection
                                 (socket &aux (pointer (client-session)))))
  "A connection of the test client over HTTP/2."
  pointer
  (lock (bt:make-recursive-lock "client"))
  (unsent (octets))                     ; what was sent and is no whole head, or content
  (exchanges '()))                      ; the oldest first

(defstruct (http2-exchange (:conc-name x-) (:constructor make-x (head-p last-p)))
  "A request and its response.  BODY-LEFT is how much of the content of the request is still to be
sent: a number, a decoder of chunks, or NIL for none."
  id head-p last-p body-left (body (octets)) (sent 0)
  (fields '()) (output (octets)) (position 0) chunked-p state)

(defun find-x (id)
  (find id (http2-connection-exchanges *http2*) :key #'x-id))

(defmacro append-to-x (place &rest parts)
  `(setf ,place (octets ,place ,@parts)))

;;; What libnghttp2 tells

(http2::define-callback client-field :int
    ((session :pointer) (frame :pointer) (name :pointer) (name-size :size) (value :pointer)
     (value-size :size) (flags :uint8) (data :pointer))
  (let ((x (find-x (http2::frame-stream frame))))
    (when x
      (push (cons (decode (http2::octets-at name name-size) :latin-1)
                  (decode (http2::octets-at value value-size) :latin-1))
            (x-fields x)))
    0))

(http2::define-callback client-frame :int ((session :pointer) (frame :pointer) (data :pointer))
  (let ((x (find-x (http2::frame-stream frame))))
    (when (and x (= http2::+headers+ (http2::frame-type frame)))
      (let* ((fields (reverse (shiftf (x-fields x) '())))
             (status (parse-integer (cdr (pop fields)))))
        (setf (x-chunked-p x) (not (or (x-head-p x)
                                       (< status 200)
                                       (member status '(204 304))
                                       (assoc "content-length" fields :test #'string=))))
        (setf (x-output x)
              (octets (x-output x)
                      "HTTP/1.1 " (princ-to-string status) " -" :crlf
                      (loop for (name . value) in fields
                            collect (list (encode (format nil "~A: ~A" name value) :latin-1) :crlf))
                      (and (x-chunked-p x) '("transfer-encoding: chunked" :crlf))
                      :crlf))))
    0))

(http2::define-callback client-content :int
    ((session :pointer) (flags :uint8) (id :int32) (data :pointer) (size :size) (user :pointer))
  (let ((x (find-x id)) (octets (http2::octets-at data size)))
    (when (and x (plusp size))
      (if (x-chunked-p x)
          (append-to-x (x-output x) (chunk octets))
          (append-to-x (x-output x) octets)))
    0))

(http2::define-callback client-stream-closed :int
    ((session :pointer) (id :int32) (code :uint32) (data :pointer))
  (let ((x (find-x id)))
    (when x
      (setf (x-state x) (if (zerop code) :done :reset))
      (when (and (zerop code) (x-chunked-p x))
        (append-to-x (x-output x) "0" :crlf :crlf)))
    0))

(http2::define-callback client-body :ssize
    ((session :pointer) (id :int32) (to :pointer) (size :size) (flags :pointer) (source :pointer)
     (data :pointer))
  (let* ((x (find-x id))
         (count (min size (- (length (x-body x)) (x-sent x)))))
    (cffi:with-pointer-to-vector-data (from (x-body x))
      (cffi:foreign-funcall "memcpy" :pointer to :pointer (cffi:inc-pointer from (x-sent x))
                                     :size count :pointer))
    (incf (x-sent x) count)
    (when (and (null (x-body-left x)) (= (x-sent x) (length (x-body x))))
      (setf (cffi:mem-ref flags :uint32) 1))
    (if (or (plusp count) (= 1 (cffi:mem-ref flags :uint32))) count http2::+deferred+)))

(defun client-session ()
  "A pointer to a session of libnghttp2."
  (cffi:with-foreign-objects ((callbacks :pointer) (session :pointer))
    (http2::nghttp2 :int "session_callbacks_new" callbacks)
    (let ((callbacks (cffi:mem-ref callbacks :pointer)))
      (macrolet ((call-back (name callback)
                   `(http2::nghttp2 :void ,(format nil "session_callbacks_set_~A_callback" name)
                                    callbacks (cffi:callback ,callback))))
        (call-back "on_header" client-field)
        (call-back "on_frame_recv" client-frame)
        (call-back "on_data_chunk_recv" client-content)
        (call-back "on_stream_close" client-stream-closed))
      (http2::nghttp2 :int "session_client_new" session callbacks (cffi:null-pointer))
      (http2::nghttp2 :void "session_callbacks_del" callbacks)
      (http2::nghttp2 :int "submit_settings" (cffi:mem-ref session :pointer) (:uint8 0)
                      (cffi:null-pointer) (:size 0))
      (cffi:mem-ref session :pointer))))

;;; Sending

(defmacro with-http2 ((connection) &body body)
  `(bt:with-recursive-lock-held ((http2-connection-lock ,connection))
     (when (http2-connection-pointer ,connection)
       (let ((*http2* ,connection)) ,@body))))

(defun flush-http2 (connection)
  "Sends what libnghttp2 has for CONNECTION."
  (cffi:with-foreign-object (place :pointer)
    (loop with stream = (connection-stream connection)
          for size = (http2::nghttp2 :ssize "session_mem_send" (http2-connection-pointer connection)
                                     place)
          while (plusp size)
          do (write-sequence (http2::octets-at (cffi:mem-ref place :pointer) size) stream)
          finally (finish-output stream))))

(defun submit-request (connection octets)
  "Submits the request whose head is OCTETS."
  (destructuring-bind (first . lines)
      (uiop:split-string (remove #\Return (decode octets :latin-1)) :separator '(#\Newline))
    (destructuring-bind (method target &rest version) (uiop:split-string first)
      (declare (ignore version))
      (let* ((fields (in-lower-case (mapcar #'parse-header-line lines)))
             (x (make-x (string= "HEAD" method)
                        (equalp "close" (cdr (assoc "connection" fields :test #'string=)))))
             (length (cdr (assoc "content-length" fields :test #'string=)))
             (chunked-p (assoc "transfer-encoding" fields :test #'string=))
             (all (append `((":method" . ,method) (":scheme" . "http") (":path" . ,target))
                          (loop for (name . value) in fields
                                when (string= "host" name) collect (cons ":authority" value))
                          (remove-if (lambda (field)
                                       (member (car field) '("host" "connection" "keep-alive"
                                                             "transfer-encoding" "upgrade")
                                               :test #'string=))
                                     fields)))
             (texts (loop for (name . value) in all
                          collect (encode name) collect (encode value :latin-1)))
             (octets (octets texts)))
        (setf (x-body-left x) (cond (chunked-p (http::make-body-decoder :chunked))
                                    ((and length (plusp (parse-integer length)))
                                     (parse-integer length))))
        (cffi:with-foreign-objects ((nv :uint8 (* 40 (length all))) (provider :uint8 16))
          (cffi:with-pointer-to-vector-data (pointer octets)
            (loop with start = 0
                  for (name value) on texts by #'cddr
                  for place from 0 by 40
                  do (setf (cffi:mem-ref nv :pointer place) (cffi:inc-pointer pointer start)
                           (cffi:mem-ref nv :pointer (+ 8 place))
                           (cffi:inc-pointer pointer (+ start (length name)))
                           (cffi:mem-ref nv :size (+ 16 place)) (length name)
                           (cffi:mem-ref nv :size (+ 24 place)) (length value)
                           (cffi:mem-ref nv :uint8 (+ 32 place)) 0)
                     (incf start (+ (length name) (length value))))
            (setf (cffi:mem-ref provider :pointer 0) (cffi:null-pointer)
                  (cffi:mem-ref provider :pointer 8) (cffi:callback client-body)
                  (http2-connection-exchanges connection)
                  (append (http2-connection-exchanges connection) (list x))
                  (x-id x) (http2::nghttp2 :int32 "submit_request"
                                           (http2-connection-pointer connection)
                                           (cffi:null-pointer) nv (:size (length all))
                                           (if (x-body-left x) provider (cffi:null-pointer))
                                           (cffi:null-pointer)))))))))

(defun send-more-content (connection x)
  "Takes content of the request of X from what was sent over CONNECTION.  NIL if nothing is left."
  (let ((unsent (http2-connection-unsent connection)) (left (x-body-left x)) (used 0))
    (if (integerp left)
        (let ((count (min left (length unsent))))
          (append-to-x (x-body x) (subseq unsent 0 count))
          (setf used count
                (x-body-left x) (if (= count left) nil (- left count))))
        (loop until (http::body-done-p left)
              do (multiple-value-bind (start end next)
                     (http::decode-body left unsent used (length unsent))
                   (when (= next used) (return))
                   (append-to-x (x-body x) (subseq unsent start end))
                   (setf used next))
              finally (setf (x-body-left x) nil)))
    (setf (http2-connection-unsent connection) (subseq unsent used))
    (http2::nghttp2 :int "session_resume_data" (http2-connection-pointer connection)
                    (:int32 (x-id x)))
    (plusp used)))

(defun transmit-requests (connection)
  "Sends what of the requests to CONNECTION can be sent."
  (with-http2 (connection)
    (loop
      (let* ((unsent (http2-connection-unsent connection))
             (x (first (last (http2-connection-exchanges connection))))
             (end (and (or (null x) (and (x-state x) (null (x-body-left x)))) ; in their order
                       (search #(13 10 13 10) unsent))))
        (cond ((and x (x-body-left x))
               (unless (send-more-content connection x) (return)))
              (end
               (submit-request connection (subseq unsent 0 end))
               (setf (http2-connection-unsent connection) (subseq unsent (+ 4 end))))
              (t (return)))))
    (flush-http2 connection)))

(defmethod transmit ((connection http2-connection) octets)
  (with-http2 (connection)
    (append-to-x (http2-connection-unsent connection) octets)
    (transmit-requests connection)
    ;; The window may open soon.
    (loop while (and (some (lambda (x) (< (x-sent x) (length (x-body x))))
                           (http2-connection-exchanges connection))
                     (await-octets (connection-socket connection) 1/5)
                     (receive-http2 connection)))))

;;; Receiving

(defun x-octet (connection)
  "The next octet of the oldest exchange of CONNECTION that has one; :END if that is reset; or NIL."
  (loop for x = (first (http2-connection-exchanges connection))
        while x
        do (cond ((< (x-position x) (length (x-output x)))
                  (return (aref (x-output x) (x-position x))))
                 ((or (eq :reset (x-state x))
                      (and (x-last-p x) (eq :done (x-state x))))
                  (return :end))
                 ((and (eq :done (x-state x)) (null (x-body-left x)))
                  (pop (http2-connection-exchanges connection)))
                 (t (return nil)))))

(defun receive-http2 (connection)
  "Receives what has come for CONNECTION.  NIL at its end."
  (let ((buffer (make-array 65536 :element-type '(unsigned-byte 8)))
        (stream (connection-stream connection))
        (fill 0))
    (handler-case
        (loop do (let ((octet (read-byte stream nil nil)))
                   (unless octet (return))
                   (setf (aref buffer fill) octet)
                   (incf fill))
              while (and (< fill (length buffer)) (listen stream)))
      (error () nil))
    (and (plusp fill)
         (with-http2 (connection)
           (cffi:with-pointer-to-vector-data (pointer buffer)
             (http2::nghttp2 :ssize "session_mem_recv" (http2-connection-pointer connection)
                             pointer (:size fill)))
           (handler-case (transmit-requests connection)
             (error () nil))
           t))))

(defmethod readable-p ((connection http2-connection) &optional (seconds 0))
  (loop with deadline = (deadline-after seconds)
        do (when (with-http2 (connection) (x-octet connection))
             (return t))
           (cond ((not (call-next-method connection (seconds-until deadline))) (return nil))
                 ((not (receive-http2 connection)) (return t)))))

(defmethod next-octet ((connection http2-connection))
  (unless (readable-p connection *patience*)
    (lose-patience "the server to send or to hang up"))
  (let ((octet (with-http2 (connection) (x-octet connection))))
    (when (integerp octet)
      (incf (x-position (first (http2-connection-exchanges connection))))
      octet)))

(defmethod receive-many ((connection http2-connection) count)
  (loop with result = (make-array count :element-type '(unsigned-byte 8))
        with fill = 0
        while (< fill count)
        do (let ((octet (next-octet connection)))
             (unless octet (return (subseq result 0 fill)))
             (setf (aref result fill) octet)
             (incf fill)
             (let* ((x (first (http2-connection-exchanges connection)))
                    (more (min (- count fill) (- (length (x-output x)) (x-position x)))))
               (replace result (x-output x) :start1 fill :start2 (x-position x)
                                            :end2 (+ (x-position x) more))
               (incf fill more)
               (setf (x-output x) (subseq (x-output x) (+ more (x-position x)))
                     (x-position x) 0)))
        finally (return result)))

(defmethod disconnect ((connection http2-connection))
  (with-http2 (connection)
    (http2::nghttp2 :void "session_del" (shiftf (http2-connection-pointer connection) nil)))
  (call-next-method))
