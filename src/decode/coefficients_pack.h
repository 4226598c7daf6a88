/* SPDX-License-Identifier: MIT */
/*
 * Packing the bit stream of one tile of a coefficient record: the sections of "Tile" in docs/jpeg-coefficients.md, in
 * their order; coefficients_unpack.h in the other direction. Part of coefficients_encode.c, which includes it once for each
 * kind of CPU, after it has defined
 *
 *     PACK_NAME             the function's name
 *     PACK_TARGET           its target attribute, or nothing
 *
 * and, where the CPU has instructions for them,
 *
 *     EXTRACT(value, mask)  the bits of `value` at the positions set in `mask`, one after the other
 *     POPCOUNT(mask)        how many those are
 *
 * All of it is inlined, so that the writer stays in registers.
 */

#define PACK_PASTE(a, b) a##_##b
#define PACK_PASTE_NAMES(a, b) PACK_PASTE(a, b)
#define PACK(name) PACK_PASTE_NAMES(PACK_NAME, name)

/* The bits of `value` at the positions set in `mask`, one after the other. */
PACK_TARGET static inline __attribute__((always_inline)) void PACK(members)(struct writer *w, uint64_t value,
                                                                            uint64_t mask) {
#if defined(EXTRACT)
    put(w, EXTRACT(value, mask), POPCOUNT(mask));
#else
    uint64_t bits = 0;
    uint32_t count = 0;
    for (; mask; mask &= mask - 1, count++)
        bits |= (value >> __builtin_ctzll(mask) & 1) << count;
    put(w, bits, count);
#endif
}

/* Levels: Ck and M(k-2) of every block that reaches k. */
PACK_TARGET static inline __attribute__((always_inline)) void PACK(levels)(struct writer *w,
                                                                           const struct fields *fields,
                                                                           uint32_t blocks) {
    uint64_t at_least[BLOCKS_MOST][MAGNITUDES_MOST + 2]; /* members whose e has k bits or more */
    uint32_t most = 0;
    for (uint32_t b = 0; b < blocks; b++) {
        uint64_t members = 0;
        for (uint32_t k = fields[b].bits + 1; k-- > 1;)
            at_least[b][k] = members |= fields[b].plane[k - 1];
        most = MAX(most, fields[b].bits);
    }
    for (uint32_t k = 2; k <= most; k++) {
        for (uint32_t b = 0; b < blocks; b++) {
            if (fields[b].bits >= k)
                PACK(members)(w, at_least[b][k], at_least[b][k - 1]);
        }
        for (uint32_t b = 0; b < blocks; b++) {
            if (fields[b].bits >= k)
                PACK(members)(w, ~fields[b].plane[k - 2], at_least[b][k]);
        }
    }
}

/* Returns the end of what was written. */
PACK_TARGET static uint8_t *PACK_NAME(const struct tile_layout *layout, const struct fields *fields, uint8_t *stream) {
    struct writer w = {stream, 0, 0};
    for (uint32_t r = 0, first = 0; r < layout->runs; first += layout->run_blocks[r++])
        put_run(&w, fields + first, layout->run_blocks[r]);
    for (uint32_t b = 0; b < layout->blocks; b++)
        put(&w, fields[b].nonzero, fields[b].length);
    for (uint32_t o = 0; o < layout->low_planes; o++) {
        for (uint32_t b = 0; b < layout->blocks; b++)
            PACK(members)(&w, fields[b].low[o], fields[b].nonzero & layout->above[o][b]);
    }
    for (uint32_t b = 0; b < layout->blocks; b++)
        PACK(members)(&w, fields[b].sign, fields[b].nonzero);
    PACK(levels)(&w, fields, layout->blocks);
    return put_end(&w);
}

#undef PACK
#undef PACK_PASTE
#undef PACK_PASTE_NAMES
#undef PACK_NAME
#undef PACK_TARGET
#undef EXTRACT
#undef POPCOUNT
