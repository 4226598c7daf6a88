/* SPDX-License-Identifier: MIT */
/*
 * Explicit order, the trainer's side: sample ids on their way to the daemon, kept until their batch is leased, so that
 * they can be sent again to a daemon that takes over. No system call; allocates in supply_new() only. One thread.
 *
 *     number of an id:   0 ...... kept from here .......... sent .......... total
 *                                 (batch that comes next)   (in the ring)   (accepted from the caller)
 */
#ifndef CLIENT_SUPPLY_H
#define CLIENT_SUPPLY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct consumer;

struct client_supply {
    uint64_t *ids;     /* id number i in ids[i % capacity] */
    uint64_t capacity; /* ids kept at most */
    uint64_t first;    /* number of the first id of the ring's batch 0 */
    uint64_t sent, total;
    uint32_t batch;
    bool ended; /* `total` is all */
};

/* Room for what a ring holds and what may wait before it. -ENOMEM. */
int client_supply_new(struct client_supply *ret, const struct consumer *consumer);
void client_supply_free(struct client_supply *supply); /* legal on a zeroed struct */
/* A new ring, whose batch 0 is number `base` of all: what it needs is sent again. */
void client_supply_restart(struct client_supply *supply, uint64_t base);
/* All ids are forgotten; the next ones are those of batch number `next` on. */
void client_supply_forget(struct client_supply *supply, uint64_t next);
/* Accepts up to `count` ids, of which those of batches before number `next` need not be kept; how many. */
size_t client_supply_add(struct client_supply *supply, uint64_t next, const uint64_t *ids, size_t count);
/* Writes into the ring what has room there. True: the daemon sleeps and should be sent the wake byte. */
bool client_supply_send(struct client_supply *supply, struct consumer *consumer);
/* Ids that batch `number` still needs from the caller; 0 once they have ended. */
uint64_t client_supply_missing(const struct client_supply *supply, uint64_t number);
/* Batches in all, once the ids have ended; UINT64_MAX before. */
uint64_t client_supply_batches(const struct client_supply *supply);

#endif
