/* tls -- how many requests are answered over TLS, and how soon?

   usage: tls PORT CLIENTS SECONDS full|resumed|keep-alive [PATH [THREADS]]

   CLIENTS clients ask 127.0.0.1:PORT for PATH (/yo), each again as soon as it
   has its answer, for SECONDS (2 or 0.5), from THREADS (2) threads.

   full        a new connection with a whole handshake for each request, which
               says Connection: close; tickets are thrown away
   resumed     the same, but each connection of a client offers the latest
               ticket that this client got, as browsers do: a pre-shared key
               with a new key exchange.  The first one has no ticket yet
   keep-alive  one connection for each client

   All speak TLS 1.3 with TLS_AES_128_GCM_SHA256 and X25519, whatever the server
   would like more; certificates are not verified, but signatures are.  The time
   of a request is from its sending in mode keep-alive; otherwise from the
   beginning of its connection, handshake and all, to the end of its answer.

   Prints a line of figures, "ruler name=integer ...", with the names that
   wrk.lua has, and these:
   handshakes  completed ones
   resumed     those of them that the server resumed
   declined    in mode resumed, those for which a client offered a ticket in vain
   ticketless  in mode resumed, those that had no ticket to offer, but for each
               client's first
   served, clients, unserved, least, most
               answers with status 200, clients, clients that got none, and how
               often the clients were served that were served least and most

   By hand, with a report for people on standard error:
     cc -O2 -pthread -o tls tls.c tls-client.c client.c delays.c -lssl -lcrypto
     ./tls 9443 50 5 resumed /yo */

#define _GNU_SOURCE
#include "tls.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

enum { EVENTS = 64, THREADS_MOST = 256, REQUEST_BYTES = 1024 };

static long end_us;

static void *run(void *argument) {
    struct crowd *crowd = argument;
    for (int i = 0; i < crowd->count; i++) begin(&crowd->clients[i]);
    for (long left; (left = end_us - now_us()) > 0;) {
        struct epoll_event ready[EVENTS];
        int count = epoll_wait(crowd->set, ready, EVENTS, (int)(left / 1000) + 1);
        for (int i = 0; i < count; i++) go_on(ready[i].data.ptr);
    }
    for (int i = 0; i < crowd->count; i++)
        crowd->tally.timeouts += now_us() - crowd->clients[i].begin_us > TIMEOUT_US;
    return NULL;
}

/* Make the crowd of those of ALL clients that fall to NUMBER of THREADS. */
static bool gather(struct crowd *crowd, struct client *all, int clients, int number, int threads) {
    int first = (int)((long)clients * number / threads);
    crowd->count = (int)((long)clients * (number + 1) / threads) - first;
    crowd->clients = all + first;
    for (int i = 0; i < crowd->count; i++) {
        crowd->clients[i].index = first + i;
        crowd->clients[i].crowd = crowd;
    }
    crowd->set = epoll_create1(0);
    return crowd->set >= 0 && prepare_context(crowd);
}

static void add_tally(struct tally *sum, const struct tally *t) {
    sum->refused += t->refused;
    sum->timeouts += t->timeouts;
    sum->connect_errors += t->connect_errors;
    sum->read_errors += t->read_errors;
    sum->write_errors += t->write_errors;
    sum->handshakes += t->handshakes;
    sum->resumed += t->resumed;
    sum->declined += t->declined;
    sum->ticketless += t->ticketless;
    add_delays(&sum->times, &t->times);
}

static void print_tally(const struct tally *t, long duration_us, enum mode mode) {
    printf("ruler requests=%zu duration_us=%ld", t->times.count, duration_us);
    print_delays(&t->times);
    printf(" connect_errors=%ld read_errors=%ld write_errors=%ld timeouts=%ld non_2xx=%ld "
           "handshakes=%ld resumed=%ld",
           t->connect_errors, t->read_errors, t->write_errors, t->timeouts, t->refused,
           t->handshakes, t->resumed);
    if (mode == RESUMED) printf(" declined=%ld ticketless=%ld", t->declined, t->ticketless);
}

