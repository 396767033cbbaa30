/* limit -- what this machine and its kernel can give, whatever the server.

   usage: limit PORT LOOPS DELAY_MS SLOW_MS

   LOOPS threads, each with an epoll set and a listening socket of its own on
   127.0.0.1:PORT, answer every request with the same fixed bytes, DELAY_MS
   after it came, or SLOW_MS where it is for /slow.  Nothing is parsed beyond what the answer depends on, so
   this is no server to use: it is the upper edge of the charts.

   It relies on what the load tools here do: a request arrives in one piece,
   and the next one is not sent before the answer has come. */

#define _GNU_SOURCE
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
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

#define SECOND_NS 1000000000u

/* WAITING answers of one lane may be due later, on connections whose
   descriptors are below DESCRIPTORS. */
enum { WAITING = 1 << 16, DESCRIPTORS = 1 << 17, BACKLOG = 4096, EVENTS = 64, REQUEST_BYTES = 4096 };

/* An answer that is due later.  LIFE tells whether the descriptor is still
   the connection that asked: the kernel gives numbers out again. */
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

static int port;
static uint64_t delays_ns[LANES];
static unsigned lives[DESCRIPTORS];
static char keep_alive_answer[512], closing_answer[512];

static void die(const char *what) {
    perror(what);
    exit(1);
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * SECOND_NS + (uint64_t)t.tv_nsec;
}

static void prepare_answers(void) {
    char date[64];
    time_t now = time(NULL);
    strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", gmtime(&now));
    const char *form = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 4\r\n"
                       "Server: limit\r\nDate: %s\r\n%s\r\nHey!";
    snprintf(keep_alive_answer, sizeof keep_alive_answer, form, date, "");
    snprintf(closing_answer, sizeof closing_answer, form, date, "Connection: close\r\n");
}

static void hang_up(int connection) {
    lives[connection]++;
    close(connection);
}

static void answer(int connection, bool last) {
    const char *text = last ? closing_answer : keep_alive_answer;
    if (send(connection, text, strlen(text), MSG_NOSIGNAL) < 0 || last) hang_up(connection);
}

static void set_timer(struct lane *lane, uint64_t due_ns) {
    struct itimerspec at = {.it_value = {.tv_sec = (time_t)(due_ns / SECOND_NS),
                                         .tv_nsec = (long)(due_ns % SECOND_NS)}};
    timerfd_settime(lane->timer, TFD_TIMER_ABSTIME, &at, NULL);
}

static void answer_later(struct lane *lane, int connection, bool last) {
    struct answer a = {connection, lives[connection], last, now_ns() + lane->delay_ns};
    if (lane->head == lane->tail) set_timer(lane, a.due_ns);
    lane->ring[lane->tail++ % WAITING] = a;
}

static void answer_what_is_due(struct lane *lane) {
    uint64_t expirations, now = now_ns();
    if (read(lane->timer, &expirations, sizeof expirations) < 0) return;
    for (; lane->head != lane->tail; lane->head++) {
        struct answer *a = &lane->ring[lane->head % WAITING];
        if (a->due_ns > now) {
            set_timer(lane, a->due_ns);
            return;
        }
        if (a->life == lives[a->connection]) answer(a->connection, a->last);
    }
}

static void watch(struct loop *loop, int descriptor) {
    struct epoll_event event = {.events = EPOLLIN, .data.fd = descriptor};
    if (epoll_ctl(loop->epoll, EPOLL_CTL_ADD, descriptor, &event) < 0) die("epoll_ctl");
}

static void accept_all(struct loop *loop) {
    int connection, on = 1;
    while ((connection = accept4(loop->listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        if (connection >= DESCRIPTORS) {
            close(connection);
            continue;
        }
        setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        watch(loop, connection);
    }
}

static void serve(struct loop *loop, int connection) {
    char request[REQUEST_BYTES + 1];
    ssize_t length = read(connection, request, REQUEST_BYTES);
    if (length <= 0) {
        hang_up(connection);
        return;
    }
    request[length] = 0;
    bool last = strstr(request, "Connection: close") != NULL;
    struct lane *lane = &loop->lanes[strncmp(request, "GET /slow", 9) == 0 ? SLOW : YO];
    if (lane->delay_ns) answer_later(lane, connection, last);
    else answer(connection, last);
}

static void open_listener(struct loop *loop) {
    int on = 1;
    struct sockaddr_in here = {.sin_family = AF_INET,
                               .sin_port = htons((uint16_t)port),
                               .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    loop->listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    setsockopt(loop->listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    setsockopt(loop->listener, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
    if (bind(loop->listener, (struct sockaddr *)&here, sizeof here) < 0) die("bind");
    if (listen(loop->listener, BACKLOG) < 0) die("listen");
}

static void open_lanes(struct loop *loop) {
    for (int i = 0; i < LANES; i++) {
        struct lane *lane = &loop->lanes[i];
        lane->delay_ns = delays_ns[i];
        lane->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
        watch(loop, lane->timer);
    }
}

/* The lane whose timer DESCRIPTOR is, or NULL. */
static struct lane *lane_of(struct loop *loop, int descriptor) {
    for (int i = 0; i < LANES; i++)
        if (loop->lanes[i].timer == descriptor) return &loop->lanes[i];
    return NULL;
}

static void *run_loop(void *unused) {
    (void)unused;
    struct loop *loop = calloc(1, sizeof *loop);
    if (!loop) die("calloc");
    loop->epoll = epoll_create1(0);
    open_listener(loop);
    watch(loop, loop->listener);
    open_lanes(loop);
    for (;;) {
        struct epoll_event ready[EVENTS];
        int count = epoll_wait(loop->epoll, ready, EVENTS, -1);
        for (int i = 0; i < count; i++) {
            int descriptor = ready[i].data.fd;
            struct lane *lane = lane_of(loop, descriptor);
            if (lane) answer_what_is_due(lane);
            else if (descriptor == loop->listener) accept_all(loop);
            else serve(loop, descriptor);
        }
    }
    return NULL;
}

int main(int count, char **words) {
    if (count != 5) {
        fprintf(stderr, "usage: limit PORT LOOPS DELAY_MS SLOW_MS\n");
        return 2;
    }
    port = atoi(words[1]);
    delays_ns[YO] = (uint64_t)atoi(words[3]) * 1000000u;
    delays_ns[SLOW] = (uint64_t)atoi(words[4]) * 1000000u;
    prepare_answers();
    for (int i = 1; i < atoi(words[2]); i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, run_loop, NULL) != 0) die("pthread_create");
    }
    run_loop(NULL);
}
