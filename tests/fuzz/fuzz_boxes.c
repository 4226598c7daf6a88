/* SPDX-License-Identifier: MIT */
/* Rectangles as text, JSON, tf.train.Example and a pack's: numbers are finite, edges in order, classes whole; what a
 * pack keeps of them gives them again. The first byte chooses how they are written. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dataset/format.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct dataset_box box[DATASET_MAX_BOXES], again[DATASET_MAX_BOXES];
static uint8_t packed[DATASET_MAX_BOXES * DATASET_BOX_BYTES];

static void check(uint32_t count) {
    if (count > DATASET_MAX_BOXES)
        abort();
    for (uint32_t i = 0; i < count; i++) {
        const double *s = box[i].side;
        if (s[2] < s[0] || s[3] < s[1] || !isfinite(s[0]) || !isfinite(s[1]) || !isfinite(s[2]) || !isfinite(s[3]) ||
            !(box[i].class >= 0))
            abort();
    }
}

static void pack(uint32_t count, bool relative) {
    const struct box_source source = {.kind = BOXES_PACKED, .form = BOX_XYXY, .relative = relative};
    uint32_t found = 0;
    for (uint32_t i = 0; i < count; i++)
        dataset_pack_box(&box[i], packed + (size_t)i * DATASET_BOX_BYTES);
    struct diag diag = DIAG_INIT;
    int rc = boxes_parse(&source, packed, count * DATASET_BOX_BYTES, 1, 1, again, &found, &diag);
    if (rc != 0 || found != count || (count && memcmp(box, again, count * sizeof *box) != 0))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0)
        return 0;
    static const char *const forms[] = {"xyxy", "xywh", "cxcywh", "relative-xyxy", "relative-xywh", "relative-cxcywh"};
    const struct dataset_options options = {.box_form = data[0] / 8 < 6 ? forms[data[0] / 8] : "auto",
                                            .box_json = data[0] & 4 ? "a.b,c" : NULL};
    struct box_source source;
    struct diag diag = DIAG_INIT;
    uint32_t count = 0;
    if (boxes_source_init(&source, (enum box_kind)(data[0] & 3), &options, &diag) < 0)
        return 0;
    if (source.kind == BOXES_EXAMPLE)
        strcpy(source.path, "b");
    uint8_t *copy = malloc(size > 1 ? size - 1 : 1); /* so that a read behind the end is seen */
    if (!copy)
        return 0;
    memcpy(copy, data + 1, size - 1);
    int rc = boxes_parse(&source, copy, size - 1, 1, 1, box, &count, &diag);
    if (rc == 0) {
        check(count);
        pack(count, source.relative);
    } else if (rc != -EBADMSG || diag.code != rc || !*diag.text) {
        abort();
    }
    free(copy);
    return 0;
}
