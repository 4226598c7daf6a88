/* SPDX-License-Identifier: MIT */
/*
 * Pictures with YOLO labels: for each picture of a folder or list a text file of rectangles (boxes.c), found by its
 * name alone. It is the extent and field behind the picture's; all else is the first dataset's.
 *
 *   boxes = beside   images/a/x.jpg -> labels/a/x.txt   the last component `images` of the path becomes `labels`, as in
 *                                                       darknet; a path without one has the labels beside the pictures
 *   boxes = FOLDER   a/x.jpg -> FOLDER/a/x.txt
 *
 * A picture without a file of labels has no boxes, as everybody who reads these sets has it; a set none of whose pictures
 * has one is an error. Folders of labels are listed once, at open; no file is opened or looked up. 8 bytes and a name a
 * sample are kept. Opening is for one thread; afterwards everything is constant.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "dataset/format.h"

#define BESIDE "beside"
#define NONE UINT64_MAX

/* The text files of one folder. */
struct listing {
    char *folder;
    struct buffer names; /* NUL-ended */
    uint64_t *offset;    /* in byte order of the names */
    size_t count;
};

struct yolo {
    struct dataset *pictures;
    uint32_t extent;          /* of the labels: the one behind the pictures' */
    char *folder;             /* FOLDER; NULL: beside */
    int root;                 /* of the labels' names; -1 */
    struct source_file empty; /* stands for labels that are not there */
    struct buffer names;      /* of the labels, NUL-ended, relative to `root` */
    uint64_t *name_of;        /* by sample; NONE */
    struct listing *listing;  /* while opening, in byte order of their folders */
    size_t listings, last;
};

/* ---- names: pure ------------------------------------------------------------------------------------------------- */

/* The last component `images` of a path, at its beginning or behind a slash, before `end`. */
static const char *find_images(const char *path, const char *end) {
    const char *found = NULL;
    for (const char *p = path; (p = strstr(p, "images")) && p < end; p += 6)
        if ((p == path || p[-1] == '/') && (p[6] == '/' || p[6] == '\0'))
            found = p;
    return found;
}

bool yolo_label_path(const char *path, bool beside, char *ret, size_t size) {
    const char *slash = strrchr(path, '/'), *last = slash ? slash + 1 : path, *dot = strrchr(last, '.');
    size_t stem = dot && dot > last ? (size_t)(dot - path) : strlen(path);
    const char *images = beside ? find_images(path, last) : NULL;
    if (stem + 5 > size)
        return false;
    memcpy(ret, path, stem);
    if (images)
        memcpy(ret + (images - path), "labels", 6);
    memcpy(ret + stem, ".txt", 5);
    return true;
}

/* ---- which labels there are -------------------------------------------------------------------------------------- */

static int note_entry(void *arg, const char *name, unsigned char kind) {
    struct listing *l = arg;
    size_t length = strlen(name);
    (void)kind; /* links lead to files; what is none is a bad sample when it is read */
    if (length < 5 || strcmp(name + length - 4, ".txt") != 0)
        return 0;
    l->count++;
    return buffer_append(&l->names, name, length + 1);
}

/* Lists a folder; one that is not there holds nothing. */
static int read_listing(struct yolo *yolo, struct listing *l, struct diag *diag) {
    struct buffer scratch = BUFFER_INIT;
    cleanup_close int fd = openat(yolo->root, *l->folder ? l->folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 && (errno == ENOENT || errno == ENOTDIR))
        return 0;
    if (fd < 0)
        return diag_set(diag, -errno, "labels in %s: %s", l->folder, strerror(errno));
    int rc = directory_read(fd, &scratch, note_entry, l);
    buffer_deinit(&scratch);
    if (rc == 0 && l->count && !(l->offset = malloc(l->count * sizeof *l->offset)))
        rc = -ENOMEM;
    for (size_t i = 0, at = 0; i < l->count && rc == 0; i++, at += strlen(l->names.data + at) + 1)
        l->offset[i] = at;
    return rc == 0 && l->count ? names_sort(l->names.data, l->offset, l->count) : rc;
}

static void listing_deinit(struct listing *l) {
    free(l->folder);
    free(l->offset);
    buffer_deinit(&l->names);
}

