/* SPDX-License-Identifier: MIT */
/*
 * The shared-memory contract between loaderd and a trainer. Normative, with loaderd-ring(7).
 *
 *   data memfd (daemon writes, trainer maps read-only; sealed SHRINK|GROW|FUTURE_WRITE|SEAL)
 *   +--------------------+-------------------------+-------------------------+----
 *   | ring header (4 KiB)| slot 0                  | slot 1                  | ...
 *   +--------------------+-------------------------+-------------------------+----
 *                          slot = slot header, rows[batch], then the payload: fields, each 64-byte aligned
 *
 *   control memfd (one per trainer; both write; sealed SHRINK|GROW|SEAL)
 *   +-----------------+---------------------+--------------------------------------+
 *   | control header  | release[slots]      | ids[ids_capacity], waited[]          |
 *   +-----------------+---------------------+--------------------------------------+
 *
 * Batch number `seq` (from 0, never wraps) lives in slot seq mod slots. The life of a slot:
 *
 *        daemon claims seq                     daemon: published = seq + 1           trainer reads
 *   FREE ------------------> being filled -------------------------------> READY ------------------> HELD
 *    ^                                                                                                 |
 *    +-------------------------------------------------------------------------------------------------+
 *                         trainer: release[slot] = seq + 1 (any order)
 *
 *   who                     what                                                    order
 *   daemon, last row done   published.exchange(seq + 1); then load waiting          seq_cst, both
 *   trainer, looking        published.load() == seq + 1 -> the slot is its own      acquire, pairs with the exchange
 *   trainer, about to sleep waiting.exchange(seq + 1); then load published          seq_cst, both
 *   trainer, done           release[slot].exchange(seq + 1); then load wake_at      seq_cst, both
 *   daemon, about to sleep  wake_at raised to n, never lowered; then load release words    seq_cst, both
 *   daemon, claiming        release[slot].load() == seq - slots + 1, exactly        acquire, pairs with the exchange
 *
 * In an explicit order the trainer says which samples come: id number i (from 0, never wraps) lies in ids[i mod
 * ids_capacity], batch seq is made of ids [seq x batch, (seq + 1) x batch), and is not begun before all are there.
 *
 *   trainer, sending        ids[...] stored; ids_supplied.exchange(n); load ids_wake_at     seq_cst, the last two
 *   trainer, before that    consumed.load(): no more than ids_capacity ids beyond it        acquire
 *   trainer, at the end     ids_end.exchange(n + 1): the last batch may be short            seq_cst
 *   daemon, taking          ids_supplied.load(), ids copied once; consumed.store(n)         acquire, release
 *   daemon, about to sleep  ids_wake_at.exchange(n); load ids_supplied, ids_end             seq_cst, both
 *
 * What a trainer waited for batch seq, in nanoseconds, it leaves in waited[seq mod waited_capacity]: advice, for those who
 * ask the daemon what happened.
 *
 * The trainer sends a wake-up where ids_supplied has come to ids_wake_at or the ids are at their end, once for each
 * value.
 *
 * A wake-up is one byte sent with MSG_DONTWAIT on the session's socket. A lost one costs 100 ms: every sleeper looks
 * again by itself that often, and counts the times that it had to ("rescues").
 * The daemon believes nothing in the control area: a word that is not the exact expected value means "not released".
 */
#ifndef LOADERD_ABI_RING_H
#define LOADERD_ABI_RING_H

#include <assert.h>
#include <stdatomic.h>
#include <stdint.h>

#include <loaderd/loaderd.h>

#define LOADERD_RING_MAGIC UINT64_C(0x31474e5244414f4c)    /* "LOADRNG1" read as little-endian */
#define LOADERD_CONTROL_MAGIC UINT64_C(0x314c544344414f4c) /* "LOADCTL1" */
#define LOADERD_RING_VERSION 1u
#define LOADERD_RING_VERSION_MIN 1u
#define LOADERD_RING_MIN_SLOTS 3u
#define LOADERD_RING_MAX_SLOTS 4096u
#define LOADERD_RING_ALIGN 4096u     /* of every slot and of its payload: O_DIRECT and device copies want pages */
#define LOADERD_RING_FIELD_ALIGN 64u /* of every field inside the payload */
#define LOADERD_WAKE_BYTE 'w'

/* One field of every slot. 128 bytes. */
struct loaderd_ring_field {
    char name[32];                  /* NUL-terminated */
    uint32_t dtype;                 /* enum loaderd_dtype */
    uint32_t ndim;                  /* 1..LOADERD_MAX_DIMS, the batch included */
    int64_t dims[LOADERD_MAX_DIMS]; /* dims[0] = batch */
    uint64_t offset;                /* from the start of the payload */
    uint64_t bytes;
    uint64_t reserved;
};
static_assert(sizeof(struct loaderd_ring_field) == 128, "ring field");
static_assert(offsetof(struct loaderd_ring_field, offset) == 104, "ring field");

