/* SPDX-License-Identifier: MIT */
/* The key fields: whatever is accepted has names, and sources inside of the text, each of which is found again. */
#include <stdlib.h>
#include <string.h>

#include "dataset/format.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct wishes wishes;
    struct diag diag = DIAG_INIT;
    const char *text = (const char *)data;
    if (wishes_parse(text, size, &wishes, &diag) < 0) {
        if (diag.code != -EINVAL || !*diag.text)
            abort();
        return 0;
    }
    if (wishes.count == 0 || wishes.count > LOADERD_MAX_FIELDS)
        abort();
    for (uint32_t i = 0; i < wishes.count; i++) {
        const struct wish *wish = &wishes.wish[i];
        if (wish->source < text || wish->source + wish->source_length >= text + size || !wish->name[0] ||
            strnlen(wish->name, sizeof wish->name) == sizeof wish->name)
            abort();
        const char *stop = memchr(wish->source, ';', wish->source_length);
        size_t first = stop ? (size_t)(stop - wish->source) : wish->source_length;
        if (wish_rank(wish, wish->source, first) != 0)
            abort();
    }
    return 0;
}
