/* SPDX-License-Identifier: MIT */
/*
 * Producer side of a ring (abi/ring.h): create, seal, claim, publish, reclaim. Knows nothing of samples.
 *
 * A slot is filled in `units` (groups of rows). Any worker may claim the next unit of the oldest unfilled slot by one
 * bounded compare-and-swap on a cursor that only the daemon sees; whoever completes the last unit of a slot publishes.
 *
 *     cursor (units, daemon-private)      countdown[slot]        published[slot] (private)      published (shared)
 *     claim: cas c -> c + n               complete: sub n        0 left: seq + 1, release       exchange, seq_cst
 *
 * Threads: ring_claim, ring_complete: any worker. Others: the thread that owns the session.
 */
#ifndef RING_H
#define RING_H

#include "base/diag.h"
#include "base/types.h"
#include <loaderd/abi/ring.h>

struct ring_spec {
    uint32_t slots, batch, rows_per_unit;
    uint32_t nfields;
    struct field_spec field[LOADERD_MAX_FIELDS]; /* a sample's shape: the batch dimension is added */
    uint64_t sequences;                          /* batches in all, UINT64_MAX: without end */
    uint64_t first_epoch, first_step, steps_per_epoch, samples, seed;
    uint32_t rank, world, held;
    uint8_t fingerprint[16];
    uint64_t max_bytes; /* refuse a larger data memfd */
    uint64_t ids;       /* explicit order: ids that the trainer may send ahead; 0: none */
    int node;           /* NUMA node that the memory is wanted from, -1: any */
};

#define RING_MOST_MEMBERS 32u
#define RING_LOOKBACK                                                                                                  \
    1024u /* batches of which a trainer says how long it waited; as many as slots where there are more */

struct ring;

/* Bytes of the data memfd, or 0 where it does not fit 64 bits. Pure. */
uint64_t ring_bytes(const struct ring_spec *spec);

/* Creates both memfds, reserves their memory, fills the headers and seals. -ENOMEM with the sum where it is too large. */
int ring_new(const struct ring_spec *spec, struct ring **ret, struct diag *diag);
void ring_free(struct ring *ring);
int ring_data_fd(const struct ring *ring);
int ring_control_fd(const struct ring *ring, uint32_t member);
uint64_t ring_data_bytes(const struct ring *ring);
uint64_t ring_control_bytes(const struct ring *ring, uint32_t member);
uint32_t ring_slots(const struct ring *ring);
bool ring_locked(const struct ring *ring); /* its memory is mlocked */
/* The NUMA node that holds its data, -1: several, or the kernel does not tell. */
int ring_node(const struct ring *ring);
/* Shared memory's huge pages as the kernel grants them: "never", "advise", "always" ...; "unknown". */
const char *ring_huge_pages(const struct ring *ring);

/* Claims up to `most` successive units of one slot: their number and the first (sequence, unit); 0 where none may be
 * claimed now. Units of the oldest slot are claimed singly, so that no worker sits on the batch that the trainer waits
 * for, unless workers collide: see ring.c. Never blocks. */
uint32_t ring_claim(struct ring *ring, uint32_t most, uint64_t *ret_sequence, uint32_t *ret_unit);
/* Units that could be claimed right now without waiting for the trainer (a hint). */
bool ring_claimable(struct ring *ring);

struct loaderd_slot_header *ring_slot(const struct ring *ring, uint64_t sequence);
struct loaderd_row *ring_rows(const struct ring *ring, uint64_t sequence);
/* Row `row` of field `field` in the payload. */
void *ring_row_field(const struct ring *ring, uint64_t sequence, uint32_t field, uint32_t row);
uint64_t ring_row_bytes(const struct ring *ring, uint32_t field);

/* So many claimed units of a slot are written. True where its last one is among them: the caller then fills the slot
 * header's plain words and calls ring_publish(). */
