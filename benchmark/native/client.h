/* What the load helpers share: a connection to 127.0.0.1 and the little
   of HTTP/1.1 that tells where one reply ends. */

#ifndef CLIENT_H
#define CLIENT_H

#include <stdbool.h>
#include <stddef.h>

enum { REPLY_BYTES = 8192 };

/* One reply, as far as it has come: the number of its bytes, and the first
   REPLY_BYTES of them. */
struct reply {
    size_t have;
    char bytes[REPLY_BYTES + 1];
};

enum outcome { REPLY_PARTIAL, REPLY_GOOD, REPLY_REFUSED, CONNECTION_LOST };

/* Allow this process as many descriptors as the system lets it have. */
void raise_descriptor_limit(void);

/* A connection to 127.0.0.1:PORT for client number INDEX, or -1.  Clients
   are spread over source addresses, 2,000 to each: one has only some 28,000
   ports, and the kernel searches long for a free one where many are taken
   (18,000 connections from one address took four times as long).  BLOCKING ones wait at most TIMEOUT_MS for each
   step; the others may still be connecting when this returns. */
int open_client(int port, int index, bool blocking, int timeout_ms);

/* Has CONNECTION, of which epoll has told something for the first time, failed
   to connect? */
bool connecting_failed(int connection);

/* Send LENGTH octets of TEXT; false when the connection does not take all. */
bool send_octets(int connection, const char *text, size_t length);

/* Send a GET of /yo; false when the connection does not take it. */
bool send_request(int connection, bool close_after);

/* Read what is there into REPLY and say what it amounts to.  GOOD is a
   complete 200, REFUSED a complete other status. */
enum outcome receive_reply(int connection, struct reply *reply);

/* Add COUNT BYTES that were received by other means, and say the same.  A
   reply longer than REPLY_BYTES must announce its length. */
enum outcome add_to_reply(struct reply *reply, const char *bytes, size_t count);

/* Where the head of REPLY ends, with the empty line; or NULL. */
const char *head_end(const struct reply *reply);

/* The value of the field NAME, which ends with a colon, in the whole head of
   REPLY; or NULL. */
const char *field(const struct reply *reply, const char *name);

/* Copy the content of this complete REPLY to CONTENT, which has ROOM octets,
   a zero at its end included, and return its length; -1 if it has no room, or
   if more has come than this reply. */
long reply_content(const struct reply *reply, char *content, size_t room);

/* Has the server announced, in this complete REPLY, that it will hang up? */
bool says_close(const struct reply *reply);

/* Milliseconds and microseconds of a clock that never goes back. */
long now_ms(void);
long now_us(void);

#endif
