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
   connection has not taken yet.  ECHOED octets of the next echo have come, and
   are RIGHT so far.  NUMBER is that of the message that was sent last, HEARD
   that of the last echo, and BEGIN_US when messages were sent last; SERVED
   counts right echoes. */
struct client {
    int index, connection;
    enum state state;
    bool in_message, right;
    long number, heard, served, begin_us;
    size_t echoed, rest_length, unsent_length;
    char *rest, *unsent;
    struct reply *reply;                /* of the handshake */
};

/* What all clients have in common.  SET is an epoll set, whose data is the
   client; messages have SIZE octets, and BURST of them are sent at a time.
   ONCE: does a client say nothing more when it has its echoes?  OPENING are not open yet, OPEN are. */
struct crowd {
    int port, set;
    size_t size, burst;
    bool once;
    int opening, open;
    char handshake[HANDSHAKE_BYTES];
    struct delays delays;
    long connect_errors, read_errors, write_errors, refused, wrong, malformed, pings;
};

extern struct crowd crowd;

/* Prepare the crowd, whose port, set, size and burst are known, for TARGET. */
bool prepare_crowd(const char *target);

/* Open a connection for C, which is watched by the crowd's set. */
void begin(struct client *c);

/* Go on with C after EVENTS of its connection. */
void go_on(struct client *c, uint32_t events);

/* Send messages, whose echoes are awaited, NOW, of now_us; C must be open, and
   not wait. */
void speak(struct client *c, long now);

/* Are there echoes to come for C? */
bool is_waiting(const struct client *c);

/* Give C up and count that in *ERRORS. */
void leave(struct client *c, long *errors);

#endif
