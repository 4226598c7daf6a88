/* SPDX-License-Identifier: MIT */
/*
 * The files that a dataset's path means, and the shards among which its samples are divided.
 *
 * A path is a file; a folder (its regular files, hidden ones left out, in byte order of their names); or a list of
 * files and patterns (* ? [...] and braces, {000..146} or {a,b}) divided by commas: pieces in the order given, braces
 * in theirs, the matches of * ? [...] in byte order. A path that exists is taken as it is, commas and stars included.
 *
 * Shards stay open; bytes are read by others. Opening is for one thread, everything else for any.
 */
#include <dirent.h>
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "dataset/format.h"

#define SPARE_DESCRIPTORS 64u /* for sockets, rings and the rest of the daemon */
#define MAX_PATHS 1000000u    /* that braces may make */

/* ---- paths ----------------------------------------------------------------------------------------------------- */

static int paths_add(struct paths *paths, const char *name, size_t length) {
    uint64_t at = paths->names.length;
    const char *folder = paths->folder;
    size_t before = folder ? strlen(folder) : 0;
    bool slash = before && folder[before - 1] != '/';
    if (buffer_append(&paths->names, folder, before) < 0 || buffer_append(&paths->names, "/", slash) < 0 ||
        buffer_append(&paths->names, name, length) < 0 || buffer_append(&paths->names, "", 1) < 0)
        return -ENOMEM;
    return buffer_append(&paths->offset, &at, sizeof at);
}

static uint64_t *paths_offsets(const struct paths *paths) {
    return (uint64_t *)(void *)paths->offset.data;
}

size_t paths_count(const struct paths *paths) {
    return paths->offset.length / sizeof(uint64_t);
}

const char *paths_get(const struct paths *paths, size_t i) {
    return paths->names.data + paths_offsets(paths)[i];
}

void paths_deinit(struct paths *paths) {
    buffer_deinit(&paths->names);
    buffer_deinit(&paths->offset);
}

static int take_folder_entry(void *arg, const char *name, unsigned char kind) {
    struct paths *paths = arg;
    struct stat status;
    if (kind == DT_LNK && fstatat(paths->fd, name, &status, 0) == 0 && S_ISREG(status.st_mode))
        kind = DT_REG;
    return kind == DT_REG ? paths_add(paths, name, strlen(name)) : 0;
}

static int paths_of_folder(struct paths *paths, const char *path, struct diag *diag) {
    cleanup_close int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return diag_set(diag, -errno, "dataset %s: cannot open this folder: %s", path, strerror(errno));
    struct buffer scratch = BUFFER_INIT;
    paths->folder = path;
    paths->fd = fd;
    int rc = directory_read(fd, &scratch, take_folder_entry, paths);
    buffer_deinit(&scratch);
    paths->folder = NULL;
    if (rc < 0)
        return rc == -ENOMEM ? rc : diag_set(diag, rc, "%s: cannot read this folder: %s", path, strerror(-rc));
    if (paths_count(paths) == 0)
        return diag_set(diag, -ENODATA, "%s holds no regular file: no sample", path);
    return names_sort(paths->names.data, paths_offsets(paths), paths_count(paths));
}

static int paths_of_pattern(struct paths *paths, const char *pattern, struct diag *diag) {
    glob_t found;
    int result = glob(pattern, GLOB_NOSORT, NULL, &found); /* its own order would follow the locale */
    if (result == GLOB_NOMATCH)
        return diag_set(diag, -ENOENT, "no file matches %s", pattern);
    if (result != 0)
        return diag_set(diag, result == GLOB_NOSPACE ? -ENOMEM : -EIO, "%s: cannot look for matching files", pattern);
    size_t before = paths_count(paths);
    int rc = 0;
    for (size_t i = 0; i < found.gl_pathc && rc == 0; i++)
        rc = paths_add(paths, found.gl_pathv[i], strlen(found.gl_pathv[i]));
    if (rc == 0)
        rc = names_sort(paths->names.data, paths_offsets(paths) + before, found.gl_pathc);
    globfree(&found);
    return rc;
}

