/* SPDX-License-Identifier: MIT */
/*
 * Fixed-size records in plain files: "label:u8 image:u8[3,32,32]" describes one record, every file is its header bytes
 * (skip_bytes) and whole records. Labels may come from a .npy file instead, one a record over all files.
 *
 * The path is one file or several (files.c). Numbers are little-endian, as they lie in the file.
 *
 * Files stay open, with their size checked against the record; bytes are read by others. Opening is for one thread.
 */
#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "dataset/format.h"

struct raw {
    struct layout layout;
    uint64_t skip;
    struct shards shards;
    struct npy_labels labels;
    bool labelled;
    bool from_folder;
    uint32_t label_field;
};

/* ---- the layout line ------------------------------------------------------------------------------------------- */

static int refuse_layout(const char *text, size_t length, const char *at, const char *why, struct diag *diag) {
    return diag_set(diag, -EINVAL,
                    "record layout '%.*s', character %zu: %s; the form is NAME:DTYPE[DIM,...], e.g. "
                    "label:u8 image:u8[3,32,32]",
                    (int)MIN(length, 160u), text, (size_t)(at - text) + 1, why);
}

/* "[3,32,32]" at *text, or nothing. Returns what is wrong, NULL if it is right. */
static const char *parse_dims(const char **text, const char *end, struct field_spec *spec) {
    const char *p = *text;
    if (p == end || *p != '[')
        return NULL;
    do {
        uint64_t dim;
        p++;
        if (spec->ndim == ARRAY_SIZE(spec->dims))
            return "more than 7 dimensions";
        if (!dataset_read_count(&p, end, &dim))
            return "a dimension is missing, zero or too large";
        spec->dims[spec->ndim++] = (int64_t)dim;
    } while (p < end && *p == ',');
    if (p == end || *p != ']')
        return "']' is missing";
    *text = p + 1;
    return NULL;
}

/* One field at *text; a field named "_" only takes room. Returns what is wrong, NULL if it is right. */
static const char *parse_field(const char **text, const char *end, struct layout *layout) {
    struct dataset_field field = {.source = SOURCE_BYTES, .offset = layout->record_bytes};
    const char *name = *text, *p = name;
    while (p < end && (isalnum((unsigned char)*p) || *p == '_' || *p == '-'))
        p++;
    if (p == name || p == end || *p != ':')
        return "a field's name (letters, digits, _ and -) and ':' are missing";
    if ((size_t)(p - name) >= sizeof field.spec.name)
        return "a field's name is longer than 31 characters";
    memcpy(field.spec.name, name, (size_t)(p - name));
    const char *word = ++p;
    while (p < end && isalnum((unsigned char)*p))
        p++;
    *text = word;
    field.spec.dtype = dataset_dtype(word, (size_t)(p - word));
    if (!field.spec.dtype)
        return "unknown dtype (u8 i8 u16 i16 u32 i32 u64 i64 f16 bf16 f32 f64)";
    *text = p;
    const char *wrong = parse_dims(text, end, &field.spec);
    if (wrong)
        return wrong;
    field.bytes = dataset_dtype_bytes(field.spec.dtype);
    for (uint32_t i = 0; i < field.spec.ndim; i++)
        if (!mul_u64(field.bytes, (uint64_t)field.spec.dims[i], &field.bytes))
            return "a field is too large";
    if (!add_u64(layout->record_bytes, field.bytes, &layout->record_bytes) || layout->record_bytes > INT64_MAX)
        return "the record is too large";
    if (strcmp(field.spec.name, "_") == 0)
        return NULL;
    for (uint32_t i = 0; i < layout->fields; i++)
        if (strcmp(layout->field[i].spec.name, field.spec.name) == 0)
            return "two fields have the same name";
    if (layout->fields == LOADERD_MAX_FIELDS)
        return "more than 16 fields";
    layout->field[layout->fields++] = field;
    return NULL;
}

int layout_parse(const char *text, size_t length, struct layout *ret, struct diag *diag) {
    struct layout layout = {0};
    const char *p = text, *end = text + length;
    for (;;) {
        while (p < end && (*p == ' ' || *p == '\t'))
            p++;
        if (p == end)
            break;
        const char *wrong = parse_field(&p, end, &layout);
        if (wrong)
            return refuse_layout(text, length, p, wrong, diag);
        if (p < end && *p != ' ' && *p != '\t')
            return refuse_layout(text, length, p, "a blank is missing", diag);
    }
    if (layout.fields == 0)
        return refuse_layout(text, length, text, "no field", diag);
    *ret = layout;
    return 0;
}

