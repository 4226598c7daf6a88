/* SPDX-License-Identifier: MIT */
/*
 * The header of IDX files (MNIST and its kin; Yann LeCun's description): two zero bytes, the element type, the number
 * of dimensions, then each dimension as a big-endian u32; elements follow, big-endian. What is read of such files is in
 * arrays.c, as for .npy arrays. Pure.
 */
#include <stdio.h>
#include <string.h>

#include "dataset/format.h"

/* Element types by the header's third byte, from 8 on. */
static const struct {
    const char *descr;
    char kind;
    uint8_t bytes, dtype;
} types[] = {
    {"u8", 'u', 1, LOADERD_U8},   {"i8", 'i', 1, LOADERD_I8},   {NULL, 0, 0, 0},
    {"i16", 'i', 2, LOADERD_I16}, {"i32", 'i', 4, LOADERD_I32}, {"f32", 'f', 4, LOADERD_F32},
    {"f64", 'f', 8, LOADERD_F64},
};

bool idx_detect(const uint8_t *b, size_t length) {
    return length >= 8 && b[0] == 0 && b[1] == 0 && b[2] >= 8 && b[2] <= 14 && b[2] != 10 && b[3] >= 1 && b[3] <= 4;
}

int idx_parse(const void *bytes, size_t length, struct npy_header *ret, struct diag *diag) {
    const uint8_t *b = bytes;
    struct npy_header h = {.count = 1};
    const char *compression = dataset_compression(bytes, length);
    if (compression)
        return diag_set(diag, -EINVAL, "%s data, no IDX file; decompress it first", compression);
    if (length < 4)
        return diag_set(diag, -EINVAL, "no IDX file: %zu bytes", length);
    unsigned type = b[2] - 8u;
    if (b[0] || b[1] || type >= ARRAY_SIZE(types) || !types[type].descr || b[3] == 0 || b[3] > NPY_MAX_DIMS)
        return diag_set(diag, -EINVAL,
                        "no IDX file: it begins with 0x%02x%02x%02x%02x, wanted 0x0000TTNN: element type "
                        "TT (08 09 0b 0c 0d 0e) and dimensions NN; images of MNIST have 0x00000803, its "
                        "labels 0x00000801",
                        b[0], b[1], b[2], b[3]);
    h.ndim = b[3];
    h.data_offset = 4 + 4 * (uint64_t)h.ndim;
    if (length < h.data_offset)
        return diag_set(diag, -EINVAL, "IDX file of %u dimensions ends in its header, at byte %zu", h.ndim, length);
    snprintf(h.descr, sizeof h.descr, "%s", types[type].descr);
    h.kind = types[type].kind;
    h.item_bytes = types[type].bytes;
    h.dtype = types[type].dtype;
    h.big_endian = true;
    bool fits = true, empty = false;
    for (uint32_t i = 0; i < h.ndim; i++) {
        const uint8_t *p = b + 4 + 4 * i;
        h.shape[i] = (uint64_t)p[0] << 24 | (uint64_t)p[1] << 16 | (uint64_t)p[2] << 8 | p[3];
        empty = empty || h.shape[i] == 0;
        fits = fits && (h.shape[i] == 0 || mul_u64(h.count, h.shape[i], &h.count));
    }
    h.count = empty ? 0 : h.count;
    if (!empty && (!fits || !mul_u64(h.count, h.item_bytes, &h.data_bytes)))
        return diag_set(diag, -EINVAL, "IDX file: the array's size does not fit 64 bits");
    *ret = h;
    return 0;
}
