/* SPDX-License-Identifier: MIT */
/*
 * Private to worker.c, row.c, pool.c and stats.c: what a worker and the pool are made of.
 *
 * A task is a claimed unit; a request is one read of it. Both live in arrays of `depth` entries of their worker.
 */
#ifndef WORKER_H
#define WORKER_H

#include "base/util.h"
#include "decode/decode.h"
#include "fill.h"
#include "pool.h"
#include "read/read.h"
#include "session.h"
#include "topology.h"
#include "trace.h"

#define WORKER_SLEEP_NS UINT64_C(100000000) /* a sleeper looks again by itself after this */
#define POOL_REPORTS 1024                   /* lines about bad samples waiting for the log */
#define EPOCH_CACHE 8u                      /* epochs whose keys a worker remembers */
#define VERSION_ASLEEP UINT64_MAX

/* A line about a bad or damaged sample. */
struct report {
    struct pipeline *pipeline; /* referenced */
    uint64_t sample, epoch, position;
    bool damaged;
    char text[DIAG_TEXT];
};

struct session_list {
    struct session_list *older; /* lists not yet freed */
    uint64_t version;           /* of its replacement: free it once all workers are past that */
    uint32_t count;
    struct session *session[];
};

/* What a cache may have of an extent. */
struct cached {
    bool known; /* the key names what the file was when the sample was claimed */
    struct cache_key key;
    int64_t ctime_ns;
    struct cache_hit hit;
};

struct request {
    uint32_t task, first_row, rows; /* which rows of the task its bytes hold */
    uint64_t stride;                /* from row to row, at most a row's length: windows overlap */
    uint64_t row_length;
    uint64_t waited_ns; /* its worker stood still for it */
    int error;
    const uint8_t *bytes;
    size_t length;
    const struct diag *diag;
    bool unread; /* a cache has it: nothing was submitted */
    struct cached cached;
};

/* What one ring_claim() gave: its units are counted down together, when the last of them is written. The slot waits for
 * all of them anyway, and workers meet at its countdown once a claim. */
struct claim {
    uint32_t left, units; /* left 0: free */
};

struct task {
    struct session *session;                   /* NULL: free */
    uint64_t sequence, epoch, position, order; /* position of its first row; order: claims of this worker counted */
    uint64_t charged_ns;
    struct claim *claim;
    uint32_t unit, first_row, rows, wanted; /* rows of the batch; of them `wanted` hold samples */
    uint32_t valid;                         /* rows before this one (of the batch) are no padding */
    uint32_t pending, request_count;
    uint32_t *request; /* tags, in row order */
};

struct epoch_keys {
    uint64_t session;
    struct order_epoch keys;
};

struct worker {
    struct pool *pool;
    _Atomic(struct trace_circle *) trace;   /* NULL: nobody traces */
    struct trace_circle *circle;            /* of the thread that begins traces; NULL: never yet */
    uint64_t doing_session, doing_sequence; /* for the trace: the batch in hand; session 0: none */
    pthread_t thread;
    uint32_t number;
    int cpu;  /* that it is pinned to, -1: none */
    int node; /* whose memory is nearest to that, -1: unknown */
    struct reader *reader;
    uint64_t copied_ns; /* of the reader's copies: told so far */
    struct decoder *decoder;
    struct transform *transform;
    struct dataset_box *box; /* DATASET_MAX_BOXES of them */
    struct fill *fill;
    uint64_t fill_earned_ns, fill_earned_at, fill_mean_ns; /* time that filling may take; an encoding's running mean */
    struct task *task;                                     /* depth of them */
    struct claim *claim;                                   /* depth of them */
    uint32_t last_claim;                                   /* the place of the youngest */
    struct request *request; /* depth of them, by tag; tags from `depth` on are for substitutes */
    uint32_t *free_tag, free_tags;
    uint32_t tasks;
    uint64_t claimed;
    struct epoch_keys epoch[EPOCH_CACHE];
    uint64_t mark;           /* when the stage under way began */
    uint64_t lap_ns[STAGES]; /* since the last charge(): no batch has been told */
    uint64_t stalled_ns;     /* it has stood still for reads so long, since the last one came */
    int start_error;         /* of worker_init(), read by pool_new() */
    struct diag start_diag;
    uint64_t beat, beat_ns; /* pool_moves(): the owner's thread only */
    _Atomic int tid;
    _Alignas(64) _Atomic uint64_t version; /* of the session list in use */
    /* statistics: written by this worker only */
    _Alignas(64) _Atomic uint64_t stage_ns[STAGES];
    _Atomic uint64_t samples, bytes_in, bytes_out, bad, damaged, claims, rescues;
};

struct pool {
    struct daemon_config daemon; /* numbers only */
    struct topology topology;
    enum read_engine engine;
    char engine_reason[DIAG_TEXT];
    enum read_direct direct;
    uint64_t cache_room; /* bytes that the page cache may be expected to keep */
    uint32_t workers, depth;
    struct worker *worker;
    uint32_t started;
    pthread_mutex_t start_lock;
    pthread_cond_t start_signal;
    uint32_t ready;

