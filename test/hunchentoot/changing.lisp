(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite changing :in acceptors
  :description "Acceptors whose class is redefined in a live image.")

(in-suite changing)

(defun taskmaster-of (acceptor)
  (recycling::acceptor-taskmaster* acceptor))

(defun on-our-threads-p (acceptor)
  (typep (taskmaster-of acceptor) 'recycling:recycling-taskmaster))

(defun serves-p (acceptor)
  "True when ACCEPTOR, which is started for that, serves /yo, and stops in order: no thread of it is
left, such as that for the connection by which Hunchentoot wakes its listener."
  (let ((*server* acceptor))
    (without-leaks ()
      (with-routes (("/yo" "Hey!"))
        (hunchentoot:start acceptor)
        (unwind-protect (equal "Hey!" (ask-text "/yo"))
          (stop-if-started acceptor))))))

(defun define-shop (superclass &rest default-initargs)
  "Defines or redefines the class SHOP of acceptors."
  (eval `(defclass shop (,superclass)
           ((goods :initarg :goods :initform '())
            (currency :initarg :currency))
           (:default-initargs :currency :guilder ,@default-initargs))))

(defmacro with-shop ((acceptor superclass &rest default-initargs) &body body)
  "Evaluates BODY with ACCEPTOR bound to an acceptor of a new class with SUPERCLASS and
DEFAULT-INITARGS."
  `(unwind-protect
        (progn (setf (find-class 'shop) nil)
               (define-shop ,superclass ,@default-initargs)
               (let* ((*acceptor-class* 'shop)
                      (,acceptor (make-test-acceptor :goods '(tea))))
                 ,@body))
     (setf (find-class 'shop) nil)))

(define-server-test (a-class-may-be-redefined-to-ours-and-back :needs (:our-engine :redefinition))
  (with-shop (acceptor 'hunchentoot:easy-acceptor)
    (loop repeat 2
          do (define-shop 'recycling:parallel-easy-acceptor)
             (is (serves-p acceptor))
             (is (on-our-threads-p acceptor))
             (is (= 1 (getf (recycling:stats acceptor) :served)))
             (define-shop 'hunchentoot:easy-acceptor)
             (is (serves-p acceptor))
             (is (not (on-our-threads-p acceptor))))
    (is (equal '(tea) (slot-value acceptor 'goods)))))

(define-server-test
    (a-started-acceptor-survives-the-redefinition-to-ours :needs (:our-engine :redefinition))
  (with-shop (acceptor 'hunchentoot:easy-acceptor)
    (with-routes (("/yo" "Hey!"))
      (hunchentoot:start acceptor)
      (let ((*server* acceptor))
        (is (equal "Hey!" (ask-text "/yo")))
        (define-shop 'recycling:parallel-easy-acceptor)
        (is (equal "Hey!" (ask-text "/yo"))))
      (hunchentoot:stop acceptor))
    (is (serves-p acceptor))
    (is (on-our-threads-p acceptor))))

(define-server-test (a-started-acceptor-can-be-stopped-after-the-redefinition-to-hunchentoots
                     :needs (:our-engine :redefinition))
  (with-shop (acceptor 'recycling:parallel-easy-acceptor)
    (with-log-file (file)
      (setf (hunchentoot:acceptor-access-log-destination acceptor) file)
      (hunchentoot:start acceptor)
      (define-shop 'hunchentoot:easy-acceptor)
      (hunchentoot:stop acceptor)
      (is (serves-p acceptor)))))

(define-server-test
    (default-initargs-of-a-program-hold-for-what-becomes-ours :needs (:our-engine :redefinition))
  (with-shop (acceptor 'hunchentoot:easy-acceptor)
    (is (eq :guilder (slot-value acceptor 'currency)))
    (slot-makunbound acceptor 'currency)
    (define-shop 'recycling:parallel-easy-acceptor
      :max-body-octets 5 :access-log-format :json :parking nil
      :taskmaster '(make-instance 'recycling:recycling-taskmaster :max-thread-count 7))
    (is (serves-p acceptor))
    (is (eq :guilder (slot-value acceptor 'currency)))
    (is (eq :json (recycling::access-log-format acceptor)))
    (is (eql 5 (http:limits-body-octets (recycling::acceptor-limits acceptor))))
    (is (eql 7 (hunchentoot:taskmaster-max-thread-count (taskmaster-of acceptor))))
    (is (not (recycling::taskmaster-parking-p (taskmaster-of acceptor))))))

(define-server-test (a-further-redefinition-changes-nothing-else :needs (:our-engine :redefinition))
  (with-shop (acceptor 'recycling:parallel-easy-acceptor :max-body-octets 5)
    (reinitialize-instance acceptor :max-body-octets 6)
    (let ((taskmaster (taskmaster-of acceptor)))
      (eval '(defclass shop (recycling:parallel-easy-acceptor)
              ((colour :initarg :colour))
              (:default-initargs :colour :red :max-body-octets 7)))
      (is (eq :red (slot-value acceptor 'colour)))
      (is (eql 6 (http:limits-body-octets (recycling::acceptor-limits acceptor))))
      (is (eq taskmaster (taskmaster-of acceptor)))
      (is (serves-p acceptor)))))

(defclass taskmaster-of-a-program (hunchentoot:one-thread-per-connection-taskmaster) ())

(define-server-test (a-taskmaster-that-a-program-chose-stays :needs (:our-engine :redefinition))
  (with-shop (acceptor 'hunchentoot:easy-acceptor)
    (dolist (class '(taskmaster-of-a-program recycling:recycling-taskmaster))
      (let ((taskmaster (make-instance class)))
        (define-shop 'hunchentoot:easy-acceptor)
        (reinitialize-instance acceptor :taskmaster taskmaster)
        (define-shop 'recycling:parallel-easy-acceptor)
        (is (eq taskmaster (taskmaster-of acceptor)))
        (is (serves-p acceptor))))))

(define-server-test
    (connections-are-kept-after-a-single-threaded-taskmaster :needs (:our-engine :redefinition))
  (with-shop (acceptor 'hunchentoot:easy-acceptor)
    (reinitialize-instance acceptor
                           :taskmaster (make-instance 'hunchentoot:single-threaded-taskmaster))
    (define-shop 'recycling:parallel-easy-acceptor)
    (is (hunchentoot:acceptor-persistent-connections-p acceptor))
    (is (serves-p acceptor))))
