/* SPDX-License-Identifier: MIT */
/*
 * What MosaicML streaming's index.json says (streaming/base/format/mds/reader.py), and how a record is divided into its
 * columns (encodings.py):
 *
 *   record   | u32 length of each column without a fixed one | the columns' bytes, one behind the other |
 *   array    | dtype: 1 byte, unless fixed | ndim << 2 and width of the dimensions, those, unless fixed | values |
 *
 * Pickles are named as such and never read. Pure: any thread.
 */
#include "dataset/mds.h"

#include <endian.h>
#include <stdio.h>
#include <string.h>

#include "autoconfig.h"
#include "base/util.h"
#include "dataset/format.h"

#ifdef HAVE_LIBJANSSON
#include <jansson.h>
#endif

/* ---- encodings --------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    uint8_t code, dtype;
} numbers[] = {
    {"uint8", 8, LOADERD_U8},   {"int8", 9, LOADERD_I8},      {"uint16", 16, LOADERD_U16},
    {"int16", 17, LOADERD_I16}, {"float16", 18, LOADERD_F16}, {"uint32", 32, LOADERD_U32},
    {"int32", 33, LOADERD_I32}, {"float32", 34, LOADERD_F32}, {"uint64", 64, LOADERD_U64},
    {"int64", 65, LOADERD_I64}, {"float64", 66, LOADERD_F64}, {"int", 0, LOADERD_I64},
};

/* ---- index.json -------------------------------------------------------------------------------------------------- */

void mds_index_deinit(struct mds_index *index) {
    for (size_t i = 0; i < index->shards; i++) {
        free(index->shard[i].raw);
        free(index->shard[i].zip);
    }
    free(index->shard);
    *index = (struct mds_index){0};
}

#ifdef HAVE_LIBJANSSON

static uint32_t number_dtype(const char *name, size_t length) {
    for (size_t i = 0; i < ARRAY_SIZE(numbers); i++)
        if (strlen(numbers[i].name) == length && memcmp(numbers[i].name, name, length) == 0)
            return numbers[i].dtype;
    return 0;
}

/* "ndarray", "ndarray:int16", "ndarray:int16:3,4". False: none of these. */
static bool parse_array_encoding(const char *text, struct mds_column *column) {
    column->kind = MDS_ARRAY;
    if (*text == '\0')
        return true;
    size_t length = strcspn(++text, ":");
    column->dtype = number_dtype(text, length);
    if (!column->dtype || text[length] == '\0')
        return column->dtype != 0;
    const char *p = text + length + 1, *end = p + strlen(p);
    for (;;) {
        uint64_t dim;
        if (column->ndim == ARRAY_SIZE(column->dims) || !dataset_read_count(&p, end, &dim))
            return false;
        column->dims[column->ndim++] = (int64_t)dim;
        if (p == end)
            return true;
        if (*p++ != ',')
            return false;
    }
}

static bool parse_encoding(struct mds_column *column) {
    const char *text = column->encoding;
    column->dtype = number_dtype(text, strlen(text));
    if (strncmp(text, "ndarray", 7) == 0 && (text[7] == '\0' || text[7] == ':'))
        return parse_array_encoding(text + 7, column);
    column->kind = column->dtype                                                        ? MDS_NUMBER
                   : strcmp(text, "jpeg") == 0 || strcmp(text, "png") == 0              ? MDS_PICTURE
                   : strcmp(text, "jpegarray") == 0 || strcmp(text, "jpeg_array") == 0  ? MDS_PICTURE
                   : strcmp(text, "bytes") == 0                                         ? MDS_BYTES
                   : strcmp(text, "str_int") == 0                                       ? MDS_TEXT
                   : strcmp(text, "pkl") == 0 || strcmp(text, "pil") == 0               ? MDS_PICKLE
                   : strcmp(text, "str") == 0 || strcmp(text, "json") == 0              ? MDS_STRING
                   : strcmp(text, "str_float") == 0 || strcmp(text, "str_decimal") == 0 ? MDS_STRING
                                                                                        : MDS_OTHER;
    return true;
}

static int bad(struct diag *diag, size_t shard, const char *what) {
    return diag_set(diag, -EINVAL, "index.json: shard %zu: %s", shard, what);
}

static int take_column(struct mds_column *column, const json_t *name, const json_t *encoding, const json_t *size,
                       size_t shard, struct diag *diag) {
    const char *name_text = json_string_value(name), *text = json_string_value(encoding);
    if (!name_text || !text || strlen(name_text) >= sizeof column->name || strlen(text) >= sizeof column->encoding)
        return bad(diag, shard, "a column's name or encoding is no string, or longer than 63 characters");
    *column = (struct mds_column){.kind = MDS_OTHER};
    strcpy(column->name, name_text);
    strcpy(column->encoding, text);
    json_int_t bytes = json_integer_value(size);
    if (!json_is_null(size) && (!json_is_integer(size) || bytes < 0 || bytes > UINT32_MAX))
        return bad(diag, shard, "a column's size is no number of 32 bits");
    column->size = (uint32_t)bytes;
    return parse_encoding(column) ? 0 : bad(diag, shard, "a column's ndarray encoding is unknown");
}

