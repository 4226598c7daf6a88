/* SPDX-License-Identifier: MIT */
/*
 * The metrics page over HTTP: GET /metrics, at a loopback address or a unix socket. The owning file of microhttpd.h; without
 * that library exporter_new() says so. It has no thread: its descriptor becomes readable, then exporter_run() reads,
 * answers, and never waits for a peer. Peers are not trusted: at most 16 at a time, a request of at most 16 KiB within 10 s.
 *
 * Threads: one, that of the server's loop.
 */
#ifndef EXPORTER_H
#define EXPORTER_H

#include <sys/socket.h>

#include "base/diag.h"
#include "config.h"

struct exporter_address {
    struct sockaddr_storage address;
    socklen_t length;
    char text[128]; /* as a URL has it: "127.0.0.1:9100", "[::1]:9100", "unix:PATH" */
};

/* "ADDRESS:PORT" (an IPv4 address, an IPv6 one in brackets, or localhost; port 0: any free one) or "unix:PATH". -EINVAL
 * where it is neither; -EACCES where it is not a loopback address and `everywhere` is not set. Pure. */
int exporter_parse(const char *text, bool everywhere, struct exporter_address *ret, struct diag *diag);

struct exporter;

/* Listens. `make` writes the page. A dead daemon's unix socket is replaced; its mode and group are those of the control
 * socket. The real port is logged. */
int exporter_new(const struct daemon_config *config, void (*make)(void *arg, FILE *out), void *arg,
                 struct exporter **ret, struct diag *diag);
void exporter_free(struct exporter *exporter);    /* NULL allowed; removes the unix socket */
int exporter_fd(const struct exporter *exporter); /* readable: call exporter_run() */
void exporter_run(struct exporter *exporter);     /* and ten times a second while exporter_busy() */
bool exporter_busy(const struct exporter *exporter);

#endif
