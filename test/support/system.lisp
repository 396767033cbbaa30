(in-package #:hunchentoot-recycling-taskmaster-test)

;;; reader conditionals.
;;; CFFI comes with Hunchentoot, save where Hunchentoot is built without TLS.

(defmacro test (name &body body)
  "Defines the FiveAM test NAME, a symbol, of BODY, which may begin with a documentation string."
  ;; FiveAM has BODY evaluated when it is loaded.  ABCL would interpret it, so there it is a
  ;; function, which is compiled with the file.
  #-abcl `(fiveam:test ,name ,@body)
  #+abcl (multiple-value-bind (forms declarations documentation)
             (alexandria:parse-body body :documentation t)
           `(progn
              (defun ,name () ,@declarations ,@forms)
              (fiveam:test ,name
                ,@(and documentation (list documentation))
                (,name)))))

(defun copy-octets (target start source &optional (end (length source)))
  "Copies what SOURCE has up to END to TARGET from START on, as far as there is room; both are
vectors of octets."
  ;; ABCL's REPLACE is evaluated, which takes a microsecond for each octet.
  #-abcl (replace target source :start1 start :end2 end)
  #+abcl (let ((end (min end (- (length target) start))))
           (declare (type (simple-array (unsigned-byte 8) (*)) target source)
                    (type fixnum start end))
           (dotimes (index end target)
             (setf (aref target (+ start index)) (aref source index)))))

(defun descriptor-target (number)
  "What descriptor NUMBER of this process is open on, as Linux names it, such as
\"socket:[4711]\"; NIL when it is closed, or when the system doesn't tell."
  ;; On ABCL we don't ask: the virtual machine opens its archives when it likes.
  #+(and cffi linux (or sbcl ecl))
  (cffi:with-foreign-object (buffer :char 256)
    (let ((length (cffi:foreign-funcall "readlink"
                                        :string (format nil "/proc/self/fd/~D" number)
                                        :pointer buffer :size 256 :ssize)))
      (and (plusp length)
           (cffi:foreign-string-to-lisp buffer :count length))))
  #-(and cffi linux (or sbcl ecl))
  (progn number nil))

#+(and cffi (or sbcl ecl))
(defun socket-descriptor (socket)
  "The descriptor of SOCKET, a usocket."
  (sb-bsd-sockets:socket-file-descriptor (usocket:socket socket)))

(defun call-while-closed (number function)
  "Calls FUNCTION while the descriptor NUMBER of this process is closed, or what FUNCTION makes it."
  #+(and cffi linux sbcl)
  (let ((copy (cffi:foreign-funcall "dup" :int number :int)))
    (cffi:foreign-funcall "close" :int number :int)
    (unwind-protect (funcall function)
      (cffi:foreign-funcall "dup2" :int copy :int number :int)
      (cffi:foreign-funcall "close" :int copy :int)))
  #-(and cffi linux sbcl)
  (progn number (funcall function)))

(defun call-without-privilege (function)
  "The value of FUNCTION, called while the current thread may open only what anybody may; NIL where
that is not possible."
  #+(and cffi linux sbcl)
  (let ((before (cffi:foreign-funcall "setfsuid" :int 65534 :int)))
    (unwind-protect (and (= 65534 (cffi:foreign-funcall "setfsuid" :int -1 :int))
                         (funcall function))
      (cffi:foreign-funcall "setfsuid" :int before :int)))
  #-(and cffi linux sbcl)
  (progn function nil))

(defun change-mode (pathname mode)
  "Gives the file or folder PATHNAME the MODE, an integer."
  #+(and cffi linux sbcl)
  (cffi:foreign-funcall "chmod" :string (sb-ext:native-namestring pathname) :unsigned-int mode :int)
  #-(and cffi linux sbcl)
  (progn pathname mode))

(defun reset-when-closed (socket)
  "Arranges that closing SOCKET, a usocket, sends RST instead of FIN, by a linger time
of zero.  Returns true when that was possible."
  #+(and cffi linux (or sbcl ecl))
  (let ((sol-socket 1) (so-linger 13))
    (cffi:with-foreign-object (linger :int 2)
      (setf (cffi:mem-aref linger :int 0) 1
            (cffi:mem-aref linger :int 1) 0)
      (zerop (cffi:foreign-funcall "setsockopt" :int (socket-descriptor socket)
                                                :int sol-socket :int so-linger
                                                :pointer linger :int 8 :int))))
  #+abcl
  (progn (java:jcall "setSoLinger" (usocket:socket socket) t 0) t)
  #-(or abcl (and cffi linux (or sbcl ecl)))
  (progn socket nil))

(defun limit-receive-buffer (socket octets)
  "Lets SOCKET, a usocket, hold about as many OCTETS that were not read.  Returns true when that was
possible."
  #+(or sbcl ecl)
  (setf (sb-bsd-sockets:sockopt-receive-buffer (usocket:socket socket)) octets)
  #-(or sbcl ecl)
  (progn socket octets nil))

#+sbcl
(defun usocket-of (socket)
  "A usocket of SOCKET, a connected one of the Lisp's own."
  (make-instance 'usocket:stream-usocket
                 :socket socket
                 :stream (sb-bsd-sockets:socket-make-stream
                          socket :input t :output t :buffering :full :serve-events nil
                                 :element-type '(unsigned-byte 8))))

(defun path-socket (path)
  "A usocket connected to the Unix-domain socket PATH, where this Lisp can make one."
  #+sbcl
  (let ((socket (make-instance 'sb-bsd-sockets:local-socket :type :stream)))
    (handler-bind ((error (lambda (condition)
                            (declare (ignore condition))
                            (sb-bsd-sockets:socket-close socket))))
      (sb-bsd-sockets:socket-connect socket (uiop:native-namestring path)))
    (usocket-of socket))
  #-sbcl
  (error "This Lisp cannot connect to ~A." path))

(defun no-number ()
  "A float that is none, where this Lisp can make one; else something that is no number either."
  #+sbcl (sb-kernel:make-double-float #x7FF80000 0)
  #-sbcl :no-number)

(defun path-listener (path)
  "A usocket that listens on a new Unix-domain socket PATH, where this Lisp can make one."
  #+sbcl
  (let ((socket (make-instance 'sb-bsd-sockets:local-socket :type :stream)))
    (sb-bsd-sockets:socket-bind socket (uiop:native-namestring path))
    (sb-bsd-sockets:socket-listen socket 5)
    (make-instance 'usocket:stream-server-usocket :socket socket
                                                  :element-type '(unsigned-byte 8)))
  #-sbcl
  (error "This Lisp cannot listen on ~A." path))

(defmacro with-deadly-broken-pipes (() &body body)
  "Evaluates BODY, at whose begin SIGPIPE would end this process, where this Lisp can."
  #+sbcl `(unwind-protect
               (progn (sb-sys:enable-interrupt sb-unix:sigpipe :default)
                      ,@body)
            (sb-sys:enable-interrupt sb-unix:sigpipe :ignore))
  #-sbcl `(progn ,@body))

(defun file-mode (path)
  "The permissions of the file PATH, an integer, where this Lisp can tell."
  #+sbcl (logand #o777 (nth-value 3 (sb-unix:unix-stat (uiop:native-namestring path))))
  #-sbcl (progn path nil))

(defun process-number ()
  "The system's number of this process."
  #+cffi (cffi:foreign-funcall "getpid" :int)
  #-cffi nil)

(defun await-octets (socket seconds)
  "Waits up to SECONDS for octets on SOCKET, a usocket, or for its end; true when they came."
  ;; On ABCL, zero seconds would be no limit.
  (usocket:wait-for-input socket :timeout #+abcl (max 1/1000 seconds) #-abcl seconds
                                 :ready-only t))

(defparameter *debugger-hook-variable*
  ;; SBCL and ECL look at their own hook first.  SBCL's --disable-debugger sets it; ECL's
  ;; top level binds the standard one.
  #+sbcl 'sb-ext:*invoke-debugger-hook*
  #+ecl 'ext:*invoke-debugger-hook*
  #-(or sbcl ecl) '*debugger-hook*
  "The variable that tells what is called instead of the debugger.")

(defun call-with-debugger (debugger function)
  "Calls FUNCTION while in all threads DEBUGGER, a function of the condition, is called
where the Lisp would enter its debugger."
  (let ((old (symbol-value *debugger-hook-variable*)))
    (unwind-protect
         (progn (setf (symbol-value *debugger-hook-variable*)
                      (lambda (condition hook)
                        (declare (ignore hook))
                        (funcall debugger condition)))
                (funcall function))
      (setf (symbol-value *debugger-hook-variable*) old))))

(defun kill-this-thread ()
  "Ends the current thread from within, unwinding.  Bordeaux Threads refuses to."
  #+sbcl (sb-thread:abort-thread)
  #+ecl (mp:process-kill mp:*current-process*)
  ;; There the first form leaves a mark, and EVAL looks at it.
  #+abcl (progn (threads:destroy-thread (threads:current-thread)) (eval nil))
  #-(or sbcl ecl abcl) (error "This Lisp's threads cannot end themselves."))

(defun why-accepting-threads-survive ()
  "Why here nobody can destroy a thread that waits in accept, as a sentence; NIL when one can."
  #+abcl "ABCL can end a thread that waits in accept only by closing the listener for all."
  #-abcl nil)

(defun fresh-seed ()
  "A seed for a random test, which prints it: another one every second."
  (mod (get-universal-time) (expt 2 32)))

(defun seeded-state (seed)
  "A random state that depends on SEED, an integer, alone, where the Lisp can make one."
  #+sbcl (sb-ext:seed-random-state seed)
  #-sbcl (let ((state (make-random-state nil)))
           (loop repeat (mod seed 1000) do (random 2 state))
           state))

(defun lisp-runtime ()
  "The file of the program that starts saved cores of this Lisp, a string; NIL where there is none."
  #+sbcl (uiop:native-namestring sb-ext:*runtime-pathname*)
  #-sbcl nil)                           ; or the documentation would be the value

(defun descriptor-limit ()
  "How many descriptors this process may have, an integer; 1024 where the system does not tell."
  (or (ignore-errors
       (with-open-file (stream "/proc/self/limits")
         (loop for line = (read-line stream)
               when (uiop:string-prefix-p "Max open files" line)
                 return (parse-integer line :start 14 :junk-allowed t))))
      1024))

(defmacro with-environment ((&rest settings) &body body)
  "Evaluates BODY with environment variables set as SETTINGS, a list of (name value), say;
afterwards they have the values that they had, or the empty one."
  (let ((before (gensym "BEFORE")))
    `(let ((,before (list ,@(loop for (name) in settings collect `(or (uiop:getenv ,name) "")))))
       (unwind-protect (progn (setf ,@(loop for (name value) in settings
                                            append `((uiop:getenv ,name) ,value)))
                              ,@body)
         (setf ,@(loop for (name) in settings append `((uiop:getenv ,name) (pop ,before))))))))

;;; Datagrams between processes: messages to a service manager

(defun open-datagram-socket (name)
  "A socket that gets datagrams sent to NAME, a string: a path, or @ and a name of the abstract
namespace; where this Lisp can make one."
  #+sbcl
  (let ((socket (if (char= #\@ (char name 0))
                    (make-instance 'sb-bsd-sockets:local-abstract-socket :type :datagram)
                    (make-instance 'sb-bsd-sockets:local-socket :type :datagram))))
    (setf (sb-bsd-sockets:non-blocking-mode socket) t)
    (sb-bsd-sockets:socket-bind socket (string-left-trim "@" name))
    socket)
  #-sbcl
  (error "This Lisp gets no datagrams for ~A." name))

(defun receive-datagram (socket)
  "The next datagram that has come to SOCKET, a string; NIL when there is none."
  #+sbcl
  (multiple-value-bind (octets length)
      (sb-bsd-sockets:socket-receive socket nil 4096 :element-type '(unsigned-byte 8))
    (and octets (sb-ext:octets-to-string octets :end length :external-format :utf-8)))
  #-sbcl
  (progn socket nil))

(defun close-datagram-socket (socket)
  #+sbcl (sb-bsd-sockets:socket-close socket)
  #-sbcl socket)

;;; Descriptors and threads, from proc(5)

(defmacro where-supported (&body body)
  "Evaluates BODY where connections can be parked."
  `(if (platform:readiness-supported-p)
       (progn ,@body)
       (skip "Connections are not parked here.")))

(defun descriptor-flags (descriptor)
  "The flags of DESCRIPTOR, including close-on-exec."
  (with-open-file (stream (format nil "/proc/self/fdinfo/~D" descriptor))
    (loop for line = (read-line stream)
          when (uiop:string-prefix-p "flags:" line)
            return (parse-integer line :start (length "flags:") :radix 8))))

(defun closed-on-exec-p (descriptor)
  (logtest #o2000000 (descriptor-flags descriptor)))
