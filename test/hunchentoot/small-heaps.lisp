(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* small-heaps :in acceptors
  :description "What many clients make a server keep has room in a small heap.")

(defparameter *mebibyte* (* 1024 1024))

(defun unfinished-head (size)
  "The octets of a head of SIZE octets, about, of which the end is missing."
  (octets "GET / HTTP/1.1" :crlf "Host: localhost" :crlf
          (loop repeat (floor size 260)
                collect "X-Padding: "
                collect (make-string 247 :initial-element #\x)
                collect :crlf)))

(define-server-test (heads-that-do-not-end-fill-no-heap :needs :parking)
  (call-with-child-server
   (lambda (port)
     (let ((before (child-heap port))
           (head (unfinished-head 31000))
           (connections '()))
       (unwind-protect
            (loop for count from 1 to (connections-for-tests 900)
                  do (push (connect port) connections)
                     (try-to-send (first connections) head)
                     (when (zerop (mod count 100))
                       (is-true (child-answers-p port) "After ~D heads." count)))
         (mapc #'disconnect connections))
       (eventually ("the memory to be given back")
         (< (- (child-heap port) before) (* 8 *mebibyte*)))))
   :megabytes 160 :initargs '(:read-timeout 60)))

(define-server-test (replies-that-clients-do-not-take-fill-no-heap :needs :parking)
  (call-with-child-server
   (lambda (port)
     (let ((before (child-heap port))
           (connections '()))
       (unwind-protect
            (loop for count from 1 to (connections-for-tests 160)
                  do (push (connect port) connections)
                     (send-request (first connections) "/large")
                     (when (zerop (mod count 20))
                       (is-true (child-answers-p port) "After ~D replies." count)))
         (mapc #'disconnect connections))
       (eventually ("the memory to be given back")
         (< (- (child-heap port) before) (* 8 *mebibyte*)))))
   :megabytes 256
   :forms "(answer-at \"/large\" (lambda () (make-array 8000000 :element-type '(unsigned-byte 8) :initial-element 1)))"))
