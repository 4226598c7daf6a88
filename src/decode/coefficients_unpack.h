/* SPDX-License-Identifier: MIT */
/*
 * Unpacking one tile of a coefficient record: the sections of "Tile" in docs/jpeg-coefficients.md, in their order. This
 * is the one description of it in code; each twin includes it once, after it has defined
 *
 *     UNPACK_NAME           the function's name
 *     UNPACK_TARGET         its target attribute, or nothing
 *
 * and, where the CPU has instructions for them,
 *
 *     DEPOSIT(bits, mask)   the lowest bits of `bits`, one by one, at the positions set in `mask`
 *     POPCOUNT(mask)        how many those are
 *
 * Sections, not blocks, are the outer loops: within a section the position of each block's field is a running sum of
 * counts that are all known before it begins, so that the loop has no chain longer than one addition a block.
 *
 * Nothing is checked inside: bits of a tile can lead to no address beyond TILE_REACH, whatever they are.
 */

/* The next 57 bits and more from bit `at` on. */
UNPACK_TARGET static inline uint64_t bits_at(const uint8_t *stream, uint64_t at) {
    return load64(stream + (at >> 3)) >> (at & 7);
}

/* The next 64. */
UNPACK_TARGET static inline uint64_t all_bits_at(const uint8_t *stream, uint64_t at) {
    return bits_at(stream, at) | (uint64_t)stream[(at >> 3) + 8] << 1 << (63 - (at & 7));
}

/* A bit for each member, the next of the stream; `at` moves behind them. */
UNPACK_TARGET static inline uint64_t take_members(const uint8_t *stream, uint64_t *at, uint64_t members) {
#if defined(DEPOSIT)
    uint64_t count = POPCOUNT(members);
    uint64_t bits = __builtin_expect(count > 57, 0) ? all_bits_at(stream, *at) : bits_at(stream, *at);
    *at += count;
    return DEPOSIT(bits, members);
#else
    uint64_t bits = all_bits_at(stream, *at), result = 0;
    for (; members; members &= members - 1, bits >>= 1, ++*at)
        result |= members & -members & -(bits & 1);
    return result;
#endif
}

/* A run: width of the differences, the first DC, differences. */
UNPACK_TARGET static inline uint64_t unpack_run(const uint8_t *stream, uint64_t at, uint32_t blocks, int16_t *dc) {
    uint64_t bits = bits_at(stream, at);
    uint32_t width = bits & 15;
    int32_t value = (int32_t)((uint32_t)(bits >> 4) << 20) >> 20;
    dc[0] = (int16_t)value;
    at += 16;
    if (width == 0) {
        for (uint32_t b = 1; b < blocks; b++)
            dc[b] = (int16_t)value;
        return at;
    }
    for (uint32_t b = 1; b < blocks; b++, at += width) {
        value += (int32_t)((uint32_t)bits_at(stream, at) << (32 - width)) >> (32 - width);
        dc[b] = (int16_t)value;
    }
    return at;
}

UNPACK_TARGET static uint32_t UNPACK_NAME(const struct tile_layout *layout, const uint8_t *bytes, struct tile *t) {
    const uint8_t *stream = bytes + layout->blocks;
    const uint32_t blocks = layout->blocks;
    uint32_t with[16] = {0}; /* [k]: blocks whose K is k, later: at least k; a bit each */
    uint32_t invalid = 0, first = 0;
    uint64_t at = 0;

    for (uint32_t r = 0; r < layout->runs; first += layout->run_blocks[r++])
        at = unpack_run(stream, at, layout->run_blocks[r], t->dc + first);

    for (uint32_t b = 0; b < blocks; b++) { /* bitmaps */
        uint8_t header = bytes[b];
        uint32_t length = coefficients_header_length[header], bits = coefficients_header_bits[header];
        uint64_t nonzero = all_bits_at(stream, at) & ((UINT64_C(1) << length) - 1);
        at += length;
        invalid |= bits;
        bits &= 15;
        with[bits] |= UINT32_C(1) << b;
        t->bits[b] = (uint8_t)bits;
        t->nonzero[b] = nonzero;
        memset(t->plane[b], 0, 8 * sizeof(uint64_t));
        t->plane[b][0] = nonzero;
    }
    if (invalid & 0x80)
        return TILE_INVALID;

    for (uint32_t o = 0; o < layout->low_planes; o++) {
        for (uint32_t b = 0; b < blocks; b++)
            t->low[b][o] = take_members(stream, &at, t->nonzero[b] & layout->above[o][b]);
    }

    for (uint32_t b = 0; b < blocks; b++)
        t->sign[b] = take_members(stream, &at, t->nonzero[b]);

    for (uint32_t k = MAGNITUDES_MOST; k > 1; k--)
        with[k - 1] |= with[k];
    for (uint32_t left = with[9]; left; left &= left - 1)
        memset(t->plane[__builtin_ctz(left)] + 8, 0, 8 * sizeof(uint64_t));
    for (uint32_t k = 2; k <= MAGNITUDES_MOST && with[k]; k++) {
        for (uint32_t left = with[k]; left; left &= left - 1) { /* Ck */
            uint64_t *plane = t->plane[__builtin_ctz(left)] + k;
            plane[-1] = take_members(stream, &at, plane[-2]);
        }
        for (uint32_t left = with[k]; left; left &= left - 1) { /* M(k-2) */
            uint64_t *plane = t->plane[__builtin_ctz(left)] + k;
            plane[-2] ^= take_members(stream, &at, plane[-1]);
        }
    }
    return blocks + (uint32_t)((at + 7) >> 3);
}
