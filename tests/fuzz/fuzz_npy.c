/* SPDX-License-Identifier: MIT */
/* Headers of .npy files: whatever is accepted lies inside of the bytes, and its sizes fit together. */
#include <stdlib.h>
#include <string.h>

#include "dataset/format.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct npy_header header;
    struct diag diag = DIAG_INIT;
    if (npy_parse(data, size, &header, &diag) < 0) {
        if (diag.code != -EINVAL || !*diag.text)
            abort();
        return 0;
    }
    if (header.data_offset > size || header.ndim > NPY_MAX_DIMS || header.kind == 'O' ||
        (header.dtype && header.item_bytes != dataset_dtype_bytes(header.dtype)))
        abort();
    uint64_t count = 1;
    for (uint32_t i = 0; i < header.ndim; i++)
        count *= header.shape[i];
    if (count != header.count || header.count * header.item_bytes != header.data_bytes)
        abort();
    struct npy_labels labels = {.data = data + header.data_offset, .header = header};
    if (header.dtype && header.count && header.data_bytes <= size - header.data_offset)
        (void)npy_labels_get(&labels, header.count - 1);
    return 0;
}
