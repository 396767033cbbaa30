(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite changing :in acceptors
  :description "Acceptors whose class changes in a live image.")

(in-suite changing)

(defun taskmaster-of (acceptor)
  (recycling::acceptor-taskmaster* acceptor))

(defun on-our-threads-p (acceptor)
  (typep (taskmaster-of acceptor) 'recycling:recycling-taskmaster))

(defun serves-p (acceptor)
  "True when ACCEPTOR, which is started for that, serves /yo, and stops in order: no thread of it is left,
such as that for the connection by which Hunchentoot wakes its listener."
  (let ((*server* acceptor))
    (without-leaks ()
      (with-routes (("/yo" "Hey!"))
        (hunchentoot:start acceptor)
        (unwind-protect (equal "Hey!" (ask-text "/yo"))
          (stop-if-started acceptor))))))

(defun stock-acceptor (&rest initargs)
  (let ((*acceptor-class* 'hunchentoot:easy-acceptor))
    (apply #'make-test-acceptor initargs)))

(defmacro serving-stock ((acceptor &rest initargs) &body body)
  "Evaluates BODY while ACCEPTOR, one of Hunchentoot's own, of INITARGS, serves /yo."
  `(let ((*acceptor-class* 'hunchentoot:easy-acceptor))
     (serving ,initargs (("/yo" "Hey!"))
       (let ((,acceptor *server*)) ,@body))))

;;; CHANGE-CLASS

(define-server-test (a-stopped-acceptor-becomes-ours-and-hunchentoots-again :needs :our-engine)
  (let ((acceptor (stock-acceptor)))
    (loop repeat 2
          do (change-class acceptor 'recycling:parallel-easy-acceptor)
             (is (on-our-threads-p acceptor))
             (is (serves-p acceptor))
             (is (= 1 (getf (recycling:stats acceptor) :served)))
             (change-class acceptor 'hunchentoot:easy-acceptor)
             (is (not (on-our-threads-p acceptor)))
             (is (serves-p acceptor)))))

(define-server-test (what-an-acceptor-had-it-keeps-when-it-becomes-ours :needs :our-engine)
  (let ((acceptor (stock-acceptor :read-timeout 7 :name 'shop)))
    (change-class acceptor 'recycling:parallel-easy-acceptor :max-body-octets 10)
    (is (eql 7 (hunchentoot:acceptor-read-timeout acceptor)))
    (is (eq 'shop (hunchentoot:acceptor-name acceptor)))
    (is (eql 1 (recycling::acceptor-defer-accept acceptor)))
    (is (eq :combined (recycling::access-log-format acceptor)))
    (is (eql 10 (http:limits-body-octets (recycling::acceptor-limits acceptor))))))

(define-server-test (a-started-acceptor-goes-on-and-becomes-ours-at-the-next-start
                     :needs :our-engine)
  (serving-stock (acceptor)
    (is (equal "Hey!" (ask-text "/yo")))
    (change-class acceptor 'recycling:parallel-easy-acceptor)
    (is (equal "Hey!" (ask-text "/yo")))
    (is (not (on-our-threads-p acceptor)))
    (is (eq acceptor (hunchentoot:stop acceptor)))
    (is (serves-p acceptor))
    (is (on-our-threads-p acceptor))))

(define-server-test (a-started-acceptor-of-ours-does-not-become-hunchentoots :needs :our-engine)
  (serving () (("/yo" "Hey!"))
    (check-sentence ((change-class *server* 'hunchentoot:easy-acceptor)
                     hunchentoot:parameter-error)
                    "stop it")
    (is (typep *server* 'recycling:parallel-easy-acceptor))
    (is (equal "Hey!" (ask-text "/yo")))))

(define-server-test (a-taskmaster-of-the-programs-own-class-stays :needs :our-engine)
  (let* ((taskmaster (make-instance 'taskmaster-of-a-program))
         (acceptor (stock-acceptor :taskmaster taskmaster)))
    (change-class acceptor 'recycling:parallel-easy-acceptor)
    (is (eq taskmaster (taskmaster-of acceptor)))
    (is (serves-p acceptor))
    (change-class acceptor 'hunchentoot:easy-acceptor)
    (is (eq taskmaster (taskmaster-of acceptor)))
    (is (serves-p acceptor))))

(defclass taskmaster-of-a-program (hunchentoot:one-thread-per-connection-taskmaster) ())

(define-server-test (connections-are-kept-after-a-single-threaded-taskmaster :needs :our-engine)
  (let ((acceptor (stock-acceptor :taskmaster (make-instance
                                               'hunchentoot:single-threaded-taskmaster))))
    (change-class acceptor 'recycling:parallel-easy-acceptor)
    (is (hunchentoot:acceptor-persistent-connections-p acceptor))
    (is (serves-p acceptor))))

(define-server-test (connections-are-not-kept-where-the-program-wants-none-kept :needs :our-engine)
  (let ((acceptor (stock-acceptor :persistent-connections-p nil)))
    (change-class acceptor 'recycling:parallel-easy-acceptor)
    (is (not (hunchentoot:acceptor-persistent-connections-p acceptor)))))

(define-server-test (a-taskmaster-of-ours-stays-when-its-acceptor-becomes-ours :needs :our-engine)
  (let* ((taskmaster (taskmaster :max-thread-count 7))
         (acceptor (stock-acceptor :taskmaster taskmaster)))
    (change-class acceptor 'recycling:parallel-easy-acceptor)
    (is (eq taskmaster (taskmaster-of acceptor)))
    (is (serves-p acceptor))))

(define-server-test (a-taskmaster-that-is-replaced-after-the-next-start-stays-replaced
                     :needs :our-engine)
  (serving-stock (acceptor)
    (change-class acceptor 'recycling:parallel-easy-acceptor)
    (hunchentoot:stop acceptor)
    (is (serves-p acceptor))
    (let ((taskmaster (taskmaster)))
      (reinitialize-instance acceptor :taskmaster taskmaster)
      (is (serves-p acceptor))
      (is (eq taskmaster (taskmaster-of acceptor))))))

(defclass acceptor-of-a-program (recycling:parallel-easy-acceptor)
  ()
  (:default-initargs :max-body-octets 5))

(define-server-test (what-an-acceptor-of-ours-has-it-keeps-among-our-classes :needs :our-engine)
  (serving (:max-body-octets 6) (("/yo" "Hey!"))
    (let ((taskmaster (taskmaster-of *server*)))
      (flet ((check ()
               (is (eq taskmaster (taskmaster-of *server*)))
               (is (eql 6 (http:limits-body-octets (recycling::acceptor-limits *server*))))))
        ;; While it is started, and while it is stopped.
        (change-class *server* 'acceptor-of-a-program)
        (is (equal "Hey!" (ask-text "/yo")))
        (check)
        (hunchentoot:stop *server*)
        (change-class *server* 'recycling:parallel-easy-acceptor)
        (change-class *server* 'acceptor-of-a-program)
        (check)
        (is (serves-p *server*))))))

;;; Redefinition of a program's class

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

(define-server-test (a-started-acceptor-survives-the-redefinition-to-ours :needs (:our-engine :redefinition))
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

(define-server-test (default-initargs-of-a-program-hold-for-what-becomes-ours :needs (:our-engine :redefinition))
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

;;; Taskmasters

(define-server-test (a-taskmaster-may-become-ours :needs :our-engine)
  (let* ((taskmaster (make-instance 'hunchentoot:one-thread-per-connection-taskmaster))
         (acceptor (stock-acceptor :taskmaster taskmaster)))
    (change-class taskmaster 'recycling:recycling-taskmaster)
    (is (= 8 (recycling:taskmaster-standby-thread-count taskmaster)))
    (is (eq :unlimited (hunchentoot:taskmaster-max-accept-count taskmaster)))
    (is (serves-p acceptor))))

(define-server-test (the-class-of-a-taskmaster-may-be-redefined-to-ours :needs (:our-engine :redefinition))
  (flet ((define-crew (superclass)
           (eval `(defclass crew (,superclass) ()))))
    (unwind-protect
         (progn (setf (find-class 'crew) nil)
                (define-crew 'hunchentoot:one-thread-per-connection-taskmaster)
                (let* ((taskmaster (make-instance 'crew))
                       (acceptor (stock-acceptor :taskmaster taskmaster)))
                  (is (serves-p acceptor))
                  (define-crew 'recycling:recycling-taskmaster)
                  (is (= 8 (recycling:taskmaster-standby-thread-count taskmaster)))
                  (is (eq :unlimited (hunchentoot:taskmaster-max-accept-count taskmaster)))
                  (is (serves-p acceptor))))
      (setf (find-class 'crew) nil))))
