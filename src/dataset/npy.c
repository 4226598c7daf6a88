/* SPDX-License-Identifier: MIT */
/*
 * The .npy format: a header that is a Python dictionary in text, then the elements (numpy/lib/format.py is its
 * specification). The header is parsed as three known keys with literal values, never evaluated; arrays of Python
 * objects are refused, nothing is unpickled.
 *
 * npy_parse() is pure. Labels are copied from a small file, which its owner may rewrite in place (numpy.save() cuts it
 * to nothing first, and what is mapped would then fault); a large file is mapped, not copied. Any thread reads them.
 */
#include <endian.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "dataset/format.h"

#define LABELS_COPIED (UINT64_C(16) << 20) /* files up to so many bytes are copied */

/* ---- the dictionary -------------------------------------------------------------------------------------------- */

struct cursor {
    const char *at, *end;
};

static void skip_blanks(struct cursor *c) {
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\n' || *c->at == '\t' || *c->at == '\r'))
        c->at++;
}

static bool take(struct cursor *c, char wanted) {
    skip_blanks(c);
    if (c->at == c->end || *c->at != wanted)
        return false;
    c->at++;
    return true;
}

static bool take_word(struct cursor *c, const char *word) {
    size_t length = strlen(word);
    skip_blanks(c);
    if ((size_t)(c->end - c->at) < length || memcmp(c->at, word, length) != 0)
        return false;
    c->at += length;
    return true;
}

/* A quoted string without escapes, into text[size]. */
static bool take_string(struct cursor *c, char *text, size_t size) {
    skip_blanks(c);
    if (c->at == c->end || (*c->at != '\'' && *c->at != '"'))
        return false;
    char quote = *c->at;
    const char *start = c->at + 1, *end = memchr(start, quote, (size_t)(c->end - start));
    if (!end || (size_t)(end - start) >= size || memchr(start, '\\', (size_t)(end - start)))
        return false;
    memcpy(text, start, (size_t)(end - start));
    text[end - start] = '\0';
    c->at = end + 1;
    return true;
}

/* A dimension: digits, with the 'L' that Python 2 wrote. Zero is a dimension. */
static bool take_dimension(struct cursor *c, uint64_t *ret) {
    uint64_t value = 0;
    skip_blanks(c);
    const char *start = c->at;
    for (; c->at < c->end && *c->at >= '0' && *c->at <= '9'; c->at++)
        if (!mul_u64(value, 10, &value) || !add_u64(value, (uint64_t)(*c->at - '0'), &value))
            return false;
    if (c->at == start)
        return false;
    if (c->at < c->end && *c->at == 'L')
        c->at++;
    *ret = value;
    return true;
}

static int refuse(struct diag *diag, const char *why) {
    return diag_set(diag, -EINVAL, "bad .npy header: %s", why);
}

static int take_shape(struct cursor *c, struct npy_header *h, struct diag *diag) {
    if (!take(c, '('))
        return refuse(diag, "'shape' is no tuple");
    bool comma = true;
    while (!take(c, ')')) {
        if (!comma)
            return refuse(diag, "'shape' is no tuple of integers");
        if (h->ndim == NPY_MAX_DIMS)
            return refuse(diag, "'shape' has more than 32 dimensions");
        if (!take_dimension(c, &h->shape[h->ndim]))
            return refuse(diag, "'shape' holds something that is no integer of 64 bits");
        h->ndim++;
        comma = take(c, ',');
    }
    if (h->ndim == 1 && !comma)
        return refuse(diag, "'shape' is a number in brackets, no tuple");
    return 0;
}

static int take_descr(struct cursor *c, struct npy_header *h, struct diag *diag) {
    skip_blanks(c);
    if (c->at < c->end && *c->at == '[')
        return diag_set(diag, -EINVAL,
                        "the .npy array is structured (a dtype of several fields): not supported; save "
                        "one plain array");
    if (!take_string(c, h->descr, sizeof h->descr))
        return refuse(diag, "'descr' is no string");
    return 0;
}

static int take_entry(struct cursor *c, struct npy_header *h, unsigned *seen, struct diag *diag) {
    static const char *const keys[] = {"descr", "fortran_order", "shape"};
    char key[32];
    unsigned which = 0;
    if (!take_string(c, key, sizeof key) || !take(c, ':'))
        return refuse(diag, "not a dictionary of 'descr', 'fortran_order' and 'shape'");
    while (which < ARRAY_SIZE(keys) && strcmp(key, keys[which]) != 0)
        which++;
    if (which == ARRAY_SIZE(keys) || *seen & 1u << which)
        return diag_set(diag, -EINVAL, "bad .npy header: key '%s' is unknown or given twice", key);
    *seen |= 1u << which;
    if (which == 0)
        return take_descr(c, h, diag);
    if (which == 2)
        return take_shape(c, h, diag);
    h->fortran_order = take_word(c, "True");
    return h->fortran_order || take_word(c, "False") ? 0 : refuse(diag, "'fortran_order' is neither True nor False");
}