bool ring_complete(struct ring *ring, uint64_t sequence, uint32_t units);
/* Publishes. A bit for each member that sleeps and must be sent the wake byte, over ring_wake_fd(): -1 where it left. */
uint32_t ring_publish(struct ring *ring, uint64_t sequence);
int ring_wake_fd(const struct ring *ring, uint32_t member);
/* No sequence beyond `sequence` will be claimed any more (after an error). */
void ring_stop_after(struct ring *ring, uint64_t sequence);

/* No batch will be begun any more; one that is begun will be finished. True where all that were begun are published: of
 * a claim that races with ring_finish() the caller must know by itself. */
void ring_finish(struct ring *ring);
bool ring_finished(const struct ring *ring);

/* Explicit order (supply.h): only sequences below this many may be claimed; what was written before is seen by whoever
 * claims one. May the memory of `sequence`'s ids be written: is the batch that had it before published? The trainer's
 * queue of spec.ids words, NULL where there is none; the header. */
void ring_let(struct ring *ring, uint64_t sequences);
bool ring_emptied(const struct ring *ring, uint64_t sequence);
const _Atomic uint64_t *ring_queue(const struct ring *ring);
struct loaderd_ring_header *ring_header(const struct ring *ring);

/* Before a worker sleeps: asks the trainer for a byte at half a ring free. True where a unit became claimable meanwhile
 * (do not sleep). The request is never taken back: the trainer answers each value once. */
bool ring_ask_wake(struct ring *ring);
/* The trainer has released what the last request asked for: its byte is due or came. */
bool ring_wake_overdue(const struct ring *ring);

/* How full: published and not yet released (by the trainer's words; advice), and what was published in all. */
void ring_fill(const struct ring *ring, uint64_t *ret_published, uint64_t *ret_unreleased);
const struct loaderd_control *ring_control(const struct ring *ring,
                                           uint32_t member); /* untrusted statistics; or NULL */

/* Untrusted: how long a trainer says that it waited for batch `sequence`, one of the last ring_lookback(); of several
 * members the one that waited the longest. Batches that all have taken, as they say, at most those published. The thread
 * that owns the session. */
uint32_t ring_lookback(const struct ring *ring);
uint64_t ring_waited(const struct ring *ring, uint64_t sequence, uint32_t *ret_member);
uint64_t ring_taken(const struct ring *ring);

/*
 * Members: trainers of one ring, each with a control area of its own; each gets every batch from its first one on. A ring
 * begins with one, number 0, whose first is sequence 0. A batch's slot is free when all who got it have released it.
 * Functions for the thread that owns the session; workers see the change with their next look.
 *
 *   join:   member[i] = m; then cursor.load       seq_cst: a worker that claims beyond has seen m, or m is refused
 *   leave:  detached = 1; member[i] = NULL        m stays mapped until ring_bury() knows that no worker looks at it
 */
void ring_set_wake(struct ring *ring, uint32_t member, int wake_fd); /* before workers know the ring; owned */
/* -ESTALE, without a sentence, where the ring does not hold sequence `start` any more (for sure): the caller then wakes
 * the workers, who may have seen the member for a moment and sleep because of it. `wake_fd` is owned on success. Before
 * ring_let(ring, more than 0) any start is right. */
int ring_join(struct ring *ring, uint64_t start, int wake_fd, uint32_t *ret_member, struct diag *diag);
void ring_leave(struct ring *ring, uint32_t member);
/* Those who left since the last call are stamped with `version`; those whose stamp is not above `oldest` are freed.
 * Returns how many wait. */
uint32_t ring_bury(struct ring *ring, uint64_t version, uint64_t oldest);
bool ring_has_left(const struct ring *ring); /* some have no stamp yet */
/* Members for whom the next claim waits (a bit each, its sequence); those who have leased all that is published. */
uint32_t ring_blockers(const struct ring *ring, uint64_t *ret_sequence);
uint32_t ring_waiters(const struct ring *ring);

#endif
