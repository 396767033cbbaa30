;;; Where we do not do as Hunchentoot's own acceptor does: :OURS and :STOCK say what each of them
;;; does, :WHY tells the reason.  README.md tells how to write an entry.

;;; Request line

(:name "white space in the request line"
 :ours "400 unless single spaces separate three parts."
 :stock "Hunchentoot splits at any white space; the rest is the version."
 :why "RFC 9112, section 3."
 :cases ("two spaces in the request line" "a space after the version" "a space in the target")
 :differs ((:status :any 400) (:connection :kept :closed)))
(:name "versions"
 :ours "400 for none, or a malformed one such as `http/1.1`; 505 for others than HTTP/1. HTTP/1.2
counts as HTTP/1.1."
 :stock "Hunchentoot serves a request without version. Before 1.3.0 it serves any version; since
then it refuses HTTP/1.2."
 :why "RFC 9110, sections 2.5 and 15.6.6; RFC 9112, section 2.3."
 :cases ("no version") :differs ((:status :any 400)))
(:name "versions"
 :unless other-versions-refused-p
 :cases ("version http/1.1" "version HTTP/2.0" "version HTTP/0.9" "version HTTP/1" "version HTTP/11"
         "version FTP/1.1")
 :differs ((:status :any 400) (:status :any 505) (:connection :kept :closed)))
(:name "versions"
 :if other-versions-refused-p
 :cases ("version http/1.1" "version HTTP/1" "version HTTP/11" "version FTP/1.1")
 :differs ((:status :any 400) (:connection :kept :closed)))
(:name "versions"
 :unless other-versions-refused-p
 :cases ("version HTTP/1.2")
 :differs ((:header "Connection" ("Close") ()) (:body (:containing ":HTTP/1.2"))
           (:connection :closed :kept)))
(:name "versions"
 :if other-versions-refused-p
 :cases ("version HTTP/1.2") :differs ((:status 505 200) (:connection :closed :kept)))
(:name "reason phrases"
 :ours "The server sends the phrase that is registered."
 :stock "Hunchentoot knows those of RFC 2616."
 :why "RFC 9110, section 15."
 :cases ("status 308 at /status*" "status 418 at /status*" "status 422 at /status*"
         "status 451 at /status*" "interim status 102*" "interim status 103*" "interim status 199*"
         "status 418 with own output" "status 444*" "status 499*" "status 599*" "status 600*"
         "status 999*" "redirect with 308" "redirect with 399")
 :differs ((:reason "No reason phrase known" :any)))
(:name "methods"
 :ours "`get` is not GET. A method that no program mentions is a string."
 :stock "In Hunchentoot `get` is GET. Before 1.3.0 unknown methods become keywords, for ever; since
then all but nine are refused."
 :why "RFC 9110, section 9.1."
 :cases ("method in lower case")
 :differs ((:body (:containing "(:GET)") (:containing "get")) (:header "Content-Length") (:log)))
(:name "methods"
 :unless unknown-methods-served-p
 :cases ("extension method *")
 :differs ((:status 400 200) (:connection :closed :kept)))
(:name "methods"
 :if unknown-methods-served-p
 :cases ("extension method NEVER-HEARD-OF")
 :differs ((:body) (:header "Content-Length") (:log)))
(:name "headers that no program mentions"
 :ours "Names are strings in upper case; `(header-in \"x-made-up\" request)` finds them. Repeated
headers are joined by a comma."
 :stock "In Hunchentoot names become keywords, for ever, before Chunga 1.1.9; since then repeated
headers are separate entries."
 :why "RFC 9110, section 5.2."
 :cases ("a field that no program mentions*")
 :differs ((:body :any (:containing "X-NEVER-HEARD-OF")) (:header "Content-Length") (:log)))
(:name "CONNECT"
 :ours "501, and the connection is closed."
 :stock "For Hunchentoot it is a method as any other."
 :why "RFC 9110, section 9.3.6."
 :cases ("method CONNECT")
 :differs ((:status 404 501) (:connection :kept :closed)))
