/* SPDX-License-Identifier: MIT */
/*
 * The coefficient record's frame: header, index, checksums, the layout of tiles. Everything that a record can lie about
 * is found here, before a tile is unpacked; docs/jpeg-coefficients.md has the rules. Pure: no state, no memory, any
 * thread.
 */
#include "decode/coefficients_internal.h"

#include <errno.h>

#include "base/crc32c.h"
#include "base/util.h"

const uint8_t coefficients_natural[BLOCK] = {0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,
                                             12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28,
                                             35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51,
                                             58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63};
const uint8_t coefficients_zigzag[BLOCK] = {0,  1,  5,  6,  14, 15, 27, 28, 2,  4,  7,  13, 16, 26, 29, 42,
                                            3,  8,  12, 17, 25, 30, 41, 43, 9,  11, 18, 24, 31, 40, 44, 53,
                                            10, 19, 23, 32, 39, 45, 52, 54, 20, 22, 33, 38, 46, 51, 55, 60,
                                            21, 34, 37, 47, 50, 56, 59, 61, 35, 36, 48, 49, 57, 58, 62, 63};

uint64_t coefficients_zigzag_rows[8][256];

__attribute__((constructor)) static void make_zigzag_rows(void) {
    for (uint32_t i = 1; i < 8 * 256; i++) { /* without the lowest column it was there before */
        uint32_t y = i / 256, columns = i % 256;
        if (columns)
            coefficients_zigzag_rows[y][columns] = coefficients_zigzag_rows[y][columns & (columns - 1)] |
                                                   UINT64_C(1)
                                                       << coefficients_zigzag[8 * y + (uint32_t)__builtin_ctz(columns)];
    }
}

/* Header byte: 0, or 1 + 23 (K - 1) + index into these. */
#define LENGTHS 2, 5, 7, 8, 9, 12, 14, 18, 20, 24, 27, 32, 35, 39, 43, 46, 48, 51, 54, 57, 60, 62, 63
#define BITS_23(k) k, k, k, k, k, k, k, k, k, k, k, k, k, k, k, k, k, k, k, k, k, k, k
const uint8_t coefficients_lengths[HEADER_LENGTHS] = {LENGTHS};
const uint8_t coefficients_header_length[256] = {0,       LENGTHS, LENGTHS, LENGTHS, LENGTHS, LENGTHS,
                                                 LENGTHS, LENGTHS, LENGTHS, LENGTHS, LENGTHS, LENGTHS};
const uint8_t coefficients_header_bits[256] = {0,           BITS_23(1),  BITS_23(2), BITS_23(3), BITS_23(4),
                                               BITS_23(5),  BITS_23(6),  BITS_23(7), BITS_23(8), BITS_23(9),
                                               BITS_23(10), BITS_23(11), 0x80,       0x80};

/* --- geometry ---------------------------------------------------------------------------------------------------- */

void geometry_set(struct geometry *g, enum sampling sampling, uint32_t width, uint32_t height) {
    uint32_t h = sampling == SAMPLING_422 || sampling == SAMPLING_420 ? 2 : 1;
    uint32_t v = sampling == SAMPLING_440 || sampling == SAMPLING_420 ? 2 : 1;
    *g = (struct geometry){.sampling = sampling,
                           .width = width,
                           .height = height,
                           .h = h,
                           .v = v,
                           .components = sampling == SAMPLING_GRAY ? 1 : 3,
                           .mcus_across = (width + 8 * h - 1) / (8 * h),
                           .mcus_down = (height + 8 * v - 1) / (8 * v),
                           .tile_mcus = 8 / h};
    g->tiles_across = (g->mcus_across + g->tile_mcus - 1) / g->tile_mcus;
}

