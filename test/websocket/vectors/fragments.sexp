;;; Messages in several frames, and control frames between them.

(:name "5.1 a ping in two fragments" :rfc "5.5"
 :input ((:ping "a" :fin nil) (:more "b")) :gives ((:failure 1002)))
(:name "5.2 a pong in two fragments" :rfc "5.5"
 :input ((:pong "a" :fin nil) (:more "b")) :gives ((:failure 1002)))
(:name "close in two fragments" :rfc "5.5"
 :input ((:frame 8 (:hex "03") :fin nil) (:more (:hex "E8")))
 :gives ((:failure 1002)))
(:name "5.3, 5.4, 5.5 a text in two fragments" :rfc "5.4"
 :input ((:text "frag" :fin nil) (:more "ment")) :gives ((:text "fragment")))
(:name "5.6, 5.7, 5.8 a ping between two fragments" :rfc "5.4"
 :input ((:text "frag" :fin nil) (:ping "between") (:more "ment"))
 :gives ((:ping "between") (:text "fragment")))
(:name "5.9, 5.10, 5.11 a last continuation of nothing" :rfc "5.4"
 :input ((:more "of nothing") (:text "a")) :gives ((:failure 1002)))
(:name "5.12, 5.13, 5.14 a continuation of nothing" :rfc "5.4"
 :input ((:more "of nothing" :fin nil) (:text "a")) :gives ((:failure 1002)))
(:name "5.15 a continuation after a message" :rfc "5.4"
 :input ((:text "frag" :fin nil) (:more "ment") (:more "of nothing" :fin nil) (:text "a"))
 :gives ((:text "fragment") (:failure 1002)))
(:name "5.16 a continuation of nothing before each fragmented text" :rfc "5.4"
 :input ((:again 2 (:more "of nothing" :fin nil) (:text "frag" :fin nil) (:more "ment")))
 :gives ((:failure 1002)))
(:name "5.17 likewise, a last one" :rfc "5.4"
 :input ((:again 2 (:more "of nothing") (:text "frag" :fin nil) (:more "ment")))
 :gives ((:failure 1002)))
(:name "5.18 both fragments as texts" :rfc "5.4"
 :input ((:text "frag" :fin nil) (:text "ment")) :gives ((:failure 1002)))
(:name "octets within a text" :rfc "5.4"
 :input ((:text "frag" :fin nil) (:binary "ment" :fin nil))
 :gives ((:failure 1002)))
(:name "5.19, 5.20 five fragments with two pings" :rfc "5.4"
 :input ((:text "one" :fin nil) (:more "two" :fin nil) (:ping "first") (:more "three" :fin nil)
         (:more "four" :fin nil) (:ping "second") (:more "five"))
 :gives ((:ping "first") (:ping "second") (:text "onetwothreefourfive")))
(:name "every kind of control frame between fragments" :rfc "5.4"
 :input ((:binary (:hex "FF") :fin nil) (:pong "a") (:ping "") (:more (:hex "FE")) (:close 1001 ""))
 :gives ((:pong "a") (:ping "") (:binary (:hex "FF FE")) (:close 1001 "")))
(:name "fragments with masks of their own, which end within a mask" :rfc "5.3"
 :input ((:binary "12345" :mask (1 2 3 4) :fin nil) (:more "6789012" :mask (99 98 97 96) :fin nil)
         (:more "3" :mask (255 254 253 252)))
 :gives ((:binary "1234567890123")))
(:name "many fragments of one octet" :rfc "5.4"
 :input ((:text "" :fin nil) (:again 500 (:more "x" :fin nil)) (:more ""))
 :gives ((:text (:times 500 "x"))))
(:name "10.1.1 a text in frames of 1300 octets" :rfc "5.4"
 :input ((:text (:times 1300 "*") :fin nil) (:again 49 (:more (:times 1300 "*") :fin nil))
         (:more (:times 536 "*")))
 :gives ((:text (:times 65536 "*"))))
