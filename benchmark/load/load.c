/* load -- many connections that last: each is opened, and asked when all are open.

   usage: load once   PORT CONNECTIONS SECONDS OPENING TARGET
          load events PORT CONNECTIONS SECONDS TARGET
          load echo   PORT CONNECTIONS SECONDS TARGET

   All connections are opened, with one request each: a GET of OPENING, one of
   TARGET for events, or a WebSocket's handshake for TARGET.  The program prints
   "held=N" when as many are open as will be, and waits for a line, or for the
   end, of its standard input.  Then

   once    each connection sends one GET of TARGET.  Where TARGET ends with "n=",
           the connection's number is added, and the content of the answer must
           be that number; so an answer for somebody else is noticed.  Whoever has
           no answer after SECONDS has failed.
   events  for SECONDS, counts the server-sent events that come.  An event's id
           must be one more than that of the event before, and its data the time
           at which it was published, in microseconds since 1970.
   echo    for SECONDS, each connection sends a message of 32 octets, and the next
           one when the echo has come.  An echo must be what was sent.

   The last line has what wrk.lua prints: requests that were answered, or events,
   or echoes; their time in all; percentiles of their latency (of an event: from
   its publication); and failures: connections that were refused, closed or not
   answered in time, answers that were wrong, and events that were lacking. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    ROOM = 1024,                        /* for what has come and is not understood yet */
    OPENING_MOST = 200,                 /* connections at once, for the listen queue */
    OPENING_US = 15000000,
    LATE_US = 1000000,                  /* for events that others have by then */
    PER_ADDRESS = 2000,                 /* connections from each source address */
    MESSAGE = 32,
    EVENTS = 256
};

enum mode { ONCE, EVENT_STREAM, ECHO };

/* OPENING: connecting, or waiting for the answer that opens.  WAITING: for an
   answer or an echo.  OPEN ones wait for nothing, or for events. */
enum state { UNBORN, OPENING, OPEN, WAITING, GONE };

struct client {
    int fd;
    enum state state;
    bool connected;
    unsigned have;
    long number;                        /* of the last message, or the id of the last event */
    long counted;                       /* events in the time that counts */
    int64_t begin_us, event_id, event_us;
    char bytes[ROOM + 1];
};

static enum mode mode;
static int port, count, set, opening, open_now, waiting;
static const char *target, *first;
static bool running;
static int64_t start_us, end_us;        /* of CLOCK_REALTIME for events, else monotonic */
static struct client *all;
static long failures;

static uint32_t *latencies;
static size_t latency_count, latency_room;

static int64_t clock_us(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static int64_t now_us(void) { return clock_us(CLOCK_MONOTONIC); }

static void die(const char *what) {
    perror(what);
    exit(1);
}

static void record(int64_t latency_us) {
    if (latency_count == latency_room) {
        latency_room = latency_room ? 2 * latency_room : 1 << 16;
        latencies = realloc(latencies, latency_room * sizeof *latencies);
        if (!latencies) die("realloc");
    }
    latencies[latency_count++] = latency_us > 0 ? (uint32_t)latency_us : 0;
}

static void leave(struct client *c) {
    if (c->state == OPENING) opening--;
    else open_now--;
    if (c->state == WAITING) waiting--;
    c->state = GONE;
    failures++;
    close(c->fd);
}

static void say(struct client *c, const char *octets, size_t length) {
    if (send(c->fd, octets, length, MSG_NOSIGNAL) != (ssize_t)length) leave(c);
}

/* Opening */

/* Connections are spread over source addresses, apart from those of wrk: one
   address has some 28,000 ports, and the kernel searches long for a free one. */
static void come(struct client *c) {
    int on = 1;
    uint32_t source = INADDR_LOOPBACK + 256 + (uint32_t)((c - all) / PER_ADDRESS);
    struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(source)};
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    c->state = OPENING;
    opening++;
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(c->fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = c};
    if (c->fd < 0 || bind(c->fd, (struct sockaddr *)&from, sizeof from) < 0 ||
        (connect(c->fd, (struct sockaddr *)&to, sizeof to) < 0 && errno != EINPROGRESS) ||
        epoll_ctl(set, EPOLL_CTL_ADD, c->fd, &event) < 0)
        leave(c);
}

static void get(struct client *c, const char *path, long number, const char *fields) {
    char text[ROOM], digits[24] = "";
    if (number >= 0) snprintf(digits, sizeof digits, "%ld", number);
    int length = snprintf(text, sizeof text, "GET %s%s HTTP/1.1\r\nHost: localhost\r\n%s\r\n",
                          path, digits, fields);
    say(c, text, (size_t)length);
}

/* The key is the example of RFC 6455, 1.3. */
static void open_up(struct client *c) {
    c->connected = true;
    if (mode == ONCE) get(c, first, -1, "");
    else if (mode == EVENT_STREAM) get(c, target, -1, "Accept: text/event-stream\r\n");
    else get(c, target, -1, "Upgrade: websocket\r\nConnection: Upgrade\r\n"
                            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
                            "Sec-WebSocket-Version: 13\r\n");
}

