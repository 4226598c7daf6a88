/* SPDX-License-Identifier: MIT */
/*
 * Tar archives, member by member, as POSIX.1-2001 (ustar, pax), GNU tar and the seventh edition wrote them: GNU long
 * names (L), pax headers (x, g) that override path and size, sizes in octal and in base 256. Members that are sparse
 * are named and refused: their bytes do not lie in one piece.
 *
 *   | header 512 B | data, filled up to 512 B | header | ... | two or more blocks of zeros
 *
 * It sees bytes through a function (tar.read) and has no other state. Lengths are compared with what is left before any
 * use. Any thread, on its own struct tar.
 */
#include <stdio.h>
#include <string.h>

#include "dataset/tar.h"

#include "base/util.h"

#define EXTENSION_BYTES (UINT64_C(1) << 20) /* of a long name or a pax header: more is damage */

/* ---- one header -------------------------------------------------------------------------------------------------- */

/* "0000644 \0" or, with the top bit of the first byte, big-endian binary. False: neither, negative, or too large. */
static bool parse_number(const uint8_t *p, size_t size, uint64_t *ret) {
    uint64_t value = 0;
    if (p[0] & 0x80) {
        if (p[0] != 0x80) /* 0xff: negative */
            return false;
        for (size_t i = 1; i < size; i++) {
            if (value >> 55)
                return false;
            value = value << 8 | p[i];
        }
        *ret = value;
        return true;
    }
    size_t i = 0;
    while (i < size && p[i] == ' ')
        i++;
    for (; i < size && p[i] >= '0' && p[i] <= '7'; i++) {
        if (value >> 60)
            return false;
        value = value << 3 | (uint64_t)(p[i] - '0');
    }
    if (i < size && p[i] != ' ' && p[i] != '\0')
        return false;
    *ret = value;
    return true;
}

/* The sum of all bytes, the field itself taken as blanks; some old programs summed signed characters. */
static bool checksum_fits(const uint8_t *block) {
    uint64_t wanted;
    uint32_t sum = 8 * ' ', high = 0; /* high: bytes that are negative as signed ones */
    for (size_t i = 0; i < TAR_BLOCK; i++) {
        sum += block[i];
        high += block[i] >> 7;
    }
    for (size_t i = 148; i < 156; i++) {
        sum -= block[i];
        high -= block[i] >> 7;
    }
    return parse_number(block + 148, 8, &wanted) &&
           (wanted == sum || (int64_t)wanted == (int64_t)sum - 256 * (int64_t)high);
}

static bool is_zero(const uint8_t *block) {
    for (size_t i = 0; i < TAR_BLOCK; i++)
        if (block[i])
            return false;
    return true;
}

bool tar_detect(const uint8_t *head, size_t length) {
    return length >= TAR_BLOCK && head[0] && checksum_fits(head);
}

static void copy_name(const uint8_t *block, char *name) {
    size_t length = 0;
    if (memcmp(block + 257, "ustar\0", 6) == 0 && block[345]) {
        length = strnlen((const char *)block + 345, 155);
        memcpy(name, block + 345, length);
        name[length++] = '/';
    }
    size_t more = strnlen((const char *)block, 100);
    memcpy(name + length, block, more);
    name[length + more] = '\0';
}

/* ---- pax --------------------------------------------------------------------------------------------------------- */

static bool key_is(const char *key, size_t length, const char *text) {
    return strlen(text) == length && memcmp(key, text, length) == 0;
}

static bool take_decimal(const char *p, const char *end, uint64_t *ret) {
    uint64_t value = 0;
    if (p == end)
        return false;
    for (; p < end; p++)
        if (*p < '0' || *p > '9' || !mul_u64(value, 10, &value) || !add_u64(value, (uint64_t)(*p - '0'), &value))
            return false;
    *ret = value;
    return true;
}

static bool take_record(const char *key, size_t key_length, const char *value, const char *end, struct tar_pax *pax) {
    size_t length = (size_t)(end - value);
    if (key_is(key, key_length, "path")) {
        if (length >= sizeof pax->path || memchr(value, '\0', length))
            return false;
        memcpy(pax->path, value, length);
        pax->path[length] = '\0';
        pax->has_path = length > 0; /* an empty value takes an earlier one back */
    } else if (key_is(key, key_length, "size")) {
        pax->has_size = length > 0;
        if (length && !take_decimal(value, end, &pax->size))
            return false;
    } else if (key_length > 11 && memcmp(key, "GNU.sparse.", 11) == 0) {
        pax->sparse = true;
    }
    return true;
}

int tar_parse_pax(const char *text, size_t length, struct tar_pax *pax) {
    const char *p = text, *end = text + length;
    while (p < end && *p) {
        const char *blank = memchr(p, ' ', (size_t)(end - p));
        uint64_t size;
        if (!blank || !take_decimal(p, blank, &size) || size < 5 || size > (uint64_t)(end - p))
            return -EINVAL;
        const char *stop = p + size - 1; /* the newline */
        if (*stop != '\n' || stop <= blank)
            return -EINVAL;
        const char *key = blank + 1, *equals = memchr(key, '=', (size_t)(stop - key));
        if (!equals || !take_record(key, (size_t)(equals - key), equals + 1, stop, pax))
            return -EINVAL;
        p = stop + 1;
    }
    return 0;
}

/* ---- walking ----------------------------------------------------------------------------------------------------- */

