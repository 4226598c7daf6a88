/* SPDX-License-Identifier: MIT */
/*
 * The resampling passes with AVX2. Same bytes as the scalar twin: a weight is split, w = 2048 h + l with 0 <= l < 2048,
 * and VPMADDWD sums two products of a pixel and a half exactly, so that the two sums put together are the scalar's
 * 32-bit sum. Reads nothing outside of the rows (loads near the end of a row start earlier) and writes nothing outside
 * of the outputs. Pure but for the pack functions, which write the axis; an axis belongs to one worker.
 */
#include "transform/internal.h"

#if defined(__x86_64__)

#include <errno.h>
#include <immintrin.h>
#include <string.h>

#include "base/util.h"

#define AVX2 __attribute__((target("avx2")))
#define INLINE static inline __attribute__((always_inline)) AVX2
#if defined(__clang__)
#define UNROLL /* does so by itself */
#else
#define UNROLL _Pragma("GCC unroll 4") /* keeps the small arrays of vectors in registers */
#endif
#define LANES 8
#define HALF (LANES / 2) /* lanes that one 16-byte load feeds */
#define TAPS 2
#define ROWS 4 /* of the horizontal pass at once */
#define LOW_BITS 11

/* One step of a group: two loads of 16 bytes, the shuffle to 16-bit pixels, the halves of the weights. */
struct step {
    uint32_t index[LANES], high[LANES], low[LANES]; /* two 16-bit parts a lane */
    uint32_t offset[2];                             /* of the loads, from the start of the row */
    uint8_t padding[24];
};
_Static_assert(sizeof(struct step) == 128, "step");

/* Packing. --------------------------------------------------------------------------------------------------------- */

/* The halves of one or two weights, as pairs in a word; a missing weight is 0. */
struct pair {
    uint32_t high, low;
};

static struct pair split_weights(const int32_t *weights, uint32_t count) {
    const uint32_t mask = (1u << LOW_BITS) - 1;
    int32_t second = count > 1 ? weights[1] : 0;
    return (struct pair){((uint32_t)(weights[0] >> LOW_BITS) & 0xffff) | ((uint32_t)(second >> LOW_BITS) << 16),
                         ((uint32_t)weights[0] & mask) | (((uint32_t)second & mask) << 16)};
}

/* Half `half` of a step. False where its pixels span more than one load. */
static bool pack_half(const struct axis *axis, uint32_t group, uint32_t number, uint32_t half, struct step *step) {
    uint32_t channels = axis->key.channels, count[HALF];
    uint64_t low = UINT64_MAX, high = 0, row = (uint64_t)axis->length * channels, first[HALF];
    struct lane lanes[HALF];
    for (uint32_t l = 0; l < HALF; l++) {
        lanes[l] = axis_lane(axis, LANES, TAPS, group, number, half * HALF + l);
        if (!lanes[l].used)
            continue;
        count[l] = MIN(axis->number[lanes[l].output] - lanes[l].tap, TAPS);
        first[l] = ((uint64_t)axis->begin[lanes[l].output] + lanes[l].tap) * channels + lanes[l].channel;
        low = MIN(low, first[l]);
        high = MAX(high, first[l] + (uint64_t)(count[l] - 1) * channels + 1);
    }
    if (!high)
        return true; /* loads the start of the row, with weight 0 */
    if (high - low > 16)
        return false;
    low = MIN(low, row - 16);
    step->offset[half] = (uint32_t)low;
    for (uint32_t l = 0; l < HALF; l++) {
        if (!lanes[l].used)
            continue;
        struct pair pair = split_weights(axis->weights + (size_t)lanes[l].output * axis->taps + lanes[l].tap, count[l]);
        uint32_t lane = half * HALF + l, at = (uint32_t)(first[l] - low);
        step->high[lane] = pair.high;
        step->low[lane] = pair.low;
        step->index[lane] = 0x80008000u | at | (count[l] > 1 ? (at + channels) << 16 : 0x800000u);
    }
    return true;
}

