/* SPDX-License-Identifier: MIT */
/* Headers of token files, and the sequences of Megatron's indices: nothing is read past the end, sums do not wrap. */
#include <stdlib.h>

#include "dataset/format.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int rc, const struct diag *diag) {
    if (rc < 0 && ((rc != -EINVAL && rc != -ENOENT) || diag->code != rc || !*diag->text))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct tokens_header header;
    struct diag diag = DIAG_INIT;
    int rc = tokens_parse_llmc(data, size, &header, &diag);
    check(rc, &diag);
    if (rc == 0 && (header.offset > size || !dataset_dtype_bytes(header.dtype)))
        abort();
    rc = tokens_parse_megatron(data, size, size, &header, &diag);
    check(rc, &diag);
    if (rc < 0)
        return 0;
    uint64_t bytes = 0;
    uint32_t width = dataset_dtype_bytes(header.dtype);
    size_t count = (size_t)header.sequences;
    if (!width || 34 + count * 12 > size)
        abort();
    check(tokens_check_sequences(data + 34, data + 34 + 4 * count, count, width, &bytes, &diag), &diag);
    return 0;
}
