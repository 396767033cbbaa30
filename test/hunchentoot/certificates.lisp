(in-package #:hunchentoot-recycling-taskmaster-test)

;;; Certificates that openssl makes for a test, and openssl as a client.

(defun openssl (&rest arguments)
  "What openssl, called with ARGUMENTS, prints; strings, or pathnames of files.  Signals an error
when it fails."
  (uiop:run-program (list* "openssl" (loop for argument in arguments
                                           collect (if (pathnamep argument)
                                                       (uiop:native-namestring argument)
                                                       argument)))
                    :output :string :error-output :string))

(defun file-in (directory name type)
  (uiop:native-namestring (merge-pathnames (format nil "~A.~A" name type) directory)))

(defun make-key (file &optional password)
  "Makes the private key FILE, encrypted if there is a PASSWORD."
  (apply #'openssl "genpkey" "-algorithm" "EC" "-pkeyopt" "ec_paramgen_curve:P-256" "-out" file
         (and password (list "-aes256" "-pass" (format nil "pass:~A" password))))
  file)

(defun issue (directory name &key (names (list "localhost")) password by)
  "Makes a key and a certificate in DIRECTORY, called NAME, for the host NAMES.  The key is
encrypted if there is a PASSWORD; the certificate is issued BY another of that name, or else by
itself.  Returns the files of the certificate and the key."
  (let ((key (make-key (file-in directory name "key") password))
        (certificate (file-in directory name "pem")))
    (apply #'openssl "req" "-x509" "-new" "-key" key "-days" "2" "-out" certificate
           "-subj" (format nil "/CN=~A" name)
           "-addext" (format nil "subjectAltName=~{DNS:~A~^,~}" names)
           (append (and password (list "-passin" (format nil "pass:~A" password)))
                   (and by (list "-CA" (file-in directory by "pem")
                                 "-CAkey" (file-in directory by "key")))))
    (values certificate key)))

(defun make-certificate (directory)
  "Makes a key and a certificate for localhost in DIRECTORY; returns both names."
  (multiple-value-bind (certificate key) (issue directory "localhost")
    (let ((names (list (file-in directory "key" "pem") (file-in directory "certificate" "pem"))))
      (mapc #'rename-file (list key certificate) names)
      (values-list names))))

(defun join-files (directory name &rest files)
  "Makes the file NAME in DIRECTORY of what is in FILES; returns its name."
  (uiop:native-namestring
   (apply #'write-file directory name (mapcar #'uiop:read-file-string files))))

;;; openssl s_client

(defun talk-by-openssl-about (target arguments)
  "What openssl says, as a client with ARGUMENTS that asks *SERVER* for TARGET and waits for the
end, a minute at most; without blanks, which its versions differ in."
  (remove #\Space
          (uiop:run-program
           (list* "timeout" "60" "openssl" "s_client" "-ign_eof"
                  "-connect" (format nil "127.0.0.1:~D" (port-of *server*))
                  arguments)
           :input (make-string-input-stream
                   (decode (request-octets target :headers '(("Connection" . "close")))))
           :output :string :error-output :output :ignore-error-status t)))

(defun talk-by-openssl (&rest arguments)
  "What TALK-BY-OPENSSL-ABOUT returns for /yo and ARGUMENTS."
  (talk-by-openssl-about "/yo" arguments))

(defun subject-told (output)
  "Whose certificate the server has shown, in OUTPUT of TALK-BY-OPENSSL."
  (let ((start (search "subject=CN=" output)))
    (and start
         (subseq output
                 (+ start (length "subject=CN="))
                 (position #\Newline output :start start)))))

(defun served-p (output)
  "Whether there is an answer in OUTPUT of TALK-BY-OPENSSL."
  (and (search "Hey!" output) t))
