/* SPDX-License-Identifier: MIT */
/*
 * From dequantised coefficients to pixels, scalar: the integers of libjpeg-turbo's default path, which are the accurate
 * inverse DCT (jidctint: 13-bit constants, 2 extra bits between the passes), "fancy" upsampling (the triangle filter of
 * jdsample) and the 16-bit colour conversion of jdcolor. Pure; any thread. The twins make the same bytes.
 *
 * Sums are taken modulo 2^32 and the values between the passes saturate at 16 bits, as in the library's SIMD code, so
 * that every input has one defined result; the encoder admits only blocks in which nothing wraps or saturates.
 */
#include "decode/coefficients_internal.h"

#include "base/util.h"

/* --- inverse DCT ------------------------------------------------------------------------------------------------- */

#define SHIFT1 11 /* 13 bits of the constants, 2 of which stay */
#define SHIFT2 18 /* 13, those 2, and 3 of the transform itself */
#define ROUND1 (UINT32_C(1) << (SHIFT1 - 1))
#define ROUND2 (UINT32_C(257) << (SHIFT2 - 1)) /* a half, and 128: samples are unsigned */

static int16_t saturate16(int32_t x) {
    return (int16_t)CLAMP(x, INT16_MIN, INT16_MAX);
}

/* One-dimensional, of in[0], in[step], ...; `round` is added and `shift` bits are dropped; `upper`: the last four are
 * not all zero. The factors are those of jidctint's butterfly; multiplied out they are the specification's. */
static inline __attribute__((always_inline)) void idct_line(const int16_t *in, int step, int shift, uint32_t round,
                                                            bool upper, int32_t out[8]) {
    uint32_t x[8];
    UNROLL for (int i = 0; i < 8; i++) {
        x[i] = i < 4 || upper ? (uint32_t)(int32_t)in[i * step] : 0;
    }
    uint32_t sum = ((x[0] + x[4]) << 13) + round, difference = ((x[0] - x[4]) << 13) + round;
    uint32_t both = (x[2] + x[6]) * 4433u;
    uint32_t wide = both + x[2] * 6270u, narrow = both - x[6] * 15137u;
    uint32_t z5 = (x[7] + x[3] + x[5] + x[1]) * 9633u;
    uint32_t z3 = z5 - (x[7] + x[3]) * 16069u, z4 = z5 - (x[5] + x[1]) * 3196u;
    uint32_t z1 = (x[7] + x[1]) * 7373u, z2 = (x[5] + x[3]) * 20995u;
    uint32_t even[4] = {sum + wide, difference + narrow, difference - narrow, sum - wide};
    uint32_t odd[4] = {x[1] * 12299u - z1 + z4, x[3] * 25172u - z2 + z3, x[5] * 16819u - z2 + z4,
                       x[7] * 2446u - z1 + z3};
    UNROLL for (int i = 0; i < 4; i++) {
        out[i] = (int32_t)(even[i] + odd[i]) >> shift;
        out[7 - i] = (int32_t)(even[i] - odd[i]) >> shift;
    }
}

static void fill_block(int16_t dc, uint8_t *out, size_t stride) {
    int32_t sample = (saturate16(dc * 4) * 8192 + (int32_t)ROUND2) >> SHIFT2;
    for (int y = 0; y < 8; y++, out += stride)
        memset(out, CLAMP(sample, 0, 255), 8);
}

static inline __attribute__((always_inline)) void idct_columns(const int16_t *block, uint64_t nonzero, bool upper,
                                                               int16_t *out) {
    /* bitmaps of a column's positions but the first */
    static const uint64_t column[8] = {UINT64_C(0x0000000400180306), UINT64_C(0x0000000a00240488),
                                       UINT64_C(0x0000801100420840), UINT64_C(0x0001402080811000),
                                       UINT64_C(0x0102204041008000), UINT64_C(0x0284108022000000),
                                       UINT64_C(0x2448090010000000), UINT64_C(0x5830060000000000)};
    for (int x = 0; x < 8; x++, block++, out++) {
        int32_t line[8];
        if (nonzero & column[x])
            idct_line(block, 8, SHIFT1, ROUND1, upper, line);
        else
            UNROLL for (int y = 0; y < 8; y++) {
                line[y] = block[0] * 4;
            }
        UNROLL for (int y = 0; y < 8; y++) {
            out[8 * y] = saturate16(line[y]);
        }
    }
}

static inline __attribute__((always_inline)) void idct_rows(const int16_t *between, bool upper, uint8_t *out,
                                                            size_t stride) {
    for (int y = 0; y < 8; y++, between += 8, out += stride) {
        int32_t line[8];
        idct_line(between, 1, SHIFT2, ROUND2, upper, line);
        int32_t outside = 0;
        UNROLL for (int x = 0; x < 8; x++) {
            outside |= line[x];
            out[x] = (uint8_t)line[x];
        }
        if (__builtin_expect(outside & ~255, 0)) {
            for (int x = 0; x < 8; x++)
                out[x] = (uint8_t)CLAMP(line[x], 0, 255);
        }
    }
}

