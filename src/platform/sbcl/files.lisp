(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; Files as descriptors, which the system copies to sockets without the Lisp, for SBCL on Linux.

(defun native-name (pathname)
  "The system's name, a string, for the file PATHNAME, which is absolute; NIL if there is none, as
for a wild pathname."
  (let ((name (and (not (wild-pathname-p pathname))
                   (sb-ext:native-namestring pathname))))
    ;; In C, a name ends at its first NUL, so that it would name another file.
    (and name (not (find (code-char 0) name)) name)))

(defconstant +o-nonblock+ #o4000)
(defconstant +o-noctty+ #o400)
(defconstant +o-cloexec+ #o2000000)

(defun open-file (name)
  "A descriptor, an integer, from which the file NAME, a string, can be read; or minus an error
number.  Does not wait even if NAME is a pipe."
  (system-call "open" sb-alien:int (sb-alien:c-string name)
               (sb-alien:int (logior +o-nonblock+ +o-noctty+ +o-cloexec+))))

(defconstant +o-rdwr+ 2)

(defun descriptor-open-p (number)
  "True if the descriptor NUMBER is open."
  (/= (- +ebadf+) (system-call "fcntl" sb-alien:int (sb-alien:int number) (sb-alien:int 1) ; F_GETFD
                               (sb-alien:int 0))))

(defun fill-standard-descriptors ()
  "Opens /dev/null on each of the descriptors 0 to 2 that is closed.  Otherwise a socket might get
one of these numbers, and the Lisp would write its standard output to a client."
  (dotimes (number 3)
    (unless (descriptor-open-p number)
      ;; The system uses the lowest free number.  Programs that are started later inherit it.
      (let ((descriptor (system-call "open" sb-alien:int (sb-alien:c-string "/dev/null")
                                     (sb-alien:int +o-rdwr+))))
        (when (> descriptor 2)          ; another thread was faster
          (close-descriptor descriptor))))))

(sb-alien:define-alien-type nil
    (sb-alien:struct statx              ; <linux/stat.h>, the same for every processor
                     (mask (sb-alien:unsigned 32)) (block-size (sb-alien:unsigned 32))
                     (attributes (sb-alien:unsigned 64))
                     (links (sb-alien:unsigned 32)) (user (sb-alien:unsigned 32))
                     (group (sb-alien:unsigned 32)) (mode (sb-alien:unsigned 16))
                     (spare (sb-alien:unsigned 16))
                     (number (sb-alien:unsigned 64)) (size (sb-alien:unsigned 64))
                     (blocks (sb-alien:unsigned 64)) (mask-2 (sb-alien:unsigned 64))
                     (times (array (sb-alien:signed 64) 6)) ; accessed, born, changed
                     (seconds (sb-alien:signed 64)) (nanoseconds (sb-alien:unsigned 32))
                     (rest (array (sb-alien:unsigned 64) 20))))

(defvar *empty-name* (coerce '(0) 'octets)
  "The empty string of C.")

(defconstant +unix-epoch+ (encode-universal-time 0 0 0 1 1 1970 0))

(defun file-facts (file)
  "Three values about FILE, an open descriptor: its size in octets, the universal time of its last
modification, and the nanoseconds of that second.  NIL if FILE is not a regular file, or if the
system call fails."
  (declare (type descriptor file))
  (sb-alien:with-alien ((facts (sb-alien:struct statx)))
    (sb-sys:with-pinned-objects (*empty-name*)
      (when (and (zerop (system-call "statx" sb-alien:int (sb-alien:int file)
                                     (sb-sys:system-area-pointer
                                      (sb-sys:vector-sap *empty-name*))
                                     (sb-alien:int #x1000) ; AT_EMPTY_PATH
                                     (sb-alien:unsigned-int #x243) ; type, mode, mtime, size
                                     ((* (sb-alien:struct statx)) (sb-alien:addr facts))))
                 (= #o100000 (logand #o170000 (sb-alien:slot facts 'mode))))
        (values (sb-alien:slot facts 'size)
                (+ +unix-epoch+ (sb-alien:slot facts 'seconds))
                (sb-alien:slot facts 'nanoseconds))))))

(defmacro transfer-file-octets (name file position octets start end)
  "Calls the C function NAME, pread or pwrite, until it has transferred all octets between FILE, a
descriptor, at POSITION, and OCTETS from START to END.  True on success."
  `(sb-sys:with-pinned-objects (,octets)
     (loop
       (when (= ,start ,end)
         (return t))
       (let ((count (system-call ,name sb-alien:long (sb-alien:int ,file)
                                 (sb-sys:system-area-pointer
                                  (sb-sys:sap+ (sb-sys:vector-sap ,octets) ,start))
                                 (sb-alien:unsigned-long (- ,end ,start))
                                 (sb-alien:long ,position))))
         (cond ((plusp count)
                (incf ,start count)
                (incf ,position count))
               ((/= count (- +eintr+))
                (return nil)))))))

(defun read-file-octets (file position octets start end)
  "Reads FILE, a descriptor, from POSITION into OCTETS from START to END.  True if FILE had that
many octets."
  (declare (type descriptor file) (type octets octets) (type index position start end))
  (transfer-file-octets "pread" file position octets start end))

(defun write-file-octets (file position octets start end)
  "Writes OCTETS from START to END to FILE, a descriptor, at POSITION.  True if all were written."
  (declare (type descriptor file) (type octets octets) (type index position start end))
  (transfer-file-octets "pwrite" file position octets start end))

(defun temporary-directory ()
  "The folder for temporary files, a string: TMPDIR of the environment, or /tmp."
  (let ((directory (sb-ext:posix-getenv "TMPDIR")))
    (if (and directory (plusp (length directory)))
        directory
        "/tmp")))

(defun open-temporary-file ()
  "A descriptor of a new, empty file without a name, which is deleted when that is closed; NIL where
none can be made.  The caller defers interrupts until it has recorded the descriptor; else the
file's name might stay, too."
  (let ((name (sb-ext:string-to-octets
               (concatenate 'string (temporary-directory) "/hunchentoot-XXXXXX")
               :external-format :utf-8 :null-terminate t)))
    (sb-sys:with-pinned-objects (name)
      (let* ((sap (sb-sys:vector-sap name))
             (file (system-call "mkostemp" sb-alien:int
                                (sb-sys:system-area-pointer sap)
                                (sb-alien:int +o-cloexec+))))
        (unless (minusp file)
          (system-call "unlink" sb-alien:int (sb-sys:system-area-pointer sap))
          file)))))

(defconstant +folders-tried+ 100
  "The maximum number of names that PRIVATE-FOLDER tries.")

(defun private-folder-p (name)
  "True if the string NAME names a folder of this user that no other user may use.  Makes the folder
if there is no file of that name."
  (sb-unix:unix-mkdir name #o700)
  (multiple-value-bind (found-p device inode mode links user) (sb-unix:unix-lstat name)
    (declare (ignore device inode links))
    (and found-p
         (= user (sb-unix:unix-getuid))
         (= #o040000 (logand #o170077 mode)))))

(defun private-folder ()
  "The pathname of a folder for temporary files that only this user's processes may use.  It lies in
the folder for temporary files of the environment, and is made if it does not exist.  Signals an
error if it cannot be made."
  (loop with beginning = (format nil "~A/hunchentoot-~D"
                                 (temporary-directory) (sb-unix:unix-getuid))
        for number below +folders-tried+
        for name = (format nil "~A~[~:;-~:*~D~]" beginning number)
        when (private-folder-p name)
          return (sb-ext:parse-native-namestring name nil *default-pathname-defaults*
                                                 :as-directory t)
        finally (error "No private folder like ~A can be made." beginning)))

(defun broken-pipes-ignored-p ()
  "True if the process ignores SIGPIPE, as SBCL does by default."
  ;; struct sigaction begins with the handler; SIG_IGN is 1.
  (sb-alien:with-alien ((action (array sb-alien:unsigned-long 32)))
    (and (zerop (system-call "sigaction" sb-alien:int
                             (sb-alien:int sb-unix:sigpipe)
                             (sb-sys:system-area-pointer (sb-sys:int-sap 0))
                             ((* (array sb-alien:unsigned-long 32)) (sb-alien:addr action))))
         (= 1 (sb-alien:deref action 0)))))

(defconstant +copied-at-once+ (* 32 1024))

(defun copy-file-to-socket (descriptor file position end)
  "Like SEND-FILE, but copies the octets through a buffer of its own."
  (declare (type descriptor descriptor file) (type index position end))
  (let ((octets (make-octets +copied-at-once+))
        (count (min +copied-at-once+ (- end position))))
    (declare (dynamic-extent octets))
    (cond ((not (read-file-octets file position octets 0 count)) 0)
          ((< (+ position count) end) (send-octets-before-more descriptor octets 0 count))
          (t (send-octets descriptor octets 0 count)))))

(defun send-file (descriptor file position end)
  "Writes FILE, a descriptor, from POSITION to END to the socket DESCRIPTOR, as many octets as it
accepts now.  Returns their number, 0 if FILE ends before, or minus an error number; see
WOULD-BLOCK-P."
  ;; Unlike send(2), sendfile(2) has no flag against SIGPIPE.  A program that writes to a pipe may
  ;; want SIGPIPE to end it, but not because a client has left.  The check takes a hundredth of the
  ;; time to send a file of the size that comes here.
  (if (broken-pipes-ignored-p)
      (let-system-send-file descriptor file position end)
      (copy-file-to-socket descriptor file position end)))

(defun let-system-send-file (descriptor file position end)
  (declare (type descriptor descriptor file) (type index position end))
  (sb-alien:with-alien ((offset (sb-alien:signed 64) position))
    (loop
      (let ((result (system-call "sendfile" sb-alien:long
                                 (sb-alien:int descriptor) (sb-alien:int file)
                                 ((* (sb-alien:signed 64)) (sb-alien:addr offset))
                                 (sb-alien:unsigned-long (- end position)))))
        (unless (= result (- +eintr+))
          (return result))))))
