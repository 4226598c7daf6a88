/* SPDX-License-Identifier: MIT */
/*
 * Reading by an io_uring of the worker's own: opens, reads and closes go on while the worker decodes. The only file
 * that knows liburing.
 *
 *     source file   read ... read
 *     cached        (cachestat) ─► copy from the file's mapping, when it is reaped: no read at all
 *     direct        read past the page cache ─► (copy, unless everything is aligned)
 *     path file     open ─► (statx, by the thread: the inode is in memory) ─► read ... read ─► close
 *     chain         open ═► read ═► read ═► close    one submission, hard links, a direct descriptor
 *
 * The chain serves whole files of local file systems. Its second read must find the end of the file; where it does not
 * (the file is longer than the buffer, a read came short, anything failed) the request starts again without a chain,
 * which then knows the file's size and has the verdict. Links are hard, because a short read cancels a soft link and
 * with it the close. The table of direct descriptors has one entry for each tag; a tag is finished when all of its chain
 * is.
 *
 * A direct read covers the extent and what alignment adds on both sides; it goes into the caller's memory where offset,
 * length and address are aligned, else into the tag's buffer. Whatever comes of it but all of the bytes (a file's end, an
 * error) is not judged: the extent is then read as usual, which has the verdict.
 *
 * No length is believed without the file's size beside it: on a FUSE file with direct_io (kernel 6.18) a read across the
 * end is reported as complete, and the bytes behind the end are zeros.
 *
 * COOP_TASKRUN: what completes is worked on whenever the thread enters the kernel, also by a timer tick while it
 * computes. DEFER_TASKRUN would stop chains while it computes. Buffers are not registered: for buffered reads that saves
 * nothing, and it would count against the limit of locked memory.
 *
 * Never blocks for storage, except in advance() for as long as it was told to, and where a page leaves the cache between
 * the look and the copy. Threading: the ring belongs to the thread
 * that made the reader.
 */
#include <assert.h>
#include <fcntl.h>
#include <inttypes.h>
#include <liburing.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>

#include "base/copy.h"
#include "read/engine.h"

#define CHAIN_TAIL 64u        /* room for the read that finds the end of the file */
#define CHAIN_MISSES 32u      /* chains that failed in a row, after which they are no longer tried */
#define SUBMIT_PAUSE 1000000u /* ns: the kernel has no memory for a submission */
#define IOWQ_BOUNDED 16u      /* kernel threads of this ring at most: reads of files that cannot wait by themselves */
#define IOWQ_UNBOUNDED 4u
#define DIRECT_LEAST (32u << 10) /* READ_DIRECT_AUTO: smaller extents gain from the kernel's read-ahead */

enum op { OP_OPEN, OP_READ, OP_DIRECT, OP_CLOSE, OP_CHAIN }; /* OP_CHAIN + n: n-th of a chain */
enum chain { CHAIN_OPEN, CHAIN_READ, CHAIN_END, CHAIN_CLOSE };

struct uring {
    struct io_uring ring;
    struct source_table *table;
    bool resident;        /* copies what is cached */
    bool chains;          /* worth trying */
    unsigned misses;      /* chains in a row that failed */
    unsigned outstanding; /* entries queued or in the kernel */
    unsigned delayed;     /* slots in back-off */
    int dirfd;            /* looked at last: */
    bool remote;          /* is on a network or FUSE file system */
};

/* ---- is it there? ---- */

static bool switched_off(const char *word) {
    const char *list = getenv("LOADERD_URING_OFF");
    size_t n = strlen(word);
    for (const char *at = list; at && *at; at = strchr(at, ','), at = at ? at + 1 : NULL)
        if (strncmp(at, word, n) == 0 && (at[n] == ',' || at[n] == '\0'))
            return true;
    return false;
}

