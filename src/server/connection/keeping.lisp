(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; What the peer of a wire does not take of a reply that a handler streams is kept, up to a high-water
;;;; mark, so that the handler goes on.
;;;;
;;;;   what was written          and                               then
;;;;   fills the buffer, or      the peer takes it                 it leaves
;;;;   was flushed               the peer takes no more now        the rest is LEFT, or stays in the buffer
;;;;   fills the buffer          more than the mark is LEFT, or     the worker waits, see AWAIT-TAKER
;;;;                             the heap has no room
;;;;   all of the reply          some of it is LEFT                the engine sends that without a worker
;;;;
;;;; Who has a descriptor of its own that nobody would send from, or a stream of the Lisp's own beside the
;;;; wire, waits as everywhere else.

(defparameter *high-water-mark* (* 256 1024)
  "How many octets, an integer from 0, of a reply that a handler streams are kept for a client that does
not take them; beyond that the handler waits for the client, for the write timeout of the acceptor at
most.  Each slow client may take so much of the heap, while no more than three quarters of that are in use.")

(defun limit-writes (wire seconds &optional rate (grace 0))
  "Lets no wait for the peer of WIRE to take octets last longer than SECONDS, a real or NIL for no limit, and, when those for
one reply have lasted GRACE seconds, an integer, not longer than the octets that it took take at RATE octets a second, an
integer or NIL for no limit."
  (setf (wire-write-milliseconds wire) (or (as-milliseconds seconds) -1)
        (wire-least-taken wire) rate
        (wire-taking-grace wire) (* 1000 grace)))

(defun give-up-taker (wire)
  "Signals STREAM-TIMEOUT for WIRE, whose peer has taken too long.  A connection of the engine is broken:
nobody waits for that peer again."
  (when (eq :engine (wire-owner wire))
    (break-off-wire wire))
  (error 'stream-timeout :stream (wire-stream wire)))

(defconstant +looks+ 16
  "How often within its time limit it is looked whether the peer of a wire takes octets.")

(defconstant +longest-look+ 1000
  "After how many milliseconds at most it is looked whether the peer of a wire is fast enough.")

(defun taken-too-slowly-p (wire)
  "True when the peer of WIRE has taken fewer octets than it has to while a worker waited."
  (let ((rate (wire-least-taken wire)))
    (and rate
         (> (wire-taking wire)
            (+ (wire-taking-grace wire) (floor (* 1000 (wire-taken wire)) rate))))))

(defun next-look-at-taker (wire limit now)
  "When to look next whether the peer of WIRE takes octets, in MILLISECONDS after NOW; NIL for when it has room.  LIMIT is how
many milliseconds it may take none, or negative."
  (cond ((not (minusp limit))
         (+ now (if (wire-least-taken wire)
                    (min +longest-look+ (ceiling limit +looks+))
                    (ceiling limit +looks+))))
        ((wire-least-taken wire) (+ now +longest-look+))))

(defun await-taker (wire)
  "Waits until WIRE has room for more octets.  If its peer takes none for the time that it has, or a little
longer, or takes them more slowly than it may, it is given up; see GIVE-UP-TAKER."
  ;; The system tells of room only when a third of its buffer is free, which a slow peer may not reach in
  ;; time; so it is asked.  What was on its way when the wait began arrives at once, and is taken by nobody
  ;; yet: therefore it is asked often.
  (loop with limit = (wait-limit wire :output)
        with now = (milliseconds)
        with end = (+ now limit)
        with unsent = (unsent-octets (open-descriptor wire))
        for room-p = (await-descriptor (open-descriptor wire) :output
                                       :until (let ((look (next-look-at-taker wire limit now)))
                                                (if (minusp limit) look (min end look))))
        for left = (unsent-octets (open-descriptor wire))
        do (incf (wire-taking wire) (- (milliseconds) now))
           (setf now (milliseconds))
           (when (< -1 left unsent)
             (incf (wire-taken wire) (- unsent left))
             (setf unsent left
                   end (+ now limit)))
        until room-p
        do (when (or (and (not (minusp limit)) (>= now end))
                     (and (< -1 left) (taken-too-slowly-p wire))) ; else the system does not tell
             (give-up-taker wire))))

;;; Keeping

(defun engine-sends-p (wire)
  "True when the engine sends what is LEFT of WIRE."
  (let ((base (wire-base wire)))
    (and (eq :engine (wire-owner base))
         (null (wire-lent base)))))

(defun octets-left (wire)
  "How many octets are LEFT of WIRE."
  (loop for part in (wire-left wire)
        sum (- (part-end part) (part-position part))))

(defun send-now (wire octets start end)
  "Sends what the peer of WIRE, of which nothing is LEFT, takes now of OCTETS from START to END.  Returns
where the rest begins.  Signals DESCRIPTOR-BROKEN."
  (let ((count (send wire octets start end)))
    (cond ((>= count 0) (+ start count))
          ((would-block-p count) start)
          (t (fail-as-broken wire (- count))))))

(defun keep (wire octets start end)
  "Adds a copy of OCTETS from START to END to what is LEFT of WIRE."
  (when (< start end)
    (setf (wire-left wire)
          (append (wire-left wire) (list (make-octets-part (subseq octets start end)))))))

(defun keep-buffered (wire)
  "Adds what was written to WIRE to what is LEFT."
  (uninterruptibly
    (keep wire (wire-output wire) 0 (shiftf (wire-fill wire) 0))))

(defun push-output (wire)
  "Sends what the peer of WIRE takes now of what is LEFT and of what was written.  Waits only where nobody
else would send the rest."
  (cond ((not (engine-sends-p wire))
         (send-output wire))
        (t
         (when (wire-left wire)
           (send-parts-now wire (wire-left wire)))
         (when (and (null (wire-left wire)) (plusp (wire-fill wire)))
           (sending-wholly (wire)
             (let* ((octets (wire-output wire))
                    (end (shiftf (wire-fill wire) 0))) ; not to be sent twice when this fails
               (keep wire octets (send-now wire octets 0 end) end)))))))

(defun too-much-left-p (wire)
  "True when more than *HIGH-WATER-MARK* octets are LEFT of WIRE, or any while the heap has no room: all slow
clients together could fill it."
  (let ((left (octets-left wire)))
    (or (> left *high-water-mark*)
        (and (plusp left)
             (not (make-room-in-heap left))))))

(defun empty-output (wire)
  "Empties the buffer of WIRE.  Waits for its peer while too much would be LEFT."
  (push-output wire)
  (keep-buffered wire)
  (loop while (too-much-left-p wire)
        do (await-peer wire :output)
           (send-parts-now wire (wire-left wire))))

(defun leave-output-to-engine (wire)
  "At the end of a reply: sends what the peer of WIRE takes now of what was written; the rest is LEFT."
  (push-output wire)
  (keep-buffered wire))

;;; Writing

(defun output-buffer (wire)
  "The buffer for output of WIRE, which may be full."
  (or (wire-output wire)
      (setf (wire-output wire) (take-buffer :output))))

(defun put-in-buffer (wire sequence start end)
  "Writes what fits of SEQUENCE from START to END, at least one octet, to the buffer of WIRE; returns where
the rest begins."
  (when (= (wire-fill wire) (length (output-buffer wire)))
    (empty-output wire))
  (+ start (buffer-output wire sequence start end)))

(defun large-p (wire sequence start end)
  "True when SEQUENCE from START to END is better sent to WIRE as it is."
  (and (typep sequence 'octets)
       (>= (- end start) +output-size+)
       (zerop (wire-fill wire))
       (null (wire-left wire))
       (engine-sends-p wire)))

(defun write-keeping (wire sequence start end)
  "Writes SEQUENCE, of octets, from START to END to WIRE; what the peer does not take now is kept."
  (loop
    (when (large-p wire sequence start end)
      ;; The range is a program's, and what follows checks nothing.
      (check-range sequence start end)
      (setf start (send-now wire sequence start end)))
    (unless (< start end)
      (return))
    (setf start (put-in-buffer wire sequence start end))))
