/* publisher -- what it costs, at least, to write an event to many subscribers.

   usage: publisher PORT CLIENTS SECONDS PERIOD_MS

   Serves 127.0.0.1:PORT from one epoll loop.  A request for /events is answered
   with a stream of server-sent events, any other with "Hey!".  Once in PERIOD_MS
   an event is made, and its octets, a chunk, are written to all subscribers: an
   id that counts, and data that are the time, in microseconds of
   CLOCK_REALTIME.  A subscriber whose connection does not take an event whole
   is dropped.

   As soon as CLIENTS are there it measures for SECONDS what this takes, and
   prints a line of figures, "ruler name=integer ...", and ends:
   clients     subscribers at the end
   events, writes
               events that were published; writes of one to one subscriber
   dropped     subscribers that were
   cpu_us      processor time, user and system
   cpu_ns_per_write
   publish_us  how long it took to write one event to all, at most
   With 0 CLIENTS it never ends.

   Like limit, it is no server to use: nothing is parsed beyond what the answer
   depends on, and a request must arrive in one piece. */

#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "client.h"

/* Descriptors of connections must be below DESCRIPTORS. */
enum { DESCRIPTORS = 1 << 17, EVENTS = 256, REQUEST_BYTES = 4096, EVENT_BYTES = 256 };

/* The connections of all subscribers, and where in that each is, from 1. */
static int subscribers[DESCRIPTORS], places[DESCRIPTORS], count;

static int set, listener, timer, wanted;
static long id, writes, dropped, slowest_us;

/* What there was when the measurement began; BEGIN_US is 0 until then. */
static long begin_us, begin_id, begin_writes, begin_cpu_us;

static const char stream_head[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                                  "Cache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n";
static const char hey[] = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
                          "Content-Length: 4\r\n\r\nHey!";
static const char last_hey[] = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
                               "Content-Length: 4\r\nConnection: close\r\n\r\nHey!";

static void die(const char *what) {
    perror(what);
    exit(1);
}

static long cpu_us(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000 +
           usage.ru_utime.tv_usec + usage.ru_stime.tv_usec;
}

static long real_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void subscribe(int connection) {
    subscribers[count] = connection;
    places[connection] = ++count;
}

static void hang_up(int connection) {
    int place = places[connection];
    if (place > 0) {                    /* the last one takes its place */
        int last = subscribers[--count];
        subscribers[place - 1] = last;
        places[last] = place;
        places[connection] = 0;
    }
    close(connection);
}

/* Publishing */

/* Write the next event to OCTETS, as a chunk, and return its length. */
static size_t write_event(char *octets) {
    char text[EVENT_BYTES / 2];
    int length = snprintf(text, sizeof text, "id: %ld\ndata: %ld\n\n", ++id, real_us());
    return (size_t)snprintf(octets, EVENT_BYTES, "%x\r\n%s\r\n", (unsigned)length, text);
}

static void publish(void) {
    char octets[EVENT_BYTES];
    long start_us = now_us();
    size_t length = write_event(octets);
    /* From the end, because who is dropped is replaced by the last one. */
    for (int i = count; i-- > 0;) {
        writes++;
        if (send_octets(subscribers[i], octets, length)) continue;
        dropped++;
        hang_up(subscribers[i]);
    }
    long us = now_us() - start_us;
    if (begin_us && us > slowest_us) slowest_us = us;
}

static void begin_measuring(void) {
    begin_us = now_us();
    begin_id = id;
    begin_writes = writes;
    begin_cpu_us = cpu_us();
}

static void report(void) {
    long cpu = cpu_us() - begin_cpu_us, written = writes - begin_writes;
    printf("ruler clients=%d events=%ld writes=%ld dropped=%ld cpu_us=%ld cpu_ns_per_write=%ld "
           "publish_us=%ld\n", count, id - begin_id, written, dropped, cpu,
           written ? cpu * 1000 / written : 0, slowest_us);
}

/* Connections */

static void watch(int descriptor) {
    struct epoll_event event = {.events = EPOLLIN, .data.fd = descriptor};
    if (epoll_ctl(set, EPOLL_CTL_ADD, descriptor, &event) < 0) die("epoll_ctl");
}

static void answer(int connection, const char *request) {
    bool stream = strncmp(request, "GET /events", 11) == 0;
    bool last = !stream && strstr(request, "Connection: close");
    const char *text = stream ? stream_head : last ? last_hey : hey;
    if (!send_octets(connection, text, strlen(text)) || last) hang_up(connection);
    else if (stream) subscribe(connection);
}

static void serve(int connection) {
    char request[REQUEST_BYTES + 1];
    ssize_t length = recv(connection, request, REQUEST_BYTES, 0);
    if (length < 0 && errno == EAGAIN) return;
    if (length <= 0) {
        hang_up(connection);
    } else if (places[connection] == 0) {
        request[length] = 0;
        answer(connection, request);
    }
}

static void accept_all(void) {
    int connection;
    while ((connection = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        if (connection >= DESCRIPTORS) close(connection);
        else watch(connection);
    }
}

static void open_listener(int port) {
    int on = 1;
    struct sockaddr_in here = {.sin_family = AF_INET,
                               .sin_port = htons((uint16_t)port),
                               .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    /* Connections inherit it. */
    setsockopt(listener, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (bind(listener, (struct sockaddr *)&here, sizeof here) < 0) die("bind");
    if (listen(listener, 1 << 16) < 0) die("listen");
    watch(listener);
}

static void open_timer(long period_ms) {
    struct timespec period = {period_ms / 1000, period_ms % 1000 * 1000000};
    struct itimerspec at = {.it_value = period, .it_interval = period};
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    if (timer < 0 || timerfd_settime(timer, 0, &at, NULL) < 0) die("timer");
    watch(timer);
}

static void publish_if_due(void) {
    uint64_t times;
    if (read(timer, &times, sizeof times) == sizeof times) publish();
}

static void run(long measured_us) {
    while (!begin_us || now_us() - begin_us < measured_us) {
        struct epoll_event ready[EVENTS];
        int events = epoll_wait(set, ready, EVENTS, 100);
        for (int i = 0; i < events; i++) {
            int descriptor = ready[i].data.fd;
            if (descriptor == listener) accept_all();
            else if (descriptor == timer) publish_if_due();
            else serve(descriptor);
        }
        if (!begin_us && wanted > 0 && count >= wanted) begin_measuring();
    }
}

int main(int words_count, char **words) {
    struct sched_param none = {0};
    if (words_count != 5 || atol(words[4]) < 1) {
        fprintf(stderr, "usage: publisher PORT CLIENTS SECONDS PERIOD_MS\n");
        return 2;
    }
    wanted = atoi(words[2]);
    raise_descriptor_limit();
    if (sched_setscheduler(0, SCHED_BATCH, &none) < 0) die("SCHED_BATCH");
    set = epoll_create1(0);
    open_listener(atoi(words[1]));
    open_timer(atol(words[4]));
    run((long)(1e6 * atof(words[3])));
    report();
    return 0;
}
