/* SPDX-License-Identifier: MIT */
/*
 * Keyed bijections on [0, N): what a shuffle is made of. Computed for one number at a time, without a table. Pure
 * functions over the struct; no allocation, any thread.
 */
#ifndef BIJECTION_H
#define BIJECTION_H

#include <stdint.h>

#include "base/random.h"

#define BIJECTION_ROUNDS 8             /* one 64-bit key each */
#define BIJECTION_SMALL UINT64_C(1024) /* below this N a number costs some 700 ns, from here on some 15 ns */

struct bijection {
    uint64_t samples; /* N >= 1 */
    uint64_t key[BIJECTION_ROUNDS];
    uint64_t left_size; /* shape of the network, see bijection.c */
    uint32_t right_bits;
};

/* The bijection on [0, samples) that `key` and `operation` say. About half a microsecond. */
void bijection_init(struct bijection *ret, uint64_t samples, const struct random_key *key,
                    enum random_operation operation);
/* One of a family of unrelated bijections on [0, samples): member `tweak` of that of `base`, whose own N does not
 * count. Cheap: for a window or a pass that is met in passing. */
void bijection_derive(const struct bijection *base, uint64_t tweak, uint64_t samples, struct bijection *ret);

/* x < N to its image, and back. */
uint64_t bijection_map(const struct bijection *bijection, uint64_t x);
uint64_t bijection_inverse(const struct bijection *bijection, uint64_t y);

/* floor(fraction * n) of a 64-bit binary fraction: a uniform number below n of a uniform one. */
static inline uint64_t bijection_below(uint64_t fraction, uint64_t n) {
    return (uint64_t)(((unsigned __int128)fraction * n) >> 64);
}

/* A full-strength 64-bit hash (SplitMix64's finaliser): single bits of it may be used. */
static inline uint64_t bijection_mix(uint64_t h) {
    h = (h ^ h >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    h = (h ^ h >> 27) * UINT64_C(0x94D049BB133111EB);
    return h ^ h >> 31;
}

#endif
