/* SPDX-License-Identifier: MIT */
/*
 * Decoding: compressed pictures become 8-bit pixels in the caller's memory. One `decoder` per worker thread; its memory
 * (a bounded arena) is reused from picture to picture. The kind is told by content, never by name.
 *
 *     decoder_open(d, bytes, length, &info, &diag)         header only: kind, width, height
 *     decoder_read(d, channels, &region, &picture, &diag)  pixels of the region, bit-equal to the full-frame decode
 *
 * Verdicts: DECODE_OK; DECODE_DAMAGED: pixels exist, the codec warned (the sentence says of what, near which byte);
 * DECODE_BAD: no pixels. The verdict, the sentence and the pixels are functions of (bytes, rows consumed), whatever was
 * decoded before and however little of each row was asked for. The rows consumed are those from the top of the picture
 * to the last row of the region. In bytes that means: what libjpeg's entropy decoder has fetched, with the few bytes
 * that it looks ahead, when that row comes out of a plain decode that started at row 0. (Rows whose upsampling needs
 * the row below count that row in.) Two things follow. Damage further down is not seen, except that a file of several
 * scans (progressive, non-interleaved) is consumed whole whatever the region is. And where the last rows were consumed,
 * the end-of-image marker, or some marker, must follow: a missing one is damage.
 *
 * For coefficient records (coefficients.h) the rows consumed are those of the MCU rows that the region and the filter's
 * margin of a row lie in; each has a checksum. A record is sound or bad: none is DECODE_DAMAGED.
 *
 * For PNG and WebP the rows consumed are in bytes what the library has fetched when the last of them comes out; an
 * interlaced PNG is consumed whole. Rows that are missing behind damage are black; a picture without any row is bad. Of
 * an animated PNG the still picture is decoded; an animated WebP is refused.
 *
 * Nothing is printed, ever. A decoder belongs to one thread at a time; different decoders are independent.
 */
#ifndef DECODE_DECODE_H
#define DECODE_DECODE_H

#include "base/diag.h"
#include "base/types.h"

enum decode_verdict { DECODE_OK = 0, DECODE_DAMAGED = 1, DECODE_BAD = 2 };

struct decode_limits {
    uint64_t max_pixels; /* width x height as stored; beyond it the sample is bad (key max-pixels); 0: 100,000,000 */
    uint32_t max_scans;  /* of a JPEG of several scans; beyond it the sample is bad (key max-scans); 0: 500 */
    uint64_t max_memory; /* arena bound in bytes, 0: derived from max_pixels (8 bytes a pixel and 32 MiB) */
};

struct decode_info {
    uint32_t width, height; /* as stored */
    uint32_t channels;      /* 1 gray, 3 colour, 4 CMYK/YCCK; alpha is not counted */
    uint32_t orientation;   /* 1 to 8, the Exif tag of a JPEG; else 1. Not applied until decoder_orient() */
    const char *kind;       /* "JPEG", "JPEG coefficients" (a record of coefficients.h), "PNG", "WebP" */
};

/* For `channels`: label pictures. One byte a pixel, never converted: palette indices, gray samples as stored. */
#define DECODE_VALUES 0u

struct decoder;

/* Reserves the arena's addresses; memory is taken when a picture needs it. 0, -ENOMEM. NULL limits: the defaults. */
int decoder_new(const struct decode_limits *limits, struct decoder **ret);
void decoder_free(struct decoder *decoder);

/* What the first bytes say the content is: "JPEG", "JPEG coefficients", "PNG", "GIF", "BMP", "WebP", "TIFF",
 * "gzip data", "HTML", "text", "empty", "unknown data". Pure. */
const char *decode_sniff(const uint8_t *bytes, size_t length);

/* Reads the header. `bytes` must stay valid until the next decoder_open() or decoder_close(). DECODE_OK or
 * DECODE_BAD (the sentence has no path: the caller prefixes it). */
enum decode_verdict decoder_open(struct decoder *decoder, const uint8_t *bytes, size_t length,
                                 struct decode_info *ret_info, struct diag *diag);

/* Turns the open picture as its orientation says: from here on to decoder_close(), width, height and regions are those of
 * the turned picture, as Pillow's ImageOps.exif_transpose() gives it. Rows consumed remain those of the stored one. Adds
 * up to 3 bytes a pixel of the region to the memory of a picture. Nothing happens where the orientation is 1. */
void decoder_orient(struct decoder *decoder, struct decode_info *info);

/* Decodes `region` of the open picture as `channels` (1: luma, 3: RGB, or DECODE_VALUES) into picture->pixels, whose
 * width and height are the region's. A gray picture gives R = G = B. CMYK and YCCK samples are taken as Adobe stores
 * them (255: no ink), as Pillow and torchvision do: R = C*K/255 rounded, luma of that; no colour profile is applied.
 * Luma of PNG and WebP in colour is Pillow's, too: of R, G and B. Alpha is dropped, of 16 bits the high byte stays.
 * DECODE_VALUES refuses colour and 16 bits. May be called again for another region. After DECODE_BAD the pixels are
 * unspecified; otherwise every one of them was written. */
enum decode_verdict decoder_read(struct decoder *decoder, uint32_t channels, const struct box *region,
                                 const struct picture *picture, struct diag *diag);

/* True where decoder_read_rows() serves the open picture: a coefficient record that is not turned. */
bool decoder_gives_rows(const struct decoder *decoder);

/* `rows` rows of the region, the next ones from the top down. They are gone when the call returns. */
typedef void decode_take_rows(void *state, const uint8_t *pixels, size_t stride, uint32_t rows);

/* decoder_read() that gives the region away in pieces of a few rows while they are in the nearest caches, instead of
 * writing all of it. The same verdict, sentence and pixels; after DECODE_BAD some rows may have been given. */
enum decode_verdict decoder_read_rows(struct decoder *decoder, uint32_t channels, const struct box *region,
                                      decode_take_rows *take, void *state, struct diag *diag);

/* Of the last decoder_read() that said DECODE_DAMAGED: true where every pixel of the rows consumed was there all the
 * same (junk between header segments, an odd version number, only the end-of-image marker missing), so that the picture
 * equals what the undamaged file would give; false where coefficients were lost or may be wrong. */
bool decoder_damage_is_complete(const struct decoder *decoder);

void decoder_close(struct decoder *decoder); /* forgets the open picture; idempotent */

/* After a siglongjmp() out of any call above (a mapped file that shrank): rebuilds the codec, forgets the picture. Must
 * come before any other call but decoder_free(), which is safe as well. */
void decoder_reset(struct decoder *decoder);

/* Largest number of arena bytes that a picture has needed so far. */
size_t decoder_memory_peak(const struct decoder *decoder);

/* "libjpeg-turbo 2.1.5 (SIMD)" and the like: codec 0, 1, ..., for `loaderctl version`; NULL past the last. */
const char *decode_version(size_t index);

#endif
