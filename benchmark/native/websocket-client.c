#define _GNU_SOURCE
#include "websocket.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { FRAME_HEAD_MOST = 14, CONTROL_MOST = 125, DIGITS = 8 };

enum opcode { CONTINUATION, TEXT, BINARY, CLOSE = 8, PING, PONG };

/* The example of RFC 6455, 1.3: a constant key has a constant answer. */
#define KEY "dGhlIHNhbXBsZSBub25jZQ=="
#define ACCEPT "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="

struct frame {
    bool final;
    enum opcode opcode;
    const unsigned char *payload;
    size_t length;
};

struct crowd crowd = {.size = 32, .burst = 1};

static char *message, *inbox;
static unsigned char *outbox;
static size_t inbox_room;

bool prepare_crowd(const char *target) {
    snprintf(crowd.handshake, sizeof crowd.handshake,
             "GET %s HTTP/1.1\r\nHost: localhost:%d\r\nUpgrade: websocket\r\n"
             "Connection: Upgrade\r\nSec-WebSocket-Key: " KEY "\r\n"
             "Sec-WebSocket-Version: 13\r\n\r\n", target, crowd.port);
    inbox_room = 2 * crowd.size + (1 << 16);
    inbox = malloc(inbox_room);
    message = malloc(crowd.size + MESSAGE_LEAST);
    outbox = malloc(crowd.burst * (FRAME_HEAD_MOST + (crowd.size > CONTROL_MOST ? crowd.size : CONTROL_MOST)));
    return inbox && message && outbox;
}

void leave(struct client *c, long *errors) {
    if (c->state == CONNECTING || c->state == SHAKING) crowd.opening--;
    if (c->state == OPEN) crowd.open--;
    ++*errors;
    c->state = GONE;
    free(c->rest);
    free(c->unsent);
    free(c->reply);
    c->rest = c->unsent = NULL;
    c->reply = NULL;
    if (c->connection >= 0) close(c->connection);
}

/* An event comes once, which costs half as much: who gets one reads all. */
static void watch(struct client *c, int operation, uint32_t events) {
    struct epoll_event event = {.events = events | EPOLLET, .data.ptr = c};
    if (epoll_ctl(crowd.set, operation, c->connection, &event) < 0) {
        perror("websocket");
        exit(1);
    }
}

/* Sending */

static void keep_unsent(struct client *c, const void *octets, size_t length) {
    char *all_unsent = realloc(c->unsent, c->unsent_length + length);
    if (!all_unsent) exit(1);
    memcpy(all_unsent + c->unsent_length, octets, length);
    c->unsent = all_unsent;
    c->unsent_length += length;
    watch(c, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT);
}

static void send_all(struct client *c, const unsigned char *octets, size_t length) {
    bool queued = c->unsent_length > 0;
    ssize_t sent = queued ? 0 : send(c->connection, octets, length, MSG_NOSIGNAL);
    if (sent == (ssize_t)length) return;
    if (sent < 0 && errno != EAGAIN) {
        leave(c, &crowd.write_errors);
        return;
    }
    if (sent < 0) sent = 0;
    keep_unsent(c, octets + sent, length - (size_t)sent);
}

static void send_rest(struct client *c) {
    ssize_t sent = send(c->connection, c->unsent, c->unsent_length, MSG_NOSIGNAL);
    if (sent < 0 && errno == EAGAIN) return;
    if (sent < 0) {
        leave(c, &crowd.write_errors);
        return;
    }
    c->unsent_length -= (size_t)sent;
    memmove(c->unsent, c->unsent + sent, c->unsent_length);
    if (c->unsent_length == 0) watch(c, EPOLL_CTL_MOD, EPOLLIN);
}

/* Write the head of a masked frame to AT, and return its end. */
static unsigned char *write_head(unsigned char *at, enum opcode opcode, size_t length) {
    *at++ = (unsigned char)(0x80 | opcode);
    int octets = length <= CONTROL_MOST ? 0 : length <= 0xFFFF ? 2 : 8;
    *at++ = (unsigned char)(0x80 | (octets == 0 ? length : octets == 2 ? 126 : 127));
    while (octets-- > 0) *at++ = (unsigned char)((uint64_t)length >> (8 * octets));
    return at;
}

