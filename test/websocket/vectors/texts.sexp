;;; Texts in several frames, which are UTF-8 or not.

(:name "6.1.1 an empty text" :rfc "5.6" :input ((:text "")) :gives ((:text "")))
(:name "6.1.2 three empty fragments" :rfc "5.4"
 :input ((:text "" :fin nil) (:more "" :fin nil) (:more "")) :gives ((:text "")))
(:name "6.1.3 the middle one of three fragments has the text" :rfc "5.4"
 :input ((:text "" :fin nil) (:more "middle" :fin nil) (:more "")) :gives ((:text "middle")))
(:name "6.2.1 a text beyond ASCII" :rfc "5.6"
 :input
 ((:text
   (:hex "48 65 6C 6C 6F 2D C2 B5 40 C3 9F C3 B6 C3 A4 C3 BC C3 A0 C3 A1 2D 55 54 46 2D 38 21 21")))
 :gives
 ((:text
   (:hex
    "48 65 6C 6C 6F 2D C2 B5 40 C3 9F C3 B6 C3 A4 C3 BC C3 A0 C3 A1 2D 55 54 46 2D 38 21 21"))))
(:name "6.2.2 cut between characters" :rfc "5.4"
 :input ((:text (:hex "48 65 6C 6C 6F 2D C2 B5 40 C3 9F C3 B6 C3 A4") :fin nil)
         (:more (:hex "C3 BC C3 A0 C3 A1 2D 55 54 46 2D 38 21 21")))
 :gives
 ((:text
   (:hex
    "48 65 6C 6C 6F 2D C2 B5 40 C3 9F C3 B6 C3 A4 C3 BC C3 A0 C3 A1 2D 55 54 46 2D 38 21 21"))))
(:name "6.2.3, 6.2.4 fragments of one octet" :rfc "5.4"
 :input ((:text (:hex "CE") :fin nil) (:more (:hex "BA") :fin nil) (:more (:hex "E1") :fin nil)
         (:more (:hex "BD") :fin nil) (:more (:hex "B9") :fin nil) (:more (:hex "CF") :fin nil)
         (:more (:hex "83") :fin nil) (:more (:hex "CE") :fin nil) (:more (:hex "BC") :fin nil)
         (:more (:hex "CE") :fin nil) (:more (:hex "B5") :fin nil) (:more ""))
 :gives ((:text (:hex "CE BA E1 BD B9 CF 83 CE BC CE B5"))))
(:name "control frames within a character" :rfc "5.4"
 :input ((:text (:hex "F0") :fin nil) (:ping (:hex "9F")) (:more (:hex "9F 98") :fin nil)
         (:pong (:hex "FF")) (:more (:hex "80")))
 :gives ((:ping (:hex "9F")) (:pong (:hex "FF")) (:text (:hex "F0 9F 98 80"))))
(:name "6.3.1 a surrogate within a text" :rfc "8.1"
 :input ((:text (:hex "CE BA E1 BD B9 CF 83 CE BC CE B5 ED A0 80 65 64 69 74 65 64")))
 :gives ((:failure 1007)))
(:name "6.3.2 a surrogate in fragments of one octet" :rfc "8.1"
 :input ((:text (:hex "CE") :fin nil) (:more (:hex "BA") :fin nil) (:more (:hex "ED") :fin nil)
         (:more (:hex "A0") :fin nil) (:more (:hex "80") :fin nil) (:more (:hex "65")))
 :gives ((:failure 1007)))
(:name "6.4.1, 6.4.3 the second fragment is no UTF-8" :rfc "8.1"
 :input ((:text (:hex "CE BA E1 BD B9 CF 83 CE BC CE B5") :fin nil)
         (:more (:hex "F4 90 80 80") :fin nil) (:more (:hex "65")))
 :gives ((:failure 1007)))
(:name "a text that ends within a character" :rfc "8.1"
 :input ((:text (:hex "CE BA CE"))) :gives ((:failure 1007)))
(:name "a text that ends within a character, and an empty fragment" :rfc "8.1"
 :input ((:text (:hex "CE BA CE") :fin nil) (:more "")) :gives ((:failure 1007)))
(:name "each text begins anew" :rfc "8.1"
 :input ((:binary (:hex "CE")) (:text (:hex "CE BA")) (:text (:hex "BA")))
 :gives ((:binary (:hex "CE")) (:text (:hex "CE BA")) (:failure 1007)))
(:name "octets need not be UTF-8" :rfc "5.6"
 :input ((:binary (:hex "CE") :fin nil) (:more (:hex "FF"))) :gives ((:binary (:hex "CE FF"))))
(:name "a fault behind a long text" :rfc "8.1"
 :input ((:text (:all (:times 1000 "*") (:hex "C2 B5") (:times 1001 "*") (:hex "FF"))))
 :gives ((:failure 1007)))