    _Alignas(64) _Atomic uint32_t kicks; /* futex: something may be claimable */
    _Atomic uint32_t sleepers;
    _Atomic bool stop;
    _Alignas(64) _Atomic(struct session_list *) list;
    _Atomic uint64_t version;
    _Atomic uint64_t ring_bytes; /* of all sessions; a hint, relaxed: nothing is published by it */
    _Atomic uint64_t virtual_ns; /* worker time that the session served last had had: newcomers start there */

    /* the owner's thread */
    pthread_mutex_t list_lock; /* sessions are opened on one thread and closed on another */
    struct session *sessions;
    struct session_list *old_lists;

    pthread_mutex_t report_lock;
    struct report *report;
    uint32_t reports;
    uint64_t reports_lost;
};

/* ---- time, in line ---- */

static inline void counter_add(_Atomic uint64_t *counter, uint64_t n) {
    /* one writer: no read-modify-write needed */
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + n, memory_order_relaxed);
}

/* The time since the last call, up to `now`, belongs to `stage`. Returns it. */
static inline uint64_t worker_lap_until(struct worker *w, enum worker_stage stage, uint64_t now) {
    uint64_t spent = now - w->mark;
    counter_add(&w->stage_ns[stage], spent);
    w->lap_ns[stage] += spent;
    struct trace_circle *circle = atomic_load_explicit(&w->trace, memory_order_acquire);
    if (__builtin_expect(circle != NULL, 0))
        trace_lap(circle, stage, w->mark, now, w->doing_session, w->doing_sequence);
    w->mark = now;
    return spent;
}
static inline uint64_t worker_lap(struct worker *w, enum worker_stage stage) {
    return worker_lap_until(w, stage, now_ns());
}

/* By which workers choose: worker time that a session has had, with a handicap for a ring on another node. It must be more
 * than what all workers have in flight for a session differs by, or it decides nothing (5 ms did not). Pure. */
#define WORKER_FAR_NS UINT64_C(50000000)
static inline uint64_t session_cost(uint64_t served_ns, int ring_node, int worker_node) {
    return served_ns + (ring_node >= 0 && worker_node >= 0 && ring_node != worker_node ? WORKER_FAR_NS : 0);
}

/* worker.c: the thread. */
void *worker_main(void *arg);
/* Keys of an epoch's order, remembered. */
const struct order_epoch *worker_epoch(struct worker *worker, const struct session *session, uint64_t epoch);
/* The sample of row `index` of a task; `keys` are those of its epoch. */
static inline uint64_t task_sample(const struct task *task, const struct order_epoch *keys, uint32_t index) {
    return task->session->supply ? supply_id(task->session->supply, task->sequence, task->first_row + index)
                                 : order_sample(keys, task->position + index);
}
/* A read came: its request knows. */
void worker_note_result(struct worker *worker, const struct read_result *result);

/* row.c: looks up what a cache has of `length` bytes at `offset` of the file that the extent lies in. */
void row_look_up(const struct session *session, const struct extent *extent, uint64_t offset, uint64_t length,
                 struct cached *ret);

/* row.c: a row of a task whose bytes are here. `tag`, `bytes`, `length`: one an extent of the sample. */
struct row_input {
    const uint8_t *bytes[MAX_EXTENTS];
    size_t length[MAX_EXTENTS];
    uint32_t tag[MAX_EXTENTS];
    struct cached *cached[MAX_EXTENTS]; /* NULL: not looked up */
    int error;                          /* of a read: 0 or a negative errno */
    const struct diag *diag;            /* its sentence */
};
/* Makes row `index` of the task in its final place, or what the policy for bad samples says. */
void row_make(struct worker *worker, struct task *task, uint32_t index, const struct row_input *input);
/* Makes all rows of a task whose session is `in_place` at once, without a read. False: nothing counts of what was done, and
 * the rows are to be made the usual way, which has the verdict on what is bad. */
bool rows_in_place(struct worker *worker, struct task *task);
/* A row that holds no sample: all zero. */
void row_clear(struct session *session, uint64_t sequence, uint32_t row);
/* The batch of this task cannot be made: its slot will be published as an error. The lowest row's sentence stays. */
void row_fail_slot(struct session *session, const struct task *task, uint32_t row, int error, const char *text);

/* pool.c: queues a line for the log; see pool_report(). */
void pool_note_bad(struct pool *pool, struct session *session, uint64_t sample, uint64_t epoch, uint64_t position,
                   bool damaged, const char *text);

/* By which rows that are copied as they are get into the ring now: the rings of all sessions share the caches. */
static inline enum copy_stores session_stores(const struct session *session) {
    if (session->stores == CONFIG_STORES_AUTO)
        return atomic_load_explicit(&session->pool->ring_bytes, memory_order_relaxed) <= session->cache_room
                   ? COPY_ORDINARY
                   : COPY_STREAMING;
    return session->stores == CONFIG_STORES_ORDINARY ? COPY_ORDINARY : COPY_STREAMING;
}

static inline struct slot_note *session_note(struct session *session, uint64_t sequence) {
    return &session->note[sequence % ring_slots(session->ring)];
}

#endif
