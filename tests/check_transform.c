/* SPDX-License-Identifier: MIT */
/*
 * The transform stage against what Pillow, numpy and torchvision's formulas gave (tests/transform-reference.h, made by
 * tests/transform-reference.py), against resampling in binary64 written out again here, and every SIMD twin that this
 * CPU runs against the scalar one over random shapes.
 */
#include <check.h>
#include <math.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/util.h"
#include "transform/internal.h"

struct resize_case {
    uint32_t width, height, channels, to_width, to_height;
    int filter;
    uint32_t crc;
};
struct box_case {
    uint32_t width, height, channels;
    struct box box;
    uint32_t to_width, to_height;
    bool flip, flip_vertical;
    int filter;
    uint32_t crc;
};
struct centre_case {
    uint32_t width, height, channels, resize, crop_width, crop_height;
    int filter;
    uint32_t full_width, full_height;
    int32_t x0, y0;
    uint32_t crc;
};
struct crop_case {
    uint32_t width, height;
    double scale[2], ratio[2];
    struct random_key key;
    struct box box;
    int flips;
};
struct padded_case {
    uint32_t width, height, crop_width, crop_height, padding;
    struct random_key key;
    bool flip;
    int32_t x0, y0;
    uint32_t crc;
};
struct output_case {
    uint32_t dtype;
    bool normalize;
    uint32_t nhwc, nchw;
};
struct half_case {
    uint32_t f32;
    uint16_t f16, bf16;
};
struct clean_case {
    uint32_t dtype, zero;
    double low, high;
    uint64_t before, after; /* bits */
};
struct function_case {
    double x, value;
};
struct pixel_case {
    uint8_t pixel[14];
};
#include "transform-reference.h"

static const struct twin *twins[TWINS_MAX];
static size_t twin_count;

/* CRC-32 of zlib, a bit at a time. */
static uint32_t crc32_of(const void *data, size_t length) {
    static uint32_t table[256];
    for (uint32_t n = 0; !table[1] || n < 256; n++) {
        uint32_t c = n & 255;
        for (int bit = 0; bit < 8; bit++)
            c = c & 1 ? 0xedb88320u ^ (c >> 1) : c >> 1;
        table[n & 255] = c;
    }
    uint32_t crc = ~0u;
    for (size_t i = 0; i < length; i++)
        crc = table[(crc ^ ((const uint8_t *)data)[i]) & 255] ^ (crc >> 8);
    return ~crc;
}

/* picture() of transform-reference.py. */
static uint8_t picture_value(uint32_t x, uint32_t y, uint32_t c) {
    uint32_t noise = x * 2654435761u + y * 2246822519u + c * 3266489917u;
    noise ^= noise >> 15;
    noise *= 2246822519u;
    switch ((x / 16 + y / 16) % 3) {
    case 0:
        return (uint8_t)(x * 3 + y * 5 + c * 85);
    case 1:
        return (x / 7 + y / 5) & 1 ? 255 : 0;
    default:
        return (uint8_t)(noise >> 24);
    }
}

/* The pixels of a region of the formula picture; free() them. */
static struct picture make_picture(const struct box *region, uint32_t channels) {
    struct picture p = {NULL, (size_t)region->width * channels, region->width, region->height, channels};
    p.pixels = malloc(p.stride * region->height);
    ck_assert_ptr_nonnull(p.pixels);
    for (uint32_t y = 0; y < region->height; y++)
        for (uint32_t x = 0; x < region->width; x++)
            for (uint32_t c = 0; c < channels; c++)
                p.pixels[y * p.stride + (size_t)x * channels + c] = picture_value(region->x + x, region->y + y, c);
    return p;
}

static struct transform_spec make_spec(enum transform_crop crop, uint32_t width, uint32_t height, uint32_t channels,
                                       int filter) {
    struct transform_spec spec = {
        .crop = crop, .width = width, .height = height, .channels = channels, .filter = (enum transform_filter)filter};
    return spec;
}

/* Only the region is made, so whoever reads outside of it is caught by the sanitizer. */
static uint32_t apply_crc(struct transform *transform, const struct transform_spec *spec,
                          const struct transform_geometry *geometry) {
    struct box region;
    struct diag diag = DIAG_INIT;
    transform_region(spec, geometry, &region);
    ck_assert_uint_ge(region.width, 1);
    ck_assert_uint_ge(region.height, 1);
    ck_assert_uint_le(region.x + region.width, geometry->source.x + geometry->source.width);
    ck_assert_uint_le(region.y + region.height, geometry->source.y + geometry->source.height);
    struct picture picture = make_picture(&region, spec->channels);
    size_t bytes = (size_t)transform_row_bytes(spec);
    uint8_t *out = malloc(bytes);
    ck_assert_ptr_nonnull(out);
    memset(out, 0xaa, bytes);
    ck_assert_msg(transform_apply(transform, spec, geometry, &region, &picture, out, &diag) == 0, "%s", diag.text);
    uint32_t crc = crc32_of(out, bytes);
    free(out);
    free(picture.pixels);
    return crc;
}

static struct transform *new_transform(const struct twin *twin) {
    struct transform *transform;
    ck_assert_int_eq(transform_new_twin(UINT64_C(1) << 30, twin, &transform), 0);
    return transform;
}

static const struct random_key no_key;

/* Pixels equal Pillow's. ------------------------------------------------------------------------------------------- */

START_TEST(resize_equals_pillow) {
    struct transform *transform = new_transform(twins[_i]);
    for (size_t n = 0; n < ARRAY_SIZE(resize_cases); n++) {
        const struct resize_case *c = &resize_cases[n];
        struct transform_spec spec = make_spec(CROP_NONE, c->to_width, c->to_height, c->channels, c->filter);
        struct transform_geometry g;
        ck_assert_int_eq(transform_check(&spec, NULL), 0);
        transform_geometry(&spec, c->width, c->height, &no_key, &g);
        uint32_t crc = apply_crc(transform, &spec, &g);
        ck_assert_msg(crc == c->crc, "%s: %ux%ux%u to %ux%u filter %d: %08x, Pillow %08x", twins[_i]->name, c->width,
                      c->height, c->channels, c->to_width, c->to_height, c->filter, crc, c->crc);
    }
    transform_free(transform);
}
END_TEST

