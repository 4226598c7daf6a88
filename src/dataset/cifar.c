/* SPDX-License-Identifier: MIT */
/*
 * Formats cifar10 and cifar100: the binary versions of these sets, as presets of raw records.
 *
 *   cifar10    label:u8 image:u8[3,32,32]                  DIR is DIR/data_batch_*.bin      names in batches.meta.txt
 *   cifar100   coarse-label:u8 label:u8 image:u8[3,32,32]  DIR is DIR/train.bin             in fine_label_names.txt
 *
 * The path is the folder (then the training files), or files as for raw (test_batch.bin, test.bin). The classes' names
 * are read where their file lies beside the data. A label that no class has is refused at open: every one is looked at.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "dataset/format.h"

#define NAMES_BYTES 65536

struct preset {
    const char *record, *training, *names;
    uint32_t classes;
    uint64_t label_offset, record_bytes;
};

static const struct preset cifar10 = {
    .record = "label:u8 image:u8[3,32,32]",
    .training = "data_batch_*.bin",
    .names = "batches.meta.txt",
    .classes = 10,
    .label_offset = 0,
    .record_bytes = 3073,
};
static const struct preset cifar100 = {
    .record = "coarse-label:u8 label:u8 image:u8[3,32,32]",
    .training = "train.bin",
    .names = "fine_label_names.txt",
    .classes = 100,
    .label_offset = 1,
    .record_bytes = 3074,
};

/* ---- classes --------------------------------------------------------------------------------------------------- */

static int count_labels(struct dataset *dataset, const struct preset *preset, const struct shards *shards,
                        struct diag *diag) {
    for (size_t i = 0; i < shards->count; i++)
        for (uint64_t k = 0; k < shards->first[i + 1] - shards->first[i]; k++) {
            uint8_t label;
            int rc =
                source_file_read(&shards->file[i], &label, 1, k * preset->record_bytes + preset->label_offset, diag);
            if (rc < 0)
                return rc;
            if (label >= preset->classes)
                return diag_set(diag, -EINVAL,
                                "%s: label %u of record %llu is none of the %u classes: this is no file "
                                "of %s",
                                shards->file[i].path, label, (unsigned long long)k, preset->classes,
                                dataset->format->name);
            dataset->class_samples[label]++;
        }
    return 0;
}

/* Points the classes' names into the text, one a line; false where there are not enough of them. */
static bool split_names(struct dataset *dataset, char *text) {
    uint32_t count = 0;
    char *state = NULL;
    for (char *line = strtok_r(text, "\r\n", &state); line; line = strtok_r(NULL, "\r\n", &state))
        if (count < dataset->classes)
            dataset->class_name[count++] = line;
    return count == dataset->classes;
}

/* The names beside the data, else "0", "1", ... */
static int name_classes(struct dataset *dataset, const char *file, const char *names) {
    char path[4096];
    const char *slash = strrchr(file, '/');
    dataset->class_text = calloc(1, NAMES_BYTES + 1);
    if (!dataset->class_text)
        return -ENOMEM;
    snprintf(path, sizeof path, "%.*s%s", slash ? (int)(slash + 1 - file) : 0, file, names);
    cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, dataset->class_text, NAMES_BYTES);
    if (got > 0 && split_names(dataset, dataset->class_text))
        return 0;
    char *p = dataset->class_text;
    memset(p, 0, NAMES_BYTES);
    for (uint32_t i = 0; i < dataset->classes; i++) {
        dataset->class_name[i] = p;
        p += snprintf(p, 8, "%u", i) + 1;
    }
    return got < 0 ? dataset_add_remark(dataset, "no %s beside the data: classes have no names", names)
                   : dataset_add_remark(dataset, "%s holds other than %u names: not used", path, dataset->classes);
}

/* ---- the formats ----------------------------------------------------------------------------------------------- */

static int cifar_open(struct dataset *dataset, const struct preset *preset, struct diag *diag) {
    struct stat status;
    cleanup_free char *training = NULL;
    const char *path = dataset->path;
    if (stat(path, &status) == 0 && S_ISDIR(status.st_mode)) {
        if (asprintf(&training, "%s/%s", path, preset->training) < 0) {
            training = NULL;
            return -ENOMEM;
        }
        path = training;
    }
    const struct shards *shards;
    const struct dataset_options options = {.record = preset->record};
    int rc = raw_open_path(dataset, path, &options, &shards, diag);
    if (rc < 0)
        return rc;
    dataset->classes = preset->classes;
    dataset->class_name = calloc(preset->classes, sizeof *dataset->class_name);
    dataset->class_samples = calloc(preset->classes, sizeof *dataset->class_samples);
    if (!dataset->class_name || !dataset->class_samples)
        return -ENOMEM;
    rc = count_labels(dataset, preset, shards, diag);
    return rc < 0 ? rc : name_classes(dataset, shards->file[0].path, preset->names);
}

static int cifar10_open(struct dataset *dataset, const struct dataset_options *options, struct diag *diag) {
    (void)options;
    return cifar_open(dataset, &cifar10, diag);
}

static int cifar100_open(struct dataset *dataset, const struct dataset_options *options, struct diag *diag) {
    (void)options;
    return cifar_open(dataset, &cifar100, diag);
}

static bool holds(int folder, const char *name, uint64_t record_bytes) {
    struct stat status;
    return fstatat(folder, name, &status, 0) == 0 && S_ISREG(status.st_mode) && status.st_size > 0 &&
           (uint64_t)status.st_size % record_bytes == 0;
}

static bool cifar10_detect_folder(int folder) {
    return holds(folder, "data_batch_1.bin", cifar10.record_bytes);
}

static bool cifar100_detect_folder(int folder) {
    return holds(folder, "train.bin", cifar100.record_bytes) && holds(folder, "fine_label_names.txt", 1);
}

const struct dataset_format format_cifar10 = {
    .name = "cifar10",
    .detect_folder = cifar10_detect_folder,
    .open = cifar10_open,
    .close = raw_close,
    .locate = raw_locate,
    .name_sample = raw_name,
};

const struct dataset_format format_cifar100 = {
    .name = "cifar100",
    .detect_folder = cifar100_detect_folder,
    .open = cifar100_open,
    .close = raw_close,
    .locate = raw_locate,
    .name_sample = raw_name,
};
