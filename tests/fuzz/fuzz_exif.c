/* SPDX-License-Identifier: MIT */
/* Any bytes as a JPEG file and as a TIFF structure: an orientation of 1 to 8, nothing read outside. */
#include <stdlib.h>

#include "decode/exif.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
    uint32_t a = exif_jpeg_orientation(bytes, length), b = exif_tiff_orientation(bytes, length);
    if (a < 1 || a > 8 || b < 1 || b > 8)
        abort();
    return 0;
}
