/* SPDX-License-Identifier: MIT */
/* Log lines: see log.h. Keeps errno. */
#include "base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define LOG_TEXT 1024 /* bytes of a line; the rest is cut off */

static const char *program_name = "loaderd";
static enum log_level most_level = LOG_INFO;
static bool to_journal;

/* True where $JOURNAL_STREAM ("device:inode") names the file behind stderr, as systemd.exec(5) says. */
static bool stderr_is_journal(void) {
    const char *stream = getenv("JOURNAL_STREAM");
    unsigned long long device, inode;
    struct stat st;
    return stream && sscanf(stream, "%llu:%llu", &device, &inode) == 2 && fstat(STDERR_FILENO, &st) == 0 &&
           (unsigned long long)st.st_dev == device && (unsigned long long)st.st_ino == inode;
}

void log_init(const char *program, enum log_level most) {
    program_name = program;
    most_level = most;
    to_journal = stderr_is_journal();
}

enum log_level log_most(void) {
    return most_level;
}

/* One write: to the journal with its priority, to a person with the program's name. */
static void write_line(enum log_level level, const char *text) {
    char line[1100];
    int n = to_journal ? snprintf(line, sizeof line, "<%d>%s", (int)level, text)
                       : snprintf(line, sizeof line, "%s: %s%s", program_name,
                                  level <= LOG_ERROR     ? "error: "
                                  : level == LOG_WARNING ? "warning: "
                                                         : "",
                                  text);
    size_t length = n < 0 ? 0 : strnlen(line, sizeof line - 2);
    line[length++] = '\n';
    ssize_t written = write(STDERR_FILENO, line, length);
    (void)written; /* stderr is gone: nowhere left to say so */
}

void log_line(enum log_level level, const char *format, ...) {
    if (level > most_level)
        return;
    int saved = errno;
    char text[LOG_TEXT] = "";
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    write_line(level, text);
    errno = saved;
}

/* ---- the journal's own protocol: systemd.io/JOURNAL_NATIVE_PROTOCOL ---- */

struct datagram {
    char bytes[8192];
    size_t length;
};

/* NAME, line feed, length as a little-endian 64-bit number, value, line feed: a value may hold anything. */
static void put_field(struct datagram *d, const char *name, const char *value) {
    size_t name_length = strlen(name), length = strlen(value);
    uint64_t little = length; /* loaderd is for little-endian machines: configure.ac */
    if (name_length + length + sizeof little + 2 > sizeof d->bytes - d->length)
        return;
    char *at = d->bytes + d->length;
    memcpy(at, name, name_length);
    at[name_length] = '\n';
    memcpy(at + name_length + 1, &little, sizeof little);
    memcpy(at + name_length + 1 + sizeof little, value, length);
    at[name_length + 1 + sizeof little + length] = '\n';
    d->length += name_length + length + sizeof little + 2;
}

static void put_number(struct datagram *d, const char *name, uint64_t value) {
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, value);
    put_field(d, name, text);
}

static void put_about(struct datagram *d, const struct log_about *about) {
    if (about->pipeline && *about->pipeline)
        put_field(d, "PIPELINE", about->pipeline);
    if (about->job && *about->job)
        put_field(d, "JOB", about->job);
    if (about->session) {
        put_number(d, "SESSION", about->session);
        put_number(d, "RANK", about->rank);
    }
    if (about->pid) {
        put_number(d, "TRAINER_PID", (uint64_t)about->pid);
        put_number(d, "TRAINER_UID", about->uid);
    }
    if (about->path) {
        put_field(d, "SAMPLE_PATH", about->path);
        put_number(d, "SAMPLE", about->sample);
        put_number(d, "EPOCH", about->epoch);
        put_number(d, "POSITION", about->position);
    }
}

/* The socket is opened for each line: such lines are rare, and no descriptor is kept that a fork could close. */
static int send_datagram(const struct datagram *d) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *path = getenv("LOADERD_TEST_JOURNAL");
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path ? path : "/run/systemd/journal/socket");
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    ssize_t n =
        sendto(fd, d->bytes, d->length, MSG_NOSIGNAL | MSG_DONTWAIT, (struct sockaddr *)&address, sizeof address);
    int r = n < 0 ? -errno : 0;
    close(fd);
    return r;
}

void log_about(enum log_level level, const struct log_about *about, const char *format, ...) {
    if (level > most_level)
        return;
    int saved = errno;
    char text[LOG_TEXT] = "";
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    struct datagram d = {.length = 0};
    if (to_journal) {
        put_field(&d, "MESSAGE", text);
        put_number(&d, "PRIORITY", (uint64_t)level);
        put_field(&d, "SYSLOG_IDENTIFIER", program_name);
        put_about(&d, about);
    }
    if (!to_journal || send_datagram(&d) < 0)
        write_line(level, text);
    errno = saved;
}
