/* SPDX-License-Identifier: MIT */
/*
 * JPEG to coefficient record: docs/jpeg-coefficients.md in the other direction. Every record is unpacked again and
 * compared with the coefficients it was made of before it is given out; what a record cannot hold exactly is refused.
 * One thread per encoder; memory grows to what the largest file needed and stays.
 */
#include "decode/coefficients_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <zlib.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/crc32c.h"
#include "base/util.h"
#include "decode/exif.h"
#include "decode/jpeg_coefficients.h"

#define DEFAULT_MAX_PIXELS UINT64_C(100000000)

struct bytes {
    uint8_t *data;
    size_t length, capacity;
};

/* Under each of the four orders. */
typedef uint32_t costs __attribute__((vector_size(16)));

/* Fields of one block, bits as in struct tile. Where L is 0 only that, K, `nonzero` and `dc` are set. */
struct fields {
    uint64_t nonzero, sign, low[3], plane[MAGNITUDES_MOST]; /* planes up to K, `low` up to the largest order */
    int32_t dc;
    uint32_t length, bits; /* L, K */
};

/* The stream of a tile to memory that has room for TILE_REACH bytes; its end. */
typedef uint8_t *put_stream_function(const struct tile_layout *layout, const struct fields *fields, uint8_t *stream);

struct coefficients_encoder {
    put_stream_function *put_stream;
    struct jpeg_reader *reader;
    struct jpeg_coefficients jpeg;
    struct geometry geometry;
    uint32_t orientation;
    struct component component[COMPONENTS_MOST]; /* quantisers and orders */
    struct bytes record;
    struct tile_layout layout[2];      /* of a whole tile, of the last one */
    const int16_t *block[BLOCKS_MOST]; /* of the tile in hand */
    struct fields fields[BLOCKS_MOST];
    uint8_t length_index[BLOCK]; /* last nonzero position -> index into coefficients_lengths */
    costs cost[AC_MOST + 1];     /* bits of a magnitude */
    struct tile tile;
    _Alignas(64) int16_t expanded[RUN_MOST * BLOCK];
    struct record parsed;
};

/* --- memory ------------------------------------------------------------------------------------------------------ */

static int bytes_reserve(struct bytes *b, size_t more) {
    if (b->capacity - b->length >= more)
        return 0;
    size_t capacity = (b->length + more) * 3 / 2;
    uint8_t *data = realloc(b->data, capacity);
    if (!data)
        return -ENOMEM;
    b->data = data;
    b->capacity = capacity;
    return 0;
}

static int bytes_add(struct bytes *b, const void *data, size_t length) {
    if (bytes_reserve(b, length) < 0)
        return -ENOMEM;
    if (length)
        memcpy(b->data + b->length, data, length);
    b->length += length;
    return 0;
}

/* --- orders ------------------------------------------------------------------------------------------------------ */

static uint32_t bit_length(uint32_t x) {
    return x ? 32 - (uint32_t)__builtin_clz(x) : 0;
}

/* A value costs its sign, `order` low bits, one bit for each level up to the one that it does not reach, and one for
 * each plane below its highest. (A block's own K saves the last "no" of its largest values, which is left out here.) */
static void fill_costs(struct coefficients_encoder *e) {
    for (uint32_t magnitude = 1; magnitude <= AC_MOST; magnitude++) {
        for (uint32_t order = 0; order < 4; order++) {
            uint32_t bits = bit_length(((magnitude - 1) >> order) + 1);
            e->cost[magnitude][order] = order + 2 * bits;
        }
    }
    for (uint32_t last = 1, i = 0; last < BLOCK; last++) {
        while (coefficients_lengths[i] < last)
            i++;
        e->length_index[last] = (uint8_t)i;
    }
}