/* ---- braces ---------------------------------------------------------------------------------------------------- */

/* A text that is being put together, and what is left of the pattern. */
struct braces {
    struct paths *paths;
    const char *pattern; /* for messages */
    struct diag *diag;
};

static int expand(struct braces *braces, const char *before, const char *rest);

static int expand_joined(struct braces *braces, const char *before, size_t length, const char *middle,
                         size_t middle_length, const char *rest) {
    cleanup_free char *text = NULL;
    if (asprintf(&text, "%.*s%.*s", (int)length, before, (int)middle_length, middle) < 0) {
        text = NULL;
        return -ENOMEM;
    }
    return expand(braces, text, rest);
}

/* The '}' that ends the '{' before text; commas outside of inner braces are counted. NULL: none. */
static const char *brace_end(const char *text, unsigned *ret_commas) {
    unsigned depth = 0;
    *ret_commas = 0;
    for (; *text; text++) {
        if (*text == '{')
            depth++;
        else if (*text == '}' && depth-- == 0)
            return text;
        else if (*text == ',' && depth == 0)
            ++*ret_commas;
    }
    return NULL;
}

/* "000..146": both numbers and the width that leading zeros ask for. */
static bool parse_range(const char *text, const char *end, uint64_t ret[2], int *ret_width) {
    const char *p = text;
    *ret_width = 0;
    for (int i = 0; i < 2; i++) {
        const char *start = p;
        ret[i] = 0;
        for (; p < end && *p >= '0' && *p <= '9' && p - start < 18; p++)
            ret[i] = ret[i] * 10 + (uint64_t)(*p - '0');
        if (p == start)
            return false;
        if (*start == '0' && p - start > 1)
            *ret_width = MAX(*ret_width, (int)(p - start));
        if (i == 0 && (end - p < 3 || p[0] != '.' || p[1] != '.'))
            return false;
        p += i == 0 ? 2 : 0;
    }
    return p == end;
}

static int expand_range(struct braces *braces, const char *before, size_t length, const uint64_t range[2], int width,
                        const char *rest) {
    int64_t step = range[0] <= range[1] ? 1 : -1;
    for (int64_t i = (int64_t)range[0];; i += step) {
        char number[32];
        int n = snprintf(number, sizeof number, "%0*lld", width, (long long)i);
        int rc = expand_joined(braces, before, length, number, (size_t)n, rest);
        if (rc < 0 || i == (int64_t)range[1])
            return rc;
    }
}

static int expand_words(struct braces *braces, const char *before, size_t length, const char *text, const char *end) {
    for (const char *word = text;;) {
        unsigned depth = 0;
        const char *p = word;
        for (; p < end && (*p != ',' || depth); p++)
            depth += *p == '{' ? 1u : *p == '}' ? -1u : 0u;
        int rc = expand_joined(braces, before, length, word, (size_t)(p - word), end + 1);
        if (rc < 0 || p == end)
            return rc;
        word = p + 1;
    }
}

/* Adds what `before` followed by the pattern `rest` stands for. A word inside of braces may hold braces itself: those
 * are in `before`, which is looked at first. */
static int expand(struct braces *braces, const char *before, const char *rest) {
    cleanup_free char *text = NULL;
    if (asprintf(&text, "%s%s", before, rest) < 0) {
        text = NULL;
        return -ENOMEM;
    }
    uint64_t range[2];
    int width;
    unsigned commas;
    for (const char *open = strchr(text, '{'); open; open = strchr(open + 1, '{')) {
        const char *end = brace_end(open + 1, &commas);
        if (!end)
            break;
        if (parse_range(open + 1, end, range, &width))
            return expand_range(braces, text, (size_t)(open - text), range, width, end + 1);
        if (commas)
            return expand_words(braces, text, (size_t)(open - text), open + 1, end);
    }
    if (paths_count(braces->paths) >= MAX_PATHS)
        return diag_set(braces->diag, -EINVAL, "%s stands for more than %u files", braces->pattern, MAX_PATHS);
    if (strpbrk(text, "*?[") && access(text, F_OK) != 0)
        return paths_of_pattern(braces->paths, text, braces->diag);
    return paths_add(braces->paths, text, strlen(text));
}

