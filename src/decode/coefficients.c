/* SPDX-License-Identifier: MIT */
/*
 * Coefficient records to pixels of a region: the codec behind decode.h, and the scalar twin of its tile loops, which is
 * written to be read beside docs/jpeg-coefficients.md. Only the tiles of the region and its margin are touched. One
 * thread per decoder; the choice of the twin is made when a decoder is made.
 *
 * An MCU row is decoded into a strip of samples a component; output rows leave as soon as the chroma rows that they lie
 * between are there, so that with chroma subsampled down one row of the strip stays for the next MCU row:
 *
 *     strip   row 0            the last row of the MCU row before (only where v = 2)
 *             rows 1 ... 8v    this MCU row
 *             columns          those blocks that the region and its margin need, between ROW_SLACK columns of slack
 *
 * Rows consumed, in the words of decode.h, are those of the MCU rows that the region and its margin lie in: damage
 * elsewhere is not seen. A tile that is not what the encoder wrote is told by the MCU row's checksum, whatever of the
 * row was asked for, before any of it is unpacked.
 */
#include "decode/coefficients_internal.h"

#include <errno.h>
#include <stdlib.h>

#include "base/util.h"
#include "decode/codec.h"

/* --- the scalar twin --------------------------------------------------------------------------------------------- */

#define UNPACK_NAME unpack_scalar
#define UNPACK_TARGET
#include "decode/coefficients_unpack.h"

/* The number whose bits are bit i of planes [0, count), where planes up to the fourth may be read in any case. */
static inline uint32_t gather_bits(const uint64_t *plane, uint32_t count, uint32_t i) {
    uint32_t value = (uint32_t)((plane[0] >> i & 1) | (plane[1] >> i & 1) << 1 | (plane[2] >> i & 1) << 2 |
                                (plane[3] >> i & 1) << 3);
    for (uint32_t p = 4; p < count; p++)
        value |= (uint32_t)(plane[p] >> i & 1) << p;
    return value;
}

static void expand_scalar(const struct tile *tile, const struct scale *scale, uint32_t first, uint32_t count,
                          int16_t *out) {
    for (uint32_t b = first; b < first + count; b++, out += BLOCK) {
        memset(out, 0, BLOCK * sizeof *out);
        out[0] = (int16_t)((uint32_t)tile->dc[b] * (uint32_t)scale->quantiser[0]);
        for (uint64_t left = tile->nonzero[b]; left; left &= left - 1) {
            uint32_t i = (uint32_t)__builtin_ctzll(left), n = coefficients_natural[i + 1];
            uint32_t order = scale->order[n], e = gather_bits(tile->plane[b], tile->bits[b], i);
            uint32_t low = gather_bits(tile->low[b], 0, i) & ((1u << order) - 1);
            uint32_t negative = -(uint32_t)(tile->sign[b] >> i & 1); /* all ones or 0 */
            uint32_t value = (((e << order) - low) ^ negative) - negative;
            out[n] = (int16_t)(value * (uint32_t)scale->quantiser[n]);
        }
    }
}

const struct coefficients_twin coefficients_scalar = {
    .name = "scalar",
    .unpack = unpack_scalar,
    .expand = expand_scalar,
    .idct = idct_scalar,
    .across = across_scalar,
    .both = both_scalar,
    .down = down_scalar,
    .rgb = rgb_scalar,
    .gray = gray_scalar,
};

/* --- choosing a twin --------------------------------------------------------------------------------------------- */

size_t coefficients_twins(const struct coefficients_twin *ret[COEFFICIENTS_TWINS]) {
    size_t n = 0;
    ret[n++] = &coefficients_scalar;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("bmi2") || !__builtin_cpu_supports("popcnt"))
        return n;
    ret[n++] = &coefficients_avx2;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vbmi") &&
        __builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("gfni"))
        ret[n++] = &coefficients_avx512;
#endif
    return n;
}

const struct coefficients_twin *coefficients_choose_twin(void) {
    const struct coefficients_twin *list[COEFFICIENTS_TWINS];
    size_t n = coefficients_twins(list);
    const char *limit = getenv("LOADERD_SIMD");
    static const char *const names[COEFFICIENTS_TWINS] = {"scalar", "avx2", "avx512"};
    for (size_t level = 0; limit && level < ARRAY_SIZE(names); level++) {
        if (strcmp(limit, names[level]) == 0)
            n = MIN(n, level + 1);
    }
    return list[n - 1];
}

