/* SPDX-License-Identifier: MIT */
/* The form of segments: see segment.h. Pure; any thread. */
#include "cache/segment.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/crc32c.h"
#include "base/util.h"

void segment_header_make(uint64_t bytes, uint64_t number, struct segment_header *ret) {
    uint64_t entries = bytes / SEGMENT_SHARE;
    *ret = (struct segment_header){
        .version = SEGMENT_VERSION,
        .byte_order = SEGMENT_BYTE_ORDER,
        .bytes = bytes,
        .number = number,
        .entries = (uint32_t)entries,
        .data = (uint32_t)align_up(SEGMENT_TABLE + entries * sizeof(struct segment_entry), 4096),
    };
    memcpy(ret->magic, SEGMENT_MAGIC, sizeof ret->magic);
    ret->crc = crc32c(0, ret, offsetof(struct segment_header, crc));
}

int segment_header_check(const void *header, size_t length, uint64_t bytes, struct segment_header *ret,
                         struct diag *diag) {
    struct segment_header h;
    if (length < sizeof h)
        return diag_set(diag, -EBADMSG, "%zu bytes are too few for a segment's header", length);
    memcpy(&h, header, sizeof h);
    if (memcmp(h.magic, SEGMENT_MAGIC, sizeof h.magic) != 0)
        return diag_set(diag, -EBADMSG, "no segment: the magic is missing");
    if (h.version != SEGMENT_VERSION || h.byte_order != SEGMENT_BYTE_ORDER)
        return diag_set(diag, -EBADMSG,
                        "a segment of version %" PRIu32 " and byte order %08" PRIx32 "; wanted %u, %08x", h.version,
                        h.byte_order, SEGMENT_VERSION, SEGMENT_BYTE_ORDER);
    if (h.crc != crc32c(0, &h, offsetof(struct segment_header, crc)))
        return diag_set(diag, -EBADMSG, "the header's checksum is wrong");
    if (h.bytes != bytes)
        return diag_set(diag, -EBADMSG, "%" PRIu64 " bytes by its header, found %" PRIu64, h.bytes, bytes);
    if (h.bytes < SEGMENT_LEAST || h.bytes > SEGMENT_MOST || h.bytes % 4096 || h.data % 4096 || h.data > h.bytes ||
        h.data < SEGMENT_TABLE || h.entries > (h.data - SEGMENT_TABLE) / sizeof(struct segment_entry))
        return diag_set(diag, -EBADMSG, "the header contradicts itself");
    *ret = h;
    return 0;
}

static uint32_t entry_crc(const struct segment_entry *entry, uint64_t number) {
    return crc32c(crc32c(0, &number, sizeof number), entry, offsetof(struct segment_entry, crc));
}

void segment_entry_seal(struct segment_entry *entry, uint64_t number) {
    entry->crc = entry_crc(entry, number);
}

bool segment_entry_check(const void *bytes, const struct segment_header *header, struct segment_entry *ret) {
    struct segment_entry e;
    memcpy(&e, bytes, sizeof e);
    uint64_t begin = (uint64_t)e.place * SEGMENT_UNIT;
    if (e.bytes == 0 || e.crc != entry_crc(&e, header->number) || begin < header->data ||
        begin + sizeof e + e.bytes > header->bytes)
        return false;
    *ret = e;
    return true;
}

bool segment_entry_is(const struct segment_entry *e, const struct cache_key *key) {
    const struct file_identity *file = &key->file;
    return e->device == file->device && e->inode == file->inode && e->size == file->size &&
           e->mtime_ns == file->mtime_ns && e->offset == key->offset && e->length == key->length &&
           e->variant == key->variant;
}

void segment_entry_key(const struct segment_entry *e, struct cache_key *ret) {
    *ret = (struct cache_key){
        .file = {.device = e->device, .inode = e->inode, .size = e->size, .mtime_ns = e->mtime_ns},
        .offset = e->offset,
        .length = e->length,
        .variant = e->variant,
    };
}

const uint8_t *segment_record(const uint8_t *segment, const struct segment_header *header, uint32_t place,
                              const struct cache_key *key, size_t *ret_length) {
    struct segment_entry e;
    uint64_t begin = (uint64_t)place * SEGMENT_UNIT;
    if (begin < header->data || begin > header->bytes - sizeof e)
        return NULL;
    if (!segment_entry_check(segment + begin, header, &e) || e.place != place || !segment_entry_is(&e, key))
        return NULL;
    *ret_length = e.bytes;
    return segment + begin + sizeof e;
}
