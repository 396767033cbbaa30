;;;; The name by which Clack looked for a handler before June 2025.

(defsystem "clack-handler-recycling"
  :description "Another name of clack.handler.recycling."
  :author "The hunchentoot-recycling-taskmaster maintainers"
  :version "0.1.0"
  :license "BSD-2-Clause"
  :depends-on ("clack.handler.recycling"))
