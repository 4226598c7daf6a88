/* SPDX-License-Identifier: MIT */
/*
 * The resampling passes with AVX-512 (BW, VL, VBMI and VNNI: Ice Lake, Zen 4 and later). Same bytes as the scalar twin:
 * a 24-bit weight is three signed 8-bit digits, w = 65536 a + 256 b + c, and VPDPBUSD sums four products of a u8 pixel
 * and a digit exactly, so that the three sums put together are the scalar's 32-bit sum. Reads nothing outside of the
 * rows (masked loads) and writes nothing outside of the outputs (masked stores). Pure but for the pack functions, which
 * write the axis; an axis belongs to one worker.
 */
#include "transform/internal.h"

#if defined(__x86_64__)

#include <errno.h>
#include <immintrin.h>
#include <string.h>

#include "base/util.h"

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni,avx2")))
#define INLINE static inline __attribute__((always_inline)) AVX512
#if defined(__clang__)
#define UNROLL /* does so by itself */
#else
#define UNROLL _Pragma("GCC unroll 4") /* keeps the small arrays of vectors in registers */
#endif
#define LANES 16
#define TAPS 4
#define ROWS 4 /* of the horizontal pass at once */

/* One step of a group: a load of up to 64 bytes, the shuffle, the digits of the weights. */
struct step {
    uint32_t index[LANES], digit[3][LANES]; /* four bytes a lane */
    uint64_t offset, mask;                  /* of the load, from the start of the row */
    uint8_t padding[48];
};
_Static_assert(sizeof(struct step) == 320, "step");

/* Packing. --------------------------------------------------------------------------------------------------------- */

/* The digits of up to four weights, one word of four digits each; missing weights are 0. */
struct words {
    uint32_t a, b, c;
};

static struct words split_weights(const int32_t *weights, uint32_t count) {
    struct words r = {0, 0, 0};
    for (uint32_t t = 0; t < count; t++) {
        uint32_t digits = ((uint32_t)weights[t] + 0x808080u) ^ 0x808080u; /* 128 more, then less, in each digit */
        r.a |= (digits >> 16 & 255) << (8 * t);
        r.b |= (digits >> 8 & 255) << (8 * t);
        r.c |= (digits & 255) << (8 * t);
    }
    return r;
}

/* Weights of a sound filter are below 2 in absolute value; their highest digit then fits. */
static bool weights_fit(const struct axis *axis) {
    size_t cells = (size_t)axis->key.count * axis->taps;
    int32_t least = 0, most = 0;
    for (size_t i = 0; i < cells; i++) {
        least = MIN(least, axis->weights[i]);
        most = MAX(most, axis->weights[i]);
    }
    return least > -(127 << 16) && most < (127 << 16);
}

/* False where the pixels of the step span more than one load. */
static bool pack_step(const struct axis *axis, uint32_t group, uint32_t number, struct step *step) {
    uint32_t channels = axis->key.channels;
    uint64_t low = UINT64_MAX, high = 0, first[LANES];
    struct lane lanes[LANES];
    uint32_t count[LANES];
    for (uint32_t l = 0; l < LANES; l++) {
        lanes[l] = axis_lane(axis, LANES, TAPS, group, number, l);
        if (!lanes[l].used)
            continue;
        count[l] = MIN(axis->number[lanes[l].output] - lanes[l].tap, TAPS);
        first[l] = ((uint64_t)axis->begin[lanes[l].output] + lanes[l].tap) * channels + lanes[l].channel;
        low = MIN(low, first[l]);
        high = MAX(high, first[l] + (uint64_t)(count[l] - 1) * channels + 1);
    }
    memset(step, 0, sizeof *step);
    if (!high)
        return true; /* nothing to load: mask 0 */
    if (high - low > 64)
        return false;
    step->offset = low;
    step->mask = UINT64_MAX >> (64 - (high - low));
    struct words words = {0, 0, 0};
    const int32_t *before = NULL;
    for (uint32_t l = 0; l < LANES; l++) {
        if (!lanes[l].used)
            continue;
        const int32_t *weights = axis->weights + (size_t)lanes[l].output * axis->taps + lanes[l].tap;
        if (weights != before) /* the channels of a pixel share them */
            words = split_weights(weights, count[l]);
        before = weights;
        step->digit[0][l] = words.a;
        step->digit[1][l] = words.b;
        step->digit[2][l] = words.c;
        /* Four indices; those of missing weights, which may be past the load, bring some pixel for weight 0. */
        step->index[l] = (uint32_t)(first[l] - low) * 0x01010101u + channels * 0x03020100u;
    }
    return true;
}

