/* SPDX-License-Identifier: MIT */
/* Subsets: any text gives ids that are all different and below the number of samples, or an error with a sentence. */
#include <stdlib.h>
#include <string.h>

#include "subset.h"

#define SAMPLES 5000u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static uint8_t seen[SAMPLES];
    struct subset subset = {0};
    struct diag diag = DIAG_INIT;
    int rc = subset_parse((const char *)data, size, "fuzz", SAMPLES, SAMPLES, &subset, &diag);
    if (rc < 0 ? subset.ids || diag.code != rc || !*diag.text : subset.count == 0)
        abort();
    memset(seen, 0, sizeof seen);
    for (uint64_t i = 0; i < subset.count; i++)
        if (subset.ids[i] >= SAMPLES || seen[subset.ids[i]]++)
            abort();
    if (rc == 0 && subset_thin(&subset, 0.5, SAMPLES, SAMPLES, &diag) == 0)
        for (uint64_t i = 0; i < subset.count; i++)
            if (seen[subset.ids[i]]-- != 1)
                abort();
    subset_deinit(&subset);
    return 0;
}
