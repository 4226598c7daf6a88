/* SPDX-License-Identifier: MIT */
/*
 * Judges the bytes of a pack file; see packfile.h. Every offset, length and count is compared with what there is before
 * it is used. Pure functions; any thread.
 */
#include "dataset/packfile.h"

#include <inttypes.h>
#include <string.h>

#include "base/crc32c.h"
#include "base/util.h"
#include "dataset/format.h"

#define FRONT_ALIGN 8u
#define MAX_ALIGNMENT (1u << 20)

/* ---- small pieces ---------------------------------------------------------------------------------------------- */

static uint32_t load_u32(const uint8_t *bytes) {
    uint32_t value;
    memcpy(&value, bytes, sizeof value);
    return value;
}

static uint64_t load_u64(const uint8_t *bytes) {
    uint64_t value;
    memcpy(&value, bytes, sizeof value);
    return value;
}

uint64_t pack_field_bytes(const struct pack_field *field) {
    uint64_t bytes = dataset_dtype_bytes(field->dtype);
    if (field->ndim > ARRAY_SIZE(field->dims))
        return 0;
    for (uint32_t i = 0; i < field->ndim; i++)
        if (field->dims[i] <= 0 || !mul_u64(bytes, (uint64_t)field->dims[i], &bytes))
            return 0;
    return bytes <= INT64_MAX ? bytes : 0;
}

static uint32_t entry_part(uint32_t storage) {
    return storage == PACK_VALUE                            ? 8
           : storage == PACK_PICTURE                        ? (uint32_t)sizeof(struct pack_picture)
           : storage == PACK_BYTES || storage == PACK_BOXES ? 4
                                                            : 0;
}

bool pack_is_ragged(const struct pack_field *field) {
    return field->storage == PACK_PICTURE || field->storage == PACK_BYTES || field->storage == PACK_BOXES;
}

uint32_t pack_lay_out(struct pack_field *field, uint32_t fields) {
    uint32_t bytes = PACK_ENTRY_FIXED;
    for (uint32_t i = 0; i < fields; i++) {
        uint32_t part = entry_part(field[i].storage);
        field[i].entry = part ? bytes : 0;
        bytes += part;
    }
    return (uint32_t)align_up(bytes, 8);
}

void pack_set_name(const uint8_t source[16], const char *origin, const struct pack_field *field, uint32_t fields,
                   uint8_t ret[16]) {
    struct hash hash;
    hash_begin(&hash, "pack set");
    hash_bytes(&hash, source, 16);
    hash_string(&hash, origin);
    hash_bytes(&hash, field, fields * sizeof *field);
    hash_end(&hash, ret);
}

/* ---- the header ------------------------------------------------------------------------------------------------ */

static uint32_t header_crc(const uint8_t *bytes) {
    static const uint8_t none[4];
    size_t at = offsetof(struct pack_header, header_crc);
    uint32_t crc = crc32c(crc32c(0, bytes, at), none, sizeof none);
    return crc32c(crc, bytes + at + sizeof none, PACK_HEADER_BYTES - at - sizeof none);
}

static int refuse(struct diag *diag, const char *what) {
    return diag_set(diag, -EINVAL, "pack header: %s: the file was damaged or not made by loaderctl pack", what);
}

static int check_magic(const uint8_t *bytes, size_t length, struct pack_header *ret, struct diag *diag) {
    if (length < PACK_HEADER_BYTES)
        return diag_set(diag, -EINVAL, "%zu bytes are fewer than a pack's header of %u: the file was cut", length,
                        PACK_HEADER_BYTES);
    memcpy(ret, bytes, sizeof *ret);
    if (memcmp(ret->magic, PACK_MAGIC, sizeof ret->magic) != 0)
        return diag_set(diag, -EINVAL, "no pack: the file does not begin with " PACK_MAGIC);
    if (ret->version != PACK_VERSION)
        return diag_set(diag, -EINVAL,
                        "pack version %" PRIu32 ", this program reads version %u: it needs a newer loaderd",
                        ret->version, PACK_VERSION);
    if (ret->header_bytes != PACK_HEADER_BYTES)
        return refuse(diag, "another size");
    uint32_t crc = header_crc(bytes);
    if (ret->header_crc != crc)
        return diag_set(diag, -EINVAL,
                        "pack header: CRC-32C is %08" PRIx32 ", stored is %08" PRIx32 ": the header was damaged", crc,
                        ret->header_crc);
    return 0;
}

