/* SPDX-License-Identifier: MIT */
/*
 * The tile loops of coefficient records with AVX2 and BMI2 (Haswell, Zen and later). Same bytes as the scalar twin for
 * every input. Writes exactly what coefficients_internal.h allows; reads at most ROW_SLACK beyond rows. Pure.
 */
#include "decode/coefficients_internal.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include "base/util.h"

#define AVX2 __attribute__((target("avx2,bmi2,popcnt")))

#define UNPACK_NAME unpack_avx2
#define UNPACK_TARGET AVX2
#define DEPOSIT(bits, mask) _pdep_u64(bits, mask)
#define POPCOUNT(mask) (uint64_t) _mm_popcnt_u64(mask)
#include "decode/coefficients_unpack.h"

/* --- coefficients ------------------------------------------------------------------------------------------------ */

/*
 * A plane is 64 bits in zigzag order. spread() brings each byte of a vector its bit, already in the place where the
 * coefficient belongs: a byte shuffle brings the right byte of the plane, a mask leaves the right bit. The vectors hold
 * rows 0 2 | 1 3 and 4 6 | 5 7, so that unpacking their bytes to words puts the rows in order.
 */
static const uint8_t spread_byte[BLOCK] __attribute__((aligned(32))) = {
    7, 0, 0, 0, 1, 1, 3, 3, 0, 0, 1, 2, 3, 3, 5, 5, 0, 0, 0, 1, 1, 3, 3, 5, 1, 1, 2, 2, 3, 4, 5, 6,
    1, 2, 2, 3, 4, 5, 6, 6, 2, 4, 4, 5, 6, 6, 7, 7, 2, 2, 4, 4, 5, 6, 6, 7, 4, 4, 5, 6, 7, 7, 7, 7};
static const uint8_t spread_bit[BLOCK] __attribute__((aligned(32))) = {
    128, 1,   16, 32, 32, 64,  4,  8,   4,  128, 8,  1, 1,  32,  1,   4,  2, 8,  64, 16, 128, 2,
    16,  2,   1,  4,  2,  128, 64, 128, 8,  16,  2,  4, 64, 128, 64,  16, 8, 32, 16, 2,  16,  64,
    2,   128, 4,  16, 8,  32,  1,  32,  32, 4,   64, 8, 4,  8,   128, 1,  1, 2,  32, 64};

struct spread {
    __m256i byte, bit;
};

AVX2 static inline struct spread spread_half(uint32_t half) {
    return (struct spread){_mm256_load_si256((const __m256i *)(const void *)(spread_byte + 32 * half)),
                           _mm256_load_si256((const __m256i *)(const void *)(spread_bit + 32 * half))};
}

/* -1 where the plane's bit is set. */
AVX2 static inline __m256i spread(struct spread s, uint64_t plane) {
    __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi64x((int64_t)plane), s.byte);
    return _mm256_cmpeq_epi8(_mm256_and_si256(bytes, s.bit), s.bit);
}

/* The number of each coefficient in planes [0, count). */
AVX2 static inline __m256i gather_planes(struct spread s, const uint64_t *plane, uint32_t count) {
    __m256i value = _mm256_setzero_si256();
    while (count-- > 0)
        value = _mm256_sub_epi8(_mm256_add_epi8(value, value), spread(s, plane[count]));
    return value;
}

AVX2 static inline __m256i load(const void *p) {
    return _mm256_load_si256((const __m256i *)p);
}
AVX2 static inline void store(void *p, __m256i v) {
    _mm256_store_si256((__m256i *)p, v);
}

/* (e << order) - low, for e of up to 16 bits. Words: 16 coefficients from `n` on. */
AVX2 static inline __m256i magnitude_wide(__m256i e, __m256i low, const struct scale *scale, uint32_t n) {
    __m256i order = load(scale->order + n), shifted = e;
    for (uint32_t o = 1; o <= scale->order_most; o++) /* once more where the order is at least o */
        shifted = _mm256_add_epi16(
            shifted, _mm256_andnot_si256(_mm256_cmpgt_epi16(_mm256_set1_epi16((short)o), order), shifted));
    return _mm256_sub_epi16(shifted, low);
}

