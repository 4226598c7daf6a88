/* SPDX-License-Identifier: MIT */
/* Small helpers without state: sizes, clock, cleanup attributes. Header only. */
#ifndef BASE_UTIL_H
#define BASE_UTIL_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))
/* These evaluate their arguments twice: nothing that another thread changes, no call that does something. */
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))
#define CLAMP(x, low, high) ((x) < (low) ? (low) : (x) > (high) ? (high) : (x))

/* Rounds up to a multiple of `align`, a power of two. The caller knows that it does not overflow. */
static inline uint64_t align_up(uint64_t value, uint64_t align) {
    return (value + align - 1) & ~(align - 1);
}

/* False, and *ret untouched, where the product or sum does not fit. */
static inline bool mul_u64(uint64_t a, uint64_t b, uint64_t *ret) {
    uint64_t r;
    if (__builtin_mul_overflow(a, b, &r))
        return false;
    *ret = r;
    return true;
}
static inline bool add_u64(uint64_t a, uint64_t b, uint64_t *ret) {
    uint64_t r;
    if (__builtin_add_overflow(a, b, &r))
        return false;
    *ret = r;
    return true;
}

/* CLOCK_MONOTONIC in nanoseconds. */
static inline uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

/* Scope-bound clean-up: `cleanup_free char *p = NULL;`, `cleanup_close int fd = -1;`. errno survives. */
static inline void cleanup_free_p(void *p) {
    int saved = errno;
    free(*(void **)p);
    errno = saved;
}
static inline void cleanup_close_p(int *fd) {
    int saved = errno;
    if (*fd >= 0)
        close(*fd);
    errno = saved;
}
#define cleanup_free __attribute__((cleanup(cleanup_free_p)))
#define cleanup_close __attribute__((cleanup(cleanup_close_p)))

/* Hands an owned pointer or descriptor to somebody else: the local one forgets it. */
static inline void *steal_pointer_p(void *p) {
    void **pp = p;
    void *value = *pp;
    *pp = NULL;
    return value;
}
#define steal_pointer(p) ((__typeof__(*(p)))steal_pointer_p(p))
static inline int steal_fd(int *fd) {
    int value = *fd;
    *fd = -1;
    return value;
}

#endif
