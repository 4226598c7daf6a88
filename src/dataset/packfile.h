/* SPDX-License-Identifier: MIT */
/*
 * The pack file as bytes: its layout and the pure functions that judge one. loaderd-pack(5) is the normative
 * specification. Shared by the dataset format (pack.c) and by the tool that writes packs.
 *
 *   +--------+-----------------+----------------+-------------------------+-----------------+
 *   | header | meta            | index          | data                    | names           |
 *   | 4096 B | classes, origin | entry[records] | record, record, ...     | where they came |
 *   +--------+-----------------+----------------+-------------------------+-----------------+
 *             \_ meta_crc ____/ \_ index_crc __/  a CRC-32C a record        \_ names_crc __/
 *
 * All numbers are little-endian. What a reader needs stands in front of the data, so that a file which was cut still
 * serves its first records. Nothing here allocates, reads files or keeps state; any thread.
 */
#ifndef DATASET_PACKFILE_H
#define DATASET_PACKFILE_H

#include "base/diag.h"
#include "base/types.h"

#define PACK_MAGIC "LOADPACK"
#define PACK_VERSION 1u
#define PACK_HEADER_BYTES 4096u
#define PACK_FIELDS_OFFSET 512u /* of the field table in the header */
#define PACK_ENTRY_FIXED 12u    /* bytes of an index entry before the fields' */
#define PACK_MAX_FRONT (UINT64_C(1) << 36)
#define PACK_SUFFIX ".pack" /* of the shards in a folder */

/* How a field of a record is stored. */
enum pack_storage {
    PACK_VALUE = 1,   /* an integer in the index entry: i64 */
    PACK_FIXED = 2,   /* dtype x dims bytes of the record */
    PACK_PICTURE = 3, /* an encoded picture; entry: struct pack_picture */
    PACK_BYTES = 4,   /* bytes of any number; entry: their number, u32 */
    PACK_BOXES = 5,   /* rectangles of 40 bytes (dataset_pack_box()); entry: bytes, u32 */
};

/* How bytes are encoded. Readers look at the bytes themselves, too: the tag is what the writer found. */
enum pack_encoding {
    PACK_RAW = 0,
    PACK_JPEG = 1,         /* a JPEG file */
    PACK_COEFFICIENTS = 2, /* a JPEG's coefficients, stored anew */
    PACK_PNG = 3,
    PACK_WEBP = 4,
    PACK_ZSTD = 5, /* reserved */
    PACK_OTHER = 255
};

/* What the index knows of a picture. */
struct pack_picture {
    uint32_t length;        /* bytes in the record */
    uint16_t width, height; /* pixels as stored; 0: ask the picture */
    uint8_t encoding;       /* enum pack_encoding */
    uint8_t channels;       /* 1, 3, 4; 0: not known */
    uint8_t sampling;       /* JPEG: luma samples across << 4 | down for one of chroma (0x22: 4:2:0); else 0 */
    uint8_t flags;          /* PACK_PICTURE_* | orientation << 4 (EXIF's 1..8, 0: none said) */
};
_Static_assert(sizeof(struct pack_picture) == 12, "pack picture");
#define PACK_BOXES_PIXELS 0u        /* encoding of BOXES: edges in pixels, */
#define PACK_BOXES_RELATIVE 1u      /* or in shares of the picture's sides */
#define PACK_PICTURE_PROGRESSIVE 1u /* several scans, or arithmetic coding: dear to decode */

struct pack_field {
    char name[32]; /* ended by a NUL */
    uint32_t dtype, ndim;
    int64_t dims[LOADERD_MAX_DIMS - 1]; /* PICTURE: -1, -1, -1; a mask -1, -1; BYTES: -1; BOXES: -1, 5 */
    uint32_t storage;                   /* enum pack_storage */
    uint32_t encoding;                  /* of BOXES: PACK_BOXES_*; of others PACK_RAW: each PICTURE says */
    uint32_t deliver;                   /* FIXED: dtype of the rows, 0: as stored */
    uint32_t entry;                     /* where its part of an index entry begins; FIXED: 0 */
    uint8_t reserved[16];
};
_Static_assert(sizeof(struct pack_field) == 128, "pack field");
_Static_assert(PACK_FIELDS_OFFSET + sizeof(struct pack_field) * LOADERD_MAX_FIELDS <= PACK_HEADER_BYTES, "fields fit");

