/* SPDX-License-Identifier: MIT */
/*
 * Where sample i is. A dataset is immutable once open; dataset_locate() is pure and may be called by any thread.
 * One file per format (folder.c, list.c, raw.c, synthetic.c ...), each a `struct dataset_format` (format.h); dataset.c
 * detects the format by content and keeps the table.
 */
#ifndef DATASET_DATASET_H
#define DATASET_DATASET_H

#include "base/diag.h"
#include "base/types.h"

/* Where a field's value comes from. */
enum dataset_source {
    SOURCE_VALUE,     /* location.value[field]: a small integer known from the index (a label) */
    SOURCE_BYTES,     /* `bytes` raw bytes at `offset` of extent number `extent` */
    SOURCE_PICTURE,   /* the whole extent is an encoded picture (JPEG ...) */
    SOURCE_SYNTHETIC, /* no storage: dataset_synthesize() writes the field */
    SOURCE_RAGGED,    /* the whole extent, of any length, as bytes: u8, ndim 1, dims -1 */
    SOURCE_BOXES      /* the extent holds rectangles: dataset_boxes(); f32, ndim 2, dims -1, 5 */
};

struct dataset_field {
    struct field_spec spec; /* as stored. SOURCE_PICTURE: name "image", u8, ndim 3, dims -1 (known after decode) */
    enum dataset_source source;
    uint32_t extent;                /* index into location.extent */
    uint64_t offset, bytes;         /* SOURCE_BYTES */
    uint32_t deliver;               /* SOURCE_BYTES: dtype of the rows, cast from the stored one; 0: as stored */
    bool swap;                      /* SOURCE_BYTES: elements of more than one byte are stored big-endian */
    const struct box_source *boxes; /* SOURCE_BOXES: how they are written; the dataset's */
};

/* How rectangles are written. */
enum box_kind { BOXES_YOLO, BOXES_JSON, BOXES_EXAMPLE, BOXES_PACKED };
enum box_form { BOX_XYXY, BOX_XYWH, BOX_CXCYWH };
struct box_source {
    enum box_kind kind;
    enum box_form form;
    bool relative;        /* shares of the picture's sides; else pixels */
    char path[128];       /* JSON: keys to the boxes; EXAMPLE: what stands before /xmin */
    char class_path[128]; /* JSON: keys to the classes, "": the fifth number, or 0 */
};

/* One sample. */
struct location {
    uint32_t extents;
    struct extent extent[MAX_EXTENTS];
    int64_t value[LOADERD_MAX_FIELDS]; /* SOURCE_VALUE fields */
};

struct dataset_options {
    const char *path;          /* folder, list file, raw file(s): FILE, DIRECTORY or "FILE,PATTERN*,...";
                               * "synthetic:NxDIMS:DTYPE"; or several of these, joined by " + " (labels likewise) */
    const char *format;        /* NULL or "auto": detect */
    const char *record;        /* raw: layout line, e.g. "label:u8 image:u8[3,32,32]" */
    uint64_t skip_bytes;       /* raw: header bytes of each file */
    const char *labels;        /* raw: a .npy file of labels, one a record */
    const char *classes;       /* folder: a file with one class name a line: number = line, from 0 */
    bool flat;                 /* folder: pictures lie directly in it, no labels (auto where it has no sub-folders) */
    const char *masks;         /* folder, list: a folder of label pictures under the same names; NULL or "": none */
    const char *boxes;         /* folder, list: "beside", or a folder of YOLO labels; NULL or "": none */
    const char *box_form;      /* how boxes are written: "auto", "xyxy", ... "relative-cxcywh"; NULL: "auto" */
    const char *box_json;      /* "PATH,PATH": keys to boxes and classes; NULL or "": COCO's */
    const char *bytes;         /* "NAME,NAME": fields that are delivered as the bytes that they are; NULL or "" */
    uint64_t tokens;           /* tokens: length of a window less the last target; 0: 1024 */
    uint32_t token_dtype;      /* tokens: of files without a header; 0: there is none such */
    const char *wanted_fields; /* webdataset, tfrecord: "SOURCE[;SOURCE...]:NAME ..."; NULL or "": by rule */
    uint64_t vocabulary;       /* tokens: a sample with an id that is not below it is bad; 0: not looked at */
    const char *index;         /* NULL or "auto": beside the data, else the user's cache; "none"; or a path */
    void (*progress)(void *arg, uint64_t samples, double seconds); /* NULL, or called every 5 s of scanning */
    void *progress_arg;
};

struct dataset; /* opaque */

/* On failure a negative errno (-ENOENT, -EACCES, -EINVAL, -ENODATA: no sample) and a sentence. */
int dataset_open(const struct dataset_options *options, struct dataset **ret, struct diag *diag);
void dataset_free(struct dataset *dataset);

