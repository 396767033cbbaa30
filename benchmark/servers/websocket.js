// Echoes the messages of WebSockets with ws, and serves /yo with the http module.
// usage: node websocket.js PORT BACKLOG PROCESSES
'use strict';
const cluster = require('cluster');
const http = require('http');
const { WebSocketServer } = require('ws');

const [port, backlog, processes] = process.argv.slice(2, 5).map(Number);

function answer(request, response) {
  response.writeHead(200, { 'Content-Type': 'text/plain', 'Content-Length': 4 });
  response.end('Hey!');
}

function serve() {
  const server = http.createServer(answer);
  const sockets = new WebSocketServer({ server, perMessageDeflate: false });
  sockets.on('connection', (socket) => {
    socket.on('message', (message, isBinary) => socket.send(message, { binary: isBinary }));
    socket.on('error', () => {});
  });
  server.listen({ port, host: '127.0.0.1', backlog });
}

if (processes > 1 && cluster.isPrimary) {
  cluster.schedulingPolicy = cluster.SCHED_NONE;
  for (let i = 0; i < processes; i++) cluster.fork();
} else {
  serve();
}
