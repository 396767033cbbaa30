#define _GNU_SOURCE
#include "answers.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { UPLOAD_BYTES = 1 << 16, FILES = 8 };

struct text {
    size_t length;
    char bytes[512];
};

struct file {
    int descriptor;
    off_t size;
    char name[64], head[256];
};

struct connection connections[DESCRIPTORS];
static struct text keep_alive_answer, closing_answer;
static struct file files[FILES];
static int file_count;

void die(const char *what) {
    perror(what);
    exit(1);
}

static void prepare_answer(struct text *answer, const char *date, const char *field) {
    answer->length = (size_t)snprintf(answer->bytes, sizeof answer->bytes,
                                      "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
                                      "Content-Length: 4\r\nServer: limit\r\nDate: %s\r\n"
                                      "%s\r\nHey!", date, field);
}

static void prepare_fixed_answers(void) {
    char date[64];
    time_t now = time(NULL);
    strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", gmtime(&now));
    prepare_answer(&keep_alive_answer, date, "");
    prepare_answer(&closing_answer, date, "Connection: close\r\n");
}

/* Open the files of DIRECTORY. */
static void open_files(const char *directory) {
    DIR *list = opendir(directory);
    if (!list || chdir(directory) < 0) die(directory);
    for (struct dirent *entry; (entry = readdir(list)) && file_count < FILES;) {
        struct stat status;
        struct file *file = &files[file_count];
        if (stat(entry->d_name, &status) < 0 || !S_ISREG(status.st_mode)) continue;
        if (snprintf(file->name, sizeof file->name, "%s", entry->d_name) >= (int)sizeof file->name)
            continue;
        file->descriptor = open(entry->d_name, O_RDONLY);
        if (file->descriptor < 0) die(entry->d_name);
        file->size = status.st_size;
        snprintf(file->head, sizeof file->head,
                 "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n"
                 "Content-Length: %lld\r\nServer: limit\r\n\r\n", (long long)file->size);
        file_count++;
    }
    closedir(list);
}

void prepare_answers(const char *directory) {
    prepare_fixed_answers();
    open_files(directory);
}

void hang_up(int connection) {
    connections[connection] = (struct connection){.life = connections[connection].life + 1};
    close(connection);
}

bool answer(int connection, bool last) {
    const struct text *text = last ? &closing_answer : &keep_alive_answer;
    if (send(connection, text->bytes, text->length, MSG_NOSIGNAL) >= 0 && !last) return true;
    hang_up(connection);
    return false;
}

bool send_file(int connection) {
    struct connection *c = &connections[connection];
    while (c->sent < c->file->size) {
        ssize_t sent = sendfile(connection, c->file->descriptor, &c->sent,
                                (size_t)(c->file->size - c->sent));
        if (sent < 0 && errno == EAGAIN) return true;
        if (sent <= 0) break;
    }
    bool kept = c->sent == c->file->size && !c->last;
    c->file = NULL;
    if (!kept) hang_up(connection);
    return kept;
}

bool begin_file(int connection, const struct file *file, bool last) {
    size_t length = strlen(file->head);
    if (send(connection, file->head, length, MSG_NOSIGNAL | MSG_MORE) != (ssize_t)length) {
        hang_up(connection);
        return false;
    }
    connections[connection].last = last;
    connections[connection].file = file;
    connections[connection].sent = 0;
    return send_file(connection);
}

const struct file *requested_file(const char *request) {
    static const char prefix[] = "GET /files/";
    if (strncmp(request, prefix, sizeof prefix - 1) != 0) return NULL;
    const char *name = request + sizeof prefix - 1;
    size_t length = strcspn(name, " ");
    for (int i = 0; i < file_count; i++)
        if (strlen(files[i].name) == length && strncmp(files[i].name, name, length) == 0)
            return &files[i];
    return NULL;
}

bool take_upload(int connection) {
    char octets[UPLOAD_BYTES];
    struct connection *c = &connections[connection];
    while (c->upload_left > 0) {
        size_t wanted = c->upload_left < sizeof octets ? c->upload_left : sizeof octets;
        ssize_t got = recv(connection, octets, wanted, 0);
        if (got < 0 && errno == EAGAIN) return true;
        if (got <= 0) {
            hang_up(connection);
            return false;
        }
        c->upload_left -= (size_t)got;
    }
    return answer(connection, c->last);
}

/* The body that REQUEST, of LENGTH octets, announces, but for what it has. */
static size_t missing_octets(const char *request, size_t length) {
    const char *field = strstr(request, "Content-Length: ");
    const char *end = strstr(request, "\r\n\r\n");
    if (!field || !end) return 0;
    size_t body = strtoul(field + strlen("Content-Length: "), NULL, 10);
    size_t have = length - (size_t)(end + 4 - request);
    return body > have ? body - have : 0;
}

bool begin_upload(int connection, const char *request, size_t length, bool last) {
    connections[connection].last = last;
    connections[connection].upload_left = missing_octets(request, length);
    return take_upload(connection);
}
