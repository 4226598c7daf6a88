/* SPDX-License-Identifier: MIT */
/* Copies of large pieces: see copy.h. The only state is the choice of a twin, made at the first call. */
#include "base/copy.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"

static void copy_plain(void *restrict to, const void *restrict from, size_t bytes) {
    memcpy(to, from, bytes);
}

#ifdef __x86_64__
#include <immintrin.h>

/* Bytes of source fetched ahead: without it, the hardware's own read-ahead ends at each page. */
#define AHEAD 2048

/* Ordinary stores up to the first whole line of the destination; returns how many. */
static size_t copy_head(uint8_t *restrict to, const uint8_t *restrict from, size_t bytes) {
    size_t head = MIN((size_t)(-(uintptr_t)to & 63), bytes);
    memcpy(to, from, head);
    return head;
}

#define PAGE 4096u
#define PAGES 4u

/* Four pages at once, two lines of each in turn, and the lines of the next four fetched ahead where there are as many: so
 * many streams keep more reads of memory in flight than one does. From `at` on; returns where it ended, less than four
 * pages before the end. */
__attribute__((target("avx512f"))) static size_t copy_pages(uint8_t *restrict out, const uint8_t *restrict in,
                                                            size_t at, size_t bytes) {
    for (; bytes - at >= PAGES * PAGE; at += PAGES * PAGE) {
        size_t ahead = bytes - at >= 2 * PAGES * PAGE ? PAGES * PAGE : 0;
        for (size_t line = at; line < at + PAGE; line += 128) {
            __m512i a[PAGES], b[PAGES];
            for (size_t i = 0; i < PAGES; i++) {
                const uint8_t *page = in + line + i * PAGE;
                _mm_prefetch((const char *)(page + ahead), _MM_HINT_T1);
                _mm_prefetch((const char *)(page + ahead + 64), _MM_HINT_T1);
                a[i] = _mm512_loadu_si512(page);
                b[i] = _mm512_loadu_si512(page + 64);
            }
            for (size_t i = 0; i < PAGES; i++) {
                _mm512_stream_si512((void *)(out + line + i * PAGE), a[i]);
                _mm512_stream_si512((void *)(out + line + i * PAGE + 64), b[i]);
            }
        }
    }
    return at;
}

__attribute__((target("avx512f"))) static void copy_avx512(void *restrict to, const void *restrict from, size_t bytes) {
    uint8_t *out = to;
    const uint8_t *in = from;
    size_t at = copy_pages(out, in, copy_head(to, from, bytes), bytes);
    for (; bytes - at >= 256; at += 256) {
        for (size_t line = 0; line < 256; line += 64)
            _mm_prefetch((const char *)(in + at + AHEAD + line), _MM_HINT_T0); /* never faults */
        const __m512i a = _mm512_loadu_si512(in + at), b = _mm512_loadu_si512(in + at + 64);
        const __m512i c = _mm512_loadu_si512(in + at + 128), d = _mm512_loadu_si512(in + at + 192);
        _mm512_stream_si512((void *)(out + at), a);
        _mm512_stream_si512((void *)(out + at + 64), b);
        _mm512_stream_si512((void *)(out + at + 128), c);
        _mm512_stream_si512((void *)(out + at + 192), d);
    }
    memcpy(out + at, in + at, bytes - at);
    _mm_sfence();
}

__attribute__((target("avx2"))) static void copy_avx2(void *restrict to, const void *restrict from, size_t bytes) {
    size_t at = copy_head(to, from, bytes);
    uint8_t *out = to;
    const uint8_t *in = from;
    for (; bytes - at >= 128; at += 128) {
        for (size_t line = 0; line < 128; line += 64)
            _mm_prefetch((const char *)(in + at + AHEAD + line), _MM_HINT_T0);
        const __m256i a = _mm256_loadu_si256((const void *)(in + at));
        const __m256i b = _mm256_loadu_si256((const void *)(in + at + 32));
        const __m256i c = _mm256_loadu_si256((const void *)(in + at + 64));
        const __m256i d = _mm256_loadu_si256((const void *)(in + at + 96));
        _mm256_stream_si256((void *)(out + at), a);
        _mm256_stream_si256((void *)(out + at + 32), b);
        _mm256_stream_si256((void *)(out + at + 64), c);
        _mm256_stream_si256((void *)(out + at + 96), d);
    }
    memcpy(out + at, in + at, bytes - at);
    _mm_sfence();
}

static const struct copy_twin twins[] = {{"avx512", copy_avx512}, {"avx2", copy_avx2}, {"memcpy", copy_plain}};

static size_t first_twin(void) {
    const char *limit = getenv("LOADERD_SIMD");
    if (limit && strcmp(limit, "scalar") == 0)
        return 2;
    if (__builtin_cpu_supports("avx512f") && !(limit && strcmp(limit, "avx2") == 0))
        return 0;
    return __builtin_cpu_supports("avx2") ? 1 : 2;
}
#else
static const struct copy_twin twins[] = {{"memcpy", copy_plain}};

static size_t first_twin(void) {
    return 0;
}
#endif

size_t copy_twins(const struct copy_twin **ret) {
    static _Atomic size_t chosen; /* 1 + the first; threads that race choose alike */
    size_t first = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (!first) {
        first = first_twin() + 1;
        atomic_store_explicit(&chosen, first, memory_order_relaxed);
    }
    *ret = &twins[first - 1];
    return ARRAY_SIZE(twins) - (first - 1);
}

void copy_piece(void *restrict to, const void *restrict from, size_t bytes, enum copy_stores stores) {
    const struct copy_twin *twin;
    if (stores == COPY_ORDINARY || bytes < COPY_LEAST) {
        memcpy(to, from, bytes);
    } else {
        copy_twins(&twin);
        twin->copy(to, from, bytes);
    }
}
