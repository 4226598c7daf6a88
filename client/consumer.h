/* SPDX-License-Identifier: MIT */
/*
 * Consumer side of a ring (abi/ring.h): attach, lease, release. No system call, no socket: the caller sends and receives
 * the wake bytes. Used by libloaderd and by `loaderctl bench`. One thread a consumer.
 */
#ifndef CLIENT_CONSUMER_H
#define CLIENT_CONSUMER_H

#include <stdbool.h>

#include <loaderd/abi/ring.h>

struct consumer {
    const struct loaderd_ring_header *header; /* read-only mapping */
    struct loaderd_control *control;
    _Atomic uint64_t *release; /* control's release words */
    const uint8_t *slots_base;
    uint64_t slot_stride, payload_offset, payload_bytes;
    uint32_t slots, batch;
    uint64_t next;   /* sequence that will be leased next */
    uint64_t prefix; /* every sequence below it has been released */
    uint64_t *held;  /* held[slot]: seq + 1 of a leased, unreleased batch, else 0 */
    uint64_t sequences;
    uint64_t answered_at;              /* the daemon's wake_at that a release answered last */
    uint64_t kicked_at, kicked_prefix; /* wake_at and prefix at the last kick before sleeping */
    struct loaderd_field *fields;      /* nfields, data NULL: shapes */
    struct loaderd_field *views;       /* slots x nfields, data set */
    uint32_t nfields;
    _Atomic uint64_t *ids; /* explicit order: control's queue, NULL without one */
    uint64_t ids_capacity;
    uint64_t ids_supplied;    /* ids sent */
    uint64_t ids_answered_at; /* the daemon's ids_wake_at that was answered last */
    bool ids_over;            /* the end was said */
    _Atomic uint64_t *waited; /* control's words, NULL without them */
    uint64_t waited_capacity;
    size_t data_bytes, control_bytes;
    bool mapped; /* the mappings are ours */
    uint64_t rescues, waits, wait_ns, wakes_sent;
};

/* Maps both memfds and checks every word of the header against `data_bytes` and the ABI. The descriptors stay the
 * caller's. 0 or a negative errno with a sentence. */
int consumer_attach(struct consumer *ret, int data_fd, int control_fd, char *error, size_t error_size);
/* The same over memory that stays the caller's (tests: one mapping for both sides). */
int consumer_bind(struct consumer *ret, const void *data, size_t data_bytes, void *control, size_t control_bytes,
                  char *error, size_t error_size);
void consumer_start(struct consumer *consumer, uint64_t sequence); /* a member of a group begins there */
/* The daemon does not wait for this trainer any more: what was read before this was said is right. */
bool consumer_detached(const struct consumer *consumer);
void consumer_detach(struct consumer *consumer); /* unmaps; legal on a zeroed struct */

/* 1: leased into *ret. 0: not ready. -ENODATA: no further sequence will come. A batch published as an error:
 * its negative errno, *ret_message its sentence; it is not leased and stays the next one. -EBUSY: the slot that comes
 * next is still held by the caller. */
int consumer_try(struct consumer *consumer, struct loaderd_batch *ret, const char **ret_message);

/* Leaves word for the daemon's flight recorder: how long the caller waited for the batch that it leased last. */
void consumer_waited(struct consumer *consumer, uint64_t ns);

/* Looks for some microseconds whether the next batch comes: where batches are small, sleeping and being woken costs both
 * sides more than a batch. False: it did not. */
bool consumer_spin(const struct consumer *consumer);

/* Before sleeping: raises the flag and looks again. True: a batch is ready, do not sleep. *ret_kick: the daemon sleeps
 * and should be sent the wake byte. */
bool consumer_announce(struct consumer *consumer, bool *ret_kick);
void consumer_awake(struct consumer *consumer); /* lowers the flag */

/* 0, or -EINVAL for a batch that is not held. *ret_kick: send the wake byte. */
int consumer_release(struct consumer *consumer, uint64_t sequence, bool *ret_kick);
uint32_t consumer_held(const struct consumer *consumer);

/* Explicit order. How many ids may be sent now; the i-th of them; says that `count` were put, or that there are no
 * more: true where the daemon sleeps and should be sent the wake byte. */
uint64_t consumer_ids_room(const struct consumer *consumer);
void consumer_put_id(struct consumer *consumer, uint64_t i, uint64_t id);
bool consumer_supplied(struct consumer *consumer, uint64_t count);
bool consumer_ids_end(struct consumer *consumer);

#endif