const char *coefficients_simd(void) {
    return coefficients_choose_twin()->name;
}

/* --- one region -------------------------------------------------------------------------------------------------- */

/* Inclusive ranges of samples that are needed of a component, and the strip that they are decoded into. */
struct strip {
    uint32_t x0, x1, y0, y1;
    uint32_t block0, block1; /* x0 / 8, x1 / 8 */
    uint32_t carry;          /* rows kept of the MCU row before */
    uint32_t base;           /* sample row of the first row behind the carried ones */
    size_t stride;
    uint8_t *rows; /* row 0, column 8 * block0 */
    bool needed;
};

struct coefficients {
    struct tile tile;
    _Alignas(64) int16_t blocks[RUN_MOST * BLOCK];
    struct scale scale[COMPONENTS_MOST];
    struct tile_layout layout[2]; /* of a whole tile, of the last one */
    uint8_t padded[TILE_REACH];   /* a tile too near the record's end to be unpacked in place */
    const struct coefficients_twin *twin;
    const struct decode_limits *limits;
    struct arena *arena;
    struct record record;

    /* the read in hand */
    uint32_t channels;
    struct box region;
    struct strip strip[COMPONENTS_MOST];
    uint8_t *up[2]; /* an upsampled row of Cb, Cr */
    uint16_t *sums;
};

static const uint8_t *strip_row(const struct strip *s, uint32_t y) {
    return s->rows + (size_t)(y + s->carry - s->base) * s->stride;
}

/* Needed samples of chroma: with a triangle filter the neighbours count. The range of output samples is inclusive. */
static void needed_range(uint32_t first, uint32_t last, bool halved, uint32_t size, uint32_t *ret0, uint32_t *ret1) {
    *ret0 = first;
    *ret1 = last;
    if (halved) {
        *ret0 = first ? (first - 1) >> 1 : 0;
        *ret1 = MIN((last + 1) >> 1, size - 1);
    }
}

/* 0, or the bytes that the arena could not give. */
static uint64_t make_strip(struct coefficients *c, uint32_t number) {
    const struct component *component = &c->record.component[number];
    const struct geometry *g = &c->record.geometry;
    struct strip *s = &c->strip[number];
    const struct box *region = &c->region;
    *s = (struct strip){.needed = number == 0 || c->channels == 3};
    if (!s->needed)
        return 0;
    needed_range(region->x, region->x + region->width - 1, component->h < g->h, component->width, &s->x0, &s->x1);
    needed_range(region->y, region->y + region->height - 1, component->v < g->v, component->height, &s->y0, &s->y1);
    s->block0 = s->x0 / 8;
    s->block1 = s->x1 / 8;
    s->carry = g->v == 2 && c->channels == 3 && g->components == 3;
    s->stride = ROW_SLACK + 8 * (s->block1 - s->block0 + 1) + 8 * RUN_MOST + ROW_SLACK;
    uint64_t bytes = s->stride * (s->carry + 8 * component->v);
    uint8_t *memory = arena_take(c->arena, bytes);
    if (!memory)
        return bytes;
    s->rows = memory + ROW_SLACK;
    return 0;
}

static uint64_t make_strips(struct coefficients *c) {
    const struct geometry *g = &c->record.geometry;
    uint64_t missing = 0;
    arena_rewind(c->arena);
    for (uint32_t i = 0; i < g->components && !missing; i++)
        missing = make_strip(c, i);
    if (missing || g->components == 1 || c->channels == 1)
        return missing;
    uint64_t row = 2 * (uint64_t)(c->strip[1].x1 - c->strip[1].x0 + 1) + 2 * ROW_SLACK;
    uint8_t *memory = arena_take(c->arena, 4 * row);
    if (!memory)
        return 4 * row;
    c->up[0] = memory;
    c->up[1] = memory + row;
    c->sums = (uint16_t *)(void *)(memory + 2 * row);
    return 0;
}

