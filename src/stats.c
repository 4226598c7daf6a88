/* SPDX-License-Identifier: MIT */
/* What the workers' counters say: snapshots, and their difference. Any thread. */
#include <string.h>

#include "worker.h"

const char *worker_stage_name(enum worker_stage stage) {
    static const char *const names[STAGES] = {"idle", "read", "decode", "transform", "copy", "other", "fill"};
    return names[stage];
}

void pool_statistics(const struct pool *pool, uint32_t worker, struct worker_statistics *ret) {
    const struct worker *w = &pool->worker[worker];
    *ret = (struct worker_statistics){.cpu = w->cpu,
                                      .samples = atomic_load_explicit(&w->samples, memory_order_relaxed),
                                      .bytes_in = atomic_load_explicit(&w->bytes_in, memory_order_relaxed),
                                      .bytes_out = atomic_load_explicit(&w->bytes_out, memory_order_relaxed),
                                      .bad = atomic_load_explicit(&w->bad, memory_order_relaxed),
                                      .damaged = atomic_load_explicit(&w->damaged, memory_order_relaxed),
                                      .claims = atomic_load_explicit(&w->claims, memory_order_relaxed),
                                      .rescues = atomic_load_explicit(&w->rescues, memory_order_relaxed)};
    for (int i = 0; i < STAGES; i++)
        ret->stage_ns[i] = atomic_load_explicit(&w->stage_ns[i], memory_order_relaxed);
}

/* Seconds of all workers between two snapshots, by stage. */
double pool_seconds(const struct worker_statistics *before, const struct worker_statistics *after, uint32_t workers,
                    double ret[STAGES], double *ret_samples) {
    double all = 0;
    *ret_samples = 0;
    memset(ret, 0, STAGES * sizeof *ret);
    for (uint32_t i = 0; i < workers; i++) {
        for (int stage = 0; stage < STAGES; stage++)
            ret[stage] += (double)(after[i].stage_ns[stage] - before[i].stage_ns[stage]) / 1e9;
        *ret_samples += (double)(after[i].samples - before[i].samples);
    }
    for (int stage = 0; stage < STAGES; stage++)
        all += ret[stage];
    return all;
}

void pool_verdict(const struct worker_statistics *before, const struct worker_statistics *after, uint32_t workers,
                  double wait, struct verdict *ret) {
    struct verdict_input input = {.workers = workers, .wait = wait, .full = -1, .slow_rank = -1};
    double all = pool_seconds(before, after, workers, input.busy, &input.samples);
    input.seconds = workers ? all / workers : 0;
    input.idle = all > 0 ? (input.busy[STAGE_IDLE] + input.busy[STAGE_FILL]) / all : 0;
    verdict_judge(&input, ret);
}
