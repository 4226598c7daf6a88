/* SPDX-License-Identifier: MIT */
/*
 * Formats npy and idx: the samples are the rows of an array along its first axis. Several files, divided by commas, are
 * several fields of equal length: "a.npy,b.npy" or "image=a.npy,label=b.npy".
 *
 * - Without NAME= a field of a .npy file is called as its file, less the ending; images and labels lose their s. An IDX
 *   file of one dimension of integers is called label, any other image.
 * - Any integer, float or bool dtype in either byte order; every other one is refused by name. Nothing is unpickled.
 * - A one-dimensional array of integers named label is a table of labels, read at open (npy.c); the other arrays, four
 *   at most, are read row by row.
 * - Rows of an array in Fortran order do not lie together: such an array is transposed once, at open, into memory of
 *   the daemon (FORTRAN_BYTES at most; larger ones are refused).
 *
 * Opening is for one thread; everything else for any.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "dataset/format.h"

#define HEADER_BYTES (256u * 1024)
#define FORTRAN_BYTES (UINT64_C(256) << 20)
#define COPY_BYTES (1024u * 1024)

/* One file. */
struct array {
    char *path;
    struct source_file file; /* or the transposed copy of it */
    struct npy_header header;
    uint64_t data_offset, row_bytes;
    struct npy_labels labels; /* instead of the file */
    bool labelled;
};

struct arrays {
    array_parse *parse; /* of the format */
    uint32_t count;
    struct array array[LOADERD_MAX_FIELDS]; /* one a field, in order */
};

/* ---- names ----------------------------------------------------------------------------------------------------- */

const char *path_field_name(const char *piece, size_t length, size_t *ret_length) {
    const char *equals = memchr(piece, '=', length), *slash = memchr(piece, '/', length);
    if (!equals || (slash && slash < equals))
        return NULL;
    *ret_length = (size_t)(equals - piece);
    return piece;
}

static bool set_name(struct field_spec *spec, const char *name, size_t length) {
    if (length == 0 || length >= sizeof spec->name)
        return false;
    for (size_t i = 0; i < length; i++) {
        char c = name[i];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
        if (!plain)
            return false;
    }
    memcpy(spec->name, name, length);
    spec->name[length] = '\0';
    return true;
}

/* "dir/images.npy": image. */
static bool name_by_file(struct field_spec *spec, const char *path) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    size_t length = strlen(name);
    if (length > 4 && strcmp(name + length - 4, ".npy") == 0)
        length -= 4;
    if (length == 6 && (memcmp(name, "images", 6) == 0 || memcmp(name, "labels", 6) == 0))
        length--;
    return set_name(spec, name, length);
}

/* ---- one array ------------------------------------------------------------------------------------------------- */

static int read_header(struct array *array, array_parse *parse, struct diag *diag) {
    cleanup_free uint8_t *head = malloc(HEADER_BYTES);
    if (!head)
        return -ENOMEM;
    ssize_t got = source_file_head(&array->file, head, HEADER_BYTES, diag);
    if (got < 0)
        return (int)got;
    int rc = parse(head, (size_t)got, &array->header, diag);
    if (rc < 0)
        return diag_prefix(diag, "%s", array->path);
    const struct npy_header *h = &array->header;
    uint64_t body = array->file.identity.size - h->data_offset;
    if (h->data_bytes > body)
        return diag_set(diag, -EINVAL,
                        "%s: the header describes %llu bytes of elements, the file holds %llu: it was "
                        "cut",
                        array->path, (unsigned long long)h->data_bytes, (unsigned long long)body);
    array->data_offset = h->data_offset;
    return 0;
}

/* The field that the array's rows make. */
static int make_field(struct array *array, struct dataset_field *field, struct diag *diag) {
    const struct npy_header *h = &array->header;
    field->source = SOURCE_BYTES;
    field->spec.dtype = h->kind == 'b' ? (uint32_t)LOADERD_U8 : h->dtype;
    field->swap = h->big_endian && h->item_bytes > 1;
    if (!field->spec.dtype)
        return diag_set(diag, -EINVAL,
                        "%s: dtype '%s' is not supported (integers, floats and bool are); save it with "
                        ".astype('float32') or the like",
                        array->path, h->descr);
    if (h->ndim == 0)
        return diag_set(diag, -EINVAL, "%s: the array is a scalar, shape (): wanted samples along a first axis",
                        array->path);
    if (h->ndim - 1 > ARRAY_SIZE(field->spec.dims))
        return diag_set(diag, -EINVAL, "%s: the array has %u dimensions, at most %zu are possible", array->path,
                        h->ndim, ARRAY_SIZE(field->spec.dims) + 1);
    field->spec.ndim = h->ndim - 1;
    for (uint32_t i = 1; i < h->ndim; i++)
        field->spec.dims[i - 1] = (int64_t)h->shape[i];
    if (h->count == 0)
        return diag_set(diag, -ENODATA, "%s: the array is empty: no sample", array->path);
    array->row_bytes = field->bytes = h->data_bytes / h->shape[0];
    return 0;
}

/* ---- Fortran order --------------------------------------------------------------------------------------------- */

