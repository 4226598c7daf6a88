/* SPDX-License-Identifier: MIT */
/*
 * A trace: what every worker did, lap by lap, for a few seconds, as Chrome's trace events (JSON; chrome://tracing and
 * Perfetto open it), with the batches and the waits of each session beside it. All times are CLOCK_MONOTONIC.
 *
 *   worker_lap() --- w->trace is NULL: one load and a test, nothing else
 *                \-- else trace_lap(): into a circle of its own, TRACE_EVENTS of them; successive laps of one stage for one
 *                    batch are one event
 *
 * Circles are made with the first trace and stay (TRACE_EVENTS x 40 bytes a worker): a worker that is late never writes to
 * freed memory. One trace at a time.
 *
 * Threads: trace_lap() is its worker's; all else that of the server's loop.
 */
#ifndef TRACE_H
#define TRACE_H

#include <stdatomic.h>
#include <stdio.h>

#include "pool.h"

#define TRACE_EVENTS 16384u
#define TRACE_MOST_MS 60000u
#define TRACE_SETTLE_NS UINT64_C(50000000) /* between trace_end() and trace_write(): laps under way are over */

struct trace_event {
    _Atomic uint64_t begin_ns, end_ns, sequence;
    _Atomic uint64_t session; /* 0: of none */
    _Atomic uint32_t stage;
};

struct trace_circle {
    _Atomic uint64_t count; /* events ever */
    struct trace_event event[TRACE_EVENTS];
};

void trace_lap(struct trace_circle *circle, enum worker_stage stage, uint64_t begin_ns, uint64_t end_ns,
               uint64_t session, uint64_t sequence);

/* -ENOMEM. */
int trace_begin(struct pool *pool);
void trace_end(struct pool *pool);
/* What happened in [from_ns, to_ns]. At least TRACE_SETTLE_NS after trace_end(). */
void trace_write(struct pool *pool, uint64_t from_ns, uint64_t to_ns, FILE *out);

#endif
