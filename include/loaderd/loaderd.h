/* SPDX-License-Identifier: MIT */
/*
 * libloaderd: pop ready training batches out of shared memory.
 *
 *     struct loaderd *l;
 *     char error[512];
 *     if (loaderd_open(&l, "imagenet-train", NULL, error, sizeof error) < 0)
 *         errx(1, "%s", error);
 *     struct loaderd_batch batch;
 *     while (loaderd_next(l, &batch) == 1) {
 *         train(batch.fields[0].data, batch.fields[1].data, batch.valid);
 *         loaderd_release(l, &batch);
 *     }
 *     loaderd_close(l);
 *
 * A batch is a view of read-only shared memory: no copy is made. Writing to it is a fault (SIGSEGV).
 *
 * Errors are negative errno values; loaderd_error() has the sentence for people. No function of this library prints,
 * installs a signal handler or changes the environment.
 *
 * Threads: different loaders are independent. Calls on one loader must not overlap, except those marked "any thread".
 * Fork: a loader belongs to the process that opened it; in a child every call returns -ECHILD and changes nothing,
 * loaderd_close() in a child frees the child's copy only.
 */
#ifndef LOADERD_LOADERD_H
#define LOADERD_LOADERD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Element types. The numbers are part of the shared-memory contract (abi/ring.h). */
enum loaderd_dtype {
    LOADERD_U8 = 1,
    LOADERD_I8 = 2,
    LOADERD_U16 = 3,
    LOADERD_I16 = 4,
    LOADERD_U32 = 5,
    LOADERD_I32 = 6,
    LOADERD_U64 = 7,
    LOADERD_I64 = 8,
    LOADERD_F16 = 9,
    LOADERD_BF16 = 10,
    LOADERD_F32 = 11,
    LOADERD_F64 = 12
};

#define LOADERD_MAX_DIMS 8
#define LOADERD_MAX_FIELDS 16

/* What happened to one row of a batch: bits of loaderd_row.status; 0 is a sample exactly as asked for. */
#define LOADERD_ROW_PADDING 0x1u     /* a repeat that fills the batch: not to be counted by a metric */
#define LOADERD_ROW_SUBSTITUTED 0x2u /* the sample was bad; another one stands in its place */
#define LOADERD_ROW_BLANK 0x4u       /* the sample was bad; all fields of the row are zero */
#define LOADERD_ROW_DAMAGED 0x8u     /* the codec reported damage; the pixels were delivered as it made them */

/* One row of a batch. 64 bytes; part of the shared-memory contract. */
struct loaderd_row {
    uint64_t sample;   /* id of the sample delivered, 0 <= sample < samples of the dataset */
    uint64_t position; /* its place in the epoch's global sequence */
    uint32_t status;   /* LOADERD_ROW_* */
    uint32_t flip;     /* bit 0: mirrored left-right, bit 1: mirrored top-bottom (0 for records without a picture) */
    uint32_t source_width, source_height;          /* pixels of the stored picture, 0 without one */
    float crop_x, crop_y, crop_width, crop_height; /* the part of it that fills the row, in source pixels */
    uint64_t reserved[2];                          /* zero */
};

/* One field of a batch: a dense array, C order, first dimension = rows of the batch. 64-byte aligned. */
struct loaderd_field {
    const char *name;               /* e.g. "image", "label"; lives as long as the loader */
    uint32_t dtype;                 /* enum loaderd_dtype */
    uint32_t ndim;                  /* >= 1 */
    int64_t dims[LOADERD_MAX_DIMS]; /* dims[0] = batch size, also where fewer rows are valid */
    const void *data;               /* read-only */
    uint64_t bytes;                 /* product of dims times the element's size */
};

/* Bits of loaderd_batch.flags. */
#define LOADERD_BATCH_LAST 0x1u /* last batch of its epoch */

/* One leased batch. Filled by loaderd_next(); valid until its release. Treat as read-only; may be copied. */
struct loaderd_batch {
    uint64_t epoch, step; /* which batch this is */
    uint64_t sequence;    /* counts batches of this session from 0 */
    uint32_t rows;        /* rows that hold samples; the others, up to dims[0], are zero */
    uint32_t valid;       /* rows that are no padding: the first `valid` ones */
    uint32_t flags;       /* LOADERD_BATCH_* */
    uint32_t nfields;
    const struct loaderd_field *fields; /* nfields of them, in dataset order */
    const struct loaderd_row *row;      /* one per row */
    const void *slot;                   /* first byte of the contiguous slot payload (all fields) */
    uint64_t slot_bytes;                /* its length: one copy moves a batch */
    uint64_t generation;                /* private: which ring it came from */
    void *ring;                         /* private */
};