int uring_explain(const struct uring_facts *facts, struct diag *why) {
    bool old = facts->major < 5 || (facts->major == 5 && facts->minor < 11);
    switch (-facts->code) {
    case ENOSYS:
        if (facts->seccomp && !old)
            return diag_set(why, -ENOSYS,
                            "io_uring is refused (ENOSYS) by a seccomp filter, as containers have; allow "
                            "io_uring_setup, io_uring_enter and io_uring_register in its profile");
        return diag_set(why, -ENOSYS, "this kernel (%u.%u) was built without io_uring", facts->major, facts->minor);
    case EPERM:
        if (facts->disabled == 2)
            return diag_set(why, -EPERM,
                            "io_uring is forbidden by kernel.io_uring_disabled=2; sysctl -w "
                            "kernel.io_uring_disabled=0 allows it");
        if (facts->disabled == 1)
            return diag_set(why, -EPERM,
                            "io_uring is forbidden by kernel.io_uring_disabled=1 except to the group "
                            "kernel.io_uring_group, which this process is not in");
        return diag_set(why, -EPERM,
                        "io_uring is refused (EPERM) by %s; allow io_uring_setup, io_uring_enter and "
                        "io_uring_register in its profile",
                        facts->seccomp ? "a seccomp filter, as containers have" : "a security policy");
    case ENOMEM:
        return diag_set(why, -ENOMEM,
                        "io_uring found no memory: this process may lock %" PRIu64 " KiB; raise it by "
                        "ulimit -l, LimitMEMLOCK= of the service, or CAP_IPC_LOCK",
                        facts->memlock / 1024);
    case EOPNOTSUPP:
        return diag_set(why, -EOPNOTSUPP, "the io_uring of this kernel (%u.%u) is too old (5.11 is needed)",
                        facts->major, facts->minor);
    default:
        return diag_set(why, facts->code, "io_uring cannot be set up: %s", strerrordesc_np(-facts->code));
    }
}

static int read_number(const char *path, const char *key) {
    char line[256];
    int value = -1;
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file)) {
        if (strncmp(line, key, strlen(key)) == 0) {
            value = atoi(line + strlen(key));
            break;
        }
    }
    if (file)
        fclose(file);
    return value;
}

static int explain_here(int code, struct diag *why) {
    struct utsname name;
    struct rlimit limit = {0, 0};
    struct uring_facts facts = {.code = code};
    facts.disabled = read_number("/proc/sys/kernel/io_uring_disabled", "");
    facts.seccomp = read_number("/proc/self/status", "Seccomp:") == 2;
    if (uname(&name) == 0)
        sscanf(name.release, "%u.%u", &facts.major, &facts.minor);
    getrlimit(RLIMIT_MEMLOCK, &limit);
    facts.memlock = limit.rlim_cur;
    return uring_explain(&facts, why);
}

static int ring_init(struct io_uring *ring, unsigned entries) {
    static const unsigned flags[] = {
        IORING_SETUP_CLAMP | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_COOP_TASKRUN |
            IORING_SETUP_TASKRUN_FLAG,                                              /* 6.0 */
        IORING_SETUP_CLAMP | IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG, /* 5.19 */
        IORING_SETUP_CLAMP,
    };
    size_t first = switched_off("coop-taskrun") ? 2 : switched_off("single-issuer") ? 1 : 0;
    int r = -EINVAL;
    for (size_t i = first; i < ARRAY_SIZE(flags) && r == -EINVAL; i++)
        r = io_uring_queue_init(entries, ring, flags[i]);
    if (r < 0)
        return r;
    unsigned needed = IORING_FEAT_EXT_ARG | IORING_FEAT_NODROP | IORING_FEAT_RW_CUR_POS;
    if ((ring->features & needed) == needed)
        return 0;
    io_uring_queue_exit(ring);
    return -EOPNOTSUPP;
}

int uring_probe(struct diag *why) {
    struct io_uring ring;
    int r = ring_init(&ring, 4);
    if (r < 0)
        return explain_here(r, why);
    struct io_uring_probe *probe = io_uring_get_probe_ring(&ring);
    bool able = probe && io_uring_opcode_supported(probe, IORING_OP_OPENAT) &&
                io_uring_opcode_supported(probe, IORING_OP_READ) && io_uring_opcode_supported(probe, IORING_OP_CLOSE);
    io_uring_free_probe(probe);
    io_uring_queue_exit(&ring);
    return able ? 0 : explain_here(-EOPNOTSUPP, why);
}

/* ---- submission ---- */

