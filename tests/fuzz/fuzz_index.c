/* SPDX-License-Identifier: MIT */
/* Index files, as they are and with both checksums put right: whatever is accepted points inside of itself. */
#include <stdlib.h>
#include <string.h>

#include "dataset/format.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Does the NUL-ended text end among the `length` bytes at `from`? */
static void check_text(const char *from, uint64_t length, const char *text) {
    if (text < from || text >= from + length || !memchr(text, 0, (size_t)(from + length - text)))
        abort();
}

static void check(const void *bytes, size_t size) {
    struct index index;
    struct diag diag = DIAG_INIT;
    if (index_parse(bytes, size, &index, &diag) < 0) {
        if (diag.code != -EINVAL || !*diag.text)
            abort();
        return;
    }
    const struct index_header *header = &index.header;
    if (index.names + header->name_bytes != (const char *)bytes + size)
        abort();
    for (uint64_t i = 0; i < header->shards; i++)
        check_text(index.text, header->text_bytes, index.text + index.shard[i].name);
    if (header->words && (const char *)(index.word + header->samples * header->words) > (const char *)bytes + size)
        abort();
    for (uint64_t i = 0; i < header->samples && !header->words; i++) {
        check_text(index.names, header->name_bytes, index_sample_name(&index, i));
        if (header->flags & INDEX_MASKS)
            check_text(index.names, header->name_bytes, index_second_name(&index, i));
        if (header->classes && (index_label(&index, i) < 0 || (uint64_t)index_label(&index, i) >= header->classes))
            abort();
    }
    for (uint64_t i = 0; i < header->classes; i++)
        check_text(index.text, header->text_bytes, index.text + index.class[i].name);
    for (uint64_t i = 0; i < header->directories; i++)
        check_text(index.text, header->text_bytes, index.text + index.directory[i].name);
    for (uint64_t i = 0; i < header->remarks; i++)
        check_text(index.text, header->text_bytes, index.text + index.remark[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    void *copy = malloc(size ? size : 1); /* aligned, as a mapping is */
    if (!copy)
        return 0;
    if (size)
        memcpy(copy, data, size);
    check(copy, size);
    if (index_seal(copy, size) == 0)
        check(copy, size);
    free(copy);
    return 0;
}
