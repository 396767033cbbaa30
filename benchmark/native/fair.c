/* fair -- is everybody served, and how evenly?

   usage: fair PORT CLIENTS MILLISECONDS keep-alive|close

   CLIENTS clients ask for /yo, each again as soon as it has its answer.
   wrk adds all connections up; here each client is counted by itself.  They
   connect one after the other, and then all start at once: a crowd that
   connects at the same moment would measure the listen queue. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "client.h"

/* Milliseconds for one client to connect, and for all of them together. */
enum { EVENTS = 64, CONNECT_MS = 500, CONNECT_ALL_MS = 2000 };

struct client {
    int connection;
    bool asked;
    long served;
    struct reply reply;
};

static int port, clients, set;
static bool close_after;
static struct client *all;
static long errors;

/* Let client INDEX begin on CONNECTION: it asks when epoll says that it can
   be written to. */
static void begin_on(int index, int connection) {
    struct client *c = &all[index];
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT, .data.u32 = (uint32_t)index};
    c->asked = false;
    c->reply.have = 0;
    c->connection = connection;
    if (connection < 0 || epoll_ctl(set, EPOLL_CTL_ADD, connection, &event) < 0) {
        perror("fair");
        exit(1);
    }
}

static void begin_again(int index) {
    close(all[index].connection);
    begin_on(index, open_client(port, index, false, 0));
}

/* Connect all.  Who is not connected in time goes on trying beside the
   others, like a client that has been cut off. */
static void connect_all(int *connections) {
    long end = now_ms() + CONNECT_ALL_MS;
    for (int i = 0; i < clients; i++) {
        connections[i] = now_ms() < end ? open_client(port, i, true, CONNECT_MS) : -1;
        if (connections[i] < 0) connections[i] = open_client(port, i, false, 0);
        else fcntl(connections[i], F_SETFL, O_NONBLOCK);
    }
}

static void ask(int index) {
    struct client *c = &all[index];
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)index};
    c->reply.have = 0;
    c->asked = send_request(c->connection, close_after);
    if (c->asked) {
        epoll_ctl(set, EPOLL_CTL_MOD, c->connection, &event);
    } else {
        errors++;
        begin_again(index);
    }
}

/* A kept-alive connection may be closed between two requests: that is the
   server's right and no error, unless it never answered on it. */
static void lost(int index) {
    struct client *c = &all[index];
    if (c->reply.have || !c->served) errors++;
    begin_again(index);
}

static void hear(int index) {
    struct client *c = &all[index];
    switch (receive_reply(c->connection, &c->reply)) {
    case REPLY_PARTIAL:
        return;
    case CONNECTION_LOST:
        lost(index);
        return;
    case REPLY_REFUSED:
        errors++;
        break;
    case REPLY_GOOD:
        c->served++;
        break;
    }
    if (close_after || says_close(&c->reply)) begin_again(index);
    else ask(index);
}

static void run_until(long end) {
    for (long left; (left = end - now_ms()) > 0;) {
        struct epoll_event ready[EVENTS];
        int count = epoll_wait(set, ready, EVENTS, (int)left);
        for (int i = 0; i < count; i++) {
            int index = (int)ready[i].data.u32;
            if (all[index].asked || ready[i].events & (EPOLLERR | EPOLLHUP)) hear(index);
            else ask(index);
        }
    }
}

static void report(void) {
    long sum = 0, unserved = 0, least = all[0].served, most = 0;
    for (int i = 0; i < clients; i++) {
        long n = all[i].served;
        sum += n;
        unserved += n == 0;
        if (n < least) least = n;
        if (n > most) most = n;
    }
    printf("ruler clients=%d served=%ld unserved=%ld least=%ld most=%ld errors=%ld\n",
                  clients, sum, unserved, least, most, errors);
}

int main(int count, char **words) {
    if (count != 5 || (clients = atoi(words[2])) < 1) {
        fprintf(stderr, "usage: fair PORT CLIENTS MILLISECONDS keep-alive|close\n");
        return 2;
    }
    port = atoi(words[1]);
    close_after = strcmp(words[4], "close") == 0;
    raise_descriptor_limit();
    set = epoll_create1(0);
    all = calloc((size_t)clients, sizeof *all);
    int *connections = calloc((size_t)clients, sizeof *connections);
    if (!all || !connections) return 1;
    connect_all(connections);
    for (int i = 0; i < clients; i++) begin_on(i, connections[i]);
    run_until(now_ms() + atol(words[3]));
    report();
    return 0;
}
