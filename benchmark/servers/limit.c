/* limit -- what this machine, its kernel and the load tool can give, whatever the server.

   usage: limit PORT THREADS

   Each thread has an epoll set and a listening socket of its own, and answers every
   request with one of three fixed answers: /wait after a millisecond, by a timer;
   /file with 16 KiB; all others with "Hey!".  Nothing is parsed beyond that, so this
   is no server to use: it is the upper edge of the charts.  To be one, it uses what
   any server here uses: the kernel hands out a connection when its first request is
   there, which is read at once; events are edge-triggered; the threads are scheduled
   as computing ones (SCHED_BATCH).

   It relies on what wrk does: a request arrives in one piece, and the next one is not
   sent before the answer has come. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { FILE_BYTES = 16384, LATER_MOST = 1 << 16, WAIT_NS = 1000000, BACKLOG = 4096, EVENTS = 64 };

#define HEAD(length) "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nServer: limit\r\n" \
    "Date: Sat, 21 Nov 2026 18:00:00 GMT\r\nContent-Length: " length "\r\n"
static const char kept[] = HEAD("4") "\r\nHey!", last[] = HEAD("4") "Connection: close\r\n\r\nHey!";
static char file[FILE_BYTES + 256];
static size_t file_length;
static int port;

/* Answers of /wait fall due in the order in which they were asked: a ring is enough,
   and one timer for its head. */
struct loop {
    int epoll, listener, timer;
    unsigned head, tail;
    struct { int fd; bool close; int64_t due_ns; } later[LATER_MOST];
};

static void die(const char *what) {
    perror(what);
    exit(1);
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void set_timer(struct loop *loop, int64_t due_ns) {
    struct itimerspec at = {.it_value = {due_ns / 1000000000, due_ns % 1000000000}};
    timerfd_settime(loop->timer, TFD_TIMER_ABSTIME, &at, NULL);
}

/* What the socket does not take at once is waited for: the clients take all. */
static void send_all(int fd, const char *octets, size_t length) {
    while (length > 0) {
        ssize_t sent = send(fd, octets, length, MSG_NOSIGNAL);
        struct pollfd writable = {fd, POLLOUT, 0};
        if (sent < 0 && (errno != EAGAIN || poll(&writable, 1, 1000) != 1)) return;
        if (sent > 0) {
            octets += sent;
            length -= (size_t)sent;
        }
    }
}

static bool answer(int fd, bool close_then) {
    if (!close_then) {
        send_all(fd, kept, sizeof kept - 1);
        return true;
    }
    send_all(fd, last, sizeof last - 1);
    close(fd);
    return false;
}

static void answer_what_is_due(struct loop *loop) {
    for (int64_t now = now_ns(); loop->head != loop->tail; loop->head++) {
        unsigned i = loop->head % LATER_MOST;
        if (loop->later[i].due_ns > now) {
            set_timer(loop, loop->later[i].due_ns);
            return;
        }
        answer(loop->later[i].fd, loop->later[i].close);
    }
}

static void answer_later(struct loop *loop, int fd, bool close_then) {
    unsigned i = loop->tail % LATER_MOST;
    loop->later[i].fd = fd;
    loop->later[i].close = close_then;
    loop->later[i].due_ns = now_ns() + WAIT_NS;
    if (loop->head == loop->tail++) set_timer(loop, loop->later[i].due_ns);
}

/* Serves what FD asks, if it has asked; is it to be watched then? */
static bool serve(struct loop *loop, int fd) {
    char request[4097];
    ssize_t length = read(fd, request, sizeof request - 1);
    if (length < 0 && errno == EAGAIN) return true;
    if (length <= 0) {
        close(fd);
        return false;
    }
    request[length] = 0;
    bool close_then = strstr(request, "Connection: close") != NULL;
    if (strncmp(request, "GET /file", 9) == 0) {
        send_all(fd, file, file_length);
        return true;
    }
    if (strncmp(request, "GET /wait", 9) != 0) return answer(fd, close_then);
    answer_later(loop, fd, close_then);
    return !close_then;
}

static void watch(struct loop *loop, int fd, uint32_t events) {
    struct epoll_event event = {.events = events, .data.fd = fd};
    if (epoll_ctl(loop->epoll, EPOLL_CTL_ADD, fd, &event) < 0) die("epoll_ctl");
}

static void accept_all(struct loop *loop) {
    int fd;
    while ((fd = accept4(loop->listener, NULL, NULL, SOCK_NONBLOCK)) >= 0)
        if (serve(loop, fd)) watch(loop, fd, EPOLLIN | EPOLLET);
}

static void open_listener(struct loop *loop) {
    int on = 1;
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port),
                               .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    loop->listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    setsockopt(loop->listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    setsockopt(loop->listener, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
    setsockopt(loop->listener, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(loop->listener, IPPROTO_TCP, TCP_DEFER_ACCEPT, &on, sizeof on);
    if (bind(loop->listener, (struct sockaddr *)&here, sizeof here) < 0) die("bind");
    if (listen(loop->listener, BACKLOG) < 0) die("listen");
}

static void *run(void *unused) {
    (void)unused;
    struct sched_param none = {0};
    pthread_setschedparam(pthread_self(), SCHED_BATCH, &none);
    struct loop *loop = calloc(1, sizeof *loop);
    if (!loop) die("calloc");
    loop->epoll = epoll_create1(0);
    loop->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    open_listener(loop);
    watch(loop, loop->listener, EPOLLIN);
    watch(loop, loop->timer, EPOLLIN | EPOLLET);
    for (;;) {
        struct epoll_event ready[EVENTS];
        int n = epoll_wait(loop->epoll, ready, EVENTS, -1);
        for (int i = 0; i < n; i++) {
            if (ready[i].data.fd == loop->listener) accept_all(loop);
            else if (ready[i].data.fd == loop->timer) answer_what_is_due(loop);
            else serve(loop, ready[i].data.fd);
        }
    }
    return NULL;
}

int main(int words, char **word) {
    if (words != 3) {
        fprintf(stderr, "usage: limit PORT THREADS\n");
        return 2;
    }
    port = atoi(word[1]);
    file_length = (size_t)sprintf(file, HEAD("16384") "\r\n");
    memset(file + file_length, 'x', FILE_BYTES);
    file_length += FILE_BYTES;
    for (int i = 1; i < atoi(word[2]); i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, run, NULL) != 0) die("pthread_create");
    }
    run(NULL);
}
