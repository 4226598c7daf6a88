/* SPDX-License-Identifier: MIT */
/*
 * What the read engines share and nobody else sees: a table with one slot per tag, an arena with one buffer per tag,
 * and the judgement of every result, so that all engines retry, give up and word their errors alike.
 *
 *     free ──submit──► busy ──slot_finish/slot_fail──► finished ──reap──► reaped ──done──► free
 *
 * An engine moves bytes: it opens, reads or maps, gives each raw result to slot_after_open() or slot_after_read() and
 * does the step that they return. Threading: everything belongs to the reader's thread.
 */
#ifndef READ_ENGINE_H
#define READ_ENGINE_H

#include "base/util.h"
#include "read/read.h"
#include "read/source.h"

#define READ_TRIES 16                  /* of one read or open that answers EAGAIN, EBUSY, EINTR, ... without progress */
#define READ_TRIES_EIO 3               /* the kernel has tried often already */
#define READ_PIECE (UINT64_C(1) << 30) /* most bytes of one read call: below the kernel's 2 GiB - 4 KiB */
#define READ_FIRST_BUFFER (256u << 10) /* first size of a tag's buffer: most photographs fit */

enum slot_state { SLOT_FREE, SLOT_BUSY, SLOT_FINISHED, SLOT_REAPED };

/* What the engine has to do next for a slot. */
enum step {
    STEP_OPEN, /* open slot_path() below slot_dirfd(), after delay_ns */
    STEP_READ, /* read slot_piece() bytes at slot_offset() to slot->target + done, after delay_ns */
    STEP_OVER  /* finished or failed: close what was opened */
};

/* One tag. */
struct slot {
    struct read_request request;
    enum slot_state state;
    int fd;             /* opened for this request, or -1: the source file's own */
    bool reopened;      /* once after ESTALE, not twice */
    unsigned tries;     /* failures since the last progress */
    uint64_t delay_ns;  /* back-off asked for by the last judgement */
    uint64_t due_ns;    /* uring: when the back-off is over, 0: none; ... */
    enum step due_step; /* ... and what to do then */

    uint8_t *buffer;               /* this tag's part of the arena */
    size_t capacity;               /* bytes of it that are accessible */
    uint8_t *target;               /* where bytes go: request.into or buffer */
    uint64_t wanted;               /* bytes asked for; EXTENT_WHOLE_FILE until the file's size is known */
    uint64_t done;                 /* bytes that came */
    struct file_identity identity; /* at open, of a file opened by path */

    int error;
    const uint8_t *bytes;
    struct diag diag;

    uint64_t skip;    /* uring: bytes that a direct read brings before those asked for */
    unsigned pending; /* uring: completions of a chain still to come */
    int chain[4];     /* uring: their results */
    uint64_t asked;   /* uring: length of the chain's first read */

    bool mapped;  /* bytes lie in a mapping: guard it, check again at done */
    bool faulted; /* the guard caught a fault */
    uint8_t *map; /* mmap: mapping of this request alone, or NULL */
    size_t map_length;
    struct source_entry *source; /* the source file's, in use: its mapping or direct descriptor */
};

/* Test seam, read from the environment by reader_new(); all zero in production. */
struct read_faults {
    uint64_t max_bytes;        /* LOADERD_TEST_READ_MAX: most bytes that one read brings */
    unsigned eagain_every;     /* LOADERD_TEST_READ_EAGAIN: every n-th result is -EAGAIN */
    unsigned eintr_every;      /* LOADERD_TEST_READ_EINTR: every n-th result (uring: submission) is -EINTR */
    unsigned estale_first;     /* LOADERD_TEST_READ_ESTALE: the first n results are -ESTALE */
    bool eagain_forever;       /* LOADERD_TEST_READ_EAGAIN_FOREVER: every result is -EAGAIN */
    char eio_path[256];        /* LOADERD_TEST_READ_EIO: reads of paths that hold this answer -EIO */
    unsigned results, submits; /* counted so far */
};

/* A queue of at most depth tags. */
struct tag_queue {
    uint32_t *tags;
    unsigned head, count, size;
};

struct engine {
    int (*open)(struct reader *reader, struct diag *diag);
    void (*close)(struct reader *reader); /* nothing is busy; NULL state allowed */
    void (*submit)(struct reader *reader, struct slot *slot);
    void (*flush)(struct reader *reader);
    /* Makes progress; waits at most wait_ns for one to be finished, while any is busy. */
    void (*advance)(struct reader *reader, uint64_t wait_ns);
    void (*release)(struct reader *reader, struct slot *slot); /* at done; NULL: nothing to release */
    /* Its table, where bytes of source files may be shown in place; NULL: not by this engine. */
    struct source_table *(*table)(struct reader *reader);
};