START_TEST(box_equals_pillow) {
    struct transform *transform = new_transform(twins[_i]);
    for (size_t n = 0; n < ARRAY_SIZE(box_cases); n++) {
        const struct box_case *c = &box_cases[n];
        struct transform_spec spec = make_spec(CROP_RANDOM_RESIZED, c->to_width, c->to_height, c->channels, c->filter);
        struct transform_geometry g = {c->width, c->height, c->box,  c->to_width,      c->to_height,
                                       0,        0,         c->flip, c->flip_vertical, {0}};
        ck_assert_int_eq(transform_check(&spec, NULL), 0);
        ck_assert_msg(apply_crc(transform, &spec, &g) == c->crc, "%s: case %zu", twins[_i]->name, n);
    }
    transform_free(transform);
}
END_TEST

START_TEST(centre_crop_equals_pillow) {
    struct transform *transform = new_transform(twins[_i]);
    for (size_t n = 0; n < ARRAY_SIZE(centre_cases); n++) {
        const struct centre_case *c = &centre_cases[n];
        struct transform_spec spec = make_spec(CROP_CENTER, c->crop_width, c->crop_height, c->channels, c->filter);
        struct transform_geometry g;
        spec.resize = c->resize;
        ck_assert_int_eq(transform_check(&spec, NULL), 0);
        transform_geometry(&spec, c->width, c->height, &no_key, &g);
        ck_assert_uint_eq(g.full_width, c->full_width);
        ck_assert_uint_eq(g.full_height, c->full_height);
        ck_assert_int_eq(g.x0, c->x0);
        ck_assert_int_eq(g.y0, c->y0);
        ck_assert_msg(apply_crc(transform, &spec, &g) == c->crc, "%s: %ux%u resize %u crop %ux%u filter %d",
                      twins[_i]->name, c->width, c->height, c->resize, c->crop_width, c->crop_height, c->filter);
    }
    transform_free(transform);
}
END_TEST

START_TEST(padded_crop_equals_pillow) {
    struct transform *transform = new_transform(twins[_i]);
    for (size_t n = 0; n < ARRAY_SIZE(padded_cases); n++) {
        const struct padded_case *c = &padded_cases[n];
        struct transform_spec spec = make_spec(CROP_RANDOM_PADDED, c->crop_width, c->crop_height, 3, FILTER_BILINEAR);
        struct transform_geometry g;
        spec.padding = c->padding;
        ck_assert_int_eq(transform_check(&spec, NULL), 0);
        transform_geometry(&spec, c->width, c->height, &c->key, &g);
        ck_assert_int_eq(g.x0, c->x0);
        ck_assert_int_eq(g.y0, c->y0);
        g.flip = c->flip;
        ck_assert_msg(apply_crc(transform, &spec, &g) == c->crc, "%s: case %zu", twins[_i]->name, n);
    }
    transform_free(transform);
}
END_TEST

START_TEST(small_pictures_are_as_pillow_shows_them) {
    struct transform *transform = new_transform(&twin_scalar);
    for (size_t n = 0; n < ARRAY_SIZE(pixel_cases); n++) {
        struct transform_spec spec = make_spec(CROP_NONE, 7, 2, 1, n ? FILTER_BICUBIC : FILTER_BILINEAR);
        struct transform_geometry g;
        struct box region, from = {14, 13, 4, 3};
        uint8_t out[14];
        ck_assert_int_eq(transform_check(&spec, NULL), 0);
        transform_geometry(&spec, 4, 3, &no_key, &g);
        transform_region(&spec, &g, &region);
        struct picture picture = make_picture(&from, 1);
        ck_assert_int_eq(transform_apply(transform, &spec, &g, &region, &picture, out, NULL), 0);
        ck_assert_mem_eq(out, pixel_cases[n].pixel, sizeof out);
        free(picture.pixels);
    }
    transform_free(transform);
}
END_TEST

START_TEST(output_equals_numpy) {
    struct transform *transform = new_transform(twins[_i]);
    for (size_t n = 0; n < 2 * ARRAY_SIZE(output_cases); n++) {
        const struct output_case *c = &output_cases[n / 2];
        struct transform_spec spec = make_spec(CROP_NONE, 37, 23, 3, FILTER_BILINEAR);
        struct transform_geometry g;
        spec.dtype = c->dtype;
        spec.normalize = c->normalize;
        spec.layout = n & 1 ? LAYOUT_NCHW : LAYOUT_NHWC;
        memcpy(spec.mean, (float[]){0.485f, 0.456f, 0.406f}, sizeof spec.mean);
        memcpy(spec.std, (float[]){0.229f, 0.224f, 0.225f}, sizeof spec.std);
        ck_assert_int_eq(transform_check(&spec, NULL), 0);
        transform_geometry(&spec, 37, 23, &no_key, &g);
        ck_assert_msg(apply_crc(transform, &spec, &g) == (n & 1 ? c->nchw : c->nhwc),
                      "%s: dtype %u normalize %d "
                      "layout %zu",
                      twins[_i]->name, c->dtype, c->normalize, n & 1);
    }
    transform_free(transform);
}
END_TEST

/* Against resampling in binary64: the two roundings to u8 and the weights' leave at most 1.1 of 255, bicubic a bit
 * more where the first one clips or is amplified. */

static double reference_weight(int filter, double x) {
    x = x < 0 ? -x : x;
    if (filter == FILTER_BILINEAR)
        return x < 1 ? 1 - x : 0;
    return x < 1 ? 1.5 * x * x * x - 2.5 * x * x + 1 : x < 2 ? -0.5 * x * x * x + 2.5 * x * x - 4 * x + 2 : 0;
}

