/* SPDX-License-Identifier: MIT */
/*
 * Which part of a picture goes into the row, and at what size: torchvision's formulas over counter-based random
 * numbers. Pure functions, any thread; never looks at pixels.
 *
 * Every decision is made with exactly rounded operations only (+ - * / sqrt in binary64, no libm, no contraction), so
 * that every machine crops alike. Which random number is which quantity is part of the promise that a batch is a pure
 * function of its inputs, hence fixed for ever:
 *
 *   RANDOM_CROP, CROP_RANDOM_RESIZED, attempt k = 0 ... 9:
 *     draw 2k      word 0: share of the area     word 1: logarithm of the aspect ratio    (uniform, 24 bits each)
 *     draw 2k + 1  words 0, 1: top of the box    words 2, 3: left of the box              (uniform integers)
 *   RANDOM_CROP, CROP_RANDOM_PADDED:
 *     draw 0       words 0, 1: top               words 2, 3: left
 *   RANDOM_FLIP:
 *     draw 0       word 0: left-right            word 1: top-bottom
 *   RANDOM_JITTER, RANDOM_ERASE: see color.c
 */
#include "transform/internal.h"

#include <errno.h>
#include <float.h>
#include <string.h>
#if defined(__x86_64__)
#include <emmintrin.h>
#elif !defined(__aarch64__)
#include <math.h>
#endif

#include "base/util.h"

#ifdef __FAST_MATH__
#error "geometry must be computed with exactly rounded operations: do not use -ffast-math"
#endif
_Static_assert(FLT_EVAL_METHOD == 0, "geometry needs arithmetic in the type's own precision");

#define SIDE_MAX 65535u /* of the output, of resize and padding: every product below stays in range */
#define ATTEMPTS 10     /* torchvision's */

/* Arithmetic. ------------------------------------------------------------------------------------------------------ */

double exact_sqrt(double x) {
#if defined(__x86_64__)
    __m128d v = _mm_set_sd(x);
    return _mm_cvtsd_f64(_mm_sqrt_sd(v, v));
#elif defined(__aarch64__)
    double r;
    __asm__("fsqrt %d0, %d1" : "=w"(r) : "w"(x));
    return r;
#else
    return sqrt(x); /* IEEE 754 asks for exact rounding of this one */
#endif
}

uint64_t round_half_even(double x) {
    uint64_t whole = (uint64_t)x;
    double rest = x - (double)whole;
    return whole + (rest > 0.5 || (rest == 0.5 && (whole & 1)));
}

#define LN2_HIGH 0x1.62e42feep-1      /* upper 32 bits of ln 2: k * LN2_HIGH is exact for |k| < 2^20 */
#define LN2_LOW 0x1.a39ef35793c76p-33 /* the rest */
#define LN2_INVERSE 0x1.71547652b82fep+0

static double power_of_two(int64_t exponent) { /* -1022 ... 1023 */
    uint64_t bits = (uint64_t)(exponent + 1023) << 52;
    double r;
    memcpy(&r, &bits, sizeof r);
    return r;
}

/* x = k ln 2 + r, |r| <= ln 2 / 2; e^r by its series up to r^14 / 14!, whose next term is below 2^-59. */
double exact_exp(double x) {
    x = CLAMP(x, -700.0, 700.0);
    double scaled = x * LN2_INVERSE;
    int64_t k = (int64_t)(scaled < 0 ? scaled - 0.5 : scaled + 0.5);
    double high = x - (double)k * LN2_HIGH, low = (double)k * LN2_LOW, r = high - low;
    double sum = 0;
    for (int n = 14; n >= 2; n--)
        sum = (sum + 1) * r / n;
    /* sum is (e^r - 1 - r) / r; what r lost by rounding is added at the end. */
    double tail = r * sum + ((high - r) - low);
    return (1 + (r + tail)) * power_of_two(k);
}

/* x = 2^k (1 + f), sqrt(1/2) <= 1 + f < sqrt(2); with s = f / (2 + f), log(1 + f) = 2s + 2s^3/3 + 2s^5/5 + ..., that is
 * f - f^2/2 + s (f^2/2 + R), R = 2s^2/3 + 2s^4/5 + ...: the large part of the sum is exact. */
double exact_log(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int64_t k = (int64_t)(bits >> 52) - 1023;
    bits = (bits & UINT64_C(0xfffffffffffff)) | (UINT64_C(1023) << 52);
    double m;
    memcpy(&m, &bits, sizeof m);
    if (m >= 0x1.6a09e667f3bcdp+0) {
        m *= 0.5;
        k++;
    }
    double f = m - 1, s = f / (2 + f), z = s * s, half = 0.5 * f * f, rest = 0;
    for (int n = 25; n >= 3; n -= 2)
        rest = (rest + 2.0 / n) * z;
    double low = half - (s * (half + rest) + (double)k * LN2_LOW);
    return (double)k * LN2_HIGH - (low - f);
}

