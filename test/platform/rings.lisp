(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite rings :in platform
  :description "Several calls on sockets by one call of the system.")

(in-suite rings)

(defun ring-works-here-p ()
  "True when the system makes a ring for us."
  (and (platform:readiness-supported-p)
       (let ((ring (platform:make-ring)))
         (when ring
           (platform:close-ring ring)
           t))))

(defmacro where-rings-work (&body body)
  "Evaluates BODY; where the system makes no rings, only notes that."
  `(if (ring-works-here-p)
       (progn ,@body)
       (skip "The system makes no rings here.")))

(defmacro with-ring ((ring) &body body)
  "Evaluates BODY with a new RING; where the system makes none, only notes that."
  `(where-rings-work
     (let ((,ring (platform:make-ring)))
       (unwind-protect (progn ,@body)
         (platform:close-ring ,ring)))))

(defun fixnums (size elements)
  "A vector of SIZE fixnums, the first of which are ELEMENTS."
  (replace (make-array size :element-type 'fixnum :initial-element 0) elements))

(defun call-through-ring (function ring descriptors octets positions)
  "The results, a list, of FUNCTION, which sends or receives by RING, for lists of DESCRIPTORS and POSITIONS in OCTETS."
  (let ((count (length descriptors)))
    (coerce (subseq (funcall function ring (fixnums platform:+ring-size+ descriptors) octets
                             (fixnums (1+ platform:+ring-size+) positions) count
                             (fixnums platform:+ring-size+ '()))
                    0 count)
            'list)))

(defun close-by-ring (ring descriptors)
  "The results, a list, of closing DESCRIPTORS by RING."
  (let ((count (length descriptors)))
    (coerce (subseq (platform:close-through-ring ring (fixnums platform:+ring-size+ descriptors) count
                                                 (fixnums platform:+ring-size+ '()))
                    0 count)
            'list)))

(defun call-with-descriptors (function count)
  (with-listener (listener)
    (platform:set-non-blocking (platform:listener-descriptor listener))
    (let ((clients '()) (descriptors '()))
      (unwind-protect
           (progn
             (loop repeat count
                   do (push (connect (usocket:get-local-port listener)) clients)
                      (push (accepted-descriptor listener) descriptors))
             (funcall function descriptors clients))
        (mapc #'platform:close-descriptor (remove -1 descriptors))
        (mapc #'disconnect clients)))))

(defmacro with-descriptors ((descriptors clients count) &body body)
  "Evaluates BODY with the servers' ends of COUNT connections as non-blocking DESCRIPTORS, and with their CLIENTS."
  `(call-with-descriptors (lambda (,descriptors ,clients) ,@body) ,count))

(defun await-input-of (descriptor)
  (platform:await-descriptor descriptor :input :until (patient-end)))

(define-server-test what-a-ring-sends-comes-to-whom-it-is-for
  (with-ring (ring)
    (with-descriptors (descriptors clients 3)
      (loop repeat 40                     ; more than its queues have room for
            do (is (equal '(1 2 3)
                          (call-through-ring #'platform:send-through-ring ring descriptors
                                             (octets "abbccc") '(0 1 3 6))))
               (loop for client in clients
                     for text in '("a" "bb" "ccc")
                     do (is (equal text (decode (read-octets client (length text))))))))))

(define-server-test a-ring-takes-as-many-calls-as-it-has-room-for
  (with-ring (ring)
    (with-descriptors (descriptors clients 1)
      (let ((text "0123456789abcdef"))
        (is (equal (loop repeat platform:+ring-size+ collect 1)
                   (call-through-ring #'platform:send-through-ring ring
                                      (loop repeat platform:+ring-size+ collect (first descriptors))
                                      (octets text)
                                      (loop for position to platform:+ring-size+ collect position))))
        (is (equal text (decode (read-octets (first clients) platform:+ring-size+)))
            "They are made in their order.")))))

(define-server-test a-ring-receives-what-is-there-and-waits-for-nobody
  (with-ring (ring)
    (with-descriptors (descriptors clients 3)
      (send (first clients) "abc")
      (end-sending (third clients))
      (await-input-of (first descriptors))
      (await-input-of (third descriptors))
      (let* ((buffer (octets "............"))
             (results (call-through-ring #'platform:receive-through-ring ring descriptors buffer '(0 4 8 12))))
        (is (eql 3 (first results)))
        (is (platform:would-block-p (second results)))
        (is (eql 0 (third results)) "It has ended.")
        (is (equal "abc........." (decode buffer))))
      (send (first clients) "defgh")
      (await-input-of (first descriptors))
      (let ((buffer (octets "......")))
        (is (equal '(2) (call-through-ring #'platform:receive-through-ring ring
                                           (list (first descriptors)) buffer '(1 3))))
        (is (equal ".de..." (decode buffer)) "No more than there is room for.")))))

(define-server-test what-fails-of-the-calls-of-a-ring-fails-alone
  (with-ring (ring)
    (with-descriptors (descriptors clients 3)
      (platform:shut-descriptor (second descriptors) :output)
      (let ((results (call-through-ring #'platform:send-through-ring ring
                                        (list (first descriptors) (second descriptors) (1- (ash 1 30))
                                              (third descriptors))
                                        (octets "abcd") '(0 1 2 3 4))))
        (is (equal '(1 -32 -9 1) results) "EPIPE, and no signal; EBADF.")
        (is (equal "a" (decode (read-octets (first clients) 1))))
        (is (equal "d" (decode (read-octets (third clients) 1))))))))

(define-server-test a-ring-sends-what-goes-of-what-a-peer-does-not-take
  (with-ring (ring)
    (with-descriptors (descriptors clients 2)
      (let* ((size 65536)
             (octets (engine::make-octets (1+ size)))
             (sent (loop for result = (first (call-through-ring #'platform:send-through-ring ring
                                                                (list (first descriptors)) octets (list 0 size)))
                         while (plusp result)
                         sum result
                         finally (is (platform:would-block-p result)))))
        (let ((results (call-through-ring #'platform:send-through-ring ring descriptors octets
                                          (list 0 size (1+ size)))))
          (is (platform:would-block-p (first results)))
          (is (eql 1 (second results))))
        (is (= sent (length (receive-many (first clients) sent))))
        (is (not (readable-p (first clients))) "Nothing is sent later.")))))

(define-server-test a-ring-closes-descriptors
  (with-ring (ring)
    (with-descriptors (descriptors clients 2)
      (is (equal '(0 0) (close-by-ring ring descriptors)))
      (is (equal '(-9 -9) (close-by-ring ring descriptors)))
      (is (every #'closed-by-server-p clients))
      ;; The numbers are anybody's.
      (fill descriptors -1))))

(define-server-test a-ring-that-was-closed-leaves-nothing
  (where-rings-work
    (let ((before (length (open-descriptors))))
      (loop repeat 50 do (platform:close-ring (platform:make-ring)))
      (is (= before (length (open-descriptors)))))))

(define-server-test there-is-no-ring-where-the-system-makes-none
  (where-rings-work
    (flet ((no-ring-p (number)
             (with-function (platform::set-up-ring (original parameters flags) (- number))
               (null (platform:make-ring)))))
      (is (no-ring-p 1) "EPERM: it is forbidden.")
      (is (no-ring-p 38) "ENOSYS: the kernel has none."))
    (let ((before (length (open-descriptors))))
      (with-function (platform::map-ring (original &rest arguments) nil)
        (is (null (platform:make-ring)) "There is no memory for it."))
      (with-function (platform::ring-works-p (original ring) nil)
        (is (null (platform:make-ring)) "It does not know our calls."))
      (is (= before (length (open-descriptors))) "Those were closed."))
    (call-without-descriptors (lambda (give-back)
                                (is (null (platform:make-ring)))
                                (funcall give-back)))
    (let ((flags-tried '()))
      (with-function (platform::set-up-ring (original parameters flags)
                       (push flags flags-tried)
                       (if (zerop flags) (funcall original parameters flags) -22))
        (let ((ring (platform:make-ring)))
          (is-true ring "An older kernel has one as well.")
          (platform:close-ring ring)))
      (is (= 2 (length flags-tried))))))

