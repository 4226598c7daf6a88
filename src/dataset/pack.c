/* SPDX-License-Identifier: MIT */
/*
 * Packs: records of `loaderctl pack`, found by the index in front of them. The path is a file, a folder that holds all
 * shards (*.pack), or a pattern. Shards are put in order by the number in their headers. See packfile.h for the layout.
 *
 *   extent 0   the FIXED fields of the record, if there are any
 *   extent k   one for each PICTURE, BYTES and BOXES field
 *
 * The index is read into memory, not mapped, so that a file which shrinks later takes no process down. A file that is
 * shorter than it was written keeps its numbering: what is lost has extents without bytes, is refused by pack_check(),
 * and so falls under the policy for bad samples.
 *
 * Opening is for one thread; afterwards nothing changes. Never reads sample bytes, but for names in messages.
 */
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/crc32c.h"
#include "dataset/format.h"
#include "dataset/packfile.h"

struct shard {
    uint8_t *front; /* [0, data_offset) of the file */
    struct pack_view view;
    uint64_t lost; /* records behind the file's end */
};

struct pack {
    struct shards shards;
    struct shard *shard;
    uint32_t extents;
};

/* ---- detection ------------------------------------------------------------------------------------------------- */

static bool has_suffix(const char *name) {
    size_t length = strlen(name), suffix = strlen(PACK_SUFFIX);
    return length > suffix && strcmp(name + length - suffix, PACK_SUFFIX) == 0;
}

static bool pack_detect(const uint8_t *head, size_t length) {
    return length >= sizeof PACK_MAGIC - 1 && memcmp(head, PACK_MAGIC, sizeof PACK_MAGIC - 1) == 0;
}

