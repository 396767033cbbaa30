(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite ownership :in ready
  :description "Who may touch a connection: the table, and what it promises.")

(in-suite ownership)

(test a-connection-that-is-forgotten-late-does-not-erase-its-successor
  (let* ((table (make-table))
         (first (make-connection nil :descriptor 5 :generation 1))
         (second (make-connection nil :descriptor 5 :generation 2)))
    (enter-connection table first)
    (enter-connection table second)
    (forget-connection table first)
    (is (eq second (find-connection table (connection-token second))))
    (is (null (find-connection table (connection-token first))))
    (forget-connection table second)
    (is (null (find-connection table (connection-token second))))))

(define-server-test a-connection-that-is-closed-while-it-is-listed-has-no-peer
  (with-ready-engine (engine (constantly nil))
    (with-connection (connection *port*)
      (is (equal "a" (exchange-octets connection "a")))
      (wait-for-statistic engine :parked 1)
      (let ((listed (first (parked-connections (engine-table engine)))))
        (is (stringp (peer-text listed)))
        (disconnect connection)
        (wait-for-statistic engine :open 0)
        (with-connection (other *port*)
          (is (equal "a" (exchange-octets other "a")))
          (is (null (peer-text listed))))))))
