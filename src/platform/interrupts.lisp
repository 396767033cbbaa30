(in-package #:hunchentoot-recycling-taskmaster.platform)

;;;; What an interrupt, or the destruction of a thread, must not cut in two.
;;;;
;;;; A program may interrupt or destroy any thread anywhere.  The price is what that thread does at
;;;; the moment, such as one connection, and nothing else: no lock stays taken, nothing that was
;;;; acquired is lost, and no count is wrong afterwards.  These forms guarantee it.
;;;;
;;;;   form               is for                              cut in two, would
;;;;   WITH-LOCK-BRIEFLY  slots that threads share            leave them half changed, or the lock
;;;;                                                          taken
;;;;   WITH-ACQUIRED      a resource that BODY needs          lose the resource
;;;;   SET-ACQUIRED       a resource that a place keeps       lose the resource
;;;;   WHEN-TAKEN         what one thread alone takes from    leave undone what no other thread does
;;;;                      a place, or becomes, and what it
;;;;                      owes for that
;;;;   UNINTERRUPTIBLY    other steps that belong together    send octets twice or never, or count
;;;;                                                          something twice or not at all
;;;;
;;;; The engine's AS-OWNER is WHEN-TAKEN for a connection.  A function that returns something it has
;;;; acquired cannot protect that itself: its caller uses one of these forms, and its docstring says
;;;; so.

(defmacro when-taken ((variable take) &body body)
  "Evaluates the form TAKE, and, if its value is true, BODY with VARIABLE bound to it.  Returns the
value of BODY, or NIL.  No interrupt comes in between."
  `(uninterruptibly
     (let ((,variable ,take))
       (when ,variable
         ,@body))))

(defmacro set-acquired (place acquire)
  "Sets PLACE to the value of the form ACQUIRE, and returns it.  No interrupt comes in between."
  `(uninterruptibly
     (setf ,place ,acquire)))
