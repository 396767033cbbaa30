;;; Close frames: their codes and reasons, and octets after them.

(:name "7.1.1 close after a text" :rfc "5.5.1"
 :input ((:text "Hello") (:close 1000)) :gives ((:text "Hello") (:close 1000 "")))
(:name "7.1.2 close twice" :rfc "5.5.1"
 :input ((:close 1000) (:close 1000)) :gives ((:close 1000 "")))
(:name "7.1.3 a ping after close" :rfc "5.5.1"
 :input ((:close 1000) (:ping "")) :gives ((:close 1000 "")))
(:name "7.1.4 a text after close" :rfc "5.5.1"
 :input ((:close 1000) (:text "Hello")) :gives ((:close 1000 "")))
(:name "7.1.5 close between two fragments" :rfc "5.5.1"
 :input ((:text "frag" :fin nil) (:close 1000) (:more "ment")) :gives ((:close 1000 "")))
(:name "7.1.6 close after a large text, and a ping" :rfc "5.5.1"
 :input ((:text (:times 262144 "*")) (:close 1000) (:ping ""))
 :gives ((:text (:times 262144 "*")) (:close 1000 "")))
(:name "octets that are not a frame, after close" :rfc "5.5.1"
 :input ((:close 1000) (:octets "FF FF FF FF")) :gives ((:close 1000 "")))
(:name "a text after a failure" :rfc "7.1.7"
 :input ((:frame 3 "") (:text "Hello") (:close 1000)) :gives ((:failure 1002)))

(:name "7.3.1 close without payload" :rfc "5.5.1" :input ((:close)) :gives ((:close 1005 "")))
(:name "7.3.2 close of one octet" :rfc "5.5.1"
 :input ((:frame 8 "a")) :gives ((:failure 1002)))
(:name "7.3.3 close with a code" :rfc "5.5.1" :input ((:close 1000)) :gives ((:close 1000 "")))
(:name "7.3.4 close with a reason" :rfc "5.5.1"
 :input ((:close 1000 "Hello World!")) :gives ((:close 1000 "Hello World!")))
(:name "7.3.5 the longest reason" :rfc "5.5"
 :input ((:close 1000 (:times 123 "*"))) :gives ((:close 1000 (:times 123 "*"))))
(:name "7.3.6 a longer reason" :rfc "5.5"
 :input ((:close 1000 (:times 124 "*"))) :gives ((:failure 1002)))
(:name "7.5.1 a reason that is not UTF-8" :rfc "5.5.1"
 :input ((:close 1000 (:hex "CE BA E1 BD B9 CF 83 CE BC CE B5 ED A0 80 65 64 69 74 65 64")))
 :gives ((:failure 1007)))
(:name "a reason that is cut within a character" :rfc "5.5.1"
 :input ((:close 1000 (:hex "CE BA CE"))) :gives ((:failure 1007)))
(:name "a reason beyond ASCII" :rfc "5.5.1"
 :input ((:close 1000 (:hex "F0 9F 98 80 CE BA")))
 :gives ((:close 1000 (:hex "F0 9F 98 80 CE BA"))))
(:name "a reason is not part of the text that it interrupts" :rfc "5.4"
 :input ((:text (:hex "CE") :fin nil) (:close 1000 "a")) :gives ((:close 1000 "a")))

(:name "7.7.1 1000" :rfc "7.4.1" :input ((:close 1000)) :gives ((:close 1000 "")))
(:name "7.7.2 1001" :rfc "7.4.1" :input ((:close 1001)) :gives ((:close 1001 "")))
(:name "7.7.3 1002" :rfc "7.4.1" :input ((:close 1002)) :gives ((:close 1002 "")))
(:name "7.7.4 1003" :rfc "7.4.1" :input ((:close 1003)) :gives ((:close 1003 "")))
(:name "7.7.5 1007" :rfc "7.4.1" :input ((:close 1007)) :gives ((:close 1007 "")))
(:name "7.7.6 1008" :rfc "7.4.1" :input ((:close 1008)) :gives ((:close 1008 "")))
(:name "7.7.7 1009" :rfc "7.4.1" :input ((:close 1009)) :gives ((:close 1009 "")))
(:name "7.7.8 1010" :rfc "7.4.1" :input ((:close 1010)) :gives ((:close 1010 "")))
(:name "7.7.9 1011" :rfc "7.4.1" :input ((:close 1011)) :gives ((:close 1011 "")))
(:name "7.7.10 3000" :rfc "7.4.2" :input ((:close 3000)) :gives ((:close 3000 "")))
(:name "7.7.11 3999" :rfc "7.4.2" :input ((:close 3999)) :gives ((:close 3999 "")))
(:name "7.7.12 4000" :rfc "7.4.2" :input ((:close 4000)) :gives ((:close 4000 "")))
(:name "7.7.13 4999" :rfc "7.4.2" :input ((:close 4999)) :gives ((:close 4999 "")))
(:name "1012, of the registry" :rfc "11.7" :input ((:close 1012)) :gives ((:close 1012 "")))
(:name "1014, of the registry" :rfc "11.7" :input ((:close 1014)) :gives ((:close 1014 "")))
(:name "7.9.1 0" :rfc "7.4.2" :input ((:close 0)) :gives ((:failure 1002)))
(:name "7.9.2 999" :rfc "7.4.2" :input ((:close 999)) :gives ((:failure 1002)))
(:name "7.9.3 1004" :rfc "7.4.1" :input ((:close 1004))
 :gives ((:failure 1002)))
(:name "7.9.4 1005" :rfc "7.4.1" :input ((:close 1005))
 :gives ((:failure 1002)))
(:name "7.9.5 1006" :rfc "7.4.1" :input ((:close 1006))
 :gives ((:failure 1002)))
(:name "1015" :rfc "7.4.1" :input ((:close 1015)) :gives ((:failure 1002)))
(:name "7.9.6 1016" :rfc "7.4.2" :input ((:close 1016))
 :gives ((:failure 1002)))
(:name "7.9.7 1100" :rfc "7.4.2" :input ((:close 1100))
 :gives ((:failure 1002)))
(:name "7.9.8 2000" :rfc "7.4.2" :input ((:close 2000))
 :gives ((:failure 1002)))
(:name "7.9.9 2999" :rfc "7.4.2" :input ((:close 2999))
 :gives ((:failure 1002)))
(:name "7.13.1 5000" :rfc "7.4.2" :input ((:close 5000))
 :gives ((:failure 1002)))
(:name "7.13.2 65535" :rfc "7.4.2" :input ((:close 65535))
 :gives ((:failure 1002)))
(:name "a wrong code counts before a wrong reason" :rfc "7.4"
 :input ((:close 1005 (:hex "FF"))) :gives ((:failure 1002)))
