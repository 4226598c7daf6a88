/* SPDX-License-Identifier: MIT */
/*
 * Pictures with masks: beside a folder or list of pictures, a second folder that holds a label picture for each, under
 * the same relative name with any picture ending ("a/cat.jpg" and MASKS/a/cat.png). It is the extent and field behind
 * the picture's; all else is the first dataset's.
 *
 * The two are joined by name once, at open: 8 bytes a sample are kept. A picture without a mask, and two masks for one
 * name, are errors then; masks without a picture are not. Never reads a picture. Opening is for one thread; afterwards
 * everything is constant.
 */
#include <string.h>

#include "dataset/format.h"

struct masks {
    struct dataset *pictures, *labels;
    uint64_t *mask_of; /* sample of `labels`, by sample of `pictures` */
};

static const char *sample_path(const struct dataset *dataset, uint64_t sample) {
    return index_sample_name(&dataset->index, sample);
}

/* Length of a path without its ending. */
static size_t stem_length(const char *path) {
    const char *slash = strrchr(path, '/'), *dot = strrchr(slash ? slash : path, '.');
    return dot ? (size_t)(dot - path) : strlen(path);
}

static int compare_stems(const char *a, const char *b) {
    size_t x = stem_length(a), y = stem_length(b);
    int order = memcmp(a, b, MIN(x, y));
    return order ? order : (x > y) - (x < y);
}

static int compare_samples(const void *a, const void *b, void *dataset) {
    return compare_stems(sample_path(dataset, *(const uint64_t *)a), sample_path(dataset, *(const uint64_t *)b));
}

/* Samples of the masks in the order of their stems. */
static int sort_masks(struct dataset *labels, uint64_t **ret, struct diag *diag) {
    uint64_t *order = malloc(labels->samples * sizeof *order);
    if (!order)
        return -ENOMEM;
    for (uint64_t i = 0; i < labels->samples; i++)
        order[i] = i;
    qsort_r(order, labels->samples, sizeof *order, compare_samples, labels);
    for (uint64_t i = 1; i < labels->samples; i++) {
        if (compare_samples(&order[i - 1], &order[i], labels) != 0)
            continue;
        int rc = diag_set(diag, -EINVAL, "masks %s: %s and %s are both masks of one picture", labels->path,
                          sample_path(labels, order[i - 1]), sample_path(labels, order[i]));
        free(order);
        return rc;
    }
    *ret = order;
    return 0;
}

static uint64_t find_mask(const struct dataset *labels, const uint64_t *order, const char *path) {
    uint64_t low = 0, high = labels->samples;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        int comparison = compare_stems(sample_path(labels, order[middle]), path);
        if (comparison == 0)
            return order[middle];
        if (comparison < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return UINT64_MAX;
}

static int join(struct masks *masks, struct diag *diag) {
    const struct dataset *pictures = masks->pictures;
    cleanup_free uint64_t *order = NULL;
    uint64_t missing = 0, example = 0;
    int rc = sort_masks(masks->labels, &order, diag);
    if (rc < 0)
        return rc;
    masks->mask_of = malloc(pictures->samples * sizeof *masks->mask_of);
    if (!masks->mask_of)
        return -ENOMEM;
    for (uint64_t i = 0; i < pictures->samples; i++) {
        masks->mask_of[i] = find_mask(masks->labels, order, sample_path(pictures, i));
        if (masks->mask_of[i] == UINT64_MAX && missing++ == 0)
            example = i;
    }
    if (missing == 0)
        return 0;
    const char *path = sample_path(pictures, example);
    return diag_set(diag, -ENOENT, "masks %s: %llu of %llu pictures have none, e.g. %s: wanted %s/%.*s.png or the like",
                    masks->labels->path, (unsigned long long)missing, (unsigned long long)pictures->samples, path,
                    masks->labels->path, (int)stem_length(path), path);
}

/* ---- fields ------------------------------------------------------------------------------------------------------- */

static void set_fields(struct dataset *dataset, const struct masks *masks) {
    struct hash hash;
    dataset->fields = masks->pictures->fields;
    memcpy(dataset->field, masks->pictures->field, dataset->fields * sizeof *dataset->field);
    dataset_set_mask_field(&dataset->field[dataset->fields++], 1);
    hash_begin(&hash, "masks");
    hash_bytes(&hash, masks->pictures->fingerprint, sizeof masks->pictures->fingerprint);
    hash_bytes(&hash, masks->labels->fingerprint, sizeof masks->labels->fingerprint);
    hash_end(&hash, dataset->fingerprint);
}

/* ---- the format -------------------------------------------------------------------------------------------------- */

static int masks_open(struct dataset *dataset, const struct dataset_options *options, struct diag *diag) {
    struct masks *masks = dataset->state = calloc(1, sizeof *masks);
    if (!masks)
        return -ENOMEM;
    struct dataset_options first = *options, second = {.path = options->masks,
                                                       .format = "folder",
                                                       .index = options->index,
                                                       .progress = options->progress,
                                                       .progress_arg = options->progress_arg};
    first.masks = first.bytes = NULL;
    if (options->index && strchr(options->index, '/'))
        second.index = "auto"; /* the file named is for the pictures' index */
    int rc = dataset_open(&first, &masks->pictures, diag);
    if (rc < 0)
        return rc;
    const struct dataset_format *format = masks->pictures->format;
    if (format != &format_folder && format != &format_list)
        return diag_set(diag, -EINVAL, "%s: 'masks' goes with a folder or a list of pictures, this is format %s",
                        options->path, format->name);
    if (masks->pictures->index.header.flags & INDEX_MASKS)
        return diag_set(diag, -EINVAL, "%s: the list names masks itself: take the key 'masks' away", options->path);
    rc = dataset_open(&second, &masks->labels, diag);
    if (rc < 0)
        return diag_prefix(diag, "masks");
    rc = join(masks, diag);
    if (rc == 0)
        rc = dataset_take_over(dataset, masks->pictures);
    if (rc == 0)
        set_fields(dataset, masks);
    return rc;
}

static void masks_close(struct dataset *dataset) {
    struct masks *masks = dataset->state;
    if (!masks)
        return;
    dataset_free(masks->pictures);
    dataset_free(masks->labels);
    free(masks->mask_of);
    free(masks);
}

static void masks_locate(const struct dataset *dataset, uint64_t sample, struct location *ret) {
    const struct masks *masks = dataset->state;
    struct location mask;
    dataset_locate(masks->pictures, sample, ret);
    dataset_locate(masks->labels, masks->mask_of[sample], &mask);
    ret->extent[1] = mask.extent[0];
    ret->extents = 2;
}

static int masks_name(const struct dataset *dataset, uint64_t sample, char *buffer, size_t size) {
    const struct masks *masks = dataset->state;
    return masks->pictures->format->name_sample(masks->pictures, sample, buffer, size);
}

const struct dataset_format format_masks = {
    .name = "pictures with masks",
    .takes = TAKES_ALL, /* the pictures' format will say */
    .open = masks_open,
    .close = masks_close,
    .locate = masks_locate,
    .name_sample = masks_name,
};