(:name "targets"
 :ours "400 unless the target begins with a slash, is an http(s) URI, or `*` of OPTIONS; 400 for a
fragment. The host of a URI is the program's."
 :stock "Hunchentoot takes anything, and looks at the Host header only."
 :why "RFC 9112, sections 3.2 and 3.2.2."
 :cases ("target without slash" "target * of GET")
 :differs ((:status :any 400) (:connection :kept :closed)))
(:name "targets"
 :cases ("query a=b#c" "path /echo#fragment")
 :differs ((:status 200 400) (:status 404 400) (:connection :kept :closed)))
(:name "targets"
 :cases ("absolute target *")
 :differs ((:body) (:header "Content-Length") (:log)))
(:name "what a refused request is told"
 :ours "The reply names the rule that was broken, and has a length and a type."
 :stock "Hunchentoot sends a sentence without these."
 :why "RFC 9110, sections 8.3 and 15.5."
 :cases ("an octet above 127 in the target")
 :differs ((:header "Date" () :any) (:header "Content-Type" () :any)
           (:header "Content-Length" () :any) (:body)))
(:name "what a refused request is told"
 :if other-versions-refused-p
 :cases ("extension method *" "version HTTP/2.0" "version HTTP/0.9")
 :differs ((:header "Date" () :any) (:header "Content-Type" () :any)
           (:header "Content-Length" () :any) (:body) (:reason "Version not supported")))
(:name "empty lines before a request"
 :ours "The server ignores them."
 :stock "Hunchentoot answers 400."
 :why "RFC 9112, section 2.2."
 :cases ("an empty line before the request" "an empty line before the second request")
 :differs ((:status 400 200) (:connection :closed :kept)))

;;; Fields

(:name "malformed types of content"
 :ours "The content is no form, or one in the default charset."
 :stock "Hunchentoot answers 400."
 :why "A type says what content is, not whether it may come."
 :cases ("form of type " "form of type /" "form of type text/" "form of type a/b; c"
         "form of type a/b; c=\"d" "form of type multipart/form-data; boundary=")
 :differs ((:status 400 200)))
(:name "malformed fields"
 :ours "400."
 :stock "Hunchentoot takes folded lines, white space before the colon, empty names and controls."
 :why "RFC 9112, sections 2.2, 5.1 and 5.2."
 :cases ("a folded field" "a space before the colon" "a field without a name"
         "a field whose value is a control" "a line without a colon" "lines that end in LF alone")
 :differs ((:status 200 400) (:answers 0 1) (:connection :kept :closed)))
(:name "Host"
 :ours "400 for HTTP/1.1 without Host, more than one, or one that is no host."
 :stock "Hunchentoot takes anything, or nothing."
 :why "RFC 9112, section 3.2."
 :cases ("HTTP/1.1 without Host" "two Hosts" "Host a b" "Host a/b" "Host user@host"
         "Host localhost:x" "Host localhost:99999")
 :differs ((:status :any 400) (:connection :kept :closed)))
(:name "limits"
 :ours "414 beyond 16 KiB of request line (501 if the method alone is longer), 431 beyond 32 KiB of
head or 128 lines of fields. No parameters if a part of a form has a head of more than 16 KiB."
 :stock "Hunchentoot has none."
 :why "a client could fill memory."
 :cases ("very long target" "a very long field" "two hundred fields")
 :differs ((:status 200 414) (:status 200 431) (:connection :kept :closed)))
(:name "several Cookie fields"
 :ours "The server joins them by a semicolon; `cookies-in` is the same."
 :stock "Hunchentoot joins them by a comma."
 :why "RFC 9113, section 8.2.3."
 :cases ("two Cookie fields")
 :differs ((:body (:containing "a=b,c=d") (:containing "a=b; c=d")) (:header "Content-Length")
           (:log)))