static void reference_axis(int filter, uint32_t in, uint32_t full, uint32_t output, double *weights) {
    double step = (double)in / full, width = step > 1 ? step : 1, centre = (output + 0.5) * step, total = 0;
    double support = width * (filter == FILTER_BICUBIC ? 2 : 1);
    for (uint32_t i = 0; i < in; i++) {
        double at = i + 0.5 - centre;
        weights[i] = at < support + 0.5 && at > -support - 0.5 ? reference_weight(filter, at / width) : 0;
        total += weights[i];
    }
    for (uint32_t i = 0; i < in; i++)
        weights[i] /= total;
}

START_TEST(close_to_binary64) {
    static const uint32_t sides[][4] = {{40, 31, 17, 23}, {13, 11, 50, 40}, {64, 5, 9, 9}, {3, 90, 12, 7}};
    struct transform *transform = new_transform(&twin_scalar);
    for (size_t n = 0; n < 2 * ARRAY_SIZE(sides); n++) {
        const uint32_t *s = sides[n / 2];
        int filter = n & 1 ? FILTER_BICUBIC : FILTER_BILINEAR;
        struct transform_spec spec = make_spec(CROP_NONE, s[2], s[3], 1, filter);
        struct transform_geometry g;
        struct box region = {0, 0, s[0], s[1]};
        uint8_t out[2500];
        double across[128], down[128];
        ck_assert_int_eq(transform_check(&spec, NULL), 0);
        transform_geometry(&spec, s[0], s[1], &no_key, &g);
        struct picture picture = make_picture(&region, 1);
        ck_assert_int_eq(transform_apply(transform, &spec, &g, &region, &picture, out, NULL), 0);
        for (uint32_t y = 0; y < s[3]; y++)
            for (uint32_t x = 0; x < s[2]; x++) {
                double sum = 0;
                reference_axis(filter, s[0], s[2], x, across);
                reference_axis(filter, s[1], s[3], y, down);
                for (uint32_t v = 0; v < s[1]; v++) {
                    double row = 0;
                    for (uint32_t u = 0; u < s[0]; u++)
                        row += across[u] * picture.pixels[v * picture.stride + u];
                    sum += down[v] * CLAMP(row, 0, 255); /* Pillow clips between the passes */
                }
                double off = CLAMP(sum, 0, 255) - out[y * s[2] + x];
                ck_assert_msg(off < 1.3 && off > -1.3, "case %zu at (%u, %u): %g for %u", n, x, y, sum,
                              out[y * s[2] + x]);
            }
        free(picture.pixels);
    }
    transform_free(transform);
}
END_TEST

/* Geometry. -------------------------------------------------------------------------------------------------------- */

START_TEST(random_resized_crop_equals_torchvision) {
    for (size_t n = 0; n < ARRAY_SIZE(crop_cases); n++) {
        const struct crop_case *c = &crop_cases[n];
        struct transform_spec spec = make_spec(CROP_RANDOM_RESIZED, 224, 224, 3, FILTER_BILINEAR);
        struct transform_geometry g;
        memcpy(spec.scale, c->scale, sizeof spec.scale);
        memcpy(spec.ratio, c->ratio, sizeof spec.ratio);
        spec.flip = 0.5;
        spec.flip_vertical = 0.25;
        ck_assert_int_eq(transform_check(&spec, NULL), 0);
        transform_geometry(&spec, c->width, c->height, &c->key, &g);
        ck_assert_msg(g.source.x == c->box.x && g.source.y == c->box.y && g.source.width == c->box.width &&
                          g.source.height == c->box.height,
                      "case %zu, %ux%u: (%u, %u) %ux%u, torchvision (%u, %u) %ux%u", n, c->width, c->height, g.source.x,
                      g.source.y, g.source.width, g.source.height, c->box.x, c->box.y, c->box.width, c->box.height);
        ck_assert_int_eq((g.flip ? 1 : 0) | (g.flip_vertical ? 2 : 0), c->flips);
    }
}
END_TEST

START_TEST(random_crop_obeys_its_laws) {
    struct transform_spec spec = make_spec(CROP_RANDOM_RESIZED, 224, 224, 3, FILTER_BILINEAR);
    spec.flip = 0.5;
    ck_assert_int_eq(transform_check(&spec, NULL), 0);
    double share = 0, flips = 0, left = 0;
    int whole = 20000;
    for (int n = 0; n < whole; n++) {
        struct random_key key = {7, 1, (uint64_t)n};
        struct transform_geometry g, again;
        transform_geometry(&spec, 500, 375, &key, &g);
        transform_geometry(&spec, 500, 375, &key, &again);
        ck_assert_mem_eq(&g.source, &again.source, sizeof g.source);
        ck_assert(g.source.width >= 1 && g.source.x + g.source.width <= 500);
        ck_assert(g.source.height >= 1 && g.source.y + g.source.height <= 375);
        share += (double)g.source.width * g.source.height / (500.0 * 375.0);
        flips += g.flip;
        if (g.source.width < 500)
            left += (double)g.source.x / (500 - g.source.width);
        else
            left += 0.5;
    }
    /* Python's random module in the same formulas gave a mean share of 0.4315: large boxes fit less often. */
    ck_assert(share / whole > 0.423 && share / whole < 0.440);
    ck_assert(flips / whole > 0.485 && flips / whole < 0.515);
    ck_assert(left / whole > 0.49 && left / whole < 0.51);
}
END_TEST

START_TEST(epochs_and_positions_differ) {
    struct transform_spec spec = make_spec(CROP_RANDOM_RESIZED, 224, 224, 3, FILTER_BILINEAR);
    ck_assert_int_eq(transform_check(&spec, NULL), 0);
    struct transform_geometry g[4];
    transform_geometry(&spec, 500, 375, &(struct random_key){1, 0, 5}, &g[0]);
    transform_geometry(&spec, 500, 375, &(struct random_key){1, 1, 5}, &g[1]);
    transform_geometry(&spec, 500, 375, &(struct random_key){1, 0, 6}, &g[2]);
    transform_geometry(&spec, 500, 375, &(struct random_key){2, 0, 5}, &g[3]);
    for (int a = 0; a < 4; a++)
        for (int b = 0; b < a; b++)
            ck_assert(memcmp(&g[a].source, &g[b].source, sizeof g[a].source) != 0);
}
END_TEST