static int take_columns(const json_t *shard, struct mds_index *index, size_t number, struct diag *diag) {
    const json_t *names = json_object_get(shard, "column_names"), *sizes = json_object_get(shard, "column_sizes");
    const json_t *encodings = json_object_get(shard, "column_encodings");
    size_t count = json_array_size(names);
    if (count == 0 || count > MDS_MAX_COLUMNS || json_array_size(encodings) != count || json_array_size(sizes) != count)
        return bad(diag, number, "no columns, more than 64, or names, encodings and sizes that differ in number");
    for (size_t i = 0; i < count; i++) {
        struct mds_column column;
        int rc = take_column(&column, json_array_get(names, i), json_array_get(encodings, i), json_array_get(sizes, i),
                             number, diag);
        if (rc < 0)
            return rc;
        if (number == 0)
            index->column[i] = column;
        else if (index->columns != count || memcmp(&index->column[i], &column, sizeof column) != 0)
            return bad(diag, number, "other columns than in shard 0");
    }
    index->columns = (uint32_t)count;
    return 0;
}

/* A name that stays below the folder. */
static char *take_name(const json_t *file) {
    const char *name = json_string_value(json_object_get(file, "basename"));
    if (!name || !*name || *name == '/')
        return NULL;
    for (const char *p = name; p; p = strchr(p, '/') ? strchr(p, '/') + 1 : NULL)
        if (p[0] == '.' && p[1] == '.' && (p[2] == '/' || p[2] == '\0'))
            return NULL;
    return strdup(name);
}

static int take_shard(const json_t *json, struct mds_index *index, struct diag *diag) {
    size_t number = index->shards;
    struct mds_shard *shard = &index->shard[index->shards++];
    const json_t *raw = json_object_get(json, "raw_data"), *zip = json_object_get(json, "zip_data");
    const json_t *samples = json_object_get(json, "samples"), *bytes = json_object_get(raw, "bytes");
    const char *format = json_string_value(json_object_get(json, "format"));
    const char *compression = json_string_value(json_object_get(json, "compression"));
    if (!format || strcmp(format, "mds") != 0 || json_integer_value(json_object_get(json, "version")) != 2)
        return bad(diag, number, "format is not mds of version 2 (json, csv and xsv shards are not supported)");
    if (!json_is_integer(samples) || json_integer_value(samples) < 0 || json_integer_value(samples) >= UINT32_MAX ||
        !json_is_integer(bytes) || json_integer_value(bytes) < 0)
        return bad(diag, number, "samples or raw_data.bytes is no number");
    shard->samples = (uint64_t)json_integer_value(samples);
    shard->raw_bytes = (uint64_t)json_integer_value(bytes);
    shard->raw = take_name(raw);
    shard->zip = json_is_object(zip) ? take_name(zip) : NULL;
    if (!shard->raw || (json_is_object(zip) && !shard->zip))
        return bad(diag, number, "basename is no name below the folder");
    snprintf(shard->compression, sizeof shard->compression, "%s", compression ? compression : "");
    return take_columns(json, index, number, diag);
}

int mds_parse_index(const char *text, size_t length, struct mds_index *ret, struct diag *diag) {
    json_error_t error;
    json_t *root = json_loadb(text, length, 0, &error);
    if (!root)
        return diag_set(diag, -EINVAL, "index.json, line %d: %s", error.line, error.text);
    const json_t *shards = json_object_get(root, "shards");
    struct mds_index index = {.shard = calloc(json_array_size(shards) + 1, sizeof *index.shard)};
    int rc = index.shard ? 0 : -ENOMEM;
    if (rc == 0 && json_array_size(shards) == 0)
        rc = diag_set(diag, -EINVAL, "index.json has no list of shards");
    for (size_t i = 0; rc == 0 && i < json_array_size(shards); i++)
        rc = take_shard(json_array_get(shards, i), &index, diag);
    json_decref(root);
    if (rc < 0)
        mds_index_deinit(&index);
    else
        *ret = index;
    return rc;
}

#else

int mds_parse_index(const char *text, size_t length, struct mds_index *ret, struct diag *diag) {
    (void)text, (void)length, (void)ret;
    return diag_set(diag, -ENOTSUP, "this loaderd was built without jansson, which reads index.json");
}

#endif

/* ---- records ----------------------------------------------------------------------------------------------------- */