static int damaged(const struct tar *tar, const char *what, struct diag *diag) {
    return diag_set(diag, -EBADMSG, "%s at byte %llu", what, (unsigned long long)tar->at);
}

/* Reads the data of an L, x or g member into tar->extension, a NUL behind it. */
static int read_extension(struct tar *tar, uint64_t size, struct diag *diag) {
    if (size > EXTENSION_BYTES)
        return damaged(tar, "a name or pax header of more than 1 MiB", diag);
    char *text = realloc(tar->extension, (size_t)size + 1);
    if (!text)
        return diag_set(diag, -ENOMEM, "out of memory for a tar header");
    tar->extension = text;
    text[size] = '\0';
    return tar->read(tar->arg, text, (size_t)size, tar->at + TAR_BLOCK, diag);
}

static int take_long_name(struct tar *tar, uint64_t size, struct diag *diag) {
    int rc = read_extension(tar, size, diag);
    if (rc < 0)
        return rc;
    size_t length = strnlen(tar->extension, (size_t)size);
    if (length >= sizeof tar->local.path)
        return damaged(tar, "a name longer than 4095 bytes", diag);
    memcpy(tar->local.path, tar->extension, length + 1);
    tar->local.has_path = length > 0;
    return 0;
}

static int take_pax(struct tar *tar, uint64_t size, struct tar_pax *pax, struct diag *diag) {
    int rc = read_extension(tar, size, diag);
    if (rc < 0)
        return rc;
    return tar_parse_pax(tar->extension, (size_t)size, pax) < 0 ? damaged(tar, "a damaged pax header", diag) : 0;
}

static void merge(struct tar *tar, struct tar_member *member) {
    const struct tar_pax *local = &tar->local, *global = &tar->global;
    if (local->has_path || global->has_path)
        snprintf(member->name, sizeof member->name, "%s", local->has_path ? local->path : global->path);
    if (local->has_size || global->has_size)
        member->size = local->has_size ? local->size : global->size;
    member->sparse = member->sparse || local->sparse || global->sparse;
    tar->local.has_path = tar->local.has_size = tar->local.sparse = false; /* the path's 4 KiB need no clearing */
}

/* Does a member of this type have data behind its header? Links and devices have none, whatever their size says. */
static bool has_data(char type) {
    return type < '1' || type > '6';
}

static int next_at(struct tar *tar, uint64_t size, struct diag *diag) {
    uint64_t blocks;
    if (!add_u64(size, TAR_BLOCK - 1, &blocks) ||
        !add_u64(tar->at, TAR_BLOCK + blocks / TAR_BLOCK * TAR_BLOCK, &tar->at))
        return damaged(tar, "a size that does not fit 64 bits", diag);
    return 0;
}

/* One header at tar->at: 1 a member, 2 something that belongs to the next one, 0 the end. */
static int take_header(struct tar *tar, struct tar_member *member, struct diag *diag) {
    uint8_t block[TAR_BLOCK];
    uint64_t left = tar->size > tar->at ? tar->size - tar->at : 0; /* what fills up the last block may be missing */
    if (left < TAR_BLOCK) {
        tar->unfinished = left;
        return 0;
    }
    int rc = tar->read(tar->arg, block, sizeof block, tar->at, diag);
    if (rc < 0)
        return rc;
    if (is_zero(block)) {
        tar->ended = true;
        return 0;
    }
    if (!checksum_fits(block))
        return damaged(tar, "no tar header (its checksum is wrong)", diag);
    member->type = (char)block[156];
    member->sparse = false;
    member->header = tar->at;
    member->offset = tar->at + TAR_BLOCK;
    if (!parse_number(block + 124, 12, &member->size))
        return damaged(tar, "a tar header whose size is no number", diag);
    copy_name(block, member->name);
    bool extension =
        member->type == 'L' || member->type == 'K' || member->type == 'x' || member->type == 'g' || member->type == 'X';
    if (!extension) {
        member->sparse = member->type == 'S';
        merge(tar, member);
        return 1;
    }
    if (member->size > tar->size - tar->at - TAR_BLOCK) {
        tar->unfinished = tar->size - tar->at;
        return 0;
    }
    rc = member->type == 'L'                          ? take_long_name(tar, member->size, diag)
         : member->type == 'x' || member->type == 'X' ? take_pax(tar, member->size, &tar->local, diag)
         : member->type == 'g'                        ? take_pax(tar, member->size, &tar->global, diag)
                                                      : 0;
    return rc < 0 ? rc : 2;
}

int tar_next(struct tar *tar, struct tar_member *ret, struct diag *diag) {
    for (;;) {
        int rc = take_header(tar, ret, diag);
        if (rc <= 0)
            return rc;
        if (rc == 1 && has_data(ret->type) && ret->size > tar->size - ret->offset) {
            tar->unfinished = tar->size - ret->header;
            snprintf(tar->lost, sizeof tar->lost, "%s", ret->name);
            return 0;
        }
        uint64_t size = has_data(ret->type) ? ret->size : 0;
        rc = next_at(tar, size, diag) < 0 ? -EBADMSG : rc;
        if (rc < 0)
            return rc;
        size_t length = strlen(ret->name);
        bool folder = length && ret->name[length - 1] == '/';
        ret->regular = (ret->type == '0' || ret->type == '\0' || ret->type == '7' || ret->type == 'S') && !folder;
        if (rc == 1)
            return 1;
    }
}

void tar_deinit(struct tar *tar) {
    free(tar->extension);
    tar->extension = NULL;
}
