/* SPDX-License-Identifier: MIT */
/*
 * Private to src/cache: what a cache and a segment are made of, and what cache.c (the index) and store.c (directory,
 * files, mappings) ask of each other. Fields are guarded by the cache's mutex but where they are atomic.
 */
#ifndef CACHE_INTERNAL_H
#define CACHE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "cache/cache.h"
#include "cache/segment.h"
#include "cache/table.h"

#define SEGMENTS_MOST (1u << 18) /* of a cache: 16 TiB */

/*
 *   store_create, store_load ──► in use ──reclaim()──► retired ──nobody has it pinned──► unmapped ──► (its place is free)
 */
struct segment {
    struct segment_header header;
    uint8_t *map;                        /* all of it; NULL: unmapped */
    uint32_t slot;                       /* of cache->segment */
    int fd;                              /* open for writing, or -1 */
    _Alignas(64) _Atomic uint64_t users; /* pins */
    _Atomic bool retired;                /* no new pins */
    bool forgotten;                      /* retired, and the index has nothing of it any more */
    bool unwanted;                       /* by the last judgement */
    uint32_t writers;                    /* records on their way in */
    uint32_t next;                       /* the first free entry */
    uint64_t end;                        /* of the last record */
    uint64_t entries, record_bytes;      /* in the index */
    uint64_t wanted;                     /* of them, in the last judgement */
};

struct cache {
    struct cache *next; /* of all open ones */
    _Atomic uint64_t references;
    char *place;            /* for people */
    int directory, lock;    /* descriptors; -1: memory */
    uint64_t device, inode; /* of the directory */
    uint64_t seed;
    uint64_t page_cache; /* bytes that it may be expected to hold */
    pthread_mutex_t mutex;
    _Atomic(struct table *) table;
    _Atomic(struct segment *) *segment; /* SEGMENTS_MOST; never freed before the cache */
    uint32_t segments;
    struct segment *filling; /* takes the next record, or NULL */
    struct cache_user *users;
    bool failed;
    _Atomic bool closed; /* takes nothing more, for now */
    _Atomic uint64_t capacity, used, record_bytes, entries;
    _Atomic uint64_t hits, misses, hit_bytes, hit_ns, miss_ns, filled, refused, dropped, fill_ns, reclaimed;
};

/* cache.c: an entry of a segment that was found; 1: there is one of that key already. -ENOMEM. */
int cache_index(struct cache *cache, uint32_t segment, const struct segment_entry *entry);

/* ---- store.c. The mutex is held, but for store_write() and where the cache is not yet or not any more shared. ---- */

/* Opens the place, takes the lock of a directory, indexes what it has. On failure store_close() cleans up. */
int store_open(struct cache *cache, const struct cache_options *options, struct diag *diag);
void store_close(struct cache *cache);
/* Is this the cache of that directory (NULL: of memory)? */
bool store_is(const struct cache *cache, const char *directory);

/* How large the next segment of such a cache is. */
uint64_t store_segment_bytes(uint64_t capacity);
int store_create(struct cache *cache, uint64_t bytes, struct segment **ret);
/* One that is there, is not full and has room for that much; *ret is NULL where there is none. */
int store_resume(struct cache *cache, uint64_t bytes, struct segment **ret);
/* Nothing more is written to it once its writers are done. */
void store_finish(struct segment *segment);
/* Its file goes; the mapping stays until store_unmap(). */
void store_remove(struct cache *cache, struct segment *segment);
void store_unmap(struct segment *segment);
/* Writes one or two pieces one behind the other. 0 or a negative errno. */
int store_write(struct segment *segment, uint64_t offset, const void *first, size_t first_bytes, const void *second,
                size_t second_bytes);

#endif