START_TEST(row_header_tells_the_crop) {
    struct transform_spec spec = make_spec(CROP_CENTER, 224, 224, 3, FILTER_BILINEAR);
    struct transform_geometry g;
    struct loaderd_row row = {.sample = 9, .position = 8, .status = 4};
    spec.resize = 256;
    spec.flip = 1;
    ck_assert_int_eq(transform_check(&spec, NULL), 0);
    transform_geometry(&spec, 512, 1024, &no_key, &g); /* to 256 x 512, window at (16, 144) */
    transform_row(&spec, &g, &row);
    ck_assert(row.sample == 9 && row.position == 8 && row.status == 4 && row.flip == 1);
    ck_assert(row.source_width == 512 && row.source_height == 1024);
    ck_assert(row.crop_x == 32 && row.crop_y == 288 && row.crop_width == 448 && row.crop_height == 448);
}
END_TEST

static uint64_t ulps(double a, double b) {
    int64_t x, y;
    memcpy(&x, &a, sizeof x);
    memcpy(&y, &b, sizeof y);
    return (uint64_t)(x > y ? x - y : y - x);
}

START_TEST(exponential_and_logarithm_are_accurate) {
    for (size_t n = 0; n < ARRAY_SIZE(exp_cases); n++)
        ck_assert_msg(ulps(exact_exp(exp_cases[n].x), exp_cases[n].value) <= 1, "exp(%.17g)", exp_cases[n].x);
    for (size_t n = 0; n < ARRAY_SIZE(log_cases); n++)
        ck_assert_msg(ulps(exact_log(log_cases[n].x), log_cases[n].value) <= 1, "log(%.17g)", log_cases[n].x);
}
END_TEST

/* Casts. ----------------------------------------------------------------------------------------------------------- */

START_TEST(halves_equal_numpy) {
    for (size_t n = 0; n < ARRAY_SIZE(half_cases); n++) {
        const struct half_case *c = &half_cases[n];
        float value;
        uint16_t f16, bf16;
        memcpy(&value, &c->f32, sizeof value);
        ck_assert_int_eq(transform_cast(LOADERD_F32, &value, LOADERD_F16, &f16, 1), 0);
        ck_assert_int_eq(transform_cast(LOADERD_F32, &value, LOADERD_BF16, &bf16, 1), 0);
        ck_assert_msg(f16 == c->f16 && bf16 == c->bf16, "%08x: f16 %04x, numpy %04x; bf16 %04x, wanted %04x", c->f32,
                      f16, c->f16, bf16, c->bf16);
        ck_assert(float_to_f16(value) == c->f16 && float_to_bf16(value) == c->bf16);
    }
    for (uint32_t bits = 0; bits < 65536; bits++) { /* every binary16 comes back */
        uint16_t in = (uint16_t)bits, out;
        float value = f16_to_float(in);
        if (value == value)
            ck_assert_uint_eq(float_to_f16(value), in);
        else
            ck_assert((out = float_to_f16(value), (out & 0x7c00) == 0x7c00 && (out & 0x3ff)));
    }
}
END_TEST

#define CAST(from_type, from, value, to_type, to)                                                                      \
    ({                                                                                                                 \
        from_type cast_in = (value);                                                                                   \
        to_type cast_out = 0;                                                                                          \
        int cast_r = transform_cast(from, &cast_in, to, &cast_out, 1);                                                 \
        ck_assert_int_eq(cast_r, 0);                                                                                   \
        cast_out;                                                                                                      \
    })
#define CAST_RANGE(from_type, from, value, to)                                                                         \
    do {                                                                                                               \
        from_type cast_in = (value);                                                                                   \
        uint64_t cast_out;                                                                                             \
        ck_assert_int_eq(transform_cast(from, &cast_in, to, &cast_out, 1), -ERANGE);                                   \
    } while (0)

START_TEST(casts_keep_values) {
    ck_assert_int_eq(CAST(uint8_t, LOADERD_U8, 255, int64_t, LOADERD_I64), 255);
    ck_assert_int_eq(CAST(int8_t, LOADERD_I8, -128, int16_t, LOADERD_I16), -128);
    ck_assert_int_eq(CAST(int64_t, LOADERD_I64, INT32_MIN, int32_t, LOADERD_I32), INT32_MIN);
    ck_assert(CAST(uint64_t, LOADERD_U64, UINT64_MAX, float, LOADERD_F32) == 0x1p64f);
    ck_assert(CAST(int64_t, LOADERD_I64, (INT64_C(1) << 60) + (INT64_C(1) << 36) + 1, float, LOADERD_F32) ==
              0x1.000002p60f);
    ck_assert(CAST(uint8_t, LOADERD_U8, 200, float, LOADERD_F32) == 200.0f);
    ck_assert_int_eq(CAST(double, LOADERD_F64, -3.99, int8_t, LOADERD_I8), -3);
    ck_assert_uint_eq(CAST(double, LOADERD_F64, 0x1p63, uint64_t, LOADERD_U64), UINT64_C(1) << 63);
    ck_assert_uint_eq(CAST(float, LOADERD_F32, -0.5f, uint8_t, LOADERD_U8), 0);
    /* One rounding only: 2049.0000001 would be 2048 after a first rounding to binary32, and is above the half. */
    ck_assert_uint_eq(CAST(double, LOADERD_F64, 2049.0000001, uint16_t, LOADERD_F16), 0x6801);
    ck_assert_uint_eq(CAST(double, LOADERD_F64, 2049.0, uint16_t, LOADERD_F16), 0x6800);
    ck_assert_uint_eq(CAST(double, LOADERD_F64, 0x1.01p0, uint16_t, LOADERD_BF16), 0x3f80);
    ck_assert_uint_eq(CAST(double, LOADERD_F64, 0x1.0100000001p0, uint16_t, LOADERD_BF16), 0x3f81);
    ck_assert_uint_eq(CAST(int64_t, LOADERD_I64, (INT64_C(0x101) << 50) + 1, uint16_t, LOADERD_BF16), 0x5d01 - 0x80);
    ck_assert_uint_eq(CAST(uint16_t, LOADERD_F16, 0x7bff, uint16_t, LOADERD_U16), 65504);
    ck_assert(CAST(uint16_t, LOADERD_BF16, 0xc040, double, LOADERD_F64) == -3.0);
    ck_assert_uint_eq(CAST(double, LOADERD_F64, 1e300, uint16_t, LOADERD_F16), 0x7c00);
}
END_TEST

