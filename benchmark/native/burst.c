/* burst -- how long until a crowd that comes at once is served?

   usage: burst PORT CLIENTS SECONDS

   CLIENTS clients connect at the same moment, each asks once for /yo, and the
   clock runs until the last of them has its answer.  Who has none after
   SECONDS, or was refused, is told as unserved.  Unlike fair, this is about
   the crowd at the door, so the listen queue counts. */

#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "client.h"

enum { EVENTS = 64 };

struct client {
    int connection;
    bool asked;
    struct reply reply;
};

static int clients, set, waiting, served;
static struct client *all;

static void leave(struct client *c) {
    close(c->connection);
    c->connection = -1;
    waiting--;
}

static void come(int index, int port) {
    struct client *c = &all[index];
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT, .data.u32 = (uint32_t)index};
    waiting++;
    c->connection = open_client(port, index, false, 0);
    if (c->connection < 0 || epoll_ctl(set, EPOLL_CTL_ADD, c->connection, &event) < 0) leave(c);
}

static void ask(int index) {
    struct client *c = &all[index];
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)index};
    c->asked = send_request(c->connection, false);
    if (c->asked) epoll_ctl(set, EPOLL_CTL_MOD, c->connection, &event);
    else leave(c);
}

static void hear(struct client *c) {
    enum outcome outcome = receive_reply(c->connection, &c->reply);
    if (outcome == REPLY_PARTIAL) return;
    served += outcome == REPLY_GOOD;
    leave(c);
}

static void run_until(long end) {
    for (long left; waiting > 0 && (left = end - now_ms()) > 0;) {
        struct epoll_event ready[EVENTS];
        int count = epoll_wait(set, ready, EVENTS, (int)left);
        for (int i = 0; i < count; i++) {
            int index = (int)ready[i].data.u32;
            if (all[index].asked || ready[i].events & (EPOLLERR | EPOLLHUP)) hear(&all[index]);
            else ask(index);
        }
    }
}

int main(int count, char **words) {
    if (count != 4 || (clients = atoi(words[2])) < 1) {
        fprintf(stderr, "usage: burst PORT CLIENTS SECONDS\n");
        return 2;
    }
    raise_descriptor_limit();
    set = epoll_create1(0);
    all = calloc((size_t)clients, sizeof *all);
    if (!all) return 1;
    long begin = now_us();
    for (int i = 0; i < clients; i++) come(i, atoi(words[1]));
    run_until(now_ms() + 1000 * atol(words[3]));
    printf("ruler served=%d unserved=%d all_us=%ld\n", served, clients - served,
           now_us() - begin);
    return 0;
}
