/* SPDX-License-Identifier: MIT */
/*
 * A whole coefficient record at once: verified, or turned back into its JPEG. One MCU row of coefficients is in memory
 * at a time. Takes any bytes; any thread.
 */
#include "decode/coefficients_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <zlib.h>

#include "base/crc32c.h"
#include "base/util.h"
#include "decode/jpeg_coefficients.h"

/* Walks the record's MCU rows. */
struct walk {
    struct tile tile;
    _Alignas(64) int16_t run[RUN_MOST * BLOCK];
    struct scale scale[COMPONENTS_MOST]; /* quantisers of 1 */
    struct tile_layout layout[2];
    uint8_t padded[TILE_REACH];
    const struct coefficients_twin *twin;
    struct record record;
    int16_t (*row[COMPONENTS_MOST][2])[BLOCK]; /* block rows of the MCU row */
    int16_t (*memory)[BLOCK];
};

static void walk_free(struct walk *w) {
    if (w)
        free(w->memory);
    free(w);
}

static int walk_new(const uint8_t *bytes, size_t length, struct walk **ret, struct diag *diag) {
    struct walk *w = aligned_alloc(64, align_up(sizeof *w, 64));
    if (!w)
        return diag_set(diag, -ENOMEM, "no memory to read a coefficient record");
    memset(w, 0, sizeof *w);
    int error = record_parse(&w->record, bytes, length, diag);
    if (error < 0) {
        walk_free(w);
        return error;
    }
    const struct geometry *g = &w->record.geometry;
    size_t across = g->mcus_across, blocks = across * (g->h * g->v + g->components - 1);
    w->memory = malloc(blocks * sizeof *w->memory);
    if (!w->memory) {
        walk_free(w);
        return diag_set(diag, -ENOMEM, "no memory to read a coefficient record");
    }
    int16_t(*next)[BLOCK] = w->memory;
    for (uint32_t c = 0; c < g->components; c++) {
        const struct component *component = &w->record.component[c];
        record_scale(component, true, &w->scale[c]);
        for (uint32_t y = 0; y < component->v; y++, next += across * component->h)
            w->row[c][y] = next;
    }
    w->twin = coefficients_choose_twin();
    record_layout(&w->record, g->tile_mcus, &w->layout[0]);
    record_layout(&w->record, tile_mcus_of(g, g->tiles_across - 1), &w->layout[1]);
    *ret = w;
    return 0;
}

/* The unpacked tile to w->row. */
static void spread_tile(struct walk *w, const struct tile_layout *layout, uint32_t tile) {
    const struct geometry *g = &w->record.geometry;
    for (uint32_t c = 0; c < g->components; c++) {
        const struct component *component = &w->record.component[c];
        uint32_t run = layout->mcus * component->h;
        for (uint32_t y = 0; y < component->v; y++) {
            w->twin->expand(&w->tile, &w->scale[c], layout->first[c] + y * run, run, w->run);
            memcpy(w->row[c][y] + tile * g->tile_mcus * component->h, w->run, run * sizeof *w->memory);
        }
    }
}

static int walk_row(struct walk *w, uint32_t row, struct diag *diag) {
    const struct geometry *g = &w->record.geometry;
    struct row_bytes bytes;
    int error = record_row(&w->record, row, &bytes, diag);
    for (uint32_t t = 0; error == 0 && t < g->tiles_across; t++) {
        const struct tile_layout *layout = &w->layout[t + 1 == g->tiles_across];
        uint32_t length = 0;
        const uint8_t *tile = row_next(&bytes, &length);
        if (tile && (size_t)(w->record.bytes + w->record.length - tile) < TILE_REACH && length <= TILE_REACH)
            tile = memcpy(w->padded, tile, length);
        if (!tile || length > TILE_REACH || w->twin->unpack(layout, tile, &w->tile) != length)
            return diag_set(diag, -EBADMSG,
                            "coefficient record: MCU row %u, tile %u of %u: its fields do not fill its "
                            "bytes",
                            row, t, g->tiles_across);
        spread_tile(w, layout, t);
    }
    return error;
}

