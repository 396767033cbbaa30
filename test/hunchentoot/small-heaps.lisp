(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* small-heaps :in acceptors
  :description "What many clients make a server keep has room in a small heap.")

(defparameter *mebibyte* (* 1024 1024))

(defmacro with-small-server ((megabytes forms &optional (initargs "")) &body body)
  "Evaluates BODY while *SERVER*, a program with a heap of MEGABYTES and an acceptor made with
INITARGS, a string, serves /hello, /heap, which tells how much of that is in use, and what FORMS, a
string, make it serve.  Checks that it still runs then."
  `(let ((*runtime-options* (list "--dynamic-space-size" (princ-to-string ,megabytes))))
     (with-serving-program (program
                            (page-form "/hello" "\"hello\"")
                            (page-form "/heap" "(progn
                              (hunchentoot-recycling-taskmaster.platform:collect-garbage)
                              (princ-to-string
                               (hunchentoot-recycling-taskmaster.platform:heap-used)))")
                            ,forms
                            (signalled-acceptor
                             (format nil ":message-log-destination nil ~A" ,initargs)))
       ,@body
       (is-true (program-runs-p program) "The server has ended."))))

(defmacro giving-memory-back ((&optional (mebibytes 8)) &body body)
  "Evaluates BODY, after which *SERVER* is to use fewer MEBIBYTES more of its heap than before."
  `(flet ((used () (parse-integer (ask-text "/heap"))))
     (let ((before (used)))
       ,@body
       (eventually ("the memory to be given back")
         (< (- (used) before) (* ,mebibytes *mebibyte*))))))

(defun check-answer ()
  (is (equal "hello" (ask-text "/hello"))))

(defmacro with-crowd ((connections count octets) &body body)
  "Evaluates BODY with CONNECTIONS bound to a list of COUNT, or as many as may be, over each of
which the value of OCTETS was sent, the last first.  Meanwhile *SERVER* answers others."
  `(let ((,connections '()))
     (unwind-protect
          (progn
            ;; usocket waits by select(2), which takes descriptors below 1,024.
            (loop for number from 1 to (min ,count 900 (- (descriptor-limit) 124))
                  do (push (connect) ,connections)
                     (try-to-send (first ,connections) ,octets)
                     (when (zerop (mod number 20))
                       (check-answer)))
            ,@body)
       (mapc #'reset ,connections))))

(define-server-test (a-connection-that-idles-needs-little-memory :needs :parking)
  (with-small-server (160 (list (page-form "/streamed"
                                           "(write-byte 104 (hunchentoot:send-headers))")))
    (flet ((used () (parse-integer (ask-text "/heap")))
           (post () (request-octets "/streamed" :method :post :content (test-octets 3000))))
      (with-crowd (connections 100 (post)))
      (let ((before (used)))
        (with-crowd (connections 900 (post))
          (is-true (eventually ("all to idle")
                     (< (- (used) before) (* 1536 (length connections))))))))))

(define-server-test (heads-that-do-not-end-fill-no-heap :needs :parking)
  (with-small-server (160 "" ":read-timeout 60")
    (giving-memory-back ()
      (with-crowd (connections 900 (octets "GET / HTTP/1.1" :crlf "Host: localhost" :crlf
                                           (loop repeat 119
                                                 collect "X-Padding: "
                                                 collect (make-string 247 :initial-element #\x)
                                                 collect :crlf)))
        (send (first connections) :crlf)
        (is (= 200 (response-status (read-response (first connections)))))
        (is (= 503 (response-status (read-response (first (last connections)))))
            "The oldest one gave way.")
        (is (< (length connections) (* 2 (count-if-not #'readable-p connections))))))))

(define-server-test (large-requests-whose-replies-come-later-fill-no-heap :needs :parking)
  (with-small-server (256 (list (page-form "/later"
                                           "(hunchentoot-recycling-taskmaster:defer-reply
                                                (reply :timeout
                                                       (unless (hunchentoot:cookies-in*) 1)))")
                                (page-form "/stream"
                                           "(hunchentoot-recycling-taskmaster:defer-reply (reply)
                                              (hunchentoot-recycling-taskmaster:start-stream
                                               reply))")))
    (giving-memory-back (16)            ; it is 5 to 9, in which old buffers count
      ;; The first ones have methods compiled, for which all others wait.
      (dolist (target '("/later" "/stream"))
        (with-connection (connection)
          (send-request connection target)
          (read-head connection)))
      (let* ((cookie (format nil "~{~A~}" (make-list 5000 :initial-element "a=b; ")))
             (requests (apply #'circular
                              (loop for target in '("/later" "/stream")
                                    collect (request-octets target
                                                            :headers `(("Cookie" . ,cookie)))))))
        (with-crowd (connections 900 (pop requests)))))))

(defun large-answers-of (size)
  "A form by which a program answers /large with SIZE octets."
  (page-form "/large" (format nil "(make-array ~D :element-type '(unsigned-byte 8)
                                                  :initial-element 1)"
                              size)))

(define-server-test (replies-that-clients-do-not-take-fill-no-heap :needs :parking)
  (with-small-server (256 (large-answers-of 2000000))
    (giving-memory-back ()
      (with-crowd (connections 160 (request-octets "/large"))))))

(define-server-test (replies-that-clients-take-late-leave-room-for-the-next :needs :parking)
  (with-small-server (256 (large-answers-of 9000000) ":idle-timeout 600")
    (with-connections (connections 15)
      (dolist (connection connections)
        (send-request connection "/large")
        (check-answer)
        (is (= 9000000 (content-length (read-head connection))))
        (is (= 9000000 (length (receive-many connection 9000000)))))
      (dolist (connection connections)
        (is (equal "hello" (exchange-text connection "/hello")))))))

(defun send-large-texts (target count mebibytes)
  "Sends texts of MEBIBYTES over COUNT WebSockets at TARGET of *SERVER*, all at once, as far as it
takes them."
  (let ((head (frame-head 1 (* mebibytes *mebibyte*)))
        (piece (make-array *mebibyte* :element-type '(unsigned-byte 8) :initial-element 97)))
    (with-connections (connections count)
      (dolist (connection connections)
        (open-talk connection :handshake (list :target target))
        (try-to-send connection head))
      (loop repeat mebibytes
            do (dolist (connection connections)
                 (try-to-send connection piece))
               (check-answer)))))

(define-server-test (messages-of-websockets-fill-no-heap :needs :parking)
  (with-small-server (256 (list "(defun count-characters (socket text)
                                   (hunchentoot-recycling-taskmaster:send-text
                                    socket (princ-to-string (length text))))"
                                (page-form "/usual"
                                           "(hunchentoot-recycling-taskmaster:upgrade-to-websocket
                                             :on-text 'count-characters)")
                                (page-form "/large"
                                           "(hunchentoot-recycling-taskmaster:upgrade-to-websocket
                                             :message-octets (* 8 1024 1024)
                                             :on-text 'count-characters)")))
    (giving-memory-back ()
      (send-large-texts "/usual" 43 16))
    ;; Registers of threads at rest can keep a message, and what it has grown to.
    (giving-memory-back (24)
      (send-large-texts "/large" 6 8))))
