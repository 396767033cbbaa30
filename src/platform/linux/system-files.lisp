(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; Files as descriptors, which the system copies to sockets without the Lisp, for SBCL on Linux.

(defconstant +o-cloexec+ #o2000000)

(defun open-with-flags (name flags)
  (system-call "open" sb-alien:int (sb-alien:c-string name) (sb-alien:int flags)))

(defun native-name (pathname)
  "The system's name, a string, for the file PATHNAME, which is absolute; NIL if there is none, as
for a wild pathname."
  (let ((name (and (not (wild-pathname-p pathname))
                   (sb-ext:native-namestring pathname))))
    ;; In C, a name ends at its first NUL, so that it would name another file.
    (and name (not (find (code-char 0) name)) name)))

(defun open-file (name)
  "A descriptor, an integer, from which the file NAME, a string, can be read; or minus an error
number.  Does not wait even if NAME is a pipe."
  (open-with-flags name (logior #o4000 #o400 +o-cloexec+))) ; O_NONBLOCK, O_NOCTTY

(defun file-facts (file)
  "Three values about FILE, an open descriptor: its size in octets, the universal time of its last
modification, and the nanoseconds of that second.  NIL if FILE is not a regular file, or if the
system call fails."
  (declare (type descriptor file))
  ;; struct statx of <linux/stat.h>, the same for every processor, in words of 64 bits
  (sb-alien:with-alien ((facts (array (sb-alien:signed 64) 32)))
    (when (and (zerop (system-call "statx" sb-alien:int (sb-alien:int file)
                                   (sb-alien:c-string "")
                                   (sb-alien:int #x1000) ; AT_EMPTY_PATH
                                   (sb-alien:unsigned-int #x243) ; type, mode, mtime, size
                                   ((* (array (sb-alien:signed 64) 32)) (sb-alien:addr facts))))
               ;; The mode, at octet 28; a regular file.
               (= #o100000 (logand #o170000 (ldb (byte 16 32) (sb-alien:deref facts 3)))))
      (values (sb-alien:deref facts 5)
              (+ (encode-universal-time 0 0 0 1 1 1970 0) (sb-alien:deref facts 14))
              (ldb (byte 32 0) (sb-alien:deref facts 15))))))

(defmacro transfer-file-octets (name)
  "Calls the C function NAME, pread or pwrite, until it has transferred all octets between FILE, a
descriptor, at POSITION, and OCTETS from START to END, variables.  True on success."
  `(sb-sys:with-pinned-objects (octets)
     (loop until (= start end)
           do (let ((count (system-call ,name sb-alien:long (sb-alien:int file)
                                        (sb-sys:system-area-pointer
                                         (sb-sys:sap+ (sb-sys:vector-sap octets) start))
                                        (sb-alien:unsigned-long (- end start))
                                        (sb-alien:long position))))
                (unless (plusp count)
                  (return nil))
                (incf start count)
                (incf position count))
           finally (return t))))

(defun read-file-octets (file position octets start end)
  "Reads FILE, a descriptor, from POSITION into OCTETS from START to END.  True if FILE had that
many octets."
  (declare (type descriptor file) (type octets octets) (type index position start end))
  (transfer-file-octets "pread"))

(defun write-file-octets (file position octets start end)
  "Writes OCTETS from START to END to FILE, a descriptor, at POSITION.  True if all were written."
  (declare (type descriptor file) (type octets octets) (type index position start end))
  (transfer-file-octets "pwrite"))

(defun send-file (descriptor file position end)
  "Writes FILE, a descriptor, from POSITION to END to the socket DESCRIPTOR, as many octets as it
accepts now.  Returns their number, 0 if FILE ends before, or minus an error number; see
WOULD-BLOCK-P."
  (declare (type descriptor descriptor file) (type index position end))
  (sb-alien:with-alien ((offset (sb-alien:signed 64) position))
    (system-call "sendfile" sb-alien:long
                 (sb-alien:int descriptor) (sb-alien:int file)
                 ((* (sb-alien:signed 64)) (sb-alien:addr offset))
                 (sb-alien:unsigned-long (- end position)))))

;;; Temporary files

(defun temporary-directory ()
  "The folder for temporary files, a string: TMPDIR of the environment, or /tmp."
  (let ((directory (sb-ext:posix-getenv "TMPDIR")))
    (if (plusp (length directory)) directory "/tmp")))

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

(defun private-folder ()
  "The pathname of a folder for temporary files that only this user's processes may use.  It lies in
the folder for temporary files of the environment, and is made if it does not exist.  Signals an
error if it cannot be made."
  (loop with self = (sb-unix:unix-getuid)
        with beginning = (format nil "~A/hunchentoot-~D" (temporary-directory) self)
        for number below 100
        for name = (format nil "~A~[~:;-~:*~D~]" beginning number)
        do (sb-unix:unix-mkdir name #o700)
           (multiple-value-bind (found-p device inode mode links user) (sb-unix:unix-lstat name)
             (declare (ignore device inode links))
             (when (and found-p
                        (= user self)
                        (= #o040000 (logand #o170077 mode))) ; a folder, of nobody else
               (return (sb-ext:parse-native-namestring name nil *default-pathname-defaults*
                                                       :as-directory t))))
        finally (error "No private folder like ~A can be made." beginning)))
