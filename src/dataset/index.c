/* SPDX-License-Identifier: MIT */
/*
 * The index of datasets whose samples must be looked for: collected by a scan, kept in a checked file, mapped at the
 * next start. Layout and validity: format.h.
 *
 * An index file is believed only after both checksums, every offset and every directory's mtime were checked, and only
 * from an owner who could have changed the data or the daemon anyway. Whatever is wrong with it, the answer is a new
 * scan; that it cannot be written is a remark. A change within the granularity of a file system's clock before the scan
 * cannot be seen in an mtime: such a scan is not kept.
 *
 * Opening is for one thread; index_locate() and index_name() for any.
 */
#include <assert.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/crc32c.h"
#include "dataset/format.h"

#define KEEP_SAMPLES 4096           /* an index is kept from so many samples on, */
#define KEEP_NS UINT64_C(250000000) /* or where the scan took so long */
#define PROGRESS_NS UINT64_C(5000000000)
#define CLOCK_GRAIN_NS INT64_C(50000000)          /* kernels stamp files once a tick, 1 to 10 ms */
#define CLOCK_GRAIN_COARSE_NS INT64_C(2000000000) /* file systems that store whole seconds, or two (FAT) */

static uint32_t header_crc(const struct index_header *header) {
    struct index_header copy = *header;
    copy.header_crc = 0;
    return crc32c(0, &copy, sizeof copy);
}

/* ---- collecting ------------------------------------------------------------------------------------------------ */

static int64_t realtime_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void builder_init(struct index_builder *builder, const struct dataset_options *options) {
    *builder = (struct index_builder){.progress = options->progress, .progress_arg = options->progress_arg};
    builder->started = builder->told = now_ns();
}

static void builder_deinit(struct index_builder *builder) {
    struct buffer *const all[] = {&builder->base,  &builder->class, &builder->directory, &builder->remark,
                                  &builder->shard, &builder->word,  &builder->label,     &builder->offset,
                                  &builder->text,  &builder->names};
    for (size_t i = 0; i < ARRAY_SIZE(all); i++)
        buffer_deinit(all[i]);
}

/* Copies "directory/name" ("name" where directory is ""), with its NUL. */
static int add_name(struct index_builder *builder, const char *directory, const char *name) {
    size_t before = strlen(directory), length = strlen(name) + 1, slash = before ? 1 : 0;
    char *place = buffer_reserve(&builder->names, before + slash + length);
    if (!place)
        return -ENOMEM;
    memcpy(place, directory, before);
    if (slash)
        place[before] = '/';
    memcpy(place + before + slash, name, length);
    return 0;
}

static int add_text(struct index_builder *builder, const char *text, uint64_t *ret) {
    *ret = builder->text.length;
    return buffer_append(&builder->text, text, strlen(text) + 1);
}

uint64_t index_builder_samples(const struct index_builder *builder) {
    return builder->offset.length / sizeof(uint32_t);
}

int index_add_sample(struct index_builder *builder, const char *directory, const char *name, int64_t label) {
    uint64_t sample = index_builder_samples(builder), at = builder->names.length;
    int rc = sample % INDEX_BLOCK == 0 ? buffer_append(&builder->base, &at, sizeof at) : 0;
    if (rc < 0)
        return rc;
    uint64_t from_base = at - ((const uint64_t *)(const void *)builder->base.data)[sample / INDEX_BLOCK];
    assert(from_base <= UINT32_MAX); /* 65,536 times two paths */
    uint32_t offset = (uint32_t)from_base;
    rc = add_name(builder, directory, name);
    if (rc == 0)
        rc = buffer_append(&builder->offset, &offset, sizeof offset);
    if (rc == 0 && builder->labels)
        rc = buffer_append(&builder->label, &label, sizeof label);
    return rc;
}

int index_add_class(struct index_builder *builder, const char *name, uint64_t samples) {
    struct index_class class = {.samples = samples};
    int rc = add_text(builder, name, &class.name);
    return rc < 0 ? rc : buffer_append(&builder->class, &class, sizeof class);
}

