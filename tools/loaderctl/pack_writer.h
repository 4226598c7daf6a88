/* SPDX-License-Identifier: MIT */
/*
 * Writes one pack file (loaderd-pack(5)): records in order, index and names around them, under a name of its own until
 * it is whole; then it gets its name by rename(2). A writer that was killed goes on where its last checkpoint says.
 *
 *   DEST.partial   the file on its way: data, and the index as far as the checkpoint
 *   DEST.job       the checkpoint: which samples are in it, and where its data ends
 *
 * The bytes of a finished file are a function of what was added: not of threads, time, interruptions. One thread.
 */
#ifndef PACK_WRITER_H
#define PACK_WRITER_H

#include "base/diag.h"
#include "dataset/packfile.h"

struct pack_spec {
    struct pack_field field[LOADERD_MAX_FIELDS];
    uint32_t fields;
    uint32_t classes;
    const char *const *class_name;
    const char *origin; /* "key=value" lines */
    uint8_t set[16];
    uint32_t shard, shards;
    uint64_t source_first, source_samples;
    uint32_t alignment;
};

/* One record to add: `bytes` are the FIXED fields in order, then in order those of any length. */
struct pack_item {
    const uint8_t *bytes;
    uint64_t length;
    int64_t value[LOADERD_MAX_FIELDS];
    struct pack_picture picture[LOADERD_MAX_FIELDS]; /* of BYTES and BOXES the length alone */
};

struct pack_writer;

/* Begins, or goes on with what a killed writer of the same spec left. Each of spec's pointers must outlive the writer. */
int pack_writer_new(const char *path, const struct pack_spec *spec, struct pack_writer **ret, struct diag *diag);
/* Samples of the source that are dealt with, added or skipped: where to go on. */
uint64_t pack_writer_done(const struct pack_writer *writer);
struct pack_counts *pack_writer_counts(struct pack_writer *writer); /* to be counted up by the caller */
uint64_t pack_writer_bytes(const struct pack_writer *writer);
/* The next sample, as a record or left out. Now and then a checkpoint is written. */
int pack_writer_add(struct pack_writer *writer, const struct pack_item *item, struct diag *diag);
int pack_writer_skip(struct pack_writer *writer, struct diag *diag);
int pack_writer_checkpoint(struct pack_writer *writer, struct diag *diag);
/* All samples are dealt with: the file gets its name. `name` gives the name of sample source_first + i, as snprintf();
 * NULL: no names. */
int pack_writer_finish(struct pack_writer *writer, int (*name)(void *arg, uint64_t i, char *buffer, size_t size),
                       void *arg, struct diag *diag);
void pack_writer_free(struct pack_writer *writer); /* leaves an unfinished file for later */

#endif
