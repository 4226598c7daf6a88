/* SPDX-License-Identifier: MIT */
/*
 * Opens datasets: decides which format a path is (by content, never by its ending), asks that format to open it, and
 * answers for what all formats have in common. Also the small helpers that the formats share.
 *
 * It never reads sample bytes and never changes a dataset. Opening is for one thread; afterwards all is constant.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "base/near.h"
#include "dataset/format.h"

#define LARGE_SAMPLE (32u << 10) /* bytes on average */

static const struct dataset_format *const formats[] = {
    &format_cifar10,  &format_cifar100, &format_folder,     &format_idx, &format_list,
    &format_mds,      &format_npy,      &format_pack,       &format_raw, &format_synthetic,
    &format_tfrecord, &format_tokens,   &format_webdataset,
};

/* Their names, for messages. */
static const char *format_words(void) {
    static _Thread_local char words[256];
    size_t length = 0;
    for (size_t i = 0; i < ARRAY_SIZE(formats); i++)
        length += (size_t)snprintf(words + length, sizeof words - length, "%s%s", i ? ", " : "", formats[i]->name);
    return words;
}

/* ---- buffers --------------------------------------------------------------------------------------------------- */

void *buffer_reserve(struct buffer *buffer, size_t bytes) {
    uint64_t wanted;
    if (!add_u64(buffer->length, bytes, &wanted))
        return NULL;
    if (wanted > buffer->capacity) {
        uint64_t capacity = MAX(MAX(wanted, buffer->capacity + buffer->capacity / 2), 256);
        char *data = realloc(buffer->data, capacity);
        if (!data)
            return NULL;
        buffer->data = data;
        buffer->capacity = capacity;
    }
    void *place = buffer->data + buffer->length;
    buffer->length = wanted;
    return place;
}

int buffer_append(struct buffer *buffer, const void *bytes, size_t length) {
    void *place = length ? buffer_reserve(buffer, length) : NULL;
    if (!place)
        return length ? -ENOMEM : 0;
    memcpy(place, bytes, length);
    return 0;
}

void buffer_deinit(struct buffer *buffer) {
    free(buffer->data);
    *buffer = (struct buffer)BUFFER_INIT;
}

int dataset_out_of_memory(struct diag *diag) {
    return diag_set(diag, -ENOMEM, "out of memory while the dataset was opened");
}

/* ---- directories and names ------------------------------------------------------------------------------------- */

int64_t dataset_mtime(const struct stat *status) {
    return (int64_t)status->st_mtim.tv_sec * 1000000000 + status->st_mtim.tv_nsec;
}

static unsigned char directory_kind(int fd, const char *name) {
    struct stat status;
    if (fstatat(fd, name, &status, AT_SYMLINK_NOFOLLOW) < 0)
        return DT_UNKNOWN;
    return (unsigned char)IFTODT(status.st_mode);
}

int directory_read(int fd, struct buffer *scratch, int (*each)(void *arg, const char *name, unsigned char kind),
                   void *arg) {
    enum { CHUNK = 256 * 1024 };
    if (scratch->length < CHUNK && !buffer_reserve(scratch, CHUNK - scratch->length))
        return -ENOMEM;
    for (;;) {
        ssize_t got = getdents64(fd, scratch->data, CHUNK);
        if (got <= 0)
            return got < 0 ? -errno : 0;
        for (ssize_t at = 0; at < got;) {
            const struct dirent64 *entry = (const struct dirent64 *)(const void *)(scratch->data + at);
            at += entry->d_reclen;
            if (entry->d_name[0] == '.')
                continue;
            unsigned char kind = entry->d_type == DT_UNKNOWN ? directory_kind(fd, entry->d_name) : entry->d_type;
            if (kind == DT_UNKNOWN) /* gone since */
                continue;
            int rc = each(arg, entry->d_name, kind);
            if (rc < 0)
                return rc;
        }
    }
}

/* The eight bytes behind the common prefix decide most comparisons without touching the names. */
struct sort_entry {
    uint64_t key, offset;
};

