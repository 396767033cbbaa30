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

(defun text-frames (octets)
  "OCTETS as a text in frames of one octet each, between two empty frames."
  (apply #'octets (make-frame 1 (octets) :fin nil)
         (append (loop for octet across octets
                       collect (make-frame 0 (as-octets (list octet)) :fin nil))
                 (list (make-frame 0 (octets))))))

(defun check-text (octets valid name dice)
  "Checks that OCTETS give a text if VALID is true, else a failure."
  (let ((events (list (if valid (list :text octets) '(:failure 1007)))))
    (is (same-events-p (make-frame 1 octets) events dice) "~A: ~S" name octets)
    (is (same-events-p (text-frames octets) events dice) "~A, in frames: ~S" name octets)
    ;; After, and before, text that the decoder reads in groups.
    (let* ((around (encode (make-string 21 :initial-element #\a)))
           (octets (octets around octets around)))
      (is (same-events-p (make-frame 1 octets)
                         (if valid (list (list :text octets)) events)
                         dice)
          "~A, in a longer text" name))))

(test utf-8-is-told-from-what-is-none
  "Groups 6.5 to 6.23."
  (let ((dice (seeded-dice)))
    (dolist (vector (read-frame-vectors "utf-8"))
      (dolist (hex (getf vector :octets))
        (check-text (hex-octets hex) (getf vector :valid) (getf vector :name) dice)))))
