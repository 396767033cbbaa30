;;; Where we do not do as Hunchentoot's own acceptor does.  README.md tells how to write an entry;
;;; docs/differences.md shows the same table.

;;; Request line

(:name "white space in the request line"
 :stock "Splits it at any white space; the rest is the version."
 :ours "400 unless single spaces separate three parts."
 :why "RFC 9112, section 3: parties that split differently see different requests."
 :cases ("two spaces in the request line" "a space after the version" "a space in the target")
 :differs ((:status :any 400) (:connection :kept :closed)))
(:name "a request line without version"
 :stock "Serves it, before 1.3.0 as HTTP/0.9, then as HTTP/1.0."
 :ours "400."
 :why "RFC 9112, section 3: HTTP/0.9 is gone, and HTTP/1.0 names itself."
 :cases ("no version") :differs ((:status :any 400)))
(:name "other versions, before 1.3.0"
 :stock "Serves whatever is in the version's place."
 :ours "400 for what is no version, 505 for versions that are not HTTP/1."
 :why "RFC 9112, section 2.3, and RFC 9110, section 15.6.6; Hunchentoot 1.3.0 refuses them too."
 :unless other-versions-refused-p
 :cases ("version http/1.1" "version HTTP/2.0" "version HTTP/0.9" "version HTTP/1" "version HTTP/11"
         "version FTP/1.1")
 :differs ((:status :any 400) (:status :any 505) (:connection :kept :closed)))
(:name "a version that is none"
 :stock "505; but serves the name of the protocol in lower case."
 :ours "400."
 :why "RFC 9112, section 2.3: the name is case-sensitive, and there are two digits."
 :if other-versions-refused-p
 :cases ("version http/1.1" "version HTTP/1" "version HTTP/11" "version FTP/1.1")
 :differs ((:status :any 400) (:connection :kept :closed)))
(:name "HTTP/1.2"
 :stock "Before 1.3.0 the program sees :HTTP/1.2, and the connection is closed."
 :ours "It is HTTP/1.1."
 :why "RFC 9110, section 2.5: read a later minor version as the latest known one."
 :unless other-versions-refused-p
 :cases ("version HTTP/1.2")
 :differs ((:header "Connection" ("Close") ()) (:body (:containing ":HTTP/1.2")) (:connection :closed :kept)))
(:name "HTTP/1.2, since 1.3.0"
 :stock "505."
 :ours "It is HTTP/1.1."
 :why "RFC 9110, section 2.5: read a later minor version as the latest known one."
 :if other-versions-refused-p
 :cases ("version HTTP/1.2") :differs ((:status 505 200) (:connection :closed :kept)))
(:name "reason phrases"
 :stock "\"No reason phrase known\" for statuses that came after RFC 2616."
 :ours "The phrase that is registered."
 :why "RFC 9110, section 15, and the registry of HTTP status codes."
 :cases ("status 308 at /status" "status 418 at /status*" "status 422 at /status*"
         "status 451 at /status*" "interim status 102 at /status" "interim status 103 at /status"
         "status 418 with own output")
 :differs ((:reason "No reason phrase known" :any)))
(:name "methods in lower case"
 :stock "`get` is GET."
 :ours "`get` is another method: a string."
 :why "RFC 9110, section 9.1: methods are case-sensitive."
 :if unknown-methods-served-p
 :cases ("method in lower case")
 :differs ((:body (:containing "(:GET)") (:containing "get")) (:header "Content-Length") (:log)))
(:name "methods in lower case, since 1.3.0"
 :stock "`get` is GET."
 :ours "400, as for any method that Hunchentoot does not know."
 :why "RFC 9110, section 9.1: methods are case-sensitive."
 :unless unknown-methods-served-p
 :cases ("method in lower case")
 :differs ((:status 200 400) (:connection :kept :closed)))
(:name "methods that no program mentions"
 :stock "Become keywords, for ever; since 1.3.0 refused."
 :ours "Are strings; since 1.3.0 refused."
 :why "A client could fill memory."
 :if unknown-methods-served-p
 :cases ("extension method NEVER-HEARD-OF")
 :differs ((:body) (:header "Content-Length") (:log)))