void record_layout(const struct record *record, uint32_t mcus, struct tile_layout *ret) {
    *ret = (struct tile_layout){.mcus = mcus};
    for (uint32_t c = 0; c < record->geometry.components; c++) {
        const struct component *component = &record->component[c];
        uint64_t odd = 0, high = 0; /* bits 0 and 1 of the orders */
        for (uint32_t i = 1; i < BLOCK; i++) {
            odd |= (uint64_t)(component->order[i] & 1) << (i - 1);
            high |= (uint64_t)(component->order[i] >> 1) << (i - 1);
        }
        uint64_t above[3] = {odd | high, high, odd & high};
        for (uint32_t o = 0; o < 3; o++)
            ret->low_planes = above[o] ? MAX(ret->low_planes, o + 1) : ret->low_planes;
        ret->first[c] = (uint8_t)ret->blocks;
        for (uint32_t y = 0; y < component->v; y++) {
            uint32_t run = mcus * component->h;
            ret->run_blocks[ret->runs++] = (uint8_t)run;
            for (uint32_t b = 0; b < run; b++, ret->blocks++)
                for (uint32_t o = 0; o < 3; o++)
                    ret->above[o][ret->blocks] = above[o];
        }
    }
}

void record_scale(const struct component *component, bool plain, struct scale *ret) {
    ret->order_most = 0;
    for (uint32_t n = 0; n < BLOCK; n++) {
        uint32_t z = coefficients_zigzag[n], order = component->order[z];
        ret->quantiser[n] = plain ? 1 : (int16_t)component->quantiser[z];
        ret->order[n] = (uint16_t)order;
        ret->pair[2 * n] = (uint8_t)(1u << order);
        ret->pair[2 * n + 1] = 1;
        ret->order_most = MAX(ret->order_most, order);
    }
}

/* --- parsing ----------------------------------------------------------------------------------------------------- */

static int broken(struct diag *diag, const char *what) {
    return diag_set(diag, -EBADMSG, "coefficient record: %s", what);
}

/* What stands between the fixed part and the tiles; `at` moves along. */
static const uint8_t *take(const uint8_t **at, const uint8_t *end, uint64_t bytes) {
    const uint8_t *piece = *at;
    if (!piece || bytes > (size_t)(end - piece)) {
        *at = NULL;
        return NULL;
    }
    *at = piece + bytes;
    return piece;
}

static int parse_fixed(struct record *r, struct diag *diag) {
    const uint8_t *bytes = r->bytes;
    if (r->length < RECORD_FIXED)
        return diag_set(diag, -EBADMSG, "coefficient record: ends after %zu bytes, within its header", r->length);
    if (bytes[RECORD_VERSION] != COEFFICIENTS_VERSION)
        return diag_set(diag, -ENOTSUP, "coefficient record: version %u; this build reads version %u",
                        bytes[RECORD_VERSION], COEFFICIENTS_VERSION);
    if (load32(bytes + RECORD_LENGTH) != r->length)
        return diag_set(diag, -EBADMSG, "coefficient record: %zu bytes, where its header says %u", r->length,
                        load32(bytes + RECORD_LENGTH));
    uint32_t width = load16(bytes + RECORD_WIDTH), height = load16(bytes + RECORD_HEIGHT);
    r->orientation = bytes[RECORD_FLAGS] >> RECORD_ORIENTATION_SHIFT;
    if (bytes[RECORD_SAMPLING] >= SAMPLINGS || width == 0 || height == 0 || r->orientation < 1 || r->orientation > 8)
        return diag_set(diag, -EBADMSG, "coefficient record: sampling %u, %ux%u pixels, orientation %u",
                        bytes[RECORD_SAMPLING], width, height, r->orientation);
    geometry_set(&r->geometry, bytes[RECORD_SAMPLING], width, height);
    r->kept_length = load32(bytes + RECORD_KEPT);
    r->kept_raw = load32(bytes + RECORD_KEPT_RAW);
    if (r->kept_length > r->length - RECORD_FIXED)
        return broken(diag, "the kept headers are longer than the record");
    r->kept = bytes + r->length - r->kept_length;
    return 0;
}

