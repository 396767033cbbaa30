(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite process-exits :in acceptors
  :description "Processes that end while their servers are busy.")

(in-suite process-exits)

(defun exiting-program (parking)
  "The forms of a program that exits with 7 at /handler, and at /timer a moment later."
  (list (page-form "/sleeping" "(sleep 600)")
        (page-form "/events" "(hunchentoot-recycling-taskmaster:defer-reply
                                  (reply :on-abandon (lambda () (sleep 600)))
                                (hunchentoot-recycling-taskmaster:send-event
                                 (hunchentoot-recycling-taskmaster:start-event-stream reply)
                                 \"hello\"))")
        (page-form "/handler" "(sb-ext:exit :code 7)")
        (page-form "/timer" "(progn (hunchentoot-recycling-taskmaster:run-after
                                     0 (lambda () (sb-ext:exit :code 7)))
                                    \"soon\")")
        (signalled-acceptor (format nil ":taskmaster (make-instance
                                          'hunchentoot-recycling-taskmaster:recycling-taskmaster
                                          :parking ~S)"
                                    parking))))

(define-server-test (a-process-that-exits-while-its-server-is-busy-ends-soon :needs :parking)
  (loop for (parking target) in '((t "/handler") (nil "/timer"))
        do (with-serving-program (program (exiting-program parking))
             (with-connections (connections 30)
               (loop for connection in connections
                     for number from 0
                     do (send-request connection (if (evenp number) "/sleeping" "/events")))
               (with-connection (connection)
                 (send-request connection target)
                 (is (eql 7 (program-exit program :patience (* 6 *patience*))) target))))))
