/* SPDX-License-Identifier: MIT */
/*
 * The hash of fingerprints: SipHash-2-4 with 128-bit output (Aumasson, Bernstein, "SipHash: a fast short-input PRF",
 * 2012), streamed. It names differences of datasets and pipelines, with a key that is no secret. Any thread on its own.
 */
#ifndef BASE_HASH_H
#define BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

struct hash {
    uint64_t v[4];
    uint64_t total;
    uint8_t tail[8];
};

void hash_init(struct hash *hash, const uint8_t key[16]);
void hash_bytes(struct hash *hash, const void *bytes, size_t length);
void hash_end(struct hash *hash, uint8_t ret[16]);

void hash_begin(struct hash *hash, const char *what);    /* our own key, then `what` */
void hash_u64(struct hash *hash, uint64_t value);        /* little-endian on every machine */
void hash_string(struct hash *hash, const char *string); /* with its NUL: prefix-free */

#endif
