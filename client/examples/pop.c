/* SPDX-License-Identifier: MIT */
/* Pops every batch of one epoch:  pop FOLDER  (one sub-folder a class), or the name of a running service's pipeline. */
#include <inttypes.h>
#include <loaderd/loaderd.h>
#include <stdio.h>

int main(int argc, char **argv) {
    const char *keys[] = {"image=224", "augment=random-resized-crop,flip", "shuffle=full", "batch=64", NULL};
    struct loaderd_options options = LOADERD_OPTIONS_INIT;
    options.keys = keys;
    options.epochs = 1;

    struct loaderd *loader;
    char error[512];
    if (loaderd_open(&loader, argc > 1 ? argv[1] : "./train", &options, error, sizeof error) < 0) {
        fprintf(stderr, "%s\n", error);
        return 1;
    }
    struct loaderd_batch batch;
    int got;
    while ((got = loaderd_next(loader, &batch)) == 1) {
        const uint8_t *image = batch.fields[0].data; /* 64 x 224 x 224 x 3, in shared memory */
        const int32_t *label = batch.fields[1].data; /* 64 */
        printf("step %" PRIu64 ": %u images, the first has label %d and begins with %u %u %u\n", batch.step,
               batch.valid, label[0], image[0], image[1], image[2]);
        loaderd_release(loader, &batch);
    }
    if (got < 0)
        fprintf(stderr, "%s\n", loaderd_error(loader));
    loaderd_close(loader);
    return got < 0;
}
