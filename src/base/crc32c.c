/* SPDX-License-Identifier: MIT */
/*
 * CRC-32C: tables for every machine, eight bytes a step ("slicing by 8"), and the CRC32 instruction of SSE 4.2 where
 * there is one. The instruction needs three cycles for eight bytes but starts anew every cycle, so that long inputs are
 * taken as three strands, whose results are put together by tables that say what a strand of zero bytes does to a CRC.
 */
#include "base/crc32c.h"

#include <endian.h>
#include <stdbool.h>
#include <string.h>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

#define POLYNOMIAL 0x82F63B78u

static uint32_t table[8][256]; /* [n]: of a byte and n zero bytes behind it */

#if defined(__x86_64__)
#define STRAND ((size_t)512)   /* bytes */
static uint32_t zeros[4][256]; /* of STRAND zero bytes: for each byte of a CRC */
static bool instruction;
#endif

static uint64_t load64(const uint8_t *bytes) {
    uint64_t value;
    memcpy(&value, bytes, sizeof value);
    return value;
}

static uint32_t crc_by_table(uint32_t crc, const uint8_t *bytes, size_t length) {
    for (; length >= 8; length -= 8, bytes += 8) {
        uint64_t word = le64toh(load64(bytes)) ^ crc;
        crc = table[7][word & 255] ^ table[6][word >> 8 & 255] ^ table[5][word >> 16 & 255] ^
              table[4][word >> 24 & 255] ^ table[3][word >> 32 & 255] ^ table[2][word >> 40 & 255] ^
              table[1][word >> 48 & 255] ^ table[0][word >> 56];
    }
    for (; length; length--, bytes++)
        crc = table[0][(crc ^ *bytes) & 255] ^ crc >> 8;
    return crc;
}

__attribute__((constructor)) static void make_tables(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? POLYNOMIAL : 0);
        table[0][i] = crc;
    }
    for (uint32_t i = 0; i < 256; i++)
        for (int n = 1; n < 8; n++)
            table[n][i] = table[n - 1][i] >> 8 ^ table[0][table[n - 1][i] & 255];
#if defined(__x86_64__)
    static const uint8_t none[STRAND];
    for (uint32_t byte = 0; byte < 4; byte++)
        for (uint32_t i = 0; i < 256; i++)
            zeros[byte][i] = crc_by_table(i << (8 * byte), none, STRAND);
    __builtin_cpu_init();
    instruction = __builtin_cpu_supports("sse4.2");
#endif
}

#if defined(__x86_64__)
static uint32_t skip_strand(uint32_t crc) {
    return zeros[0][crc & 255] ^ zeros[1][crc >> 8 & 255] ^ zeros[2][crc >> 16 & 255] ^ zeros[3][crc >> 24];
}

__attribute__((target("sse4.2"))) static uint32_t crc_by_instruction(uint32_t crc, const uint8_t *bytes,
                                                                     size_t length) {
    uint64_t a = crc;
    for (; length >= 3 * STRAND; length -= 3 * STRAND, bytes += 3 * STRAND) {
        uint64_t b = 0, c = 0;
        for (size_t i = 0; i < STRAND; i += 8) {
            a = _mm_crc32_u64(a, load64(bytes + i));
            b = _mm_crc32_u64(b, load64(bytes + STRAND + i));
            c = _mm_crc32_u64(c, load64(bytes + 2 * STRAND + i));
        }
        a = skip_strand(skip_strand((uint32_t)a) ^ (uint32_t)b) ^ (uint32_t)c;
    }
    for (; length >= 8; length -= 8, bytes += 8)
        a = _mm_crc32_u64(a, load64(bytes));
    for (; length; length--, bytes++)
        a = _mm_crc32_u8((uint32_t)a, *bytes);
    return (uint32_t)a;
}
#endif

uint32_t crc32c(uint32_t crc, const void *bytes, size_t length) {
#if defined(__x86_64__)
    if (instruction)
        return ~crc_by_instruction(~crc, bytes, length);
#endif
    return ~crc_by_table(~crc, bytes, length);
}