static int parse_dictionary(struct cursor *c, struct npy_header *h, struct diag *diag) {
    unsigned seen = 0;
    if (!take(c, '{'))
        return refuse(diag, "no dictionary");
    bool comma = true;
    while (!take(c, '}')) {
        int rc = comma ? take_entry(c, h, &seen, diag) : refuse(diag, "no comma between two entries");
        if (rc < 0)
            return rc;
        comma = take(c, ',');
    }
    if (seen != 7)
        return refuse(diag, "'descr', 'fortran_order' or 'shape' is missing");
    skip_blanks(c);
    return c->at == c->end ? 0 : refuse(diag, "something follows the dictionary");
}

/* ---- the element type ------------------------------------------------------------------------------------------ */

static uint32_t dtype_of(char kind, uint32_t bytes) {
    static const struct {
        char kind;
        uint8_t bytes, dtype;
    } table[] = {
        {'u', 1, LOADERD_U8},  {'i', 1, LOADERD_I8},  {'u', 2, LOADERD_U16}, {'i', 2, LOADERD_I16},
        {'u', 4, LOADERD_U32}, {'i', 4, LOADERD_I32}, {'u', 8, LOADERD_U64}, {'i', 8, LOADERD_I64},
        {'f', 2, LOADERD_F16}, {'f', 4, LOADERD_F32}, {'f', 8, LOADERD_F64},
    };
    for (size_t i = 0; i < ARRAY_SIZE(table); i++)
        if (table[i].kind == kind && table[i].bytes == bytes)
            return table[i].dtype;
    return 0;
}

/* "<f4", "|u1", ">i8", "|O", "<M8[ns]". */
static int parse_descr(struct npy_header *h, struct diag *diag) {
    const char *p = h->descr, *end = p + strlen(p);
    char order = strchr("<>|=", *p) && *p ? *p++ : '=';
    h->kind = *p;
    if (h->kind == 'O')
        return diag_set(diag, -EINVAL,
                        "the .npy array holds Python objects (dtype '%s'): refused, nothing is "
                        "unpickled; save it with a plain dtype",
                        h->descr);
    if (!h->kind || !strchr("biufcSUVmMa?", h->kind))
        return diag_set(diag, -EINVAL, "bad .npy header: unknown dtype '%s'", h->descr);
    p++;
    struct cursor digits = {p, end};
    uint64_t size = 1;
    if (h->kind != '?' && !take_dimension(&digits, &size))
        return diag_set(diag, -EINVAL, "bad .npy header: dtype '%s' has no size", h->descr);
    bool unit = digits.at < end && *digits.at == '[' && end[-1] == ']' && strchr("mM", h->kind);
    if ((digits.at < end && !unit) || !mul_u64(size, h->kind == 'U' ? 4 : 1, &size) || size > UINT32_MAX)
        return diag_set(diag, -EINVAL, "bad .npy header: unknown dtype '%s'", h->descr);
    h->item_bytes = (uint32_t)size;
    h->big_endian = order == '>' || (order == '=' && BYTE_ORDER == BIG_ENDIAN);
    if (strchr("biuf", h->kind) && size > 1 && order == '|')
        return diag_set(diag, -EINVAL, "bad .npy header: dtype '%s' has no byte order", h->descr);
    h->dtype = dtype_of(h->kind, h->item_bytes);
    return 0;
}

int npy_parse(const void *bytes, size_t length, struct npy_header *ret, struct diag *diag) {
    const uint8_t *b = bytes;
    struct npy_header h = {0};
    const char *compression = dataset_compression(bytes, length);
    if (compression)
        return diag_set(diag, -EINVAL, "%s data, no .npy array; decompress it first", compression);
    if (length < 10 || memcmp(b, "\x93NUMPY", 6) != 0)
        return diag_set(diag, -EINVAL, "no .npy array: it does not begin with 93 'NUMPY'");
    h.major = b[6];
    h.minor = b[7];
    if (h.major < 1 || h.major > 3 || h.minor != 0)
        return diag_set(diag, -EINVAL, ".npy version %u.%u is unknown (1.0, 2.0 and 3.0 are read)", h.major, h.minor);
    size_t start = h.major == 1 ? 10 : 12;
    uint64_t text = b[8] | (uint64_t)b[9] << 8;
    if (h.major > 1 && length >= 12)
        text |= (uint64_t)b[10] << 16 | (uint64_t)b[11] << 24;
    if (length < start || text > length - start)
        return diag_set(diag, -EINVAL, "bad .npy header: it says %llu bytes, the file ends before",
                        (unsigned long long)text);
    struct cursor cursor = {(const char *)b + start, (const char *)b + start + text};
    int rc = parse_dictionary(&cursor, &h, diag);
    if (rc == 0)
        rc = parse_descr(&h, diag);
    if (rc < 0)
        return rc;
    h.data_offset = start + text;
    h.count = 1;
    bool fits = true, empty = false;
    for (uint32_t i = 0; i < h.ndim; i++) {
        empty = empty || h.shape[i] == 0;
        fits = fits && (h.shape[i] == 0 || mul_u64(h.count, h.shape[i], &h.count));
    }
    h.count = empty ? 0 : h.count;
    if (!empty && (!fits || !mul_u64(h.count, h.item_bytes, &h.data_bytes)))
        return refuse(diag, "the array's size does not fit 64 bits");
    *ret = h;
    return 0;
}