static void uring_flush(struct reader *reader) {
    struct uring *uring = reader->state;
    struct read_faults *faults = &reader->faults;
    while (io_uring_sq_ready(&uring->ring)) {
        int r = faults->eintr_every && ++faults->submits % faults->eintr_every == 0 ? -EINTR
                                                                                    : io_uring_submit(&uring->ring);
        if (r >= 0)
            continue;
        assert(r == -EINTR || r == -EAGAIN || r == -EBUSY || r == -ENOMEM);
        reader->counters.retries++;
        if (r == -EBUSY)
            return; /* completions have to be taken first */
        if (r != -EINTR) {
            read_sleep(SUBMIT_PAUSE);
            return; /* again at the next call */
        }
    }
}

/* Room for `count` entries that go together. */
static void make_room(struct reader *reader, unsigned count) {
    struct uring *uring = reader->state;
    while (io_uring_sq_space_left(&uring->ring) < count)
        uring_flush(reader);
}

static struct io_uring_sqe *next_entry(struct reader *reader) {
    struct uring *uring = reader->state;
    make_room(reader, 1);
    uring->outstanding++;
    return io_uring_get_sqe(&uring->ring);
}

static void name_entry(struct io_uring_sqe *sqe, unsigned op, const struct slot *slot) {
    io_uring_sqe_set_data64(sqe, (uint64_t)op << 32 | slot->request.tag);
}

static void queue_open(struct reader *reader, const struct slot *slot) {
    struct io_uring_sqe *sqe = next_entry(reader);
    io_uring_prep_openat(sqe, slot_dirfd(slot), slot_path(slot), READ_OPEN_FLAGS, 0);
    name_entry(sqe, OP_OPEN, slot);
}

static void queue_read(struct reader *reader, const struct slot *slot) {
    struct io_uring_sqe *sqe = next_entry(reader);
    io_uring_prep_read(sqe, slot_fd(slot), slot->target + slot->done, (unsigned)slot_piece(reader, slot),
                       slot_offset(slot));
    name_entry(sqe, OP_READ, slot);
}

/* Reads the aligned range around the extent, slot->skip bytes of which come first: straight into the caller's memory
 * where everything is aligned. False: it cannot be read so. */
static bool queue_direct(struct reader *reader, struct slot *slot) {
    const struct extent *extent = &slot->request.extent;
    const struct source_direct *direct = &slot->source->direct;
    uint8_t *into = slot->request.into;
    if (!source_direct(slot->source))
        return false;
    uint64_t skip = extent->offset & (direct->offset_align - 1);
    uint64_t length = align_up(skip + extent->length, direct->offset_align);
    bool aligned = into && length == extent->length && ((uintptr_t)into & (direct->memory_align - 1)) == 0;
    if (length > READ_PIECE || (!aligned && slot_reserve(reader, slot, length) < 0))
        return false;
    slot->target = aligned ? into : slot->buffer;
    slot->skip = skip;
    struct io_uring_sqe *sqe = next_entry(reader);
    io_uring_prep_read(sqe, direct->fd, slot->target, (unsigned)length, extent->offset - skip);
    name_entry(sqe, OP_DIRECT, slot);
    return true;
}

/* Closing may wait (for a file server): the kernel does it aside, unless that many wait already that completions would
 * not fit. */
static void close_own(struct reader *reader, struct slot *slot) {
    struct uring *uring = reader->state;
    if (slot->fd < 0)
        return;
    if (uring->outstanding >= 6 * reader->options.depth) {
        close(steal_fd(&slot->fd));
        return;
    }
    struct io_uring_sqe *sqe = next_entry(reader);
    io_uring_prep_close(sqe, steal_fd(&slot->fd));
    name_entry(sqe, OP_CLOSE, slot);
}

static void chain_entry(struct io_uring_sqe *sqe, unsigned flags, enum chain part, const struct slot *slot) {
    io_uring_sqe_set_flags(sqe, flags);
    name_entry(sqe, OP_CHAIN + (unsigned)part, slot);
}

static bool on_remote(struct uring *uring, int dirfd) {
    if (uring->dirfd != dirfd) {
        uring->dirfd = dirfd;
        uring->remote = read_is_remote(dirfd, NULL);
    }
    return uring->remote;
}

