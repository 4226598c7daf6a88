/* SPDX-License-Identifier: MIT */
/*
 * Private to the coefficient encoder: a JPEG's quantised coefficients as libjpeg reads them, and its entropy-coded data
 * made again from them. One thread per object.
 */
#ifndef DECODE_JPEG_COEFFICIENTS_H
#define DECODE_JPEG_COEFFICIENTS_H

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "decode/coefficients_internal.h"

/* What the encoder sees of a JPEG. Rows of blocks stay valid until the next read. */
struct jpeg_coefficients {
    uint32_t width, height;
    enum sampling sampling;
    uint16_t quantiser[COMPONENTS_MOST][BLOCK]; /* zigzag */
    /* [component][block row]: blocks of 64, natural order; as many as the MCUs have */
    const int16_t (*const *rows[COMPONENTS_MOST])[BLOCK];
};

/* Bit n: coefficient n of the block (natural order) is not zero. */
static inline uint64_t block_nonzero(const int16_t *block) {
    uint64_t bits = 0;
#if defined(__x86_64__)
    for (uint32_t n = 0; n < BLOCK; n += 16) {
        const __m128i *row = (const __m128i *)(const void *)(block + n), none = _mm_setzero_si128();
        __m128i zero = _mm_packs_epi16(_mm_cmpeq_epi16(_mm_loadu_si128(row), none),
                                       _mm_cmpeq_epi16(_mm_loadu_si128(row + 1), none));
        bits |= (uint64_t)(uint16_t)~_mm_movemask_epi8(zero) << n;
    }
#else
    for (uint32_t n = 0; n < BLOCK; n++)
        bits |= (uint64_t)(block[n] != 0) << n;
#endif
    return bits;
}

/* The same in zigzag order: row by row, by what the eight bits of one say. */
static inline uint64_t block_nonzero_zigzag(const int16_t *block) {
    uint64_t natural = block_nonzero(block), bits = 0;
    UNROLL for (uint32_t y = 0; y < 8; y++) {
        bits |= coefficients_zigzag_rows[y][natural >> (8 * y) & 255];
    }
    return bits;
}

struct jpeg_reader;
int jpeg_reader_new(struct jpeg_reader **ret);
void jpeg_reader_free(struct jpeg_reader *reader);
/* Errors as coefficients_encode(). */
int jpeg_reader_read(struct jpeg_reader *reader, const uint8_t *bytes, size_t length, uint64_t max_pixels,
                     struct jpeg_coefficients *ret, struct diag *diag);

/* Where the entropy-coded data of a JPEG of one sequential Huffman scan begins, and how it is coded. */
struct entropy_component {
    uint8_t identifier, h, v, dc_table, ac_table;
};
struct entropy_code {
    uint32_t code[256];
    uint8_t size[256]; /* 0: the symbol has no code */
    bool defined;
};
struct entropy_header {
    uint32_t width, height, components, restart_interval; /* in MCUs; 0: none */
    struct entropy_component component[COMPONENTS_MOST];
    struct entropy_code dc[4], ac[4];
    size_t data; /* offset of the entropy-coded data */
};
/* Pure. 0; -ENOTSUP and the reason where this is another kind of JPEG, or none. */
int entropy_parse(const uint8_t *bytes, size_t length, struct entropy_header *ret, struct diag *diag);

/* Gives the encoder the blocks of one MCU row after the other. */
typedef int entropy_blocks(void *source, uint32_t mcu_row, const int16_t (*ret[COMPONENTS_MOST][2])[BLOCK],
                           struct diag *diag);
/* The entropy-coded data, in memory of the caller's free(). */
int entropy_encode(const struct entropy_header *header, const struct geometry *geometry, entropy_blocks *blocks,
                   void *source, uint8_t **ret_bytes, size_t *ret_length, struct diag *diag);

#endif