static int pack_form(struct axis *axis, bool reduce, bool *ret_fits) {
    axis_form(axis, reduce, LANES, TAPS);
    uint64_t bytes;
    if (!mul_u64((uint64_t)axis->groups * axis->steps, sizeof(struct step), &bytes))
        return -EOVERFLOW;
    int r = scratch_reserve(&axis->packed, bytes);
    if (r < 0)
        return r;
    struct step *step = (struct step *)(void *)axis->packed.data;
    *ret_fits = true;
    for (uint32_t g = 0; g < axis->groups && *ret_fits; g++)
        for (uint32_t s = 0; s < axis->steps && *ret_fits; s++)
            *ret_fits = pack_step(axis, g, s, step++);
    return 0;
}

/* Vertical: for output i and rows 4q ... 4q + 3 three words of digits. */
static int pack_vertical(struct axis *axis) {
    axis->groups = axis->key.count;
    axis->steps = (axis->taps + TAPS - 1) / TAPS;
    uint64_t bytes = (uint64_t)axis->groups * axis->steps * sizeof(struct words);
    int r = scratch_reserve(&axis->packed, bytes);
    if (r < 0)
        return r;
    struct words *words = (struct words *)(void *)axis->packed.data;
    for (uint32_t i = 0; i < axis->key.count; i++)
        for (uint32_t s = 0; s < axis->steps; s++)
            *words++ =
                split_weights(axis->weights + (size_t)i * axis->taps + s * TAPS, MIN(axis->taps - s * TAPS, TAPS));
    return 0;
}

static int pack(struct axis *axis) {
    bool fits = false;
    if (!weights_fit(axis))
        return 0; /* groups stays 0 */
    if (!axis->key.channels)
        return pack_vertical(axis);
    int r = pack_form(axis, false, &fits);
    return r < 0 || fits ? r : pack_form(axis, true, &fits);
}

/* Passes. ---------------------------------------------------------------------------------------------------------- */

/* The 32-bit sum of the three digits' sums, rounded and in whole units. */
INLINE __m512i finish(__m512i a, __m512i b, __m512i c) {
    __m512i sum = _mm512_add_epi32(_mm512_slli_epi32(a, 16), _mm512_add_epi32(_mm512_slli_epi32(b, 8), c));
    return _mm512_srai_epi32(sum, WEIGHT_BITS);
}

INLINE __m512i half_unit(void) {
    return _mm512_set1_epi32(1 << (WEIGHT_BITS - 1));
}

