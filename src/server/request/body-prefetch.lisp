(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; A body prefetch receives content before its request is served.  No worker waits for it.
;;;;
;;;;   state of the content                      the request
;;;;   all has come, at least to the socket      is served at once; the handler reads it there
;;;;   all is in the body buffer                 is served
;;;;   more was announced than is prefetched     is served; the handler waits for the rest
;;;;   there is no room for more                 is served, likewise
;;;;   the next octets are not acceptable        is served; the handler gets an error there
;;;;   the peer has ended                        is served; the handler gets an error there
;;;;   more is to come, and it is late           is answered 408
;;;;   more is to come, the client pauses, and   is served; the handler waits for the rest
;;;;   there is a free place (*MOST-UNFINISHED*)
;;;;   otherwise                                 waits, parked
;;;;
;;;; A client that pauses may wait for the answer of a handler to its first octets.  It gets that
;;;; answer a little late.  Hostile clients pause, too, and each would hold a worker: so only a few
;;;; such requests are served at a time.
;;;;
;;;; Content is late when none came for the read timeout, when all of it has taken longer than the
;;;; content timeout, or when, after a grace period, less came than the least rate requires.

(defun head-memory (head)
  "About how many octets of memory the strings of HEAD take."
  (flet ((string-memory (string)
           (if (stringp string)
               (+ 32 (* 4 (length string)))
               0)))
    (loop for (name . value) in (head-headers head)
          sum (+ 32 (string-memory name) (string-memory value)) into sum
          finally (return (+ 256 sum (string-memory (head-uri head)))))))

(defconstant +least-counted-request+ (* 6 1024)
  "How many octets of memory a request may keep without being counted.  Most take fewer.")

(defun request-memory (head)
  "About how many octets of memory a request with HEAD keeps: its strings, and those that
applications make of its target and its cookies, whose parts take some 80 octets each besides their
characters.  0 where that is little."
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

(defstruct (body-prefetch (:include opaque) (:constructor make-body-prefetch (head content most))
                          (:copier nil))
  "A request with HEAD, of whose CONTENT at most MOST octets are received before it is served."
  (head nil :read-only t)
  (content nil :read-only t)
  (most 0 :type index :read-only t)
  (memory nil)                          ; the result of HEAD-MEMORY, once it was computed
  (began (milliseconds) :type fixnum :read-only t)
  (touched (milliseconds) :type fixnum)) ; when the last octets came

(defparameter *pause-milliseconds* 2000
  "A client pauses when it has sent no octets for this long.  Then its request may be served.")

(defparameter *most-unfinished* 4
  "How many requests of clients that paused in their content may be served at a time.")

(defvar *unfinished* (make-counter)
  "The number of such requests now.")

(defun buffered-octets (content)
  "How many octets are in the input buffer of the buffered connection of CONTENT."
  (let ((io (content-io content)))
    (- (io-end io) (io-start io))))

(defun all-arrived-p (content)
  "True when all of CONTENT has come, so that reading it does not wait.  May receive octets to find
out."
  (let ((size (content-size content)))
    (and size
         (or (<= size (buffered-octets content))
             (if (<= size (floor +input-size+ 2))
                 ;; Receiving costs as much as asking.
                 (and (eq :some (fill-more-input (content-io content)))
                      (<= size (buffered-octets content)))
                 (<= size (arrived-octets content)))))))

(defun arrived-octets (content)
  "How many octets of CONTENT have come and were not read, wherever they are, as far as that is
known."
  (+ (prefetched-octets content)
     (buffered-octets content)
     (input-of-descriptor (content-io content))))

(defun most-received (content most)
  "How many octets of CONTENT are received before its request is served, where the general limit is
MOST.  Of larger content, no more than a body buffer keeps in memory."
  (let ((size (content-size content)))
    (if (and size (> size most))
        (min most *body-buffer-memory*)
        most)))

(defgeneric receive-some (content room)
  (:documentation "Moves octets of CONTENT, at most ROOM, from the input buffer of its connection to
its body buffer.  Returns true while more can be received in this way."))

(defmethod receive-some ((content content-stream) room)
  (let* ((io (content-io content))
         (start (io-start io))
         (due (- (content-remaining content) (prefetched-octets content)))
         (count (min due room (- (io-end io) start))))
    (and (or (zerop count)
             (append-to-body-buffer (content-body-buffer content)
                                    (io-input io) start (+ start count)))
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
             (append-to-body-buffer (content-body-buffer content)
                                    (io-input io) start (+ start count)))
         (progn (incf (io-start io) count)
                (decf (content-ready content) count)
                t)
         (not (or (content-refusal content) (content-over-p content))))))

(defgeneric receive-more (content room)
  (:documentation "Receives octets of CONTENT: to the input buffer of its connection, or up to ROOM
octets directly to the memory of its body buffer.  Returns the same as FILL-INPUT, or :ALL when a
reader need not wait for the rest.  Signals DESCRIPTOR-BROKEN.")
  (:method (content room)
    (declare (ignore room))
    (fill-input (content-io content))))

(defmethod receive-more ((content content-stream) room)
  (let ((io (content-io content)))
    (if (room-for-all-p content)
        (if (and (zerop (buffered-octets content)) (io-open-p io))
            (receive-directly-ahead content)
            (fill-input io))
        (let ((come (arrived-octets content)))
          (cond ((<= (content-remaining content) come) :all)
                ((and (io-open-p io)
                      (worth-room-p content come room)
                      (make-room-for-all content))
                 (receive-directly-ahead content))
                (t (fill-input io)))))))

(defun room-for-all-p (content)
  "True when the memory of the body buffer of CONTENT, of known length, has room for all of it."
  (let ((body-buffer (content-body-buffer content)))
    (and (null (body-buffer-file body-buffer))
         (<= (content-remaining content) (length (body-buffer-memory body-buffer))))))

(defun worth-room-p (content come room)
  "True when memory should be allocated for all of CONTENT, of known length, of which COME octets
have come, and the body buffer may get ROOM more: when a fourth of it has come, or as much as any
body buffer has in memory.  A client that announces much may send little."
  (let ((body-buffer (content-body-buffer content))
        (size (content-remaining content)))
    (and (<= size *most-body-buffer-memory*)
         (>= come (min *body-buffer-memory* (floor size 4)))
         (plusp come)
         (null (body-buffer-file body-buffer))
         (<= (- size (body-buffer-fill body-buffer)) room)
         (plenty-p size))))

(defun make-room-for-all (content)
  "Gives the body buffer of CONTENT, of known length, a vector of exactly that length, which the
reader will get.  Moves octets there from the input buffer of the connection.  NIL when the heap has
no room for it."
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
  "Receives octets of CONTENT to the memory of its body buffer, which has room for all.  The input
buffer of the connection is empty.  Returns the same as FILL-INPUT."
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
  "Receives octets for BODY-PREFETCH, at most MOST in all, without waiting.  Returns :ALL when its
request is to be served, or :NONE when more is to come.  Signals DESCRIPTOR-BROKEN."
  (let* ((content (body-prefetch-content body-prefetch))
         (most (most-received content most)))
    (unless (content-body-buffer content)
      (setf (content-body-buffer content) (make-body-buffer)))
    (loop
      (let ((room (- most (prefetched-octets content))))
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
  "Accounts for the memory of CONTENT, which waits.  Moves it to a file when all waiting octets take
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
  "Moves the content that BODY-PREFETCH has received to a file, and releases its memory; NIL when
that fails."
  (let ((body-buffer (content-body-buffer (body-prefetch-content body-prefetch))))
    (and body-buffer
         (null (body-buffer-file body-buffer))
         (move-to-file body-buffer)
         (account-for-memory body-buffer))))

(defun take-place (content)
  "Takes one of the few places for requests whose CONTENT has come in part; NIL when none is free."
  (when-taken (place-p (counter-add-up-to *unfinished* 1 *most-unfinished*))
    (setf (content-place-p content) t)))

(defun give-up-place (content)
  "Releases the place of CONTENT, if it has one."
  (when-taken (place-p (shiftf (content-place-p content) nil))
    (counter-add *unfinished* -1)))

(defun pause-end (body-prefetch idle)
  "The time, in MILLISECONDS, at which the peer of BODY-PREFETCH counts as pausing, if no octets
come.  IDLE is as for BODY-PREFETCH-DEADLINE."
  (+ (body-prefetch-touched body-prefetch)
     (if idle (min *pause-milliseconds* (floor idle 2)) *pause-milliseconds*)))

(defun next-look (body-prefetch idle now)
  "The time, in MILLISECONDS, for the next look at BODY-PREFETCH if no octets come: when its peer
begins to pause; if it pauses already at NOW, after twice as long, since a place may be free then.
IDLE is as for BODY-PREFETCH-DEADLINE."
  (let ((end (pause-end body-prefetch idle)))
    (if (< now end)
        end
        (+ now (max 1 (- now (body-prefetch-touched body-prefetch)))))))

(defun take-place-after-pause (body-prefetch idle)
  "Takes a place for BODY-PREFETCH, whose content is incomplete, if its peer pauses.  True when its
request is to be served now.  IDLE is as for BODY-PREFETCH-DEADLINE."
  (and (<= (pause-end body-prefetch idle) (milliseconds))
       (take-place (body-prefetch-content body-prefetch))))

(defun body-prefetch-deadline (body-prefetch limits idle)
  "The time, in MILLISECONDS, from which BODY-PREFETCH under LIMITS is late; NIL for never.  IDLE is
for how many milliseconds no octets may come, or NIL."
  (let ((rate (limits-content-rate limits))
        (seconds (limits-content-seconds limits))
        (received (prefetched-octets (body-prefetch-content body-prefetch))))
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
  "Releases the memory and the file of BODY-PREFETCH, whose request will not be served."
  (release-content (body-prefetch-content body-prefetch)))