static int compare_entries(const void *a, const void *b, void *arg) {
    const struct sort_entry *x = a, *y = b;
    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    const char *names = arg;
    return strcmp(names + x->offset, names + y->offset);
}

static uint64_t sort_key(const char *text) {
    uint64_t key = 0;
    for (int i = 0; i < 8; i++) {
        key = key << 8 | (unsigned char)*text;
        if (*text)
            text++;
    }
    return key;
}

int names_sort(const char *names, uint64_t *offset, size_t count) {
    if (count < 2)
        return 0;
    size_t prefix = strlen(names + offset[0]);
    bool sorted = true;
    for (size_t i = 1; i < count; i++) {
        const char *before = names + offset[i - 1], *name = names + offset[i];
        size_t same = 0;
        while (before[same] && before[same] == name[same])
            same++;
        prefix = MIN(prefix, same);
        sorted = sorted && (unsigned char)before[same] <= (unsigned char)name[same];
    }
    if (sorted)
        return 0;
    cleanup_free struct sort_entry *entry = malloc(count * sizeof *entry);
    if (!entry)
        return -ENOMEM;
    for (size_t i = 0; i < count; i++)
        entry[i] = (struct sort_entry){sort_key(names + offset[i] + prefix), offset[i]};
    qsort_r(entry, count, sizeof *entry, compare_entries, (void *)(uintptr_t)names);
    for (size_t i = 0; i < count; i++)
        offset[i] = entry[i].offset;
    return 0;
}

bool dataset_is_picture_name(const char *name) {
    static const char *const endings[] = {"jpg", "jpeg", "png", "webp", "bmp", "ppm", "pgm", "gif", "tif", "tiff"};
    const char *dot = strrchr(name, '.');
    if (!dot)
        return false;
    for (size_t i = 0; i < ARRAY_SIZE(endings); i++)
        if (strcasecmp(dot + 1, endings[i]) == 0)
            return true;
    return false;
}

/* ---- words ----------------------------------------------------------------------------------------------------- */

static const struct {
    char word[5];
    uint8_t bytes;
} dtypes[] = {
    [LOADERD_U8] = {"u8", 1},   [LOADERD_I8] = {"i8", 1},     [LOADERD_U16] = {"u16", 2}, [LOADERD_I16] = {"i16", 2},
    [LOADERD_U32] = {"u32", 4}, [LOADERD_I32] = {"i32", 4},   [LOADERD_U64] = {"u64", 8}, [LOADERD_I64] = {"i64", 8},
    [LOADERD_F16] = {"f16", 2}, [LOADERD_BF16] = {"bf16", 2}, [LOADERD_F32] = {"f32", 4}, [LOADERD_F64] = {"f64", 8},
};

uint32_t dataset_dtype(const char *word, size_t length) {
    for (uint32_t i = 1; i < ARRAY_SIZE(dtypes); i++)
        if (strlen(dtypes[i].word) == length && memcmp(dtypes[i].word, word, length) == 0)
            return i;
    return 0;
}

uint32_t dataset_dtype_bytes(uint32_t dtype) {
    return dtype < ARRAY_SIZE(dtypes) ? dtypes[dtype].bytes : 0;
}

bool dataset_read_count(const char **text, const char *end, uint64_t *ret) {
    const char *p = *text;
    uint64_t value = 0;
    for (; p < end && *p >= '0' && *p <= '9'; p++)
        if (!mul_u64(value, 10, &value) || !add_u64(value, (uint64_t)(*p - '0'), &value))
            return false;
    if (p == *text || value == 0 || value > INT64_MAX)
        return false;
    *text = p;
    *ret = value;
    return true;
}

/* ---- what formats fill in -------------------------------------------------------------------------------------- */

int dataset_add_remark(struct dataset *dataset, const char *format, ...) {
    char **grown = realloc(dataset->remark, (dataset->remarks + 1) * sizeof *grown);
    if (!grown)
        return -ENOMEM;
    dataset->remark = grown;
    va_list args;
    va_start(args, format);
    int n = vasprintf(&grown[dataset->remarks], format, args);
    va_end(args);
    if (n < 0)
        return -ENOMEM;
    dataset->remarks++;
    return 0;
}

