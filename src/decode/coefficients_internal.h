/* SPDX-License-Identifier: MIT */
/*
 * What the files of the coefficient record share and nobody else includes: the parsed record, one tile's layout, what a
 * tile unpacks to, and the twins of the inner loops. docs/jpeg-coefficients.md says what the fields mean.
 *
 *   picture   MCU rows x tiles; a tile is 64 pixels of an MCU row: 8 MCUs of 8 pixels or 4 of 16; the last is shorter
 *   tile      blocks, at most 32: component by component, block row by block row, left to right
 */
#ifndef DECODE_COEFFICIENTS_INTERNAL_H
#define DECODE_COEFFICIENTS_INTERNAL_H

#include <string.h>

#include "decode/coefficients.h"

#define BLOCK 64u /* coefficients of a block; also pixels across a tile */
#define COMPONENTS_MOST 3u
#define BLOCKS_MOST 32u     /* of a tile: 8 MCUs of 4 blocks */
#define RUNS_MOST 4u        /* block rows of a tile */
#define RUN_MOST 8u         /* blocks of a block row */
#define MAGNITUDES_MOST 11u /* K */
#define AC_MOST 2047        /* largest |AC|: what K holds at any order */
#define DC_MOST 2047

/* Bytes behind a tile's first that unpacking may look at, whatever the bytes say: header bytes, 1,575 bits a block,
 * 121 a run, and what a load of 16 bytes reads beyond. */
#define TILE_REACH (BLOCKS_MOST + (1575u * BLOCKS_MOST + 121u * RUNS_MOST) / 8 + 1 + 32)

#if defined(__clang__)
#define UNROLL /* does so by itself */
#else
#define UNROLL _Pragma("GCC unroll 8") /* keeps small arrays of vectors in registers */
#endif

static inline uint32_t load16(const uint8_t *p) {
    return p[0] | (uint32_t)p[1] << 8;
}
static inline uint32_t load32(const uint8_t *p) {
    return load16(p) | load16(p + 2) << 16;
}
static inline uint64_t load64(const uint8_t *p) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    uint64_t value;
    memcpy(&value, p, sizeof value);
    return value;
#else
    return load32(p) | (uint64_t)load32(p + 4) << 32;
#endif
}
static inline void store16(uint8_t *p, uint32_t value) {
    p[0] = (uint8_t)value;
    p[1] = (uint8_t)(value >> 8);
}
static inline void store32(uint8_t *p, uint32_t value) {
    store16(p, value);
    store16(p + 2, value >> 16);
}
static inline void store64(uint8_t *p, uint64_t value) {
    store32(p, (uint32_t)value);
    store32(p + 4, (uint32_t)(value >> 32));
}

enum sampling { SAMPLING_GRAY = 0, SAMPLING_444 = 1, SAMPLING_422 = 2, SAMPLING_420 = 3, SAMPLING_440 = 4 };
#define SAMPLINGS 5u

/* Record header: fixed part, offsets of its fields. All integers little-endian. */
enum {
    RECORD_VERSION = 4,
    RECORD_SAMPLING = 5,
    RECORD_TABLES = 6,
    RECORD_FLAGS = 7,
    RECORD_LENGTH = 8,
    RECORD_WIDTH = 12,
    RECORD_HEIGHT = 14,
    RECORD_KEPT = 16,     /* bytes of the deflated headers */
    RECORD_KEPT_RAW = 20, /* bytes that they inflate to */
    RECORD_KEPT_CRC = 24,
    RECORD_CRC = 28,
    RECORD_FIXED = 32
};
#define RECORD_FLAG_WIDE 1u /* quantisers of 16 bits */
#define RECORD_FLAG_KEPT 2u
#define RECORD_ORIENTATION_SHIFT 4u /* bits 4 to 7: Exif orientation, 1 to 8 */
#define ORDER_BYTES 16u
#define ROW_BYTES 8u /* an MCU row's entry: offset, checksum */

