(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite mistakes :in acceptors
  :description "What programs do wrong is refused with a sentence, or does no harm.")

(in-suite mistakes)

(defun error-of (function)
  "The error that FUNCTION signals; NIL when it returns."
  (handler-case (progn (funcall function) nil)
    (error (condition) condition)))

(defmacro check-sentence ((form type) &rest words)
  "Checks that FORM signals an error of TYPE whose report has each of WORDS."
  `(let ((condition (error-of (lambda () ,form))))
     (is (typep condition ',type) "~S signalled ~S." ',form condition)
     (dolist (word (list ,@words))
       (is (search word (princ-to-string condition)) "~S is not in: ~A" word condition))))

;;; Who has which taskmaster

(defmacro with-shared-taskmaster ((first second &key (class '*acceptor-class*)) &body body)
  "Evaluates BODY while FIRST, of /yo, runs, and SECOND, an acceptor of CLASS, has its taskmaster."
  (let ((taskmaster (gensym "TASKMASTER")))
    `(let* ((,taskmaster (taskmaster))
            (,second (let ((*acceptor-class* ,class))
                       (make-test-acceptor :taskmaster ,taskmaster))))
       (serving (:taskmaster ,taskmaster) (("/yo" "Hey!"))
         (let ((,first *server*))
           (declare (ignorable ,first))
           ,@body)))))

