/* SPDX-License-Identifier: MIT */
/*
 * A list file: one sample a line, "path", "path<TAB>label", "path<TAB>mask" or "path<TAB>mask<TAB>label".
 *
 * - A path is relative to the list's own folder, or absolute. A label is a decimal integer that fits 64 bits, a mask the
 *   path of a label picture: it has a picture's ending. All lines are like the first. The last TABs of a line divide.
 * - Empty lines and lines that begin with '#' are skipped; "\r\n" and a UTF-8 byte order mark are tolerated.
 * - Nothing is opened or looked up: a path that leads nowhere is a bad sample, found when it is read.
 *
 * The parser is pure, over pieces of text of any size. Opening is for one thread.
 */
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "dataset/format.h"

#define LIST_RULES "list scan 2" /* changes whenever the same list would give other samples */
#define LINE_BYTES (2 * PATH_MAX + 64)
#define READ_BYTES (1024 * 1024)

/* ---- parsing --------------------------------------------------------------------------------------------------- */

static int bad_line(const struct list_parser *parser, struct diag *diag, const char *why) {
    return diag_set(diag, -EINVAL, "%s:%llu: %s", parser->origin, (unsigned long long)parser->line, why);
}

/* A decimal integer that fills [text, end) exactly. */
static bool parse_label(const char *text, const char *end, int64_t *ret) {
    bool negative = text < end && *text == '-';
    if (text < end && (*text == '-' || *text == '+'))
        text++;
    if (text == end)
        return false;
    int64_t value = 0;
    for (; text < end; text++) {
        int digit = *text - '0';
        if (digit < 0 || digit > 9 || __builtin_mul_overflow(value, 10, &value) ||
            __builtin_sub_overflow(value, digit, &value)) /* below zero, where INT64_MIN fits */
            return false;
    }
    if (!negative && value == INT64_MIN)
        return false;
    *ret = negative ? value : -value;
    return true;
}

/* A line without a TAB that ends in " 3" or ",3" behind a picture's ending was probably meant to have a label. */
static bool looks_like_label(const char *line, size_t length) {
    size_t digits = 0;
    while (digits < length && line[length - 1 - digits] >= '0' && line[length - 1 - digits] <= '9')
        digits++;
    if (digits == 0 || digits + 2 > length)
        return false;
    size_t split = length - digits - 1;
    char name[NAME_MAX + 1];
    size_t take = MIN(split, sizeof name - 1);
    memcpy(name, line + split - take, take);
    name[take] = '\0';
    return (line[split] == ' ' || line[split] == ',' || line[split] == ';') && dataset_is_picture_name(name);
}

/* Has the text a picture's ending? */
static bool looks_like_mask(const char *text, const char *end) {
    char name[NAME_MAX + 1];
    size_t take = MIN((size_t)(end - text), sizeof name - 1);
    memcpy(name, end - take, take);
    name[take] = '\0';
    return dataset_is_picture_name(name);
}

static int add_entry(struct list_parser *parser, const char *path, size_t length, const char *mask, size_t mask_length,
                     int64_t label, struct diag *diag) {
    char name[PATH_MAX];
    if (length == 0)
        return bad_line(parser, diag, "no path before the TAB");
    if (length >= sizeof name) {
        diag_set(diag, -EINVAL, "%s:%llu: the path has %zu bytes, the system's limit is %d", parser->origin,
                 (unsigned long long)parser->line, length, PATH_MAX - 1);
        return -EINVAL;
    }
    memcpy(name, path, length);
    name[length] = '\0';
    if (mask_length >= sizeof name)
        return bad_line(parser, diag, "the path of the mask is longer than any path may be");
    if (index_add_sample(parser->builder, "", name, label) < 0 ||
        (mask && index_add_second_name(parser->builder, mask, mask_length) < 0))
        return dataset_out_of_memory(diag);
    if (++parser->samples % 65536 == 0)
        index_tick(parser->builder, parser->samples);
    return 0;
}

static int hint_no_tab(struct list_parser *parser, const char *line, size_t length, struct diag *diag) {
    if (parser->hinted || !looks_like_label(line, length))
        return 0;
    parser->hinted = true;
    int rc = index_add_remark(parser->builder,
                              "%s:%llu: '%.*s' has no TAB, so that all of it is the path: a label is "
                              "divided from its path by a TAB",
                              parser->origin, (unsigned long long)parser->line, (int)MIN(length, 200u), line);
    return rc < 0 ? dataset_out_of_memory(diag) : 0;
}