/* ---- pieces between commas ------------------------------------------------------------------------------------- */

const char *path_piece(const char *text, size_t *ret_length) {
    unsigned depth = 0;
    const char *p = text;
    for (; *p && (*p != ',' || depth); p++)
        if (*p == '{')
            depth++;
        else if (*p == '}' && depth)
            depth--;
    *ret_length = (size_t)(p - text);
    return *p ? p + 1 : NULL;
}

static int paths_of_pieces(struct paths *paths, const char *text, struct diag *diag) {
    for (const char *piece = text; piece;) {
        size_t length;
        const char *next = path_piece(piece, &length);
        cleanup_free char *one = strndup(piece, length);
        if (!one)
            return -ENOMEM;
        if (!*one)
            return diag_set(diag, -EINVAL, "dataset %s: an empty name between commas", text);
        struct braces braces = {paths, text, diag};
        int rc = access(one, F_OK) == 0 ? paths_add(paths, one, length) : expand(&braces, "", one);
        if (rc < 0)
            return rc;
        piece = next;
    }
    return 0;
}

bool path_is_pattern(const char *path) {
    return strpbrk(path, ",*?[{") != NULL;
}

int paths_collect(struct paths *paths, const char *path, struct diag *diag) {
    struct stat status;
    *paths = (struct paths){.fd = -1};
    if (stat(path, &status) < 0) {
        if (errno == ENOENT && path_is_pattern(path))
            return paths_of_pieces(paths, path, diag);
        return diag_set(diag, -errno, "dataset %s: %s", path, strerror(errno));
    }
    paths->from_folder = S_ISDIR(status.st_mode);
    return paths->from_folder ? paths_of_folder(paths, path, diag) : paths_add(paths, path, strlen(path));
}

/* ---- shards ---------------------------------------------------------------------------------------------------- */

static size_t open_descriptors(void) {
    DIR *directory = opendir("/proc/self/fd");
    size_t count = 0;
    if (!directory)
        return 16;
    while (readdir(directory))
        count++;
    closedir(directory);
    return count;
}

static int too_many(size_t files, struct diag *diag) {
    struct rlimit limit = {0};
    getrlimit(RLIMIT_NOFILE, &limit);
    return diag_set(diag, -EMFILE,
                    "need %zu file descriptors for the %zu data files, have %llu: raise LimitNOFILE= "
                    "of the service or `ulimit -n`",
                    files + SPARE_DESCRIPTORS + open_descriptors(), files, (unsigned long long)limit.rlim_cur);
}

static int check_descriptors(size_t files, struct diag *diag) {
    struct rlimit limit;
    if (files < SPARE_DESCRIPTORS || getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur == RLIM_INFINITY)
        return 0;
    return files + SPARE_DESCRIPTORS + open_descriptors() > limit.rlim_cur ? too_many(files, diag) : 0;
}

int source_file_open(struct source_file *file, const char *path, struct diag *diag) {
    struct stat status;
    *file = (struct source_file){.path = strdup(path), .fd = -1};
    if (!file->path)
        return -ENOMEM;
    file->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not hold us */
    if (file->fd < 0 || fstat(file->fd, &status) < 0)
        return diag_set(diag, -errno, "%s: cannot open: %s", path, strerror(errno));
    if (!S_ISREG(status.st_mode))
        return diag_set(diag, -EINVAL, "%s is not a regular file", path);
    if (fcntl(file->fd, F_SETFL, 0) < 0)
        return diag_set(diag, -errno, "%s: cannot open: %s", path, strerror(errno));
    file->identity = (struct file_identity){
        .device = status.st_dev,
        .inode = status.st_ino,
        .size = (uint64_t)status.st_size,
        .mtime_ns = dataset_mtime(&status),
    };
    return 0;
}

void source_file_close(struct source_file *file) {
    if (file->path && file->fd >= 0)
        close(file->fd);
    free(file->path);
    *file = (struct source_file){.fd = -1};
}

