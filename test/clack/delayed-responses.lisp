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
                 (is (equal (format nil "one,two,three,four,~C" (code-char #x3042))
                            (response-text answer)))
                 (is (equal "chunked" (response-header answer "transfer-encoding")))
                 (is (null (response-header answer "content-length"))))))))

(defun received-p (connection ending)
  "Receives from CONNECTION until what has come ends with ENDING, a string; NIL when it does not
come."
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
        (is-true (received-p connection
                             (format nil "0~C~C~C~C" #\Return #\Newline #\Return #\Newline)))))))

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

(define-server-test an-application-that-does-not-close-has-written-all
  (with-clack (environment (lambda (responder)
                             (funcall (funcall responder '(200 ())) "abc"))
                           :reply-timeout 1/10)
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

(define-server-test (what-was-sent-is-not-kept-while-the-function-goes-on :needs :calls-by-name)
  (let ((answers (make-recorder)))
    (with-function (handler::send-taken (original delayed)
                     (multiple-value-prog1 (funcall original delayed)
                       (record answers (server:deferred-response-answer
                                           (handler::delayed-deferred-response delayed)))))
      (with-responder (responder) (funcall responder (text-response "at once"))
        (is (equal "at once" (ask-text "/")))
        (eventually ("the answer to be sent") (plusp (recorded-count answers)))
        (is (equal '(nil) (recorded answers)))))))

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
        (is (equal '(handler:reply-already-sent handler:reply-already-sent
                     handler:reply-already-sent)
                   (recorded errors)))))))

(define-server-test a-client-that-leaves-amid-a-long-response-harms-nobody
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
