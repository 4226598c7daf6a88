/* SPDX-License-Identifier: MIT */
/*
 * The part of reading that all engines share: tags, buffers, the judgement of results, identity of source files, error
 * sentences, the test seam. It never reads a byte of a file itself. Threading: a reader belongs to one thread.
 *
 * Buffers lie in one reserved range of addresses, max_bytes for each tag, made accessible in steps as larger samples
 * come; a buffer therefore grows without moving.
 */
#include "read/read.h"

#include <assert.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

#include "read/engine.h"

/* Of a buffer beyond max_bytes: room to see that a file has ended, and for what an aligned read brings besides. */
#define SLACK (2u * SOURCE_ALIGN_MOST)

/* ---- names and sentences ---- */

const char *read_engine_name(enum read_engine engine) {
    static const char *const names[] = {"auto", "uring", "mmap", "pread"};
    return (unsigned)engine < ARRAY_SIZE(names) ? names[engine] : "unknown";
}

/* The file's path as a person would type it: a relative one gets its directory in front, where that can be found. */
static const char *slot_name(const struct slot *slot, char *name, size_t size) {
    const struct extent *extent = &slot->request.extent;
    const char *path = slot_path(slot);
    char link[64], directory[256];
    if (!extent->file && path[0] != '/' && extent->dirfd >= 0) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", extent->dirfd);
        ssize_t n = readlink(link, directory, sizeof directory - 1);
        if (n > 0 && n < (ssize_t)sizeof directory - 1) {
            directory[n] = '\0';
            snprintf(name, size, "%s/%s", directory, path);
            return name;
        }
    }
    snprintf(name, size, "%s", path);
    return name;
}

/* Every sentence of a request: path, where in the file, then what happened. */
static int slot_say(const struct slot *slot, struct diag *diag, int code, const char *what) {
    char name[320], where[80] = "";
    const struct extent *extent = &slot->request.extent;
    if (extent->length != EXTENT_WHOLE_FILE)
        snprintf(where, sizeof where, " at offset %" PRIu64 " (%" PRIu64 " bytes)", extent->offset, extent->length);
    return diag_set(diag, code, "%s%s: %s", slot_name(slot, name, sizeof name), where, what);
}

void slot_finish(struct reader *reader, struct slot *slot) {
    assert(slot->state == SLOT_BUSY);
    slot->state = SLOT_FINISHED;
    queue_push(&reader->finished, slot->request.tag);
}

enum step slot_fail(struct reader *reader, struct slot *slot, int code, const char *format, ...) {
    char what[256];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    slot->error = slot_say(slot, &slot->diag, code, what);
    slot_finish(reader, slot);
    return STEP_OVER;
}

static enum step fail_shrank(struct reader *reader, struct slot *slot, uint64_t found) {
    return slot_fail(reader, slot, -ESTALE, "file shrank: wanted %" PRIu64 " bytes, found %" PRIu64, slot->wanted,
                     found);
}

static enum step fail_long(struct reader *reader, struct slot *slot, uint64_t length) {
    return slot_fail(reader, slot, -EFBIG,
                     "%" PRIu64 " bytes are more than max-sample-bytes=%" PRIu64 " allows; raise max-sample-bytes",
                     length, reader->options.max_bytes);
}

/* ---- identity ---- */

static int identify(int dirfd, const char *path, struct file_identity *ret, mode_t *ret_mode) {
    struct statx st;
    int flags = AT_STATX_DONT_SYNC | (*path ? 0 : AT_EMPTY_PATH); /* never waits for a file server */
    if (statx(dirfd, path, flags, STATX_TYPE | STATX_INO | STATX_SIZE | STATX_MTIME, &st) < 0)
        return -errno;
    *ret = (struct file_identity){
        .device = makedev(st.stx_dev_major, st.stx_dev_minor),
        .inode = st.stx_ino,
        .size = st.stx_size,
        .mtime_ns = st.stx_mtime.tv_sec * INT64_C(1000000000) + st.stx_mtime.tv_nsec,
    };
    *ret_mode = st.stx_mode;
    return 0;
}

