/* limit -- what this machine and its kernel can give, whatever the server.

   usage: limit PORT BACKLOG LOOPS DELAY_MS SLOW_MS FILES

   LOOPS threads, each with an epoll set and a listening socket of its own on
   127.0.0.1:PORT, answer every request with the same fixed bytes, DELAY_MS
   after it came, or SLOW_MS where it is for /slow.  /files/NAME is that file
   of the directory FILES, and what is posted is received before it is answered.
   Nothing is parsed beyond what the answer depends on, so this is no server to
   use: it is the upper edge of the charts.

   To be an upper edge it must know every means that a server here uses: the
   kernel hands out a connection when its first request is there
   (TCP_DEFER_ACCEPT), which is read at once, so that a connection of one
   request is never put into the epoll set; events are edge-triggered; the
   threads are scheduled as computing ones (SCHED_BATCH), so that they are not
   interrupted by each client that wakes up.

   It relies on what the load tools here do: a request arrives in one piece,
   and the next one is not sent before the answer has come. */

#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "answers.h"

#define SECOND_NS 1000000000u

/* WAITING answers of one lane may be due later. */
enum { WAITING = 1 << 16, EVENTS = 64, REQUEST_BYTES = 4096 };

/* For how long the kernel waits for the first request of a connection. */
enum { DEFER_SECONDS = 1 };

/* An answer that is due later. */
struct answer {
    int connection;
    unsigned life;
    bool last;
    uint64_t due_ns;
};

/* Answers with the same delay fall due in the order in which they were asked:
   a ring is enough, and one timer for its head. */
struct lane {
    int timer;
    uint64_t delay_ns;
    struct answer ring[WAITING];
    unsigned head, tail;
};

enum { YO, SLOW, LANES };

struct loop {
    int epoll, listener;
    struct lane lanes[LANES];
};

static int port, backlog;
static uint64_t delays_ns[LANES];

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * SECOND_NS + (uint64_t)t.tv_nsec;
}

static void set_timer(struct lane *lane, uint64_t due_ns) {
    struct itimerspec at = {.it_value = {.tv_sec = (time_t)(due_ns / SECOND_NS),
                                         .tv_nsec = (long)(due_ns % SECOND_NS)}};
    timerfd_settime(lane->timer, TFD_TIMER_ABSTIME, &at, NULL);
}

static void answer_later(struct lane *lane, int connection, bool last) {
    struct answer a = {connection, connections[connection].life, last, now_ns() + lane->delay_ns};
    if (lane->head == lane->tail) set_timer(lane, a.due_ns);
    lane->ring[lane->tail++ % WAITING] = a;
}

/* The timer need not be read: it is watched for edges, and set anew. */
static void answer_what_is_due(struct lane *lane) {
    uint64_t now = now_ns();
    for (; lane->head != lane->tail; lane->head++) {
        struct answer *a = &lane->ring[lane->head % WAITING];
        if (a->due_ns > now) {
            set_timer(lane, a->due_ns);
            return;
        }
        if (a->life == connections[a->connection].life) answer(a->connection, a->last);
    }
}

static void watch(struct loop *loop, int descriptor, uint32_t events) {
    struct epoll_event event = {.events = events, .data.fd = descriptor};
    if (epoll_ctl(loop->epoll, EPOLL_CTL_ADD, descriptor, &event) < 0) die("epoll_ctl");
}

/* Serve what CONNECTION asks, if it has asked; is it still open then?
   GONE: the client has said that it will send no more. */
static bool serve(struct loop *loop, int connection, bool gone) {
    char request[REQUEST_BYTES + 1];
    if (connections[connection].upload_left > 0) return take_upload(connection);
    ssize_t length = read(connection, request, REQUEST_BYTES);
    if (length < 0 && errno == EAGAIN) return true;
    if (length <= 0) {
        hang_up(connection);
        return false;
    }
    request[length] = 0;
    bool last = gone || strstr(request, "Connection: close") != NULL;
    if (request[0] == 'P') return begin_upload(connection, request, (size_t)length, last);
    const struct file *file = requested_file(request);
    if (file) return begin_file(connection, file, last);
    struct lane *lane = &loop->lanes[strncmp(request, "GET /slow", 9) == 0 ? SLOW : YO];
    if (!lane->delay_ns) return answer(connection, last);
    answer_later(lane, connection, last);
    return !last;
}

