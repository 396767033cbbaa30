(in-package #:hunchentoot-recycling-taskmaster.postgresql)

;;;; What a program calls.

(defmethod publish-message ((broker postgresql-broker) name octets)
  (let* ((channel (utf-8-octets name))
         (payload (coerce octets '(simple-array octet (*))))
         (loss (with-state (broker)
                 (let ((opening (broker-opening broker)))
                   (cond ((not (and opening (eq :open (opening-phase opening)))) :closed)
                         ((not (queue-message opening channel payload)) :refused))))))
    (when loss
      (report-loss broker loss 1))
    (null loss)))

(defun start-opening (opening)
  "Makes the threads of OPENING.  Closes it if there are none to be had."
  (let ((open-p nil))
    (unwind-protect
         (progn
           (start-link opening (opening-publisher opening) 'run-publisher 'abandon-commit)
           (start-link opening (opening-listener opening) 'run-listener)
           (setf open-p t))
      (unless open-p
        (close-opening opening 5)))))

(defmethod open-broker ((broker postgresql-broker) &key (timeout 5))
  (let ((new (begin-opening broker)))
    (when new
      (start-opening new))
    (let ((opening (or new (broker-opening broker))))
      (wait-until (lambda () (and (opening-position opening) (connected-p opening)))
                  (bt:make-condition-variable) (broker-state-lock broker) timeout 1/50)))
  broker)

(defun join-link (link end)
  "Waits until END, a moment of MILLISECONDS, for the end of the thread of LINK.  True if it has
ended."
  (let ((thread (link-thread link)))
    (or (null thread)
        (join-thread thread (/ (milliseconds-left end) 1000)))))

(defun close-opening (opening timeout)
  "Closes OPENING as CLOSE-BROKER does with TIMEOUT."
  (let ((end (end-after timeout))
        (publisher (opening-publisher opening))
        (listener (opening-listener opening)))
    (enter-phase opening :draining)
    (join-link publisher end)
    (enter-phase opening :closed)
    ;; A listener that is well needs a moment.
    (let* ((end (max end (end-after (* 2 *slice-seconds*))))
           (ended-p (and (join-link publisher end) (join-link listener end))))
      (abandon-queue opening)
      ended-p)))

(defmethod close-broker ((broker postgresql-broker) &key (timeout 5))
  (let ((opening (broker-opening broker)))
    (or (null opening)
        (close-opening opening timeout))))

(defmethod broker-stats ((broker postgresql-broker))
  (with-state (broker)
    (let* ((opening (broker-opening broker))
           (queue (and opening (opening-queue opening))))
      (list* :connected-p (and opening (connected-p opening) t)
             :queued (if queue (queue-count queue) 0)
             :queued-octets (if queue (queue-octets queue) 0)
             (copy-list (broker-counts broker))))))