(:name "names of headers that no program mentions, before Chunga 1.1.9"
 :stock "Become keywords, for ever."
 :ours "Stay strings in upper case. (Since Chunga 1.1.9 both keep the client's spelling.)"
 :why "A client could fill memory. `(header-in \"x-made-up\" request)` finds both."
 :unless recycling::chunga-keeps-spelling-p
 :cases ("a field that no program mentions*")
 :differs ((:body (:containing ":X-NEVER-HEARD-OF") (:containing "X-NEVER-HEARD-OF")) (:header "Content-Length") (:log)))
(:name "repeated headers that no program mentions, since Chunga 1.1.9"
 :stock "Are separate entries; `header-in` finds the first."
 :ours "Are one entry, joined by a comma, as all others."
 :why "RFC 9110, section 5.2: several fields of one name are as one with all values."
 :if recycling::chunga-keeps-spelling-p
 :cases ("a field that no program mentions, twice")
 :differs ((:body) (:header "Content-Length") (:log)))
(:name "CONNECT"
 :stock "Is a method as any other."
 :ours "501, and the connection is closed."
 :why "RFC 9110, section 9.3.6: what follows a 2xx is no HTTP."
 :cases ("method CONNECT")
 :differs ((:status 404 501) (:connection :kept :closed)))
(:name "targets of other forms"
 :stock "Anything is a target."
 :ours "400 unless it begins with a slash, is an http(s) URI, or `*` of OPTIONS."
 :why "RFC 9112, section 3.2."
 :cases ("target without slash" "target * of GET")
 :differs ((:status :any 400) (:connection :kept :closed)))
(:name "a fragment in a target"
 :stock "Makes it a part of path or query."
 :ours "400."
 :why "RFC 9112, section 3.2: no form of target has one."
 :cases ("query a=b#c" "path /echo#fragment")
 :differs ((:status 200 400) (:status 404 400) (:connection :kept :closed)))
(:name "the host of an absolute target"
 :stock "The program sees the Host header."
 :ours "The program sees the target's host."
 :why "RFC 9112, section 3.2.2: Host MUST be ignored."
 :cases ("absolute target *")
 :differs ((:body) (:header "Content-Length") (:log)))
(:name "what a refused request is told"
 :stock "A sentence without length and type."
 :ours "The rule that was broken, with both."
 :why "RFC 9110, sections 8.3 and 15.5."
 :cases ("an octet above 127 in the target")
 :differs ((:header "Date" () :any) (:header "Content-Type" () :any) (:header "Content-Length" () :any) (:body)))
(:name "what a refused request is told, since 1.3.0"
 :stock "A sentence without length and type."
 :ours "The rule that was broken, with both."
 :why "RFC 9110, sections 8.3 and 15.5."
 :if other-versions-refused-p
 :cases ("extension method *" "version HTTP/2.0" "version HTTP/0.9")
 :differs ((:header "Date" () :any) (:header "Content-Type" () :any) (:header "Content-Length" () :any) (:body)
           (:reason "Version not supported")))
(:name "empty lines before a request"
 :stock "400."
 :ours "Ignored."
 :why "RFC 9112, section 2.2."
 :cases ("an empty line before the request" "an empty line before the second request")
 :differs ((:status 400 200) (:connection :closed :kept)))

;;; Fields

(:name "malformed fields"
 :stock "Continues a field on lines that begin with white space; takes white space before the
 colon, empty names and controls; closes without an answer where there is no colon;
 waits after a line feed alone."
 :ours "400."
 :why "RFC 9112, sections 2.2, 5.1 and 5.2; RFC 9110, section 5.5: known ways to smuggle
 requests."
 :cases ("a folded field" "a space before the colon" "a field without a name"
         "a field whose value is a control" "a line without a colon" "lines that end in LF alone")
 :differs ((:status 200 400) (:answers 0 1) (:connection :kept :closed)))
(:name "Host"
 :stock "Anything will do, or nothing."
 :ours "400 for HTTP/1.1 without Host, more than one, or one that is no host."
 :why "RFC 9112, section 3.2: MUST."
 :cases ("HTTP/1.1 without Host" "two Hosts" "Host a b" "Host a/b" "Host user@host" "Host localhost:x"
         "Host localhost:99999")
 :differs ((:status :any 400) (:connection :kept :closed)))
