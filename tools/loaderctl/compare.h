/* SPDX-License-Identifier: MIT */
/*
 * Why one `bench --json` gives less than another: pure functions over their texts.
 *
 *   samples/s = workers x busy share / busy worker time a sample
 *
 * so a ratio of samples/s is a product of three ratios; the one that is farthest from 1 in the direction of the slower side
 * is the reason, and of the time a sample, the stage that grew the most. Beside it stands what that part can do alone
 * (the ceilings of the same runs): where that differs as much, the machine's part is slower; where it does not, the workers
 * are in each other's way, or something else uses the machine.
 */
#ifndef COMPARE_H
#define COMPARE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "base/diag.h"
#include "pool.h"

struct compare_side {
    double samples_per_s, samples, workers, batch, slots, depth, bytes_in, bytes_out, step_ms;
    double stage[STAGES];                /* seconds of all workers */
    double decode, copy, device, claims; /* ceilings: samples/s of one worker, bytes/s, bytes/s, claims/s; 0: none */
    char engine[24], page_cache[16], codec[64], bound_by[16];
};

/* -EINVAL with a sentence, which `name` begins, where it is no output of `bench --json`. */
int compare_read(const char *text, size_t length, const char *name, struct compare_side *ret, struct diag *diag);
/* A table, what is not alike, and the reason in one sentence as the last line. */
void compare_print(const struct compare_side *a, const struct compare_side *b, const char *a_name, const char *b_name,
                   FILE *out);

#endif
