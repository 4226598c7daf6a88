/* SPDX-License-Identifier: MIT */
/* Private to src/dataset/: MosaicML's index.json and the records of its shards. Pure functions; see mds_index.c. */
#ifndef DATASET_MDS_H
#define DATASET_MDS_H

#include "dataset/dataset.h"

#define MDS_MAX_COLUMNS 64u

enum mds_kind {
    MDS_OTHER,   /* not read: lists ... */
    MDS_PICKLE,  /* never read: pkl, and pil, which holds the pixels of a Pillow mode */
    MDS_STRING,  /* str, json, and numbers in text: read as bytes */
    MDS_PICTURE, /* jpeg, png */
    MDS_BYTES,
    MDS_NUMBER, /* of dtype */
    MDS_TEXT,   /* a decimal integer (str_int) */
    MDS_ARRAY   /* ndarray */
};

struct mds_column {
    char name[64], encoding[64];
    enum mds_kind kind;
    uint32_t dtype; /* NUMBER, ARRAY; 0: of each array its own */
    uint32_t ndim;  /* ARRAY; 0: of each array its own shape */
    int64_t dims[LOADERD_MAX_DIMS - 1];
    uint32_t size; /* of the column in every record; 0: said there */
};

struct mds_shard {
    char *raw, *zip; /* names below the folder; zip NULL: not compressed */
    char compression[16];
    uint64_t raw_bytes, samples;
};

struct mds_index {
    uint32_t columns;
    struct mds_column column[MDS_MAX_COLUMNS];
    size_t shards;
    struct mds_shard *shard;
};

/* Reads index.json. -EINVAL and a sentence; -ENOTSUP where loaderd was built without JSON. */
int mds_parse_index(const char *text, size_t length, struct mds_index *ret, struct diag *diag);
void mds_index_deinit(struct mds_index *index);

/* Divides a record into its columns. 0, or -EBADMSG and a sentence. */
int mds_split_record(const struct mds_index *index, const uint8_t *bytes, size_t length, struct dataset_piece *ret,
                     struct diag *diag);
/* dtype and shape of an array, and the bytes of its header. 0, or -EBADMSG and a sentence. */
int mds_parse_array(const struct mds_column *column, const uint8_t *bytes, size_t length, struct field_spec *ret,
                    size_t *ret_header, struct diag *diag);
/* The integer that a column of integers, or of text, holds. 0, or -EBADMSG and a sentence. */
int mds_parse_integer(const struct mds_column *column, const uint8_t *bytes, size_t length, int64_t *ret,
                      struct diag *diag);

#endif