/* The first line says what all have: behind the path a mask, a label, both or none. */
static void learn_columns(struct list_parser *parser, const char *line, const char *end) {
    const char *tab = memrchr(line, '\t', (size_t)(end - line)), *before = NULL;
    parser->masks = tab && looks_like_mask(tab + 1, end);
    parser->labels = tab && !parser->masks;
    if (parser->labels)
        before = memrchr(line, '\t', (size_t)(tab - line));
    if (before && looks_like_mask(before + 1, tab))
        parser->masks = true;
    parser->builder->labels = parser->labels;
    parser->builder->masks = parser->masks;
}

static int take_columns(struct list_parser *parser, const char *line, const char *end, struct diag *diag) {
    int64_t label = 0;
    const char *mask = NULL;
    size_t mask_length = 0;
    if (parser->labels < 0)
        learn_columns(parser, line, end);
    const char *tab = memrchr(line, '\t', (size_t)(end - line));
    bool columns = parser->labels || parser->masks;
    if (columns != (tab != NULL))
        return bad_line(parser, diag,
                        tab               ? "this line has a TAB and a label, lines before it have none"
                        : !parser->labels ? "no TAB and mask, though lines before it have them"
                                          : "no TAB and label, though lines before it have them");
    if (!tab) {
        int rc = hint_no_tab(parser, line, (size_t)(end - line), diag);
        return rc < 0 ? rc : add_entry(parser, line, (size_t)(end - line), NULL, 0, 0, diag);
    }
    if (parser->labels) {
        if (!parse_label(tab + 1, end, &label)) {
            char why[160];
            snprintf(why, sizeof why, "label '%.*s' is no integer of 64 bits", (int)MIN(end - tab - 1, 80), tab + 1);
            return bad_line(parser, diag, why);
        }
        end = tab;
        tab = parser->masks ? memrchr(line, '\t', (size_t)(end - line)) : NULL;
    }
    if (parser->masks) {
        if (!tab || !looks_like_mask(tab + 1, end))
            return bad_line(parser, diag,
                            "no mask (a path with a picture's ending) before the last TAB, or behind it, "
                            "though lines before it have one");
        mask = tab + 1;
        mask_length = (size_t)(end - mask);
        end = tab;
    }
    return add_entry(parser, line, (size_t)(end - line), mask, mask_length, label, diag);
}

/* One line, without its end. */
static int take_line(struct list_parser *parser, const char *line, size_t length, struct diag *diag) {
    parser->line++;
    if (parser->line == 1 && length >= 3 && memcmp(line, "\xef\xbb\xbf", 3) == 0) {
        line += 3;
        length -= 3;
    }
    if (length && line[length - 1] == '\r')
        length--;
    if (length == 0 || *line == '#')
        return 0;
    if (memchr(line, '\0', length))
        return bad_line(parser, diag, "a NUL byte: this is no list of paths (or one in UTF-16; write it as UTF-8)");
    return take_columns(parser, line, line + length, diag);
}

static int line_too_long(struct list_parser *parser, struct diag *diag) {
    parser->line++;
    return bad_line(parser, diag, "the line is longer than any path may be");
}

int list_feed(struct list_parser *parser, const char *bytes, size_t length, struct diag *diag) {
    while (length) {
        const char *end = memchr(bytes, '\n', length);
        size_t size = end ? (size_t)(end - bytes) : length;
        int rc = 0;
        if (parser->rest.length + size > LINE_BYTES)
            return line_too_long(parser, diag);
        if (end && parser->rest.length == 0) {
            rc = take_line(parser, bytes, size, diag);
        } else if (buffer_append(&parser->rest, bytes, size) < 0) {
            rc = dataset_out_of_memory(diag);
        } else if (end) {
            rc = take_line(parser, parser->rest.data, parser->rest.length, diag);
            parser->rest.length = 0;
        }
        if (rc < 0)
            return rc;
        bytes += size + (end ? 1 : 0);
        length -= size + (end ? 1 : 0);
    }
    return 0;
}

int list_end(struct list_parser *parser, struct diag *diag) {
    int rc = 0;
    if (parser->rest.length)
        rc = take_line(parser, parser->rest.data, parser->rest.length, diag);
    if (rc == 0 && parser->samples == 0)
        rc = diag_set(diag, -ENODATA, "%s lists no sample: all of its %llu lines are empty or comments", parser->origin,
                      (unsigned long long)parser->line);
    buffer_deinit(&parser->rest);
    return rc;
}

bool list_detect(const char *bytes, size_t length) {
    bool content = false;
    if (length >= 3 && memcmp(bytes, "\xef\xbb\xbf", 3) == 0) {
        bytes += 3;
        length -= 3;
    }
    /* HTML, XML, JSON, CSV with quotes: text, but no list of paths */
    if (length == 0 || strchr("<{[\"", *bytes))
        return false;
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)bytes[i];
        if ((c < 0x20 && c != '\t' && c != '\r' && c != '\n') || c == 0x7f)
            return false;
        content = content || c > 0x20;
    }
    return content;
}

