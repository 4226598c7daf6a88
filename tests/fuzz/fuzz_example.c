/* SPDX-License-Identifier: MIT */
/* tf.train.Example messages: names and values of every feature lie inside of the bytes. */
#include <stdlib.h>

#include "dataset/format.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct bounds {
    const uint8_t *begin, *end;
};

static void inside(const struct bounds *b, const void *p, size_t length) {
    const uint8_t *at = p;
    if (length && (at < b->begin || at > b->end || length > (size_t)(b->end - at)))
        abort();
}

static bool each(void *arg, const struct example_feature *f) {
    const struct bounds *b = arg;
    inside(b, f->name, f->name_length);
    if (!f->scattered)
        inside(b, f->bytes, f->length);
    if (f->kind > EXAMPLE_INTEGERS || (f->kind == EXAMPLE_FLOATS && f->count * 4 != f->length))
        abort();
    return f->name_length != 7;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct bounds bounds = {data, data + size};
    int rc = example_parse(data, size, each, &bounds);
    if (rc != 0 && rc != -EINVAL)
        abort();
    uint64_t length;
    if (size >= 12)
        (void)tfrecord_parse_length(data, &length);
    return 0;
}