START_TEST(casts_refuse_what_does_not_fit) {
    CAST_RANGE(uint16_t, LOADERD_U16, 256, LOADERD_U8);
    CAST_RANGE(int8_t, LOADERD_I8, -1, LOADERD_U8);
    CAST_RANGE(int8_t, LOADERD_I8, -1, LOADERD_U64);
    CAST_RANGE(uint64_t, LOADERD_U64, UINT64_C(1) << 63, LOADERD_I64);
    CAST_RANGE(int64_t, LOADERD_I64, INT64_C(1) << 31, LOADERD_I32);
    CAST_RANGE(uint32_t, LOADERD_U32, 65520, LOADERD_F16);
    CAST_RANGE(float, LOADERD_F32, 256.0f, LOADERD_U8);
    CAST_RANGE(float, LOADERD_F32, __builtin_nanf(""), LOADERD_I32);
    CAST_RANGE(double, LOADERD_F64, 0x1p64, LOADERD_U64);
    CAST_RANGE(double, LOADERD_F64, 0x1p63, LOADERD_I64);
    CAST_RANGE(double, LOADERD_F64, -1.0, LOADERD_U64);
    ck_assert_int_eq(transform_cast(0, "", LOADERD_U8, NULL, 0), -EINVAL);
    ck_assert_int_eq(transform_cast(LOADERD_U8, "", 13, NULL, 0), -EINVAL);
}
END_TEST

START_TEST(casts_of_many_and_misaligned) {
    uint8_t in[1001], out[4 * 1000 + 1];
    for (size_t n = 0; n < sizeof in; n++)
        in[n] = (uint8_t)(n * 7);
    ck_assert_int_eq(transform_cast(LOADERD_U8, in + 1, LOADERD_F32, out + 1, 1000), 0);
    for (size_t n = 0; n < 1000; n++) {
        float value;
        memcpy(&value, out + 1 + 4 * n, sizeof value);
        ck_assert(value == (float)in[n + 1]);
    }
    ck_assert_int_eq(transform_cast(LOADERD_F32, out + 1, LOADERD_U8, in, 1000), 0);
    for (size_t n = 0; n < 1000; n++)
        ck_assert_uint_eq(in[n], (uint8_t)((n + 1) * 7));
}
END_TEST

/* Ids of models of language, of which the last may not be one; every count and odd addresses. */
START_TEST(casts_of_token_ids) {
    uint8_t in[1 + 4 * 70] = {0}, out[1 + 4 * 70 + 1];
    for (size_t count = 0; count <= 70; count++) {
        for (size_t n = 0; n < count; n++) {
            uint16_t id = n % 3 ? (uint16_t)(65535 - 701 * n) : (uint16_t)n;
            memcpy(in + 1 + 2 * n, &id, sizeof id);
        }
        memset(out, 0xaa, sizeof out);
        ck_assert_int_eq(transform_cast(LOADERD_U16, in + 1, LOADERD_I32, out + 1, count), 0);
        for (size_t n = 0; n < count; n++) {
            int32_t value;
            memcpy(&value, out + 1 + 4 * n, sizeof value);
            ck_assert_int_eq(value, n % 3 ? (int32_t)(65535 - 701 * n) : (int32_t)n);
        }
        ck_assert(out[0] == 0xaa && out[1 + 4 * count] == 0xaa);
        for (size_t n = 0; n < count; n++) {
            uint32_t id = (uint32_t)INT32_MAX - (uint32_t)n;
            memcpy(in + 1 + 4 * n, &id, sizeof id);
        }
        ck_assert_int_eq(transform_cast(LOADERD_U32, in + 1, LOADERD_I32, out + 1, count), 0);
        ck_assert(memcmp(in + 1, out + 1, 4 * count) == 0 && out[1 + 4 * count] == 0xaa);
        const uint32_t large = UINT32_C(1) << 31;
        if (count == 0)
            continue;
        memcpy(in + 1 + 4 * (count / 2), &large, sizeof large);
        ck_assert_int_eq(transform_cast(LOADERD_U32, in + 1, LOADERD_I32, out + 1, count), -ERANGE);
    }
}
END_TEST

/* Every case alone, and among many: at each place of a run of 0.5, which vectors make. */
START_TEST(clean_equals_numpy) {
    for (size_t n = 0; n < ARRAY_SIZE(clean_cases); n++) {
        const struct clean_case *c = &clean_cases[n];
        const struct transform_clean clean = {c->low, c->high, c->zero ? NAN_ZERO : NAN_KEEP};
        size_t size = c->dtype == LOADERD_F64 ? 8 : c->dtype == LOADERD_F32 ? 4 : 2;
        for (size_t place = 0; place < 40; place++) {
            uint64_t words[40] = {0};
            uint8_t *bytes = (uint8_t *)words;
            memcpy(bytes + place * size, &c->before, size);
            ck_assert(transform_clean(&clean, c->dtype, words, 40));
            ck_assert_msg(memcmp(bytes + place * size, &c->after, size) == 0, "case %zu of dtype %u: %llx", n, c->dtype,
                          (unsigned long long)c->before);
        }
        uint64_t word = c->before;
        const struct transform_clean strict = {c->low, c->high, NAN_ERROR};
        double value;
        ck_assert_int_eq(transform_cast(c->dtype, &word, LOADERD_F64, &value, 1), 0);
        ck_assert(transform_clean(&strict, c->dtype, &word, 1) == (value == value));
    }
}
END_TEST

/* Errors. ---------------------------------------------------------------------------------------------------------- */