uint64_t dataset_samples(const struct dataset *dataset);
const char *dataset_format(const struct dataset *dataset);
const char *dataset_path(const struct dataset *dataset);
uint32_t dataset_fields(const struct dataset *dataset, const struct dataset_field **ret);
/* Names of the classes by number; 0 where there are none. Class i has class_samples[i] samples. */
uint32_t dataset_classes(const struct dataset *dataset, const char *const **ret_names, const uint64_t **ret_samples);
/* Shards: shard i holds samples [first[i], first[i + 1]) and is best read as a whole. Their number, 0: not known. */
uint64_t dataset_shards(const struct dataset *dataset, const uint64_t **ret_first);
/* Tells the kernel that samples will be read in a scattered order: where those of a shard are large it then reads what is
 * asked for and nothing beyond, which can be as much again. For as long as the dataset is open; any thread. */
void dataset_expect_scattered(const struct dataset *dataset);
/* The datasets that this one joins, likewise; 1 and *ret_first NULL where it is a single one. */
uint32_t dataset_sources(const struct dataset *dataset, const uint64_t **ret_first);
/* Remarks of the scan for people ("class 5 (pears) is empty"): number of them; text(i). */
uint32_t dataset_remarks(const struct dataset *dataset);
const char *dataset_remark(const struct dataset *dataset, uint32_t i);
/* How the index came: "scanned", "read from PATH". */
const char *dataset_index_note(const struct dataset *dataset);

/* sample < dataset_samples(). Never fails, never blocks. */
void dataset_locate(const struct dataset *dataset, uint64_t sample, struct location *ret);

/* "path" or "path#record" of a sample. Returns the length, -ENOSPC where it does not fit. */
int dataset_name(const struct dataset *dataset, uint64_t sample, char *buffer, size_t size);

/* The same without the dataset's own path, as a place below a folder; "012345" where a sample has no name. */
int dataset_short_name(const struct dataset *dataset, uint64_t sample, char *buffer, size_t size);

/* Formats whose records carry checksums: whether the bytes that were read of extent `extent` are those that were
 * written. A sample's extents are given in order, the first with *state = 0. 0, or -EBADMSG and a sentence. Pure. */
bool dataset_has_check(const struct dataset *dataset);
int dataset_check(const struct dataset *dataset, uint64_t sample, uint32_t extent, const void *bytes, size_t length,
                  uint32_t *state, struct diag *diag);
/* Formats whose records hold their fields at places of their own (TFRecord): a sample then has one extent, and from its
 * bytes come the pieces that field.extent counts, and the values of SOURCE_VALUE fields, as if there were an extent for
 * each. Pieces point into `bytes`; MAX_EXTENTS of them, LOADERD_MAX_FIELDS values. 0; 1: nothing to split, the bytes are
 * the piece; -EBADMSG and a sentence. Pure. */
struct dataset_piece {
    const uint8_t *bytes;
    size_t length;
};
bool dataset_splits(const struct dataset *dataset);
int dataset_split(const struct dataset *dataset, uint64_t sample, const uint8_t *bytes, size_t length,
                  struct dataset_piece *ret, int64_t *ret_value, struct diag *diag);
/* SOURCE_BOXES: what the bytes of the field's piece say of a picture of width x height pixels: at most DATASET_MAX_BOXES
 * rectangles with their edges in pixels (0, 0: the picture's corner), and classes. 0, or -EBADMSG and a sentence. Pure. */
#define DATASET_MAX_BOXES 4096u
struct dataset_box {
    double side[4]; /* left, top, right, bottom */
    double class;
};
int dataset_boxes(const struct dataset_field *field, const void *bytes, size_t length, double width, double height,
                  struct dataset_box *ret, uint32_t *ret_count, struct diag *diag);
/* The form in which a pack keeps one: five little-endian 64-bit floats. Of relative ones width and height were 1. */
#define DATASET_BOX_BYTES 40u
void dataset_pack_box(const struct dataset_box *box, uint8_t ret[DATASET_BOX_BYTES]);
/* Looks at what belongs to no sample in shard number `shard` (dataset_shards()). 0, -EBADMSG; may read the file. */
int dataset_verify(const struct dataset *dataset, uint64_t shard, struct diag *diag);

/* SOURCE_SYNTHETIC: writes field number `field` of a sample, in full, at `out` (any alignment). The bytes are a pure
 * function of (sample, field's shape): valid values of the dtype (floating point: 1 <= x < 2). Never fails. */
void dataset_synthesize(const struct dataset *dataset, uint64_t sample, uint32_t field, void *out);

/* Hash over what identifies the samples (count, names relative to the root, labels, record layout), not the path. */
void dataset_fingerprint(const struct dataset *dataset, uint8_t ret[16]);

#endif
