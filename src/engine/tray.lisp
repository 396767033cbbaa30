(in-package #:hunchentoot-recycling-taskmaster.engine)

;;;; The tray: what the poller told to a worker that can do one thing at a time only.
;;;;
;;;; A wait costs a call of the system, whether it tells of one event or of several.  So a worker
;;;; that waits alone lets itself be told of several, follows the first, and leaves the others
;;;; here, where whoever is free next takes them before it waits, first come, first served.  In the
;;;; same way it leaves the listener's token when it has accepted one connection of perhaps many.  A
;;;; handler that blocks then holds up nobody: what lies here is no more its worker's than what lies
;;;; in the kernel.
;;;;
;;;;   while something lies here      nobody waits, or somebody who waits was summoned since
;;;;
;;;; which three rules keep: who waits has counted itself among those who do and then found the
;;;; tray empty; who puts something here looks afterwards whether somebody waits, and summons one;
;;;; and so does who takes something and leaves more.
;;;;
;;;; The tray is a short list that is replaced by compare-and-set, and never changed.  A cell that was
;;;; taken off does not come back, so a list that begins with the same cell is still the same.

(defconstant +helping+ 4
  "How many events a worker that nobody waits beside is told of at a time.  A worker that loses its
processor before it has laid them here holds them up, so more make the slowest answers slower.")

(defun take-from-tray (engine)
  "A token that lies on the tray of ENGINE, and is the caller's now; NIL when there is none."
  (loop for tokens = (engine-tray engine)
        while tokens
        when (compare-and-set (engine-tray engine) tokens (rest tokens))
          do (when (rest tokens)
               (summon-if-somebody-waits engine))
             (return (first tokens))))

(defun leave-on-tray (engine tokens)
  "Puts TOKENS, a list and not empty, behind what lies on the tray of ENGINE."
  (loop for before = (engine-tray engine)
        until (compare-and-set (engine-tray engine) before (append before tokens)))
  (summon-if-somebody-waits engine))

(defun summon-if-somebody-waits (engine)
  (when (and (somebody-waits-p engine)
             (compare-and-set (engine-summoned-p engine) nil t))
    (summon (engine-poller engine))))

(defun answer-summons (engine)
  "Called by whoever was told of the summons, before it looks at the tray of ENGINE."
  (compare-and-set (engine-summoned-p engine) t nil))
