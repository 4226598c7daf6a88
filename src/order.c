/* SPDX-License-Identifier: MIT */
/*
 * The order of an epoch: which positions make a batch, and which sample stands at a position. Every question is answered
 * by arithmetic on its own: O(1), or O(log chunks) where chunks follow shards or are few.
 *
 * Numbers are part of what a seed means: changing a key or a tweak here changes every shuffled run.
 * It never allocates. It waits in one case: a worker that meets a new epoch of such chunks while another one is writing
 * that epoch's table (less than a millisecond for few chunks, 20 ns a shard for many) lets it finish. Any thread.
 */
#include "order.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>

#include "base/random.h"
#include "base/util.h"
#include "plan.h"

#define GOLDEN UINT64_C(0x9E3779B97F4A7C15) /* 2^64 / golden ratio, odd */

/* ---- batches ------------------------------------------------------------------------------------------------------ */

int order_check(const struct order *order, struct diag *diag) {
    uint64_t global = (uint64_t)order->batch * order->world, end;
    if (order->samples < 1)
        return diag_set(diag, -EINVAL, "no samples: the dataset is empty");
    if (order->batch < 1)
        return diag_set(diag, -EINVAL, "batch is 0: at least 1 row is needed");
    if (order->world < 1 || order->rank >= order->world)
        return diag_set(diag, -EINVAL, "rank %" PRIu32 " of world size %" PRIu32 ": ranks are 0 to world size - 1",
                        order->rank, order->world);
    if (!add_u64(order->samples, global, &end))
        return diag_set(diag, -EOVERFLOW,
                        "%" PRIu64 " samples, batch %" PRIu32 " x world %" PRIu32 " = %" PRIu64
                        ": positions do not fit 64 bits",
                        order->samples, order->batch, order->world, global);
    if (order_steps(order) < 1)
        return diag_set(diag, -EINVAL,
                        "%" PRIu64 " samples, batch %" PRIu32 " x world %" PRIu32 " = %" PRIu64
                        ": last=drop leaves no step; use last=pad or a smaller batch",
                        order->samples, order->batch, order->world, global);
    return 0;
}

uint64_t order_steps(const struct order *order) {
    uint64_t global = (uint64_t)order->batch * order->world;
    uint64_t steps = order->samples / global;
    if (order->last != LAST_DROP && order->samples % global != 0)
        steps++;
    return steps;
}

/* Shares the R samples that are left out evenly among the ranks. */
static void keep_last(const struct order *order, uint64_t start, uint64_t left, struct order_batch *ret) {
    uint64_t from = (uint64_t)((unsigned __int128)left * order->rank / order->world);
    uint64_t to = (uint64_t)((unsigned __int128)left * (order->rank + UINT64_C(1)) / order->world);
    if (from < to)
        *ret = (struct order_batch){start + from, (uint32_t)(to - from), (uint32_t)(to - from)};
    else
        *ret = (struct order_batch){order->samples + order->rank, 1, 0};
}

void order_batch(const struct order *order, uint64_t step, struct order_batch *ret) {
    uint64_t global = (uint64_t)order->batch * order->world;
    uint64_t start = step * global, left = order->samples - start;
    if (left < global && order->last == LAST_KEEP) {
        keep_last(order, start, left, ret);
        return;
    }
    uint64_t offset = (uint64_t)order->rank * order->batch;
    uint64_t valid = left > offset ? MIN(left - offset, order->batch) : 0;
    *ret = (struct order_batch){start + offset, order->batch, (uint32_t)valid};
}

/* ---- chunks of equal size ----------------------------------------------------------------------------------------- */

/*
 * The last chunk of the dataset lacks `hole` samples of a whole one, and stands at the slot that the shuffle gives it:
 * what comes behind it moves forward by the hole. So a position behind the end of the short chunk's window, and within
 * that window one behind the short chunk, is looked at as if the hole were filled.
 */
static uint64_t equal_chunks(const struct order_source *s, uint32_t k, const struct order_pass *pass,
                             uint64_t position) {
    const uint64_t size = s->chunk, hole = size - s->last_chunk, span = size * k;
    const uint64_t short_window = pass->short_slot / k;
    const uint64_t whole = position < (short_window + 1) * span - hole ? position : position + hole;
    const uint64_t window = whole / span, first_slot = window * k;
    const uint64_t slots = MIN(k, s->chunks - first_slot);
    const bool is_short = window == short_window;
    const uint64_t start = first_slot * size - (window > short_window ? hole : 0);
    struct bijection inside;
    bijection_derive(&pass->window, window, slots * size - (is_short ? hole : 0), &inside);
    uint64_t at = bijection_map(&inside, position - start);
    if (is_short && at >= (pass->short_slot - first_slot) * size + s->last_chunk)
        at += hole;
    return bijection_map(&pass->shuffle, first_slot + at / size) * size + at % size;
}

