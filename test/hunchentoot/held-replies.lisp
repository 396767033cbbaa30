(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* held-replies :in acceptors
  :description "Replies that the engine holds, and requests that it has received.")

(defclass held-request (hunchentoot:request)
  ()
  (:documentation "Requests of some other program."))

;;; Every event of a connection as if others had come with it; no ring is needed for that

(defun receive-as-if-early (engine connection)
  "Gives the service of ENGINE what CONNECTION, which the caller owns, has, if that is to be received early."
  (when (engine::receives-early-p engine connection)
    (let* ((most engine::+early-octets+)
           (buffer (engine::make-octets most))
           (count (platform:receive-octets (engine:connection-descriptor connection) buffer 0 most)))
      (when (plusp count)
        (engine:take-input (engine::engine-service engine) connection buffer 0 count (< count most))))))

(defun call-receiving-early (function &optional requests-p)
  "Calls FUNCTION while engines receive what comes before they call their services; requests only, if REQUESTS-P."
  (with-function (engine::handle-event (original engine worker token)
                   (if (and (engine::serving-p engine) (engine::connection-token-p engine token))
                       (let ((entry (engine::own-event engine token)))
                         (when entry
                           (when (and (typep entry 'engine:connection)
                                      (not (and requests-p (server::connection-continuation entry))))
                             (receive-as-if-early engine entry))
                           (funcall original engine worker entry)))
                       (funcall original engine worker token)))
    (funcall function)))

(defmacro receiving-early (() &body body)
  "Evaluates BODY while engines receive what comes before they call their services, which hold their answers."
  `(with-function (engine::holding-pays-p (original engine worker) (engine::serving-p engine))
     (call-receiving-early (lambda () ,@body))))

(defmacro receiving-requests-early (() &body body)
  "Evaluates BODY as RECEIVING-EARLY does, while other events come one by one."
  `(call-receiving-early (lambda () ,@body) t))

(define-server-test (who-sends-on-while-a-reply-is-awaited-is-served-after-it :needs (:our-http :parking))
  (receiving-early ()
    (serving-deferred (replies) ()
      (with-connection (connection)
        (is (string= "word" (exchange-text connection "/word")))
        (loop repeat 3
              do (send-request connection "/")
                 (nth-reply replies)
                 (await-deferred 1)
                 (send-request connection "/word")
                 (eventually ("a worker to have seen that")
                   (zerop (figure :busy)))
                 (complete replies "first")
                 (is (string= "first" (response-text (read-response connection))))
                 (is (string= "word" (response-text (read-response connection)))))))))

(define-server-test (who-sends-on-behind-a-reply-that-does-not-come-in-time-is-served :needs (:our-http :parking))
  (receiving-requests-early ()
    (let ((replies (make-recorder)))
      (serving () (("/" (recycling:defer-reply (reply :timeout 1/2) (record replies reply)))
                   ("/word" "word"))
        (with-connection (connection)
          (is (string= "word" (exchange-text connection "/word")))
          (send-request connection "/")
          (nth-reply replies)
          (await-deferred 1)
          (send-request connection "/word")
          (is (= 504 (response-status (read-response connection))))
          (is (string= "word" (response-text (read-response connection)))))))))

(define-server-test (a-request-that-comes-in-pieces-is-served-when-it-is-whole :needs (:our-http :parking))
  (receiving-early ()
    (serving () (("/" "word"))
      (with-connection (connection)
        (dolist (size '(1 7 100))
          (is (string= "word" (exchange-text connection "/")))
          (send-in-pieces connection size (request-octets "/"))
          (is (string= "word" (response-text (read-response connection)))))))))

(define-server-test (a-head-that-was-received-in-part-has-a-deadline :needs (:our-http :parking))
  (receiving-early ()
    (serving (:read-timeout (/ *patience* 20)) (("/" "word"))
      (with-connection (connection)
        (is (string= "word" (exchange-text connection "/")))
        (send connection (subseq (request-octets "/") 0 10))
        (is (= 408 (response-status (read-response connection))))
        (is (closed-by-server-p connection))))))

(define-server-test (content-may-come-with-its-head-or-later :needs (:our-http :parking))
  (receiving-early ()
    (serving () (("/" (hunchentoot:raw-post-data :force-text t)))
      (with-connection (connection)
        (loop for length in '(1 100 1900 2048 5000 100000)
              for content = (make-string length :initial-element #\c)
              for request = (request-octets "/" :method "POST" :content content)
              do (send connection request)
                 (is (string= content (response-text (read-response connection))))
                 (send connection (subseq request 0 (- (length request) (ceiling length 2))))
                 (is (not (readable-p connection 1/50)))
                 (send connection (subseq request (- (length request) (ceiling length 2))))
                 (is (string= content (response-text (read-response connection)))))))))

(define-server-test (requests-that-come-together-are-answered-in-order :needs (:our-http :parking))
  (receiving-early ()
    (serving () (("/" (hunchentoot:get-parameter "n")))
      (with-connection (connection)
        (dolist (count '(1 2 20 200))   ; 200 are more than is received early
          (apply #'send connection (loop for n below count
                                         collect (request-octets (format nil "/?n=~D" n))))
          (loop for n below count
                do (is (string= (princ-to-string n) (response-text (read-response connection))))))))))

;;; Replies that a worker completes, each while others are due

(define-server-test (a-function-of-a-timer-may-complete-many-replies :needs (:our-http :parking))
  (receiving-early ()
    (serving-deferred (replies) ()
      (with-connections (connections 20)
        (loop for connection in connections
              for count from 1
              do (send-request connection "/")
                 (nth-reply replies count))
        (await-deferred 20)
        (let ((waiting (recorded replies)))
          (recycling:run-after 0 (lambda ()
                                   (loop for reply in waiting
                                         for count from 0
                                         do (recycling:complete-reply reply (princ-to-string count))))
                               :taskmaster *server*))
        (loop for connection in connections
              for count from 0
              do (is (string= (princ-to-string count) (response-text (read-response connection))))
                 (is (string= "word" (exchange-text connection "/word"))))))))

(define-server-test (a-reply-leaves-though-the-timer-that-completes-it-blocks-then :needs (:our-http :parking))
  (receiving-early ()
    (serving-deferred (replies) ()
      (let ((gate (make-gate)))
        (unwind-protect
             (with-connection (connection)
               (send-request connection "/")
               (nth-reply replies)
               (await-deferred 1)
               (recycling:run-after 0 (lambda ()
                                        (complete replies "first")
                                        (await gate))
                                    :taskmaster *server*)
               (is (string= "first" (response-text (read-response connection))))
               (is (string= "word" (exchange-text connection "/word"))))
          (open-gate gate))))))

;;; Whose methods run after a reply

(defclass busy-afterwards ()
  ()
  (:documentation "An acceptor that does something after each request."))

(defmethod hunchentoot:process-connection :after ((acceptor busy-afterwards) socket)
  (declare (ignore socket)))

(defun call-recording-offers (function)
  "Calls FUNCTION; true when the engine is offered meanwhile to hold a reply."
  (let ((offers (make-recorder)))
    (with-function (engine:hold-output (original connection octets start end)
                     (record offers t)
                     (funcall original connection octets start end))
      (funcall function))
    (recorded offers)))

(defmacro offered-while (&body body)
  "What CALL-RECORDING-OFFERS returns for BODY."
  `(call-recording-offers (lambda () ,@body)))

(defun offered-p (&rest initargs)
  "True when the engine is offered to hold a reply of an acceptor, made of INITARGS."
  (offered-while
    (with-routes (("/" "word"))
      (let* ((acceptor (apply #'make-test-acceptor initargs))
             (*server* (hunchentoot:start acceptor)))
        (unwind-protect (is (string= "word" (ask-text "/")))
          (stop-if-started acceptor))))))

(defmacro with-method (definition &body body)
  "Evaluates BODY while there is the method that DEFINITION, a DEFMETHOD form, makes."
  `(let ((method ,definition))
     (unwind-protect (progn ,@body)
       (remove-method (fdefinition ',(second definition)) method))))

(define-server-test (no-reply-is-held-after-which-a-method-of-the-program-runs :needs (:our-http :parking))
  (is-true (offered-p))
  (is-false (offered-p :mixin 'busy-afterwards))
  (with-method (defmethod hunchentoot:process-request :after ((request hunchentoot:request)))
    (is-false (offered-p)))
  (with-method (defmethod hunchentoot:process-request :around ((request held-request))
                 (call-next-method))
    (is-true (offered-p))
    (is-false (offered-p :request-class 'held-request)))
  (with-method (defmethod hunchentoot:reset-connection-stream :after ((acceptor hunchentoot:acceptor) stream)
                 (declare (ignore stream)))
    (is-false (offered-p)))
  (is-true (offered-p)))

(defun complete-elsewhere (reply)
  "Completes REPLY by \"word\" in another thread, before this returns."
  (task-result (in-background ("elsewhere") (recycling:complete-reply reply "word"))))

(define-server-test (a-deferred-reply-is-held-when-it-is-complete :needs (:our-http :parking))
  (serving () (("/now" (recycling:defer-reply (reply) (recycling:complete-reply reply "word")))
               ("/elsewhere" (recycling:defer-reply (reply) (complete-elsewhere reply)))
               ("/later" (recycling:defer-reply (reply)
                           (recycling:run-after 0 (lambda () (recycling:complete-reply reply "word")))))
               ("/stream" (recycling:defer-reply (reply)
                            (let ((stream (recycling:start-stream reply)))
                              (recycling:write-outgoing stream "word")
                              (recycling:close-outgoing stream)))))
    (dolist (path '("/now" "/elsewhere" "/later"))
      (is-true (offered-while (is (string= "word" (ask-text path))))))
    (is-false (offered-while (is (string= "word" (ask-text "/stream")))))))

(define-server-test (deferred-replies-that-are-held-come-in-order :needs (:our-http :parking))
  (receiving-early ()
    (serving () (("/now" (recycling:defer-reply (reply) (recycling:complete-reply reply "now")))
                 ("/elsewhere" (recycling:defer-reply (reply) (complete-elsewhere reply)))
                 ("/plain" "plain"))
      (with-connection (connection)
        (loop repeat 3
              do (is (string= "now" (exchange-text connection "/now")))
                 (is (string= "word" (exchange-text connection "/elsewhere")))
                 (is (string= "plain" (exchange-text connection "/plain"))))
        (send connection (request-octets "/now") (request-octets "/elsewhere") (request-octets "/plain"))
        (dolist (text '("now" "word" "plain"))
          (is (string= text (response-text (read-response connection)))))
        (send-request connection "/now" :headers '(("Connection" . "close")))
        (is (string= "now" (response-text (read-response connection))))
        (is (closed-by-server-p connection))))))

(define-server-test (the-last-reply-is-held-and-its-connection-closed-after-it :needs (:our-http :parking))
  (receiving-early ()
    (serving () (("/" "word"))
      (with-connection (connection)
        (is (string= "word" (exchange-text connection "/")))
        (send-request connection "/" :headers '(("Connection" . "close")))
        (is (string= "word" (response-text (read-response connection))))
        (is (closed-by-server-p connection))))))
