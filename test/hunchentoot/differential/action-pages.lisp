(in-package #:hunchentoot-recycling-taskmaster-test)

;;; The handlers of the differential test that end otherwise than by returning a value, or
;;; write their reply themselves.

;;; Own output

(define-page "/own"
  (plain-text!)
  (write-parts (hunchentoot:send-headers) "one " "two"))
(define-page "/own-with-length"
  (setf (hunchentoot:content-length*) 7)
  (write-parts (hunchentoot:send-headers) "one " "two"))
(define-page "/own-too-long"
  (setf (hunchentoot:content-length*) 5)
  (write-parts (hunchentoot:send-headers) "one " "two"))
(define-page "/own-nothing" (hunchentoot:send-headers) nil)
(define-page "/own-and-value" (write-parts (hunchentoot:send-headers) "written") "returned")
(define-page "/own-bytes"
  (let ((stream (hunchentoot:send-headers)))
    (loop for octet across (test-octets 300) do (write-byte octet stream))))
(define-page "/own-long"
  (let ((stream (hunchentoot:send-headers)))
    (loop repeat 15 do (write-sequence (test-octets 10000) stream))))
(define-page "/own-long-with-length"
  (setf (hunchentoot:content-length*) 150000)
  (let ((stream (hunchentoot:send-headers)))
    (loop repeat 15 do (write-sequence (test-octets 10000) stream))))
(define-page "/own-characters"
  (plain-text!)
  (let ((stream (flexi-streams:make-flexi-stream (hunchentoot:send-headers)
                                                 :external-format :utf-8)))
    (format stream "~A~%~A" *letters* (hunchentoot:request-method*))
    (finish-output stream)))
(define-page "/own-status"
  (setf (hunchentoot:return-code*) (asked-number))
  (write-parts (hunchentoot:send-headers) "own"))
(define-page "/own-headers"
  (setf (hunchentoot:header-out :x-one) 1)
  (hunchentoot:set-cookie "a" :value "b")
  (write-parts (hunchentoot:send-headers) "own")
  (setf (hunchentoot:header-out :x-late) 1))
(define-page "/own-after-body"
  (write-parts (hunchentoot:send-headers)
               (shown (hunchentoot:raw-post-data :force-binary t))))
(define-page "/own-aborted"
  (write-parts (hunchentoot:send-headers) "own")
  (hunchentoot:abort-request-handler "aborted"))
(define-page "/own-failed"
  (setf (hunchentoot:content-length*) 3)
  (write-parts (hunchentoot:send-headers) "own")
  (error "After the whole body."))
(define-page "/own-failed-chunked"
  (write-parts (hunchentoot:send-headers) "own")
  (error "In the middle."))
(define-page "/own-bad-header"
  (setf (hunchentoot:header-out :x-value) (format nil "a~C~Cb: c" #\Return #\Newline))
  (write-parts (hunchentoot:send-headers) "own"))

(define-page "/own-odd"
  (setf (hunchentoot:content-length*) 12)
  (let ((stream (hunchentoot:send-headers)))
    (write-sequence (list 65 66) stream)
    (write-sequence (vector 67 68 69) stream :start 1)
    (write-sequence (octets "abcdef") stream :start 2 :end 4)
    (write-sequence (octets) stream)
    (write-byte 70 stream)
    (force-output stream)
    (write-sequence (octets (shown (open-stream-p stream) (output-stream-p stream)
                                   (equal '(unsigned-byte 8) (stream-element-type stream))))
                    stream)))
(define-page "/own-odd-chunks"
  (let ((stream (hunchentoot:send-headers)))
    (write-sequence (list 65 66) stream)
    (write-sequence (octets) stream)
    (write-byte 70 stream)
    (finish-output stream)
    (write-sequence (octets (shown (open-stream-p stream) (output-stream-p stream))) stream)))
(define-page "/own-closed"
  (setf (hunchentoot:content-length*) 3)
  (let ((stream (hunchentoot:send-headers)))
    (write-sequence (octets "own") stream)
    (close stream)))
(define-page "/own-twice"
  (hunchentoot:send-headers)
  (shown (hunchentoot:send-headers)))
(define-page "/header-deleted"
  (setf (slot-value hunchentoot:*reply* 'hunchentoot:headers-out) '())
  "bare")
(define-page "/bound"
  (shown (and (boundp 'hunchentoot:*acceptor*) (boundp 'hunchentoot:*reply*)
              (boundp 'hunchentoot:*session*) t)
         (eq hunchentoot:*acceptor* (hunchentoot:request-acceptor hunchentoot:*request*))
         *print-base* (package-name *package*) *read-default-float-format*
         (eq *standard-output* *terminal-io*) (streamp *error-output*)))

;;; Ends

(define-page "/aborted" (hunchentoot:abort-request-handler "aborted") "not reached")
(define-page "/aborted-nil" (hunchentoot:abort-request-handler))
(define-page "/failed" (error "It <failed> & \"ended\": ~A." *letters*))
(define-page "/failed-typed" (error 'type-error :datum 1 :expected-type 'string))
(define-page "/failed-unprintable" (error 'unprintable-error))
(define-page "/failed-after-headers-set"
  (setf (hunchentoot:header-out :x-kept) "kept"
        (hunchentoot:content-type*) "application/json"
        (hunchentoot:return-code*) 201)
  (hunchentoot:set-cookie "a" :value "b")
  (error "It failed."))
(define-page "/warned" (warn "A warning.") "warned")
(define-page "/signalled" (signal 'condition) "signalled")
(define-page "/handled" (handler-case (error "Inside.") (error () "handled")))
(define-page "/logged" (hunchentoot:log-message* :info "A message: ~A" 1) "logged")

(define-condition unprintable-error (error) ()
  (:report (lambda (condition stream)
             (declare (ignore condition stream))
             (error "A report that fails."))))

(define-page "/redirect"
  (hunchentoot:redirect (asked)))
(define-page "/redirect-elsewhere"
  (hunchentoot:redirect "/there" :host "example.org" :port 8080 :protocol :https :code 301))
(define-page "/redirect-port" (hunchentoot:redirect "/there" :port 81))
(define-page "/redirect-code"
  (hunchentoot:redirect "/there" :code (asked-number)))

;;; The connection

(define-page "/connection"
  (setf (hunchentoot:header-out :connection) (asked))
  "connected")
(define-page "/connection-nil"
  (setf (hunchentoot:header-out :connection) nil)
  "connected")

;;; Files

(defvar *documents* nil
  "The directory that the folder dispatcher serves.")

(defun write-documents (directory)
  "Fills DIRECTORY with files of several sizes and types."
  (write-file directory "small.txt" "a small file")
  (write-file directory "empty.txt")
  (write-file directory "page.html" "<html>é</html>")
  (write-file directory "image.png" (test-octets 3000))
  (write-file directory "middle.bin" (test-octets 16384))
  (write-file directory "large.bin" (test-octets 300001))
  (write-file directory "no-type" "no type")
  (write-file directory "some.unheard-of" "unheard of")
  (write-file directory "with space.txt" "with space")
  (write-file directory "sub/in.css" "a { }")
  (write-file directory "index.html" "the index")
  (write-file directory "errors/404.html"
              "<p>${script-name} ${hunchentoot-version} ${unknown} ${error}")
  (write-file directory "errors/500.html" "<p>${error}")
  directory)

(define-page "/file" (hunchentoot:handle-static-file (merge-pathnames "small.txt" *documents*)))
(define-page "/file-typed"
  (hunchentoot:handle-static-file (merge-pathnames "small.txt" *documents*) (asked)))
(define-page "/file-missing"
  (hunchentoot:handle-static-file (merge-pathnames "missing.txt" *documents*)))
(define-page "/file-with-headers"
  (setf (hunchentoot:header-out :cache-control) "max-age=60")
  (hunchentoot:set-cookie "a" :value "b")
  (hunchentoot:handle-static-file (merge-pathnames "large.bin" *documents*)))
(define-page "/file-in-latin-1"
  (set-external-format "latin-1")
  (hunchentoot:handle-static-file (merge-pathnames "page.html" *documents*)))

(defun page-dispatchers ()
  "The dispatch table of the differential test."
  (list 'dispatch-page
        (hunchentoot:create-folder-dispatcher-and-handler "/folder/" *documents*)
        (hunchentoot:create-folder-dispatcher-and-handler "/typed-folder/" *documents*
                                                          "application/x-given")
        (hunchentoot:create-static-file-dispatcher-and-handler
         "/one.txt" (merge-pathnames "small.txt" *documents*))
        (hunchentoot:create-prefix-dispatcher "/prefix" (lambda () (facts)))
        (hunchentoot:create-regex-dispatcher "^/regex/[0-9]+$" (lambda () (facts)))
        'hunchentoot:dispatch-easy-handlers))
