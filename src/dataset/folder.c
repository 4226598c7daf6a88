/* SPDX-License-Identifier: MIT */
/*
 * A folder of pictures: one sub-folder a class, or pictures directly in it (flat, no labels).
 *
 * - Class numbers follow the byte order of the sub-folders' names ("10" before "2"), or a class list file. An empty
 *   class keeps its number. Entries whose name begins with '.' do not exist.
 * - Below a class everything is walked, in torchvision's order: by directory path, then by file name, in byte order.
 * - A sample is an entry with a picture ending that is a regular file or a symbolic link; what it leads to is not
 *   looked at (a dangling link or an unreadable file is a bad sample, found when it is read). A link without such an
 *   ending may lead to a directory, which is walked. A directory is never a sample.
 * - Each directory is read once; no file is touched. A directory that cannot be read is an error: samples that vanish
 *   unseen would shift everything behind them.
 *
 * It never reads a sample. Opening is for one thread.
 */
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "dataset/format.h"

#define SCAN_RULES "folder scan 1" /* changes whenever the same folder would give other samples */
#define CLASS_LIST_BYTES (UINT64_C(64) << 20)
#define REMARKS_EACH 16 /* of one kind, then a sum */
#define NO_PARENT UINT64_MAX

/* A directory of a tree. */
struct found {
    uint64_t path;              /* offset in tree.names, relative to the root */
    uint64_t parent;            /* index, NO_PARENT */
    uint64_t first_file, files; /* in tree.file */
    dev_t device;
    ino_t inode;
    int64_t mtime_ns;
    bool skipped;
};

/* What was read of the root alone, or of one class. */
struct tree {
    struct buffer names, file, directory; /* file: u64 offsets in names; directory: struct found */
};

/* How many entries of a kind were left out, and the first in byte order as an example. */
struct left_out {
    uint64_t count;
    char example[NAME_MAX + 1];
};

struct class_list {
    struct buffer text;
    uint64_t *name;   /* offsets in text, by number */
    uint64_t *sorted; /* the same by name */
    size_t count;
    bool given;
};

struct walk {
    struct dataset *dataset;
    const struct dataset_options *options;
    struct index_builder *builder;
    struct diag *diag;
    struct class_list classes;
    struct buffer scratch;
    dev_t root_device;
    ino_t root_inode;
    struct left_out other_endings, picture_directories, loops;
    /* while a directory is read */
    struct tree *tree;
    uint64_t current;
    int fd;
};

static void left_out_note(struct left_out *left_out, const char *name) {
    if (left_out->count++ != 0 && strcmp(name, left_out->example) >= 0)
        return;
    size_t length = strnlen(name, sizeof left_out->example - 1);
    memcpy(left_out->example, name, length);
    left_out->example[length] = '\0';
}

static void tree_deinit(struct tree *tree) {
    buffer_deinit(&tree->names);
    buffer_deinit(&tree->file);
    buffer_deinit(&tree->directory);
}

static struct found *tree_directory(const struct tree *tree, uint64_t i) {
    return (struct found *)(void *)tree->directory.data + i;
}

static uint64_t tree_directories(const struct tree *tree) {
    return tree->directory.length / sizeof(struct found);
}

static int tree_add_directory(struct tree *tree, const char *path, uint64_t parent) {
    struct found found = {.path = tree->names.length, .parent = parent};
    int rc = buffer_append(&tree->names, path, strlen(path) + 1);
    return rc < 0 ? rc : buffer_append(&tree->directory, &found, sizeof found);
}

/* ---- reading one directory ------------------------------------------------------------------------------------- */

static int add_subdirectory(struct walk *walk, const char *name) {
    const char *above = walk->tree->names.data + tree_directory(walk->tree, walk->current)->path;
    char path[PATH_MAX];
    int n = snprintf(path, sizeof path, "%s%s%s", above, *above ? "/" : "", name);
    if (n >= PATH_MAX - NAME_MAX - 1)
        return diag_set(walk->diag, -ENAMETOOLONG, "%s: a path below it is longer than %d bytes: %.100s...",
                        walk->dataset->path, PATH_MAX - NAME_MAX - 1, path);
    if (dataset_is_picture_name(name))
        left_out_note(&walk->picture_directories, name);
    return tree_add_directory(walk->tree, path, walk->current);
}

