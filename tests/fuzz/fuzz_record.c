/* SPDX-License-Identifier: MIT */
/* Layout lines of raw records: whatever is accepted has fields that lie inside of the record and do not overlap. */
#include <stdlib.h>
#include <string.h>

#include "dataset/format.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct layout layout;
    struct diag diag = DIAG_INIT;
    if (layout_parse((const char *)data, size, &layout, &diag) < 0) {
        if (diag.code != -EINVAL || !*diag.text)
            abort();
        return 0;
    }
    uint64_t end = 0;
    if (layout.fields == 0 || layout.fields > LOADERD_MAX_FIELDS)
        abort();
    for (uint32_t i = 0; i < layout.fields; i++) {
        const struct dataset_field *field = &layout.field[i];
        if (field->offset < end || field->bytes == 0 || field->spec.ndim > LOADERD_MAX_DIMS - 1 ||
            strnlen(field->spec.name, sizeof field->spec.name) == sizeof field->spec.name)
            abort();
        end = field->offset + field->bytes;
    }
    if (end > layout.record_bytes)
        abort();
    return 0;
}
