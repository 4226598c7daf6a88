/* SPDX-License-Identifier: MIT */
/* Writes one pack file; see pack_writer.h. */
#include "pack_writer.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "base/crc32c.h"
#include "base/util.h"

#define BUFFER_BYTES (UINT64_C(4) << 20)
#define CHECKPOINT_NS UINT64_C(10000000000)
#define CHECKPOINT_BYTES (UINT64_C(2) << 30)
#define JOB_MAGIC "LOADJOB1"

/* A checkpoint; behind it `skipped` sample numbers of 64 bits. */
struct job {
    char magic[8];
    uint32_t crc; /* of what follows this word, the skipped numbers included */
    uint32_t index_crc;
    uint8_t set[16];
    uint64_t source_first, source_samples;
    uint64_t done, records, data_end, skipped;
    struct pack_counts counts;
};

struct pack_writer {
    const struct pack_spec *spec;
    char *path, *partial, *job;
    int fd;
    struct pack_header header;
    struct pack_field field[LOADERD_MAX_FIELDS];
    uint8_t *index;           /* entries of all records */
    uint64_t records, synced; /* synced: entries that the file has */
    uint64_t *skipped;
    uint64_t skips, skip_room;
    uint64_t done;
    uint8_t *buffer;
    uint64_t buffered, end; /* end: of the data, with what is buffered */
    uint64_t checkpoint_ns, checkpoint_end;
};

uint64_t pack_writer_done(const struct pack_writer *writer) {
    return writer->done;
}

struct pack_counts *pack_writer_counts(struct pack_writer *writer) {
    return &writer->header.counts;
}

uint64_t pack_writer_bytes(const struct pack_writer *writer) {
    return writer->end - writer->header.data_offset;
}

/* ---- bytes ----------------------------------------------------------------------------------------------------- */

static int fail(const char *path, const char *what, struct diag *diag) {
    int error = errno ? errno : EIO;
    return diag_set(diag, -error, "%s: cannot %s: %s", path, what, strerror(error));
}

