/* deferred -- are late answers right, and no later than they should be?

   usage: deferred PORT RATE SECONDS TARGET [PATIENCE]
          deferred PORT CONNECTIONS open TARGET [PATIENCE]

   The first opens RATE new connections a second for SECONDS, and each asks
   once as soon as it is open.  The second opens CONNECTIONS, and when all are
   open each asks once; they stay open until the end.

   Request N is a GET of TARGET with n=N in its query.  The right answer has
   status 200 and the content N in decimal, so that answers that are given to
   somebody else are noticed.  Who has none after PATIENCE seconds (10), counts
   as timed out.

   A process has a limit of descriptors, so there are as many of them as it
   takes.  The time of a request is from the beginning of its connection, in
   the second form from its sending.

   While it waits for answers, it looks for them every half millisecond or so:
   if each woke it, that would take the processors from the server, which
   clients on other machines do not.  The times contain that half.

   Prints "ruler held=N" when all is open, in the first form at once; then a
   line of figures, with the names that wrk.lua has, and these:
   sent        requests
   wrong       answers 200 with other content than they should have
   extra       in the second form, connections on which more came than an answer
   in_flight   requests that waited for their answers at the same time, at most
   behind_us   in the first form, by how much a connection was begun too late,
               at most: this program's own fault
   Connections are closed 0.2 s after the last line, for whoever measures what
   the server used until then. */

#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client.h"
#include "delays.h"

enum {
    EVENTS = 256,
    OPENING_MOST = 256,                 /* at once, for the listen queue */
    ASKED_AT_ONCE = 64,
    OPENING_SECONDS = 30,
    SPARE_DESCRIPTORS = 64,
    MORE_US = 100000,                   /* what comes twice comes soon */
    CLOSING_DELAY_US = 200000,
    GATHERING_US = 500,
    TEXT_BYTES = 2048
};

/* What all processes do at a time: the parent says when the next begins. */
enum phase { OPENING, ASKING, LEAVING };

enum state { UNBORN, CONNECTING, OPEN, ASKED, ANSWERED, GONE };

struct client {
    int connection;
    enum state state;
    long begin_us;
    struct reply *reply;                /* while one comes */
};

/* What all processes write to.  TIMES_US has those of all requests that were
   answered right, and zeros. */
struct common {
    atomic_long sent, right, wrong, extra, refused, timeouts;
    atomic_long connect_errors, read_errors, write_errors;
    atomic_long in_flight, in_flight_most, behind_us, held, last_us;
    atomic_int open, finished, phase;
    uint32_t times_us[];
};

static struct common *common;
static int port;
static const char *target;
static long requests, rate;             /* RATE 0: all are opened first */
static long patience_us, begin_us;

/* Of this process: the number of the first of its requests, and from one to
   the next; its clients, of which it has begun BEGUN, and OPENING of those
   are not open yet. */
static int processes, first_number, set;
static long mine, begun, opening, left;
static struct client *all;

static void raise_to(atomic_long *most, long value) {
    long old = atomic_load(most);
    while (old < value && !atomic_compare_exchange_weak(most, &old, value)) continue;
}

static long number_of(const struct client *c) { return first_number + (c - all) * processes; }

static void leave(struct client *c, enum state state) {
    if (c->state == CONNECTING) opening--;
    if (c->state == ASKED) atomic_fetch_sub(&common->in_flight, 1);
    if (c->state < ANSWERED && state >= ANSWERED) left--;
    c->state = state;
    free(c->reply);
    c->reply = NULL;
    if (state == GONE && c->connection >= 0) close(c->connection);
}

static void fail(struct client *c, atomic_long *errors) {
    atomic_fetch_add(errors, 1);
    leave(c, GONE);
}

static void watch(struct client *c, int operation, uint32_t events) {
    struct epoll_event event = {.events = events, .data.ptr = c};
    if (epoll_ctl(set, operation, c->connection, &event) < 0) {
        perror("deferred");
        exit(1);
    }
}

static void come(void) {
    struct client *c = &all[begun++];
    c->state = CONNECTING;
    opening++;
    c->begin_us = now_us();
    c->connection = open_client(port, (int)number_of(c), false, 0);
    if (c->connection < 0) fail(c, &common->connect_errors);
    else watch(c, EPOLL_CTL_ADD, EPOLLOUT);
}

