(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite clack/delayed-responses :in clack
  :description "Responses that are given to a function, and written piece by piece.")

(in-suite clack/delayed-responses)

(defmacro with-responder ((responder) form &body body)
  "Evaluates BODY while an application evaluates FORM with RESPONDER."
  `(with-clack (environment (lambda (,responder) ,form))
     ,@body))

(define-server-test a-whole-response-may-be-given-to-the-responder
  (with-responder (responder) (funcall responder (text-response "later"))
    (with-connection (connection)
      (loop repeat 2
            do (let ((answer (exchange connection "/")))
                 (is (equal "later" (response-text answer)))
                 (is (equal "5" (response-header answer "content-length"))))))))

(define-server-test strings-and-octets-are-written-in-pieces
  (with-responder (responder)
      (let ((writer (funcall responder '(200 (:content-type "text/plain")))))
        (funcall writer "one,")
        (funcall writer (octets "two,"))
        (funcall writer nil)
        (funcall writer "-three,-" :start 1 :end 7)
        (funcall writer (octets "-four-") :start 1 :end 5)
        (funcall writer (format nil ",~C" (code-char #x3042)))
        (funcall writer "" :close t))
    (with-connection (connection)
      (loop repeat 2
            do (let ((answer (exchange connection "/")))
                 (is (equal (format nil "one,two,three,four,~C" (code-char #x3042)) (response-text answer)))
                 (is (equal "chunked" (response-header answer "transfer-encoding")))
                 (is (null (response-header answer "content-length"))))))))

(defun received-p (connection ending)
  "Receives from CONNECTION until what has come ends with ENDING, a string; NIL when it does not come."
  (loop with text = ""
        for octet = (next-octet connection)
        while octet
        do (setf text (concatenate 'string text (string (code-char octet))))
        thereis (uiop:string-suffix-p text ending)))

(define-server-test what-is-written-leaves-at-once
  (let ((gate (make-gate "the client to have the first piece")))
    (with-responder (responder)
        (let ((writer (funcall responder '(200 (:content-type "text/plain")))))
          (funcall writer "first")
          (await gate)
          (funcall writer nil :close t))
      (with-connection (connection)
        (send-request connection "/")
        (is-true (received-p connection "first") "The first piece has come.")
        (open-gate gate)
        (is-true (received-p connection (format nil "0~C~C~C~C" #\Return #\Newline #\Return #\Newline)))))))

(define-server-test large-pieces-come-whole
  (let ((text (make-string 200000 :initial-element #\x))
        (octets (test-octets 200000)))
    (with-responder (responder)
        (let ((writer (funcall responder '(200 ()))))
          (funcall writer text)
          (funcall writer octets)
          (funcall writer "end" :close t))
      (is (equalp (octets text octets "end") (response-body (ask "/")))))))

(define-server-test an-announced-length-frames-what-is-written
  (with-responder (responder)
      (let ((writer (funcall responder '(200 (:content-length 6)))))
        (funcall writer "abc")
        (funcall writer "def" :close t))
    (with-connection (connection)
      (loop repeat 2
            do (let ((answer (exchange connection "/")))
                 (is (equal "6" (response-header answer "content-length")))
                 (is (equal "abcdef" (response-text answer))))))))

(define-server-test less-than-was-announced-ends-the-connection
  (with-responder (responder)
      (funcall (funcall responder '(200 (:content-length 6))) "abc" :close t)
    (is (cl-ppcre:scan "abc$" (decode (ask-raw (request-octets "/")))))))

(define-server-test old-clients-get-what-is-written-up-to-the-end-of-the-connection
  (with-responder (responder)
      (funcall (funcall responder '(200 ())) "abc" :close t)
    (dolist (headers '(() (("Connection" . "keep-alive"))))
      (let ((answer (decode (ask-raw (request-octets "/" :version "HTTP/1.0" :headers headers)))))
        (is (cl-ppcre:scan "abc$" answer))
        (is (not (search "chunked" answer)))))))

(define-server-test a-head-has-nothing-of-what-is-written
  (with-responder (responder)
      (funcall (funcall responder '(200 ())) "abc" :close t)
    (with-connection (connection)
      (loop repeat 2
            do (is (= 200 (response-status (exchange connection "/" :method :head))))))))

(define-server-test who-does-not-close-has-written-all
  ;; Where no garbage tells, it takes the whole time.
  (with-clack (environment (lambda (responder)
                             (funcall (funcall responder '(200 ())) "abc"))
                           :response-timeout (if (platform:garbage-told-p) 60 1/10))
    (with-connection (connection)
      (loop repeat 2 do (is (equal "abc" (exchange-text connection "/")))))))

(define-server-test content-can-be-read-while-the-response-is-written
  (with-clack (environment
               (lambda (responder)
                 (let ((writer (funcall responder '(200 ()))))
                   (loop for octet = (read-byte (getf environment :raw-body) nil)
                         while octet
                         do (funcall writer (octets (vector octet))))
                   (funcall writer nil :close t))))
    (is (equal "echo" (ask-text "/" :method :post :content "echo")))))

(define-server-test who-never-answers-is-an-error
  (if (platform:garbage-told-p)
      (with-responder (responder) (progn responder nil)
        (is (= 500 (response-status (ask "/"))))
        (is (search "forgotten" (clack-log))))
      (skip "Only SBCL has garbage that tells.")))

(define-server-test who-is-forgotten-is-found-also-where-garbage-was-collected-amid-the-function
  (if (platform:garbage-told-p)
      (with-clack (environment
                   (if (equal "/writer" (getf environment :path-info))
                       (lambda (responder)
                         (let ((writer (funcall responder '(200 ()))))
                           (funcall writer "written")
                           (loop repeat 3 do (platform:collect-young-garbage))))
                       (lambda (responder)
                         (loop repeat 3 do (platform:collect-young-garbage))
                         responder)))
        (with-globals ((handler::*rest-after-older-milliseconds* 100))
          (is (equal "written" (ask-text "/writer")))
          (is (= 500 (response-status (ask "/responder"))))))
      (skip "Only SBCL has garbage that tells.")))

(define-server-test (older-garbage-is-collected-for-the-last-look-only-and-seldom :needs :calls-by-name)
  (with-responder (responder) (funcall responder (text-response "at once"))
    (let ((now 50000) (later (make-recorder)) (here (bt:current-thread)))
      (with-function (platform:milliseconds (original)
                       (if (eq here (bt:current-thread)) now (funcall original)))
        (with-function (handler::look-later (original server more looks &optional seconds)
                         (record later (list more looks seconds)))
          (flet ((plan (looks) (handler::plan-next-older-look *server* '(aged) looks)))
            (is (null (plan '(1/10 1))))
            (is (equal '(((aged) (1) nil)) (recorded later)))
            (is (equal '(aged) (plan '(1))))
            (is (null (plan '(1))))
            (is (equal '((aged) (1) 10) (first (last (recorded later)))))
            (incf now 9999)
            (is (null (plan '(1))))
            (incf now 1)
            (is (equal '(aged) (plan '(1))))
            (handler::collect-for *server* '() (lambda () (incf now 1000)))
            (incf now 19999)
            (is (null (plan '(1))) "The last one took long.")
            (incf now 1)
            (is (equal '(aged) (plan '(1))))
            (is (null (handler::plan-next-older-look *server* '() '(1))) "Nobody is aged.")))))))

(defun call-looking (function server delayed)
  "Calls FUNCTION while DELAYED, of SERVER, is all that is looked for; returns how often garbage was collected, and what is
to be looked for later, lists of the responses and the looks."
  (let ((collections (make-recorder)) (later (make-recorder)))
    (with-function (handler::take-unused (original of looks) (and (eq server of) (list delayed)))
      (with-function (handler::look-later (original server more looks &optional seconds)
                       (record later (list* more looks (and seconds '(:put-off)))))
        (with-function (platform:collect-young-garbage (original) (record collections t) (platform:collect-garbage))
          (funcall function))))
    (values (recorded-count collections) (recorded later))))

(define-server-test no-more-garbage-is-collected-for-responses-that-wait-than-is-needed
  (if (platform:garbage-told-p)
      (let ((watched (make-recorder)) (responders (make-recorder)))
        (with-function (handler::look-later (original server more looks)
                         (record watched (list server (first more))))
          (with-responder (responder) (record responders responder)
            (with-connection (connection)
              (send-request connection "/")
              (destructuring-bind (server delayed) (eventually ("a response to be watched")
                                                     (first (recorded watched)))
                (flet ((looked (looks)
                         (setf (handler::delayed-mark delayed) (platform:collection-mark))
                         (multiple-value-list
                          (call-looking (lambda () (handler::look server looks)) server delayed)))
                       (due (moment)
                         (setf (handler::server-collects-from server) moment)))
                  (is (equal `(0 (((,delayed) (60 1)))) (looked '(60 1))) "It has begun to wait just now.")
                  (is (equal `(1 (((,delayed) (1)))) (looked '(0 1))))
                  (is (eq (platform:collection-mark) (handler::delayed-mark delayed)) "Its next look has one of its own.")
                  (due (+ (platform:milliseconds) 60000))
                  (is (equal `(0 (((,delayed) (0 1) :put-off))) (looked '(0 1))) "There was a collection just now.")
                  (due 0)
                  (with-function (handler::uncollected-p (original delayed)
                                   (setf (handler::delayed-mark delayed) 'another)
                                   (funcall original delayed))
                    (is (equal `(0 (((,delayed) (1)))) (looked '(0 1))) "There was one that came by itself."))
                  (is (eq (platform:collection-mark) (handler::delayed-mark delayed)) "It waits for the next one.")))
              (funcall (first (recorded responders)) (text-response "later"))
              (is (equal "later" (response-text (read-response connection))))))))
      (skip "Only SBCL has garbage that tells.")))

(define-server-test whoever-dies-while-he-plans-looks-leaves-none-out
  (if (platform:garbage-told-p)
      (let ((planned (make-recorder)))
        (with-responder (responder) (progn responder nil)
          (flet ((dying (function)
                   (let ((thread (in-background ("dying") (funcall function))))
                     (ignore-errors (task-result thread)))))
            (with-function (engine:schedule (original engine seconds function)
                             (when (equal (bt:thread-name (bt:current-thread)) "dying")
                               (destroy-here (bt:current-thread)))
                             (funcall original engine seconds function))
              (dying (lambda () (handler::look-later *server* '() handler::*looks*))))
            (eventually ("what was planned to be looked for") (null (handler::server-looks *server*)))
            (is (= 500 (response-status (ask "/"))))
            (with-function (handler::take-unused (original server looks)
                             (destroy-here (bt:current-thread))
                             (list (handler::make-delayed server nil nil nil nil)))
              (with-function (handler::look-later (original server more looks &optional seconds) (record planned t))
                (dying (lambda () (handler::look *server* '(1))))))
            (is (= 1 (recorded-count planned))))))
      (skip "Only SBCL has garbage that tells.")))

(define-server-test a-look-that-was-lost-is-planned-again
  (if (platform:garbage-told-p)
      (with-responder (responder) (progn responder nil)
        (flet ((plan (milliseconds)
                 (setf (handler::server-looks *server*)
                       (list (list handler::*looks* (+ (platform:milliseconds) milliseconds)))))
               (scheduled ()
                 (let ((count 0))
                   (with-function (engine:schedule (original engine seconds function) (incf count))
                     (handler::look-later *server* '() handler::*looks*)
                     (handler::look-later *server* '() handler::*looks*))
                   count)))
          (plan 100)
          (is (= 0 (scheduled)) "It is to come.")
          (plan (- 100 handler::*lost-look-milliseconds*))
          (is (= 0 (scheduled)) "It is late, perhaps.")
          (plan (- -1 handler::*lost-look-milliseconds*))
          (is (= 1 (scheduled)) "It is lost, and planned once.")
          (plan (- -1 handler::*lost-look-milliseconds*))
          (is (= 500 (response-status (ask "/"))))))
      (skip "Only SBCL has garbage that tells.")))

(define-server-test collections-for-responses-that-wait-take-a-small-part-of-the-time
  (with-responder (responder) (funcall responder (text-response "at once"))
    (let ((now 10000) (here (bt:current-thread)))
      (with-function (platform:milliseconds (original)
                       (if (eq here (bt:current-thread)) now (funcall original)))
        (with-function (platform:collect-young-garbage (original) (incf now 50))
          (flet ((seconds () (handler::seconds-to-collection *server*)))
            (is (null (seconds)))
            (is (eql 1 (seconds)) "Nobody else collects meanwhile.")
            (handler::collect-for *server* '())
            (is (= 10050 now))
            (is (eql 1 (seconds)))
            (incf now 999)
            (is (eql 1/1000 (seconds)))
            (incf now 1)
            (is (null (seconds)))
            (with-function (platform:collect-young-garbage (original) (incf now 1000))
              (handler::collect-for *server* '()))
            (is (eql 1 (seconds)) "Nobody waits for longer.")))))))

(define-server-test a-response-is-given-once
  (let ((errors (make-recorder)))
    (flet ((try (function)
             (handler-case (funcall function)
               (error (condition) (record errors (type-of condition))))))
      (with-responder (responder)
          (let ((writer (funcall responder '(200 ()))))
            (try (lambda () (funcall responder (text-response "again"))))
            (funcall writer "once" :close t)
            (try (lambda () (funcall writer "more")))
            (try (lambda () (funcall responder (text-response "again")))))
        (is (equal "once" (ask-text "/")))
        (eventually ("the application to have tried all")
          (= 3 (recorded-count errors)))
        (is (equal '(handler::response-over handler::response-over handler::response-over)
                   (recorded errors)))))))

(define-server-test who-leaves-amid-a-long-response-harms-nobody
  (let ((written (make-gate "the writer to give up")))
    (with-clack (environment
                 (if (equal "/long" (getf environment :path-info))
                     (lambda (responder)
                       (unwind-protect
                            (let ((writer (funcall responder '(200 ())))
                                  (piece (make-string 100000 :initial-element #\x)))
                              (loop repeat 1000 do (funcall writer piece)))
                         (open-gate written)))
                     (text-response "fine")))
      (with-connection (connection)
        (send-request connection "/long")
        (next-octet connection))
      (await written)
      (is (equal "fine" (ask-text "/")))
      (is (equal "" (clack-log))))))
