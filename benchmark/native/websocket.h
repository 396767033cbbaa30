/* A WebSocket that sends messages and waits for their echoes. */

#ifndef WEBSOCKET_H
#define WEBSOCKET_H

#include <stdbool.h>
#include <stdint.h>

#include "client.h"
#include "delays.h"

/* A message has room for the numbers of its connection and of itself. */
enum { MESSAGE_LEAST = 20, HANDSHAKE_BYTES = 2048 };

enum state { UNBORN, CONNECTING, SHAKING, OPEN, GONE };

/* REST is what has come of a frame that is not whole, UNSENT what the
   connection has not taken yet.  ECHOED octets of the echo have come, and are
   RIGHT so far; AWAITED: is there one to come?  NUMBER is that of the message,
   and BEGIN_US when it was sent; SERVED counts right echoes. */
struct client {
    int index, connection;
    enum state state;
    bool awaited, in_message, right;
    long number, served, begin_us;
    size_t echoed, rest_length, unsent_length;
    char *rest, *unsent;
    struct reply *reply;                /* of the handshake */
};

/* What all clients have in common.  SET is an epoll set, whose data is the
   client; messages have SIZE octets.  ONCE: does a client say nothing more when
   it has its echo?  OPENING are not open yet, OPEN are. */
struct crowd {
    int port, set;
    size_t size;
    bool once;
    int opening, open;
    char handshake[HANDSHAKE_BYTES];
    struct delays delays;
    long connect_errors, read_errors, write_errors, refused, wrong, malformed, pings;
};

extern struct crowd crowd;

/* Prepare the crowd, whose port, set and size are known, for TARGET. */
bool prepare_crowd(const char *target);

/* Open a connection for C, which is watched by the crowd's set. */
void begin(struct client *c);

/* Go on with C after EVENTS of its connection. */
void go_on(struct client *c, uint32_t events);

/* Send a message and await its echo; C must be open. */
void speak(struct client *c);

/* Give C up and count that in *ERRORS. */
void leave(struct client *c, long *errors);

#endif
