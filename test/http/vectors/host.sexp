;;; RFC 9112, section 3.2, and RFC 9110, section 7.2: Host.

(:name "no Host in HTTP/1.1" :rfc "RFC 9112, section 3.2"
 :input ("GET / HTTP/1.1" "") :gives ((:refused 400 :invalid-host)))
(:name "no Host, but other fields" :rfc "RFC 9112, section 3.2"
 :input ("GET / HTTP/1.1" "Accept: */*" "") :gives ((:refused 400 :invalid-host)))
(:name "no Host in a later version" :rfc "RFC 9112, section 3.2"
 :input ("GET / HTTP/1.3" "") :gives ((:refused 400 :invalid-host)))
(:name "no Host in HTTP/1.0" :rfc "RFC 9112, section 3.2"
 :input ("GET / HTTP/1.0" "Accept: */*" "") :gives ((:request :host nil)))
(:name "Host in HTTP/1.0" :rfc "RFC 9112, section 3.2"
 :input ("GET / HTTP/1.0" "Host: a" "") :gives ((:request :host "a")))
(:name "two Hosts" :rfc "RFC 9112, section 3.2"
 :input ("GET / HTTP/1.1" "Host: a" "Host: b" "") :gives ((:refused 400 :invalid-host)))
(:name "twice the same Host" :rfc "RFC 9112, section 3.2"
 :input ("GET / HTTP/1.1" "Host: a" "Accept: b" "host: a" "")
 :gives ((:refused 400 :invalid-host)))
(:name "two Hosts in HTTP/1.0" :rfc "RFC 9112, section 3.2"
 :input ("GET / HTTP/1.0" "Host: a" "Host: b" "") :gives ((:refused 400 :invalid-host)))
(:name "an empty Host" :rfc "RFC 9110, section 7.2"
 :input ("GET / HTTP/1.1" "Host:" "") :gives ((:request :host "")))
(:name "a host with a port" :rfc "RFC 9110, section 7.2"
 :input ("GET / HTTP/1.1" "Host: a.example:8080" "") :gives ((:request :host "a.example:8080")))
(:name "a host with an empty port" :rfc "RFC 3986, section 3.2.3"
 :input ("GET / HTTP/1.1" "Host: a.example:" "") :gives ((:request :host "a.example:")))
(:name "the highest port" :rfc "RFC 9110, section 7.2"
 :input ("GET / HTTP/1.1" "Host: a:65535" "") :gives ((:request :host "a:65535")))
(:name "a port out of range" :rfc "RFC 9110, section 7.2"
 :input ("GET / HTTP/1.1" "Host: a:65536" "") :gives ((:refused 400 :invalid-host)))
(:name "a port of many digits" :rfc "RFC 9110, section 7.2"
 :input ("GET / HTTP/1.1" "Host: a:000080" "") :gives ((:refused 400 :invalid-host)))
(:name "a port of letters" :rfc "RFC 9110, section 7.2"
 :input ("GET / HTTP/1.1" "Host: a:http" "") :gives ((:refused 400 :invalid-host)))
(:name "two ports" :rfc "RFC 9110, section 7.2"
 :input ("GET / HTTP/1.1" "Host: a:80:80" "") :gives ((:refused 400 :invalid-host)))
(:name "an IPv4 address" :rfc "RFC 3986, section 3.2.2"
 :input ("GET / HTTP/1.1" "Host: 192.0.2.16:80" "") :gives ((:request :host "192.0.2.16:80")))
(:name "an IPv6 address" :rfc "RFC 3986, section 3.2.2"
 :input ("GET / HTTP/1.1" "Host: [2001:db8::7]" "") :gives ((:request :host "[2001:db8::7]")))
(:name "an IPv6 address with a port" :rfc "RFC 3986, section 3.2.2"
 :input ("GET / HTTP/1.1" "Host: [::1]:5000" "") :gives ((:request :host "[::1]:5000")))
(:name "an IPv6 address with an IPv4 tail" :rfc "RFC 3986, section 3.2.2"
 :input ("GET / HTTP/1.1" "Host: [::ffff:192.0.2.1]" "")
 :gives ((:request :host "[::ffff:192.0.2.1]")))