(:name "limits"
 :stock "None for request line and header fields, also in parts of forms."
 :ours "414 beyond 16 KiB of request line (501 where the method alone is longer), 431 beyond 32 KiB of head or 128 lines of fields. No parameters
where a part of a form has a head of more than 16 KiB."
 :why "RFC 9112, section 3, and RFC 6585, section 5: a client could fill memory."
 :cases ("very long target" "a very long field" "two hundred fields")
 :differs ((:status 200 414) (:status 200 431) (:connection :kept :closed)))
(:name "several Cookie fields"
 :stock "Joined by a comma."
 :ours "Joined by a semicolon; cookies-in is the same."
 :why "RFC 9113, section 8.2.3."
 :cases ("two Cookie fields")
 :differs ((:body (:containing "a=b,c=d") (:containing "a=b; c=d")) (:header "Content-Length") (:log)))
(:name "close beside keep-alive in HTTP/1.0"
 :stock "Keeps the connection."
 :ours "Closes it."
 :why "RFC 9112, section 9.3: close comes first."
 :cases ("Connection close, keep-alive by HTTP/1.0" "Connection keep-alive, close by HTTP/1.0"
         "Connection keep-alive,close by HTTP/1.0")
 :differs ((:header "Connection" ("Keep-Alive") ("Close")) (:header "Keep-Alive" :any ())
           (:connection :kept :closed)))

;;; Bodies of requests

(:name "Content-Length"
 :stock "Takes signs, several values, and what is no number; ignores it beside chunks."
 :ours "400."
 :why "RFC 9110, section 8.6, and RFC 9112, section 6.1: known ways to smuggle requests."
 :cases ("Content-Length +3" "Content-Length 3, 3" "Content-Length x" "Content-Length -1" "Content-Length "
         "two equal Content-Lengths" "Content-Length and chunks")
 :differs ((:status 200 400) (:connection :kept :closed) (:rest)))
(:name "transfer codings"
 :stock "Looks for chunked anywhere; takes chunks in HTTP/1.0."
 :ours "400, or 501 for a coding that is not known."
 :why "RFC 9112, sections 6.1 and 6.3."
 :cases ("transfer coding identity" "transfer coding gzip, chunked" "transfer coding chunked, chunked"
         "transfer coding , chunked" "chunks in HTTP/1.0")
 :differs ((:status 200 400) (:status 200 501) (:connection :kept :closed) (:rest)))
(:name "expectations"
 :stock "100 whenever it is asked for; others are ignored."
 :ours "100 when the program asks for the body, in HTTP/1.1; when it does not, just its reply, and the
connection is closed; 417 for any other expectation."
 :why "RFC 9110, section 10.1.1: nobody should send what is not wanted."
 :cases ("expecting 100 without a body" "expecting 100 in HTTP/1.0" "expecting nonsense"
         "expecting 100-continue, nonsense" "expecting 100 at /untouched" "expecting 100 at /missing")
 :differs ((:answers 2 1) (:status 100 200) (:status 100 404) (:status :any 417) (:connection :kept :closed)))
(:name "a body that the program does not read"
 :stock "Runs as the next request if the program asked for a stream."
 :ours "Is dropped up to 256 KiB; beyond that, the connection is closed."
 :why "A defect: a body can smuggle requests."
 :cases ("a body that is not read" "a stream of chunks read oddly" "a body that is not read whole" "chunks at /stream-in-unread")
 :differs ((:rest :any "") (:connection :closed :kept) (:log)))
(:name "a stream of a request without a body"
 :stock "Waits for the read timeout, then 500."
 :ours "Ends at once."
 :why "A defect: RFC 9112, section 6.3: there is no body."
 :cases ("no body, want a stream") :differs ((:status 500 200)))
(:name "reading beyond the end of chunks"
 :stock "Waits for the read timeout, then 500: so does `read-line` in a loop."
 :ours "Is at the end, however often it is asked."
 :why "A defect: the last chunk is the end (RFC 9112, section 7.1)."
 :cases ("chunks at /stream-in-lines")
 :differs ((:status 500 200)))
