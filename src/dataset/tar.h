/* SPDX-License-Identifier: MIT */
/* Private to src/dataset/: tar archives, member by member. See tar.c. */
#ifndef DATASET_TAR_H
#define DATASET_TAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/diag.h"

#define TAR_BLOCK 512u
#define TAR_NAME 4096u

/* What pax headers say of the members behind them. */
struct tar_pax {
    bool has_path, has_size, sparse;
    uint64_t size;
    char path[TAR_NAME];
};

struct tar_member {
    char name[TAR_NAME];
    char type;
    bool regular, sparse;
    uint64_t header, offset, size; /* bytes of the archive: where its header and its data begin */
};

/* A walk: the caller sets read, arg and size, and the rest to zero. */
struct tar {
    /* Exactly `length` bytes at `offset`, which lie inside of `size`: 0 or a negative errno and a sentence. */
    int (*read)(void *arg, void *into, size_t length, uint64_t offset, struct diag *diag);
    void *arg;
    uint64_t size, at;
    struct tar_pax local, global;
    char *extension;
    /* at the end: */
    bool ended;          /* by blocks of zeros, as it should */
    uint64_t unfinished; /* bytes of a last member that is not whole; its name, as far as known */
    char lost[TAR_NAME];
};

/* The next member: 1, its data inside of the archive; 0: the end, see tar->ended and tar->unfinished; -EBADMSG and a
 * sentence: what follows is no tar; or what read() returned. */
int tar_next(struct tar *tar, struct tar_member *ret, struct diag *diag);
void tar_deinit(struct tar *tar);

/* Records of a pax header into *pax. 0 or -EINVAL. Pure. */
int tar_parse_pax(const char *text, size_t length, struct tar_pax *pax);
/* Is this the first header of an archive? Pure. */
bool tar_detect(const uint8_t *head, size_t length);

#endif
