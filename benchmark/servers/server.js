// The application by Node's http module in a cluster, with WebSockets where there is the module ws.
// usage: node server.js PORT DATA PROCESSES
'use strict';
const cluster = require('cluster');
const fs = require('fs');
const http = require('http');

const [port, data, processes] = process.argv.slice(2);
const items = JSON.parse(fs.readFileSync(data + '/items.json', 'utf8'));
const subscribers = new Set();

function send(response, type, text) {
  response.writeHead(200, { 'Content-Type': type, 'Content-Length': Buffer.byteLength(text) });
  response.end(text);
}

const sendText = (response, text) => send(response, 'text/plain', text);

function withContent(request, then) {
  const parts = [];
  request.on('data', (part) => parts.push(part));
  request.on('end', () => then(Buffer.concat(parts).toString()));
}

function upload(request, response) {
  let count = 0;
  request.on('data', (part) => { count += part.length; });
  request.on('end', () => sendText(response, String(count)));
}

function json(response, count, factor) {
  const some = items.slice(0, count)
    .map((item) => ({ ...item, total: item.price * item.quantity * factor }));
  send(response, 'application/json', JSON.stringify({ items: some, count: some.length }));
}

function file(response) {
  response.writeHead(200, { 'Content-Type': 'application/octet-stream', 'Content-Length': 16384 });
  fs.createReadStream(data + '/file.bin').pipe(response);
}

function events(request, response) {
  response.writeHead(200, { 'Content-Type': 'text/event-stream' });
  response.flushHeaders();
  subscribers.add(response);
  request.on('close', () => subscribers.delete(response));
}

function publish(id) {
  const event = `id: ${id}\ndata: ${Date.now() * 1000}\n\n`;
  for (const subscriber of subscribers) subscriber.write(event);
  setTimeout(publish, 1000, id + 1);
}

function answer(request, response) {
  const url = new URL(request.url, 'http://localhost');
  const number = (name) => Number(url.searchParams.get(name));
  switch (url.pathname) {
    case '/hello': return sendText(response, 'Hey!');
    case '/wait': return setTimeout(sendText, 1, response, 'Hey!');
    case '/mix': return withContent(request, (content) =>
      sendText(response, String(number('a') + number('b') + Number(content))));
    case '/upload': return upload(request, response);
    case '/file': return file(response);
    case '/later': return setTimeout(sendText, number('ms'), response, String(number('n')));
    case '/events': return events(request, response);
    default: return json(response, Number(url.pathname.slice('/json/'.length)), number('m'));
  }
}

function serve() {
  const server = http.createServer({ keepAliveTimeout: 300000 }, answer);
  try {
    const { WebSocketServer } = require('ws');
    new WebSocketServer({ server, perMessageDeflate: false }).on('connection', (socket) =>
      socket.on('message', (message, binary) => socket.send(message, { binary })));
  } catch { /* The benchmark does not ask for them then. */ }
  server.listen({ port: Number(port), host: '127.0.0.1', backlog: 4096 });
  publish(1);
}

if (cluster.isPrimary) {
  cluster.schedulingPolicy = cluster.SCHED_NONE;
  for (let i = 0; i < Number(processes); i++) cluster.fork();
} else {
  serve();
}
