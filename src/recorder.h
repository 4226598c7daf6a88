/* SPDX-License-Identifier: MIT */
/*
 * The flight recorder: what each session's last seconds were like, and what happened in the night.
 *
 *   worker publishes --> batch_note (session.h) --\
 *                                                  >-- recorder_tick(), ten times a second --> recording
 *   trainer leases  --> waited[] (abi/ring.h)   --/
 *
 * A recording has, in bounded memory (RECORDING_BYTES a session, about):
 *   - the window: rates, shares and the verdict of the last RECORDER_WINDOW seconds
 *   - a histogram of how long loaderd_next() waited, over all of the session's batches
 *   - the last RECORDER_STALLS steps for which the trainer waited RECORDER_LEAST_NS or longer: stage times, slowest sample
 *   - the worst of these of each five minutes of the last 24 hours
 * Recordings of the last RECORDER_ENDED sessions that ended are kept, for 24 hours at most.
 *
 * What a trainer says of its waits is bounded by what the daemon saw itself: nobody waits longer for a batch than from the
 * moment that the one before was ready to the moment that it was (and RECORDER_SLACK_NS to wake up).
 *
 * Threads: the one that opens and closes sessions, for all of it.
 */
#ifndef RECORDER_H
#define RECORDER_H

#include <stdio.h>

#include "pool.h"
#include "verdict.h"

#define RECORDER_WINDOW 10 /* seconds */
#define RECORDER_LEAST_NS UINT64_C(1000000)
#define RECORDER_SLACK_NS UINT64_C(200000000)
#define RECORDER_STALLS 1024u
#define RECORDER_SPANS 288u /* of five minutes */
#define RECORDER_SPAN_NS UINT64_C(300000000000)
#define RECORDER_ENDED 32u
#define RECORDER_BUCKETS 15u /* of the histogram, beside the one without end */
#define RECORDING_BYTES 400000

/* A step for which the trainer waited. */
struct stall {
    uint64_t at_ns; /* CLOCK_REALTIME: when it was published */
    uint64_t epoch, step;
    uint64_t waited_ns, fill_ns; /* fill: from its first row's claim to its publication */
    uint64_t stage_ns[STAGES];   /* workers' time */
    uint64_t slowest_us, slowest_sample;
    int32_t waiter; /* pid */
    char path[120]; /* of the slowest sample, its end where it is longer; "": not asked for */
};

/* The last seconds. Rates are of one second. */
struct recorder_window {
    double seconds; /* 0: too early */
    double samples, batches, bytes_in, bytes_out;
    double wait;                     /* share: the trainer waited in loaderd_next(), bounded */
    double device_wait, stream_wait; /* shares: its calls of libloaderd-cuda; its stream. Negative: no device */
    double full;          /* share: workers had nothing to do for it, since more than half of the ring was ready */
    double ready;         /* batches ready, on average */
    double stage[STAGES]; /* seconds of all workers */
};

struct recorder_waits {
    uint64_t count[RECORDER_BUCKETS + 1]; /* not cumulative; the last one: longer than all bounds */
    uint64_t batches, total_ns;
    uint64_t lost; /* batches that went by too fast to be looked at */
};
extern const double recorder_bounds[RECORDER_BUCKETS]; /* seconds, ascending */

struct recording {
    struct session_statistics session; /* as of the last tick */
    bool ended;
    struct recorder_window window;
    struct verdict verdict;
    struct recorder_waits waits;
    uint64_t stalls; /* ever */
};

struct recorder;

int recorder_new(struct pool *pool, struct recorder **ret);
void recorder_free(struct recorder *recorder); /* NULL allowed */
/* A session was opened; without memory it goes unrecorded. It will be closed: to be called before that. */
void recorder_begin(struct recorder *recorder, const struct session *session);
void recorder_end(struct recorder *recorder, const struct session *session);
void recorder_tick(struct recorder *recorder, uint64_t now); /* CLOCK_MONOTONIC */

/* Those of open sessions, and where `ended`, of ended ones before them; the oldest first. */
void recorder_each(const struct recorder *recorder, bool ended, void (*f)(void *arg, const struct recording *recording),
                   void *arg);

struct recorder_filter {
    uint64_t since_ns; /* CLOCK_REALTIME */
    uint64_t over_ns;  /* waited at least so long */
    bool all;          /* else only those of `uid` */
    uint32_t uid;
};
/* One JSON object a line, by session and time: see loaderctl(1). */
void recorder_write_stalls(const struct recorder *recorder, const struct recorder_filter *filter, FILE *out);

/* ---- pure parts, for tests ---- */

/* What is believed of a wait. ready_before, ready: when the batch before, and this one, could be had. */
uint64_t recorder_believe(uint64_t told_ns, uint64_t ready_before_ns, uint64_t ready_ns);
struct recording *recording_new(void);
void recording_free(struct recording *recording);
/* One step: `waited_ns` is believed; `path` as in struct stall. */
void recording_add(struct recording *recording, const struct session_batch *batch, uint64_t waited_ns, uint64_t at_ns,
                   const char *path);
/* Calls f for each stall since then, oldest first. worst_of: 1, or how many stalls of its five minutes this was the worst
 * of, the others being forgotten. */
void recording_each_stall(const struct recording *recording, uint64_t since_ns, uint64_t over_ns,
                          void (*f)(void *arg, const struct stall *stall, uint64_t worst_of), void *arg);

#endif
