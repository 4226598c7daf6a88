/* SPDX-License-Identifier: MIT */
/* For tests of coefficient records: lets a changed record pass its checksums, so that tests reach what is behind. */
#ifndef TESTS_RESEAL_H
#define TESTS_RESEAL_H

#include "base/crc32c.h"
#include "base/util.h"
#include "decode/coefficients_internal.h"

/* Makes all checksums right again, as far as the header still leads to what they cover. */
static inline void reseal(uint8_t *bytes, size_t length) {
    struct geometry g;
    if (length < RECORD_FIXED)
        return;
    uint32_t sampling = bytes[RECORD_SAMPLING];
    uint32_t width = load16(bytes + RECORD_WIDTH), height = load16(bytes + RECORD_HEIGHT);
    store32(bytes + RECORD_LENGTH, (uint32_t)length);
    if (sampling >= SAMPLINGS || !width || !height)
        return;
    geometry_set(&g, sampling, width, height);
    uint64_t table = bytes[RECORD_FLAGS] & RECORD_FLAG_WIDE ? 128 : 64;
    uint64_t index = RECORD_FIXED + g.components * (1 + ORDER_BYTES) + bytes[RECORD_TABLES] * table;
    uint64_t data = index + (uint64_t)g.mcus_down * (ROW_BYTES + 2 * (uint64_t)g.tiles_across);
    uint64_t end = length - MIN(length, (size_t)load32(bytes + RECORD_KEPT));
    if (data > end)
        return;
    for (uint32_t row = 0; row < g.mcus_down; row++) {
        uint8_t *entry = bytes + index + (size_t)row * ROW_BYTES;
        uint64_t from = load32(entry), to = row + 1 < g.mcus_down ? load32(entry + ROW_BYTES) : end - data;
        if (from <= to && to <= end - data)
            store32(entry + 4, crc32c(0, bytes + data + from, to - from));
    }
    uint32_t crc = crc32c(0, bytes, RECORD_CRC);
    store32(bytes + RECORD_CRC, crc32c(crc, bytes + RECORD_FIXED, data - RECORD_FIXED));
}

#endif