START_TEST(check_fills_defaults) {
    struct transform_spec spec = {.crop = CROP_RANDOM_RESIZED, .width = 224};
    ck_assert_int_eq(transform_check(&spec, NULL), 0);
    ck_assert(spec.height == 224 && spec.channels == 3 && spec.dtype == LOADERD_U8);
    ck_assert(spec.scale[0] == 0.08 && spec.scale[1] == 1 && spec.ratio[0] == 0.75 && spec.ratio[1] == 4.0 / 3);
    ck_assert_uint_eq(transform_row_bytes(&spec), 224 * 224 * 3);
    spec = make_spec(CROP_NONE, 65535, 65535, 3, FILTER_NEAREST);
    spec.dtype = LOADERD_F32;
    ck_assert_uint_eq(transform_row_bytes(&spec), UINT64_C(65535) * 65535 * 12);
}
END_TEST

#define REFUSED(...)                                                                                                   \
    do {                                                                                                               \
        struct diag diag = DIAG_INIT;                                                                                  \
        struct transform_spec spec = {.width = 8, __VA_ARGS__};                                                        \
        ck_assert_int_eq(transform_check(&spec, &diag), -EINVAL);                                                      \
        ck_assert_int_gt((int)strlen(diag.text), 15);                                                                  \
    } while (0)

START_TEST(check_refuses_contradictions) {
    struct diag none = DIAG_INIT;
    struct transform_spec empty = {.crop = CROP_NONE};
    ck_assert_int_eq(transform_check(&empty, &none), -EINVAL);
    REFUSED(.channels = 4);
    REFUSED(.height = 70000);
    REFUSED(.crop = (enum transform_crop)9);
    REFUSED(.filter = (enum transform_filter)1);
    REFUSED(.layout = (enum transform_layout)2);
    REFUSED(.dtype = LOADERD_I64);
    REFUSED(.resize = 256);
    REFUSED(.padding = 4);
    REFUSED(.crop = CROP_CENTER, .resize = 70000);
    REFUSED(.flip = 1.5);
    REFUSED(.flip = __builtin_nan(""));
    REFUSED(.scale = {1, 0.5});
    REFUSED(.scale = {0, 0.5});
    REFUSED(.ratio = {2, 1});
    REFUSED(.normalize = true);
    REFUSED(.normalize = true, .dtype = LOADERD_F32);
}
END_TEST

START_TEST(apply_refuses_pixels_that_do_not_match) {
    struct transform *transform = new_transform(&twin_scalar);
    struct transform_spec spec = make_spec(CROP_NONE, 8, 8, 3, FILTER_BILINEAR);
    struct transform_geometry g;
    struct diag diag = DIAG_INIT;
    struct box region = {0, 0, 16, 15}, whole = {0, 0, 16, 16};
    uint8_t out[8 * 8 * 3];
    ck_assert_int_eq(transform_check(&spec, NULL), 0);
    transform_geometry(&spec, 16, 16, &no_key, &g);
    struct picture picture = make_picture(&whole, 3);
    ck_assert_int_eq(transform_apply(transform, &spec, &g, &region, &picture, out, &diag), -EINVAL);
    ck_assert_ptr_nonnull(strstr(diag.text, "16x16"));
    picture.channels = 1;
    ck_assert_int_eq(transform_apply(transform, &spec, &g, &whole, &picture, out, &diag), -EINVAL);
    free(picture.pixels);
    transform_free(transform);
}
END_TEST

/* Twins. ----------------------------------------------------------------------------------------------------------- */

#define SHAPES 12000
#define GUARD 80
#define ARENA (1u << 20)

static uint32_t below(uint64_t *state, uint32_t n) { /* 0 ... n - 1, any generator does */
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((*state >> 33) % n);
}

static uint32_t side(uint64_t *state, uint32_t most) {
    return 1 + below(state, below(state, 3) ? 1 + most / 6 : most);
}

/* Memory between two pages that must not be touched: pictures are put against one end or the other. */
static uint8_t *make_arena(void) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *all = mmap(NULL, ARENA + 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(all, MAP_FAILED);
    ck_assert_int_eq(mprotect(all, page, PROT_NONE), 0);
    ck_assert_int_eq(mprotect(all + page + ARENA, page, PROT_NONE), 0);
    return all + page;
}

static void random_shape(uint64_t *state, struct transform_spec *spec, struct transform_geometry *g) {
    static const uint32_t dtypes[] = {LOADERD_U8, LOADERD_U8, LOADERD_U8, LOADERD_F32, LOADERD_F16, LOADERD_BF16};
    uint32_t most = below(state, 50) ? 120 : 900;
    *spec = make_spec(CROP_RANDOM_RESIZED, side(state, 90), side(state, 90), below(state, 3) ? 3 : 1,
                      (int[]){FILTER_NEAREST, FILTER_BILINEAR, FILTER_BILINEAR, FILTER_BICUBIC}[below(state, 4)]);
    spec->dtype = dtypes[below(state, ARRAY_SIZE(dtypes))];
    spec->layout = below(state, 3) ? LAYOUT_NHWC : LAYOUT_NCHW;
    spec->normalize = spec->dtype != LOADERD_U8 && below(state, 2);
    for (int c = 0; c < 3; c++) {
        spec->mean[c] = (float)below(state, 1000) / 1000;
        spec->std[c] = (float)(1 + below(state, 1000)) / 1000;
    }
    ck_assert_int_eq(transform_check(spec, NULL), 0);
    *g = (struct transform_geometry){.source = {below(state, 5), below(state, 5), side(state, most), side(state, most)},
                                     .full_width = spec->width,
                                     .full_height = spec->height,
                                     .flip = below(state, 2),
                                     .flip_vertical = below(state, 2)};
    if (!below(state, 6))
        g->full_width = g->source.width;
    if (!below(state, 6))
        g->full_height = g->source.height;
    if (!below(state, 3)) { /* a window, perhaps with padding */
        g->full_width = side(state, 150);
        g->full_height = side(state, 150);
        g->x0 = (int32_t)below(state, 40) - 20;
        g->y0 = (int32_t)below(state, 40) - 20;
    }
    g->source_width = g->source.x + g->source.width;
    g->source_height = g->source.y + g->source.height;
}