static void go_on(struct loop *loop, int connection, uint32_t events) {
    if (connections[connection].file) send_file(connection);
    /* That it can be written to, and no more, is told when it is first watched. */
    else if (events != EPOLLOUT) serve(loop, connection, events & EPOLLRDHUP);
}

static void accept_all(struct loop *loop) {
    int connection;
    while ((connection = accept4(loop->listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        if (connection >= DESCRIPTORS) close(connection);
        else if (serve(loop, connection, false))
            watch(loop, connection, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
    }
}

static void open_listener(struct loop *loop) {
    int on = 1, seconds = DEFER_SECONDS;
    struct sockaddr_in here = {.sin_family = AF_INET,
                               .sin_port = htons((uint16_t)port),
                               .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    loop->listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    setsockopt(loop->listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    setsockopt(loop->listener, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
    /* Connections inherit it. */
    setsockopt(loop->listener, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(loop->listener, IPPROTO_TCP, TCP_DEFER_ACCEPT, &seconds, sizeof seconds);
    if (bind(loop->listener, (struct sockaddr *)&here, sizeof here) < 0) die("bind");
    if (listen(loop->listener, backlog) < 0) die("listen");
}

static void open_lanes(struct loop *loop) {
    for (int i = 0; i < LANES; i++) {
        struct lane *lane = &loop->lanes[i];
        lane->delay_ns = delays_ns[i];
        lane->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
        watch(loop, lane->timer, EPOLLIN | EPOLLET);
    }
}

/* The lane whose timer DESCRIPTOR is, or NULL. */
static struct lane *lane_of(struct loop *loop, int descriptor) {
    for (int i = 0; i < LANES; i++)
        if (loop->lanes[i].timer == descriptor) return &loop->lanes[i];
    return NULL;
}

static void schedule_as_computing(void) {
    struct sched_param none = {0};
    int error = pthread_setschedparam(pthread_self(), SCHED_BATCH, &none);
    if (error) {
        errno = error;
        die("SCHED_BATCH");
    }
}

static void *run_loop(void *unused) {
    (void)unused;
    schedule_as_computing();
    struct loop *loop = calloc(1, sizeof *loop);
    if (!loop) die("calloc");
    loop->epoll = epoll_create1(0);
    open_listener(loop);
    watch(loop, loop->listener, EPOLLIN);
    open_lanes(loop);
    for (;;) {
        struct epoll_event ready[EVENTS];
        int count = epoll_wait(loop->epoll, ready, EVENTS, -1);
        for (int i = 0; i < count; i++) {
            int descriptor = ready[i].data.fd;
            struct lane *lane = lane_of(loop, descriptor);
            if (lane) answer_what_is_due(lane);
            else if (descriptor == loop->listener) accept_all(loop);
            else go_on(loop, descriptor, ready[i].events);
        }
    }
    return NULL;
}

int main(int count, char **words) {
    if (count != 7) {
        fprintf(stderr, "usage: limit PORT BACKLOG LOOPS DELAY_MS SLOW_MS FILES\n");
        return 2;
    }
    port = atoi(words[1]);
    backlog = atoi(words[2]);
    delays_ns[YO] = (uint64_t)atoi(words[4]) * 1000000u;
    delays_ns[SLOW] = (uint64_t)atoi(words[5]) * 1000000u;
    signal(SIGPIPE, SIG_IGN);           /* sendfile has no flag for it */
    prepare_answers(words[6]);
    for (int i = 1; i < atoi(words[3]); i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, run_loop, NULL) != 0) die("pthread_create");
    }
    run_loop(NULL);
}
