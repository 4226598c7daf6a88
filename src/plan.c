/* SPDX-License-Identifier: MIT */
/*
 * Makes the plan of an order: tables of subsets, of chunks by shards, of a mixture's period. Opening only: nothing here
 * runs while batches are made, and nothing of a plan changes afterwards (but for the places that order.c fills). One
 * thread.
 */
#include "plan.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"

#define MAX_SAMPLES (UINT64_C(1) << 62) /* so that no position, and no rounding up of one, leaves 64 bits */

static int out_of_memory(uint64_t entries, const char *what, struct diag *diag) {
    return diag_set(diag, -ENOMEM, "out of memory for %s: %" PRIu64 " x 8 bytes = %" PRIu64 " MiB", what, entries,
                    entries >> 17);
}

/* ---- sources ------------------------------------------------------------------------------------------------------ */

static uint64_t source_end(const struct order_plan_spec *spec, uint32_t i) {
    return spec->sources ? spec->sources[i + 1] : spec->samples;
}

static uint32_t source_of(const struct order_plan_spec *spec, uint64_t id) {
    uint32_t low = 0, high = spec->source_count;
    while (spec->sources && high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (spec->sources[middle] <= id)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Copies the subset; of a mixture, source by source, each in the order given. */
static int copy_ids(struct order_plan *plan, const struct order_plan_spec *spec, struct diag *diag) {
    uint64_t end[ORDER_MAX_SOURCES] = {0}, bytes;
    if (!spec->ids)
        return 0;
    if (!mul_u64(spec->id_count, sizeof *plan->ids, &bytes) || !(plan->ids = malloc(MAX(bytes, 1u))))
        return out_of_memory(spec->id_count, "the subset's table", diag);
    plan->id_count = spec->id_count;
    if (!plan->mixed || plan->sources == 1) {
        memcpy(plan->ids, spec->ids, bytes);
        plan->source[0].ids = plan->ids;
        plan->source[0].samples = spec->id_count;
        return 0;
    }
    for (uint64_t i = 0; i < spec->id_count; i++)
        plan->source[source_of(spec, spec->ids[i])].samples++;
    for (uint32_t i = 0; i < plan->sources; i++) {
        end[i] = i ? end[i - 1] + plan->source[i - 1].samples : 0;
        plan->source[i].ids = plan->ids + end[i];
    }
    for (uint64_t i = 0; i < spec->id_count; i++)
        plan->ids[end[source_of(spec, spec->ids[i])]++] = spec->ids[i];
    return 0;
}

static int make_sources(struct order_plan *plan, const struct order_plan_spec *spec, struct diag *diag) {
    plan->sources = plan->mixed && spec->weights ? spec->source_count : 1;
    if (plan->sources < 1 || plan->sources > ORDER_MAX_SOURCES)
        return diag_set(diag, -EINVAL, "%" PRIu32 " datasets to mix: 1 to %u are possible", plan->sources,
                        ORDER_MAX_SOURCES);
    plan->source = calloc(plan->sources, sizeof *plan->source);
    if (!plan->source)
        return diag_set(diag, -ENOMEM, "out of memory for the order");
    for (uint32_t i = 0; i < plan->sources && !spec->ids; i++) {
        uint64_t end = plan->sources == 1 ? spec->samples : source_end(spec, i);
        plan->source[i].first = i ? source_end(spec, i - 1) : 0;
        plan->source[i].samples = end - plan->source[i].first;
    }
    int r = copy_ids(plan, spec, diag);
    for (uint32_t i = 0; i < plan->sources && r == 0; i++)
        if (plan->source[i].samples < 1)
            r = plan->sources == 1
                    ? diag_set(diag, -EINVAL, "the subset is empty: 0 of %" PRIu64 " samples", spec->samples)
                    : diag_set(diag, -EINVAL,
                               "dataset %" PRIu32 " of the %" PRIu32
                               " mixed ones has no sample of the subset's %" PRIu64
                               "; take it and its weight away, or choose another subset",
                               i + 1, plan->sources, spec->id_count);
    return r;
}

/* ---- chunks ------------------------------------------------------------------------------------------------------- */

static uint64_t shard_of(const struct order_plan_spec *spec, uint64_t id) {
    uint64_t low = 0, high = spec->shard_count;
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        if (spec->shards[middle] <= id)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Chunks are the shards that are not empty; of a subset, the runs of neighbours in its table that lie in one shard. */
static int follow_shards(struct order_plan *plan, const struct order_plan_spec *spec, struct diag *diag) {
    const struct order_source *s = plan->source;
    uint64_t count = 0;
    for (int round = 0; round < 2; round++) {
        uint64_t last = UINT64_MAX;
        count = 0;
        for (uint64_t i = 0; s->ids && i < s->samples; i++) {
            uint64_t shard = shard_of(spec, s->ids[i]);
            if (shard != last && plan->shard)
                plan->shard[count] = i;
            count += shard != last;
            last = shard;
        }
        for (uint64_t i = 0; !s->ids && i < spec->shard_count; i++) {
            if (spec->shards[i] == spec->shards[i + 1])
                continue;
            if (plan->shard)
                plan->shard[count] = spec->shards[i];
            count++;
        }
        if (plan->shard)
            break;
        plan->shard = calloc(count + 1, sizeof *plan->shard);
        if (!plan->shard)
            return out_of_memory(count + 1, "the table of shards", diag);
    }
    plan->shard[count] = s->samples;
    plan->shards = count;
    return 0;
}

static uint64_t chunk_size(const struct order_plan *plan, const struct order_plan_spec *spec) {
    if (spec->chunk)
        return spec->chunk;
    if (!plan->mixed || spec->shard_count < 2)
        return ORDER_DEFAULT_CHUNK;
    return (spec->samples - 1) / spec->shard_count + 1; /* a mixture: their mean */
}

/* Few chunks of equal size: a table of their places costs less than asking for the place of each sample's chunk. The
 * order is the same. */
static int tabulate_chunks(struct order_plan *plan, struct diag *diag) {
    const struct order_source *s = plan->source;
    plan->shards = s->chunks;
    plan->shard = calloc(plan->shards + 1, sizeof *plan->shard);
    if (!plan->shard)
        return out_of_memory(plan->shards + 1, "the table of chunks", diag);
    for (uint64_t i = 0; i <= plan->shards; i++)
        plan->shard[i] = MIN(i * s->chunk, s->samples);
    return 0;
}

static int make_chunks(struct order_plan *plan, const struct order_plan_spec *spec, struct diag *diag) {
    if (plan->shuffle != SHUFFLE_CHUNKED)
        return 0;
    if (spec->window < 1)
        return diag_set(diag, -EINVAL, "window is 0 chunks: at least 1 is needed");
    plan->window = spec->window;
    if (!plan->mixed && !spec->chunk && spec->shards && spec->shard_count > 1) {
        int r = follow_shards(plan, spec, diag);
        plan->window = (uint32_t)MIN(plan->window, plan->shards);
        return r;
    }
    uint64_t most = 0;
    for (uint32_t i = 0; i < plan->sources; i++) {
        struct order_source *s = &plan->source[i];
        s->chunk = MIN(chunk_size(plan, spec), s->samples);
        s->chunks = (s->samples - 1) / s->chunk + 1;
        s->last_chunk = s->samples - (s->chunks - 1) * s->chunk;
        most = MAX(most, s->chunks);
    }
    plan->window = (uint32_t)MIN(plan->window, most);
    return !plan->mixed && most < BIJECTION_SMALL ? tabulate_chunks(plan, diag) : 0;
}

/* ---- mixtures ----------------------------------------------------------------------------------------------------- */

static uint32_t common_divisor(uint32_t a, uint32_t b) {
    while (b) {
        uint32_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static int set_weights(struct order_plan *plan, const struct order_plan_spec *spec, struct diag *diag) {
    uint64_t sum = 0;
    uint32_t divisor = 0;
    for (uint32_t i = 0; i < plan->sources; i++) {
        uint32_t weight = spec->weights ? spec->weights[i] : 1;
        if (weight < 1)
            return diag_set(diag, -EINVAL, "weight %" PRIu32 " is 0: leave that dataset out instead", i + 1);
        plan->source[i].weight = weight;
        divisor = common_divisor(divisor, weight);
        sum += weight;
    }
    if (sum > ORDER_MAX_PERIOD)
        return diag_set(diag, -EINVAL, "the weights' sum is %" PRIu64 ", at most %u is possible", sum,
                        ORDER_MAX_PERIOD);
    for (uint32_t i = 0; i < plan->sources; i++)
        plan->source[i].weight /= divisor;
    plan->period = (uint32_t)(sum / divisor);
    return 0;
}

/* The turns of a period, evenly spread: at each the source that is furthest behind its share, the first of such. */
static int make_turns(struct order_plan *plan, struct diag *diag) {
    int64_t credit[ORDER_MAX_SOURCES] = {0};
    uint16_t taken[ORDER_MAX_SOURCES] = {0};
    plan->turn = calloc(plan->period, sizeof *plan->turn);
    if (!plan->turn)
        return diag_set(diag, -ENOMEM, "out of memory for the mixture's period");
    for (uint32_t t = 0; t < plan->period; t++) {
        uint32_t next = 0;
        for (uint32_t i = 0; i < plan->sources; i++) {
            credit[i] += plan->source[i].weight;
            next = credit[i] > credit[next] ? i : next;
        }
        credit[next] -= plan->period;
        plan->turn[t] = (struct order_turn){(uint16_t)next, taken[next]++};
    }
    return 0;
}

static void set_mixed_keys(struct order_plan *plan, uint64_t seed) {
    struct random_key key = {seed, 0, 0};
    struct random_block block = random_draw(&key, RANDOM_MIX, 1u << 16);
    plan->turn_key = (uint64_t)block.word[1] << 32 | block.word[0];
    for (uint32_t i = 0; i < plan->sources; i++) {
        key.position = 2 * i;
        bijection_init(&plan->source[i].shuffle, 1, &key, RANDOM_MIX);
        key.position = 2 * i + 1;
        bijection_init(&plan->source[i].window, 1, &key, RANDOM_MIX);
    }
}

static int make_mixture(struct order_plan *plan, const struct order_plan_spec *spec, struct diag *diag) {
    uint64_t all = 0;
    for (uint32_t i = 0; i < plan->sources; i++)
        all += plan->source[i].samples;
    plan->samples = all;
    if (!plan->mixed)
        return 0;
    int r = set_weights(plan, spec, diag);
    if (r == 0)
        r = make_turns(plan, diag);
    if (r < 0)
        return r;
    set_mixed_keys(plan, spec->seed);
    plan->samples = spec->epoch_samples ? spec->epoch_samples : ((all - 1) / plan->period + 1) * plan->period;
    return 0;
}

/* ---- the plan ----------------------------------------------------------------------------------------------------- */

int order_plan_new(const struct order_plan_spec *spec, struct order_plan **ret, struct diag *diag) {
    if (spec->samples < 1)
        return diag_set(diag, -EINVAL, "no samples: the dataset is empty");
    if (spec->samples > MAX_SAMPLES || spec->epoch_samples > MAX_SAMPLES)
        return diag_set(diag, -EOVERFLOW, "%" PRIu64 " samples: at most 2^62 can be chunked, chosen from or mixed",
                        MAX(spec->samples, spec->epoch_samples));
    struct order_plan *plan = calloc(1, sizeof *plan);
    if (!plan)
        return diag_set(diag, -ENOMEM, "out of memory for the order");
    plan->shuffle = spec->shuffle;
    plan->mixed = spec->weights || spec->epoch_samples;
    int r = make_sources(plan, spec, diag);
    if (r == 0)
        r = make_chunks(plan, spec, diag);
    if (r == 0)
        r = make_mixture(plan, spec, diag);
    if (r < 0) {
        order_plan_free(plan);
        return r;
    }
    *ret = plan;
    return 0;
}

int order_plan_reserve(struct order_plan *plan, uint64_t epochs) {
    if (!plan->shard)
        return 0;
    struct order_places *places = calloc(epochs, sizeof *places);
    if (!places)
        return -ENOMEM;
    plan->places = places;
    plan->epochs = epochs;
    for (uint64_t i = 0; i < epochs; i++) {
        atomic_init(&places[i].state, 0);
        places[i].place = calloc(plan->shards + 1, sizeof *places[i].place);
        if (!places[i].place)
            return -ENOMEM;
    }
    return 0;
}

struct order_plan *order_plan_free(struct order_plan *plan) {
    if (!plan)
        return NULL;
    for (uint64_t i = 0; i < plan->epochs; i++)
        free(plan->places[i].place);
    free(plan->places);
    free(plan->source);
    free(plan->shard);
    free(plan->turn);
    free(plan->ids);
    free(plan);
    return NULL;
}

uint64_t order_plan_samples(const struct order_plan *plan) {
    return plan->samples;
}

uint64_t order_plan_bytes(const struct order_plan *plan) {
    uint64_t bytes = plan->id_count * sizeof *plan->ids;
    if (plan->shard)
        bytes += (plan->shards + 1) * (sizeof *plan->shard + plan->epochs * sizeof(struct order_place));
    if (plan->turn)
        bytes += plan->period * sizeof *plan->turn + plan->sources * sizeof *plan->source;
    return bytes;
}

void order_plan_describe(const struct order_plan *plan, char *buffer, size_t size) {
    char chunks[128] = "", subset[64] = "", mixture[128] = "";
    if (plan->shard && !plan->source[0].chunk)
        snprintf(chunks, sizeof chunks, ", %" PRIu64 " chunks by shards, %" PRIu32 " a window", plan->shards,
                 plan->window);
    else if (plan->shuffle == SHUFFLE_CHUNKED)
        snprintf(chunks, sizeof chunks, ", chunks of %" PRIu64 ", %" PRIu32 " a window", plan->source[0].chunk,
                 plan->window);
    if (plan->ids)
        snprintf(subset, sizeof subset, ", a subset of %" PRIu64, plan->id_count);
    if (plan->mixed)
        snprintf(mixture, sizeof mixture, ", %" PRIu32 " source%s that go%s round, a period of %" PRIu32, plan->sources,
                 plan->sources == 1 ? "" : "s", plan->sources == 1 ? "es" : "", plan->period);
    snprintf(buffer, size, "%" PRIu64 " samples an epoch%s%s%s; tables of %" PRIu64 " bytes", plan->samples, subset,
             mixture, chunks, order_plan_bytes(plan));
}

void order_plan_hash(const struct order_plan *plan, void (*hash)(void *arg, const void *bytes, size_t length),
                     void *arg) {
    const uint64_t shape[] = {plan->samples, plan->mixed, plan->sources, plan->ids ? plan->id_count : UINT64_MAX,
                              plan->shards};
    hash(arg, shape, sizeof shape);
    for (uint32_t i = 0; i < plan->sources; i++) {
        const uint64_t source[] = {plan->source[i].samples, plan->source[i].weight, plan->source[i].chunk};
        hash(arg, source, sizeof source);
    }
    if (plan->ids)
        hash(arg, plan->ids, plan->id_count * sizeof *plan->ids);
    if (plan->shard)
        hash(arg, plan->shard, (plan->shards + 1) * sizeof *plan->shard);
}