static bool is_power_of_two(uint64_t x) {
    return x && (x & (x - 1)) == 0;
}

static int check_sections(const struct pack_header *h, uint64_t file_bytes, struct diag *diag) {
    uint64_t end, index_bytes;
    if (h->meta_offset != PACK_HEADER_BYTES || h->index_offset < h->meta_offset || h->data_offset < h->index_offset ||
        h->index_offset % FRONT_ALIGN || h->data_offset > PACK_MAX_FRONT)
        return refuse(diag, "its parts are out of order");
    if (!add_u64(h->class_bytes, h->origin_bytes, &end) || end > h->index_offset - h->meta_offset)
        return refuse(diag, "the class names do not fit in front of the index");
    if (!mul_u64(h->records, h->entry_bytes, &index_bytes) || index_bytes > h->data_offset - h->index_offset)
        return refuse(diag, "the index does not fit in front of the data");
    if (!is_power_of_two(h->alignment) || h->alignment > MAX_ALIGNMENT)
        return refuse(diag, "the alignment is no power of two or too large");
    if (!add_u64(h->data_offset, h->data_bytes, &end) || end > h->file_bytes || end > INT64_MAX)
        return refuse(diag, "the data does not fit in the file");
    if (h->names_bytes && (h->names_offset < end || h->names_offset % 8 ||
                           !add_u64(h->names_offset, h->names_bytes, &end) || end > h->file_bytes))
        return refuse(diag, "the names do not fit in the file");
    if (h->names_bytes && (h->records >= UINT64_MAX / 16 || h->names_bytes < (h->records + 1) * 8))
        return refuse(diag, "the names are too short");
    if (h->shards == 0 || h->shard >= h->shards)
        return refuse(diag, "it is no shard of its pack");
    if (file_bytes < h->data_offset)
        return diag_set(diag, -EINVAL,
                        "the file has %" PRIu64 " bytes, its index ends at %" PRIu64 ": it was cut before any record",
                        file_bytes, h->data_offset);
    return 0;
}

/* Names become names of folders and words of messages. */
static bool is_sound_name(const char *name, size_t room) {
    if (!*name || *name == '.' || name[room - 1])
        return false;
    for (; *name; name++)
        if (*name == '/' || (unsigned char)*name < ' ' || *name == 127)
            return false;
    return true;
}

