/* SPDX-License-Identifier: MIT */
/*
 * From a decoded picture to a row of the batch: geometry, resampling, flip, cast, normalise, layout.
 *
 *   transform_geometry   (spec, source size, random key) -> which part of the source, how large, flipped?
 *   transform_region     (geometry)                      -> the source pixels that must be decoded for it
 *   transform_apply      (geometry, those pixels)        -> the row, in its final place
 *     or transform_begin, transform_rows ..., transform_end: the same while the pixels are being decoded
 *
 * The formulas are torchvision's (v2, functional on PIL images) and Pillow's: resampling of u8 equals Pillow's
 * Image.resize bit for bit (22-bit fixed-point coefficients, horizontal pass first, as in Pillow up to 12.x).
 * Randomness is counter-based (base/random.h); arithmetic that decides a geometry uses only exactly rounded operations
 * (+ - * / sqrt and our own exp), so that every machine and SIMD level makes the same bytes.
 */
#ifndef TRANSFORM_TRANSFORM_H
#define TRANSFORM_TRANSFORM_H

#include "base/diag.h"
#include "base/random.h"
#include "base/types.h"

enum transform_filter { FILTER_NEAREST = 0, FILTER_BILINEAR = 2, FILTER_BICUBIC = 3 }; /* Pillow's numbers */
enum transform_layout { LAYOUT_NHWC, LAYOUT_NCHW };

/* How the crop is chosen. */
enum transform_crop {
    CROP_NONE,           /* the whole picture, resized to width x height (aspect not kept) unless it already is */
    CROP_CENTER,         /* resize the short side to `resize` (aspect kept), then the centre width x height */
    CROP_RANDOM_RESIZED, /* RandomResizedCrop(scale, ratio) */
    CROP_RANDOM_PADDED   /* zero padding of `padding` pixels, then a random width x height crop (RandomCrop) */
};

struct transform_spec {
    enum transform_crop crop;
    uint32_t width, height; /* of the output, pixels */
    uint32_t channels;      /* 1 or 3 */
    uint32_t resize;        /* CROP_CENTER: short side in pixels, 0: no resize */
    uint32_t padding;       /* CROP_RANDOM_PADDED */
    double scale[2];        /* CROP_RANDOM_RESIZED: share of the area, default 0.08 1 */
    double ratio[2];        /* width / height, default 3/4 4/3 */
    double jitter[4];       /* ColorJitter: brightness, contrast, saturation (each >= 0), hue (0..0.5); 0: not */
    double grayscale;       /* probability of R = G = B = luma */
    double erase;           /* probability of RandomErasing (scale 0.02..0.33, ratio 0.3..3.3, value 0) */
    double flip;            /* probability of a left-right mirror, 0..1 */
    double flip_vertical;   /* probability of a top-bottom mirror */
    enum transform_filter filter;
    bool normalize; /* (value / 255 - mean) / std a channel; otherwise f32 output is value / 255 */
    float mean[3], std[3];
    uint32_t dtype; /* LOADERD_U8, LOADERD_F32, LOADERD_F16, LOADERD_BF16 */
    enum transform_layout layout;
};

/* Colours chosen for one sample: see color.c. */
struct transform_color {
    bool jitter, gray;
    uint8_t order[4]; /* of brightness, contrast, saturation, hue */
    double factor[4];
    struct box erase; /* width 0: nothing, in pixels of the output */
};

/* The choice made for one sample. `full` is the size that the source box is resized to; of it the output takes
 * [x0, x0 + width) x [y0, y0 + height); outside of `full` (padding) pixels are zero, that is black: a normalised row
 * holds (0 - mean) / std there, as torchvision's does. */
struct transform_geometry {
    uint32_t source_width, source_height;
    struct box source;                /* cropped from the source first, whole pixels */
    uint32_t full_width, full_height; /* it is then resized to this */
    int32_t x0, y0;                   /* the output window in it; negative: padding */
    bool flip, flip_vertical;
    struct transform_color color;
};

/* Fails with -EINVAL and a sentence where keys of the spec contradict each other. Fills defaults (0 -> default). */
int transform_check(struct transform_spec *spec, struct diag *diag);