int read_identify(const struct extent *extent, struct file_identity *ret, int64_t *ret_ctime_ns) {
    struct statx st;
    const struct source_file *file = extent->file;
    int flags = AT_STATX_DONT_SYNC | (file ? AT_EMPTY_PATH : 0);
    if (statx(file ? file->fd : extent->dirfd, file ? "" : extent->path, flags,
              STATX_TYPE | STATX_INO | STATX_SIZE | STATX_MTIME | STATX_CTIME, &st) < 0)
        return -errno;
    if (!S_ISREG(st.stx_mode))
        return -EINVAL;
    *ret = (struct file_identity){
        .device = makedev(st.stx_dev_major, st.stx_dev_minor),
        .inode = st.stx_ino,
        .size = st.stx_size,
        .mtime_ns = st.stx_mtime.tv_sec * INT64_C(1000000000) + st.stx_mtime.tv_nsec,
    };
    *ret_ctime_ns = st.stx_ctime.tv_sec * INT64_C(1000000000) + st.stx_ctime.tv_nsec;
    return 0;
}

/* What differs, in words; NULL where nothing does. */
static const char *difference(const struct file_identity *was, const struct file_identity *is, char *text,
                              size_t size) {
    if (was->device != is->device || was->inode != is->inode)
        snprintf(text, size, "file was replaced by another one since it was opened; open the dataset again");
    else if (was->size != is->size)
        snprintf(text, size,
                 "file changed since it was opened: size wanted %" PRIu64 " bytes, found %" PRIu64
                 "; open the dataset again",
                 was->size, is->size);
    else if (was->mtime_ns != is->mtime_ns)
        snprintf(text, size,
                 "file was written to since it was opened (its modification time differs); open the "
                 "dataset again");
    else
        return NULL;
    return text;
}

int slot_check_identity(const struct slot *slot, struct diag *diag) {
    const struct extent *extent = &slot->request.extent;
    struct file_identity now;
    mode_t mode;
    char text[200];
    if (!extent->file && !slot->mapped)
        return 0; /* opened a moment ago, and the bytes are the reader's */
    int r = identify(slot_fd(slot), "", &now, &mode);
    if (r < 0)
        return slot_say(slot, diag, r, strerrordesc_np(-r));
    if (now.size < extent->offset + slot->wanted) {
        uint64_t found = now.size > extent->offset ? now.size - extent->offset : 0;
        snprintf(text, sizeof text, "file shrank: wanted %" PRIu64 " bytes, found %" PRIu64, slot->wanted, found);
        return slot_say(slot, diag, -ESTALE, text);
    }
    const char *what = difference(extent->file ? &extent->file->identity : &slot->identity, &now, text, sizeof text);
    return what ? slot_say(slot, diag, -ESTALE, what) : 0;
}

int read_check_file(const struct source_file *file, struct diag *diag) {
    struct file_identity now;
    mode_t mode;
    char text[200];
    int r = identify(AT_FDCWD, file->path, &now, &mode);
    if (r < 0)
        return diag_set(diag, r, "%s: cannot look at it again: %s", file->path, strerrordesc_np(-r));
    const char *what = difference(&file->identity, &now, text, sizeof text);
    return what ? diag_set(diag, -ESTALE, "%s: %s", file->path, what) : 0;
}

