/* SPDX-License-Identifier: MIT */
/*
 * loaderctl unpack: the records of a pack as files again. Pictures get the names that they had (names that would lead out
 * of the folder are refused); JPEGs that were stored as coefficients are made again from them. Labels that no folder
 * says go into labels.list, fields of a fixed size into records.bin with its layout in records.layout. One thread.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/util.h"
#include "dataset/dataset.h"
#include "decode/coefficients.h"
#include "decode/decode.h"
#include "loaderctl.h"
#include "read/read.h"

struct unpacker {
    const struct dataset *dataset;
    const struct dataset_field *field;
    uint32_t fields;
    const char *folder;
    int root;
    int picture, label; /* fields, -1: none */
    bool several;       /* pictures in a sample: each field has a folder of its own */
    FILE *list, *records;
    struct reader *reader;
    uint64_t pictures, restored, bytes;
};

static int cannot(const struct unpacker *u, const char *name, struct diag *diag) {
    if (errno == EEXIST)
        return diag_set(diag, -EEXIST, "%s/%s exists: files are not written over; name another folder", u->folder,
                        name);
    return diag_set(diag, -errno, "%s/%s: cannot write: %s", u->folder, name, strerror(errno));
}

/* ---- names ----------------------------------------------------------------------------------------------------- */

static bool is_safe(const char *name) {
    if (!*name || *name == '/')
        return false;
    for (const char *part = name;; part++) {
        size_t length = strcspn(part, "/");
        if (length == 0 || (length <= 2 && strncmp(part, "..", length) == 0))
            return false;
        part += length;
        if (!*part)
            return true;
    }
}

/* What is no picture. */
#define TEXT "lines of text"
#define BYTES "some bytes"

static const char *suffix_of(const char *kind) {
    return strcmp(kind, "JPEG") == 0   ? ".jpg"
           : strcmp(kind, "PNG") == 0  ? ".png"
           : strcmp(kind, "WebP") == 0 ? ".webp"
           : strcmp(kind, TEXT) == 0   ? ".txt"
           : strcmp(kind, BYTES) == 0  ? ".bin"
                                       : "";
}

/* "class/name": as it was, or made up where the record has no name; below the field's own folder where there are several
 * pictures in a sample. */
static int name_picture(const struct unpacker *u, uint64_t sample, int field, const char *kind, char *buffer,
                        size_t size, struct diag *diag) {
    char name[4000];
    const char *const *classes;
    uint32_t count = dataset_classes(u->dataset, &classes, NULL);
    struct location location;
    int n = dataset_short_name(u->dataset, sample, name, sizeof name);
    if (n < 0 || !is_safe(name))
        return diag_set(diag, -EINVAL, "sample %" PRIu64 " has the name '%.200s', which is none below a folder", sample,
                        n < 0 ? "" : name);
    bool numbered = strchr(name, '#') != NULL, made_up = strspn(name, "0123456789") == (size_t)n || numbered;
    for (char *c = name; *c && made_up; c++)
        if (*c == '#')
            *c = '-';
    dataset_locate(u->dataset, sample, &location);
    int64_t label = u->label >= 0 ? location.value[u->label] : -1;
    bool classed = made_up && label >= 0 && label < count && is_safe(classes[label]);
    const char *dot = strrchr(name, '.'), *slash = strrchr(name, '/');
    size_t stem = dot && !numbered && (!slash || dot > slash) ? (size_t)(dot - name) : (size_t)n;
    const char *tree = u->several ? u->field[field].spec.name : "";
    if (made_up || field != u->picture)
        n = snprintf(buffer, size, "%s%s%s%s%.*s%s", tree, *tree ? "/" : "", classed ? classes[label] : "",
                     classed ? "/" : "", (int)stem, name, suffix_of(kind));
    else
        n = snprintf(buffer, size, "%s%s%s", tree, *tree ? "/" : "", name);
    return n < 0 || (size_t)n >= size
               ? diag_set(diag, -ENAMETOOLONG, "sample %" PRIu64 ": its name is too long", sample)
               : 0;
}

/* Makes the folders of a path below the root. */
static int make_folders(const struct unpacker *u, const char *name, struct diag *diag) {
    char path[4096];
    snprintf(path, sizeof path, "%s", name);
    for (char *slash = strchr(path, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdirat(u->root, path, 0777) < 0 && errno != EEXIST)
            return cannot(u, path, diag);
        *slash = '/';
    }
    return 0;
}

/* ---- files ----------------------------------------------------------------------------------------------------- */

