/* SPDX-License-Identifier: MIT */
/*
 * Counter-based randomness: Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3",
 * SC 2011). The value is a pure function of (seed, epoch, position, operation, draw): no state, any thread, any order.
 * Header only; no libm, so that every machine draws the same numbers.
 */
#ifndef BASE_RANDOM_H
#define BASE_RANDOM_H

#include <stdint.h>

/* What a draw is for: part of the key, so that operations never share numbers. Numbers are fixed for ever. */
enum random_operation {
    RANDOM_SHUFFLE = 1,    /* keys of the epoch's bijection */
    RANDOM_SUBSTITUTE = 2, /* which sample stands in for a bad one */
    RANDOM_CROP = 3,
    RANDOM_FLIP = 4,
    RANDOM_JITTER = 5,
    RANDOM_ERASE = 6,
    RANDOM_CHUNK = 7,
    RANDOM_MIX = 8,
    RANDOM_PERSPECTIVE = 9,
    RANDOM_SUBSET = 10 /* which samples a fraction keeps */
};

struct random_key {
    uint64_t seed, epoch, position;
};

struct random_block {
    uint32_t word[4];
};

static inline struct random_block random_philox(const uint32_t counter[4], const uint32_t key[2]) {
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3], k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return (struct random_block){{c0, c1, c2, c3}};
}

/*
 * 128 random bits number `draw` of an operation. The Philox counter is (position, draw, operation) with 64 + 24 + 8 + 32
 * bits; the Philox key is a hash of (seed, epoch), itself one Philox block.
 */
static inline struct random_block random_draw(const struct random_key *key, enum random_operation operation,
                                              uint32_t draw) {
    const uint32_t seed_counter[4] = {(uint32_t)key->epoch, (uint32_t)(key->epoch >> 32), 0x6c6f6164u, 0x6572640au};
    const uint32_t seed_key[2] = {(uint32_t)key->seed, (uint32_t)(key->seed >> 32)};
    struct random_block k = random_philox(seed_counter, seed_key);
    const uint32_t counter[4] = {(uint32_t)key->position, (uint32_t)(key->position >> 32), draw, (uint32_t)operation};
    return random_philox(counter, k.word);
}

/* Uniform in [0, 1) with 24 bits: every value is exact in float and double. */
static inline double random_unit(uint32_t word) {
    return (double)(word >> 8) * 0x1p-24;
}

/* Uniform in [0, n), n >= 1, by multiply-shift over 64 bits (bias below n / 2^64). */
static inline uint64_t random_below(uint32_t high, uint32_t low, uint64_t n) {
    return (uint64_t)(((unsigned __int128)(((uint64_t)high << 32) | low) * n) >> 64);
}

#endif
