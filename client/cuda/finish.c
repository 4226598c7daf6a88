/* SPDX-License-Identifier: MIT */
/*
 * Host side of finishing: tables, shapes, the choice of a kernel. Pure functions, any thread.
 *
 * The formula is that of the daemon's output stage, each operation rounded to binary32: value / 255, then
 * (value / 255 - mean) / std; f16 and bf16 are that value rounded to nearest even. Compile without contraction.
 */
#include <errno.h>
#include <loaderd/cuda.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "finish.h"

static uint32_t float_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static uint16_t to_bf16(float value) {
    uint32_t bits = float_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((bits >> 16) | 0x40u); /* NaN stays one */
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

static uint16_t to_f16(float value) {
    uint32_t bits = float_bits(value), sign = (bits >> 16) & 0x8000u, rest = bits & 0x7fffffffu;
    if (rest > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | ((rest >> 13) & 0x3ffu));
    if (rest >= 0x477ff000u) /* 65520 and more: infinity */
        return (uint16_t)(sign | 0x7c00u);
    if (rest >= 0x38800000u) {
        rest += 0xfffu + ((rest >> 13) & 1);
        return (uint16_t)(sign | ((rest - 0x38000000u) >> 13));
    }
    if (rest < 0x33000000u)
        return (uint16_t)sign;
    uint32_t significand = (rest & 0x7fffffu) | 0x800000u, shift = 126 - (rest >> 23);
    uint32_t whole = significand >> shift, lost = significand & ((1u << shift) - 1), half = 1u << (shift - 1);
    return (uint16_t)(sign | (whole + (lost > half || (lost == half && (whole & 1)))));
}

static void fill_table(const struct loaderd_cuda_finish_spec *spec, uint32_t channels, struct finish_table *table) {
    memset(table, 0, sizeof *table);
    for (uint32_t c = 0; c < channels; c++)
        for (uint32_t v = 0; v < 256; v++) {
            float value = (float)v / 255.0f;
            if (spec->normalize) {
                value = value - spec->mean[c];
                value = value / spec->std[c];
            }
            if (spec->dtype == LOADERD_F32)
                table->value.f32[c][v] = value;
            else if (spec->dtype != LOADERD_U8)
                table->value.u16[c][v] = spec->dtype == LOADERD_F16 ? to_f16(value) : to_bf16(value);
        }
}

static int refuse(char *error, uint64_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));
static int refuse(char *error, uint64_t size, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(error, size, format, args);
    va_end(args);
    return -EINVAL;
}

static int check_spec(const struct loaderd_cuda_finish_spec *spec, char *error, uint64_t size) {
    if (spec->dtype != LOADERD_F32 && spec->dtype != LOADERD_F16 && spec->dtype != LOADERD_BF16 &&
        spec->dtype != LOADERD_U8)
        return refuse(error, size, "finishing gives f32, f16, bf16 or u8, not type %u", spec->dtype);
    if (spec->layout > LOADERD_CUDA_NCHW || spec->normalize > 1 || spec->reserved)
        return refuse(error, size, "finishing: layout is 0 or 1, normalize 0 or 1, reserved 0 (they are %u, %u, %u)",
                      spec->layout, spec->normalize, spec->reserved);
    if (spec->dtype == LOADERD_U8 && spec->normalize)
        return refuse(error, size, "finishing: u8 cannot be normalised; choose f32, f16 or bf16");
    for (int c = 0; c < FINISH_CHANNELS && spec->normalize; c++)
        if (!isfinite(spec->mean[c]) || !isfinite(spec->std[c]) || spec->std[c] == 0)
            return refuse(error, size, "finishing: mean %g and std %g of channel %d must be finite, std not 0",
                          (double)spec->mean[c], (double)spec->std[c], c);
    return 0;
}

static int check_source(const struct loaderd_field *f, char *error, uint64_t size) {
    if (f->dtype != LOADERD_U8 || f->ndim != 4)
        return refuse(error, size,
                      "finishing needs u8 pictures {rows, height, width, channels}; field '%s' is %s of %u "
                      "dimensions (ask loaderd for dtype=u8 layout=nhwc)",
                      f->name ? f->name : "", loaderd_dtype_name(f->dtype), f->ndim);
    if (f->dims[3] != 1 && f->dims[3] != 3)
        return refuse(error, size,
                      "finishing needs 1 or 3 channels in the last dimension of '%s', it has %lld (ask "
                      "loaderd for layout=nhwc)",
                      f->name ? f->name : "", (long long)f->dims[3]);
    for (int d = 0; d < 3; d++)
        if (f->dims[d] < 1 || f->dims[d] > 1 << 20)
            return refuse(error, size, "finishing: dimension %d of '%s' is %lld", d, f->name ? f->name : "",
                          (long long)f->dims[d]);
    return 0;
}

int finish_prepare(const struct loaderd_cuda_finish_spec *spec, const struct loaderd_field *source,
                   const uint8_t *flips, void *destination, struct finish_job *ret, struct finish_table *ret_table,
                   char *error, uint64_t size) {
    int r = check_spec(spec, error, size);
    if (r == 0)
        r = check_source(source, error, size);
    if (r < 0)
        return r;
    uint64_t elements = 1;
    for (int d = 0; d < 4; d++)
        if (__builtin_mul_overflow(elements, (uint64_t)source->dims[d], &elements) || elements >> 40)
            return refuse(error, size, "finishing: '%s' is too large", source->name ? source->name : "");
    struct finish_job job = {.source = source->data,
                             .destination = destination,
                             .flips = flips,
                             .height = (uint32_t)source->dims[1],
                             .width = (uint32_t)source->dims[2],
                             .channels = (uint32_t)source->dims[3],
                             .element = (uint32_t)loaderd_dtype_size(spec->dtype),
                             .planar = spec->layout == LOADERD_CUDA_NCHW};
    bool aligned = (uintptr_t)job.source % 4 == 0 && (uintptr_t)destination % 16 == 0;
    /* wide kernels count in 32 bits; the channels-last one does not mirror */
    job.wide = job.channels == 3 && job.width % 4 == 0 && aligned && elements < UINT32_MAX && (job.planar || !flips);
    job.units = !job.wide ? elements : job.planar ? elements / 12 : elements / 4;
    fill_table(spec, job.channels, ret_table);
    *ret = job;
    return 0;
}

void finish_field(const struct loaderd_cuda_finish_spec *spec, const struct loaderd_field *source,
                  struct loaderd_field *ret) {
    *ret = *source;
    ret->dtype = spec->dtype;
    ret->bytes = source->bytes * loaderd_dtype_size(spec->dtype);
    if (spec->layout == LOADERD_CUDA_NCHW) {
        ret->dims[1] = source->dims[3];
        ret->dims[2] = source->dims[1];
        ret->dims[3] = source->dims[2];
    }
}
