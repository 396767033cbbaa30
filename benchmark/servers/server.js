// Serves /yo with the http module.  usage: node server.js PORT DELAY_MS
'use strict';
const http = require('http');

const [port, delayMs] = process.argv.slice(2).map(Number);

function answer(response) {
  response.writeHead(200, { 'Content-Type': 'text/plain', 'Content-Length': 4 });
  response.end('Hey!');
}

const server = http.createServer((request, response) => {
  if (delayMs > 0) setTimeout(answer, delayMs, response);
  else answer(response);
});
// Node hangs up on idle connections after 5 s; the idle workload is about keeping them.
server.keepAliveTimeout = 300000;
server.listen(port, '127.0.0.1');
