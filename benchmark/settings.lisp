(in-package #:hunchentoot-recycling-taskmaster-benchmark)

(defstruct settings
  "What one run of the benchmark does.  COMMAND is what was typed for it, SET what that asks for:
:QUICK, :STANDARD or :FULL as they come, or a :SELECTION."
  (command "bench, called from Lisp")
  (set :selection)
  (rivals '())
  (workloads '())
  (rounds 5)
  (seconds 2)                           ; of load in each round
  (warm-seconds 2)                      ; of load on each server before the first round
  (fair-ms 1000)                        ; of the count of who is served, in each round
  (idle 10000))                         ; silent connections of the idle workloads

(defparameter *variables* '("QUICK" "FULL" "SERVERS" "WORKLOADS" "ROUNDS" "SECONDS" "IDLE")
  "The make variables that say what is to be measured.")

(defun setting (name)
  "What the environment says for NAME, or NIL: the make targets hand over their
variables that way, under names that begin with BENCH_."
  (let ((value (uiop:getenv (format nil "BENCH_~a" name))))
    (and value (plusp (length value)) value)))

(defun command-line ()
  "The command that the environment's settings come from."
  (format nil "make bench~:{ ~a=~a~}"
          (loop for name in *variables*
                for value = (setting name)
                when value
                  collect (list name (if (find #\Space value) (format nil "'~a'" value) value)))))

(defun list-setting (name)
  "The words of the setting NAME, between commas or spaces."
  (split (or (setting name) "") '(#\, #\Space)))

(defun integer-setting (name default)
  "The positive integer of the setting NAME, or DEFAULT when it is not given."
  (let* ((text (setting name))
         (value (if text (parse-integer text :junk-allowed t) default)))
    (if (and (integerp value) (plusp value))
        value
        (mistake "~a must be a positive integer, not ~a." name text))))

(defun select-rivals (names)
  "The rivals called NAMES, in the order of *RIVALS*.  An error for unknown names."
  (dolist (name names)
    (unless (find-rival name)
      (mistake "No server is called ~a.  There are:~{ ~a~}."
             name (mapcar #'rival-name *rivals*))))
  (remove-if-not (lambda (rival) (member (rival-name rival) names :test #'string=))
                 *rivals*))

(defun rivals-of-set (set)
  "The rivals of the run called SET: :QUICK, :STANDARD or :FULL."
  (remove-if-not (lambda (rival) (or (eq set :full) (member set (rival-sets rival))))
                 *rivals*))

(defun set-setting ()
  "The set of rivals and workloads that the settings QUICK and FULL name."
  (let ((quick-p (setting "QUICK"))
        (full-p (setting "FULL")))
    (when (and quick-p full-p)
      (mistake "A run is QUICK or FULL, not both."))
    (cond (quick-p :quick)
          (full-p :full)
          (t :standard))))

(defun settings-from-environment ()
  "The SETTINGS for the make variables *VARIABLES*.  QUICK and FULL name a set, without them it
is the standard one; the others take from all that there is."
  (let* ((set (set-setting))
         (quick-p (eq set :quick))
         (servers (list-setting "SERVERS"))
         (workloads (list-setting "WORKLOADS")))
    (make-settings
     :command (command-line)
     :set (if (some #'setting '("SERVERS" "WORKLOADS" "ROUNDS" "SECONDS" "IDLE")) :selection set)
     :rivals (if servers (select-rivals servers) (rivals-of-set set))
     :workloads (if workloads (select-workloads workloads) (workloads-of-set set))
     :rounds (integer-setting "ROUNDS" (if quick-p 1 5))
     :seconds (integer-setting "SECONDS" (if quick-p 1 2))
     :warm-seconds (if quick-p 1 2)
     :fair-ms (if quick-p 500 1000)
     :idle (integer-setting "IDLE" 10000))))