int index_add_directory(struct index_builder *builder, const char *path, int64_t mtime_ns) {
    struct index_directory directory = {.mtime_ns = mtime_ns};
    int rc = add_text(builder, path, &directory.name);
    index_note_mtime(builder, mtime_ns);
    return rc < 0 ? rc : buffer_append(&builder->directory, &directory, sizeof directory);
}

int index_add_shard(struct index_builder *builder, const struct source_file *file, uint64_t samples) {
    struct index_shard shard = {.bytes = file->identity.size, .mtime_ns = file->identity.mtime_ns, .samples = samples};
    const char *slash = strrchr(file->path, '/');
    int rc = add_text(builder, slash ? slash + 1 : file->path, &shard.name);
    index_note_mtime(builder, shard.mtime_ns);
    return rc < 0 ? rc : buffer_append(&builder->shard, &shard, sizeof shard);
}

int index_add_remark(struct index_builder *builder, const char *format, ...) {
    cleanup_free char *text = NULL;
    va_list args;
    va_start(args, format);
    int n = vasprintf(&text, format, args);
    va_end(args);
    if (n < 0) {
        text = NULL;
        return -ENOMEM;
    }
    uint64_t at;
    int rc = add_text(builder, text, &at);
    return rc < 0 ? rc : buffer_append(&builder->remark, &at, sizeof at);
}

void index_note_mtime(struct index_builder *builder, int64_t mtime_ns) {
    int64_t grain = mtime_ns % 1000000000 == 0 ? CLOCK_GRAIN_COARSE_NS : CLOCK_GRAIN_NS, now = realtime_ns();
    if (mtime_ns > now - grain && mtime_ns < now + grain)
        builder->racy = true;
}

void index_tick(struct index_builder *builder, uint64_t samples) {
    uint64_t now = now_ns();
    if (!builder->progress || now - builder->told < PROGRESS_NS)
        return;
    builder->told = now;
    builder->progress(builder->progress_arg, samples, (double)(now - builder->started) / 1e9);
}

/* ---- the view -------------------------------------------------------------------------------------------------- */

/* The sections of an index in file order: where each begins, and its bytes. */
#define SECTIONS 10
struct section {
    const void *bytes;
    uint64_t length;
};

static bool section_lengths(const struct index_header *h, uint64_t ret[SECTIONS]) {
    uint64_t total = sizeof *h, named = h->words ? 0 : h->samples;
    const uint64_t count[SECTIONS] = {named / INDEX_BLOCK + (named % INDEX_BLOCK != 0),
                                      h->classes,
                                      h->directories,
                                      h->remarks,
                                      h->shards,
                                      h->samples,
                                      h->flags & INDEX_LABELS ? h->samples : 0,
                                      named,
                                      h->text_bytes,
                                      h->name_bytes};
    const uint64_t each[SECTIONS] = {sizeof(uint64_t),
                                     sizeof(struct index_class),
                                     sizeof(struct index_directory),
                                     sizeof(uint64_t),
                                     sizeof(struct index_shard),
                                     sizeof(uint64_t) * h->words,
                                     h->flags & INDEX_WIDE ? sizeof(int64_t) : sizeof(int32_t),
                                     sizeof(uint32_t),
                                     1,
                                     1};
    for (int i = 0; i < SECTIONS; i++)
        if (!mul_u64(count[i], each[i], &ret[i]) || !add_u64(total, ret[i], &total))
            return false;
    return total == h->file_bytes;
}

static void index_sections(const struct index *index, struct section ret[SECTIONS]) {
    uint64_t length[SECTIONS] = {0};
    section_lengths(&index->header, length);
    const void *const bytes[SECTIONS] = {index->base, index->class, index->directory, index->remark, index->shard,
                                         index->word, index->label, index->offset,    index->text,   index->names};
    for (int i = 0; i < SECTIONS; i++)
        ret[i] = (struct section){bytes[i], length[i]};
}