(define-server-test (a-taskmaster-serves-one-acceptor-at-a-time :needs :our-engine)
  (dolist (class '(recycling:parallel-easy-acceptor hunchentoot:easy-acceptor))
    (with-shared-taskmaster (first second :class class)
      (check-sentence ((hunchentoot:start second) hunchentoot:parameter-error)
                      "TASKMASTER" (princ-to-string first))
      (is (not (hunchentoot:started-p second)))
      (is (equal "Hey!" (ask-text "/yo")) "The first goes on.")
      (hunchentoot:stop first)
      (is (eq second (hunchentoot:start second)) "The taskmaster is free again.")
      (hunchentoot:stop second))))

(define-server-test (a-taskmaster-that-does-not-run-has-no-power-over-one-that-does
                     :needs :our-engine)
  (with-shared-taskmaster (first second)
    (hunchentoot:stop second)
    (recycling:abandon-acceptor second)
    (is (null (recycling:list-connections second)))
    (is (equal "Hey!" (ask-text "/yo")))
    (is (zerop (getf (recycling:stats second) :served)))))

(define-server-test
    (a-stock-acceptor-that-does-not-run-has-no-power-over-who-does :needs :our-engine)
  (with-shared-taskmaster (first second :class 'hunchentoot:easy-acceptor)
    (is (equal "Hey!" (ask-text "/yo")))
    (recycling:abandon-acceptor second)
    (is (null (recycling:list-connections second)))
    (is (equal "Hey!" (ask-text "/yo")))
    (is (zerop (getf (recycling:stats second) :accepted)))))

(defmacro with-replaced-taskmaster ((acceptor taskmaster) &body body)
  "Evaluates BODY while ACCEPTOR, of /yo, runs, which has got TASKMASTER since."
  `(serving () (("/yo" "Hey!"))
     (let ((,acceptor *server*))
       (is (equal "Hey!" (ask-text "/yo")))
       (reinitialize-instance ,acceptor :taskmaster ,taskmaster)
       ,@body)))

(define-server-test (a-replaced-taskmaster-serves-until-its-acceptor-stops :needs :our-engine)
  (with-replaced-taskmaster (acceptor (taskmaster :max-thread-count 3))
    (is (equal "Hey!" (ask-text "/yo")))
    (is (equal (list acceptor '()) (multiple-value-list (hunchentoot:stop acceptor :soft t))))
    (hunchentoot:start acceptor)
    (is (equal "Hey!" (ask-text "/yo")))
    (eventually ("the request to be counted")
      (= 1 (getf (recycling:stats acceptor) :served)))))

(define-server-test (hunchentoots-taskmaster-may-replace-ours-and-be-replaced :needs :our-engine)
  (with-replaced-taskmaster (acceptor
                             (make-instance 'hunchentoot:one-thread-per-connection-taskmaster))
    (is (equal "Hey!" (ask-text "/yo")))
    (hunchentoot:stop acceptor)
    (hunchentoot:start acceptor)
    (is (equal "Hey!" (ask-text "/yo")))
    (hunchentoot:stop acceptor)
    (reinitialize-instance acceptor :taskmaster (taskmaster))
    (hunchentoot:start acceptor)
    (is (equal "Hey!" (ask-text "/yo")))))

;;; The last resort for others

(define-server-test a-stock-acceptor-cannot-be-abandoned
  (let ((*acceptor-class* 'hunchentoot:easy-acceptor))
    (serving () (("/yo" "Hey!"))
      (check-sentence ((recycling:abandon-acceptor *server*) hunchentoot:parameter-error)
                      "ABANDON-ACCEPTOR" "HUNCHENTOOT:STOP")
      (is (equal "Hey!" (ask-text "/yo")) "It goes on.")
      (hunchentoot:stop *server*)
      (is (eq *server* (recycling:abandon-acceptor *server*)) "There is nothing to destroy."))))

(define-server-test (a-stock-acceptor-on-our-threads-can-be-abandoned :needs :our-engine)
  (let ((*acceptor-class* 'hunchentoot:easy-acceptor)
        (entered (make-latch 1))
        (never (make-gate)))
    (serving (:taskmaster (taskmaster)) (("/hang" (count-down entered) (await never)))
      (with-connection (connection)
        (send-request connection "/hang")
        (await entered)
        (is (eq *server* (recycling:abandon-acceptor *server*)))
        (is (not (hunchentoot:started-p *server*)))))))

;;; Logs

(define-server-test (lines-of-a-log-that-cannot-be-written-at-the-stop-are-counted
                     :needs :our-engine)
  (with-log-file (file)
    (let* ((hidden (merge-pathnames "later/lines.log" file))
           (acceptor (make-test-acceptor :access-log-destination hidden))
           (*server* acceptor))
      (with-routes (("/yo" "Hey!"))
        (hunchentoot:start acceptor)
        (loop repeat 3 do (ask-text "/yo"))
        (hunchentoot:stop acceptor :soft t)
        (is (= 3 (getf (recycling:stats acceptor) :log-dropped)))
        (ensure-directories-exist hidden)
        (hunchentoot:start acceptor)
        (eventually ("the lines to be written, although there is no other")
          (and (probe-file hidden) (= 3 (length (lines-of hidden)))))
        (hunchentoot:stop acceptor :soft t)
        (is (= 3 (length (lines-of hidden))) "They are written after all.")
        (is (zerop (getf (recycling:stats acceptor) :log-dropped)))))))

(define-server-test (lines-of-a-log-that-is-given-up-are-counted :needs :our-engine)
  (with-log-file (file)
    (let ((hidden (merge-pathnames "later/lines.log" file)))
      (serving (:access-log-destination hidden) (("/yo" "Hey!"))
        (loop repeat 3 do (ask-text "/yo"))
        (setf (hunchentoot:acceptor-access-log-destination *server*) file)
        (is (= 3 (getf (recycling:stats *server*) :log-dropped)))))))

;;; Places where nobody can listen

(deftype port-taken-error ()
  "What usocket signals for a port that is taken: on ABCL it cannot tell that from a forbidden one."
  (if (uiop:featurep :abcl)
      'usocket:operation-not-permitted-error
      'usocket:address-in-use-error))

(define-server-test (a-taken-port-is-named-with-its-address :needs :our-engine)
  (with-acceptor (acceptor)
    (let ((port (hunchentoot:acceptor-port acceptor)))
      (loop for (address name) in '(("127.0.0.1" "127.0.0.1") (nil "all addresses"))
            for condition = (nth-value 1 (ignore-errors
                                          (hunchentoot:start
                                           (make-test-acceptor :port port :address address))))
            do (is (typep condition '(and port-taken-error recycling:listen-failed)) "~A" condition)
               (is (search (princ-to-string port) (princ-to-string condition)))
               (is (search name (princ-to-string condition)))
               (is (search "something else listens there" (princ-to-string condition)))))))

(define-server-test (a-port-that-needs-a-privilege-is-refused-in-a-sentence :needs :parking)
  (if (equal '("1024") (ignore-errors
                        (lines-of "/proc/sys/net/ipv4/ip_unprivileged_port_start")))
      (call-with-command
       (lambda (program)
         (is (eql 1 (program-exit program :patience (patience-to-load))))
         (is-true (printed-p program "Cannot listen on port 80 of 127.0.0.1: this is not ")))
       (lambda (directory)
         (unprivileged (command-for directory
                                    (list (serving-form ":port 80 :address \"127.0.0.1\""))))))
      (skip "Here every process may listen on all ports.")))

(defvar *another-acceptor*)

(defclass starting-another ()
  ()
  (:documentation "A mixin for an acceptor that starts *ANOTHER-ACCEPTOR* before it listens."))

(defmethod hunchentoot:start-listening :before ((acceptor starting-another))
  (hunchentoot:start *another-acceptor*))

(define-server-test (an-acceptor-that-another-one-starts-is-refused-with-its-own-place
                     :needs :our-engine)
  (with-acceptor (acceptor)
    (let* ((port (hunchentoot:acceptor-port acceptor))
           (*another-acceptor* (make-test-acceptor :port port))
           (condition (nth-value 1 (ignore-errors
                                    (hunchentoot:start
                                     (make-test-acceptor :mixin 'starting-another
                                                         :address nil))))))
      (is (typep condition 'port-taken-error) "~A" condition)
      (is (search (format nil "port ~D of 127.0.0.1: " port) (princ-to-string condition))))))

(defparameter *missing-addresses-told-p*
  ;; Asked once: where usocket fails in its own code, as on ECL, it loses a descriptor.
  ;; 192.0.2.0/24 is for documents (RFC 5737).
  (handler-case (progn (usocket:socket-close (usocket:socket-listen "192.0.2.1" 0)) nil)
    (usocket:socket-error () t)
    (condition () nil))
  "True where usocket signals an error of its own for an address that this machine has not.")

(define-server-test (a-missing-address-is-named :needs :our-engine)
  (cond (*missing-addresses-told-p*
         (check-sentence ((hunchentoot:start (make-test-acceptor :address "192.0.2.1"))
                          usocket:socket-error)
                         "192.0.2.1" "port 0")
         (check-sentence ((hunchentoot:start (make-test-acceptor :address "no-such-host.invalid"))
                          error)
                         "no-such-host.invalid"))
        (t
         (skip "usocket does not tell here that an address is missing."))))