/* Reads at the descriptor's own position, so that the second read goes on where the first one ended. */
static void queue_chain(struct reader *reader, struct slot *slot) {
    const unsigned link = IOSQE_IO_HARDLINK;
    const struct extent *extent = &slot->request.extent;
    unsigned index = slot->request.tag;
    uint64_t bytes = MIN(slot->capacity - CHAIN_TAIL, READ_PIECE);
    make_room(reader, 4);
    slot->target = slot->buffer;
    slot->pending = 4;
    slot->asked = bytes;
    if (reader->faults.max_bytes)
        bytes = MIN(bytes, reader->faults.max_bytes); /* as if the kernel had come short of what was asked */

    struct io_uring_sqe *sqe = next_entry(reader);
    io_uring_prep_openat_direct(sqe, extent->dirfd, extent->path, READ_OPEN_FLAGS & ~O_CLOEXEC, 0, index);
    chain_entry(sqe, link, CHAIN_OPEN, slot);

    sqe = next_entry(reader);
    io_uring_prep_read(sqe, (int)index, slot->buffer, (unsigned)bytes, (uint64_t)-1);
    chain_entry(sqe, link | IOSQE_FIXED_FILE, CHAIN_READ, slot);

    sqe = next_entry(reader);
    io_uring_prep_read(sqe, (int)index, slot->buffer + bytes, CHAIN_TAIL, (uint64_t)-1);
    chain_entry(sqe, link | IOSQE_FIXED_FILE, CHAIN_END, slot);

    sqe = next_entry(reader);
    io_uring_prep_close_direct(sqe, index);
    chain_entry(sqe, 0, CHAIN_CLOSE, slot);
}

/* ---- completion ---- */

static void act(struct reader *reader, struct slot *slot, enum step step) {
    struct uring *uring = reader->state;
    if (step == STEP_OVER) {
        close_own(reader, slot);
    } else if (slot->delay_ns) {
        slot->due_ns = now_ns() + slot->delay_ns;
        slot->due_step = step;
        slot->delay_ns = 0;
        uring->delayed++;
    } else if (step == STEP_READ) {
        queue_read(reader, slot);
    } else {
        close_own(reader, slot);
        queue_open(reader, slot);
    }
}

/* A direct read is over: all of it came, or the extent is read again as usual. */
static void end_direct(struct reader *reader, struct slot *slot, int result) {
    int64_t n = read_fault(reader, slot, result);
    if (reader->faults.max_bytes)
        n = MIN(n, (int64_t)reader->faults.max_bytes);
    if (result == -EINVAL || result == -EOPNOTSUPP)
        source_not_direct(slot->source);
    slot_leave_source(slot);
    uint8_t *into = slot->request.into;
    if (n < (int64_t)(slot->skip + slot->wanted)) {
        reader->counters.retries++;
        slot->target = into ? into : slot->buffer;
        act(reader, slot, STEP_READ);
        return;
    }
    reader->counters.direct++;
    slot->bytes = slot->target + slot->skip;
    if (into && slot->target != into) {
        uint64_t begun = now_ns();
        copy_piece(into, slot->bytes, slot->wanted, slot->request.stores);
        reader->counters.copy_ns += now_ns() - begun;
        slot->bytes = into;
    }
    slot->done = slot->wanted;
    act(reader, slot, slot_complete(reader, slot));
}

/* All of a chain is there. */
static void end_chain(struct reader *reader, struct slot *slot) {
    struct uring *uring = reader->state;
    int64_t n = slot->chain[CHAIN_OPEN] < 0 ? -1 : read_fault(reader, slot, slot->chain[CHAIN_READ]);
    if (n > 0 && (uint64_t)n < slot->asked && slot->chain[CHAIN_END] == 0 && (uint64_t)n <= reader->options.max_bytes) {
        uring->misses = 0;
        slot->wanted = slot->done = (uint64_t)n;
        act(reader, slot, slot_complete(reader, slot));
        return;
    }
    bool miss = slot->chain[CHAIN_READ] < 0 && slot->chain[CHAIN_OPEN] != -ENOENT;
    if (miss && ++uring->misses >= CHAIN_MISSES)
        uring->chains = false; /* this file system does not let them */
    act(reader, slot, STEP_OPEN);
}

