/* SPDX-License-Identifier: MIT */
/*
 * The pool of workers: one pinned thread a core, each with its own reader, decoder and scratch. A worker claims units
 * from the rings of all sessions, keeps its reads in flight ahead of its decoding, and runs each sample through all
 * stages: the only place where they meet. No queue between threads, no lock on the path.
 */
#ifndef POOL_H
#define POOL_H

#include "pipeline.h"
#include "verdict.h"

const char *worker_stage_name(
    enum worker_stage stage); /* "idle", "read", "decode", "transform", "copy", "other", "fill" */

struct worker_statistics {
    int cpu; /* pinned to it, -1: not pinned */
    uint64_t stage_ns[STAGES];
    uint64_t samples, bytes_in, bytes_out, bad, damaged;
    uint64_t claims, rescues; /* rescues: work found by the 100 ms timer that no wake-up announced; 0 in tests */
};

/* Starts the threads. `daemon` is copied. */
int pool_new(const struct daemon_config *daemon, struct pool **ret, struct diag *diag);
/* Stops and joins; all sessions must be closed (they are freed). */
void pool_free(struct pool *pool);

/* The trainer of some ring sent a wake byte (or a session was opened): workers look again. Any thread. */
void pool_kick(struct pool *pool);
/* Frees closed sessions that no worker touches any more; returns how many are still closing. The thread that closes. */
uint32_t pool_reap(struct pool *pool);

struct topology;
const struct topology *pool_topology(const struct pool *pool);
uint32_t pool_workers(const struct pool *pool);
uint32_t pool_depth(const struct pool *pool); /* reads in flight a worker */
/* A ring more, or with the negative one less: workers choose their stores by the sum. Any thread. */
void pool_add_ring_bytes(struct pool *pool, uint64_t bytes);
const char *pool_engine(const struct pool *pool);
const char *pool_engine_reason(const struct pool *pool); /* a sentence, "" where the wanted one was taken */
void pool_statistics(const struct pool *pool, uint32_t worker, struct worker_statistics *ret);

/* Has every worker moved within `patience_ns`, or does it wait for storage? (A worker that has nothing to do moves, too:
 * it wakes up every 100 ms.) Else false and which one stands still. The owner's thread; the first call begins. */
bool pool_moves(struct pool *pool, uint64_t now, uint64_t patience_ns, uint32_t *ret_stuck);

/* Sessions now open, for status: calls f for each. Only the thread that opens and closes sessions. */
void pool_each_session(struct pool *pool, void (*f)(void *arg, const struct session *session), void *arg);

/* Names bad and damaged samples on the log ("bad sample 17 (n01/x.jpg) at epoch 0 position 99: ..."). To be called
 * about ten times a second by the thread that owns the pool; returns how many lines were due. */
uint32_t pool_report(struct pool *pool);

/* Between two snapshots of all workers: their seconds by stage (their sum is returned) and samples. */
double pool_seconds(const struct worker_statistics *before, const struct worker_statistics *after, uint32_t workers,
                    double ret[STAGES], double *ret_samples);
/* What binds all sessions together, in the same time. `wait`: share of it that the only trainer waited, negative: not
 * known, or there are several. */
void pool_verdict(const struct worker_statistics *before, const struct worker_statistics *after, uint32_t workers,
                  double wait, struct verdict *ret);

#endif