static void index_fingerprint(struct index *index) {
    struct hash hash;
    hash_begin(&hash, "files");
    hash_u64(&hash, index->header.samples);
    hash_u64(&hash, index->header.classes);
    for (uint64_t i = 0; i < index->header.classes; i++)
        hash_string(&hash, index->text + index->class[i].name);
    hash_u64(&hash, index->label != NULL);
    for (uint64_t i = 0; i < index->header.shards; i++) {
        hash_string(&hash, index->text + index->shard[i].name);
        hash_u64(&hash, index->shard[i].samples);
    }
    if (index->header.words)
        hash_bytes(&hash, index->word, index->header.samples * index->header.words * sizeof *index->word);
    for (uint64_t i = 0; i < index->header.samples && !index->header.words; i++) {
        hash_string(&hash, index_sample_name(index, i));
        if (index->header.flags & INDEX_MASKS)
            hash_string(&hash, index_second_name(index, i));
        if (index->label)
            hash_u64(&hash, (uint64_t)index_label(index, i));
    }
    hash_end(&hash, index->header.fingerprint);
}

/* Labels that fit 32 bits take no more. */
static bool narrow_labels(struct buffer *labels) {
    size_t count = labels->length / sizeof(int64_t);
    const char *wide = labels->data;
    for (size_t i = 0; i < count; i++) {
        int64_t label;
        memcpy(&label, wide + i * sizeof label, sizeof label);
        if (label < INT32_MIN || label > INT32_MAX)
            return false;
    }
    for (size_t i = 0; i < count; i++) {
        int64_t label;
        memcpy(&label, wide + i * sizeof label, sizeof label);
        memcpy(labels->data + i * sizeof(int32_t), &(int32_t){(int32_t)label}, sizeof(int32_t));
    }
    labels->length = count * sizeof(int32_t);
    return true;
}

/* Makes the view of what was collected. */
static void index_of_builder(struct index_builder *builder, const struct index_source *source, struct index *ret) {
    bool wide = builder->labels && !narrow_labels(&builder->label);
    *ret = (struct index){
        .header = {.version = INDEX_VERSION,
                   .byte_order = INDEX_BYTE_ORDER,
                   .samples = source->words ? builder->word.length / sizeof(uint64_t) / source->words
                                            : index_builder_samples(builder),
                   .words = source->words,
                   .shards = builder->shard.length / sizeof(struct index_shard),
                   .classes = builder->class.length / sizeof(struct index_class),
                   .directories = builder->directory.length / sizeof(struct index_directory),
                   .remarks = builder->remark.length / sizeof(uint64_t),
                   .text_bytes = builder->text.length,
                   .name_bytes = builder->names.length,
                   .flags = (builder->labels ? INDEX_LABELS : 0) | (wide ? INDEX_WIDE : 0) |
                            (builder->outside ? INDEX_OUTSIDE : 0) | (builder->masks ? INDEX_MASKS : 0)},
        .base = (const void *)builder->base.data,
        .class = (const void *)builder->class.data,
        .directory = (const void *)builder->directory.data,
        .remark = (const void *)builder->remark.data,
        .shard = (const void *)builder->shard.data,
        .word = (const void *)builder->word.data,
        .label = builder->labels ? (const void *)builder->label.data : NULL,
        .offset = (const void *)builder->offset.data,
        .text = builder->text.data,
        .names = builder->names.data,
    };
    struct index_header *header = &ret->header;
    memcpy(header->magic, INDEX_MAGIC, sizeof header->magic);
    memcpy(header->key, source->key, sizeof header->key);
    if (source->list) {
        header->list_bytes = source->list->size;
        header->list_inode = source->list->inode;
        header->list_mtime_ns = source->list->mtime_ns;
    }
    header->file_bytes = sizeof *header + builder->base.length + builder->class.length + builder->directory.length +
                         builder->remark.length + builder->shard.length + builder->word.length + builder->label.length +
                         builder->offset.length + builder->text.length + builder->names.length;
    index_fingerprint(ret);
}

/* ---- checking a file's bytes ----------------------------------------------------------------------------------- */

