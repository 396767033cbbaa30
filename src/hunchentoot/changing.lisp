(in-package #:hunchentoot-recycling-taskmaster)

;;;; Acceptors whose class a program redefines in a live image, from a subclass of one of
;;;; Hunchentoot's acceptors to one of ours or back.
;;;;
;;;;   from           to             an acceptor that is stopped    one that is started
;;;;   Hunchentoot's  ours           gets our taskmaster at once    gets it at the next START
;;;;   ours           Hunchentoot's  gets Hunchentoot's at once     keeps ours
;;;;
;;;; A taskmaster of a class that the program has defined stays.  Slots that MAKE-INSTANCE would
;;;; fill by default initargs are filled by these.

;;; Taskmasters

(defun default-taskmaster (acceptor)
  "A taskmaster made by the default initarg of the class of ACCEPTOR; NIL where there is none."
  (let ((default (assoc :taskmaster (default-arguments (class-of acceptor)))))
    (and default (funcall (cdr default)))))

(defun chosen-p (taskmaster)
  "True when the class of TASKMASTER is neither Hunchentoot's nor ours, so that a program chose it."
  (not (member (class-of taskmaster)
               (mapcar #'find-class '(hunchentoot:one-thread-per-connection-taskmaster
                                      hunchentoot:single-threaded-taskmaster
                                      recycling-taskmaster)))))

(defun replace-taskmaster (acceptor taskmaster)
  "Replaces the taskmaster of ACCEPTOR, which is stopped, by TASKMASTER, unless the program chose
it."
  (let ((old (acceptor-taskmaster* acceptor)))
    (unless (chosen-p old)
      (when (typep old 'hunchentoot:single-threaded-taskmaster)
        ;; With a single-threaded taskmaster, Hunchentoot has switched this off.
        (setf (hunchentoot:acceptor-persistent-connections-p acceptor) t))
      (reinitialize-instance acceptor :taskmaster taskmaster))))

(defun take-successor (acceptor)
  "Called when ACCEPTOR is about to start.  If its class has changed while it ran, replaces its
taskmaster."
  (with-slots (successor) acceptor
    (when successor
      (replace-taskmaster acceptor (shiftf successor nil)))))

;;; To our classes

(defun become-ours (acceptor)
  "Fills ACCEPTOR, which has become an instance of our class, as MAKE-INSTANCE would."
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
  "Gives ACCEPTOR, which was an instance of our class, a taskmaster of Hunchentoot's."
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
          (stop-journal journal 0))))   ; does not wait for its end
    (become-foreign acceptor)))
