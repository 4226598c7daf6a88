/* SPDX-License-Identifier: MIT */
/*
 * WebP by libwebp, one codec of decode.c: still pictures, lossy and lossless. Whole rows are decoded from the top to two
 * below the last one that the region needs (the library interpolates colour between rows, and treats the last row of
 * what it was asked for as the picture's edge), then the region is copied out. Pixels are those of Pillow's
 * convert("RGB") and convert("L"): alpha is dropped, no profile is applied. Animations are refused.
 *
 * Memory: pixels and a copy of the file lie in the arena. The library has no seam for the rest, its own working memory,
 * which it takes from malloc and gives back within one read: some rows for a lossy picture and a byte a pixel for its
 * alpha; 4 bytes a pixel for a lossless one, and as much again for its code tables at the very worst. The file is
 * copied first so that nothing of it is mapped while such memory is held: a SIGBUS could not release it.
 *
 * Never prints. One thread per decoder. The only file that includes webp/decode.h.
 */
#include <stdio.h>
#include <string.h>

#include <webp/decode.h>

#include "base/util.h"
#include "decode/codec.h"

#define ROWS_BELOW 2u /* one pair of rows shares a row of chroma */

struct webp {
    struct arena *arena;
    const struct decode_limits *limits;
    const uint8_t *bytes;
    size_t length;
    uint32_t width, height;
};

static int codec_new(const struct decode_limits *limits, struct arena *arena, void **ret) {
    struct webp *d = calloc(1, sizeof *d);
    if (!d)
        return -ENOMEM;
    d->limits = limits;
    d->arena = arena;
    *ret = d;
    return 0;
}

static void codec_close(void *state) {
    struct webp *d = state;
    d->bytes = NULL;
    d->length = 0;
}

static const char *status_text(VP8StatusCode status) {
    switch (status) {
    case VP8_STATUS_OK:
    case VP8_STATUS_SUSPENDED:
    case VP8_STATUS_NOT_ENOUGH_DATA:
        return "the WebP file ends too early";
    case VP8_STATUS_OUT_OF_MEMORY:
        return "no memory for the WebP decoder";
    case VP8_STATUS_UNSUPPORTED_FEATURE:
        return "WebP with an unknown feature";
    default:
        return "the WebP bitstream is damaged";
    }
}

static enum decode_verdict codec_open(void *state, const uint8_t *bytes, size_t length, struct decode_info *ret_info,
                                      struct diag *diag) {
    struct webp *d = state;
    WebPBitstreamFeatures features;
    VP8StatusCode status = WebPGetFeatures(bytes, length, &features);
    if (status != VP8_STATUS_OK) {
        diag_set(diag, -EBADMSG, "%s (%zu bytes)", status_text(status), length);
        return DECODE_BAD;
    }
    if (features.has_animation) {
        diag_set(diag, -ENOTSUP, "animated WebP is not supported; extract a frame (webpmux -get frame 1)");
        return DECODE_BAD;
    }
    d->bytes = bytes;
    d->length = length;
    d->width = (uint32_t)features.width;
    d->height = (uint32_t)features.height;
    if (decode_check_pixels(d->limits, d->width, d->height, diag) != DECODE_OK)
        return DECODE_BAD;
    *ret_info = (struct decode_info){
        .width = d->width, .height = d->height, .channels = 3, .orientation = 1, .kind = codec_webp.kind};
    return DECODE_OK;
}

/* Full rows 0 to `rows` - 1 into `pixels`; how many of them are final. */
static uint32_t decode_rows(const struct webp *d, const uint8_t *copy, uint32_t rows, uint8_t *pixels,
                            VP8StatusCode *ret_status) {
    WebPDecoderConfig config;
    int done = 0;
    *ret_status = VP8_STATUS_OUT_OF_MEMORY;
    if (!WebPInitDecoderConfig(&config))
        return 0;
    config.options.use_cropping = rows < d->height;
    config.options.crop_width = (int)d->width;
    config.options.crop_height = (int)rows;
    config.output.colorspace = MODE_RGB;
    config.output.is_external_memory = 1;
    config.output.u.RGBA.rgba = pixels;
    config.output.u.RGBA.stride = (int)(d->width * 3);
    config.output.u.RGBA.size = (size_t)d->width * 3 * rows;
    WebPIDecoder *incremental = WebPIDecode(NULL, 0, &config);
    if (!incremental)
        return 0;
    *ret_status = WebPIUpdate(incremental, copy, d->length);
    if (*ret_status == VP8_STATUS_OK)
        done = (int)rows;
    else if (!WebPIDecGetRGB(incremental, &done, NULL, NULL, NULL))
        done = 0;
    WebPIDelete(incremental);
    return (uint32_t)MAX(done, 0);
}

static uint32_t little_endian_32(const uint8_t *p) {
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static enum decode_verdict codec_read(void *state, uint32_t channels, const struct box *region,
                                      const struct picture *picture, bool *ret_complete, struct diag *diag) {
    struct webp *d = state;
    uint32_t bottom = region->y + region->height;
    uint32_t rows = d->height - bottom > ROWS_BELOW ? bottom + ROWS_BELOW : d->height;
    if (channels == DECODE_VALUES) {
        diag_set(diag, -EINVAL, "label picture is WebP, which has only colour; wanted a PNG with a palette or gray");
        return DECODE_BAD;
    }
    arena_rewind(d->arena);
    uint8_t *copy = arena_take(d->arena, d->length);
    uint8_t *pixels = copy ? arena_take(d->arena, (uint64_t)d->width * 3 * rows) : NULL;
    if (!pixels)
        return arena_is_short(d->arena, d->width, d->height, (uint64_t)d->width * 3 * rows + d->length, diag);
    memcpy(copy, d->bytes, d->length);
    VP8StatusCode status;
    uint32_t decoded = decode_rows(d, copy, rows, pixels, &status), done = MIN(decoded, bottom);
    if (status == VP8_STATUS_OUT_OF_MEMORY || done == 0) {
        diag_set(diag, status == VP8_STATUS_OUT_OF_MEMORY ? -ENOMEM : -EBADMSG, "%s (%zu bytes)", status_text(status),
                 d->length);
        return DECODE_BAD;
    }
    memset(pixels + (size_t)done * d->width * 3, 0, (size_t)(bottom - done) * d->width * 3);
    for (uint32_t y = 0; y < region->height; y++)
        decode_convert_row(pixels + ((size_t)(region->y + y) * d->width + region->x) * 3, 3,
                           picture->pixels + y * picture->stride, channels, region->width);
    if (done < bottom) {
        diag_set(diag, -EBADMSG, "%s: %u of %u rows were decoded (%zu bytes)", status_text(status), done, d->height,
                 d->length);
        return DECODE_DAMAGED;
    }
    uint64_t wanted = UINT64_C(8) + little_endian_32(copy + 4);
    if (bottom < d->height || wanted <= d->length)
        return DECODE_OK;
    *ret_complete = true;
    diag_set(diag, -EBADMSG, "the WebP file has %zu bytes, its header says %llu; all pixels are there", d->length,
             (unsigned long long)wanted);
    return DECODE_DAMAGED;
}

static const char *version(void) {
    static _Thread_local char text[32];
    int v = WebPGetDecoderVersion();
    snprintf(text, sizeof text, "libwebp %d.%d.%d", v >> 16, v >> 8 & 255, v & 255);
    return text;
}

const struct codec codec_webp = {
    .kind = "WebP",
    .new = codec_new,
    .free = free,
    .open = codec_open,
    .read = codec_read,
    .close = codec_close,
    .reset = codec_close,
    .version = version,
};
