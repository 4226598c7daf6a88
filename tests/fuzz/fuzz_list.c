/* SPDX-License-Identifier: MIT */
/* List files: any bytes, in pieces of any size, give the same verdict and samples; all names end inside of the blob. */
#include <stdlib.h>
#include <string.h>

#include "dataset/format.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int parse(const uint8_t *data, size_t size, size_t piece, struct index_builder *builder) {
    struct list_parser parser = {.origin = "list", .builder = builder, .labels = -1};
    struct diag diag = DIAG_INIT;
    int rc = 0;
    for (size_t at = 0; rc == 0 && at < size; at += piece)
        rc = list_feed(&parser, (const char *)data + at, MIN(piece, size - at), &diag);
    if (rc == 0)
        rc = list_end(&parser, &diag);
    buffer_deinit(&parser.rest);
    if (rc < 0 && (diag.code != rc || !*diag.text))
        abort();
    if (rc == 0 && parser.samples != index_builder_samples(builder))
        abort();
    return rc;
}

static void release(struct index_builder *builder) {
    buffer_deinit(&builder->base);
    buffer_deinit(&builder->offset);
    buffer_deinit(&builder->label);
    buffer_deinit(&builder->names);
    buffer_deinit(&builder->remark);
    buffer_deinit(&builder->text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct index_builder whole = {0}, pieces = {0};
    int rc = parse(data, size, size ? size : 1, &whole);
    if (parse(data, size, size ? 1 + data[0] % 16 : 1, &pieces) != rc)
        abort();
    if (whole.names.length != pieces.names.length ||
        (whole.names.length && memcmp(whole.names.data, pieces.names.data, whole.names.length) != 0))
        abort();
    if (whole.names.length && whole.names.data[whole.names.length - 1] != '\0')
        abort();
    (void)list_detect((const char *)data, size);
    release(&whole);
    release(&pieces);
    return 0;
}