bool read_is_remote(int fd, const char **ret_name) {
    static const struct {
        unsigned long type; /* statfs(2), linux/magic.h */
        const char *name;
    } remote[] = {
        {0x6969, "NFS"},        {0xff534d42, "CIFS"},     {0xfe534d42, "SMB2"},   {0x517b, "SMB"},
        {0x65735546, "FUSE"},   {0x0bd00bd0, "Lustre"},   {0x00c36400, "CephFS"}, {0x01021997, "9p"},
        {0x5346414f, "AFS"},    {0x6b414653, "AFS"},      {0x73757245, "Coda"},   {0x47504653, "GPFS"},
        {0x19830326, "BeeGFS"}, {0x7461636f, "OCFS2"},    {0x01161970, "GFS2"},   {0x786f4256, "VirtualBox folder"},
        {0xaad7aaea, "PanFS"},  {0x20030528, "OrangeFS"},
    };
    struct statfs st;
    if (fstatfs(fd, &st) < 0)
        return false;
    for (size_t i = 0; i < ARRAY_SIZE(remote); i++) {
        if (((unsigned long)st.f_type & 0xffffffffu) == remote[i].type) {
            if (ret_name)
                *ret_name = remote[i].name;
            return true;
        }
    }
    return false;
}

/* ---- test seam ---- */

static unsigned env_number(const char *name) {
    const char *text = getenv(name);
    return text ? (unsigned)strtoul(text, NULL, 10) : 0;
}

static void faults_read(struct read_faults *faults) {
    faults->max_bytes = env_number("LOADERD_TEST_READ_MAX");
    faults->eagain_every = env_number("LOADERD_TEST_READ_EAGAIN");
    faults->eintr_every = env_number("LOADERD_TEST_READ_EINTR");
    faults->estale_first = env_number("LOADERD_TEST_READ_ESTALE");
    faults->eagain_forever = getenv("LOADERD_TEST_READ_EAGAIN_FOREVER") != NULL;
    const char *path = getenv("LOADERD_TEST_READ_EIO");
    if (path)
        snprintf(faults->eio_path, sizeof faults->eio_path, "%s", path);
}

int64_t read_fault(struct reader *reader, const struct slot *slot, int64_t result) {
    struct read_faults *faults = &reader->faults;
    faults->results++;
    if (faults->eagain_forever || (faults->eagain_every && faults->results % faults->eagain_every == 0))
        return -EAGAIN;
    if (faults->eintr_every && reader->options.engine != READ_URING && faults->results % faults->eintr_every == 0)
        return -EINTR;
    if (faults->results <= faults->estale_first)
        return -ESTALE;
    if (faults->eio_path[0] && strstr(slot_path(slot), faults->eio_path))
        return -EIO;
    return result;
}

/* ---- slots ---- */

int slot_dirfd(const struct slot *slot) {
    return slot->request.extent.file ? AT_FDCWD : slot->request.extent.dirfd;
}

const char *slot_path(const struct slot *slot) {
    const struct extent *extent = &slot->request.extent;
    const char *path = extent->file ? extent->file->path : extent->path;
    return path ? path : "(unnamed file)";
}

uint64_t slot_piece(const struct reader *reader, const struct slot *slot) {
    uint64_t piece = MIN(slot->wanted - slot->done, READ_PIECE);
    return reader->faults.max_bytes ? MIN(piece, reader->faults.max_bytes) : piece;
}

int slot_reserve(struct reader *reader, struct slot *slot, uint64_t bytes) {
    if (bytes <= slot->capacity)
        return 0;
    uint64_t grown = MIN(align_up(MAX(bytes, 2 * (uint64_t)slot->capacity), 4096), (uint64_t)reader->stride);
    assert(bytes <= grown);
    if (mprotect(slot->buffer, grown, PROT_READ | PROT_WRITE) < 0)
        return -ENOMEM;
    slot->capacity = grown;
    return 0;
}

/* Where the bytes of a request whose length is known will go. */
static int choose_target(struct reader *reader, struct slot *slot) {
    slot->target = slot->request.into ? slot->request.into : slot->buffer;
    if (slot->request.into)
        return 0;
    return slot_reserve(reader, slot, slot->wanted + SLACK);
}