(:name "close beside keep-alive in HTTP/1.0"
 :ours "The server closes the connection."
 :stock "Hunchentoot keeps it."
 :why "RFC 9112, section 9.3."
 :cases ("Connection close, keep-alive by HTTP/1.0" "Connection keep-alive, close by HTTP/1.0"
         "Connection keep-alive,close by HTTP/1.0")
 :differs ((:header "Connection" ("Keep-Alive") ("Close")) (:header "Keep-Alive" :any ())
           (:connection :kept :closed)))

;;; Content of requests

(:name "Content-Length"
 :ours "400 unless it is one number, and stands alone."
 :stock "Hunchentoot takes signs, several values, what is no number, and chunks beside it."
 :why "RFC 9112, section 6.1."
 :cases ("Content-Length +3" "Content-Length 3, 3" "Content-Length x" "Content-Length -1"
         "Content-Length " "two equal Content-Lengths" "Content-Length and chunks")
 :differs ((:status 200 400) (:connection :kept :closed) (:rest)))
(:name "transfer codings"
 :ours "400 for others than `chunked`, or chunks in HTTP/1.0; 501 for an unknown coding."
 :stock "Hunchentoot looks for `chunked` anywhere."
 :why "RFC 9112, sections 6.1 and 6.3."
 :cases ("transfer coding identity" "transfer coding gzip, chunked"
         "transfer coding chunked, chunked" "transfer coding , chunked" "chunks in HTTP/1.0")
 :differs ((:status 200 400) (:status 200 501) (:connection :kept :closed) (:rest)))
(:name "expectations"
 :ours "100 at once, in HTTP/1.1 and where content follows. 417 for any other expectation."
 :stock "Hunchentoot sends 100 always, and ignores others."
 :why "RFC 9110, section 10.1.1."
 :cases ("expecting 100 without a body" "expecting 100 in HTTP/1.0" "expecting nonsense"
         "expecting 100-continue, nonsense")
 :differs ((:answers 2 1) (:status 100 200) (:status :any 417)
           (:connection :kept :closed)))
(:name "content that the program does not read"
 :ours "The server keeps it until the reply has ended, and reads the next request behind it."
 :stock "In Hunchentoot it runs as the next request if the program asked for a stream."
 :why "content can smuggle requests."
 :cases ("a body that is not read" "a stream of chunks read oddly" "a body that is not read whole"
         "chunks at /stream-in-unread")
 :differs ((:rest :any "") (:connection :closed :kept) (:log)))
(:name "the end of a stream of content"
 :ours "A stream ends where the content does, also without content, and however often it is read."
 :stock "In Hunchentoot reading on waits for the read timeout, then gives 500."
 :why "RFC 9112, sections 6.3 and 7.1."
 :cases ("no body, want a stream") :differs ((:status 500 200)))
(:name "the end of a stream of content"
 :cases ("chunks at /stream-in-lines")
 :differs ((:status 500 200)))
(:name "extensions and trailers of chunks"
 :ours "The server ignores them."
 :stock "Hunchentoot warns of them; elsewhere than on SBCL it fails."
 :why "RFC 9112, section 7.1.1."
 :cases ("chunks with extensions and trailers at *" "chunks at /raw-and-parameters")
 :differs ((:messages :any ())))
(:name "extensions and trailers of chunks"
 :unless chunga-warns-p
 :cases ("chunks with extensions and trailers at *")
 :differs ((:answers 0 1) (:status 400 200) (:connection :closed :kept)))
(:name "Connection: close set by a program"
 :ours "The server closes the connection."
 :stock "Hunchentoot keeps it."
 :why "RFC 9112, section 9.6."
 :cases ("connection close of the program" "connection Close of the program"
         "connection x,%20close of the program" "connection close of the program, kept alive")
 :differs ((:connection :kept :closed) (:header "Keep-Alive")))
