/* SPDX-License-Identifier: MIT */
/*
 * The control socket: listens, checks credentials and quotas, speaks abi/protocol.h, owns the sessions' lives. One
 * epoll thread; what may take long (opening a dataset, making a ring) runs on one opener thread.
 */
#ifndef SERVER_H
#define SERVER_H

#include "base/diag.h"
#include "config.h"

struct pool;
struct server;

struct server_options {
    const struct config *config; /* borrowed until server_free() or server_reload() */
    struct pool *pool;           /* borrowed */
    int listen_fd;               /* a bound, listening SOCK_SEQPACKET socket; owned by the server */
    bool is_private;             /* names are dataset paths; ends with its last session */
    const char *socket;          /* its path, for messages; borrowed */
    /* NULL, or called every 5 s while `opening` configured pipelines are still to be opened, and once with 0. */
    void (*ready)(void *arg, uint32_t opening);
    /* NULL, or called (with ready_arg) every beat_ns, as long as the server's loop and all workers move: a watchdog. */
    void (*beat)(void *arg);
    uint64_t beat_ns;
    void *ready_arg;
    /* NULL: a pipeline whose dataset cannot be opened is tried again for each client, who gets the sentence. Else the
     * first such failure goes there and server_run() returns its code. */
    struct diag *failure;
};

/* Binds and listens at `path` with mode and group: stale sockets of dead daemons are replaced, a live one is
 * -EADDRINUSE naming its pid, anything else at the path is never deleted, a path over 107 bytes is -ENAMETOOLONG. The
 * lock beside it (`path`.lock) is held until server_unlisten() or the end of the process: of two starts in the same
 * instant one wins. */
int server_listen(const char *path, const struct daemon_config *daemon, int *ret_fd, struct diag *diag);
/* Removes what server_listen() made in the file system, and gives up the lock. Once a process. */
void server_unlisten(void);
/* The socket path of DESIGN section 8: $LOADERD_SOCKET, $XDG_RUNTIME_DIR/loaderd/socket, /run/loaderd/socket. */
const char *server_default_socket(char *buffer, size_t size);

int server_new(const struct server_options *options, struct server **ret, struct diag *diag);
/* Ends all sessions. False where a dataset is still being opened after a second: the opener thread cannot be stopped
 * then, and the process should _exit(). */
bool server_free(struct server *server);
/* Serves until server_stop() (async-signal-safe), or, when private, until the last session is gone. */
int server_run(struct server *server);
void server_stop(struct server *server);
/* Calls f from server_run() whenever `fd` (borrowed) is readable; at most one such descriptor. */
int server_watch(struct server *server, int fd, void (*f)(void *arg), void *arg);
/* New configuration for sessions opened from now on; running ones keep theirs. `config` replaces the borrowed one. */
void server_reload(struct server *server, const struct config *config);

#endif