/* --- tiles to strips --------------------------------------------------------------------------------------------- */

static void decode_run(struct coefficients *c, uint32_t number, uint32_t first, uint32_t from, uint32_t count,
                       uint32_t row) {
    const struct strip *s = &c->strip[number];
    uint8_t *out = s->rows + (size_t)(s->carry + 8 * row) * s->stride + 8 * (size_t)(from - s->block0);
    c->twin->expand(&c->tile, &c->scale[number], first, count, c->blocks);
    c->twin->idct(c->blocks, c->tile.nonzero + first, count, out, s->stride);
}

/* The unpacked tile's blocks to the strips, as far as they are needed. */
static void decode_blocks(struct coefficients *c, const struct tile_layout *layout, uint32_t tile) {
    const struct geometry *g = &c->record.geometry;
    for (uint32_t i = 0; i < g->components; i++) {
        const struct component *component = &c->record.component[i];
        const struct strip *s = &c->strip[i];
        if (!s->needed)
            return;
        uint32_t run = layout->mcus * component->h, left = tile * g->tile_mcus * component->h;
        uint32_t from = MAX(left, s->block0), end = MIN(left + run, s->block1 + 1);
        for (uint32_t y = 0; y < component->v && from < end; y++) {
            uint32_t top = s->base + 8 * y;
            if (top <= s->y1 && top + 7 >= s->y0)
                decode_run(c, i, layout->first[i] + y * run + from - left, from, end - from, y);
        }
    }
}

static int tile_is_wrong(const struct coefficients *c, uint32_t row, uint32_t tile, struct diag *diag) {
    return diag_set(diag, -EBADMSG, "coefficient record: MCU row %u, tile %u of %u: its fields do not fill its bytes",
                    row, tile, c->record.geometry.tiles_across);
}

static int decode_tile(struct coefficients *c, uint32_t row, uint32_t tile, const uint8_t *bytes, uint32_t length,
                       struct diag *diag) {
    const struct geometry *g = &c->record.geometry;
    const struct tile_layout *layout = &c->layout[tile + 1 == g->tiles_across];
    size_t left = (size_t)(c->record.bytes + c->record.length - bytes);
    if (left < TILE_REACH) {
        if (length > TILE_REACH)
            return tile_is_wrong(c, row, tile, diag);
        bytes = memcpy(c->padded, bytes, length);
    }
    if (c->twin->unpack(layout, bytes, &c->tile) != length)
        return tile_is_wrong(c, row, tile, diag);
    decode_blocks(c, layout, tile);
    return 0;
}

/* At the picture's left and right edge the filter sees the edge sample again. */
static void repeat_edges(const struct component *component, struct strip *s) {
    uint32_t origin = 8 * s->block0;
    for (uint32_t y = 0; y < 8; y++) {
        uint8_t *row = s->rows + (size_t)(s->carry + y) * s->stride;
        if (origin == 0)
            row[-1] = row[0];
        if (s->x1 + 1 == component->width)
            row[component->width - origin] = row[component->width - 1 - origin];
    }
}

static int decode_mcu_row(struct coefficients *c, uint32_t row, struct diag *diag) {
    const struct geometry *g = &c->record.geometry;
    const struct strip *widest = &c->strip[c->channels == 3 && g->components == 3];
    uint32_t halved = widest != c->strip ? g->h : 1;
    uint32_t first = widest->block0 * halved / RUN_MOST, last = widest->block1 * halved / RUN_MOST;
    struct row_bytes bytes;
    int error = record_row(&c->record, row, &bytes, diag);
    if (error < 0)
        return error;
    for (uint32_t i = 0; i < g->components; i++) {
        struct strip *s = &c->strip[i];
        uint32_t rows = 8 * c->record.component[i].v;
        if (s->carry)
            memcpy(s->rows - ROW_SLACK, s->rows - ROW_SLACK + rows * s->stride, s->stride);
        s->base = row * rows;
    }
    for (uint32_t t = 0; t <= last; t++) {
        uint32_t length;
        const uint8_t *tile = row_next(&bytes, &length);
        if (!tile)
            return tile_is_wrong(c, row, t, diag);
        if (t >= first && (error = decode_tile(c, row, t, tile, length, diag)) < 0)
            return error;
    }
    for (uint32_t i = 1; i < g->components && g->h == 2 && c->channels == 3; i++)
        repeat_edges(&c->record.component[i], &c->strip[i]);
    return 0;
}