static int check_header(const struct index_header *h, size_t length, struct diag *diag) {
    if (memcmp(h->magic, INDEX_MAGIC, sizeof h->magic) != 0)
        return diag_set(diag, -EINVAL, "no index: the magic at offset 0 is not " INDEX_MAGIC);
    if (h->byte_order != INDEX_BYTE_ORDER)
        return diag_set(diag, -EINVAL, "written on a machine of another byte order");
    if (h->version != INDEX_VERSION)
        return diag_set(diag, -EINVAL, "version %u, wanted %u", h->version, INDEX_VERSION);
    if (h->header_crc != header_crc(h))
        return diag_set(diag, -EINVAL, "CRC-32C of the header is %08x, stored is %08x", header_crc(h), h->header_crc);
    uint64_t section[SECTIONS];
    if (h->file_bytes != length || !section_lengths(h, section))
        return diag_set(diag, -EINVAL, "%zu bytes, but the header describes %llu", length,
                        (unsigned long long)h->file_bytes);
    if (h->samples == 0 || (h->words ? h->name_bytes : !h->name_bytes) || h->classes > UINT32_MAX ||
        h->remarks > UINT32_MAX)
        return diag_set(diag, -EINVAL, "counts that no index has");
    if (h->flags & INDEX_MASKS && !(h->flags & INDEX_OUTSIDE))
        return diag_set(diag, -EINVAL, "masks in what is no list");
    if (h->flags & INDEX_WIDE && !(h->flags & INDEX_LABELS))
        return diag_set(diag, -EINVAL, "wide labels, but no labels");
    if (h->classes && !(h->flags & INDEX_LABELS))
        return diag_set(diag, -EINVAL, "classes without labels");
    if ((h->words != 0) != (h->shards != 0) || h->words > LOADERD_MAX_FIELDS || (h->words && h->flags & INDEX_LABELS))
        return diag_set(diag, -EINVAL, "shards without words, or words without shards");
    return 0;
}

/* Is there ".." among these bytes? Whole pieces without a branch, which the compiler turns into vectors. */
static bool has_two_dots(const char *bytes, uint64_t length) {
    enum { PIECE = 256 };
    uint64_t at = 0;
    for (; at + PIECE < length; at += PIECE) {
        unsigned char found = 0;
        for (int i = 0; i < PIECE; i++)
            found |= (bytes[at + i] == '.') & (bytes[at + i + 1] == '.');
        if (found)
            return true;
    }
    return memmem(bytes + at, length - at, "..", 2) != NULL;
}

/* No component of any name is "..". The last byte is a NUL. */
static bool names_stay_inside(const char *names, uint64_t length) {
    if (!has_two_dots(names, length))
        return true;
    const char *p = names, *end = names + length;
    while ((p = memmem(p, (size_t)(end - p), "..", 2))) {
        bool starts = p == names || p[-1] == '/' || p[-1] == '\0';
        if (starts && (p[2] == '/' || p[2] == '\0'))
            return false;
        p++;
    }
    return true;
}

static bool check_names(const struct index *index) {
    const struct index_header *h = &index->header;
    bool inside = !(h->flags & INDEX_OUTSIDE);
    if (h->words)
        return true;
    if (index->names[h->name_bytes - 1] != '\0')
        return false;
    for (uint64_t i = 0; i < h->samples; i++) {
        uint64_t base = index->base[i / INDEX_BLOCK];
        if (base >= h->name_bytes || index->offset[i] >= h->name_bytes - base)
            return false;
        const char *name = index_sample_name(index, i);
        if (*name == '\0' || (inside && *name == '/'))
            return false;
        if (h->flags & INDEX_MASKS) {
            const char *second = index_second_name(index, i);
            if (second >= index->names + h->name_bytes || *second == '\0')
                return false;
        }
    }
    return !inside || names_stay_inside(index->names, h->name_bytes);
}

static bool check_labels(const struct index *index) {
    const struct index_header *h = &index->header;
    for (uint64_t i = 0; i < h->samples && h->classes; i++) {
        int64_t label = index_label(index, i);
        if (label < 0 || (uint64_t)label >= h->classes)
            return false;
    }
    return true;
}

