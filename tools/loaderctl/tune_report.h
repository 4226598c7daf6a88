/* SPDX-License-Identifier: MIT */
/* The report of loaderctl tune: one HTML file with its plots as SVG inside, nothing from elsewhere. Pure but for `out`. */
#ifndef TUNE_REPORT_H
#define TUNE_REPORT_H

#include <stdint.h>
#include <stdio.h>

#include "tune_choice.h"

#define TUNE_BINS 40u
#define TUNE_STAGES 7u

struct tune_ceiling {
    const char *name;
    double per_worker; /* samples a second of one worker: a rising line; 0: `all` holds */
    double all;        /* of the machine: a level line; 0 as well: not measured, not drawn */
};
struct tune_row { /* of the sweep over workers */
    uint32_t workers;
    double rate, spread;
    double stage[TUNE_STAGES]; /* shares of the workers' time, 0 to 1 */
};
struct tune_bar { /* another setting, measured beside */
    char name[48];
    double rate, spread;
};
struct tune_report_cache {
    double rate;         /* samples a second with it; 0: not known, not shown */
    double epoch, first; /* seconds of an epoch without it, and of the first one with it */
    double pays_after;   /* epochs that make up for the first, 0: none do */
    double bytes;
};
struct tune_report {
    const char *title, *machine, *sentence; /* texts; the sentence may hold several */
    const struct tune_row *row;
    uint32_t rows, chosen; /* index of the recommended row */
    uint32_t budget;       /* workers that may be used */
    double target;         /* samples a second that a trainer takes, 0: none */
    const struct tune_ceiling *ceiling;
    uint32_t ceilings;
    const struct tune_bar *bar;
    uint32_t bars;
    struct tune_report_cache cache;
    const char *const *stage_name; /* TUNE_STAGES of them */
    double low_ms, high_ms;        /* of the bins */
    uint64_t bin[TUNE_BINS];       /* times from batch to batch */
    const char *section;           /* the configuration */
};
void tune_print_report(FILE *out, const struct tune_report *report);
/* The end of an axis from 0 that holds `value`: 1, 2 or 5 times a power of ten. value <= 0: 1. */
double tune_axis(double value);

#endif
