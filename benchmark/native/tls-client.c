#define _GNU_SOURCE
#include "tls.h"

#include <errno.h>
#include <openssl/err.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

/* As much as a TLS record holds. */
enum { RECORD_BYTES = 16384 };

/* Keep the latest ticket; the reference to SESSION is ours from then on. */
static int keep_ticket(SSL *ssl, SSL_SESSION *session) {
    struct client *c = SSL_get_app_data(ssl);
    SSL_SESSION_free(c->ticket);
    c->ticket = session;
    return 1;
}

bool prepare_context(struct crowd *crowd) {
    SSL_CTX *context = crowd->context = SSL_CTX_new(TLS_client_method());
    if (!context || !SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) ||
        !SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256") ||
        !SSL_CTX_set1_groups_list(context, "X25519"))
        return false;
    SSL_CTX_set_read_ahead(context, 1);
    SSL_CTX_set_verify(context, SSL_VERIFY_NONE, NULL);
    if (crowd->mode == RESUMED) {
        SSL_CTX_set_session_cache_mode(context,
                                       SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
        SSL_CTX_sess_set_new_cb(context, keep_ticket);
    }
    return true;
}

/* The first failure is told, so that who uses this by hand knows what is wrong. */
static void tell_failure(const char *what, int reason) {
    static bool told;
    if (__atomic_exchange_n(&told, true, __ATOMIC_RELAXED)) return;
    unsigned long error = ERR_peek_error();
    fprintf(stderr, "tls: first failure: %s: %s\n", what,
            error ? ERR_reason_error_string(error)
                  : reason == SSL_ERROR_SYSCALL && errno ? strerror(errno) : "end of connection");
}

/* Hang up, with a close_notify: a session that ends without one is not to be
   resumed. */
static void hang_up(struct client *c) {
    SSL_shutdown(c->ssl);
    SSL_free(c->ssl);
    close(c->connection);
    ERR_clear_error();
    c->ssl = NULL;
}

void begin(struct client *c) {
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = c};
    c->begin_us = now_us();
    c->reply.have = 0;
    c->state = SHAKING;
    c->ssl = SSL_new(c->crowd->context);
    c->connection = open_client(c->crowd->port, c->index, false, 0);
    if (!c->ssl || c->connection < 0 || !SSL_set_fd(c->ssl, c->connection) ||
        epoll_ctl(c->crowd->set, EPOLL_CTL_ADD, c->connection, &event) < 0) {
        perror("tls");
        exit(1);
    }
    SSL_set_app_data(c->ssl, c);
    SSL_set_tlsext_host_name(c->ssl, "localhost");
    if (c->ticket) SSL_set_session(c->ssl, c->ticket);
    SSL_set_connect_state(c->ssl);
}

static void begin_again(struct client *c) {
    hang_up(c);
    begin(c);
}

/* What to do after an operation of OpenSSL that gave RESULT: wait, or count the
   failure in ERRORS and begin again. */
static void wait_or_fail(struct client *c, int result, long *errors, const char *what) {
    int reason = SSL_get_error(c->ssl, result);
    if (reason == SSL_ERROR_WANT_READ || reason == SSL_ERROR_WANT_WRITE) return;
    ++*errors;
    tell_failure(what, reason);
    begin_again(c);
}

static void count_handshake(struct client *c) {
    struct tally *t = &c->crowd->tally;
    t->handshakes++;
    if (SSL_session_reused(c->ssl)) t->resumed++;
    else if (c->ticket) t->declined++;
    else if (c->connections && c->crowd->mode == RESUMED) t->ticketless++;
    c->connections++;
}

static bool shake(struct client *c) {
    int result = SSL_do_handshake(c->ssl);
    if (result != 1) {
        wait_or_fail(c, result, &c->crowd->tally.connect_errors, "handshake");
        return false;
    }
    count_handshake(c);
    c->state = ASKING;
    return true;
}

static bool ask(struct client *c) {
    const char *request = c->crowd->request;
    if (c->crowd->mode == KEEP_ALIVE) c->begin_us = now_us();
    c->reply.have = 0;
    int result = SSL_write(c->ssl, request, (int)strlen(request));
    if (result <= 0) {
        wait_or_fail(c, result, &c->crowd->tally.write_errors, "request");
        return false;
    }
    c->state = HEARING;
    return true;
}

static void record_time(struct tally *t, long microseconds) {
    record_delay(&t->times, microseconds);
    t->timeouts += microseconds > TIMEOUT_US;
}

/* The reply is complete: ask again.  What came after it, tickets or the server's
   close_notify, is read before the client hangs up. */
static void finish(struct client *c, enum outcome outcome) {
    struct tally *t = &c->crowd->tally;
    char rest;
    record_time(t, now_us() - c->begin_us);
    t->refused += outcome == REPLY_REFUSED;
    c->served += outcome == REPLY_GOOD;
    c->state = ASKING;
    if (c->crowd->mode == KEEP_ALIVE && !says_close(&c->reply)) {
        ask(c);
    } else {
        SSL_read(c->ssl, &rest, 1);
        begin_again(c);
    }
}

static bool hear(struct client *c) {
    char bytes[RECORD_BYTES];
    int count = SSL_read(c->ssl, bytes, sizeof bytes);
    if (count <= 0) {
        wait_or_fail(c, count, &c->crowd->tally.read_errors, "answer");
        return false;
    }
    enum outcome outcome = add_to_reply(&c->reply, bytes, (size_t)count);
    if (outcome == REPLY_PARTIAL) return true;
    finish(c, outcome);
    return false;
}

/* Who has asked again waits for the next event, even if the answer is there by
   now: it is the turn of others. */
void go_on(struct client *c) {
    for (bool more = true; more;) {
        switch (c->state) {
        case SHAKING: more = shake(c); break;
        case ASKING: more = ask(c); break;
        case HEARING: more = hear(c); break;
        }
    }
}
