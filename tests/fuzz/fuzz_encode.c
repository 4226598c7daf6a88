/* SPDX-License-Identifier: MIT */
/*
 * Any bytes as a JPEG to be stored as a coefficient record: no crash, no growth; what the encoder takes is a file that
 * decodes without a warning, and its record gives the same pixels; what it takes with its headers comes back byte for
 * byte.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decode/coefficients.h"
#include "decode/decode.h"

#define MAX_PIXELS (256u * 256u)

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

static uint8_t pixels[2][MAX_PIXELS * 3];

static void require(bool truth, const char *what) {
    if (!truth) {
        fprintf(stderr, "fuzz_encode: %s\n", what);
        abort();
    }
}

static void read_whole(struct decoder *decoder, const uint8_t *bytes, size_t length, struct decode_info *info,
                       uint8_t *out) {
    struct diag diag = DIAG_INIT;
    require(decoder_open(decoder, bytes, length, info, &diag) == DECODE_OK, diag.text);
    struct picture picture = {out, (size_t)info->width * 3, info->width, info->height, 3};
    struct box box = {0, 0, info->width, info->height};
    require(decoder_read(decoder, 3, &box, &picture, &diag) == DECODE_OK, diag.text);
}

static void compare(const uint8_t *jpeg, size_t jpeg_length, const uint8_t *record, size_t length) {
    static struct decoder *decoder;
    struct decode_limits limits = {.max_pixels = MAX_PIXELS};
    struct decode_info info[2];
    if (!decoder && decoder_new(&limits, &decoder) < 0)
        abort();
    read_whole(decoder, jpeg, jpeg_length, &info[0], pixels[0]);
    read_whole(decoder, record, length, &info[1], pixels[1]);
    require(info[0].width == info[1].width && info[0].height == info[1].height &&
                info[0].channels == info[1].channels && info[0].orientation == info[1].orientation,
            "another header");
    require(memcmp(pixels[0], pixels[1], (size_t)info[0].width * info[0].height * 3) == 0, "other pixels");
}

static void restore(const uint8_t *jpeg, size_t jpeg_length, const uint8_t *record, size_t length) {
    struct diag diag = DIAG_INIT;
    uint8_t *back;
    size_t back_length;
    require(coefficients_restore(record, length, &back, &back_length, &diag) == 0, diag.text);
    require(back_length == jpeg_length && memcmp(back, jpeg, jpeg_length) == 0, "another file");
    free(back);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
    static struct coefficients_encoder *encoder;
    const uint8_t *record;
    size_t record_length;
    if (!encoder && coefficients_encoder_new(&encoder) < 0)
        abort();
    for (int keep = 0; keep < 2; keep++) {
        struct coefficients_options options = {.keep_headers = keep != 0, .max_pixels = MAX_PIXELS};
        struct diag diag = DIAG_INIT;
        int r = coefficients_encode(encoder, bytes, length, &options, &record, &record_length, &diag);
        require(r == 0 || (diag.code == r && diag.text[0]), "a refusal without a sentence");
        if (r == 0 && keep)
            restore(bytes, length, record, record_length);
        else if (r == 0)
            compare(bytes, length, record, record_length);
    }
    return 0;
}