enum step slot_start(struct reader *reader, struct slot *slot) {
    const struct extent *extent = &slot->request.extent;
    uint64_t end;
    slot->wanted = extent->length;
    if (extent->length == EXTENT_WHOLE_FILE && (extent->file || slot->request.into))
        return slot_fail(reader, slot, -EINVAL,
                         "only a file read by its path into the reader's memory may be asked "
                         "for as a whole");
    if (extent->length != EXTENT_WHOLE_FILE) {
        if (!add_u64(extent->offset, extent->length, &end) || end > INT64_MAX)
            return slot_fail(reader, slot, -EINVAL, "no file is as long as that");
        if (extent->length > reader->options.max_bytes)
            return fail_long(reader, slot, extent->length);
        if (choose_target(reader, slot) < 0)
            return slot_fail(reader, slot, -ENOMEM, "no memory for %" PRIu64 " bytes", slot->wanted);
    }
    if (!extent->file)
        return STEP_OPEN;
    return slot->wanted == 0 ? slot_complete(reader, slot) : STEP_READ;
}

/* A failure that may pass: back off, unless that was tried too often. True: again. */
static bool try_again(struct reader *reader, struct slot *slot, int code) {
    unsigned most = READ_TRIES;
    switch (-code) {
    case EIO:
        most = READ_TRIES_EIO;
        break;
    case EAGAIN:
    case EINTR:
    case EBUSY:
    case ENOMEM:
    case EMFILE:
    case ENFILE:
    case ECANCELED:
        break;
    default:
        return false;
    }
    if (++slot->tries >= most)
        return false;
    reader->counters.retries++;
    slot->delay_ns = slot->tries == 1 && code != -EIO ? 0 : MIN(UINT64_C(50000) << slot->tries, UINT64_C(20000000));
    return true;
}

/* A file server forgot the file: opened once more, it may be there. */
static bool may_reopen(struct reader *reader, struct slot *slot, int code) {
    if (code != -ESTALE || slot->reopened)
        return false;
    reader->counters.retries++;
    slot->reopened = true;
    slot->done = 0;
    return true;
}

static enum step fail_open(struct reader *reader, struct slot *slot, int code) {
    char target[128];
    ssize_t n;
    switch (-code) {
    case ENOENT:
        n = readlinkat(slot_dirfd(slot), slot_path(slot), target, sizeof target - 1);
        if (n > 0) {
            target[n] = '\0';
            return slot_fail(reader, slot, code, "symbolic link to %s, which does not exist", target);
        }
        return slot_fail(reader, slot, code, "no such file");
    case EACCES:
    case EPERM:
        return slot_fail(reader, slot, code, "user %u may not read it; change its permissions", (unsigned)geteuid());
    case EMFILE:
        return slot_fail(reader, slot, code, "too many files are open in this process; raise its limit (ulimit -n)");
    default:
        if (slot->tries > 1)
            return slot_fail(reader, slot, code, "cannot open: %s (%u tries)", strerrordesc_np(-code), slot->tries);
        return slot_fail(reader, slot, code, "cannot open: %s", strerrordesc_np(-code));
    }
}

/* A file opened by path: of the right kind, and now its length is known. */
static enum step judge_path_file(struct reader *reader, struct slot *slot) {
    const struct extent *extent = &slot->request.extent;
    mode_t mode;
    int r = identify(slot->fd, "", &slot->identity, &mode);
    if (r < 0)
        return slot_fail(reader, slot, r, "cannot look at it: %s", strerrordesc_np(-r));
    if (S_ISDIR(mode))
        return slot_fail(reader, slot, -EISDIR, "is a directory, not a file");
    if (!S_ISREG(mode))
        return slot_fail(reader, slot, -EINVAL, "is not a regular file");
    uint64_t size = slot->identity.size;
    if (extent->length != EXTENT_WHOLE_FILE) {
        if (size < extent->offset + extent->length)
            return fail_shrank(reader, slot, size > extent->offset ? size - extent->offset : 0);
    } else {
        if (size < extent->offset)
            return slot_fail(reader, slot, -ESTALE, "file shrank: wanted more than %" PRIu64 " bytes, found %" PRIu64,
                             extent->offset, size);
        slot->wanted = size - extent->offset;
        if (slot->wanted > reader->options.max_bytes)
            return fail_long(reader, slot, slot->wanted);
        if (choose_target(reader, slot) < 0)
            return slot_fail(reader, slot, -ENOMEM, "no memory for %" PRIu64 " bytes", slot->wanted);
    }
    return slot->wanted == 0 ? slot_complete(reader, slot) : STEP_READ;
}