static void complete(struct reader *reader, uint64_t data, int result) {
    unsigned op = (unsigned)(data >> 32);
    struct slot *slot = &reader->slots[(uint32_t)data];
    if (op == OP_OPEN) {
        if (result >= 0)
            fcntl(result, F_SETFL, 0); /* O_NONBLOCK was for the open; some file systems would refuse to wait */
        act(reader, slot, slot_after_open(reader, slot, result));
    } else if (op == OP_READ) {
        act(reader, slot, slot_after_read(reader, slot, result));
    } else if (op == OP_DIRECT) {
        end_direct(reader, slot, result);
    } else if (op >= OP_CHAIN) {
        slot->chain[op - OP_CHAIN] = result;
        if (--slot->pending == 0)
            end_chain(reader, slot);
    }
}

static void collect(struct reader *reader) {
    struct uring *uring = reader->state;
    struct io_uring_cqe *cqe;
    while (uring->outstanding && io_uring_peek_cqe(&uring->ring, &cqe) == 0) {
        uint64_t data = cqe->user_data;
        int result = cqe->res;
        io_uring_cqe_seen(&uring->ring, cqe);
        uring->outstanding--;
        complete(reader, data, result);
    }
}

/* Goes on with what backed off for long enough. Returns when the next one is due, UINT64_MAX: none. */
static uint64_t restart_due(struct reader *reader) {
    struct uring *uring = reader->state;
    uint64_t next = UINT64_MAX, now = uring->delayed ? now_ns() : 0;
    for (unsigned i = 0, left = uring->delayed; left && i < reader->options.depth; i++) {
        struct slot *slot = &reader->slots[i];
        if (!slot->due_ns)
            continue;
        left--;
        if (slot->due_ns > now) {
            next = MIN(next, slot->due_ns);
            continue;
        }
        slot->due_ns = 0;
        uring->delayed--;
        act(reader, slot, slot->due_step);
    }
    return next;
}

static void wait_for_one(struct reader *reader, uint64_t ns) {
    struct uring *uring = reader->state;
    struct __kernel_timespec limit = {(int64_t)(ns / 1000000000), (long long)(ns % 1000000000)};
    struct io_uring_cqe *cqe;
    uint64_t begun = now_ns();
    if (uring->outstanding > io_uring_sq_ready(&uring->ring))
        io_uring_submit_and_wait_timeout(&uring->ring, &cqe, 1, &limit, NULL);
    else
        read_sleep(MIN(ns, SUBMIT_PAUSE));
    reader->counters.waits_ns += now_ns() - begun;
}

/* The oldest of what is cached. */
static void copy_one(struct reader *reader) {
    struct slot *slot = &reader->slots[queue_pop(&reader->pending)];
    enum step step = mapped_finish(reader, slot, slot->source->address + slot->request.extent.offset);
    slot_leave_source(slot);
    reader->counters.resident++;
    act(reader, slot, step);
}

static void uring_advance(struct reader *reader, uint64_t wait_ns) {
    uint64_t now = now_ns(), end;
    if (!add_u64(now, wait_ns, &end))
        end = UINT64_MAX;
    for (;;) {
        uint64_t due = restart_due(reader);
        uring_flush(reader);
        collect(reader);
        uring_flush(reader);
        if (!reader->finished.count && reader->pending.count)
            copy_one(reader);
        if (reader->finished.count || reader->in_flight == reader->finished.count || !wait_ns)
            return;
        now = now_ns();
        if (now >= end)
            return;
        due = MIN(due, end);
        wait_for_one(reader, due > now ? due - now : 0);
    }
}

enum way { WAY_USUAL, WAY_COPY, WAY_DIRECT };

/* How an extent of slot->source is read. Where nobody tells what is cached, a file too large for the cache is taken as
 * not cached. */
