/* SPDX-License-Identifier: MIT */
/*
 * The only things that the stages (order, dataset, read, decode, transform, ring) share. Stages never include each
 * other; worker.c chains them.
 */
#ifndef BASE_TYPES_H
#define BASE_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <loaderd/loaderd.h>

#define MAX_EXTENTS 4                /* pieces of storage that make one sample */
#define EXTENT_WHOLE_FILE UINT64_MAX /* extent length: as long as the file is when it is read */

/* What told two versions of a file apart: checked at open and after use. */
struct file_identity {
    uint64_t device, inode, size;
    int64_t mtime_ns;
};

/* A file that stays open while its dataset does: a shard, a raw data file. Owned by the dataset. */
struct source_file {
    char *path;                    /* for messages; absolute or as given */
    int fd;                        /* O_RDONLY|O_CLOEXEC */
    struct file_identity identity; /* at open */
};

/* Where bytes of a sample are. */
struct extent {
    const struct source_file *file; /* an open file, or NULL: the file `path` below `dirfd` */
    const char *path;               /* relative to dirfd; lives as long as the dataset */
    int dirfd;
    uint64_t offset;
    uint64_t length; /* EXTENT_WHOLE_FILE only with `path` */
};

/* Shape of one sample's field: no batch dimension. */
struct field_spec {
    char name[32];
    uint32_t dtype; /* enum loaderd_dtype */
    uint32_t ndim;  /* 0: a scalar */
    int64_t dims[LOADERD_MAX_DIMS - 1];
};

/* A rectangle of whole pixels. */
struct box {
    uint32_t x, y, width, height;
};

/* 8-bit pixels, rows top down, channels interleaved (1 gray or 3 RGB). Memory is the caller's. */
struct picture {
    uint8_t *pixels;
    size_t stride; /* bytes from row to row */
    uint32_t width, height, channels;
};

#endif
