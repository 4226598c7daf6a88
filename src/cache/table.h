/* SPDX-License-Identifier: MIT */
/*
 * Private to src/cache: the index in memory, a hash table of 16 bytes a slot with open addressing. Who looks takes no
 * lock; who changes it holds the cache's mutex. A table that has become too small is replaced by a larger one and kept
 * until the cache is closed, since somebody may be looking at it: all tables together take at most twice the last one.
 *
 * A slot's word of 0 means that the key has nothing (any more). Words may change at any time under those who look, and a
 * hash is no key: what was found must be compared with what the segment says.
 */
#ifndef CACHE_TABLE_H
#define CACHE_TABLE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct table_slot {
    _Atomic uint64_t hash; /* 0: free */
    _Atomic uint64_t word;
};

struct table {
    struct table *older;
    uint64_t slots; /* a power of two */
    uint64_t used;  /* with those whose word is 0 */
    struct table_slot slot[];
};

/* Memory of all tables, so far. */
uint64_t table_bytes(const struct table *table);
/* With room for `keys`; NULL: no memory. */
struct table *table_new(uint64_t keys, struct table *older);
void table_free(struct table *table); /* and those older */

/* The slot of a hash, not 0; NULL: none. */
struct table_slot *table_find(struct table *table, uint64_t hash);
/* The same, taken now where there is none. The caller has seen that table_is_full() is false. */
struct table_slot *table_take(struct table *table, uint64_t hash, uint64_t word);
static inline bool table_is_full(const struct table *table) {
    return table->used >= table->slots / 16 * 11;
}
/* A table with room for half as many keys again as this one really has, with all of them in it. NULL: no memory, nothing changed. */
struct table *table_grow(struct table *table);

#endif
