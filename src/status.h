/* SPDX-License-Identifier: MIT */
/*
 * What `loaderctl status` shows: the daemon, its workers, pipelines and sessions as one JSON object in a memfd. Reads
 * statistics only; the server's loop thread.
 */
#ifndef STATUS_H
#define STATUS_H

#include "opener.h"
#include "pool.h"
#include "recorder.h"

struct status_source {
    struct pool *pool;
    struct opener *opener;
    const struct recorder *recorder;
    const char *socket;
    bool is_private;
    uint64_t started_ns;                    /* CLOCK_MONOTONIC */
    const struct worker_statistics *before; /* of all workers, some seconds ago: for the verdict; NULL: none yet */
    const char *note;                       /* e.g. how many connections; "" */
};

/* The memfd is the caller's. -ENOMEM or what the kernel said. */
int status_make(const struct status_source *source, int *ret_fd, uint64_t *ret_bytes);

/* A text as a memfd, which is the caller's. */
int status_to_memfd(const char *text, size_t length, int *ret_fd);

#endif
