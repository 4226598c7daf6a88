/* SPDX-License-Identifier: MIT */
/* What a JPEG file's markers say, and a copy of it without metadata. Pure functions over outside bytes; any thread. */
#ifndef DECODE_JPEG_MARKERS_H
#define DECODE_JPEG_MARKERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct jpeg_summary {
    uint32_t width, height, components;
    uint32_t sampling; /* luma samples across << 4 | down for one of chroma; 0: one component, or another scheme */
    bool arithmetic;
    bool progressive;     /* or several scans */
    bool metadata;        /* there are segments or trailing bytes that jpeg_strip() leaves out */
    uint32_t orientation; /* Exif's, 1 where it says none */
};

/* False where the bytes are no JPEG or its segments are broken. */
bool jpeg_summarize(const uint8_t *bytes, size_t length, struct jpeg_summary *ret);

#define JPEG_STRIP_ROOM 64u /* that the copy may be longer than the file */

/* Copies the file without comments, application segments (but JFIF's and Adobe's, which say what the colours are) and
 * what follows its end. An orientation other than 1 stays, in an Exif segment of its own. `out` has room for
 * length + JPEG_STRIP_ROOM bytes. Returns the copy's length; 0 where the segments are broken. */
size_t jpeg_strip(const uint8_t *bytes, size_t length, uint32_t orientation, uint8_t *out);

#endif
