/* events -- does each subscriber have each event, in order, and how soon?

   usage: events PORT CONNECTIONS SECONDS TARGET

   Opens CONNECTIONS that ask for TARGET, a stream of server-sent events,
   chunked or until the end of the connection, and prints "ruler held=N" when
   all have the head of their answer.  Each event must have an id, an integer
   that is one more than that of the event before, and data that begin with the
   time of the event: microseconds of CLOCK_REALTIME.

   Events are looked at from the second on that is published after that, for
   SECONDS; each subscriber has 2 s more for those that others have by then.

   Prints a line of figures, with the names that wrk.lua has: requests are
   events that came, delays those from the time of an event to its arrival,
   non_2xx those who were refused, read_errors streams that ended, timeouts
   those who lack an event at the end.  And these:
   expected    events that each subscriber should have
   least, most how many of them they have that have least and most
   missing     events that somebody lacks, all together
   disordered  events whose id is not one more than that before
   malformed   streams with chunks or events that are none; they are closed
   heartbeats  comments
   deliveries  events that came after the first line, looked at or not
   all_us      how long an event takes until the last one has it: the median
   Connections are closed 0.2 s after the last line, for whoever measures what
   the server used until then. */

#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "client.h"
#include "delays.h"

enum {
    EVENTS = 256,
    OPENING_MOST = 256,                 /* at once, for the listen queue */
    OPENING_US = 30000000,
    LATE_US = 2000000,
    CLOSING_DELAY_US = 200000,
    LINE_BYTES = 128,
    TEXT_BYTES = 2048,
    IDS_MOST = 1 << 16                  /* that are looked at */
};

enum state { UNBORN, CONNECTING, ASKING, STREAMING, GONE };

/* Where in the chunks of a stream we are: in the line with a size, in data, or
   in the end of line after data.  WHOLE ones have no chunks. */
enum framing { WHOLE, SIZE, DATA, DATA_END };

/* ID and TIME_US are those of the event that is coming, or -1; LAST_ID is that
   of the one before, or -1.  HAD counts the events that are looked at. */
struct client {
    int connection;
    enum state state;
    enum framing framing;
    size_t chunk_left;
    unsigned line_length;
    bool has_data;
    char line[LINE_BYTES];
    long id, time_us, last_id, had;
    struct reply *reply;                /* until its head is there */
};

static int port, set, clients, begun, opening, streaming;
static struct client *all;
static char request[TEXT_BYTES];
static struct delays delays;

/* Looked at are the events from FIRST_ID to END_ID, which is excluded; FIRST_ID
   is -1 until it is known.  SLOWEST_US has the greatest delay of each. */
static bool looking;
static long first_id = -1, end_id = -1, greatest_id = -1;
static uint32_t slowest_us[IDS_MOST];
static long connect_errors, read_errors, write_errors, refused, malformed, disordered, heartbeats, deliveries;

static long real_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void leave(struct client *c, long *errors) {
    if (c->state == CONNECTING || c->state == ASKING) opening--;
    if (c->state == STREAMING) streaming--;
    ++*errors;
    c->state = GONE;
    free(c->reply);
    c->reply = NULL;
    if (c->connection >= 0) close(c->connection);
}

static void watch(struct client *c, int operation, uint32_t events) {
    struct epoll_event event = {.events = events, .data.ptr = c};
    if (epoll_ctl(set, operation, c->connection, &event) < 0) {
        perror("events");
        exit(1);
    }
}

/* Events */

static void note_delay(long id, long delay_us) {
    record_delay(&delays, delay_us);
    long index = id - first_id;
    if (index < IDS_MOST && delay_us > (long)slowest_us[index])
        slowest_us[index] = (uint32_t)delay_us;
}

static void look_at(struct client *c, long arrival_us) {
    if (first_id < 0) first_id = (c->id > greatest_id ? c->id : greatest_id) + 1;
    if (c->id < first_id || (end_id >= 0 && c->id >= end_id)) return;
    note_delay(c->id, arrival_us - c->time_us);
    c->had++;
}

/* An empty line has come. */
static void end_event(struct client *c, long arrival_us) {
    if (c->has_data && (c->id < 0 || c->time_us < 0)) {
        leave(c, &malformed);
    } else if (c->has_data) {
        bool in_order = c->last_id < 0 || c->id == c->last_id + 1;
        disordered += !in_order;
        deliveries += looking;
        if (looking && c->id > c->last_id) look_at(c, arrival_us);
        c->last_id = c->id;
        if (c->id > greatest_id) greatest_id = c->id;
    }
    c->id = c->time_us = -1;
    c->has_data = false;
}