int dataset_set_note(struct dataset *dataset, const char *format, ...) {
    char *note;
    va_list args;
    va_start(args, format);
    int n = vasprintf(&note, format, args);
    va_end(args);
    if (n < 0)
        return -ENOMEM;
    free(dataset->index_note);
    dataset->index_note = note;
    return 0;
}

int dataset_take_over(struct dataset *dataset, const struct dataset *from) {
    dataset->samples = from->samples;
    dataset->shards = from->shards;
    dataset->shard_first = from->shard_first;
    if (from->classes) {
        dataset->class_name = calloc(from->classes, sizeof *dataset->class_name);
        dataset->class_samples = calloc(from->classes, sizeof *dataset->class_samples);
        if (!dataset->class_name || !dataset->class_samples)
            return -ENOMEM;
        memcpy(dataset->class_name, from->class_name, from->classes * sizeof *from->class_name);
        memcpy(dataset->class_samples, from->class_samples, from->classes * sizeof *from->class_samples);
        dataset->classes = from->classes;
    }
    int rc = 0;
    for (uint32_t i = 0; i < from->remarks && rc == 0; i++)
        rc = dataset_add_remark(dataset, "%s", from->remark[i]);
    dataset->root_path = from->root_path ? strdup(from->root_path) : NULL;
    if (from->root_path && !dataset->root_path)
        rc = -ENOMEM;
    return rc < 0 ? rc : dataset_set_note(dataset, "%s", from->index_note);
}

void dataset_set_label_field(struct dataset_field *field) {
    *field = (struct dataset_field){.spec = {.name = "label", .dtype = LOADERD_I64}, .source = SOURCE_VALUE};
}

void dataset_set_mask_field(struct dataset_field *field, uint32_t extent) {
    *field = (struct dataset_field){
        .spec = {.name = "mask", .dtype = LOADERD_U8, .ndim = 2, .dims = {-1, -1}},
        .source = SOURCE_PICTURE,
        .extent = extent,
    };
}

void dataset_set_picture_fields(struct dataset *dataset, bool labels) {
    dataset->field[0] = (struct dataset_field){
        .spec = {.name = "image", .dtype = LOADERD_U8, .ndim = 3, .dims = {-1, -1, -1}},
        .source = SOURCE_PICTURE,
    };
    dataset_set_label_field(&dataset->field[1]);
    dataset->fields = labels ? 2 : 1;
}

void dataset_hash_fields(const struct dataset *dataset, struct hash *hash) {
    hash_u64(hash, dataset->fields);
    for (uint32_t i = 0; i < dataset->fields; i++) {
        const struct dataset_field *field = &dataset->field[i];
        hash_string(hash, field->spec.name);
        hash_u64(hash, field->source);
        hash_u64(hash, field->spec.dtype);
        hash_u64(hash, field->deliver);
        hash_u64(hash, field->offset);
        hash_u64(hash, field->spec.ndim);
        for (uint32_t k = 0; k < field->spec.ndim; k++)
            hash_u64(hash, (uint64_t)field->spec.dims[k]);
    }
}

int dataset_refuse_option(const struct dataset *dataset, const char *name, bool set, struct diag *diag) {
    if (!set)
        return 0;
    return diag_set(diag, -EINVAL, "%s: the key '%s' has no meaning for format %s: take it away, or set 'format'",
                    dataset->path, name, dataset->format->name);
}

/* ---- detection ------------------------------------------------------------------------------------------------- */

const char *dataset_compression(const void *bytes, size_t length) {
    const uint8_t *b = bytes;
    /* gzip (RFC 1952): magic, deflate, no reserved flag, a known XFL and OS: 37 bits that raw data does not hit */
    if (length >= 10 && b[0] == 0x1f && b[1] == 0x8b && b[2] == 8 && b[3] < 0x20 && (b[8] & ~6) == 0 &&
        (b[9] <= 13 || b[9] == 255))
        return "gzip";
    if (length >= 6 && memcmp(b,
                              "\xfd"
                              "7zXZ",
                              6) == 0)
        return "xz";
    if (length >= 6 && memcmp(b, "\x28\xb5\x2f\xfd", 4) == 0)
        return "zstd";
    if (length >= 10 && memcmp(b, "BZh", 3) == 0 && memcmp(b + 4, "1AY&SY", 6) == 0)
        return "bzip2";
    return NULL;
}

