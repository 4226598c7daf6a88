/* SPDX-License-Identifier: MIT */
/*
 * The form of a cache's segments, in files and in memory alike, and the checks of what is read from one. Pure functions
 * over (pointer, length): a segment file is outside bytes. docs/cache.md specifies the form.
 *
 *   0          4096                        data                                              bytes
 *   +--------+-+---------------------------+------------+----------------+------------+------+
 *   | header |0| entry[entries], 64 B each | entry copy | record, padded | entry copy | ...  |
 *   | 64 B   | | in the order of arrival   | 64 B       | to 64 B        |            |      |
 *   +--------+-+---------------------------+------------+----------------+------------+------+
 *
 * What a writer does, in this order: the record with a copy of its entry in front of it, then the entry. An entry counts
 * if its checksum holds; a record counts if the copy in front of it has a checksum that holds, too, and the wanted key.
 * So whatever is torn, by a crash or by a loss of power that kept one page and not another, is no entry or no record. (The
 * record's own checksums, which its decoder compares, say the rest.) Both checksums begin with the segment's number, so
 * that bytes of another segment never count.
 */
#ifndef CACHE_SEGMENT_H
#define CACHE_SEGMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/diag.h"
#include "cache/cache.h"

#define SEGMENT_MAGIC "LOADCCH1"
#define SEGMENT_VERSION 1u
#define SEGMENT_BYTE_ORDER 0x01020304u /* numbers are in the writer's byte order; another one is refused */
#define SEGMENT_UNIT 64u               /* entries and records begin at multiples of it */
#define SEGMENT_TABLE 4096u            /* where the entries begin */
#define SEGMENT_LEAST (UINT64_C(1) << 20)
#define SEGMENT_MOST (UINT64_C(1) << 26)
#define SEGMENT_SHARE 4096u /* bytes of a segment for each entry that it has room for */

struct segment_header {
    char magic[8];
    uint32_t version, byte_order;
    uint64_t bytes;         /* of the whole segment */
    uint64_t number;        /* random: no two segments share it */
    uint32_t entries, data; /* room for entries; where the first record may begin */
    uint8_t reserved[20];   /* 0 */
    uint32_t crc;           /* CRC-32C of what stands before it */
};
_Static_assert(sizeof(struct segment_header) == 64, "segment header");
_Static_assert(offsetof(struct segment_header, crc) == 60, "segment header");

struct segment_entry {
    uint64_t device, inode, size; /* struct cache_key */
    int64_t mtime_ns;
    uint64_t offset, length;
    uint32_t variant;
    uint32_t place; /* of the copy in front of the record, in units */
    uint32_t bytes; /* of the record */
    uint32_t crc;   /* CRC-32C of the segment's number and of what stands before it */
};
_Static_assert(sizeof(struct segment_entry) == 64, "segment entry");
_Static_assert(offsetof(struct segment_entry, crc) == 60, "segment entry");

/* The header of a new segment: `bytes` from SEGMENT_LEAST to SEGMENT_MOST, a multiple of 4096. */
void segment_header_make(uint64_t bytes, uint64_t number, struct segment_header *ret);
/* Checks a header of a segment of `bytes` bytes. 0, or -EBADMSG and what is wrong with it. */
int segment_header_check(const void *header, size_t length, uint64_t bytes, struct segment_header *ret,
                         struct diag *diag);

/* Fills in the checksum. */
void segment_entry_seal(struct segment_entry *entry, uint64_t number);
/* Is this an entry of that segment, whose record lies in it? `bytes` need not be aligned. */
bool segment_entry_check(const void *bytes, const struct segment_header *header, struct segment_entry *ret);
bool segment_entry_is(const struct segment_entry *entry, const struct cache_key *key);
void segment_entry_key(const struct segment_entry *entry, struct cache_key *ret);

/* The record at `place` units of a whole segment, if what stands there is that of `key`; else NULL. */
const uint8_t *segment_record(const uint8_t *segment, const struct segment_header *header, uint32_t place,
                              const struct cache_key *key, size_t *ret_length);

/* Bytes from the copy in front of a record to the next one. */
static inline uint64_t segment_blob_bytes(uint64_t record) {
    return (sizeof(struct segment_entry) + record + SEGMENT_UNIT - 1) / SEGMENT_UNIT * SEGMENT_UNIT;
}

#endif