/* 16 coefficients: sign, times quantiser. */
AVX2 static inline __m256i finish(__m256i magnitude, __m256i sign) {
    return _mm256_sub_epi16(_mm256_xor_si256(magnitude, sign), sign);
}

AVX2 static inline void expand_half(const struct tile *tile, const struct scale *scale, uint32_t b, uint32_t half,
                                    int16_t *out) {
    struct spread s = spread_half(half);
    uint32_t bits = tile->bits[b], n = 32 * half;
    __m256i e = gather_planes(s, tile->plane[b], MIN(bits, 8u));
    __m256i low = gather_planes(s, tile->low[b], scale->order_most), sign = spread(s, tile->sign[b]);
    __m256i first, second, zero = _mm256_setzero_si256();
    if (bits <= 8) {
        const __m256i alternate = _mm256_set1_epi16((short)0xFF01); /* 1, -1 */
        __m256i pair0 = _mm256_sign_epi8(load(scale->pair + 2 * n), alternate);
        __m256i pair1 = _mm256_sign_epi8(load(scale->pair + 2 * n + 32), alternate);
        first = _mm256_maddubs_epi16(_mm256_unpacklo_epi8(e, low), pair0);
        second = _mm256_maddubs_epi16(_mm256_unpackhi_epi8(e, low), pair1);
    } else {
        __m256i high = gather_planes(s, tile->plane[b] + 8, bits - 8);
        first = magnitude_wide(_mm256_unpacklo_epi8(e, high), _mm256_unpacklo_epi8(low, zero), scale, n);
        second = magnitude_wide(_mm256_unpackhi_epi8(e, high), _mm256_unpackhi_epi8(low, zero), scale, n + 16);
    }
    first = finish(first, _mm256_unpacklo_epi8(sign, sign));
    second = finish(second, _mm256_unpackhi_epi8(sign, sign));
    if (half == 0)
        first = _mm256_blend_epi32(
            first, _mm256_castsi128_si256(_mm_insert_epi16(_mm256_castsi256_si128(first), tile->dc[b], 0)), 0x0F);
    store(out + n, _mm256_mullo_epi16(first, load(scale->quantiser + n)));
    store(out + n + 16, _mm256_mullo_epi16(second, load(scale->quantiser + n + 16)));
}

AVX2 static void expand_avx2(const struct tile *tile, const struct scale *scale, uint32_t first, uint32_t count,
                             int16_t *out) {
    const __m256i zero = _mm256_setzero_si256();
    for (uint32_t b = first; b < first + count; b++, out += BLOCK) {
        if (tile->bits[b] == 0) {
            uint32_t dc = (uint16_t)((uint32_t)tile->dc[b] * (uint32_t)scale->quantiser[0]);
            store(out, _mm256_zextsi128_si256(_mm_cvtsi32_si128((int)dc)));
            store(out + 16, zero);
            store(out + 32, zero);
            store(out + 48, zero);
            continue;
        }
        expand_half(tile, scale, b, 0, out);
        expand_half(tile, scale, b, 1, out);
    }
}

/* --- inverse DCT ------------------------------------------------------------------------------------------------- */