/* Does the order matter? Not where at most one dimension is longer than 1. */
static bool is_transposed(const struct npy_header *h) {
    uint32_t longer = 0;
    for (uint32_t i = 0; i < h->ndim; i++)
        longer += h->shape[i] > 1;
    return h->fortran_order && longer > 1;
}

/* Where the element after this one in Fortran order lies in C order: counts the indices up, the first one fastest. */
struct odometer {
    uint64_t index[NPY_MAX_DIMS], step[NPY_MAX_DIMS]; /* step: elements in C order from one index to the next */
    uint64_t at;
};

static void odometer_init(struct odometer *o, const struct npy_header *h) {
    *o = (struct odometer){.at = 0};
    uint64_t step = 1;
    for (uint32_t i = h->ndim; i--; step *= h->shape[i])
        o->step[i] = step;
}

static void odometer_turn(struct odometer *o, const struct npy_header *h) {
    for (uint32_t i = 0; i < h->ndim; i++) {
        o->at += o->step[i];
        if (++o->index[i] < h->shape[i])
            return;
        o->at -= o->step[i] * h->shape[i];
        o->index[i] = 0;
    }
}

static int transpose_into(const struct array *array, uint8_t *out, struct diag *diag) {
    const struct npy_header *h = &array->header;
    size_t item = h->item_bytes, chunk = COPY_BYTES / item * item;
    cleanup_free uint8_t *in = malloc(chunk);
    struct odometer odometer;
    if (!in)
        return -ENOMEM;
    odometer_init(&odometer, h);
    for (uint64_t done = 0; done < h->data_bytes;) {
        size_t wanted = (size_t)MIN(chunk, h->data_bytes - done);
        int rc = source_file_read(&array->file, in, wanted, h->data_offset + done, diag);
        if (rc < 0)
            return rc;
        for (size_t i = 0; i < wanted; i += item) {
            memcpy(out + odometer.at * item, in + i, item);
            odometer_turn(&odometer, h);
        }
        done += wanted;
    }
    return 0;
}

/* Puts a copy in C order in the file's place. */
static int transpose(struct array *array, struct diag *diag) {
    const struct npy_header *h = &array->header;
    if (h->data_bytes > FORTRAN_BYTES)
        return diag_set(diag, -EFBIG,
                        "%s: the array is in Fortran order and has %llu bytes: its samples are scattered "
                        "over the whole file, and only %llu bytes are put in order at open; save "
                        "numpy.ascontiguousarray(array)",
                        array->path, (unsigned long long)h->data_bytes, (unsigned long long)FORTRAN_BYTES);
    char name[64];
    cleanup_close int fd = memfd_create("loaderd-npy", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)h->data_bytes) < 0)
        return diag_set(diag, -errno, "%s: cannot make a copy in C order: %s", array->path, strerror(errno));
    void *map = mmap(NULL, h->data_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        return diag_set(diag, -errno, "%s: cannot make a copy in C order: %s", array->path, strerror(errno));
    int rc = transpose_into(array, map, diag);
    munmap(map, h->data_bytes);
    if (rc < 0)
        return rc;
    source_file_close(&array->file);
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd); /* so that checks of the path find this file */
    array->data_offset = 0;
    return source_file_open(&array->file, name, diag);
}

/* ---- all of them ----------------------------------------------------------------------------------------------- */

static bool is_integer(const struct npy_header *h) {
    return h->kind == 'i' || h->kind == 'u';
}

static bool is_label_table(const struct array *array, const struct dataset_field *field) {
    return strcmp(field->spec.name, "label") == 0 && array->header.ndim == 1 && is_integer(&array->header);
}

static int choose_name(const struct arrays *arrays, const struct array *array, struct dataset_field *field,
                       const char *name, size_t length, struct diag *diag) {
    bool label = array->header.ndim == 1 && is_integer(&array->header), good;
    if (name)
        good = set_name(&field->spec, name, length);
    else if (arrays->parse == idx_parse)
        good = set_name(&field->spec, label ? "label" : "image", 5);
    else
        good = name_by_file(&field->spec, array->path);
    return good ? 0
                : diag_set(diag, -EINVAL,
                           "%.200s: a field's name has up to 31 letters, digits, _ and -; name it by "
                           "NAME=FILE",
                           name ? name : array->path);
}

static int open_array(struct arrays *arrays, struct dataset_field *field, uint32_t *extents, const char *piece,
                      size_t length, struct diag *diag) {
    struct array *array = &arrays->array[arrays->count++]; /* arrays_close() has it from here on */
    size_t name_length = 0;
    const char *name = path_field_name(piece, length, &name_length);
    size_t skip = name ? name_length + 1 : 0;
    array->file.fd = -1;
    array->path = strndup(piece + skip, length - skip);
    if (!array->path)
        return -ENOMEM;
    int rc = source_file_open(&array->file, array->path, diag);
    if (rc == 0)
        rc = read_header(array, arrays->parse, diag);
    if (rc == 0)
        rc = choose_name(arrays, array, field, name, name_length, diag);
    if (rc == 0)
        rc = make_field(array, field, diag);
    if (rc == 0 && is_label_table(array, field)) {
        rc = array_labels_open(array->path, arrays->parse, &array->labels, diag);
        array->labelled = rc == 0;
        source_file_close(&array->file);
        dataset_set_label_field(field);
        return rc;
    }
    if (rc == 0 && is_transposed(&array->header))
        rc = transpose(array, diag);
    if (rc == 0 && *extents == MAX_EXTENTS)
        rc = diag_set(diag, -EINVAL, "%s: more than %d arrays that are no labels", array->path, MAX_EXTENTS);
    field->extent = (*extents)++;
    return rc;
}

