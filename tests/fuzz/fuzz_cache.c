/* SPDX-License-Identifier: MIT */
/*
 * Segments of a cache, as they are and with their checksums put right: whatever is accepted lies inside of the segment
 * and is what was asked for. Input: a header, a byte that counts entries, these, and what stands where the header says
 * that records begin (else at the segment's end); the rest of the segment is zero.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"
#include "base/util.h"
#include "cache/segment.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_record(const uint8_t *segment, const struct segment_header *header, uint32_t place,
                         const struct cache_key *key) {
    size_t length = 0;
    const uint8_t *record = segment_record(segment, header, place, key, &length);
    if (record && (length == 0 || record < segment + header->data || length > header->bytes ||
                   record + length > segment + header->bytes))
        abort();
}

static void check_entry(const uint8_t *segment, const struct segment_header *header,
                        const struct segment_entry *entry) {
    struct segment_entry checked;
    struct cache_key key;
    segment_entry_key(entry, &key);
    if (!segment_entry_is(entry, &key))
        abort();
    check_record(segment, header, entry->place, &key);
    if (!segment_entry_check(entry, header, &checked))
        return;
    uint64_t begin = (uint64_t)checked.place * SEGMENT_UNIT;
    if (begin < header->data || begin + segment_blob_bytes(checked.bytes) > header->bytes + SEGMENT_UNIT - 1 ||
        begin + sizeof checked + checked.bytes > header->bytes)
        abort();
}

static void check_segment(uint8_t *segment, uint64_t bytes, const uint8_t *entries, uint32_t count, const uint8_t *rest,
                          size_t rest_bytes) {
    struct segment_header header;
    struct diag diag = DIAG_INIT;
    if (segment_header_check(segment, bytes, bytes, &header, &diag) < 0) {
        if (diag.code != -EBADMSG || !*diag.text)
            abort();
        return;
    }
    if (header.bytes != bytes || SEGMENT_TABLE + (uint64_t)header.entries * sizeof(struct segment_entry) > header.data)
        abort();
    if (header.data < bytes)
        memcpy(segment + header.data, rest, MIN(rest_bytes, bytes - header.data));
    for (uint32_t i = 0; i < count; i++) {
        struct segment_entry entry;
        memcpy(&entry, entries + i * sizeof entry, sizeof entry);
        check_entry(segment, &header, &entry);
        segment_entry_seal(&entry, header.number);
        check_entry(segment, &header, &entry);
        /* and with a copy of it where it says that its record is */
        if ((uint64_t)entry.place * SEGMENT_UNIT + sizeof entry <= bytes)
            memcpy(segment + (uint64_t)entry.place * SEGMENT_UNIT, &entry, sizeof entry);
        check_entry(segment, &header, &entry);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct segment_header header;
    const uint64_t bytes = SEGMENT_LEAST;
    if (size < sizeof header + 1) {
        if (segment_header_check(data, size, bytes, &header, NULL) == 0)
            abort();
        return 0;
    }
    const uint8_t *at = data + sizeof header;
    uint32_t count = *at++ % 16;
    count = (uint32_t)MIN(count, (size - sizeof header - 1) / sizeof(struct segment_entry));
    const uint8_t *rest = at + count * sizeof(struct segment_entry);
    for (int put_right = 0; put_right < 2; put_right++) {
        uint8_t *segment = calloc(1, bytes);
        if (!segment)
            return 0;
        memcpy(&header, data, sizeof header);
        if (put_right) {
            memcpy(header.magic, SEGMENT_MAGIC, sizeof header.magic);
            header.version = SEGMENT_VERSION;
            header.byte_order = SEGMENT_BYTE_ORDER;
            header.bytes = bytes;
            header.crc = crc32c(0, &header, offsetof(struct segment_header, crc));
        }
        memcpy(segment, &header, sizeof header);
        check_segment(segment, bytes, at, count, rest, (size_t)(data + size - rest));
        free(segment);
    }
    return 0;
}
