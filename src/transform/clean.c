/* SPDX-License-Identifier: MIT */
/*
 * Values of floats in records made fit for training, in place: what is no number becomes 0 or is told, the rest is cut to
 * a range. Equal, bit for bit, to numpy's clip(nan_to_num(x, nan=0, posinf=inf, neginf=-inf), low, high), with low and
 * high rounded to the elements' type; NaN that is kept stays as it is. Pure, any thread.
 */
#include "transform/internal.h"

#include <stdlib.h>
#include <string.h>

/* As numpy: what equals an end stays as it is, -0 beside 0 too; and so does NaN. */
#define CUT(x, low, high) ((x) < (low) ? (low) : (x) > (high) ? (high) : (x))

#define CLEAN(type)                                                                                                    \
    const type low = (type)clean->low, high = (type)clean->high, *end = values;                                        \
    uint32_t nans = 0;                                                                                                 \
    end += count;                                                                                                      \
    for (type *x = values; x < end; x++) {                                                                             \
        bool is_nan = *x != *x;                                                                                        \
        type value = is_nan && zero ? 0 : *x;                                                                          \
        nans |= is_nan;                                                                                                \
        *x = CUT(value, low, high);                                                                                    \
    }                                                                                                                  \
    return nans != 0

static bool clean_f32(const struct transform_clean *clean, bool zero, float *values, size_t count) {
    CLEAN(float);
}

static bool clean_f64(const struct transform_clean *clean, bool zero, double *values, size_t count) {
    CLEAN(double);
}

static float half_value(uint32_t dtype, uint16_t bits) {
    float value = 0;
    if (dtype == LOADERD_F16)
        return f16_to_float(bits);
    uint32_t wide = (uint32_t)bits << 16;
    memcpy(&value, &wide, sizeof value);
    return value;
}

/* F16 and BF16: compared as binary32, which holds both; the bits of what is not cut stay. */
static bool clean_halves(const struct transform_clean *clean, bool zero, uint32_t dtype, uint16_t *values,
                         size_t count) {
    uint16_t low_bits, high_bits;
    uint32_t nans = 0;
    transform_cast(LOADERD_F64, &clean->low, dtype, &low_bits, 1);
    transform_cast(LOADERD_F64, &clean->high, dtype, &high_bits, 1);
    const float low = half_value(dtype, low_bits), high = half_value(dtype, high_bits);
    for (size_t i = 0; i < count; i++) {
        float value = half_value(dtype, values[i]);
        bool is_nan = value != value;
        nans |= is_nan;
        if (is_nan && zero) {
            values[i] = 0;
            value = 0;
        }
        if (value < low)
            values[i] = low_bits;
        else if (value > high)
            values[i] = high_bits;
    }
    return nans != 0;
}

bool transform_clean(const struct transform_clean *clean, uint32_t dtype, void *values, size_t count) {
    bool zero = clean->nan == NAN_ZERO, found = false;
    switch (dtype) {
    case LOADERD_F32:
        found = clean_f32(clean, zero, values, count);
        break;
    case LOADERD_F64:
        found = clean_f64(clean, zero, values, count);
        break;
    case LOADERD_F16:
    case LOADERD_BF16:
        found = clean_halves(clean, zero, dtype, values, count);
        break;
    default:
        break;
    }
    return !(found && clean->nan == NAN_ERROR);
}
