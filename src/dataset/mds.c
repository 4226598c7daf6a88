/* SPDX-License-Identifier: MIT */
/*
 * Format mds: datasets of MosaicML streaming, a folder with index.json and shards.
 *
 *   shard   | u32 samples | u32 offset[samples + 1] | description | record | record | ...
 *
 * - Fields are columns: fields = photo:image class:label. Without that the first column of pictures is image, and an
 *   integer column named label, class, cls, y or target is label; a set without pictures gives all its columns of
 *   numbers and arrays. Arrays must have the shape and dtype of the first record's. Strings, JSON and what the key
 *   bytes names are delivered as they are; JSON in the field boxes is rectangles. Pickles and pil are refused.
 * - Compressed shards cannot be read at random. Where the raw file is not there, a zstd shard is decompressed at open
 *   into a file without a name in $TMPDIR or /var/tmp, UNPACK_BYTES in all; more is refused.
 * - A shard that was cut is served up to there, and what is lost is told.
 *
 * Memory: 4 bytes a sample. Opening is for one thread; everything else for any.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "autoconfig.h"
#include "dataset/format.h"
#include "dataset/mds.h"

#ifdef HAVE_LIBZSTD
#include <zstd.h>
#endif

#define INDEX_BYTES (UINT64_C(256) << 20)
#define UNPACK_BYTES (UINT64_C(8) << 30)

struct mds {
    struct mds_index index;
    struct shards shards;
    uint32_t **offset;                   /* of each shard, samples + 1 */
    uint32_t column[LOADERD_MAX_FIELDS]; /* of each field */
    uint64_t unpacked;
};

/* ---- index.json -------------------------------------------------------------------------------------------------- */

static int read_index(struct mds *mds, const char *path, struct diag *diag) {
    struct source_file file;
    int rc = source_file_open(&file, path, diag);
    uint64_t size = file.identity.size;
    if (rc == 0 && size > INDEX_BYTES)
        rc = diag_set(diag, -EFBIG, "%s has %llu bytes: too large for an index", path, (unsigned long long)size);
    cleanup_free char *text = rc == 0 ? malloc((size_t)size + 1) : NULL;
    if (rc == 0)
        rc = text ? source_file_read(&file, text, (size_t)size, 0, diag) : -ENOMEM;
    source_file_close(&file);
    if (rc < 0)
        return rc;
    rc = mds_parse_index(text, (size_t)size, &mds->index, diag);
    return rc < 0 && rc != -ENOMEM ? (diag_prefix(diag, "%s", path), rc) : rc;
}

/* ---- compressed shards ------------------------------------------------------------------------------------------- */

#ifdef HAVE_LIBZSTD

static int write_fully(int fd, const void *bytes, size_t length) {
    for (size_t done = 0; done < length;) {
        ssize_t n = write(fd, (const char *)bytes + done, length - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        done += (size_t)n;
    }
    return 0;
}

/* Never writes more than `most` bytes, whatever the file says. */
static int decompress(const struct source_file *from, int to, uint64_t most, struct diag *diag) {
    size_t in_size = ZSTD_DStreamInSize(), out_size = ZSTD_DStreamOutSize(), hint = 1;
    cleanup_free uint8_t *in = malloc(in_size), *out = malloc(out_size);
    ZSTD_DStream *stream = ZSTD_createDStream();
    uint64_t at = 0, written = 0, size = from->identity.size;
    int rc = in && out && stream ? 0 : -ENOMEM;
    while (rc == 0 && at < size) {
        size_t take = (size_t)MIN(in_size, size - at);
        rc = source_file_read(from, in, take, at, diag);
        ZSTD_inBuffer input = {in, take, 0};
        while (rc == 0 && input.pos < input.size) {
            ZSTD_outBuffer output = {out, out_size, 0};
            hint = ZSTD_decompressStream(stream, &output, &input);
            if (ZSTD_isError(hint))
                rc = diag_set(diag, -EBADMSG, "%s: zstd: %s", from->path, ZSTD_getErrorName(hint));
            else if ((written += output.pos) > most)
                rc = diag_set(diag, -EBADMSG, "%s holds more than the %llu bytes that index.json says", from->path,
                              (unsigned long long)most);
            else if ((rc = write_fully(to, out, output.pos)) < 0)
                diag_set(diag, rc, "%s: cannot be decompressed: %s", from->path, strerror(-rc));
        }
        at += take;
    }
    ZSTD_freeDStream(stream);
    if (rc == 0 && (hint != 0 || written != most))
        rc = diag_set(diag, -EBADMSG, "%s holds %llu bytes, index.json says %llu: it was cut", from->path,
                      (unsigned long long)written, (unsigned long long)most);
    return rc;
}

static int open_unpacked(struct mds *mds, const char *path, uint64_t bytes, struct diag *diag) {
    struct source_file zip;
    const char *wish = getenv("TMPDIR"), *folder = wish && *wish == '/' ? wish : "/var/tmp";
    char name[64];
    if (bytes > UNPACK_BYTES - mds->unpacked)
        return diag_set(diag, -EFBIG,
                        "%s: zstd shards cannot be read at random, and these are more than the %llu bytes "
                        "that are decompressed at open: run `zstd -d` on them, index.json stays as it is",
                        path, (unsigned long long)UNPACK_BYTES);
    mds->unpacked += bytes;
    cleanup_close int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0)
        return diag_set(diag, -errno, "%s: no room to decompress it, a file without a name in %s ($TMPDIR): %s", path,
                        folder, strerror(errno));
    int rc = source_file_open(&zip, path, diag);
    if (rc == 0)
        rc = decompress(&zip, fd, bytes, diag);
    source_file_close(&zip);
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    return rc < 0 ? rc : shards_open(&mds->shards, name, diag);
}