/* Adds up what each position costs under each order; finds what a record, or an exact decode, cannot hold. */
static const char *survey_block(const struct coefficients_encoder *e, const int16_t *block, const uint16_t *quantiser,
                                costs *cost) {
    uint32_t sum = 0;
    if (block[0] < -DC_MOST - 1 || block[0] > DC_MOST)
        return "a DC coefficient of more than 12 bits";
    for (uint64_t left = block_nonzero(block); left; left &= left - 1) {
        uint32_t n = (uint32_t)__builtin_ctzll(left);
        uint32_t magnitude = (uint32_t)abs(block[n]), value = magnitude * quantiser[n];
        if (magnitude > AC_MOST + 1 || value > 8191)
            return "coefficient x quantiser beyond 8191";
        sum += value;
        if (n == 0)
            continue;
        if (magnitude > AC_MOST)
            return "an AC coefficient beyond 2047";
        cost[n] += e->cost[magnitude];
    }
    if (sum <= 2000)
        return NULL;
    int16_t product[BLOCK];
    for (uint32_t n = 0; n < BLOCK; n++)
        product[n] = (int16_t)(block[n] * quantiser[n]);
    return idct_is_safe(product) ? NULL : "values beyond what every inverse DCT agrees on";
}

static int choose_orders(struct coefficients_encoder *e, uint32_t number, struct diag *diag) {
    const struct geometry *g = &e->geometry;
    struct component *component = &e->component[number];
    uint16_t quantiser[BLOCK]; /* natural */
    costs cost[BLOCK] = {{0}};
    for (uint32_t i = 0; i < BLOCK; i++)
        quantiser[coefficients_natural[i]] = component->quantiser[i];
    for (uint32_t y = 0; y < g->mcus_down * component->v; y++) {
        for (uint32_t x = 0; x < g->mcus_across * component->h; x++) {
            const char *why = survey_block(e, e->jpeg.rows[number][y][x], quantiser, cost);
            if (why)
                return diag_set(diag, -ENOTSUP, "unsupported: %s", why);
        }
    }
    for (uint32_t i = 1; i < BLOCK; i++) {
        costs bits = cost[coefficients_natural[i]];
        component->order[i] = 0;
        for (uint32_t o = 1; o < 4; o++) {
            if (bits[o] < bits[component->order[i]])
                component->order[i] = (uint8_t)o;
        }
    }
    return 0;
}

/* --- tiles ------------------------------------------------------------------------------------------------------- */

struct writer {
    uint8_t *at;
    uint64_t bits;
    uint32_t count;
};

/* The `count` lowest bits, at most 63; those above must be 0. */
static inline __attribute__((always_inline)) void put(struct writer *w, uint64_t bits, uint32_t count) {
    w->bits |= bits << w->count;
    w->count += count;
    if (w->count >= 64) {
        store64(w->at, w->bits);
        w->at += 8;
        w->count -= 64;
        w->bits = bits >> 1 >> (count - w->count - 1);
    }
}

static inline __attribute__((always_inline)) uint8_t *put_end(struct writer *w) {
    for (uint32_t i = 0; i < w->count; i += 8)
        *w->at++ = (uint8_t)(w->bits >> i);
    return w->at;
}

/* Bit i: bit `number` of byte i. */
static inline uint64_t plane_of(const uint8_t bytes[BLOCK], uint32_t number) {
    uint64_t plane = 0;
#if defined(__x86_64__)
    const __m128i up = _mm_cvtsi32_si128((int)(7 - number));
    for (uint32_t i = 0; i < BLOCK; i += 16) {
        __m128i sixteen = _mm_load_si128((const __m128i *)(const void *)(bytes + i));
        plane |= (uint64_t)(uint32_t)_mm_movemask_epi8(_mm_sll_epi16(sixteen, up)) << i;
    }
#else
    for (uint32_t i = 0; i < BLOCK; i += 8) /* the product's highest byte has them in order */
        plane |= (load64(bytes + i) >> number & UINT64_C(0x0101010101010101)) * UINT64_C(0x0102040810204080) >> 56 << i;
#endif
    return plane;
}

/* What is put down of a value: e, and the bits of `low` with the sign above them. */
struct split {
    uint32_t value, rest;
};
#define REST_SIGN 3

static inline struct split split_value(int16_t coefficient, uint32_t order) {
    uint32_t magnitude = (uint32_t)abs(coefficient), value = ((magnitude - 1) >> order) + 1;
    return (struct split){value, ((value << order) - magnitude) | (uint32_t)(coefficient < 0) << REST_SIGN};
}