START_TEST(twins_equal_scalar) {
    struct transform *scalar = new_transform(&twin_scalar), *other = new_transform(twins[_i]);
    uint8_t *arena = make_arena(), *wanted = malloc(ARENA), *got = malloc(ARENA);
    uint64_t state = 20240601;
    for (uint32_t n = 0; n < SHAPES; n++) {
        struct transform_spec spec;
        struct transform_geometry g;
        struct box region;
        random_shape(&state, &spec, &g);
        transform_region(&spec, &g, &region);
        size_t row = (size_t)region.width * spec.channels, stride = row + (below(&state, 2) ? below(&state, 70) : 0);
        size_t bytes = stride * (region.height - 1) + row, out_bytes = (size_t)transform_row_bytes(&spec);
        if (bytes > ARENA || out_bytes + 2 * GUARD + 64 > ARENA)
            continue;
        struct picture picture = {below(&state, 2) ? arena : arena + ARENA - bytes, stride, region.width, region.height,
                                  spec.channels};
        bool extreme = below(&state, 2); /* black and white overshoot most */
        for (size_t i = 0; i < bytes; i++)
            picture.pixels[i] = (uint8_t)(extreme ? (below(&state, 2) ? 255 : 0) : below(&state, 256));
        uint8_t *out = got + GUARD + below(&state, 64);
        memset(got, 0xa5, out_bytes + 2 * GUARD + 64);
        ck_assert_int_eq(transform_apply(scalar, &spec, &g, &region, &picture, wanted, NULL), 0);
        ck_assert_int_eq(transform_apply(other, &spec, &g, &region, &picture, out, NULL), 0);
        ck_assert_msg(!memcmp(out, wanted, out_bytes),
                      "%s, shape %u: %ux%u of %u channels to %ux%u, window at (%d, %d) %ux%u, filter "
                      "%d, dtype %u, flip %d",
                      twins[_i]->name, n, g.source.width, g.source.height, spec.channels, g.full_width, g.full_height,
                      g.x0, g.y0, spec.width, spec.height, (int)spec.filter, spec.dtype, g.flip);
        for (size_t i = 0; i < GUARD; i++)
            ck_assert_msg(out[-1 - (ptrdiff_t)i] == 0xa5 && out[out_bytes + i] == 0xa5, "%s, shape %u: wrote outside",
                          twins[_i]->name, n);
    }
    free(wanted);
    free(got);
    transform_free(scalar);
    transform_free(other);
}
END_TEST

/* Rows that come in pieces, each in memory that is gone behind it, make the bytes that the whole picture makes. */
static void apply_in_pieces(struct transform *transform, const struct transform_spec *spec,
                            const struct transform_geometry *g, const struct picture *picture, uint64_t *state,
                            uint8_t *out) {
    size_t row = (size_t)picture->width * picture->channels;
    ck_assert_int_eq(transform_begin(transform, spec, g, out, NULL), 0);
    for (uint32_t y = 0, n; y < picture->height; y += n) {
        n = 1 + below(state, below(state, 3) ? 17 : 200);
        n = MIN(n, picture->height - y);
        uint8_t *piece = malloc(n * row);
        for (uint32_t i = 0; i < n; i++)
            memcpy(piece + i * row, picture->pixels + (y + i) * picture->stride, row);
        transform_rows(transform, piece, row, n);
        memset(piece, 0x5a, n * row);
        free(piece);
    }
    transform_end(transform);
}

START_TEST(rows_in_pieces_are_the_same) {
    struct transform *whole = new_transform(twins[_i]), *pieces = new_transform(twins[_i]);
    uint8_t *memory = malloc(ARENA), *wanted = malloc(ARENA), *got = malloc(ARENA);
    uint64_t state = 20261201;
    uint32_t taken = 0;
    for (uint32_t n = 0; n < SHAPES; n++) {
        struct transform_spec spec;
        struct transform_geometry g;
        struct box region;
        random_shape(&state, &spec, &g);
        g.color.gray = spec.channels == 3 && !below(&state, 4);
        if (!below(&state, 4))
            g.color.erase = (struct box){0, 0, 1 + below(&state, spec.width), 1 + below(&state, spec.height)};
        transform_region(&spec, &g, &region);
        struct picture picture = {memory, (size_t)region.width * spec.channels, region.width, region.height,
                                  spec.channels};
        size_t bytes = picture.stride * region.height, out_bytes = (size_t)transform_row_bytes(&spec);
        if (bytes > ARENA || out_bytes > ARENA)
            continue;
        for (size_t i = 0; i < bytes; i++)
            memory[i] = (uint8_t)below(&state, 256);
        if (!transform_takes_rows(&spec, &g)) {
            ck_assert(spec.filter == FILTER_NEAREST || (g.full_width == g.source.width && !g.flip) || g.x0 || g.y0);
            continue;
        }
        taken++;
        memset(got, 0xa5, out_bytes);
        ck_assert_int_eq(transform_apply(whole, &spec, &g, &region, &picture, wanted, NULL), 0);
        apply_in_pieces(pieces, &spec, &g, &picture, &state, got);
        ck_assert_msg(!memcmp(got, wanted, out_bytes), "%s, shape %u", twins[_i]->name, n);
    }
    ck_assert_uint_gt(taken, SHAPES / 3);
    free(memory);
    free(wanted);
    free(got);
    transform_free(whole);
    transform_free(pieces);
}
END_TEST

