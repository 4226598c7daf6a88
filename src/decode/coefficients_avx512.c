/* SPDX-License-Identifier: MIT */
/*
 * The tile loops of coefficient records with AVX-512 (BW, DQ, VL, VBMI, VBMI2, VNNI) and GFNI: Ice Lake, Zen 4 and
 * later. Same bytes as the scalar twin for every input. Writes exactly what coefficients_internal.h allows; reads at
 * most ROW_SLACK beyond rows. Pure.
 */
#include "decode/coefficients_internal.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include "base/util.h"

#define AVX512                                                                                                         \
    __attribute__((                                                                                                    \
        target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,avx512vnni,gfni,avx2,bmi2,popcnt")))

#define UNPACK_NAME unpack_avx512
#define UNPACK_TARGET AVX512
#define DEPOSIT(bits, mask) _pdep_u64(bits, mask)
#define POPCOUNT(mask) (uint64_t) _mm_popcnt_u64(mask)
#include "decode/coefficients_unpack.h"

/* --- coefficients ------------------------------------------------------------------------------------------------ */

/*
 * Eight planes are eight 64-bit words, one register. A byte permute collects byte i of every plane in word i; a GFNI
 * product of that word, as a matrix, with the unit vectors then transposes its 8 x 8 bits: byte m of word i is the
 * number of coefficient 8i + m + 1 in zigzag order.
 */
static const uint8_t plane_bytes[64] __attribute__((aligned(64))) = {
    56, 48, 40, 32, 24, 16, 8,  0,  57, 49, 41, 33, 25, 17, 9,  1,  58, 50, 42, 34, 26, 18,
    10, 2,  59, 51, 43, 35, 27, 19, 11, 3,  60, 52, 44, 36, 28, 20, 12, 4,  61, 53, 45, 37,
    29, 21, 13, 5,  62, 54, 46, 38, 30, 22, 14, 6,  63, 55, 47, 39, 31, 23, 15, 7};
/* For each coefficient in natural order its byte of the first operand, then that of the second. Position 0 takes byte
 * 63, which is 0. */
static const uint8_t weave_bytes[128] __attribute__((aligned(64))) = {
    63, 127, 0,  64,  4,  68,  5,  69,  13, 77,  14, 78,  26, 90,  27, 91,  1,  65,  3,  67,  6,  70,  12, 76,  15, 79,
    25, 89,  28, 92,  41, 105, 2,  66,  7,  71,  11, 75,  16, 80,  24, 88,  29, 93,  40, 104, 42, 106, 8,  72,  10, 74,
    17, 81,  23, 87,  30, 94,  39, 103, 43, 107, 52, 116, 9,  73,  18, 82,  22, 86,  31, 95,  38, 102, 44, 108, 51, 115,
    53, 117, 19, 83,  21, 85,  32, 96,  37, 101, 45, 109, 50, 114, 54, 118, 59, 123, 20, 84,  33, 97,  36, 100, 46, 110,
    49, 113, 55, 119, 58, 122, 60, 124, 34, 98,  35, 99,  47, 111, 48, 112, 56, 120, 57, 121, 61, 125, 62, 126};

AVX512 static inline __m512i load(const void *p) {
    return _mm512_load_si512(p);
}
AVX512 static inline void store(void *p, __m512i v) {
    _mm512_store_si512(p, v);
}

AVX512 static inline __m512i transpose_planes(__m512i planes) {
    __m512i units = _mm512_set1_epi64((int64_t)0x8040201008040201);
    return _mm512_gf2p8affine_epi64_epi8(units, _mm512_permutexvar_epi8(load(plane_bytes), planes), 0);
}

/* Coefficients of a block whose e have up to 7 bits: signed bytes, (e << order) - low by a dot product of pairs. */
AVX512 static inline void expand_narrow(__m512i e, __m512i low, __mmask64 sign, const struct scale *scale, int16_t dc,
                                        int16_t *out) {
    const __m512i zero = _mm512_setzero_si512();
    e = _mm512_mask_sub_epi8(e, sign, zero, e);
    low = _mm512_mask_sub_epi8(low, _knot_mask64(sign), zero, low);
    __m512i pair0 = _mm512_permutex2var_epi8(e, load(weave_bytes), low);
    __m512i pair1 = _mm512_permutex2var_epi8(e, load(weave_bytes + 64), low);
    __m512i first = _mm512_maddubs_epi16(load(scale->pair), pair0);
    __m512i second = _mm512_maddubs_epi16(load(scale->pair + 64), pair1);
    first = _mm512_mask_set1_epi16(first, 1, dc);
    store(out, _mm512_mullo_epi16(first, load(scale->quantiser)));
    store(out + 32, _mm512_mullo_epi16(second, load(scale->quantiser + 32)));
}

AVX512 static inline __m512i wide_half(__m512i e, __m512i low, __m512i sign, const struct scale *scale, uint32_t n) {
    __m512i value = _mm512_sub_epi16(_mm512_sllv_epi16(e, load(scale->order + n)), low);
    return _mm512_mask_sub_epi16(value, _mm512_movepi16_mask(sign), _mm512_setzero_si512(), value);
}

/* Any e: 16-bit words of its low and high bytes. */
AVX512 static inline void expand_wide(__m512i e, __m512i high, __m512i low, __mmask64 sign, const struct scale *scale,
                                      int16_t dc, int16_t *out) {
    const __m512i zero = _mm512_setzero_si512(), order0 = load(weave_bytes), order1 = load(weave_bytes + 64);
    __m512i signs = _mm512_movm_epi8(sign);
    __m512i first = wide_half(_mm512_permutex2var_epi8(e, order0, high), _mm512_permutex2var_epi8(low, order0, zero),
                              _mm512_permutex2var_epi8(zero, order0, signs), scale, 0);
    __m512i second = wide_half(_mm512_permutex2var_epi8(e, order1, high), _mm512_permutex2var_epi8(low, order1, zero),
                               _mm512_permutex2var_epi8(zero, order1, signs), scale, 32);
    first = _mm512_mask_set1_epi16(first, 1, dc);
    store(out, _mm512_mullo_epi16(first, load(scale->quantiser)));
    store(out + 32, _mm512_mullo_epi16(second, load(scale->quantiser + 32)));
}

AVX512 static void expand_avx512(const struct tile *tile, const struct scale *scale, uint32_t first, uint32_t count,
                                 int16_t *out) {
    const __mmask8 low_planes = (__mmask8)((1u << scale->order_most) - 1);
    for (uint32_t b = first; b < first + count; b++, out += BLOCK) {
        __mmask64 sign = tile->sign[b];
        __m512i e, low;
        if (tile->bits[b] == 0) {
            uint32_t dc = (uint16_t)((uint32_t)tile->dc[b] * (uint32_t)scale->quantiser[0]);
            store(out, _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)dc)));
            store(out + 32, _mm512_setzero_si512());
            continue;
        }
        e = transpose_planes(load(tile->plane[b]));
        low = transpose_planes(_mm512_maskz_loadu_epi64(low_planes, tile->low[b]));
        if (tile->bits[b] <= 7) {
            expand_narrow(e, low, sign, scale, tile->dc[b], out);
        } else {
            __m512i high = tile->bits[b] > 8 ? transpose_planes(load(tile->plane[b] + 8)) : _mm512_setzero_si512();
            expand_wide(e, high, low, sign, scale, tile->dc[b], out);
        }
    }
}

