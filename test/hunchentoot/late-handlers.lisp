(in-package #:hunchentoot-recycling-taskmaster-test)

(in-suite time-limits)

;;; A handler and its limit at the same moment: one of them has the connection, whatever ends the
;;; other.

(defmacro serving-file ((octets &rest initargs) (path &rest routes) &body body)
  "Evaluates BODY while an acceptor of INITARGS serves ROUTES, with PATH bound to a file of OCTETS."
  (let ((directory (gensym "DIRECTORY")))
    `(with-directory (,directory)
       (let ((,path (write-file ,directory "file.bin" ,octets)))
         (serving (,@initargs) ,routes ,@body)))))

(define-server-test (nothing-follows-a-file-of-a-handler-that-goes-on-for-too-long :needs :our-http)
  (with-growing-limit (seconds)
    (let ((gate (make-gate)))
      (serving-file ((octets "a file") :handler-timeout seconds)
          (path ("/slow" (hunchentoot:handle-static-file path)
                         (await gate (* 5 *patience*))
                         nil)
                ("/next" "next"))
        (with-connection (connection)
          (unwind-protect
               (progn
                 (is (string= "a file" (promptly (exchange-text connection "/slow"))))
                 (is (closed-by-server-p connection))
                 (is (= 1 (ended-by :handler))))
            (open-gate gate)))
        (await-next)
        (eventually ("the handler to end") (zerop (figure :busy)))
        (is (zerop (figure :failed)))))))

(define-server-test (a-file-that-a-late-handler-wants-to-send-is-not-sent :needs :our-http)
  (let ((gate (make-gate)))
    (serving-file ((octets "a file") :handler-timeout 1/2)
        (path ("/late" (await gate)
                       (hunchentoot:handle-static-file path)))
      (with-connection (connection)
        (send-request connection "/late")
        (is (= 503 (response-status (read-response connection))))
        (open-gate gate)
        (is (closed-by-server-p connection)))
      (eventually ("the handler to end") (zerop (figure :busy)))
      (is (zerop (figure :failed))))))

(defvar *statuses* nil
  "A recorder of the statuses that the program's methods see after a request.")

(defclass noting-request (hunchentoot:request) ())

(defmethod hunchentoot:process-request :after ((request noting-request))
  (record *statuses* (hunchentoot:return-code*)))

(define-server-test (a-late-handler-does-not-switch-protocols :needs :our-http)
  ;; Libraries for WebSockets go on after PROCESS-REQUEST where the status is 101.
  (let ((gate (make-gate)) (old *statuses*))
    (unwind-protect
         (serving (:handler-timeout 1/2 :request-class 'noting-request)
             (("/" (setf (hunchentoot:return-code*) 101)
                   (await gate)
                   ""))
           (setf *statuses* (make-recorder))
           (with-connection (connection)
             (send-request connection "/")
             (is (= 503 (response-status (read-response connection))))
             (open-gate gate)
             (eventually ("the request to end") (recorded *statuses*))
             (is (equal '(503) (recorded *statuses*)))))
      (setf *statuses* old))))

(define-server-test (a-client-is-not-answered-for-while-it-is-asked-for-its-content
                     :needs :our-content)
  (let ((asking nil) (asked nil))
    (with-function (server:send-continue (original io)
                     (open-gate asking)
                     (await asked (* 4 *patience*))
                     (funcall original io))
      (serving-beside-late-handlers
          (("/" (let ((content (hunchentoot:raw-post-data :want-stream t)))
                  (string (code-char (read-byte content))))))
        (setf asking (make-gate)
              asked (make-gate))
        (with-connection (connection)
          (unwind-protect
               (progn
                 (promptly (send connection (post-head "/" (octets "Expect: 100-continue" :crlf
                                                                   "Content-Length: 1")))
                           (await asking))
                 (let-limit-pass)
                 (is (= 1 (ended-by :handler)) "The one for which we have waited."))
            (open-gate asked))
          (is (= 100 (response-status (read-response connection))))
          (send connection "a")
          (is (string= "a" (response-text (read-response connection)))))))))

;;; Functions for late handlers, where no thread can be made

(defun call-without-timeout-threads (function)
  "Calls FUNCTION while no thread can be made that would call a function for a late handler, with a
function that lets such threads be made again, and a recorder of the vain attempts."
  (let ((attempts (make-recorder)) (possible-p nil))
    (with-function (bt:make-thread (original function &rest keys &key name &allow-other-keys)
                     (when (and (equal "handler timeout" name) (not possible-p))
                       (record attempts name)
                       (error "No more threads."))
                     (apply original function keys))
      (funcall function (lambda () (setf possible-p t)) attempts))))

(defmacro without-timeout-threads ((make-possible attempts) &body body)
  "Evaluates BODY as CALL-WITHOUT-TIMEOUT-THREADS calls a function: (MAKE-POSSIBLE) lets threads be
made again, and ATTEMPTS is the recorder."
  (let ((function (gensym "FUNCTION")))
    `(call-without-timeout-threads
      (lambda (,function ,attempts)
        (flet ((,make-possible () (funcall ,function)))
          (declare (ignorable #',make-possible))
          ,@body)))))

(define-server-test (a-function-for-a-late-handler-waits-until-a-thread-can-be-made
                     :needs :our-http)
  (let ((callers nil))
    (with-each-server ((:handler-timeout 1/2))
        (let ((gate (make-gate)))
          (recycling:call-when-timed-out (lambda ()
                                           (record callers (bt:thread-name (bt:current-thread)))
                                           (open-gate gate)))
          (await gate (* 3 *patience*))
          "too late")
      (setf callers (make-recorder))
      (without-timeout-threads (let-threads-be-made attempts)
        (with-connection (connection)
          (send-request connection "/")
          (is (= 503 (response-status (read-response connection))))
          (eventually ("two attempts to make the thread") (< 1 (recorded-count attempts)))
          (is (zerop (recorded-count callers)))
          (let-threads-be-made)
          (is (closed-by-server-p connection)))
        (eventually ("the handler to end") (zerop (figure :busy)))
        (is (equal '("handler timeout") (recorded callers)))))))

(define-server-test (a-function-for-a-late-handler-holds-up-no-other-where-no-thread-can-be-made
                     :needs :our-http)
  (let ((gate nil))
    (with-each-server ((:handler-timeout 1/2))
        (progn (recycling:call-when-timed-out (lambda () (await gate (* 3 *patience*))))
               (await gate (* 3 *patience*))
               "too late")
      (setf gate (make-gate))
      (without-timeout-threads (let-threads-be-made attempts)
        (with-connections (connections 2)
          (dolist (connection connections)
            (send-request connection "/")
            (is (= 503 (response-status (read-response connection)))))
          (is (string= "next" (ask-text "/next")))
          (open-gate gate)
          (dolist (connection connections)
            (is (closed-by-server-p connection))))
        (is (plusp (recorded-count attempts)))))))

(define-server-test (a-late-handler-that-returns-before-a-thread-can-be-made-needs-no-function
                     :needs :our-http)
  (let ((gate nil) (called-p nil))
    (with-each-server ((:handler-timeout 1/2))
        (progn (recycling:call-when-timed-out (lambda () (setf called-p t)))
               (await gate)
               "too late")
      (setf gate (make-gate))
      (without-timeout-threads (let-threads-be-made attempts)
        (is (= 503 (response-status (ask "/"))))
        (eventually ("an attempt to make the thread") (plusp (recorded-count attempts)))
        (open-gate gate)
        (eventually ("the handler to end") (zerop (figure :busy)))
        (let-threads-be-made)
        (is (string= "next" (ask-text "/next")))))
    (is-false called-p)))

;;; Threads that are destroyed

(define-server-test (a-connection-outlives-its-destroyed-worker-while-its-client-is-answered
                     :needs (:our-http :deferred-ends))
  (let ((answering (make-gate)) (go-on (make-gate)) (returning (make-gate)) (worker nil))
    (with-function (server::answer-for-handler (original application exchange)
                     (open-gate answering)
                     (await go-on)
                     (funcall original application exchange))
      (serving (:handler-timeout 1/2)
          (("/" (setf worker (bt:current-thread))
                (await answering)
                (open-gate returning)
                "too late")
           ("/next" "next"))
        (with-connection (connection)
          (send-request connection "/")
          (await returning)
          (poll (constantly nil) 1/5)   ; until it waits for the sentinel
          (platform:destroy-thread worker)
          (is (not (poll (lambda () (zerop (figure :open))) 1/2)))
          (open-gate go-on)
          (is (= 503 (response-status (read-response connection))))
          (is (closed-by-server-p connection)))
        (is (string= "next" (ask-text "/next")))))))

(define-server-test (a-sentinel-that-is-destroyed-amid-an-answer-leaves-no-worker-waiting
                     :needs (:our-http :deferred-ends))
  (let ((destroyed-p nil) (gate (make-gate)))
    (with-function (engine:count-late (original engine kind)
                     (unless (shiftf destroyed-p t)
                       (kill-this-thread))
                     (funcall original engine kind))
      (serving (:handler-timeout 1/2)
          (("/" (await gate) "too late")
           ("/next" "next"))
        (with-connection (connection)
          (send-request connection "/")
          (eventually ("the sentinel to be destroyed") destroyed-p)
          (open-gate gate)
          (is (closed-by-server-p connection)))
        (is (string= "next" (ask-text "/next")))
        (eventually ("the handler to end") (zerop (figure :busy)))))))