static int check_kept(const struct record *r, struct diag *diag) {
    if (crc32c(0, r->kept, r->kept_length) != load32(r->bytes + RECORD_KEPT_CRC))
        return diag_set(diag, -EBADMSG, "coefficient record: checksum of the kept headers is wrong");
    return 0;
}

int coefficients_verify(const uint8_t *record, size_t length, struct diag *diag) {
    struct walk *w;
    int error = walk_new(record, length, &w, diag);
    if (error < 0)
        return error;
    error = check_kept(&w->record, diag);
    for (uint32_t row = 0; error == 0 && row < w->record.geometry.mcus_down; row++)
        error = walk_row(w, row, diag);
    walk_free(w);
    return error;
}

/* --- restoring --------------------------------------------------------------------------------------------------- */

#define RAW_RATIO 1040u /* more than deflate can shrink anything: bounds what a record can make us allocate */

static int inflate_kept(const struct record *r, uint8_t **ret, struct diag *diag) {
    uLongf length = r->kept_raw;
    if (r->kept_raw / RAW_RATIO > r->kept_length)
        return diag_set(diag, -EBADMSG, "coefficient record: %u bytes of kept headers from %u", r->kept_raw,
                        r->kept_length);
    uint8_t *raw = malloc(MAX(r->kept_raw, 1u));
    if (!raw)
        return diag_set(diag, -ENOMEM, "no memory to restore a JPEG");
    if (uncompress(raw, &length, r->kept, r->kept_length) != Z_OK || length != r->kept_raw) {
        free(raw);
        return diag_set(diag, -EBADMSG, "coefficient record: the kept headers do not inflate");
    }
    *ret = raw;
    return 0;
}

static int walk_blocks(void *source, uint32_t row, const int16_t (*ret[COMPONENTS_MOST][2])[BLOCK], struct diag *diag) {
    struct walk *w = source;
    for (uint32_t c = 0; c < w->record.geometry.components; c++) {
        for (uint32_t y = 0; y < 2; y++)
            ret[c][y] = (const int16_t(*)[BLOCK])w->row[c][y];
    }
    return walk_row(w, row, diag);
}

/* What comes before the entropy-coded data, that data, what comes behind. */
static int join(const uint8_t *raw, size_t raw_length, size_t before, const uint8_t *coded, size_t coded_length,
                uint8_t **ret_bytes, size_t *ret_length, struct diag *diag) {
    uint8_t *bytes = malloc(raw_length + coded_length);
    if (!bytes)
        return diag_set(diag, -ENOMEM, "no memory to restore a JPEG");
    memcpy(bytes, raw, before);
    memcpy(bytes + before, coded, coded_length);
    memcpy(bytes + before + coded_length, raw + before, raw_length - before);
    *ret_bytes = bytes;
    *ret_length = raw_length + coded_length;
    return 0;
}

static int restore(struct walk *w, uint8_t **ret_bytes, size_t *ret_length, struct diag *diag) {
    const struct record *r = &w->record;
    struct entropy_header header;
    cleanup_free uint8_t *raw = NULL;
    cleanup_free uint8_t *coded = NULL;
    size_t coded_length = 0;
    if (!(r->bytes[RECORD_FLAGS] & RECORD_FLAG_KEPT))
        return diag_set(diag, -ENODATA,
                        "coefficient record: made without the file's headers, which cannot be restored");
    int error = check_kept(r, diag);
    error = error < 0 ? error : inflate_kept(r, &raw, diag);
    error = error < 0 ? error : entropy_parse(raw, r->kept_raw, &header, diag);
    error = error < 0 ? error : entropy_encode(&header, &r->geometry, walk_blocks, w, &coded, &coded_length, diag);
    if (error < 0)
        return error;
    return join(raw, r->kept_raw, header.data, coded, coded_length, ret_bytes, ret_length, diag);
}

int coefficients_restore(const uint8_t *record, size_t length, uint8_t **ret_bytes, size_t *ret_length,
                         struct diag *diag) {
    struct walk *w;
    int error = walk_new(record, length, &w, diag);
    if (error < 0)
        return error;
    error = restore(w, ret_bytes, ret_length, diag);
    walk_free(w);
    return error;
}