/* One field of the table; `view` has what came before it. */
static int check_field(struct pack_view *view, uint32_t i, struct diag *diag) {
    const struct pack_field *f = &view->field[i];
    uint64_t bytes = pack_field_bytes(f);
    if (!is_sound_name(f->name, sizeof f->name) || f->ndim > ARRAY_SIZE(f->dims) || !dataset_dtype_bytes(f->dtype))
        return refuse(diag, "a field has no sound name, dtype or shape");
    for (uint32_t k = 0; k < i; k++)
        if (strcmp(view->field[k].name, f->name) == 0)
            return refuse(diag, "two fields have the same name");
    if (f->storage == 0 || f->storage > PACK_BOXES)
        return diag_set(diag, -EINVAL,
                        "pack field '%s' is stored in way %" PRIu32
                        ", which this program does not know: it needs a newer loaderd",
                        f->name, f->storage);
    uint32_t part = entry_part(f->storage);
    if (part ? f->entry < PACK_ENTRY_FIXED || f->entry > view->header.entry_bytes ||
                   part > view->header.entry_bytes - f->entry
             : f->entry != 0)
        return refuse(diag, "a field lies outside the index entry");
    view->ragged += pack_is_ragged(f);
    if (f->storage == PACK_BYTES)
        return f->dtype == LOADERD_U8 && f->ndim == 1 && f->dims[0] == -1 ? 0 : refuse(diag, "bytes with a shape");
    if (f->storage == PACK_BOXES)
        return f->dtype == LOADERD_F32 && f->ndim == 2 && f->dims[0] == -1 && f->dims[1] == 5 &&
                       f->encoding <= PACK_BOXES_RELATIVE
                   ? 0
                   : refuse(diag, "boxes of an unknown form");
    if (f->storage == PACK_PICTURE) {
        for (uint32_t k = 0; k < f->ndim; k++)
            if (f->dims[k] != -1)
                return refuse(diag, "a picture has a fixed shape");
        return f->dtype == LOADERD_U8 && f->ndim >= 2 && f->ndim <= 3 ? 0 : refuse(diag, "a picture is no u8 picture");
    }
    if (f->storage == PACK_VALUE)
        return f->ndim == 0 && f->dtype <= LOADERD_I64 ? 0 : refuse(diag, "a value is no integer");
    if (!bytes || !add_u64(view->fixed_bytes, bytes, &view->fixed_bytes) || view->fixed_bytes > INT64_MAX)
        return refuse(diag, "a field is empty or too large");
    if (f->encoding != PACK_RAW || (f->deliver && !dataset_dtype_bytes(f->deliver)))
        return diag_set(diag, -EINVAL,
                        "pack field '%s' has encoding %" PRIu32
                        ", which this program does not know: it needs a newer loaderd",
                        f->name, f->encoding);
    return 0;
}

int pack_parse_header(const void *bytes, size_t length, uint64_t file_bytes, struct pack_view *ret, struct diag *diag) {
    struct pack_view view = {0};
    struct pack_header *h = &view.header;
    int rc = check_magic(bytes, length, h, diag);
    if (rc < 0)
        return rc;
    if (h->fields == 0 || h->fields > LOADERD_MAX_FIELDS || h->entry_bytes < PACK_ENTRY_FIXED ||
        h->entry_bytes > PACK_ENTRY_FIXED + 16u * LOADERD_MAX_FIELDS || h->entry_bytes % 8)
        return refuse(diag, "the number of fields or the size of an index entry is unsound");
    memcpy(view.field, (const uint8_t *)bytes + PACK_FIELDS_OFFSET, h->fields * sizeof *view.field);
    for (uint32_t i = 0; i < h->fields && rc == 0; i++)
        rc = check_field(&view, i, diag);
    if (rc == 0)
        rc = check_sections(h, file_bytes, diag);
    if (rc == 0)
        *ret = view;
    return rc;
}

/* ---- meta and index -------------------------------------------------------------------------------------------- */

static int check_meta(struct pack_view *view, const uint8_t *bytes, struct diag *diag) {
    const struct pack_header *h = &view->header;
    const uint8_t *meta = bytes + h->meta_offset;
    uint32_t crc = crc32c(0, meta, h->index_offset - h->meta_offset), names = 0;
    if (crc != h->meta_crc)
        return diag_set(diag, -EINVAL,
                        "pack: the class names were damaged (CRC-32C %08" PRIx32 ", stored %08" PRIx32 ")", crc,
                        h->meta_crc);
    for (uint32_t i = 0; i < h->class_bytes; i++)
        names += meta[i] == 0;
    if (names != h->classes || (h->class_bytes && meta[h->class_bytes - 1]))
        return refuse(diag, "the class names are not as many as it says");
    if (h->origin_bytes == 0 || strnlen((const char *)meta + h->class_bytes, h->origin_bytes) != h->origin_bytes - 1)
        return refuse(diag, "the origin is no text");
    view->classes = (const char *)meta;
    view->origin = (const char *)meta + h->class_bytes;
    return 0;
}

