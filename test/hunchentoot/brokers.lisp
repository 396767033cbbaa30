(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* brokers :in acceptors
  :description "Channels whose messages a broker carries.")

(defclass fellow-broker (recycling:broker)
  ((fellows
    :initform '()
    :accessor fellows
    :documentation "The brokers to which it delivers.")
   (full-p
    :initform nil
    :accessor full-p))
  (:documentation "A broker whose engine is a list, in the place of other processes."))

(defmethod recycling:publish-message ((broker fellow-broker) name octets)
  (unless (full-p broker)
    (dolist (fellow (fellows broker) t)
      (recycling:deliver-message fellow name octets))))

(defun make-fellows (count)
  "COUNT brokers that deliver to each other and to themselves."
  (let ((brokers (loop repeat count collect (make-instance 'fellow-broker))))
    (dolist (broker brokers brokers)
      (setf (fellows broker) brokers))))

(defmacro serving-channels ((channels form) &body body)
  "Evaluates BODY with CHANNELS bound to the value of FORM, a list of channels, to which *SERVER*
subscribes the event streams that ask for /?number=0, 1 and so on."
  `(let ((,channels ,form))
     (serving () (("/" (let ((number (parse-integer (hunchentoot:get-parameter "number"))))
                         (recycling:defer-reply (reply)
                           (recycling:subscribe (nth number ,channels)
                                                (recycling:start-event-stream reply))))))
       ,@body)))

(defun subscribe-to (connection channels number)
  "Makes CONNECTION a subscriber of the NUMBERth of CHANNELS."
  (let* ((channel (nth number channels))
         (size (recycling:channel-size channel)))
    (send-request connection (format nil "/?number=~D" number))
    (eventually ("a subscriber") (< size (recycling:channel-size channel)))
    (read-head connection)))

(define-server-test (what-is-published-through-a-broker-reaches-all-channels-of-its-name
                     :needs :our-engine)
  (serving-channels (channels (loop for broker in (make-fellows 2)
                                    append (loop for name in '("news" "news" "sports")
                                                 collect (recycling:make-channel :name name
                                                                                 :broker broker))))
    (with-connections (connections 6)
      (loop for connection in connections
            for number from 0
            do (subscribe-to connection channels number))
      (is-true (recycling:publish (first channels) (format nil "Grüße,~%~C" (code-char 0))
                                  :event "=" :id 7 :retry 5000))
      (is-true (recycling:publish (sixth channels) "1:0"))
      (loop for connection in connections
            for channel in channels
            do (is (string= (if (string= "news" (recycling:channel-name channel))
                                (in-lines "event: =" "id: 7" "retry: 5000" "data: Grüße,"
                                          (format nil "data: ~C" (code-char 0)) "")
                                (in-lines "data: 1:0" ""))
                            (decode (read-chunk connection))))))))

(define-server-test (a-message-that-a-broker-does-not-take-is-refused-visibly :needs :our-engine)
  (let* ((broker (first (make-fellows 1)))
         (channel (recycling:make-channel :name "x" :broker broker)))
    (is-true (recycling:publish channel "x"))
    (setf (full-p broker) t)
    (is (null (recycling:publish channel "x")))
    (signals recycling:malformed-event (recycling:publish channel "x" :id (string #\Newline)))
    (signals type-error (recycling:make-channel :broker broker))))