static int write_file(struct unpacker *u, const char *name, const uint8_t *bytes, size_t length, struct diag *diag) {
    int r = make_folders(u, name, diag);
    if (r < 0)
        return r;
    cleanup_close int fd = openat(u->root, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd < 0)
        return cannot(u, name, diag);
    for (size_t done = 0; done < length;) {
        ssize_t n = write(fd, bytes + done, length - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return cannot(u, name, diag);
        done += (size_t)n;
    }
    u->pictures++;
    u->bytes += length;
    return 0;
}

/* Bytes of any length: a file each, below the field's own folder. */
static int unpack_bytes(struct unpacker *u, uint64_t sample, int field, const uint8_t *bytes, size_t length,
                        struct diag *diag) {
    char name[4096];
    const char *kind = decode_sniff(bytes, length);
    int r = name_picture(u, sample, field, *suffix_of(kind) ? kind : BYTES, name, sizeof name, diag);
    return r < 0 ? r : write_file(u, name, bytes, length, diag);
}

/* Rectangles: lines "class centre-x centre-y width height" where they are relative, as YOLO has them; else lines "class
 * left top right bottom" in pixels. */
static int unpack_boxes(struct unpacker *u, uint64_t sample, int field, const uint8_t *bytes, size_t length,
                        struct diag *diag) {
    char name[4096], *text = NULL;
    size_t size = 0;
    uint32_t count = 0;
    cleanup_free struct dataset_box *box = malloc(DATASET_MAX_BOXES * sizeof *box);
    int r = box ? dataset_boxes(&u->field[field], bytes, length, 1, 1, box, &count, diag) : -ENOMEM;
    FILE *lines = r == 0 ? open_memstream(&text, &size) : NULL;
    if (r == 0 && !lines)
        r = -ENOMEM;
    for (uint32_t i = 0; i < count && r == 0; i++) {
        const double *s = box[i].side;
        if (u->field[field].boxes->relative)
            fprintf(lines, "%.0f %.17g %.17g %.17g %.17g\n", box[i].class, (s[0] + s[2]) / 2, (s[1] + s[3]) / 2,
                    s[2] - s[0], s[3] - s[1]);
        else
            fprintf(lines, "%.0f %.17g %.17g %.17g %.17g\n", box[i].class, s[0], s[1], s[2], s[3]);
    }
    if (lines && fclose(lines) != 0)
        r = -ENOMEM;
    if (r == 0)
        r = name_picture(u, sample, field, TEXT, name, sizeof name, diag);
    if (r == 0)
        r = write_file(u, name, (const uint8_t *)text, size, diag);
    free(text);
    return r == -ENOMEM ? diag_set(diag, r, "out of memory for boxes") : r;
}

static int unpack_picture(struct unpacker *u, uint64_t sample, int field, const uint8_t *bytes, size_t length,
                          const struct location *location, struct diag *diag) {
    const char *kind = decode_sniff(bytes, length);
    cleanup_free uint8_t *restored = NULL;
    char name[4096];
    if (strcmp(kind, COEFFICIENTS_KIND) == 0) {
        size_t restored_length;
        int r = coefficients_restore(bytes, length, &restored, &restored_length, diag);
        if (r == -ENODATA)
            return diag_set(diag, r,
                            "sample %" PRIu64 " was packed without --keep-headers: its JPEG file cannot be made again",
                            sample);
        if (r < 0)
            return diag_prefix(diag, "sample %" PRIu64, sample);
        bytes = restored;
        length = restored_length;
        kind = "JPEG";
        u->restored++;
    }
    int r = name_picture(u, sample, field, kind, name, sizeof name, diag);
    if (r == 0)
        r = write_file(u, name, bytes, length, diag);
    if (r == 0 && u->list && field == u->picture)
        fprintf(u->list, "%s\t%" PRId64 "\n", name, location->value[u->label]);
    return r;
}

/* ---- samples --------------------------------------------------------------------------------------------------- */

static int read_extent(struct unpacker *u, const struct location *location, uint32_t e, struct read_result *ret,
                       struct diag *diag) {
    reader_submit(u->reader, &(struct read_request){.tag = e, .extent = location->extent[e]});
    reader_flush(u->reader);
    while (reader_reap(u->reader, UINT64_C(100000000), ret) == 0)
        continue;
    return ret->error ? diag_set(diag, ret->error, "%s", ret->diag ? ret->diag->text : strerror(-ret->error)) : 0;
}

static int unpack_sample(struct unpacker *u, uint64_t sample, struct diag *diag) {
    struct location location;
    struct read_result result[MAX_EXTENTS] = {0};
    uint32_t state = 0, read = 0;
    int r = 0;
    dataset_locate(u->dataset, sample, &location);
    for (; read < location.extents && r == 0; read++) {
        r = read_extent(u, &location, read, &result[read], diag);
        if (r == 0)
            r = dataset_check(u->dataset, sample, read, result[read].bytes, result[read].length, &state, diag);
    }
    if (r < 0)
        diag_prefix(diag, "sample %" PRIu64, sample);
    for (uint32_t i = 0; i < u->fields && r == 0; i++) {
        const struct dataset_field *field = &u->field[i];
        const struct read_result *from = &result[field->extent];
        if (field->source == SOURCE_PICTURE)
            r = unpack_picture(u, sample, (int)i, from->bytes, from->length, &location, diag);
        else if (field->source == SOURCE_RAGGED)
            r = unpack_bytes(u, sample, (int)i, from->bytes, from->length, diag);
        else if (field->source == SOURCE_BOXES)
            r = unpack_boxes(u, sample, (int)i, from->bytes, from->length, diag);
        else if (field->source == SOURCE_BYTES && fwrite(from->bytes + field->offset, field->bytes, 1, u->records) != 1)
            r = cannot(u, "records.bin", diag);
    }
    for (uint32_t e = 0; e < read; e++)
        reader_done(u->reader, e, NULL);
    return r;
}

/* ---- the folder ------------------------------------------------------------------------------------------------ */

static FILE *create(const struct unpacker *u, const char *name) {
    int fd = openat(u->root, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    return fd < 0 ? NULL : fdopen(fd, "w");
}

static int write_layout(const struct unpacker *u, struct diag *diag) {
    FILE *out = create(u, "records.layout");
    if (!out)
        return cannot(u, "records.layout", diag);
    const char *blank = "";
    for (uint32_t i = 0; i < u->fields; i++) {
        const struct field_spec *spec = &u->field[i].spec;
        if (u->field[i].source != SOURCE_BYTES)
            continue;
        fprintf(out, "%s%s:%s", blank, spec->name, loaderd_dtype_name(spec->dtype));
        for (uint32_t d = 0; d < spec->ndim; d++)
            fprintf(out, "%s%" PRId64, d ? "," : "[", spec->dims[d]);
        fputs(spec->ndim ? "]" : "", out);
        blank = " ";
    }
    fputc('\n', out);
    return fclose(out) == 0 ? 0 : cannot(u, "records.layout", diag);
}

static int prepare(struct unpacker *u, struct diag *diag) {
    bool records = false;
    u->picture = u->label = -1;
    for (uint32_t i = u->fields; i-- > 0;) {
        records |= u->field[i].source == SOURCE_BYTES;
        u->several |= u->field[i].source == SOURCE_RAGGED || u->field[i].source == SOURCE_BOXES;
        if (u->field[i].source == SOURCE_PICTURE) {
            u->several |= u->picture >= 0;
            u->picture = (int)i;
        }
        if (u->field[i].source == SOURCE_VALUE && strcmp(u->field[i].spec.name, "label") == 0)
            u->label = (int)i;
    }
    if (mkdir(u->folder, 0777) < 0 && errno != EEXIST)
        return diag_set(diag, -errno, "cannot create the folder %s: %s", u->folder, strerror(errno));
    u->root = open(u->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (u->root < 0)
        return diag_set(diag, -errno, "%s: %s", u->folder, strerror(errno));
    if (records && !(u->records = create(u, "records.bin")))
        return cannot(u, "records.bin", diag);
    if (u->label >= 0 && u->picture >= 0 && dataset_classes(u->dataset, NULL, NULL) == 0 &&
        !(u->list = create(u, "labels.list")))
        return cannot(u, "labels.list", diag);
    return records ? write_layout(u, diag) : 0;
}

static int close_file(const struct unpacker *u, FILE *file, const char *name, struct diag *diag) {
    return file && fclose(file) != 0 ? cannot(u, name, diag) : 0;
}

static int unpack(struct unpacker *u, const struct daemon_config *limits, struct diag *diag) {
    const struct read_options read = {
        .engine = READ_PREAD, .depth = MAX_EXTENTS, .max_bytes = limits->max_sample_bytes};
    int r = prepare(u, diag);
    if (r == 0)
        r = reader_new(&read, &u->reader, diag);
    for (uint64_t i = 0; i < dataset_samples(u->dataset) && r == 0; i++)
        r = engine_interrupted ? diag_set(diag, -EINTR, "interrupted") : unpack_sample(u, i, diag);
    int list = close_file(u, u->list, "labels.list", r < 0 ? NULL : diag);
    int records = close_file(u, u->records, "records.bin", r < 0 ? NULL : diag);
    reader_free(u->reader);
    if (u->root >= 0)
        close(u->root);
    return r < 0 ? r : list < 0 ? list : records;
}

int command_unpack(const struct options *options) {
    struct diag diag = DIAG_INIT;
    struct setup setup;
    struct pipeline *pipeline;
    if (setup_init(&setup, options, &diag) < 0)
        return complain_diag(&diag);
    int r = pipeline_new(&setup.pipeline, &setup.config.daemon, &pipeline, &diag);
    if (r == 0) {
        struct unpacker u = {.dataset = pipeline_dataset(pipeline), .folder = options->pack.destination, .root = -1};
        u.fields = dataset_fields(u.dataset, &u.field);
        engine_catch_interrupt();
        r = unpack(&u, &setup.config.daemon, &diag);
        if (r == 0)
            printf("%s: %" PRIu64 " samples, %" PRIu64 " files, %.3f GB, %" PRIu64 " made again from coefficients\n",
                   u.folder, dataset_samples(u.dataset), u.pictures, (double)u.bytes * 1e-9, u.restored);
        pipeline_unref(pipeline);
    }
    setup_deinit(&setup);
    return r < 0 ? complain_diag(&diag) : finish_stdout();
}