#else

static int open_unpacked(struct mds *mds, const char *path, uint64_t bytes, struct diag *diag) {
    (void)mds, (void)bytes;
    return diag_set(diag, -ENOTSUP,
                    "%s: this loaderd was built without zstd: run `zstd -d` on the shards, index.json "
                    "stays as it is",
                    path);
}

#endif

/* ---- shards ------------------------------------------------------------------------------------------------------ */

static char *join(const char *folder, size_t length, const char *name) {
    char *path;
    return asprintf(&path, "%.*s%s", (int)length, folder, name) < 0 ? NULL : path;
}

static int open_shard_file(struct mds *mds, const struct mds_shard *shard, const char *folder, size_t length,
                           struct diag *diag) {
    cleanup_free char *raw = join(folder, length, shard->raw);
    cleanup_free char *zip = shard->zip ? join(folder, length, shard->zip) : NULL;
    if (!raw || (shard->zip && !zip))
        return -ENOMEM;
    if (access(raw, F_OK) == 0 || !zip)
        return shards_open(&mds->shards, raw, diag);
    if (strncmp(shard->compression, "zstd", 4) != 0)
        return diag_set(diag, -EINVAL, "%s is compressed by %s: decompress it to %s, index.json stays as it is", zip,
                        shard->compression, shard->raw);
    return open_unpacked(mds, zip, shard->raw_bytes, diag);
}

/* Reads the table of a shard's records: those that lie inside of the file are served. */
static int read_offsets(struct dataset *dataset, const struct source_file *file, const char *name, uint64_t samples,
                        uint32_t **ret, uint64_t *ret_samples, struct diag *diag) {
    uint64_t size = file->identity.size, table = 4 + 4 * (samples + 1), whole = 0;
    uint32_t head;
    if (size < table)
        return diag_set(diag, -EINVAL, "%s has %llu bytes: it ends in the table of its %llu samples", name,
                        (unsigned long long)size, (unsigned long long)samples);
    uint32_t *offset = *ret = malloc((size_t)table - 4);
    if (!offset)
        return -ENOMEM;
    int rc = source_file_read(file, &head, 4, 0, diag);
    if (rc == 0)
        rc = source_file_read(file, offset, (size_t)table - 4, 4, diag);
    if (rc < 0)
        return rc;
    if (head != samples || offset[0] < table)
        return diag_set(diag, -EINVAL,
                        "%s holds %u samples from byte %u on, index.json says %llu: this is not its shard", name, head,
                        offset[0], (unsigned long long)samples);
    while (whole < samples && offset[whole + 1] >= offset[whole] && offset[whole + 1] <= size)
        whole++;
    *ret_samples = whole;
    if (whole == samples)
        return 0;
    return dataset_add_remark(dataset,
                              "%s was cut or is damaged: sample %llu ends at byte %u, the file has %llu bytes; "
                              "served are the %llu samples before it, %llu are lost",
                              name, (unsigned long long)whole, offset[whole + 1], (unsigned long long)size,
                              (unsigned long long)whole, (unsigned long long)(samples - whole));
}