/* First page of the data memfd. All but wake_at, consumed and ids_wake_at is constant. */
struct loaderd_ring_header {
    uint64_t magic;
    uint32_t version;
    uint32_t header_bytes;   /* 4096 */
    uint64_t total_bytes;    /* of the memfd */
    uint64_t slot_offset;    /* of slot 0, from the start of the memfd */
    uint64_t slot_stride;    /* bytes from one slot to the next */
    uint64_t payload_offset; /* of the payload, from the start of its slot */
    uint64_t payload_bytes;
    uint32_t slots;
    uint32_t batch;
    uint32_t nfields;
    uint32_t row_bytes;  /* sizeof(struct loaderd_row) */
    uint64_t generation; /* differs for every ring that a daemon makes */
    uint64_t first_epoch, first_step;
    uint64_t steps_per_epoch;
    uint64_t sequences; /* batches that will ever be published, UINT64_MAX: without end */
    uint64_t samples;
    uint64_t seed;
    uint32_t rank, world;
    uint8_t fingerprint[16];
    uint8_t reserved0[104];
    /* offset 256: written by the daemon while it runs */
    _Atomic uint64_t wake_at;     /* 0: awake. n: send a byte once batches [0, n) are all released */
    _Atomic uint64_t consumed;    /* explicit order: ids taken so far */
    _Atomic uint64_t ids_wake_at; /* explicit order, 0: awake. n: send a byte once n ids are supplied, or at the end */
    uint8_t reserved1[104];
    /* offset 384 */
    struct loaderd_ring_field fields[LOADERD_MAX_FIELDS];
    uint8_t reserved2[1664];
};
static_assert(offsetof(struct loaderd_ring_header, slots) == 56, "ring header");
static_assert(offsetof(struct loaderd_ring_header, fingerprint) == 136, "ring header");
static_assert(offsetof(struct loaderd_ring_header, wake_at) == 256, "ring header");
static_assert(offsetof(struct loaderd_ring_header, fields) == 384, "ring header");
static_assert(sizeof(struct loaderd_ring_header) == 4096, "ring header");

#define LOADERD_SLOT_MESSAGE 384
/* First bytes of every slot; plain words are written before `published` and constant while the slot is held. */
struct loaderd_slot_header {
    _Atomic uint64_t published; /* seq + 1 of the batch in it */
    uint64_t epoch, step;
    uint32_t rows;         /* rows that hold samples */
    uint32_t valid;        /* of these, the first `valid` are no padding */
    uint32_t flags;        /* LOADERD_BATCH_* */
    int32_t error;         /* 0, or a negative errno: the batch could not be made, message says why */
    uint64_t claimed_ns;   /* CLOCK_MONOTONIC: first row claimed */
    uint64_t published_ns; /* CLOCK_MONOTONIC: published */
    uint32_t bad, damaged; /* rows substituted or blanked; rows delivered with damage */
    uint8_t reserved[64];
    char message[LOADERD_SLOT_MESSAGE]; /* NUL-terminated */
};
static_assert(offsetof(struct loaderd_slot_header, claimed_ns) == 40, "slot header");
static_assert(offsetof(struct loaderd_slot_header, message) == 128, "slot header");
static_assert(sizeof(struct loaderd_slot_header) == 512, "slot header");
static_assert(sizeof(struct loaderd_row) == 64, "row");
static_assert(offsetof(struct loaderd_row, crop_x) == 32, "row");

/* First bytes of the control memfd. */
struct loaderd_control {
    uint64_t magic;
    uint32_t version;
    uint32_t slots;
    uint64_t total_bytes;
    uint64_t release_offset; /* of release[slots], uint64_t each */
    uint64_t waited_offset;  /* of waited[waited_capacity], uint64_t each; 0: none */
    uint64_t waited_capacity;
    uint8_t reserved0[16];
    /* offset 64: written by the trainer */
    _Atomic uint64_t waiting;                             /* seq + 1 of the batch that it sleeps for, 0: awake */
    _Atomic uint64_t popped;                              /* batches leased */
    _Atomic uint64_t waits, wait_ns, rescues, wakes_sent; /* statistics, for `loaderctl status`; advice only */
    /* of libloaderd-cuda, 1 + nanoseconds; 0: no device. How long its calls waited, and the caller's stream for copies */
    _Atomic uint64_t device_wait_ns, stream_wait_ns;
    /* offset 128: written by the daemon */
    _Atomic uint64_t detached; /* 1: it does not wait for this trainer any more; what that holds may be overwritten */
    uint8_t reserved3[56];
    /* offset 192: explicit order, the trainer's id queue */
    uint64_t ids_offset, ids_capacity;
    _Atomic uint64_t ids_supplied; /* ids written so far */
    _Atomic uint64_t ids_end;      /* 0: more may come. n + 1: there are n in all */
    /* offset 224: written by the trainer */
    _Atomic uint64_t device_uuid[2]; /* the 16 bytes of the CUDA device's UUID, 0: not known; advice only */
    uint8_t reserved2[16];
};
static_assert(offsetof(struct loaderd_control, waited_offset) == 32, "control");
static_assert(offsetof(struct loaderd_control, waiting) == 64, "control");
static_assert(offsetof(struct loaderd_control, device_wait_ns) == 112, "control");
static_assert(offsetof(struct loaderd_control, detached) == 128, "control");
static_assert(offsetof(struct loaderd_control, ids_offset) == 192, "control");
static_assert(offsetof(struct loaderd_control, device_uuid) == 224, "control");
static_assert(sizeof(struct loaderd_control) == 256, "control");

#endif