/* What was done to records on their way in. */
struct pack_counts {
    uint64_t skipped;   /* samples of the source that are not in the file */
    uint64_t stripped;  /* JPEGs without the metadata that they had */
    uint64_t rewritten; /* progressive or arithmetic JPEGs made baseline */
    uint64_t resized;
    uint64_t coefficients; /* JPEGs stored as coefficients */
    uint64_t kept;         /* JPEGs that could not be, and are as they were */
};

struct pack_header {
    char magic[8];
    uint32_t version, header_bytes;
    uint32_t header_crc; /* CRC-32C of the header, this word taken as 0 */
    uint32_t meta_crc;   /* of [meta_offset, index_offset) */
    uint32_t index_crc;  /* of [index_offset, data_offset) */
    uint32_t names_crc;
    uint64_t file_bytes, records;
    uint64_t meta_offset, index_offset, data_offset, data_bytes, names_offset, names_bytes;
    uint32_t entry_bytes, alignment; /* records begin at multiples of it */
    uint32_t fields, classes;
    uint32_t class_bytes;                  /* of the class names at the beginning of the meta part */
    uint32_t origin_bytes;                 /* of the text behind them, NUL included: "key=value" lines */
    uint32_t shard, shards;                /* this file is shard `shard` of `shards` */
    uint64_t source_first, source_samples; /* the source's samples that it was made of */
    uint8_t set[16];                       /* the same in all shards of a pack, and in no other pack */
    struct pack_counts counts;
};
_Static_assert(sizeof(struct pack_header) == 208, "pack header");
_Static_assert(offsetof(struct pack_header, set) == 144, "pack header");

/* A judged file, seen through the bytes in front of its data. */
struct pack_view {
    struct pack_header header;
    struct pack_field field[LOADERD_MAX_FIELDS];
    uint64_t fixed_bytes; /* of the FIXED fields of a record, which come first in it */
    uint32_t ragged;      /* PICTURE, BYTES and BOXES fields: they follow in order */
    const char *classes;  /* names with their NULs, one behind the other */
    const char *origin;
    const uint8_t *index;
};

/* The header alone, out of the first `length` bytes of a file of `file_bytes`. -EINVAL and a sentence. */
int pack_parse_header(const void *bytes, size_t length, uint64_t file_bytes, struct pack_view *ret, struct diag *diag);
/* All that stands in front of the data: `bytes` has at least header.data_offset bytes and must outlive *ret. A file
 * shorter than it was written is no error; see pack_record(). -EINVAL and a sentence. */
int pack_parse(const void *bytes, size_t length, uint64_t file_bytes, struct pack_view *ret, struct diag *diag);
/* Writes all checksums but that of the names into [0, data_offset). The caller's header is sound. */
void pack_seal(void *bytes);

/* Where record i < header.records lies. */
struct pack_record {
    uint64_t offset, length;
    uint32_t crc;
};
void pack_record(const struct pack_view *view, uint64_t i, struct pack_record *ret);
int64_t pack_value(const struct pack_view *view, uint64_t i, uint32_t field);                          /* a VALUE */
void pack_picture(const struct pack_view *view, uint64_t i, uint32_t field, struct pack_picture *ret); /* a PICTURE */
uint32_t pack_length(const struct pack_view *view, uint64_t i, uint32_t field); /* of PICTURE, BYTES and BOXES */
/* Are the field's bytes of another number in each record? */
bool pack_is_ragged(const struct pack_field *field);

/* Sets `entry` of every field and returns the bytes of an index entry. */
uint32_t pack_lay_out(struct pack_field *field, uint32_t fields);
/* Bytes of a FIXED field; 0 where dims or dtype are no sound ones. */
uint64_t pack_field_bytes(const struct pack_field *field);
/* Names that packs of the same samples made in the same way share. `origin` says how. */
void pack_set_name(const uint8_t source[16], const char *origin, const struct pack_field *field, uint32_t fields,
                   uint8_t ret[16]);

#endif