static void idct_block(const int16_t *block, uint64_t nonzero, uint8_t *out, size_t stride) {
    int16_t between[BLOCK];
    if (nonzero & ROWS_4_TO_7)
        idct_columns(block, nonzero, true, between);
    else
        idct_columns(block, nonzero, false, between);
    if (nonzero & COLUMNS_4_TO_7)
        idct_rows(between, true, out, stride);
    else
        idct_rows(between, false, out, stride);
}

void idct_scalar(const int16_t *blocks, const uint64_t *nonzero, uint32_t count, uint8_t *out, size_t stride) {
    for (uint32_t b = 0; b < count; b++, blocks += BLOCK, out += 8) {
        if (nonzero[b])
            idct_block(blocks, nonzero[b], out, stride);
        else
            fill_block(blocks[0], out, stride);
    }
}

/* Sufficient: with sums of magnitudes this small no implementation wraps, saturates or leaves its range table. */
static bool magnitudes_are_small(const int16_t *block) {
    int32_t sum = 0;
    for (uint32_t i = 0; i < BLOCK; i++)
        sum += block[i] < 0 ? -block[i] : block[i];
    return sum <= 2000;
}

/* Otherwise: the passes themselves, in 64 bits. 16-bit sums of two values, 16-bit results of the first pass, results
 * within the 10 bits of the library's range table. */
bool idct_is_safe(const int16_t block[BLOCK]) {
    if (magnitudes_are_small(block))
        return true;
    int16_t between[BLOCK];
    int32_t line[8];
    for (uint32_t i = 0; i < BLOCK; i++) {
        if (block[i] < -8191 || block[i] > 8191)
            return false;
    }
    for (int x = 0; x < 8; x++) {
        idct_line(block + x, 8, SHIFT1, ROUND1, true, line); /* 8 x 8191 x 11363 < 2^31: nothing wraps */
        for (int y = 0; y < 8; y++) {
            if (line[y] < -16383 || line[y] > 16383)
                return false;
            between[8 * y + x] = (int16_t)line[y];
        }
    }
    for (int y = 0; y < 8; y++) {
        idct_line(between + 8 * y, 1, SHIFT2, ROUND2, true, line); /* 8 x 16383 x 11363 < 2^31, with room for ROUND2 */
        for (int x = 0; x < 8; x++) {
            if (line[x] < 128 - 512 || line[x] > 128 + 511)
                return false;
        }
    }
    return true;
}

/* --- upsampling -------------------------------------------------------------------------------------------------- */

void across_scalar(const uint8_t *in, uint32_t count, uint8_t *out) {
    for (uint32_t i = 0; i < count; i++, in++) {
        uint32_t three = 3u * in[0];
        *out++ = (uint8_t)((three + in[-1] + 1) >> 2);
        *out++ = (uint8_t)((three + in[1] + 2) >> 2);
    }
}

void both_scalar(const uint8_t *near, const uint8_t *far, uint32_t count, uint16_t *sums, uint8_t *out) {
    (void)sums;
    uint32_t before = 3u * near[-1] + far[-1], here = 3u * near[0] + far[0];
    for (uint32_t i = 0; i < count; i++) {
        uint32_t next = 3u * near[i + 1] + far[i + 1];
        *out++ = (uint8_t)((3 * here + before + 8) >> 4);
        *out++ = (uint8_t)((3 * here + next + 7) >> 4);
        before = here;
        here = next;
    }
}

void down_scalar(const uint8_t *near, const uint8_t *far, uint32_t count, uint32_t bias, uint8_t *out) {
    for (uint32_t i = 0; i < count; i++)
        out[i] = (uint8_t)((3u * near[i] + far[i] + bias) >> 2);
}

/* --- colour ------------------------------------------------------------------------------------------------------ */

#define FIX(x) ((int32_t)((x)*65536 + 0.5))

/* What each value of Cr and Cb adds; green in 1/65536, with the half of the rounding in Cb's. */
static int32_t red_of[256], blue_of[256], green_of_cb[256], green_of_cr[256];

__attribute__((constructor)) static void make_color_tables(void) {
    for (int32_t i = 0; i < 256; i++) {
        int32_t x = i - 128;
        red_of[i] = (FIX(1.40200) * x + 32768) >> 16;
        blue_of[i] = (FIX(1.77200) * x + 32768) >> 16;
        green_of_cb[i] = -FIX(0.34414) * x + 32768;
        green_of_cr[i] = -FIX(0.71414) * x;
    }
}

void rgb_scalar(const uint8_t *y, const uint8_t *cb, const uint8_t *cr, uint32_t count, uint8_t *out) {
    for (uint32_t i = 0; i < count; i++, out += 3) {
        int32_t red = y[i] + red_of[cr[i]];
        int32_t green = y[i] + ((green_of_cb[cb[i]] + green_of_cr[cr[i]]) >> 16);
        int32_t blue = y[i] + blue_of[cb[i]];
        if (__builtin_expect((red | green | blue) & ~255, 0)) {
            red = CLAMP(red, 0, 255);
            green = CLAMP(green, 0, 255);
            blue = CLAMP(blue, 0, 255);
        }
        out[0] = (uint8_t)red;
        out[1] = (uint8_t)green;
        out[2] = (uint8_t)blue;
    }
}

void gray_scalar(const uint8_t *y, uint32_t count, uint8_t *out) {
    for (uint32_t i = 0; i < count; i++, out += 3)
        out[0] = out[1] = out[2] = y[i];
}