static bool pack_step(const struct axis *axis, uint32_t group, uint32_t number, struct step *step) {
    memset(step, 0, sizeof *step);
    memset(step->index, 0x80, sizeof step->index); /* VPSHUFB: zero */
    return pack_half(axis, group, number, 0, step) && pack_half(axis, group, number, 1, step);
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

/* Vertical: for output i and rows 2q, 2q + 1 a pair. */
static int pack_vertical(struct axis *axis) {
    axis->groups = axis->key.count;
    axis->steps = (axis->taps + TAPS - 1) / TAPS;
    int r = scratch_reserve(&axis->packed, (uint64_t)axis->groups * axis->steps * sizeof(struct pair));
    if (r < 0)
        return r;
    struct pair *pair = (struct pair *)(void *)axis->packed.data;
    for (uint32_t i = 0; i < axis->key.count; i++)
        for (uint32_t s = 0; s < axis->steps; s++)
            *pair++ = split_weights(axis->weights + (size_t)i * axis->taps + s * TAPS, axis->taps - s * TAPS);
    return 0;
}

static int pack(struct axis *axis) {
    bool fits = false;
    if (!axis->key.channels)
        return pack_vertical(axis);
    uint64_t row = (uint64_t)axis->length * axis->key.channels;
    if (row < 16 || row > UINT32_MAX)
        return 0; /* groups stays 0 */
    int r = pack_form(axis, false, &fits);
    return r < 0 || fits ? r : pack_form(axis, true, &fits);
}

/* Passes. ---------------------------------------------------------------------------------------------------------- */

INLINE __m256i half_unit(void) {
    return _mm256_set1_epi32(1 << (WEIGHT_BITS - 1));
}

INLINE __m256i finish(__m256i high, __m256i low) {
    return _mm256_srai_epi32(_mm256_add_epi32(_mm256_slli_epi32(high, LOW_BITS), low), WEIGHT_BITS);
}

/* The sums of all steps of a group for `rows` rows; *step moves on. */
INLINE void group_sums(const struct step **step, uint32_t steps, const uint8_t *source, size_t stride, uint32_t rows,
                       __m256i high[ROWS], __m256i low[ROWS]) {
    const struct step *at = *step;
    UNROLL for (uint32_t s = 0; s < steps; s++, at++) {
        __m256i index = _mm256_load_si256((const __m256i *)(const void *)at->index);
        __m256i wh = _mm256_load_si256((const __m256i *)(const void *)at->high);
        __m256i wl = _mm256_load_si256((const __m256i *)(const void *)at->low);
        UNROLL for (uint32_t r = 0; r < rows; r++) {
            const uint8_t *row = source + r * stride;
            __m256i p = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)(row + at->offset[0])));
            p = _mm256_inserti128_si256(p, _mm_loadu_si128((const __m128i *)(const void *)(row + at->offset[1])), 1);
            p = _mm256_shuffle_epi8(p, index);
            high[r] = _mm256_add_epi32(high[r], _mm256_madd_epi16(p, wh));
            low[r] = _mm256_add_epi32(low[r], _mm256_madd_epi16(p, wl));
        }
    }
    *step = at;
}

/* The groups' outputs of one row, or of ROWS at once, to the eight bytes of each. */
INLINE void store_group(const __m256i sum[ROWS], uint32_t rows, uint8_t *out, size_t out_stride) {
    if (rows == 1) {
        __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(sum[0]), _mm256_extracti128_si256(sum[0], 1));
        _mm_storel_epi64((__m128i *)(void *)out, _mm_packus_epi16(words, words));
        return;
    }
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256i bytes = _mm256_packus_epi16(_mm256_packs_epi32(sum[0], sum[1]), _mm256_packs_epi32(sum[2], sum[3]));
    bytes = _mm256_permutevar8x32_epi32(bytes, order);
    __m128i first = _mm256_castsi256_si128(bytes), second = _mm256_extracti128_si256(bytes, 1);
    _mm_storel_epi64((__m128i *)(void *)out, first);
    _mm_storeh_pd((double *)(void *)(out + out_stride), _mm_castsi128_pd(first));
    _mm_storel_epi64((__m128i *)(void *)(out + 2 * out_stride), second);
    _mm_storeh_pd((double *)(void *)(out + 3 * out_stride), _mm_castsi128_pd(second));
}

/* `steps` are the axis's, known to the compiler where they are few. */
INLINE void direct_steps(const struct axis *axis, uint32_t steps, const uint8_t *source, size_t stride, uint32_t rows,
                         uint8_t *out, size_t out_stride) {
    const struct step *step = (const struct step *)(const void *)axis->packed.data;
    size_t bytes = (size_t)axis->key.count * axis->key.channels;
    for (size_t at = 0; at < bytes; at += LANES) {
        __m256i high[ROWS], low[ROWS];
        UNROLL for (uint32_t r = 0; r < rows; r++) {
            high[r] = _mm256_setzero_si256();
            low[r] = half_unit();
        }
        group_sums(&step, steps, source, stride, rows, high, low);
        UNROLL for (uint32_t r = 0; r < rows; r++) high[r] = finish(high[r], low[r]);
        if (__builtin_expect(bytes - at >= LANES, 1)) {
            store_group(high, rows, out + at, out_stride);
        } else {
            uint8_t last[ROWS][LANES];
            store_group(high, rows, last[0], LANES);
            for (uint32_t r = 0; r < rows; r++)
                memcpy(out + r * out_stride + at, last[r], bytes - at);
        }
    }
}