/* ---- opening the files ----------------------------------------------------------------------------------------- */

/* Data that is recognisably something else than records. */
static int check_content(const struct raw *raw, const struct source_file *file, struct diag *diag) {
    uint8_t head[4096];
    ssize_t got = source_file_head(file, head, sizeof head, diag);
    if (got < 0)
        return (int)got;
    struct npy_header npy;
    if (got < 10 || memcmp(head, "\x93NUMPY", 6) != 0 || npy_parse(head, (size_t)got, &npy, NULL) < 0)
        return 0;
    if (npy.fortran_order && npy.ndim > 1)
        return diag_set(diag, -EINVAL,
                        "%s is a .npy array in Fortran order, which has no records; save "
                        "numpy.ascontiguousarray(array)",
                        file->path);
    if (raw->skip != npy.data_offset)
        return diag_set(diag, -EINVAL,
                        "%s is a .npy array of dtype '%s': set skip-bytes=%llu, its header, to read "
                        "records from it",
                        file->path, npy.descr, (unsigned long long)npy.data_offset);
    return 0;
}

static int check_size(const struct raw *raw, const struct source_file *file, uint64_t *ret_records, struct diag *diag) {
    uint64_t size = file->identity.size, record = raw->layout.record_bytes;
    if (size < raw->skip)
        return diag_set(diag, -EINVAL, "%s has %llu bytes, fewer than skip-bytes=%llu", file->path,
                        (unsigned long long)size, (unsigned long long)raw->skip);
    uint64_t body = size - raw->skip, more = body % record;
    *ret_records = body / record;
    if (more == 0)
        return 0;
    char hint[96] = "the file was cut or 'record' is wrong";
    if (more <= 4096 && body > record)
        snprintf(hint, sizeof hint, "the file was cut, 'record' is wrong, or it has a header (skip-bytes=%llu)",
                 (unsigned long long)(raw->skip + more));
    return diag_set(diag, -EINVAL,
                    "%s: %llu bytes%s are no multiple of the record of %llu bytes: %llu x %llu + %llu; "
                    "%s%s",
                    file->path, (unsigned long long)body, raw->skip ? " behind skip-bytes" : "",
                    (unsigned long long)record, (unsigned long long)*ret_records, (unsigned long long)record,
                    (unsigned long long)more, hint,
                    raw->from_folder ? "; if this is no data file, name the data by a pattern, FOLDER/*.bin" : "");
}

static int add_file(struct dataset *dataset, struct raw *raw, const char *path, struct diag *diag) {
    uint64_t records = 0;
    int rc = shards_open(&raw->shards, path, diag);
    size_t i = raw->shards.count - 1;
    if (rc == 0)
        rc = check_content(raw, &raw->shards.file[i], diag);
    if (rc == 0)
        rc = check_size(raw, &raw->shards.file[i], &records, diag);
    if (rc == 0)
        rc = shards_set_samples(&raw->shards, i, records, diag);
    return rc < 0 || records ? rc : dataset_add_remark(dataset, "%s holds no record", path);
}

static bool is_same_file(const char *path, const struct stat *other) {
    struct stat status;
    return stat(path, &status) == 0 && status.st_dev == other->st_dev && status.st_ino == other->st_ino;
}

static int add_files(struct dataset *dataset, struct raw *raw, const struct paths *paths, const char *labels,
                     struct diag *diag) {
    struct stat status;
    bool exclude = paths->from_folder && *labels && stat(labels, &status) == 0;
    int rc = shards_reserve(&raw->shards, paths_count(paths), diag);
    raw->from_folder = paths->from_folder;
    for (size_t i = 0; i < paths_count(paths) && rc == 0; i++)
        if (!exclude || !is_same_file(paths_get(paths, i), &status))
            rc = add_file(dataset, raw, paths_get(paths, i), diag);
    return rc < 0 ? rc : shards_publish(&raw->shards, dataset, "record", diag);
}

/* ---- labels, fields, fingerprint ------------------------------------------------------------------------------- */

static int open_labels(struct dataset *dataset, struct raw *raw, const char *path, struct diag *diag) {
    if (!*path)
        return 0;
    for (uint32_t i = 0; i < raw->layout.fields; i++)
        if (strcmp(raw->layout.field[i].spec.name, "label") == 0)
            return diag_set(diag, -EINVAL,
                            "the record has a field 'label' and 'labels' gives another: call the "
                            "record's field something else, or '_' to skip it");
    if (raw->layout.fields == LOADERD_MAX_FIELDS)
        return diag_set(diag, -EINVAL, "16 fields and labels are one field too many: skip one by the name '_'");
    int rc = npy_labels_open(path, &raw->labels, diag);
    if (rc < 0)
        return rc;
    raw->labelled = true;
    if (raw->labels.header.count != dataset->samples)
        return diag_set(diag, -EINVAL, "%s holds %llu labels, the data holds %llu records", path,
                        (unsigned long long)raw->labels.header.count, (unsigned long long)dataset->samples);
    return 0;
}

