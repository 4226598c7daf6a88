/* SPDX-License-Identifier: MIT */
/*
 * The cache: see cache.h for what it is, segment.h for the form of what it keeps, store.c for where. Here: the index,
 * who looks at it, what is added and what is given up.
 *
 * A word of the index: unit in the segment (20 bits), units from there that may hold the record (20), segment (18), flags.
 *
 * Who looks pins the segment first and then asks whether it was retired; who retires sets that first and then asks for
 * pins, both seq_cst: so either the pin is seen and the mapping stays, or the retirement is seen and nothing is touched.
 */
#include "cache/cache.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>

#include "base/log.h"
#include "base/util.h"
#include "cache/internal.h"

#define UNIT_BITS 20
#define SEGMENT_BITS 18
#define WORD_UNIT(word) ((word) & ((UINT64_C(1) << UNIT_BITS) - 1))
#define WORD_UNITS(word) ((word) >> UNIT_BITS & ((UINT64_C(1) << UNIT_BITS) - 1))
#define WORD_SEGMENT(word) ((word) >> (2 * UNIT_BITS) & ((UINT64_C(1) << SEGMENT_BITS) - 1))
#define WORD_WARM (UINT64_C(1) << 59)    /* its pages were asked for */
#define WORD_TOUCHED (UINT64_C(1) << 60) /* wanted since the last judgement */
#define WORD_REFUSED (UINT64_C(1) << 61) /* no record can be made of it */
#define WORD_PRESENT (UINT64_C(1) << 62)
#define WORD_PLACE (((UINT64_C(1) << (2 * UNIT_BITS + SEGMENT_BITS)) - 1) | WORD_PRESENT)
_Static_assert(SEGMENT_MOST / SEGMENT_UNIT <= UINT64_C(1) << UNIT_BITS, "units");
_Static_assert(SEGMENTS_MOST <= 1 << SEGMENT_BITS, "segments");

static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER; /* one opens or closes at a time */
static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER; /* of `caches` */
static struct cache *caches;