static int open_shards(struct dataset *dataset, struct mds *mds, const char *folder, size_t length, struct diag *diag) {
    size_t count = mds->index.shards;
    int rc = shards_reserve(&mds->shards, count, diag);
    mds->offset = calloc(count, sizeof *mds->offset);
    if (rc == 0 && !mds->offset)
        rc = -ENOMEM;
    for (size_t i = 0; i < count && rc == 0; i++) {
        const struct mds_shard *shard = &mds->index.shard[i];
        uint64_t samples = 0;
        rc = open_shard_file(mds, shard, folder, length, diag);
        if (rc == 0)
            rc = read_offsets(dataset, &mds->shards.file[i], shard->raw, shard->samples, &mds->offset[i], &samples,
                              diag);
        if (rc == 0)
            rc = shards_set_samples(&mds->shards, i, samples, diag);
    }
    return rc < 0 ? rc : shards_publish(&mds->shards, dataset, "sample", diag);
}

/* ---- fields ------------------------------------------------------------------------------------------------------ */

static bool is_integer(const struct mds_column *column) {
    return column->kind == MDS_TEXT ||
           (column->kind == MDS_NUMBER && column->dtype >= LOADERD_U8 && column->dtype <= LOADERD_I64);
}

static bool is_picture(const struct mds_column *column, const struct dataset_piece *piece) {
    return column->kind == MDS_PICTURE ||
           (column->kind == MDS_BYTES && is_picture_content(piece->bytes, piece->length));
}

/* Field number dataset->fields: column `i`, whose value in the first record is `piece`. */
static int add_field(struct dataset *dataset, struct mds *mds, uint32_t i, const char *name,
                     const struct dataset_piece *piece, uint32_t *extents, const struct dataset_options *options,
                     struct diag *diag) {
    const struct mds_column *column = &mds->index.column[i];
    struct dataset_field *field = &dataset->field[dataset->fields];
    bool bytes = dataset_wants_bytes(options, name);
    bool text = column->kind == MDS_STRING || (column->kind == MDS_BYTES && strcmp(name, "boxes") == 0);
    size_t header = 0;
    int rc = 0;
    mds->column[dataset->fields++] = i;
    if (is_integer(column) && !(bytes && column->kind == MDS_TEXT) &&
        (column->kind == MDS_TEXT || strcmp(name, "label") == 0)) {
        dataset_set_label_field(field);
    } else if (column->kind == MDS_OTHER || column->kind == MDS_PICKLE) {
        return diag_set(diag, -EINVAL, "%s: column %s has the encoding %s, which is not read%s", dataset->path,
                        column->name, column->encoding,
                        strcmp(column->encoding, "pil") == 0
                            ? ": it holds raw pixels of a Pillow mode; write it as png or jpeg"
                        : column->kind == MDS_PICKLE ? ": nothing is unpickled; write it as ndarray, bytes or a number"
                                                     : "");
    } else if (*extents == MAX_EXTENTS) {
        return diag_set(diag, -EINVAL,
                        "%s: more than %d fields that are no labels: choose by fields, e.g. fields = "
                        "\"COLUMN:NAME COLUMN:label\"",
                        dataset->path, MAX_EXTENTS);
    } else if (text && !bytes && strcmp(name, "boxes") == 0) {
        boxes_set_field(dataset, field, (*extents)++);
        rc = boxes_source_init(&dataset->boxes, BOXES_JSON, options, diag);
    } else if (text || (bytes && (column->kind == MDS_BYTES || column->kind == MDS_TEXT))) {
        dataset_set_ragged_field(field, (*extents)++);
    } else {
        *field = (struct dataset_field){.source = SOURCE_BYTES, .extent = (*extents)++, .bytes = piece->length};
        field->spec = (struct field_spec){.dtype = column->dtype};
        if (is_picture(column, piece)) {
            field->source = SOURCE_PICTURE;
            field->spec = (struct field_spec){.dtype = LOADERD_U8, .ndim = 3, .dims = {-1, -1, -1}};
        } else if (column->kind == MDS_BYTES) {
            field->spec = (struct field_spec){.dtype = LOADERD_U8, .ndim = 1, .dims = {(int64_t)piece->length}};
        } else if (column->kind == MDS_ARRAY) {
            rc = mds_parse_array(column, piece->bytes, piece->length, &field->spec, &header, diag);
            field->bytes -= header;
        }
        if (field->bytes == 0)
            rc = diag_set(diag, -EINVAL, "%s: column %s is empty in the first record", dataset->path, column->name);
    }
    snprintf(field->spec.name, sizeof field->spec.name, "%s", name);
    return rc;
}

