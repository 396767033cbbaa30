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
            (progn
              (loop for count from 1 to (connections-for-tests 900)
                    do (push (connect port) connections)
                       (try-to-send (first connections) head)
                       (when (zerop (mod count 100))
                         (is-true (child-answers-p port) "After ~D heads." count)))
              (send (first connections) :crlf)
              (is (= 200 (response-status (read-response (first connections)))))
              (is (= 503 (response-status (read-response (first (last connections)))))
                  "The oldest one gave way."))
         (mapc #'disconnect connections))
       (eventually ("the memory to be given back")
         (< (- (child-heap port) before) (* 8 *mebibyte*)))))
   :megabytes 160 :initargs '(:read-timeout 60)))

(define-server-test (large-requests-whose-replies-come-later-fill-no-heap :needs :parking)
  (call-with-child-server
   (lambda (port)
     (let ((before (child-heap port))
           (requests (loop for target in '("/later" "/stream")
                           collect (octets "GET " target " HTTP/1.1" :crlf "Host: localhost" :crlf
                                           "Cookie: " (loop repeat 5000 collect "a=b; ")
                                           :crlf :crlf)))
           (connections '()))
       ;; The first ones have methods compiled, for which all others wait.
       (dolist (target '("/later" "/stream"))
         (with-connection (connection port)
           (send-request connection target)
           (read-head connection)))
       (unwind-protect
            (loop for count from 1 to (connections-for-tests 900)
                  do (push (connect port) connections)
                     (try-to-send (first connections) (nth (mod count 2) requests))
                     (when (zerop (mod count 100))
                       (is-true (child-answers-p port) "After ~D requests." count)))
         (mapc #'reset connections))
       (eventually ("the memory to be given back")
         (< (- (child-heap port) before) (* 8 *mebibyte*)))))
   ;; The program keeps all of them for ever.
   :forms "(defvar *kept* (list nil))
           (answer-at \"/later\" (lambda ()
                                   (hunchentoot-recycling-taskmaster:defer-reply
                                       (reply :timeout (if (hunchentoot:cookies-in*) nil 1))
                                     (push reply *kept*))))
           (answer-at \"/stream\" (lambda ()
                                    (hunchentoot-recycling-taskmaster:defer-reply (reply)
                                      (push (hunchentoot-recycling-taskmaster:start-stream reply)
                                            *kept*))))"))

(defun large-answers-of (size)
  "A form by which a child answers /large with SIZE octets."
  (format nil "(answer-at \"/large\" (lambda ()
                                       (make-array ~D :element-type '(unsigned-byte 8)
                                                      :initial-element 1)))"
          size))

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
   :forms (large-answers-of 2000000)))

(define-server-test (replies-that-clients-take-late-leave-room-for-the-next :needs :parking)
  (call-with-child-server
   (lambda (port)
     (with-connections (connections 15 port)
       (dolist (connection connections)
         (send-request connection "/large")
         (is-true (child-answers-p port))
         (is (= 9000000 (content-length (read-head connection))))
         (is (= 9000000 (length (receive-many connection 9000000)))))
       (dolist (connection connections)
         (is (equal "hello" (exchange-text connection "/hello"))))))
   :forms (large-answers-of 9000000) :initargs '(:idle-timeout 600)))

(defun send-large-texts (port target count mebibytes)
  "Sends texts of MEBIBYTES over COUNT WebSockets at TARGET of the child on PORT, all at once, as
far as it takes them."
  (let ((head (frame-head 1 (* mebibytes *mebibyte*)))
        (piece (make-array *mebibyte* :element-type '(unsigned-byte 8) :initial-element 97))
        (connections '()))
    (unwind-protect
         (progn
           (loop repeat count
                 do (push (connect port) connections)
                    (open-talk (first connections) :handshake (list :target target))
                    (try-to-send (first connections) head))
           (loop repeat mebibytes
                 do (dolist (connection connections)
                      (try-to-send connection piece))
                    (is-true (child-answers-p port) "~A" target)))
      (mapc #'disconnect connections))))

(define-server-test (messages-of-websockets-fill-no-heap :needs :parking)
  (call-with-child-server
   (lambda (port)
     (let ((before (child-heap port)))
       (send-large-texts port "/usual" 43 16)
       (eventually ("the memory to be given back")
         (< (- (child-heap port) before) (* 8 *mebibyte*)))
       (send-large-texts port "/large" 6 8)
       ;; Registers of threads at rest can keep two vectors from being collected: a message, and
       ;; what it has grown to.
       (eventually ("the memory of large messages to be given back")
         (< (- (child-heap port) before) (* (+ 8 8 8) *mebibyte*)))))
   :forms "(defun count-characters (socket text)
             (hunchentoot-recycling-taskmaster:send-text socket (princ-to-string (length text))))
           (answer-at \"/usual\" (lambda ()
                                   (hunchentoot-recycling-taskmaster:upgrade-to-websocket
                                    :on-text 'count-characters)))
           (answer-at \"/large\" (lambda ()
                                   (hunchentoot-recycling-taskmaster:upgrade-to-websocket
                                    :message-octets (* 8 1024 1024) :on-text 'count-characters)))"))