/* Write a masked frame to AT, and return its end. */
static unsigned char *write_frame(unsigned char *at, enum opcode opcode, const void *payload, size_t length) {
    static uint32_t key = 2463534242u;
    const unsigned char *octets = payload;
    key ^= key << 13;
    key ^= key >> 17;
    key ^= key << 5;
    unsigned char *mask = write_head(at, opcode, length), *to = mask + sizeof key;
    memcpy(mask, &key, sizeof key);
    for (size_t i = 0; i < length; i++) to[i] = octets[i] ^ mask[i % sizeof key];
    return to + length;
}

/* Write NUMBER to AT in DIGITS hexadecimal digits. */
static void write_number(char *at, long number) {
    for (int i = DIGITS; i-- > 0; number >>= 4) at[i] = "0123456789abcdef"[number & 0xF];
}

/* Write message NUMBER of C to message. */
static void write_message(const struct client *c, long number) {
    memcpy(message, "________ ________ : ", MESSAGE_LEAST);
    write_number(message, c->index);
    write_number(message + DIGITS + 1, number);
    memset(message + MESSAGE_LEAST, 'a' + (int)(number % 26), crowd.size - MESSAGE_LEAST);
}

void speak(struct client *c, long now) {
    unsigned char *end = outbox;
    for (size_t i = 0; i < crowd.burst; i++) {
        write_message(c, ++c->number);
        end = write_frame(end, TEXT, message, crowd.size);
    }
    c->right = true;
    c->echoed = 0;
    c->begin_us = now;
    send_all(c, outbox, (size_t)(end - outbox));
}

bool is_waiting(const struct client *c) {
    return c->heard < c->number;
}

/* Receiving */

static void end_echo(struct client *c) {
    long now = now_us();
    c->in_message = false;
    c->heard++;
    if (!c->right || c->echoed != crowd.size) {
        crowd.wrong++;
    } else {
        record_delay(&crowd.delays, now - c->begin_us);
        c->served++;
    }
    c->right = true;
    c->echoed = 0;
    if (!crowd.once && !is_waiting(c)) speak(c, now);
}

static void take_data(struct client *c, const struct frame *frame) {
    if (c->in_message != (frame->opcode == CONTINUATION)) {
        leave(c, &crowd.malformed);
        return;
    }
    if (!is_waiting(c)) {                /* an echo that comes twice, or of nothing */
        crowd.wrong++;
        return;
    }
    write_message(c, c->heard + 1);
    c->in_message = true;
    c->right = c->right && frame->opcode != BINARY && frame->length <= crowd.size - c->echoed &&
               memcmp(frame->payload, message + c->echoed, frame->length) == 0;
    c->echoed += frame->length;
    if (frame->final) end_echo(c);
}

static void take(struct client *c, const struct frame *frame) {
    switch (frame->opcode) {
    case CONTINUATION:
    case TEXT:
    case BINARY:
        take_data(c, frame);
        break;
    case PING:
        crowd.pings++;
        send_all(c, outbox,
                 (size_t)(write_frame(outbox, PONG, frame->payload, frame->length) - outbox));
        break;
    case PONG:
        break;
    case CLOSE:
        leave(c, &crowd.read_errors);
        break;
    }
}

static bool is_allowed(const unsigned char *at, size_t length) {
    enum opcode opcode = at[0] & 0x0F;
    bool control = opcode >= CLOSE;
    if (at[0] & 0x70 || at[1] & 0x80) return false;
    if (control && (!(at[0] & 0x80) || length > CONTROL_MOST)) return false;
    return opcode <= BINARY || (control && opcode <= PONG);
}

/* The number of octets of the frame at AT, of which COUNT have come, read into
   *FRAME; 0 if it is not whole, and -1 if it is not allowed, or longer than
   anything that was sent. */
