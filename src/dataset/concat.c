/* SPDX-License-Identifier: MIT */
/*
 * Several datasets as one: "PATH + PATH + ...". Samples are numbered through: those of the first path, then those of the
 * second, and so on. Each part is a dataset of its own, of any format; all must have the same fields and, where they
 * name classes, the same classes, since a label must mean one thing.
 *
 *   sample 0 ............ first[1] ............ first[2] ... samples
 *          part 0               part 1              part 2
 *
 * It reads nothing by itself. Opening is for one thread; afterwards everything is constant.
 */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "dataset/format.h"

#define MAX_PARTS 256u
#define PLUS " + "

struct concat {
    uint32_t parts;
    struct dataset *part[MAX_PARTS];
    uint64_t first[MAX_PARTS + 1]; /* first sample of part i; first[parts] is the number of samples */
    uint64_t *shard;               /* shards of all parts, where every part has some */
};

bool concat_detect(const char *path) {
    return strstr(path, PLUS) != NULL;
}

/* ---- do the parts go together? ---------------------------------------------------------------------------------- */

static void print_field(const struct dataset_field *field, char *buffer, size_t size) {
    static const char *const sources[] = {"a number", "bytes", "a picture", "synthetic"};
    int n = snprintf(buffer, size, "%s %s", field->spec.name, loaderd_dtype_name(field->spec.dtype));
    for (uint32_t i = 0; i < field->spec.ndim && n > 0 && (size_t)n < size; i++)
        n += snprintf(buffer + n, size - (size_t)n, "%s%lld", i ? "x" : " ", (long long)field->spec.dims[i]);
    if (n > 0 && (size_t)n < size)
        snprintf(buffer + n, size - (size_t)n, " (%s)", sources[field->source]);
}

static bool same_field(const struct dataset_field *a, const struct dataset_field *b) {
    bool same = strcmp(a->spec.name, b->spec.name) == 0 && a->spec.dtype == b->spec.dtype &&
                a->spec.ndim == b->spec.ndim && a->source == b->source && a->extent == b->extent &&
                a->offset == b->offset && a->bytes == b->bytes;
    for (uint32_t i = 0; i < a->spec.ndim && same; i++)
        same = a->spec.dims[i] == b->spec.dims[i];
    return same;
}

static int check_fields(const struct dataset *a, const struct dataset *b, struct diag *diag) {
    for (uint32_t i = 0; i < MAX(a->fields, b->fields); i++) {
        char one[160] = "none", other[160] = "none";
        if (i < a->fields && i < b->fields && same_field(&a->field[i], &b->field[i]))
            continue;
        if (i < a->fields)
            print_field(&a->field[i], one, sizeof one);
        if (i < b->fields)
            print_field(&b->field[i], other, sizeof other);
        return diag_set(
            diag, -EINVAL,
            "datasets that are joined by '+' must have the same fields: field %u of %s is %s, of %s it is %s", i + 1,
            a->path, one, b->path, other);
    }
    struct location at, bt;
    dataset_locate(a, 0, &at);
    dataset_locate(b, 0, &bt);
    if (at.extents != bt.extents)
        return diag_set(
            diag, -EINVAL,
            "datasets that are joined by '+' must be stored alike: a sample of %s is %u pieces of storage, one "
            "of %s is %u",
            a->path, at.extents, b->path, bt.extents);
    return 0;
}

