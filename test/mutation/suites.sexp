;;;; The suites that cover a source file: those of each name here that begins its name, in this
;;;; order.  The first ones notice most mistakes within seconds; the others are for what they miss.
(("src/http/protocol-state" http-protocol-state)
 ("src/http/media-type" requests)
 ("src/http/" http requests exchanges compressed-files sent-files limits rejections forms
  behind-proxies clack/environments clack/responses)
 ("src/websocket/" websocket websockets clack/sockets)
 ("src/platform/openssl/" tls tls-contexts tls-mistakes tls-facts handshakes)
 ("src/platform/" platform)
 ("src/engine/common/timer" timers)
 ("src/engine/common/memory" memory-budget)
 ("src/engine/common/slow-readers" slow-readers send-queues)
 ("src/engine/common/connection-state" engine giving-way waiting-clients)
 ("src/engine/common/connection-list" live-page)
 ("src/engine/ready/ready-timers" timers service-manager)
 ("src/engine/ready/resuming" engine deferred-replies)
 ("src/engine/common/send-queue" send-queues slow-readers reply-streams sent-files)
 ("src/engine/blocking" blocking faults lifecycle)
 ("src/engine/" engine send-queues body-buffers buffered-connections io-output lending transports
  acceptor-timers acceptor-faults exchanges deferred-replies replies-in-turn outgoing-streams
  slow-replies slow-streams last-answers sent-files listening hand-over monitoring
  time-limits limits giving-way waiting-clients crowds websockets taskmaster deferred-races
  service-manager until-signalled small-heaps process-exits)
 ("src/server/logs/" journal access-log message-log)
 ("src/server/live/" live-html live-page clack/live-page)
 ("src/server/upgrade/" websockets clack/sockets clack/socket-mishaps)
 ("src/server/connection/prox" proxied-connections behind-proxies)
 ("src/server/connection/clients" behind-proxies)
 ("src/server/connection/" buffered-connections io-output lending transports exchanges handshakes
  tls websockets giving-way)
 ("src/server/request/" body-buffers contents exchanges limits early-content shared-content
  time-limits)
 ("src/server/response/" reply-streams send-queues sent-files deferred-replies outgoing-streams
  compressed-files)
 ("src/server/prometheus" prometheus)
 ("src/server/monitoring" monitoring clack/monitoring)
 ("src/server/service-manager" service-manager)
 ("src/server/connection-life" exchanges time-limits handshakes tls giving-way)
 ("src/server/giving-way" giving-way waiting-clients)
 ("src/server/inspection" monitoring live-page taskmaster)
 ("src/server/listeners" mistakes listening clack/running)
 ("src/server/program-timers" acceptor-timers)
 ("src/server/tls-arguments" tls-mistakes tls-contexts tls tls-reload)
 ("src/server/unfit-arguments" arguments mistakes clack/running)
 ("src/server/until-signalled" until-signalled)
 ("src/server/" exchanges conformance clack acceptors)
 ("src/hunchentoot/proxies" behind-proxies)
 ("src/hunchentoot/websockets" websockets)
 ("src/hunchentoot/tls" tls tls-reload tls-facts)
 ("src/hunchentoot/" exchanges conformance acceptors)
 ("clack/" clack))
