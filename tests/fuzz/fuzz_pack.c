/* SPDX-License-Identifier: MIT */
/* What stands in front of a pack's data, as it is and with its checksums put right: every record that is accepted lies
 * inside the data, every class name inside the bytes. */
#include <stdlib.h>
#include <string.h>

#include "dataset/packfile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const uint8_t *bytes, size_t size, uint64_t file_bytes) {
    struct pack_view view;
    struct diag diag = DIAG_INIT;
    if (pack_parse(bytes, size, file_bytes, &view, &diag) < 0) {
        if (diag.code != -22 || !*diag.text)
            abort();
        return;
    }
    const struct pack_header *h = &view.header;
    for (uint64_t i = 0; i < h->records; i++) {
        struct pack_record record;
        pack_record(&view, i, &record);
        if (record.offset < h->data_offset || record.offset + record.length > h->data_offset + h->data_bytes ||
            record.length > INT64_MAX)
            abort();
        for (uint32_t f = 0; f < h->fields; f++) {
            struct pack_picture picture;
            if (view.field[f].storage == PACK_VALUE)
                pack_value(&view, i, f);
            else if (view.field[f].storage == PACK_PICTURE)
                pack_picture(&view, i, f, &picture);
            if (pack_is_ragged(&view.field[f]) && pack_length(&view, i, f) > record.length)
                abort();
        }
    }
    const char *name = view.classes;
    for (uint32_t i = 0; i < h->classes; i++)
        name += strlen(name) + 1;
    if (name + strlen(view.origin) >= (const char *)bytes + size)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct pack_header h;
    uint8_t *copy = calloc(1, size ? size : 1);
    if (!copy)
        return 0;
    if (size)
        memcpy(copy, data, size);
    check(copy, size, size);
    if (size >= PACK_HEADER_BYTES) {
        memcpy(&h, copy, sizeof h);
        if (h.meta_offset <= h.index_offset && h.index_offset <= h.data_offset && h.data_offset <= size) {
            pack_seal(copy);
            check(copy, size, size);
            check(copy, size, UINT64_MAX);
        }
    }
    free(copy);
    return 0;
}
