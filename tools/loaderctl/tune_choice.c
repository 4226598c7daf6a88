/* SPDX-License-Identifier: MIT */
/* What loaderctl tune makes of its measurements: see tune_choice.h. */
#include "tune_choice.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/util.h"

/* In ascending order; at most TUNE_MOST_ROUNDS. */
static void sort(const struct tune_rates *rates, double ret[TUNE_MOST_ROUNDS]) {
    for (uint32_t i = 0; i < rates->rounds; i++) {
        uint32_t at = i;
        for (; at > 0 && ret[at - 1] > rates->rate[i]; at--)
            ret[at] = ret[at - 1];
        ret[at] = rates->rate[i];
    }
}

/* Between the values where it falls between two. */
static double quantile(const double *sorted, uint32_t count, double share) {
    double place = share * (count - 1);
    uint32_t low = (uint32_t)place;
    return low + 1 < count ? sorted[low] + (place - low) * (sorted[low + 1] - sorted[low]) : sorted[low];
}

double tune_median(const struct tune_rates *rates) {
    double sorted[TUNE_MOST_ROUNDS];
    if (!rates->rounds)
        return 0;
    sort(rates, sorted);
    return quantile(sorted, rates->rounds, 0.5);
}

double tune_spread(const struct tune_rates *rates) {
    double sorted[TUNE_MOST_ROUNDS], median = tune_median(rates);
    if (!(median > 0))
        return 0;
    sort(rates, sorted);
    return (quantile(sorted, rates->rounds, 0.75) - quantile(sorted, rates->rounds, 0.25)) / 2 / median;
}

int tune_budget(const char *text, uint32_t cpus, uint32_t *ret, struct diag *diag) {
    char *end;
    double value = strtod(text, &end);
    bool percent = end != text && *end == '%';
    if (end == text || end[percent] || !isfinite(value) || value <= 0 || (percent && value > 100) || value > 1e6)
        return diag_set(diag, -EINVAL, "--cpu %s: write a share of the CPUs (40%%) or a number of them (2)", text);
    double budget = percent ? value / 100 * cpus : value;
    *ret = CLAMP((uint32_t)(budget + 1e-9), 1u, cpus);
    return 0;
}

uint32_t tune_candidates(uint32_t most, uint32_t ret[TUNE_MOST_POINTS]) {
    uint32_t count = 0;
    for (uint64_t power = 1; power < most && count < TUNE_MOST_POINTS - 1; power *= 2) {
        ret[count++] = (uint32_t)power;
        if (power >= 2 && power / 2 * 3 < most && count < TUNE_MOST_POINTS - 1)
            ret[count++] = (uint32_t)(power / 2 * 3);
    }
    ret[count++] = MAX(most, 1u);
    return count;
}

static double highest(const struct tune_point *point, uint32_t count) {
    double best = 0;
    for (uint32_t i = 0; i < count; i++)
        best = MAX(best, point[i].rate);
    return best;
}

uint32_t tune_knee(const struct tune_point *point, uint32_t count) {
    double enough = highest(point, count) * (1 - TUNE_NEAR);
    for (uint32_t i = 0; i < count; i++)
        if (point[i].rate >= enough)
            return i;
    return 0;
}

uint32_t tune_cheapest(const struct tune_point *point, uint32_t count, double target) {
    for (uint32_t i = 0; i < count; i++)
        if (point[i].rate >= target * (1 + TUNE_HEADROOM))
            return i;
    return count;
}

double tune_gain(const struct tune_point *point, uint32_t index) {
    double before = index ? point[index - 1].rate : 0;
    uint32_t from = index ? point[index - 1].workers : 0;
    return point[index].workers > from ? (point[index].rate - before) / (point[index].workers - from) : 0;
}

static bool beats(const struct tune_rates *a, const struct tune_rates *b) {
    bool every = tune_median(a) * (1 - TUNE_NEAR) > tune_median(b);
    for (uint32_t round = 0; round < MIN(a->rounds, b->rounds); round++)
        every &= a->rate[round] > b->rate[round];
    return every;
}

uint32_t tune_preferred(const struct tune_rates *rates, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        bool beaten = !rates[i].rounds;
        for (uint32_t k = 0; k < count; k++)
            beaten |= beats(&rates[k], &rates[i]);
        if (!beaten)
            return i;
    }
    return 0;
}

/* Of the time of a sample only the share of decoding changes: by the ratios that were measured alone, so that what else
 * slows workers down beside each other (memory, other threads of their cores) counts alike on both sides. */
bool tune_cache(const struct tune_cost *c, struct tune_cache *ret) {
    *ret = (struct tune_cache){0};
    if (!(c->rate > 0 && c->samples > 0 && c->cacheable > 0 && c->plain > 0 && c->record > 0))
        return false;
    double touched = CLAMP(c->decode, 0.0, 1.0) * MIN(c->cacheable, 1.0);
    double later = 1 - touched + touched * c->plain / c->record;
    double filling = 1 + touched * c->encode * c->plain;
    ret->rate = c->rate / later;
    ret->first_rate = c->rate / filling;
    ret->epoch = c->samples / c->rate;
    ret->first = ret->epoch * filling;
    if (later < 1)
        ret->pays_after = (filling - 1) / (1 - later);
    return true;
}

void tune_print_section(FILE *out, const struct tune_section *section) {
    fprintf(out, "[daemon]\nworkers = %" PRIu32 "\nengine = %s\ndepth = %" PRIu32 "\n\n[pipeline %s]\n",
            section->workers, section->engine, section->depth, section->pipeline);
    for (const char *at = section->lines; *at;) {
        size_t length = strcspn(at, "\n");
        if (strncmp(at, "slots =", 7) != 0 && strncmp(at, "batch =", 7) != 0)
            fprintf(out, "%.*s\n", (int)length, at);
        at += length + (at[length] == '\n');
    }
    fprintf(out, "batch = %" PRIu32 "\nslots = %" PRIu32 "\n", section->batch, section->slots);
}

void tune_name(const char *dataset, char *ret, size_t size) {
    size_t length = strlen(dataset), used = 0;
    while (length > 0 && dataset[length - 1] == '/')
        length--;
    size_t begin = length;
    while (begin > 0 && dataset[begin - 1] != '/')
        begin--;
    for (size_t i = begin; i < length && used + 1 < MIN(size, 33u); i++) {
        char c = dataset[i];
        bool fine = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
        if (fine)
            ret[used++] = c;
        else if (c == '.' || c == ':' || c == ' ' || c == ',')
            break;
    }
    ret[used] = '\0';
    if (!used)
        snprintf(ret, size, "tuned");
}
