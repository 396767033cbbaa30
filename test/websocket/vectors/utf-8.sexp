;;; Texts that are UTF-8, and others: each of :OCTETS is a text of its own.

(:name "6.5 one character of each length, and a word" :valid t :octets
 ("68 65 6C 6C 6F 24 77 6F 72 6C 64" "68 65 6C 6C 6F C2 A2 77 6F 72 6C 64"
  "68 65 6C 6C 6F E2 82 AC 77 6F 72 6C 64" "68 65 6C 6C 6F F0 A4 AD A2 77 6F 72 6C 64"
  "CE BA E1 BD B9 CF 83 CE BC CE B5"))
(:name "6.6 beginnings of a word that end with a character" :valid t :octets
 ("CE BA" "CE BA E1 BD B9" "CE BA E1 BD B9 CF 83" "CE BA E1 BD B9 CF 83 CE BC"
  "CE BA E1 BD B9 CF 83 CE BC CE B5"))
(:name "6.6 beginnings of a word that end within a character" :valid nil :octets
 ("CE" "CE BA E1" "CE BA E1 BD" "CE BA E1 BD B9 CF" "CE BA E1 BD B9 CF 83 CE"
  "CE BA E1 BD B9 CF 83 CE BC CE"))
(:name "6.7 the first character of each length" :valid t :octets
 ("00" "C2 80" "E0 A0 80" "F0 90 80 80"))
(:name "6.8 the first of 5 and of 6 octets" :valid nil :octets
 ("F8 88 80 80 80" "FC 84 80 80 80 80"))
(:name "6.9 the last character of each length" :valid t :octets
 ("7F" "DF BF" "EF BF BF" "F4 8F BF BF"))
(:name "6.10 the last of 4, 5 and 6 octets" :valid nil :octets
 ("F7 BF BF BF" "FB BF BF BF BF" "FD BF BF BF BF BF"))
(:name "6.11 characters next to invalid codes" :valid t :octets
 ("ED 9F BF" "EE 80 80" "EF BF BD" "F4 8F BF BF"))
(:name "6.11 the first code behind the last character" :valid nil :octets
 ("F4 90 80 80"))
(:name "6.12 continuations of nothing" :valid nil :octets
 ("80" "BF" "80 BF" "80 BF 80" "80 BF 80 BF" "80 BF 80 BF 80" "80 BF 80 BF 80 BF"
  "80 81 82 83 84 85 86 87 88 89 8A 8B 8C 8D 8E 8F 90 91 92 93 94 95 96 97 98 99 9A 9B 9C 9D 9E 9F
   A0 A1 A2 A3 A4 A5 A6 A7 A8 A9 AA AB AC AD AE AF B0 B1 B2 B3 B4 B5 B6 B7 B8 B9 BA BB BC BD BE
   BF"))
(:name "an octet next to the continuations at each place of a character" :valid nil :octets
 ("C2 7F" "C2 C0" "E1 7F 80" "E1 C0 80" "E1 80 7F" "E1 80 C0" "F1 7F 80 80" "F1 C0 80 80"
  "F1 80 7F 80" "F1 80 C0 80" "F1 80 80 7F" "F1 80 80 C0" "F5 80 80 80" "61 C2" "61 E0 A0"))
(:name "6.13 beginnings of characters, each followed by a blank" :valid nil :octets
 ("C0 20 C1 20 C2 20 C3 20 C4 20 C5 20 C6 20 C7 20 C8 20 C9 20 CA 20 CB 20 CC 20 CD 20 CE 20 CF 20
   D0 20 D1 20 D2 20 D3 20 D4 20 D5 20 D6 20 D7 20 D8 20 D9 20 DA 20 DB 20 DC 20 DD 20 DE 20 DF 20"
  "E0 20 E1 20 E2 20 E3 20 E4 20 E5 20 E6 20 E7 20 E8 20 E9 20 EA 20 EB 20 EC 20 ED 20 EE 20 EF 20"
  "F0 20 F1 20 F2 20 F3 20 F4 20 F5 20 F6 20 F7 20" "F8 20 F9 20 FA 20 FB 20" "FC 20 FD 20"))
(:name "6.14 characters without their last octets" :valid nil :octets
 ("C0" "E0 80" "F0 80 80" "F8 80 80 80" "FC 80 80 80 80" "DF" "EF BF" "F7 BF BF" "FB BF BF BF"
  "FD BF BF BF BF"))
(:name "6.15 all of these in a row" :valid nil :octets
 ("C0 E0 80 F0 80 80 F8 80 80 80 FC 80 80 80 80 DF EF BF F7 BF BF FB BF BF BF FD BF BF BF BF"))
(:name "6.16 octets that no character has" :valid nil :octets
 ("FE" "FF" "FE FE FF FF"))
(:name "6.17 a slash in too many octets" :valid nil :octets
 ("C0 AF" "E0 80 AF" "F0 80 80 AF" "F8 80 80 80 AF" "FC 80 80 80 80 AF"))
(:name "6.18 the last characters in one octet too many" :valid nil :octets
 ("C1 BF" "E0 9F BF" "F0 8F BF BF" "F8 87 BF BF BF" "FC 83 BF BF BF BF"))
(:name "6.19 NUL in too many octets" :valid nil :octets
 ("C0 80" "E0 80 80" "F0 80 80 80" "F8 80 80 80 80" "FC 80 80 80 80 80"))
(:name "6.20 surrogates" :valid nil :octets
 ("ED A0 80" "ED AD BF" "ED AE 80" "ED AF BF" "ED B0 80" "ED BE 80" "ED BF BF"))
(:name "6.21 pairs of surrogates" :valid nil :octets
 ("ED A0 80 ED B0 80" "ED A0 80 ED BF BF" "ED AD BF ED B0 80" "ED AD BF ED BF BF"
  "ED AE 80 ED B0 80" "ED AE 80 ED BF BF" "ED AF BF ED B0 80" "ED AF BF ED BF BF"))
(:name "6.22 codes that are no characters, and legal" :valid t :octets
 ("EF BF BE" "EF BF BF" "F0 9F BF BE" "F0 9F BF BF" "F0 AF BF BE" "F0 AF BF BF" "F0 BF BF BE"
  "F0 BF BF BF" "F1 8F BF BE" "F1 8F BF BF" "F1 9F BF BE" "F1 9F BF BF" "F1 AF BF BE" "F1 AF BF BF"
  "F1 BF BF BE" "F1 BF BF BF" "F2 8F BF BE" "F2 8F BF BF" "F2 9F BF BE" "F2 9F BF BF" "F2 AF BF BE"
  "F2 AF BF BF" "F2 BF BF BE" "F2 BF BF BF" "F3 8F BF BE" "F3 8F BF BF" "F3 9F BF BE" "F3 9F BF BF"
  "F3 AF BF BE" "F3 AF BF BF" "F3 BF BF BE" "F3 BF BF BF" "F4 8F BF BE" "F4 8F BF BF"))
(:name "6.23 the specials of Unicode" :valid t :octets
 ("EF BF B9" "EF BF BA" "EF BF BB" "EF BF BC" "EF BF BD" "EF BF BE" "EF BF BF"))
