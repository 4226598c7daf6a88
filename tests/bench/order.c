/* SPDX-License-Identifier: MIT */
/*
 * What a position costs: order_sample() of every mode, over positions far apart, in nanoseconds of CPU time; and what the
 * keys of an epoch cost. Usage: order [POSITIONS]
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/util.h"
#include "order.h"

#define EPOCHS 200
#define IMAGENET UINT64_C(1281167)
#define SHARDS 1024u

static uint64_t positions = 1000000, sum;

static double cpu_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void measure(const char *name, const struct order *order) {
    struct order_epoch e;
    double start = cpu_ns();
    for (uint64_t epoch = 0; epoch < EPOCHS; epoch++)
        order_epoch_init(order, epoch, &e);
    double epochs = (cpu_ns() - start) / EPOCHS;
    start = cpu_ns();
    for (uint64_t i = 0, at = 0; i < positions; i++) {
        sum += order_sample(&e, at);
        at += 7919;
        at -= at >= order->samples ? order->samples : 0;
    }
    printf("%-52s %8.1f ns a position, %9.0f ns an epoch's keys\n", name, (cpu_ns() - start) / (double)positions,
           epochs);
}

static void measure_plain(const char *name, enum order_shuffle shuffle, uint64_t samples) {
    struct order order = {.samples = samples, .batch = 1, .world = 1, .shuffle = shuffle, .last = LAST_PAD};
    measure(name, &order);
}

static void measure_plan(const char *name, struct order_plan_spec spec) {
    struct order_plan *plan;
    struct diag diag = DIAG_INIT;
    spec.samples = spec.samples ? spec.samples : IMAGENET;
    spec.window = spec.window ? spec.window : 16;
    if (order_plan_new(&spec, &plan, &diag) < 0 || order_plan_reserve(plan, 2) < 0) {
        fprintf(stderr, "order: %s\n", diag.text);
        exit(1);
    }
    struct order order = {.samples = order_plan_samples(plan),
                          .batch = 1,
                          .world = 1,
                          .shuffle = spec.shuffle,
                          .last = LAST_PAD,
                          .plan = plan};
    measure(name, &order);
    order_plan_free(plan);
}

int main(int argc, char **argv) {
    static uint64_t shards[SHARDS + 1], few[65], ids[IMAGENET / 10];
    static const uint64_t sources[] = {0, 1000000, 1200000, IMAGENET};
    static const uint32_t weights[] = {6, 3, 1};
    positions = argc > 1 ? strtoull(argv[1], NULL, 10) : positions;
    for (uint64_t i = 0; i <= SHARDS; i++)
        shards[i] = IMAGENET * i / SHARDS;
    for (uint64_t i = 0; i <= 64; i++)
        few[i] = IMAGENET * i / 64;
    for (uint64_t i = 0; i < ARRAY_SIZE(ids); i++)
        ids[i] = 10 * i;
    const struct order_plan_spec chunked = {.shuffle = SHUFFLE_CHUNKED};
    struct order_plan_spec spec = chunked;
    measure_plain("none", SHUFFLE_NONE, IMAGENET);
    measure_plain("full, 1,281,167 samples", SHUFFLE_FULL, IMAGENET);
    measure_plain("full, 10^10 samples", SHUFFLE_FULL, UINT64_C(10000000000));
    measure_plain("full, 1,000 samples", SHUFFLE_FULL, 1000);
    spec.chunk = 1024;
    measure_plan("chunked, 1,252 chunks of 1,024", spec);
    spec.chunk = 16384;
    measure_plan("chunked, 79 chunks of 16,384", spec);
    spec.chunk = 1024;
    spec.samples = UINT64_C(10000000000);
    measure_plan("chunked, 10^10 samples", spec);
    spec = chunked;
    spec.shards = shards;
    spec.shard_count = SHARDS;
    measure_plan("chunked by 1,024 shards", spec);
    spec.shards = few;
    spec.shard_count = 64;
    measure_plan("chunked by 64 shards", spec);
    measure_plan("full, a subset of 128,116",
                 (struct order_plan_spec){.shuffle = SHUFFLE_FULL, .ids = ids, .id_count = ARRAY_SIZE(ids)});
    spec = (struct order_plan_spec){.sources = sources, .source_count = 3, .weights = weights};
    measure_plan("none, 3 sources mixed 6:3:1", spec);
    spec.shuffle = SHUFFLE_FULL;
    measure_plan("full, 3 sources mixed 6:3:1", spec);
    spec.shuffle = SHUFFLE_CHUNKED;
    measure_plan("chunked, 3 sources mixed 6:3:1", spec);
    return sum == 1; /* keeps the work */
}