static int write_at(const struct pack_writer *w, const void *bytes, uint64_t length, uint64_t offset,
                    struct diag *diag) {
    for (uint64_t done = 0; done < length;) {
        ssize_t n = pwrite(w->fd, (const uint8_t *)bytes + done, length - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return fail(w->partial, "write", diag);
        done += (uint64_t)n;
    }
    return 0;
}

static int flush(struct pack_writer *w, struct diag *diag) {
    int r = write_at(w, w->buffer, w->buffered, w->end - w->buffered, diag);
    if (r == 0)
        w->buffered = 0;
    return r;
}

static int append(struct pack_writer *w, const uint8_t *bytes, uint64_t length, struct diag *diag) {
    while (length) {
        uint64_t n = MIN(length, BUFFER_BYTES - w->buffered);
        if (bytes)
            memcpy(w->buffer + w->buffered, bytes, n);
        else
            memset(w->buffer + w->buffered, 0, n);
        w->buffered += n;
        w->end += n;
        length -= n;
        bytes = bytes ? bytes + n : NULL;
        int r = w->buffered == BUFFER_BYTES ? flush(w, diag) : 0;
        if (r < 0)
            return r;
    }
    return 0;
}

static uint64_t index_bytes(const struct pack_writer *w, uint64_t records) {
    return records * w->header.entry_bytes;
}

/* ---- the checkpoint -------------------------------------------------------------------------------------------- */

static uint32_t job_crc(const struct job *job, const uint64_t *skipped) {
    size_t from = offsetof(struct job, index_crc);
    uint32_t crc = crc32c(0, (const uint8_t *)job + from, sizeof *job - from);
    return crc32c(crc, skipped, job->skipped * sizeof *skipped);
}

static int write_job(const struct pack_writer *w, const struct job *job, struct diag *diag) {
    cleanup_free char *fresh = NULL;
    if (asprintf(&fresh, "%s~", w->job) < 0)
        return diag_set(diag, -ENOMEM, "out of memory");
    FILE *file = fopen(fresh, "we");
    if (!file)
        return fail(fresh, "create", diag);
    bool good = fwrite(job, sizeof *job, 1, file) == 1 &&
                (w->skips == 0 || fwrite(w->skipped, sizeof *w->skipped, w->skips, file) == w->skips) &&
                fflush(file) == 0 && fdatasync(fileno(file)) == 0;
    good = fclose(file) == 0 && good;
    if (!good || rename(fresh, w->job) < 0)
        return fail(w->job, "write", diag);
    return 0;
}

int pack_writer_checkpoint(struct pack_writer *w, struct diag *diag) {
    uint64_t from = index_bytes(w, w->synced);
    int r = flush(w, diag);
    if (r == 0)
        r = write_at(w, w->index + from, index_bytes(w, w->records) - from, w->header.index_offset + from, diag);
    if (r == 0 && fdatasync(w->fd) < 0)
        r = fail(w->partial, "write", diag);
    if (r < 0)
        return r;
    w->synced = w->records;
    struct job job = {.index_crc = crc32c(0, w->index, index_bytes(w, w->records)),
                      .source_first = w->spec->source_first,
                      .source_samples = w->spec->source_samples,
                      .done = w->done,
                      .records = w->records,
                      .data_end = w->end,
                      .skipped = w->skips,
                      .counts = w->header.counts};
    memcpy(job.magic, JOB_MAGIC, sizeof job.magic);
    memcpy(job.set, w->spec->set, sizeof job.set);
    job.crc = job_crc(&job, w->skipped);
    w->checkpoint_ns = now_ns();
    w->checkpoint_end = w->end;
    return write_job(w, &job, diag);
}

static uint64_t checkpoint_interval(void) {
    const char *test = getenv("LOADERD_TEST_CHECKPOINT_MS");
    return test ? strtoull(test, NULL, 10) * 1000000 : CHECKPOINT_NS;
}

static int maybe_checkpoint(struct pack_writer *w, struct diag *diag) {
    if (w->end - w->checkpoint_end < CHECKPOINT_BYTES &&
        (w->done % 16 || now_ns() - w->checkpoint_ns < checkpoint_interval()))
        return 0;
    return pack_writer_checkpoint(w, diag);
}

/* Takes up the job that is there. False: there is none that fits, begin anew. */
static bool resume(struct pack_writer *w) {
    struct job job;
    struct stat status;
    FILE *file = fopen(w->job, "re");
    if (!file)
        return false;
    bool good = fread(&job, sizeof job, 1, file) == 1 && memcmp(job.magic, JOB_MAGIC, sizeof job.magic) == 0 &&
                memcmp(job.set, w->spec->set, sizeof job.set) == 0 && job.source_first == w->spec->source_first &&
                job.source_samples == w->spec->source_samples && job.done <= job.source_samples &&
                job.records <= job.done && job.skipped == job.done - job.records && fstat(w->fd, &status) == 0 &&
                (uint64_t)status.st_size >= job.data_end && job.data_end >= w->header.data_offset;
    uint64_t *skipped = good ? calloc(job.skipped + 1, sizeof *skipped) : NULL;
    good = skipped && fread(skipped, sizeof *skipped, job.skipped, file) == job.skipped &&
           job_crc(&job, skipped) == job.crc;
    fclose(file);
    uint64_t bytes = good ? index_bytes(w, job.records) : 0;
    if (!good || pread(w->fd, w->index, bytes, (off_t)w->header.index_offset) != (ssize_t)bytes ||
        crc32c(0, w->index, bytes) != job.index_crc) {
        free(skipped);
        return false;
    }
    free(w->skipped);
    w->skipped = skipped;
    w->skips = job.skipped;
    w->skip_room = job.skipped + 1;
    w->records = w->synced = job.records;
    w->done = job.done;
    w->end = w->checkpoint_end = job.data_end;
    w->header.counts = job.counts;
    return true;
}

/* ---- begin ----------------------------------------------------------------------------------------------------- */

static void lay_out(struct pack_writer *w) {
    const struct pack_spec *s = w->spec;
    struct pack_header *h = &w->header;
    memcpy(h->magic, PACK_MAGIC, sizeof h->magic);
    h->version = PACK_VERSION;
    h->header_bytes = PACK_HEADER_BYTES;
    memcpy(w->field, s->field, sizeof w->field);
    h->fields = s->fields;
    h->entry_bytes = pack_lay_out(w->field, s->fields);
    h->alignment = s->alignment;
    h->classes = s->classes;
    for (uint32_t i = 0; i < s->classes; i++)
        h->class_bytes += (uint32_t)strlen(s->class_name[i]) + 1;
    h->origin_bytes = (uint32_t)strlen(s->origin) + 1;
    h->meta_offset = PACK_HEADER_BYTES;
    h->index_offset = align_up(h->meta_offset + h->class_bytes + h->origin_bytes, 64);
    h->data_offset = align_up(h->index_offset + index_bytes(w, s->source_samples), MAX(s->alignment, 4096u));
    h->shard = s->shard;
    h->shards = s->shards;
    h->source_first = s->source_first;
    h->source_samples = s->source_samples;
    memcpy(h->set, s->set, sizeof h->set);
}

static int open_partial(struct pack_writer *w, struct diag *diag) {
    w->fd = open(w->partial, O_RDWR | O_CREAT | O_CLOEXEC | O_NOCTTY, 0666);
    if (w->fd < 0)
        return fail(w->partial, "create", diag);
    if (flock(w->fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK) /* a file system without locks: go on */
        return diag_set(diag, -EBUSY, "%s: another process is writing it", w->partial);
    if (!resume(w)) {
        unlink(w->job);
        w->end = w->checkpoint_end = w->header.data_offset;
    }
    if (ftruncate(w->fd, (off_t)w->end) < 0)
        return fail(w->partial, "write", diag);
    return 0;
}

int pack_writer_new(const char *path, const struct pack_spec *spec, struct pack_writer **ret, struct diag *diag) {
    struct pack_writer *w = calloc(1, sizeof *w);
    if (!w)
        return diag_set(diag, -ENOMEM, "out of memory");
    w->spec = spec;
    w->fd = -1;
    w->checkpoint_ns = now_ns();
    lay_out(w);
    w->path = strdup(path);
    w->index = malloc(MAX(index_bytes(w, spec->source_samples), 1u));
    w->buffer = malloc(BUFFER_BYTES);
    int r = 0;
    if (asprintf(&w->partial, "%s.partial", path) < 0)
        w->partial = NULL;
    if (asprintf(&w->job, "%s.job", path) < 0)
        w->job = NULL;
    if (!w->path || !w->index || !w->buffer || !w->partial || !w->job)
        r = diag_set(diag, -ENOMEM, "out of memory for the index of %" PRIu64 " records", spec->source_samples);
    if (r == 0)
        r = open_partial(w, diag);
    if (r < 0)
        pack_writer_free(w);
    else
        *ret = w;
    return r;
}

void pack_writer_free(struct pack_writer *w) {
    if (!w)
        return;
    if (w->fd >= 0)
        close(w->fd);
    free(w->path);
    free(w->partial);
    free(w->job);
    free(w->index);
    free(w->skipped);
    free(w->buffer);
    free(w);
}

/* ---- samples --------------------------------------------------------------------------------------------------- */

int pack_writer_add(struct pack_writer *w, const struct pack_item *item, struct diag *diag) {
    uint64_t padding = align_up(w->end, w->header.alignment) - w->end;
    uint8_t *entry = w->index + index_bytes(w, w->records);
    uint64_t offset = w->end + padding;
    uint32_t crc = crc32c(0, item->bytes, item->length);
    memset(entry, 0, w->header.entry_bytes);
    memcpy(entry, &offset, sizeof offset);
    memcpy(entry + 8, &crc, sizeof crc);
    for (uint32_t i = 0; i < w->spec->fields; i++) {
        const struct pack_field *field = &w->field[i];
        if (field->storage == PACK_VALUE)
            memcpy(entry + field->entry, &item->value[i], sizeof item->value[i]);
        else if (field->storage == PACK_PICTURE)
            memcpy(entry + field->entry, &item->picture[i], sizeof item->picture[i]);
        else if (pack_is_ragged(field))
            memcpy(entry + field->entry, &item->picture[i].length, sizeof item->picture[i].length);
    }
    int r = append(w, NULL, padding, diag);
    if (r == 0)
        r = append(w, item->bytes, item->length, diag);
    if (r < 0)
        return r;
    w->records++;
    w->done++;
    return maybe_checkpoint(w, diag);
}

int pack_writer_skip(struct pack_writer *w, struct diag *diag) {
    if (w->skips == w->skip_room) {
        uint64_t room = MAX(w->skip_room * 2, 64u);
        uint64_t *grown = realloc(w->skipped, room * sizeof *grown);
        if (!grown)
            return diag_set(diag, -ENOMEM, "out of memory");
        w->skipped = grown;
        w->skip_room = room;
    }
    w->skipped[w->skips++] = w->done++;
    w->header.counts.skipped++;
    return maybe_checkpoint(w, diag);
}

/* ---- end ------------------------------------------------------------------------------------------------------- */

/* Offsets and strings of the names section. */
struct names {
    uint64_t *place;
    char *text;
    uint64_t length, room;
};

static int add_name(struct names *names, const char *name, size_t length) {
    if (names->room - names->length < length + 1) {
        uint64_t room = MAX(names->room * 2, (uint64_t)65536);
        char *grown = realloc(names->text, room);
        if (!grown)
            return -ENOMEM;
        names->text = grown;
        names->room = room;
    }
    memcpy(names->text + names->length, name, length + 1);
    names->length += length + 1;
    return 0;
}

static int collect_names(const struct pack_writer *w, struct names *names,
                         int (*name)(void *arg, uint64_t i, char *buffer, size_t size), void *arg) {
    uint64_t skip = 0, record = 0, base = (w->records + 1) * sizeof *names->place;
    char text[4096];
    names->place = malloc(base);
    if (!names->place)
        return -ENOMEM;
    for (uint64_t i = 0; i < w->done; i++) {
        if (skip < w->skips && w->skipped[skip] == i) {
            skip++;
            continue;
        }
        int n = name(arg, i, text, sizeof text);
        if (n < 0 || (size_t)n >= sizeof text)
            n = snprintf(text, sizeof text, "%06" PRIu64, w->spec->source_first + i);
        names->place[record++] = base + names->length;
        int r = add_name(names, text, (size_t)n);
        if (r < 0)
            return r;
    }
    names->place[record] = base + names->length;
    return 0;
}

static int write_names(struct pack_writer *w, int (*name)(void *arg, uint64_t i, char *buffer, size_t size), void *arg,
                       struct diag *diag) {
    struct names names = {0};
    struct pack_header *h = &w->header;
    int r = name ? collect_names(w, &names, name, arg) : 0;
    if (r < 0)
        diag_set(diag, r, "out of memory for the names of %" PRIu64 " records", w->records);
    if (r == 0 && name) {
        uint64_t base = (w->records + 1) * sizeof *names.place;
        h->names_offset = align_up(w->end, 8);
        h->names_bytes = base + names.length;
        h->names_crc = crc32c(crc32c(0, names.place, base), names.text, names.length);
        r = append(w, NULL, h->names_offset - w->end, diag);
        if (r == 0)
            r = append(w, (const uint8_t *)names.place, base, diag);
        if (r == 0)
            r = append(w, (const uint8_t *)names.text, names.length, diag);
    }
    free(names.place);
    free(names.text);
    return r;
}

/* Everything in front of the data, with its checksums. */
static int write_front(struct pack_writer *w, struct diag *diag) {
    const struct pack_spec *s = w->spec;
    struct pack_header *h = &w->header;
    cleanup_free uint8_t *front = calloc(1, h->data_offset);
    if (!front)
        return diag_set(diag, -ENOMEM, "out of memory for the index of %" PRIu64 " records", w->records);
    memcpy(front, h, sizeof *h);
    memcpy(front + PACK_FIELDS_OFFSET, w->field, s->fields * sizeof *w->field);
    char *meta = (char *)front + h->meta_offset;
    for (uint32_t i = 0; i < s->classes; i++)
        meta = stpcpy(meta, s->class_name[i]) + 1;
    strcpy(meta, s->origin);
    memcpy(front + h->index_offset, w->index, index_bytes(w, w->records));
    pack_seal(front);
    return write_at(w, front, h->data_offset, 0, diag);
}

static int sync_folder(const char *path, struct diag *diag) {
    cleanup_free char *folder = strdup(path);
    char *slash = folder ? strrchr(folder, '/') : NULL;
    if (slash)
        slash[slash == folder] = '\0';
    cleanup_close int fd = open(slash ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || (fsync(fd) < 0 && errno != EINVAL))
        return fail(slash ? folder : ".", "write this folder", diag);
    return 0;
}

int pack_writer_finish(struct pack_writer *w, int (*name)(void *arg, uint64_t i, char *buffer, size_t size), void *arg,
                       struct diag *diag) {
    if (w->done != w->spec->source_samples)
        return diag_set(diag, -EINVAL, "%s: %" PRIu64 " of %" PRIu64 " samples are packed", w->path, w->done,
                        w->spec->source_samples);
    w->header.records = w->records;
    w->header.data_bytes = w->end - w->header.data_offset;
    int r = write_names(w, name, arg, diag);
    if (r == 0)
        r = flush(w, diag);
    w->header.file_bytes = w->end;
    if (r == 0)
        r = write_front(w, diag);
    if (r == 0 && fsync(w->fd) < 0)
        r = fail(w->partial, "write", diag);
    if (r == 0 && rename(w->partial, w->path) < 0)
        r = fail(w->path, "give it its name", diag);
    if (r == 0)
        unlink(w->job);
    return r == 0 ? sync_folder(w->path, diag) : r;
}