INLINE void direct_rows(const struct axis *axis, const uint8_t *source, size_t stride, uint32_t rows, uint8_t *out,
                        size_t out_stride) {
    switch (axis->steps) {
    case 1:
        direct_steps(axis, 1, source, stride, rows, out, out_stride);
        break;
    case 2:
        direct_steps(axis, 2, source, stride, rows, out, out_stride);
        break;
    case 3:
        direct_steps(axis, 3, source, stride, rows, out, out_stride);
        break;
    default:
        direct_steps(axis, axis->steps, source, stride, rows, out, out_stride);
    }
}

INLINE void reduce_rows(const struct axis *axis, const uint8_t *source, size_t stride, uint32_t rows, uint8_t *out,
                        size_t out_stride) {
    const struct step *step = (const struct step *)(const void *)axis->packed.data;
    uint32_t channels = axis->key.channels;
    for (uint32_t i = 0; i < axis->key.count; i++) {
        __m256i high[ROWS], low[ROWS];
        UNROLL for (uint32_t r = 0; r < rows; r++) high[r] = low[r] = _mm256_setzero_si256();
        group_sums(&step, axis->steps, source, stride, rows, high, low);
        UNROLL for (uint32_t r = 0; r < rows; r++) {
            __m256i sum = _mm256_add_epi32(_mm256_slli_epi32(high[r], LOW_BITS), low[r]);
            __m128i slot = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
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

AVX2 static void horizontal(const struct axis *axis, const uint8_t *source, size_t stride, uint32_t rows, uint8_t *out,
                            size_t out_stride) {
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

/* 32 output bytes at x. `last` is the last row that may be read: rows behind it have weight 0. */
INLINE __m256i vertical_block(const struct pair *pair, uint32_t steps, const uint8_t *source, size_t stride,
                              uint32_t last) {
    __m256i high[4], low[4];
    UNROLL for (int k = 0; k < 4; k++) {
        high[k] = _mm256_setzero_si256();
        low[k] = half_unit();
    }
    for (uint32_t s = 0; s < steps; s++, pair++) {
        const uint8_t *row0 = source + (size_t)s * TAPS * stride;
        const uint8_t *row1 = source + (size_t)MIN(s * TAPS + 1, last) * stride;
        __m256i r0 = _mm256_loadu_si256((const __m256i *)(const void *)row0);
        __m256i r1 = _mm256_loadu_si256((const __m256i *)(const void *)row1);
        __m256i first = _mm256_unpacklo_epi8(r0, r1), second = _mm256_unpackhi_epi8(r0, r1);
        __m256i zero = _mm256_setzero_si256();
        __m256i p[4] = {_mm256_unpacklo_epi8(first, zero), _mm256_unpackhi_epi8(first, zero),
                        _mm256_unpacklo_epi8(second, zero), _mm256_unpackhi_epi8(second, zero)};
        __m256i wh = _mm256_set1_epi32((int32_t)pair->high), wl = _mm256_set1_epi32((int32_t)pair->low);
        UNROLL for (int k = 0; k < 4; k++) {
            high[k] = _mm256_add_epi32(high[k], _mm256_madd_epi16(p[k], wh));
            low[k] = _mm256_add_epi32(low[k], _mm256_madd_epi16(p[k], wl));
        }
    }
    __m256i words0 = _mm256_packs_epi32(finish(high[0], low[0]), finish(high[1], low[1]));
    __m256i words1 = _mm256_packs_epi32(finish(high[2], low[2]), finish(high[3], low[3]));
    return _mm256_packus_epi16(words0, words1);
}

AVX2 static void vertical(const struct axis *axis, uint32_t index, const uint8_t *source, size_t stride, uint8_t *out,
                          size_t bytes) {
    if (bytes < 32 || !axis->groups) {
        vertical_scalar(axis, index, source, stride, out, bytes);
        return;
    }
    uint32_t last = axis->number[index] - 1, steps = last / TAPS + 1;
    const struct pair *pair = (const struct pair *)(const void *)axis->packed.data + (size_t)index * axis->steps;
    for (size_t x = 0; x < bytes; x += 32) {
        if (x + 32 > bytes)
            x = bytes - 32; /* the last block again covers part of the one before */
        __m256i pixels = vertical_block(pair, steps, source + x, stride, last);
        _mm256_storeu_si256((__m256i *)(void *)(out + x), pixels);
    }
}

const struct twin twin_avx2 = {"avx2", pack, horizontal, vertical, output_scalar};

#endif
