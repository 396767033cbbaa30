(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; Content that is received before its request is served, while no worker waits for it.
;;;;
;;;;   of the content                                  the request
;;;;   all has come, be it to the socket                is served at once: who reads takes it from there
;;;;   all is in the body buffer                             is served
;;;;   there is more than is received before           is served; who reads waits for the rest
;;;;   there is no room for more                       is served, likewise
;;;;   what came next is not acceptable                is served; who reads is told
;;;;   the peer sends no more                          is served; who reads is told
;;;;   more is to come, and too late                   is answered 408
;;;;   more is to come, nothing came for a while,      is served; who reads waits for the rest
;;;;   and few requests are served so
;;;;   more is to come otherwise                       waits, parked
;;;;
;;;; A client that pauses may wait for a handler that answers what it has sent so far, and gets its
;;;; answer a little late.  But so do clients that mean no good, and each holds a worker then: so it
;;;; is only for a few at a time.
;;;;
;;;; It is too late when nothing came for the read timeout, when all of it has taken longer than
;;;; it may, or when after a grace less came than the least rate wants.

(defun head-memory (head)
  "How many octets of memory the strings of HEAD take, about."
  (flet ((string-memory (string)
           (if (stringp string)
               (+ 32 (* 4 (length string)))
               0)))
    (loop for (name . value) in (head-headers head)
          sum (+ 32 (string-memory name) (string-memory value)) into sum
          finally (return (+ 256 sum (string-memory (head-uri head)))))))

(defconstant +least-counted-request+ (* 6 1024)
  "How many octets of memory a request may keep that do not count: most have fewer.")

(defun request-memory (head)
  "How many octets of memory a request with HEAD keeps, about: its strings, and what applications
make of its target and its cookies, whose parts take some 80 octets each besides their characters.
0 where these are few."
  (flet ((parts-memory (text delimiter)
           (declare (type text text))
           (+ (* 4 (length text)) (* 80 (1+ (count delimiter text))))))
    (let* ((uri (head-uri head))
           (cookies (cdr (assoc :cookie (head-headers head) :test #'eq)))
           (size (+ (head-memory head)
                    (* 4 (length uri))
                    (parts-memory (coerce uri 'text) #\&)
                    (if cookies (parts-memory (coerce cookies 'text) #\;) 0))))
      (if (> size +least-counted-request+) size 0))))

(defstruct (body-prefetch (:include opaque) (:constructor make-body-prefetch (head content most)) (:copier nil))
  "A request with HEAD whose CONTENT is received before it is served, MOST octets of it."
  (head nil :read-only t)
  (content nil :read-only t)
  (most 0 :type index :read-only t)
  (memory nil)                          ; how many octets HEAD takes, once that was asked
  (began (milliseconds) :type fixnum :read-only t)
  (touched (milliseconds) :type fixnum)) ; when octets came last

(defparameter *pause-milliseconds* 2000
  "After how long without octets the request of a client that has sent a part of its content may be
served.")

(defparameter *most-unfinished* 4
  "How many requests may be served at a time whose clients paused amid their content.")

(defvar *unfinished* (make-counter)
  "How many are.")

(defun buffered-octets (content)
  "How many octets the buffered connection of CONTENT has in its buffer."
  (let ((io (content-io content)))
    (- (io-end io) (io-start io))))

(defun all-come-p (content)
  "True when all of CONTENT has come, and can be read off its buffered connection without waiting."
  (let ((size (content-size content)))
    (and size
         (or (<= size (buffered-octets content))
             (if (<= size (floor +input-size+ 2))
                 ;; A call that receives costs as much as one that asks.
                 (and (eq :some (fill-more-input (content-io content)))
                      (<= size (buffered-octets content)))
                 (<= size (come-octets content)))))))

(defun come-octets (content)
  "How many octets of CONTENT have come that were not read, wherever they are, as far as that is
known."
  (+ (spooled-octets content) (buffered-octets content) (input-of-descriptor (content-io content))))

(defun most-received (content most)
  "How many octets of CONTENT are received before its request is served, where MOST are in general:
of content that is larger, no more than a body-buffer keeps in memory."
  (let ((size (content-size content)))
    (if (and size (> size most))
        (min most *body-buffer-memory*)
        most)))

(defgeneric receive-some (content room)
  (:documentation "Moves what the buffered connection of CONTENT has buffered, up to ROOM octets, to
the body-buffer of CONTENT.  Returns true unless nothing more is to be received so."))

(defmethod receive-some ((content content-stream) room)
  (let* ((io (content-io content))
         (start (io-start io))
         (due (- (content-remaining content) (spooled-octets content)))
         (count (min due room (- (io-end io) start))))
    (and (or (zerop count)
             (append-to-body-buffer (content-body-buffer content) (io-input io) start (+ start count)))
         (setf (io-start io) (+ start count))
         (< count due))))

(defmethod receive-some ((content chunked-content) room)
  (when (zerop (content-ready content))
    (handler-case (find-content content)
      (protocol-error (refusal)
        (setf (content-refusal content) refusal))))
  (let* ((io (content-source content))
         (start (io-start io))
         (count (min room (content-ready content))))
    (and (or (zerop count)
             (append-to-body-buffer (content-body-buffer content) (io-input io) start (+ start count)))
         (progn (incf (io-start io) count)
                (decf (content-ready content) count)
                t)
         (not (or (content-refusal content) (content-over-p content))))))

(defgeneric receive-more (content room)
  (:documentation "Receives what has come of CONTENT, to the buffer of its buffered connection, or
up to ROOM octets right into the memory of its body-buffer.  Returns what FILL-INPUT does, or :ALL
when who reads need not wait for the rest.  Signals DESCRIPTOR-BROKEN.")
  (:method (content room)
    (declare (ignore room))
    (fill-input (content-io content))))

(defmethod receive-more ((content content-stream) room)
  (let ((io (content-io content)))
    (if (room-for-all-p content)
        (if (and (zerop (buffered-octets content)) (io-open-p io))
            (receive-directly-ahead content)
            (fill-input io))
        (let ((come (come-octets content)))
          (cond ((<= (content-remaining content) come) :all)
                ((and (io-open-p io) (worth-room-p content come room) (room-for-all-made-p content))
                 (receive-directly-ahead content))
                (t (fill-input io)))))))

(defun room-for-all-p (content)
  "True when the memory of the body-buffer of CONTENT, of known length, has room for all of it."
  (let ((body-buffer (content-body-buffer content)))
    (and (null (body-buffer-file body-buffer))
         (<= (content-remaining content) (length (body-buffer-memory body-buffer))))))

(defun worth-room-p (content come room)
  "True when memory is to be taken for all of CONTENT, of known length, of which COME octets have
come, and ROOM more than those in its body-buffer may be received: when a fourth of it has come, or
as much as any body-buffer has in memory.  Who announces much may send little."
  (let ((body-buffer (content-body-buffer content))
        (size (content-remaining content)))
    (and (<= size *most-body-buffer-memory*)
         (>= come (min *body-buffer-memory* (floor size 4)))
         (plusp come)
         (null (body-buffer-file body-buffer))
         (<= (- size (body-buffer-fill body-buffer)) room)
         (plenty-p size))))

(defun room-for-all-made-p (content)
  "Gives the body-buffer of CONTENT, of known length, a vector of just that, and moves there what
has come to the buffer of its buffered connection.  That vector is what its reader gets.  NIL when
the heap has no room for it."
  (let ((body-buffer (content-body-buffer content))
        (io (content-io content))
        (memory (octets-if-room (content-remaining content))))
    (when memory
      (setf (body-buffer-memory body-buffer)
            (replace memory (body-buffer-memory body-buffer) :end2 (body-buffer-fill body-buffer)))
      (account-for-memory body-buffer)
      (unless (zerop (buffered-octets content))
        (append-to-memory body-buffer (io-input io) (io-start io) (io-end io))
        (setf (io-start io) (io-end io)))
      t)))

(defun receive-directly-ahead (content)
  "Receives what has come of CONTENT to the memory of its body-buffer, which has room for all, while
nothing is in the buffer of its buffered connection; returns what FILL-INPUT does."
  (let* ((io (content-io content))
         (body-buffer (content-body-buffer content))
         (size (content-remaining content))
         (fill (body-buffer-fill body-buffer))
         (count (receive io (body-buffer-memory body-buffer) fill size (- size fill)))
         (outcome (note-received io count (- size fill))))
    (when (eq :some outcome)
      (setf (body-buffer-fill body-buffer) (+ fill count)))
    outcome))

(defun receive-ahead (body-prefetch most)
  "Receives what has come for BODY-PREFETCH, MOST octets at most in all, without waiting.  Returns
:ALL when its request is to be served, or :NONE when more is to come.  Signals DESCRIPTOR-BROKEN."
  (let* ((content (body-prefetch-content body-prefetch))
         (most (most-received content most)))
    (unless (content-body-buffer content)
      (setf (content-body-buffer content) (make-body-buffer)))
    (loop
      (let ((room (- most (spooled-octets content))))
        (unless (plusp room)
          (return :all))
        (ecase (receive-more content room)
          ((:all :end) (return :all))
          (:none (return (if (memory-left-p content) :none :all)))
          (:some
           (setf (body-prefetch-touched body-prefetch) (milliseconds))
           (unless (receive-some content room)
             (return :all))))))))

(defun memory-left-p (content)
  "Accounts for the memory that CONTENT has while it waits; moves that to a file when what waits has
too much.  NIL when it cannot wait."
  (let ((body-buffer (content-body-buffer content)))
    (or (account-for-memory body-buffer)
        (and (or (body-buffer-file body-buffer) (move-to-file body-buffer))
             (account-for-memory body-buffer)))))

(defun memory-received (body-prefetch)
  "How many octets of memory are reserved for the content that BODY-PREFETCH has received."
  (let ((body-buffer (content-body-buffer (body-prefetch-content body-prefetch))))
    (if body-buffer (body-buffer-accounted body-buffer) 0)))

(defun move-received-to-file (body-prefetch)
  "Moves what BODY-PREFETCH has received to a file, and releases the memory for it; NIL when that
cannot be."
  (let ((body-buffer (content-body-buffer (body-prefetch-content body-prefetch))))
    (and body-buffer
         (null (body-buffer-file body-buffer))
         (move-to-file body-buffer)
         (account-for-memory body-buffer))))

(defun place-taken-p (content)
  "True when the request whose CONTENT has come in part may be served: it has one of the few places
then."
  (uninterruptibly
    (when (counter-add-up-to *unfinished* 1 *most-unfinished*)
      (setf (content-place-p content) t))))

(defun give-place-up (content)
  (uninterruptibly
    (when (shiftf (content-place-p content) nil)
      (counter-add *unfinished* -1))))

(defun pause-end (body-prefetch idle)
  "When the peer of BODY-PREFETCH, of which more is to come, has paused, in MILLISECONDS.  IDLE is
as for BODY-PREFETCH-DEADLINE."
  (+ (body-prefetch-touched body-prefetch)
     (if idle (min *pause-milliseconds* (floor idle 2)) *pause-milliseconds*)))

(defun next-look (body-prefetch idle now)
  "When BODY-PREFETCH, of which more is to come, is to be looked at again if nothing comes, in
MILLISECONDS: when its peer has paused; when it has before NOW, after twice as long, for a place may
be free then.  IDLE is as for BODY-PREFETCH-DEADLINE."
  (let ((end (pause-end body-prefetch idle)))
    (if (< now end)
        end
        (+ now (max 1 (- now (body-prefetch-touched body-prefetch)))))))

(defun unfinished-served-p (body-prefetch idle)
  "True when the request of BODY-PREFETCH, of which more is to come, is to be served now all the
same.  IDLE is as for BODY-PREFETCH-DEADLINE."
  (and (<= (pause-end body-prefetch idle) (milliseconds))
       (place-taken-p (body-prefetch-content body-prefetch))))

(defun body-prefetch-deadline (body-prefetch limits idle)
  "When BODY-PREFETCH under LIMITS is too late, in MILLISECONDS, or NIL for never.  IDLE is for how
many milliseconds nothing may come, or NIL."
  (let ((rate (limits-content-rate limits))
        (seconds (limits-content-seconds limits))
        (received (spooled-octets (body-prefetch-content body-prefetch))))
    (flet ((sooner (a b)
             (if (and a b) (min a b) (or a b))))
      (sooner (and idle (+ (body-prefetch-touched body-prefetch) idle))
              (sooner (and seconds
                           (+ (body-prefetch-began body-prefetch) (* 1000 seconds)))
                      (and rate
                           (+ (body-prefetch-began body-prefetch)
                              (* 1000 (limits-content-grace limits))
                              (floor (* 1000 received) rate))))))))

(defun drop-body-prefetch (body-prefetch)
  "Gives back what BODY-PREFETCH has in memory and in files: its request will not be served."
  (release-content (body-prefetch-content body-prefetch)))
