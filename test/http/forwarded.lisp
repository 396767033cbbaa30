(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite forwarded :in http
  :description "Addresses, networks, and what proxies tell of the client, and senders of traces.")

(in-suite forwarded)

;;; Addresses

(defparameter *addresses*
  '(("0.0.0.0" "0.0.0.0") ("127.0.0.1" "127.0.0.1") ("255.255.255.255" "255.255.255.255")
    ("::" "::") ("::1" "::1") ("1::" "1::") ("2001:db8::1" "2001:db8::1")
    ("2001:DB8:0:0:1:0:0:1" "2001:db8::1:0:0:1") ("2001:db8:0:1:1:1:1:1" "2001:db8::1:1:1:1:1")
    ("1:2:3:4:5:6:7::" "1:2:3:4:5:6:7::") ("::2:3:4:5:6:7:8" "::2:3:4:5:6:7:8")
    ("0:0:1:0:0:0:1:0" "::1:0:0:0:1:0") ("fe80::204:61ff:fe9d:f156" "fe80::204:61ff:fe9d:f156")
    ("::ffff:192.0.2.1" "192.0.2.1") ("::ffff:c000:201" "192.0.2.1")
    ("64:ff9b::192.0.2.33" "64:ff9b::c000:221") ("1:2:3:4:5:6:1.2.3.4" "1:2:3:4:5:6:102:304"))
  "Addresses, and how they are written.")

(defparameter *no-addresses*
  '("" "1" "1.2.3" "1.2.3.4.5" "1.2.3.256" "1.2.3.-4" "1.2.3.+4" "01.2.3.4" "1.2.3.04" "1.2.3.0x4"
    "1..3.4" ".1.2.3.4" "1.2.3.4." "1.2.3.4 " " 1.2.3.4" "1.2.3.4/8" "1.2.3.4:80" "127.1"
    "localhost"
    "1111.2.3.4" ":" ":::" "1:::2" "1::2::3" "::1::" "1:2:3:4:5:6:7" "1:2:3:4:5:6:7:8:9"
    "1:2:3:4:5:6:7:8::" "::1:2:3:4:5:6:7:8" "1:2:3:4:5:6:7:" ":1:2:3:4:5:6:7:8" "12345::" "g::"
    "[::1]" "::1%eth0" "1.2.3.4::" "::1.2.3.4:5" "::1.2.3" "::256.1.1.1" "1:2:3:4:5:6:7:1.2.3.4"
    "::ffff:1.2.3.04")
  "What is no address.")

(test an-address-is-read-and-written-in-its-usual-notation
  (loop for (text canonical) in *addresses*
        do (is (equal canonical (http:ip-address-text (http:parse-ip-address text))) "~A" text))
  (dolist (text *no-addresses*)
    (is (null (http:parse-ip-address text)) "~S" text)))