(:name "warnings about content"
 :ours "The log warns once of an unknown charset, and not where there is no content."
 :stock "Hunchentoot warns again when a handler asks for parameters."
 :why "only forms are looked at for parameters."
 :cases ("form of type text/plain; charset=nonsense" "no body and no length at /echo"
         "no body and no length at /form")
 :differs ((:messages)))
(:name "names of uploads"
 :ours "A backslash escapes a quote."
 :stock "Hunchentoot loses such names."
 :why "RFC 9110, section 5.6.4."
 :cases ("upload with name=\"f\"; filename=\"a\\\"b\"")
 :differs ((:header "Content-Length") (:body) (:log) (:messages)))
(:name "uploads without an end or a boundary"
 :ours "The server takes what is there, without a wait."
 :stock "Hunchentoot waits for the read timeout, or has no parameters."
 :why "RFC 2046, section 5.1.1."
 :unless forms-bounded-p
 :cases ("upload without its end")
 :differs ((:messages)))
(:name "uploads without an end or a boundary"
 :cases ("form of type multipart/form-data" "form of type multipart/form-data; boundary=absent")
 :differs ((:messages)))
(:name "uploads without an end or a boundary"
 :cases ("upload without its last line end")
 :differs ((:body) (:header "Content-Length") (:log) (:messages)))
(:name "parts that are no fields, elsewhere than on SBCL"
 :ours "The server drops them."
 :stock "Hunchentoot fails at a part without Content-Disposition."
 :why "RFC 7578, section 4.2."
 :unless platform:functions-can-be-wrapped-p
 :cases ("form with parts that are no fields")
 :at (:portable)
 :differs ((:status 400 200) (:body) (:header "Content-Length") (:log) (:messages)))
(:name "warnings about forms with files"
 :ours "The server reads the form without a word, and words an error in its own way."
 :stock "Hunchentoot warns of long boundaries, odd heads, and more on the line of a delimiter."
 :why "a client could fill the log."
 :cases ("form with a text that is not UTF-8" "form whose delimiters have more on their line"
         "form with odd heads" "form with a long boundary")
 :differs ((:messages)))
(:name "what follows an upload"
 :ours "The server drops it without a word."
 :stock "Hunchentoot warns of it in the log."
 :why "RFC 2046, section 5.1.1."
 :cases ("upload with stray octets")
 :differs ((:messages)))
(:name "octets of uploads, elsewhere than on SBCL"
 :ours "The server stores them as they were sent."
 :stock "Hunchentoot stores them as characters in the Lisp's default encoding."
 :why "files are octets."
 :if files-of-forms-changed-p
 :cases ("upload of text/plain at /upload" "upload of image/png at /upload"
         "upload of application/octet-stream at /upload" "upload of  at /upload"
         "form with files" "form with names and texts in UTF-8")
 :at (:portable)
 :differs ((:body) (:header "Content-Length") (:log)))
(:name "delimiters of uploads"
 :ours "A part ends only at the beginning of a line."
 :stock "In Hunchentoot it ends at two hyphens and the boundary anywhere."
 :why "RFC 2046, section 5.1.1."
 :cases ("upload with a delimiter within a line")
 :differs ((:body) (:header "Content-Length") (:log) (:messages)))

;;; Replies

(:name "1xx, 204 and 304"
 :ours "Such a reply has no content, Content-Length or transfer coding. After 1xx and 204 the
connection is kept; after a 101 it is the program's, and then closed."
 :stock "Up to 1.3.1 Hunchentoot sends these, and after a 101 reads on for the next request. Later
versions close the connection, and warn."
 :why "RFC 9110, sections 7.8 and 8.6."
 :unless bodies-of-bodyless-statuses-dropped-p
 :cases ("status 101 at /status" "status 204*" "status 304*" "interim status*"
         "kept for GET /status?x=204" "kept for GET /status?x=304" "chunks at /status?x=204"
         "text at /status?x=204" "unobserved, GET /status?x=204" "unobserved, GET /status?x=304"
         "overridden, GET /status?x=204" "traced, GET /status?x=204")
 :differs ((:header "Content-Length" :any ()) (:rest :any "") (:log) (:answers)))
