/* SPDX-License-Identifier: MIT */
/*
 * Private to order.c and plan.c: what chunks, subsets and mixtures need to know beside struct order. Constant once made,
 * but for the tables of shards' places, which the workers fill as epochs begin.
 *
 *   position --(mixture: period and turn, else as it is)--> source, pass, index in the source
 *            --(none | full | chunked)-------------------> index of that pass's shuffle
 *            --(subset: table, else + first)-------------> sample
 */
#ifndef PLAN_H
#define PLAN_H

#include <stdatomic.h>

#include "order.h"

struct order_source {
    uint64_t samples;                   /* n >= 1 */
    uint64_t first;                     /* sample of index 0, where `ids` is NULL */
    const uint64_t *ids;                /* into the plan's */
    uint32_t weight;                    /* of a mixture */
    uint64_t chunk, chunks, last_chunk; /* chunked, equal chunks: samples of each, how many, samples of the last */
    struct bijection shuffle, window;   /* of a mixture: the passes' are derived from them */
};

/* A place in a mixture's period. */
struct order_turn {
    uint16_t source, before; /* turns of the same source before this one */
};

struct order_place {
    uint64_t start, first; /* position that it begins at; index of its first sample */
};

/* Places of one epoch. Written by the worker that sets `state` to PLACES_BUSY, then constant until the epoch is over. */
struct order_places {
    _Atomic uint64_t state;    /* 0: nothing; PLACES_BUSY; else 2 x epoch + 1 */
    struct order_place *place; /* chunks + 1 */
};
#define PLACES_BUSY 2u

struct order_plan {
    enum order_shuffle shuffle;
    uint32_t window;
    uint64_t samples; /* positions of an epoch */
    bool mixed;
    uint32_t sources, period;
    struct order_source *source;
    struct order_turn *turn; /* of a mixture: `period` of them */
    uint64_t turn_key;
    uint64_t *ids, id_count; /* subset; of several sources: one source's behind the other's */
    uint64_t *shard;         /* chunked by shards, or by few chunks: prefix sums of index, shards + 1; else NULL */
    uint64_t shards;
    struct order_places *places;
    uint64_t epochs; /* places in reserve */
};

#endif