static int parse_quantisers(struct record *r, const uint8_t **at, const uint8_t *end, struct diag *diag) {
    uint32_t tables = r->bytes[RECORD_TABLES], components = r->geometry.components;
    uint32_t size = r->bytes[RECORD_FLAGS] & RECORD_FLAG_WIDE ? 2 : 1;
    const uint8_t *which = take(at, end, components), *values = take(at, end, (uint64_t)tables * BLOCK * size);
    if (!which || !values)
        return broken(diag, "ends within its quantisers");
    for (uint32_t c = 0; c < components; c++) {
        if (which[c] >= tables)
            return broken(diag, "a component has no quantisers");
        for (uint32_t i = 0; i < BLOCK; i++) {
            const uint8_t *value = values + ((size_t)which[c] * BLOCK + i) * size;
            r->component[c].quantiser[i] = (uint16_t)(size == 2 ? load16(value) : *value);
        }
    }
    return 0;
}

static void parse_orders(struct component *component, const uint8_t *orders) {
    component->order[0] = 0;
    for (uint32_t i = 1; i < BLOCK; i++)
        component->order[i] = orders[(i - 1) / 4] >> (2 * ((i - 1) % 4)) & 3;
}

int record_parse(struct record *ret, const uint8_t *bytes, size_t length, struct diag *diag) {
    struct record *r = ret;
    *r = (struct record){.bytes = bytes, .length = length};
    int error = parse_fixed(r, diag);
    if (error < 0)
        return error;
    const struct geometry *g = &r->geometry;
    const uint8_t *at = bytes + RECORD_FIXED;
    if ((error = parse_quantisers(r, &at, r->kept, diag)) < 0)
        return error;
    for (uint32_t c = 0; c < g->components; c++) {
        struct component *component = &r->component[c];
        component->h = c ? 1 : g->h;
        component->v = c ? 1 : g->v;
        component->width = (g->width * component->h + g->h - 1) / g->h;
        component->height = (g->height * component->v + g->v - 1) / g->v;
        const uint8_t *orders = take(&at, r->kept, ORDER_BYTES);
        if (orders)
            parse_orders(component, orders);
    }
    r->rows = take(&at, r->kept, (uint64_t)g->mcus_down * ROW_BYTES);
    r->lengths = take(&at, r->kept, (uint64_t)g->mcus_down * g->tiles_across * 2);
    if (!at)
        return broken(diag, "ends within its index");
    r->data = at;
    r->data_length = (size_t)(r->kept - at);
    uint32_t crc = crc32c(0, bytes, RECORD_CRC);
    crc = crc32c(crc, bytes + RECORD_FIXED, (size_t)(at - bytes) - RECORD_FIXED);
    if (crc != load32(bytes + RECORD_CRC))
        return broken(diag, "checksum of the header is wrong");
    return 0;
}

int record_row(const struct record *record, uint32_t row, struct row_bytes *ret, struct diag *diag) {
    const struct geometry *g = &record->geometry;
    const uint8_t *entry = record->rows + (size_t)row * ROW_BYTES;
    const uint8_t *lengths = record->lengths + (size_t)row * g->tiles_across * 2;
    uint64_t begin = load32(entry), sum = 0;
    uint64_t end = row + 1 < g->mcus_down ? load32(entry + ROW_BYTES) : record->data_length;
    for (uint32_t t = 0; t < g->tiles_across; t++)
        sum += load16(lengths + 2 * t);
    if (begin > end || end > record->data_length || end - begin != sum)
        return diag_set(diag, -EBADMSG, "coefficient record: MCU row %u of %u: its tiles do not fill [%llu, %llu)", row,
                        g->mcus_down, (unsigned long long)begin, (unsigned long long)end);
    if (crc32c(0, record->data + begin, sum) != load32(entry + 4))
        return diag_set(diag, -EBADMSG, "coefficient record: MCU row %u of %u: checksum is wrong", row, g->mcus_down);
    *ret = (struct row_bytes){record->data + begin, record->data + end, lengths};
    return 0;
}