INLINE void direct_rows(const struct axis *axis, const uint8_t *source, size_t stride, uint32_t rows, uint8_t *out,
                        size_t out_stride) {
    const struct step *step = (const struct step *)(const void *)axis->packed.data;
    size_t bytes = (size_t)axis->key.count * axis->key.channels;
    for (size_t at = 0; at < bytes; at += LANES) {
        __m512i a[ROWS], b[ROWS], c[ROWS];
        UNROLL for (uint32_t r = 0; r < rows; r++) {
            a[r] = b[r] = _mm512_setzero_si512();
            c[r] = half_unit();
        }
        for (uint32_t s = 0; s < axis->steps; s++, step++) {
            __m512i index = _mm512_load_si512(step->index);
            __m512i wa = _mm512_load_si512(step->digit[0]), wb = _mm512_load_si512(step->digit[1]);
            __m512i wc = _mm512_load_si512(step->digit[2]);
            UNROLL for (uint32_t r = 0; r < rows; r++) {
                __m512i p = _mm512_maskz_loadu_epi8(step->mask, source + r * stride + step->offset);
                p = _mm512_permutexvar_epi8(index, p);
                a[r] = _mm512_dpbusd_epi32(a[r], p, wa);
                b[r] = _mm512_dpbusd_epi32(b[r], p, wb);
                c[r] = _mm512_dpbusd_epi32(c[r], p, wc);
            }
        }
        __mmask16 store = bytes - at >= LANES ? 0xffff : (__mmask16)((1u << (bytes - at)) - 1);
        UNROLL for (uint32_t r = 0; r < rows; r++) {
            __m512i sum = _mm512_max_epi32(finish(a[r], b[r], c[r]), _mm512_setzero_si512());
            _mm_mask_storeu_epi8(out + r * out_stride + at, store, _mm512_cvtusepi32_epi8(sum));
        }
    }
}

INLINE void reduce_rows(const struct axis *axis, const uint8_t *source, size_t stride, uint32_t rows, uint8_t *out,
                        size_t out_stride) {
    const struct step *step = (const struct step *)(const void *)axis->packed.data;
    uint32_t channels = axis->key.channels;
    for (uint32_t i = 0; i < axis->key.count; i++) {
        __m512i a[ROWS], b[ROWS], c[ROWS];
        UNROLL for (uint32_t r = 0; r < rows; r++) a[r] = b[r] = c[r] = _mm512_setzero_si512();
        for (uint32_t s = 0; s < axis->steps; s++, step++) {
            __m512i index = _mm512_load_si512(step->index);
            __m512i wa = _mm512_load_si512(step->digit[0]), wb = _mm512_load_si512(step->digit[1]);
            __m512i wc = _mm512_load_si512(step->digit[2]);
            UNROLL for (uint32_t r = 0; r < rows; r++) {
                __m512i p = _mm512_maskz_loadu_epi8(step->mask, source + r * stride + step->offset);
                p = _mm512_permutexvar_epi8(index, p);
                a[r] = _mm512_dpbusd_epi32(a[r], p, wa);
                b[r] = _mm512_dpbusd_epi32(b[r], p, wb);
                c[r] = _mm512_dpbusd_epi32(c[r], p, wc);
            }
        }
        UNROLL for (uint32_t r = 0; r < rows; r++) {
            __m512i sum =
                _mm512_add_epi32(_mm512_slli_epi32(a[r], 16), _mm512_add_epi32(_mm512_slli_epi32(b[r], 8), c[r]));
            __m256i half = _mm256_add_epi32(_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64(sum, 1));
            __m128i slot = _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
            if (channels == 1) {
                slot = _mm_add_epi32(slot, _mm_shuffle_epi32(slot, 0x4e));
                slot = _mm_add_epi32(slot, _mm_shuffle_epi32(slot, 0xb1));
            }
            slot = _mm_srai_epi32(_mm_add_epi32(slot, _mm_set1_epi32(1 << (WEIGHT_BITS - 1))), WEIGHT_BITS);
            slot = _mm_packus_epi16(_mm_packs_epi32(slot, slot), slot);
            uint32_t pixel = (uint32_t)_mm_cvtsi128_si32(slot);
            memcpy(out + r * out_stride + (size_t)i * channels, &pixel, channels == 1 ? 1 : 3);
        }
    }
}

