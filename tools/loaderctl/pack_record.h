/* SPDX-License-Identifier: MIT */
/*
 * One sample of any dataset becomes one record of a pack: its extents are read, every picture in it is decoded whole and
 * then kept, cleaned, rewritten, resized or stored as coefficients. A maker belongs to one thread; the bytes of a record
 * are a function of the sample's and of the recipe.
 */
#ifndef PACK_RECORD_H
#define PACK_RECORD_H

#include "config.h"
#include "dataset/dataset.h"
#include "pack_writer.h"

struct pack_recipe {
    const struct dataset *dataset;
    const struct daemon_config *limits;
    uint32_t fields;
    uint32_t from[LOADERD_MAX_FIELDS]; /* the dataset's field of each field of the pack */
    struct pack_field field[LOADERD_MAX_FIELDS];
    uint32_t resize;   /* short side of field "image", 0: as it is */
    int quality;       /* of what is resized */
    bool metadata;     /* JPEG: keep all segments */
    bool coefficients; /* JPEG: stored as coefficients where that is possible */
    bool keep_headers; /* JPEG: every byte of the file can be had again */
    bool keep_bad;     /* a picture that does not decode stays as it is */
};

/* Takes the fields named in `names` ("image,label"; NULL: all) from the dataset. -EINVAL and a sentence. */
int pack_recipe_fields(struct pack_recipe *recipe, const char *names, struct diag *diag);

struct pack_made {
    struct pack_item item; /* item.bytes: of `bytes` */
    uint8_t *bytes;
    uint64_t room;
    struct pack_counts counts;
    char kept[160];      /* why a JPEG could not become coefficients; "" */
    char bad[DIAG_TEXT]; /* what was wrong with what is kept all the same; "" */
};

struct pack_maker;
int pack_maker_new(const struct pack_recipe *recipe, struct pack_maker **ret, struct diag *diag);
void pack_maker_free(struct pack_maker *maker);
/* 0; -EBADMSG: a bad sample, and what is wrong with it; another negative errno: the storage failed, or memory. */
int pack_make(struct pack_maker *maker, uint64_t sample, struct pack_made *made, struct diag *diag);

#endif
