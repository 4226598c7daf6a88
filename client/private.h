/* SPDX-License-Identifier: MIT */
/*
 * The private daemon: one a job on a machine, started by whichever rank comes first (a lock decides), ended by itself
 * with its last session. Everything it leaves while it lives is in a directory that only its user may enter.
 *
 *     DIR/private-JOB.sock        its socket          DIR/private-JOB.sock.lock   held while it lives (server_listen())
 *     DIR/private-JOB.election    held by the process that is starting it; gone afterwards
 */
#ifndef CLIENT_PRIVATE_H
#define CLIENT_PRIVATE_H

#include <stdbool.h>
#include <stddef.h>

#include "connection.h"

/* True where a name means a dataset: it holds a '/' or a character of a pattern, *?[{ (no pipeline's name does), or begins
 * with '.' or "synthetic:". */
bool private_is_path(const char *name);
/* True for keys that the daemon takes when it is started (workers, engine ...); `key` may be "key=value". */
bool private_is_daemon_key(const char *key);
/* "key=value" whose value, a path, is relative to this process's directory: the private daemon has another one. */
bool private_is_path_key(const char *key);
/* The absolute form of a dataset's name or of a path, malloc'ed; NULL without memory. */
char *private_absolute(const char *name);

struct private_daemon {
    char socket[CONNECTION_PATH_MAX + 1];
    char election[CONNECTION_PATH_MAX + 16];
    char program[4096];
};

/* Where this job's daemon is: `job` and `program` may be NULL (launcher's environment; the usual places). */
int private_init(struct private_daemon *ret, const char *job, const char *program, char *error, size_t size);
/* Writes the job's name of the environment, or one for this process alone. */
const char *private_job(const char *job, char *buffer, size_t size);

/* A descriptor connected to it; it is started if need be with these keys (NULL-terminated "key=value"; only those of
 * the daemon are used), which takes some tens of milliseconds. -EAGAIN: somebody else is just starting it, ask again.
 */
int private_connect(const struct private_daemon *daemon, const char *const *keys, char *error, size_t size);

#endif
