/* SPDX-License-Identifier: MIT */
/*
 * What the files of the transform stage share and nobody else includes: the weights of one axis, the twins of the two
 * resampling passes and of the output stage, and the arithmetic that decides a geometry.
 *
 * An axis maps `count` outputs, numbers `first` ... of a picture side of `in` pixels resized to `full`, to intervals of
 * source pixels with integer weights, exactly those of Pillow's ImagingResample for 8-bit pixels:
 *
 *   source  |--------[start ............... start + length)------| in
 *   output  |-------------[first ... first + count)--------------| full
 *
 * `begin` counts from `start`, since only [start, start + length) is decoded. A mirrored axis lists its outputs last
 * to first, so a left-right flip costs nothing.
 */
#ifndef TRANSFORM_INTERNAL_H
#define TRANSFORM_INTERNAL_H

#include "transform/transform.h"

#define WEIGHT_BITS 22 /* Pillow's PRECISION_BITS, 32 - 8 - 2 */

struct axis_key {
    uint32_t in, full, first, count;
    uint32_t filter;   /* enum transform_filter */
    uint32_t mirror;   /* outputs in reverse order */
    uint32_t channels; /* interleaved; 0: a vertical axis */
};

/* A block of memory that only grows; its contents do not survive growth. */
struct buffer {
    uint8_t *data; /* 64-byte aligned */
    size_t capacity;
};
/* clang-format off */
#define BUFFER_INIT {NULL, 0}
/* clang-format on */
int scratch_reserve(struct buffer *buffer, uint64_t bytes); /* 0 or -ENOMEM */
void scratch_deinit(struct buffer *buffer);

struct axis {
    struct axis_key key;
    bool identity;          /* output i is source pixel start + i: the pass is skipped */
    uint32_t start, length; /* source pixels used */
    uint32_t taps;          /* most source pixels of one output */
    uint32_t *begin;        /* [count] first source pixel, from `start` */
    uint32_t *number;       /* [count] of source pixels, 1 ... taps */
    int32_t *weights;       /* [count][taps], zero behind `number`; NULL for FILTER_NEAREST */
    struct buffer memory;   /* holds the three */
    struct buffer packed;   /* the twin's form of the weights */
    uint32_t groups, steps; /* of the packed form, below; groups 0: the scalar pass does it */
    bool reduce;            /* of the packed form */
};

/*
 * How the SIMD twins see a horizontal pass: registers of 32-bit lanes, each lane the sum of one output byte, and
 * `taps` (4 or 2) neighbouring source pixels a lane in each step. Two forms; in both a step is a few unaligned loads, a
 * byte shuffle that brings each lane its pixels, and dot products with the lane's weights.
 *
 *   direct   a group is `lanes` consecutive output bytes; step s holds pixels s * taps ... of each
 *   reduce   a group is one output pixel (for filters so wide that neighbouring outputs read far apart): lanes are
 *            (slot, channel), 4 lanes a slot for RGB, 1 for gray; slots hold successive pixels, summed at the end
 */
struct lane {
    bool used;
    uint32_t output; /* pixel of the axis */
    uint32_t channel;
    uint32_t tap; /* the first of its source pixels, from begin[output] */
};
static inline struct lane axis_lane(const struct axis *axis, uint32_t lanes, uint32_t taps, uint32_t group,
                                    uint32_t step, uint32_t lane) {
    uint32_t channels = axis->key.channels;
    struct lane r;
    if (axis->reduce) {
        uint32_t wide = channels == 1 ? 1 : 4;
        r.output = group;
        r.channel = lane % wide;
        r.tap = (step * (lanes / wide) + lane / wide) * taps;
    } else {
        uint32_t byte = group * lanes + lane;
        r.output = channels == 3 ? byte / 3 : byte;
        r.channel = byte - r.output * channels;
        r.tap = step * taps;
    }
    r.used = r.output < axis->key.count && r.channel < channels && r.tap < axis->number[r.output];
    return r;
}
/* Groups and steps of a form. */
void axis_form(struct axis *axis, bool reduce, uint32_t lanes, uint32_t taps);

/* The source pixels [start, start + length) that outputs [first, first + count) of the key need. */
void axis_interval(const struct axis_key *key, uint32_t *ret_start, uint32_t *ret_length);
/* Computes the weights of a key in an axis that was zeroed or used before. 0, -ENOMEM or -EOVERFLOW. */
int axis_fill(struct axis *axis, const struct axis_key *key);
void axis_deinit(struct axis *axis);

/* Horizontal pass of `rows` rows: reads axis->length pixels a row at source, writes axis->key.count pixels a row. */
typedef void resample_horizontal(const struct axis *axis, const uint8_t *source, size_t stride, uint32_t rows,
                                 uint8_t *out, size_t out_stride);
/* Vertical pass of output row `index`: source is the row axis->begin[index] (a row of `bytes` bytes). */
typedef void resample_vertical(const struct axis *axis, uint32_t index, const uint8_t *source, size_t stride,
                               uint8_t *out, size_t bytes);

/* What output_row() needs: for every channel and u8 value the element that is stored. */
struct output_table {
    uint32_t element; /* bytes of one output element: 1, 2, 4 */
    uint32_t channels;
    enum transform_layout layout;
    union {
        uint16_t u16[3][256];
        float f32[3][256];
    } value;
};
/* Bytes of one output element. */
static inline uint32_t output_element(const struct transform_spec *spec) {
    return spec->dtype == LOADERD_U8 ? 1 : spec->dtype == LOADERD_F32 ? 4 : 2;
}
void output_table_fill(struct output_table *table, const struct transform_spec *spec);
/* Turns a row of `width` u8 pixels into elements at `out`; channel c of LAYOUT_NCHW goes `plane` bytes further. */
typedef void output_row(const struct output_table *table, const uint8_t *row, uint32_t width, uint8_t *out,
                        size_t plane);

/* One implementation of the inner loops. All make the same bytes. */
struct twin {
    const char *name;
    int (*pack)(struct axis *axis); /* prepares axis->packed; NULL: nothing to prepare. 0 or -ENOMEM */
    resample_horizontal *horizontal;
    resample_vertical *vertical;
    output_row *output;
};
extern const struct twin twin_scalar;
#if defined(__x86_64__)
extern const struct twin twin_avx2, twin_avx512;
#endif
#define TWINS_MAX 3
/* Twins that this CPU can run, slowest first. */
size_t twins_supported(const struct twin *ret[TWINS_MAX]);
/* transform_new() with a given twin, for tests. */
int transform_new_twin(uint64_t max_pixels, const struct twin *twin, struct transform **ret);

resample_horizontal horizontal_scalar;
resample_vertical vertical_scalar;
output_row output_scalar;

/* color.c: draws, changes the u8 NHWC pixels of a whole row, erases in the finished one. */
void color_choose(const struct transform_spec *spec, const struct random_key *key, struct transform_color *ret);
void color_apply(const struct transform_spec *spec, const struct transform_color *color, uint8_t *pixels);
void color_erase(const struct transform_spec *spec, const struct box *box, void *out);

/* Natural exponential and logarithm with + - * / only; within 1 unit in the last place for |x| <= 700 and for normal
 * x > 0. */
double exact_exp(double x);
double exact_log(double x);
double exact_sqrt(double x);        /* rounded exactly, whatever the libm */
uint64_t round_half_even(double x); /* Python's round() of 0 <= x < 2^52 */

uint16_t float_to_f16(float value);  /* IEEE binary16, round to nearest even */
uint16_t float_to_bf16(float value); /* upper half of binary32, round to nearest even; NaN stays NaN */
float f16_to_float(uint16_t bits);

#endif
