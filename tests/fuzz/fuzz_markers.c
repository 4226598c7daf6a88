/* SPDX-License-Identifier: MIT */
/* Markers of JPEG files: a copy without metadata is no longer than was promised, and says the same of the picture. */
#include <stdlib.h>
#include <string.h>

#include "decode/jpeg_markers.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct jpeg_summary before, after;
    bool good = jpeg_summarize(data, size, &before);
    for (uint32_t orientation = 1; orientation <= 8; orientation += 7) {
        uint8_t *copy = malloc(size + JPEG_STRIP_ROOM);
        if (!copy)
            return 0;
        size_t length = jpeg_strip(data, size, orientation, copy);
        if (length > size + JPEG_STRIP_ROOM || (good && !length))
            abort();
        if (good &&
            (!jpeg_summarize(copy, length, &after) || after.width != before.width || after.height != before.height ||
             after.components != before.components || after.sampling != before.sampling ||
             after.progressive != before.progressive || after.orientation != orientation))
            abort();
        free(copy);
    }
    return 0;
}
