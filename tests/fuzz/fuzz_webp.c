/* SPDX-License-Identifier: MIT */
/* Any bytes through the WebP decoder: see picture.h. */
#include "picture.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
    return fuzz_picture(bytes, length);
}
