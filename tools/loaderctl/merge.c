/* SPDX-License-Identifier: MIT */
/*
 * loaderctl pack --merge: the parts of a pack, made by several processes, become the one file that a single process would
 * have made, byte for byte; of a pack that is a folder of shards only its completeness is checked. Every record's checksum
 * is compared on the way. Parts are removed once the whole is on the disk. One thread.
 */
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/crc32c.h"
#include "base/util.h"
#include "dataset/dataset.h"
#include "loaderctl.h"
#include "pack_writer.h"

#define DIGITS "[0-9][0-9][0-9][0-9][0-9]"

struct part {
    char *path;
    int fd;
    uint8_t *front;
    struct pack_view view;
};

struct merge {
    const char *path;
    struct part *part;
    size_t parts;
    uint8_t *record;
    uint64_t room;
};

static int read_at(const struct part *part, void *into, uint64_t length, uint64_t offset, struct diag *diag) {
    for (uint64_t done = 0; done < length;) {
        ssize_t n = pread(part->fd, (uint8_t *)into + done, length - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return diag_set(diag, n < 0 ? -errno : -EIO, "%s: cannot read at byte %" PRIu64 ": %s", part->path,
                            offset + done, n < 0 ? strerror(errno) : "it ends there");
        done += (uint64_t)n;
    }
    return 0;
}

static int open_part(struct part *part, const char *path, struct diag *diag) {
    struct stat status;
    uint8_t head[PACK_HEADER_BYTES];
    part->path = strdup(path);
    part->fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (!part->path || part->fd < 0 || fstat(part->fd, &status) < 0)
        return diag_set(diag, -errno, "%s: cannot open: %s", path, strerror(errno));
    uint64_t size = (uint64_t)status.st_size, length = MIN(size, sizeof head);
    int r = read_at(part, head, length, 0, diag);
    if (r == 0)
        r = pack_parse_header(head, length, size, &part->view, diag);
    if (r == 0 && size != part->view.header.file_bytes)
        r = diag_set(diag, -EINVAL, "%" PRIu64 " bytes, it was written with %" PRIu64, size,
                     part->view.header.file_bytes);
    if (r == 0) {
        part->front = malloc(part->view.header.data_offset);
        r = part->front ? read_at(part, part->front, part->view.header.data_offset, 0, diag)
                        : diag_set(diag, -ENOMEM, "out of memory");
    }
    if (r == 0)
        r = pack_parse(part->front, part->view.header.data_offset, size, &part->view, diag);
    return r < 0 ? diag_prefix(diag, "%s", path) : 0;
}

static int compare_parts(const void *a, const void *b) {
    uint32_t x = ((const struct part *)a)->view.header.shard, y = ((const struct part *)b)->view.header.shard;
    return (x > y) - (x < y);
}

/* Are they all there, and of one pack? */
static int check_parts(const struct merge *m, struct diag *diag) {
    const struct pack_header *first = &m->part[0].view.header;
    for (size_t i = 0; i < m->parts; i++)
        if (memcmp(m->part[i].view.header.set, first->set, sizeof first->set) != 0 ||
            m->part[i].view.header.shards != first->shards)
            return diag_set(diag, -EINVAL, "%s and %s are parts of different packs: remove the one that is not wanted",
                            m->part[0].path, m->part[i].path);
    for (uint32_t i = 0; i < first->shards; i++)
        if (i >= m->parts || m->part[i].view.header.shard != i)
            return diag_set(diag, -ENODATA,
                            "part %" PRIu32 " of %" PRIu32 " is missing: pack it with --part %" PRIu32 "/%" PRIu32, i,
                            first->shards, i, first->shards);
    return 0;
}

/* "%s" of a path that glob() takes literally. */
static int pattern_of(const char *path, char *buffer, size_t size) {
    size_t used = 0;
    for (; *path && used + 2 < size; path++) {
        if (strchr("*?[]\\", *path))
            buffer[used++] = '\\';
        buffer[used++] = *path;
    }
    int n = snprintf(buffer + used, size - used, ".part-" DIGITS "-of-" DIGITS);
    return *path || n < 0 || (size_t)n >= size - used ? -ENAMETOOLONG : 0;
}

static int open_parts(struct merge *m, struct diag *diag) {
    char pattern[8192];
    glob_t found;
    if (pattern_of(m->path, pattern, sizeof pattern) < 0)
        return diag_set(diag, -ENAMETOOLONG, "%s: the name is too long", m->path);
    int result = glob(pattern, 0, NULL, &found);
    if (result != 0)
        return diag_set(diag, result == GLOB_NOSPACE ? -ENOMEM : -ENOENT,
                        "%s: there are no parts (%s.part-00000-of-0000N) and no folder of shards", m->path, m->path);
    m->part = calloc(found.gl_pathc, sizeof *m->part);
    int r = m->part ? 0 : diag_set(diag, -ENOMEM, "out of memory");
    for (size_t i = 0; i < found.gl_pathc && r == 0; i++)
        r = open_part(&m->part[m->parts++], found.gl_pathv[i], diag);
    globfree(&found);
    if (r == 0)
        qsort(m->part, m->parts, sizeof *m->part, compare_parts);
    return r == 0 ? check_parts(m, diag) : r;
}

/* The part that has sample i of the source. */
static const struct part *part_of(const struct merge *m, uint64_t i, uint64_t *ret_record) {
    size_t low = 0, high = m->parts;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (m->part[middle].view.header.source_first <= i)
            low = middle;
        else
            high = middle;
    }
    *ret_record = i - m->part[low].view.header.source_first;
    return &m->part[low];
}

