;;; What a client gets of a file, "0123456789", or of its sibling "abcdefghij", if it accepts that:
;;; method, target, status and content; and the fields of the request, names and values by turns.  A
;;; list is the content of several parts; NIL stands for the page of an error.  {tag} is the tag of
;;; the file, {coded} that of the sibling; both have {date}.  /own has a tag and a type of the
;;; program's, /empty no octets.

;;; One range

(:get "/file" 200 "0123456789")
(:get "/file" 206 "0" "Range" "bytes=0-0")
(:get "/file" 206 "234" "Range" "Bytes=2-4")
(:get "/file" 206 "789" "Range" "bytes=7-")
(:get "/file" 206 "789" "Range" "bytes=-3")
(:get "/file" 206 "0123456789" "Range" "bytes=-20")
(:get "/file" 206 "0123456789" "Range" "bytes=00-000000000000000000000000009")
(:get "/file" 206 "12" "Range" "bytes= 1-2")
(:get "/file" 206 "12" "Range" "bytes=, 1-2 ,")
(:get "/file" 416 nil "Range" "bytes=10-")
(:get "/file" 416 nil "Range" "bytes=10-20")
(:get "/file" 416 nil "Range" "bytes=0-10")
(:get "/file" 416 nil "Range" "bytes=5-3")
(:get "/file" 416 nil "Range" "bytes=-0")
(:get "/empty" 200 "" "Range" "bytes=0-")
(:get "/empty" 200 "" "Range" "bytes=0-0,-1")

;;; Several, in their order; those that cannot be satisfied are dropped

(:get "/file" 206 ("01" "56789") "Range" "bytes=0-1,-5")
(:get "/file" 206 ("789" "0" "34") "Range" "bytes=7- ,	0-0,, 3-4")
(:get "/file" 206 ("01" "01") "Range" "bytes=0-1,0-1")
(:get "/file" 206 ("0" "89") "Range" "bytes=0-0,8-999")
(:get "/file" 206 ("0" "1") "Range" "bytes=10-,0-0,5-3,1-1,-0,10-11")
(:get "/file" 206 ("0" "1" "2" "3" "4" "5" "6" "7") "Range" "bytes=0-0,1-1,2-2,3-3,4-4,5-5,6-6,7-7")
(:get "/file" 206 ("0" "1" "2" "3" "4" "5" "6" "7")
 "Range" "bytes=0-0,99-,1-1,2-2,3-3,4-4,5-5,6-6,7-7")
(:get "/file" 206 "89" "Range" "bytes=10-11,8-999")
(:get "/file" 416 nil "Range" "bytes=10-11,-0")

;;; Too many, more than there is, and what is no range of octets

(:get "/file" 200 "0123456789" "Range" "bytes=0-0,1-1,2-2,3-3,4-4,5-5,6-6,7-7,8-8")
(:get "/file" 200 "0123456789" "Range" "bytes=0-5,4-8")
(:get "/file" 200 "0123456789" "Range" "bytes=0-,-1")
(:get "/file" 200 "0123456789" "Range" "bytes=1-2,x")
(:get "/file" 200 "0123456789" "Range" "bytes=1-2,4-5-6")
(:get "/file" 200 "0123456789" "Range" "bytes=-1-2")
(:get "/file" 200 "0123456789" "Range" "lines=1-2")
(:get "/file" 200 "0123456789" "Range" "bytes=")
(:get "/file" 200 "0123456789" "Range" "bytes=,")
(:get "/file" 200 "0123456789" "Range" "bytes=-")
(:get "/file" 200 "0123456789" "Range" "bytes=1")
(:get "/file" 200 "0123456789" "Range" "bytes")
(:get "/file" 200 "0123456789" "Range" "bytes=1 - 2")
(:get "/file" 200 "0123456789" "Range" "")
(:get "/file" 200 "0123456789" "Range" "bytes=a-b")
(:get "/file" 200 "0123456789" "Range" "bytes=+1-2")
(:head "/file" 200 "" "Range" "bytes=0-1,4-5")
(:post "/file" 200 "0123456789" "Range" "bytes=1-2")

