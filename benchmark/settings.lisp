(in-package #:hunchentoot-recycling-taskmaster-benchmark)

(defstruct settings
  "What one run of the benchmark does."
  (quick-p nil)
  (rivals '())
  (workloads '())
  (rounds 3)
  (seconds 3)                           ; of load in each round
  (fair-ms 2000)                        ; of the count of who is served
  (idle 10000))                         ; silent connections of the idle workloads

(defun setting (name)
  "What the environment says for NAME, or NIL: the make targets hand over their
variables that way, under names that begin with BENCH_."
  (let ((value (uiop:getenv (format nil "BENCH_~a" name))))
    (and value (plusp (length value)) value)))

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

(defun settings-from-environment ()
  "The SETTINGS for the make variables QUICK, SERVERS, WORKLOADS, ROUNDS, SECONDS
and IDLE.  QUICK changes the defaults; the others overrule them."
  (let ((quick-p (and (setting "QUICK") t))
        (servers (list-setting "SERVERS"))
        (workloads (list-setting "WORKLOADS")))
    (make-settings
     :quick-p quick-p
     :rivals (cond (servers (select-rivals servers))
                   (quick-p (remove-if-not #'rival-quick-p *rivals*))
                   (t *rivals*))
     :workloads (cond (workloads (select-workloads workloads))
                      (quick-p (mapcar #'find-workload *quick-workloads*))
                      (t *workloads*))
     :rounds (integer-setting "ROUNDS" (if quick-p 1 3))
     :seconds (integer-setting "SECONDS" (if quick-p 1 3))
     :fair-ms (if quick-p 500 2000)
     :idle (integer-setting "IDLE" 10000))))
