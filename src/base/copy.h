/* SPDX-License-Identifier: MIT */
/*
 * Copies of large pieces that the copying core will not read again: a raw record from the page cache to its row in a
 * ring. Two kinds of stores:
 *
 *     streaming   non-temporal: they save the read of the destination that ordinary stores begin with, and leave the
 *                 caches to what is decoded. Best where the destination is larger than the caches.
 *     ordinary    memcpy(): the destination stays in the last-level cache, whence the trainer, or its GPU over the bus,
 *                 reads it. Best where the whole ring has room there and so many cores copy that memory is what binds.
 *
 * Never looks at what it copies. Threading: any.
 */
#ifndef BASE_COPY_H
#define BASE_COPY_H

#include <stddef.h>

enum copy_stores { COPY_STREAMING, COPY_ORDINARY };

/* As memcpy(): any alignment and length, no overlap. Pieces below 64 KiB are left to memcpy(). Streaming stores end with
 * an sfence, so that a release store afterwards publishes the bytes as it would those of ordinary ones. */
#define COPY_LEAST (64u << 10)
void copy_piece(void *restrict to, const void *restrict from, size_t bytes, enum copy_stores stores);

/* The loops that there are on this CPU, the one that streaming takes first ("avx512", "avx2", "memcpy"), for tests and
 * benchmarks; their number. $LOADERD_SIMD = avx512, avx2 or scalar lowers the choice, as it does for transforms. */
struct copy_twin {
    const char *name;
    void (*copy)(void *restrict to, const void *restrict from, size_t bytes);
};
#define COPY_TWINS 3 /* at most */
size_t copy_twins(const struct copy_twin **ret);

#endif