/* FFCV's header: version 2, fields, a page size that is a power of two. */
static bool is_beton(const uint8_t *b, size_t length) {
    if (length < 24)
        return false;
    uint32_t page = (uint32_t)b[4] | (uint32_t)b[5] << 8 | (uint32_t)b[6] << 16 | (uint32_t)b[7] << 24;
    return b[0] == 2 && b[1] == 0 && b[2] >= 1 && b[2] <= 64 && b[3] == 0 && page >= 65536 && (page & (page - 1)) == 0;
}

/* Arrow's streaming form has no magic: a mark, the length of the schema's message, which is a multiple of 8, and in that
 * the small offset of a flat buffer's root. */
static bool is_arrow_stream(const uint8_t *b, size_t length) {
    if (length < 12 || memcmp(b, "\xff\xff\xff\xff", 4) != 0)
        return false;
    uint32_t message = (uint32_t)b[4] | (uint32_t)b[5] << 8 | (uint32_t)b[6] << 16 | (uint32_t)b[7] << 24;
    return message >= 16 && message < 1u << 26 && message % 8 == 0 && b[8] >= 4 && b[8] <= 64 && b[8] % 4 == 0 &&
           b[9] == 0 && b[10] == 0 && b[11] == 0;
}

#define BY_PYARROW                                                                                                     \
    "pyarrow copies its pictures to tar shards, which are read as they are and packed by loaderctl pack: "             \
    "\"Parquet, Arrow and FFCV\" in docs/troubleshooting.md has the lines"
#define BY_WRITER                                                                                                      \
    "FFCV encoded its pictures again: read the pictures that it was written from (a folder, tar shards ...), or make " \
    "a pack of those: loaderctl pack SOURCE DEST"
#define BY_FOLDER "name the folder that holds it"

/* What a file's beginning says that it is, as a phrase for people; NULL: nothing known. And what to do about it; NULL:
 * nothing but what goes for all. */
static const char *detect_foreign(const uint8_t *b, size_t length, const char **ret_remedy) {
    static const struct {
        const char *magic, *what;
        uint8_t bytes, at;
        const char *remedy;
    } table[] = {
        {"PK\3\4", "a zip archive (.npz, .zip)", 4, 0, NULL},
        {"PAR1", "a Parquet file", 4, 0, BY_PYARROW},
        {"ARROW1", "an Arrow file (IPC, Feather)", 6, 0, BY_PYARROW},
        {"FEA1", "a Feather file of version 1", 4, 0, BY_PYARROW},
        {"\x89HDF\r\n\x1a\n", "an HDF5 file", 8, 0, NULL},
        {"\x0a\x23\xd7\xce", "an MXNet RecordIO file", 4, 0, NULL},
        {"SQLite format 3", "an SQLite database", 15, 0, NULL},
        {"\xde\xc0\xef\xbe", "an LMDB database", 4, 16, NULL},
        {"\xff\xd8\xff", "a single JPEG picture", 3, 0, BY_FOLDER},
        {"\x89PNG\r\n\x1a\n", "a single PNG picture", 8, 0, BY_FOLDER},
        {"\x80\2", "a Python pickle", 2, 0, NULL},
        {"\x80\3", "a Python pickle", 2, 0, NULL},
        {"\x80\4", "a Python pickle", 2, 0, NULL},
        {"\x80\5", "a Python pickle", 2, 0, NULL},
    };
    *ret_remedy = BY_WRITER;
    if (is_beton(b, length))
        return "an FFCV beton file";
    *ret_remedy = BY_PYARROW;
    if (is_arrow_stream(b, length))
        return "an Arrow stream";
    for (size_t i = 0; i < ARRAY_SIZE(table); i++)
        if (length >= (size_t)table[i].at + table[i].bytes &&
            memcmp(b + table[i].at, table[i].magic, table[i].bytes) == 0) {
            *ret_remedy = table[i].remedy;
            return table[i].what;
        }
    return NULL;
}