static int check_classes(const struct dataset *a, const struct dataset *b, struct diag *diag) {
    if (a->classes != b->classes)
        return diag_set(
            diag, -EINVAL,
            "%s has %u classes and %s has %u: a label must mean the same in both; give them one numbering by "
            "classes = FILE",
            a->path, a->classes, b->path, b->classes);
    for (uint32_t i = 0; i < a->classes; i++)
        if (strcmp(a->class_name[i], b->class_name[i]) != 0)
            return diag_set(
                diag, -EINVAL,
                "class %u is '%.80s' in %s and '%.80s' in %s: a label must mean the same in both; give them "
                "one numbering by classes = FILE",
                i, a->class_name[i], a->path, b->class_name[i], b->path);
    return 0;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

/* The next piece of "A + B + C", NULL without memory; *at moves behind it, to NULL after the last. */
static char *next_piece(const char **at) {
    const char *start = *at, *plus = strstr(start, PLUS), *end = plus ? plus : start + strlen(start);
    *at = plus ? plus + strlen(PLUS) : NULL;
    while (start < end && isspace((unsigned char)*start))
        start++;
    while (end > start && isspace((unsigned char)end[-1]))
        end--;
    return strndup(start, (size_t)(end - start));
}

static int open_part(struct concat *concat, const struct dataset_options *options, const char *path, const char *labels,
                     struct diag *diag) {
    if (!*path)
        return diag_set(diag, -EINVAL, "dataset '%s': nothing stands on one side of a '+'", options->path);
    struct dataset_options part = *options;
    part.path = path;
    part.labels = labels;
    int rc = dataset_open(&part, &concat->part[concat->parts], diag);
    if (rc < 0)
        return rc;
    const struct dataset *d = concat->part[concat->parts];
    uint64_t *first = &concat->first[concat->parts++];
    if (!add_u64(first[0], d->samples, &first[1]) || first[1] > INT64_MAX)
        return diag_set(diag, -EINVAL, "%s: more samples than 63 bits count", options->path);
    if (d == concat->part[0])
        return 0;
    rc = check_fields(concat->part[0], d, diag);
    return rc < 0 ? rc : check_classes(concat->part[0], d, diag);
}

static int open_parts(struct concat *concat, const struct dataset_options *options, struct diag *diag) {
    const char *paths = options->path, *labels = options->labels && *options->labels ? options->labels : NULL;
    int rc = 0;
    while (paths && rc == 0) {
        cleanup_free char *path = next_piece(&paths);
        cleanup_free char *label = labels ? next_piece(&labels) : NULL;
        if (!path)
            rc = -ENOMEM;
        else if (options->labels && *options->labels && (!label || !labels != !paths))
            rc = diag_set(diag, -EINVAL, "labels = %s: as many files joined by '+' are needed as datasets in %s",
                          options->labels, options->path);
        else if (concat->parts == MAX_PARTS)
            rc = diag_set(diag, -EINVAL, "%.200s: more than %u datasets", options->path, MAX_PARTS);
        else
            rc = open_part(concat, options, path, label, diag);
    }
    return rc;
}

/* Shards of all parts, numbered through; where one part knows of none, there are none. */
static int join_shards(struct dataset *dataset, struct concat *concat) {
    uint64_t count = 0, at = 0;
    for (uint32_t i = 0; i < concat->parts; i++) {
        if (!concat->part[i]->shards)
            return 0;
        count += concat->part[i]->shards;
    }
    concat->shard = calloc(count + 1, sizeof *concat->shard);
    if (!concat->shard)
        return -ENOMEM;
    for (uint32_t i = 0; i < concat->parts; i++)
        for (uint64_t k = 0; k < concat->part[i]->shards; k++)
            concat->shard[at++] = concat->first[i] + concat->part[i]->shard_first[k];
    concat->shard[count] = dataset->samples;
    dataset->shards = count;
    dataset->shard_first = concat->shard;
    return 0;
}

/* Classes are the parts', their samples together; remarks are the parts' with their paths. */
static int join_words(struct dataset *dataset, const struct concat *concat) {
    const struct dataset *one = concat->part[0];
    if (one->classes) {
        dataset->class_name = calloc(one->classes, sizeof *dataset->class_name);
        dataset->class_samples = calloc(one->classes, sizeof *dataset->class_samples);
        if (!dataset->class_name || !dataset->class_samples)
            return -ENOMEM;
        memcpy(dataset->class_name, one->class_name, one->classes * sizeof *one->class_name);
        dataset->classes = one->classes;
    }
    int rc = 0;
    for (uint32_t i = 0; i < concat->parts; i++) {
        const struct dataset *part = concat->part[i];
        for (uint32_t k = 0; k < dataset->classes; k++)
            dataset->class_samples[k] += part->class_samples[k];
        for (uint32_t k = 0; k < part->remarks && rc == 0; k++)
            rc = dataset_add_remark(dataset, "%s: %s", part->path, part->remark[k]);
    }
    return rc;
}

static void fingerprint(struct dataset *dataset, const struct concat *concat) {
    struct hash hash;
    hash_begin(&hash, "concat");
    hash_u64(&hash, concat->parts);
    for (uint32_t i = 0; i < concat->parts; i++) {
        hash_u64(&hash, concat->part[i]->samples);
        hash_bytes(&hash, concat->part[i]->fingerprint, sizeof concat->part[i]->fingerprint);
    }
    hash_end(&hash, dataset->fingerprint);
}

static int concat_open(struct dataset *dataset, const struct dataset_options *options, struct diag *diag) {
    bool own_index =
        options->index && *options->index && strcmp(options->index, "auto") != 0 && strcmp(options->index, "none") != 0;
    if (own_index)
        return diag_set(diag, -EINVAL, "index = %s: one file cannot be the index of several datasets; use auto or none",
                        options->index);
    struct concat *concat = calloc(1, sizeof *concat);
    if (!concat)
        return -ENOMEM;
    dataset->state = concat;
    int rc = open_parts(concat, options, diag);
    if (rc < 0)
        return rc;
    const struct dataset *one = concat->part[0];
    dataset->samples = concat->first[concat->parts];
    dataset->fields = one->fields;
    memcpy(dataset->field, one->field, sizeof dataset->field);
    dataset->sources = concat->parts;
    dataset->source_first = concat->first;
    fingerprint(dataset, concat);
    dataset->unsplit = true;
    for (uint32_t i = 0; i < concat->parts; i++)
        dataset->unsplit = dataset->unsplit && !dataset_splits(concat->part[i]);
    rc = join_shards(dataset, concat);
    if (rc == 0)
        rc = join_words(dataset, concat);
    return rc < 0 ? rc : dataset_set_note(dataset, "of %u datasets; the first: %s", concat->parts, one->index_note);
}

static void concat_close(struct dataset *dataset) {
    struct concat *concat = dataset->state;
    if (!concat)
        return;
    for (uint32_t i = 0; i < concat->parts; i++)
        dataset_free(concat->part[i]);
    free(concat->shard);
    free(concat);
    dataset->state = NULL;
}

/* ---- samples ----------------------------------------------------------------------------------------------------- */

/* The part that holds a sample, and its number there. */
static const struct dataset *find_part(const struct dataset *dataset, uint64_t sample, uint64_t *ret_sample) {
    const struct concat *concat = dataset->state;
    uint32_t low = 0, high = concat->parts;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (concat->first[middle] <= sample)
            low = middle;
        else
            high = middle;
    }
    *ret_sample = sample - concat->first[low];
    return concat->part[low];
}