static void split_block(const struct coefficients_encoder *e, const struct component *component, const int16_t *block,
                        struct fields *ret) {
    _Alignas(16) uint8_t value[BLOCK] = {0}, high[BLOCK] = {0}, rest[BLOCK] = {0};
    uint32_t most = 0;
    ret->dc = block[0];
    ret->length = ret->bits = 0;
    ret->nonzero = block_nonzero_zigzag(block) >> 1;
    if (!ret->nonzero)
        return;
    for (uint64_t left = ret->nonzero; left; left &= left - 1) {
        uint32_t i = (uint32_t)__builtin_ctzll(left);
        struct split split = split_value(block[coefficients_natural[i + 1]], component->order[i + 1]);
        most |= split.value;
        value[i] = (uint8_t)split.value;
        rest[i] = (uint8_t)split.rest;
    }
    for (uint64_t left = most > 255 ? ret->nonzero : 0; left; left &= left - 1) {
        uint32_t i = (uint32_t)__builtin_ctzll(left);
        high[i] = (uint8_t)(split_value(block[coefficients_natural[i + 1]], component->order[i + 1]).value >> 8);
    }
    ret->bits = bit_length(most);
    ret->length = coefficients_lengths[e->length_index[64 - (uint32_t)__builtin_clzll(ret->nonzero)]];
    for (uint32_t p = 0; p < ret->bits; p++)
        ret->plane[p] = p < 8 ? plane_of(value, p) : plane_of(high, p - 8);
    for (uint32_t o = 0; o < e->layout[0].low_planes; o++)
        ret->low[o] = plane_of(rest, o);
    ret->sign = plane_of(rest, REST_SIGN);
}

/* Bits of a two's complement field that holds x; 0 for 0. */
static uint32_t signed_width(int32_t x) {
    return x ? bit_length((uint32_t)(x < 0 ? ~x : x)) + 1 : 0;
}

static inline __attribute__((always_inline)) void put_run(struct writer *w, const struct fields *fields,
                                                          uint32_t blocks) {
    uint32_t width = 0;
    for (uint32_t b = 1; b < blocks; b++)
        width = MAX(width, signed_width(fields[b].dc - fields[b - 1].dc));
    put(w, width, 4);
    put(w, (uint32_t)fields[0].dc & 0xFFF, 12);
    for (uint32_t b = 1; b < blocks; b++)
        put(w, (uint32_t)(fields[b].dc - fields[b - 1].dc) & ((1u << width) - 1), width);
}

#define PACK_NAME put_stream_any
#define PACK_TARGET
#include "decode/coefficients_pack.h"

#if defined(__x86_64__)
#define PACK_NAME put_stream_bmi2
#define PACK_TARGET __attribute__((target("bmi2,popcnt")))
#define EXTRACT(value, mask) _pext_u64(value, mask)
#define POPCOUNT(mask) (uint32_t) _mm_popcnt_u64(mask)
#include "decode/coefficients_pack.h"
#endif

static put_stream_function *choose_put_stream(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt"))
        return put_stream_bmi2;
#endif
    return put_stream_any;
}

/* The tile's blocks, in e->block, to `out`, which has room for TILE_REACH bytes. Returns its bytes. */
static uint32_t put_tile(struct coefficients_encoder *e, const struct tile_layout *layout, uint8_t *out) {
    uint32_t b = 0;
    for (uint32_t c = 0; c < e->geometry.components; c++) {
        uint32_t end = c + 1 < e->geometry.components ? layout->first[c + 1] : layout->blocks;
        for (; b < end; b++) {
            struct fields *f = &e->fields[b];
            split_block(e, &e->component[c], e->block[b], f);
            uint32_t last = f->nonzero ? 64 - (uint32_t)__builtin_clzll(f->nonzero) : 0;
            out[b] = (uint8_t)(last ? 1 + HEADER_LENGTHS * (f->bits - 1) + e->length_index[last] : 0);
        }
    }
    return (uint32_t)(e->put_stream(layout, e->fields, out + layout->blocks) - out);
}

/* e->block: the blocks of a tile in their order. */
static void gather_tile(struct coefficients_encoder *e, uint32_t row, uint32_t tile) {
    const struct geometry *g = &e->geometry;
    uint32_t mcus = tile_mcus_of(g, tile), n = 0;
    for (uint32_t c = 0; c < g->components; c++) {
        const struct component *component = &e->component[c];
        for (uint32_t y = 0; y < component->v; y++) {
            const int16_t(*from)[BLOCK] = e->jpeg.rows[c][row * component->v + y];
            for (uint32_t x = 0; x < mcus * component->h; x++)
                e->block[n++] = from[tile * g->tile_mcus * component->h + x];
        }
    }
}

