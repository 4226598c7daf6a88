/* SPDX-License-Identifier: MIT */
/*
 * Subsets of a dataset: which sample ids, in which order. Written as ranges ("0-999,2000-2999") or as a file of them,
 * and thinned to a fraction. No state: any thread.
 */
#ifndef SUBSET_H
#define SUBSET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/diag.h"

struct subset {
    uint64_t *ids; /* owned, for subset_deinit() */
    uint64_t count;
};

/* Is this key's value a list of ranges, and no path? Only digits, '-', ',' and blanks. */
bool subset_is_ranges(const char *value);

/*
 * Reads ids: numbers and ranges FIRST-LAST (both taken), divided by blanks, commas or line ends; '#' begins a comment.
 * In the order written. Each id at most once and below `samples`; at least one. Pure. `origin` names the text in
 * messages. At most `most` ids: -ENOMEM with the arithmetic beyond. -EINVAL otherwise.
 */
int subset_parse(const char *text, size_t length, const char *origin, uint64_t samples, uint64_t most,
                 struct subset *ret, struct diag *diag);
/* The same of a key's value: ranges, or the path of a file. */
int subset_load(const char *value, uint64_t samples, uint64_t most, struct subset *ret, struct diag *diag);

/*
 * Keeps round(fraction x n) of the n ids of `subset` (where it is empty: of 0..samples-1), in their order. Which ones
 * is decided by a fixed bijection, so that neither seed nor epoch matter and a smaller fraction is a part of a larger
 * one.
 */
int subset_thin(struct subset *subset, double fraction, uint64_t samples, uint64_t most, struct diag *diag);

void subset_deinit(struct subset *subset); /* legal on a zeroed struct, and twice */

#endif