static bool check_tables(const struct index *index) {
    const struct index_header *h = &index->header;
    uint64_t total = 0;
    if (h->text_bytes && index->text[h->text_bytes - 1] != '\0')
        return false;
    for (uint64_t i = 0; i < h->classes; i++)
        if (index->class[i].name >= h->text_bytes || !add_u64(total, index->class[i].samples, &total))
            return false;
    for (uint64_t i = 0; i < h->directories; i++) {
        if (index->directory[i].name >= h->text_bytes)
            return false;
        const char *name = index->text + index->directory[i].name;
        if (*name == '/' || !names_stay_inside(name, strlen(name) + 1))
            return false;
    }
    for (uint64_t i = 0; i < h->remarks; i++)
        if (index->remark[i] >= h->text_bytes)
            return false;
    if (h->classes && total != h->samples)
        return false;
    total = 0;
    for (uint64_t i = 0; i < h->shards; i++)
        if (index->shard[i].name >= h->text_bytes || !add_u64(total, index->shard[i].samples, &total))
            return false;
    return h->shards == 0 || total == h->samples;
}

int index_parse(const void *bytes, size_t length, struct index *ret, struct diag *diag) {
    struct index index = {0};
    if (length < sizeof index.header)
        return diag_set(diag, -EINVAL, "%zu bytes are too few for an index", length);
    memcpy(&index.header, bytes, sizeof index.header);
    int rc = check_header(&index.header, length, diag);
    if (rc < 0)
        return rc;
    const char *content = (const char *)bytes + sizeof index.header, *section[SECTIONS];
    uint32_t crc = crc32c(0, content, length - sizeof index.header);
    if (crc != index.header.content_crc)
        return diag_set(diag, -EINVAL, "CRC-32C of the content is %08x, stored is %08x", crc, index.header.content_crc);
    uint64_t lengths[SECTIONS];
    section_lengths(&index.header, lengths);
    for (int i = 0; i < SECTIONS; content += lengths[i++])
        section[i] = content;
    index.base = (const void *)section[0];
    index.class = (const void *)section[1];
    index.directory = (const void *)section[2];
    index.remark = (const void *)section[3];
    index.shard = (const void *)section[4];
    index.word = (const void *)section[5];
    index.label = lengths[6] ? section[6] : NULL;
    index.offset = (const void *)section[7];
    index.text = section[8];
    index.names = section[9];
    if (!check_names(&index) || !check_labels(&index) || !check_tables(&index))
        return diag_set(diag, -EINVAL, "an offset, name or label lies outside of what it belongs to");
    *ret = index;
    return 0;
}

int index_seal(void *bytes, size_t length) {
    struct index_header header;
    if (length < sizeof header)
        return -EINVAL;
    memcpy(&header, bytes, sizeof header);
    header.content_crc = crc32c(0, (const char *)bytes + sizeof header, length - sizeof header);
    header.header_crc = header_crc(&header);
    memcpy(bytes, &header, sizeof header);
    return 0;
}

/* ---- loading --------------------------------------------------------------------------------------------------- */

/* Are the shards those that were scanned? */
static bool shards_current(const struct index *index, const struct shards *shards) {
    if (index->header.shards != shards->count)
        return false;
    for (size_t i = 0; i < shards->count; i++) {
        const struct source_file *file = &shards->file[i];
        const struct index_shard *shard = &index->shard[i];
        const char *slash = strrchr(file->path, '/');
        if (shard->bytes != file->identity.size || shard->mtime_ns != file->identity.mtime_ns ||
            strcmp(index->text + shard->name, slash ? slash + 1 : file->path) != 0)
            return false;
    }
    return true;
}

/* Is what was scanned unchanged? */
static bool index_current(const struct index *index, int root, const struct index_source *source) {
    const struct index_header *h = &index->header;
    if (memcmp(h->key, source->key, sizeof h->key) != 0)
        return false;
    if (h->words != source->words)
        return false;
    if (source->shards)
        return shards_current(index, source->shards);
    if (source->list)
        return h->list_bytes == source->list->size && h->list_inode == source->list->inode &&
               h->list_mtime_ns == source->list->mtime_ns;
    for (uint64_t i = 0; i < h->directories; i++) {
        const char *name = index->text + index->directory[i].name;
        struct stat status;
        int rc = *name ? fstatat(root, name, &status, 0) : fstat(root, &status);
        if (rc < 0 || !S_ISDIR(status.st_mode) || dataset_mtime(&status) != index->directory[i].mtime_ns)
            return false;
    }
    return h->directories > 0;
}