/* --- strips to pixels -------------------------------------------------------------------------------------------- */

/* The library does not filter across where chroma has two columns or less. */
static void across_plain(const uint8_t *in, uint32_t count, uint8_t *out) {
    for (uint32_t i = 0; i < count; i++)
        out[2 * i] = out[2 * i + 1] = in[i];
}

/* Chroma of output row y, at full width; *ret_x0 is the column that it begins with. */
static const uint8_t *chroma_row(struct coefficients *c, uint32_t number, uint32_t y, uint32_t *ret_x0) {
    const struct geometry *g = &c->record.geometry;
    const struct component *component = &c->record.component[number];
    const struct strip *s = &c->strip[number];
    uint32_t near = g->v == 2 ? y >> 1 : y, count = s->x1 - s->x0 + 1, skip = s->x0 - 8 * s->block0;
    uint32_t far = y & 1 ? MIN(near + 1, component->height - 1) : near - (near > 0);
    const uint8_t *row = strip_row(s, near) + skip;
    uint8_t *out = c->up[number - 1];
    *ret_x0 = s->x0 * g->h;
    if (g->h == 2 && component->width <= 2)
        across_plain(row, count, out);
    else if (g->h == 2 && g->v == 2)
        c->twin->both(row, strip_row(s, far) + skip, count, c->sums, out);
    else if (g->h == 2)
        c->twin->across(row, count, out);
    else if (g->v == 2)
        c->twin->down(row, strip_row(s, far) + skip, count, y & 1 ? 2 : 1, out);
    else
        return row;
    return out;
}

static void write_row(struct coefficients *c, uint32_t y, uint8_t *out) {
    const struct box *region = &c->region;
    const uint8_t *luma = strip_row(&c->strip[0], y) + region->x - 8 * c->strip[0].block0;
    if (c->channels == 1) {
        memcpy(out, luma, region->width);
    } else if (c->record.geometry.components == 1) {
        c->twin->gray(luma, region->width, out);
    } else {
        uint32_t x0;
        const uint8_t *cb = chroma_row(c, 1, y, &x0), *cr = chroma_row(c, 2, y, &x0);
        c->twin->rgb(luma, cb + region->x - x0, cr + region->x - x0, region->width, out);
    }
}

/* Where rows go: all to their places in a picture, or those of an MCU row to a piece that is taken at once. */
struct target {
    uint8_t *pixels;
    size_t stride;
    decode_take_rows *take; /* NULL: a picture */
    void *state;
};

static void write_rows(struct coefficients *c, uint32_t y, uint32_t rows, const struct target *target) {
    uint8_t *out = target->pixels + (target->take ? 0 : (size_t)(y - c->region.y) * target->stride);
    for (uint32_t i = 0; i < rows; i++)
        write_row(c, y + i, out + i * target->stride);
    if (target->take && rows > 0)
        target->take(target->state, out, target->stride, rows);
}

static int read_region(struct coefficients *c, const struct target *target, struct diag *diag) {
    const struct geometry *g = &c->record.geometry;
    const struct strip *tallest = &c->strip[c->channels == 3 && g->components == 3];
    uint32_t rows = tallest == c->strip ? 8 * g->v : 8;
    uint32_t first = tallest->y0 / rows, last = tallest->y1 / rows;
    uint32_t y = c->region.y, end = y + c->region.height;
    for (uint32_t row = first; row <= last; row++) {
        int error = decode_mcu_row(c, row, diag);
        if (error < 0)
            return error;
        /* with a carried row, the last one waits for the next MCU row's chroma */
        uint32_t ready = row == last ? end : MIN(end, 8 * g->v * (row + 1) - c->strip[0].carry);
        if (ready > y) {
            write_rows(c, y, ready - y, target);
            y = ready;
        }
    }
    return 0;
}

/* --- the codec --------------------------------------------------------------------------------------------------- */

