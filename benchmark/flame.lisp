(in-package #:hunchentoot-recycling-taskmaster-benchmark)

;;;; Flame graphs.  A stack is a list of names, the outermost first.  Folded stacks
;;;; are the usual text form: names between semicolons, a space, a count.

(defun count-stacks (stacks)
  "STACKS, each once with its count: a list of lists of stack and count."
  (let ((counts (make-hash-table :test 'equal)))
    (dolist (stack stacks)
      (incf (gethash stack counts 0)))
    (loop for stack being the hash-keys of counts using (hash-value count)
          collect (list stack count))))

(defun write-folded (stream counted-stacks)
  "Write COUNTED-STACKS to STREAM as folded stacks."
  (loop for (stack count) in counted-stacks
        do (format stream "~{~a~^;~} ~d~%" stack count)))

;;; The tree

(defstruct frame
  "A function called NAME, in all stacks that are alike up to it: COUNT of them, and
what it called, its CHILDREN."
  name (count 0) (children '()))

(defun child (frame name)
  "The child of FRAME called NAME, made now if there is none."
  (or (find name (frame-children frame) :key #'frame-name :test #'string=)
      (first (push (make-frame :name name) (frame-children frame)))))

(defun frame-tree (counted-stacks)
  "The frame of all COUNTED-STACKS together."
  (let ((root (make-frame :name "all")))
    (loop for (stack count) in counted-stacks
          do (incf (frame-count root) count)
             (loop for name in stack
                   for frame = (child root name) then (child frame name)
                   do (incf (frame-count frame) count)))
    root))

(defun frame-height (frame)
  "The number of rows that FRAME and all above it take."
  (1+ (reduce #'max (frame-children frame) :key #'frame-height :initial-value 0)))

;;; The picture: called functions stand on their callers, as wide as their share

(defparameter *flame-width* 1400
  "Pixels of the whole picture.")

(defparameter *frame-height* 19
  "Pixels of a row.")

(defparameter *letter-width* 6.6
  "Pixels of a letter, about.")

(defparameter *frame-colors*
  '(("engine:" . "#ef5350") ("server:" . "#ff8a65") ("http:" . "#ffb74d") ("platform:" . "#ffd54f")
    ("ours:" . "#ba68c8") ("hunchentoot:" . "#64b5f6") ("foreign function" . "#90a4ae")
    ("sb-" . "#cfd8dc"))
  "The colour of a function by how its name begins: our layers warm, Hunchentoot blue,
what is below Lisp dark grey, SBCL light grey.  The first that fits counts.")

(defparameter *other-color* "#dce775"
  "The colour of all other functions.")

(defun names-p (beginning name)
  "Does NAME begin with BEGINNING, or hold a word that does, as the name of a method?"
  (let ((place (search beginning name)))
    (and place (or (zerop place) (find (char name (1- place)) "( ")))))

(defun frame-color (name)
  "The colour of the function called NAME."
  (or (cdr (find-if (lambda (entry) (names-p (car entry) name)) *frame-colors*))
      *other-color*))

(defun xml-text (text)
  "TEXT with the characters that mean something in XML replaced."
  (reduce (lambda (text replacement)
            (uiop:frob-substrings text (list (car replacement)) (cdr replacement)))
          '(("&" . "&amp;") ("<" . "&lt;") (">" . "&gt;") ("\"" . "&quot;"))
          :initial-value text))

(defun fitting (name width)
  "As much of NAME as fits into WIDTH pixels; empty where that says nothing."
  (let ((room (floor (- width 6) *letter-width*)))
    (cond ((< room 3) "")
          ((<= (length name) room) name)
          (t (format nil "~a.." (subseq name 0 (- room 2)))))))

(defun write-frame (stream frame x y scale total)
  "Write FRAME and what stands on it to STREAM as SVG, its left edge at X, its top at
Y, SCALE pixels for each of TOTAL samples."
  (let ((width (* scale (frame-count frame)))
        (name (frame-name frame)))
    (format stream "<g><title>~a: ~,1f %</title>~
                    <rect x='~,2f' y='~d' width='~,2f' height='~d' fill='~a' ~
                    stroke='#ffffff' stroke-width='0.5'/>~
                    <text x='~,2f' y='~d'>~a</text></g>~%"
            (xml-text name) (* 100 (/ (frame-count frame) total))
            x y width *frame-height* (frame-color name)
            (+ x 3) (+ y 14) (xml-text (fitting name width)))
    (loop for child in (sort (copy-list (frame-children frame)) #'string< :key #'frame-name)
          for left = x then (+ left previous-width)
          for previous-width = (* scale (frame-count child))
          ;; What is narrower than this can't be seen.
          when (> previous-width 0.4)
            do (write-frame stream child left (- y *frame-height*) scale total))))

(defun write-legend (stream)
  "Write to STREAM which colour is whose."
  (loop for (name . color) in (append *frame-colors* (list (cons "other" *other-color*)))
        for x from 10 by 140
        do (format stream "<rect x='~d' y='34' width='12' height='12' fill='~a'/>~
                           <text x='~d' y='44'>~a</text>~%"
                   x color (+ x 17) (string-right-trim ":" name))))

(defun write-flame-graph (stream title counted-stacks)
  "Write to STREAM a flame graph of COUNTED-STACKS, called TITLE, as SVG.  The name and
share of a function show when one points at it."
  (let* ((root (frame-tree counted-stacks))
         (total (max 1 (frame-count root)))
         (height (+ 60 (* *frame-height* (frame-height root)))))
    (format stream "<svg xmlns='http://www.w3.org/2000/svg' width='~d' height='~d' ~
                    font-family='DejaVu Sans Mono, monospace' font-size='11'>~%~
                    <rect width='100%' height='100%' fill='#ffffff'/>~%~
                    <text x='10' y='22' font-size='15'>~a</text>~%"
            *flame-width* height (xml-text title))
    (write-legend stream)
    (write-frame stream root 0 (- height *frame-height* 4) (/ *flame-width* total 1f0) total)
    (format stream "</svg>~%")))
