;;;; Builds /build/server, a program with everything in it, from the library in library/ and
;;;; server.lisp.

(require "asdf")
(asdf:initialize-source-registry
 '(:source-registry (:directory "/build/library/") (:tree "/usr/share/common-lisp/source/")
   :ignore-inherited-configuration))
(dolist (system '("hunchentoot-recycling-taskmaster" "postmodern" "yason" "alexandria"))
  (asdf:load-system system))
(load "/build/server.lisp")
(sb-ext:save-lisp-and-die "/build/server" :executable t :save-runtime-options t
                                          :toplevel #'recycling-httparena:main)
