/* SPDX-License-Identifier: MIT */
/*
 * What the public calls (cuda.c) and the helper thread (helper.c) share.
 *
 *            helper                      helper                  loaderd_cuda_next
 *   FREE ---------------> FILLED (queued for the caller) ------------------------------> HELD
 *    ^     copy queued                                                                     |
 *    |                                                                                     | loaderd_cuda_release:
 *    +------------------ `done` has passed: the helper looks -------------- RETURNED <-----+ `done` recorded
 *
 * A copy is in flight from when it is queued until the helper has seen its `ready` pass; then the ring's slot goes back to
 * the daemon. The caller does not wait for that: its stream waits for `ready`. The helper never queues a copy behind work
 * of the caller's: it waits for `done` itself, so that slots are not held by a slow kernel.
 *
 * The mutex guards states, the queue, failure and statistics; it is held for a few instructions. What is marked "helper"
 * belongs to that thread while it runs.
 */
#ifndef CLIENT_CUDA_INTERNAL_H
#define CLIENT_CUDA_INTERNAL_H

#include <loaderd/cuda.h>
#include <pthread.h>
#include <stdbool.h>

#include "device.h"
#include "finish.h"
#include "pin.h"

#define CUDA_DEFAULT_DEPTH 3
#define CUDA_MAX_DEPTH 1024
#define CUDA_TIMINGS 16
#define CUDA_TEXT 1024

enum buffer_state { BUFFER_FREE, BUFFER_FILLED, BUFFER_HELD, BUFFER_RETURNED };

struct buffer {
    enum buffer_state state;
    uint64_t number;            /* of its batch: counts those of this loaderd_cuda */
    uint64_t generation;        /* differs at each use */
    uint64_t returned;          /* order of the releases */
    struct CUevent_st *ready;   /* the batch is there */
    struct CUevent_st *done;    /* the caller's work on it is over */
    void *slot, *finished;      /* device memory */
    struct loaderd_batch batch; /* as the caller gets it */
    struct loaderd_field *fields;
    struct loaderd_row *rows;
    bool in_flight;            /* written by the helper, under the mutex */
    struct loaderd_batch host; /* helper: where the copy in flight comes from */
};

/* What the caller gets in turn. */
enum item_kind { ITEM_BATCH, ITEM_END };
struct item {
    enum item_kind kind;
    uint32_t buffer;
};

/* A moment on the caller's stream before and after it waited. */
struct timing {
    struct CUevent_st *before, *after;
    bool busy;
};

/* A batch of the host that goes back when the event has passed (LOADERD_CUDA_MANUAL). */
struct pending {
    struct loaderd_batch batch;
    struct CUevent_st *done;
};

struct loaderd_cuda {
    struct loaderd *loader;
    int device, node;
    uint32_t depth; /* 0: manual */
    uint32_t flags;
    int32_t next_timeout_ms;
    struct pinning pinning;
    char error[CUDA_TEXT]; /* the caller's */

    /* constant after open */
    uint64_t slot_bytes, device_bytes, steps;
    struct loaderd_info info;
    struct loaderd_field *fields; /* shapes, as given out */
    struct loaderd_cuda_finish_spec finish;
    uint32_t finished;          /* index of the field, or nfields */
    struct CUstream_st *stream; /* of the copies */
    struct buffer *buffer;
    pthread_t thread;
    bool running;
    int stop_fd; /* an eventfd that wakes the helper's poll */

    pthread_mutex_t loader_mutex; /* calls on the loader: the helper's, and few of the caller's; taken before `mutex` */
    pthread_mutex_t mutex;
    pthread_cond_t filled; /* for the caller: an item, a failure, the end */
    pthread_cond_t freed;  /* for the helper: a buffer, a failure taken, stop */
    struct item *queue;    /* ring of queue_size */
    uint32_t queue_size, queue_first, queue_length;
    uint64_t returns; /* releases so far */
    bool stop, over;
    int failure; /* said once, by the next call that finds the queue empty; */
    bool fatal;  /* or by every one */
    char failure_text[CUDA_TEXT];
    struct loaderd_cuda_statistics statistics;
    uint8_t uuid[16];           /* the device's */
    uint64_t told_data_ns;      /* helper: of statistics.data_ns */
    struct loaderd_state start; /* position of batch number 0 */
    struct pinning shown;       /* as of the last copy, for loaderd_cuda_info() */

    /* helper */
    uint32_t *flight; /* buffers whose copies are in flight, oldest first; ring of depth */
    uint32_t flight_first, flight_length;
    uint64_t filled_count, generation;
    bool epoch_ended; /* the last thing that the loader said was an end */
    bool synthetic, has_real, end_due;
    struct loaderd_batch real; /* the one that is served for ever */

    /* the caller */
    char note[sizeof((struct pinning *)0)->note];
    struct timing timing[CUDA_TIMINGS];
    uint32_t timing_next, timing_oldest;
    struct pending *pending; /* ring of pending_size */
    uint32_t pending_size, pending_first, pending_length;
};

void *cuda_helper(void *loaderd_cuda);
uint64_t cuda_now_ns(void);
/* The state `count` batches after `start`. */
void cuda_advance(const struct loaderd_cuda *lc, uint64_t count, struct loaderd_state *ret);

#endif