(:name "1xx, 204 and 304"
 :unless bodies-of-bodyless-statuses-dropped-p
 :cases ("status 101 at /status")
 :differs ((:connection :kept :closed)))
(:name "1xx, 204 and 304"
 :cases ("status 101 at /status-nil" "status 204 at /status-nil" "interim status 100 at /status-nil"
         "interim status 102 at /status-nil" "interim status 103 at /status-nil"
         "interim status 199 at /status-nil" "status 204, aborted with nothing")
 :differs ((:header "Connection" ("Close") ()) (:connection :closed :kept)))
(:name "Transfer-Encoding set by a program"
 :ours "The server drops it, and answers 500; elsewhere than on SBCL only if the handler returns
the content."
 :stock "Hunchentoot sends it, beside Content-Length."
 :why "RFC 9112, section 6.1."
 :if platform:functions-can-be-wrapped-p
 :cases ("header :transfer-encoding at *")
 :differs ((:status 200 500)))
(:name "Transfer-Encoding set by a program"
 :unless platform:functions-can-be-wrapped-p
 :cases ("header :transfer-encoding at *")
 :differs ((:status 200 500) (:connection :closed :kept)))
(:name "ranges of files"
 :unless platform:functions-can-be-wrapped-p
 :cases ("range bytes=3-1 of /folder/small.txt")
 :differs ((:connection :kept :closed)))
(:name "1xx, 204 and 304"
 :if bodies-of-bodyless-statuses-dropped-p
 :cases ("status 101 at /status" "status 204*" "status 304*" "interim status*"
         "kept for GET /status?x=204" "kept for GET /status?x=304" "chunks at /status?x=204"
         "text at /status?x=204" "unobserved, GET /status?x=204" "unobserved, GET /status?x=304"
         "overridden, GET /status?x=204")
 :differs ((:header "Connection" ("Close") ())
           (:header "Content-Type" ("text/html") ("text/html; charset=utf-8"))
           (:header "Content-Type" ("text/plain") :any) (:connection :closed :kept) (:answers)
           (:messages :any ())))
(:name "errors after the head of a reply"
 :ours "The server closes the connection, without the last chunk."
 :stock "Hunchentoot ends the reply as if whole."
 :why "RFC 9112, section 8."
 :cases ("GET /own-failed" "GET /own-failed-chunked" "GET /own-failed by HTTP/1.0"
         "GET /own-failed-chunked by HTTP/1.1, and it stalls" "in the open, GET /own-failed"
         "overridden, GET /own-failed" "no chunks out, GET /own-failed")
 :differs ((:connection :kept :closed) (:answers 1 0)))
(:name "1xx, 204 and 304"
 :cases ("status 204 with own output" "status 304 with own output")
 :differs ((:header "Transfer-Encoding" ("chunked") ())))
(:name "content of another length than Content-Length says"
 :ours "The server sends no more than was announced. The handler gets an error, and the connection
is closed, also if less was written."
 :stock "Hunchentoot sends all; if it is less, the client waits."
 :why "RFC 9112, section 6.3."
 :cases ("GET /own-too-long")
 :differs ((:rest :any "") (:connection :kept :closed) (:messages () :any)))
(:name "header values that end a line"
 :ours "The server drops the header, and answers 500."
 :stock "Hunchentoot continues the value on a second line."
 :why "RFC 9112, section 5.2."
 :cases ("cookie value a%0Ab" "cookie value a%0D%0AX-Injected:%201" "header value 18"
         "header value 19" "in the open, GET /header-value?x=18"
         "redirect to /a%0D%0AX-Injected:%201" "type text/plain%0D%0AX-Injected:%201"
         "GET /own-bad-header" "HEAD /own-bad-header")
 :differs ((:status :any 500)))