/* --- inverse DCT ------------------------------------------------------------------------------------------------- */

#define LANES_TARGET AVX512
typedef __m512i lanes;
#define UNPACK_LOW8 _mm512_unpacklo_epi8
#define UNPACK_HIGH8 _mm512_unpackhi_epi8
#define UNPACK_LOW16 _mm512_unpacklo_epi16
#define UNPACK_HIGH16 _mm512_unpackhi_epi16
#define UNPACK_LOW32 _mm512_unpacklo_epi32
#define UNPACK_HIGH32 _mm512_unpackhi_epi32
#define UNPACK_LOW64 _mm512_unpacklo_epi64
#define UNPACK_HIGH64 _mm512_unpackhi_epi64
#define SET32 _mm512_set1_epi32
#define ADD32 _mm512_add_epi32
#define SUB32 _mm512_sub_epi32
#define SHIFT32 _mm512_srai_epi32
#define PACK32 _mm512_packs_epi32
#define PACK16 _mm512_packus_epi16
#define MULTIPLY _mm512_madd_epi16
#define ACCUMULATE _mm512_dpwssd_epi32
#include "decode/idct_lanes.h"

/* Four rows of four blocks, a block a register, to the four blocks' rows. */
AVX512 static inline void gather_rows(const int16_t *blocks, lanes v[4]) {
    __m512i b0 = load(blocks), b1 = load(blocks + BLOCK), b2 = load(blocks + 2 * BLOCK), b3 = load(blocks + 3 * BLOCK);
    __m512i low01 = _mm512_shuffle_i64x2(b0, b1, 0x44), high01 = _mm512_shuffle_i64x2(b0, b1, 0xEE);
    __m512i low23 = _mm512_shuffle_i64x2(b2, b3, 0x44), high23 = _mm512_shuffle_i64x2(b2, b3, 0xEE);
    v[0] = _mm512_shuffle_i64x2(low01, low23, 0x88);
    v[1] = _mm512_shuffle_i64x2(low01, low23, 0xDD);
    v[2] = _mm512_shuffle_i64x2(high01, high23, 0x88);
    v[3] = _mm512_shuffle_i64x2(high01, high23, 0xDD);
}