#define LANES_TARGET AVX2
typedef __m256i lanes;
#define UNPACK_LOW8 _mm256_unpacklo_epi8
#define UNPACK_HIGH8 _mm256_unpackhi_epi8
#define UNPACK_LOW16 _mm256_unpacklo_epi16
#define UNPACK_HIGH16 _mm256_unpackhi_epi16
#define UNPACK_LOW32 _mm256_unpacklo_epi32
#define UNPACK_HIGH32 _mm256_unpackhi_epi32
#define UNPACK_LOW64 _mm256_unpacklo_epi64
#define UNPACK_HIGH64 _mm256_unpackhi_epi64
#define SET32 _mm256_set1_epi32
#define ADD32 _mm256_add_epi32
#define SUB32 _mm256_sub_epi32
#define SHIFT32 _mm256_srai_epi32
#define PACK32 _mm256_packs_epi32
#define PACK16 _mm256_packus_epi16
#define MULTIPLY _mm256_madd_epi16
#define ACCUMULATE(sum, pairs, factors) _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, factors))
#include "decode/idct_lanes.h"

/* Two blocks of a DC coefficient only. */
AVX2 static inline void fill_pair(const int16_t *blocks, uint8_t *out, size_t stride) {
    __m128i dc = _mm_unpacklo_epi64(_mm_set1_epi16(blocks[0]), _mm_set1_epi16(blocks[BLOCK]));
    __m128i sample = _mm_srai_epi16(_mm_adds_epi16(dc, _mm_set1_epi16(4 + 128 * 8)), 3);
    __m128i row = _mm_unpacklo_epi64(_mm_shuffle_epi32(_mm_packus_epi16(sample, sample), 0),
                                     _mm_shuffle_epi32(_mm_packus_epi16(sample, sample), 0x55));
    for (int y = 0; y < 8; y++, out += stride)
        _mm_storeu_si128((__m128i *)(void *)out, row);
}

AVX2 static void idct_avx2(const int16_t *blocks, const uint64_t *nonzero, uint32_t count, uint8_t *out,
                           size_t stride) {
    for (uint32_t b = 0; b < count; b += 2, blocks += 2 * BLOCK, out += 16) {
        uint64_t any = nonzero[b] | (b + 1 < count ? nonzero[b + 1] : 0);
        if (any == 0) {
            fill_pair(blocks, out, stride);
            continue;
        }
        lanes v[8], rows[4];
        UNROLL for (int i = 0; i < 8; i++) v[i] = _mm256_inserti128_si256(
            _mm256_castsi128_si256(_mm_load_si128((const __m128i *)(const void *)(blocks + 8 * i))),
            _mm_load_si128((const __m128i *)(const void *)(blocks + BLOCK + 8 * i)), 1);
        idct_lanes(v, any, rows);
        UNROLL for (int i = 0; i < 4; i++) {
            __m256i pair = _mm256_permute4x64_epi64(rows[i], 0xD8);
            _mm_storeu_si128((__m128i *)(void *)(out + (size_t)(2 * i) * stride), _mm256_castsi256_si128(pair));
            _mm_storeu_si128((__m128i *)(void *)(out + (size_t)(2 * i + 1) * stride),
                             _mm256_extracti128_si256(pair, 1));
        }
    }
}

/* --- upsampling -------------------------------------------------------------------------------------------------- */

AVX2 static inline __m256i load_words(const uint8_t *p) {
    return _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)p));
}
AVX2 static inline __m256i loadu(const void *p) {
    return _mm256_loadu_si256((const __m256i *)p);
}
AVX2 static inline __m256i triple(__m256i x) {
    return _mm256_add_epi16(_mm256_add_epi16(x, x), x);
}

AVX2 static void across_avx2(const uint8_t *in, uint32_t count, uint8_t *out) {
    for (uint32_t i = 0; i < count; i += 16) {
        __m256i three = triple(load_words(in + i));
        __m256i even = _mm256_add_epi16(three, _mm256_add_epi16(load_words(in + i - 1), _mm256_set1_epi16(1)));
        __m256i odd = _mm256_add_epi16(three, _mm256_add_epi16(load_words(in + i + 1), _mm256_set1_epi16(2)));
        odd = _mm256_slli_epi16(_mm256_srli_epi16(odd, 2), 8);
        _mm256_storeu_si256((__m256i *)(void *)(out + 2 * i), _mm256_or_si256(_mm256_srli_epi16(even, 2), odd));
    }
}

