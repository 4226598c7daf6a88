/* SPDX-License-Identifier: MIT */
/* YOLO label files, as the shim for darknet reads them: any bytes; boxes that come out are numbers, and those that a row
 * shows lie inside of it. */
#include <stdint.h>

#include "../../client/shims/darknet/darknet.c"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

void __real_free_data(data d) {
    (void)d;
    abort(); /* nothing is freed here */
}

static void check_moved(const struct box_of_file *box, uint32_t seed) {
    struct loaderd_row row = {.flip = seed % 4, .source_width = 1 + seed % 997, .source_height = 1 + seed / 7 % 499};
    float moved[4];
    row.crop_width = (float)(1 + seed / 3 % row.source_width);
    row.crop_height = (float)(1 + seed / 5 % row.source_height);
    row.crop_x = (float)row.source_width - row.crop_width;
    row.crop_y = ((float)row.source_height - row.crop_height) / 2;
    if (!move_box(box, &row, 64, 48, moved))
        return;
    for (int i = 0; i < 4; i++)
        if (!(moved[i] >= 0 && moved[i] <= 1))
            abort();
    if (moved[2] < 1.F / 64 || moved[3] < 1.F / 48)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    struct boxes boxes;
    char path[PATH_MAX], label[PATH_MAX];
    int line = parse_boxes((const char *)bytes, size, &boxes);
    for (int i = 0; line == 0 && i < boxes.count; i++) {
        const struct box_of_file *b = &boxes.box[i];
        if (!isfinite(b->x) || !isfinite(b->y) || !isfinite(b->w) || !isfinite(b->h) || b->class < 0)
            abort();
        check_moved(b, (uint32_t)size * 2654435761u + (uint32_t)i);
    }
    free(boxes.box);
    size_t length = size < sizeof path - 1 ? size : sizeof path - 1;
    memcpy(path, bytes, length);
    path[length] = '\0';
    if (label_path(path, label) && strlen(label) > strlen(path) + 8)
        abort();
    return 0;
}
