;;;; Arguments of listening that are refused where it can be special, as in arguments.sexp.

((:acceptor) (:address nil :listen-path) ("" 42) "a string or a pathname")
((:acceptor) (:listen-fd 3 :listen-path) ("/tmp/x") "LISTEN-FD")
((:acceptor) (:listen-path "/tmp/x" :listen-mode) ("600" #o1777) "#o660")
((:acceptor) :listen-fd (-1 "3" :launchd (:systemd) (:systemd :web)) ":SYSTEMD")
((:run) (:fd 3 :listen) ("/tmp/x") "FD")
((:run) :fd ("x" (:systemd)) ":SYSTEMD")
((:run) :listen-mode (-1) "#o777")
