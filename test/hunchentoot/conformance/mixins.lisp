(in-package #:hunchentoot-recycling-taskmaster-test)

;;; Classes that a program mixes in after ours, as it did after Hunchentoot's.

(in-suite conformance/subclasses)

(defclass tracing (hunchentoot:acceptor) ()
  (:documentation "An acceptor with a method on every generic function on which ours have one
too."))

(macrolet ((trace-calls (&rest functions)
             `(progn
                ,@(loop for (name . lambda-list) in functions
                        collect `(defmethod ,name ((acceptor tracing) ,@lambda-list)
                                   (declare (ignorable ,@(rest lambda-list)))
                                   (note ',name)
                                   (call-next-method))))))
  (trace-calls (hunchentoot:start)
               (hunchentoot:stop &key soft)
               (hunchentoot:start-listening)
               (hunchentoot:accept-connections)
               (hunchentoot:acceptor-log-access &key return-code)
               (hunchentoot:acceptor-persistent-connections-p)))

(defclass tracing-connections (hunchentoot:acceptor) ())

(defmethod hunchentoot:process-connection ((acceptor tracing-connections) socket)
  (declare (ignore socket))
  (note 'hunchentoot:process-connection)
  (call-next-method))

(defun class-mixed-into (mixin)
  "The name of a class of acceptors that inherits from *ACCEPTOR-CLASS* and from the class MIXIN, in
this order."
  (let ((name (intern (format nil "~A+~A" *acceptor-class* mixin)
                      '#:hunchentoot-recycling-taskmaster-test)))
    (unless (find-class name nil)
      (eval `(defclass ,name (,*acceptor-class* ,mixin) ())))
    name))

(defmacro serving-mixed ((mixin &rest initargs) &body body)
  `(let ((*acceptor-class* (class-mixed-into ,mixin)))
     (noting (serving ,initargs (("/" "body")) ,@body))))

(defun calls-of (name)
  (recorded-count *steps* name))

(defmacro where-methods-can-be-called (&body body)
  `(if (or (platform:method-calls-supported-p) (not (ours-p)))
       (progn ,@body)
       (skip "Here methods of classes after ours are not called.")))

(define-server-test methods-of-a-class-after-ours-are-called-too
  (where-methods-can-be-called
    (let ((log (make-string-output-stream)))
      (serving-mixed ('tracing :access-log-destination log)
        (loop repeat 2
              do (with-connection (connection)
                   (loop repeat 3
                         do (is (string= "body" (exchange-text connection "/"))))))
        (is (= 1 (calls-of 'hunchentoot:start)))
        (is (= 1 (calls-of 'hunchentoot:start-listening)))
        (is (plusp (calls-of 'hunchentoot:accept-connections)))
        (is (= 6 (calls-of 'hunchentoot:acceptor-log-access)))
        (is (plusp (calls-of 'hunchentoot:acceptor-persistent-connections-p)))
        (is (zerop (calls-of 'hunchentoot:stop)))
        (hunchentoot:stop *server*)
        (is (= 1 (calls-of 'hunchentoot:stop)))
        (is (not (hunchentoot:started-p *server*)))
        (hunchentoot:start *server*)
        (is (string= "body" (ask-text "/")))
        (is (= 7 (length (log-lines (get-output-stream-string log)))))))))

(define-server-test a-connection-method-of-a-class-after-ours-is-called-once
  (where-methods-can-be-called
    (serving-mixed ('tracing-connections)
      (with-connection (connection)
        (loop repeat 3
              do (is (string= "body" (exchange-text connection "/")))))
      (is (= 1 (calls-of 'hunchentoot:process-connection))))))

(defclass delegating ()
  ((other :initform nil :accessor other-acceptor))
  (:documentation "A mixin for an acceptor whose connections another one serves."))

(defmethod hunchentoot:process-connection :around ((acceptor delegating) socket)
  (hunchentoot:process-connection (other-acceptor acceptor) socket))

(define-server-test who-serves-for-another-acceptor-does-so-with-its-own-methods
  (where-methods-can-be-called
    (noting
      (serving (:mixin 'delegating) (("/" "body"))
        (setf (other-acceptor *server*)
              (let ((*acceptor-class* (class-mixed-into 'tracing-connections)))
                (make-test-acceptor)))
        (is (string= "body" (ask-text "/")))
        ;; Again for the next request, where each has a call.
        (is (<= 1 (calls-of 'hunchentoot:process-connection) 2))))))

(defclass silent (hunchentoot:acceptor) ())

(defmethod hunchentoot:acceptor-log-access ((acceptor silent) &key return-code)
  (note return-code))

(define-server-test a-class-after-ours-may-do-without-our-log
  (where-methods-can-be-called
    (let ((log (make-string-output-stream)))
      (serving-mixed ('silent :access-log-destination log)
        (ask "/")
        (is (= 1 (calls-of 200))))
      (is (string= "" (get-output-stream-string log))))))

(defclass telling-elsewhere (hunchentoot:acceptor) ())

(defmethod hunchentoot:acceptor-log-message ((acceptor telling-elsewhere) level control
                                             &rest arguments)
  (note level)
  (apply #'call-next-method acceptor level (concatenate 'string "Here: " control) arguments))

(define-server-test a-class-after-ours-may-change-our-messages
  (where-methods-can-be-called
    (let ((log (make-string-output-stream)))
      (serving-mixed ('telling-elsewhere :message-log-destination log)
        (hunchentoot:acceptor-log-message *server* :info "~D." 1)
        (is (= 1 (calls-of :info))))
      (is (search "[INFO]] Here: 1." (get-output-stream-string log))))))

(defclass logging-later (hunchentoot:acceptor) ())

(define-server-test
    (a-log-of-a-class-after-ours-that-is-defined-later-counts-at-once :needs :our-engine)
  (where-methods-can-be-called
    (let ((log (make-string-output-stream)))
      (serving-mixed ('logging-later :access-log-destination log)
        (ask "/")
        (let ((method (defmethod hunchentoot:acceptor-log-access ((acceptor logging-later)
                                                                  &key return-code)
                        (note return-code))))
          (unwind-protect
               ;; Elsewhere it counts from the next start on.
               (progn (unless (uiop:featurep :sbcl)
                        (hunchentoot:stop *server*)
                        (hunchentoot:start *server*))
                      (ask "/")
                      (is (= 1 (calls-of 200))))
            (remove-method #'hunchentoot:acceptor-log-access method)))
        (is (= 1 (length (log-lines (get-output-stream-string log)))))))))