static int refuse_foreign(const char *path, const char *what, const char *remedy, struct diag *diag) {
    if (remedy)
        return diag_set(diag, -EINVAL, "%s is %s; %s", path, what, remedy);
    return diag_set(diag, -EINVAL,
                    "%s is %s: this format is recognised but not supported yet; supported are %s (fixed-size records "
                    "inside it can be read with 'record' and 'skip-bytes')",
                    path, what, format_words());
}

/* Decides by the content of a regular file. */
static int detect_file(const char *path, const struct dataset_format **ret, struct diag *diag) {
    cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return diag_set(diag, -errno, "%s: cannot open: %s", path, strerror(errno));
    enum { PROBE = 64 * 1024 };
    cleanup_free uint8_t *head = malloc(PROBE);
    if (!head)
        return dataset_out_of_memory(diag);
    ssize_t got = pread(fd, head, PROBE, 0);
    if (got < 0)
        return diag_set(diag, -errno, "%s: cannot read: %s", path, strerror(errno));
    if (got == 0)
        return diag_set(diag, -ENODATA, "%s is empty: no sample", path);
    for (size_t i = 0; i < ARRAY_SIZE(formats); i++)
        if (formats[i]->detect && formats[i]->detect(head, (size_t)got)) {
            *ret = formats[i];
            return 0;
        }
    const char *compression = dataset_compression(head, (size_t)got), *remedy;
    if (compression)
        return diag_set(diag, -EINVAL, "%s is %s data; decompress it first", path, compression);
    const char *what = detect_foreign(head, (size_t)got, &remedy);
    if (what)
        return refuse_foreign(path, what, remedy, diag);
    if (!list_detect((const char *)head, (size_t)got))
        return diag_set(diag, -EINVAL,
                        "%s: cannot tell what this file is (first bytes %02x %02x %02x %02x); for fixed-size records "
                        "set 'record', e.g. record=\"label:u8 image:u8[3,32,32]\"; for a list of paths format=list",
                        path, head[0], got > 1 ? head[1] : 0u, got > 2 ? head[2] : 0u, got > 3 ? head[3] : 0u);
    *ret = &format_list;
    return 0;
}

static bool given(const char *text) {
    return text && *text;
}

/* A folder's entries may say that it is something else than a folder of pictures. */
static const struct dataset_format *detect_folder(const char *path) {
    cleanup_close int fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    for (size_t i = 0; fd >= 0 && i < ARRAY_SIZE(formats); i++)
        if (formats[i]->detect_folder && formats[i]->detect_folder(fd))
            return formats[i];
    return &format_folder;
}

/* A path that does not exist but may stand for several files: the first of them decides. */
static int detect_pattern(const char *path, const struct dataset_format **ret, struct diag *diag) {
    size_t length, name_length = 0;
    path_piece(path, &length);
    size_t skip = path_field_name(path, length, &name_length) ? name_length + 1 : 0;
    cleanup_free char *first = strndup(path + skip, length - skip);
    struct paths paths = PATHS_INIT;
    int rc = first ? paths_collect(&paths, first, diag) : -ENOMEM;
    if (rc == 0)
        rc = detect_file(paths_get(&paths, 0), ret, diag);
    if (rc == 0 && *ret == &format_list)
        rc = diag_set(diag, -EINVAL,
                      "dataset %s: several files that are no shards of a known format need 'record', "
                      "e.g. record=\"label:u8 image:u8[3,32,32]\"",
                      path);
    paths_deinit(&paths);
    return rc == -ENOMEM ? dataset_out_of_memory(diag) : rc;
}

