/* What the limit answers: the fixed bytes, files, and uploads that have come.
   Functions that may end a connection say whether it is still open. */

#ifndef ANSWERS_H
#define ANSWERS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* Descriptors of connections must be below DESCRIPTORS. */
enum { DESCRIPTORS = 1 << 17 };

struct file;

/* What is under way on a connection: FILE, of which SENT octets are sent, or
   a body of which UPLOAD_LEFT octets are to come.  LAST: no other request is
   to be answered.  LIFE tells whether a descriptor is still the connection
   that it was: the kernel gives numbers out again. */
struct connection {
    unsigned life;
    bool last;
    size_t upload_left;
    const struct file *file;
    off_t sent;
};

extern struct connection connections[DESCRIPTORS];

/* Print what WHAT failed of, and end the process. */
void die(const char *what);

/* Prepare all answers, with the files of DIRECTORY. */
void prepare_answers(const char *directory);

void hang_up(int connection);

/* Send the fixed answer; hang up if it is the LAST one. */
bool answer(int connection, bool last);

/* The file that REQUEST is for, or NULL. */
const struct file *requested_file(const char *request);

/* Send FILE as far as the connection takes it; SEND_FILE goes on. */
bool begin_file(int connection, const struct file *file, bool last);
bool send_file(int connection);

/* Receive what is posted with REQUEST, of which LENGTH octets have come, and
   answer it; TAKE_UPLOAD goes on when it has not come as a whole. */
bool begin_upload(int connection, const char *request, size_t length, bool last);
bool take_upload(int connection);

#endif
