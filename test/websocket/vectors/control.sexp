;;; Pings, pongs, reserved bits and reserved opcodes.

(:name "2.1 a ping" :rfc "5.5.2" :input ((:ping "")) :gives ((:ping "")))
(:name "2.2 a ping with a text" :rfc "5.5.2" :input ((:ping "Hello, world!"))
 :gives ((:ping "Hello, world!")))
(:name "2.3 a ping with octets that are not a text" :rfc "5.5.2"
 :input ((:ping (:hex "00 FF FE FD FC FB 00 FF")))
 :gives ((:ping (:hex "00 FF FE FD FC FB 00 FF"))))
(:name "2.4, 2.6 a ping with 125 octets" :rfc "5.5"
 :input ((:ping (:times 125 (:hex "FE")))) :gives ((:ping (:times 125 (:hex "FE")))))
(:name "2.5 a ping with 126 octets" :rfc "5.5"
 :input ((:ping (:times 126 (:hex "FE")))) :gives ((:failure 1002)))
(:name "2.7 a pong that nobody has asked for" :rfc "5.5.3" :input ((:pong "")) :gives ((:pong "")))
(:name "2.8 likewise with a text" :rfc "5.5.3" :input ((:pong "unasked"))
 :gives ((:pong "unasked")))
(:name "2.9 likewise, and a ping" :rfc "5.5.3"
 :input ((:pong "unasked") (:ping "asked")) :gives ((:pong "unasked") (:ping "asked")))
(:name "2.10, 2.11 ten pings" :rfc "5.5.2"
 :input ((:ping "0") (:ping "1") (:ping "2") (:ping "3") (:ping "4") (:ping "5") (:ping "6")
         (:ping "7") (:ping "8") (:ping "9"))
 :gives ((:ping "0") (:ping "1") (:ping "2") (:ping "3") (:ping "4") (:ping "5") (:ping "6")
         (:ping "7") (:ping "8") (:ping "9")))
(:name "a pong with 126 octets" :rfc "5.5"
 :input ((:pong (:times 126 "*"))) :gives ((:failure 1002)))
(:name "a ping with 65536 octets" :rfc "5.5"
 :input ((:ping (:times 65536 "*"))) :gives ((:failure 1002)))

(:name "3.1 a text with RSV3" :rfc "5.2" :input ((:text "a" :rsv 1))
 :gives ((:failure 1002)))
(:name "3.2 a text, then one with RSV2 and a ping" :rfc "5.2"
 :input ((:text "a") (:text "b" :rsv 2) (:ping ""))
 :gives ((:text "a") (:failure 1002)))
(:name "3.3 a text, then one with RSV2 and RSV3, and a ping" :rfc "5.2"
 :input ((:text "a") (:text "b" :rsv 3) (:ping ""))
 :gives ((:text "a") (:failure 1002)))
(:name "3.4 a text, then one with RSV1, and a ping" :rfc "5.2"
 :input ((:text "a") (:text "b" :rsv 4) (:ping ""))
 :gives ((:text "a") (:failure 1002)))
(:name "3.5 octets with RSV1 and RSV3" :rfc "5.2"
 :input ((:binary "a" :rsv 5)) :gives ((:failure 1002)))
(:name "3.6 a ping with RSV1 and RSV2" :rfc "5.2"
 :input ((:ping "a" :rsv 6)) :gives ((:failure 1002)))
(:name "3.7 close with all reserved bits" :rfc "5.2"
 :input ((:frame 8 "" :rsv 7)) :gives ((:failure 1002)))
(:name "a continuation with RSV1, as of a compressed message" :rfc "5.2"
 :input ((:text "a" :fin nil) (:more "b" :rsv 4)) :gives ((:failure 1002)))

(:name "4.1.1 opcode 3" :rfc "5.2" :input ((:frame 3 "")) :gives ((:failure 1002)))
(:name "4.1.2 opcode 4 with a payload" :rfc "5.2"
 :input ((:frame 4 "reserved")) :gives ((:failure 1002)))
(:name "4.1.3 opcode 5 after a text" :rfc "5.2"
 :input ((:text "a") (:frame 5 "") (:ping "")) :gives ((:text "a") (:failure 1002)))
(:name "4.1.4 opcode 6 with a payload after a text" :rfc "5.2"
 :input ((:text "a") (:frame 6 "reserved") (:ping ""))
 :gives ((:text "a") (:failure 1002)))
(:name "4.1.5 opcode 7 with a payload after a text" :rfc "5.2"
 :input ((:text "a") (:frame 7 "reserved") (:ping ""))
 :gives ((:text "a") (:failure 1002)))
(:name "4.2.1 opcode 11" :rfc "5.2" :input ((:frame 11 ""))
 :gives ((:failure 1002)))
(:name "4.2.2 opcode 12 with a payload" :rfc "5.2"
 :input ((:frame 12 "reserved")) :gives ((:failure 1002)))
(:name "4.2.3 opcode 13 after a text" :rfc "5.2"
 :input ((:text "a") (:frame 13 "") (:ping ""))
 :gives ((:text "a") (:failure 1002)))
(:name "4.2.4 opcode 14 with a payload after a text" :rfc "5.2"
 :input ((:text "a") (:frame 14 "reserved") (:ping ""))
 :gives ((:text "a") (:failure 1002)))
(:name "4.2.5 opcode 15 with a payload after a text" :rfc "5.2"
 :input ((:text "a") (:frame 15 "reserved") (:ping ""))
 :gives ((:text "a") (:failure 1002)))
