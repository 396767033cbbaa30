(in-package #:hunchentoot-recycling-taskmaster.http2)

;;;; The session of a client that speaks HTTP/2: its frames in and out.

(defparameter *stream-window* (* 256 1024)
  "How many octets of content a stream may have that were not taken.")

(defparameter *connection-window* (* 1024 1024)
  "How many octets of content all streams of a client may have that were not taken.")

(defparameter *counted-seconds* 10
  "For how long resets, refusals and trifles count.")

(defparameter *most-trifles* 1000
  "How many frames that carry nothing a client may send in that time.")

;;; What comes

(defun count-trifle (session)
  "Counts a frame that carries nothing for SESSION."
  (count-against session (incf (session-trifles session)) *most-trifles*))

(defun count-reset (session)
  "Counts a stream of SESSION that was reset, or refused."
  (count-against session (incf (session-resets session)) (* 4 (session-most session))))

(defun count-against (session count most)
  "Ends SESSION if COUNT, of things within the last seconds, is more than MOST."
  (let ((now (milliseconds)))
    (cond ((> now (+ (session-counted-since session) (* 1000 *counted-seconds*)))
           (setf (session-counted-since session) now
                 (session-resets session) 0
                 (session-trifles session) 0))
          ((and (> count most) (not (session-flooded-p session)))
           (setf (session-flooded-p session) t)
           (nghttp2 :int "session_terminate_session" (session-pointer session)
                    (:uint32 +enhance-your-calm+))))
    0))

(define-callback note-head-begins :int ((pointer :pointer) (frame :pointer) (data :pointer))
  (let ((session *session*))
    (setf (session-read-p session) (frame-of-request-p frame)
          (session-fields session) '()
          (session-field-count session) 0
          (session-field-octets session) 0)
    (cond ((not (session-read-p session)) 0)
          ;; The library counts those that the client sees.  The handlers of others, which were
          ;; reset, or answered just now, have not returned.
          ((>= (stream-count session) (* 2 (session-most session)))
           (setf (session-read-p session) nil)
           (nghttp2 :int "submit_rst_stream" pointer (:uint8 0) (:int32 (frame-stream frame))
                    (:uint32 +refused-stream+))
           +stream-failed+)
          (t 0))))

(define-callback note-field :int
    ((pointer :pointer) (frame :pointer) (name :pointer) (name-size :size)
     (value :pointer) (value-size :size) (flags :uint8) (data :pointer))
  (let ((session *session*))
    (when (and (session-read-p session) (listp (session-fields session)))
      (let ((limits (session-limits session)))
        (if (or (> (incf (session-field-count session)) (+ 4 (limits-header-count limits)))
                (> (incf (session-field-octets session) (+ name-size value-size 4))
                   (limits-header-octets limits)))
            (setf (session-fields session) :too-large)
            (push (cons (octets-at name name-size) (octets-at value value-size))
                  (session-fields session)))))
    0))

(define-callback note-bad-field :int
    ((pointer :pointer) (frame :pointer) (name :pointer) (name-size :size)
     (value :pointer) (value-size :size) (flags :uint8) (data :pointer))
  +stream-failed+)

(define-callback note-frame :int ((pointer :pointer) (frame :pointer) (data :pointer))
  (let* ((session *session*)
         (end-p (frame-flag-p frame +end-stream+))
         (stream (and (<= (frame-type frame) +headers+)
                      (find-stream session (frame-stream frame)))))
    (cond ((and (frame-of-request-p frame) (session-read-p session))
           (setf (session-read-p session) nil)
           (begin-stream session (frame-stream frame) (not end-p)))
          ((and stream end-p (stream-chunks-p stream)) ; of DATA, or trailers
           (put-content stream *last-chunk* 0)))
    (when (= +rst-stream+ (frame-type frame))
      (count-reset session))
    (when (or (and (= +data+ (frame-type frame)) (zerop (frame-size frame)) (not end-p))
              (= +priority+ (frame-type frame))
              (and (member (frame-type frame) '(#.+settings+ #.+ping+))
                   (not (frame-flag-p frame +ack+))))
      (count-trifle session))
    0))

(define-callback note-content :int
    ((pointer :pointer) (flags :uint8) (id :int32) (octets :pointer) (size :size) (data :pointer))
  (let ((stream (find-stream *session* id)))
    (cond ((and stream (not (virtual-connection-over-p stream)))
           (let ((octets (octets-at octets size)))
             (put-content stream (if (stream-chunks-p stream) (chunk-of octets) octets) size)))
          (t                            ; its reply is over: its own window stays as it is
           (nghttp2 :int "session_consume_connection" pointer (:size size))))
    0))

(define-callback note-stream-closed :int
    ((pointer :pointer) (id :int32) (code :uint32) (data :pointer))
  (let ((stream (find-stream *session* id)))
    (unless (or (null stream)
                (and (= +no-error+ code) (eq :ended (stream-reply stream))))
      (note-reset stream))
    0))

(define-callback note-frame-sent :int ((pointer :pointer) (frame :pointer) (data :pointer))
  ;; After a whole reply, no more content is wanted (RFC 9113, section 8.1).
  (when (and (<= (frame-type frame) +headers+)
             (frame-flag-p frame +end-stream+)
             (zerop (nghttp2 :int "session_get_stream_remote_close" pointer
                             (:int32 (frame-stream frame)))))
    (nghttp2 :int "submit_rst_stream" pointer (:uint8 0) (:int32 (frame-stream frame))
             (:uint32 +no-error+)))
  (unless (or (/= +rst-stream+ (frame-type frame)) (= +no-error+ (frame-error-code frame)))
    (count-reset *session*))
  0)

;;; What goes

(defun fill-queue (session)
  "Puts frames of SESSION into the queue of its connection, if there are some: so many that they
fill a record of TLS."
  (let ((buffer (take-buffer))
        (fill 0))
    (declare (type octets buffer) (type index fill))
    (with-library (session)
      (cffi:with-foreign-object (place :pointer)
        (loop while (< fill (* 15 1024)) ; a frame has up to 16 KiB
              do (let ((size (nghttp2 :ssize "session_mem_send" (session-pointer session) place)))
                   (unless (plusp size)
                     (return))
                   (copy-octets (cffi:mem-ref place :pointer) buffer fill (+ fill size))
                   (incf fill size)))))
    (when (plusp fill)
      (put-parts (session-queue session) (list (make-octets-part (subseq buffer 0 fill)))))
    (return-buffer buffer)
    (call-workers session)))

;;; The beginning

(defun begin-session (application connection)
  "A session with the client of CONNECTION to APPLICATION, which has begun to speak HTTP/2."
  (let* ((limits (application-limits application))
         (most (http2-streams application))
         (session (make-session :application application
                                :engine (application-engine application)
                                :connection connection :most most :limits limits)))
    (setf (session-pointer session) (make-pointer)
          (connection-virtuals connection) (make-array 4 :initial-element nil)
          (send-queue-more (connection-queue connection)) (lambda () (fill-queue session)))
    (with-session (session)
      (cffi:with-foreign-object (settings :uint32 6)
        (loop for number in (list 3 most 4 *stream-window* 6 (limits-header-octets limits))
              for place from 0
              do (setf (cffi:mem-aref settings :uint32 place) number))
        (nghttp2 :int "submit_settings" (session-pointer session) (:uint8 0) settings (:size 3)))
      (nghttp2 :int "session_set_local_window_size" (session-pointer session) (:uint8 0) (:int32 0)
               (:int32 *connection-window*)))
    session))

(setf *begin-session* 'begin-session)

(defun make-pointer ()
  "A pointer to a fresh session of libnghttp2.  Signals an error if that has no memory."
  (cffi:with-foreign-objects ((callbacks :pointer) (option :pointer) (session :pointer))
    (nghttp2 :int "session_callbacks_new" callbacks)
    (nghttp2 :int "option_new" option)
    (let ((callbacks (cffi:mem-ref callbacks :pointer))
          (option (cffi:mem-ref option :pointer)))
      (macrolet ((call-back (&rest pairs)
                   `(progn
                      ,@(loop for (name callback) on pairs by #'cddr
                              collect `(nghttp2 :void
                                                ,(format nil "session_callbacks_set_~A_callback"
                                                         name)
                                                callbacks (cffi:callback ,callback))))))
        (call-back "on_begin_headers" note-head-begins
                   "on_header" note-field
                   "on_invalid_header" note-bad-field
                   "on_frame_recv" note-frame
                   "on_data_chunk_recv" note-content
                   "on_stream_close" note-stream-closed
                   "on_frame_send" note-frame-sent))
      (nghttp2 :void "option_set_no_auto_window_update" option (:int 1))
      (nghttp2 :void "option_set_no_closed_streams" option (:int 1))
      (nghttp2 :void "option_set_max_outbound_ack" option (:size 100))
      (nghttp2 :void "option_set_max_send_header_block_length" option (:size (ash 1 24)))
      (let ((result (nghttp2 :int "session_server_new2" session callbacks (cffi:null-pointer)
                             option)))
        (nghttp2 :void "option_del" option)
        (nghttp2 :void "session_callbacks_del" callbacks)
        (unless (zerop result)
          (error "libnghttp2 cannot make a session: error ~D." result))
        (cffi:mem-ref session :pointer)))))

;;; The owner of the connection

(defconstant +input-turn+ 16
  "After so many parts of input of a client, its owner serves other connections that are ready.")

(defmethod continue-over ((session session) http)
  (let ((io (http-io http))
        (read-p nil))
    (dotimes (turn +input-turn+ :again)
      (ecase (if (and read-p (io-drained-p io) (not (peer-left-p session)))
                 :none
                 (fill-input io))
        (:some
         (setf read-p t)
         (unless (feed session io)
           (return :close)))
        (:none (return (settle-rest session)))
        (:end (return :close))))))

(defun feed (session io)
  "Gives the input of IO to SESSION.  NIL if its client has broken the protocol, or floods."
  (let ((failure 0) (octets (io-input io)))
    (with-session (session)
      (cffi:with-pointer-to-vector-data (pointer octets)
        (setf failure (nghttp2 :ssize "session_mem_recv" (session-pointer session)
                               (cffi:inc-pointer pointer (io-start io))
                               (:size (- (io-end io) (io-start io))))))
      (setf (io-start io) (io-end io))
      ;; This worker is about to rest the connection, and takes the first.
      (call-workers session nil)
      (setf (session-over-p session) (not (or (wants-p session "read")
                                              (wants-p session "write")))))
    (when (session-flooded-p session)
      (tell-seldom (suspended-exchange-application session) :flood :warning
                   "A connection was ended" "connections were ended"
                   "its client has reset too many requests, or sent too many empty frames"))
    (not (or (minusp failure)
             (session-flooded-p session)
             (and (session-over-p session) (plusp (stream-count session)))))))

(defparameter *notice-milliseconds* 1000
  "How long a stop waits for streams that a client may have begun before it got the first GOAWAY
(RFC 9113, section 6.8).")

(defun delivered-p (session now)
  "True at NOW, in MILLISECONDS, if the client of SESSION has got all octets, or has taken none for
as long as it may.  It goes on sending, to open windows.  Once the descriptor is closed, the system
answers that by a reset, and drops what is on its way."
  (let ((left (unsent-octets (send-queue-descriptor (session-queue session))))
        (patience (as-milliseconds (write-seconds (suspended-exchange-application session)))))
    (when (< left (shiftf (session-left session) left))
      (setf (session-moved session) now))
    (or (<= left 0)
        (and patience (<= (+ (session-moved session) patience) now)))))

(defun settle-rest (session)
  "Settles until when SESSION rests, or ends it.  Returns an outcome as SERVE does."
  (let* ((connection (suspended-exchange-connection session))
         (engine (suspended-exchange-engine session))
         (application (suspended-exchange-application session))
         (now (milliseconds))
         (idle (as-milliseconds (seconds-for application :idle)))
         (requests (limits-connection-requests (session-limits session)))
         (streams-p (plusp (stream-count session))))
    (flet ((bid-farewell (kind)
             (setf (session-farewell session) kind
                   (session-noticed session) now)
             (with-session (session)
               (let ((pointer (session-pointer session)))
                 (if (eq :notice kind)
                     (nghttp2 :int "submit_shutdown_notice" pointer)
                     (nghttp2 :int "submit_goaway" pointer (:uint8 0)
                              (:int32 (nghttp2 :int32 "session_get_last_proc_stream_id" pointer))
                              (:uint32 +no-error+) (cffi:null-pointer) (:size 0)))))))
      (ecase (session-farewell session)
        ((nil)
         (cond ((and requests (<= requests (connection-served connection)))
                (bid-farewell :last))
               ((not (welcoming-p engine))
                (bid-farewell :notice))))
        (:notice
         (when (<= (+ (session-noticed session) *notice-milliseconds*) now)
           (bid-farewell :last)))
        (:last))
      (cond ((and (not streams-p)
                  (or (eq :last (session-farewell session)) (session-over-p session)))
             (cond ((delivered-p session now)
                    :close)
                   (t
                    (set-deadline-at connection :deferred (+ now 250))
                    :deferred)))
            (t
             (case (session-farewell session)
               (:notice (set-deadline-at connection :deferred
                                         (+ (session-noticed session) *notice-milliseconds*)))
               (:last)
               ;; The sentinel ends it then, or it is served again while there are streams.
               (t (set-deadline-at connection :idle (and idle (+ now idle)))))
             :deferred)))))

;;; The end

(defmethod abandon ((session session))
  (let ((streams (connection-virtuals (suspended-exchange-connection session))))
    (with-session (session)             ; with GOAWAY
      (nghttp2 :int "session_terminate_session" (session-pointer session) (:uint32 +no-error+)))
    (with-library (session)
      (nghttp2 :void "session_del" (shiftf (session-pointer session) nil))
      (change-reservation (session-reserved session) 0))
    (loop for stream across streams
          when stream
            do (end-virtual-connection (suspended-exchange-engine session) stream))))