struct reader {
    const struct engine *engine;
    struct read_options options;
    struct slot *slots;
    uint8_t *arena;
    size_t arena_bytes, stride; /* stride: arena bytes reserved for a tag */
    struct tag_queue finished;
    struct tag_queue pending; /* pread, mmap: submitted, work still to be done */
    unsigned in_flight;
    struct read_faults faults;
    struct read_counters counters;
    bool guards;          /* reader_guard_bytes() asked for the SIGBUS handler */
    uint8_t *fault_stack; /* the SIGBUS handler's, where this reader installed one */
    void *state;          /* the engine's own */
};

extern const struct engine engine_uring, engine_mmap, engine_pread;

/* The first step of a request whose slot has just become busy. */
enum step slot_start(struct reader *reader, struct slot *slot);
/* Judges the result of an open: a descriptor, which the slot owns from here, or a negative errno. */
enum step slot_after_open(struct reader *reader, struct slot *slot, int result);
/* Judges the result of a read: bytes or a negative errno. */
enum step slot_after_read(struct reader *reader, struct slot *slot, int64_t result);
/* All bytes are there: compares the source file with its identity, then finishes or fails. */
enum step slot_complete(struct reader *reader, struct slot *slot);
/* Ends a request: with slot->error as it is ... */
void slot_finish(struct reader *reader, struct slot *slot);
/* ... or with an error and a sentence that gets the file's name and the offset in front. */
enum step slot_fail(struct reader *reader, struct slot *slot, int code, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

int slot_dirfd(const struct slot *slot);
const char *slot_path(const struct slot *slot);
uint64_t slot_piece(const struct reader *reader, const struct slot *slot);
static inline int slot_fd(const struct slot *slot) {
    return slot->fd >= 0 ? slot->fd : slot->request.extent.file->fd;
}
static inline uint64_t slot_offset(const struct slot *slot) {
    return slot->request.extent.offset + slot->done;
}
/* O_NONBLOCK: a FIFO or a device in a dataset must not hang the open. */
#define READ_OPEN_FLAGS (O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)

/* Makes at least `bytes` of the tag's buffer accessible. 0 or -ENOMEM. */
int slot_reserve(struct reader *reader, struct slot *slot, uint64_t bytes);
/* What the test seam makes of a result. */
int64_t read_fault(struct reader *reader, const struct slot *slot, int64_t result);
/* 0, or -ESTALE and a sentence where the file behind the slot is not the one of the dataset's opening any more. */
int slot_check_identity(const struct slot *slot, struct diag *diag);
void read_sleep(uint64_t ns);

/* The entry of the slot's source file, kept until slot_leave_source(). False: the file is to be read otherwise. */
bool slot_use_source(struct source_table *table, struct slot *slot);
/* The same with the extent inside the file's mapping. */
bool slot_map_source(struct source_table *table, struct slot *slot);
static inline void slot_leave_source(struct slot *slot) {
    if (slot->source)
        slot->source->users--;
    slot->source = NULL;
}

void queue_push(struct tag_queue *queue, uint32_t tag);
uint32_t queue_pop(struct tag_queue *queue);

/* pread.c, also used by mmap.c for what it does not map. */
void pread_begin(struct reader *reader, struct slot *slot, enum step step);  /* opens, starts read-ahead, queues */
void pread_finish(struct reader *reader, struct slot *slot, enum step step); /* reads all of it, closes */
void pread_flush(struct reader *reader);

/* mapped.c. Before any use of a mapping by this thread, and after all. */
int mapped_prepare(struct reader *reader, struct diag *diag);
void mapped_leave(struct reader *reader);
int mapped_guard(struct slot *slot, int (*f)(void *arg), void *arg);
/* The same for any bytes of a mapping. */
int mapped_guard_bytes(const uint8_t *bytes, uint64_t length, int (*f)(void *arg), void *arg);
/* The extent's bytes are mapped: copies them where request.into wants that, then judges as if they had been read.
 * STEP_OVER, or STEP_OPEN: open the file again and read it. */
enum step mapped_finish(struct reader *reader, struct slot *slot, const uint8_t *bytes);

/* uring.c. Whether io_uring works here; if not, a negative errno and a sentence why. */
int uring_probe(struct diag *why);
/* The sentence of uring_probe() as a function of what it saw: io_uring_setup's errno, kernel.io_uring_disabled (-1:
 * no such file), whether a seccomp filter is on, the kernel's version, the soft limit of locked memory. */
struct uring_facts {
    int code;
    int disabled;
    bool seccomp;
    unsigned major, minor;
    uint64_t memlock;
};
int uring_explain(const struct uring_facts *facts, struct diag *why);

#endif
