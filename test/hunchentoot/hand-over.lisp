(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite hand-over :in acceptors
  :description "A soft stop, and a successor on the same port: no request is lost.")

(in-suite hand-over)

(define-server-test (a-soft-stop-answers-all-that-comes-on-kept-connections :needs :our-engine)
  (serving () (("/yo" (hunchentoot:post-parameter "x") "Hey!"))
    (let* ((latch (make-latch 20))
           (clients (loop repeat 20
                          collect (in-background ("client in a closed loop")
                                    (with-connection (connection)
                                      (loop for response = (exchange connection "/yo" :method :post
                                                                                     :content "x=1")
                                            for count from 1
                                            do (when (= count 10) (count-down latch))
                                            always (equal "Hey!" (response-text response))
                                            until (equal "close" (connection-header response))))))))
      (await latch (* 6 *patience*))
      ;; Or a client that is late with its next request would find its connection closed; without
      ;; parking, at the next look of its worker.
      (with-globals ((engine::*drain-seconds* (/ *patience* 2))
                     (server::*look-milliseconds* (* 3000 *patience*)))
        (is (null (nth-value 1 (hunchentoot:stop *server* :soft t)))))
      (is (every #'task-result clients)))))

(define-server-test (a-soft-stop-answers-those-whom-nobody-has-accepted :needs :our-engine)
  (let ((gate (make-gate)))
    (serving (:taskmaster (taskmaster :standby-thread-count 1 :max-thread-count 1))
        (("/slow" (await gate) "Hey!"))
      (with-connections (connections 5)
        (unwind-protect
             (progn
               (dolist (connection connections)
                 (send-request connection "/slow"))
               (eventually ("a request to be served")
                 (= 1 (getf (recycling:stats *server*) :busy)))
               (let ((stop (in-background ("soft stop") (hunchentoot:stop *server* :soft t))))
                 (eventually ("all to be accepted")
                   (= 5 (getf (recycling:stats *server*) :accepted)))
                 (open-gate gate)
                 (dolist (connection connections)
                   (is (equal "Hey!" (response-text (read-response connection)))))
                 (task-result stop)))
          (open-gate gate))))))

(define-server-test (a-client-that-is-silent-when-a-soft-stop-begins-is-answered :needs :our-engine)
  "The system holds such a connection until its first octets arrive."
  (with-growing-limit (seconds)
    (with-globals ((engine::*held-seconds* (* 2 seconds)))
      (serving () (("/yo" "Hey!"))
        (with-connection (silent)
          (let ((stop (in-background ("soft stop") (hunchentoot:stop *server* :soft t))))
            (unwind-protect
                 (is (equal "Hey!" (promptly (poll (constantly nil) (/ seconds 2))
                                             (exchange-text silent "/yo"))))
              (task-result stop (* 10 *patience*)))))))))

(defun check-leaving-server (stop)
  "Checks how *SERVER* serves before a soft stop, which STOP, a function like HUNCHENTOOT:STOP,
begins, and that STOP can end it at once all the same."
  (let ((server *server*))
    (with-connections (connections 2)
      (destructuring-bind (kept idle) connections
        (dolist (connection connections)
          (is (not (equal "close" (connection-header (exchange connection "/yo"))))))
        (let ((stopping (in-background ("soft stop")
                          (funcall stop server :soft t :delay (* 4 *patience*)))))
          (eventually ("the stop to begin") (not (server:ready-p server)))
          (dolist (response (list (ask "/yo") (ask "/yo") (exchange kept "/yo")))
            (is (equal "Hey!" (response-text response)))
            (is (equal "close" (connection-header response))))
          (is (closed-by-server-p kept))
          (is (not (readable-p idle)) "It is still open.")
          (is (not (task-done-p stopping)))
          (funcall stop server)
          (task-result stopping)
          (is (closed-by-server-p idle)))))))

(define-server-test (a-server-that-will-stop-serves-and-closes-no-idle-connection :needs :our-http)
  (serving () (("/yo" "Hey!"))
    (check-leaving-server #'hunchentoot:stop))
  (with-clack (environment (text-response "Hey!"))
    (check-leaving-server #'handler:stop)))

(defclass called-once () ()
  (:documentation "Has a primary method of its own, so all requests of a connection are served
within it."))

(defmethod hunchentoot:process-connection ((acceptor called-once) socket)
  (declare (ignore socket))
  (call-next-method))

(define-server-test (half-a-head-holds-up-a-soft-stop-for-a-moment-only :needs :our-http)
  (dolist (mixin '(nil called-once))
    (serving (:mixin mixin :read-timeout 1000) (("/yo" "Hey!"))
      (with-connection (connection)
        (is (equal "Hey!" (exchange-text connection "/yo")))
        (send connection (subseq (request-octets "/yo") 0 9))
        (task-result (in-background ("soft stop") (hunchentoot:stop *server* :soft t)))))))

(defun ask-afresh (port stop-p)
  "Asks PORT for /yo on a new connection each time until STOP-P is true.  Returns how often the
answer was right; signals an error when it was not."
  (loop until (funcall stop-p)
        count (with-connection (connection port)
                (let ((response (exchange connection "/yo" :headers '(("Connection" . "close")))))
                  (or (equal "Hey!" (response-text response))
                      (error "Not an answer: ~A" (response-text response)))))))

(defmacro handing-over ((first second port) &body body)
  "Evaluates BODY while several clients ask PORT, where FIRST listens, on new connections; SECOND is
to listen there at the end.  Checks that all were answered."
  `(let* ((stop-p nil)
          (clients (loop repeat 4
                         collect (let ((port ,port))
                                   (in-background ("client with new connections")
                                     (ask-afresh port (lambda () stop-p)))))))
     (flet ((answers (acceptor count)
              (eventually ("answers of an acceptor" :patience (* 3 *patience*))
                (<= count (getf (recycling:stats acceptor) :served)))))
       (answers ,first 20)
       ,@body
       (answers ,second (+ 50 (getf (recycling:stats ,second) :served)))
       (setf stop-p t)
       (is (every #'plusp (mapcar #'task-result clients))))))

(define-server-test (a-hand-over-of-a-shared-port-loses-no-connection :needs :our-engine)
  (where-special
   (serving (:reuse-port t) (("/yo" "Hey!"))
     (let ((first *server*)
           (port (hunchentoot:acceptor-port *server*)))
       (with-acceptor (second :reuse-port t :port port)
         (handing-over (first second port)
           (hunchentoot:stop first :soft t)))))))

(define-server-test (a-hand-over-of-an-inherited-descriptor-loses-no-connection :needs :our-engine)
  (with-inherited (descriptor port)
    (serving-descriptor (descriptor) (("/yo" "Hey!"))
      (let ((first *server*))
        (with-acceptor (second :address nil :listen-fd descriptor)
          (handing-over (first second port)
            (hunchentoot:stop first :soft t)))))))
