(in-package #:hunchentoot-recycling-taskmaster-test)

;;; Random octets: the messages that were sent arrive, and any octets give events and at most one
;;; failure.

(def-suite* websocket-fuzz :in websocket
  :description "Any octets, however they are split.")

(defun random-octets (dice size)
  (let ((octets (make-array size :element-type '(unsigned-byte 8))))
    (dotimes (i size octets)
      (setf (aref octets i) (roll dice 256)))))

(defun some-text (dice)
  "The octets of a text of some characters."
  (apply #'octets (loop repeat (roll dice 12)
                        collect (character-octets (ecase (roll dice 4)
                                                    ((0 1) (roll dice 128))
                                                    (2 (+ 128 (roll dice 2000)))
                                                    (3 (+ #xE000 (* 3 (roll dice 65536)))))))))

(defun random-size (dice)
  "A size, either small or near a limit of the protocol."
  (if (zerop (roll dice 8))
      (pick dice #(124 125 126 127 128 1000 65535 65536))
      (roll dice 40)))

(defun random-mask (dice)
  (list (roll dice 256) (roll dice 256) (roll dice 256) (roll dice 256)))

(defun random-control (dice)
  "A ping or a pong, and as second value its event."
  (let ((payload (random-octets dice (roll dice 126))) (ping-p (zerop (roll dice 2))))
    (values (make-frame (if ping-p 9 10) payload :mask (random-mask dice))
            (list (if ping-p :ping :pong) payload))))

(defun random-message (dice)
  "The octets of a message, in frames with others between them; and its events."
  (let* ((text-p (zerop (roll dice 2)))
         (payload (if text-p (some-text dice) (random-octets dice (random-size dice))))
         (frames '()) (events '()) (start 0) (opcode (if text-p 1 2)))
    (loop for last-p = (plusp (roll dice 3))
          for left = (- (length payload) start)
          for end = (+ start (if last-p left (roll dice (1+ (min 65000 left)))))
          do (push (make-frame opcode (subseq payload start end) :fin last-p
                                                                 :mask (random-mask dice))
                   frames)
             (setf start end opcode 0)
             (when (and (not last-p) (zerop (roll dice 3)))
               (multiple-value-bind (frame event) (random-control dice)
                 (push frame frames)
                 (push event events)))
          until last-p)
    (push (list (if text-p :text :binary) payload) events)
    (values (apply #'octets (reverse frames)) (reverse events))))

(defun random-conversation (dice)
  "The octets of some messages, and their events."
  (let ((parts '()) (events '()))
    (loop repeat (1+ (roll dice 4))
          do (multiple-value-bind (octets found)
                 (if (zerop (roll dice 4))
                     (multiple-value-bind (frame event) (random-control dice)
                       (values frame (list event)))
                     (random-message dice))
               (push octets parts)
               (setf events (append events found))))
    (when (zerop (roll dice 4))
      (push (make-frame 8 (close-payload 1000 "bye") :mask (random-mask dice)) parts)
      (setf events (append events (list (list :close 1000 (encode "bye"))))))
    (values (apply #'octets (reverse parts)) events)))

(defparameter *frame-fuzz-count*
  (if (slow-lisp-p) 100 3000)
  "The number of conversations that are tried.")

(test what-was-sent-arrives-however-it-is-cut
  (let ((dice (seeded-dice)))
    (is (null (loop repeat *frame-fuzz-count*
                    for state = (dice-state dice)
                    unless (multiple-value-bind (octets events) (random-conversation dice)
                             (same-events-p octets events dice))
                      collect state))
        "Dice states after which the promise is broken.")))

(defun strange-octets (dice)
  "Random octets, or octets that are nearly messages."
  (if (zerop (roll dice 4))
      (random-octets dice (roll dice 40))
      (let ((octets (random-conversation dice)))
        (loop repeat (1+ (roll dice 3))
              do (setf octets (if (< 65000 (length octets))
                                  (subseq octets 0 1000)
                                  (mutated dice octets))))
        octets)))

(defun frame-fuzz-failure (dice)
  "A description of the promise that the next strange octets of DICE break; NIL if they break none."
  (let ((state (dice-state dice)) (octets (strange-octets dice)))
    (handler-case
        (let ((events (events-of-whole octets :message-octets 70000)))
          (cond ((< 1 (count :failure events :key #'first)) (list :failures state octets))
                ((find-if (lambda (event) (member (first event) '(:failure :close)))
                          (butlast events))
                 (list :goes-on state octets))
                ((not (same-events-p octets events dice :message-octets 70000))
                 (list :differs state octets))))
      (error (condition)
        (list (princ-to-string condition) state octets)))))

(test any-octets-are-events-and-at-most-one-failure
  (let ((dice (seeded-dice)))
    (is (null (loop repeat (* 10 *frame-fuzz-count*)
                    for failure = (frame-fuzz-failure dice)
                    when failure
                      collect failure into failures
                    until (= 5 (length failures))
                    finally (return failures))))))