static void concat_locate(const struct dataset *dataset, uint64_t sample, struct location *ret) {
    const struct dataset *part = find_part(dataset, sample, &sample);
    part->format->locate(part, sample, ret);
}

static int concat_name(const struct dataset *dataset, uint64_t sample, char *buffer, size_t size) {
    const struct dataset *part = find_part(dataset, sample, &sample);
    return part->format->name_sample(part, sample, buffer, size);
}

static void concat_synthesize(const struct dataset *dataset, uint64_t sample, uint32_t field, void *out) {
    const struct dataset *part = find_part(dataset, sample, &sample);
    dataset_synthesize(part, sample, field, out);
}

static int concat_check(const struct dataset *dataset, uint64_t sample, uint32_t extent, const void *bytes,
                        size_t length, uint32_t *state, struct diag *diag) {
    const struct dataset *part = find_part(dataset, sample, &sample);
    return dataset_check(part, sample, extent, bytes, length, state, diag);
}

static int concat_split(const struct dataset *dataset, uint64_t sample, const uint8_t *bytes, size_t length,
                        struct dataset_piece *ret, int64_t *ret_value, struct diag *diag) {
    const struct dataset *part = find_part(dataset, sample, &sample);
    return dataset_split(part, sample, bytes, length, ret, ret_value, diag);
}

const struct dataset_format format_concat = {
    .name = "concat",
    .takes = TAKES_ALL, /* its parts will say */
    .open = concat_open,
    .close = concat_close,
    .locate = concat_locate,
    .name_sample = concat_name,
    .synthesize = concat_synthesize,
    .check = concat_check,
    .split = concat_split,
};