/* The specification. ----------------------------------------------------------------------------------------------- */

static int check_numbers(const struct transform_spec *spec, struct diag *diag) {
    /* Negated comparisons, so that NaN fails. */
    if (!(spec->flip >= 0 && spec->flip <= 1) || !(spec->flip_vertical >= 0 && spec->flip_vertical <= 1))
        return diag_set(diag, -EINVAL, "flip probabilities %g and %g must be between 0 and 1", spec->flip,
                        spec->flip_vertical);
    if (!(spec->grayscale >= 0 && spec->grayscale <= 1) || !(spec->erase >= 0 && spec->erase <= 1))
        return diag_set(diag, -EINVAL, "probabilities of grayscale %g and of erasing %g must be between 0 and 1",
                        spec->grayscale, spec->erase);
    for (int i = 0; i < 4; i++)
        if (!(spec->jitter[i] >= 0 && spec->jitter[i] <= (i == 3 ? 0.5 : 1e6)))
            return diag_set(diag, -EINVAL,
                            "color jitter %g: brightness, contrast and saturation must be at least 0, hue "
                            "0 to 0.5",
                            spec->jitter[i]);
    if (!(spec->scale[0] > 0 && spec->scale[0] <= spec->scale[1] && spec->scale[1] <= 1e6))
        return diag_set(diag, -EINVAL, "crop scale %g..%g must be positive and ascending, such as 0.08..1",
                        spec->scale[0], spec->scale[1]);
    if (!(spec->ratio[0] >= 1e-6 && spec->ratio[0] <= spec->ratio[1] && spec->ratio[1] <= 1e6))
        return diag_set(diag, -EINVAL, "crop aspect ratio %g..%g must be positive and ascending, such as 0.75..1.333",
                        spec->ratio[0], spec->ratio[1]);
    return 0;
}

static int check_normalize(const struct transform_spec *spec, struct diag *diag) {
    if (!spec->normalize)
        return 0;
    if (spec->dtype == LOADERD_U8)
        return diag_set(diag, -EINVAL,
                        "normalize gives fractions, which dtype u8 cannot hold: use dtype f32, f16 or "
                        "bf16, or normalize on the device");
    for (uint32_t c = 0; c < spec->channels; c++)
        if (!(spec->std[c] > 0 && spec->std[c] <= FLT_MAX) || !(spec->mean[c] >= -FLT_MAX && spec->mean[c] <= FLT_MAX))
            return diag_set(diag, -EINVAL,
                            "normalize needs a finite mean and a positive std, not %g and %g (channel "
                            "%u); both are in units of 0..1, such as 0.485 and 0.229",
                            (double)spec->mean[c], (double)spec->std[c], c);
    return 0;
}

static void fill_defaults(struct transform_spec *spec) {
    if (!spec->height)
        spec->height = spec->width;
    if (!spec->channels)
        spec->channels = 3;
    if (!spec->dtype)
        spec->dtype = LOADERD_U8;
    if (spec->scale[0] == 0 && spec->scale[1] == 0) {
        spec->scale[0] = 0.08;
        spec->scale[1] = 1;
    }
    if (spec->ratio[0] == 0 && spec->ratio[1] == 0) {
        spec->ratio[0] = 3.0 / 4;
        spec->ratio[1] = 4.0 / 3;
    }
}