;;; Conditions

(:get "/file" 304 "" "If-None-Match" "{tag}")
(:head "/file" 304 "" "If-None-Match" "{tag}")
(:get "/file" 304 "" "If-None-Match" "\"other\", W/{tag} ,\"third\"")
(:get "/file" 304 "" "If-None-Match" "*")
(:post "/file" 412 nil "If-None-Match" "*")
(:get "/file" 200 "0123456789" "If-None-Match" "\"other\"")
(:get "/file" 200 "0123456789" "If-None-Match" "{coded}")
(:get "/file" 304 "" "If-Modified-Since" "{date}")
(:head "/file" 304 "" "If-Modified-Since" "{date}")
(:post "/file" 200 "0123456789" "If-Modified-Since" "{date}")
(:get "/file" 200 "0123456789" "If-Modified-Since" "Thu, 02 Jan 2020 03:04:04 GMT")
(:get "/file" 200 "0123456789" "If-None-Match" "\"other\"" "If-Modified-Since" "{date}") ; 13.1.3
(:get "/file" 200 "0123456789" "If-Match" "\"other\",{tag}")
(:get "/file" 200 "0123456789" "If-Match" "*")
(:get "/file" 412 nil "If-Match" "\"other\"")
(:get "/file" 412 nil "If-Match" "W/{tag}")

;;; Both

(:get "/file" 206 ("0" "2") "Range" "bytes=0-0,2-2" "If-Range" "{tag}")
(:get "/file" 206 "0" "Range" "bytes=0-0" "If-Range" "{tag}")
(:get "/file" 200 "0123456789" "Range" "bytes=0-0,2-2" "If-Range" "\"other\"")
(:get "/file" 200 "0123456789" "Range" "bytes=0-0" "If-Range" "W/{tag}")
(:get "/file" 200 "0123456789" "Range" "bytes=0-0" "If-Range" "{date}")
(:get "/file" 200 "0123456789" "Range" "bytes=10-" "If-Range" "\"other\"")
(:get "/file" 304 "" "Range" "bytes=0-0,2-2" "If-None-Match" "{tag}")
(:get "/file" 304 "" "Range" "bytes=10-" "If-Modified-Since" "{date}")
(:get "/file" 206 ("0" "2") "Range" "bytes=0-0,2-2" "If-Match" "{tag}")
(:get "/file" 412 nil "Range" "bytes=0-0" "If-Match" "\"other\"")

;;; Of the sibling: a date does not say what octets are meant

(:get "/file" 206 "bcd" "Accept-Encoding" "br" "Range" "bytes=1-3" "If-Range" "{coded}")
(:get "/file" 206 ("a" "ij") "Accept-Encoding" "br" "Range" "bytes=0-0,-2")
(:get "/file" 200 "abcdefghij" "Accept-Encoding" "br" "Range" "bytes=1-3" "If-Range" "{tag}")
(:get "/file" 200 "abcdefghij" "Accept-Encoding" "br" "Range" "bytes=1-3" "If-Range" "{date}")
(:get "/file" 200 "abcdefghij" "Accept-Encoding" "br" "If-None-Match" "{tag}")
(:get "/file" 304 "" "Accept-Encoding" "br" "If-None-Match" "{coded}")
(:get "/file" 412 nil "Accept-Encoding" "br" "If-Match" "{tag}")
(:get "/file" 416 nil "Accept-Encoding" "br" "Range" "bytes=10-")

;;; With the program's own tag and type

(:get "/own" 200 "0123456789" "Accept-Encoding" "br")
(:get "/own" 206 ("0" "2") "Range" "bytes=0-0,2-2" "If-Range" "\"mine\"")
(:get "/own" 206 "0" "Range" "bytes=0-0" "If-Match" "\"mine\"")
(:get "/own" 200 "0123456789" "Range" "bytes=0-0" "If-Range" "{tag}")
(:get "/own" 304 "" "If-None-Match" "W/\"mine\"")
(:get "/own" 412 nil "If-Match" "{tag}")
(:get "/own" 416 nil "Range" "bytes=10-")
