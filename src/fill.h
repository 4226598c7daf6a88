/* SPDX-License-Identifier: MIT */
/*
 * What goes into a cache: JPEGs that a worker has just decoded the ordinary way wait here, as copies, until the worker
 * has time to make coefficient records of them. One a worker, used by that worker's thread only.
 *
 *     row.c ──fill_offer()──► queue of copies ──fill_one()──► encoder ──► cache_add() or cache_refuse()
 *
 * Its memory is bounded: the queue takes FILL_QUEUE_BYTES, and the encoder what pictures of FILL_MOST_PIXELS need (about
 * 10 bytes a pixel); larger ones are not cached.
 */
#ifndef FILL_H
#define FILL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cache/cache.h"

#define FILL_QUEUE 128u                       /* pictures */
#define FILL_QUEUE_BYTES (UINT64_C(8) << 20)  /* and bytes of them */
#define FILL_MOST_PIXELS (UINT64_C(16) << 20) /* of a picture */

struct fill;
struct fill *fill_new(void);       /* NULL: no memory */
void fill_free(struct fill *fill); /* forgets what waits; NULL allowed */

/* Room for a copy of `length` bytes, to be written before the next call; NULL: none now. Larger ones than the queue will
 * ever take are refused in the cache. */
uint8_t *fill_offer(struct fill *fill, struct cache *cache, const struct cache_key *key, size_t length);
/* The copy is there; `urgent`: it is to be done before the next sample. The cache is referenced. */
void fill_accept(struct fill *fill, bool urgent);
bool fill_pending(const struct fill *fill);
bool fill_urgent(const struct fill *fill);
/* Makes the record of the oldest copy and keeps it. Returns the nanoseconds that this took, 0: nothing waits. */
uint64_t fill_one(struct fill *fill);

#endif