(:name "warnings about chunks"
 :stock "Warns of chunk extensions and trailers, and of a body that was read already."
 :ours "Logs none."
 :why "RFC 9112, section 7.1.1: unknown extensions are ignored."
 :cases ("chunks with extensions and trailers at *" "chunks at /raw-and-parameters")
 :differs ((:messages :any ())))
(:name "chunk extensions, elsewhere than on SBCL"
 :stock "Fails: these Lisps cannot make Chunga's warning."
 :ours "Ignores them."
 :why "RFC 9112, section 7.1.1: unknown extensions are ignored."
 :unless chunga-warns-p
 :cases ("chunks with extensions and trailers at *")
 :differs ((:answers 0 1) (:status 400 200) (:connection :closed :kept)))
(:name "Connection: close set by a program"
 :stock "Says it, and keeps the connection."
 :ours "Says it, and closes the connection."
 :why "RFC 9112, section 9.6: a server that sends close closes; clients may wait."
 :cases ("connection close of the program" "connection Close of the program"
         "connection close of the program, kept alive")
 :differs ((:connection :kept :closed) (:header "Keep-Alive")))
(:name "unknown charsets"
 :stock "Are warned of again when parameters are asked for."
 :ours "Are warned of once."
 :why "Only forms are looked at for parameters."
 :cases ("form of type text/plain; charset=nonsense")
 :differs ((:messages)))
(:name "quotes in the names of uploads"
 :stock "Loses names of parts or files with an escaped quote."
 :ours "Takes a backslash for what it is."
 :why "RFC 9110, section 5.6.4: a backslash quotes the next character."
 :cases ("upload with name=\"f\"; filename=\"a\\\"b\"")
 :differs ((:header "Content-Length") (:body) (:log) (:messages)))
(:name "an upload whose end is missing"
 :stock "Before 1.3.0 waits for the read timeout."
 :ours "Takes what is there."
 :why "A defect: the length of the body is known."
 :unless forms-bounded-p
 :cases ("upload without its end")
 :differs ((:messages)))
(:name "an upload without a boundary"
 :stock "Waits for the read timeout."
 :ours "Takes what is there."
 :why "A defect: the length of the body is known."
 :cases ("form of type multipart/form-data" "form of type multipart/form-data; boundary=absent")
 :differs ((:messages)))
(:name "an upload whose last line end is missing"
 :stock "Has no parameters; before 1.3.0 waits for the read timeout first."
 :ours "Has its parameters."
 :why "RFC 2046, section 5.1.1: that line end is optional."
 :cases ("upload without its last line end")
 :differs ((:body) (:header "Content-Length") (:log) (:messages)))
(:name "octets of uploads, elsewhere than on SBCL"
 :stock "Stores them as characters in the Lisp's default encoding: in UTF-8, other octets."
 :ours "Stores what was sent."
 :why "A defect: files are octets."
 :if files-of-forms-changed-p
 :cases ("upload of text/plain at /upload" "upload of image/png at /upload"
         "upload of application/octet-stream at /upload" "upload of  at /upload")
 :at (:portable)
 :differs ((:body) (:header "Content-Length") (:log)))
(:name "delimiters of uploads"
 :stock "Ends a part at two hyphens and the boundary anywhere."
 :ours "Only at the beginning of a line."
 :why "RFC 2046, section 5.1.1."
 :cases ("upload with a delimiter within a line")
 :differs ((:body) (:header "Content-Length") (:log) (:messages)))

;;; Replies

(:name "statuses without a body"
 :stock "Up to 1.3.1 sends content and Content-Length with 1xx, 204 and 304."
 :ours "Sends neither."
 :why "RFC 9110, sections 8.6, 15.2, 15.3.5 and 15.4.5: the client takes the body for the next
 reply. So does Hunchentoot after 1.3.1."
 :unless bodies-of-bodyless-statuses-dropped-p
 :cases ("status 101 at /status" "status 204*" "status 304*" "interim status*" "kept for GET /status?x=204"
         "kept for GET /status?x=304" "chunks at /status?x=204" "text at /status?x=204"
         "unobserved, GET /status?x=204" "unobserved, GET /status?x=304" "overridden, GET /status?x=204")
 :differs ((:header "Content-Length" :any ()) (:rest :any "") (:log) (:answers)))
