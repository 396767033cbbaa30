(in-package #:hunchentoot-recycling-taskmaster-test)

;;; Replies of Hunchentoot's front that come later.

(defun nth-reply (replies &optional (number 1))
  "The NUMBERth reply that handlers have recorded in REPLIES, when it is there."
  (eventually ("a deferred reply")
    (nth (1- number) (recorded replies))))

(defmacro serving-deferred ((replies &rest initargs) (&rest routes) &body body)
  "Evaluates BODY while *SERVER*, with INITARGS, defers the replies to requests for /, which are
recorded in REPLIES, a variable, and answers /word and ROUTES."
  `(let ((,replies (make-recorder)))
     (serving ,initargs
         (("/" (recycling:defer-reply (reply) (record ,replies reply)) "This is not sent.")
          ("/word" "word")
          ,@routes)
       ,@body)))

(defun complete (replies content &rest keys)
  "Completes the first reply of REPLIES, a recorder, as COMPLETE-REPLY does, and takes it out."
  (apply #'recycling:complete-reply (await-answer replies) content keys))

(defmacro serving-streams ((streams &rest options) (&rest initargs) &body body)
  "Evaluates BODY while *SERVER*, with INITARGS, answers / by streams, which are recorded in
STREAMS, a variable.  OPTIONS are those of START-STREAM, and :ON-ABANDON."
  `(let ((,streams (make-recorder)))
     (serving ,initargs
         (("/" (recycling:defer-reply (reply :on-abandon ,(getf options :on-abandon))
                 (record ,streams (recycling:start-stream
                                   reply ,@(uiop:remove-plist-key :on-abandon options)))))
          ("/word" "word"))
       ,@body)))

(defun asked-stream (connection streams &rest keys)
  "The stream by which a request for / on CONNECTION is answered, when its handler has returned."
  (apply #'send-request connection "/" keys)
  (prog1 (await-answer streams)
    (await-pending 1)))
