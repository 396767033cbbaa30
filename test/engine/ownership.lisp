(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite ownership :in ready
  :description "Who may touch a connection: the table, and what it promises.")

(in-suite ownership)

(test a-connection-that-is-forgotten-late-does-not-erase-its-successor
  (let* ((table (engine::make-table))
         (first (engine::make-connection nil :descriptor 5 :generation 1))
         (second (engine::make-connection nil :descriptor 5 :generation 2)))
    (engine::enter-connection table first)
    (engine::enter-connection table second)
    (engine::forget-connection table first)
    (is (eq second (engine::find-connection table (engine::connection-token second))))
    (is (null (engine::find-connection table (engine::connection-token first))))
    (engine::forget-connection table second)
    (is (null (engine::find-connection table (engine::connection-token second))))))

(define-server-test a-connection-that-is-closed-while-it-is-listed-has-no-peer
  (with-ready-engine (engine (constantly nil))
    (with-connection (connection *port*)
      (is (equal "a" (exchange-octets connection "a")))
      (wait-for-statistic engine :parked 1)
      (let ((listed (first (engine::parked-connections (engine::engine-table engine)))))
        (is (stringp (engine::peer-text listed)))
        (disconnect connection)
        (wait-for-statistic engine :open 0)
        (with-connection (other *port*)
          (is (equal "a" (exchange-octets other "a")))
          (is (null (engine::peer-text listed))))))))