(:name "header values and names that nobody may send"
 :ours "The server drops the header, and answers 500: for controls, names with spaces or colons,
and values beyond ISO 8859-1."
 :stock "Hunchentoot sends the first two as they are, and for the last half a head."
 :why "RFC 9110, section 5.5."
 :cases ("header value 20" "header value 21" "header  at /header" "header X:One at /header"
         "header X%20One at /header" "header  at /header-nil-content"
         "header X:One at /header-nil-content" "header X%20One at /header-nil-content")
 :differs ((:status 200 500)))
(:name "header values and names that nobody may send"
 :cases ("HEAD /header-value?x=14, and it stalls" "HEAD /cookie-beyond-latin-1, and it stalls"
         "GET /redirect?x=/%E2%82%AC by *" "GET /header-value?x=14 by *"
         "GET /cookie-beyond-latin-1 by *" "guarded, realm beyond Latin-1")
 :differs ((:answers 0 1) (:connection :closed :kept)))
(:name "vectors of what is no octet"
 :ours "The server answers 500."
 :stock "Hunchentoot closes the connection."
 :why "RFC 9110, section 15.6.1."
 :cases ("GET /vector-of-others by *")
 :differs ((:answers 0 1) (:connection :closed :kept)))
(:name "empty header values"
 :ours "The server sends them."
 :stock "Hunchentoot leaves out the line end, so that the next line becomes the value."
 :why "RFC 9110, section 5.5."
 :cases ("header value 15" "header :x-one set to nothing" "header :server set to nothing"
         "header :connection set to nothing" "GET /type?*"
         "GET /header?name=:content-type&value= by *")
 :differs ((:header "Content-Type" () :any) (:header "X-Value" :any (""))
           (:header "X-One" :any ("")) (:header "Server" :any ("")) (:header "Connection" :any (""))
           (:answers 0 1) (:connection :closed :kept)))
(:name "the header stream"
 :ours "It gets the fields of a head, repeated ones joined, names capitalised."
 :stock "In Hunchentoot it gets the lines as they come."
 :why "it is for debugging."
 :cases ("traced, GET*" "traced, HEAD*" "traced, POST*")
 :differs ((:trace (:containing "accept: b") (:containing "Accept: a,b"))))

;;; Files

(:name "entity tags, on SBCL under Linux"
 :ours "Files have one."
 :stock "Hunchentoot has none."
 :why "RFC 9110, section 8.8.3."
 :cases ("*")
 :differs ((:header "Etag" () :any) (:order (:containing "Accept-Ranges"))))
(:name "ranges of files"
 :ours "On SBCL under Linux, 416 for a range beyond the end or the wrong way round; the whole of an
empty file; Range of HEAD is ignored; `bytes` in any case; 206 for the last octets, and for several
ranges. Elsewhere a range the wrong way round closes the connection."
 :stock "Hunchentoot sends 206 of nothing or of a negative length, 206 to HEAD, 416 for an empty
file, and all to a client that asks for several ranges or for the last octets."
 :why "RFC 9110, section 14."
 :cases ("range by HEAD" "range bytes=0-0 of an empty file" "range bytes=0- of an empty file"
         "range bytes=300001- of a large file" "range Bytes=0-1 of /folder/small.txt"
         "range bytes=-3 of /folder/small.txt" "range bytes=0-1,3-4 of /folder/small.txt"
         "range bytes= 0-1 of /folder/small.txt"
         "range bytes=3-1 of /folder/small.txt" "range bytes=12- of /folder/small.txt")
 :differs ((:status 206 200) (:status 416 200) (:status 206 416) (:status 200 206) (:answers 0 1)))
(:name "ranges of files"
 :if platform:functions-can-be-wrapped-p
 :cases ("range bytes=0-12 of /folder/small.txt" "range bytes=0-99999999 of /folder/small.txt")
 :differs ((:header "Content-Length") (:header "Content-Type") (:body) (:log)))
