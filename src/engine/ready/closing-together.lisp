(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; Connections that end at the same time are closed together: what CLOSE-GRACEFULLY asks the system of one, a call
;;;; asks it of all.  One whose peer may send more, or has, is closed by itself.
;;;;
;;;; A program may end the thread amid the end of one, see RELEASE-OWNED; the others are closed all the same.

(defun nothing-unread-p (batch place)
  "True when there was nothing to be received for PLACE of BATCH."
  (let ((result (aref (input-batch-results batch) place)))
    (and (not (eql +not-made+ result)) (<= result 0))))

(defun closed-at-once (engine batch connections)
  "Those of CONNECTIONS, whose last answers were sent, that can be closed at once, a list; reads with BATCH some of what
the others have."
  (let* ((ending (remove-if (lambda (connection)
                              (or (gone-p connection) (more-expected-p engine connection)))
                            connections))
         (asked (remove-if (lambda (connection) (known-read-p engine connection)) ending)))
    (receive-for batch asked)
    (remove-if-not (lambda (connection)
                     (let ((place (position connection asked)))
                       (or (null place) (nothing-unread-p batch place))))
                   ending)))

(defun close-descriptors (batch descriptors)
  "Closes DESCRIPTORS, a list of +RING-SIZE+ at most, with BATCH."
  (let ((count (length descriptors)))
    (replace (input-batch-descriptors batch) descriptors)
    (when (plusp count)
      (close-through-ring (input-batch-ring batch) (input-batch-descriptors batch) count
                          (input-batch-results batch)))
    (dotimes (place count)
      (when (eql +not-made+ (aref (input-batch-results batch) place))
        (close-descriptor (aref (input-batch-descriptors batch) place))))))

(defun close-all-owned (engine batch connections)
  "Closes CONNECTIONS, which the caller owns, with BATCH."
  (let ((descriptors '()))
    (flet ((end (connection)
             (release-owned engine connection)
             (unless (gone-p connection)
               (forget-owned engine connection)
               (when (end-ownership connection)
                 (push (connection-descriptor connection) descriptors)))))
      (unwind-protect (call-for-all #'end connections)
        (close-descriptors batch descriptors)))))

(defun close-together (engine batch connections)
  "Closes CONNECTIONS, a list of +RING-SIZE+ at most, which the caller owns, and whose last answers were sent."
  (when connections
    (let* ((at-once (closed-at-once engine batch connections))
           (others (set-difference connections at-once)))
      (unwind-protect (close-all-owned engine batch at-once)
        (call-for-all (lambda (connection)
                        (unless (gone-p connection)
                          ;; What it had was read here, so nobody can ask for that again.
                          (release-owned engine connection)
                          (close-lingering engine connection)))
                      others)))))