static void set_layouts(struct coefficients_encoder *e) {
    struct record *r = &e->parsed; /* just as a carrier */
    r->geometry = e->geometry;
    memcpy(r->component, e->component, sizeof r->component);
    record_layout(r, e->geometry.tile_mcus, &e->layout[0]);
    record_layout(r, tile_mcus_of(&e->geometry, e->geometry.tiles_across - 1), &e->layout[1]);
}

/* --- the record -------------------------------------------------------------------------------------------------- */

/* Fixed part (its sums come last), quantisers, orders; room for the index. Returns the index's offset. */
static int put_header(struct coefficients_encoder *e, size_t *ret_index) {
    const struct geometry *g = &e->geometry;
    uint8_t fixed[RECORD_FIXED] = {0}, which[COMPONENTS_MOST] = {0};
    uint32_t tables = 0, table_of[COMPONENTS_MOST] = {0};
    bool wide = false;
    for (uint32_t c = 0; c < g->components; c++) {
        const uint16_t *quantiser = e->component[c].quantiser;
        while (which[c] < tables &&
               memcmp(e->component[table_of[which[c]]].quantiser, quantiser, sizeof e->component[c].quantiser) != 0)
            which[c]++;
        if (which[c] == tables)
            table_of[tables++] = c;
        for (uint32_t i = 0; i < BLOCK; i++)
            wide |= quantiser[i] > 255;
    }
    memcpy(fixed, COEFFICIENTS_MAGIC, 4);
    fixed[RECORD_VERSION] = COEFFICIENTS_VERSION;
    fixed[RECORD_SAMPLING] = (uint8_t)g->sampling;
    fixed[RECORD_TABLES] = (uint8_t)tables;
    fixed[RECORD_FLAGS] = (uint8_t)(e->orientation << RECORD_ORIENTATION_SHIFT | (wide ? RECORD_FLAG_WIDE : 0));
    store16(fixed + RECORD_WIDTH, g->width);
    store16(fixed + RECORD_HEIGHT, g->height);
    e->record.length = 0;
    int error = bytes_add(&e->record, fixed, sizeof fixed);
    error = error < 0 ? error : bytes_add(&e->record, which, g->components);
    for (uint32_t t = 0; t < tables && error == 0; t++) {
        uint8_t values[2 * BLOCK];
        for (uint32_t i = 0; i < BLOCK; i++) {
            uint32_t value = e->component[table_of[t]].quantiser[i];
            if (wide)
                store16(values + 2 * i, value);
            else
                values[i] = (uint8_t)value;
        }
        error = bytes_add(&e->record, values, wide ? 2 * BLOCK : BLOCK);
    }
    for (uint32_t c = 0; c < g->components && error == 0; c++) {
        uint8_t orders[ORDER_BYTES] = {0};
        for (uint32_t i = 1; i < BLOCK; i++)
            orders[(i - 1) / 4] |= (uint8_t)(e->component[c].order[i] << (2 * ((i - 1) % 4)));
        error = bytes_add(&e->record, orders, sizeof orders);
    }
    *ret_index = e->record.length;
    size_t index = (size_t)g->mcus_down * (ROW_BYTES + 2 * (size_t)g->tiles_across);
    if (error < 0 || bytes_reserve(&e->record, index) < 0)
        return -ENOMEM;
    memset(e->record.data + e->record.length, 0, index);
    e->record.length += index;
    return 0;
}

static int put_row(struct coefficients_encoder *e, uint32_t row, size_t index, size_t data) {
    const struct geometry *g = &e->geometry;
    size_t begin = e->record.length;
    for (uint32_t t = 0; t < g->tiles_across; t++) {
        if (bytes_reserve(&e->record, TILE_REACH) < 0)
            return -ENOMEM;
        gather_tile(e, row, t);
        uint32_t length = put_tile(e, &e->layout[t + 1 == g->tiles_across], e->record.data + e->record.length);
        store16(e->record.data + index + (size_t)g->mcus_down * ROW_BYTES + 2 * ((size_t)row * g->tiles_across + t),
                length);
        e->record.length += length;
    }
    uint8_t *entry = e->record.data + index + (size_t)row * ROW_BYTES;
    store32(entry, (uint32_t)(begin - data));
    store32(entry + 4, crc32c(0, e->record.data + begin, e->record.length - begin));
    return 0;
}

