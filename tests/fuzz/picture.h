/* SPDX-License-Identifier: MIT */
/*
 * For the fuzz targets of the codecs: any bytes through the decoder. No crash, no growth, and a region gives the verdict,
 * sentence and pixels that all columns and rows down to its last row give. The region comes from a hash of the bytes, so
 * that the corpora are plain files.
 */
#ifndef FUZZ_PICTURE_H
#define FUZZ_PICTURE_H

#include <stdio.h>
#include <string.h>

#include "base/util.h"
#include "decode/decode.h"

#define MAX_PIXELS (256u * 256u)

static uint8_t region_pixels[MAX_PIXELS * 3], plain_pixels[MAX_PIXELS * 3];

static uint32_t hash(const uint8_t *bytes, size_t length, uint32_t salt) {
    uint32_t h = 2166136261u ^ salt;
    for (size_t i = 0; i < length; i++)
        h = (h ^ bytes[i]) * 16777619u;
    return h ^ h >> 15;
}

static void require(bool truth, const char *what) {
    if (!truth) {
        fprintf(stderr, "fuzz_picture: %s\n", what);
        abort();
    }
}

static struct box choose_box(const uint8_t *bytes, size_t length, const struct decode_info *info) {
    struct box b;
    b.x = hash(bytes, length, 1) % info->width;
    b.y = hash(bytes, length, 2) % info->height;
    b.width = 1 + hash(bytes, length, 3) % (info->width - b.x);
    b.height = 1 + hash(bytes, length, 4) % (info->height - b.y);
    return b;
}

static int fuzz_picture(const uint8_t *bytes, size_t length) {
    static const uint32_t fuzz_channels[] = {3, 1, DECODE_VALUES};
    static struct decoder *decoder;
    struct decode_limits limits = {.max_pixels = MAX_PIXELS, .max_scans = 20};
    struct decode_info info;
    struct diag first = DIAG_INIT, second = DIAG_INIT;
    if (!decoder && decoder_new(&limits, &decoder) < 0)
        abort();
    if (decoder_open(decoder, bytes, length, &info, &first) != DECODE_OK) {
        require(first.code < 0 && first.text[0], "a refusal without a sentence");
        return 0;
    }
    bool turned = hash(bytes, length, 6) % 2 && info.orientation != 1;
    if (turned)
        decoder_orient(decoder, &info);
    uint32_t channels = fuzz_channels[hash(bytes, length, 5) % 3];
    uint32_t each = MAX(channels, 1u);
    struct box box = choose_box(bytes, length, &info),
               rows = {0, 0, info.width, turned ? info.height : box.y + box.height};
    struct picture region = {region_pixels, (size_t)box.width * each, box.width, box.height, each};
    struct picture plain = {plain_pixels, (size_t)rows.width * each, rows.width, rows.height, each};

    enum decode_verdict a = decoder_read(decoder, channels, &box, &region, &first);
    bool complete = decoder_damage_is_complete(decoder);
    enum decode_verdict b = decoder_read(decoder, channels, &rows, &plain, &second);
    if (turned && (a != DECODE_OK || b != DECODE_OK))
        return 0; /* other rows of the stored picture were consumed */
    require(a == b && strcmp(first.text, second.text) == 0 && complete == decoder_damage_is_complete(decoder),
            "the verdict depends on the region");
    for (uint32_t y = 0; a != DECODE_BAD && y < box.height; y++) {
        require(memcmp(region.pixels + y * region.stride,
                       plain.pixels + (box.y + y) * plain.stride + (size_t)box.x * each, region.stride) == 0,
                "the pixels depend on the region");
    }
    return 0;
}

#endif
