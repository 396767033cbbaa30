(in-package #:hunchentoot-recycling-taskmaster-test)

;;; Certificates that are renewed while HTTPS is served, and methods of programs that have a part in
;;; it.

(def-suite tls-reload :in acceptors
  :description "Reloaded certificates of HTTPS.")

(in-suite tls-reload)

(defun put-in-place (directory name)
  "Makes the files of localhost in DIRECTORY those of the certificate NAME."
  (dolist (type '("pem" "key"))
    (uiop:copy-file (file-in directory name type) (file-in directory "localhost" type))))

(define-server-test (reloaded-certificates-are-for-new-connections :needs :our-engine)
  (serving-https (directory)
    (issue directory "renewed")
    (with-connection (connection)
      (let ((stream (cl+ssl:make-ssl-client-stream (connection-stream connection) :verify nil)))
        (send-encrypted stream "/yo")
        (is (search "Hey!" (read-until stream "Hey!")))
        (put-in-place directory "renewed")
        (is (equal "localhost" (subject-told (talk-by-openssl))))
        (is (eq *server* (recycling:reload-certificates *server*)))
        (is (equal "renewed" (subject-told (talk-by-openssl))))
        (send-encrypted stream "/yo")
        (is (search "Hey!" (read-until stream "Hey!")) "An open connection goes on.")
        (close stream)))))

(define-server-test (no-request-fails-while-certificates-are-reloaded :needs :our-engine)
  (serving-https (directory)
    (issue directory "one")
    (issue directory "two")
    (let* ((done (make-gate))
           (clients (loop repeat 3
                          collect (in-background ("a client")
                                    (loop until (open-p done)
                                          count t
                                          do (assert (search "Hey!" (ask-tls))))))))
      (unwind-protect
           (loop repeat (rounds 5)
                 do (dolist (name '("one" "two"))
                      (put-in-place directory name)
                      (recycling:reload-certificates *server*)
                      (is (equal name (subject-told (talk-by-openssl))))))
        (open-gate done))
      (is (every #'plusp (mapcar #'task-result clients)))
      (is (zerop (figure :failed))))))

(define-server-test (links-are-followed-anew-when-certificates-are-reloaded :needs :our-engine)
  (with-directory (directory)
    (flet ((lead-to (name)
             (dolist (type '("pem" "key"))
               (uiop:run-program (list "ln" "-sfn" (file-in directory name type)
                                       (file-in directory "live" type))))))
      (dolist (name '("first" "second"))
        (issue directory name))
      (lead-to "first")
      (let ((*acceptor-class* 'recycling:parallel-easy-ssl-acceptor))
        (serving (:ssl-certificate-file (file-in directory "live" "pem")
                  :ssl-privatekey-file (file-in directory "live" "key"))
            (("/yo" "Hey!"))
          (is (equal (file-in directory "first" "pem")
                     (hunchentoot:acceptor-ssl-certificate-file *server*)))
          (lead-to "second")
          (recycling:reload-certificates *server*)
          (is (equal "second" (subject-told (talk-by-openssl))))
          (is (equal (file-in directory "second" "pem")
                     (hunchentoot:acceptor-ssl-certificate-file *server*)))
          (lead-to "first")
          (hunchentoot:stop *server*)
          (hunchentoot:start *server*)
          (is (equal "first" (subject-told (talk-by-openssl))) "START reads them, too."))))))

(define-server-test (a-mistake-in-reloaded-files-leaves-the-old-ones-in-use :needs :our-engine)
  (serving-https (directory)
    (issue directory "other")
    (uiop:copy-file (file-in directory "other" "key") (file-in directory "localhost" "key"))
    (is (report-p (error-of (lambda () (recycling:reload-certificates *server*)))
                  "SSL-PRIVATEKEY-FILE" "localhost.key"))
    (is (report-p (error-of (lambda () (reinitialize-instance *server* :ssl-ciphers "NONSENSE")))
                  "SSL-CIPHERS" "NONSENSE"))
    (let ((output (talk-by-openssl)))
      (is (equal "localhost" (subject-told output)))
      (is-true (served-p output)))))

(define-server-test (what-is-reloaded-is-warned-of :needs :our-engine)
  (serving-https (directory)
    (issue-between directory "old" "20200101000000Z" "20210101000000Z")
    (put-in-place directory "old")
    (is (search "has expired" (first (warnings-in (lambda ()
                                                    (recycling:reload-certificates *server*))))))
    (is (equal "old" (subject-told (talk-by-openssl))) "It is used all the same.")))

;;; Programs that make the streams of connections

(defvar *streams-seen* nil
  "A recorder of which methods of a program had streams, and whether these were encrypted.")

(defun encrypted-p (stream)
  "Whether what is written to STREAM is encrypted."
  (and (ignore-errors (cl+ssl::ssl-stream-handle stream)) t))

(defclass before-encryption (hunchentoot:ssl-acceptor) ())
(defclass after-encryption (hunchentoot:acceptor) ())
(defclass between-everything
    (recycling:parallel-easy-ssl-acceptor before-encryption after-encryption)
  ()
  (:documentation "An acceptor whose methods come before ours, between ours and Hunchentoot's, and
after these."))

(macrolet ((define-watching-methods (&rest classes)
             `(progn
                ,@(loop for class in classes
                        collect `(defmethod hunchentoot:initialize-connection-stream
                                     ((acceptor ,class) stream)
                                   (record *streams-seen*
                                           (list ',class (encrypted-p stream)))
                                   (call-next-method))))))
  (define-watching-methods before-encryption after-encryption between-everything))

(define-server-test (methods-of-programs-get-the-streams-that-they-would-get :needs :our-engine)
  (with-globals ((*streams-seen* (make-recorder)))
    (with-directory (directory)
      (multiple-value-bind (certificate key) (issue directory "localhost")
        (let ((*acceptor-class* 'between-everything))
          (serving (:ssl-certificate-file certificate :ssl-privatekey-file key)
              (("/yo" (if (hunchentoot:ssl-p) "Hey!" "not secure")))
            (is-true (served-p (talk-by-openssl)))
            (is (equal '((between-everything nil) (before-encryption nil) (after-encryption t))
                       (recorded *streams-seen*)))))))))
