;;; A parameter, a Content-Type, the part before the slash or NIL for any, and the value.

("charset" "text/plain; charset=utf-8" "text" "utf-8")
("charset" "TEXT/b;CHARSET=UTF-8 ;a=b" "text" "UTF-8")
("charset" "text/plain;	a=\"quoted; x\" ; charset=\"x y\"" "text" "x y")
("charset" "text/plain; a=\"e\\\"f\\\\\";charset=\"\"" "text" "")
("charset" "text/plain; charset=a; charset=b" nil "a")
("boundary" "multipart/form-data; charset=x; boundary=--1" nil "--1")
("charset" "application/json; charset=utf-8" "text" nil)
("charset" "text/plain; xcharset=utf-8" "text" nil)
("charset" "text/plain" "text" nil) ("charset" "text" nil nil) ("charset" "" nil nil)
("charset" "text/plain charset=x" "text" nil)