AVX2 static void both_avx2(const uint8_t *near, const uint8_t *far, uint32_t count, uint16_t *sums, uint8_t *out) {
    for (uint32_t i = 0; i < count + 2; i += 16) /* sums[i] is column i - 1 */
        _mm256_storeu_si256((__m256i *)(void *)(sums + i),
                            _mm256_add_epi16(triple(load_words(near + i - 1)), load_words(far + i - 1)));
    for (uint32_t i = 0; i < count; i += 16) {
        __m256i three = triple(loadu(sums + i + 1));
        __m256i even = _mm256_add_epi16(three, _mm256_add_epi16(loadu(sums + i), _mm256_set1_epi16(8)));
        __m256i odd = _mm256_add_epi16(three, _mm256_add_epi16(loadu(sums + i + 2), _mm256_set1_epi16(7)));
        odd = _mm256_slli_epi16(_mm256_srli_epi16(odd, 4), 8);
        _mm256_storeu_si256((__m256i *)(void *)(out + 2 * i), _mm256_or_si256(_mm256_srli_epi16(even, 4), odd));
    }
}

AVX2 static void down_avx2(const uint8_t *near, const uint8_t *far, uint32_t count, uint32_t bias, uint8_t *out) {
    __m256i half = _mm256_set1_epi16((short)bias), zero = _mm256_setzero_si256();
    for (uint32_t i = 0; i < count; i += 32) {
        __m256i n = loadu(near + i), f = loadu(far + i);
        __m256i low = _mm256_add_epi16(triple(_mm256_unpacklo_epi8(n, zero)), _mm256_unpacklo_epi8(f, zero));
        __m256i high = _mm256_add_epi16(triple(_mm256_unpackhi_epi8(n, zero)), _mm256_unpackhi_epi8(f, zero));
        low = _mm256_srli_epi16(_mm256_add_epi16(low, half), 2);
        high = _mm256_srli_epi16(_mm256_add_epi16(high, half), 2);
        _mm256_storeu_si256((__m256i *)(void *)(out + i), _mm256_packus_epi16(low, high));
    }
}

/* --- colour ------------------------------------------------------------------------------------------------------ */

struct rgb {
    __m256i r, g, b;
};

/* 16 pixels, in words. 1.402 = 1 + 13173/32768 and 1.772 = 2 - 7471/32768 round as the library's 16-bit fractions do,
 * for all 256 values; green needs all its bits. */
AVX2 static inline struct rgb convert(__m256i y, __m256i cb, __m256i cr) {
    const __m256i center = _mm256_set1_epi16(128), half = _mm256_set1_epi32(32768);
    const __m256i factors = _mm256_set1_epi32((int32_t)((uint32_t)(uint16_t)-22554 | UINT32_C(18734) << 16));
    cb = _mm256_sub_epi16(cb, center);
    cr = _mm256_sub_epi16(cr, center);
    __m256i low = _mm256_madd_epi16(_mm256_unpacklo_epi16(cb, cr), factors);
    __m256i high = _mm256_madd_epi16(_mm256_unpackhi_epi16(cb, cr), factors);
    low = _mm256_srai_epi32(_mm256_add_epi32(low, half), 16);
    high = _mm256_srai_epi32(_mm256_add_epi32(high, half), 16);
    struct rgb result;
    result.g = _mm256_add_epi16(_mm256_sub_epi16(y, cr), _mm256_packs_epi32(low, high));
    result.r = _mm256_add_epi16(_mm256_add_epi16(y, cr), _mm256_mulhrs_epi16(cr, _mm256_set1_epi16(13173)));
    result.b = _mm256_add_epi16(_mm256_add_epi16(y, _mm256_add_epi16(cb, cb)),
                                _mm256_mulhrs_epi16(cb, _mm256_set1_epi16(-7471)));
    return result;
}