static int detect(const struct dataset_options *options, const struct dataset_format **ret, struct diag *diag) {
    const char *path = options->path;
    if (strncmp(path, "synthetic:", 10) == 0) {
        *ret = &format_synthetic;
        return 0;
    }
    if (given(options->record) || options->token_dtype) {
        *ret = given(options->record) ? &format_raw : &format_tokens;
        return 0;
    }
    if (given(options->labels))
        return diag_set(diag, -EINVAL,
                        "%s: 'labels' needs to know what a record is: set 'record', e.g. "
                        "record=\"image:f32[3,224,224]\"",
                        path);
    struct stat status;
    if (stat(path, &status) < 0) {
        size_t length;
        if (errno == ENOENT && tokens_detect_path(path)) {
            *ret = &format_tokens;
            return 0;
        }
        if (errno == ENOENT && (path_is_pattern(path) || path_field_name(path, strlen(path), &length)))
            return detect_pattern(path, ret, diag);
        return diag_set(diag, -errno, "dataset %s: %s", path, strerror(errno));
    }
    if (S_ISDIR(status.st_mode)) {
        *ret = pack_detect_folder(path) ? &format_pack : detect_folder(path);
        return 0;
    }
    if (!S_ISREG(status.st_mode))
        return diag_set(diag, -EINVAL, "%s is neither a folder nor a regular file", path);
    return detect_file(path, ret, diag);
}

static int choose_format(const struct dataset_options *options, const struct dataset_format **ret, struct diag *diag) {
    if (given(options->path) && concat_detect(options->path)) {
        *ret = &format_concat;
        return 0;
    }
    if (!given(options->path))
        return diag_set(diag, -EINVAL,
                        "no dataset given: 'dataset' is a folder, a list file, a raw file or "
                        "synthetic:NxDIMS:DTYPE");
    if (given(options->boxes)) {
        *ret = &format_yolo;
        return 0;
    }
    if (given(options->masks)) {
        *ret = &format_masks;
        return 0;
    }
    if (!given(options->format) || strcmp(options->format, "auto") == 0)
        return detect(options, ret, diag);
    for (size_t i = 0; i < ARRAY_SIZE(formats); i++)
        if (strcmp(options->format, formats[i]->name) == 0) {
            *ret = formats[i];
            return 0;
        }
    struct near near = near_to(options->format, strlen(options->format));
    near_try(&near, "auto");
    for (size_t i = 0; i < ARRAY_SIZE(formats); i++)
        near_try(&near, formats[i]->name);
    if (near.found)
        return diag_set(diag, -EINVAL, "format '%s' is unknown; did you mean '%s'? There are auto, %s", options->format,
                        near.found, format_words());
    return diag_set(diag, -EINVAL, "format '%s' is unknown; there are auto, %s", options->format, format_words());
}

/* ---- the contract of dataset.h --------------------------------------------------------------------------------- */

/* Keys that have no meaning for the format. */
static int refuse_options(const struct dataset *dataset, const struct dataset_options *options, struct diag *diag) {
    const struct {
        unsigned takes;
        const char *name;
        bool set;
    } table[] = {
        {TAKES_RECORD, "record", given(options->record)},
        {TAKES_RECORD, "skip-bytes", options->skip_bytes != 0},
        {TAKES_RECORD, "labels", given(options->labels)},
        {TAKES_CLASSES, "classes", given(options->classes)},
        {TAKES_CLASSES, "flat", options->flat},
        {TAKES_FIELDS, "fields", given(options->wanted_fields)},
        {TAKES_TOKENS, "token-dtype", options->token_dtype != 0},
        {TAKES_TOKENS, "vocabulary", options->vocabulary != 0},
    };
    for (size_t i = 0; i < ARRAY_SIZE(table); i++)
        if (table[i].set && !(dataset->format->takes & table[i].takes))
            return dataset_refuse_option(dataset, table[i].name, true, diag);
    return 0;
}

/* ---- fields as bytes --------------------------------------------------------------------------------------------- */

static size_t next_name(const char **names) {
    *names += strspn(*names, ", \t");
    return strcspn(*names, ", \t");
}

bool dataset_wants_bytes(const struct dataset_options *options, const char *name) {
    const char *names = options->bytes ? options->bytes : "";
    for (size_t length; (length = next_name(&names)) > 0; names += length)
        if (strlen(name) == length && memcmp(names, name, length) == 0)
            return true;
    return false;
}