/* Natural-order tables of a component, as the twins want them. */
struct scale {
    _Alignas(64) int16_t quantiser[BLOCK];
    _Alignas(64) uint16_t order[BLOCK];
    _Alignas(64) uint8_t pair[2 * BLOCK]; /* 1 << order, 1 */
    uint32_t order_most;
};

struct component {
    uint32_t h, v;             /* blocks of an MCU across and down */
    uint32_t width, height;    /* samples that the picture has */
    uint16_t quantiser[BLOCK]; /* zigzag */
    uint8_t order[BLOCK];      /* zigzag; of position 0: 0 */
};

/* Sizes that follow from width, height and sampling. */
struct geometry {
    enum sampling sampling;
    uint32_t width, height;
    uint32_t components, h, v; /* h, v: of component 0; of the others 1 */
    uint32_t mcus_across, mcus_down;
    uint32_t tile_mcus, tiles_across;
};
void geometry_set(struct geometry *g, enum sampling sampling, uint32_t width, uint32_t height);
static inline uint32_t tile_mcus_of(const struct geometry *g, uint32_t tile) {
    uint32_t rest = g->mcus_across - tile * g->tile_mcus;
    return rest < g->tile_mcus ? rest : g->tile_mcus;
}

struct tile_layout {
    uint32_t mcus, blocks, runs;
    uint8_t first[COMPONENTS_MOST]; /* block of each component */
    uint8_t run_blocks[RUNS_MOST];
    uint32_t low_planes;            /* largest order of any component */
    uint64_t above[3][BLOCKS_MOST]; /* bit i: position i + 1 of the block has an order above 0, 1, 2 */
};

struct record {
    const uint8_t *bytes;
    size_t length;
    struct geometry geometry;
    const uint8_t *rows;    /* index: an entry an MCU row */
    const uint8_t *lengths; /* of the tiles, 16 bits each */
    const uint8_t *data;    /* tiles */
    size_t data_length;
    const uint8_t *kept;
    uint32_t kept_length, kept_raw;
    uint32_t orientation;
    struct component component[COMPONENTS_MOST];
};

/* Checks all of the header and its checksum; reads no tile. 0, -EBADMSG. */
int record_parse(struct record *ret, const uint8_t *bytes, size_t length, struct diag *diag);
void record_layout(const struct record *record, uint32_t mcus, struct tile_layout *ret);
/* `plain`: quantisers of 1, for the coefficients themselves. */
void record_scale(const struct component *component, bool plain, struct scale *ret);

/* An MCU row's bytes, whose checksum and tile lengths were found right. 0, -EBADMSG. */
struct row_bytes {
    const uint8_t *bytes; /* of the next tile */
    const uint8_t *end;
    const uint8_t *lengths; /* 16 bits a tile, of the next on */
};
int record_row(const struct record *record, uint32_t row, struct row_bytes *ret, struct diag *diag);

/* The next tile of the row; NULL where it does not lie in the row, which happens only to bytes that change while they
 * are read (a mapped file). */
static inline const uint8_t *row_next(struct row_bytes *row, uint32_t *ret_length) {
    const uint8_t *tile = row->bytes;
    uint32_t length = load16(row->lengths);
    if (length > (size_t)(row->end - tile))
        return NULL;
    row->bytes += length;
    row->lengths += 2;
    *ret_length = length;
    return tile;
}

/* What a tile unpacks to. Bit i of every plane stands for zigzag position i + 1; bit 63 is 0. */
struct tile {
    _Alignas(64) uint64_t plane[BLOCKS_MOST][16]; /* of e: plane j at [j]; zero from K to 7, and to 15 where K > 8 */
    uint64_t low[BLOCKS_MOST][4];                 /* of low; set where layout->low_planes > 0 */
    uint64_t nonzero[BLOCKS_MOST];
    uint64_t sign[BLOCKS_MOST];
    int16_t dc[BLOCKS_MOST];
    uint8_t bits[BLOCKS_MOST]; /* K */
};