/* Pure; any thread. source sizes >= 1. */
void transform_geometry(const struct transform_spec *spec, uint32_t source_width, uint32_t source_height,
                        const struct random_key *key, struct transform_geometry *ret);

/* The source pixels that transform_apply() reads: inside geometry->source. width and height >= 1 always. */
void transform_region(const struct transform_spec *spec, const struct transform_geometry *geometry, struct box *ret);

/* Writes the geometry into the row header (crop box in source pixels as floats). */
void transform_row(const struct transform_spec *spec, const struct transform_geometry *geometry,
                   struct loaderd_row *row);

/* Moves a rectangle of the source, its edges left, top, right, bottom in source pixels (0: the picture's corner), as the
 * picture is moved, and cuts it to the row. Edges are then pixels of the row. Returns the share of its area inside of the
 * source that is left, 0..1; 0 where that area is none. Pure: binary64, then rounded to f32. */
double transform_box(const struct transform_spec *spec, const struct transform_geometry *geometry, const double side[4],
                     float ret[4]);

/* Per-worker scratch: coefficient tables and intermediate rows; grows to what the largest picture needs, bounded by
 * max_pixels. */
struct transform;
int transform_new(uint64_t max_pixels, struct transform **ret);
void transform_free(struct transform *transform);

/* `region` is what transform_region() said, `pixels` its pixels (channels = spec->channels). Writes the whole row of
 * transform_row_bytes() at `out`, which may have any alignment. A region that holds more than is needed will do.
 * Returns 0, -ENOMEM / -EOVERFLOW, or -EINVAL where `pixels` are not those of the region, with a sentence. */
int transform_apply(struct transform *transform, const struct transform_spec *spec,
                    const struct transform_geometry *geometry, const struct box *region, const struct picture *pixels,
                    void *out, struct diag *diag);

/* The same without a whole picture in memory: where transform_takes_rows() says so, transform_begin(), then
 * transform_rows() with the rows of the region that transform_region() said, top down in pieces of any number, then
 * transform_end(). The row at `out` is complete behind the last; left off before, it holds anything. `spec` and `out` must
 * stay until then. Only transform_begin() can fail, as transform_apply() does. */
bool transform_takes_rows(const struct transform_spec *spec, const struct transform_geometry *geometry);
int transform_begin(struct transform *transform, const struct transform_spec *spec,
                    const struct transform_geometry *geometry, void *out, struct diag *diag);
void transform_rows(struct transform *transform, const uint8_t *pixels, size_t stride, uint32_t rows);
void transform_end(struct transform *transform);

uint64_t transform_row_bytes(const struct transform_spec *spec);

/* "avx512", "avx2", "scalar": the twin chosen at run time ($LOADERD_SIMD lowers it). */
const char *transform_simd(void);

/* A pixel buffer for the decoded region, of the worker's scratch: NULL where width x height exceeds max_pixels.
 * Valid until the next call. */
uint8_t *transform_pixels(struct transform *transform, uint32_t width, uint32_t height, uint32_t channels,
                          size_t *ret_stride);

/* Converts `count` elements: dtype `from` (any integer or float) to `to`, for labels and record fields; returns 0 or
 * -ERANGE where an integer does not fit. f32 = value, no scaling. See cast.c for the roundings. */
int transform_cast(uint32_t from, const void *source, uint32_t to, void *out, size_t count);

/* What is done about values of floats in records: cut to [low, high] (infinite: not), and those that are no number. */
enum transform_nan { NAN_KEEP, NAN_ERROR, NAN_ZERO };
struct transform_clean {
    double low, high;
    enum transform_nan nan;
};

/* In place, `count` elements of a dtype of floats, aligned as such. False: a value is no number, and that is an error. */
bool transform_clean(const struct transform_clean *clean, uint32_t dtype, void *values, size_t count);

/* Copies `count` elements of `bytes` each (1, 2, 4 or 8) with their bytes reversed. Any alignment; no overlap. */
void transform_swap(const void *source, void *out, size_t bytes, size_t count);

#endif
