/* SPDX-License-Identifier: MIT */
/*
 * Resampling weights of one axis and the scalar passes over pixels: for 8-bit pixels equal to Pillow's Image.resize()
 * bit for bit, in the order of the passes that Pillow had up to 12.x: horizontal first. (Since 13.0 it resamples
 * vertically first where the height loses more than twice the pixels that the width loses; some of those then differ by
 * one.) Never allocates outside axis_fill(); an axis belongs to one worker.
 *
 * The formulas are those of Pillow's src/libImaging/Resample.c (precompute_coeffs, normalize_coeffs_8bpc: antialiasing
 * support, weights normalised in binary64, then rounded to 22 fractional bits; each pass rounds to u8) and, for
 * FILTER_NEAREST, of Geometry.c (ImagingScaleAffine: the coordinate is a running sum). Operations stand in Pillow's
 * order, since the rounding of each counts.
 */
#include "transform/internal.h"

#include <errno.h>
#include <string.h>

#include "base/util.h"

#ifdef __FAST_MATH__
#error "weights must be computed with exactly rounded operations: do not use -ffast-math"
#endif

/* Beyond it the nearest coordinate is a product instead of a running sum, which would take too long: only
 * a hostile header, or a crop of a picture no memory holds, asks for such a side. */
#define NEAREST_SUM_MAX (1u << 20)

/* Buffers. --------------------------------------------------------------------------------------------------------- */

int scratch_reserve(struct buffer *buffer, uint64_t bytes) {
    if (bytes <= buffer->capacity)
        return 0;
    uint64_t wanted = bytes;
    if (bytes > PTRDIFF_MAX / 2)
        return -ENOMEM;
    wanted = align_up(bytes + bytes / 8, 4096); /* some more, so that slowly growing pictures seldom move it */
    uint8_t *data = aligned_alloc(64, (size_t)wanted);
    if (!data)
        return -ENOMEM;
    free(buffer->data);
    buffer->data = data;
    buffer->capacity = (size_t)wanted;
    return 0;
}

void scratch_deinit(struct buffer *buffer) {
    free(buffer->data);
    *buffer = (struct buffer)BUFFER_INIT;
}

/* Weights. --------------------------------------------------------------------------------------------------------- */

static double filter_bilinear(double x) {
    if (x < 0.0)
        x = -x;
    return x < 1.0 ? 1.0 - x : 0.0;
}

static double filter_bicubic(double x) {
    const double a = -0.5;
    if (x < 0.0)
        x = -x;
    if (x < 1.0)
        return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
    if (x < 2.0)
        return (((x - 5) * x + 8) * x - 4) * a;
    return 0.0;
}

static bool key_identity(const struct axis_key *key) {
    return key->in == key->full;
}

struct scale {
    double step, inverse, support; /* source pixels an output; 1 / width of the filter; its half width in pixels */
};

static struct scale key_scale(const struct axis_key *key) {
    struct scale s;
    s.step = (double)(float)key->in / (double)key->full;
    double width = s.step < 1.0 ? 1.0 : s.step;
    s.support = (key->filter == FILTER_BICUBIC ? 2.0 : 1.0) * width;
    s.inverse = 1.0 / width;
    return s;
}

/* Source pixels [*ret_begin, *ret_end) of one output. */
static void filtered_interval(const struct axis_key *key, const struct scale *s, uint32_t output, uint32_t *ret_begin,
                              uint32_t *ret_end) {
    double centre = (output + 0.5) * s->step;
    int64_t begin = (int64_t)(centre - s->support + 0.5), end = (int64_t)(centre + s->support + 0.5);
    begin = CLAMP(begin, 0, (int64_t)key->in - 1);
    end = CLAMP(end, begin + 1, (int64_t)key->in);
    *ret_begin = (uint32_t)begin;
    *ret_end = (uint32_t)end;
}

/* Source pixels of outputs [first, first + count) with FILTER_NEAREST; `ret` may be NULL. */
static void nearest_pixels(const struct axis_key *key, uint32_t *ret, uint32_t *ret_first, uint32_t *ret_last) {
    double step = (double)key->in / (double)key->full, at = step * 0.5;
    bool sum = key->full <= NEAREST_SUM_MAX;
    for (uint32_t i = 0; sum && i < key->first; i++)
        at += step;
    for (uint32_t i = 0; i < key->count; i++) {
        if (!sum)
            at = ((double)key->first + i + 0.5) * step;
        uint32_t pixel = at < (double)key->in ? (uint32_t)at : key->in - 1;
        if (ret)
            ret[i] = pixel;
        if (i == 0)
            *ret_first = pixel;
        *ret_last = pixel;
        at += step;
    }
}

