/* idle -- hold connections that have nothing to say.

   usage: idle PORT COUNT SECONDS

   Opens up to COUNT kept-alive connections within SECONDS, with one request
   on each, says how many are held, and keeps them until its standard input
   ends.  Then it asks once more on each, again within SECONDS, and says how
   many were still alive.  One connection after the other: the point is to
   have them, not to have them soon. */

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "client.h"

enum { PATIENCE_MS = 1000 };

/* One request and its whole reply, on a blocking CONNECTION. */
static bool is_answered(int connection) {
    static struct reply reply;
    enum outcome outcome = REPLY_PARTIAL;
    long end = now_ms() + PATIENCE_MS;
    reply.have = 0;
    if (!send_request(connection, false)) return false;
    while (outcome == REPLY_PARTIAL && now_ms() < end) outcome = receive_reply(connection, &reply);
    return outcome == REPLY_GOOD && !says_close(&reply);
}

static int hold(int *held, int port, int count, long end) {
    int kept = 0;
    for (int i = 0; i < count && now_ms() < end; i++) {
        int connection = open_client(port, i, true, PATIENCE_MS);
        if (connection < 0) continue;
        if (is_answered(connection)) held[kept++] = connection;
        else close(connection);
    }
    return kept;
}

static int count_alive(const int *held, int kept, long end) {
    int alive = 0;
    for (int i = 0; i < kept && now_ms() < end; i++) alive += is_answered(held[i]);
    return alive;
}

static void wait_for_end_of_input(void) {
    char bytes[64];
    while (read(STDIN_FILENO, bytes, sizeof bytes) > 0) continue;
}

int main(int argc, char **words) {
    int count = argc == 4 ? atoi(words[2]) : 0;
    if (count < 1) {
        fprintf(stderr, "usage: idle PORT COUNT SECONDS\n");
        return 2;
    }
    long patience = 1000 * atol(words[3]);
    int *held = calloc((size_t)count, sizeof *held);
    if (!held) return 1;
    raise_descriptor_limit();
    int kept = hold(held, atoi(words[1]), count, now_ms() + patience);
    printf("ruler held=%d\n", kept);
    fflush(stdout);
    wait_for_end_of_input();
    printf("ruler alive=%d\n", count_alive(held, kept, now_ms() + patience));
    return 0;
}