static int take_entry(void *arg, const char *name, unsigned char kind) {
    struct walk *walk = arg;
    bool picture = dataset_is_picture_name(name);
    if (kind == DT_LNK && !picture) {
        struct stat status;
        if (fstatat(walk->fd, name, &status, 0) == 0 && S_ISDIR(status.st_mode))
            kind = DT_DIR;
    }
    if (kind == DT_DIR)
        return add_subdirectory(walk, name);
    if (!picture || (kind != DT_REG && kind != DT_LNK)) {
        left_out_note(&walk->other_endings, name);
        return 0;
    }
    struct tree *tree = walk->tree;
    uint64_t at = tree->names.length;
    if (buffer_append(&tree->names, name, strlen(name) + 1) < 0 || buffer_append(&tree->file, &at, sizeof at) < 0)
        return -ENOMEM;
    if (++tree_directory(tree, walk->current)->files % 4096 == 0)
        index_tick(walk->builder, index_builder_samples(walk->builder) + tree->file.length / sizeof at);
    return 0;
}

/* Does the directory lie inside itself (by a symbolic link)? */
static bool is_loop(const struct walk *walk, const struct found *found) {
    if (walk->tree->names.data[found->path] == '\0') /* the root */
        return false;
    for (uint64_t i = found->parent; i != NO_PARENT; i = tree_directory(walk->tree, i)->parent) {
        const struct found *above = tree_directory(walk->tree, i);
        if (above->device == found->device && above->inode == found->inode)
            return true;
    }
    return found->device == walk->root_device && found->inode == walk->root_inode;
}

static int read_failed(const struct walk *walk, const char *path, int code) {
    if (code == -ENOMEM || (walk->diag && walk->diag->code == code))
        return code;
    return diag_set(walk->diag, code, "%s%s%s: cannot read this folder: %s", walk->dataset->path, *path ? "/" : "",
                    path, strerror(-code));
}