/* The integer that VALUE begins with, perhaps after a space; or -1. */
static long integer(const char *value) {
    char *end;
    long number = strtol(value, &end, 10);
    return end == value ? -1 : number;
}

static void take_line(struct client *c, long arrival_us) {
    c->line[c->line_length] = 0;
    if (c->line_length == 0) {
        end_event(c, arrival_us);
    } else if (c->line[0] == ':') {
        heartbeats++;
    } else if (strncmp(c->line, "id:", 3) == 0) {
        c->id = integer(c->line + 3);
    } else if (strncmp(c->line, "data:", 5) == 0 && !c->has_data) {
        c->has_data = true;
        c->time_us = integer(c->line + 5);
    }
    c->line_length = 0;
}

/* What does not fit into a line of ours is not needed. */
static void add_to_line(struct client *c, const char *octets, size_t count) {
    size_t room = LINE_BYTES - 1 - c->line_length, kept = count < room ? count : room;
    memcpy(c->line + c->line_length, octets, kept);
    c->line_length += (unsigned)kept;
}

static void take_text(struct client *c, const char *octets, size_t count, long arrival_us) {
    const char *end = octets + count;
    while (octets < end && c->state == STREAMING) {
        const char *line_end = memchr(octets, '\n', (size_t)(end - octets));
        add_to_line(c, octets, (size_t)((line_end ? line_end : end) - octets));
        if (!line_end) return;
        if (c->line_length > 0 && c->line[c->line_length - 1] == '\r') c->line_length--;
        take_line(c, arrival_us);
        octets = line_end + 1;
    }
}

/* Chunks */

static int digit(char octet) {
    if (octet >= '0' && octet <= '9') return octet - '0';
    octet |= 0x20;
    return octet >= 'a' && octet <= 'f' ? octet - 'a' + 10 : -1;
}

/* Take one octet between the data of chunks. */
static void take_framing(struct client *c, char octet) {
    if (octet == '\n' && c->framing == DATA_END) {
        c->framing = SIZE;
        c->chunk_left = 0;
    } else if (octet == '\n' && c->chunk_left > 0) {
        c->framing = DATA;
    } else if (octet == '\n') {         /* the last chunk */
        leave(c, &read_errors);
    } else if (octet != '\r') {
        if (c->framing == DATA_END || digit(octet) < 0) leave(c, &malformed);
        else c->chunk_left = c->chunk_left << 4 | (unsigned)digit(octet);
    }
}

static void take_chunks(struct client *c, const char *octets, size_t count, long arrival_us) {
    while (count > 0 && c->state == STREAMING) {
        size_t taken = 1;
        if (c->framing == DATA) {
            taken = count < c->chunk_left ? count : c->chunk_left;
            take_text(c, octets, taken, arrival_us);
            if ((c->chunk_left -= taken) == 0) c->framing = DATA_END;
        } else {
            take_framing(c, *octets);
        }
        octets += taken;
        count -= taken;
    }
}

static void take_octets(struct client *c, const char *octets, size_t count, long arrival_us) {
    if (c->framing == WHOLE) take_text(c, octets, count, arrival_us);
    else take_chunks(c, octets, count, arrival_us);
}

static void hear(struct client *c) {
    static char octets[1 << 16];
    ssize_t got = recv(c->connection, octets, sizeof octets, 0);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) leave(c, &read_errors);
    else take_octets(c, octets, (size_t)got, real_us());
}

/* Opening */

static void come(void) {
    struct client *c = &all[begun];
    c->state = CONNECTING;
    c->id = c->time_us = c->last_id = -1;
    opening++;
    c->connection = open_client(port, begun++, false, 0);
    if (c->connection < 0) leave(c, &connect_errors);
    else watch(c, EPOLL_CTL_ADD, EPOLLOUT);
}

static void connected(struct client *c) {
    if (connecting_failed(c->connection)) {
        leave(c, &connect_errors);
        return;
    }
    watch(c, EPOLL_CTL_MOD, EPOLLIN);
    c->state = ASKING;
    if (!(c->reply = malloc(sizeof *c->reply))) exit(1);
    c->reply->have = 0;
    if (!send_octets(c->connection, request, strlen(request))) leave(c, &write_errors);
}

static bool is_stream(const struct reply *reply) {
    const char *type = field(reply, "Content-Type:");
    return strncmp(reply->bytes, "HTTP/1.1 200", 12) == 0 && type &&
           strncasecmp(type, "text/event-stream", 17) == 0;
}