static bool owner_trusted(const struct stat *status, const struct index_source *source) {
    return (status->st_uid == geteuid() || status->st_uid == 0 || status->st_uid == source->owner) &&
           !(status->st_mode & S_IWOTH);
}

/* Maps and checks the index at `path`. -ENOENT: none, or none for this version; -ESTALE: of another state of the data;
 * otherwise a sentence says why it was not believed. */
static int index_load(struct dataset *dataset, const char *path, const struct index_source *source, struct diag *diag) {
    cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return errno == ENOENT || errno == ENOTDIR || errno == ENAMETOOLONG
                   ? -ENOENT
                   : diag_set(diag, -errno, "cannot be opened: %s", strerror(errno));
    struct stat status;
    if (fstat(fd, &status) < 0 || !S_ISREG(status.st_mode))
        return diag_set(diag, -EINVAL, "not a regular file");
    if (!owner_trusted(&status, source))
        return diag_set(diag, -EPERM, "owned by uid %u or writable by everybody: not believed", status.st_uid);
    size_t length = (size_t)status.st_size;
    if (length < sizeof(struct index_header))
        return diag_set(diag, -EINVAL, "%zu bytes are too few for an index", length);
    void *map = mmap(NULL, length, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        return diag_set(diag, -errno, "cannot be mapped: %s", strerror(errno));
    struct index index;
    int rc = index_parse(map, length, &index, diag);
    if (rc == 0 && !index_current(&index, dataset->root, source))
        rc = -ESTALE;
    if (rc < 0) {
        munmap(map, length);
        return rc;
    }
    dataset->index = index;
    dataset->index_map = map;
    dataset->index_map_bytes = length;
    return 0;
}

/* ---- keeping --------------------------------------------------------------------------------------------------- */

static int write_all(int fd, const void *bytes, uint64_t length) {
    const char *p = bytes;
    while (length) {
        ssize_t n = write(fd, p, MIN(length, UINT64_C(1) << 30));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        p += n;
        length -= (uint64_t)n;
    }
    return 0;
}

static int write_index(int fd, struct index *index) {
    struct section section[SECTIONS];
    index_sections(index, section);
    uint32_t crc = 0;
    for (int i = 0; i < SECTIONS; i++)
        crc = crc32c(crc, section[i].bytes, section[i].length);
    index->header.content_crc = crc;
    index->header.header_crc = header_crc(&index->header);
    int rc = write_all(fd, &index->header, sizeof index->header);
    for (int i = 0; i < SECTIONS && rc == 0; i++)
        rc = write_all(fd, section[i].bytes, section[i].length);
    return rc < 0 ? rc : fsync(fd) < 0 ? -errno : 0;
}

/* Writes under a name of its own, then renames: a reader sees the old index or the new one, and of two writers the last
 * wins. */
static int index_save(struct index *index, const char *path) {
    cleanup_free char *temporary = NULL;
    if (asprintf(&temporary, "%s.%ld-%llx.tmp", path, (long)getpid(), (unsigned long long)now_ns()) < 0) {
        temporary = NULL;
        return -ENOMEM;
    }
    cleanup_close int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd < 0)
        return -errno;
    int rc = write_index(fd, index);
    if (rc == 0 && rename(temporary, path) < 0)
        rc = -errno;
    if (rc < 0)
        unlink(temporary);
    return rc;
}

/* ---- places ---------------------------------------------------------------------------------------------------- */

#define PLACES 2
struct places {
    char *path[PLACES];
    char *cache; /* directory to be made before path[1] can be written */
    bool always; /* the caller named the place: keep any index */
};

static void places_deinit(struct places *places) {
    for (int i = 0; i < PLACES; i++)
        free(places->path[i]);
    free(places->cache);
}