void axis_interval(const struct axis_key *key, uint32_t *ret_start, uint32_t *ret_length) {
    uint32_t first = key->first, last = key->first + key->count - 1, unused;
    if (key_identity(key)) {
        /* as it is */
    } else if (key->filter == FILTER_NEAREST) {
        nearest_pixels(key, NULL, &first, &last);
    } else {
        struct scale s = key_scale(key);
        filtered_interval(key, &s, key->first + key->count - 1, &unused, &last);
        filtered_interval(key, &s, key->first, &first, &unused);
        last--;
    }
    *ret_start = first;
    *ret_length = last - first + 1;
}

/* Where output i (counted from first) stands in the tables. */
static uint32_t place(const struct axis_key *key, uint32_t i) {
    return key->mirror ? key->count - 1 - i : i;
}

/* binary64 weights of one output into `work`, normalised, then in fixed point into `ret`. */
static void output_weights(const struct axis_key *key, const struct scale *s, uint32_t output, uint32_t begin,
                           uint32_t number, double *work, int32_t *ret) {
    double centre = (output + 0.5) * s->step, total = 0.0;
    for (uint32_t t = 0; t < number; t++) {
        double x = (double)((int64_t)t + (int64_t)begin) - centre + 0.5;
        x *= s->inverse;
        work[t] = key->filter == FILTER_BICUBIC ? filter_bicubic(x) : filter_bilinear(x);
        total += work[t];
    }
    for (uint32_t t = 0; t < number; t++) {
        double w = total != 0.0 ? work[t] / total : work[t];
        w *= (double)(1 << WEIGHT_BITS);
        ret[t] = (int32_t)(w < 0 ? -0.5 + w : 0.5 + w);
    }
}

static int reserve_tables(struct axis *axis, bool weights) {
    uint64_t count = axis->key.count, cells, bytes;
    if (!mul_u64(count, weights ? axis->taps : 0, &cells) || !mul_u64(cells, sizeof(int32_t), &bytes))
        return -EOVERFLOW;
    uint64_t lists = align_up(2 * count * sizeof(uint32_t), 64), work = align_up(axis->taps * sizeof(double), 64);
    if (!add_u64(bytes, lists + work, &bytes))
        return -EOVERFLOW;
    int r = scratch_reserve(&axis->memory, bytes);
    if (r < 0)
        return r;
    axis->begin = (uint32_t *)(void *)axis->memory.data;
    axis->number = axis->begin + count;
    axis->weights = weights ? (int32_t *)(void *)(axis->memory.data + lists + work) : NULL;
    return 0;
}

static int fill_filtered(struct axis *axis) {
    const struct axis_key *key = &axis->key;
    struct scale s = key_scale(key);
    axis->taps = 1;
    for (uint32_t i = 0; i < key->count; i++) {
        uint32_t begin, end;
        filtered_interval(key, &s, key->first + i, &begin, &end);
        axis->taps = MAX(axis->taps, end - begin);
    }
    int r = reserve_tables(axis, true);
    if (r < 0)
        return r;
    double *work = (double *)(void *)(axis->memory.data + align_up(2 * (uint64_t)key->count * sizeof(uint32_t), 64));
    for (uint32_t i = 0; i < key->count; i++) {
        uint32_t begin, end, at = place(key, i);
        int32_t *weights = axis->weights + (size_t)at * axis->taps;
        filtered_interval(key, &s, key->first + i, &begin, &end);
        output_weights(key, &s, key->first + i, begin, end - begin, work, weights);
        memset(weights + (end - begin), 0, (axis->taps - (end - begin)) * sizeof *weights);
        axis->begin[at] = begin - axis->start;
        axis->number[at] = end - begin;
    }
    return 0;
}

/* Outputs that are one source pixel each: nearest, and a mirrored copy (weight 1). */
static int fill_single(struct axis *axis) {
    const struct axis_key *key = &axis->key;
    bool nearest = key->filter == FILTER_NEAREST;
    axis->taps = 1;
    int r = reserve_tables(axis, !nearest);
    if (r < 0)
        return r;
    uint32_t first, last;
    if (nearest && !key_identity(key))
        nearest_pixels(key, axis->begin, &first, &last);
    for (uint32_t i = 0; i < key->count; i++) {
        axis->begin[i] = nearest && !key_identity(key) ? axis->begin[i] - axis->start : i;
        axis->number[i] = 1;
        if (axis->weights)
            axis->weights[i] = 1 << WEIGHT_BITS;
    }
    for (uint32_t i = 0; key->mirror && i < key->count / 2; i++) {
        uint32_t swapped = axis->begin[i];
        axis->begin[i] = axis->begin[key->count - 1 - i];
        axis->begin[key->count - 1 - i] = swapped;
    }
    return 0;
}