/* Length and checksum of the header, which ends at `data`. */
static int finish(struct coefficients_encoder *e, size_t data, struct diag *diag) {
    uint8_t *bytes = e->record.data;
    if (e->record.length > UINT32_MAX)
        return diag_set(diag, -ENOTSUP, "unsupported: a record beyond 4 GiB");
    store32(bytes + RECORD_LENGTH, (uint32_t)e->record.length);
    uint32_t crc = crc32c(0, bytes, RECORD_CRC);
    store32(bytes + RECORD_CRC, crc32c(crc, bytes + RECORD_FIXED, data - RECORD_FIXED));
    return 0;
}

/* --- proof ------------------------------------------------------------------------------------------------------- */

static bool blocks_equal(struct coefficients_encoder *e, const struct coefficients_twin *twin,
                         const struct tile_layout *layout, const struct scale *scale) {
    for (uint32_t c = 0; c < e->geometry.components; c++) {
        uint32_t b = layout->first[c];
        uint32_t end = c + 1 < e->geometry.components ? layout->first[c + 1] : layout->blocks;
        for (uint32_t n; b < end; b += n) {
            n = MIN(end - b, RUN_MOST);
            twin->expand(&e->tile, &scale[c], b, n, e->expanded);
            for (uint32_t i = 0; i < n; i++) {
                if (memcmp(e->block[b + i], e->expanded + i * BLOCK, BLOCK * sizeof(int16_t)) != 0)
                    return false;
            }
        }
    }
    return true;
}

/* Unpacks the record and compares every coefficient. */
static int prove(struct coefficients_encoder *e, struct diag *diag) {
    const struct coefficients_twin *twin = coefficients_choose_twin();
    const struct geometry *g = &e->geometry;
    struct scale scale[COMPONENTS_MOST];
    uint8_t *padding; /* so that the last tile may be read in place */
    if (bytes_reserve(&e->record, TILE_REACH) < 0)
        return -ENOMEM;
    padding = e->record.data + e->record.length;
    memset(padding, 0, TILE_REACH);
    int error = record_parse(&e->parsed, e->record.data, e->record.length, diag);
    for (uint32_t c = 0; error == 0 && c < g->components; c++)
        record_scale(&e->parsed.component[c], true, &scale[c]);
    if (error == 0) { /* as the record says, not as it was meant */
        record_layout(&e->parsed, g->tile_mcus, &e->layout[0]);
        record_layout(&e->parsed, tile_mcus_of(g, g->tiles_across - 1), &e->layout[1]);
    }
    for (uint32_t row = 0; error == 0 && row < g->mcus_down; row++) {
        struct row_bytes bytes;
        error = record_row(&e->parsed, row, &bytes, diag);
        for (uint32_t t = 0; error == 0 && t < g->tiles_across; t++) {
            const struct tile_layout *layout = &e->layout[t + 1 == g->tiles_across];
            uint32_t length = 0;
            const uint8_t *tile = row_next(&bytes, &length);
            gather_tile(e, row, t);
            if (!tile || twin->unpack(layout, tile, &e->tile) != length || !blocks_equal(e, twin, layout, scale))
                error =
                    diag_set(diag, -ENOTSUP, "unsupported: MCU row %u, tile %u did not come back as it was", row, t);
        }
    }
    return error;
}

/* --- kept headers ------------------------------------------------------------------------------------------------ */

static int check_blocks(void *source, uint32_t row, const int16_t (*ret[COMPONENTS_MOST][2])[BLOCK],
                        struct diag *diag) {
    const struct coefficients_encoder *e = source;
    (void)diag;
    for (uint32_t c = 0; c < e->geometry.components; c++) {
        for (uint32_t y = 0; y < e->component[c].v; y++)
            ret[c][y] = e->jpeg.rows[c][row * e->component[c].v + y];
    }
    return 0;
}