/* Answers */

/* Where the content of the answer begins that C has got; NULL while its head is not whole. */
static char *content(struct client *c) {
    char *end = strstr(c->bytes, "\r\n\r\n");
    return end ? end + 4 : NULL;
}

/* The length of the content of C, whose head is whole, or -1: without Content-Length. */
static long content_length(struct client *c) {
    const char *field = strcasestr(c->bytes, "\r\nContent-Length:");
    return field && field < content(c) ? atol(field + 17) : -1;
}

static bool has_status(struct client *c, const char *status) {
    return strncmp(c->bytes, "HTTP/1.1 ", 9) == 0 && strncmp(c->bytes + 9, status, 3) == 0;
}

static void forget(struct client *c, size_t octets) {
    c->have -= (unsigned)octets;
    memmove(c->bytes, c->bytes + octets, c->have + 1);
}

/* An answer with a Content-Length, or part of it, has come.  True when it is whole. */
static bool answer_is_whole(struct client *c) {
    char *begin = content(c);
    if (!begin) return false;
    long length = content_length(c), come = (long)(c->bytes + c->have - begin);
    if (!has_status(c, "200") || length < 0 || come > length) leave(c);
    return c->state != GONE && come == length;
}

static void take_answer(struct client *c) {
    if (!answer_is_whole(c)) return;
    char *end;
    bool numbered = target[strlen(target) - 1] == '=';
    bool right = !numbered || (strtol(content(c), &end, 10) == c->number && end > content(c));
    if (!right) {
        leave(c);
        return;
    }
    record(now_us() - c->begin_us);
    forget(c, c->have);
    waiting--;
    c->state = OPEN;
}

/* Has the answer come that opens C? */
static void take_opening(struct client *c) {
    if (mode == ONCE && !answer_is_whole(c)) return;
    char *begin = content(c);
    if (!begin) return;
    if (!has_status(c, mode == ECHO ? "101" : "200")) {
        leave(c);
        return;
    }
    opening--;
    open_now++;
    c->state = OPEN;
    if (mode == ONCE) forget(c, c->have);
    else forget(c, (size_t)(begin - c->bytes));
}

/* Events.  What stands between chunks looks like lines that are of no interest. */

static void end_event(struct client *c) {
    int64_t now = clock_us(CLOCK_REALTIME);
    if (c->number >= 0 && c->event_id != c->number + 1) failures++;
    c->number = c->event_id;
    if (!running || c->event_us < start_us || c->event_us >= end_us) return;
    c->counted++;
    record(now - c->event_us);
}

/* Ids count from 1; an event's id may stand before its data or behind. */
static void take_line(struct client *c, const char *line) {
    if (strncmp(line, "id:", 3) == 0) c->event_id = atol(line + 3);
    else if (strncmp(line, "data:", 5) == 0) c->event_us = atoll(line + 5);
    if (!c->event_id || !c->event_us) return;
    end_event(c);
    c->event_id = c->event_us = 0;
}

static void take_lines(struct client *c) {
    char *begin = c->bytes, *end;
    while ((end = memchr(begin, '\n', (size_t)(c->bytes + c->have - begin)))) {
        *end = 0;
        take_line(c, begin);
        begin = end + 1;
    }
    forget(c, (size_t)(begin - c->bytes));
}

/* Echoes */

static void message_of(const struct client *c, char *message) {
    snprintf(message, MESSAGE + 1, "%08x %08lx: hello, hello.", (unsigned)(c - all), c->number);
}

static void speak(struct client *c) {
    static const unsigned char mask[] = {0x37, 0xfa, 0x21, 0x3d};
    char message[MESSAGE + 1];
    unsigned char frame[6 + MESSAGE] = {0x81, 0x80 | MESSAGE};
    c->number++;
    message_of(c, message);
    memcpy(frame + 2, mask, sizeof mask);
    for (int i = 0; i < MESSAGE; i++) frame[6 + i] = (unsigned char)message[i] ^ mask[i % 4];
    c->begin_us = now_us();
    say(c, (const char *)frame, sizeof frame);
}

static void take_frames(struct client *c) {
    while (c->have >= 2 && c->state != GONE) {
        unsigned length = (unsigned char)c->bytes[1];
        if (length > 125) leave(c);
        if (c->state == GONE || c->have < 2 + length) return;
        char message[MESSAGE + 1];
        message_of(c, message);
        bool ping = (unsigned char)c->bytes[0] == 0x89;
        bool right = c->state == WAITING && (unsigned char)c->bytes[0] == 0x81 &&
                     length == MESSAGE && memcmp(c->bytes + 2, message, MESSAGE) == 0;
        forget(c, 2 + length);
        if (ping) continue;             /* no server waits for a pong that briefly */
        if (!right) leave(c);
        else record(now_us() - c->begin_us);
        if (right) speak(c);
    }
}

