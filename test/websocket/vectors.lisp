(in-package #:hunchentoot-recycling-taskmaster-test)

;;; Frames as data; vectors/README.md describes their format.

(def-suite* websocket-vectors :in websocket
  :description "Frames and their events, whole, octet by octet and split anywhere.")

(defun read-frame-vectors (name)
  "The vectors in the file called NAME, a list of plists."
  (read-table (format nil "websocket/vectors/~A.sexp" name)))

(defun promised-event (promise)
  "PROMISE, of a vector, as an event that EQUALP can compare."
  (destructuring-bind (kind &optional (value "") (reason "")) promise
    (ecase kind
      ((:text :binary :ping :pong) (list kind (payload-octets value)))
      (:close (list :close value (payload-octets reason)))
      (:failure promise)
      (:waiting promise))))

(defun frame-vector-octets (vector)
  (apply #'octets (mapcar #'described-octets (getf vector :input))))

(defparameter *most-single-octets*
  (if (slow-lisp-p) 3000 1000000)
  "The maximum number of octets that are tried one by one, which takes long if tests are not
compiled.")

(defun same-events-p (octets events dice &rest limits)
  "True if OCTETS give EVENTS whole, octet by octet, and split at random by DICE."
  (and (equalp events (apply #'events-of-whole octets limits))
       (or (> (length octets) *most-single-octets*)
           (equalp events (apply #'events-of-octets octets limits)))
       (loop repeat (if (> (length octets) *most-single-octets*) 1 4)
             always (equalp events
                           (apply #'events-in-pieces octets (random-ends dice (length octets))
                                  limits)))))

(defun check-frame-vector (vector dice)
  "Checks that VECTOR keeps its promises, however its octets are split."
  (let ((octets (frame-vector-octets vector))
        (limits (getf vector :limits))
        (promised (mapcar #'promised-event (getf vector :gives))))
    (is (equalp promised (apply #'events-of-whole octets limits)) "~A" (getf vector :name))
    (is (apply #'same-events-p octets promised dice limits) "~A, in pieces" (getf vector :name))))

(defun seeded-dice ()
  "Dice with a new seed, which is printed."
  (let ((seed (fresh-seed)))
    (format t "~&; dice with seed ~D~%" seed)
    (make-dice seed)))

(defmacro test-frame-vectors (name file documentation)
  "Defines the test NAME: the vectors in FILE keep their promises."
  `(test ,name
     ,documentation
     (let ((dice (seeded-dice)))
       (dolist (vector (read-frame-vectors ,file))
         (check-frame-vector vector dice)))))

(test-frame-vectors messages-of-all-sizes-are-found "framing"
  "Groups 1 and 10: lengths, masks, limits.")

(test-frame-vectors control-frames-and-reserved-values-are-judged "control"
  "Groups 2, 3 and 4: pings, pongs, reserved bits and opcodes.")

(test-frame-vectors fragments-are-put-together "fragments"
  "Group 5: fragments, and control frames between them.")

(test-frame-vectors texts-are-utf-8-in-whatever-frames "texts"
  "Groups 6.1 to 6.4: texts in fragments.")

(test-frame-vectors close-frames-are-judged-and-end-everything "closing"
  "Group 7: codes, reasons, and octets after a close frame.")

;;; Groups 6.5 to 6.23

(test utf-8-is-told-from-what-is-none
  "Groups 6.5 to 6.23, in one frame and in two."
  (dolist (vector (read-frame-vectors "utf-8"))
    (dolist (hex (getf vector :octets))
      (let* ((octets (hex-octets hex)) (middle (floor (length octets) 2))
             (events (list (if (getf vector :valid) (list :text octets) '(:failure 1007)))))
        (is (equalp events (events-of-whole (make-frame 1 octets)))
            "~A: ~S" (getf vector :name) octets)
        (is (equalp events
                    (events-of-whole (octets (make-frame 1 (subseq octets 0 middle) :fin nil)
                                             (make-frame 0 (subseq octets middle)))))
            "~A, in frames: ~S" (getf vector :name) octets)))))
