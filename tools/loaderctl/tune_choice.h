/* SPDX-License-Identifier: MIT */
/*
 * What loaderctl tune makes of its measurements: medians, the knee, the cheapest setting that is fast enough, what a core
 * more buys, the budget of CPUs, and the configuration that it recommends. Pure functions.
 */
#ifndef TUNE_CHOICE_H
#define TUNE_CHOICE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/diag.h"

#define TUNE_MOST_POINTS 32u
#define TUNE_MOST_ROUNDS 9u
#define TUNE_NEAR 0.05     /* rates that differ by less count as equal */
#define TUNE_HEADROOM 0.10 /* that a setting must have above what a trainer takes */

/* Rates of one setting, samples a second, one a round. */
struct tune_rates {
    double rate[TUNE_MOST_ROUNDS];
    uint32_t rounds;
};
/* The median of them, 0 of none; and half the range between the quartiles as a share of it. */
double tune_median(const struct tune_rates *rates);
double tune_spread(const struct tune_rates *rates);

/* "40%" of `cpus`, or a number of CPUs ("2", "1.5"): at least 1, at most `cpus`, rounded down. -EINVAL. */
int tune_budget(const char *text, uint32_t cpus, uint32_t *ret, struct diag *diag);

/* Numbers of workers worth measuring: 1, 2, 3, 4, 6, 8, 12, 16 ... and `most` itself; ascending, at most
 * TUNE_MOST_POINTS. Returns how many. */
uint32_t tune_candidates(uint32_t most, uint32_t ret[TUNE_MOST_POINTS]);

/* One number of workers and its rate. Points are in ascending order of workers. */
struct tune_point {
    uint32_t workers;
    double rate;
};
/* Index of the knee: the fewest workers that reach the highest rate of all, less TUNE_NEAR. count >= 1. */
uint32_t tune_knee(const struct tune_point *point, uint32_t count);
/* Index of the fewest workers whose rate has TUNE_HEADROOM above `target`; `count` where there is none. */
uint32_t tune_cheapest(const struct tune_point *point, uint32_t count, double target);
/* Samples a second that each worker between point `index` - 1 (0: none) and point `index` adds. */
double tune_gain(const struct tune_point *point, uint32_t index);
/* Of settings in order of preference, measured in the same rounds, the first that no other one beats: by more than TUNE_NEAR
 * in the median, and in every round. One without rounds is never taken. count >= 1. */
uint32_t tune_preferred(const struct tune_rates *rates, uint32_t count);

/* What a cache would change, from what a sample costs a worker. */
struct tune_cost {
    double rate;          /* samples a second, as measured without one */
    double decode;        /* share of the workers' busy time that goes into decoding and resampling */
    double samples;       /* of an epoch */
    double cacheable;     /* share of the samples that a cache can hold */
    double plain, record; /* of those, samples a second of one thread alone: from the files, from records */
    double encode;        /* seconds of that thread to make a record */
};
struct tune_cache {
    double rate;         /* samples a second with a cache that has all it can hold */
    double first_rate;   /* while it is filled, with cache-fill = full */
    double epoch, first; /* seconds of an epoch without one, and of the first one with it */
    double pays_after;   /* so many further epochs make up for the first; 0: none do */
};
/* False, and *ret all zero, where no sample can be kept or something was not measured. */
bool tune_cache(const struct tune_cost *cost, struct tune_cache *ret);

/* The configuration. */
struct tune_section {
    const char *pipeline; /* its name */
    uint32_t workers, depth, batch, slots;
    const char *engine;
    const char *lines; /* "key = value" lines of the pipeline; those of batch and slots are left out */
};
void tune_print_section(FILE *out, const struct tune_section *section);
/* A name for a pipeline that serves `dataset`: the last part of its path, with letters that a name may have. */
void tune_name(const char *dataset, char *ret, size_t size);

#endif
