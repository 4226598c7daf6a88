/* SPDX-License-Identifier: MIT */
/* A histogram of times: see histogram.h. */
#include "histogram.h"

#include "base/util.h"

static unsigned bucket_of(uint64_t ns) {
    if (ns < 64)
        return (unsigned)ns;
    unsigned power = 63u - (unsigned)__builtin_clzll(ns);
    return (power - 4) * 32 + (unsigned)(ns >> (power - 5)) - 32;
}

/* Middle of a bucket. */
static double bucket_ns(unsigned bucket) {
    if (bucket < 64)
        return bucket;
    unsigned power = bucket / 32 + 4;
    return ((double)(bucket % 32) + 32.5) * (double)(UINT64_C(1) << (power - 5));
}

void histogram_add(struct histogram *h, uint64_t ns) {
    h->count[bucket_of(ns)]++;
    h->total++;
    h->sum += ns;
    h->maximum = MAX(h->maximum, ns);
}

double histogram_mean_ms(const struct histogram *h) {
    return h->total ? (double)h->sum / (double)h->total / 1e6 : 0;
}

double histogram_percentile_ms(const struct histogram *h, double share) {
    uint64_t seen = 0, wanted = (uint64_t)(share * (double)h->total);
    for (unsigned i = 0; i < HISTOGRAM_BUCKETS; i++) {
        seen += h->count[i];
        if (seen > wanted)
            return MIN(bucket_ns(i), (double)h->maximum) / 1e6;
    }
    return 0;
}

void histogram_spread(const struct histogram *h, double low_ms, double high_ms, uint64_t *ret, unsigned bins) {
    for (unsigned i = 0; i < bins; i++)
        ret[i] = 0;
    for (unsigned i = 0; i < HISTOGRAM_BUCKETS; i++) {
        double place = high_ms > low_ms ? (bucket_ns(i) / 1e6 - low_ms) / (high_ms - low_ms) * bins : 0;
        if (h->count[i])
            ret[place < 0 ? 0 : place >= bins ? bins - 1 : (unsigned)place] += h->count[i];
    }
}
