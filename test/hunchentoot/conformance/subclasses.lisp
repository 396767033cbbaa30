(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* conformance/subclasses :in conformance
  :description "An application's own classes of acceptors, requests and replies.")

;;; Requests and replies

(defclass own-reply (hunchentoot:reply)
  ((mark :initform "marked" :reader mark)))

(defvar *steps* (make-recorder)
  "What the methods of this file note; every test makes it new.")

(defun note (step)
  "Notes STEP in *STEPS*."
  (record *steps* step))

(defmacro noting (&body body)
  "Evaluates BODY with nothing noted so far."
  `(with-globals ((*steps* (make-recorder)))
     ,@body))

(define-server-test classes-may-be-given-as-class-objects-and-changed-later
  (serving (:reply-class (find-class 'own-reply))
      (("/" (shown (class-name (class-of hunchentoot:*reply*)))))
    (is (search "OWN-REPLY" (ask-text "/")))
    (setf (hunchentoot:acceptor-reply-class *server*) 'hunchentoot:reply)
    (is (search "HUNCHENTOOT:REPLY" (ask-text "/")))))

;;; Acceptors

(defvar *bound-around* nil
  "What methods around a connection or request bind for the handlers within.")

(defclass wrapping () ()
  (:documentation "A mixin for an acceptor with methods around everything."))

(defmethod hunchentoot:process-connection :around ((acceptor wrapping) socket)
  (note :connection)
  (let ((*bound-around* (list :connection (and socket t))))
    (unwind-protect (call-next-method)
      (note :end-of-connection))))

(defmethod hunchentoot:handle-request :around ((acceptor wrapping) request)
  (note :handle)
  (let ((*bound-around* (append *bound-around*
                                (list :handle (hunchentoot:script-name request)))))
    (call-next-method)))

(defmethod hunchentoot:acceptor-dispatch-request :before ((acceptor wrapping) request)
  (note (list :dispatch (hunchentoot:script-name request))))

(defmethod hunchentoot:initialize-connection-stream :around ((acceptor wrapping) stream)
  (note :initialize)
  (let ((initialized (call-next-method)))
    (note (if (streamp initialized) :initialized :no-stream))
    initialized))

(define-server-test methods-around-connections-and-requests-are-called-as-by-hunchentoot
  (noting
    (serving (:mixin 'wrapping) (("/" (note :handler) (shown *bound-around*)))
      (loop repeat 2
            do (with-connection (connection)
                 (loop repeat 3
                       do (is (string= (shown '(:connection t :handle "/"))
                                       (exchange-text connection "/")))))
               (eventually ("process-connection to return")
                 (= (recorded-count *steps* :connection)
                    (recorded-count *steps* :end-of-connection))))
      (loop for (step count) in '((:handle 6) ((:dispatch "/") 6) (:initialize 2) (:initialized 2))
            do (is (= count (recorded-count *steps* step)) "~S" step))
      ;; Once per connection or once per request: both are right, so we only look whether
      ;; every handler ran between a beginning and an end.
      (is (loop with depth = 0
                for step in (recorded *steps*)
                do (case step
                     (:connection (incf depth))
                     (:end-of-connection (decf depth)))
                always (or (not (eq step :handler)) (= depth 1)))))))