static void ask(struct client *c) {
    char text[TEXT_BYTES];
    int length = snprintf(text, sizeof text, "GET %s%cn=%ld HTTP/1.1\r\nHost: localhost\r\n\r\n",
                          target, strchr(target, '?') ? '&' : '?', number_of(c));
    if (rate == 0) c->begin_us = now_us();
    c->state = ASKED;
    raise_to(&common->in_flight_most, atomic_fetch_add(&common->in_flight, 1) + 1);
    if (!send_octets(c->connection, text, (size_t)length)) {
        fail(c, &common->write_errors);
        return;
    }
    atomic_fetch_add(&common->sent, 1);
}

static void connected(struct client *c) {
    if (connecting_failed(c->connection)) {
        fail(c, &common->connect_errors);
        return;
    }
    watch(c, EPOLL_CTL_MOD, EPOLLIN);
    opening--;
    c->state = OPEN;
    if (rate > 0) ask(c);
}

static bool is_right(const struct client *c) {
    char content[64], wanted[32];
    snprintf(wanted, sizeof wanted, "%ld", number_of(c));
    if (reply_content(c->reply, content, sizeof content) < 0) return false;
    content[strcspn(content, "\r\n")] = 0;
    return strcmp(content, wanted) == 0;
}

/* The answer is complete and its status 200. */
static void judge(struct client *c) {
    long now = now_us(), time = now - c->begin_us;
    if (!is_right(c)) {
        atomic_fetch_add(&common->wrong, 1);
    } else if (time > patience_us) {
        atomic_fetch_add(&common->timeouts, 1);
    } else {
        atomic_fetch_add(&common->right, 1);
        common->times_us[number_of(c)] = time > 0 ? (uint32_t)time : 1;
    }
    raise_to(&common->last_us, now);
    leave(c, rate > 0 ? GONE : ANSWERED);
}

static void hear(struct client *c) {
    if (!c->reply) {
        if (!(c->reply = malloc(sizeof *c->reply))) exit(1);
        c->reply->have = 0;
    }
    switch (receive_reply(c->connection, c->reply)) {
    case REPLY_PARTIAL:
        break;
    case CONNECTION_LOST:
        fail(c, &common->read_errors);
        break;
    case REPLY_REFUSED:
        fail(c, &common->refused);
        break;
    case REPLY_GOOD:
        judge(c);
        break;
    }
}

/* Something has come that was not asked for: the end, or octets. */
static void hear_more(struct client *c) {
    char octet;
    if (read(c->connection, &octet, 1) > 0)
        atomic_fetch_add(c->state == ANSWERED ? &common->extra : &common->wrong, 1);
    else if (c->state == OPEN)
        atomic_fetch_add(&common->read_errors, 1);
    leave(c, GONE);
}

static int wait_for_events(long us) {
    struct epoll_event ready[EVENTS];
    int count = epoll_wait(set, ready, EVENTS, us > 0 ? (int)((us + 999) / 1000) : 0);
    for (int i = 0; i < count; i++) {
        struct client *c = ready[i].data.ptr;
        switch (c->state) {
        case CONNECTING: connected(c); break;
        case ASKED: hear(c); break;
        case OPEN:
        case ANSWERED: hear_more(c); break;
        default: break;
        }
    }
    return count;
}

/* When request NUMBER is to be begun. */
static long due_us(long number) { return begin_us + (long)((double)number * 1e6 / (double)rate); }

static void run_at_rate(void) {
    for (long oldest = 0; begun < mine;) {
        long now = now_us(), due = due_us(number_of(&all[begun]));
        for (; oldest < begun && now - all[oldest].begin_us > patience_us; oldest++)
            if (all[oldest].state < ANSWERED) fail(&all[oldest], &common->timeouts);
        if (due > now) {
            wait_for_events(due - now);
            continue;
        }
        raise_to(&common->behind_us, now - due);
        come();
        if (begun % ASKED_AT_ONCE == 0) wait_for_events(0);
    }
}

static void open_all(void) {
    long end = now_us() + OPENING_SECONDS * 1000000L;
    while ((begun < mine || opening > 0) && now_us() < end) {
        if (begun < mine && opening < OPENING_MOST) come();
        else wait_for_events(end - now_us());
    }
}

/* Tell that this process has all open, and wait until it is to ask. */
static void meet(void) {
    long open = 0;
    for (long i = 0; i < begun; i++) open += all[i].state == OPEN;
    atomic_fetch_add(&common->held, open);
    atomic_fetch_add(&common->open, 1);
    while (common->phase < ASKING) usleep(1000);
}

