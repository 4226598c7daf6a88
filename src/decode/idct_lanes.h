/* SPDX-License-Identifier: MIT */
/*
 * The inverse DCT over 128-bit lanes, one block a lane: the same integers as idct.c. Each SIMD twin includes this once,
 * after it has defined
 *
 *     LANES_TARGET                  the functions' attribute
 *     lanes                         the vector type
 *     UNPACK_LOW16, UNPACK_HIGH16, UNPACK_LOW32, UNPACK_HIGH32, UNPACK_LOW64, UNPACK_HIGH64, UNPACK_LOW8, UNPACK_HIGH8
 *     SET32, ADD32, SUB32, SHIFT32, PACK32 (saturating to 16 bits, signed), PACK16 (to 8, unsigned)
 *     MULTIPLY(pairs, factors)      sum of the products of two neighbouring 16-bit values, 32 bits
 *     ACCUMULATE(sum, pairs, factors)
 *
 * A pass takes rows (or columns) as vectors; both passes work on vectors of eight 16-bit values a lane.
 */

#define PAIR(a, b) SET32((int32_t)((uint32_t)(uint16_t)(int16_t)(a) | (uint32_t)(uint16_t)(int16_t)(b) << 16))

/* Results of one half (low or high) of the lanes, in 32 bits. Inputs are interleaved: 0 with 4, 2 with 6, 1 with 3, 5
 * with 7. `upper`: inputs 4 to 7 are not all zero. */
LANES_TARGET static inline __attribute__((always_inline)) void idct_half(lanes x04, lanes x26, lanes x13, lanes x57,
                                                                         bool upper, lanes round, int shift,
                                                                         lanes out[8]) {
    lanes sum = ACCUMULATE(round, x04, PAIR(8192, 8192));
    lanes difference = upper ? ACCUMULATE(round, x04, PAIR(8192, -8192)) : sum;
    lanes wide = MULTIPLY(x26, PAIR(10703, 4433)), narrow = MULTIPLY(x26, PAIR(4433, -10704));
    lanes odd0 = MULTIPLY(x13, PAIR(11363, 9633)), odd1 = MULTIPLY(x13, PAIR(9633, -2259));
    lanes odd2 = MULTIPLY(x13, PAIR(6437, -11362)), odd3 = MULTIPLY(x13, PAIR(2260, -6436));
    if (upper) {
        odd0 = ACCUMULATE(odd0, x57, PAIR(6437, 2260));
        odd1 = ACCUMULATE(odd1, x57, PAIR(-11362, -6436));
        odd2 = ACCUMULATE(odd2, x57, PAIR(2261, 9633));
        odd3 = ACCUMULATE(odd3, x57, PAIR(9633, -11363));
    }
    lanes even0 = ADD32(sum, wide), even3 = SUB32(sum, wide);
    lanes even1 = ADD32(difference, narrow), even2 = SUB32(difference, narrow);
    out[0] = SHIFT32(ADD32(even0, odd0), shift);
    out[7] = SHIFT32(SUB32(even0, odd0), shift);
    out[1] = SHIFT32(ADD32(even1, odd1), shift);
    out[6] = SHIFT32(SUB32(even1, odd1), shift);
    out[2] = SHIFT32(ADD32(even2, odd2), shift);
    out[5] = SHIFT32(SUB32(even2, odd2), shift);
    out[3] = SHIFT32(ADD32(even3, odd3), shift);
    out[4] = SHIFT32(SUB32(even3, odd3), shift);
}

LANES_TARGET static inline __attribute__((always_inline)) void idct_pass(lanes v[8], bool upper, lanes round,
                                                                         int shift) {
    lanes low[8], high[8];
    idct_half(UNPACK_LOW16(v[0], v[4]), UNPACK_LOW16(v[2], v[6]), UNPACK_LOW16(v[1], v[3]), UNPACK_LOW16(v[5], v[7]),
              upper, round, shift, low);
    idct_half(UNPACK_HIGH16(v[0], v[4]), UNPACK_HIGH16(v[2], v[6]), UNPACK_HIGH16(v[1], v[3]),
              UNPACK_HIGH16(v[5], v[7]), upper, round, shift, high);
    UNROLL for (int i = 0; i < 8; i++) v[i] = PACK32(low[i], high[i]);
}

/* 8 x 8 16-bit values in each lane. */
LANES_TARGET static inline __attribute__((always_inline)) void transpose16(lanes v[8]) {
    lanes a[8], b[8];
    UNROLL for (int i = 0; i < 4; i++) {
        a[2 * i] = UNPACK_LOW16(v[2 * i], v[2 * i + 1]);
        a[2 * i + 1] = UNPACK_HIGH16(v[2 * i], v[2 * i + 1]);
    }
    UNROLL for (int i = 0; i < 8; i += 4) {
        b[i] = UNPACK_LOW32(a[i], a[i + 2]);
        b[i + 1] = UNPACK_HIGH32(a[i], a[i + 2]);
        b[i + 2] = UNPACK_LOW32(a[i + 1], a[i + 3]);
        b[i + 3] = UNPACK_HIGH32(a[i + 1], a[i + 3]);
    }
    UNROLL for (int i = 0; i < 4; i++) {
        v[2 * i] = UNPACK_LOW64(b[i], b[i + 4]);
        v[2 * i + 1] = UNPACK_HIGH64(b[i], b[i + 4]);
    }
}

/* Columns of 16-bit samples to rows of bytes: rows[i] holds rows 2i and 2i + 1 of each lane's block. */
LANES_TARGET static inline __attribute__((always_inline)) void columns_to_rows(const lanes v[8], lanes rows[4]) {
    lanes c04 = PACK16(v[0], v[4]), c15 = PACK16(v[1], v[5]), c26 = PACK16(v[2], v[6]), c37 = PACK16(v[3], v[7]);
    lanes c02 = UNPACK_LOW8(c04, c26), c46 = UNPACK_HIGH8(c04, c26);
    lanes c13 = UNPACK_LOW8(c15, c37), c57 = UNPACK_HIGH8(c15, c37);
    lanes left03 = UNPACK_LOW8(c02, c13), left47 = UNPACK_HIGH8(c02, c13); /* columns 0-3 of rows 0-3, 4-7 */
    lanes right03 = UNPACK_LOW8(c46, c57), right47 = UNPACK_HIGH8(c46, c57);
    rows[0] = UNPACK_LOW32(left03, right03);
    rows[1] = UNPACK_HIGH32(left03, right03);
    rows[2] = UNPACK_LOW32(left47, right47);
    rows[3] = UNPACK_HIGH32(left47, right47);
}

/* Rows of coefficients to rows of samples. `nonzero` is the union of the blocks' bitmaps. */
LANES_TARGET static inline __attribute__((always_inline)) void idct_lanes(lanes v[8], uint64_t nonzero, lanes rows[4]) {
    lanes round1 = SET32(1 << 10), round2 = SET32(257 << 17);
    if (nonzero & ROWS_4_TO_7)
        idct_pass(v, true, round1, 11);
    else
        idct_pass(v, false, round1, 11);
    transpose16(v);
    if (nonzero & COLUMNS_4_TO_7)
        idct_pass(v, true, round2, 18);
    else
        idct_pass(v, false, round2, 18);
    columns_to_rows(v, rows);
}
