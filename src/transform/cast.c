/* SPDX-License-Identifier: MIT */
/*
 * Elements of one type become elements of another: labels and record fields. Pure, any thread, any alignment.
 *
 * Values are kept, not scaled. To a float type: rounded once to nearest even; a float too large becomes infinity, an
 * integer too large is -ERANGE. To an integer type: fractions are cut towards zero, as C and numpy do; what then does
 * not fit, and NaN, is -ERANGE. Elements go through blocks of a common type, so that the types are looked at once a
 * block.
 */
#include "transform/internal.h"

#include <errno.h>
#include <string.h>

#include "base/util.h"

#define BLOCK 256

enum kind { KIND_SIGNED, KIND_UNSIGNED, KIND_FLOAT }; /* unsigned: only u64, all others fit the signed one */

struct block {
    enum kind kind;
    union {
        int64_t i[BLOCK];
        uint64_t u[BLOCK];
        double f[BLOCK];
    } value;
};

#define LOAD(type, member, expression)                                                                                 \
    for (size_t n = 0; n < count; n++) {                                                                               \
        type v;                                                                                                        \
        memcpy(&v, source + n * sizeof v, sizeof v);                                                                   \
        block->value.member[n] = (expression);                                                                         \
    }                                                                                                                  \
    break

static float bf16_to_float(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

static void load_block(uint32_t from, const uint8_t *source, size_t count, struct block *block) {
    block->kind = from == LOADERD_U64 ? KIND_UNSIGNED : from >= LOADERD_F16 ? KIND_FLOAT : KIND_SIGNED;
    switch (from) {
    case LOADERD_U8:
        LOAD(uint8_t, i, v);
    case LOADERD_I8:
        LOAD(int8_t, i, v);
    case LOADERD_U16:
        LOAD(uint16_t, i, v);
    case LOADERD_I16:
        LOAD(int16_t, i, v);
    case LOADERD_U32:
        LOAD(uint32_t, i, v);
    case LOADERD_I32:
        LOAD(int32_t, i, v);
    case LOADERD_U64:
        LOAD(uint64_t, u, v);
    case LOADERD_I64:
        LOAD(int64_t, i, v);
    case LOADERD_F16:
        LOAD(uint16_t, f, (double)f16_to_float(v));
    case LOADERD_BF16:
        LOAD(uint16_t, f, (double)bf16_to_float(v));
    case LOADERD_F32:
        LOAD(float, f, (double)v);
    default:
        LOAD(double, f, v);
    }
}

/* binary64 to binary32, rounded to odd: a later rounding to fewer than 22 bits is then the only one. */
static float narrow_to_odd(double value) {
    float near = (float)value;
    uint32_t bits;
    memcpy(&bits, &near, sizeof bits);
    if ((double)near == value || value != value || (bits & 1))
        return near;
    double magnitude = value < 0 ? -value : value, got = near < 0 ? -(double)near : (double)near;
    bits += magnitude > got ? 1 : (uint32_t)-1; /* towards the value: the odd neighbour on its other side */
    memcpy(&near, &bits, sizeof near);
    return near;
}

/* An integer as a binary64 that rounds like it to 22 bits and fewer: what 53 bits cannot hold becomes a sticky bit. */
static double widen(uint64_t magnitude, bool negative) {
    if (magnitude >> 53)
        magnitude = (magnitude & ~UINT64_C(0xfff)) | (magnitude & 0xfff ? 0x1000u : 0);
    return negative ? -(double)magnitude : (double)magnitude;
}

static double value_wide(const struct block *block, size_t n) {
    if (block->kind == KIND_FLOAT)
        return block->value.f[n];
    if (block->kind == KIND_UNSIGNED)
        return widen(block->value.u[n], false);
    int64_t v = block->value.i[n];
    return widen(v < 0 ? -(uint64_t)v : (uint64_t)v, v < 0);
}

#define STORE(type, expression)                                                                                        \
    for (size_t n = 0; n < count; n++) {                                                                               \
        type v = (type)(expression);                                                                                   \
        memcpy(out + n * sizeof v, &v, sizeof v);                                                                      \
    }                                                                                                                  \
    return 0

static int store_f16(const struct block *block, size_t count, uint8_t *out) {
    for (size_t n = 0; n < count && block->kind != KIND_FLOAT; n++) {
        double wide = value_wide(block, n);
        if (wide >= 65520 || wide <= -65520)
            return -ERANGE;
    }
    STORE(uint16_t, float_to_f16(narrow_to_odd(value_wide(block, n))));
}

static int store_float(uint32_t to, const struct block *block, size_t count, uint8_t *out) {
    if (to == LOADERD_F16)
        return store_f16(block, count, out);
    if (to == LOADERD_BF16) {
        STORE(uint16_t, float_to_bf16(narrow_to_odd(value_wide(block, n))));
    }
    if (to == LOADERD_F32) {
        switch (block->kind) {
        case KIND_SIGNED:
            STORE(float, block->value.i[n]);
        case KIND_UNSIGNED:
            STORE(float, block->value.u[n]);
        default:
            STORE(float, block->value.f[n]);
        }
    }
    switch (block->kind) {
    case KIND_SIGNED:
        STORE(double, block->value.i[n]);
    case KIND_UNSIGNED:
        STORE(double, block->value.u[n]);
    default:
        STORE(double, block->value.f[n]);
    }
}

/* Makes integers of the block's values; false where one does not fit 64 bits of the wanted sign. */
static bool block_to_integer(struct block *block, size_t count, bool to_u64) {
    for (size_t n = 0; n < count && block->kind == KIND_FLOAT; n++) {
        double v = block->value.f[n];
        if (!(to_u64 ? v > -1.0 && v < 0x1p64 : v >= -0x1p63 && v < 0x1p63))
            return false;
        if (to_u64)
            block->value.u[n] = v < 0 ? 0 : (uint64_t)v;
        else
            block->value.i[n] = (int64_t)v;
    }
    for (size_t n = 0; n < count && block->kind != KIND_FLOAT; n++)
        if ((to_u64 != (block->kind == KIND_UNSIGNED)) && block->value.i[n] < 0)
            return false;
    return true;
}

#define STORE_IN_RANGE(type, low, high)                                                                                \
    for (size_t n = 0; n < count; n++)                                                                                 \
        if (block->value.i[n] < (low) || block->value.i[n] > (high))                                                   \
            return -ERANGE;                                                                                            \
    STORE(type, block->value.i[n])

static int store_integer(uint32_t to, struct block *block, size_t count, uint8_t *out) {
    if (!block_to_integer(block, count, to == LOADERD_U64))
        return -ERANGE;
    switch (to) {
    case LOADERD_U8:
        STORE_IN_RANGE(uint8_t, 0, UINT8_MAX);
    case LOADERD_I8:
        STORE_IN_RANGE(int8_t, INT8_MIN, INT8_MAX);
    case LOADERD_U16:
        STORE_IN_RANGE(uint16_t, 0, UINT16_MAX);
    case LOADERD_I16:
        STORE_IN_RANGE(int16_t, INT16_MIN, INT16_MAX);
    case LOADERD_U32:
        STORE_IN_RANGE(uint32_t, 0, (int64_t)UINT32_MAX);
    case LOADERD_I32:
        STORE_IN_RANGE(int32_t, INT32_MIN, INT32_MAX);
    default:
        STORE(uint64_t, block->value.u[n]);
    }
}

static size_t element_size(uint32_t dtype) {
    static const uint8_t sizes[] = {0, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8};
    return dtype < ARRAY_SIZE(sizes) ? sizes[dtype] : 0;
}

/* Token ids to i32: elements of a language model's windows, made by the thousand. Vectors in the compiler's words: the
 * narrowest that a CPU of any kind has. */
#define LANES 8
typedef uint16_t narrow_lanes __attribute__((vector_size(LANES * sizeof(uint16_t)), aligned(2), may_alias));
typedef int32_t wide_lanes __attribute__((vector_size(LANES * sizeof(int32_t)), aligned(1), may_alias));

static int u16_to_i32(const uint8_t *in, uint8_t *out, size_t count) {
    size_t n = 0;
    for (; count - n >= LANES; n += LANES) {
        uint16_t narrow[LANES];
        memcpy(narrow, in + n * sizeof narrow[0], sizeof narrow);
        const wide_lanes wide = __builtin_convertvector(*(const narrow_lanes *)narrow, wide_lanes);
        memcpy(out + n * sizeof(int32_t), &wide, sizeof wide);
    }
    for (; n < count; n++) {
        uint16_t narrow;
        memcpy(&narrow, in + n * sizeof narrow, sizeof narrow);
        const int32_t wide = narrow;
        memcpy(out + n * sizeof wide, &wide, sizeof wide);
    }
    return 0;
}

static int u32_to_i32(const uint8_t *in, uint8_t *out, size_t count) {
    uint32_t bits = 0;
    for (size_t n = 0; n < count; n++) {
        uint32_t value;
        memcpy(&value, in + n * sizeof value, sizeof value);
        memcpy(out + n * sizeof value, &value, sizeof value);
        bits |= value;
    }
    return bits > INT32_MAX ? -ERANGE : 0;
}

int transform_cast(uint32_t from, const void *source, uint32_t to, void *out, size_t count) {
    size_t from_size = element_size(from), to_size = element_size(to);
    if (!from_size || !to_size)
        return -EINVAL;
    if (from == to) {
        if (count)
            memmove(out, source, count * from_size);
        return 0;
    }
    const uint8_t *in = source;
    uint8_t *place = out;
    struct block block;
    if (from == LOADERD_U16 && to == LOADERD_I32)
        return u16_to_i32(in, place, count);
    if (from == LOADERD_U32 && to == LOADERD_I32)
        return u32_to_i32(in, place, count);
    for (size_t n; count; count -= n, in += n * from_size, place += n * to_size) {
        n = MIN(count, (size_t)BLOCK);
        load_block(from, in, n, &block);
        int r = to >= LOADERD_F16 ? store_float(to, &block, n, place) : store_integer(to, &block, n, place);
        if (r < 0)
            return r;
    }
    return 0;
}

#define SWAP(type, reverse)                                                                                            \
    for (size_t n = 0; n < count; n++) {                                                                               \
        type v;                                                                                                        \
        memcpy(&v, in + n * sizeof v, sizeof v);                                                                       \
        v = reverse(v);                                                                                                \
        memcpy(place + n * sizeof v, &v, sizeof v);                                                                    \
    }                                                                                                                  \
    break

void transform_swap(const void *source, void *out, size_t bytes, size_t count) {
    const uint8_t *in = source;
    uint8_t *place = out;
    switch (bytes) {
    case 2:
        SWAP(uint16_t, __builtin_bswap16);
    case 4:
        SWAP(uint32_t, __builtin_bswap32);
    case 8:
        SWAP(uint64_t, __builtin_bswap64);
    default:
        memcpy(out, source, count * bytes);
    }
}
