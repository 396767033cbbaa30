/* One client that asks by TLS, and asks again as soon as it has its answer. */

#ifndef TLS_H
#define TLS_H

#include <openssl/ssl.h>

#include "client.h"
#include "delays.h"

/* Whether each request has a new connection, and how that begins. */
enum mode { FULL, RESUMED, KEEP_ALIVE };

/* Who waits longer than this for an answer counts as timed out, as with wrk. */
enum { TIMEOUT_US = 2000000 };

/* What the clients of one thread have seen.  TIMES are those of the requests
   that were answered.  Of the HANDSHAKES that are not RESUMED, DECLINED are those for which the client offered a ticket; in mode
   RESUMED, TICKETLESS are those for which it had none, but for its first. */
struct tally {
    struct delays times;
    long refused, timeouts;
    long connect_errors, read_errors, write_errors;
    long handshakes, resumed, declined, ticketless;
};

enum state { SHAKING, ASKING, HEARING };

/* SERVED counts its answers.  BEGIN_US is when what is measured began: in mode
   KEEP_ALIVE a request, else a connection.  TICKET is the latest that it got. */
struct client {
    int index, connection;
    enum state state;
    SSL *ssl;
    SSL_SESSION *ticket;
    long begin_us, served, connections;
    struct reply reply;
    struct crowd *crowd;
};

/* The clients of one thread, and what they have in common.  SET is an epoll
   set, whose data is the client. */
struct crowd {
    int port, set;
    enum mode mode;
    const char *request;
    SSL_CTX *context;
    struct tally tally;
    int count;
    struct client *clients;
};

/* Prepare the context of CROWD: TLS 1.3 with one cipher and one group. */
bool prepare_context(struct crowd *crowd);

/* Open a connection for C, which is watched by the crowd's set. */
void begin(struct client *c);

/* Go on with C as far as its connection lets it. */
void go_on(struct client *c);

#endif