/* Four blocks of a DC coefficient only. */
AVX512 static inline void fill_four(const int16_t *blocks, uint8_t *out, size_t stride) {
    __m128i dc = _mm_setr_epi16(blocks[0], blocks[BLOCK], blocks[2 * BLOCK], blocks[3 * BLOCK], 0, 0, 0, 0);
    __m128i sample = _mm_srai_epi16(_mm_adds_epi16(dc, _mm_set1_epi16(4 + 128 * 8)), 3);
    __m256i bytes = _mm256_cvtepu8_epi64(_mm_packus_epi16(sample, sample));
    __m256i row = _mm256_shuffle_epi8(bytes, _mm256_setr_epi64x(0, 0x0808080808080808, 0, 0x0808080808080808));
    for (int y = 0; y < 8; y++, out += stride)
        _mm256_storeu_si256((__m256i *)(void *)out, row);
}

AVX512 static void idct_avx512(const int16_t *blocks, const uint64_t *nonzero, uint32_t count, uint8_t *out,
                               size_t stride) {
    const __m512i halves = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    for (uint32_t b = 0; b < count; b += 4, blocks += 4 * BLOCK, out += 32) {
        uint64_t any = 0;
        for (uint32_t i = b; i < MIN(b + 4, count); i++)
            any |= nonzero[i];
        if (any == 0) {
            fill_four(blocks, out, stride);
            continue;
        }
        lanes v[8], rows[4];
        gather_rows(blocks, v);
        gather_rows(blocks + 32, v + 4);
        idct_lanes(v, any, rows);
        UNROLL for (int i = 0; i < 4; i++) {
            __m512i pair = _mm512_permutexvar_epi64(halves, rows[i]);
            _mm256_storeu_si256((__m256i *)(void *)(out + (size_t)(2 * i) * stride), _mm512_castsi512_si256(pair));
            _mm256_storeu_si256((__m256i *)(void *)(out + (size_t)(2 * i + 1) * stride),
                                _mm512_extracti64x4_epi64(pair, 1));
        }
    }
}

/* --- upsampling -------------------------------------------------------------------------------------------------- */