/* ---- the format ------------------------------------------------------------------------------------------------ */

struct list_scan {
    const char *path;
    int fd;
};

static int feed_file(struct list_scan *scan, struct list_parser *parser, struct diag *diag) {
    cleanup_free char *chunk = malloc(READ_BYTES);
    if (!chunk)
        return dataset_out_of_memory(diag);
    for (bool first = true;; first = false) {
        ssize_t n = read(scan->fd, chunk, READ_BYTES);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return diag_set(diag, -errno, "list %s: cannot read: %s", scan->path, strerror(errno));
        if (n == 0)
            return list_end(parser, diag);
        const char *compression = first ? dataset_compression(chunk, (size_t)n) : NULL;
        if (compression)
            return diag_set(diag, -EINVAL, "list %s is %s data; decompress it first", scan->path, compression);
        int rc = list_feed(parser, chunk, (size_t)n, diag);
        if (rc < 0)
            return rc;
    }
}

static int list_scan(void *arg, struct index_builder *builder, struct diag *diag) {
    struct list_scan *scan = arg;
    struct list_parser parser = {.origin = scan->path, .builder = builder, .labels = -1};
    struct stat before, after;
    builder->outside = true;
    if (fstat(scan->fd, &before) < 0)
        return diag_set(diag, -errno, "list %s: %s", scan->path, strerror(errno));
    index_note_mtime(builder, dataset_mtime(&before));
    int rc = feed_file(scan, &parser, diag);
    buffer_deinit(&parser.rest);
    if (rc == 0 && fstat(scan->fd, &after) == 0 &&
        (after.st_size != before.st_size || dataset_mtime(&after) != dataset_mtime(&before)))
        rc = diag_set(diag, -EBUSY, "list %s changed while it was read: start again when it is complete", scan->path);
    return rc;
}

/* Opens the folder that holds the list, which its paths are relative to. */
static int open_root(struct dataset *dataset, struct diag *diag) {
    const char *path = dataset->path, *slash = strrchr(path, '/');
    dataset->root_path = slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup("");
    if (!dataset->root_path)
        return -ENOMEM;
    dataset->root = open(*dataset->root_path ? dataset->root_path : ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (dataset->root < 0)
        return diag_set(diag, -errno, "list %s: cannot open its folder: %s", path, strerror(errno));
    return 0;
}

/* A wrong base folder shows at the first path. */
static int remark_missing(struct dataset *dataset) {
    const char *name = index_sample_name(&dataset->index, 0);
    struct stat status;
    if (fstatat(dataset->root, name, &status, 0) == 0 || errno != ENOENT)
        return 0;
    return dataset_add_remark(dataset,
                              "the first path of the list, '%.200s', does not exist (paths are relative to "
                              "the folder of the list)",
                              name);
}

static int list_open(struct dataset *dataset, const struct dataset_options *options, struct diag *diag) {
    cleanup_close int fd = open(dataset->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat status;
    if (fd < 0 || fstat(fd, &status) < 0)
        return diag_set(diag, -errno, "list %s: cannot open: %s", dataset->path, strerror(errno));
    if (!S_ISREG(status.st_mode))
        return diag_set(diag, -EINVAL, "list %s is not a regular file", dataset->path);
    int rc = open_root(dataset, diag);
    if (rc < 0)
        return rc;
    struct list_scan scan = {dataset->path, fd};
    struct file_identity identity = {
        .device = status.st_dev,
        .inode = status.st_ino,
        .size = (uint64_t)status.st_size,
        .mtime_ns = dataset_mtime(&status),
    };
    cleanup_free char *place = realpath(dataset->path, NULL);
    struct index_source source = {
        .place = place,
        .owner = status.st_uid,
        .list = &identity,
        .scan = list_scan,
        .arg = &scan,
    };
    struct hash hash;
    hash_begin(&hash, LIST_RULES);
    hash_end(&hash, source.key);
    rc = index_obtain(dataset, options, &source, diag);
    if (rc == 0 && dataset->index.header.flags & INDEX_MASKS)
        dataset_set_mask_field(&dataset->field[dataset->fields++], 1);
    return rc < 0 ? rc : remark_missing(dataset);
}

static void list_locate(const struct dataset *dataset, uint64_t sample, struct location *ret) {
    index_locate(dataset, sample, ret);
    if (!(dataset->index.header.flags & INDEX_MASKS))
        return;
    ret->extent[ret->extents++] = (struct extent){
        .path = index_second_name(&dataset->index, sample), .dirfd = dataset->root, .length = EXTENT_WHOLE_FILE};
}

const struct dataset_format format_list = {
    .name = "list",
    .open = list_open,
    .close = index_release,
    .locate = list_locate,
    .name_sample = index_name,
};