static long read_frame(const unsigned char *at, size_t count, struct frame *frame) {
    if (count < 2) return 0;
    size_t octets = (at[1] & 0x7F) == 126 ? 2 : (at[1] & 0x7F) == 127 ? 8 : 0;
    if (count < 2 + octets) return 0;
    uint64_t length = octets ? 0 : at[1] & 0x7F;
    for (size_t i = 0; i < octets; i++) length = length << 8 | at[2 + i];
    if (length > inbox_room / 2 || !is_allowed(at, length)) return -1;
    frame->final = at[0] & 0x80;
    frame->opcode = at[0] & 0x0F;
    frame->payload = at + 2 + octets;
    frame->length = length;
    return count < 2 + octets + length ? 0 : (long)(2 + octets + length);
}

/* Take all whole frames among the COUNT OCTETS, and keep the rest. */
static void take_frames(struct client *c, const char *octets, size_t count) {
    while (c->state == OPEN) {
        struct frame frame;
        long length = read_frame((const unsigned char *)octets, count, &frame);
        if (length < 0) {
            leave(c, &crowd.malformed);
            return;
        }
        if (length == 0) break;
        take(c, &frame);
        octets += length;
        count -= (size_t)length;
    }
    if (c->state != OPEN || count == 0) return;
    if (!(c->rest = malloc(count))) exit(1);
    memcpy(c->rest, octets, count);
    c->rest_length = count;
}

/* True if more may have come than there was room for. */
static bool hear_some(struct client *c) {
    size_t had = c->rest_length;
    if (had) memcpy(inbox, c->rest, had);
    ssize_t got = recv(c->connection, inbox + had, inbox_room - had, 0);
    if (got < 0 && errno == EAGAIN) return false;
    if (got <= 0) {
        leave(c, &crowd.read_errors);
        return false;
    }
    free(c->rest);
    c->rest = NULL;
    c->rest_length = 0;
    take_frames(c, inbox, had + (size_t)got);
    return (size_t)got == inbox_room - had;
}

static void hear(struct client *c) {
    while (c->state == OPEN && hear_some(c)) continue;
}

/* Opening */

void begin(struct client *c) {
    c->state = CONNECTING;
    crowd.opening++;
    c->connection = open_client(crowd.port, c->index, false, 0);
    if (c->connection < 0) leave(c, &crowd.connect_errors);
    else watch(c, EPOLL_CTL_ADD, EPOLLOUT);
}

static void connected(struct client *c) {
    if (connecting_failed(c->connection)) {
        leave(c, &crowd.connect_errors);
        return;
    }
    watch(c, EPOLL_CTL_MOD, EPOLLIN);
    c->state = SHAKING;
    if (!(c->reply = malloc(sizeof *c->reply))) exit(1);
    c->reply->have = 0;
    if (!send_octets(c->connection, crowd.handshake, strlen(crowd.handshake))) leave(c, &crowd.write_errors);
}

static bool is_accepted(const struct reply *reply) {
    const char *answer = field(reply, "Sec-WebSocket-Accept:");
    const char *protocol = field(reply, "Upgrade:");
    return strncmp(reply->bytes, "HTTP/1.1 101", 12) == 0 && protocol &&
           strncasecmp(protocol, "websocket\r", 10) == 0 && answer &&
           strncmp(answer, ACCEPT "\r", sizeof ACCEPT) == 0;
}

static void shake(struct client *c) {
    if (receive_reply(c->connection, c->reply) == CONNECTION_LOST) {
        leave(c, &crowd.read_errors);
        return;
    }
    const char *end = head_end(c->reply);
    if (!end) return;
    if (!is_accepted(c->reply)) {
        leave(c, &crowd.refused);
        return;
    }
    crowd.opening--;
    crowd.open++;
    c->state = OPEN;
    take_frames(c, end + 4, c->reply->have - (size_t)(end + 4 - c->reply->bytes));
    free(c->reply);
    c->reply = NULL;
}

void go_on(struct client *c, uint32_t events) {
    if (c->state == CONNECTING) connected(c);
    else if (c->state == SHAKING) shake(c);
    else if (c->state == OPEN) {
        if (events & EPOLLOUT && c->unsent_length > 0) send_rest(c);
        if (c->state == OPEN && events & (EPOLLIN | EPOLLERR | EPOLLHUP)) hear(c);
    }
}
