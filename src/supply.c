/* SPDX-License-Identifier: MIT */
/* Explicit order: see supply.h. Believes nothing in the control area: a count that cannot be means "nothing there". */
#include "supply.h"

#include <inttypes.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/util.h"
#include "ring.h"

/* The ids of one batch: written by the owner before the ring lets the batch be claimed, constant until it is
 * published. */
struct supplied {
    uint32_t rows, bad_row; /* bad_row: where `bad` is no sample */
    bool is_bad;
    uint64_t bad;
};

struct supply {
    struct ring *ring;
    struct loaderd_ring_header *header;
    const struct loaderd_control *control;
    const _Atomic uint64_t *queue;
    uint64_t capacity, samples;
    uint32_t batch, slots;
    _Alignas(64) _Atomic bool owned;
    /* the owner's */
    uint64_t next;     /* sequence whose ids come next */
    uint64_t consumed; /* ids taken */
    bool ended;
    struct supplied *supplied; /* slots of them */
    uint64_t *ids;             /* slots x batch */
};

uint64_t supply_capacity(uint32_t slots, uint32_t batch) {
    return 2 * (uint64_t)slots * batch;
}

int supply_new(struct ring *ring, uint32_t batch, uint64_t samples, struct supply **ret, struct diag *diag) {
    struct supply *s = aligned_alloc(64, align_up(sizeof *s, 64));
    if (!s)
        return diag_set(diag, -ENOMEM, "out of memory for the explicit order");
    *s = (struct supply){.ring = ring,
                         .header = ring_header(ring),
                         .control = ring_control(ring, 0),
                         .queue = ring_queue(ring),
                         .capacity = supply_capacity(ring_slots(ring), batch),
                         .samples = samples,
                         .batch = batch,
                         .slots = ring_slots(ring)};
    s->supplied = calloc(s->slots, sizeof *s->supplied);
    s->ids = calloc((size_t)s->slots * batch, sizeof *s->ids);
    if (!s->supplied || !s->ids) {
        supply_free(s);
        return diag_set(diag, -ENOMEM, "out of memory for the explicit order: %u batches of %u ids", ring_slots(ring),
                        batch);
    }
    ring_let(ring, 0);
    *ret = s;
    return 0;
}

struct supply *supply_free(struct supply *s) {
    if (s) {
        free(s->supplied);
        free(s->ids);
        free(s);
    }
    return NULL;
}

/* ---- the owner -------------------------------------------------------------------------------------------------- */

static bool try_own(struct supply *s) {
    /* pairs with the release in disown(): what the last owner did */
    return !atomic_exchange_explicit(&s->owned, true, memory_order_acquire);
}

static void disown(struct supply *s) {
    atomic_store_explicit(&s->owned, false, memory_order_release);
}

/* Ids that wait, as the trainer says. */
static uint64_t waiting(const struct supply *s) {
    /* pairs with the trainer's exchange: the ids are written; seq_cst for supply_ask() */
    uint64_t there = atomic_load(&s->control->ids_supplied) - s->consumed;
    return there <= s->capacity ? there : 0;
}

/* Has the trainer ended its ids with `there` of them left, too few for a batch? */
static bool is_end(const struct supply *s, uint64_t there) {
    uint64_t end = atomic_load(&s->control->ids_end);
    return end && end - 1 - s->consumed == there && there < s->batch;
}

/* Copies the ids of batch `next`, each once. */
static void take_batch(struct supply *s, uint32_t rows) {
    uint32_t slot = (uint32_t)(s->next % s->slots);
    uint64_t *to = s->ids + (size_t)slot * s->batch, at = s->consumed % s->capacity;
    struct supplied *supplied = &s->supplied[slot];
    *supplied = (struct supplied){.rows = rows};
    for (uint32_t row = 0; row < rows; row++) {
        to[row] = atomic_load_explicit(&s->queue[at], memory_order_relaxed);
        at = at + 1 < s->capacity ? at + 1 : 0;
        if (to[row] >= s->samples && !supplied->is_bad) {
            supplied->is_bad = true;
            supplied->bad = to[row];
            supplied->bad_row = row;
        }
    }
    s->consumed += rows;
    /* pairs with the trainer's acquire: it may write over what was read */
    atomic_store_explicit(&s->header->consumed, s->consumed, memory_order_release);
    ring_let(s->ring, ++s->next);
}

/* As far as ids are there and the memory of an older batch is free. */
static void take_all(struct supply *s) {
    while (!s->ended && ring_emptied(s->ring, s->next)) {
        uint64_t there = waiting(s);
        if (there >= s->batch) {
            take_batch(s, s->batch);
        } else if (is_end(s, there)) {
            if (there)
                take_batch(s, (uint32_t)there);
            s->ended = true;
        } else {
            return;
        }
    }
}

void supply_take(struct supply *s) {
    if (!try_own(s))
        return;
    take_all(s);
    disown(s);
}

void supply_ask(struct supply *s) {
    while (!try_own(s)) /* its owner copies some ids: soon over */
        sched_yield();
    take_all(s);
    if (!s->ended && ring_emptied(s->ring, s->next)) {
        /* seq_cst exchange, then seq_cst loads of what the trainer exchanges before it loads this */
        atomic_exchange(&s->header->ids_wake_at, s->consumed + s->batch);
        take_all(s);
    }
    disown(s);
}

/* ---- for a claimed batch ---------------------------------------------------------------------------------------- */

uint32_t supply_rows(const struct supply *s, uint64_t sequence, char *text, size_t size) {
    const struct supplied *supplied = &s->supplied[sequence % s->slots];
    if (!supplied->is_bad)
        return supplied->rows;
    if (text)
        snprintf(text, size,
                 "id %" PRIu64 " at row %" PRIu32 " of this batch is no sample: the dataset has %" PRIu64
                 ", 0 to %" PRIu64,
                 supplied->bad, supplied->bad_row, s->samples, s->samples - 1);
    return 0;
}

uint64_t supply_id(const struct supply *s, uint64_t sequence, uint32_t row) {
    return s->ids[(sequence % s->slots) * s->batch + row];
}