static bool is_pack(int dirfd, const char *path) {
    uint8_t magic[8];
    cleanup_close int fd = openat(dirfd, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    return fd >= 0 && pread(fd, magic, sizeof magic, 0) == sizeof magic && pack_detect(magic, sizeof magic);
}

/* Looks at the names that one system call gives: a folder of shards holds little else. */
bool pack_detect_folder(const char *path) {
    cleanup_close int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    cleanup_free char *entries = malloc(65536);
    ssize_t got = fd >= 0 && entries ? getdents64(fd, entries, 65536) : 0;
    for (ssize_t at = 0; at < got;) {
        const struct dirent64 *entry = (const struct dirent64 *)(const void *)(entries + at);
        at += entry->d_reclen;
        if (entry->d_name[0] != '.' && has_suffix(entry->d_name) && is_pack(fd, entry->d_name))
            return true;
    }
    return false;
}

/* ---- opening --------------------------------------------------------------------------------------------------- */

static int load_shard(const struct source_file *file, struct shard *shard, struct diag *diag) {
    uint8_t head[PACK_HEADER_BYTES];
    uint64_t length = MIN(file->identity.size, sizeof head);
    int rc = source_file_read(file, head, length, 0, diag);
    if (rc < 0)
        return rc;
    rc = pack_parse_header(head, length, file->identity.size, &shard->view, diag);
    if (rc == 0) {
        shard->front = malloc(shard->view.header.data_offset);
        if (!shard->front)
            return -ENOMEM;
        rc = source_file_read(file, shard->front, shard->view.header.data_offset, 0, diag);
        if (rc < 0)
            return rc;
        rc = pack_parse(shard->front, shard->view.header.data_offset, file->identity.size, &shard->view, diag);
    }
    if (rc < 0) {
        diag_prefix(diag, "%s", file->path);
        return rc;
    }
    return 0;
}

/* A file that is not as long as it was written. */
static int note_length(struct dataset *dataset, const struct source_file *file, struct shard *shard) {
    const struct pack_header *h = &shard->view.header;
    uint64_t size = file->identity.size, first = h->records;
    if (size > h->file_bytes)
        return dataset_add_remark(dataset, "%s has %" PRIu64 " bytes behind its end, which are not read", file->path,
                                  size - h->file_bytes);
    if (size == h->file_bytes)
        return 0;
    for (uint64_t i = 0; i < h->records; i++) {
        struct pack_record record;
        pack_record(&shard->view, i, &record);
        if (record.offset + record.length <= size)
            continue;
        first = MIN(first, i);
        shard->lost++;
    }
    if (!shard->lost)
        return dataset_add_remark(dataset, "%s was cut: it has %" PRIu64 " of %" PRIu64 " bytes; all records are there",
                                  file->path, size, h->file_bytes);
    return dataset_add_remark(dataset,
                              "%s was cut: it has %" PRIu64 " of %" PRIu64 " bytes; %" PRIu64 " of its %" PRIu64
                              " records are lost, the first is record %" PRIu64 ": they count as bad samples",
                              file->path, size, h->file_bytes, shard->lost, h->records, first);
}

static int refuse_pair(const struct source_file *a, const struct source_file *b, const char *why, struct diag *diag) {
    return diag_set(diag, -EINVAL, "%s and %s %s", a->path, b->path, why);
}

/* Do the shards belong together? They are in order. */
static int check_set(const struct dataset *dataset, const struct pack *pack, bool whole, struct diag *diag) {
    const struct shards *shards = &pack->shards;
    const struct pack_header *first = &pack->shard[0].view.header;
    for (size_t i = 1; i < shards->count; i++) {
        const struct pack_view *view = &pack->shard[i].view;
        const struct pack_header *h = &view->header;
        if (memcmp(h->set, first->set, sizeof h->set) != 0 || h->shards != first->shards)
            return refuse_pair(&shards->file[0], &shards->file[i],
                               "are of different packs: each pack needs a folder of its own", diag);
        if (h->fields != first->fields || memcmp(view->field, pack->shard[0].view.field, sizeof view->field) != 0 ||
            h->classes != first->classes || h->class_bytes != first->class_bytes ||
            memcmp(view->classes, pack->shard[0].view.classes, h->class_bytes) != 0)
            return refuse_pair(&shards->file[0], &shards->file[i], "have different fields or classes", diag);
        if (h->shard == pack->shard[i - 1].view.header.shard)
            return refuse_pair(&shards->file[i - 1], &shards->file[i], "are the same shard of a pack", diag);
    }
    for (uint32_t i = 0; whole && i < first->shards; i++)
        if (i >= shards->count || pack->shard[i].view.header.shard != i)
            return diag_set(diag, -ENODATA,
                            "%s: shard %" PRIu32 " of the %" PRIu32 " of this pack is missing; pack it "
                            "again, or name the shards that there are by a pattern, %s/*" PACK_SUFFIX,
                            dataset->path, i, first->shards, dataset->path);
    return 0;
}

/* Puts shards in the order of their numbers. */
static void sort_shards(struct pack *pack) {
    struct shards *shards = &pack->shards;
    for (size_t i = 1; i < shards->count; i++)
        for (size_t k = i; k > 0 && pack->shard[k].view.header.shard < pack->shard[k - 1].view.header.shard; k--) {
            struct shard shard = pack->shard[k];
            struct source_file file = shards->file[k];
            pack->shard[k] = pack->shard[k - 1];
            pack->shard[k - 1] = shard;
            shards->file[k] = shards->file[k - 1];
            shards->file[k - 1] = file;
        }
}

static int open_shards(struct dataset *dataset, struct pack *pack, struct diag *diag) {
    struct paths paths = PATHS_INIT;
    struct shards *shards = &pack->shards;
    int rc = paths_collect(&paths, dataset->path, diag);
    if (rc == 0)
        rc = shards_reserve(shards, paths_count(&paths), diag);
    for (size_t i = 0; i < paths_count(&paths) && rc == 0; i++)
        if (!paths.from_folder || has_suffix(paths_get(&paths, i)))
            rc = shards_open(shards, paths_get(&paths, i), diag);
    bool whole = paths.from_folder;
    paths_deinit(&paths);
    if (rc < 0)
        return rc;
    if (shards->count == 0)
        return diag_set(diag, -ENODATA, "%s holds no *" PACK_SUFFIX ": no sample", dataset->path);
    pack->shard = calloc(shards->count, sizeof *pack->shard);
    if (!pack->shard)
        return -ENOMEM;
    for (size_t i = 0; i < shards->count && rc == 0; i++)
        rc = load_shard(&shards->file[i], &pack->shard[i], diag);
    if (rc < 0)
        return rc;
    sort_shards(pack);
    rc = check_set(dataset, pack, whole, diag);
    for (size_t i = 0; i < shards->count && rc == 0; i++) {
        rc = shards_set_samples(shards, i, pack->shard[i].view.header.records, diag);
        if (rc == 0)
            rc = note_length(dataset, &shards->file[i], &pack->shard[i]);
    }
    return rc < 0 ? rc : shards_publish(shards, dataset, "record", diag);
}

/* ---- fields, classes, fingerprint ------------------------------------------------------------------------------- */

static int set_fields(struct dataset *dataset, struct pack *pack, struct diag *diag) {
    const struct pack_view *view = &pack->shard[0].view;
    uint64_t offset = 0;
    pack->extents = view->fixed_bytes > 0;
    dataset->fields = view->header.fields;
    for (uint32_t i = 0; i < dataset->fields; i++) {
        const struct pack_field *from = &view->field[i];
        struct dataset_field *to = &dataset->field[i];
        to->spec.dtype = from->dtype;
        to->spec.ndim = from->ndim;
        memcpy(to->spec.name, from->name, sizeof to->spec.name);
        memcpy(to->spec.dims, from->dims, sizeof to->spec.dims);
        to->source = from->storage == PACK_VALUE   ? SOURCE_VALUE
                     : from->storage == PACK_FIXED ? SOURCE_BYTES
                     : from->storage == PACK_BYTES ? SOURCE_RAGGED
                     : from->storage == PACK_BOXES ? SOURCE_BOXES
                                                   : SOURCE_PICTURE;
        if (from->storage == PACK_FIXED) {
            to->deliver = from->deliver;
            to->offset = offset;
            to->bytes = pack_field_bytes(from);
            offset += to->bytes;
        }
        if (pack_is_ragged(from))
            to->extent = pack->extents++;
        if (from->storage == PACK_BOXES) {
            dataset->boxes = (struct box_source){.kind = BOXES_PACKED, .form = BOX_XYXY};
            dataset->boxes.relative = from->encoding == PACK_BOXES_RELATIVE;
            to->boxes = &dataset->boxes;
        }
    }
    if (pack->extents > MAX_EXTENTS)
        return diag_set(diag, -EINVAL, "%s: a record has %" PRIu32 " pieces, at most %d are supported", dataset->path,
                        pack->extents, MAX_EXTENTS);
    return 0;
}

/* Counts the labels of each class, where they are in the index. */
static void count_classes(struct dataset *dataset, const struct pack *pack) {
    uint32_t label = UINT32_MAX;
    for (uint32_t i = 0; i < dataset->fields; i++)
        if (dataset->field[i].source == SOURCE_VALUE && strcmp(dataset->field[i].spec.name, "label") == 0)
            label = i;
    for (size_t s = 0; label != UINT32_MAX && s < pack->shards.count; s++)
        for (uint64_t i = 0; i < pack->shard[s].view.header.records; i++) {
            int64_t value = pack_value(&pack->shard[s].view, i, label);
            if (value >= 0 && (uint64_t)value < dataset->classes)
                dataset->class_samples[value]++;
        }
}

static int set_classes(struct dataset *dataset, const struct pack *pack) {
    const struct pack_view *view = &pack->shard[0].view;
    const char *name = view->classes;
    if (view->header.classes == 0)
        return 0;
    dataset->class_name = calloc(view->header.classes, sizeof *dataset->class_name);
    dataset->class_samples = calloc(view->header.classes, sizeof *dataset->class_samples);
    if (!dataset->class_name || !dataset->class_samples)
        return -ENOMEM;
    dataset->classes = view->header.classes;
    for (uint32_t i = 0; i < dataset->classes; i++, name += strlen(name) + 1)
        dataset->class_name[i] = name;
    count_classes(dataset, pack);
    return 0;
}

/* What was packed and how, not into how many shards. */
static void fingerprint(struct dataset *dataset, const struct pack *pack) {
    const struct pack_view *view = &pack->shard[0].view;
    struct hash hash;
    hash_begin(&hash, "pack");
    hash_bytes(&hash, view->header.set, sizeof view->header.set);
    hash_bytes(&hash, view->field, sizeof view->field);
    hash_u64(&hash, dataset->samples);
    hash_end(&hash, dataset->fingerprint);
}

/* Where it came from, by the line "source=NAME" of its origin. */
static int set_note(struct dataset *dataset, const struct pack_view *view) {
    const char *source = strncmp(view->origin, "source=", 7) == 0 ? view->origin + 7 : "";
    int length = (int)strcspn(source, "\n");
    return dataset_set_note(dataset, "in the pack%s%.*s", length ? ", which was made of " : "", length, source);
}

static int pack_open(struct dataset *dataset, const struct dataset_options *options, struct diag *diag) {
    (void)options;
    struct pack *pack = calloc(1, sizeof *pack);
    if (!pack)
        return -ENOMEM;
    dataset->state = pack;
    int rc = open_shards(dataset, pack, diag);
    if (rc == 0)
        rc = set_fields(dataset, pack, diag);
    if (rc == 0)
        rc = set_classes(dataset, pack);
    if (rc < 0)
        return rc;
    fingerprint(dataset, pack);
    return set_note(dataset, &pack->shard[0].view);
}

static void pack_close(struct dataset *dataset) {
    struct pack *pack = dataset->state;
    if (!pack)
        return;
    for (size_t i = 0; pack->shard && i < pack->shards.count; i++)
        free(pack->shard[i].front);
    free(pack->shard);
    shards_close(&pack->shards);
    free(pack);
    dataset->state = NULL;
}

/* ---- samples --------------------------------------------------------------------------------------------------- */

static bool is_lost(const struct pack *pack, size_t s, const struct pack_record *record) {
    return pack->shard[s].lost && record->offset + record->length > pack->shards.file[s].identity.size;
}

static void pack_locate(const struct dataset *dataset, uint64_t sample, struct location *ret) {
    const struct pack *pack = dataset->state;
    size_t s = shards_find(&pack->shards, sample);
    const struct pack_view *view = &pack->shard[s].view;
    uint64_t i = sample - pack->shards.first[s], offset;
    struct pack_record record;
    pack_record(view, i, &record);
    bool lost = is_lost(pack, s, &record);
    offset = lost ? 0 : record.offset;
    ret->extents = pack->extents;
    for (uint32_t e = 0; e < pack->extents; e++)
        ret->extent[e] = (struct extent){.file = &pack->shards.file[s], .dirfd = -1};
    if (view->fixed_bytes) {
        ret->extent[0].offset = offset;
        ret->extent[0].length = lost ? 0 : view->fixed_bytes;
        offset += ret->extent[0].length;
    }
    for (uint32_t f = 0; f < dataset->fields; f++) {
        if (view->field[f].storage == PACK_VALUE)
            ret->value[f] = pack_value(view, i, f);
        if (!pack_is_ragged(&view->field[f]))
            continue;
        struct extent *extent = &ret->extent[dataset->field[f].extent];
        extent->offset = offset;
        extent->length = lost ? 0 : pack_length(view, i, f);
        offset += extent->length;
    }
}

static int pack_check(const struct dataset *dataset, uint64_t sample, uint32_t extent, const void *bytes, size_t length,
                      uint32_t *crc, struct diag *diag) {
    const struct pack *pack = dataset->state;
    size_t s = shards_find(&pack->shards, sample);
    struct pack_record record;
    pack_record(&pack->shard[s].view, sample - pack->shards.first[s], &record);
    if (is_lost(pack, s, &record))
        return diag_set(diag, -EBADMSG, "the record ends at byte %" PRIu64 ", the file at %" PRIu64 ": it was cut",
                        record.offset + record.length, pack->shards.file[s].identity.size);
    *crc = crc32c(*crc, bytes, length);
    if (extent + 1 < pack->extents || *crc == record.crc)
        return 0;
    return diag_set(diag, -EBADMSG,
                    "CRC-32C of the %" PRIu64 " bytes at byte %" PRIu64 " is %08" PRIx32 ", stored is %08" PRIx32
                    ": the record was damaged",
                    record.length, record.offset, *crc, record.crc);
}

/* Name of record i in the source, by reading it from the file. False: it is not to be had. */
static bool read_name(const struct pack *pack, size_t s, uint64_t i, char *buffer, size_t size) {
    const struct pack_header *h = &pack->shard[s].view.header;
    uint64_t place[2];
    int fd = pack->shards.file[s].fd;
    if (h->names_bytes == 0 || pread(fd, place, sizeof place, (off_t)(h->names_offset + 8 * i)) != sizeof place)
        return false;
    uint64_t names = (h->records + 1) * 8;
    if (place[0] < names || place[1] <= place[0] || place[1] > h->names_bytes || place[1] - place[0] > size)
        return false;
    size_t length = place[1] - place[0];
    return pread(fd, buffer, length, (off_t)(h->names_offset + place[0])) == (ssize_t)length &&
           strnlen(buffer, length) == length - 1;
}

static int pack_name(const struct dataset *dataset, uint64_t sample, char *buffer, size_t size) {
    const struct pack *pack = dataset->state;
    size_t s = shards_find(&pack->shards, sample);
    char name[4096];
    int n = shards_name(&pack->shards, sample, buffer, size);
    if (n < 0 || (size_t)n >= size || !read_name(pack, s, sample - pack->shards.first[s], name, sizeof name))
        return n;
    return n + snprintf(buffer + n, size - (size_t)n, " (%s)", name);
}

static int pack_short_name(const struct dataset *dataset, uint64_t sample, char *buffer, size_t size) {
    const struct pack *pack = dataset->state;
    size_t s = shards_find(&pack->shards, sample);
    uint64_t i = sample - pack->shards.first[s];
    if (read_name(pack, s, i, buffer, size))
        return (int)strlen(buffer);
    const struct pack_header *h = &pack->shard[s].view.header;
    return snprintf(buffer, size, "%06" PRIu64, h->source_first + i);
}

/* ---- what a record does not cover -------------------------------------------------------------------------------- */

static int verify_names(const struct source_file *file, const struct pack_header *h, struct diag *diag) {
    enum { PIECE = 1 << 20 };
    cleanup_free uint8_t *piece = malloc(PIECE);
    uint32_t crc = 0;
    if (!piece)
        return -ENOMEM;
    for (uint64_t done = 0; done < h->names_bytes;) {
        ssize_t n =
            pread(file->fd, piece, MIN(h->names_bytes - done, (uint64_t)PIECE), (off_t)(h->names_offset + done));
        if (n <= 0)
            return diag_set(diag, -EBADMSG, "%s: the names of its records cannot be read", file->path);
        crc = crc32c(crc, piece, (size_t)n);
        done += (uint64_t)n;
    }
    if (crc == h->names_crc)
        return 0;
    return diag_set(diag, -EBADMSG,
                    "%s: the names of its records were damaged (CRC-32C %08" PRIx32 ", stored %08" PRIx32 ")",
                    file->path, crc, h->names_crc);
}

static int pack_verify(const struct dataset *dataset, uint64_t file, struct diag *diag) {
    const struct pack *pack = dataset->state;
    const struct source_file *source = &pack->shards.file[file];
    const struct pack_header *h = &pack->shard[file].view.header;
    if (source->identity.size != h->file_bytes)
        return diag_set(diag, -EBADMSG, "%s has %" PRIu64 " bytes, it was written with %" PRIu64, source->path,
                        source->identity.size, h->file_bytes);
    return verify_names(source, h, diag);
}

const struct dataset_format format_pack = {
    .name = "pack",
    .detect = pack_detect,
    .open = pack_open,
    .close = pack_close,
    .locate = pack_locate,
    .name_sample = pack_name,
    .short_name = pack_short_name,
    .check = pack_check,
    .verify = pack_verify,
};