(:name "brackets with nothing inside" :rfc "RFC 3986, section 3.2.2"
 :input ("GET / HTTP/1.1" "Host: []" "") :gives ((:refused 400 :invalid-host)))
(:name "a bracket that is not closed" :rfc "RFC 3986, section 3.2.2"
 :input ("GET / HTTP/1.1" "Host: [::1" "") :gives ((:refused 400 :invalid-host)))
(:name "a bracket that something else closes" :rfc "RFC 3986, section 3.2.2"
 :input ("GET / HTTP/1.1" "Host: [::1}" "") :gives ((:refused 400 :invalid-host)))
(:name "a bracket that was not opened" :rfc "RFC 3986, section 3.2.2"
 :input ("GET / HTTP/1.1" "Host: ::1]" "") :gives ((:refused 400 :invalid-host)))
(:name "something after the bracket" :rfc "RFC 3986, section 3.2.2"
 :input ("GET / HTTP/1.1" "Host: [::1]a" "") :gives ((:refused 400 :invalid-host)))
(:name "an IPv6 address without brackets" :rfc "RFC 3986, section 3.2.2"
 :input ("GET / HTTP/1.1" "Host: 2001:db8::7" "") :gives ((:refused 400 :invalid-host)))
(:name "a registered name with percent encodings" :rfc "RFC 3986, section 3.2.2"
 :input ("GET / HTTP/1.1" "Host: caf%C3%A9.example" "")
 :gives ((:request :host "caf%C3%A9.example")))
(:name "a registered name of percent encodings only" :rfc "RFC 3986, section 3.2.2"
 :input ("GET / HTTP/1.1" "Host: %41%42:1" "") :gives ((:request :host "%41%42:1")))
(:name "half a percent encoding" :rfc "RFC 3986, section 2.1"
 :input ("GET / HTTP/1.1" "Host: a%4" "") :gives ((:refused 400 :invalid-host)))
(:name "a percent sign with other letters" :rfc "RFC 3986, section 2.1"
 :input ("GET / HTTP/1.1" "Host: a%zz" "") :gives ((:refused 400 :invalid-host)))
(:name "a percent encoding with an invalid second digit" :rfc "RFC 3986, section 2.1"
 :input ("GET / HTTP/1.1" "Host: a%4g" "") :gives ((:refused 400 :invalid-host)))
(:name "a registered name with an underscore" :rfc "RFC 3986, section 3.2.2"
 :input ("GET / HTTP/1.1" "Host: my_service.internal:80" "")
 :gives ((:request :host "my_service.internal:80")))
(:name "a host with a user" :rfc "RFC 9110, section 7.2"
 :input ("GET / HTTP/1.1" "Host: u@a" "") :gives ((:refused 400 :invalid-host)))
(:name "a host with a path" :rfc "RFC 9110, section 7.2"
 :input ("GET / HTTP/1.1" "Host: a/b" "") :gives ((:refused 400 :invalid-host)))
(:name "a host with a space" :rfc "RFC 9110, section 7.2"
 :input ("GET / HTTP/1.1" "Host: a b" "") :gives ((:refused 400 :invalid-host)))
(:name "two hosts in one field" :rfc "RFC 9110, section 7.2"
 :input ("GET / HTTP/1.1" "Host: a, b" "") :gives ((:refused 400 :invalid-host)))
(:name "a URI for a host" :rfc "RFC 9110, section 7.2"
 :input ("GET / HTTP/1.1" "Host: http://a" "") :gives ((:refused 400 :invalid-host)))
(:name "a host with an octet above 127" :rfc "RFC 9110, section 7.2"
 :input ("GET / HTTP/1.1" "Host: caf^xE9" "") :gives ((:refused 400 :invalid-host)))
(:name "an invalid Host in HTTP/1.0" :rfc "RFC 9112, section 3.2"
 :input ("GET / HTTP/1.0" "Host: a b" "") :gives ((:refused 400 :invalid-host)))
