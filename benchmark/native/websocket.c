/* websocket -- how many messages are echoed, and how soon?

   usage: websocket PORT CONNECTIONS SECONDS [SIZE [TARGET [BURST]]]
          websocket PORT CONNECTIONS idle [SIZE [TARGET [BURST]]]

   Opens CONNECTIONS WebSockets on TARGET (/echo) and prints "ruler held=N".
   Then each sends BURST text messages (1) of SIZE octets (32) and waits for
   their echoes, again and again, for SECONDS.  In the second form they are
   silent until the end of standard input, but for answering pings; then each
   sends one burst.  A message has the numbers of its connection and of itself, so
   that echoes that are given to somebody else are noticed.

   Prints a line of figures, with the names that wrk.lua has: requests are
   right echoes, non_2xx handshakes that were refused, read_errors connections
   that were lost or closed, timeouts those that waited longer than 2 s for
   their echo.  And these:
   wrong       echoes of other octets or another kind than were sent
   malformed   frames that RFC 6455 does not allow; their connection is closed
   pings, alive
               pings that came; in the second form, connections that had their
               echo within 15 s
   clients, served, unserved, least, most
               as with fair
   Connections are closed 0.2 s after the last line, for whoever measures what
   the server used until then. */

#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "websocket.h"

enum {
    EVENTS = 256,
    OPENING_MOST = 256,                 /* at once, for the listen queue */
    OPENING_US = 30000000,
    ECHO_US = 2000000,
    ALIVE_US = 15000000,
    CLOSING_DELAY_US = 200000
};

static int clients, begun;
static struct client *all;

/* Wait for events, but no longer than US; true if standard input, whose data
   is a null pointer, was among them. */
static bool wait_for_events(long us) {
    bool input = false;
    struct epoll_event ready[EVENTS];
    int count = epoll_wait(crowd.set, ready, EVENTS, us > 0 ? (int)(us / 1000) + 1 : 0);
    for (int i = 0; i < count; i++) {
        if (ready[i].data.ptr) go_on(ready[i].data.ptr, ready[i].events);
        else input = true;
    }
    return input;
}

static void open_all(void) {
    long end = now_us() + OPENING_US;
    while ((begun < clients || crowd.opening > 0) && now_us() < end) {
        if (begun < clients && crowd.opening < OPENING_MOST) begin(&all[begun++]);
        else wait_for_events(end - now_us());
    }
    for (int i = 0; i < clients; i++)
        if (all[i].state < OPEN) leave(&all[i], &crowd.connect_errors);
}

static void stay_silent(void) {
    char bytes[64];
    struct epoll_event event = {.events = EPOLLIN};
    /* What cannot be watched, as a file, has ended. */
    if (epoll_ctl(crowd.set, EPOLL_CTL_ADD, STDIN_FILENO, &event) < 0) return;
    while (!wait_for_events(1000000) || read(STDIN_FILENO, bytes, sizeof bytes) > 0) continue;
    epoll_ctl(crowd.set, EPOLL_CTL_DEL, STDIN_FILENO, NULL);
}

static void speak_all(void) {
    for (int i = 0; i < clients; i++)
        if (all[i].state == OPEN) speak(&all[i], now_us());
}

/* How many have been waiting for their echoes for more than US. */
static long count_waiting(long us) {
    long now = now_us(), count = 0;
    for (int i = 0; i < clients; i++)
        count += all[i].state == OPEN && is_waiting(&all[i]) && now - all[i].begin_us > us;
    return count;
}

/* Let all that are open have echoes until END_US, or until none is to come. */
static void run_until(long end_us) {
    speak_all();
    for (long now; crowd.open > 0 && (now = now_us()) < end_us;) {
        if (crowd.once && count_waiting(-1) == 0) break;
        wait_for_events(end_us - now);
    }
}

static void report(long duration_us) {
    long sum = 0, unserved = 0, least = all[0].served, most = 0;
    for (int i = 0; i < clients; i++) {
        long n = all[i].served;
        sum += n;
        unserved += n == 0;
        if (n < least) least = n;
        if (n > most) most = n;
    }
    long timeouts = count_waiting(crowd.once ? -1 : ECHO_US);
    sort_delays(&crowd.delays);
    printf("ruler requests=%ld duration_us=%ld", sum, duration_us);
    print_delays(&crowd.delays);
    printf(" connect_errors=%ld read_errors=%ld write_errors=%ld timeouts=%ld non_2xx=%ld wrong=%ld"
           " malformed=%ld pings=%ld clients=%d served=%ld unserved=%ld least=%ld most=%ld",
           crowd.connect_errors, crowd.read_errors, crowd.write_errors, timeouts, crowd.refused,
           crowd.wrong, crowd.malformed, crowd.pings, clients, sum, unserved, least, most);
    if (crowd.once) printf(" alive=%ld", sum);
    printf("\n");
    fflush(stdout);
}

static bool prepare(const char *target) {
    raise_descriptor_limit();
    crowd.set = epoll_create1(0);
    all = calloc((size_t)clients, sizeof *all);
    for (int i = 0; all && i < clients; i++) all[i].index = i;
    return crowd.set >= 0 && all && prepare_crowd(target);
}

int main(int count, char **words) {
    clients = count > 2 ? atoi(words[2]) : 0;
    if (count > 4) crowd.size = (size_t)atol(words[4]);
    if (count > 6) crowd.burst = (size_t)atol(words[6]);
    if (count < 4 || count > 7 || clients < 1 || crowd.size < MESSAGE_LEAST || crowd.burst < 1) {
        fprintf(stderr, "usage: websocket PORT CONNECTIONS SECONDS|idle [SIZE [TARGET [BURST]]]\n"
                "A message has at least %d octets.\n", MESSAGE_LEAST);
        return 2;
    }
    crowd.port = atoi(words[1]);
    crowd.once = strcmp(words[3], "idle") == 0;
    if (!prepare(count > 5 ? words[5] : "/echo")) return 1;
    open_all();
    printf("ruler held=%d\n", crowd.open);
    fflush(stdout);
    if (crowd.once) stay_silent();
    long begin_us = now_us();
    run_until(begin_us + (crowd.once ? ALIVE_US : (long)(1e6 * atof(words[3]))));
    report(now_us() - begin_us);
    usleep(CLOSING_DELAY_US);
    return 0;
}