static enum way choose_way(const struct reader *reader, const struct slot *slot, bool copy) {
    const struct read_options *options = &reader->options;
    const struct extent *extent = &slot->request.extent;
    if (options->direct == READ_DIRECT_YES)
        return WAY_DIRECT;
    bool direct =
        options->direct == READ_DIRECT_AUTO && extent->length >= DIRECT_LEAST && source_bytes() > options->cache_room;
    if (!copy && !direct)
        return WAY_USUAL;
    switch (source_look(slot->source, extent->offset, extent->length)) {
    case SOURCE_RESIDENT:
        return copy ? WAY_COPY : WAY_USUAL;
    case SOURCE_UNKNOWN:
        if (!direct)
            return source_probe(extent->file->fd, extent->offset, extent->length) ? WAY_COPY : WAY_USUAL;
        break;
    case SOURCE_ABSENT:
        break;
    }
    return direct ? WAY_DIRECT : WAY_USUAL;
}

static void submit_source(struct reader *reader, struct slot *slot) {
    struct uring *uring = reader->state;
    const struct read_options *options = &reader->options;
    uint64_t length = slot->request.extent.length;
    bool copy = uring->resident && slot->request.into && length >= COPY_LEAST;
    bool direct = options->direct == READ_DIRECT_YES || (options->direct == READ_DIRECT_AUTO && length >= DIRECT_LEAST);
    if ((copy || direct) && slot_use_source(uring->table, slot)) {
        enum way way = choose_way(reader, slot, copy);
        if (way == WAY_COPY && slot_map_source(uring->table, slot)) {
            queue_push(&reader->pending, slot->request.tag);
            return;
        }
        if (way == WAY_DIRECT && queue_direct(reader, slot))
            return;
        slot_leave_source(slot);
    }
    act(reader, slot, STEP_READ);
}

static void uring_submit(struct reader *reader, struct slot *slot) {
    struct uring *uring = reader->state;
    enum step step = slot_start(reader, slot);
    const struct extent *extent = &slot->request.extent;
    if (step == STEP_OPEN && uring->chains && extent->length == EXTENT_WHOLE_FILE && extent->offset == 0 &&
        !on_remote(uring, extent->dirfd))
        queue_chain(reader, slot);
    else if (step == STEP_READ)
        submit_source(reader, slot);
    else
        act(reader, slot, step);
}

/* ---- life ---- */

static void uring_close(struct reader *reader) {
    struct uring *uring = reader->state;
    if (!uring)
        return;
    while (uring->outstanding) {
        uring_flush(reader);
        collect(reader);
        if (uring->outstanding)
            wait_for_one(reader, SUBMIT_PAUSE);
    }
    io_uring_queue_exit(&uring->ring);
    source_table_free(uring->table);
    mapped_leave(reader);
    free(uring);
}

static int uring_open(struct reader *reader, struct diag *diag) {
    unsigned depth = reader->options.depth;
    struct uring *uring = calloc(1, sizeof *uring);
    struct source_table *table = source_table_new();
    int r = uring && table ? ring_init(&uring->ring, depth * 4) : 0;
    if (!uring || !table || r < 0) {
        source_table_free(table);
        free(uring);
        return r < 0 ? explain_here(r, diag) : diag_set(diag, -ENOMEM, "no memory for a reader");
    }
    reader->state = uring;
    uring->table = table;
    uring->resident = !switched_off("resident");
    uring->dirfd = -1;
    unsigned workers[2] = {MIN(depth, IOWQ_BOUNDED), IOWQ_UNBOUNDED};
    if (!switched_off("iowq-limit"))
        io_uring_register_iowq_max_workers(&uring->ring, workers); /* since 5.15; before, the kernel's own bound */
    if (!switched_off("registered-ring"))
        io_uring_register_ring_fd(&uring->ring); /* since 5.18 */
    uring->chains = !switched_off("chain") && !switched_off("direct-descriptors") &&
                    uring->ring.features & IORING_FEAT_LINKED_FILE &&
                    io_uring_register_files_sparse(&uring->ring, depth) == 0;
    return mapped_prepare(reader, diag);
}

static struct source_table *uring_table(struct reader *reader) {
    const struct uring *uring = reader->state;
    return uring->resident && reader->options.direct != READ_DIRECT_YES ? uring->table : NULL;
}

const struct engine engine_uring = {
    .open = uring_open,
    .close = uring_close,
    .submit = uring_submit,
    .flush = uring_flush,
    .advance = uring_advance,
    .table = uring_table,
};
