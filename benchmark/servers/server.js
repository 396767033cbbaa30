// Serves with the http module.
// usage: node server.js PORT DELAY_MS SLOW_MS FILES BACKLOG PROCESSES
'use strict';
const cluster = require('cluster');
const fs = require('fs');
const http = require('http');
const path = require('path');
const { pipeline } = require('stream');

const [port, delayMs, slowMs] = process.argv.slice(2, 5).map(Number);
const files = process.argv[5];
const [backlog, processes] = process.argv.slice(6, 8).map(Number);

function answer(response, content = 'Hey!') {
  response.writeHead(200, { 'Content-Type': 'text/plain', 'Content-Length': content.length });
  response.end(content);
}

function answerAfter(milliseconds, response) {
  if (milliseconds > 0) setTimeout(answer, milliseconds, response);
  else answer(response);
}

function answerLater(query, response) {
  const parameters = new URLSearchParams(query);
  setTimeout(answer, Number(parameters.get('ms')), response, parameters.get('n'));
}

function takeUpload(request, response) {
  const parts = [];
  request.on('data', (part) => parts.push(part));
  request.on('end', () => {
    Buffer.concat(parts);
    answer(response);
  });
}

function sendFile(name, response) {
  const file = path.join(files, name);
  fs.stat(file, (error, status) => {
    if (error) {
      response.writeHead(404, { 'Content-Length': 0 });
      response.end();
    } else {
      response.writeHead(200, { 'Content-Type': 'application/octet-stream',
                                'Content-Length': status.size });
      pipeline(fs.createReadStream(file), response, () => {});
    }
  });
}

function serve() {
  const server = http.createServer((request, response) => {
    const [name, query] = request.url.split('?');
    if (name === '/yo') answerAfter(delayMs, response);
    else if (name === '/slow') answerAfter(slowMs, response);
    else if (name === '/later') answerLater(query, response);
    else if (name === '/upload') takeUpload(request, response);
    else sendFile(path.basename(name), response);
  });
  // Node hangs up on idle connections after 5 s; the idle workload is about keeping them.
  server.keepAliveTimeout = 300000;
  server.listen({ port, host: '127.0.0.1', backlog });
}

if (processes > 1 && cluster.isPrimary) {
  // The kernel lets one of the processes accept; else the first would accept for all.
  cluster.schedulingPolicy = cluster.SCHED_NONE;
  for (let i = 0; i < processes; i++) cluster.fork();
} else {
  serve();
}
