(in-package #:hunchentoot-recycling-taskmaster-test)

;;; Brokers of several processes are several brokers of one here.  Each test needs its own database,
;;; and none of them depends on how connections wait, so they run once.

(in-suite postgresql)

(defun publish-until (broker by over-p deliveries)
  "Publishes numbers as those of BY, ten at a time, each time when those before are among
DELIVERIES, until OVER-P returns true.  Returns how many."
  (loop for end from 10 by 10
        do (unless (publish-numbers broker (- end 10) end by)
             (error "A message was refused."))
           (loop until (find (first (last (numbers 0 end by)))
                             (funcall deliveries broker 0) :test #'string= :from-end t)
                 do (poll (constantly nil) 1/500))
        until (funcall over-p)
        finally (return end)))

(define-server-test (brokers-deliver-all-in-one-order-whatever-happens-to-the-database
                     :needs :parking)
  (with-database (database)
    (with-brokers (brokers (database-brokers 3 database))
      (with-deliveries (deliveries brokers)
        (let* ((over-p nil)
               (names '("a" "b" "c"))
               (publishers (loop for broker in brokers
                                 for name in names
                                 collect (let ((broker broker) (name name) (*patience* 60))
                                           (in-background ("publishing")
                                             (publish-until broker name (lambda () over-p)
                                                            #'deliveries))))))
          (flet ((go-on ()
                   (let ((count (length (deliveries (first brokers) 0))))
                     (deliveries (first brokers) (+ count 100)))))
            (go-on)
            (loop repeat 3
                  do (execute-in-database database
                                          "select pg_terminate_backend(pid) from pg_stat_activity
                                           where application_name
                                                 = 'hunchentoot-recycling-taskmaster'")
                     (go-on))
            (dolist (mode '("immediate" "fast"))
              (control-database database "restart" "-m" mode)
              (go-on)))
          (setf over-p t)
          (let* ((counts (mapcar (lambda (task) (task-result task (* 6 *patience*))) publishers))
                 (all (reduce #'+ counts))
                 (seen (loop for broker in brokers collect (deliveries broker all))))
            (dolist (other seen)
              (is (null (mismatch (first seen) other :test #'string=))))
            (loop for name in names
                  for count in counts
                  do (is (equal (numbers 0 count name)
                                (remove (char name 0) (first seen)
                                        :key (lambda (text) (char text 0)) :test-not #'char=))))
            (dolist (broker brokers)
              (is (equal '(t 0 0 0) (loop for key in '(:connected-p :queued :lost :refused)
                                          collect (broker-figure broker key)))))))))))

(define-server-test (a-message-and-a-name-may-have-any-characters-and-any-size :needs :parking)
  (with-database (database)
    (with-brokers (brokers (database-brokers 1 database))
      (let* ((broker (first brokers))
             (characters (map 'string #'code-char (loop for code below 400 collect code)))
             (texts (list "" "'; drop table recycling_messages; --" characters "$1"
                          (make-string 100000 :initial-element (code-char #x1F600)))))
        (with-deliveries (deliveries brokers characters)
          (dolist (text texts)
            (is-true (recycling:publish (recycling:make-channel :name characters :broker broker)
                                        text)))
          (is (equal texts (deliveries broker (length texts)))))))))

(define-server-test (a-broker-speaks-tls-to-its-database :needs (:parking :tls-client))
  (with-database (database)
    (let ((port (free-port)) (key (funcall 'make-certificate (database-folder database))))
      (stop-database database)
      (uiop:run-program (list "chmod" "600" (uiop:native-namestring key)))
      (give-to-postgres (database-folder database))
      (setf (database-options database)
            (format nil "-c listen_addresses=127.0.0.1 -c port=~D -c ssl=on -c ssl_cert_file='~A' ~
                         -c ssl_key_file='~A'"
                    port (database-folder-name database "certificate.pem")
                    (database-folder-name database "key.pem")))
      (start-database database)
      (with-brokers (brokers (database-brokers 2 database :host "127.0.0.1" :port port
                                                          :use-ssl :require))
        (with-deliveries (deliveries brokers)
          (is-true (publish-numbers (first brokers) 0 500))
          (deliveries (second brokers) 500)
          (stop-database database)
          (is-true (publish-numbers (first brokers) 500 600))
          (start-database database)
          (is (equal (numbers 0 600) (deliveries (second brokers) 600))))))))

(define-server-test (a-broker-that-was-closed-opens-again :needs :parking)
  (with-database (database)
    (with-brokers (brokers (database-brokers 1 database))
      (let ((broker (first brokers)))
        (with-deliveries (deliveries brokers)
          (is-true (publish-numbers broker 0 10))
          (deliveries broker 10)
          (is-true (recycling:close-broker broker))
          (is (null (publish-numbers broker 10 11)))
          (recycling:open-broker broker :timeout *patience*)
          (is-true (publish-numbers broker 20 30))
          (is (equal (append (numbers 0 10) (numbers 20 30)) (deliveries broker 20))))))))

;;; A database that is away

(define-server-test (what-is-published-while-the-database-is-away-arrives-late-once-and-in-order
                     :needs :parking)
  (with-database (database)
    (with-brokers (brokers (database-brokers 2 database))
      (with-deliveries (deliveries brokers)
        (destructuring-bind (sender receiver) brokers
          (is-true (publish-numbers sender 0 10))
          (deliveries receiver 10)
          (stop-database database)
          (dolist (broker brokers)
            (await-figure broker :connected-p nil))
          (is-true (publish-numbers sender 10 1000))
          (is (= 990 (broker-figure sender :queued)))
          (start-database database)
          (dolist (broker brokers)
            (is (equal (numbers 0 1000) (deliveries broker 1000)))
            (await-figure broker :connected-p t))
          (is-true (publish-numbers sender 1000 1001))
          (await-figure receiver :delivered 1001)
          (is (zerop (broker-figure receiver :lost))))))))

(define-server-test (a-message-whose-commit-was-not-confirmed-is-published-once :needs :parking)
  (with-database (database)
    (with-brokers (brokers (database-brokers 1 database))
      (with-deliveries (deliveries brokers)
        (let ((broker (first brokers)))
          (flet ((let-commits-wait (p)
                   (execute-in-database
                    database (format nil "alter system ~:[reset synchronous_standby_names~;~
                                          set synchronous_standby_names = 'nobody'~]" p))
                   (execute-in-database database "select pg_reload_conf()")))
            (is-true (publish-numbers broker 0 5))
            (deliveries broker 5)
            (let-commits-wait t)
            (is-true (publish-numbers broker 5 10))
            ;; What ends such a wait is committed, but the client is not told so.
            (eventually ("a commit to wait")
              (search "t" (execute-in-database database
                                               "select pg_terminate_backend(pid)
                                                from pg_stat_activity
                                                where wait_event = 'SyncRep'")))
            (let-commits-wait nil)
            (is-true (publish-numbers broker 10 15))
            (is (equal (numbers 0 15) (deliveries broker 15)))))))))

(define-server-test (a-database-that-does-not-answer-is-given-up :needs :parking)
  (with-database (database)
    (with-globals ((postgresql::*answer-seconds* 1) (postgresql::*look-seconds* 1))
      (with-brokers (brokers (database-brokers 1 database))
        (with-processes-stopped ((database-processes database))
          (is-true (publish-numbers (first brokers) 0 1))
          (await-figure (first brokers) :delivered 1))))))

;;; Losses

(define-server-test (a-queue-that-is-full-refuses-messages-visibly :needs :parking)
  (with-database (database)
    (with-losses (losses on-loss)
      (with-brokers (brokers (database-brokers 1 database :queue-octets 10000 :on-loss #'on-loss))
        (let ((broker (first brokers)))
          (stop-database database)
          (let ((taken (loop for number from 0
                             while (publish-numbers broker number (1+ number))
                             finally (return number))))
            (is (< 20 taken 60))
            (is (= taken (broker-figure broker :queued)))
            (is (<= (broker-figure broker :queued-octets) 10000))
            (is (= 1 (broker-figure broker :refused)))
            (is (equal '((:refused 1)) (losses)))
            (start-database database)
            (await-figure broker :delivered taken)))))))

(define-server-test (messages-that-are-deleted-before-a-broker-has-read-them-are-reported-as-lost
                     :needs :parking)
  (with-database (database)
    (with-losses (losses on-loss)
      (let ((receiver (database-broker database :on-loss #'on-loss))
            (sender (database-broker database)))
        (with-brokers (receivers (list receiver))
          (is-true (publish-numbers receiver 0 1))
          (await-figure receiver :delivered 1)
          (with-processes-stopped ((database-processes database))
            (with-brokers (senders (list sender))
              (is-true (publish-numbers sender 0 20))
              (await-figure sender :published 20)
              (execute-in-database database "delete from recycling_messages where id <= 16")))
          (await-figure receiver :delivered 6)
          (is (equal '((:deleted 15)) (losses)))
          (is (= 15 (broker-figure receiver :lost))))))))

(define-server-test (old-messages-are-deleted :needs :parking)
  (with-database (database)
    (with-brokers (brokers (database-brokers 1 database :keep-seconds 1))
      (is-true (publish-numbers (first brokers) 0 20))
      (await-figure (first brokers) :delivered 20)
      (eventually ("the messages to be deleted")
        (string= "0" (execute-in-database database "select count(*) from recycling_messages")))
      (is-true (publish-numbers (first brokers) 20 21))
      (await-figure (first brokers) :delivered 21)
      (is (zerop (broker-figure (first brokers) :lost))))))

(define-server-test (an-error-of-the-program-ends-no-broker :needs :parking)
  (with-database (database)
    (let* ((called (make-recorder))
           (fail (lambda (&rest arguments) (record called arguments) (error "It fails."))))
      (with-brokers (brokers (list (database-broker database :queue-octets 1000 :on-loss fail
                                                             :report fail)))
        (let ((broker (first brokers)))
          (is (null (recycling:publish (recycling:make-channel :name "chat" :broker broker)
                                       (make-string 1000))))
          (is (equal '((:refused 1)) (recorded called)))
          (stop-database database)
          (eventually ("the program to be told") (< 1 (recorded-count called)))
          (is-true (publish-numbers broker 0 3))
          (start-database database)
          (await-figure broker :delivered 3))))))