static char *format_text(const char *format, ...) __attribute__((format(printf, 1, 2)));
static char *format_text(const char *format, ...) {
    char *text;
    va_list args;
    va_start(args, format);
    int n = vasprintf(&text, format, args);
    va_end(args);
    return n < 0 ? NULL : text;
}

static char *cache_directory(void) {
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (xdg && *xdg == '/')
        return format_text("%s/loaderd", xdg);
    return home && *home == '/' ? format_text("%s/.cache/loaderd", home) : NULL;
}

static uint64_t place_hash(const struct index_source *source) {
    struct hash hash;
    uint8_t bytes[16];
    uint64_t value = 0;
    hash_begin(&hash, "place");
    hash_string(&hash, source->place);
    if (source->own_name)
        hash_bytes(&hash, source->key, sizeof source->key);
    hash_end(&hash, bytes);
    for (int i = 0; i < 8; i++)
        value = value << 8 | bytes[i];
    return value;
}

/* Where an index may lie, the preferred place first. A missing place is NULL. */
static void places_init(struct places *ret, const struct dataset_options *options, const struct index_source *source) {
    *ret = (struct places){.always = false};
    const char *wish = options->index;
    if (wish && *wish && strcmp(wish, "auto") != 0) {
        if (strcmp(wish, "none") != 0)
            ret->path[0] = strdup(wish);
        ret->always = true;
        return;
    }
    const char *slash = source->place ? strrchr(source->place, '/') : NULL;
    if (!slash || slash[1] == '\0')
        return;
    char own[16] = "";
    if (source->own_name)
        snprintf(own, sizeof own, ".%02x%02x%02x%02x", source->key[0], source->key[1], source->key[2], source->key[3]);
    ret->path[0] =
        format_text("%.*s.%s%s.loaderd-index", (int)(slash + 1 - source->place), source->place, slash + 1, own);
    ret->cache = cache_directory();
    if (ret->cache)
        ret->path[1] =
            format_text("%s/%016llx-%.100s.index", ret->cache, (unsigned long long)place_hash(source), slash + 1);
}

static void make_directories(const char *path) {
    cleanup_free char *copy = strdup(path);
    if (!copy)
        return;
    for (char *p = copy + 1; *p; p++)
        if (*p == '/') {
            *p = '\0';
            mkdir(copy, 0700);
            *p = '/';
        }
    mkdir(copy, 0700); /* what went wrong shows when the file is made */
}

/* ---- reading or scanning --------------------------------------------------------------------------------------- */

static int load_any(struct dataset *dataset, const struct places *places, const struct index_source *source) {
    for (int i = 0; i < PLACES; i++) {
        struct diag why = DIAG_INIT;
        if (!places->path[i])
            continue;
        int rc = index_load(dataset, places->path[i], source, &why);
        if (rc == 0)
            return dataset_set_note(dataset, "read from %s", places->path[i]);
        if (rc != -ENOENT && rc != -ESTALE)
            rc = dataset_add_remark(dataset, "index %s: %s; not used", places->path[i], why.text);
        if (rc == -ENOMEM)
            return rc;
    }
    return -ENOENT;
}

/* Keeps the scan in the first place that takes it, and goes on with the mapped file instead of our memory. */
static int keep(struct dataset *dataset, const struct places *places, const struct index_source *source,
                double seconds) {
    cleanup_free char *failures = strdup("");
    for (int i = 0; i < PLACES; i++) {
        const char *path = places->path[i];
        if (!path)
            continue;
        if (i == 1)
            make_directories(places->cache);
        int rc = index_save(&dataset->index, path);
        if (rc < 0) {
            char *more = format_text("%s%s%s: %s", failures ? failures : "", failures && *failures ? "; " : "", path,
                                     strerror(-rc));
            free(failures);
            failures = more;
            continue;
        }
        struct diag why = DIAG_INIT;
        rc = index_load(dataset, path, source, &why);
        if (rc == -ESTALE && places->always)
            return dataset_add_remark(dataset,
                                      "index %s lies inside the folder that it describes, so that writing it "
                                      "makes it invalid: move it elsewhere",
                                      path);
        if (rc == 0)
            builder_deinit(&dataset->built);
        return dataset_set_note(dataset, "scanned in %.2f s, kept in %s", seconds, path);
    }
    if (!failures || !*failures)
        return 0;
    return dataset_add_remark(dataset, "the index could not be kept, each start scans again: %s", failures);
}

