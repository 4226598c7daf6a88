/* SPDX-License-Identifier: MIT */
/*
 * CRC-32C (Castagnoli, reflected polynomial 0x82F63B78, as in iSCSI, ext4 and TFRecord). Pure; any thread. Uses the
 * CPU's own instruction where it has one.
 */
#ifndef BASE_CRC32C_H
#define BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Of `length` bytes that follow those whose CRC is `crc` (0 at the beginning). */
uint32_t crc32c(uint32_t crc, const void *bytes, size_t length);

#endif