AVX512 static void horizontal(const struct axis *axis, const uint8_t *source, size_t stride, uint32_t rows,
                              uint8_t *out, size_t out_stride) {
    if (!axis->groups) {
        horizontal_scalar(axis, source, stride, rows, out, out_stride);
        return;
    }
    for (; rows >= ROWS; rows -= ROWS, source += ROWS * stride, out += ROWS * out_stride) {
        if (axis->reduce)
            reduce_rows(axis, source, stride, ROWS, out, out_stride);
        else
            direct_rows(axis, source, stride, ROWS, out, out_stride);
    }
    for (; rows; rows--, source += stride, out += out_stride) {
        if (axis->reduce)
            reduce_rows(axis, source, stride, 1, out, out_stride);
        else
            direct_rows(axis, source, stride, 1, out, out_stride);
    }
}

/* 64 output bytes at x. `last` is the last row that may be read: rows behind it have weight 0. */
INLINE void vertical_block(const struct words *words, uint32_t steps, const uint8_t *source, size_t stride,
                           uint32_t last, size_t x, __mmask64 mask, uint8_t *out) {
    __m512i a[4], b[4], c[4];
    UNROLL for (int k = 0; k < 4; k++) {
        a[k] = b[k] = _mm512_setzero_si512();
        c[k] = half_unit();
    }
    source += x;
    for (uint32_t s = 0; s < steps; s++, words++) {
        uint32_t row = s * TAPS;
        __m512i r0 = _mm512_maskz_loadu_epi8(mask, source + (size_t)MIN(row, last) * stride);
        __m512i r1 = _mm512_maskz_loadu_epi8(mask, source + (size_t)MIN(row + 1, last) * stride);
        __m512i r2 = _mm512_maskz_loadu_epi8(mask, source + (size_t)MIN(row + 2, last) * stride);
        __m512i r3 = _mm512_maskz_loadu_epi8(mask, source + (size_t)MIN(row + 3, last) * stride);
        __m512i low01 = _mm512_unpacklo_epi8(r0, r1), high01 = _mm512_unpackhi_epi8(r0, r1);
        __m512i low23 = _mm512_unpacklo_epi8(r2, r3), high23 = _mm512_unpackhi_epi8(r2, r3);
        __m512i p[4] = {_mm512_unpacklo_epi16(low01, low23), _mm512_unpackhi_epi16(low01, low23),
                        _mm512_unpacklo_epi16(high01, high23), _mm512_unpackhi_epi16(high01, high23)};
        __m512i wa = _mm512_set1_epi32((int32_t)words->a), wb = _mm512_set1_epi32((int32_t)words->b);
        __m512i wc = _mm512_set1_epi32((int32_t)words->c);
        UNROLL for (int k = 0; k < 4; k++) {
            a[k] = _mm512_dpbusd_epi32(a[k], p[k], wa);
            b[k] = _mm512_dpbusd_epi32(b[k], p[k], wb);
            c[k] = _mm512_dpbusd_epi32(c[k], p[k], wc);
        }
    }
    __m512i low = _mm512_packs_epi32(finish(a[0], b[0], c[0]), finish(a[1], b[1], c[1]));
    __m512i high = _mm512_packs_epi32(finish(a[2], b[2], c[2]), finish(a[3], b[3], c[3]));
    _mm512_mask_storeu_epi8(out + x, mask, _mm512_packus_epi16(low, high));
}

AVX512 static void vertical(const struct axis *axis, uint32_t index, const uint8_t *source, size_t stride, uint8_t *out,
                            size_t bytes) {
    if (!axis->groups) {
        vertical_scalar(axis, index, source, stride, out, bytes);
        return;
    }
    uint32_t last = axis->number[index] - 1, steps = last / TAPS + 1;
    const struct words *words = (const struct words *)(const void *)axis->packed.data + (size_t)index * axis->steps;
    size_t x = 0;
    for (; x + 64 <= bytes; x += 64)
        vertical_block(words, steps, source, stride, last, x, UINT64_MAX, out);
    if (x < bytes)
        vertical_block(words, steps, source, stride, last, x, UINT64_MAX >> (64 - (bytes - x)), out);
}

const struct twin twin_avx512 = {"avx512", pack, horizontal, vertical, output_scalar};

#endif
