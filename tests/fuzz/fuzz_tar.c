/* SPDX-License-Identifier: MIT */
/* Tar archives, walked as a scan does, and the names of their members: data of every member lies inside of the archive.
 * */
#include <stdlib.h>
#include <string.h>

#include "dataset/format.h"
#include "dataset/tar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct bytes {
    const uint8_t *data;
    size_t size;
};

static int read_bytes(void *arg, void *into, size_t length, uint64_t offset, struct diag *diag) {
    const struct bytes *bytes = arg;
    (void)diag;
    if (offset > bytes->size || length > bytes->size - offset)
        abort();
    memcpy(into, bytes->data + offset, length);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct bytes bytes = {data, size};
    struct tar tar = {.read = read_bytes, .arg = &bytes, .size = size};
    struct tar_member member;
    struct diag diag = DIAG_INIT;
    uint64_t before = 0;
    int rc;
    (void)tar_detect(data, size);
    while ((rc = tar_next(&tar, &member, &diag)) == 1) {
        char suffix[64];
        size_t key;
        if (member.header < before || member.offset != member.header + TAR_BLOCK || tar.at <= member.header)
            abort();
        bool data_inside = member.offset <= size && member.size <= size - member.offset;
        if (member.regular && !data_inside)
            abort();
        if (webdataset_split(member.name, &key, suffix, sizeof suffix) && member.name[key] != '.')
            abort();
        before = member.header;
    }
    if (rc < 0 && (rc != -EBADMSG || !*diag.text))
        abort();
    tar_deinit(&tar);
    return 0;
}