int transform_check(struct transform_spec *spec, struct diag *diag) {
    fill_defaults(spec);
    if (spec->width < 1 || spec->width > SIDE_MAX || spec->height > SIDE_MAX)
        return diag_set(diag, -EINVAL, "image size %ux%u: each side must be 1 to %u pixels", spec->width, spec->height,
                        SIDE_MAX);
    if (spec->channels != 1 && spec->channels != 3)
        return diag_set(diag, -EINVAL, "%u channels: a picture has 1 (gray) or 3 (RGB)", spec->channels);
    if ((unsigned)spec->crop > CROP_RANDOM_PADDED)
        return diag_set(diag, -EINVAL, "unknown kind of crop %d", (int)spec->crop);
    if (spec->filter != FILTER_NEAREST && spec->filter != FILTER_BILINEAR && spec->filter != FILTER_BICUBIC)
        return diag_set(diag, -EINVAL, "unknown resampling filter %d", (int)spec->filter);
    if (spec->layout != LAYOUT_NHWC && spec->layout != LAYOUT_NCHW)
        return diag_set(diag, -EINVAL, "unknown layout %d", (int)spec->layout);
    if (spec->dtype != LOADERD_U8 && spec->dtype != LOADERD_F16 && spec->dtype != LOADERD_BF16 &&
        spec->dtype != LOADERD_F32)
        return diag_set(diag, -EINVAL, "pictures come as u8, f16, bf16 or f32, not as dtype number %u", spec->dtype);
    if (spec->resize && spec->crop != CROP_CENTER)
        return diag_set(diag, -EINVAL, "resize %u needs the centre crop; other crops resize to the image size",
                        spec->resize);
    if (spec->padding && spec->crop != CROP_RANDOM_PADDED)
        return diag_set(diag, -EINVAL, "padding %u needs the random padded crop", spec->padding);
    if (spec->resize > SIDE_MAX || spec->padding > SIDE_MAX)
        return diag_set(diag, -EINVAL, "resize %u and padding %u must be at most %u pixels", spec->resize,
                        spec->padding, SIDE_MAX);
    int r = check_numbers(spec, diag);
    return r < 0 ? r : check_normalize(spec, diag);
}

/* The choice. ------------------------------------------------------------------------------------------------------ */

static uint32_t clamp_side(uint64_t value, uint32_t side) {
    return (uint32_t)CLAMP(value, 1, (uint64_t)side);
}

/* torchvision's way out where no attempt fits: the largest centred box inside the range of ratios. */
static void central_box(const struct transform_spec *spec, uint32_t width, uint32_t height, struct box *ret) {
    double ratio = (double)width / (double)height;
    uint32_t w = width, h = height;
    if (ratio < spec->ratio[0])
        h = clamp_side(round_half_even((double)w / spec->ratio[0]), height);
    else if (ratio > spec->ratio[1])
        w = clamp_side(round_half_even((double)h * spec->ratio[1]), width);
    *ret = (struct box){(width - w) / 2, (height - h) / 2, w, h};
}

/* RandomResizedCrop.get_params(). */
static void random_resized_box(const struct transform_spec *spec, uint32_t width, uint32_t height,
                               const struct random_key *key, struct box *ret) {
    double area = (double)((uint64_t)width * height);
    double low = exact_log(spec->ratio[0]), high = exact_log(spec->ratio[1]);
    for (uint32_t k = 0; k < ATTEMPTS; k++) {
        struct random_block shape = random_draw(key, RANDOM_CROP, 2 * k);
        double target = area * (spec->scale[0] + random_unit(shape.word[0]) * (spec->scale[1] - spec->scale[0]));
        double ratio = exact_exp(low + random_unit(shape.word[1]) * (high - low));
        double fraction_w = exact_sqrt(target * ratio), fraction_h = exact_sqrt(target / ratio);
        if (fraction_w > (double)width + 1 || fraction_h > (double)height + 1)
            continue;
        uint64_t w = round_half_even(fraction_w), h = round_half_even(fraction_h);
        if (w < 1 || w > width || h < 1 || h > height)
            continue;
        struct random_block place = random_draw(key, RANDOM_CROP, 2 * k + 1);
        ret->y = (uint32_t)random_below(place.word[0], place.word[1], (uint64_t)height - h + 1);
        ret->x = (uint32_t)random_below(place.word[2], place.word[3], (uint64_t)width - w + 1);
        ret->width = (uint32_t)w;
        ret->height = (uint32_t)h;
        return;
    }
    central_box(spec, width, height, ret);
}

/* Resize(short): the long side is int(short * long / side), here by integers, which is the same below 2^53. A side
 * beyond 2^31 - 1, which only a hostile header can ask for, is cut to it. */
static void resize_short_side(uint32_t to, uint32_t width, uint32_t height, uint32_t *ret_width, uint32_t *ret_height) {
    uint32_t less = MIN(width, height), more = MAX(width, height);
    uint32_t longer = (uint32_t)MIN((uint64_t)to * more / less, (uint64_t)INT32_MAX);
    *ret_width = width <= height ? to : longer;
    *ret_height = width <= height ? longer : to;
}

/* CenterCrop: int(round((side - crop) / 2.0)); where the crop is larger, (crop - side) // 2 zeros come first. */
static int32_t centre_offset(uint32_t side, uint32_t crop) {
    if (crop > side)
        return -(int32_t)((crop - side) / 2);
    uint32_t rest = side - crop, half = rest / 2;
    return (int32_t)(half + ((rest & 1) && (half & 1)));
}

