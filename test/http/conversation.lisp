(in-package #:hunchentoot-recycling-taskmaster-test)

;;; The events that the octets of one connection cause, however they are split.

(def-suite http
  :in all
  :description "HTTP/1.1 without I/O.")

(defstruct (conversation (:constructor make-conversation (limits)))
  "The server's side of one connection, up to the calls of handlers.  EVENTS has the events so far,
latest first: (:REQUEST . plist), and at the end (:REFUSED status refusal) or (:WAITING what
octets-kept).  Within a body, the last event has a further element, the plist of its request."
  limits
  (decoder nil)
  (request nil)
  (body '())
  (events '()))

(defun octet-text (octets)
  "A string of the characters whose codes are OCTETS."
  (map 'string #'code-char octets))

(defun head-plist (head)
  "A plist of all slots of HEAD."
  (list :method (http:head-method head) :uri (http:head-uri head)
        :protocol (http:head-protocol head)
        :headers (http:head-headers head) :host (http:head-host head)
        :framing (http:head-framing head) :keep-alive (http:head-keep-alive-p head)
        :asks-keep-alive (http:head-keep-alive-requested-p head)
        :upgrade (http:head-upgrade head)
        :expects-100 (http:head-expect-100-continue-p head)))

(defun take-head (conversation octets start end)
  "Continues with a head.  Returns the position after the octets that were used, and true if the
head is complete."
  (multiple-value-bind (head position)
      (http:parse-head octets start end (conversation-limits conversation))
    (when head
      (setf (conversation-request conversation) (head-plist head)
            (conversation-body conversation) '()
            (conversation-decoder conversation)
            (http:make-body-decoder (http:head-framing head)
                                    (conversation-limits conversation))))
    (values (or position start) (and head t))))

(defun take-body (conversation octets start end)
  "Continues with a body.  Returns the values of TAKE-HEAD."
  (let ((decoder (conversation-decoder conversation))
        (position start))
    (loop until (or (http:body-done-p decoder) (= position end))
          do (multiple-value-bind (from to next)
                 (http:decode-body decoder octets position end)
               (push (octet-text (subseq octets from to)) (conversation-body conversation))
               (when (= position next)  ; the rest of a line is to come
                 (return))
               (setf position next)))
    (when (http:body-done-p decoder)
      (push `(:request ,@(conversation-request conversation)
                       :body ,(body-so-far conversation))
            (conversation-events conversation))
      (setf (conversation-decoder conversation) nil))
    (values position (http:body-done-p decoder))))

(defun body-so-far (conversation)
  "The text of the current body as far as it was read."
  (apply #'concatenate 'string (reverse (conversation-body conversation))))

(defun take-octets (conversation octets start end)
  "Continues in OCTETS from START below END; returns the position from which octets are still
needed."
  (loop with done-p
        do (setf (values start done-p)
                 (if (conversation-decoder conversation)
                     (take-body conversation octets start end)
                     (take-head conversation octets start end)))
        while done-p
        finally (return start)))

(defun note-end (conversation kind what detail)
  "Adds the last event, of KIND, WHAT and DETAIL, to CONVERSATION."
  (push `(,kind ,what ,detail
                ,@(and (conversation-decoder conversation)
                       (list (conversation-request conversation))))
        (conversation-events conversation)))

(defun end-conversation (conversation kept)
  "Adds the last event to CONVERSATION: it waits, with KEPT, the octets that it could not use yet."
  (let ((end (length kept)))
    (cond ((conversation-decoder conversation)
           (note-end conversation :waiting (body-so-far conversation) end))
          ((< (http:request-start kept 0 end) end)
           (note-end conversation :waiting :head end))
          (t
           (note-end conversation :waiting :request 0)))))

(defun call-as-conversation (limits function)
  "The events of a conversation under LIMITS.  FUNCTION, called with the conversation, gives it its
octets."
  (let ((conversation (make-conversation limits)))
    (handler-case (end-conversation conversation (funcall function conversation))
      (http:protocol-error (refusal)
        (note-end conversation :refused (http:protocol-error-status refusal)
                  (http:protocol-error-refusal refusal))))
    (reverse (conversation-events conversation))))

(defun events-in-place (octets ends &optional (limits (http:make-limits)))
  "The events when OCTETS arrive up to each of ENDS, one after the other, in one buffer."
  (call-as-conversation limits
                        (lambda (conversation)
                          (let ((position 0))
                            (dolist (end ends (subseq octets position))
                              (setf position (take-octets conversation octets
                                                          position end)))))))

(defun events-moved (octets ends &optional (limits (http:make-limits)))
  "Like EVENTS-IN-PLACE, but at each arrival the kept octets move to another buffer, between other
octets."
  (call-as-conversation
   limits
   (lambda (conversation)
     (let ((position 0))
       (dolist (end ends (subseq octets position))
         (let* ((offset (mod (* 7 end) 13))
                (size (- end position))
                (buffer (make-array (+ offset size 5) :element-type '(unsigned-byte 8)
                                                      :initial-element 13)))
           (replace buffer octets :start1 offset :start2 position :end2 end)
           (let ((used (- (take-octets conversation buffer offset (+ offset size)) offset)))
             (fill buffer 10)           ; the parser must not use this buffer any more
             (incf position used))))))))

(defun events-whole (octets &optional (limits (http:make-limits)))
  "The events when OCTETS arrive at once."
  (events-in-place octets (list (length octets)) limits))

(defun all-ends (size)
  "The ends when SIZE octets arrive one by one."
  (loop for end from 1 to size collect end))

(defun events-by-octet (octets &optional (limits (http:make-limits)))
  "The events when OCTETS arrive one by one."
  (events-in-place octets (all-ends (length octets)) limits))
