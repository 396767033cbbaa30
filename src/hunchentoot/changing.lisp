(in-package #:hunchentoot-recycling-taskmaster)

;;;; Acceptors whose class a program redefines in a live image, from a subclass of one of
;;;; Hunchentoot's acceptors to one of ours or back.
;;;;
;;;;   from           to             an acceptor that is stopped    one that is started
;;;;   Hunchentoot's  ours           gets our taskmaster at once    gets it at the next START
;;;;   ours           Hunchentoot's  gets Hunchentoot's at once     keeps ours
;;;;
;;;; A taskmaster that a program chose, of a class of its own, stays.  What MAKE-INSTANCE would have
;;;; filled by default initargs is filled by them.

;;; Taskmasters

(defun default-taskmaster (acceptor)
  "A taskmaster as the class of ACCEPTOR wants it by default; NIL where nobody can tell."
  (let ((default (assoc :taskmaster (default-arguments (class-of acceptor)))))
    (and default (funcall (cdr default)))))

(defun chosen-p (taskmaster)
  "True when TASKMASTER is of a class that is neither Hunchentoot's nor ours: a program chose it."
  (not (member (class-of taskmaster)
               (mapcar #'find-class '(hunchentoot:one-thread-per-connection-taskmaster
                                      hunchentoot:single-threaded-taskmaster
                                      recycling-taskmaster)))))

(defun replace-taskmaster (acceptor taskmaster)
  "Gives ACCEPTOR, which is stopped, TASKMASTER in the place of one that was there by default."
  (let ((old (acceptor-taskmaster* acceptor)))
    (unless (chosen-p old)
      (when (typep old 'hunchentoot:single-threaded-taskmaster)
        ;; With that Hunchentoot keeps no connection, whatever was asked for.
        (setf (hunchentoot:acceptor-persistent-connections-p acceptor) t))
      (reinitialize-instance acceptor :taskmaster taskmaster))))

(defun take-successor (acceptor)
  "Replaces the taskmaster of ACCEPTOR, which is about to start, where its class has changed while
it was started with another one."
  (with-slots (successor) acceptor
    (when successor
      (replace-taskmaster acceptor (shiftf successor nil)))))

;;; To our classes

(defun become-ours (acceptor)
  "Gives ACCEPTOR, which was an instance of another class, what instances of its class have."
  (let ((defaults (missing-arguments acceptor :slotless t))
        (taskmaster (or (default-taskmaster acceptor) (make-instance 'recycling-taskmaster))))
    (apply #'shared-initialize acceptor '() defaults)
    (when (and (typep taskmaster 'recycling-taskmaster) (get-properties defaults '(:parking)))
      (setf (taskmaster-parking-p taskmaster) (getf defaults :parking)))
    (cond ((typep (acceptor-taskmaster* acceptor) 'recycling-taskmaster))
          ((hunchentoot:started-p acceptor)
           (setf (slot-value acceptor 'successor) taskmaster))
          (t
           (replace-taskmaster acceptor taskmaster)))))

(defmethod update-instance-for-redefined-class :after
    ((acceptor parallel-acceptor) added discarded values &key)
  (declare (ignore discarded values))
  (if (member 'limits added)
      (become-ours acceptor)
      (apply #'shared-initialize acceptor '() (missing-arguments acceptor))))

;;; Away from them

(defun become-foreign (acceptor)
  "Gives ACCEPTOR, which was an instance of our class, a taskmaster of its own kind."
  (unless (hunchentoot:started-p acceptor)
    (let ((taskmaster (default-taskmaster acceptor)))
      (when taskmaster
        (replace-taskmaster acceptor taskmaster)))))

(defmethod update-instance-for-redefined-class :after
    ((acceptor hunchentoot:acceptor) added discarded values &key)
  (declare (ignore added))
  (when (and (member 'limits discarded) (not (typep acceptor 'parallel-acceptor)))
    (dolist (name '(journal message-journal))
      (let ((journal (getf values name)))
        (when journal
          (stop-journal journal 0))))   ; it will end by itself
    (become-foreign acceptor)))