/* Where a loader stands; the next batch after opening at a state is (epoch, step). Plain data: write it to a
 * checkpoint as it is. `global_batch` = batch x world. */
struct loaderd_state {
    uint64_t seed;
    uint64_t epoch, step;
    uint64_t global_batch;
    uint8_t fingerprint[16]; /* of the dataset and of the keys that shape its samples */
};

/* How to open. Start from LOADERD_OPTIONS_INIT; zero or NULL means the default. */
struct loaderd_options {
    size_t size;             /* sizeof(struct loaderd_options) of the caller's header */
    const char *socket;      /* NULL: $LOADERD_SOCKET, $XDG_RUNTIME_DIR/loaderd/socket, /run/loaderd/socket */
    const char *const *keys; /* NULL-terminated "key=value" strings as in loaderd.conf(5): batch, seed, image, ... */
    int64_t rank, world;  /* -1: taken from RANK/WORLD_SIZE, OMPI_COMM_WORLD_*, SLURM_* (inside a step), else 0 of 1 */
    uint64_t epoch, step; /* where to start; ignored where `state` is given */
    uint64_t epochs;      /* how many epochs to serve, 0: without end */
    const struct loaderd_state *state; /* continue here; refused with -EINVAL if it belongs to other data */
    uint32_t held;                     /* how many batches the caller will hold at once, 0: 1 (slots >= held + 2) */
    int32_t next_timeout_ms;           /* longest wait of loaderd_next, 0: 300 s, negative: without end */
    int32_t reconnect_timeout_ms;      /* how long to look for a new daemon when one dies, 0: 60 s, negative: never */
    const char *daemon; /* program started as the private daemon, NULL: $LOADERD_DAEMON, installed, then PATH */
    const char *job;    /* private daemon's job name, NULL: from the launcher's environment */
    const char *group;  /* "NAME:MEMBERS": share one ring with so many trainers; NULL: a ring of its own */
};
/* clang-format off */
#define LOADERD_OPTIONS_INIT {sizeof(struct loaderd_options), NULL, NULL, -1, -1, 0, 0, 0, NULL, 0, 0, 0, NULL, NULL, NULL}
/* clang-format on */

struct loaderd; /* one loader: a session with a daemon */

/*
 * Opens `name`: a pipeline of the running service, or, where it holds a '/' or begins with "synthetic:", a dataset
 * served by a private daemon that all ranks of the job share and that ends with its last session.
 * On success *ret is the loader, owned by the caller, for loaderd_close(). On failure *ret is untouched and `error`
 * (of `error_size` bytes; may be NULL) holds a sentence naming what was wrong and the remedy.
 * Returns 0 or a negative errno: -ENOENT no such pipeline or dataset, -ECONNREFUSED no daemon, -EACCES, -EINVAL a key,
 * -ENOMEM ring too large, -EPROTO versions differ, -ETIMEDOUT. Any thread.
 */
int loaderd_open(struct loaderd **ret, const char *name, const struct loaderd_options *options, char *error,
                 size_t error_size);

/* Ends the session and unmaps every batch still held. NULL is allowed. */
void loaderd_close(struct loaderd *loader);

/*
 * Leases the next batch, waiting for it if need be. Returns 1 and fills *batch; 0 at the end of an epoch (the next
 * call goes on with the following epoch, or returns 0 again after the last one); or a negative errno:
 * -ETIMEDOUT nothing came within next_timeout_ms, -EBADMSG a bad sample under on-error=fail, -EIO the dataset could
 * not be read, -ENODATA/-ECONNRESET the daemon went away and none came back, -EBUSY every slot is held by the caller,
 * -EDEADLK the ids of this batch have not been supplied (shuffle=explicit), -ECANCELED somebody detached this session,
 * -ESTALE the group went on without this member.
 */
int loaderd_next(struct loaderd *loader, struct loaderd_batch *batch);

/* The same without waiting: -EAGAIN where no batch is ready. */
int loaderd_try_next(struct loaderd *loader, struct loaderd_batch *batch);

/* Gives a batch back; its memory may change at once. In any order. Returns 0, -EINVAL for a batch not held, -ESTALE where
 * the group went on without this member: the batch is given back, but may have been overwritten while it was held. */
int loaderd_release(struct loaderd *loader, const struct loaderd_batch *batch);