static uint64_t count_add(_Atomic uint64_t *counter, uint64_t n) {
    return atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

/* Never 0. Keyed by random bytes of the process. */
static uint64_t hash_of(const struct cache *cache, const struct cache_key *key) {
    const uint64_t words[] = {key->file.device, key->file.inode, key->file.size, (uint64_t)key->file.mtime_ns,
                              key->offset,      key->length,     key->variant};
    uint64_t h = cache->seed;
    for (size_t i = 0; i < ARRAY_SIZE(words); i++) {
        h = (h ^ words[i]) * UINT64_C(0x9e3779b97f4a7c15);
        h ^= h >> 29;
    }
    h *= UINT64_C(0xbf58476d1ce4e5b9);
    h ^= h >> 32;
    return h ? h : 1;
}

static uint64_t word_of(uint32_t segment, const struct segment_entry *entry) {
    uint64_t units = segment_blob_bytes(entry->bytes) / SEGMENT_UNIT;
    return WORD_PRESENT | (uint64_t)segment << (2 * UNIT_BITS) | units << UNIT_BITS | entry->place;
}

static struct table *table_of(const struct cache *cache) {
    return atomic_load_explicit(&cache->table, memory_order_acquire);
}

/* Puts a word under a hash; the mutex is held. False: no memory for a larger table. */
static bool index_put(struct cache *cache, uint64_t hash, uint64_t word) {
    struct table *table = table_of(cache);
    if (table_is_full(table)) {
        struct table *grown = table_grow(table);
        if (!grown)
            return false;
        atomic_store_explicit(&cache->table, grown, memory_order_release);
        table = grown;
    }
    table_take(table, hash, word);
    return true;
}

static void count_entry(struct cache *cache, struct segment *s, const struct segment_entry *entry) {
    uint64_t bytes = segment_blob_bytes(entry->bytes);
    s->entries++;
    s->record_bytes += bytes;
    count_add(&cache->entries, 1);
    count_add(&cache->record_bytes, bytes);
}

int cache_index(struct cache *cache, uint32_t number, const struct segment_entry *entry) {
    struct cache_key key;
    segment_entry_key(entry, &key);
    uint64_t hash = hash_of(cache, &key);
    struct table_slot *slot = table_find(table_of(cache), hash);
    if (slot && atomic_load_explicit(&slot->word, memory_order_relaxed) & WORD_PRESENT)
        return 1;
    if (!index_put(cache, hash, word_of(number, entry)))
        return -ENOMEM;
    count_entry(cache, cache->segment[number], entry);
    return 0;
}

/* ---- those who look ------------------------------------------------------------------------------------------------ */

static bool pin(struct segment *segment) {
    atomic_fetch_add(&segment->users, 1);
    if (!atomic_load(&segment->retired))
        return true;
    atomic_fetch_sub(&segment->users, 1);
    return false;
}

void cache_extent(const struct cache_hit *hit, const uint8_t **ret_bytes, size_t *ret_length) {
    *ret_bytes = hit->segment->map + WORD_UNIT(hit->place) * SEGMENT_UNIT;
    *ret_length = WORD_UNITS(hit->place) * SEGMENT_UNIT;
}

/* Asks for the pages of what will be used soon. */
static void read_ahead(const struct cache_hit *hit) {
    const uint8_t *bytes;
    size_t length;
    cache_extent(hit, &bytes, &length);
    uintptr_t begin = (uintptr_t)bytes & ~(uintptr_t)4095;
    madvise((void *)begin, (uintptr_t)bytes + length - begin, MADV_WILLNEED);
}

bool cache_find(struct cache *cache, const struct cache_key *key, struct cache_hit *ret) {
    struct table_slot *slot = table_find(table_of(cache), hash_of(cache, key));
    uint64_t word = slot ? atomic_load_explicit(&slot->word, memory_order_acquire) : 0;
    if (!(word & WORD_PRESENT))
        return false;
    struct segment *segment = atomic_load_explicit(&cache->segment[WORD_SEGMENT(word)], memory_order_acquire);
    if (!segment || !pin(segment))
        return false;
    if ((WORD_UNIT(word) + WORD_UNITS(word)) * SEGMENT_UNIT > segment->header.bytes) { /* of another one before it */
        atomic_fetch_sub(&segment->users, 1);
        return false;
    }
    *ret = (struct cache_hit){segment, word};
    if (!(word & WORD_TOUCHED) || !(word & WORD_WARM))
        atomic_fetch_or_explicit(&slot->word, WORD_TOUCHED | WORD_WARM, memory_order_relaxed);
    if (cache->directory >= 0 &&
        (!(word & WORD_WARM) || atomic_load_explicit(&cache->used, memory_order_relaxed) > cache->page_cache))
        read_ahead(ret);
    return true;
}

const uint8_t *cache_record(const struct cache_hit *hit, const struct cache_key *key, size_t *ret_length) {
    return segment_record(hit->segment->map, &hit->segment->header, (uint32_t)WORD_UNIT(hit->place), key, ret_length);
}

void cache_done(struct cache_hit *hit) {
    if (hit->segment)
        atomic_fetch_sub(&hit->segment->users, 1);
    hit->segment = NULL;
}

void cache_drop(struct cache *cache, const struct cache_key *key, const struct cache_hit *hit) {
    pthread_mutex_lock(&cache->mutex);
    struct table_slot *slot = table_find(table_of(cache), hash_of(cache, key));
    uint64_t word = slot ? atomic_load_explicit(&slot->word, memory_order_relaxed) : 0;
    if (word && (word & WORD_PLACE) == (hit->place & WORD_PLACE)) {
        uint64_t bytes = WORD_UNITS(word) * SEGMENT_UNIT;
        atomic_store_explicit(&slot->word, 0, memory_order_release);
        hit->segment->entries--;
        hit->segment->record_bytes -= bytes;
        atomic_fetch_sub_explicit(&cache->entries, 1, memory_order_relaxed);
        atomic_fetch_sub_explicit(&cache->record_bytes, bytes, memory_order_relaxed);
    }
    pthread_mutex_unlock(&cache->mutex);
    count_add(&cache->dropped, 1);
}

bool cache_wants(struct cache *cache, const struct cache_key *key) {
    if (atomic_load_explicit(&cache->closed, memory_order_relaxed))
        return false;
    struct table_slot *slot = table_find(table_of(cache), hash_of(cache, key));
    return !slot || atomic_load_explicit(&slot->word, memory_order_relaxed) == 0;
}

/* ---- what is given up ---------------------------------------------------------------------------------------------- */

/* Unmaps what was retired and is not in use any more; the mutex is held. */
static void collect(struct cache *cache) {
    for (uint32_t i = 0; i < cache->segments; i++) {
        struct segment *s = cache->segment[i];
        if (atomic_load(&s->retired) && s->map && s->writers == 0 && atomic_load(&s->users) == 0)
            store_unmap(s);
    }
}

/* Gives up all segments that the last judgement named; the mutex is held. */
static void reclaim(struct cache *cache) {
    bool any = false;
    collect(cache);
    for (uint32_t i = 0; i < cache->segments; i++) {
        struct segment *s = cache->segment[i];
        if (!s->unwanted || s == cache->filling || s->writers)
            continue;
        s->unwanted = false;
        atomic_store(&s->retired, true);
        any = true;
        count_add(&cache->reclaimed, 1);
    }
    if (!any)
        return;
    struct table *table = table_of(cache);
    for (uint64_t i = 0; i < table->slots; i++) {
        uint64_t word = atomic_load_explicit(&table->slot[i].word, memory_order_relaxed);
        if (word & WORD_PRESENT && atomic_load(&cache->segment[WORD_SEGMENT(word)]->retired))
            atomic_store_explicit(&table->slot[i].word, 0, memory_order_release);
    }
    for (uint32_t i = 0; i < cache->segments; i++) {
        struct segment *s = cache->segment[i];
        if (!atomic_load(&s->retired) || s->forgotten)
            continue;
        s->forgotten = true;
        atomic_fetch_sub_explicit(&cache->entries, s->entries, memory_order_relaxed);
        atomic_fetch_sub_explicit(&cache->record_bytes, s->record_bytes, memory_order_relaxed);
        store_remove(cache, s);
    }
    collect(cache);
}

/* Every session has seen an epoch since the last time: what of each segment was wanted meanwhile? The mutex is held. */
static void judge(struct cache *cache) {
    struct table *table = table_of(cache);
    bool any = false;
    for (uint32_t i = 0; i < cache->segments; i++)
        cache->segment[i]->wanted = 0;
    for (uint64_t i = 0; i < table->slots; i++) {
        uint64_t word = atomic_load_explicit(&table->slot[i].word, memory_order_relaxed);
        if (!(word & WORD_PRESENT) || !(word & WORD_TOUCHED))
            continue;
        cache->segment[WORD_SEGMENT(word)]->wanted++;
        atomic_fetch_and_explicit(&table->slot[i].word, ~WORD_TOUCHED, memory_order_relaxed);
    }
    for (uint32_t i = 0; i < cache->segments; i++) {
        struct segment *s = cache->segment[i];
        s->unwanted = !atomic_load(&s->retired) && s != cache->filling && (s->wanted * 2 < s->entries || !s->entries);
        any |= s->unwanted;
    }
    if (any && !cache->failed)
        atomic_store_explicit(&cache->closed, false, memory_order_relaxed);
}

void cache_join(struct cache *cache, struct cache_user *user) {
    pthread_mutex_lock(&cache->mutex);
    user->next = cache->users;
    cache->users = user;
    pthread_mutex_unlock(&cache->mutex);
}

void cache_leave(struct cache *cache, struct cache_user *user) {
    pthread_mutex_lock(&cache->mutex);
    for (struct cache_user **at = &cache->users; *at; at = &(*at)->next)
        if (*at == user) {
            *at = user->next;
            break;
        }
    pthread_mutex_unlock(&cache->mutex);
}

void cache_epoch(struct cache *cache, struct cache_user *user, uint64_t epoch) {
    if (epoch < atomic_load_explicit(&user->epoch, memory_order_relaxed))
        return;
    pthread_mutex_lock(&cache->mutex);
    if (epoch >= atomic_load_explicit(&user->epoch, memory_order_relaxed)) {
        bool all = true;
        atomic_store_explicit(&user->epoch, epoch + 1, memory_order_relaxed);
        user->begun++;
        for (const struct cache_user *u = cache->users; u; u = u->next)
            all = all && u->begun >= 2;
        if (all) {
            judge(cache);
            for (struct cache_user *u = cache->users; u; u = u->next)
                u->begun = 0;
        }
    }
    pthread_mutex_unlock(&cache->mutex);
}

/* ---- those who add ------------------------------------------------------------------------------------------------- */

/* Nothing more is taken, and why; the mutex is held. */
static void close_for(struct cache *cache, int code, const char *what) {
    atomic_store_explicit(&cache->closed, true, memory_order_relaxed);
    if (code == 0 || cache->failed)
        return;
    cache->failed = true;
    log_warning("cache %s: %s: %s; it takes no more, and serves the %" PRIu64 " entries that it has", cache->place,
                what, strerror(-code), atomic_load_explicit(&cache->entries, memory_order_relaxed));
}

static bool has_room(const struct segment *s, uint64_t bytes) {
    return s && s->next < s->header.entries && s->end + bytes <= s->header.bytes;
}

/* A segment with room, made now if need be; the mutex is held. NULL: there is none. */
static struct segment *segment_for(struct cache *cache, uint64_t bytes) {
    if (has_room(cache->filling, bytes))
        return cache->filling;
    if (cache->filling)
        store_finish(cache->filling);
    cache->filling = NULL;
    int r = store_resume(cache, bytes, &cache->filling);
    if (r == 0 && !cache->filling) {
        uint64_t capacity = atomic_load_explicit(&cache->capacity, memory_order_relaxed);
        uint64_t size = store_segment_bytes(capacity);
        if (atomic_load_explicit(&cache->used, memory_order_relaxed) + size > capacity)
            reclaim(cache);
        if (atomic_load_explicit(&cache->used, memory_order_relaxed) + size <= capacity)
            r = store_create(cache, size, &cache->filling);
    }
    if (r < 0)
        close_for(cache, r, "cannot make another segment");
    else if (!cache->filling)
        close_for(cache, 0, NULL);
    return cache->filling;
}

static int commit(struct cache *cache, struct segment *s, struct segment_entry *entry) {
    struct cache_key key;
    segment_entry_key(entry, &key);
    struct table_slot *slot = table_find(table_of(cache), hash_of(cache, &key));
    if (slot && atomic_load_explicit(&slot->word, memory_order_relaxed) & WORD_PRESENT)
        return 1; /* somebody else was faster */
    if (s->next >= s->header.entries)
        return 1;
    int r = store_write(s, SEGMENT_TABLE + (uint64_t)s->next * sizeof *entry, entry, sizeof *entry, NULL, 0);
    if (r < 0)
        return r;
    s->next++;
    if (!index_put(cache, hash_of(cache, &key), word_of(s->slot, entry) | WORD_TOUCHED | WORD_WARM))
        return -ENOMEM;
    count_entry(cache, s, entry);
    count_add(&cache->filled, 1);
    return 0;
}

int cache_add(struct cache *cache, const struct cache_key *key, const void *record, size_t length) {
    struct segment_entry entry = {
        .device = key->file.device,
        .inode = key->file.inode,
        .size = key->file.size,
        .mtime_ns = key->file.mtime_ns,
        .offset = key->offset,
        .length = key->length,
        .variant = key->variant,
        .bytes = (uint32_t)length,
    };
    uint64_t blob = segment_blob_bytes(length);
    if (length == 0 || blob > store_segment_bytes(atomic_load_explicit(&cache->capacity, memory_order_relaxed)) / 2) {
        cache_refuse(cache, key);
        return 1;
    }
    if (!cache_wants(cache, key))
        return 1;
    pthread_mutex_lock(&cache->mutex);
    struct segment *s = segment_for(cache, blob);
    if (s) {
        entry.place = (uint32_t)(s->end / SEGMENT_UNIT);
        s->end += blob;
        s->writers++;
    }
    pthread_mutex_unlock(&cache->mutex);
    if (!s)
        return 1;
    segment_entry_seal(&entry, s->header.number);
    int r = store_write(s, (uint64_t)entry.place * SEGMENT_UNIT, &entry, sizeof entry, record, length);
    pthread_mutex_lock(&cache->mutex);
    if (r == 0)
        r = commit(cache, s, &entry);
    if (r < 0)
        close_for(cache, r, "cannot write");
    s->writers--;
    if (s != cache->filling && s->writers == 0)
        store_finish(s);
    pthread_mutex_unlock(&cache->mutex);
    return r;
}

void cache_refuse(struct cache *cache, const struct cache_key *key) {
    pthread_mutex_lock(&cache->mutex);
    struct table_slot *slot = table_find(table_of(cache), hash_of(cache, key));
    if ((!slot || atomic_load_explicit(&slot->word, memory_order_relaxed) == 0) &&
        index_put(cache, hash_of(cache, key), WORD_REFUSED))
        count_add(&cache->refused, 1);
    pthread_mutex_unlock(&cache->mutex);
}

/* ---- counters -------------------------------------------------------------------------------------------------------- */

void cache_note(struct cache *cache, bool hit, uint64_t bytes, uint64_t ns) {
    count_add(hit ? &cache->hits : &cache->misses, 1);
    count_add(hit ? &cache->hit_ns : &cache->miss_ns, ns);
    if (hit)
        count_add(&cache->hit_bytes, bytes);
}

void cache_note_fill(struct cache *cache, uint64_t ns) {
    count_add(&cache->fill_ns, ns);
}

void cache_statistics(struct cache *cache, struct cache_statistics *ret) {
    pthread_mutex_lock(&cache->mutex);
    uint64_t index_bytes = table_bytes(table_of(cache)), segments = 0;
    bool failed = cache->failed, closed = atomic_load_explicit(&cache->closed, memory_order_relaxed);
    for (uint32_t i = 0; i < cache->segments; i++)
        segments += !atomic_load(&cache->segment[i]->retired);
    pthread_mutex_unlock(&cache->mutex);
#define COUNT(name) .name = atomic_load_explicit(&cache->name, memory_order_relaxed)
    *ret = (struct cache_statistics){
        .place = cache->place,
        COUNT(capacity),
        COUNT(used),
        COUNT(record_bytes),
        .index_bytes = index_bytes,
        COUNT(entries),
        .segments = segments,
        COUNT(hits),
        COUNT(misses),
        COUNT(hit_bytes),
        COUNT(hit_ns),
        COUNT(miss_ns),
        COUNT(filled),
        COUNT(refused),
        COUNT(dropped),
        COUNT(fill_ns),
        COUNT(reclaimed),
        .full = closed && !failed,
        .failed = failed,
    };
#undef COUNT
}

const char *cache_state_name(const struct cache_statistics *statistics) {
    return statistics->failed ? "failed" : statistics->full ? "full" : "open";
}

void cache_each(void (*f)(void *arg, const struct cache_statistics *statistics), void *arg) {
    pthread_mutex_lock(&list_lock);
    for (struct cache *c = caches; c; c = c->next) {
        struct cache_statistics statistics;
        cache_statistics(c, &statistics);
        f(arg, &statistics);
    }
    pthread_mutex_unlock(&list_lock);
}

/* ---- lives ------------------------------------------------------------------------------------------------------------ */

struct cache *cache_ref(struct cache *cache) {
    atomic_fetch_add_explicit(&cache->references, 1, memory_order_relaxed);
    return cache;
}

static void destroy(struct cache *cache) {
    for (uint32_t i = 0; i < cache->segments; i++) {
        struct segment *s = cache->segment[i];
        assert(atomic_load(&s->users) == 0);
        if (s->map)
            store_unmap(s);
        free(s);
    }
    store_close(cache);
    table_free(table_of(cache));
    pthread_mutex_destroy(&cache->mutex);
    free(cache->segment);
    free(cache->place);
    free(cache);
}

struct cache *cache_unref(struct cache *cache) {
    if (!cache)
        return NULL;
    pthread_mutex_lock(&open_lock); /* so that nobody opens a place that is being closed */
    if (atomic_fetch_sub_explicit(&cache->references, 1, memory_order_acq_rel) == 1) {
        pthread_mutex_lock(&list_lock);
        for (struct cache **at = &caches; *at; at = &(*at)->next)
            if (*at == cache) {
                *at = cache->next;
                break;
            }
        pthread_mutex_unlock(&list_lock);
        destroy(cache);
    }
    pthread_mutex_unlock(&open_lock);
    return NULL;
}

static int check_options(const struct cache_options *options, struct diag *diag) {
    if (options->bytes && options->bytes < CACHE_LEAST)
        return diag_set(diag, -EINVAL, "a cache of %" PRIu64 " bytes is too small: at least %" PRIu64, options->bytes,
                        CACHE_LEAST);
    if (!options->directory && options->bytes > options->memory / 2)
        return diag_set(diag, -ENOMEM,
                        "ram: %" PRIu64 " MiB are more than half of the %" PRIu64 " MiB that this process may have",
                        options->bytes >> 20, options->memory >> 20);
    return 0;
}

static struct cache *allocate(void) {
    struct cache *cache = calloc(1, sizeof *cache);
    if (!cache)
        return NULL;
    cache->directory = cache->lock = -1;
    pthread_mutex_init(&cache->mutex, NULL);
    atomic_init(&cache->references, 1);
    cache->segment = calloc(SEGMENTS_MOST, sizeof *cache->segment);
    atomic_init(&cache->table, table_new(0, NULL));
    if (getrandom(&cache->seed, sizeof cache->seed, 0) != (ssize_t)sizeof cache->seed)
        cache->seed = now_ns();
    if (cache->segment && table_of(cache))
        return cache;
    table_free(table_of(cache));
    free(cache->segment);
    free(cache);
    return NULL;
}

/* The cache of that place, if it is open; open_lock is held. */
static struct cache *find_open(const struct cache_options *options) {
    for (struct cache *c = caches; c; c = c->next)
        if (store_is(c, options->directory))
            return c;
    return NULL;
}

static int open_new(const struct cache_options *options, struct cache **ret, struct diag *diag) {
    struct cache *cache = allocate();
    if (!cache)
        return diag_set(diag, -ENOMEM, "out of memory for a cache");
    cache->page_cache = options->memory / 2;
    int r = store_open(cache, options, diag);
    if (r < 0) {
        destroy(cache);
        return r;
    }
    pthread_mutex_lock(&list_lock);
    cache->next = caches;
    caches = cache;
    pthread_mutex_unlock(&list_lock);
    log_info("cache %s: %" PRIu64 " entries, %.1f of %.1f MB", cache->place,
             atomic_load_explicit(&cache->entries, memory_order_relaxed),
             (double)atomic_load_explicit(&cache->used, memory_order_relaxed) / 1e6,
             (double)atomic_load_explicit(&cache->capacity, memory_order_relaxed) / 1e6);
    *ret = cache;
    return 0;
}

int cache_open(const struct cache_options *options, struct cache **ret, struct diag *diag) {
    int r = check_options(options, diag);
    if (r < 0)
        return r;
    pthread_mutex_lock(&open_lock);
    struct cache *cache = find_open(options);
    if (cache) {
        pthread_mutex_lock(&cache->mutex);
        if (options->bytes > atomic_load_explicit(&cache->capacity, memory_order_relaxed)) {
            atomic_store_explicit(&cache->capacity, options->bytes, memory_order_relaxed);
            if (!cache->failed)
                atomic_store_explicit(&cache->closed, false, memory_order_relaxed);
        }
        pthread_mutex_unlock(&cache->mutex);
        *ret = cache_ref(cache);
    } else {
        r = open_new(options, ret, diag);
    }
    pthread_mutex_unlock(&open_lock);
    return r;
}