static void set_fields(struct dataset *dataset, struct raw *raw) {
    memcpy(dataset->field, raw->layout.field, sizeof dataset->field);
    dataset->fields = raw->layout.fields;
    raw->label_field = dataset->fields;
    if (raw->labelled)
        dataset_set_label_field(&dataset->field[dataset->fields++]);
}

static void fingerprint(struct dataset *dataset, const struct raw *raw) {
    struct hash hash;
    hash_begin(&hash, "records");
    hash_u64(&hash, dataset->samples);
    hash_u64(&hash, raw->layout.record_bytes);
    hash_u64(&hash, raw->skip);
    hash_u64(&hash, dataset->fields);
    for (uint32_t i = 0; i < dataset->fields; i++) {
        const struct dataset_field *field = &dataset->field[i];
        hash_string(&hash, field->spec.name);
        hash_u64(&hash, field->source);
        hash_u64(&hash, field->spec.dtype);
        hash_u64(&hash, field->offset);
        hash_u64(&hash, field->spec.ndim);
        for (uint32_t k = 0; k < field->spec.ndim; k++)
            hash_u64(&hash, (uint64_t)field->spec.dims[k]);
    }
    shards_hash(&raw->shards, &hash);
    for (uint64_t i = 0; raw->labelled && i < dataset->samples; i++)
        hash_u64(&hash, (uint64_t)npy_labels_get(&raw->labels, i));
    hash_end(&hash, dataset->fingerprint);
}

/* ---- the format ------------------------------------------------------------------------------------------------ */

int raw_open_path(struct dataset *dataset, const char *path, const struct dataset_options *options,
                  const struct shards **ret_shards, struct diag *diag) {
    const char *record = options->record ? options->record : "", *labels = options->labels ? options->labels : "";
    if (!*record)
        return diag_set(diag, -EINVAL, "%s: format raw needs 'record', e.g. record=\"label:u8 image:u8[3,32,32]\"",
                        dataset->path);
    struct raw *raw = calloc(1, sizeof *raw);
    if (!raw)
        return -ENOMEM;
    dataset->state = raw;
    raw->skip = options->skip_bytes;
    int rc = layout_parse(record, strlen(record), &raw->layout, diag);
    struct paths paths = PATHS_INIT;
    if (rc == 0)
        rc = paths_collect(&paths, path, diag);
    if (rc == 0)
        rc = add_files(dataset, raw, &paths, labels, diag);
    paths_deinit(&paths);
    if (rc == 0)
        rc = open_labels(dataset, raw, labels, diag);
    if (rc == 0) {
        set_fields(dataset, raw);
        fingerprint(dataset, raw);
        *ret_shards = &raw->shards;
    }
    return rc;
}

static int raw_open(struct dataset *dataset, const struct dataset_options *options, struct diag *diag) {
    const struct shards *shards;
    return raw_open_path(dataset, dataset->path, options, &shards, diag);
}

void raw_close(struct dataset *dataset) {
    struct raw *raw = dataset->state;
    if (!raw)
        return;
    shards_close(&raw->shards);
    npy_labels_close(&raw->labels);
    free(raw);
    dataset->state = NULL;
}

void raw_locate(const struct dataset *dataset, uint64_t sample, struct location *ret) {
    const struct raw *raw = dataset->state;
    size_t i = shards_find(&raw->shards, sample);
    ret->extents = 1;
    ret->extent[0] = (struct extent){
        .file = &raw->shards.file[i],
        .dirfd = -1,
        .offset = raw->skip + (sample - raw->shards.first[i]) * raw->layout.record_bytes,
        .length = raw->layout.record_bytes,
    };
    if (raw->labelled)
        ret->value[raw->label_field] = npy_labels_get(&raw->labels, sample);
}

int raw_name(const struct dataset *dataset, uint64_t sample, char *buffer, size_t size) {
    const struct raw *raw = dataset->state;
    return shards_name(&raw->shards, sample, buffer, size);
}

const struct dataset_format format_raw = {
    .name = "raw",
    .takes = TAKES_RECORD,
    .open = raw_open,
    .close = raw_close,
    .locate = raw_locate,
    .name_sample = raw_name,
};
