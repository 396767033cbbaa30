(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; The events of live pages.  All pages that were opened through one engine share a snapshot each
;;;; second, which a timer of that engine makes.  While no page is open there is no timer.
;;;;
;;;;   event                      the feed of the engine
;;;;   the first page is opened   is made, with a timer
;;;;   another page is opened     gets another viewer
;;;;   the timer rings            sends a snapshot to its viewers, and sets the timer again
;;;;   a page is closed           loses its viewer
;;;;   the last page is closed    is forgotten; its timer rings once more, finds no viewer, and ends
;;;;   the engine stops           loses all viewers, since their streams end

(defparameter *snapshot-seconds* 1
  "Seconds between two snapshots, a real above 0.")

(defstruct (viewer (:include opaque) (:constructor make-viewer (answer framing)))
  "A page that is open.  ANSWER, a STREAMED-ANSWER, is its stream of events, with FRAMING."
  (answer nil :read-only t)
  (framing nil :read-only t))

(defstruct (live-feed (:include opaque) (:constructor make-live-feed (engine servers)))
  "What the pages that were opened through ENGINE get: snapshots of SERVERS."
  (engine nil :read-only t)
  (servers '() :read-only t)
  (viewers '()))

(defstruct (live-feeds (:include opaque) (:constructor make-live-feeds ()))
  "The feeds of one live page."
  (lock (bt:make-lock "live page") :read-only t)
  (all '()))

(setf (documentation 'make-live-feeds 'function)
      "The LIVE-FEEDS of a live page that nobody has opened.")

(defmacro with-live-feeds ((feeds) &body body)
  "Evaluates BODY, which is short and does not wait, while no other thread uses FEEDS."
  `(with-lock-briefly ((live-feeds-lock ,feeds))
     ,@body))

(defun send-to-viewer (viewer octets)
  "Has OCTETS, an event, sent to VIEWER.  A slow client misses it."
  (let ((answer (viewer-answer viewer)))
    (uninterruptibly                    ; or a destroyed thread could leave them unsent
      (when (member (put-in-shared-queue (streamed-answer-shared-queue answer)
                                         (framed octets (viewer-framing viewer)))
                    '(:room :full))
        (resume (streamed-answer-deferred-response answer))))))

(defun remove-viewer (feeds feed viewer)
  "Removes VIEWER from FEED, and FEED from FEEDS if it was the last."
  (with-live-feeds (feeds)
    (unless (setf (live-feed-viewers feed) (remove viewer (live-feed-viewers feed)))
      (setf (live-feeds-all feeds) (remove feed (live-feeds-all feeds))))))

(defun enter-viewer (feeds viewer engine servers)
  "Enters VIEWER into the feed of ENGINE in FEEDS, which is made for SERVERS if there is none.
Returns the feed, and whether it is new."
  (with-live-feeds (feeds)
    (let* ((known (find engine (live-feeds-all feeds) :key #'live-feed-engine))
           (feed (or known (make-live-feed engine servers))))
      (unless known
        (push feed (live-feeds-all feeds)))
      (push viewer (live-feed-viewers feed))
      (values feed (null known)))))

(defun add-viewer (feeds servers answer framing)
  "Sends snapshots of SERVERS, a list, to ANSWER, a STREAMED-ANSWER with FRAMING, as FRAMED takes
it: one now, and then one each second, which it shares with the other viewers of its engine in
FEEDS.  Ends when the client leaves or the server stops.  The result has no meaning."
  (let ((viewer (make-viewer answer framing))
        (engine (suspended-exchange-engine (streamed-answer-deferred-response answer))))
    (uninterruptibly                    ; or the feed could be left without a timer
      (multiple-value-bind (feed new-p) (enter-viewer feeds viewer engine servers)
        (when new-p
          (await-snapshot feeds feed))
        (call-when-over (streamed-answer-shared-queue answer)
                        (lambda () (remove-viewer feeds feed viewer)))))
    (send-to-viewer viewer (snapshot-event servers))))

(defun await-snapshot (feeds feed)
  "Schedules the next snapshot of FEED, one of FEEDS."
  (schedule (live-feed-engine feed) *snapshot-seconds*
            (lambda () (send-snapshot feeds feed))))

(defun send-snapshot (feeds feed)
  "Sends a snapshot to the viewers of FEED, one of FEEDS, and schedules the next.  Does nothing if
there are no viewers."
  (let ((viewers (with-live-feeds (feeds) (live-feed-viewers feed))))
    (when viewers
      (await-snapshot feeds feed)       ; first, so that a failure here does not end the feed
      (let ((octets (snapshot-event (live-feed-servers feed))))
        (call-with-spare-worker-buffers
         (lambda ()
           (call-for-all (lambda (viewer) (send-to-viewer viewer octets)) viewers)))))))