/* Bytes of the tile, TILE_INVALID where a header byte is: no length in the index says that. Reads at most TILE_REACH
 * bytes. */
#define TILE_INVALID UINT32_MAX
typedef uint32_t tile_unpack(const struct tile_layout *layout, const uint8_t *bytes, struct tile *ret);
/* Coefficients of `count` blocks from block `first` on, times quantiser, 64 each, natural order; `out` is aligned to
 * 64. */
typedef void tile_expand(const struct tile *tile, const struct scale *scale, uint32_t first, uint32_t count,
                         int16_t *out);
/* Samples of up to 8 blocks side by side; `nonzero` are their bitmaps. May write columns of up to 8 blocks, whatever
 * `count`; `blocks` likewise has room for 8. */
typedef void block_idct(const int16_t *blocks, const uint64_t *nonzero, uint32_t count, uint8_t *out, size_t stride);
/* Rows of `count` chroma samples to twice as many, by libjpeg's triangle filter. in[-1] and in[count] are the
 * neighbours, or the edge again. Everything may be read and written up to ROW_SLACK beyond. */
typedef void upsample_across(const uint8_t *in, uint32_t count, uint8_t *out);
/* The same, 2 x 2: `near` is the row that the output row lies in, `far` the one next to it; `sums` is scratch. */
typedef void upsample_both(const uint8_t *near, const uint8_t *far, uint32_t count, uint16_t *sums, uint8_t *out);
/* 1 x 2: bias 1 where `far` is above, 2 where it is below. */
typedef void upsample_down(const uint8_t *near, const uint8_t *far, uint32_t count, uint32_t bias, uint8_t *out);
/* YCbCr to interleaved RGB; writes exactly 3 * count bytes. */
typedef void color_rgb(const uint8_t *y, const uint8_t *cb, const uint8_t *cr, uint32_t count, uint8_t *out);
typedef void gray_rgb(const uint8_t *y, uint32_t count, uint8_t *out);
#define ROW_SLACK 64u
/* Bitmaps of the zigzag positions whose row, or column, is 4 or more. */
#define ROWS_4_TO_7 UINT64_C(0x7feff07f807c0200)
#define COLUMNS_4_TO_7 UINT64_C(0x7ffe3fc07f00e000)

struct coefficients_twin {
    const char *name;
    tile_unpack *unpack;
    tile_expand *expand;
    block_idct *idct;
    upsample_across *across;
    upsample_both *both;
    upsample_down *down;
    color_rgb *rgb;
    gray_rgb *gray;
};
extern const struct coefficients_twin coefficients_scalar;
#if defined(__x86_64__)
extern const struct coefficients_twin coefficients_avx2, coefficients_avx512;
#endif
#define COEFFICIENTS_TWINS 3
/* Twins that this CPU can run, slowest first. */
size_t coefficients_twins(const struct coefficients_twin *ret[COEFFICIENTS_TWINS]);
const struct coefficients_twin *coefficients_choose_twin(void);
block_idct idct_scalar;
upsample_across across_scalar;
upsample_both both_scalar;
upsample_down down_scalar;
color_rgb rgb_scalar;
gray_rgb gray_scalar;
/* Whether every implementation of the accurate IDCT, saturating or not, gives the same samples for this block. */
bool idct_is_safe(const int16_t block[BLOCK]);

extern const uint8_t coefficients_natural[BLOCK];     /* zigzag position -> natural */
extern const uint8_t coefficients_zigzag[BLOCK];      /* natural position -> zigzag */
extern uint64_t coefficients_zigzag_rows[8][256];     /* [row][bits of its columns] -> bits of zigzag positions */
extern const uint8_t coefficients_header_length[256]; /* header byte -> L; 0 where invalid or no AC */
extern const uint8_t coefficients_header_bits[256];   /* header byte -> K; 0x80: invalid */
#define HEADER_LENGTHS 23u
extern const uint8_t coefficients_lengths[HEADER_LENGTHS];

#endif
