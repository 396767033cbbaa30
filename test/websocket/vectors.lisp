(in-package #:hunchentoot-recycling-taskmaster-test)

;;; Frames as data: vectors/README.md tells how they are written.

(def-suite* websocket-vectors :in websocket
  :description "What frames mean, whole, octet by octet and cut anywhere.")

(defparameter *frame-vector-directory*
  (merge-pathnames "vectors/" #.(namestring (or *compile-file-truename* *load-truename*)))
  "Where the files of vectors are.")

(defun read-frame-vectors (name)
  "The vectors in the file called NAME, a list of plists."
  (let ((*vector-directory* *frame-vector-directory*))
    (read-vectors name)))

(defun promised-event (promise)
  "PROMISE of a vector as an event that EQUALP compares."
  (destructuring-bind (kind &optional (value "") (reason "")) promise
    (ecase kind
      ((:text :binary :ping :pong) (list kind (payload-octets value)))
      (:close (list :close value (payload-octets reason)))
      (:failure promise)
      (:waiting promise))))

(defun frame-vector-octets (vector)
  (apply #'octets (mapcar #'described-octets (getf vector :input))))

(defparameter *most-single-octets*
  (if (search "SBCL" (lisp-implementation-type)) 1000000 3000)
  "The most octets that are tried one by one: where tests are evaluated, that takes long.")

(defun same-events-p (octets events dice &rest limits)
  "True if OCTETS mean EVENTS whole, octet by octet and cut by DICE."
  (and (equalp events (apply #'events-of-whole octets limits))
       (or (> (length octets) *most-single-octets*)
           (equalp events (apply #'events-of-octets octets limits)))
       (loop repeat (if (> (length octets) *most-single-octets*) 1 4)
             always (equalp events (apply #'events-in-pieces octets (random-ends dice (length octets))
                                          limits)))))

(defun check-frame-vector (vector dice)
  "Checks that VECTOR keeps what it promises, however its octets arrive."
  (let ((octets (frame-vector-octets vector))
        (limits (getf vector :limits))
        (promised (mapcar #'promised-event (getf vector :gives))))
    (is (equalp promised (apply #'events-of-whole octets limits)) "~A" (getf vector :name))
    (is (apply #'same-events-p octets promised dice limits) "~A, in pieces" (getf vector :name))))

(defun seeded-dice ()
  "Dice with a seed of now, which is printed."
  (let ((seed (fresh-seed)))
    (format t "~&; dice with seed ~D~%" seed)
    (make-dice seed)))

(defmacro test-frame-vectors (name file documentation)
  "Defines the test NAME: the vectors in FILE keep what they promise."
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
  "Groups 6.1 to 6.4: texts in fragments, and when they fail.")

(test-frame-vectors close-frames-are-judged-and-end-everything "closing"
  "Group 7: codes, reasons, and what comes behind.")

;;; Groups 6.5 to 6.23

(defun text-frames (octets)
  "OCTETS as a text in frames of one octet each, with an empty one before them and behind."
  (apply #'octets (make-frame 1 (octets) :fin nil)
         (append (loop for octet across octets
                       collect (make-frame 0 (as-octets (list octet)) :fin nil))
                 (list (make-frame 0 (octets))))))

(defun check-text (octets valid name dice)
  "Checks that OCTETS are a text, if they are VALID, or else a failure."
  (let ((events (list (if valid (list :text octets) '(:failure 1007 :text-not-utf-8)))))
    (is (same-events-p (make-frame 1 octets) events dice) "~A: ~S" name octets)
    (is (same-events-p (text-frames octets) events dice) "~A, in frames: ~S" name octets)
    ;; Behind and before what is gone through by groups.
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

(test every-rule-of-frames-is-broken-by-some-vector
  (let ((met (loop for file in '("framing" "control" "fragments" "texts" "closing")
                   append (loop for vector in (read-frame-vectors file)
                                append (loop for promise in (getf vector :gives)
                                             when (eq :failure (first promise))
                                               collect (third promise))))))
    (is (null (set-difference (mapcar #'first websocket::*failures*)
                              (cons :no-memory met)))))) ; which is no rule for clients

(test what-failures-say-goes-into-a-close-frame
  (loop for (name code nil reason) in websocket::*failures*
        do (is (websocket:close-code-p code) "~A" name)
           (is (<= (length reason) 123) "~A" name)
           (is (every (lambda (char) (< (char-code char) 128)) reason) "~A" name)))
