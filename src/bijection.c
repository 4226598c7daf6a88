/* SPDX-License-Identifier: MIT */
/*
 * Keyed bijections on [0, N), one number at a time; there is no permutation array.
 *
 *   N >= 1024   A generalised Feistel network (Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002)
 *               on pairs, left in [0, A), right in [0, 2^k), where k = floor(log2 N / 2) and A = ceil(N / 2^k):
 *
 *                   x = left * 2^k + right     left  = left + floor(A * F1(right)) mod A
 *                                              right = right xor top k bits of F2(left)       ... 8 rounds in all
 *
 *               A * 2^k exceeds N by less than 2^k, so that cycle-walking (again, while the result is >= N) runs once
 *               and a share of less than 2 / sqrt(N). F is multiply-xorshift-multiply with 64 key bits a round.
 *   N < 1024    A Feistel network on halves of a few bits is visibly not uniform. Swap-or-not (Hoang, Morris, Rogaway,
 *               "An enciphering scheme based on a card shuffle", CRYPTO 2012) works on [0, N) itself: a round pairs x
 *               with K - x mod N and swaps the two or not, by one bit of a hash of the larger.
 *
 * Numbers are part of what a seed means: changing a constant here changes every shuffled run.
 * It never allocates, blocks or keeps state; any thread.
 */
#include "bijection.h"

#include "base/util.h"

#define SWAP_OR_NOT_ROUNDS 96
#define GOLDEN UINT64_C(0x9E3779B97F4A7C15) /* 2^64 / golden ratio, odd */

/* The round function: its high bits are the good ones. Constants: odd, of MurmurHash3's and SplitMix64's ends. */
static inline uint64_t round_hash(uint64_t value, uint64_t key) {
    uint64_t h = (value ^ key) * UINT64_C(0xFF51AFD7ED558CCD);
    h ^= h >> 32;
    return h * UINT64_C(0xBF58476D1CE4E5B9);
}

static uint64_t feistel(const struct bijection *b, uint64_t x) {
    const unsigned k = b->right_bits;
    const uint64_t side = b->left_size;
    do {
        uint64_t left = x >> k, right = x & ((UINT64_C(1) << k) - 1);
        for (unsigned round = 0; round < BIJECTION_ROUNDS; round += 2) {
            left += bijection_below(round_hash(right, b->key[round]), side);
            left -= left >= side ? side : 0;
            right ^= round_hash(left, b->key[round + 1]) >> (64 - k);
        }
        x = left << k | right;
    } while (x >= b->samples);
    return x;
}

static uint64_t feistel_inverse(const struct bijection *b, uint64_t x) {
    const unsigned k = b->right_bits;
    const uint64_t side = b->left_size;
    do {
        uint64_t left = x >> k, right = x & ((UINT64_C(1) << k) - 1);
        for (unsigned round = BIJECTION_ROUNDS; round > 0; round -= 2) {
            right ^= round_hash(left, b->key[round - 1]) >> (64 - k);
            uint64_t step = bijection_below(round_hash(right, b->key[round - 2]), side);
            left = left >= step ? left - step : left + side - step;
        }
        x = left << k | right;
    } while (x >= b->samples);
    return x;
}

/* One round of swap-or-not: its own inverse. Without branches, which would be tosses of a coin. */
static inline uint64_t swap_round(const struct bijection *b, unsigned round, uint64_t x) {
    uint64_t key = b->key[round % BIJECTION_ROUNDS] + round * GOLDEN;
    uint64_t partner = bijection_below(bijection_mix(key), b->samples) - x;
    partner += b->samples & (UINT64_C(0) - (partner >> 63)); /* below 0: N is less than 2^63 here */
    uint64_t swap = UINT64_C(0) - (bijection_mix(MAX(x, partner) * GOLDEN ^ ~key) >> 63);
    return x ^ ((x ^ partner) & swap);
}

uint64_t bijection_map(const struct bijection *b, uint64_t x) {
    if (b->samples >= BIJECTION_SMALL)
        return feistel(b, x);
    for (unsigned round = 0; round < SWAP_OR_NOT_ROUNDS; round++)
        x = swap_round(b, round, x);
    return x;
}

uint64_t bijection_inverse(const struct bijection *b, uint64_t y) {
    if (b->samples >= BIJECTION_SMALL)
        return feistel_inverse(b, y);
    for (unsigned round = SWAP_OR_NOT_ROUNDS; round > 0; round--)
        y = swap_round(b, round - 1, y);
    return y;
}

static void set_shape(struct bijection *b, uint64_t samples) {
    b->samples = samples;
    b->right_bits = samples < BIJECTION_SMALL ? 1 : (63 - (unsigned)__builtin_clzll(samples)) / 2;
    b->left_size = ((samples - 1) >> b->right_bits) + 1;
}

void bijection_init(struct bijection *ret, uint64_t samples, const struct random_key *key,
                    enum random_operation operation) {
    for (uint32_t i = 0; i < BIJECTION_ROUNDS / 2; i++) {
        struct random_block block = random_draw(key, operation, i);
        ret->key[2 * i] = (uint64_t)block.word[1] << 32 | block.word[0];
        ret->key[2 * i + 1] = (uint64_t)block.word[3] << 32 | block.word[2];
    }
    set_shape(ret, samples);
}

void bijection_derive(const struct bijection *base, uint64_t tweak, uint64_t samples, struct bijection *ret) {
    for (unsigned i = 0; i < BIJECTION_ROUNDS; i++)
        ret->key[i] = bijection_mix(base->key[i] + tweak * GOLDEN);
    set_shape(ret, samples);
}