/* RandomCrop(padding, pad_if_needed=True): where the padded side is still shorter, what is missing goes to each end. */
static int32_t random_offset(uint32_t side, uint32_t crop, uint32_t padding, uint32_t high, uint32_t low) {
    uint64_t padded = (uint64_t)side + 2 * (uint64_t)padding, before = padding;
    if (padded < crop) {
        before += crop - padded;
        padded += 2 * (crop - padded);
    }
    int64_t offset = (int64_t)random_below(high, low, padded - crop + 1) - (int64_t)before;
    return (int32_t)MIN(offset, (int64_t)INT32_MAX);
}

void transform_geometry(const struct transform_spec *spec, uint32_t source_width, uint32_t source_height,
                        const struct random_key *key, struct transform_geometry *ret) {
    struct transform_geometry g = {.source_width = source_width,
                                   .source_height = source_height,
                                   .source = {0, 0, source_width, source_height},
                                   .full_width = spec->width,
                                   .full_height = spec->height};
    struct random_block draw;
    switch (spec->crop) {
    case CROP_NONE:
        break;
    case CROP_CENTER:
        if (spec->resize) {
            resize_short_side(spec->resize, source_width, source_height, &g.full_width, &g.full_height);
        } else {
            g.full_width = source_width;
            g.full_height = source_height;
        }
        g.x0 = centre_offset(g.full_width, spec->width);
        g.y0 = centre_offset(g.full_height, spec->height);
        break;
    case CROP_RANDOM_RESIZED:
        random_resized_box(spec, source_width, source_height, key, &g.source);
        break;
    case CROP_RANDOM_PADDED:
        draw = random_draw(key, RANDOM_CROP, 0);
        g.full_width = source_width;
        g.full_height = source_height;
        g.y0 = random_offset(source_height, spec->height, spec->padding, draw.word[0], draw.word[1]);
        g.x0 = random_offset(source_width, spec->width, spec->padding, draw.word[2], draw.word[3]);
        break;
    }
    if (spec->flip > 0 || spec->flip_vertical > 0) {
        draw = random_draw(key, RANDOM_FLIP, 0);
        g.flip = random_unit(draw.word[0]) < spec->flip;
        g.flip_vertical = random_unit(draw.word[1]) < spec->flip_vertical;
    }
    color_choose(spec, key, &g.color);
    *ret = g;
}

/* One axis of a rectangle: cut to the source's [0, size), moved, cut to the row's [0, width), mirrored. */
static void move_edges(double low, double high, double size, double from, double scale, double offset, double width,
                       bool mirror, double ret[2], double *ret_whole, double *ret_left) {
    low = CLAMP(low, 0.0, size);
    high = CLAMP(high, 0.0, size);
    double a = (low - from) * scale - offset, b = (high - from) * scale - offset;
    *ret_whole = b - a;
    a = CLAMP(a, 0.0, width);
    b = CLAMP(b, 0.0, width);
    *ret_left = b - a;
    ret[0] = mirror ? width - b : a;
    ret[1] = mirror ? width - a : b;
}

double transform_box(const struct transform_spec *spec, const struct transform_geometry *g, const double side[4],
                     float ret[4]) {
    double across = (double)g->full_width / (double)g->source.width;
    double down = (double)g->full_height / (double)g->source.height;
    double x[2], y[2], whole[2], left[2];
    move_edges(side[0], side[2], g->source_width, g->source.x, across, g->x0, spec->width, g->flip, x, &whole[0],
               &left[0]);
    move_edges(side[1], side[3], g->source_height, g->source.y, down, g->y0, spec->height, g->flip_vertical, y,
               &whole[1], &left[1]);
    ret[0] = (float)x[0];
    ret[1] = (float)y[0];
    ret[2] = (float)x[1];
    ret[3] = (float)y[1];
    double area = whole[0] * whole[1];
    return area > 0 ? left[0] * left[1] / area : 0;
}

void transform_row(const struct transform_spec *spec, const struct transform_geometry *geometry,
                   struct loaderd_row *row) {
    double across = (double)geometry->source.width / (double)geometry->full_width;
    double down = (double)geometry->source.height / (double)geometry->full_height;
    row->source_width = geometry->source_width;
    row->source_height = geometry->source_height;
    row->flip = (geometry->flip ? 1u : 0u) | (geometry->flip_vertical ? 2u : 0u);
    row->crop_x = (float)((double)geometry->source.x + (double)geometry->x0 * across);
    row->crop_y = (float)((double)geometry->source.y + (double)geometry->y0 * down);
    row->crop_width = (float)((double)spec->width * across);
    row->crop_height = (float)((double)spec->height * down);
}
