(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite stray-octets :in acceptors
  :description "Octets that are no request yet, and ends that come in between.")

(in-suite stray-octets)

(defun octet-vector (&rest octets)
  "OCTETS as they are sent."
  (coerce octets 'octet-vector))

(defun parked-and-quiet-p (count)
  "Whether COUNT connections of *SERVER* wait without a worker, and no worker turns in circles."
  (and (= count (figure :parked))
       (zerop (figure :busy))
       (zerop (figure :stalls))))

(defmacro with-stray-octets ((connection &rest octets) &body body)
  "Evaluates BODY after OCTETS came on each of 20 connections, the last of which is CONNECTION: to a
new one, and after a reply."
  (let ((connections (gensym "CONNECTIONS")))
    `(serving () (("/yo" "Hey!"))
       (with-connections (,connections 20)
         (loop for each in ,connections
               for kept = nil then (not kept)
               do (when kept
                    (is (equal "Hey!" (exchange-text each "/yo"))))
                  (send each ,@octets))
         (eventually ("the connections to be parked") (parked-and-quiet-p 20))
         (is (equal "Hey!" (ask-text "/yo")))
         (eventually ("the connections to be left alone") (parked-and-quiet-p 20))
         (let ((,connection (first (last ,connections))))
           ,@body)))))

(define-server-test (a-lone-carriage-return-holds-no-worker :needs :parking)
  (with-stray-octets (connection (octet-vector 13))
    (send connection (octet-vector 10) (request-octets "/yo"))
    (is (equal "Hey!" (response-text (read-response connection))))))

(define-server-test (an-empty-line-holds-no-worker :needs :parking)
  (with-stray-octets (connection :crlf)
    (send connection (request-octets "/yo"))
    (is (equal "Hey!" (response-text (read-response connection))))))

(define-server-test (an-empty-line-and-a-half-hold-no-worker :needs :parking)
  (with-stray-octets (connection :crlf (octet-vector 13))
    (send connection "x")
    (is (= 400 (response-status (read-response connection))))))

(define-server-test (empty-lines-do-not-prolong-an-idle-connection :needs :our-http)
  (serving (:read-timeout 1 :write-timeout 1) ()
    (with-connection (connection)
      (let ((sender (in-background ("empty lines")
                      (handler-case (loop repeat (* 20 *patience*)
                                          do (send connection :crlf)
                                             (poll (constantly nil) 1/10))
                        (patience-lost () nil)
                        (error () :closed)))))
        (is (eq :closed (task-result sender (* 3 *patience*))))
        (await-ended-by :idle)))))

(define-server-test (empty-lines-are-counted-though-they-come-one-by-one :needs :our-http)
  (serving (:max-request-line-octets 20) (("/" "Hey!"))
    (with-connection (connection)
      (loop repeat 11
            do (try-to-send connection :crlf)
               (poll (lambda () (zerop (figure :busy))) 1/10))
      (is (= 400 (response-status (read-response connection)))))))

(define-server-test (an-end-that-comes-while-a-request-is-served-is-seen :needs :parking)
  (let ((entered (make-latch 1)) (gate (make-gate)))
    (serving (:read-timeout 60 :write-timeout 60)
        (("/wait" (count-down entered) (await gate) "waited")
         ("/yo" "Hey!"))
      (with-connection (connection)
        (is (equal "Hey!" (exchange-text connection "/yo")))
        (eventually ("the connection to be parked") (= 1 (figure :parked)))
        (send-request connection "/wait")
        (await entered)
        (send-request connection "/yo")
        (end-sending connection)
        (eventually ("a report of the end") (some-read-closed-p))
        (open-gate gate)
        (is (equal "waited" (response-text (read-response connection))))
        (is (equal "Hey!" (response-text (read-response connection))))
        (is (closed-by-server-p connection))))))

(defun some-read-closed-p ()
  "Whether the kernel reported the end of a connection of *SERVER*."
  (some-connection-p #'engine::read-closed-p
                     (server:application-engine (recycling::acceptor-taskmaster* *server*))))