static int default_fields(struct dataset *dataset, struct mds *mds, const struct dataset_piece *piece,
                          uint32_t *extents, const struct dataset_options *options, struct diag *diag) {
    bool picture = false, label = false;
    int rc = 0;
    for (uint32_t i = 0; i < mds->index.columns && rc == 0; i++)
        if (!picture && is_picture(&mds->index.column[i], &piece[i])) {
            picture = true;
            rc = add_field(dataset, mds, i, "image", &piece[i], extents, options, diag);
        }
    for (uint32_t i = 0; i < mds->index.columns && rc == 0; i++) {
        const struct mds_column *column = &mds->index.column[i];
        if (!label && is_integer(column) && is_label_name(column->name, strlen(column->name))) {
            label = true;
            rc = add_field(dataset, mds, i, "label", &piece[i], extents, options, diag);
        } else if (!picture && (column->kind == MDS_NUMBER || column->kind == MDS_ARRAY)) {
            rc = add_field(dataset, mds, i, column->name, &piece[i], extents, options, diag);
        } else if (column->kind == MDS_PICKLE) {
            rc = dataset_add_remark(dataset, "column %s is %s: it is not read", column->name,
                                    strcmp(column->encoding, "pil") == 0 ? "of raw pixels (pil)" : "pickled");
        }
    }
    return rc == 0 && dataset->fields == 0
               ? diag_set(diag, -EINVAL, "%s: no column is a picture, a number or an array: set fields", dataset->path)
               : rc;
}

static int wished_fields(struct dataset *dataset, struct mds *mds, const struct dataset_piece *piece, uint32_t *extents,
                         const struct dataset_options *options, struct diag *diag) {
    const char *text = options->wanted_fields;
    struct wishes wishes;
    int rc = wishes_parse(text, strlen(text), &wishes, diag);
    for (uint32_t w = 0; rc == 0 && w < wishes.count; w++) {
        const struct wish *wish = &wishes.wish[w];
        uint32_t i = 0;
        while (i < mds->index.columns &&
               wish_rank(wish, mds->index.column[i].name, strlen(mds->index.column[i].name)) < 0)
            i++;
        if (i < mds->index.columns) {
            rc = add_field(dataset, mds, i, wish->name, &piece[i], extents, options, diag);
            continue;
        }
        char names[300] = "";
        for (uint32_t k = 0, at = 0; k < mds->index.columns && at < sizeof names; k++)
            at += (uint32_t)snprintf(names + at, sizeof names - at, " %s", mds->index.column[k].name);
        rc = diag_set(diag, -EINVAL, "%s has no column %.*s (field %s); its columns are%s", dataset->path,
                      (int)wish->source_length, wish->source, wish->name, names);
    }
    return rc;
}

static int choose_fields(struct dataset *dataset, struct mds *mds, const struct dataset_options *options,
                         struct diag *diag) {
    const char *fields = options->wanted_fields;
    size_t shard = shards_find(&mds->shards, 0);
    uint32_t begin = mds->offset[shard][0], length = mds->offset[shard][1] - begin, extents = 0;
    cleanup_free uint8_t *bytes = malloc((size_t)length + 1);
    struct dataset_piece piece[MDS_MAX_COLUMNS];
    if (!bytes)
        return -ENOMEM;
    int rc = source_file_read(&mds->shards.file[shard], bytes, length, begin, diag);
    if (rc == 0 && mds_split_record(&mds->index, bytes, length, piece, diag) < 0)
        rc = diag ? (diag_prefix(diag, "%s, the first record", dataset->path), diag->code = -EINVAL) : -EINVAL;
    if (rc < 0)
        return rc;
    return fields && *fields ? wished_fields(dataset, mds, piece, &extents, options, diag)
                             : default_fields(dataset, mds, piece, &extents, options, diag);
}

/* ---- the format -------------------------------------------------------------------------------------------------- */

static int mds_open(struct dataset *dataset, const struct dataset_options *options, struct diag *diag) {
    struct mds *mds = calloc(1, sizeof *mds);
    struct stat status;
    if (!mds)
        return -ENOMEM;
    dataset->state = mds;
    bool folder = stat(dataset->path, &status) == 0 && S_ISDIR(status.st_mode);
    cleanup_free char *path = join(dataset->path, strlen(dataset->path), folder ? "/index.json" : "");
    if (!path)
        return -ENOMEM;
    const char *slash = strrchr(path, '/');
    int rc = read_index(mds, path, diag);
    if (rc == 0)
        rc = open_shards(dataset, mds, path, slash ? (size_t)(slash + 1 - path) : 0, diag);
    if (rc == 0)
        rc = choose_fields(dataset, mds, options, diag);
    if (rc < 0)
        return rc;
    struct hash hash;
    hash_begin(&hash, "mds");
    dataset_hash_fields(dataset, &hash);
    for (size_t i = 0; i < mds->index.shards; i++) {
        hash_string(&hash, mds->index.shard[i].raw);
        hash_u64(&hash, mds->index.shard[i].raw_bytes);
        hash_u64(&hash, mds->shards.first[i + 1]);
    }
    hash_end(&hash, dataset->fingerprint);
    return 0;
}

