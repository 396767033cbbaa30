(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* conformance/debugging :in conformance
  :description "Where an application gets hold of errors: maybe-invoke-debugger.")

(define-condition noted-error (error)
  ((recorder :initarg :recorder :reader noted-error-recorder))
  (:report "An error that is noted.")
  (:documentation "An error on which MAYBE-INVOKE-DEBUGGER has a method."))

(defmethod hunchentoot:maybe-invoke-debugger :after ((condition noted-error))
  (record (noted-error-recorder condition) :noted))

(define-server-test maybe-invoke-debugger-is-called-once-for-an-error-that-nobody-handles
  (let ((notes (make-recorder)))
    (serving () (("/" (error 'noted-error :recorder notes))
                 ("/handled" (handler-case (error 'noted-error :recorder notes)
                               (noted-error () "handled"))))
      (is (string= "handled" (ask-text "/handled")))
      (is (= 500 (response-status (ask "/"))))
      (is (equal '(:noted) (recorded notes))))))

(defmacro without-catching ((debugger) &body body)
  "Evaluates BODY while Hunchentoot does not catch errors, and DEBUGGER, a function of the
condition, is called where the Lisp would enter its debugger."
  `(with-globals ((hunchentoot:*catch-errors-p* nil))
     (call-with-debugger ,debugger (lambda () ,@body))))

(define-server-test errors-and-their-requests-reach-the-debugger-when-they-are-not-caught
  (let ((seen (make-recorder)))
    (without-catching ((lambda (condition)
                         (record seen (list (princ-to-string condition) (hunchentoot:script-name*)))
                         (hunchentoot:abort-request-handler "debugged")))
      (serving () (("/here" (error "Look at me.")))
        (is (string= "debugged" (ask-text "/here")))
        (is (equal '(("Look at me." "/here")) (recorded seen)))))))

(define-server-test
    (clients-that-leave-do-not-reach-the-debugger :needs :our-http)
  (let ((seen (make-recorder)) (entered (make-recorder)) (left (make-recorder)) (count 0))
    (flet ((call-noting (function)
             (record entered t)
             (unwind-protect (funcall function)
               (record left t))))
      (without-catching ((lambda (condition)
                           (record seen (princ-to-string condition))
                           (hunchentoot:abort-request-handler "debugged")))
        (serving ()
            (("/write" (call-noting (lambda ()
                                      (loop with stream = (hunchentoot:send-headers)
                                            do (write-sequence (test-octets 10000) stream)))))
             ("/error" (error "Look at me.")))
          (dolist (leave (list #'disconnect #'reset))
            (let ((connection (connect)))
              (send-request connection "/write")
              (incf count)
              (eventually ("the handler to be entered") (= count (recorded-count entered)))
              (funcall leave connection)
              (eventually ("the handler to be left") (= count (recorded-count left)))))
          (is (null (recorded seen)))
          (ask "/error")
          (is (equal '("Look at me.") (recorded seen))))))))
