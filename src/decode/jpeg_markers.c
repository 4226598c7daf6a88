/* SPDX-License-Identifier: MIT */
/*
 * Walks the markers of a JPEG file (ITU-T T.81, annex B) without decoding anything. Whatever is not exactly as the
 * standard has it (junk between segments, lengths that lie, no end) counts as broken, so that a copy is made only of
 * files whose every byte was understood. Pure; any thread.
 */
#include "decode/jpeg_markers.h"

#include <string.h>

#include "decode/exif.h"

enum { SOI = 0xD8, EOI = 0xD9, SOS = 0xDA, DHT = 0xC4, JPG = 0xC8, DAC = 0xCC, APP0 = 0xE0, APP14 = 0xEE, COM = 0xFE };

struct walk {
    const uint8_t *bytes;
    size_t length, at;
    uint8_t marker;
    size_t begin, end; /* of the segment with its marker, without fill bytes; of a scan with its entropy-coded data */
};

static bool is_restart(uint8_t marker) {
    return marker >= 0xD0 && marker <= 0xD7;
}

/* Offset of the next marker that is none of the entropy-coded data's own; the file's length where there is none. */
static size_t skip_entropy(const uint8_t *bytes, size_t length, size_t at) {
    for (;;) {
        const uint8_t *next = at < length ? memchr(bytes + at, 0xFF, length - at) : NULL;
        if (!next || next + 1 >= bytes + length)
            return length;
        at = (size_t)(next - bytes);
        if (next[1] != 0 && !is_restart(next[1]))
            return at;
        at += 2;
    }
}

/* The next segment. 1; 0 at the end of the image; -1: broken. */
static int walk_next(struct walk *w) {
    size_t at = w->at;
    if (w->length - at < 2 || w->bytes[at] != 0xFF)
        return -1;
    while (at + 1 < w->length && w->bytes[at + 1] == 0xFF) /* fill bytes */
        at++;
    if (at + 1 >= w->length)
        return -1;
    w->begin = at;
    w->marker = w->bytes[at + 1];
    at += 2;
    if (w->marker == EOI) {
        w->end = w->at = at;
        return 0;
    }
    if (w->marker < 0xC0 || is_restart(w->marker) || w->marker == SOI || w->length - at < 2)
        return -1;
    size_t bytes = (size_t)w->bytes[at] << 8 | w->bytes[at + 1];
    if (bytes < 2 || bytes > w->length - at)
        return -1;
    at += bytes;
    if (w->marker == SOS) {
        at = skip_entropy(w->bytes, w->length, at);
        if (at == w->length)
            return -1;
    }
    w->end = w->at = at;
    return 1;
}

static bool walk_begin(struct walk *w, const uint8_t *bytes, size_t length) {
    *w = (struct walk){.bytes = bytes, .length = length, .at = 2};
    return length >= 4 && bytes[0] == 0xFF && bytes[1] == SOI;
}

static bool starts_with(const struct walk *w, const char *text, size_t length) {
    return w->end - w->begin >= 4 + length && memcmp(w->bytes + w->begin + 4, text, length) == 0;
}

/* Does the decoder look at this segment? */
static bool is_needed(const struct walk *w) {
    if (w->marker == APP0)
        return starts_with(w, "JFIF", 5);
    if (w->marker == APP14)
        return starts_with(w, "Adobe", 5);
    return w->marker != COM && (w->marker < APP0 || w->marker > 0xEF);
}

static bool is_frame(uint8_t marker) {
    return marker >= 0xC0 && marker <= 0xCF && marker != DHT && marker != JPG && marker != DAC;
}

/* Luma samples for one of chroma, where both chroma components are 1 x 1 in units of that. */
static uint32_t sampling_of(const uint8_t *component, uint32_t components) {
    uint32_t factor[4];
    if (components != 3 && components != 4)
        return 0;
    for (uint32_t i = 0; i < components; i++)
        factor[i] = component[3 * i + 1];
    uint32_t h = factor[0] >> 4, v = factor[0] & 15, ch = factor[1] >> 4, cv = factor[1] & 15;
    if (factor[2] != factor[1] || !ch || !cv || h % ch || v % cv)
        return 0;
    return (h / ch) << 4 | v / cv;
}

static bool read_frame(const struct walk *w, struct jpeg_summary *ret) {
    const uint8_t *body = w->bytes + w->begin + 4;
    size_t length = w->end - w->begin;
    if (length < 10)
        return false;
    ret->height = (uint32_t)body[1] << 8 | body[2];
    ret->width = (uint32_t)body[3] << 8 | body[4];
    ret->components = body[5];
    if (body[0] != 8 || length < 10 + 3 * (size_t)ret->components || !ret->width || !ret->height)
        return false;
    ret->sampling = sampling_of(body + 6, ret->components);
    ret->arithmetic = w->marker > JPG;
    ret->progressive = (w->marker & 3) == 2;
    return true;
}

bool jpeg_summarize(const uint8_t *bytes, size_t length, struct jpeg_summary *ret) {
    struct jpeg_summary summary = {.orientation = 1};
    struct walk w;
    uint32_t scans = 0, frames = 0;
    int r = walk_begin(&w, bytes, length) ? 1 : -1;
    while (r == 1 && (r = walk_next(&w)) == 1) {
        summary.metadata |= !is_needed(&w);
        scans += w.marker == SOS;
        if (is_frame(w.marker) && (frames++ || !read_frame(&w, &summary)))
            r = -1;
    }
    if (r < 0 || frames != 1 || scans == 0)
        return false;
    summary.progressive |= scans > 1;
    summary.metadata |= w.at < length;
    summary.orientation = exif_jpeg_orientation(bytes, length);
    *ret = summary;
    return true;
}

/* ---- the copy -------------------------------------------------------------------------------------------------- */

static size_t put_orientation(uint32_t orientation, uint8_t *out) {
    const uint8_t segment[] = {
        0xFF, 0xE1,
        0,    34,
        'E',  'x',
        'i',  'f',
        0,    0, /* APP1 of 34 bytes */
        'M',  'M',
        0,    42,
        0,    0,
        0,    8, /* TIFF, big-endian, a directory at 8 */
        0,    1,
        1,    18,
        0,    3,
        0,    0,
        0,    1, /* one entry: tag 0x0112, SHORT, one of them */
        0,    (uint8_t)orientation,
        0,    0,
        0,    0,
        0,    0, /* no further directory */
    };
    _Static_assert(sizeof segment == 36, "APP1 says 34");
    memcpy(out, segment, sizeof segment);
    return sizeof segment;
}

size_t jpeg_strip(const uint8_t *bytes, size_t length, uint32_t orientation, uint8_t *out) {
    struct walk w;
    size_t used = 2;
    bool pending = orientation > 1 && orientation <= 8;
    if (!walk_begin(&w, bytes, length))
        return 0;
    memcpy(out, bytes, 2);
    int r;
    while ((r = walk_next(&w)) == 1) {
        if (pending && w.marker != APP0) { /* behind JFIF's segment, which wants to be the first */
            used += put_orientation(orientation, out + used);
            pending = false;
        }
        if (!is_needed(&w))
            continue;
        memcpy(out + used, bytes + w.begin, w.end - w.begin);
        used += w.end - w.begin;
    }
    if (r < 0)
        return 0;
    memcpy(out + used, bytes + w.begin, w.end - w.begin);
    return used + w.end - w.begin;
}