/* ---- chunks with a table --------------------------------------------------------------------------------------------- */

/* The last of places[low, high) that begins at or before `position`. */
static uint64_t find_place(const struct order_place *place, uint64_t low, uint64_t high, uint64_t position) {
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        if (place[middle].start <= position)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static uint64_t shard_chunks(const struct order_plan *plan, const struct order_pass *pass, uint64_t position) {
    const struct order_place *place = pass->places;
    uint64_t window = find_place(place, 0, plan->shards, position) / plan->window;
    uint64_t low = window * plan->window, high = MIN(low + plan->window, plan->shards);
    struct bijection inside;
    bijection_derive(&pass->window, window, place[high].start - place[low].start, &inside);
    uint64_t at = place[low].start + bijection_map(&inside, position - place[low].start);
    const struct order_place *found = &place[find_place(place, low, high, at)];
    return found->first + at - found->start;
}

static void fill_places(const struct order_plan *plan, const struct bijection *shuffle, struct order_place *place) {
    uint64_t start = 0;
    for (uint64_t slot = 0; slot < plan->shards; slot++) {
        uint64_t shard = bijection_map(shuffle, slot);
        place[slot] = (struct order_place){start, plan->shard[shard]};
        start += plan->shard[shard + 1] - plan->shard[shard];
    }
    place[plan->shards] = (struct order_place){start, 0};
}

/*
 * The places of an epoch. Those of `epochs` epochs are kept, so that none is overwritten while a batch of its epoch is
 * being made: batches are claimed in order, and one is claimed only when the one a ring before it is published.
 */
static const struct order_place *find_places(const struct order_plan *plan, uint64_t epoch,
                                             const struct bijection *shuffle) {
    struct order_places *places = &plan->places[epoch % plan->epochs];
    const uint64_t wanted = epoch << 1 | 1;
    for (;;) {
        /* pairs with the release below: the table is complete */
        uint64_t state = atomic_load_explicit(&places->state, memory_order_acquire);
        if (state == wanted)
            return places->place;
        if (state == PLACES_BUSY) {
            sched_yield();
        } else if (atomic_compare_exchange_strong_explicit(&places->state, &state, PLACES_BUSY, memory_order_acquire,
                                                           memory_order_relaxed)) {
            fill_places(plan, shuffle, places->place);
            atomic_store_explicit(&places->state, wanted, memory_order_release);
            return places->place;
        }
    }
}

/* ---- a pass over one source --------------------------------------------------------------------------------------- */

static uint64_t pass_index(const struct order_plan *plan, const struct order_source *s, const struct order_pass *pass,
                           uint64_t position) {
    switch (plan->shuffle) {
    case SHUFFLE_FULL:
        return bijection_map(&pass->shuffle, position);
    case SHUFFLE_CHUNKED:
        return plan->shard ? shard_chunks(plan, pass, position) : equal_chunks(s, plan->window, pass, position);
    case SHUFFLE_NONE:
    case SHUFFLE_EXPLICIT:
        break;
    }
    return position;
}

/* The pass that is an epoch: of the only source, or of all of them one behind the other. */
static void epoch_pass(const struct order_plan *plan, const struct random_key *key, struct order_pass *ret) {
    const struct order_source *s = plan->source;
    if (plan->shuffle != SHUFFLE_CHUNKED) {
        bijection_init(&ret->shuffle, s->samples, key, RANDOM_SHUFFLE);
        return;
    }
    const struct random_key window = {key->seed, key->epoch, 1};
    bijection_init(&ret->shuffle, plan->shard ? plan->shards : s->chunks, key, RANDOM_CHUNK);
    bijection_init(&ret->window, 1, &window, RANDOM_CHUNK);
    if (plan->shard)
        ret->places = find_places(plan, key->epoch, &ret->shuffle);
    else
        ret->short_slot = bijection_inverse(&ret->shuffle, s->chunks - 1);
}

/* Pass number `pass` of a mixture's source: met in passing, so by derived keys. */
static void mixed_pass(const struct order_plan *plan, const struct order_source *s, uint64_t pass,
                       struct order_pass *ret) {
    if (plan->shuffle == SHUFFLE_NONE)
        return;
    if (plan->shuffle == SHUFFLE_FULL) {
        bijection_derive(&s->shuffle, pass, s->samples, &ret->shuffle);
        return;
    }
    bijection_derive(&s->shuffle, pass, s->chunks, &ret->shuffle);
    bijection_derive(&s->window, pass, 1, &ret->window);
    ret->short_slot = bijection_inverse(&ret->shuffle, s->chunks - 1);
}

/* ---- samples ------------------------------------------------------------------------------------------------------ */

/* Epoch e of a mixture begins at position e x N of the endless sequence; beyond 2^64 positions that wraps. */
static void mixed_epoch(const struct order_plan *plan, uint64_t epoch, struct order_epoch *ret) {
    unsigned __int128 start = (unsigned __int128)epoch * plan->samples;
    ret->period = (uint64_t)(start / plan->period);
    ret->turn = (uint64_t)(start % plan->period);
}

void order_epoch_init(const struct order *order, uint64_t epoch, struct order_epoch *ret) {
    const struct random_key key = {order->seed, epoch, 0};
    ret->epoch = epoch;
    ret->samples = order->samples;
    ret->shuffle = order->shuffle;
    ret->plan = order->plan;
    if (!order->plan)
        bijection_init(&ret->pass.shuffle, order->samples, &key, RANDOM_SHUFFLE);
    else if (order->plan->mixed)
        mixed_epoch(order->plan, epoch, ret);
    else
        epoch_pass(order->plan, &key, &ret->pass);
}

/* Whose turn is it in a mixture? A period's turns begin at another one each time, so that no rank always meets the same
 * ones; which are not many different ones, but all that is needed: the sources are shuffled themselves. */
static uint64_t mixed_index(const struct order_epoch *e, uint64_t position, const struct order_source **ret_source) {
    const struct order_plan *plan = e->plan;
    uint64_t turns = e->turn + position, period = e->period + turns / plan->period, turn = turns % plan->period;
    if (plan->shuffle != SHUFFLE_NONE)
        turn = (turn + bijection_below(bijection_mix(plan->turn_key + period * GOLDEN), plan->period)) % plan->period;
    const struct order_turn *t = &plan->turn[turn];
    const struct order_source *s = &plan->source[t->source];
    uint64_t count = period * s->weight + t->before;
    struct order_pass pass;
    mixed_pass(plan, s, count / s->samples, &pass);
    *ret_source = s;
    return pass_index(plan, s, &pass, count % s->samples);
}

/* The source that a position < N falls to, and the index there. */
static uint64_t plan_index(const struct order_epoch *e, uint64_t position, const struct order_source **ret_source) {
    if (e->plan->mixed)
        return mixed_index(e, position, ret_source);
    *ret_source = e->plan->source;
    return pass_index(e->plan, e->plan->source, &e->pass, position);
}

static uint64_t source_sample(const struct order_source *s, uint64_t index) {
    return s->ids ? s->ids[index] : s->first + index;
}

uint64_t order_sample(const struct order_epoch *epoch, uint64_t position) {
    if (position >= epoch->samples)
        position %= epoch->samples;
    if (epoch->plan) {
        const struct order_source *source;
        uint64_t index = plan_index(epoch, position, &source);
        return source_sample(source, index);
    }
    return epoch->shuffle == SHUFFLE_FULL ? bijection_map(&epoch->pass.shuffle, position) : position;
}

uint64_t order_substitute_for(const struct order *order, uint64_t epoch, uint64_t position, uint32_t k, uint64_t sample,
                              uint64_t samples) {
    const struct random_key key = {order->seed, epoch, position};
    struct bijection others;
    if (samples < 2)
        return sample;
    bijection_init(&others, samples - 1, &key, RANDOM_SUBSTITUTE);
    uint64_t candidate = bijection_map(&others, k % others.samples);
    return candidate < sample ? candidate : candidate + 1;
}

uint64_t order_substitute(const struct order *order, uint64_t epoch, uint64_t position, uint32_t k) {
    const struct order_source all = {.samples = order->samples}, *source = &all;
    struct order_epoch own;
    order_epoch_init(order, epoch, &own);
    uint64_t index = order->plan ? plan_index(&own, position % order->samples, &source) : order_sample(&own, position);
    return source_sample(source, order_substitute_for(order, epoch, position, k, index, source->samples));
}
