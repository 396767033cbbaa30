;;; What is answered, a field, and values of it, each in a handshake that is right otherwise.

(("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" nil)
 :connection "upgrade" "keep-alive, Upgrade" "keep-alive,UPGRADE ,x" ",upgrade,")
(("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" nil)
 :upgrade "WebSocket" "h2c, websocket" "WEBSOCKET")
(("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" nil)
 :sec-websocket-extensions "permessage-deflate; client_max_window_bits")
(("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" nil) :content-length "0")
((426 :upgrade :connection :sec-websocket-version)
 :connection nil "keep-alive" "upgrades")
((426 :upgrade :connection :sec-websocket-version)
 :upgrade nil "h2c" "websocket/13" "")
((426 :upgrade :connection :sec-websocket-version)
 :sec-websocket-version nil "8" "7" "0" "" "13, 8" "013" "14")
((400)
 :sec-websocket-key nil "" "dGhlIHNhbXBsZSBub25jZQ=" "dGhlIHNhbXBsZSBub25jZQ"
 "dGhlIHNhbXBsZSBub25jZQ===" "dGhlIHNhbXBsZSBub25jZQ==," "dGhlIHNhbXBsZSBub25jZQ--"
 "dGhlIHNhbXBsZSBub25jZQQ=" "dGhlIHNhbXBsZSBub25j\\Q==" "dGhlIHNhbXBsZSBub25j Q=="
 "dGhlIHNhbXBsZSBub25jZQ==,dGhlIHNhbXBsZSBub25jZQ==")
((400) :content-length "4" "10")
((400) :transfer-encoding "chunked")
((400) :sec-websocket-protocol "a b" "a, b/c" "\"a\"" "a;b")