int source_file_read(const struct source_file *file, void *into, size_t length, uint64_t offset, struct diag *diag) {
    for (size_t done = 0; done < length;) {
        ssize_t n = pread(file->fd, (char *)into + done, length - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return diag_set(diag, -errno, "%s: cannot read at byte %llu: %s", file->path,
                            (unsigned long long)(offset + done), strerror(errno));
        if (n == 0)
            return diag_set(diag, -EIO, "%s ends at byte %llu, wanted %llu: it became shorter", file->path,
                            (unsigned long long)(offset + done), (unsigned long long)(offset + length));
        done += (size_t)n;
    }
    return 0;
}

ssize_t source_file_head(const struct source_file *file, void *head, size_t size, struct diag *diag) {
    ssize_t got = pread(file->fd, head, size, 0);
    if (got < 0)
        return diag_set(diag, -errno, "%s: cannot read: %s", file->path, strerror(errno));
    const char *compression = dataset_compression(head, (size_t)got);
    if (compression)
        return diag_set(diag, -EINVAL, "%s is %s data; decompress it first", file->path, compression);
    return got;
}

int shards_reserve(struct shards *shards, size_t files, struct diag *diag) {
    int rc = check_descriptors(files, diag);
    if (rc < 0)
        return rc;
    shards->room = files;
    shards->file = calloc(files, sizeof *shards->file);
    shards->first = calloc(files + 1, sizeof *shards->first);
    return shards->file && shards->first ? 0 : -ENOMEM;
}

int shards_open(struct shards *shards, const char *path, struct diag *diag) {
    struct source_file *file = &shards->file[shards->count++]; /* shards_close() has it from here on */
    int rc = source_file_open(file, path, diag);
    shards->first[shards->count] = shards->first[shards->count - 1];
    return rc == -EMFILE ? too_many(shards->room, diag) : rc;
}

int shards_open_path(struct shards *shards, const char *path, struct diag *diag) {
    struct paths paths;
    int rc = paths_collect(&paths, path, diag);
    if (rc == 0)
        rc = shards_reserve(shards, paths_count(&paths), diag);
    for (size_t i = 0; rc == 0 && i < paths_count(&paths); i++)
        rc = shards_open(shards, paths_get(&paths, i), diag);
    paths_deinit(&paths);
    return rc;
}

int shards_set_samples(struct shards *shards, size_t i, uint64_t samples, struct diag *diag) {
    if (!add_u64(shards->first[i], samples, &shards->first[i + 1]))
        return diag_set(diag, -EINVAL, "%s: more samples than 64 bits count", shards->file[i].path);
    return 0;
}

int shards_publish(const struct shards *shards, struct dataset *dataset, const char *what, struct diag *diag) {
    dataset->samples = shards->first[shards->count];
    dataset->shards = shards->count;
    dataset->shard_first = shards->first;
    return dataset->samples ? 0 : diag_set(diag, -ENODATA, "%s holds no %s: no sample", dataset->path, what);
}

void shards_close(struct shards *shards) {
    for (size_t i = 0; i < shards->count; i++)
        source_file_close(&shards->file[i]);
    free(shards->file);
    free(shards->first);
    *shards = (struct shards){0};
}

size_t shards_find(const struct shards *shards, uint64_t sample) {
    size_t low = 0, high = shards->count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (shards->first[middle] <= sample)
            low = middle;
        else
            high = middle;
    }
    return low;
}

int shards_name(const struct shards *shards, uint64_t sample, char *buffer, size_t size) {
    size_t i = shards_find(shards, sample);
    return snprintf(buffer, size, "%s#%llu", shards->file[i].path, (unsigned long long)(sample - shards->first[i]));
}

void shards_hash(const struct shards *shards, struct hash *hash) {
    hash_u64(hash, shards->count);
    for (size_t i = 0; i < shards->count; i++) {
        const char *slash = strrchr(shards->file[i].path, '/');
        hash_string(hash, slash ? slash + 1 : shards->file[i].path);
        hash_u64(hash, shards->first[i + 1] - shards->first[i]);
    }
}