/* The listing of a folder; those that have been read are kept. NULL: no memory, or *ret_error. */
static const struct listing *find_listing(struct yolo *yolo, const char *folder, size_t length, int *ret_error,
                                          struct diag *diag) {
    size_t low = 0, high = yolo->listings;
    if (yolo->last < high && strlen(yolo->listing[yolo->last].folder) == length &&
        memcmp(yolo->listing[yolo->last].folder, folder, length) == 0)
        return &yolo->listing[yolo->last];
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const char *other = yolo->listing[middle].folder;
        int order = strncmp(other, folder, length);
        if (order == 0 && !other[length])
            return &yolo->listing[yolo->last = middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    struct listing added = {.folder = strndup(folder, length)};
    struct listing *grown = realloc(yolo->listing, (yolo->listings + 1) * sizeof *grown);
    if (grown)
        yolo->listing = grown;
    *ret_error = grown && added.folder ? read_listing(yolo, &added, diag) : -ENOMEM;
    if (*ret_error < 0) {
        listing_deinit(&added);
        return NULL;
    }
    memmove(grown + low + 1, grown + low, (yolo->listings - low) * sizeof *grown);
    grown[low] = added;
    yolo->listings++;
    yolo->last = low;
    return &grown[low];
}

static bool listed(const struct listing *l, const char *name) {
    size_t low = 0, high = l->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(l->names.data + l->offset[middle], name);
        if (order == 0)
            return true;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return false;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

/* Where the labels' names count from: their folder; beside, that of the pictures, with its own `images` replaced where
 * there is none in the names below it. */
static int open_root(struct dataset *dataset, struct yolo *yolo, struct diag *diag) {
    const char *pictures = dataset->root_path ? dataset->root_path : "";
    cleanup_free char *path = strdup(yolo->folder ? yolo->folder : pictures);
    if (!path)
        return -ENOMEM;
    struct location location;
    dataset_locate(yolo->pictures, 0, &location);
    const char *name = location.extent[0].path, *slash = strrchr(name, '/');
    bool below = slash && find_images(name, slash);
    char *images = yolo->folder || below ? NULL : (char *)(uintptr_t)find_images(path, path + strlen(path));
    if (images)
        memcpy(images, "labels", 6);
    yolo->root = open(*path ? path : ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (yolo->root < 0)
        return diag_set(diag, -errno, "boxes: the folder of labels %s: %s", path, strerror(errno));
    return 0;
}

/* A file without bytes, which labels that are not there are read from. */
static int open_empty(struct yolo *yolo, struct diag *diag) {
    struct stat status;
    yolo->empty.path = strdup("(no labels)");
    yolo->empty.fd = memfd_create("loaderd-no-labels", MFD_CLOEXEC);
    if (!yolo->empty.path)
        return -ENOMEM;
    if (yolo->empty.fd < 0 || fstat(yolo->empty.fd, &status) < 0)
        return diag_set(diag, -errno, "boxes: no empty file: %s", strerror(errno));
    yolo->empty.identity =
        (struct file_identity){.device = status.st_dev, .inode = status.st_ino, .mtime_ns = dataset_mtime(&status)};
    return 0;
}

static int find_label(struct yolo *yolo, const char *path, uint64_t *ret, struct diag *diag) {
    char label[4096];
    int error = 0;
    *ret = NONE;
    if (yolo->folder && *path == '/')
        return diag_set(diag, -EINVAL,
                        "boxes = %s: the list's path %s is absolute, so that it has no place below this "
                        "folder; use boxes = " BESIDE ", or relative paths",
                        yolo->folder, path);
    if (!yolo_label_path(path, !yolo->folder, label, sizeof label))
        return 0;
    const char *slash = strrchr(label, '/');
    const struct listing *l = find_listing(yolo, label, slash ? (size_t)(slash - label) : 0, &error, diag);
    if (!l)
        return error;
    if (!listed(l, slash ? slash + 1 : label))
        return 0;
    *ret = yolo->names.length;
    return buffer_append(&yolo->names, label, strlen(label) + 1);
}

static int find_labels(struct dataset *dataset, struct yolo *yolo, struct diag *diag) {
    uint64_t missing = 0;
    int rc = 0;
    yolo->name_of = malloc(dataset->samples * sizeof *yolo->name_of);
    if (!yolo->name_of)
        return -ENOMEM;
    for (uint64_t i = 0; i < dataset->samples && rc == 0; i++) {
        struct location location;
        dataset_locate(yolo->pictures, i, &location);
        rc = find_label(yolo, location.extent[0].path, &yolo->name_of[i], diag);
        missing += yolo->name_of[i] == NONE;
    }
    if (rc == 0 && missing == dataset->samples) {
        struct location location;
        char label[4096] = "";
        dataset_locate(yolo->pictures, 0, &location);
        yolo_label_path(location.extent[0].path, !yolo->folder, label, sizeof label);
        return diag_set(diag, -ENOENT, "boxes = %s: no picture of %s has labels; wanted was e.g. %s%s%s",
                        yolo->folder ? yolo->folder : BESIDE, dataset->path, yolo->folder ? yolo->folder : "",
                        yolo->folder ? "/" : "", label);
    }
    if (rc == 0 && missing)
        rc = dataset_add_remark(dataset, "%llu of %llu pictures have no file of labels: they have no boxes",
                                (unsigned long long)missing, (unsigned long long)dataset->samples);
    return rc;
}

static void set_fingerprint(struct dataset *dataset, const struct yolo *yolo) {
    struct hash hash;
    hash_begin(&hash, "pictures with YOLO labels");
    hash_bytes(&hash, yolo->pictures->fingerprint, sizeof yolo->pictures->fingerprint);
    hash_u64(&hash, dataset->boxes.form);
    hash_u64(&hash, dataset->boxes.relative);
    for (uint64_t i = 0; i < dataset->samples; i++)
        hash_string(&hash, yolo->name_of[i] == NONE ? "" : yolo->names.data + yolo->name_of[i]);
    hash_end(&hash, dataset->fingerprint);
}

static int set_fields(struct dataset *dataset, struct yolo *yolo, const struct dataset_options *options,
                      struct diag *diag) {
    struct location location;
    dataset_locate(yolo->pictures, 0, &location);
    yolo->extent = location.extents;
    if (!location.extents || !location.extent[0].path || yolo->extent == MAX_EXTENTS)
        return diag_set(diag, -EINVAL, "%s: 'boxes' goes with a folder or a list of pictures, this is format %s",
                        options->path, dataset_format(yolo->pictures));
    dataset->fields = yolo->pictures->fields;
    memcpy(dataset->field, yolo->pictures->field, dataset->fields * sizeof *dataset->field);
    boxes_set_field(dataset, &dataset->field[dataset->fields++], yolo->extent);
    return boxes_source_init(&dataset->boxes, BOXES_YOLO, options, diag);
}

static int yolo_open(struct dataset *dataset, const struct dataset_options *options, struct diag *diag) {
    struct yolo *yolo = dataset->state = calloc(1, sizeof *yolo);
    if (!yolo)
        return -ENOMEM;
    yolo->root = yolo->empty.fd = -1;
    struct dataset_options first = *options;
    first.boxes = first.bytes = NULL;
    if (strcmp(options->boxes, BESIDE) != 0 && !(yolo->folder = strdup(options->boxes)))
        return -ENOMEM;
    int rc = dataset_open(&first, &yolo->pictures, diag);
    if (rc == 0)
        rc = set_fields(dataset, yolo, options, diag);
    if (rc == 0)
        rc = dataset_take_over(dataset, yolo->pictures);
    if (rc == 0)
        rc = open_root(dataset, yolo, diag);
    if (rc == 0)
        rc = open_empty(yolo, diag);
    if (rc == 0)
        rc = find_labels(dataset, yolo, diag);
    for (size_t i = 0; i < yolo->listings; i++)
        listing_deinit(&yolo->listing[i]);
    free(yolo->listing);
    yolo->listing = NULL;
    yolo->listings = 0;
    if (rc == 0)
        set_fingerprint(dataset, yolo);
    return rc;
}

static void yolo_close(struct dataset *dataset) {
    struct yolo *yolo = dataset->state;
    if (!yolo)
        return;
    dataset_free(yolo->pictures);
    source_file_close(&yolo->empty);
    if (yolo->root >= 0)
        close(yolo->root);
    buffer_deinit(&yolo->names);
    free(yolo->name_of);
    free(yolo->folder);
    free(yolo);
    dataset->state = NULL;
}

static void yolo_locate(const struct dataset *dataset, uint64_t sample, struct location *ret) {
    const struct yolo *yolo = dataset->state;
    uint64_t name = yolo->name_of[sample];
    dataset_locate(yolo->pictures, sample, ret);
    ret->extents = yolo->extent + 1;
    ret->extent[yolo->extent] =
        name == NONE
            ? (struct extent){.file = &yolo->empty, .dirfd = -1}
            : (struct extent){.path = yolo->names.data + name, .dirfd = yolo->root, .length = EXTENT_WHOLE_FILE};
}

static int yolo_name(const struct dataset *dataset, uint64_t sample, char *buffer, size_t size) {
    const struct yolo *yolo = dataset->state;
    return dataset_name(yolo->pictures, sample, buffer, size);
}

const struct dataset_format format_yolo = {
    .name = "pictures with boxes",
    .takes = TAKES_ALL, /* the pictures' format will say */
    .open = yolo_open,
    .close = yolo_close,
    .locate = yolo_locate,
    .name_sample = yolo_name,
};