static void hear_head(struct client *c) {
    long arrival_us = real_us();
    if (receive_reply(c->connection, c->reply) == CONNECTION_LOST) {
        leave(c, &read_errors);
        return;
    }
    const char *end = head_end(c->reply);
    if (!end) return;
    if (!is_stream(c->reply)) {
        leave(c, &refused);
        return;
    }
    opening--;
    streaming++;
    c->state = STREAMING;
    c->framing = field(c->reply, "Transfer-Encoding:") ? SIZE : WHOLE;
    struct reply *reply = c->reply;
    c->reply = NULL;
    take_octets(c, end + 4, reply->have - (size_t)(end + 4 - reply->bytes), arrival_us);
    free(reply);
}

/* Running */

static void wait_for_events(long us) {
    struct epoll_event ready[EVENTS];
    int count = epoll_wait(set, ready, EVENTS, us > 0 ? (int)(us / 1000) + 1 : 0);
    for (int i = 0; i < count; i++) {
        struct client *c = ready[i].data.ptr;
        switch (c->state) {
        case CONNECTING: connected(c); break;
        case ASKING: hear_head(c); break;
        case STREAMING: hear(c); break;
        default: break;
        }
    }
}

static void open_all(void) {
    long end = now_us() + OPENING_US;
    while ((begun < clients || opening > 0) && now_us() < end) {
        if (begun < clients && opening < OPENING_MOST) come();
        else wait_for_events(end - now_us());
    }
    for (int i = 0; i < clients; i++)
        if (all[i].state < STREAMING) leave(&all[i], &connect_errors);
}

/* How many events all subscribers together lack, and how many lack one. */
static long count_missing(long *lacking) {
    long expected = first_id < 0 || end_id < first_id ? 0 : end_id - first_id, missing = 0;
    *lacking = 0;
    for (int i = 0; i < clients; i++) {
        missing += expected - all[i].had;
        *lacking += all[i].had < expected;
    }
    return missing;
}

static bool all_have_all(void) {
    for (int i = 0; i < clients; i++)
        if (all[i].state == STREAMING && all[i].last_id < end_id - 1) return false;
    return true;
}

static void run(long us) {
    looking = true;
    long end = now_us() + us;
    for (long now; streaming > 0 && (now = now_us()) < end;) wait_for_events(end - now);
    end_id = greatest_id + 1;
    end = now_us() + LATE_US;
    for (long now; (now = now_us()) < end && !all_have_all();) wait_for_events(end - now);
}

static unsigned median_of_slowest(void) {
    struct delays slowest = {0};
    long count = first_id < 0 ? 0 : end_id - first_id;
    for (long i = 0; i < count && i < IDS_MOST; i++) record_delay(&slowest, slowest_us[i]);
    sort_delays(&slowest);
    return percentile_us(&slowest, 50);
}

static void report(long duration_us) {
    long lacking, missing = count_missing(&lacking), least = all[0].had, most = 0;
    for (int i = 0; i < clients; i++) {
        if (all[i].had < least) least = all[i].had;
        if (all[i].had > most) most = all[i].had;
    }
    long expected = first_id < 0 || end_id < first_id ? 0 : end_id - first_id;
    sort_delays(&delays);
    printf("ruler requests=%zu duration_us=%ld", delays.count, duration_us);
    print_delays(&delays);
    printf(" connect_errors=%ld read_errors=%ld write_errors=%ld timeouts=%ld non_2xx=%ld"
           " clients=%d expected=%ld least=%ld most=%ld missing=%ld disordered=%ld malformed=%ld"
           " heartbeats=%ld deliveries=%ld all_us=%u\n",
           connect_errors, read_errors, write_errors, lacking, refused, clients, expected, least,
           most, missing, disordered, malformed, heartbeats, deliveries, median_of_slowest());
    fflush(stdout);
}

int main(int count, char **words) {
    clients = count > 2 ? atoi(words[2]) : 0;
    if (count != 5 || clients < 1) {
        fprintf(stderr, "usage: events PORT CONNECTIONS SECONDS TARGET\n");
        return 2;
    }
    port = atoi(words[1]);
    snprintf(request, sizeof request,
             "GET %s HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n", words[4]);
    all = calloc((size_t)clients, sizeof *all);
    set = epoll_create1(0);
    raise_descriptor_limit();
    if (!all || set < 0) return 1;
    open_all();
    printf("ruler held=%d\n", streaming);
    fflush(stdout);
    long begin_us = now_us();
    run((long)(1e6 * atof(words[3])));
    report(now_us() - begin_us);
    usleep(CLOSING_DELAY_US);
    return 0;
}