static void mds_close(struct dataset *dataset) {
    struct mds *mds = dataset->state;
    if (mds) {
        for (size_t i = 0; mds->offset && i < mds->index.shards; i++)
            free(mds->offset[i]);
        free(mds->offset);
        shards_close(&mds->shards);
        mds_index_deinit(&mds->index);
    }
    free(mds);
    dataset->state = NULL;
}

static void mds_locate(const struct dataset *dataset, uint64_t sample, struct location *ret) {
    const struct mds *mds = dataset->state;
    size_t shard = shards_find(&mds->shards, sample);
    const uint32_t *offset = mds->offset[shard] + (sample - mds->shards.first[shard]);
    ret->extents = 1;
    ret->extent[0] = (struct extent){
        .file = &mds->shards.file[shard],
        .dirfd = -1,
        .offset = offset[0],
        .length = offset[1] - offset[0],
    };
}

static int mds_name(const struct dataset *dataset, uint64_t sample, char *buffer, size_t size) {
    const struct mds *mds = dataset->state;
    size_t shard = shards_find(&mds->shards, sample);
    return snprintf(buffer, size, "%s/%s#%llu", dataset->path, mds->index.shard[shard].raw,
                    (unsigned long long)(sample - mds->shards.first[shard]));
}

static int split_field(const struct dataset *dataset, uint32_t i, const struct mds_column *column,
                       struct dataset_piece piece, struct dataset_piece *ret, int64_t *ret_value, struct diag *diag) {
    const struct dataset_field *field = &dataset->field[i];
    struct field_spec spec = field->spec;
    size_t header = 0;
    if (field->source == SOURCE_VALUE)
        return mds_parse_integer(column, piece.bytes, piece.length, &ret_value[i], diag);
    if (field->source == SOURCE_BYTES && column->kind == MDS_ARRAY) {
        int rc = mds_parse_array(column, piece.bytes, piece.length, &spec, &header, diag);
        if (rc < 0)
            return rc;
    }
    bool same = spec.dtype == field->spec.dtype && spec.ndim == field->spec.ndim &&
                memcmp(spec.dims, field->spec.dims, sizeof spec.dims) == 0;
    if (field->source == SOURCE_BYTES && (!same || piece.length - header != field->bytes))
        return diag_set(diag, -EBADMSG, "column %s has another shape, dtype or length than in the first record",
                        column->name);
    ret[field->extent] = (struct dataset_piece){piece.bytes + header, piece.length - header};
    return 0;
}

static int mds_split(const struct dataset *dataset, uint64_t sample, const uint8_t *bytes, size_t length,
                     struct dataset_piece *ret, int64_t *ret_value, struct diag *diag) {
    const struct mds *mds = dataset->state;
    struct dataset_piece piece[MDS_MAX_COLUMNS];
    (void)sample;
    int rc = mds_split_record(&mds->index, bytes, length, piece, diag);
    for (uint32_t i = 0; i < dataset->fields && rc == 0; i++) {
        uint32_t c = mds->column[i];
        rc = split_field(dataset, i, &mds->index.column[c], piece[c], ret, ret_value, diag);
    }
    return rc;
}

static bool mds_detect(const uint8_t *head, size_t length) {
    return length && *head == '{' && memmem(head, length, "\"shards\"", 8) && memmem(head, length, "\"mds\"", 5);
}

static bool mds_detect_folder(int folder) {
    uint8_t head[16384];
    cleanup_close int fd = openat(folder, "index.json", O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t got = fd < 0 ? -1 : pread(fd, head, sizeof head, 0);
    return got > 0 && mds_detect(head, (size_t)got);
}

const struct dataset_format format_mds = {
    .name = "mds",
    .takes = TAKES_FIELDS,
    .detect = mds_detect,
    .detect_folder = mds_detect_folder,
    .open = mds_open,
    .close = mds_close,
    .locate = mds_locate,
    .name_sample = mds_name,
    .split = mds_split,
};
