/* SPDX-License-Identifier: MIT */
/* What goes into a cache: see fill.h. */
#include "fill.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "base/util.h"
#include "decode/coefficients.h"

struct waiting {
    struct cache *cache; /* referenced */
    struct cache_key key;
    uint8_t *bytes;
    size_t length;
};

/* A ring of pictures over a ring of bytes: a copy that would run past the end of these begins at their beginning. */
struct fill {
    struct coefficients_encoder *encoder;
    struct waiting waiting[FILL_QUEUE], offered;
    uint32_t first, count, urgent;
    uint8_t *bytes;
};

struct fill *fill_new(void) {
    struct fill *fill = calloc(1, sizeof *fill);
    if (!fill)
        return NULL;
    void *bytes =
        mmap(NULL, FILL_QUEUE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (bytes != MAP_FAILED)
        fill->bytes = bytes;
    if (fill->bytes && coefficients_encoder_new(&fill->encoder) == 0)
        return fill;
    fill_free(fill);
    return NULL;
}

void fill_free(struct fill *fill) {
    if (!fill)
        return;
    for (; fill->count; fill->count--)
        cache_unref(fill->waiting[fill->first++ % FILL_QUEUE].cache);
    coefficients_encoder_free(fill->encoder);
    if (fill->bytes)
        munmap(fill->bytes, FILL_QUEUE_BYTES);
    free(fill);
}

/* Where `length` bytes are free, NULL: nowhere. */
static uint8_t *free_bytes(const struct fill *fill, size_t length) {
    if (fill->count == 0)
        return fill->bytes;
    const struct waiting *last = &fill->waiting[(fill->first + fill->count - 1) % FILL_QUEUE];
    uint8_t *begin = fill->waiting[fill->first % FILL_QUEUE].bytes, *end = last->bytes + last->length;
    uint8_t *limit = fill->bytes + FILL_QUEUE_BYTES;
    if (end <= begin) /* the free part lies between the last and the first */
        return (size_t)(begin - end) > length ? end : NULL;
    if ((size_t)(limit - end) >= length)
        return end;
    return (size_t)(begin - fill->bytes) > length ? fill->bytes : NULL;
}

uint8_t *fill_offer(struct fill *fill, struct cache *cache, const struct cache_key *key, size_t length) {
    if (length > FILL_QUEUE_BYTES) {
        cache_refuse(cache, key);
        return NULL;
    }
    uint8_t *bytes = fill->count < FILL_QUEUE ? free_bytes(fill, length) : NULL;
    fill->offered = (struct waiting){cache, *key, bytes, length};
    return bytes;
}

void fill_accept(struct fill *fill, bool urgent) {
    cache_ref(fill->offered.cache);
    fill->waiting[(fill->first + fill->count++) % FILL_QUEUE] = fill->offered;
    if (urgent)
        fill->urgent = fill->count;
}

bool fill_pending(const struct fill *fill) {
    return fill->count > 0;
}

bool fill_urgent(const struct fill *fill) {
    return fill->urgent > 0;
}

uint64_t fill_one(struct fill *fill) {
    if (!fill->count)
        return 0;
    const struct coefficients_options options = {.max_pixels = FILL_MOST_PIXELS};
    struct waiting *w = &fill->waiting[fill->first % FILL_QUEUE];
    uint64_t begun = now_ns();
    if (cache_wants(w->cache, &w->key)) {
        const uint8_t *record;
        size_t length;
        int r = coefficients_encode(fill->encoder, w->bytes, w->length, &options, &record, &length, NULL);
        if (r == 0)
            cache_add(w->cache, &w->key, record, length);
        else if (r != -ENOMEM)
            cache_refuse(w->cache, &w->key);
    }
    uint64_t spent = now_ns() - begun;
    cache_note_fill(w->cache, spent);
    cache_unref(w->cache);
    fill->first++;
    fill->count--;
    fill->urgent -= fill->urgent > 0;
    return MAX(spent, 1u);
}
