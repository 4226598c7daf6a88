/* SPDX-License-Identifier: MIT */
/* SipHash-2-4-128: see hash.h. */
#include "base/hash.h"

#include <endian.h>
#include <string.h>

static inline uint64_t rotate_left(uint64_t x, int bits) {
    return x << bits | x >> (64 - bits);
}

static inline void hash_rounds(uint64_t v[4], int rounds) {
    while (rounds--) {
        v[0] += v[1];
        v[2] += v[3];
        v[1] = rotate_left(v[1], 13) ^ v[0];
        v[3] = rotate_left(v[3], 16) ^ v[2];
        v[0] = rotate_left(v[0], 32);
        v[2] += v[1];
        v[0] += v[3];
        v[1] = rotate_left(v[1], 17) ^ v[2];
        v[3] = rotate_left(v[3], 21) ^ v[0];
        v[2] = rotate_left(v[2], 32);
    }
}

static inline uint64_t read_le64(const uint8_t *bytes) {
    uint64_t word;
    memcpy(&word, bytes, sizeof word);
    return le64toh(word);
}

static inline void hash_word(struct hash *hash, uint64_t word) {
    hash->v[3] ^= word;
    hash_rounds(hash->v, 2);
    hash->v[0] ^= word;
}

void hash_init(struct hash *hash, const uint8_t key[16]) {
    uint64_t k0 = read_le64(key), k1 = read_le64(key + 8);
    hash->v[0] = UINT64_C(0x736f6d6570736575) ^ k0;
    hash->v[1] = UINT64_C(0x646f72616e646f6d) ^ k1 ^ 0xee;
    hash->v[2] = UINT64_C(0x6c7967656e657261) ^ k0;
    hash->v[3] = UINT64_C(0x7465646279746573) ^ k1;
    hash->total = 0;
    memset(hash->tail, 0, sizeof hash->tail);
}

void hash_bytes(struct hash *hash, const void *bytes, size_t length) {
    const uint8_t *p = bytes;
    while (length) {
        size_t used = hash->total % 8;
        if (used == 0 && length >= 8) {
            hash_word(hash, read_le64(p));
            p += 8;
            length -= 8;
            hash->total += 8;
            continue;
        }
        hash->tail[used] = *p++;
        length--;
        if (++hash->total % 8 == 0)
            hash_word(hash, read_le64(hash->tail));
    }
}

void hash_end(struct hash *hash, uint8_t ret[16]) {
    size_t used = hash->total % 8;
    uint64_t last = hash->total << 56;
    for (size_t i = 0; i < used; i++)
        last |= (uint64_t)hash->tail[i] << (8 * i);
    hash_word(hash, last);
    hash->v[2] ^= 0xee;
    hash_rounds(hash->v, 4);
    uint64_t low = htole64(hash->v[0] ^ hash->v[1] ^ hash->v[2] ^ hash->v[3]);
    hash->v[1] ^= 0xdd;
    hash_rounds(hash->v, 4);
    uint64_t high = htole64(hash->v[0] ^ hash->v[1] ^ hash->v[2] ^ hash->v[3]);
    memcpy(ret, &low, 8);
    memcpy(ret + 8, &high, 8);
}

void hash_begin(struct hash *hash, const char *what) {
    hash_init(hash, (const uint8_t *)"loaderd-dataset\1");
    hash_string(hash, what);
}

void hash_u64(struct hash *hash, uint64_t value) {
    value = htole64(value);
    hash_bytes(hash, &value, sizeof value);
}

void hash_string(struct hash *hash, const char *string) {
    hash_bytes(hash, string, strlen(string) + 1);
}
