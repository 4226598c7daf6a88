/* SPDX-License-Identifier: MIT */
/* Times in nanoseconds, counted in buckets of 1/32 of their power of two: a percentile is exact to 3 %. Pure; 16 KiB. */
#ifndef HISTOGRAM_H
#define HISTOGRAM_H

#include <stdint.h>

#define HISTOGRAM_BUCKETS (64 * 32)
struct histogram { /* all zero: empty */
    uint64_t count[HISTOGRAM_BUCKETS];
    uint64_t total, sum, maximum;
};

void histogram_add(struct histogram *h, uint64_t ns);
double histogram_mean_ms(const struct histogram *h); /* 0 where it is empty */
/* share: 0.5 is the median; 0 <= share < 1. */
double histogram_percentile_ms(const struct histogram *h, double share);
/* The same times in `bins` equal bins over [low, high); what lies outside is counted in the first or last bin. */
void histogram_spread(const struct histogram *h, double low_ms, double high_ms, uint64_t *ret, unsigned bins);

#endif
