(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* shared-content :in acceptors
  :description "Content as Hunchentoot's functions give it, in other threads, and to programs that
want it in their own way.")

(defun complete-by-reading (reply function)
  "Completes REPLY, in another thread, with what FUNCTION returns in its context, a string; or with
\"refused\" when it signals an error."
  (in-background ("reading content")
    (recycling:complete-reply
     reply (handler-case (recycling:with-reply-context (reply) (funcall function))
             (error () "refused")))))

(defmacro serving-readers ((&rest initargs) (&rest routes) &body body)
  "Evaluates BODY while *SERVER*, with INITARGS, completes the reply to a request for a path of
ROUTES, a list of paths and forms, by the value of the form in another thread."
  `(serving ,initargs
       ,(loop for (path form) in routes
              collect `(,path (recycling:defer-reply (reply)
                                (complete-by-reading reply (lambda () ,form)))))
     ,@body))

(defun posted-text ()
  (hunchentoot:raw-post-data :force-text t))

(define-server-test
    (content-is-read-in-another-thread-after-the-handler-has-returned :needs :our-content)
  (serving-readers ()
      (("/raw" (posted-text))
       ("/form" (hunchentoot:post-parameter "a"))
       ("/file" (alexandria:read-file-into-string (first (hunchentoot:post-parameter "file"))))
       ("/stream" (let ((octets (make-array 5 :element-type '(unsigned-byte 8))))
                    (read-sequence octets (hunchentoot:raw-post-data :want-stream t))
                    (decode octets))))
    (with-connection (connection)
      (loop for (path content type)
              in `(("/raw" "hello" "text/plain")
                   ("/stream" "hello" "text/plain")
                   ("/form" "a=hello" "application/x-www-form-urlencoded")
                   ("/form" ,(multipart (form-part "a" "hello")) ,(multipart-type))
                   ("/file" ,(multipart (file-part :contents (encode "hello"))) ,(multipart-type)))
            do (loop for keys in `((:content ,content) (:chunks (,content)))
                     do (loop repeat 5
                              do (is (string= "hello" (apply #'exchange-text connection path
                                                             :method :post :content-type type keys))
                                     "~A" path)))))))

(define-server-test (octets-of-content-are-the-programs-to-keep :needs :our-content)
  (let ((kept (make-recorder)))
    (serving () (("/" (record kept (hunchentoot:raw-post-data :force-binary t)) "kept"))
      (with-connection (connection)
        (loop for value below 5
              do (exchange connection "/" :method :post
                           :content (make-array 100000 :element-type '(unsigned-byte 8)
                                                       :initial-element value)))))
    (loop for value below 5
          for octets in (recorded kept)
          do (is (= 100000 (count value octets))))))

(define-server-test (threads-read-the-same-content-at-a-time :needs :our-content)
  (let ((octets (test-octets 6000000))) ; a file has them
    (serving () (("/" (recycling:defer-reply (reply)
                        (let* ((gate (make-gate))
                               (tasks (loop repeat 4
                                            collect (in-background ("reading content")
                                                      (await gate)
                                                      (recycling:with-reply-context (reply)
                                                        (hunchentoot:raw-post-data
                                                         :force-binary t))))))
                          (open-gate gate)
                          (in-background ("replying")
                            (recycling:complete-reply
                             reply (shown (loop for task in tasks
                                                collect (equalp octets (task-result task))))))))))
      (is (equal (shown '(t t t t)) (ask-text "/" :method :post :content octets))))))

;;; What is refused

(define-server-test (content-is-read-whole-where-memory-has-room :needs (:our-content :parking))
  (let ((server nil))
    (flet ((memory () (getf (recycling:stats server) :memory)))
      (serving () (("/" (let ((before (memory)))
                          (hunchentoot:raw-post-data :force-binary t)
                          (princ-to-string (- (memory) before)))))
        (setf server *server*)
        (is (equal "3000000" (ask-text "/" :method :post :chunks (list (test-octets 3000000)))))
        (with-globals ((engine::*client-memory-share* (/ 4900000 (platform:heap-octets))))
          (is (= 503 (response-status (ask "/" :method :post :content (test-octets 5000000))))))))))

(define-server-test (a-form-that-is-too-large-has-that-status-once-and-other-threads-are-told
                     :needs :our-content)
  (serving (:max-raw-octets 1000 :max-form-octets 1000)
      (("/form" (unwind-protect (hunchentoot:post-parameters*)
                  (hunchentoot:post-parameters*)))
       ("/raw" (unwind-protect (hunchentoot:raw-post-data)
                 (hunchentoot:raw-post-data)))
       ("/there/form" (recycling:defer-reply (reply)
                        (complete-by-reading reply #'hunchentoot:post-parameters*)))
       ("/there/raw" (recycling:defer-reply (reply)
                       (complete-by-reading reply #'hunchentoot:raw-post-data))))
    (let ((large (make-string 2000 :initial-element #\x)))
      (loop for (path content type)
              in `(("/form" ,(multipart (form-part "a" large)) ,(multipart-type))
                   ("/form" ,large "application/x-www-form-urlencoded")
                   ("/raw" ,large "text/plain"))
            for count from 1
            do (flet ((answer (path)
                        (ask path :method :post :content-type type :content content)))
                 (is (= 413 (response-status (answer path))))
                 (is (= count (getf (figure :rejected-by-status) 413)))
                 (is (string= "refused" (response-text
                                         (answer (concatenate 'string "/there" path)))))
                 (is (= count (getf (figure :rejected-by-status) 413))))))))

(define-server-test (a-form-that-makes-no-sense-is-an-error-in-any-thread :needs :our-content)
  (serving-readers () (("/" (hunchentoot:post-parameter "a")))
    (is (string= "refused" (ask-text "/" :method :post :content "a=%C3%28"
                                     :content-type
                                     "application/x-www-form-urlencoded; charset=utf-8")))))

;;; Uploaded files

(define-server-test (uploaded-files-live-until-the-reply-is-over :needs :our-engine)
  (let ((replies (make-recorder)))
    (serving-uploads (("/" (let ((file (first (hunchentoot:post-parameter "file"))))
                             (recycling:defer-reply (reply) (record replies (cons file reply))))))
      (dolist (end '(:reply :leave :stop))
        (setf (recorder-entries replies) '())
        (with-connection (connection)
          (send-request connection "/" :method :post :content-type (multipart-type)
                                       :content (multipart (file-part)))
          (destructuring-bind (file . reply) (nth-reply replies)
            (eventually ("the handler to return") (or (not *parking-p*) (zerop (figure :busy))))
            (is-true (probe-file file))
            (case end
              (:leave (disconnect connection))
              (:stop (hunchentoot:stop *server*)))
            (recycling:complete-reply reply "later")
            (when (eq :reply end)
              (is (string= "later" (response-text (read-response connection)))))
            (eventually ("the file to be deleted") (file-gone-p file))))))))
