;;; Lists of the lines of a body with the boundary b, and its events.

(("--b" "A: 1" "" "text" "--b--" "")
 (:head ("A: 1" "" "")) (:content "text") (:end) (:done))
;; Several parts: one without a head, one without content, one with neither.
(("--b" "" "one" "--b" "A: 1" "" "" "--b" "" "" "--b--" "")
 (:head ("" "")) (:content "one") (:end)
 (:head ("A: 1" "" "")) (:end)
 (:head ("" "")) (:end) (:done))
;; The empty line after the head is also the line end before the delimiter.
(("--b" "A: 1" "" "--b--" "") (:head ("A: 1" "" "")) (:end) (:done))
(("--b" "" "--b--" "") (:head ("" "")) (:end) (:done))
(("--b" "" "x" "--b" "A: 1" "" "--b--" "")
 (:head ("" "")) (:content "x") (:end) (:head ("A: 1" "" "")) (:end) (:done))
;; Text around the parts.
(("preamble" "more --b" "--b" "" "x" "--b--" "epilogue" "--b" "")
 (:head ("" "")) (:content "x") (:end) (:done))
(("" "--b" "" "x" "--b--  	" "") (:head ("" "")) (:content "x") (:end) (:done))
(("--b 	" "" "x" "--b--") (:head ("" "")) (:content "x") (:end) (:done))
(("--b--" "") (:done))
;; RFC 2046: it is sufficient that the boundary follows the line end.
(("--b" "" "x" "--bc" "" "y" "--b-" "" "z" "--b--d" "")
 (:head ("" "")) (:content "x") (:end) (:head ("" "")) (:content "y") (:end)
 (:head ("" "")) (:content "z") (:end) (:done))
;; Lines that resemble delimiters.
(("--b" "" "-" "--" "---b" " --b" "--a--b" "" "-b" "x--b--" "--b--" "")
 (:head ("" "")) (:content ("-" "--" "---b" " --b" "--a--b" "" "-b" "x--b--")) (:end) (:done))
(("--b" "" "" "" "" "--b--" "") (:head ("" "")) (:content ("" "" "")) (:end) (:done))
;; Incomplete bodies.
(("--b" "" "x" "--b") (:head ("" "")) (:content "x") (:end) (:waiting))
(("--b" "" "x" "-") (:head ("" "")) (:content "x") (:waiting))
(("--b" "A: 1") (:waiting))
(("no delimiter") (:waiting))
(() (:waiting))