(:name "after a switch of protocols"
 :stock "Up to 1.3.1 reads on for the next request."
 :ours "Reads nothing more; closes when the program is done."
 :why "RFC 9110, section 7.8: what follows a 101 is the other protocol."
 :unless bodies-of-bodyless-statuses-dropped-p
 :cases ("status 101 at /status")
 :differs ((:connection :kept :closed)))
(:name "Transfer-Encoding set by a program, on SBCL"
 :stock "Sends it, beside Content-Length."
 :ours "Drops it, and answers 500."
 :why "RFC 9112, section 6.1: a client may see another end of the reply."
 :if platform:functions-can-be-wrapped-p
 :cases ("header :transfer-encoding at *")
 :differs ((:status 200 500) (:connection :closed :kept)))
(:name "Transfer-Encoding set by a program, elsewhere than on SBCL"
 :stock "Sends it, beside Content-Length."
 :ours "Drops it, and answers 500, where a handler returns the content."
 :why "RFC 9112, section 6.1: a client may see another end of the reply."
 :unless platform:functions-can-be-wrapped-p
 :cases ("header :transfer-encoding at *")
 :differs ((:status 200 500) (:connection :closed :kept)))
(:name "a range the wrong way round, elsewhere than on SBCL"
 :stock "206 of a negative length, and reads on."
 :ours "The same, but the connection is closed."
 :why "Nobody knows where such a reply ends."
 :unless platform:functions-can-be-wrapped-p
 :cases ("range bytes=3-1 of /folder/small.txt")
 :differs ((:connection :kept :closed)))
(:name "statuses without a body, after 1.3.1"
 :stock "Closes after 1xx and 204, and warns in the log."
 :ours "Keeps it without a warning; text has its charset even if not sent."
 :why "RFC 9112, section 6.3: such replies have no body."
 :if bodies-of-bodyless-statuses-dropped-p
 :cases ("status 101 at /status" "status 204*" "status 304*" "interim status*" "kept for GET /status?x=204"
         "kept for GET /status?x=304" "chunks at /status?x=204" "text at /status?x=204"
         "unobserved, GET /status?x=204" "unobserved, GET /status?x=304" "overridden, GET /status?x=204")
 :differs ((:header "Connection" ("Close") ()) (:header "Content-Type" ("text/html") ("text/html; charset=utf-8"))
           (:header "Content-Type" ("text/plain") :any) (:connection :closed :kept) (:answers) (:messages :any ())))
(:name "errors after the head of a reply was sent"
 :stock "Ends the reply as if whole, and keeps the connection."
 :ours "Closes the connection, without the last chunk."
 :why "RFC 9112, section 8: the client must not take a part for the whole."
 :cases ("GET /own-failed" "GET /own-failed-chunked" "GET /own-failed by HTTP/1.0"
         "GET /own-failed-chunked by HTTP/1.1, and it stalls" "in the open, GET /own-failed"
         "overridden, GET /own-failed" "no chunks out, GET /own-failed")
 :differs ((:connection :kept :closed) (:answers 1 0)))
(:name "statuses without a body, streamed"
 :stock "Sends a transfer coding, and what the handler writes, with 1xx, 204 and 304."
 :ours "Sends neither; after a 101 what the handler writes leaves as it is."
 :why "RFC 9112, section 6.1: MUST NOT with 1xx and 204."
 :cases ("status 204 with own output" "status 304 with own output")
 :differs ((:header "Transfer-Encoding" ("chunked") ())))
(:name "more octets than Content-Length says"
 :stock "Sends all, so that the rest begins the next reply."
 :ours "Sends as many as announced; the handler gets an error, and the connection is closed. So
 it is where fewer were written, for which Hunchentoot's clients wait."
 :why "RFC 9112, section 6.3: else the next reply may be misread."
 :cases ("GET /own-too-long")
 :differs ((:rest :any "") (:connection :kept :closed) (:messages () :any)))