int axis_fill(struct axis *axis, const struct axis_key *key) {
    axis->key = *key;
    axis->groups = axis->steps = 0;
    axis->reduce = false;
    axis->identity = key_identity(key) && !key->mirror;
    axis_interval(key, &axis->start, &axis->length);
    if (key->filter == FILTER_NEAREST || key_identity(key))
        return fill_single(axis);
    return fill_filtered(axis);
}

void axis_form(struct axis *axis, bool reduce, uint32_t lanes, uint32_t taps) {
    uint64_t bytes = (uint64_t)axis->key.count * axis->key.channels;
    uint32_t slots = !reduce ? 1 : axis->key.channels == 1 ? lanes : lanes / 4;
    axis->reduce = reduce;
    axis->groups = reduce ? axis->key.count : (uint32_t)((bytes + lanes - 1) / lanes);
    axis->steps = (axis->taps + slots * taps - 1) / (slots * taps);
}

void axis_deinit(struct axis *axis) {
    scratch_deinit(&axis->memory);
    scratch_deinit(&axis->packed);
    memset(axis, 0, sizeof *axis);
}

/* Scalar passes. --------------------------------------------------------------------------------------------------- */

static uint8_t clip8(int32_t sum) {
    sum >>= WEIGHT_BITS;
    return (uint8_t)CLAMP(sum, 0, 255);
}

#define ROUND (1 << (WEIGHT_BITS - 1))

static void horizontal_rgb(const struct axis *axis, const uint8_t *source, uint8_t *out) {
    for (uint32_t i = 0; i < axis->key.count; i++) {
        const uint8_t *p = source + 3 * (size_t)axis->begin[i];
        const int32_t *w = axis->weights + (size_t)i * axis->taps;
        uint32_t n = axis->number[i];
        int32_t red = ROUND, green = ROUND, blue = ROUND;
        for (uint32_t t = 0; t < n; t++) {
            red += w[t] * p[3 * t];
            green += w[t] * p[3 * t + 1];
            blue += w[t] * p[3 * t + 2];
        }
        out[3 * i] = clip8(red);
        out[3 * i + 1] = clip8(green);
        out[3 * i + 2] = clip8(blue);
    }
}

static void horizontal_gray(const struct axis *axis, const uint8_t *source, uint8_t *out) {
    for (uint32_t i = 0; i < axis->key.count; i++) {
        const uint8_t *p = source + axis->begin[i];
        const int32_t *w = axis->weights + (size_t)i * axis->taps;
        int32_t sum = ROUND;
        for (uint32_t t = 0; t < axis->number[i]; t++)
            sum += w[t] * p[t];
        out[i] = clip8(sum);
    }
}

static void horizontal_nearest(const struct axis *axis, const uint8_t *source, uint8_t *out) {
    uint32_t channels = axis->key.channels;
    for (uint32_t i = 0; i < axis->key.count; i++)
        for (uint32_t c = 0; c < channels; c++)
            out[(size_t)i * channels + c] = source[(size_t)axis->begin[i] * channels + c];
}

void horizontal_scalar(const struct axis *axis, const uint8_t *source, size_t stride, uint32_t rows, uint8_t *out,
                       size_t out_stride) {
    for (uint32_t y = 0; y < rows; y++, source += stride, out += out_stride) {
        if (!axis->weights)
            horizontal_nearest(axis, source, out);
        else if (axis->key.channels == 3)
            horizontal_rgb(axis, source, out);
        else
            horizontal_gray(axis, source, out);
    }
}

void vertical_scalar(const struct axis *axis, uint32_t index, const uint8_t *source, size_t stride, uint8_t *out,
                     size_t bytes) {
    const int32_t *w = axis->weights + (size_t)index * axis->taps;
    uint32_t n = axis->number[index];
    for (size_t x = 0; x < bytes; x++) {
        int32_t sum = ROUND;
        const uint8_t *p = source + x;
        for (uint32_t t = 0; t < n; t++, p += stride)
            sum += w[t] * *p;
        out[x] = clip8(sum);
    }
}

const struct twin twin_scalar = {"scalar", NULL, horizontal_scalar, vertical_scalar, output_scalar};
