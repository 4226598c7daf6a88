/* SPDX-License-Identifier: MIT */
/* JPEG files made anew: without loss, as baseline ones, and from pixels. Any thread; nothing is kept between calls. */
#ifndef DECODE_JPEG_REWRITE_H
#define DECODE_JPEG_REWRITE_H

#include "base/diag.h"
#include "base/types.h"

/* The same coefficients in one sequential scan with Huffman tables of its own; metadata is copied where `metadata` is
 * set. The result is the caller's to free(). 0; -EBADMSG with the library's sentence, also where it only warned. */
int jpeg_to_baseline(const uint8_t *bytes, size_t length, bool metadata, uint8_t **ret, size_t *ret_length,
                     struct diag *diag);

/* A JFIF file of 1 or 3 channels, chroma halved both ways, tables optimised; quality 1..100. */
int jpeg_encode(const struct picture *picture, int quality, uint8_t **ret, size_t *ret_length, struct diag *diag);

#endif
