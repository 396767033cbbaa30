(defpackage #:hunchentoot-recycling-taskmaster.http
  (:documentation "Private.  HTTP/1.1 without I/O: octets in, request heads and body ranges out;
replies in, octets out.  This layer uses no socket, stream, thread or clock.")
  (:use #:common-lisp #:hunchentoot-recycling-taskmaster.base)
  (:import-from #:hunchentoot-recycling-taskmaster.platform #:set-published #:address-string)
  (:export
   ;; refusals
   #:protocol-error #:protocol-error-refusal #:protocol-error-status
   #:protocol-error-reason #:refuse #:make-refusal #:*refusals*
   ;; limits
   #:limits #:content-size #:make-limits
   #:limits-request-line-octets #:limits-header-octets #:limits-header-count
   #:limits-body-octets #:limits-raw-octets #:limits-form-octets #:limits-field-count
   #:limits-file-count
   #:limits-content-rate #:*content-grace*
   #:limits-reply-rate #:limits-reply-seconds
   #:limits-handler-seconds #:limits-handshake-seconds
   #:limits-head-seconds #:limits-idle-seconds
   #:limits-connection-requests #:limits-address-connections
   ;; request heads
   #:parse-head #:request-start #:known-request-line
   #:head #:head-method #:head-uri #:head-protocol
   #:head-headers #:head-header #:head-host #:head-framing #:head-keep-alive-p
   #:head-keep-alive-requested-p #:head-upgrade
   #:head-expect-100-continue-p
   #:options-of-server-p #:uri-path #:host-and-port #:default-port #:field-spelling
   ;; proxies, and traces
   #:parse-ip-address #:ipv4-p #:ip-address-text #:parse-network #:in-network-p
   #:origin #:origin-address #:origin-port #:origin-scheme #:origin-host #:origin-asked-host
   #:origin-of-head #:parse-traceparent
   #:proxy-header #:make-proxy-header #:decode-proxy-header #:proxy-header-due
   #:proxy-header-source #:proxy-header-destination
   ;; request bodies
   #:make-body-decoder #:decode-body #:body-done-p #:body-octets-due
   ;; multipart bodies
   #:make-multipart-parser #:parse-multipart
   #:multipart-done-p #:boundary-p #:malformed-multipart #:+part-head-octets+ #:+boundary-octets+
   #:part-facts
   ;; media types
   #:media-type-p #:media-type-parameter
   ;; content codings
   #:accepted-codings #:coding-name #:coded-tag #:unmarked-tags
   #:media-type-among-p #:*compressible-types*
   ;; conditional and range requests
   #:entity-tag #:precondition #:range-current-p #:parse-ranges
   ;; replies
   #:output #:make-output #:output-octets #:output-fill #:reset-output
   #:invalid-header
   #:encode-head #:encode-status-line #:encode-header #:encoded-head-end #:map-encoded-head
   #:encoded-number
   #:make-http/2-head
   #:encode-date #:*line-end*
   #:encode-octets #:encode-by #:encode-body
   #:encoded-length #:encode-string #:encode-decimal
   #:utf-8-octets #:encode-event #:encode-comment #:malformed-event
   #:*last-chunk*
   #:frame-chunk #:chunk-of
   #:reason-phrase #:media-type-of-file #:body-allowed-p #:imf-fixdate #:rendered-second
   ;; lists and words in header fields
   #:list-elements #:token-p
   ;; texts and octets
   #:text-part #:latin-1-text
   #:utf-8-text #:percent-decoded
   ;; checks of arguments
   #:check-range))

(in-package #:hunchentoot-recycling-taskmaster.http)

(defparameter *hot-files* '("scan" "encoder")
  "The files of src/http/ that may use *HOT-POLICY*.  Their functions trust their arguments: every
caller has checked types and bounds under *PLAIN-POLICY*.")