(test what-is-long-is-no-address
  (is (null (http:parse-ip-address (make-string 100000 :initial-element #\1))))
  (is (null (http:parse-ip-address (make-string 100000 :initial-element #\:)))))

(test an-address-written-anew-is-the-same
  (dotimes (index 200)
    (let* ((dense (random (ash 1 128)))
           (address (if (evenp index) dense (logand dense (random (ash 1 128))
                                                    (random (ash 1 128)) (random (ash 1 128))))))
      (is (eql address (http:parse-ip-address (http:ip-address-text address)))
          "~A" (http:ip-address-text address)))))

;;; Networks

(defun in-p (address network)
  (let ((parsed (http:parse-network network)))
    (assert parsed)
    (http:in-network-p (http:parse-ip-address address) parsed)))

(test a-network-has-the-addresses-that-begin-with-its-bits
  (loop for (network . addresses)
          in '(("10.0.0.0/8" "10.0.0.0" "10.255.255.255" "::ffff:10.1.2.3")
               ("192.0.2.1" "192.0.2.1" "::ffff:192.0.2.1") ("192.0.2.1/32" "192.0.2.1")
               ("192.0.2.128/25" "192.0.2.128" "192.0.2.255") ("0.0.0.0/0" "0.0.0.0" "255.1.2.3")
               ("::1" "::1") ("2001:db8::/32" "2001:db8::" "2001:db8:ffff::1")
               ("2001:db8::8/125" "2001:db8::f") ("::/0" "::1" "ffff::")
               ("::ffff:10.0.0.0/104" "10.9.8.7"))
        do (dolist (address addresses)
             (is-true (in-p address network) "~A ~A" address network)))
  (loop for (network . addresses)
          in '(("10.0.0.0/8" "11.0.0.0" "9.255.255.255" "::1" "::10.0.0.1")
               ("192.0.2.1" "192.0.2.0" "192.0.2.2") ("192.0.2.128/25" "192.0.2.127" "192.0.3.128")
               ("0.0.0.0/0" "::1" "2001:db8::1") ("::1" "::" "::2" "127.0.0.1")
               ("2001:db8::/32" "2001:db9::" "2001:db7:ffff::") ("::/0" "192.0.2.1" "127.0.0.1"))
        do (dolist (address addresses)
             (is-false (in-p address network) "~A ~A" address network))))

(test a-network-that-makes-no-sense-is-none
  (dolist (text '("" "/" "/8" "10.0.0.0/" "10.0.0.0/33" "10.0.0.0/-1" "10.0.0.0/8/8" "10.0.0.0/08x"
                  "10.0.0.0/0000" "10.0.0.1/8" "2001:db8::/129" "2001:db8::1/32" "[::1]"
                  "10.0.0.0 /8"
                  "10.0.0.0/255.0.0.0" "localhost" "10.*"))
    (is (null (http:parse-network text)) "~S" text)))

;;; Clients

(defun head-with (fields)
  "A head with FIELDS, lines of text."
  (let ((octets (octets "GET / HTTP/1.1" :crlf "Host: inner" :crlf
                        (loop for field in fields collect field collect :crlf) :crlf)))
    (values (http:parse-head octets 0 (length octets)))))

(defun told-by-proxies (fields &optional (trusted '("10.0.0.0/8" "fd00::/8")))
  "What FIELDS, lines of text, tell: a list of the client's address and port, the scheme and the
host."
  (let* ((networks (mapcar #'http:parse-network trusted))
         (origin (http:origin-of-head
                  (head-with fields)
                  (lambda (address)
                    (some (lambda (network) (http:in-network-p address network)) networks)))))
    (and origin
         (list (http:origin-address origin) (http:origin-port origin)
               (http:origin-scheme origin) (http:origin-host origin)))))

(test fields-of-proxies-tell-what-the-vectors-say
  (loop for (told . fields) in (read-vectors "forwarded")
        do (is (equal told (told-by-proxies fields)) "~S tell ~S, not ~S."
               fields (told-by-proxies fields) told)))

(test a-long-list-is-read
  (is (equal '("8.8.8.8" 0 nil nil)
             (told-by-proxies (list (format nil "X-Forwarded-For: 8.8.8.8~{,~A~}"
                                            (make-list 1500 :initial-element "10.0.0.1"))))))
  (dolist (text '("," "\"" "\\" ";" "=" "a=" "[" ":"))
    (let ((long (format nil "~{~A~}" (make-list 5000 :initial-element text))))
      (is (null (first (told-by-proxies (list (format nil "X-Forwarded-For: ~A" long))))))
      (is (equal "192.0.2.1" (first (told-by-proxies
                                     (list (format nil "X-Forwarded-For: ~A,192.0.2.1"
                                                   long)))))))))

(defun random-field-value ()
  "Some text that a client may send in a field of proxies."
  (format nil "~{~A~}" (loop repeat (random 12)
                             collect (aref #("," ";" "=" "\"" "\\" " " "[" "]" ":" "for" "proto"
                                             "host" "by"
                                             "192.0.2.7" "10.0.0.1" "::1" "unknown" "_x" "https"
                                             "80" "é" "%")
                                           (random 22)))))

(test what-a-client-sends-does-not-change-what-its-proxy-adds
  (dotimes (count 1000)
    (let ((sent (random-field-value)))
      (is (equal '("192.0.2.1" 0 nil nil)
                 (told-by-proxies (list (format nil "X-Forwarded-For: ~A" sent)
                                        "X-Forwarded-For: 192.0.2.1"))))
      (is (equal '("192.0.2.1" 0 :http "a.b")
                 (told-by-proxies (list (format nil "X-Forwarded-Proto: ~A" sent)
                                        "X-Forwarded-Proto: http"
                                        (format nil "X-Forwarded-Host: ~A" sent)
                                        "X-Forwarded-Host: a.b"
                                        "X-Forwarded-For: 192.0.2.1")))))))

(test any-fields-are-read
  (dotimes (count 1000)
    (let ((told (told-by-proxies (list (format nil "X-Forwarded-For: ~A" (random-field-value))
                                       (format nil "X-Forwarded-Proto: ~A" (random-field-value))
                                       (format nil "X-Forwarded-Port: ~A" (random-field-value))
                                       (format nil "X-Forwarded-Host: ~A" (random-field-value))))))
      (is (= 4 (length told))))))

;;; Traces

(defparameter *traceparents*
  '(("00-~A-~A-01" t) ("00-~A-~A-00") ("00-~A-~A-03" t) ("00-~A-~A-fe") ("00-~A-~A-ff" t)
    ("01-~A-~A-01" t) ("fe-~A-~A-00") ("cc-~A-~A-01-what-comes" t) ("cc-~A-~A-00-"))
  "Valid fields traceparent, with ~A for two identifiers, and whether they say sampled.")

(defparameter *no-traceparents*
  '("" "00-~A-~A" "00-~A-~A-1" "0-~A-~A-01" "00-~A-01" "00-~A-~A-001" "00-~A-~A-01-more"
    "cc-~A-~A-01.more" "cc-~A-~A-011" "00-0~A-~A-01" "00-~A-0~A-01" "00_~A-~A-01" "00-~A_~A-01"
    "00-~A-~A_01" "ff-~A-~A-01" "ff-~A-~A-01-more" "CC-~A-~A-01" "0g-~A-~A-01" "00-~A-~A-0A"
    "00-~:@(~A~)-~A-01" "00-~A-~:@(~A~)-01" "00-~A-~A- 1" "\"00-~A-~A-01\""
    "00-~*00000000000000000000000000000000-~A-01" "00-~A-~*0000000000000000-01"
    "00-~A-~A-01,00-~2:*~A-~A-01" "cc-~A-~A-01-a,cc-~2:*~A-~A-01-a")
  "Values of the field traceparent that are not valid.")

(test a-trace-is-read-from-a-field-that-is-valid-in-every-part
  (let ((ids '("0af7651916cd43dd8448eb211c80319c" "b7ad6b7169203331")))
    (flet ((trace-in (control)
             (multiple-value-list
              (http:parse-traceparent (apply #'format nil control ids)))))
      (loop for (control sampled-p) in *traceparents*
            do (is (equal (append ids (list sampled-p)) (trace-in control)) "~A" control))
      (dolist (control *no-traceparents*)
        (is (equal '(nil) (trace-in control)) "~A" control))
      (is (null (http:parse-traceparent nil))))))
