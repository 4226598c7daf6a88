/* SPDX-License-Identifier: MIT */
/*
 * Subsets: parsing, checking, thinning. Reads nothing but the one file that a key names. Nothing here runs while
 * batches are made. No state: any thread.
 */
#include "subset.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/util.h"
#include "bijection.h"

#define RADIX_BITS 11u

/* ---- text ------------------------------------------------------------------------------------------------------- */

struct reader {
    const char *at, *end, *origin;
    uint64_t line, samples;
    struct diag *diag;
};

static bool separates(char c) {
    return c == ',' || c == ' ' || c == '\t' || c == '\r' || c == '\n' || c == '\f' || c == '\v';
}

static void skip_separators(struct reader *r) {
    for (; r->at < r->end; r->at++) {
        if (*r->at == '#')
            while (r->at + 1 < r->end && r->at[1] != '\n')
                r->at++;
        else if (!separates(*r->at))
            return;
        r->line += *r->at == '\n';
    }
}

static bool read_number(struct reader *r, uint64_t *ret) {
    const char *start = r->at;
    for (*ret = 0; r->at < r->end && *r->at >= '0' && *r->at <= '9'; r->at++)
        if (!mul_u64(*ret, 10, ret) || !add_u64(*ret, (uint64_t)(*r->at - '0'), ret))
            return false;
    return r->at > start;
}

static int refuse_word(struct reader *r, const char *word) {
    const char *stop = word;
    while (stop < r->end && !separates(*stop) && *stop != '#')
        stop++;
    char shown[41];
    int length = (int)MIN(stop - word, 40);
    for (int i = 0; i < length; i++)
        shown[i] = isprint((unsigned char)word[i]) ? word[i] : '?';
    return diag_set(r->diag, -EINVAL,
                    "subset %s, line %" PRIu64 ": '%.*s' is no sample id; write numbers and ranges, as "
                    "in 0-999,2000",
                    r->origin, r->line, length, shown);
}

/* The next range: 1, 0 at the end, or a negative errno. */
static int next_range(struct reader *r, uint64_t *ret_first, uint64_t *ret_last) {
    skip_separators(r);
    if (r->at == r->end)
        return 0;
    const char *word = r->at;
    bool good = read_number(r, ret_first);
    *ret_last = *ret_first;
    if (good && r->at < r->end && *r->at == '-') {
        r->at++;
        good = read_number(r, ret_last);
    }
    if (!good || (r->at < r->end && !separates(*r->at) && *r->at != '#'))
        return refuse_word(r, word);
    if (*ret_first > *ret_last)
        return diag_set(r->diag, -EINVAL,
                        "subset %s, line %" PRIu64 ": the range %" PRIu64 "-%" PRIu64 " ends before it begins",
                        r->origin, r->line, *ret_first, *ret_last);
    if (*ret_last >= r->samples)
        return diag_set(r->diag, -EINVAL,
                        "subset %s, line %" PRIu64 ": there is no sample %" PRIu64 "; the dataset has %" PRIu64
                        ", 0 to %" PRIu64,
                        r->origin, r->line, *ret_last, r->samples, r->samples - 1);
    return 1;
}

/* ---- tables ----------------------------------------------------------------------------------------------------- */

static int table_new(uint64_t count, uint64_t most, const char *what, uint64_t **ret, struct diag *diag) {
    if (count > most || count > SIZE_MAX / sizeof **ret)
        return diag_set(diag, -ENOMEM,
                        "%s has %" PRIu64 " ids x 8 bytes = %" PRIu64 " MiB, a session may have %" PRIu64
                        " MiB for them; raise max-ring-bytes or choose fewer",
                        what, count, (count + 0x1ffff) >> 17, most >> 17);
    *ret = malloc(MAX(count, 1u) * sizeof **ret);
    return *ret ? 0 : diag_set(diag, -ENOMEM, "out of memory for %s: %" PRIu64 " ids x 8 bytes", what, count);
}

/* Sorts by digits of RADIX_BITS, least first: linear for every input. `spare` has room for as many. */
static void sort_numbers(uint64_t *number, uint64_t *spare, uint64_t count, uint64_t below) {
    uint64_t *from = number, *to = spare;
    for (unsigned shift = 0; shift < 64 && (below - 1) >> shift != 0; shift += RADIX_BITS) {
        uint64_t start[(1u << RADIX_BITS) + 1] = {0};
        for (uint64_t i = 0; i < count; i++)
            start[(from[i] >> shift & ((1u << RADIX_BITS) - 1)) + 1]++;
        for (unsigned d = 1; d <= 1u << RADIX_BITS; d++)
            start[d] += start[d - 1];
        for (uint64_t i = 0; i < count; i++)
            to[start[from[i] >> shift & ((1u << RADIX_BITS) - 1)]++] = from[i];
        uint64_t *swap = from;
        from = to;
        to = swap;
    }
    if (from != number)
        memcpy(number, from, count * sizeof *number);
}