/* All */

static void take(struct client *c) {
    if (c->state == OPENING) take_opening(c);
    else if (mode == ONCE && c->state == WAITING) take_answer(c);
    else if (mode == ONCE) leave(c);    /* more than was asked for */
    if (c->state == GONE || c->state == OPENING) return;
    if (mode == EVENT_STREAM) take_lines(c);
    if (mode == ECHO) take_frames(c);
}

static void hear(struct client *c) {
    while (c->state != GONE) {
        ssize_t got = recv(c->fd, c->bytes + c->have, ROOM - c->have, 0);
        if (got < 0 && errno == EAGAIN) return;
        if (got <= 0) {                 /* the end, an error, or no room for what there is */
            leave(c);
            return;
        }
        c->have += (unsigned)got;
        c->bytes[c->have] = 0;
        take(c);
    }
}

static void wait_for(int64_t us) {
    struct epoll_event ready[EVENTS];
    int n = epoll_wait(set, ready, EVENTS, us > 0 ? (int)(us / 1000 + 1) : 0);
    for (int i = 0; i < n; i++) {
        struct client *c = ready[i].data.ptr;
        if (c->state == GONE) continue;
        if (!c->connected && ready[i].events & (EPOLLERR | EPOLLHUP)) leave(c);
        else if (!c->connected) open_up(c);
        if (c->state != GONE && ready[i].events & EPOLLIN) hear(c);
    }
}

static void open_all(void) {
    int begun = 0;
    int64_t end = now_us() + OPENING_US;
    while ((begun < count || opening > 0) && now_us() < end) {
        if (begun < count && opening < OPENING_MOST) come(&all[begun++]);
        else wait_for(end - now_us());
    }
    for (int i = 0; i < begun; i++)
        if (all[i].state == OPENING) leave(&all[i]);
    failures += count - begun;
}

static void await_word(void) {
    char word[64];
    printf("held=%d\n", open_now);
    fflush(stdout);
    if (!fgets(word, sizeof word, stdin)) return;
}

/* What has come while nobody listened, the end of a connection for one. */
static void catch_up(void) {
    for (int i = 0; i < count; i++)
        if (all[i].state == OPEN) hear(&all[i]);
}

static void ask_all(void) {
    bool numbered = target[strlen(target) - 1] == '=';
    for (int i = 0; i < count; i++) {
        struct client *c = &all[i];
        if (c->state != OPEN) continue;
        c->state = WAITING;
        waiting++;
        if (mode == ECHO) {
            speak(c);
        } else {
            c->number = i;
            c->begin_us = now_us();
            get(c, target, numbered ? i : -1, "");
        }
        if (i % 64 == 0) wait_for(0);
    }
}

static void run(int64_t us) {
    int64_t begin = now_us(), end = begin + us;
    if (mode == EVENT_STREAM) {
        start_us = clock_us(CLOCK_REALTIME);
        end_us = start_us + us;
        end += LATE_US;
    }
    running = true;
    if (mode != EVENT_STREAM) ask_all();
    for (int64_t now; (now = now_us()) < end && (mode != ONCE || waiting > 0);) wait_for(end - now);
}

static void count_lacking(void) {
    long most = 0;
    for (int i = 0; i < count; i++)
        if (all[i].counted > most) most = all[i].counted;
    for (int i = 0; i < count; i++) failures += most - all[i].counted;
}

static int by_size(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static unsigned percentile(double part) {
    return latency_count ? latencies[(size_t)(part * (double)(latency_count - 1))] : 0;
}

static void report(int64_t duration_us) {
    if (mode == EVENT_STREAM) count_lacking();
    if (mode == ONCE) failures += waiting;
    qsort(latencies, latency_count, sizeof *latencies, by_size);
    printf("figures requests=%zu duration_us=%lld p50_us=%u p99_us=%u failures=%ld\n",
           latency_count, (long long)duration_us, percentile(0.5), percentile(0.99), failures);
}

int main(int words, char **word) {
    if (words > 1 && strcmp(word[1], "events") == 0) mode = EVENT_STREAM;
    if (words > 1 && strcmp(word[1], "echo") == 0) mode = ECHO;
    if (words != (mode == ONCE ? 7 : 6)) {
        fprintf(stderr, "usage: load once PORT CONNECTIONS SECONDS OPENING TARGET\n"
                        "       load events|echo PORT CONNECTIONS SECONDS TARGET\n");
        return 2;
    }
    port = atoi(word[2]);
    count = atoi(word[3]);
    first = word[5];
    target = word[words - 1];
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    set = epoll_create1(0);
    all = calloc((size_t)count, sizeof *all);
    if (!all || set < 0) die("load");
    for (int i = 0; i < count; i++) all[i].number = -1;
    open_all();
    await_word();
    catch_up();
    int64_t begin = now_us();
    run((int64_t)(1e6 * atof(word[4])));
    report(now_us() - begin);
    return 0;
}