void dataset_set_ragged_field(struct dataset_field *field, uint32_t extent) {
    struct dataset_field ragged = {
        .spec = {.dtype = LOADERD_U8, .ndim = 1, .dims = {-1}},
        .source = SOURCE_RAGGED,
        .extent = extent,
    };
    memcpy(ragged.spec.name, field->spec.name, sizeof ragged.spec.name);
    *field = ragged;
}

/* The fields that `bytes` names: pictures become what they are, others must be it already. */
static int apply_bytes(struct dataset *dataset, const struct dataset_options *options, struct diag *diag) {
    const char *names = options->bytes ? options->bytes : "";
    for (size_t length; (length = next_name(&names)) > 0; names += length) {
        struct dataset_field *field = NULL;
        for (uint32_t i = 0; i < dataset->fields && !field; i++)
            if (strlen(dataset->field[i].spec.name) == length &&
                memcmp(dataset->field[i].spec.name, names, length) == 0)
                field = &dataset->field[i];
        if (!field)
            return diag_set(diag, -EINVAL, "%s: bytes = %.*s: there is no such field; `loaderctl inspect` lists them",
                            dataset->path, (int)MIN(length, 64u), names);
        if (field->source == SOURCE_PICTURE)
            dataset_set_ragged_field(field, field->extent);
        else if (field->source != SOURCE_RAGGED)
            return diag_set(diag, -EINVAL,
                            "%s: bytes = %s: this field has a shape, or is a number; it is delivered as it is without "
                            "that",
                            dataset->path, field->spec.name);
    }
    return 0;
}

int dataset_open(const struct dataset_options *options, struct dataset **ret, struct diag *diag) {
    const struct dataset_format *format;
    int rc = choose_format(options, &format, diag);
    if (rc < 0)
        return rc;
    struct dataset *dataset = calloc(1, sizeof *dataset);
    if (!dataset)
        return dataset_out_of_memory(diag);
    dataset->format = format;
    dataset->root = -1;
    dataset->path = strdup(options->path);
    rc = dataset->path ? refuse_options(dataset, options, diag) : -ENOMEM;
    if (rc == 0)
        rc = format->open(dataset, options, diag);
    if (rc == 0)
        rc = apply_bytes(dataset, options, diag);
    if (rc == 0 && !dataset->index_note)
        rc = dataset_set_note(dataset, "none needed");
    if (rc < 0) {
        dataset_free(dataset);
        return rc == -ENOMEM ? dataset_out_of_memory(diag) : rc;
    }
    *ret = dataset;
    return 0;
}

void dataset_free(struct dataset *dataset) {
    if (!dataset)
        return;
    if (dataset->format->close)
        dataset->format->close(dataset);
    if (dataset->root >= 0)
        close(dataset->root);
    for (uint32_t i = 0; i < dataset->remarks; i++)
        free(dataset->remark[i]);
    free(dataset->remark);
    free(dataset->class_name);
    free(dataset->class_text);
    free(dataset->class_samples);
    free(dataset->index_note);
    free(dataset->root_path);
    free(dataset->path);
    free(dataset);
}

uint64_t dataset_samples(const struct dataset *dataset) {
    return dataset->samples;
}

const char *dataset_format(const struct dataset *dataset) {
    return dataset->format->name;
}

const char *dataset_path(const struct dataset *dataset) {
    return dataset->path;
}

uint32_t dataset_fields(const struct dataset *dataset, const struct dataset_field **ret) {
    *ret = dataset->field;
    return dataset->fields;
}

uint32_t dataset_classes(const struct dataset *dataset, const char *const **ret_names, const uint64_t **ret_samples) {
    if (ret_names)
        *ret_names = dataset->class_name;
    if (ret_samples)
        *ret_samples = dataset->class_samples;
    return dataset->classes;
}

uint64_t dataset_shards(const struct dataset *dataset, const uint64_t **ret_first) {
    *ret_first = dataset->shard_first;
    return dataset->shards;
}