enum step slot_after_open(struct reader *reader, struct slot *slot, int result) {
    slot->delay_ns = 0;
    if (result >= 0) {
        slot->fd = result;
        slot->tries = 0;
        if (!slot->request.extent.file)
            return judge_path_file(reader, slot);
        slot->error = slot_check_identity(slot, &slot->diag);
        if (!slot->error)
            return STEP_READ;
        slot_finish(reader, slot);
        return STEP_OVER;
    }
    if (try_again(reader, slot, result) || may_reopen(reader, slot, result))
        return STEP_OPEN;
    return fail_open(reader, slot, result);
}

enum step slot_after_read(struct reader *reader, struct slot *slot, int64_t result) {
    slot->delay_ns = 0;
    result = read_fault(reader, slot, result);
    if (result > 0) {
        slot->done += (uint64_t)result;
        slot->tries = 0;
        assert(slot->done <= slot->wanted);
        return slot->done < slot->wanted ? STEP_READ : slot_complete(reader, slot);
    }
    if (result == 0)
        return fail_shrank(reader, slot, slot->done);
    int code = (int)result;
    if (try_again(reader, slot, code))
        return STEP_READ;
    if (may_reopen(reader, slot, code))
        return STEP_OPEN;
    return slot_fail(reader, slot, code, "reading failed after %" PRIu64 " bytes and %u tries: %s", slot->done,
                     MAX(slot->tries, 1u), strerrordesc_np(-code));
}

enum step slot_complete(struct reader *reader, struct slot *slot) {
    slot->error = slot_check_identity(slot, &slot->diag);
    if (!slot->bytes)
        slot->bytes = slot->target;
    slot_finish(reader, slot);
    return STEP_OVER;
}

void read_sleep(uint64_t ns) {
    struct timespec t = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    if (ns)
        nanosleep(&t, NULL);
}

bool slot_use_source(struct source_table *table, struct slot *slot) {
    slot->source = source_find(table, slot->request.extent.file);
    if (slot->source)
        slot->source->users++;
    return slot->source != NULL;
}

bool slot_map_source(struct source_table *table, struct slot *slot) {
    const struct extent *extent = &slot->request.extent;
    if (!slot->source && !slot_use_source(table, slot))
        return false;
    if (source_map(slot->source) && extent->offset + extent->length <= slot->source->identity.size)
        return true;
    slot_leave_source(slot);
    return false;
}

void queue_push(struct tag_queue *queue, uint32_t tag) {
    assert(queue->count < queue->size);
    queue->tags[(queue->head + queue->count++) % queue->size] = tag;
}

uint32_t queue_pop(struct tag_queue *queue) {
    assert(queue->count);
    uint32_t tag = queue->tags[queue->head];
    queue->head = (queue->head + 1) % queue->size;
    queue->count--;
    return tag;
}

/* ---- the interface ---- */

enum read_engine read_choose(enum read_engine wanted, struct diag *why) {
    struct diag reason = DIAG_INIT;
    if (wanted == READ_PREAD || wanted == READ_MMAP) {
        diag_set(why, 0, "%s, as asked for", read_engine_name(wanted));
        return wanted;
    }
    if (uring_probe(&reason) < 0) {
        diag_set(why, 0, "%s; using pread", reason.text);
        return READ_PREAD;
    }
    diag_set(why, 0, "%s", wanted == READ_URING ? "uring, as asked for" : "io_uring works here; using uring");
    return READ_URING;
}