static int check_twins(const struct subset *subset, const char *origin, uint64_t samples, struct diag *diag) {
    uint64_t i = 1;
    while (i < subset->count && subset->ids[i - 1] < subset->ids[i])
        i++;
    if (i >= subset->count)
        return 0; /* rising: nothing can stand twice */
    cleanup_free uint64_t *copy = malloc(subset->count * sizeof *copy);
    cleanup_free uint64_t *spare = malloc(subset->count * sizeof *spare);
    if (!copy || !spare)
        return diag_set(diag, -ENOMEM, "out of memory to check subset %s", origin);
    memcpy(copy, subset->ids, subset->count * sizeof *copy);
    sort_numbers(copy, spare, subset->count, samples);
    for (i = 1; i < subset->count; i++)
        if (copy[i - 1] == copy[i])
            return diag_set(diag, -EINVAL,
                            "subset %s names sample %" PRIu64 " twice; a subset has each sample once (to "
                            "see some more often, mix datasets by weights)",
                            origin, copy[i]);
    return 0;
}

int subset_parse(const char *text, size_t length, const char *origin, uint64_t samples, uint64_t most,
                 struct subset *ret, struct diag *diag) {
    const struct reader start = {text, text + length, origin, 1, samples, diag};
    struct subset subset = {NULL, 0};
    uint64_t first, last, at = 0;
    struct reader r = start;
    int rc;
    while ((rc = next_range(&r, &first, &last)) == 1)
        if (!add_u64(subset.count, last - first + 1, &subset.count))
            subset.count = UINT64_MAX;
    if (rc == 0 && subset.count == 0)
        rc = diag_set(diag, -EINVAL, "subset %s is empty: 0 of %" PRIu64 " samples", origin, samples);
    if (rc == 0)
        rc = table_new(subset.count, most, "the subset", &subset.ids, diag);
    if (rc < 0)
        return rc;
    r = start;
    while (next_range(&r, &first, &last) == 1)
        for (uint64_t id = first; id <= last; id++)
            subset.ids[at++] = id;
    rc = check_twins(&subset, origin, samples, diag);
    if (rc < 0)
        subset_deinit(&subset);
    else
        *ret = subset;
    return rc;
}

bool subset_is_ranges(const char *value) {
    return *value != '\0' && value[strspn(value, "0123456789-, \t")] == '\0';
}

static int read_file(const char *path, uint64_t most, char **ret, size_t *ret_length, struct diag *diag) {
    cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat status;
    if (fd < 0 || fstat(fd, &status) < 0)
        return diag_set(diag, -errno, "subset %s: cannot open: %s", path, strerror(errno));
    if (!S_ISREG(status.st_mode))
        return diag_set(diag, -EINVAL, "subset %s is no regular file", path);
    uint64_t room = MAX(most, UINT64_C(1) << 17) * 32, size = (uint64_t)status.st_size;
    if (size > room)
        return diag_set(diag, -EFBIG, "subset %s has %" PRIu64 " bytes, at most %" PRIu64 " are read", path, size,
                        room);
    cleanup_free char *text = malloc(size + 1);
    if (!text)
        return diag_set(diag, -ENOMEM, "out of memory for subset %s", path);
    size_t length = 0;
    while (length < size) {
        ssize_t n = read(fd, text + length, size - length);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return diag_set(diag, -errno, "subset %s: cannot read: %s", path, strerror(errno));
        if (n == 0)
            break;
        length += (size_t)n;
    }
    *ret = steal_pointer(&text);
    *ret_length = length;
    return 0;
}

int subset_load(const char *value, uint64_t samples, uint64_t most, struct subset *ret, struct diag *diag) {
    if (subset_is_ranges(value))
        return subset_parse(value, strlen(value), value, samples, most, ret, diag);
    cleanup_free char *text = NULL;
    size_t length = 0;
    int r = read_file(value, most, &text, &length, diag);
    if (r < 0)
        return r;
    if (length >= 6 && memcmp(text, "\x93NUMPY", 6) == 0)
        return diag_set(diag, -EINVAL,
                        "subset %s is a .npy array; write it as text: numpy.savetxt(FILE, ids, fmt='%%d')", value);
    return subset_parse(text, length, value, samples, most, ret, diag);
}

/* ---- fractions -------------------------------------------------------------------------------------------------- */

int subset_thin(struct subset *subset, double fraction, uint64_t samples, uint64_t most, struct diag *diag) {
    const struct random_key fixed = {0, 0, 0};
    const uint64_t n = subset->ids ? subset->count : samples;
    if (fraction >= 1)
        return 0;
    uint64_t keep = (uint64_t)(fraction * (double)n + 0.5);
    if (keep < 1)
        return diag_set(diag, -EINVAL, "fraction %g of %" PRIu64 " samples is none: %g rounds to 0", fraction, n,
                        fraction * (double)n);
    uint64_t *ids;
    int r = table_new(keep, most, "the fraction", &ids, diag);
    if (r < 0)
        return r;
    cleanup_free uint64_t *spare = malloc(keep * sizeof *spare);
    if (!spare) {
        free(ids);
        return diag_set(diag, -ENOMEM, "out of memory for the fraction: %" PRIu64 " ids x 8 bytes", keep);
    }
    struct bijection b;
    bijection_init(&b, n, &fixed, RANDOM_SUBSET);
    for (uint64_t i = 0; i < keep; i++)
        ids[i] = bijection_map(&b, i);
    sort_numbers(ids, spare, keep, n);
    for (uint64_t i = 0; i < keep && subset->ids; i++)
        ids[i] = subset->ids[ids[i]];
    free(subset->ids);
    *subset = (struct subset){ids, keep};
    return 0;
}

void subset_deinit(struct subset *subset) {
    free(subset->ids);
    *subset = (struct subset){NULL, 0};
}