static uint32_t load32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return le32toh(v);
}

int mds_split_record(const struct mds_index *index, const uint8_t *bytes, size_t length, struct dataset_piece *ret,
                     struct diag *diag) {
    size_t head = 0, sizes = 0;
    for (uint32_t i = 0; i < index->columns; i++)
        head += index->column[i].size ? 0 : 4;
    if (head > length)
        return diag_set(diag, -EBADMSG, "the record of %zu bytes ends in its column lengths", length);
    for (uint32_t i = 0; i < index->columns; i++) {
        uint64_t size = index->column[i].size;
        if (!size) {
            size = load32(bytes + sizes);
            sizes += 4;
        }
        if (size > length - head)
            return diag_set(diag, -EBADMSG, "column %s has %llu bytes at byte %zu of a record of %zu",
                            index->column[i].name, (unsigned long long)size, head, length);
        ret[i] = (struct dataset_piece){bytes + head, (size_t)size};
        head += size;
    }
    return 0;
}

int mds_parse_array(const struct mds_column *column, const uint8_t *bytes, size_t length, struct field_spec *ret,
                    size_t *ret_header, struct diag *diag) {
    struct field_spec spec = {.dtype = column->dtype, .ndim = column->ndim};
    size_t at = 0;
    memcpy(spec.dims, column->dims, sizeof spec.dims);
    if (!spec.dtype && length > 0)
        for (size_t i = 0; i < ARRAY_SIZE(numbers); i++)
            if (numbers[i].code && numbers[i].code == bytes[0])
                spec.dtype = numbers[i].dtype;
    at += column->dtype ? 0 : 1;
    if (!spec.dtype)
        return diag_set(diag, -EBADMSG, "column %s: an array of unknown dtype", column->name);
    if (!spec.ndim) {
        size_t width = at < length ? (size_t)1 << (bytes[at] & 3) : 1;
        spec.ndim = at < length ? bytes[at] >> 2 : 0;
        at++;
        if (spec.ndim == 0 || spec.ndim > ARRAY_SIZE(spec.dims) || length < at || spec.ndim * width > length - at)
            return diag_set(diag, -EBADMSG, "column %s: an array of %u dimensions in %zu bytes", column->name,
                            spec.ndim, length);
        for (uint32_t i = 0; i < spec.ndim; i++, at += width) {
            uint64_t dim = 0;
            memcpy(&dim, bytes + at, width);
            spec.dims[i] = (int64_t)MIN(le64toh(dim), (uint64_t)INT64_MAX);
        }
    }
    uint64_t total = dataset_dtype_bytes(spec.dtype);
    for (uint32_t i = 0; i < spec.ndim; i++)
        if (spec.dims[i] == 0 || !mul_u64(total, (uint64_t)spec.dims[i], &total))
            total = UINT64_MAX;
    if (at > length || total != length - at)
        return diag_set(diag, -EBADMSG, "column %s: an array whose shape and %zu bytes differ", column->name, length);
    *ret = spec;
    *ret_header = at;
    return 0;
}

static bool parse_decimal(const uint8_t *p, size_t length, int64_t *ret) {
    size_t i = length && p[0] == '-';
    int64_t value = 0;
    if (i == length)
        return false;
    for (; i < length; i++)
        if (p[i] < '0' || p[i] > '9' || __builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, p[i] - '0', &value))
            return false;
    *ret = p[0] == '-' ? -value : value;
    return true;
}

int mds_parse_integer(const struct mds_column *column, const uint8_t *bytes, size_t length, int64_t *ret,
                      struct diag *diag) {
    if (column->kind == MDS_TEXT)
        return parse_decimal(bytes, length, ret)
                   ? 0
                   : diag_set(diag, -EBADMSG, "column %s: '%.*s' is no integer of 64 bits", column->name,
                              (int)MIN(length, 32u), (const char *)bytes);
    uint32_t dtype = column->dtype;
    bool integer = column->kind == MDS_NUMBER && dtype >= LOADERD_U8 && dtype <= LOADERD_I64;
    if (!integer || length != dataset_dtype_bytes(dtype))
        return diag_set(diag, -EBADMSG, "column %s: no integer of its encoding in %zu bytes", column->name, length);
    bool with_sign = dtype == LOADERD_I8 || dtype == LOADERD_I16 || dtype == LOADERD_I32 || dtype == LOADERD_I64;
    uint64_t value = 0;
    memcpy(&value, bytes, length);
    unsigned unused = 64 - 8 * (unsigned)length;
    value = le64toh(value) << unused;
    *ret = with_sign ? (int64_t)value >> unused : (int64_t)(value >> unused);
    if (!with_sign && *ret < 0)
        return diag_set(diag, -EBADMSG, "column %s: a number of more than 63 bits", column->name);
    return 0;
}
