/* SPDX-License-Identifier: MIT */
/*
 * Metrics as text, in the exposition format 0.0.4 of Prometheus: one list of families in metrics.c is all there is to
 * extend. Names are loaderd_..., counters end in _total, units are seconds, bytes and ratios (0 to 1). The thread that opens
 * and closes sessions.
 */
#ifndef METRICS_H
#define METRICS_H

#include <stdio.h>

#include "pool.h"
#include "recorder.h"

struct metrics_source {
    const struct pool *pool;
    const struct recorder *recorder;
    uint64_t started_ns;  /* CLOCK_MONOTONIC */
    uint64_t opened;      /* sessions so far */
    uint32_t connections; /* of the control socket */
};
void metrics_write(const struct metrics_source *source, FILE *out);
/* A label's value, without its quotes: backslash, quote and line feed are escaped, what is no UTF-8 is U+FFFD. */
void metrics_put_label(FILE *out, const char *value);

#endif