static int check_fields(const struct dataset *dataset, const struct arrays *arrays, struct diag *diag) {
    const struct array *first = &arrays->array[0];
    for (uint32_t i = 1; i < arrays->count; i++) {
        const struct array *array = &arrays->array[i];
        if (array->header.shape[0] != first->header.shape[0])
            return diag_set(diag, -EINVAL, "%s holds %llu samples, %s holds %llu: the first axes differ", first->path,
                            (unsigned long long)first->header.shape[0], array->path,
                            (unsigned long long)array->header.shape[0]);
        for (uint32_t k = 0; k < i; k++)
            if (strcmp(dataset->field[i].spec.name, dataset->field[k].spec.name) == 0)
                return diag_set(diag, -EINVAL, "%s and %s are both named %s; name them by NAME=FILE",
                                arrays->array[k].path, array->path, dataset->field[i].spec.name);
    }
    return 0;
}

static void fingerprint(struct dataset *dataset, const struct arrays *arrays) {
    struct hash hash;
    hash_begin(&hash, "arrays");
    hash_u64(&hash, dataset->samples);
    dataset_hash_fields(dataset, &hash);
    for (uint32_t i = 0; i < arrays->count; i++) {
        hash_u64(&hash, arrays->array[i].labelled);
        for (uint64_t k = 0; arrays->array[i].labelled && k < dataset->samples; k++)
            hash_u64(&hash, (uint64_t)npy_labels_get(&arrays->array[i].labels, k));
    }
    hash_end(&hash, dataset->fingerprint);
}

static int arrays_open(struct dataset *dataset, const struct dataset_options *options, struct diag *diag) {
    (void)options;
    struct arrays *arrays = calloc(1, sizeof *arrays);
    if (!arrays)
        return -ENOMEM;
    dataset->state = arrays;
    arrays->parse = dataset->format == &format_idx ? idx_parse : npy_parse;
    uint32_t extents = 0;
    bool whole = access(dataset->path, F_OK) == 0;
    for (const char *piece = dataset->path; piece;) {
        size_t length = strlen(piece);
        const char *next = whole ? NULL : path_piece(piece, &length);
        if (arrays->count == LOADERD_MAX_FIELDS)
            return diag_set(diag, -EINVAL, "%s: more than %d arrays", dataset->path, LOADERD_MAX_FIELDS);
        int rc = open_array(arrays, &dataset->field[arrays->count], &extents, piece, length, diag);
        if (rc < 0)
            return rc;
        piece = next;
    }
    int rc = check_fields(dataset, arrays, diag);
    dataset->fields = arrays->count;
    dataset->samples = arrays->array[0].header.shape[0];
    fingerprint(dataset, arrays);
    return rc;
}

static void arrays_close(struct dataset *dataset) {
    struct arrays *arrays = dataset->state;
    for (uint32_t i = 0; arrays && i < arrays->count; i++) {
        source_file_close(&arrays->array[i].file);
        npy_labels_close(&arrays->array[i].labels);
        free(arrays->array[i].path);
    }
    free(arrays);
    dataset->state = NULL;
}

static void arrays_locate(const struct dataset *dataset, uint64_t sample, struct location *ret) {
    const struct arrays *arrays = dataset->state;
    for (uint32_t i = 0; i < arrays->count; i++) {
        const struct array *array = &arrays->array[i];
        if (array->labelled) {
            ret->value[i] = npy_labels_get(&array->labels, sample);
            continue;
        }
        ret->extent[ret->extents++] = (struct extent){
            .file = &array->file,
            .dirfd = -1,
            .offset = array->data_offset + sample * array->row_bytes,
            .length = array->row_bytes,
        };
    }
}

static int arrays_name(const struct dataset *dataset, uint64_t sample, char *buffer, size_t size) {
    const struct arrays *arrays = dataset->state;
    return snprintf(buffer, size, "%s#%llu", arrays->array[0].path, (unsigned long long)sample);
}

static bool arrays_detect(const uint8_t *head, size_t length) {
    return length >= 6 && memcmp(head, "\x93NUMPY", 6) == 0;
}

const struct dataset_format format_npy = {
    .name = "npy",
    .detect = arrays_detect,
    .open = arrays_open,
    .close = arrays_close,
    .locate = arrays_locate,
    .name_sample = arrays_name,
};

const struct dataset_format format_idx = {
    .name = "idx",
    .detect = idx_detect,
    .open = arrays_open,
    .close = arrays_close,
    .locate = arrays_locate,
    .name_sample = arrays_name,
};
