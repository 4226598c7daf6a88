/* SPDX-License-Identifier: MIT */
/* The orientation that cameras write into JPEG files (CIPA DC-008, Exif 3.0; TIFF 6.0). Pure functions; any thread. */
#ifndef DECODE_EXIF_H
#define DECODE_EXIF_H

#include <stddef.h>
#include <stdint.h>

/* Orientation 1 to 8 of the first Exif segment of a JPEG file; 1 where there is none, or none of those values. */
uint32_t exif_jpeg_orientation(const uint8_t *bytes, size_t length);

/* The same of a TIFF structure, which is what follows "Exif\0\0" in the segment: the first directory's tag 0x0112. */
uint32_t exif_tiff_orientation(const uint8_t *bytes, size_t length);

#endif
