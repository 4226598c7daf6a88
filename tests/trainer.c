/* SPDX-License-Identifier: MIT */
/*
 * A trainer for the tests of tools: takes batches of a pipeline without end and says so once.
 *
 *   trainer PIPELINE STEP_MS [RANK/WORLD [JOB]] [-- KEY=VALUE ...]
 *
 * Each batch is held for STEP_MS; SIGSTOP makes it a trainer that stands still. Ends with 0 at an end of the epochs.
 */
#include <loaderd/loaderd.h>

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int main(int argc, char **argv) {
    struct loaderd_options options = LOADERD_OPTIONS_INIT;
    struct loaderd *loader;
    struct loaderd_batch batch;
    const char *const *keys = NULL;
    char error[512];
    unsigned rank = 0, world = 1;
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--") == 0) {
            keys = (const char *const *)&argv[i + 1];
            argc = i;
        }
    if (argc < 3) {
        fprintf(stderr, "usage: trainer PIPELINE STEP_MS [RANK/WORLD [JOB]] [-- KEY=VALUE ...]\n");
        return 2;
    }
    long ns = (long)(strtod(argv[2], NULL) * 1e6);
    if (argc > 3 && sscanf(argv[3], "%u/%u", &rank, &world) != 2)
        return 2;
    options.rank = (int32_t)rank;
    options.world = (int32_t)world;
    options.job = argc > 4 ? argv[4] : NULL;
    options.keys = keys;
    if (loaderd_open(&loader, argv[1], &options, error, sizeof error) < 0) {
        fprintf(stderr, "%s\n", error);
        return 1;
    }
    int r;
    bool told = false;
    while ((r = loaderd_next(loader, &batch)) >= 0) {
        if (r == 0)
            continue;
        if (!told) {
            puts("ready");
            fflush(stdout);
            told = true;
        }
        nanosleep(&(struct timespec){ns / 1000000000, ns % 1000000000}, NULL);
        loaderd_release(loader, &batch);
    }
    bool ended = r == -ENODATA;
    if (!ended)
        fprintf(stderr, "%s\n", loaderd_error(loader));
    loaderd_close(loader);
    return !ended;
}