void dataset_expect_scattered(const struct dataset *dataset) {
    for (uint64_t i = 0; i < dataset->shards; i++) {
        uint64_t samples = dataset->shard_first[i + 1] - dataset->shard_first[i];
        struct location location;
        if (samples == 0)
            continue;
        dataset_locate(dataset, dataset->shard_first[i], &location);
        const struct source_file *file = location.extents ? location.extent[0].file : NULL;
        if (file && file->identity.size / samples >= LARGE_SAMPLE)
            posix_fadvise(file->fd, 0, 0, POSIX_FADV_RANDOM);
    }
}

uint32_t dataset_sources(const struct dataset *dataset, const uint64_t **ret_first) {
    *ret_first = dataset->source_first;
    return MAX(dataset->sources, 1u);
}

uint32_t dataset_remarks(const struct dataset *dataset) {
    return dataset->remarks;
}

const char *dataset_remark(const struct dataset *dataset, uint32_t i) {
    return i < dataset->remarks ? dataset->remark[i] : "";
}

const char *dataset_index_note(const struct dataset *dataset) {
    return dataset->index_note;
}

void dataset_locate(const struct dataset *dataset, uint64_t sample, struct location *ret) {
    memset(ret, 0, sizeof *ret);
    dataset->format->locate(dataset, sample, ret);
}

int dataset_name(const struct dataset *dataset, uint64_t sample, char *buffer, size_t size) {
    int n = dataset->format->name_sample(dataset, sample, buffer, size);
    return n >= 0 && (size_t)n >= size ? -ENOSPC : n;
}

void dataset_synthesize(const struct dataset *dataset, uint64_t sample, uint32_t field, void *out) {
    if (dataset->format->synthesize)
        dataset->format->synthesize(dataset, sample, field, out);
}

int dataset_short_name(const struct dataset *dataset, uint64_t sample, char *buffer, size_t size) {
    if (dataset->format->short_name) {
        int n = dataset->format->short_name(dataset, sample, buffer, size);
        return n >= 0 && (size_t)n >= size ? -ENOSPC : n;
    }
    int n = dataset_name(dataset, sample, buffer, size);
    const char *path = dataset->root_path && *dataset->root_path ? dataset->root_path : dataset->path;
    size_t skip = strlen(path);
    if (n < 0)
        return n;
    if (strncmp(buffer, path, skip) != 0 || (buffer[skip] != '/' && (skip == 0 || path[skip - 1] != '/'))) {
        const char *slash = strrchr(buffer, '/'); /* a record of a file: FILE#NUMBER */
        skip = slash && strchr(slash, '#') ? (size_t)(slash + 1 - buffer) : 0;
    }
    while (buffer[skip] == '/')
        skip++;
    memmove(buffer, buffer + skip, (size_t)n - skip + 1);
    return n - (int)skip;
}

bool dataset_has_check(const struct dataset *dataset) {
    return dataset->format->check != NULL && !dataset->unchecked;
}

int dataset_check(const struct dataset *dataset, uint64_t sample, uint32_t extent, const void *bytes, size_t length,
                  uint32_t *state, struct diag *diag) {
    const struct dataset_format *format = dataset->format;
    return format->check ? format->check(dataset, sample, extent, bytes, length, state, diag) : 0;
}

bool dataset_splits(const struct dataset *dataset) {
    return dataset->format->split != NULL && !dataset->unsplit;
}

int dataset_split(const struct dataset *dataset, uint64_t sample, const uint8_t *bytes, size_t length,
                  struct dataset_piece *ret, int64_t *ret_value, struct diag *diag) {
    if (!dataset->format->split)
        return 1;
    memset(ret, 0, MAX_EXTENTS * sizeof *ret);
    return dataset->format->split(dataset, sample, bytes, length, ret, ret_value, diag);
}

int dataset_verify(const struct dataset *dataset, uint64_t shard, struct diag *diag) {
    return dataset->format->verify ? dataset->format->verify(dataset, shard, diag) : 0;
}

void dataset_fingerprint(const struct dataset *dataset, uint8_t ret[16]) {
    memcpy(ret, dataset->fingerprint, sizeof dataset->fingerprint);
}
