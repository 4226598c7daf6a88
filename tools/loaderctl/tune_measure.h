/* SPDX-License-Identifier: MIT */
/*
 * Short windows of a pipeline under one setting, for loaderctl tune: each opens an engine of its own, lets it come to
 * speed, pops and releases as fast as batches come, and closes it. All windows serve the same steps of the same epoch, so
 * that settings differ by nothing but themselves. Before a cold one the samples that it will need are put out of the page
 * cache. One thread, beside the workers.
 */
#ifndef TUNE_MEASURE_H
#define TUNE_MEASURE_H

#include "histogram.h"
#include "loaderctl.h"
#include "tune_choice.h"

struct tune_setting {
    const char *engine; /* "uring", "mmap", "pread"; one that works here */
    uint32_t workers, depth;
    uint32_t slots, batch; /* 0: as the command line or the file has it */
    bool cold;
};

/* What windows of one setting came to. All zero: nothing yet. */
struct tune_result {
    struct tune_setting setting;
    struct tune_rates rates;
    double stage[STAGES];          /* worker seconds */
    uint64_t samples_in, bytes_in; /* all that its workers read */
    uint64_t device;               /* bytes of that from the device, where the kernel tells */
    uint32_t batch, slots;         /* as they came to be */
    double in_line, busy;          /* thread seconds: ready without a CPU; of all workers, in all */
    struct verdict verdict;        /* of the last window */
    char failed[DIAG_TEXT];        /* why it cannot be measured; "" */
};

struct tuner {
    const struct options *options;
    struct engine scout; /* stays open, idle: knows the order; holds no mapping of the data */
    double window;       /* seconds */
    double speed;        /* samples a second, the highest so far */
};

/* Opens the dataset. */
int tuner_open(struct tuner *ret, const struct options *options, struct diag *diag);
void tuner_close(struct tuner *tuner);
/* One window more. 0; -EINTR; or the error, whose sentence then stands in result->failed as well where the setting is to
 * blame (a ring that is too large). `times` of batch to batch are added where it is not NULL. */
int tuner_window(struct tuner *tuner, struct tune_result *result, struct histogram *times, struct diag *diag);
/* What parts can do alone, with `workers`. */
struct ceilings;
int tuner_ceilings(struct tuner *tuner, uint32_t workers, struct ceilings *ret, struct diag *diag);

#endif
