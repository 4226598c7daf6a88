/* SPDX-License-Identifier: MIT */
/*
 * Any bytes as a coefficient record, as they are and with their checksums made right: no crash, nothing read beyond;
 * verifying, reading and restoring agree on what is sound; the scalar twin and the best one give the same verdict and
 * pixels, also where these come in pieces, and a region gives the pixels of the whole.
 */
#include <stdio.h>

#include "../reseal.h"
#include "decode/decode.h"

#define MAX_PIXELS (256u * 256u)

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

static uint8_t whole_pixels[2][MAX_PIXELS * 3], region_pixels[MAX_PIXELS * 3];

static void require(bool truth, const char *what) {
    if (!truth) {
        fprintf(stderr, "fuzz_coefficients: %s\n", what);
        abort();
    }
}

static struct decoder *make_decoder(const char *simd) {
    struct decode_limits limits = {.max_pixels = MAX_PIXELS};
    struct decoder *decoder;
    if (simd)
        setenv("LOADERD_SIMD", simd, 1);
    if (decoder_new(&limits, &decoder) < 0)
        abort();
    unsetenv("LOADERD_SIMD");
    return decoder;
}

static void take_rows(void *arg, const uint8_t *pixels, size_t stride, uint32_t rows) {
    struct picture *left = arg;
    require(rows > 0 && rows <= left->height, "more rows than the region has");
    for (uint32_t y = 0; y < rows; y++, left->pixels += left->stride, left->height--)
        require(memcmp(pixels + y * stride, left->pixels, left->stride) == 0, "the pixels depend on the pieces");
}

/* What read_box() has read, in pieces. */
static void read_pieces(struct decoder *decoder, const struct box *box, uint32_t channels, uint8_t *wanted) {
    struct diag diag = DIAG_INIT;
    struct picture left = {wanted, (size_t)box->width * channels, box->width, box->height, channels};
    require(decoder_read_rows(decoder, channels, box, take_rows, &left, &diag) == DECODE_OK && left.height == 0,
            "the verdict depends on the pieces");
}

static enum decode_verdict read_box(struct decoder *decoder, const struct box *box, uint32_t channels, uint8_t *out) {
    struct diag diag = DIAG_INIT;
    struct picture picture = {out, (size_t)box->width * channels, box->width, box->height, channels};
    enum decode_verdict verdict = decoder_read(decoder, channels, box, &picture, &diag);
    require(verdict == DECODE_OK || (diag.code < 0 && diag.text[0]), "a refusal without a sentence");
    return verdict;
}

static void read_all_ways(const uint8_t *bytes, size_t length, bool sound) {
    static struct decoder *decoder[2];
    struct decode_info info[2];
    struct diag diag = DIAG_INIT;
    if (!decoder[0]) {
        decoder[0] = make_decoder("scalar");
        decoder[1] = make_decoder(NULL);
    }
    enum decode_verdict opened = decoder_open(decoder[0], bytes, length, &info[0], &diag);
    require(decoder_open(decoder[1], bytes, length, &info[1], &diag) == opened, "the header depends on the twin");
    if (opened != DECODE_OK)
        return;
    struct box all = {0, 0, info[0].width, info[0].height}, box;
    enum decode_verdict verdict = read_box(decoder[0], &all, 3, whole_pixels[0]);
    size_t stride = (size_t)all.width * 3;
    require(!sound || verdict == DECODE_OK, "verified, but not read");
    require(read_box(decoder[1], &all, 3, whole_pixels[1]) == verdict, "the verdict depends on the twin");
    if (verdict != DECODE_OK)
        return;
    require(memcmp(whole_pixels[0], whole_pixels[1], stride * all.height) == 0, "the pixels depend on the twin");
    uint32_t salt = crc32c(0, bytes, length);
    box.x = salt % all.width;
    box.y = (salt >> 8) % all.height;
    box.width = 1 + (salt >> 16) % (all.width - box.x);
    box.height = 1 + (salt >> 24) % (all.height - box.y);
    require(read_box(decoder[salt & 1], &box, 3, region_pixels) == DECODE_OK, "the verdict depends on the region");
    read_pieces(decoder[salt >> 1 & 1], &box, 3, region_pixels);
    for (uint32_t y = 0; y < box.height; y++)
        require(memcmp(region_pixels + (size_t)y * box.width * 3,
                       whole_pixels[0] + (box.y + y) * stride + (size_t)box.x * 3, (size_t)box.width * 3) == 0,
                "the pixels depend on the region");
    require(read_box(decoder[1], &box, 1, region_pixels) == DECODE_OK, "the verdict depends on the channels");
    read_pieces(decoder[0], &box, 1, region_pixels);
}

static void try_record(const uint8_t *bytes, size_t length) {
    struct diag diag = DIAG_INIT;
    uint8_t *restored;
    size_t restored_length;
    bool sound = length < (1u << 20) && coefficients_verify(bytes, length, &diag) == 0;
    if (length >= 4 && memcmp(bytes, COEFFICIENTS_MAGIC, 4) == 0)
        read_all_ways(bytes, length,
                      sound && load16(bytes + RECORD_WIDTH) * load16(bytes + RECORD_HEIGHT) <= MAX_PIXELS);
    if (coefficients_restore(bytes, length, &restored, &restored_length, &diag) == 0) {
        require(sound, "restored, but not verified");
        free(restored);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
    try_record(bytes, length);
    uint8_t *copy = malloc(length + !length); /* of its own size, so that a sanitizer sees what is read beyond */
    if (!copy)
        abort();
    memcpy(copy, bytes, length);
    reseal(copy, length);
    try_record(copy, length);
    free(copy);
    return 0;
}
