/* SPDX-License-Identifier: MIT */
/*
 * The output stage: a row of u8 pixels becomes elements of the wanted type and layout, in their final place. Never
 * allocates; pure; any thread.
 *
 * An element depends on the channel and the u8 value only, so the formula is evaluated 256 times a channel and looked
 * up, which makes every twin exact by construction. With f32 it is, each operation rounded to binary32,
 *
 *     value / 255                      torchvision's to_tensor()
 *     (value / 255 - mean) / std       followed by its normalize()
 *
 * the operations that torch does on a CPU, hence its bits. (v2's to_dtype(scale=True) multiplies by the rounded 1 / 255
 * instead, which is at most one unit in the last place away.) f16 and bf16 are that value rounded to nearest even.
 */
#include "transform/internal.h"

#include <string.h>

static uint32_t float_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

uint16_t float_to_bf16(float value) {
    uint32_t bits = float_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((bits >> 16) | 0x40u); /* NaN: keep it one, quiet */
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

uint16_t float_to_f16(float value) {
    uint32_t bits = float_bits(value), sign = (bits >> 16) & 0x8000u, rest = bits & 0x7fffffffu;
    if (rest > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | ((rest >> 13) & 0x3ffu));
    if (rest >= 0x477ff000u) /* 65520 and more round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    if (rest >= 0x38800000u) { /* normal: 2^-14 and more */
        rest += 0xfffu + ((rest >> 13) & 1);
        return (uint16_t)(sign | ((rest - 0x38000000u) >> 13));
    }
    if (rest < 0x33000000u) /* below 2^-25, half of the smallest */
        return (uint16_t)sign;
    /* Subnormal: the significand in units of 2^-24, rounded to nearest even. */
    uint32_t significand = (rest & 0x7fffffu) | 0x800000u, shift = 126 - (rest >> 23);
    uint32_t whole = significand >> shift, lost = significand & ((1u << shift) - 1), half = 1u << (shift - 1);
    return (uint16_t)(sign | (whole + (lost > half || (lost == half && (whole & 1)))));
}

float f16_to_float(uint16_t bits) {
    uint32_t sign = (uint32_t)(bits & 0x8000u) << 16, exponent = (bits >> 10) & 0x1fu, significand = bits & 0x3ffu;
    if (!exponent) {
        float value = (float)significand * 0x1p-24f;
        return sign ? -value : value;
    }
    uint32_t wide = sign | (significand << 13) | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23);
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

void output_table_fill(struct output_table *table, const struct transform_spec *spec) {
    memset(table, 0, sizeof *table);
    table->channels = spec->channels;
    table->layout = spec->layout;
    table->element = output_element(spec);
    if (spec->dtype == LOADERD_U8)
        return;
    for (uint32_t c = 0; c < spec->channels; c++)
        for (uint32_t v = 0; v < 256; v++) {
            float value = (float)v / 255.0f;
            if (spec->normalize) {
                value = value - spec->mean[c];
                value = value / spec->std[c];
            }
            if (spec->dtype == LOADERD_F32)
                table->value.f32[c][v] = value;
            else
                table->value.u16[c][v] = spec->dtype == LOADERD_F16 ? float_to_f16(value) : float_to_bf16(value);
        }
}

/* `step`: bytes between elements of one channel. memcpy: the output may have any alignment. */
static void channel_f32(const float value[256], const uint8_t *row, uint32_t channels, uint32_t width, uint8_t *out,
                        size_t step) {
    for (uint32_t x = 0; x < width; x++)
        memcpy(out + x * step, &value[row[(size_t)x * channels]], sizeof(float));
}

static void channel_u16(const uint16_t value[256], const uint8_t *row, uint32_t channels, uint32_t width, uint8_t *out,
                        size_t step) {
    for (uint32_t x = 0; x < width; x++)
        memcpy(out + x * step, &value[row[(size_t)x * channels]], sizeof(uint16_t));
}

static void channel_u8(const uint8_t *row, uint32_t channels, uint32_t width, uint8_t *out, size_t step) {
    for (uint32_t x = 0; x < width; x++)
        out[x * step] = row[(size_t)x * channels];
}

void output_scalar(const struct output_table *table, const uint8_t *row, uint32_t width, uint8_t *out, size_t plane) {
    bool planar = table->layout == LAYOUT_NCHW;
    size_t step = planar ? table->element : (size_t)table->element * table->channels;
    size_t channel = planar ? plane : table->element;
    for (uint32_t c = 0; c < table->channels; c++, row++, out += channel) {
        if (table->element == 4)
            channel_f32(table->value.f32[c], row, table->channels, width, out, step);
        else if (table->element == 2)
            channel_u16(table->value.u16[c], row, table->channels, width, out, step);
        else
            channel_u8(row, table->channels, width, out, step);
    }
}