static int queue_init(struct tag_queue *queue, unsigned size) {
    queue->size = size;
    queue->tags = calloc(size, sizeof *queue->tags);
    return queue->tags ? 0 : -ENOMEM;
}

static int reader_memory(struct reader *reader) {
    unsigned depth = reader->options.depth;
    uint64_t bytes;
    reader->stride = align_up(reader->options.max_bytes + SLACK, 4096);
    reader->slots = calloc(depth, sizeof *reader->slots);
    if (!reader->slots || queue_init(&reader->finished, depth) < 0 || queue_init(&reader->pending, depth) < 0 ||
        !mul_u64(reader->stride, depth, &bytes))
        return -ENOMEM;
    void *arena = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (arena == MAP_FAILED)
        return -ENOMEM;
    reader->arena = arena;
    reader->arena_bytes = bytes;
    for (unsigned i = 0; i < depth; i++) {
        reader->slots[i].fd = -1;
        reader->slots[i].buffer = reader->arena + i * reader->stride;
        if (slot_reserve(reader, &reader->slots[i], MIN(reader->stride, READ_FIRST_BUFFER)) < 0)
            return -ENOMEM;
    }
    return 0;
}

int reader_new(const struct read_options *options, struct reader **ret, struct diag *diag) {
    static const struct engine *const engines[] = {
        [READ_URING] = &engine_uring, [READ_MMAP] = &engine_mmap, [READ_PREAD] = &engine_pread};
    if (options->engine < READ_URING || options->engine > READ_PREAD)
        return diag_set(diag, -EINVAL, "read engine %d is none of uring, mmap, pread", (int)options->engine);
    if (options->depth < 1 || options->depth > READ_MOST_DEPTH)
        return diag_set(diag, -EINVAL, "read depth %u is outside 1..%u", options->depth, READ_MOST_DEPTH);
    if (options->max_bytes < 1 || options->max_bytes > (UINT64_C(1) << 40))
        return diag_set(diag, -EINVAL, "max-sample-bytes %" PRIu64 " is outside 1..2^40", options->max_bytes);
    struct reader *reader = calloc(1, sizeof *reader);
    if (!reader)
        return diag_set(diag, -ENOMEM, "no memory for a reader");
    reader->options = *options;
    faults_read(&reader->faults);
    int r = reader_memory(reader);
    if (r < 0)
        diag_set(diag, r, "no address space for %u reads of max-sample-bytes=%" PRIu64 " each; lower one of them",
                 options->depth, options->max_bytes);
    if (r == 0) {
        reader->engine = engines[options->engine];
        r = reader->engine->open(reader, diag);
    }
    if (r < 0) {
        reader_free(reader);
        return r;
    }
    *ret = reader;
    return 0;
}

void reader_free(struct reader *reader) {
    if (!reader)
        return;
    struct read_result result;
    if (reader->engine) {
        while (reader->in_flight)
            reader_reap(reader, UINT64_C(1000000000), &result);
        for (unsigned i = 0; reader->engine->release && i < reader->options.depth; i++)
            if (reader->slots[i].state != SLOT_FREE)
                reader->engine->release(reader, &reader->slots[i]);
        reader->engine->close(reader);
    }
    mapped_leave(reader);
    if (reader->arena)
        munmap(reader->arena, reader->arena_bytes);
    free(reader->pending.tags);
    free(reader->finished.tags);
    free(reader->slots);
    free(reader);
}