/*
 * Goes to another place: the next batch is that of (epoch, step), forwards or back; what was made ahead is dropped and
 * never appears. Batches that are held stay readable until their release (their `generation` is an older one), but
 * count in no state any more. An explicit order forgets all its ids: send those from there on; its epoch is 0. The
 * session is opened anew with the daemon, which takes a few milliseconds; the call waits for it, at most
 * next_timeout_ms. Not for a loader that is on a device (loaderd_cuda_open); one that is only pinned is pinned again.
 * Returns 0, -EINVAL (no such step, past the session's last epoch, a member of a group; nothing has changed), or what
 * loaderd_next() says where the daemon is away: the loader then stands at the new place, and loaderd_next() goes on
 * looking for one.
 */
int loaderd_seek(struct loaderd *loader, uint64_t epoch, uint64_t step);

/*
 * Explicit order (shuffle=explicit): says which samples come next, `count` ids of them, in this order; each batch takes
 * as many as it has rows. Ids may be sent ahead of the batches, about three rings full. Returns how many were taken,
 * which may be fewer than `count`: send the others later, after loaderd_next(). -EAGAIN where none was, -EINVAL where
 * the order is another one or was ended. An id that the dataset does not have fails its batch: loaderd_next() says
 * -EINVAL there. The library keeps ids until their batch is leased, and sends them again where another daemon takes
 * over. A session that begins at a state or step needs the ids from there on. It never waits.
 */
int64_t loaderd_supply(struct loaderd *loader, const uint64_t *ids, size_t count);

/* No further ids will come: the last batch may have fewer rows; loaderd_next() returns 0 after it. Returns 0 or
 * -EINVAL. */
int loaderd_supply_end(struct loaderd *loader);

/*
 * A row of a field that is filled in part: bytes that are delivered undecoded (key bytes), or rectangles (field boxes).
 * Such a field has room for a fixed number of items a row, behind the last one all is zero, and a companion, i32[rows],
 * that says how many there are: NAME-length of bytes, NAME-count of boxes. Points *ret at the row's first item, inside
 * the batch, and returns their number (0: none), or -ENOENT: the batch has no such field, -ERANGE: no such row, -EBADMSG:
 * a number that no daemon writes. Of a batch in the memory of the process, not of a device. Any thread.
 */
int64_t loaderd_row_items(const struct loaderd_batch *batch, const char *name, uint32_t row, const void **ret);

/* The position after the contiguous prefix of released batches: what a checkpoint should hold. Never counts
 * prefetched or still-held batches. Returns 0. */
int loaderd_state(const struct loaderd *loader, struct loaderd_state *ret);

/* Path and, where several samples share a file, "#record" of a sample id, into buffer. Returns its length or
 * a negative errno (-ERANGE: no such sample, -ENOSPC: buffer too small). Asks the daemon: slow, for messages. */
int loaderd_sample_path(struct loaderd *loader, uint64_t sample, char *buffer, size_t size);

/* A descriptor for poll(): readable when loaderd_try_next() may have something. Call loaderd_try_next() until it says
 * -EAGAIN before each poll. Owned by the loader. */
int loaderd_fd(struct loaderd *loader);

/* What the session is: filled at open, constant until a reconnect changes `daemon_pid`. */
struct loaderd_info {
    uint64_t samples;         /* in the dataset */
    uint64_t steps_per_epoch; /* batches this rank gets in an epoch */
    uint32_t batch, rank, world, slots;
    uint64_t seed;
    int32_t daemon_pid;
    uint32_t nfields;
    const struct loaderd_field *fields; /* shapes; data is NULL */
    const char *engine;                 /* read engine chosen by the daemon */
    const char *socket;                 /* where the daemon answers */
};
int loaderd_info(const struct loaderd *loader, struct loaderd_info *ret);

/* How the session went so far; times in nanoseconds. */
struct loaderd_statistics {
    uint64_t batches;    /* leased */
    uint64_t waits;      /* calls of loaderd_next that found no batch ready */
    uint64_t wait_ns;    /* time spent in them */
    uint64_t wakes_sent; /* system calls made to wake the daemon */
    uint64_t rescues;    /* wake-ups that had to be rescued by the 100 ms timer: 0 unless something is wrong */
    uint64_t reconnects;
};
int loaderd_statistics(const struct loaderd *loader, struct loaderd_statistics *ret);

/* The sentence of the last failed call on this loader; "" if there was none. Valid until the next call. */
const char *loaderd_error(const struct loaderd *loader);

/* Name of a dtype ("f32") and bytes of one element; NULL and 0 for an unknown one. Any thread. */
const char *loaderd_dtype_name(uint32_t dtype);
size_t loaderd_dtype_size(uint32_t dtype);

/* Version of the library, "0.1.0". Any thread. */
const char *loaderd_version(void);

#ifdef __cplusplus
}
#endif
#endif