/* Length of record i; false where it is longer than 63 bits. */
static bool record_length(const struct pack_view *view, const uint8_t *entry, uint64_t *ret) {
    uint64_t length = view->fixed_bytes;
    for (uint32_t f = 0; f < view->header.fields && view->ragged; f++)
        if (pack_is_ragged(&view->field[f]) && !add_u64(length, load_u32(entry + view->field[f].entry), &length))
            return false;
    *ret = length;
    return true;
}

static int check_index(const struct pack_view *view, struct diag *diag) {
    const struct pack_header *h = &view->header;
    uint32_t crc = crc32c(0, view->index, h->data_offset - h->index_offset);
    if (crc != h->index_crc)
        return diag_set(diag, -EINVAL, "pack: the index was damaged (CRC-32C %08" PRIx32 ", stored %08" PRIx32 ")", crc,
                        h->index_crc);
    const uint8_t *entry = view->index;
    uint64_t end = h->data_offset + h->data_bytes;
    for (uint64_t i = 0; i < h->records; i++, entry += h->entry_bytes) {
        uint64_t offset = load_u64(entry), length;
        if (!record_length(view, entry, &length) || offset < h->data_offset || offset > end || length > end - offset ||
            offset & (h->alignment - 1))
            return diag_set(diag, -EINVAL,
                            "pack: record %" PRIu64 " lies at byte %" PRIu64 ", outside the data: the index is unsound",
                            i, offset);
    }
    return 0;
}

int pack_parse(const void *bytes, size_t length, uint64_t file_bytes, struct pack_view *ret, struct diag *diag) {
    struct pack_view view;
    int rc = pack_parse_header(bytes, length, file_bytes, &view, diag);
    if (rc < 0)
        return rc;
    if (length < view.header.data_offset)
        return diag_set(diag, -EINVAL, "pack: %zu bytes were given, the index ends at %" PRIu64, length,
                        view.header.data_offset);
    view.index = (const uint8_t *)bytes + view.header.index_offset;
    rc = check_meta(&view, bytes, diag);
    if (rc == 0)
        rc = check_index(&view, diag);
    if (rc == 0)
        *ret = view;
    return rc;
}

void pack_seal(void *bytes) {
    struct pack_header h;
    memcpy(&h, bytes, sizeof h);
    uint8_t *b = bytes;
    h.meta_crc = crc32c(0, b + h.meta_offset, h.index_offset - h.meta_offset);
    h.index_crc = crc32c(0, b + h.index_offset, h.data_offset - h.index_offset);
    memcpy(b, &h, sizeof h);
    h.header_crc = header_crc(b);
    memcpy(b, &h, sizeof h);
}

/* ---- records --------------------------------------------------------------------------------------------------- */

static const uint8_t *entry_of(const struct pack_view *view, uint64_t i) {
    return view->index + i * view->header.entry_bytes;
}

void pack_record(const struct pack_view *view, uint64_t i, struct pack_record *ret) {
    const uint8_t *entry = entry_of(view, i);
    *ret = (struct pack_record){.offset = load_u64(entry), .crc = load_u32(entry + 8)};
    record_length(view, entry, &ret->length);
}

int64_t pack_value(const struct pack_view *view, uint64_t i, uint32_t field) {
    return (int64_t)load_u64(entry_of(view, i) + view->field[field].entry);
}

void pack_picture(const struct pack_view *view, uint64_t i, uint32_t field, struct pack_picture *ret) {
    memcpy(ret, entry_of(view, i) + view->field[field].entry, sizeof *ret);
}

uint32_t pack_length(const struct pack_view *view, uint64_t i, uint32_t field) {
    return load_u32(entry_of(view, i) + view->field[field].entry); /* a picture's entry begins with it, too */
}
