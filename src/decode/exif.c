/* SPDX-License-Identifier: MIT */
/*
 * Finds the orientation tag of a JPEG file. Looks at nothing else, follows no directory but the first, and reads nothing
 * beyond the bytes it was given, nor beyond the segment that the tag must lie in. Pure; any thread.
 */
#include "decode/exif.h"

#include <stdbool.h>
#include <string.h>

#define TAG_ORIENTATION 0x0112u
#define TYPE_SHORT 3u
#define TYPE_LONG 4u
#define ENTRY_BYTES 12u
#define MARKER_SOS 0xDAu
#define MARKER_EOI 0xD9u
#define MARKER_APP1 0xE1u

static uint32_t read_16(const uint8_t *p, bool big) {
    return big ? (uint32_t)p[0] << 8 | p[1] : (uint32_t)p[1] << 8 | p[0];
}

static uint32_t read_32(const uint8_t *p, bool big) {
    return big ? read_16(p, big) << 16 | read_16(p + 2, big) : read_16(p + 2, big) << 16 | read_16(p, big);
}

static uint32_t entry_orientation(const uint8_t *entry, bool big) {
    uint32_t type = read_16(entry + 2, big), count = read_32(entry + 4, big), value = 0;
    if (count == 1 && type == TYPE_SHORT)
        value = read_16(entry + 8, big);
    else if (count == 1 && type == TYPE_LONG)
        value = read_32(entry + 8, big);
    return value >= 1 && value <= 8 ? value : 1;
}

uint32_t exif_tiff_orientation(const uint8_t *bytes, size_t length) {
    if (length < 8 || (memcmp(bytes, "II", 2) != 0 && memcmp(bytes, "MM", 2) != 0))
        return 1;
    bool big = bytes[0] == 'M';
    size_t at = read_32(bytes + 4, big);
    if (read_16(bytes + 2, big) != 42 || at > length || length - at < 2)
        return 1;
    size_t entries = read_16(bytes + at, big);
    at += 2;
    for (size_t i = 0; i < entries && length - at >= ENTRY_BYTES; i++, at += ENTRY_BYTES) {
        if (read_16(bytes + at, big) == TAG_ORIENTATION)
            return entry_orientation(bytes + at, big);
    }
    return 1;
}

uint32_t exif_jpeg_orientation(const uint8_t *bytes, size_t length) {
    static const uint8_t name[6] = {'E', 'x', 'i', 'f', 0, 0};
    size_t at = 2; /* behind the start-of-image marker */
    while (at < length && length - at >= 4) {
        const uint8_t *p = bytes + at;
        if (p[0] != 0xFF || p[1] == 0xFF) { /* junk, or fill bytes: on to the next marker */
            at++;
            continue;
        }
        if (p[1] == MARKER_SOS || p[1] == MARKER_EOI)
            return 1;
        if (p[1] <= 0x01 || (p[1] >= 0xD0 && p[1] <= 0xD8)) { /* without a segment */
            at += 2;
            continue;
        }
        size_t size = read_16(p + 2, true);
        if (size < 2 || size > length - at - 2)
            return 1;
        if (p[1] == MARKER_APP1 && size >= 2 + sizeof name && memcmp(p + 4, name, sizeof name) == 0)
            return exif_tiff_orientation(p + 4 + sizeof name, size - 2 - sizeof name);
        at += 2 + size;
    }
    return 1;
}