static void ask_all(void) {
    for (long i = 0, asked = 0; i < mine; i++) {
        if (all[i].state != OPEN) continue;
        ask(&all[i]);
        if (++asked % ASKED_AT_ONCE == 0) wait_for_events(0);
    }
}

static void await_answers(void) {
    long end = now_us() + patience_us;
    for (long now; left > 0 && (now = now_us()) < end;)
        if (wait_for_events(end - now) < EVENTS) usleep(GATHERING_US);
    for (long i = 0; i < mine; i++) {
        if (all[i].state < OPEN) fail(&all[i], &common->connect_errors);
        else if (all[i].state < ANSWERED) fail(&all[i], &common->timeouts);
    }
}

static void run_process(int number) {
    first_number = number;
    mine = left = (requests - number + processes - 1) / processes;
    set = epoll_create1(0);
    if (set < 0 || !(all = calloc((size_t)mine + 1, sizeof *all))) exit(1);
    for (long i = 0; i < mine; i++) all[i].connection = -1;
    if (rate == 0) open_all();
    meet();
    begin_us = common->last_us;
    if (rate > 0) run_at_rate();
    else ask_all();
    await_answers();
    usleep(MORE_US);
    while (wait_for_events(0) > 0) continue;
    atomic_fetch_add(&common->finished, 1);
    while (common->phase < LEAVING) usleep(1000);
}

static void report(void) {
    struct delays times = {0};
    for (long i = 0; i < requests; i++)
        if (common->times_us[i]) record_delay(&times, common->times_us[i]);
    sort_delays(&times);
    long duration_us = common->last_us - begin_us;
    printf("ruler requests=%ld duration_us=%ld", common->right, duration_us > 0 ? duration_us : 1);
    print_delays(&times);
    printf(" connect_errors=%ld read_errors=%ld write_errors=%ld timeouts=%ld non_2xx=%ld"
           " sent=%ld wrong=%ld extra=%ld in_flight=%ld behind_us=%ld\n",
           common->connect_errors, common->read_errors, common->write_errors, common->timeouts,
           common->refused, common->sent, common->wrong, common->extra, common->in_flight_most,
           common->behind_us);
}

static void start_processes(void) {
    for (int i = 0; i < processes; i++) {
        pid_t child = fork();
        if (child < 0) exit(1);
        if (child == 0) {
            run_process(i);
            _exit(0);
        }
    }
}

/* Wait until COUNTER says that all processes have come so far; if one ends
   before that, so does this program. */
static void await_all(atomic_int *counter) {
    while (*counter < processes) {
        if (waitpid(-1, NULL, WNOHANG) != 0) exit(1);
        usleep(1000);
    }
}

static void lead_processes(void) {
    await_all(&common->open);
    printf("ruler held=%ld\n", common->held);
    fflush(stdout);
    begin_us = common->last_us = now_us();
    common->phase = ASKING;
    await_all(&common->finished);
    report();
    fflush(stdout);
    usleep(CLOSING_DELAY_US);
    common->phase = LEAVING;
    while (wait(NULL) > 0) continue;
}

static int processes_needed(void) {
    struct rlimit limit;
    double most = (double)rate * ((double)patience_us / 1e6 + 1);
    long open = rate > 0 && most < (double)requests ? (long)most : requests;
    raise_descriptor_limit();
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) exit(1);
    return (int)(open / ((long)limit.rlim_cur - SPARE_DESCRIPTORS)) + 1;
}

int main(int count, char **words) {
    long number = count > 2 ? atol(words[2]) : 0;
    bool open_first = count > 3 && strcmp(words[3], "open") == 0;
    double seconds = count > 3 && !open_first ? atof(words[3]) : 0;
    if (count < 5 || count > 6 || number < 1 || (!open_first && seconds <= 0)) {
        fprintf(stderr, "usage: deferred PORT RATE SECONDS TARGET [PATIENCE]\n"
                        "       deferred PORT CONNECTIONS open TARGET [PATIENCE]\n");
        return 2;
    }
    port = atoi(words[1]);
    target = words[4];
    patience_us = (long)(1e6 * (count > 5 ? atof(words[5]) : 10));
    rate = open_first ? 0 : number;
    requests = open_first ? number : (long)((double)number * seconds);
    processes = processes_needed();
    size_t size = sizeof *common + (size_t)requests * sizeof common->times_us[0];
    common = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (common == MAP_FAILED) return 1;
    start_processes();
    lead_processes();
    return 0;
}
