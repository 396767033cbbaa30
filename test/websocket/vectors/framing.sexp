;;; The sizes of messages, and the forms of their lengths.

(:name "1.1.1 an empty text" :rfc "5.6" :input ((:text "")) :gives ((:text "")))
(:name "1.1.2 a text of 125 octets" :rfc "5.2"
 :input ((:text (:times 125 "*"))) :gives ((:text (:times 125 "*"))))
(:name "1.1.3 a text of 126 octets" :rfc "5.2"
 :input ((:text (:times 126 "*"))) :gives ((:text (:times 126 "*"))))
(:name "1.1.4 a text of 127 octets" :rfc "5.2"
 :input ((:text (:times 127 "*"))) :gives ((:text (:times 127 "*"))))
(:name "1.1.5 a text of 128 octets" :rfc "5.2"
 :input ((:text (:times 128 "*"))) :gives ((:text (:times 128 "*"))))
(:name "1.1.6 a text of 65535 octets" :rfc "5.2"
 :input ((:text (:times 65535 "*"))) :gives ((:text (:times 65535 "*"))))
(:name "1.1.7, 1.1.8 a text of 65536 octets" :rfc "5.2"
 :input ((:text (:times 65536 "*"))) :gives ((:text (:times 65536 "*"))))
(:name "1.2.1 nothing in binary" :rfc "5.6" :input ((:binary "")) :gives ((:binary "")))
(:name "1.2.2 125 octets" :rfc "5.2"
 :input ((:binary (:times 125 (:hex "FE")))) :gives ((:binary (:times 125 (:hex "FE")))))
(:name "1.2.3 126 octets" :rfc "5.2"
 :input ((:binary (:times 126 (:hex "FE")))) :gives ((:binary (:times 126 (:hex "FE")))))
(:name "1.2.4 127 octets" :rfc "5.2"
 :input ((:binary (:times 127 (:hex "FE")))) :gives ((:binary (:times 127 (:hex "FE")))))
(:name "1.2.5 128 octets" :rfc "5.2"
 :input ((:binary (:times 128 (:hex "FE")))) :gives ((:binary (:times 128 (:hex "FE")))))
(:name "1.2.6 65535 octets" :rfc "5.2"
 :input ((:binary (:times 65535 (:hex "FE")))) :gives ((:binary (:times 65535 (:hex "FE")))))
(:name "1.2.7, 1.2.8 65536 octets" :rfc "5.2"
 :input ((:binary (:times 65536 (:hex "FE")))) :gives ((:binary (:times 65536 (:hex "FE")))))

(:name "messages one after the other" :rfc "5.2"
 :input ((:text "a") (:binary (:hex "00")) (:text "") (:text "b"))
 :gives ((:text "a") (:binary (:hex "00")) (:text "") (:text "b")))
(:name "a mask of zeros" :rfc "5.3"
 :input ((:text "Hello" :mask (0 0 0 0))) :gives ((:text "Hello")))
(:name "the RFC's masked text" :rfc "5.7"
 :input ((:octets "81 85 37 FA 21 3D 7F 9F 4D 51 58")) :gives ((:text "Hello")))
(:name "the RFC's text of a server" :rfc "5.7" :limits (:role :client)
 :input ((:octets "81 05 48 65 6C 6C 6F")) :gives ((:text "Hello")))
(:name "the RFC's fragments of a server" :rfc "5.7" :limits (:role :client)
 :input ((:octets "01 03 48 65 6C 80 02 6C 6F")) :gives ((:text "Hello")))
(:name "the RFC's ping and its pong" :rfc "5.7"
 :input ((:ping "Hello" :mask (1 2 3 4)) (:octets "8A 85 37 FA 21 3D 7F 9F 4D 51 58"))
 :gives ((:ping "Hello") (:pong "Hello")))

(:name "a frame of a client without mask" :rfc "5.1"
 :input ((:text "Hello" :mask nil)) :gives ((:failure 1002)))
(:name "a ping of a client without mask" :rfc "5.1"
 :input ((:text "Hello") (:ping "" :mask nil))
 :gives ((:text "Hello") (:failure 1002)))
(:name "a frame of a server with mask" :rfc "5.1" :limits (:role :client)
 :input ((:text "Hello")) :gives ((:failure 1002)))

(:name "0 in 2 octets" :rfc "5.2" :input ((:text "" :form 2))
 :gives ((:failure 1002)))
(:name "125 in 2 octets" :rfc "5.2"
 :input ((:text (:times 125 "*") :form 2)) :gives ((:failure 1002)))
(:name "126 in 8 octets" :rfc "5.2"
 :input ((:text (:times 126 "*") :form 8)) :gives ((:failure 1002)))
(:name "65535 in 8 octets" :rfc "5.2"
 :input ((:binary (:times 65535 "*") :form 8)) :gives ((:failure 1002)))
(:name "a length of 64 bits" :rfc "5.2"
 :input ((:octets "82 FF 80 00 00 00 00 00 00 00")) :gives ((:failure 1002)))
(:name "a length of 63 bits" :rfc "10.4"
 :input ((:octets "82 FF 7F FF FF FF FF FF FF FF")) :gives ((:failure 1009)))

(:name "a message as large as allowed" :rfc "10.4" :limits (:message-octets 4)
 :input ((:text "1234") (:text "12" :fin nil) (:more "34")) :gives ((:text "1234") (:text "1234")))
(:name "a message an octet larger" :rfc "10.4" :limits (:message-octets 4)
 :input ((:text "12345")) :gives ((:failure 1009)))
(:name "fragments an octet larger" :rfc "10.4" :limits (:message-octets 4)
 :input ((:text "12" :fin nil) (:more "345")) :gives ((:failure 1009)))
(:name "fragments of nothing after as much as allowed" :rfc "10.4" :limits (:message-octets 4)
 :input ((:text "1234" :fin nil) (:more "" :fin nil) (:more "")) :gives ((:text "1234")))
(:name "control frames are no messages" :rfc "10.4" :limits (:message-octets 4)
 :input ((:text "12" :fin nil) (:ping "12345") (:more "34") (:close 1000 "12345"))
 :gives ((:ping "12345") (:text "1234") (:close 1000 "12345")))
(:name "limits are for one message" :rfc "10.4" :limits (:message-octets 4)
 :input ((:again 5 (:binary "1" :fin nil) (:more "234")))
 :gives ((:binary "1234") (:binary "1234") (:binary "1234") (:binary "1234") (:binary "1234")))
(:name "a frame is refused as too large by its length" :rfc "10.4"
 :input ((:octets "81 FF 00 00 00 00 7F FF FF FF")) :gives ((:failure 1009)))

(:name "nothing at all" :rfc "5.2" :input () :gives ())
(:name "one octet" :rfc "5.2" :input ((:octets "81")) :gives ((:waiting)))
(:name "a head without its mask" :rfc "5.2" :input ((:octets "81 81 01 02 03")) :gives ((:waiting)))
(:name "a head" :rfc "5.2" :input ((:octets "81 81 01 02 03 04")) :gives ((:waiting)))
(:name "half a length" :rfc "5.2" :input ((:octets "81 FE 01")) :gives ((:waiting)))
(:name "half a message" :rfc "5.4" :input ((:text "a" :fin nil)) :gives ((:waiting)))
(:name "a ping within half a message" :rfc "5.4"
 :input ((:text "a" :fin nil) (:ping "")) :gives ((:ping "") (:waiting)))