/* Reads directory number `i` of the tree: its files, and its sub-directories as new members of the tree. */
static int read_directory(struct walk *walk, struct tree *tree, uint64_t i) {
    struct found *found = tree_directory(tree, i);
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s", tree->names.data + found->path);
    cleanup_close int fd = openat(walk->dataset->root, *path ? path : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct stat status;
    if (fd < 0 || fstat(fd, &status) < 0)
        return read_failed(walk, path, -errno);
    walk->tree = tree;
    walk->current = i;
    walk->fd = fd;
    found->device = status.st_dev;
    found->inode = status.st_ino;
    found->mtime_ns = dataset_mtime(&status);
    found->first_file = tree->file.length / sizeof(uint64_t);
    if (is_loop(walk, found)) {
        const char *slash = strrchr(path, '/');
        left_out_note(&walk->loops, slash ? slash + 1 : path);
        found->skipped = true;
        return 0;
    }
    int rc = directory_read(fd, &walk->scratch, take_entry, walk);
    index_tick(walk->builder, index_builder_samples(walk->builder) + tree->file.length / sizeof(uint64_t));
    return rc < 0 ? read_failed(walk, path, rc) : 0;
}

/* ---- from trees to samples ------------------------------------------------------------------------------------- */

static int compare_found(const void *a, const void *b, void *names) {
    const struct found *x = a, *y = b;
    return strcmp((const char *)names + x->path, (const char *)names + y->path);
}

/* Adds the tree's samples in order, and its directories. The tree's links between directories are lost. */
static int emit(struct walk *walk, struct tree *tree, int64_t label) {
    uint64_t count = tree_directories(tree);
    if (count > 1)
        qsort_r(tree->directory.data, count, sizeof(struct found), compare_found, tree->names.data);
    for (uint64_t i = 0; i < count; i++) {
        const struct found *found = tree_directory(tree, i);
        const char *path = tree->names.data + found->path;
        if (found->skipped)
            continue;
        uint64_t *file = (uint64_t *)(void *)tree->file.data;
        if (found->files)
            file += found->first_file;
        int rc = names_sort(tree->names.data, file, found->files);
        if (rc == 0)
            rc = index_add_directory(walk->builder, path, found->mtime_ns);
        for (uint64_t k = 0; k < found->files && rc == 0; k++)
            rc = index_add_sample(walk->builder, path, tree->names.data + file[k], label);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int scan_class(struct walk *walk, const char *name, int64_t label, uint64_t *ret_samples) {
    struct tree tree = {BUFFER_INIT, BUFFER_INIT, BUFFER_INIT};
    int rc = tree_add_directory(&tree, name, NO_PARENT);
    for (uint64_t i = 0; rc == 0 && i < tree_directories(&tree); i++)
        rc = read_directory(walk, &tree, i);
    if (rc == 0)
        rc = emit(walk, &tree, label);
    *ret_samples = tree.file.length / sizeof(uint64_t);
    tree_deinit(&tree);
    return rc;
}

/* ---- classes --------------------------------------------------------------------------------------------------- */

/* A class list's names in byte order; a name twice is an error. */
static int class_list_sort(struct class_list *list, const char *origin, struct diag *diag) {
    list->sorted = malloc((list->count + 1) * sizeof *list->sorted);
    if (!list->sorted)
        return -ENOMEM;
    memcpy(list->sorted, list->name, list->count * sizeof *list->sorted);
    int rc = names_sort(list->text.data, list->sorted, list->count);
    for (size_t i = 1; i < list->count && rc == 0; i++) {
        const char *name = list->text.data + list->sorted[i];
        if (strcmp(name, list->text.data + list->sorted[i - 1]) == 0)
            rc = diag_set(diag, -EINVAL, "%s: class '%s' is listed twice", origin, name);
    }
    return rc;
}

/* Splits the text of a class list in place: one name a line, number = line - 1. */
static int class_list_parse(struct class_list *list, const char *origin, struct diag *diag) {
    char *text = list->text.data;
    size_t length = list->text.length, at = length >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    size_t lines = 1;
    for (size_t i = 0; i < length; i++)
        lines += text[i] == '\n';
    list->name = malloc(lines * sizeof *list->name);
    if (!list->name)
        return -ENOMEM;
    size_t line = 0, gap = 0;
    while (at < length) {
        char *end = memchr(text + at, '\n', length - at);
        size_t next = end ? (size_t)(end - text) + 1 : length, size = (end ? (size_t)(end - text) : length) - at;
        line++;
        if (size && text[at + size - 1] == '\r')
            size--;
        if (memchr(text + at, '\0', size) || memchr(text + at, '/', size))
            return diag_set(diag, -EINVAL, "%s:%zu: a class name holds no NUL and no '/'", origin, line);
        if (size == 0)
            gap = gap ? gap : line;
        else if (gap)
            return diag_set(diag, -EINVAL, "%s:%zu: empty line; a class has the number of its line", origin, gap);
        else
            list->name[list->count++] = at;
        text[at + size] = '\0'; /* the line's end, or the byte that class_list_read() added */
        at = next;
    }
    return list->count ? class_list_sort(list, origin, diag)
                       : diag_set(diag, -EINVAL, "%s holds no class name", origin);
}

static int class_list_read(struct class_list *list, const char *path, struct diag *diag) {
    cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return diag_set(diag, -errno, "class list %s: %s", path, strerror(errno));
    for (;;) {
        char *place = buffer_reserve(&list->text, 65536);
        if (!place)
            return -ENOMEM;
        ssize_t n = read(fd, place, 65535); /* one byte is left for a last NUL */
        if (n < 0)
            return diag_set(diag, -errno, "class list %s: %s", path, strerror(errno));
        list->text.length -= 65536 - (size_t)n;
        if (n == 0)
            break;
        if (list->text.length > CLASS_LIST_BYTES)
            return diag_set(diag, -EFBIG, "class list %s is larger than %llu bytes", path,
                            (unsigned long long)CLASS_LIST_BYTES);
    }
    list->given = true;
    return class_list_parse(list, path, diag);
}

static void class_list_deinit(struct class_list *list) {
    buffer_deinit(&list->text);
    free(list->name);
    free(list->sorted);
}

static bool names_have(const char *blob, const uint64_t *sorted, size_t count, const char *name) {
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(blob + sorted[middle], name);
        if (order == 0)
            return true;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return false;
}

/* ---- remarks --------------------------------------------------------------------------------------------------- */

static int remark_left_out(struct walk *walk, const struct left_out *left_out, const char *one, const char *many,
                           const char *why) {
    if (left_out->count == 0)
        return 0;
    return index_add_remark(walk->builder, "%llu %s %s, e.g. %s", (unsigned long long)left_out->count,
                            left_out->count == 1 ? one : many, why, left_out->example);
}

static int remark_entries(struct walk *walk) {
    int rc = remark_left_out(walk, &walk->other_endings, "file", "files", "with other endings ignored");
    if (rc == 0)
        rc = remark_left_out(walk, &walk->picture_directories, "folder is", "folders are",
                             "named like a picture and no sample");
    if (rc == 0)
        rc = remark_left_out(walk, &walk->loops, "link", "links", "to a folder above it skipped");
    return rc;
}

/* Remarks on classes without samples. `have` says whether class i has a folder. */
static int remark_empty_classes(struct walk *walk, const uint64_t *samples, const bool *have, size_t count,
                                const char *names, const uint64_t *name) {
    uint64_t empty = 0;
    int rc = 0;
    for (size_t i = 0; i < count && rc == 0; i++)
        if (samples[i] == 0 && empty++ < REMARKS_EACH)
            rc = index_add_remark(walk->builder, "class %zu (%s) %s: it keeps its number", i, names + name[i],
                                  have[i] ? "is empty" : "of the class list has no folder");
    if (rc == 0 && empty > REMARKS_EACH)
        rc = index_add_remark(walk->builder, "%llu more classes are empty", (unsigned long long)(empty - REMARKS_EACH));
    return rc;
}

static int no_sample(const struct walk *walk, const char *where) {
    const struct left_out *other = &walk->other_endings;
    return diag_set(walk->diag, -ENODATA,
                    "%s holds no sample: %s there is no file with a picture ending "
                    "(.jpg .jpeg .png .webp .bmp .ppm .pgm .gif .tif .tiff)%s%s%s",
                    walk->dataset->path, where, other->count ? "; files with other endings were ignored, e.g. " : "",
                    other->example, other->count ? "; name such files in a list" : "");
}

/* ---- the two shapes -------------------------------------------------------------------------------------------- */

static int finish_flat(struct walk *walk, struct tree *root, uint64_t subfolders, const char *example) {
    bool flat = walk->options->flat;
    if (root->file.length == 0)
        return no_sample(walk, flat ? "directly in it" : "in it and its sub-folders");
    walk->builder->labels = false;
    root->directory.length = sizeof(struct found); /* sub-folders were recorded where they were read */
    int rc = emit(walk, root, 0);
    if (rc == 0 && subfolders)
        rc = index_add_remark(walk->builder, "%llu sub-folder%s %signored, e.g. %s", (unsigned long long)subfolders,
                              subfolders == 1 ? "" : "s", flat ? "" : "without pictures ", example);
    return rc < 0 ? rc : remark_entries(walk);
}

/* What the classes are called, by number: the class list, or the sub-folders in byte order. */
struct names {
    const char *blob;
    const uint64_t *name, *folder; /* by number; of the sub-folders that exist, sorted */
    size_t count, folders;
};

static int check_listed(const struct walk *walk, const struct names *names) {
    const struct class_list *list = &walk->classes;
    for (size_t i = 0; i < names->folders; i++) {
        const char *name = names->blob + names->folder[i];
        if (!names_have(list->text.data, list->sorted, list->count, name))
            return diag_set(walk->diag, -EINVAL,
                            "%s/%s: this folder is not in the class list %s: add it there, or "
                            "take the folder away",
                            walk->dataset->path, name, walk->options->classes);
    }
    return 0;
}

/* Root folder and classes go into the index; the files beside them are remarked on. */
static int finish_classes(struct walk *walk, struct tree *root, const char *blob, const uint64_t *name, size_t count,
                          const uint64_t *samples, const bool *have) {
    int rc = index_add_directory(walk->builder, "", tree_directory(root, 0)->mtime_ns);
    for (size_t i = 0; i < count && rc == 0; i++)
        rc = index_add_class(walk->builder, blob + name[i], samples[i]);
    if (rc == 0)
        rc = remark_empty_classes(walk, samples, have, count, blob, name);
    uint64_t beside = root->file.length / sizeof(uint64_t);
    uint64_t *file = (uint64_t *)(void *)root->file.data;
    if (rc == 0 && beside)
        rc = names_sort(root->names.data, file, beside);
    if (rc == 0 && beside)
        rc = index_add_remark(walk->builder, "%llu picture%s beside the class folders ignored, e.g. %s",
                              (unsigned long long)beside, beside == 1 ? "" : "s", root->names.data + file[0]);
    return rc < 0 ? rc : remark_entries(walk);
}

static int scan_classes(struct walk *walk, struct tree *root, const struct names *names) {
    bool listed = walk->classes.given;
    const char *blob = listed ? walk->classes.text.data : names->blob;
    cleanup_free uint64_t *samples = calloc(names->count + 1, sizeof *samples);
    cleanup_free bool *have = calloc(names->count + 1, sizeof *have);
    if (!samples || !have)
        return -ENOMEM;
    walk->builder->labels = true;
    uint64_t total = 0;
    int rc = listed ? check_listed(walk, names) : 0;
    for (size_t i = 0; i < names->count && rc == 0; i++) {
        const char *name = blob + names->name[i];
        have[i] = !listed || names_have(names->blob, names->folder, names->folders, name);
        if (have[i])
            rc = scan_class(walk, name, (int64_t)i, &samples[i]);
        total += samples[i];
    }
    if (rc < 0)
        return rc;
    if (total)
        return finish_classes(walk, root, blob, names->name, names->count, samples, have);
    if (listed)
        return no_sample(walk, "in the folders of its classes");
    return finish_flat(walk, root, names->folders, names->folders ? names->blob + names->folder[0] : "");
}

static int scan_root(struct walk *walk, struct tree *root) {
    struct stat status;
    if (fstat(walk->dataset->root, &status) < 0)
        return diag_set(walk->diag, -errno, "%s: %s", walk->dataset->path, strerror(errno));
    walk->root_device = status.st_dev;
    walk->root_inode = status.st_ino;
    int rc = tree_add_directory(root, "", NO_PARENT);
    if (rc == 0)
        rc = read_directory(walk, root, 0);
    if (rc < 0)
        return rc;
    size_t folders = (size_t)tree_directories(root) - 1;
    cleanup_free uint64_t *folder = malloc((folders + 1) * sizeof *folder);
    if (!folder)
        return -ENOMEM;
    for (size_t i = 0; i < folders; i++)
        folder[i] = tree_directory(root, i + 1)->path;
    rc = names_sort(root->names.data, folder, folders);
    if (rc < 0)
        return rc;
    if (walk->options->flat || (folders == 0 && !walk->classes.given))
        return finish_flat(walk, root, folders, folders ? root->names.data + folder[0] : "");
    struct names names = {.blob = root->names.data, .folder = folder, .folders = folders};
    names.name = walk->classes.given ? walk->classes.name : folder;
    names.count = walk->classes.given ? walk->classes.count : folders;
    return scan_classes(walk, root, &names);
}

static int folder_scan(void *arg, struct index_builder *builder, struct diag *diag) {
    struct walk *walk = arg;
    struct tree root = {BUFFER_INIT, BUFFER_INIT, BUFFER_INIT};
    walk->builder = builder;
    walk->diag = diag;
    int rc = scan_root(walk, &root);
    tree_deinit(&root);
    return rc;
}

/* ---- the format ------------------------------------------------------------------------------------------------ */

static void options_key(const struct walk *walk, uint8_t ret[16]) {
    struct hash hash;
    hash_begin(&hash, SCAN_RULES);
    hash_u64(&hash, walk->options->flat);
    hash_u64(&hash, walk->classes.given);
    for (size_t i = 0; i < walk->classes.count; i++)
        hash_string(&hash, walk->classes.text.data + walk->classes.name[i]);
    hash_end(&hash, ret);
}

static int open_root(struct dataset *dataset, struct stat *ret_status, struct diag *diag) {
    dataset->root = open(dataset->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dataset->root < 0 && errno == ENOTDIR)
        return diag_set(diag, -ENOTDIR, "%s is not a folder: format folder reads a folder of pictures", dataset->path);
    if (dataset->root < 0 || fstat(dataset->root, ret_status) < 0)
        return diag_set(diag, -errno, "dataset %s: cannot open this folder: %s", dataset->path, strerror(errno));
    dataset->root_path = strdup(dataset->path);
    return dataset->root_path ? 0 : -ENOMEM;
}

static int folder_open(struct dataset *dataset, const struct dataset_options *options, struct diag *diag) {
    struct walk walk = {.dataset = dataset, .options = options};
    struct stat status;
    int rc = open_root(dataset, &status, diag);
    bool listed = options->classes && *options->classes;
    if (rc == 0 && listed && options->flat)
        rc = diag_set(diag, -EINVAL, "%s: a flat folder has no classes: take away 'classes' or 'flat'", dataset->path);
    if (rc == 0 && listed)
        rc = class_list_read(&walk.classes, options->classes, diag);
    if (rc == 0) {
        cleanup_free char *place = realpath(dataset->path, NULL);
        struct index_source source = {
            .place = place,
            .own_name = listed || options->flat,
            .owner = status.st_uid,
            .scan = folder_scan,
            .arg = &walk,
        };
        options_key(&walk, source.key);
        rc = index_obtain(dataset, options, &source, diag);
    }
    class_list_deinit(&walk.classes);
    buffer_deinit(&walk.scratch);
    return rc;
}

const struct dataset_format format_folder = {
    .name = "folder",
    .takes = TAKES_CLASSES,
    .open = folder_open,
    .close = index_release,
    .locate = index_locate,
    .name_sample = index_name,
};
