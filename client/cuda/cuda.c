/* SPDX-License-Identifier: MIT */
/*
 * The calls of <loaderd/cuda.h>, on the caller's side of the helper thread (helper.c): they queue a wait or record an event
 * on the caller's stream and change the state of a buffer under the mutex. They never touch the loader while the helper
 * runs, and leave the calling thread's current device as it was.
 */
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "../ring_hooks.h"
#include "internal.h"

#define DEFAULT_NEXT_TIMEOUT_MS 300000
#define BANDWIDTH_NS UINT64_C(300000000)

static int refuse(struct loaderd_cuda *lc, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
static int refuse(struct loaderd_cuda *lc, int code, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(lc->error, sizeof lc->error, format, args);
    va_end(args);
    return code;
}

static int refuse_device(struct loaderd_cuda *lc, int code, const char *what) {
    return refuse(lc, code, "%s: %s", what, device_error());
}

static int refuse_child(const struct loaderd_cuda *lc) {
    return refuse((struct loaderd_cuda *)(uintptr_t)lc, -ECHILD,
                  "this loader was opened by another process; open one after "
                  "the fork");
}

/* What the calling thread was set to: its device, and what it may call while it captures another stream. */
struct scope {
    int previous, mode;
};

static void leave(const struct scope *scope) {
    device_leave(scope->previous);
    device_restore_capture(scope->mode);
}

static int enter(struct loaderd_cuda *lc, struct scope *ret) {
    if (!loaderd_internal_is_mine(lc->loader))
        return refuse_child(lc);
    device_relax_capture(&ret->mode);
    int r = device_switch(lc->device, &ret->previous);
    if (r == 0)
        return 0;
    device_restore_capture(ret->mode);
    return refuse_device(lc, r, "cannot use the device");
}

/* The start of every call that queues something on a stream. 0, and then leave() is due. */
static int begin(struct loaderd_cuda *lc, struct CUstream_st *stream, struct scope *ret) {
    int r = enter(lc, ret);
    if (r < 0)
        return r;
    r = device_stream_captured(stream);
    if (r == 0)
        return 0;
    leave(ret);
    if (r < 0)
        return refuse_device(lc, r, "cannot use the stream");
    return refuse(lc, -EBUSY,
                  "the stream is being captured: take batches outside the graph, and fill its fixed buffer by "
                  "loaderd_cuda_copy() before each launch");
}

/* ---- how long the stream waited ------------------------------------------------------------------------------------------ */

static void collect_timings(struct loaderd_cuda *lc) {
    for (uint32_t i = 0; i < CUDA_TIMINGS; i++) {
        struct timing *t = &lc->timing[lc->timing_oldest];
        uint64_t ns;
        if (!t->busy || device_event_done(t->after) != 1)
            return;
        if (device_event_elapsed_ns(t->before, t->after, &ns) == 0) {
            pthread_mutex_lock(&lc->mutex);
            lc->statistics.stream_waits++;
            lc->statistics.stream_wait_ns += ns;
            pthread_mutex_unlock(&lc->mutex);
        }
        t->busy = false;
        lc->timing_oldest = (lc->timing_oldest + 1) % CUDA_TIMINGS;
    }
}

/* The stream waits for the batch; measured where a pair of events is free. */
static int wait_on_stream(struct loaderd_cuda *lc, struct CUstream_st *stream, struct CUevent_st *ready) {
    collect_timings(lc);
    struct timing *t = &lc->timing[lc->timing_next];
    bool timed = !t->busy && device_event_record(t->before, stream) == 0;
    int r = device_stream_wait(stream, ready);
    if (timed && r == 0 && device_event_record(t->after, stream) == 0) {
        t->busy = true;
        lc->timing_next = (lc->timing_next + 1) % CUDA_TIMINGS;
    }
    return r;
}

/* ---- next ---------------------------------------------------------------------------------------------------------------- */

static bool all_held(const struct loaderd_cuda *lc) {
    for (uint32_t i = 0; i < lc->depth; i++)
        if (lc->buffer[i].state != BUFFER_HELD)
            return false;
    return true;
}

static int take_failure(struct loaderd_cuda *lc) {
    int code = lc->failure;
    refuse(lc, code, "%s", lc->failure_text);
    if (!lc->fatal) {
        lc->failure = 0;
        pthread_cond_signal(&lc->freed);
    }
    return code;
}

static void deadline(struct timespec *ret, int32_t ms) {
    clock_gettime(CLOCK_MONOTONIC, ret);
    ret->tv_sec += ms / 1000;
    ret->tv_nsec += ms % 1000 * 1000000L;
    if (ret->tv_nsec >= 1000000000L) {
        ret->tv_sec++;
        ret->tv_nsec -= 1000000000L;
    }
}

/* With the mutex: waits for an item, a failure, the end. -EAGAIN: look again. */
static int wait_item(struct loaderd_cuda *lc) {
    struct timespec until;
    uint64_t start = cuda_now_ns();
    int r = 0;
    deadline(&until, lc->next_timeout_ms);
    lc->statistics.waits++;
    while (r == 0 && lc->queue_length == 0 && !lc->failure && !lc->over)
        r = lc->next_timeout_ms < 0 ? pthread_cond_wait(&lc->filled, &lc->mutex)
                                    : pthread_cond_timedwait(&lc->filled, &lc->mutex, &until);
    lc->statistics.wait_ns += cuda_now_ns() - start;
    if (r == 0)
        return -EAGAIN;
    return refuse(lc, -ETIMEDOUT, "no batch came within %.1f s: look at `loaderctl status` and the daemon's log",
                  lc->next_timeout_ms / 1e3);
}

/* With the mutex: the next item: 1 and the buffer, 0, or an error. */
static int take_item(struct loaderd_cuda *lc, struct buffer **ret) {
    for (;;) {
        if (lc->queue_length) {
            struct item item = lc->queue[lc->queue_first];
            lc->queue_first = (lc->queue_first + 1) % lc->queue_size;
            lc->queue_length--;
            if (item.kind == ITEM_END)
                return 0;
            *ret = &lc->buffer[item.buffer];
            (*ret)->state = BUFFER_HELD;
            lc->statistics.batches++;
            return 1;
        }
        if (lc->failure)
            return take_failure(lc);
        if (lc->over)
            return 0;
        if (all_held(lc))
            return refuse(lc, -EBUSY, "all %u device buffers are held: release batches, or open with a larger `depth`",
                          lc->depth);
        int r = wait_item(lc);
        if (r != -EAGAIN)
            return r;
    }
}

int loaderd_cuda_next(struct loaderd_cuda *lc, struct CUstream_st *stream, struct loaderd_batch *batch) {
    struct buffer *b = NULL;
    struct scope scope;
    int r;
    if (lc->depth == 0)
        return refuse(lc, -EINVAL, "opened with LOADERD_CUDA_MANUAL: take batches by loaderd_next()");
    r = begin(lc, stream, &scope);
    if (r < 0)
        return r;
    device_range_push("loaderd next");
    pthread_mutex_lock(&lc->mutex);
    r = take_item(lc, &b);
    pthread_mutex_unlock(&lc->mutex);
    if (r == 1) {
        int waited = wait_on_stream(lc, stream, b->ready);
        if (waited == 0)
            *batch = b->batch;
        else
            r = refuse_device(lc, waited, "the stream cannot wait for the batch");
    }
    device_range_pop();
    leave(&scope);
    return r;
}

/* ---- release ------------------------------------------------------------------------------------------------------------- */

/* The buffer of a batch of ours that is held, or NULL. */
static struct buffer *find_buffer(struct loaderd_cuda *lc, const struct loaderd_batch *batch) {
    for (uint32_t i = 0; i < lc->depth; i++)
        if (batch->ring == &lc->buffer[i]) {
            pthread_mutex_lock(&lc->mutex);
            bool held = lc->buffer[i].state == BUFFER_HELD && lc->buffer[i].generation == batch->generation;
            pthread_mutex_unlock(&lc->mutex);
            return held ? &lc->buffer[i] : NULL;
        }
    return NULL;
}

static int release_buffer(struct loaderd_cuda *lc, struct CUstream_st *stream, struct buffer *b) {
    int r = device_event_record(b->done, stream);
    if (r < 0)
        return refuse_device(lc, r, "cannot note the end of the work on the batch");
    pthread_mutex_lock(&lc->mutex);
    b->state = BUFFER_RETURNED;
    b->returned = ++lc->returns;
    pthread_cond_signal(&lc->freed);
    pthread_mutex_unlock(&lc->mutex);
    return 0;
}

/* Gives the oldest host batch back; waits for its copy if need be. */
static int retire_pending(struct loaderd_cuda *lc) {
    struct pending *p = &lc->pending[lc->pending_first];
    int r = device_event_sync(p->done);
    if (r < 0)
        return refuse_device(lc, r, "a copy to the device failed");
    lc->pending_first = (lc->pending_first + 1) % lc->pending_size;
    lc->pending_length--;
    r = loaderd_release(lc->loader, &p->batch);
    return r < 0 ? refuse(lc, r, "%s", loaderd_error(lc->loader)) : 0;
}

/* Gives back what is done, and more until at most `most` are left. */
static int retire_pendings(struct loaderd_cuda *lc, uint32_t most) {
    int r = 0;
    while (r == 0 && lc->pending_length &&
           (lc->pending_length > most || device_event_done(lc->pending[lc->pending_first].done) == 1))
        r = retire_pending(lc);
    return r;
}

/* A host batch goes back when the stream has come so far. The daemon keeps two slots to fill. */
static int release_host(struct loaderd_cuda *lc, struct CUstream_st *stream, const struct loaderd_batch *batch) {
    uint32_t most = lc->pinning.slots > 3 ? lc->pinning.slots - 2 : 1;
    if (most > lc->pending_size)
        most = lc->pending_size;
    int r = retire_pendings(lc, most - 1);
    if (r < 0)
        return r;
    struct pending *p = &lc->pending[(lc->pending_first + lc->pending_length) % lc->pending_size];
    r = device_event_record(p->done, stream);
    if (r < 0)
        return refuse_device(lc, r, "cannot note the end of the copy");
    p->batch = *batch;
    lc->pending_length++;
    return 0;
}

int loaderd_cuda_release(struct loaderd_cuda *lc, struct CUstream_st *stream, const struct loaderd_batch *batch) {
    struct scope scope;
    int r = begin(lc, stream, &scope);
    if (r < 0)
        return r;
    device_range_push("loaderd release");
    struct buffer *b = find_buffer(lc, batch);
    if (b)
        r = release_buffer(lc, stream, b);
    else if (lc->depth == 0)
        r = release_host(lc, stream, batch);
    else
        r = refuse(lc, -EINVAL, "batch %llu is not held: it was released before, or belongs to another loader",
                   (unsigned long long)batch->sequence);
    device_range_pop();
    leave(&scope);
    return r;
}

/* ---- copy and finish ----------------------------------------------------------------------------------------------------- */

int loaderd_cuda_copy(struct loaderd_cuda *lc, struct CUstream_st *stream, const struct loaderd_batch *batch,
                      void *destination, uint64_t bytes) {
    struct scope scope;
    int r = begin(lc, stream, &scope);
    if (r < 0)
        return r;
    device_range_push("loaderd copy");
    struct buffer *b = find_buffer(lc, batch);
    if (bytes > batch->slot_bytes)
        r = refuse(lc, -EINVAL, "a copy of %llu bytes of a batch that has %llu", (unsigned long long)bytes,
                   (unsigned long long)batch->slot_bytes);
    else if (!b && lc->depth)
        r = refuse(lc, -EINVAL,
                   "batch %llu is none of loaderd_cuda_next() that is held; host batches need "
                   "LOADERD_CUDA_MANUAL",
                   (unsigned long long)batch->sequence);
    else if (!b)
        r = retire_pendings(lc, lc->pending_size);
    if (r == 0) {
        r = b ? device_copy_within(destination, b->slot, bytes, stream)
              : device_copy_in(destination, batch->slot, bytes, stream);
        if (r < 0)
            refuse_device(lc, r, "cannot copy the batch");
        else if (!b) {
            lc->statistics.copies++;
            lc->statistics.bytes += bytes;
        }
    }
    device_range_pop();
    leave(&scope);
    return r;
}

int loaderd_cuda_finish(struct loaderd_cuda *lc, struct CUstream_st *stream,
                        const struct loaderd_cuda_finish_spec *spec, const struct loaderd_field *source,
                        const uint8_t *flips, void *destination) {
    struct finish_job job;
    struct finish_table table;
    struct scope scope;
    int r = enter(lc, &scope);
    if (r < 0)
        return r;
    r = finish_prepare(spec, source, flips, destination, &job, &table, lc->error, sizeof lc->error);
    if (r < 0) {
        leave(&scope);
        return r;
    }
    r = device_finish(&job, &table, stream);
    if (r < 0)
        refuse_device(lc, r, "cannot finish the pictures");
    leave(&scope);
    return r;
}

/* ---- calls of libloaderd while the helper has the loader ------------------------------------------------------------ */

/* Takes over the loader's sentence; new ids mend the failure that asked for them. With the loader's mutex. */
static int64_t after_supply(struct loaderd_cuda *lc, int64_t r) {
    if (r < 0)
        return refuse(lc, (int)r, "%s", loaderd_error(lc->loader));
    pthread_mutex_lock(&lc->mutex);
    if (lc->failure == -EDEADLK && !lc->fatal) {
        lc->failure = 0;
        pthread_cond_signal(&lc->freed);
    }
    pthread_mutex_unlock(&lc->mutex);
    return r;
}

int64_t loaderd_cuda_supply(struct loaderd_cuda *lc, const uint64_t *ids, size_t count) {
    if (!loaderd_internal_is_mine(lc->loader))
        return refuse_child(lc);
    pthread_mutex_lock(&lc->loader_mutex);
    int64_t r = after_supply(lc, loaderd_supply(lc->loader, ids, count));
    pthread_mutex_unlock(&lc->loader_mutex);
    return r;
}

int loaderd_cuda_supply_end(struct loaderd_cuda *lc) {
    if (!loaderd_internal_is_mine(lc->loader))
        return refuse_child(lc);
    pthread_mutex_lock(&lc->loader_mutex);
    int r = (int)after_supply(lc, loaderd_supply_end(lc->loader));
    pthread_mutex_unlock(&lc->loader_mutex);
    return r;
}

int loaderd_cuda_sample_path(struct loaderd_cuda *lc, uint64_t sample, char *buffer, size_t size) {
    if (!loaderd_internal_is_mine(lc->loader))
        return refuse_child(lc);
    pthread_mutex_lock(&lc->loader_mutex);
    int r = loaderd_sample_path(lc->loader, sample, buffer, size);
    if (r < 0)
        refuse(lc, r, "%s", loaderd_error(lc->loader));
    pthread_mutex_unlock(&lc->loader_mutex);
    return r;
}

/* ---- for loaderctl bench ------------------------------------------------------------------------------------------------- */

/* Queues a step of a trainer: so many nanoseconds of a kernel. */
int loaderd_internal_cuda_busy(struct loaderd_cuda *lc, struct CUstream_st *stream, uint64_t nanoseconds);
int loaderd_internal_cuda_busy(struct loaderd_cuda *lc, struct CUstream_st *stream, uint64_t nanoseconds) {
    struct scope scope;
    int r = begin(lc, stream, &scope);
    if (r < 0)
        return r;
    r = device_busy(nanoseconds, stream);
    leave(&scope);
    return r < 0 ? refuse_device(lc, r, "cannot make a step") : 0;
}

/* Waits for all that the stream was given. */
int loaderd_internal_cuda_sync(struct loaderd_cuda *lc, struct CUstream_st *stream);
int loaderd_internal_cuda_sync(struct loaderd_cuda *lc, struct CUstream_st *stream) {
    struct scope scope;
    int r = begin(lc, stream, &scope);
    if (r < 0)
        return r;
    r = device_stream_sync(stream);
    leave(&scope);
    return r < 0 ? refuse_device(lc, r, "the work on the stream failed") : 0;
}

/* ---- what it knows ------------------------------------------------------------------------------------------------------- */

/* The host's own position, moved over the batches that are on their way back. */
static int manual_state(struct loaderd_cuda *lc, struct loaderd_state *ret) {
    int r = loaderd_state(lc->loader, ret);
    for (uint32_t i = 0; r == 0 && i < lc->pending_length; i++)
        for (uint32_t k = 0; k < lc->pending_length; k++) {
            const struct loaderd_batch *b = &lc->pending[(lc->pending_first + k) % lc->pending_size].batch;
            if (b->epoch == ret->epoch && b->step == ret->step) {
                ret->epoch += ret->step + 1 == lc->steps;
                ret->step = ret->step + 1 == lc->steps ? 0 : ret->step + 1;
            }
        }
    return r;
}

int loaderd_cuda_state(struct loaderd_cuda *lc, struct loaderd_state *ret) {
    if (!loaderd_internal_is_mine(lc->loader))
        return refuse_child(lc);
    if (lc->depth == 0)
        return manual_state(lc, ret);
    pthread_mutex_lock(&lc->mutex);
    uint64_t prefix = lc->statistics.batches;
    for (uint32_t i = 0; i < lc->depth; i++)
        if (lc->buffer[i].state == BUFFER_HELD && lc->buffer[i].number < prefix)
            prefix = lc->buffer[i].number;
    cuda_advance(lc, prefix, ret);
    pthread_mutex_unlock(&lc->mutex);
    return 0;
}

int loaderd_cuda_info(const struct loaderd_cuda *constant, struct loaderd_cuda_info *ret) {
    struct loaderd_cuda *lc = (struct loaderd_cuda *)(uintptr_t)constant;
    if (!loaderd_internal_is_mine(lc->loader))
        return refuse_child(lc);
    pthread_mutex_lock(&lc->mutex);
    const struct pinning *p = lc->depth ? &lc->shown : &lc->pinning;
    memcpy(lc->note, p->note, sizeof lc->note);
    *ret = (struct loaderd_cuda_info){.device = lc->device,
                                      .node = lc->node,
                                      .depth = lc->depth,
                                      .pinned = p->pinned,
                                      .pinned_bytes = p->bytes,
                                      .pin_ns = p->ns,
                                      .device_bytes = lc->device_bytes,
                                      .nfields = lc->info.nfields,
                                      .finished = lc->finished,
                                      .fields = lc->fields,
                                      .note = lc->note};
    pthread_mutex_unlock(&lc->mutex);
    return 0;
}

int loaderd_cuda_statistics(struct loaderd_cuda *lc, struct loaderd_cuda_statistics *ret) {
    struct scope scope;
    int r = enter(lc, &scope);
    if (r < 0)
        return r;
    collect_timings(lc);
    leave(&scope);
    pthread_mutex_lock(&lc->mutex);
    *ret = lc->statistics;
    if (lc->depth == 0)
        ret->rings = lc->pinning.rings;
    pthread_mutex_unlock(&lc->mutex);
    return 0;
}

const char *loaderd_cuda_error(const struct loaderd_cuda *lc) {
    return lc->error;
}

/* ---- open ---------------------------------------------------------------------------------------------------------------- */

/* The caller's struct may be an older one, or a newer one that asks for nothing new. */
static int copy_options(struct loaderd_cuda *lc, const struct loaderd_cuda_options *from,
                        struct loaderd_cuda_options *ret) {
    if (from->size < offsetof(struct loaderd_cuda_options, flags))
        return refuse(lc, -EINVAL, "options.size is %zu: begin with LOADERD_CUDA_OPTIONS_INIT", from->size);
    const unsigned char *bytes = (const unsigned char *)from;
    for (size_t i = sizeof *ret; i < from->size; i++)
        if (bytes[i])
            return refuse(lc, -EINVAL, "the options are of a newer libloaderd-cuda than this one (%s)",
                          loaderd_version());
    memcpy(ret, from, from->size < sizeof *ret ? from->size : sizeof *ret);
    return 0;
}

static int read_options(struct loaderd_cuda *lc, const struct loaderd_cuda_options *from,
                        struct loaderd_cuda_options *ret) {
    *ret = (struct loaderd_cuda_options)LOADERD_CUDA_OPTIONS_INIT;
    int r = from ? copy_options(lc, from, ret) : 0;
    if (r < 0)
        return r;
    if (ret->flags & ~(LOADERD_CUDA_REQUIRE_PINNED | LOADERD_CUDA_UNPINNED))
        return refuse(lc, -EINVAL, "options.flags has unknown bits: 0x%x", ret->flags);
    if (ret->flags == (LOADERD_CUDA_REQUIRE_PINNED | LOADERD_CUDA_UNPINNED))
        return refuse(lc, -EINVAL, "options.flags asks for pinned and for unpinned copies");
    if (ret->depth == 0)
        ret->depth = CUDA_DEFAULT_DEPTH;
    if (ret->depth != LOADERD_CUDA_MANUAL && (ret->depth < 2 || ret->depth > CUDA_MAX_DEPTH))
        return refuse(lc, -EINVAL, "options.depth is %u: at least 2 buffers, at most %u", ret->depth, CUDA_MAX_DEPTH);
    if (ret->finish.dtype && ret->depth == LOADERD_CUDA_MANUAL)
        return refuse(lc, -EINVAL, "with LOADERD_CUDA_MANUAL call loaderd_cuda_finish() instead of options.finish");
    return 0;
}

static bool is_picture(const struct loaderd_field *f) {
    return f->dtype == LOADERD_U8 && f->ndim == 4;
}

/* Which field is finished, and the shapes that come out. */
static int choose_finish(struct loaderd_cuda *lc, const struct loaderd_cuda_options *o) {
    struct finish_job job;
    struct finish_table table;
    const struct loaderd_info *info = &lc->info;
    lc->finish = o->finish;
    lc->finished = info->nfields;
    lc->fields = calloc(info->nfields, sizeof *lc->fields);
    if (!lc->fields)
        return refuse(lc, -ENOMEM, "no memory left");
    memcpy(lc->fields, info->fields, info->nfields * sizeof *lc->fields);
    if (!o->finish.dtype)
        return 0;
    for (uint32_t i = info->nfields; i-- > 0;)
        if (o->finish_field ? strcmp(info->fields[i].name, o->finish_field) == 0 : is_picture(&info->fields[i]))
            lc->finished = i;
    if (lc->finished == info->nfields)
        return refuse(lc, -EINVAL, "no field %s to finish",
                      o->finish_field ? o->finish_field : "of u8 pictures {rows, height, width, channels}");
    const struct loaderd_field *f = &info->fields[lc->finished];
    int r = finish_prepare(&lc->finish, f, NULL, NULL, &job, &table, lc->error, sizeof lc->error);
    if (r == 0)
        finish_field(&lc->finish, f, &lc->fields[lc->finished]);
    return r;
}

static int make_buffer(struct loaderd_cuda *lc, struct buffer *b) {
    uint64_t finished = lc->finished < lc->info.nfields ? lc->fields[lc->finished].bytes : 0;
    b->fields = calloc(lc->info.nfields, sizeof *b->fields);
    b->rows = calloc(lc->info.batch, sizeof *b->rows);
    if (!b->fields || !b->rows)
        return refuse(lc, -ENOMEM, "no memory left");
    int r = device_alloc(&b->slot, lc->slot_bytes);
    if (r == 0 && finished)
        r = device_alloc(&b->finished, finished);
    if (r < 0)
        return refuse(lc, r, "%u device buffers of %.1f MiB do not fit: %s", lc->depth,
                      (double)(lc->slot_bytes + finished) / 0x1p20, device_error());
    lc->device_bytes += lc->slot_bytes + finished;
    r = device_event_new(&b->ready, false);
    if (r == 0)
        r = device_event_new(&b->done, false);
    return r < 0 ? refuse_device(lc, r, "cannot make an event") : 0;
}

static int make_buffers(struct loaderd_cuda *lc) {
    int r = device_stream_new(&lc->stream);
    for (uint32_t i = 0; r == 0 && i < CUDA_TIMINGS; i++) {
        r = device_event_new(&lc->timing[i].before, true);
        if (r == 0)
            r = device_event_new(&lc->timing[i].after, true);
    }
    if (r < 0)
        return refuse_device(lc, r, "cannot make the copies' stream and events");
    lc->queue_size = 2 * lc->depth + 2;
    lc->buffer = calloc(lc->depth, sizeof *lc->buffer);
    lc->flight = calloc(lc->depth, sizeof *lc->flight);
    lc->queue = calloc(lc->queue_size, sizeof *lc->queue);
    if (!lc->buffer || !lc->flight || !lc->queue)
        return refuse(lc, -ENOMEM, "no memory left");
    for (uint32_t i = 0; r == 0 && i < lc->depth; i++)
        r = make_buffer(lc, &lc->buffer[i]);
    return r;
}

static int make_pending(struct loaderd_cuda *lc) {
    int r = 0;
    lc->pending_size = lc->pinning.slots > 3 ? lc->pinning.slots - 2 : 1;
    lc->pending = calloc(lc->pending_size, sizeof *lc->pending);
    if (!lc->pending)
        return refuse(lc, -ENOMEM, "no memory left");
    for (uint32_t i = 0; r == 0 && i < lc->pending_size; i++)
        r = device_event_new(&lc->pending[i].done, false);
    return r < 0 ? refuse_device(lc, r, "cannot make an event") : 0;
}

/* No signal of the trainer's is handled on the helper. */
static int start_helper(struct loaderd_cuda *lc) {
    sigset_t all, before;
    lc->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (lc->stop_fd < 0)
        return refuse(lc, -errno, "no descriptor left: %s", strerror(errno));
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int r = pthread_create(&lc->thread, NULL, cuda_helper, lc);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (r)
        return refuse(lc, -r, "cannot start the helper thread: %s", strerror(r));
    pthread_setname_np(lc->thread, "loaderd-cuda");
    lc->running = true;
    return 0;
}

/* The device is current. */
static int prepare(struct loaderd_cuda *lc, const struct loaderd_cuda_options *o) {
    const char *synthetic = getenv("LOADERD_SYNTHETIC");
    lc->synthetic = synthetic && *synthetic && strcmp(synthetic, "0") != 0;
    lc->flags = o->flags;
    lc->next_timeout_ms = o->next_timeout_ms ? o->next_timeout_ms : DEFAULT_NEXT_TIMEOUT_MS;
    lc->depth = o->depth == LOADERD_CUDA_MANUAL ? 0 : o->depth;
    lc->pinning = (struct pinning){.device = lc->device,
                                   .wanted = !(o->flags & LOADERD_CUDA_UNPINNED),
                                   .notify = o->notify,
                                   .notify_arg = o->notify_arg};
    int r = pinning_start(&lc->pinning, lc->loader);
    if (r < 0)
        return refuse(lc, r,
                      r == -EBUSY ? "the loader is on a device already, or pinned (loaderd_cuda_unpin)"
                                  : "cannot follow the loader's rings");
    if ((lc->flags & LOADERD_CUDA_REQUIRE_PINNED) && !lc->pinning.pinned)
        return refuse(lc, -EPERM, "%s", lc->pinning.note);
    if (!lc->pinning.wanted)
        snprintf(lc->pinning.note, sizeof lc->pinning.note, "unpinned copies were asked for");
    lc->shown = lc->pinning;
    lc->statistics.rings = lc->pinning.rings;
    lc->slot_bytes = lc->pinning.payload_bytes;
    r = loaderd_info(lc->loader, &lc->info);
    if (r == 0)
        r = loaderd_state(lc->loader, &lc->start);
    lc->steps = lc->info.steps_per_epoch;
    if (r == 0)
        r = choose_finish(lc, o);
    if (r == 0)
        r = lc->depth ? make_buffers(lc) : make_pending(lc);
    if (r == 0 && lc->depth)
        r = start_helper(lc);
    return r;
}

static struct loaderd_cuda *new_cuda(struct loaderd *loader, int device) {
    struct loaderd_cuda *lc = calloc(1, sizeof *lc);
    pthread_condattr_t monotonic;
    if (!lc)
        return NULL;
    lc->loader = loader;
    lc->device = device;
    device_uuid(device, lc->uuid);
    lc->node = loaderd_cuda_node(device);
    lc->node = lc->node < 0 ? -1 : lc->node;
    lc->stop_fd = -1;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&lc->loader_mutex, NULL);
    pthread_mutex_init(&lc->mutex, NULL);
    pthread_cond_init(&lc->filled, &monotonic);
    pthread_cond_init(&lc->freed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    return lc;
}

static int open_on(struct loaderd_cuda **ret, struct loaderd *loader, int device, const struct loaderd_cuda_options *o,
                   char *error, size_t size) {
    int mode;
    struct loaderd_cuda *lc = new_cuda(loader, device);
    if (!lc) {
        snprintf(error, size, "no memory left");
        return -ENOMEM;
    }
    device_relax_capture(&mode);
    int r = prepare(lc, o);
    device_restore_capture(mode);
    if (r == 0) {
        *ret = lc;
        return 0;
    }
    snprintf(error, size, "%s", *lc->error ? lc->error : loaderd_error(loader));
    loaderd_cuda_close(lc);
    return r;
}

int loaderd_cuda_open(struct loaderd_cuda **ret, struct loaderd *loader, const struct loaderd_cuda_options *options,
                      char *error, size_t error_size) {
    struct loaderd_cuda_options o;
    struct loaderd_cuda scratch; /* for a sentence only */
    int previous = -1, r;
    scratch.error[0] = '\0';
    r = read_options(&scratch, options, &o);
    if (r == 0 && !loaderd_internal_is_mine(loader))
        r = refuse_child(&scratch);
    if (r == 0) {
        r = device_enter(o.device, &previous);
        if (r < 0)
            refuse(&scratch, r, "%s", device_error());
        else
            r = open_on(ret, loader, r, &o, scratch.error, sizeof scratch.error);
        device_leave(previous);
    }
    if (r < 0 && error && error_size)
        snprintf(error, error_size, "%s", scratch.error);
    return r;
}

/* ---- close --------------------------------------------------------------------------------------------------------------- */

static void stop_helper(struct loaderd_cuda *lc) {
    const uint64_t one = 1;
    if (!lc->running)
        return;
    pthread_mutex_lock(&lc->mutex);
    lc->stop = true;
    pthread_cond_broadcast(&lc->freed);
    pthread_mutex_unlock(&lc->mutex);
    if (write(lc->stop_fd, &one, sizeof one) != sizeof one)
        lc->stop = true; /* it looks every 100 ms */
    pthread_join(lc->thread, NULL);
}

static void free_device_things(struct loaderd_cuda *lc) {
    if (lc->stream)
        device_stream_sync(lc->stream);
    for (uint32_t i = 0; lc->buffer && i < lc->depth; i++) {
        device_free(lc->buffer[i].slot);
        device_free(lc->buffer[i].finished);
        device_event_free(lc->buffer[i].ready);
        device_event_free(lc->buffer[i].done);
    }
    for (uint32_t i = 0; i < CUDA_TIMINGS; i++) {
        device_event_free(lc->timing[i].before);
        device_event_free(lc->timing[i].after);
    }
    for (uint32_t i = 0; lc->pending && i < lc->pending_size; i++)
        device_event_free(lc->pending[i].done);
    device_stream_free(lc->stream);
}

void loaderd_cuda_close(struct loaderd_cuda *lc) {
    struct scope scope = {-1, -1};
    if (!lc)
        return;
    if (loaderd_internal_is_mine(lc->loader)) {
        stop_helper(lc);
        device_relax_capture(&scope.mode);
        device_switch(lc->device, &scope.previous);
        retire_pendings(lc, 0);
        free_device_things(lc);
        leave(&scope);
    }
    if (pinning_is_set(&lc->pinning, lc->loader)) /* in a child: without a call of CUDA */
        pinning_stop(&lc->pinning, lc->loader);
    if (lc->stop_fd >= 0)
        close(lc->stop_fd);
    for (uint32_t i = 0; lc->buffer && i < lc->depth; i++) {
        free(lc->buffer[i].fields);
        free(lc->buffer[i].rows);
    }
    free(lc->buffer);
    free(lc->flight);
    free(lc->queue);
    free(lc->pending);
    free(lc->fields);
    free(lc);
}

/* ---- the device ---------------------------------------------------------------------------------------------------------- */

int loaderd_cuda_node(int32_t device) {
    char address[64], path[128];
    int previous, node = -1, r = device_count();
    if (r < 0)
        return r;
    if (device < 0 && (r = device_enter(device, &previous)) >= 0)
        device = r;
    r = device_pci_address(device, address, sizeof address);
    if (r < 0)
        return -ENODEV;
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%.60s/numa_node", address);
    FILE *f = fopen(path, "re");
    if (!f)
        return -ENODATA;
    r = fscanf(f, "%d", &node);
    fclose(f);
    return r == 1 && node >= 0 ? node : -ENODATA;
}

struct bandwidth {
    void *host, *device;
    struct CUstream_st *stream;
    struct CUevent_st *before, *after;
};

/* Copies back to back until enough time has passed; the first round only warms up. */
static int measure_bandwidth(struct bandwidth *b, uint64_t bytes, double *ret) {
    uint64_t rounds = 1, ns = 0;
    int r = 0;
    while (r == 0 && ns < BANDWIDTH_NS && rounds < UINT64_C(1) << 40) {
        rounds *= ns > BANDWIDTH_NS / 64 ? BANDWIDTH_NS * 3 / 2 / ns + 1 : 4;
        r = device_event_record(b->before, b->stream);
        for (uint64_t i = 0; r == 0 && i < rounds; i++)
            r = device_copy_in(b->device, b->host, bytes, b->stream);
        if (r == 0)
            r = device_event_record(b->after, b->stream);
        if (r == 0)
            r = device_event_sync(b->after);
        if (r == 0)
            r = device_event_elapsed_ns(b->before, b->after, &ns);
    }
    if (r == 0)
        *ret = ns ? (double)bytes * (double)rounds * 1e9 / (double)ns : 0;
    return r;
}

int loaderd_cuda_bandwidth(int32_t device, uint64_t bytes, double *ret, char *error, size_t error_size) {
    struct bandwidth b = {0};
    int previous, entered = device_enter(device, &previous), r = entered;
    if (r >= 0)
        r = bytes ? device_alloc_host(&b.host, bytes) : -EINVAL;
    if (r == 0) {
        memset(b.host, 1, bytes);
        r = device_alloc(&b.device, bytes);
    }
    if (r == 0)
        r = device_stream_new(&b.stream);
    if (r == 0)
        r = device_event_new(&b.before, true);
    if (r == 0)
        r = device_event_new(&b.after, true);
    if (r == 0)
        r = measure_bandwidth(&b, bytes, ret);
    if (r < 0 && error && error_size)
        snprintf(error, error_size, "%s", bytes ? device_error() : "0 bytes to copy");
    if (entered >= 0) {
        device_event_free(b.after);
        device_event_free(b.before);
        device_stream_free(b.stream);
        device_free(b.device);
        device_free_host(b.host);
        device_leave(previous);
    }
    return r < 0 ? r : 0;
}