(:name "header values that end a line"
 :stock "Continues the value on a second line."
 :ours "Puts a Tab in place of the line end."
 :why "RFC 9112, section 5.2: MUST NOT; white space means the same."
 :cases ("cookie value a%0Ab" "cookie value a%0D%0AX-Injected:%201" "header value 18" "header value 19"
         "in the open, GET /header-value?x=18" "redirect to /a%0D%0AX-Injected:%201"
         "type text/plain%0D%0AX-Injected:%201" "GET /own-bad-header" "HEAD /own-bad-header")
 :differs ((:header "X-Value") (:header "Set-Cookie") (:header "Location") (:header "Content-Type")))
(:name "header values and names that nobody may send"
 :stock "Sends controls, and names with spaces or colons, as they are."
 :ours "Drops the header, and answers 500."
 :why "RFC 9110, sections 5.1 and 5.5: a client may see another reply."
 :cases ("header value 20" "header value 21" "header  at /header" "header X:One at /header"
         "header X%20One at /header")
 :differs ((:status 200 500)))
(:name "header values beyond ISO 8859-1"
 :stock "Sends half a head, then closes."
 :ours "Drops the header, and answers 500."
 :why "A defect; RFC 9110, section 5.5: the program encodes such values."
 :cases ("HEAD /header-value?x=14, and it stalls" "HEAD /cookie-beyond-latin-1, and it stalls"
         "GET /redirect?x=/%E2%82%AC by *" "GET /header-value?x=14 by *" "GET /cookie-beyond-latin-1 by *"
         "guarded, realm beyond Latin-1")
 :differs ((:answers 0 1) (:connection :closed :kept)))
(:name "empty header values"
 :stock "Leaves out the line end, so that the next line becomes the value."
 :ours "Sends a line with an empty value."
 :why "A defect; RFC 9110, section 5.5, allows empty values."
 :cases ("header value 15" "header :x-one set to nothing" "header :server set to nothing"
         "header :connection set to nothing" "GET /type?*" "GET /header?name=:content-type&value= by *")
 :differs ((:header "Content-Type" () :any) (:header "X-Value" :any ("")) (:header "X-One" :any (""))
           (:header "Server" :any ("")) (:header "Connection" :any (""))
           (:answers 0 1) (:connection :closed :kept)))
(:name "the header stream"
 :stock "Gets the lines of a request's head as they come, and no body."
 :ours "Gets its fields, repeated ones joined, names capitalised."
 :why "It is for debugging; the lines are not kept."
 :cases ("traced, GET*" "traced, HEAD*" "traced, POST*")
 :differs ((:trace (:containing "accept: b") (:containing "Accept: a,b"))))
;;; Files

(:name "entity tags"
 :stock "None."
 :ours "Files have one; Content-Length stands elsewhere."
 :why "RFC 9110, section 8.8.3: for changes within a second."
 :cases ("*")
 :differs ((:header "Etag" () :any) (:order (:containing "Accept-Ranges"))))
(:name "ranges of files"
 :stock "206 of nothing for a range that begins at the end, of a negative length for one whose end comes before
its beginning, and to HEAD; 416 for any end beyond an empty file; knows `bytes` in lower case only."
 :ours "416 for ranges beyond the end and the wrong way round, and the whole of an empty file; Range of HEAD
is ignored; `bytes` in any case; with 416, Content-Range is `bytes */SIZE`."
 :why "RFC 9110, sections 14.1, 14.1.1, 14.2, 14.4 and 15.5.17."
 :cases ("range by HEAD" "range bytes=0-0 of an empty file" "range bytes=0- of an empty file"
         "range bytes=300001- of a large file" "range Bytes=0-1 of /folder/small.txt"
         "range bytes=3-1 of /folder/small.txt" "range bytes=12- of /folder/small.txt"
         "range bytes=0-12 of /folder/small.txt" "range bytes=0-99999999 of /folder/small.txt")
 :differs ((:header "Content-Range" ("bytes 0-11/12") ("bytes */12")) (:status 206 200) (:status 416 200) (:status 206 416) (:status 200 206) (:answers 0 1)))
