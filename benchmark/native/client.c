#define _GNU_SOURCE
#include "client.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { CLIENTS_PER_ADDRESS = 2000 };

/* 127.0.1.1: apart from the addresses of the servers and of wrk. */
#define FIRST_SOURCE (INADDR_LOOPBACK + 256)

void raise_descriptor_limit(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

long now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

long now_ms(void) { return now_us() / 1000; }

static struct sockaddr_in address(in_addr_t host, int port) {
    return (struct sockaddr_in){.sin_family = AF_INET,
                                .sin_port = htons((uint16_t)port),
                                .sin_addr.s_addr = htonl(host)};
}

static void set_options(int connection, int timeout_ms) {
    int on = 1;
    struct timeval patience = {timeout_ms / 1000, timeout_ms % 1000 * 1000};
    setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    /* Let connect choose the port, so that it need only be unique per server. */
    setsockopt(connection, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
    setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
}

int open_client(int port, int index, bool blocking, int timeout_ms) {
    int connection = socket(AF_INET, SOCK_STREAM | (blocking ? 0 : SOCK_NONBLOCK), 0);
    if (connection < 0) return -1;
    set_options(connection, timeout_ms);
    struct sockaddr_in from = address(FIRST_SOURCE + (in_addr_t)(index / CLIENTS_PER_ADDRESS), 0);
    struct sockaddr_in to = address(INADDR_LOOPBACK, port);
    if (bind(connection, (struct sockaddr *)&from, sizeof from) == 0 &&
        (connect(connection, (struct sockaddr *)&to, sizeof to) == 0 ||
         (!blocking && errno == EINPROGRESS)))
        return connection;
    close(connection);
    return -1;
}

bool connecting_failed(int connection) {
    int error = 0;
    socklen_t length = sizeof error;
    return getsockopt(connection, SOL_SOCKET, SO_ERROR, &error, &length) < 0 || error != 0;
}

bool send_octets(int connection, const char *text, size_t length) {
    return send(connection, text, length, MSG_NOSIGNAL) == (ssize_t)length;
}

bool send_request(int connection, bool close_after) {
    static const char keep[] = "GET /yo HTTP/1.1\r\nHost: localhost\r\n\r\n";
    static const char last[] = "GET /yo HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    const char *text = close_after ? last : keep;
    return send_octets(connection, text, strlen(text));
}

/* The value of header NAME in the head that ends at END, or NULL. */
static const char *header(const struct reply *reply, const char *end, const char *name) {
    const char *line = reply->bytes;
    while ((line = strstr(line, "\r\n")) && line < end) {
        line += 2;
        if (strncasecmp(line, name, strlen(name)) == 0) return line + strlen(name);
    }
    return NULL;
}

const char *head_end(const struct reply *reply) { return strstr(reply->bytes, "\r\n\r\n"); }

const char *field(const struct reply *reply, const char *name) {
    const char *value = header(reply, head_end(reply), name);
    return value ? value + strspn(value, " ") : NULL;
}

static bool is_complete(const struct reply *reply) {
    static const char last_chunk[] = "0\r\n\r\n";
    const char *end = head_end(reply);
    if (!end) return false;
    size_t body = reply->have - (size_t)(end + 4 - reply->bytes);
    const char *length = header(reply, end, "Content-Length:");
    if (length) return body >= strtoul(length, NULL, 10);
    /* Without a length it is chunked: nothing else can be told from a
       connection that stays open. */
    size_t length_of_last = strlen(last_chunk);
    return body >= length_of_last && reply->have <= REPLY_BYTES &&
           memcmp(reply->bytes + reply->have - length_of_last, last_chunk, length_of_last) == 0;
}

static enum outcome outcome_of(const struct reply *reply) {
    if (!is_complete(reply)) return REPLY_PARTIAL;
    return strncmp(reply->bytes, "HTTP/1.1 200", 12) == 0 ? REPLY_GOOD : REPLY_REFUSED;
}

enum outcome receive_reply(int connection, struct reply *reply) {
    ssize_t got = recv(connection, reply->bytes + reply->have, REPLY_BYTES - reply->have, 0);
    if (got < 0 && errno == EAGAIN) return REPLY_PARTIAL;
    if (got <= 0) return CONNECTION_LOST;
    reply->have += (size_t)got;
    reply->bytes[reply->have] = 0;
    return outcome_of(reply);
}

enum outcome add_to_reply(struct reply *reply, const char *bytes, size_t count) {
    if (reply->have < REPLY_BYTES) {
        size_t room = REPLY_BYTES - reply->have, kept = count < room ? count : room;
        memcpy(reply->bytes + reply->have, bytes, kept);
        reply->bytes[reply->have + kept] = 0;
    }
    reply->have += count;
    return outcome_of(reply);
}

bool says_close(const struct reply *reply) {
    const char *value = field(reply, "Connection:");
    return value && strncasecmp(value, "close", 5) == 0;
}

/* Put the chunks that begin at AT together, like reply_content. */
static long join_chunks(const char *at, const char *end, char *content, size_t room) {
    size_t length = 0;
    for (;;) {
        char *line_end;
        size_t size = strtoul(at, &line_end, 16);
        if (line_end == at || !(at = strstr(line_end, "\r\n"))) return -1;
        at += 2;
        if (size >= room - length || size > (size_t)(end - at)) return -1;
        memcpy(content + length, at, size);
        content[length += size] = 0;
        at += size + 2;
        if (size == 0) return at == end ? (long)length : -1;
    }
}

long reply_content(const struct reply *reply, char *content, size_t room) {
    const char *begin = head_end(reply) + 4, *end = reply->bytes + reply->have;
    size_t length = (size_t)(end - begin);
    if (reply->have > REPLY_BYTES) return -1;
    const char *announced = field(reply, "Content-Length:");
    if (!announced) return join_chunks(begin, end, content, room);
    if (length >= room || length != strtoul(announced, NULL, 10)) return -1;
    memcpy(content, begin, length);
    content[length] = 0;
    return (long)length;
}
