(in-package #:hunchentoot-recycling-taskmaster-test)

(in-suite postgresql)

(define-server-test all-brokers-deliver-all-messages-in-one-order
  (with-database (database)
    (with-brokers (brokers (loop repeat 3 collect (database-broker database)))
      (with-deliveries (deliveries)
        (let ((publishers (loop for broker in brokers
                                for name in '("a" "b" "c")
                                collect (let ((broker broker) (name name))
                                          (in-background ("publishing")
                                            (publish-numbers broker 0 500 :name name))))))
          (is (every #'task-result publishers)))
        (dolist (broker brokers)
          (await-figure broker :delivered 1500))
        (let ((seen (mapcar #'deliveries brokers)))
          (is (equal (first seen) (second seen)))
          (is (equal (first seen) (third seen)))
          (dolist (name '("a" "b" "c"))
            (is (equal (numbers 0 500 name)
                       (remove name (first seen) :key #'first :test-not #'string=)))))
        (dolist (broker brokers)
          (await-figures broker :published 500 :queued 0)
          (is (equal '(t 0 0) (loop for key in '(:connected-p :late :lost)
                                    collect (broker-figure broker key)))))))))

(define-server-test (subscribers-of-all-brokers-get-what-one-publishes :needs :our-engine)
  (with-database (database)
    (with-brokers (brokers (loop repeat 2 collect (database-broker database)))
      (serving-channels (channels (loop for broker in brokers
                                        collect (recycling:make-channel :name "news"
                                                                        :broker broker)))
        (with-connections (connections 4)
          (loop for connection in connections
                for number from 0
                do (subscribe-to connection channels (mod number 2)))
          (is-true (recycling:publish (second channels) "It rains." :event "weather" :id 1))
          (dolist (connection connections)
            (is (string= (in-lines "event: weather" "id: 1" "data: It rains." "")
                         (decode (read-chunk connection))))))))))

(define-server-test a-message-and-a-name-may-have-any-characters-and-any-size
  (with-database (database)
    (with-brokers (brokers (list (database-broker database)))
      (with-deliveries (deliveries)
        (let* ((broker (first brokers))
               (characters (map 'string #'code-char
                                (loop for code below 400 collect code)))
               (texts (list "" "'; drop table recycling_messages; --" characters "$1"
                            (make-string 300000 :initial-element (code-char #x1F600)))))
          (dolist (text texts)
            (is-true (recycling:publish (recycling:make-channel :name characters :broker broker)
                                        text)))
          (await-figure broker :delivered (length texts))
          (is (equal (loop for text in texts collect (list characters text))
                     (deliveries broker))))))))

(define-server-test large-messages-are-read-a-few-at-a-time
  (with-database (database)
    (let* ((sender (database-broker database)) (receiver (database-broker database))
           (channel (recycling:make-channel :name "large" :broker sender))
           (amounts (make-recorder)) (limit (* 1024 1024)))
      (with-broker-held (gate receiver)
        (with-brokers (brokers (list sender receiver))
          (dolist (size '(10 400000 400000 1500000 400000 10 400000 400000))
            (is-true (recycling:publish channel (make-string size :initial-element #\x))))
          (await-figure sender :delivered 8)
          (with-function (postgresql::ask (original connection name &rest parameters)
                           (let ((rows (apply original connection name parameters)))
                             (when (string= name "read")
                               (record amounts (mapcar #'length (mapcar #'third rows))))
                             rows))
            (open-gate gate)
            (await-figure receiver :delivered 8))
          (is (zerop (broker-figure receiver :lost)))))
      (dolist (sizes (recorded amounts))
        (is (or (<= (reduce #'+ sizes) limit)
                (= 1 (length sizes)))))
      (is (some #'rest (recorded amounts))))))

(define-server-test a-role-may-have-other-defaults-for-its-transactions
  (loop for settings in '(("isolation = 'serializable'" "deferrable = on" "read_only = on")
                          ("isolation = 'repeatable read'"))
        do (with-database (database)
             (dolist (setting settings)
               (execute-in-database
                database (format nil "alter role chat set default_transaction_~A" setting)))
             (with-brokers (brokers (loop repeat 3 collect (database-broker database)))
               (let ((publishers (loop for broker in brokers
                                       collect (let ((broker broker))
                                                 (in-background ("publishing")
                                                   (publish-numbers broker 0 300))))))
                 (is (every #'task-result publishers)))
               (dolist (broker brokers)
                 (await-figure broker :delivered 900)
                 (is (zerop (broker-figure broker :late))))))))

(define-server-test a-connection-that-has-nothing-to-do-yet-keeps-no-transaction-open
  (with-database (database)
    (postgresql::with-connection (connection (postgresql::connection-arguments
                                              (database-broker database)))
      (eventually ("the end of all transactions")
        (zerop (open-transactions database))))))

(define-server-test (a-broker-speaks-tls-to-its-database :needs :tls-client)
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
      (with-brokers (brokers (loop repeat 2
                                   collect (database-broker database :host "127.0.0.1" :port port
                                                                     :use-ssl :require)))
        (with-deliveries (deliveries)
          (is-true (publish-numbers (first brokers) 0 500))
          (await-figure (second brokers) :delivered 500)
          (stop-database database)
          (is-true (publish-numbers (first brokers) 500 600))
          (start-database database)
          (await-figure (second brokers) :delivered 600)
          (poll (constantly nil) 1)     ; the listener waits
          (is-true (publish-numbers (first brokers) 600 601))
          (await-figure (second brokers) :delivered 601)
          (is (equal (numbers 0 601) (deliveries (second brokers)))))))))

;;; Notifications

(defun make-lasting-statement (database)
  "Has DATABASE a function lasting() that returns true, once lasts() is false."
  (execute-in-database database "
    create table lasts (value boolean);
    insert into lasts values (false);
    create function lasting() returns boolean language plpgsql volatile as $$
      begin
        while (select value from lasts) loop perform pg_sleep(0.01); end loop;
        return true;
      end $$"))

(defun let-statements-last (database p)
  (execute-in-database database (format nil "update lasts set value = ~:[false~;true~]" p)))

(define-server-test a-message-that-comes-while-a-statement-lasts-is-delivered-at-once
  ;; PostgreSQL sends the notification at the end of the statement, which does not see the message.
  (with-database (database)
    (make-lasting-statement database)
    (with-globals ((postgresql::*look-seconds* 3600)
                   (postgresql::*statements*
                    (substitute '("last" "select last_id from recycling_log where lasting()") "last"
                                postgresql::*statements* :key #'first :test #'string=)))
      (with-brokers (brokers (list (database-broker database)))
        (let ((broker (first brokers)))
          (is-true (publish-numbers broker 0 1))
          (await-figure broker :delivered 1)
          (let-statements-last database t)
          (is-true (publish-numbers broker 1 2))
          (eventually ("the listener to ask")
            (string/= "0" (execute-in-database database "select count(*) from pg_stat_activity
                                                         where wait_event = 'PgSleep'")))
          (is-true (publish-numbers broker 2 3))
          (await-figure broker :published 3)
          (let-statements-last database nil)
          (await-figure broker :delivered 3))))))

;;; A database that is away

(define-server-test what-is-published-while-the-database-is-away-arrives-late-once-and-in-order
  (with-database (database)
    (with-brokers (brokers (loop repeat 2 collect (database-broker database)))
      (with-deliveries (deliveries)
        (destructuring-bind (sender receiver) brokers
          (is-true (publish-numbers sender 0 10))
          (await-figure receiver :delivered 10)
          (stop-database database)
          (dolist (broker brokers)
            (await-figure broker :connected-p nil))
          (is-true (publish-numbers sender 10 1000))
          (is (= 990 (broker-figure sender :queued)))
          (start-database database)
          (dolist (broker brokers)
            (await-figure broker :delivered 1000)
            (is (equal (numbers 0 1000) (deliveries broker)))
            (is (= 990 (broker-figure broker :late)))
            (await-connected broker))
          (is-true (publish-numbers sender 1000 1001))
          (await-figure receiver :delivered 1001)
          (is (= 990 (broker-figure receiver :late)))
          (is (zerop (broker-figure receiver :lost))))))))

(define-server-test a-database-that-is-restarted-amid-messages-costs-none-of-them
  (with-database (database)
    (with-brokers (brokers (loop repeat 2 collect (database-broker database)))
      (with-deliveries (deliveries)
        (let ((publishers (loop for broker in brokers
                                for name in '("a" "b")
                                collect (let ((broker broker) (name name))
                                          (in-background ("publishing")
                                            (loop for start from 0 below 1000 by 10
                                                  always (publish-numbers broker start (+ start 10)
                                                                          :name name)
                                                  do (poll (constantly nil) 1/100)))))))
          (control-database database "restart" "-m" "immediate")
          (control-database database "restart" "-m" "fast")
          (is (every #'task-result publishers)))
        (dolist (broker brokers)
          (await-figure broker :delivered 2000))
        (is (equal (deliveries (first brokers)) (deliveries (second brokers))))
        (dolist (name '("a" "b"))
          (is (equal (numbers 0 1000 name)
                     (remove name (deliveries (first brokers)) :key #'first
                                                               :test-not #'string=))))))))

(define-server-test a-message-whose-commit-was-not-confirmed-is-published-once
  (with-database (database)
    (with-brokers (brokers (list (database-broker database)))
      (with-deliveries (deliveries)
        (let ((broker (first brokers)) (failures 0))
          (with-function (postgresql::execute (original connection text)
                           (multiple-value-prog1 (funcall original connection text)
                             (when (and (string= text "commit") (<= (incf failures) 2))
                               (error "The connection is lost just after the commit."))))
            (is-true (publish-numbers broker 0 5))
            (await-figure broker :published 5))
          (is-true (publish-numbers broker 5 10))
          (await-figure broker :delivered 10)
          (is (< 2 failures))
          (is (equal (numbers 0 10) (deliveries broker))))))))

(define-server-test a-listener-whose-connection-is-lost-misses-nothing
  (with-database (database)
    (with-brokers (brokers (loop repeat 2 collect (database-broker database)))
      (with-deliveries (deliveries)
        (let ((tasks (list (in-background ("publishing")
                             (loop for number from 0 below 300
                                   always (publish-numbers (first brokers) number (1+ number))
                                   do (poll (constantly nil) 1/200))))))
          (loop until (every #'task-done-p tasks)
                do (execute-in-database database
                                        "select pg_terminate_backend(pid) from pg_stat_activity
                                         where query like '%last_id from recycling_log'")
                   (poll (constantly nil) 1/20))
          (mapc #'task-result tasks))
        (dolist (broker brokers)
          (await-figure broker :delivered 300)
          (is (equal (numbers 0 300) (deliveries broker))))))))

(define-server-test a-broker-that-is-opened-while-the-database-is-away-misses-nothing
  (with-database (database)
    (with-brokers (brokers (list (database-broker database)))
      (is-true (publish-numbers (first brokers) 0 3))
      (await-figure (first brokers) :delivered 3)
      (stop-database database)
      (let ((late (database-broker database)))
        (unwind-protect
             (with-deliveries (deliveries)
               (recycling:open-broker late :timeout 1/10)
               (is-true (publish-numbers (first brokers) 3 6))
               (is-true (publish-numbers late 6 9))
               (start-database database)
               (await-figure late :delivered 6)
               (is (equal (numbers 3 9)
                          (sort (deliveries late) #'string< :key #'second))))
          (recycling:close-broker late))))))

(define-server-test a-database-that-does-not-answer-is-given-up
  (with-database (database)
    (with-globals ((postgresql::*answer-seconds* 1) (postgresql::*look-seconds* 1))
      (with-brokers (brokers (list (database-broker database)))
        (let ((broker (first brokers))
              (processes (connection-processes database)))
          (flet ((signal-backends (signal)
                   (uiop:run-program (format nil "kill -~A ~A" signal processes))))
            (signal-backends "STOP")
            (unwind-protect
                 (progn
                   (is-true (publish-numbers broker 0 1))
                   (await-figure broker :delivered 1))
              (signal-backends "CONT"))))))))

;;; Losses

(define-server-test a-queue-that-is-full-refuses-messages-visibly
  (with-database (database)
    (with-losses (losses on-loss)
      (with-brokers (brokers (list (database-broker database :queue-octets 10000
                                                             :on-loss #'on-loss)))
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

(define-server-test messages-that-are-deleted-before-a-broker-has-read-them-are-reported-as-lost
  (with-database (database)
    (with-losses (losses on-loss)
      (with-deliveries (deliveries)
        (let ((sender (database-broker database))
              (receiver (database-broker database :on-loss #'on-loss)))
          (with-broker-held (gate receiver)
            (with-brokers (brokers (list sender receiver))
              (is-true (publish-numbers sender 0 20))
              (await-figure sender :published 20)
              (execute-in-database database "delete from recycling_messages where id <= 15")
              (open-gate gate)
              (await-figure receiver :delivered 5)
              (is (equal (numbers 15 20) (deliveries receiver)))
              (is (equal '((:deleted 15)) (losses)))
              (is (= 15 (broker-figure receiver :lost))))))))))

(define-server-test old-messages-are-deleted
  (with-database (database)
    (with-brokers (brokers (list (database-broker database)))
      (let ((broker (first brokers)) (cleaner (database-broker database :keep-seconds 1)))
        (is-true (publish-numbers broker 0 20))
        (await-figure broker :delivered 20)
        (with-brokers (cleaners (list cleaner))
          (eventually ("the messages to be deleted")
            (string= "0" (execute-in-database database
                                              "select count(*) from recycling_messages"))))
        (is (recycling:close-broker cleaner :timeout *patience*))
        (is-true (publish-numbers broker 20 21))
        (await-figure broker :delivered 21)
        (is (zerop (broker-figure broker :lost)))))))

(define-server-test what-a-broker-cannot-publish-before-it-is-closed-is-reported-as-lost
  (with-database (database)
    (with-losses (losses on-loss)
      (let ((broker (recycling:open-broker (database-broker database :on-loss #'on-loss))))
        (is-true (publish-numbers broker 0 100))
        (is-true (recycling:close-broker broker :timeout *patience*))
        (is (= 100 (broker-figure broker :published)))
        (is (null (publish-numbers broker 100 101)))
        (is (equal '((:closed 1)) (losses)))
        (recycling:open-broker broker)  ; once more
        (stop-database database)
        (is-true (publish-numbers broker 0 7))
        (recycling:close-broker broker :timeout 1/10)
        (is-true (recycling:close-broker broker :timeout *patience*))
        (is (equal '((:closed 1) (:closed 7)) (losses)))))))

(define-server-test an-error-of-the-program-ends-no-broker
  (with-database (database)
    (with-brokers (brokers (list (database-broker database :on-loss (lambda (reason count)
                                                                      (error "~A ~A" reason count))
                                                           :report (lambda (text) (error text)))))
      (let ((broker (first brokers)) (*error-output* (make-broadcast-stream)))
        (with-function (recycling:deliver-message (original broker name octets)
                         (if (search "1" (decode octets))
                             (recycling::message-fields (octets "1" (string #\Newline)))
                             (funcall original broker name octets)))
          (is-true (publish-numbers broker 0 3))
          (await-figure broker :delivered 3)
          (is (= 1 (broker-figure broker :lost))))))))