/* ---- labels ---------------------------------------------------------------------------------------------------- */

int64_t npy_labels_get(const struct npy_labels *labels, uint64_t i) {
    uint32_t bytes = labels->header.item_bytes;
    const uint8_t *p = labels->data + i * bytes;
    uint64_t value = 0;
    if (labels->header.big_endian)
        for (uint32_t k = 0; k < bytes; k++)
            value = value << 8 | p[k];
    else
        for (uint32_t k = bytes; k--;)
            value = value << 8 | p[k];
    if (labels->header.kind == 'i') {
        unsigned unused = 64 - 8 * bytes;
        return (int64_t)(value << unused) >> unused; /* arithmetic shift: gcc and clang promise it */
    }
    return (int64_t)value;
}

static int check_labels(const struct npy_labels *labels, const char *path, struct diag *diag) {
    const struct npy_header *h = &labels->header;
    if (strchr("iu", h->kind) == NULL || h->dtype == 0)
        return diag_set(diag, -EINVAL, "labels %s: dtype '%s' is no integer; save them with .astype('int64')", path,
                        h->descr);
    bool column = h->ndim == 2 && h->shape[1] == 1;
    if (h->ndim != 1 && !column)
        return diag_set(diag, -EINVAL, "labels %s: the array has %u dimensions, wanted (N) or (N,1)", path, h->ndim);
    if (h->data_bytes > labels->map_bytes - h->data_offset)
        return diag_set(diag, -EINVAL, "labels %s: the header describes %llu bytes of elements, the file holds %llu",
                        path, (unsigned long long)h->data_bytes,
                        (unsigned long long)(labels->map_bytes - h->data_offset));
    if (h->kind == 'u' && h->item_bytes == 8)
        for (uint64_t i = 0; i < h->count; i++)
            if (npy_labels_get(labels, i) < 0)
                return diag_set(diag, -EINVAL, "labels %s: label %llu is %llu, more than a signed 64-bit label holds",
                                path, (unsigned long long)i, (unsigned long long)npy_labels_get(labels, i));
    return 0;
}

/* The file's bytes in memory of our own. */
static int copy_file(int fd, void *map, size_t length) {
    for (size_t done = 0; done < length;) {
        ssize_t n = pread(fd, (char *)map + done, length - done, (off_t)done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        done += (size_t)n;
    }
    return 0;
}

int npy_labels_open(const char *path, struct npy_labels *ret, struct diag *diag) {
    return array_labels_open(path, npy_parse, ret, diag);
}

int array_labels_open(const char *path, array_parse *parse, struct npy_labels *ret, struct diag *diag) {
    cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat status;
    if (fd < 0 || fstat(fd, &status) < 0)
        return diag_set(diag, -errno, "labels %s: cannot open: %s", path, strerror(errno));
    if (!S_ISREG(status.st_mode) || status.st_size == 0)
        return diag_set(diag, -EINVAL, "labels %s: not a regular file with bytes in it", path);
    struct npy_labels labels = {.map_bytes = (size_t)status.st_size};
    bool copy = labels.map_bytes <= LABELS_COPIED;
    labels.map = mmap(NULL, labels.map_bytes, copy ? PROT_READ | PROT_WRITE : PROT_READ,
                      copy ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, copy ? -1 : fd, 0);
    if (labels.map == MAP_FAILED)
        return diag_set(diag, -errno, "labels %s: cannot map: %s", path, strerror(errno));
    int rc = copy ? copy_file(fd, labels.map, labels.map_bytes) : 0;
    if (rc < 0)
        diag_set(diag, rc, "labels %s: cannot read: %s", path, strerror(-rc));
    else if ((rc = parse(labels.map, labels.map_bytes, &labels.header, diag)) < 0)
        diag_prefix(diag, "labels %s", path);
    if (rc == 0) {
        labels.data = (const uint8_t *)labels.map + labels.header.data_offset;
        rc = check_labels(&labels, path, diag);
    }
    if (rc < 0) {
        munmap(labels.map, labels.map_bytes);
        return rc;
    }
    *ret = labels;
    return 0;
}

void npy_labels_close(struct npy_labels *labels) {
    if (labels->map)
        munmap(labels->map, labels->map_bytes);
    *labels = (struct npy_labels){0};
}
