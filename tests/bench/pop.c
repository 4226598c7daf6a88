/* SPDX-License-Identifier: MIT */
/*
 * What a pop costs: nanoseconds of loaderd_next() + loaderd_release() with a batch ready, over the real library and a
 * private daemon. Prints median and 99th percentile; the wake-up at half a ring is timed apart. Usage: pop [DATASET]
 */
#include <loaderd/loaderd.h>

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define ROUNDS 400
#define SLOTS 64
#define POPS (SLOTS / 2 - 2) /* stays below the half ring at which the daemon asks to be woken */

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print(const char *what, double *ns, size_t n) {
    if (n == 0)
        return;
    qsort(ns, n, sizeof *ns, compare);
    printf("%-28s %8.0f ns median %8.0f ns p99 (%zu)\n", what, ns[n / 2], ns[n - 1 - n / 100], n);
}

int main(int argc, char **argv) {
    static double quiet[ROUNDS * SLOTS], waking[ROUNDS * SLOTS], clock_alone[1000];
    const char *const keys[] = {"batch=4", "slots=64", NULL};
    struct loaderd_options options = LOADERD_OPTIONS_INIT;
    struct loaderd *loader;
    struct loaderd_batch batch;
    struct loaderd_statistics before, after;
    char error[512];
    size_t quiets = 0, wakings = 0;
    options.keys = keys;
    if (loaderd_open(&loader, argc > 1 ? argv[1] : "synthetic:100000000x16:f32", &options, error, sizeof error) < 0) {
        fprintf(stderr, "pop: %s\n", error);
        return 1;
    }
    for (int i = 0; i < 1000; i++) {
        double t = now_ns();
        clock_alone[i] = now_ns() - t;
    }
    for (int round = 0; round < ROUNDS; round++) {
        const struct timespec fill = {0, 3000000};
        nanosleep(&fill, NULL);
        for (int i = 0; i < POPS; i++) {
            loaderd_statistics(loader, &before);
            double t = now_ns();
            int r = loaderd_next(loader, &batch);
            if (r == 1)
                loaderd_release(loader, &batch);
            t = now_ns() - t;
            loaderd_statistics(loader, &after);
            if (r < 0) {
                fprintf(stderr, "pop: %s\n", loaderd_error(loader));
                return 1;
            }
            if (r == 0 || after.waits != before.waits)
                continue;
            if (after.wakes_sent == before.wakes_sent)
                quiet[quiets++] = t;
            else
                waking[wakings++] = t;
        }
    }
    print("the clock alone", clock_alone, 1000);
    print("next + release, ready", quiet, quiets);
    print("the same, waking the daemon", waking, wakings);
    loaderd_close(loader);
    return 0;
}