static void print_fairness(const struct client *all, int clients) {
    long served = 0, unserved = 0, least = all[0].served, most = 0;
    for (int i = 0; i < clients; i++) {
        long n = all[i].served;
        served += n;
        unserved += n == 0;
        if (n < least) least = n;
        if (n > most) most = n;
    }
    printf(" clients=%d served=%ld unserved=%ld least=%ld most=%ld\n", clients, served, unserved,
           least, most);
}

static void tell_people(const struct tally *t, double seconds) {
    fprintf(stderr, "%.0f requests/s; p50 %.2f ms, p99 %.2f ms, max %.2f ms; %ld errors; "
            "%ld handshakes, %ld resumed, %ld tickets declined, %ld missing\n",
            (double)t->times.count / seconds, percentile_us(&t->times, 50) / 1e3,
            percentile_us(&t->times, 99) / 1e3, percentile_us(&t->times, 100) / 1e3,
            t->connect_errors + t->read_errors + t->write_errors + t->timeouts + t->refused,
            t->handshakes, t->resumed, t->declined, t->ticketless);
}

static bool read_mode(const char *word, enum mode *mode) {
    static const char *const names[] = {"full", "resumed", "keep-alive"};
    for (int i = 0; i < 3; i++)
        if (strcmp(word, names[i]) == 0) {
            *mode = (enum mode)i;
            return true;
        }
    return false;
}

/* Let THREADS crowds like MODEL, of all CLIENTS together, ask until END_US;
   the sum of what they have seen is in *SUM then, its times in order. */
static bool ask_all(const struct crowd *model, struct client *all, int clients, int threads,
                    struct tally *sum) {
    static struct crowd crowds[THREADS_MOST];
    static pthread_t ids[THREADS_MOST];
    for (int i = 0; i < threads; i++) {
        crowds[i] = *model;
        if (!gather(&crowds[i], all, clients, i, threads) ||
            pthread_create(&ids[i], NULL, run, &crowds[i]) != 0)
            return false;
    }
    for (int i = 0; i < threads; i++) {
        pthread_join(ids[i], NULL);
        add_tally(sum, &crowds[i].tally);
    }
    sort_delays(&sum->times);
    return true;
}

static int load(const struct crowd *model, int clients, double seconds, int threads) {
    struct client *all = calloc((size_t)clients, sizeof *all);
    struct tally sum = {0};
    long begin_us = now_us();
    end_us = begin_us + (long)(seconds * 1e6);
    if (!all || !ask_all(model, all, clients, threads, &sum)) return 1;
    long duration_us = now_us() - begin_us;
    print_tally(&sum, duration_us, model->mode);
    print_fairness(all, clients);
    tell_people(&sum, (double)duration_us / 1e6);
    return 0;
}

int main(int count, char **words) {
    char request[REQUEST_BYTES];
    struct crowd model = {.request = request};
    int clients = count > 2 ? atoi(words[2]) : 0, threads = count > 6 ? atoi(words[6]) : 2;
    if (count < 5 || count > 7 || clients < 1 || threads < 1 || threads > THREADS_MOST ||
        !read_mode(words[4], &model.mode)) {
        fprintf(stderr, "usage: tls PORT CLIENTS SECONDS full|resumed|keep-alive [PATH [THREADS]]\n");
        return 2;
    }
    model.port = atoi(words[1]);
    snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n",
             count > 5 ? words[5] : "/yo",
             model.mode == KEEP_ALIVE ? "" : "Connection: close\r\n");
    signal(SIGPIPE, SIG_IGN);           /* OpenSSL writes without a flag against it */
    raise_descriptor_limit();
    return load(&model, clients, atof(words[3]), threads < clients ? threads : clients);
}