/* What was left out counts at the end of its part: its place among the others makes no difference. */
static int add_sample(struct merge *m, struct pack_writer *writer, uint64_t i, struct diag *diag) {
    uint64_t number;
    const struct part *part = part_of(m, i, &number);
    const struct pack_view *view = &part->view;
    struct pack_record record;
    struct pack_item item = {0};
    if (number >= view->header.records)
        return pack_writer_skip(writer, diag);
    pack_record(view, number, &record);
    if (record.length > m->room) {
        free(m->record);
        m->room = record.length + record.length / 2;
        m->record = malloc(m->room);
        if (!m->record)
            return diag_set(diag, -ENOMEM, "out of memory for a record of %" PRIu64 " bytes", record.length);
    }
    int r = read_at(part, m->record, record.length, record.offset, diag);
    if (r < 0)
        return r;
    if (crc32c(0, m->record, record.length) != record.crc)
        return diag_set(diag, -EBADMSG, "%s: record %" PRIu64 " was damaged: remove this part and pack it again",
                        part->path, number);
    item.bytes = m->record;
    item.length = record.length;
    for (uint32_t f = 0; f < view->header.fields; f++) {
        if (view->field[f].storage == PACK_VALUE)
            item.value[f] = pack_value(view, number, f);
        else if (view->field[f].storage == PACK_PICTURE)
            pack_picture(view, number, f, &item.picture[f]);
        else if (pack_is_ragged(&view->field[f]))
            item.picture[f].length = pack_length(view, number, f);
    }
    return pack_writer_add(writer, &item, diag);
}

static int name_sample(void *arg, uint64_t i, char *buffer, size_t size) {
    uint64_t number, place[2];
    const struct part *part = part_of(arg, i, &number);
    const struct pack_header *h = &part->view.header;
    if (number >= h->records || !h->names_bytes ||
        read_at(part, place, sizeof place, h->names_offset + 8 * number, NULL) < 0)
        return -ENOENT;
    if (place[1] <= place[0] || place[1] > h->names_bytes || place[1] - place[0] > size ||
        read_at(part, buffer, place[1] - place[0], h->names_offset + place[0], NULL) < 0)
        return -ENOENT;
    buffer[place[1] - place[0] - 1] = '\0';
    return (int)strlen(buffer);
}

static int write_merged(struct merge *m, const struct pack_spec *spec, uint64_t *ret_bytes, struct diag *diag) {
    struct pack_writer *writer;
    int r = pack_writer_new(m->path, spec, &writer, diag);
    if (r < 0)
        return r;
    for (uint64_t i = pack_writer_done(writer); i < spec->source_samples && r == 0; i++)
        r = add_sample(m, writer, i, diag);
    for (size_t i = 0; i < m->parts; i++) {
        struct pack_counts *to = pack_writer_counts(writer);
        const struct pack_counts *from = &m->part[i].view.header.counts;
        to->stripped += from->stripped;
        to->rewritten += from->rewritten;
        to->resized += from->resized;
        to->coefficients += from->coefficients;
        to->kept += from->kept;
    }
    if (r == 0)
        r = pack_writer_finish(writer, name_sample, m, diag);
    *ret_bytes = pack_writer_bytes(writer);
    pack_writer_free(writer);
    return r;
}

static int merge_parts(struct merge *m, struct diag *diag) {
    int r = open_parts(m, diag);
    if (r < 0)
        return r;
    const struct pack_view *view = &m->part[0].view;
    struct pack_spec spec = {.fields = view->header.fields,
                             .classes = view->header.classes,
                             .origin = view->origin,
                             .shards = 1,
                             .alignment = view->header.alignment};
    memcpy(spec.field, view->field, sizeof spec.field);
    memcpy(spec.set, view->header.set, sizeof spec.set);
    cleanup_free const char **names = calloc(view->header.classes + 1, sizeof *names);
    if (!names)
        return diag_set(diag, -ENOMEM, "out of memory");
    const char *name = view->classes;
    for (uint32_t i = 0; i < view->header.classes; i++, name += strlen(name) + 1)
        names[i] = name;
    spec.class_name = names;
    for (size_t i = 0; i < m->parts; i++)
        spec.source_samples += m->part[i].view.header.source_samples;
    uint64_t bytes = 0;
    r = write_merged(m, &spec, &bytes, diag);
    if (r < 0)
        return r;
    printf("%s: %zu parts, %" PRIu64 " samples, %.3f GB\n", m->path, m->parts, spec.source_samples,
           (double)bytes * 1e-9);
    for (size_t i = 0; i < m->parts; i++)
        unlink(m->part[i].path);
    return 0;
}

static int check_folder(const char *path, struct diag *diag) {
    const struct dataset_options options = {.path = path, .format = "pack"};
    struct dataset *dataset;
    const uint64_t *first;
    int r = dataset_open(&options, &dataset, diag);
    if (r < 0)
        return r;
    printf("%s: %" PRIu64 " shards, all there, %" PRIu64 " samples\n", path, dataset_shards(dataset, &first),
           dataset_samples(dataset));
    dataset_free(dataset);
    return 0;
}

int pack_merge(const char *path) {
    struct merge m = {.path = path};
    struct diag diag = DIAG_INIT;
    struct stat status;
    int r = stat(path, &status) == 0 && S_ISDIR(status.st_mode) ? check_folder(path, &diag) : merge_parts(&m, &diag);
    for (size_t i = 0; i < m.parts; i++) {
        if (m.part[i].fd >= 0)
            close(m.part[i].fd);
        free(m.part[i].path);
        free(m.part[i].front);
    }
    free(m.part);
    free(m.record);
    return r < 0 ? complain_diag(&diag) : finish_stdout();
}