static int scan(struct dataset *dataset, const struct dataset_options *options, const struct places *places,
                const struct index_source *source, struct diag *diag) {
    struct index_builder *builder = &dataset->built;
    builder_init(builder, options);
    int rc = source->scan(source->arg, builder, diag);
    if (rc < 0)
        return rc;
    index_of_builder(builder, source, &dataset->index);
    uint64_t took = now_ns() - builder->started;
    double seconds = (double)took / 1e9;
    rc = dataset_set_note(dataset, "scanned in %.2f s%s", seconds,
                          builder->racy ? ", not kept: the data changed a moment ago" : "");
    bool worth = places->always || dataset->index.header.samples >= KEEP_SAMPLES || took >= KEEP_NS;
    if (rc == 0 && worth && !builder->racy)
        rc = keep(dataset, places, source, seconds);
    return rc;
}

/* Points the dataset's tables into its index. */
static int adopt(struct dataset *dataset) {
    const struct index *index = &dataset->index;
    size_t classes = (size_t)index->header.classes;
    dataset->samples = index->header.samples;
    memcpy(dataset->fingerprint, index->header.fingerprint, sizeof dataset->fingerprint);
    dataset->class_name = calloc(classes + 1, sizeof *dataset->class_name);
    dataset->class_samples = calloc(classes + 1, sizeof *dataset->class_samples);
    if (!dataset->class_name || !dataset->class_samples)
        return -ENOMEM;
    for (size_t i = 0; i < classes; i++) {
        dataset->class_name[i] = index->text + index->class[i].name;
        dataset->class_samples[i] = index->class[i].samples;
    }
    dataset->classes = (uint32_t)classes;
    for (uint64_t i = 0; i < index->header.remarks; i++)
        if (dataset_add_remark(dataset, "%s", index->text + index->remark[i]) < 0)
            return -ENOMEM;
    if (!index->header.words)
        dataset_set_picture_fields(dataset, index->label != NULL);
    return 0;
}

int index_obtain(struct dataset *dataset, const struct dataset_options *options, const struct index_source *source,
                 struct diag *diag) {
    struct places places;
    places_init(&places, options, source);
    int rc = load_any(dataset, &places, source);
    if (rc == -ENOENT)
        rc = scan(dataset, options, &places, source, diag);
    if (rc == 0)
        rc = adopt(dataset);
    places_deinit(&places);
    return rc;
}

int index_add_second_name(struct index_builder *builder, const char *name, size_t length) {
    return buffer_append(&builder->names, name, length) < 0 || buffer_append(&builder->names, "", 1) < 0 ? -ENOMEM : 0;
}

const char *index_second_name(const struct index *index, uint64_t sample) {
    const char *name = index_sample_name(index, sample);
    return name + strlen(name) + 1;
}

void index_locate(const struct dataset *dataset, uint64_t sample, struct location *ret) {
    const struct index *index = &dataset->index;
    ret->extents = 1;
    ret->extent[0] = (struct extent){
        .path = index_sample_name(index, sample),
        .dirfd = dataset->root,
        .length = EXTENT_WHOLE_FILE,
    };
    if (index->label)
        ret->value[1] = index_label(index, sample);
}

int index_name(const struct dataset *dataset, uint64_t sample, char *buffer, size_t size) {
    const char *name = index_sample_name(&dataset->index, sample), *root = dataset->root_path;
    if (*name == '/' || *root == '\0')
        return snprintf(buffer, size, "%s", name);
    return snprintf(buffer, size, "%s%s%s", root, root[strlen(root) - 1] == '/' ? "" : "/", name);
}

void index_release(struct dataset *dataset) {
    builder_deinit(&dataset->built);
    if (dataset->index_map)
        munmap(dataset->index_map, dataset->index_map_bytes);
    dataset->index_map = NULL;
}
