// Does what our load programs expect of a server, and the opposite, as the query says:
// fault=NAME of these tables.  For the tests of the load programs.
// usage: node faults.js PORT
'use strict';
const crypto = require('crypto');
const http = require('http');

// Late answers

function answer(response, text) {
  response.writeHead(200, { 'Content-Type': 'text/plain', 'Content-Length': text.length });
  response.end(text);
}

const lateAnswers = {
  none: (response, n) => answer(response, n),
  chunks: (response, n) => { response.write(n.slice(0, 1)); response.end(n.slice(1)); },
  other: (response, n) => answer(response, String(Number(n) + 1)),
  more: (response, n) => answer(response, n + ' and more'),
  status: (response) => { response.writeHead(503, { 'Content-Length': 0 }); response.end(); },
  lost: (response) => response.socket.destroy(),
  never: () => {},
  twice: (response, n) => {
    const socket = response.socket;
    answer(response, n);
    setTimeout(() => socket.write('HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n'), 50);
  },
};

// Events: functions of an event's number to its text

const event = (id, time) => `id: ${id}\ndata: ${time}\n\n`;
const now = () => Math.round((performance.timeOrigin + performance.now()) * 1000);

const events = {
  none: (id) => event(id, now()),
  whole: (id) => event(id, now()),      // in a stream that has no chunks
  comments: (id) => `: alive\n\nevent: tick\nretry: 100\n${event(id, `${now()} ticks`)}`,
  gap: (id) => (id % 5 === 0 ? '' : event(id, now())),
  repeat: (id) => event(id, now()) + (id % 5 === 0 ? event(id, now()) : ''),
  late: (id) => event(id, now() - 300000),
  untimed: (id) => `id: ${id}\ndata: Hello\n\n`,
  unnumbered: () => `data: ${now()}\n\n`,
  end: (id) => (id > 20 ? null : event(id, now())),
};

const streams = new Map();              // from responses to functions
let published = 0;

function publish() {
  published++;
  for (const [stream, make] of streams) {
    const text = make(published);
    if (text === null) stream.end();
    else if (text) stream.write(text);
  }
}

function stream(response, fault) {
  if (fault === 'whole') response.useChunkedEncodingByDefault = false;
  response.writeHead(200, { 'Content-Type': fault === 'type' ? 'text/plain' : 'text/event-stream' });
  response.flushHeaders();
  streams.set(response, events[fault] || events.none);
  response.on('close', () => streams.delete(response));
}

// WebSockets

function frame(payload, opcode = 1, final = true) {
  const head = [(final ? 0x80 : 0) | opcode];
  if (payload.length < 126) head.push(payload.length);
  else if (payload.length < 65536) head.push(126, payload.length >> 8, payload.length & 255);
  else head.push(127, 0, 0, 0, 0, ...[24, 16, 8, 0].map((bits) => (payload.length >> bits) & 255));
  return Buffer.concat([Buffer.from(head), payload]);
}

// An array of the first frame of octets, its opcode and what follows; null if it is not whole.
function firstFrame(octets) {
  if (octets.length < 6) return null;
  let at = 2, length = octets[1] & 127;
  if (length === 126) { length = octets.readUInt16BE(2); at = 4; }
  else if (length === 127) { length = Number(octets.readBigUInt64BE(2)); at = 10; }
  if (octets.length < at + 4 + length) return null;
  const mask = octets.subarray(at, at + 4);
  const payload = Buffer.from(octets.subarray(at + 4, at + 4 + length));
  for (let i = 0; i < length; i++) payload[i] ^= mask[i & 3];
  return [payload, octets[0] & 15, octets.subarray(at + 4 + length)];
}

function changed(payload) {
  const other = Buffer.from(payload);
  other[other.length - 1] ^= 1;
  return other;
}

const half = (payload) => payload.length >> 1;

const echoes = {
  none: (socket, payload) => socket.write(frame(payload)),
  fragments: (socket, payload) => {
    socket.write(frame(payload.subarray(0, half(payload)), 1, false));
    socket.write(frame(Buffer.from('alive'), 9));
    socket.write(frame(payload.subarray(half(payload)), 0, true));
  },
  other: (socket, payload) => socket.write(frame(changed(payload))),
  shorter: (socket, payload) => socket.write(frame(payload.subarray(1))),
  longer: (socket, payload) => socket.write(frame(Buffer.concat([payload, payload]))),
  binary: (socket, payload) => socket.write(frame(payload, 2)),
  twice: (socket, payload) => socket.write(Buffer.concat([frame(payload), frame(payload)])),
  late: (socket, payload) => setTimeout(() => socket.write(frame(payload)), 100),
  lost: (socket) => socket.destroy(),
  closed: (socket) => socket.end(frame(Buffer.from([3, 232]), 8)),
  never: () => {},
  masked: (socket, payload) => {
    const octets = frame(payload);
    octets[1] |= 128;
    socket.write(octets);
  },
  reserved: (socket, payload) => socket.write(frame(payload, 0x41)),
  stray: (socket, payload) => socket.write(frame(payload, 0)),
};

function acceptKey(key) {
  return crypto.createHash('sha1').update(key + '258EAFA5-E914-47DA-95CA-C5AB0DC85B11')
    .digest('base64');
}

function upgrade(request, socket) {
  const fault = faultOf(request.url);
  const key = acceptKey(fault === 'key' ? 'other' : request.headers['sec-websocket-key']);
  socket.write('HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n' +
               `Sec-WebSocket-Accept: ${key}\r\n\r\n`);
  const echo = echoes[fault] || echoes.none;
  let octets = Buffer.alloc(0);
  socket.on('error', () => {});
  socket.on('data', (more) => {
    octets = Buffer.concat([octets, more]);
    for (let first; (first = firstFrame(octets));) {
      octets = first[2];
      if (first[1] === 1) echo(socket, first[0]);
    }
  });
}

// All of them

function queryOf(url) {
  return new URL(url, 'http://localhost').searchParams;
}

function faultOf(url) {
  return queryOf(url).get('fault') || 'none';
}

function respond(request, response) {
  const query = queryOf(request.url);
  if (request.url.startsWith('/events')) {
    stream(response, faultOf(request.url));
  } else if (request.url.startsWith('/later')) {
    setTimeout(lateAnswers[faultOf(request.url)], Number(query.get('ms')), response, query.get('n'));
  } else {
    answer(response, 'Hey!');
  }
}

setInterval(publish, 50);
http.createServer(respond).on('upgrade', upgrade)
  .listen({ port: Number(process.argv[2]), host: '127.0.0.1', backlog: 4096 });
