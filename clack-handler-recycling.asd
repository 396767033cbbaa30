;;;; The name by which Clack looked for a handler before June 2025.

(defsystem "clack-handler-recycling"
  :description "An older name of clack.handler.recycling: Clack's, before June 2025."
  :author "The hunchentoot-recycling-taskmaster maintainers"
  :version (:read-file-form "version.sexp")
  :license "BSD-2-Clause"
  :depends-on ("clack.handler.recycling"))
