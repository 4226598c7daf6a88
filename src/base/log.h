/* SPDX-License-Identifier: MIT */
/*
 * Log lines that a person can act on, to stderr; under systemd (JOURNAL_STREAM names our stderr) each carries its
 * "<priority>" prefix, and a line about something goes to the journal by its own protocol, with fields to search by:
 * `journalctl -u loaderd PIPELINE=imagenet-train`. Never called between claim and publish. Any thread: a line is one
 * write() or one datagram.
 */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include <stdint.h>

enum log_level { LOG_ERROR = 3, LOG_WARNING = 4, LOG_NOTICE = 5, LOG_INFO = 6, LOG_DEBUG = 7 };

void log_init(const char *program, enum log_level most); /* lines above `most` are dropped */
enum log_level log_most(void);
void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* What a line is about; what is zero or NULL is left out. The fields of the journal are named in loaderd(8). */
struct log_about {
    const char *pipeline, *job;
    uint64_t session;                 /* SESSION */
    uint32_t rank;                    /* RANK: with a session */
    int32_t pid;                      /* TRAINER_PID */
    uint32_t uid;                     /* TRAINER_UID: with a pid */
    const char *path;                 /* SAMPLE_PATH */
    uint64_t sample, epoch, position; /* with a path */
};
void log_about(enum log_level level, const struct log_about *about, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#define log_error(...) log_line(LOG_ERROR, __VA_ARGS__)
#define log_warning(...) log_line(LOG_WARNING, __VA_ARGS__)
#define log_notice(...) log_line(LOG_NOTICE, __VA_ARGS__)
#define log_info(...) log_line(LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_line(LOG_DEBUG, __VA_ARGS__)

#endif
