/* SPDX-License-Identifier: MIT */
/*
 * Which sample stands where. The epoch's global sequence has positions 0..N-1; step s of rank r takes positions
 * [s*W*B + r*B, +B); the last step by `last`. What stands at a position is a function of (seed, epoch, position):
 *
 *   none     position i is sample i
 *   full     a bijection on [0, N), another one each epoch
 *   chunked  chunks of neighbouring samples in shuffled order; K of them make a window, and a window's samples are
 *            shuffled among themselves. Chunks are of one size (the last is short, and keeps its shuffled place) or
 *            follow the shards
 *   subset   all of these over a table of sample ids instead of 0..N-1
 *   mixed    several sources with integer weights: of every sum(weights) positions, source i has exactly weight i. Each
 *            source goes round and round by passes of its own, each pass another shuffle; an epoch is a stretch of
 *            that endless sequence
 *   explicit the trainer says; see session.h. Here it only counts positions
 *
 * Chunks, subsets and mixtures need a plan, made when a session opens; the other modes do with struct order alone.
 * Pure functions, no allocation, any thread, but for order_plan_new(), _reserve() and _free(): one thread.
 */
#ifndef ORDER_H
#define ORDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/diag.h"
#include "bijection.h"

#define ORDER_MAX_SOURCES 256u
#define ORDER_MAX_PERIOD 65536u

enum order_shuffle { SHUFFLE_NONE, SHUFFLE_FULL, SHUFFLE_CHUNKED, SHUFFLE_EXPLICIT };
enum order_last { LAST_DROP, LAST_KEEP, LAST_PAD };

struct order_plan; /* opaque */

struct order {
    uint64_t samples; /* N >= 1: positions of an epoch */
    uint64_t seed;
    uint32_t batch; /* B >= 1 */
    uint32_t rank, world;
    enum order_shuffle shuffle;
    enum order_last last;
    struct order_plan *plan; /* borrowed; NULL: samples 0..N-1, shuffle none or full */
};

/* ---- a plan ------------------------------------------------------------------------------------------------------ */

struct order_plan_spec {
    enum order_shuffle shuffle;
    uint64_t seed;
    uint64_t samples;    /* of the dataset */
    const uint64_t *ids; /* subset: `id_count` sample ids below `samples`, copied; NULL: all */
    uint64_t id_count;
    uint64_t chunk;         /* chunked: samples a chunk; 0: by shards, or ORDER_DEFAULT_CHUNK without them */
    uint32_t window;        /* chunked: chunks a window, >= 1 */
    const uint64_t *shards; /* shard i has samples [shards[i], shards[i + 1]); NULL: not known */
    uint64_t shard_count;
    const uint64_t *sources; /* source i likewise; NULL: one */
    uint32_t source_count;
    const uint32_t *weights; /* source_count of them: a mixture; NULL: the sources follow each other */
    uint64_t epoch_samples;  /* positions of an epoch; 0: all samples, of a mixture rounded up to whole periods */
};
#define ORDER_DEFAULT_CHUNK 1024u

int order_plan_new(const struct order_plan_spec *spec, struct order_plan **ret, struct diag *diag);
struct order_plan *order_plan_free(struct order_plan *plan); /* NULL */
uint64_t order_plan_samples(const struct order_plan *plan);  /* positions of an epoch: for order.samples */
/* Room for what must be known of `epochs` epochs in flight at once: chunks that follow shards, and few chunks of equal
 * size, keep a table of their shuffled places an epoch, made by whoever comes first. Before the first order_epoch_init(). -ENOMEM. */
int order_plan_reserve(struct order_plan *plan, uint64_t epochs);
/* Bytes that its tables take. */
uint64_t order_plan_bytes(const struct order_plan *plan);
/* What it is, as a phrase: "chunks of 1024 samples, 8 a window; ...". */
void order_plan_describe(const struct order_plan *plan, char *buffer, size_t size);
/* Feeds every table that decides the order, ids and shards, to `hash`: for the fingerprint. */
void order_plan_hash(const struct order_plan *plan, void (*hash)(void *arg, const void *bytes, size_t length),
                     void *arg);

/* ---- batches ----------------------------------------------------------------------------------------------------- */

/* Checks the numbers; zero steps is -EINVAL with the arithmetic in the sentence. */
int order_check(const struct order *order, struct diag *diag);

/* Steps of an epoch, the same for every rank. */
uint64_t order_steps(const struct order *order);

/* Rows of one batch: `rows` consecutive positions from `position`, of which the first `valid` are no padding. keep's
 * empty rank gets rows = 1, valid = 0: one repeat at a position of its own >= N. */
struct order_batch {
    uint64_t position;
    uint32_t rows, valid;
};
/* step < order_steps(), an order that order_check() passed. */
void order_batch(const struct order *order, uint64_t step, struct order_batch *ret);

/* ---- samples ----------------------------------------------------------------------------------------------------- */

struct order_place; /* private: of a shard in an epoch's shuffled sequence */

/* One pass over one source: the keys of its shuffle. */
struct order_pass {
    struct bijection shuffle;         /* of samples (full) or of chunks (chunked) */
    struct bijection window;          /* chunked: base of the windows' bijections */
    uint64_t short_slot;              /* chunked: where the short chunk came to stand */
    const struct order_place *places; /* chunked by shards */
};

/* Keys of an epoch: compute once an epoch, use for all its positions. */
struct order_epoch {
    uint64_t epoch;
    uint64_t samples;
    enum order_shuffle shuffle;
    const struct order_plan *plan;
    struct order_pass pass; /* not of a mixture */
    uint64_t period, turn;  /* mixture: where the epoch begins */
};
void order_epoch_init(const struct order *order, uint64_t epoch, struct order_epoch *ret);

/* The sample at `position` of the epoch; a position >= N is a padding repeat: the sample of position mod N. */
uint64_t order_sample(const struct order_epoch *epoch, uint64_t position);

/* Candidate k = 0..15 that substitutes the bad sample at `position`: bijection(seed, epoch, position, k) on the other
 * n - 1 samples of its source, so never the sample itself (but for n = 1) and all distinct for n >= 17; k is taken mod
 * n - 1. */
uint64_t order_substitute(const struct order *order, uint64_t epoch, uint64_t position, uint32_t k);
/* The same for a sample that stands there by an explicit order, out of `samples`. */
uint64_t order_substitute_for(const struct order *order, uint64_t epoch, uint64_t position, uint32_t k, uint64_t sample,
                              uint64_t samples);

#endif