static int codec_new(const struct decode_limits *limits, struct arena *arena, void **ret) {
    struct coefficients *c = aligned_alloc(64, align_up(sizeof *c, 64));
    if (!c)
        return -ENOMEM;
    memset(c, 0, sizeof *c);
    c->limits = limits;
    c->arena = arena;
    c->twin = coefficients_choose_twin();
    *ret = c;
    return 0;
}

static void codec_free(void *state) {
    free(state);
}

static enum decode_verdict codec_open(void *state, const uint8_t *bytes, size_t length, struct decode_info *ret_info,
                                      struct diag *diag) {
    struct coefficients *c = state;
    if (record_parse(&c->record, bytes, length, diag) < 0)
        return DECODE_BAD;
    const struct geometry *g = &c->record.geometry;
    if (decode_check_pixels(c->limits, g->width, g->height, diag) != DECODE_OK)
        return DECODE_BAD;
    record_layout(&c->record, g->tile_mcus, &c->layout[0]);
    record_layout(&c->record, tile_mcus_of(g, g->tiles_across - 1), &c->layout[1]);
    for (uint32_t i = 0; i < g->components; i++)
        record_scale(&c->record.component[i], false, &c->scale[i]);
    *ret_info = (struct decode_info){.width = g->width,
                                     .height = g->height,
                                     .channels = g->components,
                                     .orientation = c->record.orientation,
                                     .kind = COEFFICIENTS_KIND};
    return DECODE_OK;
}

/* Sets up the read of a region. */
static enum decode_verdict begin_read(struct coefficients *c, uint32_t channels, const struct box *region,
                                      struct diag *diag) {
    if (channels == DECODE_VALUES && c->record.geometry.components != 1) {
        diag_set(diag, -EINVAL, "label picture is a JPEG in colour; wanted gray, or a PNG with a palette");
        return DECODE_BAD;
    }
    c->channels = MAX(channels, 1u);
    c->region = *region;
    uint64_t missing = make_strips(c);
    if (missing)
        return arena_is_short(c->arena, c->record.geometry.width, c->record.geometry.height, missing, diag);
    return DECODE_OK;
}

static enum decode_verdict codec_read(void *state, uint32_t channels, const struct box *region,
                                      const struct picture *picture, bool *ret_complete, struct diag *diag) {
    struct coefficients *c = state;
    struct target target = {.pixels = picture->pixels, .stride = picture->stride};
    *ret_complete = false;
    if (begin_read(c, channels, region, diag) != DECODE_OK)
        return DECODE_BAD;
    return read_region(c, &target, diag) < 0 ? DECODE_BAD : DECODE_OK;
}

static enum decode_verdict codec_read_rows(void *state, uint32_t channels, const struct box *region,
                                           decode_take_rows *take, void *take_state, struct diag *diag) {
    struct coefficients *c = state;
    struct target target = {.stride = (size_t)region->width * MAX(channels, 1u), .take = take, .state = take_state};
    if (begin_read(c, channels, region, diag) != DECODE_OK)
        return DECODE_BAD;
    uint64_t bytes = target.stride * (8 * c->record.geometry.v + c->strip[0].carry); /* the most at once */
    target.pixels = arena_take(c->arena, bytes);
    if (!target.pixels)
        return arena_is_short(c->arena, c->record.geometry.width, c->record.geometry.height, bytes, diag);
    return read_region(c, &target, diag) < 0 ? DECODE_BAD : DECODE_OK;
}

static void codec_close(void *state) {
    struct coefficients *c = state;
    c->record = (struct record){0};
}

static const char *codec_version(void) {
    static const char *const names[COEFFICIENTS_TWINS] = {
        "coefficient records 1 (scalar)", "coefficient records 1 (avx2)", "coefficient records 1 (avx512)"};
    const char *twin = coefficients_simd();
    return names[strcmp(twin, "avx512") == 0 ? 2 : strcmp(twin, "avx2") == 0];
}

const struct codec codec_coefficients = {
    .kind = COEFFICIENTS_KIND,
    .new = codec_new,
    .free = codec_free,
    .open = codec_open,
    .read = codec_read,
    .read_rows = codec_read_rows,
    .close = codec_close,
    .reset = codec_close,
    .version = codec_version,
};
