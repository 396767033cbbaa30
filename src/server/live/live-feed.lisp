(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; The events of live pages.  A feed for each engine takes a snapshot each second, by a timer of
;;;; that engine, and keeps those of the last two minutes, so that a page that somebody opens when
;;;; something is wrong shows how it came to that.  All pages that were opened through one engine
;;;; share its feed.
;;;;
;;;;   event                       the feed of the engine
;;;;   the engine's first request  is made, with a timer
;;;;   the timer rings             keeps a snapshot, sends it to its viewers, sets the timer again
;;;;   a page is opened            gets a viewer, to which it sends what it has kept
;;;;   a page is closed            loses its viewer
;;;;   the engine stops            loses its timer and all viewers, since their streams end

(defparameter *snapshot-seconds* 1
  "Seconds between two snapshots, a real above 0.")

(defparameter *snapshots-kept* 119
  "How many snapshots a feed keeps.  With the one of the moment, a page shows two minutes.")

(defstruct (viewer (:include opaque) (:constructor make-viewer (answer framing)))
  "A page that is open.  ANSWER, a STREAMED-ANSWER, is its stream of events, with FRAMING."
  (answer nil :read-only t)
  (framing nil :read-only t))

(defstruct (live-feed (:include opaque) (:constructor make-live-feed (engine servers)))
  "What the pages that were opened through ENGINE get: snapshots of SERVERS."
  (engine nil :read-only t)
  (servers '() :read-only t)
  (history '())                         ; SNAPSHOT-OCTETS without workers, the last first
  (viewers '()))

(defstruct (live-feeds (:include opaque) (:constructor make-live-feeds ()))
  "The feeds of one live page."
  (lock (bt:make-lock "live page") :read-only t)
  (all '()))

(defmacro with-live-feeds ((feeds) &body body)
  "Evaluates BODY, which is short and does not wait, while no other thread uses FEEDS."
  `(with-lock-briefly ((live-feeds-lock ,feeds))
     ,@body))

(defun send-to-viewer (viewer octets)
  "Has OCTETS, an event, sent to VIEWER.  A slow client misses it."
  (let ((answer (viewer-answer viewer)))
    (when (member (put-in-shared-queue (streamed-answer-shared-queue answer)
                                       (framed octets (viewer-framing viewer)))
                  '(:room :full))
      (have-owner-send (streamed-answer-deferred-response answer)))))

(defun watch-servers (feeds engine servers)
  "The feed of ENGINE in FEEDS.  The first call makes one for SERVERS, a list, which may be called
for each request."
  (symbol-macrolet ((all (live-feeds-all feeds)))
    (flet ((known ()
             (find engine all :key #'live-feed-engine)))
      (or (known)
          (let ((feed (make-live-feed engine servers)))
            (with-live-feeds (feeds)
              (unless (known)
                (setf all (cons feed (remove-if #'engine-stopped-p all
                                                :key #'live-feed-engine)))))
            (when (eq feed (known))
              (await-snapshot feeds feed))
            (known))))))

(defun add-viewer (feeds servers answer framing)
  "Sends snapshots of SERVERS, a list, to ANSWER, a STREAMED-ANSWER with FRAMING, as FRAMED takes
it: those of the last two minutes, then one each second, which it shares with the other viewers of
its engine in FEEDS.  Ends when the client leaves or the server stops.  The result has no meaning."
  (let ((viewer (make-viewer answer framing))
        (feed (watch-servers feeds (suspended-exchange-engine
                                    (streamed-answer-deferred-response answer))
                             servers)))
    (with-live-feeds (feeds)
      (push viewer (live-feed-viewers feed)))
    (call-when-over (streamed-answer-shared-queue answer)
                    (lambda ()
                      (with-live-feeds (feeds)
                        (setf (live-feed-viewers feed)
                              (remove viewer (live-feed-viewers feed))))))
    (send-to-viewer viewer (snapshots-event (reverse (cons (snapshot-octets servers t)
                                                           (live-feed-history feed)))))))

(defun await-snapshot (feeds feed)
  "Schedules the next snapshot of FEED, one of FEEDS."
  (schedule (live-feed-engine feed) *snapshot-seconds*
            (lambda () (take-snapshot feeds feed))))

(defun take-snapshot (feeds feed)
  "Keeps a snapshot of FEED, one of FEEDS, sends it to the viewers, and schedules the next."
  (await-snapshot feeds feed)           ; first, so that a failure here does not end the feed
  (let ((viewers (with-live-feeds (feeds) (live-feed-viewers feed)))
        (kept (cons (snapshot-octets (live-feed-servers feed) nil) (live-feed-history feed))))
    (setf (live-feed-history feed) (subseq kept 0 (min *snapshots-kept* (length kept))))
    (when viewers
      (let ((event (snapshots-event (list (snapshot-octets (live-feed-servers feed) t)))))
        (call-for-all (lambda (viewer) (send-to-viewer viewer event)) viewers)))))