/* Codes the coefficients again as the file's own headers say; equal bytes need not be stored. */
static int keep_headers(struct coefficients_encoder *e, const uint8_t *bytes, size_t length, struct diag *diag) {
    struct entropy_header header;
    uint8_t *coded;
    size_t coded_length;
    int error = entropy_parse(bytes, length, &header, diag);
    if (error < 0)
        return error;
    if ((error = entropy_encode(&header, &e->geometry, check_blocks, e, &coded, &coded_length, diag)) < 0)
        return error;
    bool equal = coded_length <= length - header.data && memcmp(bytes + header.data, coded, coded_length) == 0;
    free(coded);
    if (!equal)
        return diag_set(diag, -ENOTSUP, "unsupported: the file's entropy coding cannot be made again byte for byte");

    size_t after = header.data + coded_length, raw_length = header.data + (length - after);
    uLongf deflated = compressBound(raw_length);
    uint8_t *raw = malloc(raw_length);
    if (!raw || raw_length > UINT32_MAX || bytes_reserve(&e->record, deflated) < 0) {
        free(raw);
        return -ENOMEM;
    }
    memcpy(raw, bytes, header.data);
    memcpy(raw + header.data, bytes + after, length - after);
    uint8_t *out = e->record.data + e->record.length;
    int status = compress2(out, &deflated, raw, raw_length, 6);
    free(raw);
    if (status != Z_OK)
        return -ENOMEM;
    uint8_t *fixed = e->record.data;
    fixed[RECORD_FLAGS] |= RECORD_FLAG_KEPT;
    store32(fixed + RECORD_KEPT, (uint32_t)deflated);
    store32(fixed + RECORD_KEPT_RAW, (uint32_t)raw_length);
    store32(fixed + RECORD_KEPT_CRC, crc32c(0, out, deflated));
    e->record.length += deflated;
    return 0;
}

/* --- public ------------------------------------------------------------------------------------------------------ */

int coefficients_encoder_new(struct coefficients_encoder **ret) {
    struct coefficients_encoder *e = aligned_alloc(64, align_up(sizeof *e, 64));
    if (!e)
        return -ENOMEM;
    memset(e, 0, sizeof *e);
    if (jpeg_reader_new(&e->reader) < 0) {
        free(e);
        return -ENOMEM;
    }
    fill_costs(e);
    e->put_stream = choose_put_stream();
    *ret = e;
    return 0;
}

void coefficients_encoder_free(struct coefficients_encoder *encoder) {
    if (!encoder)
        return;
    jpeg_reader_free(encoder->reader);
    free(encoder->record.data);
    free(encoder);
}

static void set_components(struct coefficients_encoder *e) {
    geometry_set(&e->geometry, e->jpeg.sampling, e->jpeg.width, e->jpeg.height);
    for (uint32_t c = 0; c < e->geometry.components; c++) {
        e->component[c] = (struct component){.h = c ? 1 : e->geometry.h, .v = c ? 1 : e->geometry.v};
        memcpy(e->component[c].quantiser, e->jpeg.quantiser[c], sizeof e->component[c].quantiser);
    }
}

static int encode(struct coefficients_encoder *e, const uint8_t *bytes, size_t length, bool keep, struct diag *diag) {
    size_t index, data;
    int error = 0;
    set_components(e);
    e->orientation = exif_jpeg_orientation(bytes, length);
    for (uint32_t c = 0; error == 0 && c < e->geometry.components; c++)
        error = choose_orders(e, c, diag);
    if (error < 0 || (error = put_header(e, &index)) < 0)
        return error;
    data = e->record.length;
    set_layouts(e);
    for (uint32_t row = 0; error == 0 && row < e->geometry.mcus_down; row++)
        error = put_row(e, row, index, data);
    if (error == 0 && keep)
        error = keep_headers(e, bytes, length, diag);
    if (error == 0)
        error = finish(e, data, diag);
    return error < 0 ? error : prove(e, diag);
}

int coefficients_encode(struct coefficients_encoder *encoder, const uint8_t *bytes, size_t length,
                        const struct coefficients_options *options, const uint8_t **ret_record, size_t *ret_length,
                        struct diag *diag) {
    struct coefficients_encoder *e = encoder;
    uint64_t max_pixels = options && options->max_pixels ? options->max_pixels : DEFAULT_MAX_PIXELS;
    int error = jpeg_reader_read(e->reader, bytes, length, max_pixels, &e->jpeg, diag);
    if (error == 0)
        error = encode(e, bytes, length, options && options->keep_headers, diag);
    if (error == -ENOMEM)
        diag_set(diag, error, "no memory for the coefficient record of a JPEG of %zu bytes", length);
    if (error < 0)
        return error;
    *ret_record = e->record.data;
    *ret_length = e->record.length;
    return 0;
}
