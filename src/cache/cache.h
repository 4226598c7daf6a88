/* SPDX-License-Identifier: MIT */
/*
 * A node-local cache of records made from pieces of files: what is slow to make is made once and kept, in segment files
 * of a directory or in anonymous memory. It knows nothing of what a record is. docs/cache.md says what it promises.
 *
 *     cache_find()  ──► hit, pinned ──► cache_record() ──► bytes ──► (use) ──► cache_done()
 *     cache_wants() ──► (make the record) ──► cache_add(), or cache_refuse() where none can be made
 *
 * A key names the bytes that a record was made of: the file's identity, which changes when the file does, the piece, and
 * a number for whatever else the record depends on. Nothing is ever evicted for being old: in training every entry is
 * wanted once an epoch, so the best that a cache smaller than the set can do is to keep what it has. When it is full,
 * only segments are given up of which less than half was wanted in a whole epoch of every session (cache_epoch()).
 *
 * The index in memory has no locks for those who look: cache_find() is a probe of a table and costs no system call, but
 * for entries that are looked at the first time, or always where the cache is larger than the page cache can be: their
 * pages are asked for ahead. Adding takes a mutex. No call logs but cache_open(), cache_add() and cache_unref(), and
 * each of those states a failure once.
 *
 * Threads: all functions may be called by any thread. A cache of one place is one object in the process; of one
 * directory, one process at a time has it.
 */
#ifndef CACHE_CACHE_H
#define CACHE_CACHE_H

#include "base/diag.h"
#include "base/types.h"

struct cache;
struct segment;

struct cache_key {
    struct file_identity file;
    uint64_t offset, length;
    uint32_t variant;
};

/* A directory (made if it is not there, its parents not), or NULL: anonymous memory, one for the process. Opened again it
 * is the same cache, as large as the largest size asked for. bytes 0: half of what the file system has free, with what
 * the cache has. On failure a negative errno and a sentence: -EBUSY: another process has it; -EACCES, -EROFS, -ENOSPC,
 * -ENOMEM (more memory than `memory` allows half of), ... */
struct cache_options {
    const char *directory;
    uint64_t bytes;  /* of all segments; at least CACHE_LEAST */
    uint64_t memory; /* that this process may have: bounds anonymous memory, and says what the page cache may hold */
};
#define CACHE_LEAST (UINT64_C(4) << 20)
int cache_open(const struct cache_options *options, struct cache **ret, struct diag *diag);
struct cache *cache_ref(struct cache *cache);
struct cache *cache_unref(struct cache *cache); /* NULL allowed; returns NULL. The last one closes it */

/* An entry in use: its segment stays mapped until cache_done(). */
struct cache_hit {
    struct segment *segment; /* NULL: none */
    uint64_t place;
};

/* True, and *ret pinned, where there seems to be an entry. Reads no byte of it. */
bool cache_find(struct cache *cache, const struct cache_key *key, struct cache_hit *ret);
/* The pages that the hit's record may lie in: whoever touches them must expect SIGBUS there, since others may truncate a
 * file. */
void cache_extent(const struct cache_hit *hit, const uint8_t **ret_bytes, size_t *ret_length);
/* The record, if it is there and is that of the key; else NULL. Touches the pages of cache_extent(). */
const uint8_t *cache_record(const struct cache_hit *hit, const struct cache_key *key, size_t *ret_length);
void cache_done(struct cache_hit *hit);
/* What was found is no record, or a damaged one: it is not found again. The hit stays pinned. */
void cache_drop(struct cache *cache, const struct cache_key *key, const struct cache_hit *hit);

/* Is there neither an entry nor a refusal, and room for one? */
bool cache_wants(struct cache *cache, const struct cache_key *key);
/* Keeps a copy of the record. 0, 1: it was there already, or there is no room; or a negative errno: the cache takes no
 * more, and has said so on the log. */
int cache_add(struct cache *cache, const struct cache_key *key, const void *record, size_t length);
/* There will be no record for this key; forgotten when the cache is closed. */
void cache_refuse(struct cache *cache, const struct cache_key *key);

/* A session that looks entries up, for the judgement of what is not wanted any more: it says which epoch it is in, as
 * often as it likes. */
struct cache_user {
    struct cache_user *next;
    _Atomic uint64_t epoch; /* the highest one told, plus 1; 0: none yet */
    int64_t begun;          /* epochs begun since the last judgement; to begin with -1 where in the midst of one */
};
void cache_join(struct cache *cache, struct cache_user *user);
void cache_leave(struct cache *cache, struct cache_user *user);
void cache_epoch(struct cache *cache, struct cache_user *user, uint64_t epoch);

/* How long the use of a record took, and of an original that a record could have stood for. */
void cache_note(struct cache *cache, bool hit, uint64_t bytes, uint64_t ns);
void cache_note_fill(struct cache *cache, uint64_t ns);

struct cache_statistics {
    const char *place;     /* the directory, or "ram"; lives as long as the cache */
    uint64_t capacity;     /* bytes */
    uint64_t used;         /* of segments, ... */
    uint64_t record_bytes; /* ... and of the records of entries in them */
    uint64_t index_bytes;  /* memory of the index */
    uint64_t entries, segments;
    uint64_t hits, misses; /* cache_note() */
    uint64_t hit_bytes;
    uint64_t hit_ns, miss_ns;
    uint64_t filled, refused, dropped; /* records added; not to be made; found damaged */
    uint64_t fill_ns;
    uint64_t reclaimed; /* segments given up */
    bool full;          /* nothing more is taken: the size is reached */
    bool failed;        /* nothing more is taken: it could not be written */
};
void cache_statistics(struct cache *cache, struct cache_statistics *ret);
/* One of these names: "open", or why nothing more is taken. */
#define CACHE_STATES                                                                                                   \
    { "open", "full", "failed" }
const char *cache_state_name(const struct cache_statistics *statistics);
/* All open caches. */
void cache_each(void (*f)(void *arg, const struct cache_statistics *statistics), void *arg);

#endif
