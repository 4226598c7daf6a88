/* SPDX-License-Identifier: MIT */
/*
 * Writes a PNG picture (ISO/IEC 15948): signature, IHDR, IDAT, IEND; 8-bit RGB, not interlaced, filter "sub" on every
 * line, deflated by zlib. Never reads one. Any thread.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "base/util.h"
#include "loaderctl.h"

static void put_u32(uint8_t *at, uint32_t value) {
    value = htonl(value);
    memcpy(at, &value, sizeof value);
}

static int write_chunk(FILE *out, const char *type, const uint8_t *data, uint32_t length) {
    uint8_t head[8], tail[4];
    put_u32(head, length);
    memcpy(head + 4, type, 4);
    uLong crc = crc32(crc32(0, NULL, 0), head + 4, 4);
    if (length)
        crc = crc32(crc, data, length);
    put_u32(tail, (uint32_t)crc);
    if (fwrite(head, 1, 8, out) != 8 || fwrite(data, 1, length, out) != length || fwrite(tail, 1, 4, out) != 4)
        return errno ? -errno : -EIO;
    return 0;
}

/* Each byte less the one of the pixel to its left. */
static void filter_line(const uint8_t *line, uint32_t width, uint8_t *out) {
    *out++ = 1;
    for (size_t i = 0; i < (size_t)width * 3; i++)
        out[i] = (uint8_t)(line[i] - (i < 3 ? 0 : line[i - 3]));
}

int png_write(FILE *out, const uint8_t *rgb, uint32_t width, uint32_t height) {
    static const uint8_t signature[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
    size_t stride = (size_t)width * 3 + 1, plain = stride * height;
    uLongf packed = compressBound((uLong)plain);
    cleanup_free uint8_t *lines = malloc(plain), *data = malloc(packed);
    uint8_t header[13] = {[8] = 8, [9] = 2}; /* bit depth 8, colour type 2: RGB */
    if (!lines || !data)
        return -ENOMEM;
    for (uint32_t y = 0; y < height; y++)
        filter_line(rgb + (size_t)y * width * 3, width, lines + y * stride);
    if (compress2(data, &packed, lines, (uLong)plain, 6) != Z_OK || packed > INT32_MAX)
        return -EOVERFLOW;
    put_u32(header, width);
    put_u32(header + 4, height);
    if (fwrite(signature, 1, sizeof signature, out) != sizeof signature)
        return errno ? -errno : -EIO;
    int r = write_chunk(out, "IHDR", header, sizeof header);
    if (r == 0)
        r = write_chunk(out, "IDAT", data, (uint32_t)packed);
    return r < 0 ? r : write_chunk(out, "IEND", header, 0);
}
