/* SPDX-License-Identifier: MIT */
/* Rows of fields that are filled in part: bytes of any length, rectangles. Reads a leased batch, keeps no state. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <loaderd/loaderd.h>

static const struct loaderd_field *find_field(const struct loaderd_batch *batch, const char *name, const char *suffix) {
    char wanted[64];
    int n = snprintf(wanted, sizeof wanted, "%s%s", name, suffix);
    for (uint32_t i = 0; n > 0 && (size_t)n < sizeof wanted && i < batch->nfields; i++)
        if (strcmp(batch->fields[i].name, wanted) == 0)
            return &batch->fields[i];
    return NULL;
}

int64_t loaderd_row_items(const struct loaderd_batch *batch, const char *name, uint32_t row, const void **ret) {
    const struct loaderd_field *field = find_field(batch, name, ""), *counts = find_field(batch, name, "-length");
    if (!counts)
        counts = find_field(batch, name, "-count");
    if (!field || !counts || field->ndim < 2 || counts->dtype != LOADERD_I32 || counts->ndim != 1)
        return -ENOENT;
    if (row >= field->dims[0] || row >= counts->dims[0])
        return -ERANGE;
    int32_t count = ((const int32_t *)counts->data)[row];
    if (count < 0 || count > field->dims[1])
        return -EBADMSG;
    *ret = (const char *)field->data + field->bytes / (uint64_t)field->dims[0] * row;
    return count;
}
