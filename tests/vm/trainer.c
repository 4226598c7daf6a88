/* SPDX-License-Identifier: MIT */
/*
 * trainer PIPELINE STEPS DELAY_MS [KEY=VALUE...]: pops STEPS batches of records that run.sh made, DELAY_MS apart, and fails
 * unless each row is the next record of the dataset, with its own bytes, through every reconnect (DELAY_MS -1: at once,
 * without looking at them). The last line is "done: STEPS steps, N reconnects, RESCUES rescues".
 */
#include <inttypes.h>
#include <loaderd/loaderd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A record is its number as u32, then bytes that are (number + 7 * place) mod 251. */
static int check_row(const struct loaderd_batch *batch, uint32_t row, uint64_t wanted) {
    const uint32_t *ids = batch->fields[0].data;
    size_t bytes = (size_t)batch->fields[1].bytes / batch->rows;
    const uint8_t *data = (const uint8_t *)batch->fields[1].data + row * bytes;
    if (ids[row] != wanted) {
        fprintf(stderr, "step %" PRIu64 " row %u: record %u, wanted %" PRIu64 "\n", batch->step, row, ids[row], wanted);
        return -1;
    }
    for (size_t i = 0; i < bytes; i++)
        if (data[i] != (wanted + 7 * i) % 251) {
            fprintf(stderr, "record %" PRIu64 " byte %zu: %u\n", wanted, i, data[i]);
            return -1;
        }
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 4)
        return 2;
    uint64_t steps = strtoull(argv[2], NULL, 10), next = 0;
    long delay = atol(argv[3]);
    struct loaderd_options options = LOADERD_OPTIONS_INIT;
    const char *keys[16] = {NULL};
    for (int i = 4; i < argc && i < 19; i++)
        keys[i - 4] = argv[i];
    options.keys = keys;
    options.job = "vm-job";
    struct loaderd *loader;
    char error[512];
    if (loaderd_open(&loader, argv[1], &options, error, sizeof error) < 0) {
        fprintf(stderr, "%s\n", error);
        return 1;
    }
    struct loaderd_info info;
    loaderd_info(loader, &info);
    for (uint64_t step = 0; step < steps; step++) {
        struct loaderd_batch batch;
        int r;
        while ((r = loaderd_next(loader, &batch)) == 0) /* the end of an epoch: on with the next */
            ;
        if (r < 0) {
            fprintf(stderr, "step %" PRIu64 ": %s\n", step, loaderd_error(loader));
            return 1;
        }
        for (uint32_t row = 0; delay >= 0 && row < batch.valid; row++, next = (next + 1) % info.samples)
            if (check_row(&batch, row, next) < 0)
                return 1;
        loaderd_release(loader, &batch);
        if (step == 0) {
            puts("first batch");
            fflush(stdout);
        }
        const struct timespec pause = {delay / 1000, delay % 1000 * 1000000};
        if (delay > 0)
            nanosleep(&pause, NULL);
    }
    struct loaderd_statistics s;
    loaderd_statistics(loader, &s);
    printf("done: %" PRIu64 " steps, %" PRIu64 " reconnects, %" PRIu64 " rescues\n", steps, s.reconnects, s.rescues);
    loaderd_close(loader);
    return 0;
}