/* 32 pixels to 96 bytes. Pixel p of a channel goes to byte 3p + c modulo 16 of its lane; the vectors are then put
 * together by blends. */
AVX2 static inline void store_rgb(struct rgb p, uint8_t *out) {
    const __m256i place_r =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 11, 6, 1, 12, 7, 2, 13, 8, 3, 14, 9, 4, 15, 10, 5));
    const __m256i place_g =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(5, 0, 11, 6, 1, 12, 7, 2, 13, 8, 3, 14, 9, 4, 15, 10));
    const __m256i place_b =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(10, 5, 0, 11, 6, 1, 12, 7, 2, 13, 8, 3, 14, 9, 4, 15));
    const __m256i at1 = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0));
    const __m256i at2 = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0));
    __m256i r = _mm256_shuffle_epi8(p.r, place_r), g = _mm256_shuffle_epi8(p.g, place_g);
    __m256i b = _mm256_shuffle_epi8(p.b, place_b);
    __m256i v0 = _mm256_blendv_epi8(_mm256_blendv_epi8(r, g, at1), b, at2); /* bytes 0-15 of each lane's 48 */
    __m256i v1 = _mm256_blendv_epi8(_mm256_blendv_epi8(g, b, at1), r, at2);
    __m256i v2 = _mm256_blendv_epi8(_mm256_blendv_epi8(b, r, at1), g, at2);
    _mm256_storeu_si256((__m256i *)(void *)out, _mm256_permute2x128_si256(v0, v1, 0x20));
    _mm256_storeu_si256((__m256i *)(void *)(out + 32), _mm256_permute2x128_si256(v2, v0, 0x30));
    _mm256_storeu_si256((__m256i *)(void *)(out + 64), _mm256_permute2x128_si256(v1, v2, 0x31));
}

AVX2 static inline void rgb_32(const uint8_t *y, const uint8_t *cb, const uint8_t *cr, uint8_t *out) {
    const __m256i zero = _mm256_setzero_si256();
    __m256i luma = loadu(y), blue = loadu(cb), red = loadu(cr);
    struct rgb low =
        convert(_mm256_unpacklo_epi8(luma, zero), _mm256_unpacklo_epi8(blue, zero), _mm256_unpacklo_epi8(red, zero));
    struct rgb high =
        convert(_mm256_unpackhi_epi8(luma, zero), _mm256_unpackhi_epi8(blue, zero), _mm256_unpackhi_epi8(red, zero));
    struct rgb bytes = {_mm256_packus_epi16(low.r, high.r), _mm256_packus_epi16(low.g, high.g),
                        _mm256_packus_epi16(low.b, high.b)};
    store_rgb(bytes, out);
}

AVX2 static void rgb_avx2(const uint8_t *y, const uint8_t *cb, const uint8_t *cr, uint32_t count, uint8_t *out) {
    uint32_t i = 0;
    for (; i + 32 <= count; i += 32)
        rgb_32(y + i, cb + i, cr + i, out + 3 * i);
    if (i < count) {
        uint8_t last[96];
        rgb_32(y + i, cb + i, cr + i, last);
        memcpy(out + 3 * i, last, 3 * (size_t)(count - i));
    }
}

AVX2 static void gray_avx2(const uint8_t *y, uint32_t count, uint8_t *out) {
    uint32_t i = 0;
    for (; i + 32 <= count; i += 32)
        store_rgb((struct rgb){loadu(y + i), loadu(y + i), loadu(y + i)}, out + 3 * i);
    gray_scalar(y + i, count - i, out + 3 * i);
}

const struct coefficients_twin coefficients_avx2 = {
    .name = "avx2",
    .unpack = unpack_avx2,
    .expand = expand_avx2,
    .idct = idct_avx2,
    .across = across_avx2,
    .both = both_avx2,
    .down = down_avx2,
    .rgb = rgb_avx2,
    .gray = gray_avx2,
};

#endif
