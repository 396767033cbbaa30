(in-package #:hunchentoot-recycling-taskmaster-test)

;;; The memory that large messages use.

(def-suite* websocket-large :in websocket
  :description "The memory that decoders hold.")

(defun large-text (size)
  "SIZE octets of a text, some of them beyond ASCII."
  (let ((octets (make-array size :element-type '(unsigned-byte 8) :initial-element 97))
        (part (hex-octets "62 63 C2 B5 64 E2 82 AC 65 F0 9F 98 80")))
    (loop for start from 0 to (- size (length part)) by 1000
          do (copy-octets octets start part))
    octets))

(defun equal-pieces (size piece)
  "A list of the ends of pieces of PIECE octets into which SIZE octets are cut."
  (append (loop for end from piece below size by piece collect end)
          (list size)))

;;; Memory

(defun reservations (octets granted &rest limits)
  "The reservations of a decoder that gets OCTETS in pieces of 1000, until it has reserved GRANTED
octets.  Returns lists of a number of octets and true if they are for the whole message; and the
events of the decoder."
  (let ((asked '()) (left granted))
    (let ((events (apply #'events-in-pieces octets (equal-pieces (length octets) 1000)
                         :reserve (lambda (octets whole-p)
                                    (push (list octets whole-p) asked)
                                    (>= (decf left octets) 0))
                         limits)))
      (values (nreverse asked) events))))

(test memory-is-reserved-before-it-is-taken
  (let* ((text (large-text 10000))
         (frame (websocket:encode-frame :text text :mask 5)))
    (multiple-value-bind (asked events) (reservations frame 1000000)
      (is (equalp (list (list :text text)) events))
      (is (= 10000 (loop for (octets whole-p) in asked unless whole-p sum octets))
          "The decoder reserves memory for the payload as it arrives.")
      (is (loop for (octets whole-p) in (butlast asked) never whole-p))
      (is (eq t (second (first (last asked))))
          "At the end, the decoder reserves memory for the string.")
      (is (<= 9000 (first (first (last asked))) 40000)))
    (dolist (granted '(0 5000 9999 10001))
      (is (equalp '((:failure 1013)) (nth-value 1 (reservations frame granted)))
          "~D" granted)))
  (is (null (reservations (websocket:encode-frame :text (large-text 900) :mask 5) 0))
      "The message arrives in one piece."))