AVX512 static inline __m512i load_words(const uint8_t *p) {
    return _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
AVX512 static inline __m512i triple(__m512i x) {
    return _mm512_add_epi16(_mm512_add_epi16(x, x), x);
}

AVX512 static void across_avx512(const uint8_t *in, uint32_t count, uint8_t *out) {
    for (uint32_t i = 0; i < count; i += 32) {
        __m512i three = triple(load_words(in + i));
        __m512i even = _mm512_add_epi16(three, _mm512_add_epi16(load_words(in + i - 1), _mm512_set1_epi16(1)));
        __m512i odd = _mm512_add_epi16(three, _mm512_add_epi16(load_words(in + i + 1), _mm512_set1_epi16(2)));
        odd = _mm512_slli_epi16(_mm512_srli_epi16(odd, 2), 8);
        _mm512_storeu_si512(out + 2 * i, _mm512_or_si512(_mm512_srli_epi16(even, 2), odd));
    }
}

AVX512 static void both_avx512(const uint8_t *near, const uint8_t *far, uint32_t count, uint16_t *sums, uint8_t *out) {
    for (uint32_t i = 0; i < count + 2; i += 32) /* sums[i] is column i - 1 */
        _mm512_storeu_si512(sums + i, _mm512_add_epi16(triple(load_words(near + i - 1)), load_words(far + i - 1)));
    for (uint32_t i = 0; i < count; i += 32) {
        __m512i three = triple(_mm512_loadu_si512(sums + i + 1));
        __m512i even = _mm512_add_epi16(three, _mm512_add_epi16(_mm512_loadu_si512(sums + i), _mm512_set1_epi16(8)));
        __m512i odd = _mm512_add_epi16(three, _mm512_add_epi16(_mm512_loadu_si512(sums + i + 2), _mm512_set1_epi16(7)));
        odd = _mm512_slli_epi16(_mm512_srli_epi16(odd, 4), 8);
        _mm512_storeu_si512(out + 2 * i, _mm512_or_si512(_mm512_srli_epi16(even, 4), odd));
    }
}

AVX512 static void down_avx512(const uint8_t *near, const uint8_t *far, uint32_t count, uint32_t bias, uint8_t *out) {
    __m512i half = _mm512_set1_epi16((short)bias), zero = _mm512_setzero_si512();
    for (uint32_t i = 0; i < count; i += 64) {
        __m512i n = _mm512_loadu_si512(near + i), f = _mm512_loadu_si512(far + i);
        __m512i low = _mm512_add_epi16(triple(_mm512_unpacklo_epi8(n, zero)), _mm512_unpacklo_epi8(f, zero));
        __m512i high = _mm512_add_epi16(triple(_mm512_unpackhi_epi8(n, zero)), _mm512_unpackhi_epi8(f, zero));
        low = _mm512_srli_epi16(_mm512_add_epi16(low, half), 2);
        high = _mm512_srli_epi16(_mm512_add_epi16(high, half), 2);
        _mm512_storeu_si512(out + i, _mm512_packus_epi16(low, high));
    }
}

/* --- colour ------------------------------------------------------------------------------------------------------ */

struct rgb {
    __m512i r, g, b;
};

/* 32 pixels, in words. 1.402 = 1 + 13173/32768 and 1.772 = 2 - 7471/32768 round as the library's 16-bit fractions do,
 * for all 256 values; green needs all its bits. */
AVX512 static inline struct rgb convert(__m512i y, __m512i cb, __m512i cr) {
    const __m512i center = _mm512_set1_epi16(128), half = _mm512_set1_epi32(32768);
    const __m512i factors = _mm512_set1_epi32((int32_t)((uint32_t)(uint16_t)-22554 | UINT32_C(18734) << 16));
    cb = _mm512_sub_epi16(cb, center);
    cr = _mm512_sub_epi16(cr, center);
    __m512i low = _mm512_srai_epi32(_mm512_dpwssd_epi32(half, _mm512_unpacklo_epi16(cb, cr), factors), 16);
    __m512i high = _mm512_srai_epi32(_mm512_dpwssd_epi32(half, _mm512_unpackhi_epi16(cb, cr), factors), 16);
    struct rgb result;
    result.g = _mm512_add_epi16(_mm512_sub_epi16(y, cr), _mm512_packs_epi32(low, high));
    result.r = _mm512_add_epi16(_mm512_add_epi16(y, cr), _mm512_mulhrs_epi16(cr, _mm512_set1_epi16(13173)));
    result.b = _mm512_add_epi16(_mm512_add_epi16(y, _mm512_add_epi16(cb, cb)),
                                _mm512_mulhrs_epi16(cb, _mm512_set1_epi16(-7471)));
    return result;
}

/* 64 pixels to 192 bytes: pixel p of channel c goes to byte 3p + c modulo 64, then blends make the registers. */
static const uint8_t place_r[64] __attribute__((aligned(64))) = {
    0,  43, 22, 1,  44, 23, 2,  45, 24, 3,  46, 25, 4,  47, 26, 5,  48, 27, 6,  49, 28, 7,
    50, 29, 8,  51, 30, 9,  52, 31, 10, 53, 32, 11, 54, 33, 12, 55, 34, 13, 56, 35, 14, 57,
    36, 15, 58, 37, 16, 59, 38, 17, 60, 39, 18, 61, 40, 19, 62, 41, 20, 63, 42, 21};
static const uint8_t place_g[64] __attribute__((aligned(64))) = {
    21, 0,  43, 22, 1,  44, 23, 2,  45, 24, 3,  46, 25, 4,  47, 26, 5,  48, 27, 6,  49, 28,
    7,  50, 29, 8,  51, 30, 9,  52, 31, 10, 53, 32, 11, 54, 33, 12, 55, 34, 13, 56, 35, 14,
    57, 36, 15, 58, 37, 16, 59, 38, 17, 60, 39, 18, 61, 40, 19, 62, 41, 20, 63, 42};
static const uint8_t place_b[64] __attribute__((aligned(64))) = {
    42, 21, 0,  43, 22, 1,  44, 23, 2,  45, 24, 3,  46, 25, 4,  47, 26, 5,  48, 27, 6,  49,
    28, 7,  50, 29, 8,  51, 30, 9,  52, 31, 10, 53, 32, 11, 54, 33, 12, 55, 34, 13, 56, 35,
    14, 57, 36, 15, 58, 37, 16, 59, 38, 17, 60, 39, 18, 61, 40, 19, 62, 41, 20, 63};
#define EVERY_THIRD1 UINT64_C(0x2492492492492492) /* bytes 1, 4, 7 ... */
#define EVERY_THIRD2 UINT64_C(0x4924924924924924)

struct rgb_bytes {
    __m512i v[3];
};

AVX512 static inline struct rgb_bytes weave(struct rgb p) {
    __m512i r = _mm512_permutexvar_epi8(load(place_r), p.r), g = _mm512_permutexvar_epi8(load(place_g), p.g);
    __m512i b = _mm512_permutexvar_epi8(load(place_b), p.b);
    struct rgb_bytes result; /* byte k of register j belongs to channel (64 j + k) mod 3 */
    result.v[0] = _mm512_mask_mov_epi8(_mm512_mask_mov_epi8(r, EVERY_THIRD1, g), EVERY_THIRD2, b);
    result.v[1] = _mm512_mask_mov_epi8(_mm512_mask_mov_epi8(g, EVERY_THIRD1, b), EVERY_THIRD2, r);
    result.v[2] = _mm512_mask_mov_epi8(_mm512_mask_mov_epi8(b, EVERY_THIRD1, r), EVERY_THIRD2, g);
    return result;
}

AVX512 static inline struct rgb_bytes convert_64(const uint8_t *y, const uint8_t *cb, const uint8_t *cr) {
    const __m512i zero = _mm512_setzero_si512();
    __m512i luma = _mm512_loadu_si512(y), blue = _mm512_loadu_si512(cb), red = _mm512_loadu_si512(cr);
    struct rgb low =
        convert(_mm512_unpacklo_epi8(luma, zero), _mm512_unpacklo_epi8(blue, zero), _mm512_unpacklo_epi8(red, zero));
    struct rgb high =
        convert(_mm512_unpackhi_epi8(luma, zero), _mm512_unpackhi_epi8(blue, zero), _mm512_unpackhi_epi8(red, zero));
    return weave((struct rgb){_mm512_packus_epi16(low.r, high.r), _mm512_packus_epi16(low.g, high.g),
                              _mm512_packus_epi16(low.b, high.b)});
}

/* The first `bytes` of the 192, at most. */
AVX512 static inline void store_rgb(struct rgb_bytes p, uint8_t *out, uint32_t bytes) {
    for (uint32_t i = 0; i < 3 && bytes > 64 * i; i++) {
        uint32_t rest = bytes - 64 * i;
        _mm512_mask_storeu_epi8(out + 64 * i, rest < 64 ? UINT64_MAX >> (64 - rest) : UINT64_MAX, p.v[i]);
    }
}

AVX512 static inline void store_all(struct rgb_bytes p, uint8_t *out) {
    _mm512_storeu_si512(out, p.v[0]);
    _mm512_storeu_si512(out + 64, p.v[1]);
    _mm512_storeu_si512(out + 128, p.v[2]);
}

AVX512 static void rgb_avx512(const uint8_t *y, const uint8_t *cb, const uint8_t *cr, uint32_t count, uint8_t *out) {
    uint32_t i = 0;
    for (; i + 64 <= count; i += 64)
        store_all(convert_64(y + i, cb + i, cr + i), out + 3 * i);
    if (i < count)
        store_rgb(convert_64(y + i, cb + i, cr + i), out + 3 * i, 3 * (count - i));
}

AVX512 static void gray_avx512(const uint8_t *y, uint32_t count, uint8_t *out) {
    for (uint32_t i = 0; i < count; i += 64) {
        __m512i v = _mm512_loadu_si512(y + i);
        store_rgb(weave((struct rgb){v, v, v}), out + 3 * i, 3 * MIN(count - i, 64u));
    }
}

const struct coefficients_twin coefficients_avx512 = {
    .name = "avx512",
    .unpack = unpack_avx512,
    .expand = expand_avx512,
    .idct = idct_avx512,
    .across = across_avx512,
    .both = both_avx512,
    .down = down_avx512,
    .rgb = rgb_avx512,
    .gray = gray_avx512,
};

#endif
