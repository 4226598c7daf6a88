/* SPDX-License-Identifier: MIT */
/*
 * A dataset without storage, to measure everything behind it: "synthetic:NxDIMS:DTYPE", e.g.
 * "synthetic:10000x3x224x224:f32"; DTYPE is u8 where it is left out. Field "image" is made by dataset_synthesize(),
 * field "label" is the sample's number modulo 1000.
 *
 * It never allocates after open. Any thread.
 */
#include <endian.h>
#include <stdio.h>
#include <string.h>

#include "dataset/format.h"

#define SYNTHETIC_CLASSES 1000u

/* What every 64-bit word of a field is cut to, so that each element in it is a number: floating point gets the
 * exponent of 1.0 and a counted mantissa, 1 <= x < 2. */
static void word_masks(uint32_t dtype, uint64_t *ret_and, uint64_t *ret_or) {
    uint64_t all = UINT64_MAX, lanes4 = UINT64_C(0x0001000100010001), lanes2 = UINT64_C(0x0000000100000001);
    *ret_and = dtype == LOADERD_F16    ? lanes4 * 0x03ff
               : dtype == LOADERD_BF16 ? lanes4 * 0x007f
               : dtype == LOADERD_F32  ? lanes2 * 0x007fffff
               : dtype == LOADERD_F64  ? UINT64_C(0x000fffffffffffff)
                                       : all;
    *ret_or = dtype == LOADERD_F16    ? lanes4 * 0x3c00
              : dtype == LOADERD_BF16 ? lanes4 * 0x3f80
              : dtype == LOADERD_F32  ? lanes2 * 0x3f800000
              : dtype == LOADERD_F64  ? UINT64_C(0x3ff0000000000000)
                                      : 0;
}

/* Any 64 bits to well-mixed ones (the finaliser of MurmurHash3). */
static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 33) * UINT64_C(0xff51afd7ed558ccd);
    x = (x ^ x >> 33) * UINT64_C(0xc4ceb9fe1a85ec53);
    return x ^ x >> 33;
}

static void synthesize(const struct dataset *dataset, uint64_t sample, uint32_t field, void *out) {
    if (field >= dataset->fields || dataset->field[field].source != SOURCE_SYNTHETIC)
        return;
    uint64_t bytes = dataset->field[field].bytes, and_mask, or_mask;
    word_masks(dataset->field[field].spec.dtype, &and_mask, &or_mask);
    uint64_t word = mix(sample + UINT64_C(0x9e3779b97f4a7c15));
    uint8_t *p = out;
    for (uint64_t words = bytes / 8; words; words--, p += 8) {
        uint64_t value = htole64((word & and_mask) | or_mask);
        memcpy(p, &value, 8);
        word += UINT64_C(0x9e3779b97f4a7c15);
    }
    uint64_t last = htole64((word & and_mask) | or_mask);
    memcpy(p, &last, bytes % 8);
}

static int refuse(const struct dataset *dataset, const char *why, struct diag *diag) {
    return diag_set(diag, -EINVAL, "%s: %s; the form is synthetic:NxDIMS:DTYPE, e.g. synthetic:10000x3x224x224:f32",
                    dataset->path, why);
}

static int parse(struct dataset *dataset, struct diag *diag) {
    const char *p = dataset->path, *end = p + strlen(p);
    if (strncmp(p, "synthetic:", 10) == 0)
        p += 10;
    struct dataset_field *image = &dataset->field[0];
    *image = (struct dataset_field){.spec = {.name = "image", .dtype = LOADERD_U8}, .source = SOURCE_SYNTHETIC};
    if (!dataset_read_count(&p, end, &dataset->samples))
        return refuse(dataset, "the number of samples is missing, zero or too large", diag);
    uint64_t elements = 1;
    while (p < end && *p == 'x') {
        uint64_t dim;
        p++;
        if (image->spec.ndim == ARRAY_SIZE(image->spec.dims))
            return refuse(dataset, "more than 7 dimensions", diag);
        if (!dataset_read_count(&p, end, &dim) || !mul_u64(elements, dim, &elements))
            return refuse(dataset, "a dimension is missing, zero or too large", diag);
        image->spec.dims[image->spec.ndim++] = (int64_t)dim;
    }
    if (p < end && *p == ':')
        image->spec.dtype = dataset_dtype(p + 1, (size_t)(end - p - 1));
    else if (p < end)
        return refuse(dataset, "it is not numbers joined by 'x'", diag);
    if (!image->spec.dtype)
        return refuse(dataset, "unknown dtype (u8 i8 u16 i16 u32 i32 u64 i64 f16 bf16 f32 f64)", diag);
    if (!mul_u64(elements, dataset_dtype_bytes(image->spec.dtype), &image->bytes) || image->bytes > INT64_MAX)
        return refuse(dataset, "a sample is too large", diag);
    return 0;
}

static int synthetic_open(struct dataset *dataset, const struct dataset_options *options, struct diag *diag) {
    (void)options;
    int rc = parse(dataset, diag);
    if (rc < 0)
        return rc;
    dataset_set_label_field(&dataset->field[1]);
    dataset->fields = 2;
    struct hash hash;
    hash_begin(&hash, "synthetic");
    hash_u64(&hash, dataset->samples);
    hash_u64(&hash, dataset->field[0].spec.dtype);
    hash_u64(&hash, dataset->field[0].spec.ndim);
    for (uint32_t i = 0; i < dataset->field[0].spec.ndim; i++)
        hash_u64(&hash, (uint64_t)dataset->field[0].spec.dims[i]);
    hash_end(&hash, dataset->fingerprint);
    return 0;
}

static void synthetic_locate(const struct dataset *dataset, uint64_t sample, struct location *ret) {
    (void)dataset;
    ret->value[1] = (int64_t)(sample % SYNTHETIC_CLASSES);
}

static int synthetic_name(const struct dataset *dataset, uint64_t sample, char *buffer, size_t size) {
    return snprintf(buffer, size, "%s#%llu", dataset->path, (unsigned long long)sample);
}

const struct dataset_format format_synthetic = {
    .name = "synthetic",
    .open = synthetic_open,
    .locate = synthetic_locate,
    .name_sample = synthetic_name,
    .synthesize = synthesize,
};