/* A region larger than needed gives the same bytes. */
START_TEST(larger_region_is_the_same) {
    struct transform *transform = new_transform(twins[_i]);
    struct transform_spec spec = make_spec(CROP_CENTER, 60, 50, 3, FILTER_BICUBIC);
    struct transform_geometry g;
    struct box need, whole = {0, 0, 200, 150};
    uint8_t a[60 * 50 * 3], b[60 * 50 * 3];
    spec.resize = 77;
    ck_assert_int_eq(transform_check(&spec, NULL), 0);
    transform_geometry(&spec, 200, 150, &no_key, &g);
    transform_region(&spec, &g, &need);
    ck_assert(need.width < 200 && need.height < 150);
    struct picture part = make_picture(&need, 3), all = make_picture(&whole, 3);
    ck_assert_int_eq(transform_apply(transform, &spec, &g, &need, &part, a, NULL), 0);
    ck_assert_int_eq(transform_apply(transform, &spec, &g, &whole, &all, b, NULL), 0);
    ck_assert_mem_eq(a, b, sizeof a);
    free(part.pixels);
    free(all.pixels);
    transform_free(transform);
}
END_TEST

/* Sizes that only a hostile header has: no overflow, and the region stays inside the source. */
START_TEST(hostile_sizes) {
    static const uint32_t sides[] = {1, 2, 65535, 1u << 24, (1u << 24) + 3, INT32_MAX, UINT32_MAX};
    static const int filters[] = {FILTER_NEAREST, FILTER_BILINEAR, FILTER_BICUBIC};
    for (size_t n = 0; n < ARRAY_SIZE(sides) * ARRAY_SIZE(sides) * 3 * 4; n++) {
        uint32_t width = sides[n % ARRAY_SIZE(sides)], height = sides[n / ARRAY_SIZE(sides) % ARRAY_SIZE(sides)];
        size_t rest = n / ARRAY_SIZE(sides) / ARRAY_SIZE(sides);
        struct transform_spec spec = make_spec((enum transform_crop)(rest % 4), 224, 1, 3, filters[rest / 4]);
        struct transform_geometry g;
        struct box region;
        struct loaderd_row row;
        spec.resize = spec.crop == CROP_CENTER ? 65535 : 0;
        spec.padding = spec.crop == CROP_RANDOM_PADDED ? 65535 : 0;
        ck_assert_int_eq(transform_check(&spec, NULL), 0);
        transform_geometry(&spec, width, height, &(struct random_key){1, 2, n}, &g);
        transform_region(&spec, &g, &region);
        transform_row(&spec, &g, &row);
        ck_assert(region.width >= 1 && region.height >= 1);
        ck_assert_uint_le((uint64_t)region.x + region.width, width);
        ck_assert_uint_le((uint64_t)region.y + region.height, height);
        ck_assert(region.x >= g.source.x && region.y >= g.source.y);
    }
}
END_TEST

START_TEST(pixels_are_bounded_and_grow_only) {
    struct transform *transform;
    size_t stride;
    ck_assert_int_eq(transform_new(10000, &transform), 0);
    ck_assert_ptr_null(transform_pixels(transform, 101, 100, 3, &stride));
    ck_assert_ptr_null(transform_pixels(transform, UINT32_MAX, UINT32_MAX, 3, &stride));
    uint8_t *large = transform_pixels(transform, 100, 100, 3, &stride);
    ck_assert_ptr_nonnull(large);
    ck_assert_uint_ge(stride, 300);
    memset(large, 1, 99 * stride + 300);
    ck_assert_ptr_eq(transform_pixels(transform, 10, 10, 1, &stride), large);
    transform_free(transform);
    transform_free(NULL);
}
END_TEST

START_TEST(simd_can_be_lowered) {
    setenv("LOADERD_SIMD", "scalar", 1);
    ck_assert_str_eq(transform_simd(), "scalar");
    setenv("LOADERD_SIMD", "avx512", 1);
    ck_assert_str_eq(transform_simd(), twins[twin_count - 1]->name);
    unsetenv("LOADERD_SIMD");
    ck_assert_str_eq(transform_simd(), twins[twin_count - 1]->name);
}
END_TEST

int main(void) {
    twin_count = twins_supported(twins);
    int count = (int)twin_count;
    Suite *suite = suite_create("transform");
    TCase *pixels = tcase_create("pixels"), *geometry = tcase_create("geometry"), *rest = tcase_create("rest");
    tcase_set_timeout(pixels, 120);
    tcase_set_timeout(geometry, 120);
    tcase_add_loop_test(pixels, resize_equals_pillow, 0, count);
    tcase_add_loop_test(pixels, box_equals_pillow, 0, count);
    tcase_add_loop_test(pixels, centre_crop_equals_pillow, 0, count);
    tcase_add_loop_test(pixels, padded_crop_equals_pillow, 0, count);
    tcase_add_loop_test(pixels, output_equals_numpy, 0, count);
    tcase_add_loop_test(pixels, larger_region_is_the_same, 0, count);
    tcase_add_loop_test(pixels, twins_equal_scalar, 1, count);
    tcase_add_loop_test(pixels, rows_in_pieces_are_the_same, 0, count);
    tcase_add_test(pixels, small_pictures_are_as_pillow_shows_them);
    tcase_add_test(pixels, close_to_binary64);
    tcase_add_test(geometry, random_resized_crop_equals_torchvision);
    tcase_add_test(geometry, random_crop_obeys_its_laws);
    tcase_add_test(geometry, epochs_and_positions_differ);
    tcase_add_test(geometry, row_header_tells_the_crop);
    tcase_add_test(geometry, exponential_and_logarithm_are_accurate);
    tcase_add_test(geometry, hostile_sizes);
    tcase_add_test(rest, halves_equal_numpy);
    tcase_add_test(rest, casts_keep_values);
    tcase_add_test(rest, casts_refuse_what_does_not_fit);
    tcase_add_test(rest, casts_of_many_and_misaligned);
    tcase_add_test(rest, casts_of_token_ids);
    tcase_add_test(rest, clean_equals_numpy);
    tcase_add_test(rest, check_fills_defaults);
    tcase_add_test(rest, check_refuses_contradictions);
    tcase_add_test(rest, apply_refuses_pixels_that_do_not_match);
    tcase_add_test(rest, pixels_are_bounded_and_grow_only);
    tcase_add_test(rest, simd_can_be_lowered);
    suite_add_tcase(suite, pixels);
    suite_add_tcase(suite, geometry);
    suite_add_tcase(suite, rest);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