void reader_submit(struct reader *reader, const struct read_request *request) {
    assert(request->tag < reader->options.depth);
    struct slot *slot = &reader->slots[request->tag];
    assert(slot->state == SLOT_FREE);
    slot->request = *request;
    slot->state = SLOT_BUSY;
    slot->reopened = slot->mapped = slot->faulted = false;
    slot->tries = 0;
    slot->done = 0;
    slot->error = 0;
    slot->bytes = NULL;
    slot->diag.code = 0;
    slot->diag.text[0] = '\0';
    reader->in_flight++;
    reader->engine->submit(reader, slot);
}

void reader_flush(struct reader *reader) {
    reader->engine->flush(reader);
}

int reader_reap(struct reader *reader, uint64_t wait_ns, struct read_result *ret) {
    if (!reader->finished.count && reader->in_flight)
        reader->engine->advance(reader, wait_ns);
    if (!reader->finished.count)
        return 0;
    struct slot *slot = &reader->slots[queue_pop(&reader->finished)];
    slot->state = SLOT_REAPED;
    reader->in_flight--;
    reader->counters.requests++;
    *ret = (struct read_result){.tag = slot->request.tag, .error = slot->error, .diag = &slot->diag};
    if (slot->error) {
        reader->counters.errors++;
        return 1;
    }
    reader->counters.bytes += slot->wanted;
    ret->bytes = slot->bytes;
    ret->length = slot->wanted;
    return 1;
}

int reader_done(struct reader *reader, uint32_t tag, struct diag *diag) {
    assert(tag < reader->options.depth);
    struct slot *slot = &reader->slots[tag];
    assert(slot->state == SLOT_REAPED);
    int r = 0;
    if (slot->mapped && !slot->error) {
        r = slot_check_identity(slot, diag);
        if (!r && slot->faulted)
            r = slot_say(slot, diag, -EIO, "a mapped page could not be read");
        reader->counters.errors += r < 0;
    }
    if (reader->engine->release)
        reader->engine->release(reader, slot);
    slot->state = SLOT_FREE;
    return r;
}

unsigned reader_in_flight(const struct reader *reader) {
    return reader->in_flight;
}

int reader_guard(struct reader *reader, uint32_t tag, int (*f)(void *arg), void *arg) {
    assert(tag < reader->options.depth);
    struct slot *slot = &reader->slots[tag];
    return slot->mapped ? mapped_guard(slot, f, arg) : f(arg);
}

/* ---- bytes in place ---- */

/* The test seam makes results of reads, which these are not. */
static bool has_faults(const struct read_faults *faults) {
    return faults->max_bytes || faults->eagain_every || faults->eintr_every || faults->estale_first ||
           faults->eagain_forever || faults->eio_path[0];
}

const uint8_t *reader_view(struct reader *reader, const struct extent *extent) {
    struct source_table *table = reader->engine->table ? reader->engine->table(reader) : NULL;
    uint64_t end;
    if (!table || !extent->file || extent->length == 0 || extent->length > reader->options.max_bytes ||
        !add_u64(extent->offset, extent->length, &end) || has_faults(&reader->faults))
        return NULL;
    struct source_entry *entry = source_find(table, extent->file);
    if (!entry || end > entry->identity.size || source_look(entry, extent->offset, extent->length) != SOURCE_RESIDENT ||
        !source_map(entry))
        return NULL;
    return entry->address + extent->offset;
}

int reader_guard_view(const uint8_t *bytes, uint64_t length, int (*f)(void *arg), void *arg) {
    return mapped_guard_bytes(bytes, length, f, arg);
}

bool reader_unchanged(const struct source_file *file) {
    struct file_identity now;
    mode_t mode;
    char text[200];
    return identify(file->fd, "", &now, &mode) == 0 && !difference(&file->identity, &now, text, sizeof text);
}

void reader_viewed(struct reader *reader, uint64_t views, uint64_t bytes) {
    reader->counters.requests += views;
    reader->counters.resident += views;
    reader->counters.bytes += bytes;
}

const struct read_counters *reader_counters(const struct reader *reader) {
    return &reader->counters;
}
