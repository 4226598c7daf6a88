/* SPDX-License-Identifier: MIT */
/*
 * Any bytes through the PNG decoder: see picture.h. Each input runs twice: as it is, and with right checksums in all its
 * chunks, so that changed headers and data get as far as the code behind them.
 */
#include <arpa/inet.h>
#include <zlib.h>

#include "picture.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

static void mend(uint8_t *bytes, size_t length) {
    uint32_t size, crc;
    for (size_t at = 8; length >= 12 && at <= length - 12; at += 12 + (size_t)size) {
        memcpy(&size, bytes + at, sizeof size);
        size = ntohl(size);
        if (size > length - at - 12)
            return;
        crc = htonl((uint32_t)crc32(0, bytes + at + 4, size + 4));
        memcpy(bytes + at + 8 + size, &crc, sizeof crc);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
    cleanup_free uint8_t *copy = malloc(length + 1);
    if (!copy)
        abort();
    fuzz_picture(bytes, length);
    memcpy(copy, bytes, length);
    mend(copy, length);
    return fuzz_picture(copy, length);
}
