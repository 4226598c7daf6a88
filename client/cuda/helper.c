/* SPDX-License-Identifier: MIT */
/*
 * The helper thread of libloaderd-cuda: takes batches from the loader, queues their copies into free device buffers, gives
 * slots back as soon as their copy is done. It owns the loader, and sleeps in one of three ways: on an event of the device,
 * on the loader's descriptor, or on a condition for a buffer. Each time it sleeps it notes on whom (statistics).
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../ring_hooks.h"
#include "internal.h"

#define POLL_MS 100 /* abi/ring.h: every sleeper looks again by itself that often */

uint64_t cuda_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

void cuda_advance(const struct loaderd_cuda *lc, uint64_t count, struct loaderd_state *ret) {
    struct loaderd_state state = lc->start;
    uint64_t absolute = state.step + count;
    state.epoch += absolute / lc->steps;
    state.step = absolute % lc->steps;
    *ret = state;
}

/* ---- what the caller sees ---------------------------------------------------------------------------------------------- */

static void push(struct loaderd_cuda *lc, enum item_kind kind, uint32_t buffer) {
    lc->queue[(lc->queue_first + lc->queue_length++) % lc->queue_size] = (struct item){kind, buffer};
    pthread_cond_signal(&lc->filled);
}

/* The caller is told when it has taken what came before. */
static void fail(struct loaderd_cuda *lc, int code, bool fatal, const char *what, const char *text) {
    pthread_mutex_lock(&lc->mutex);
    lc->failure = code;
    lc->fatal = fatal;
    snprintf(lc->failure_text, sizeof lc->failure_text, "%s%s", what, text);
    pthread_cond_signal(&lc->filled);
    pthread_mutex_unlock(&lc->mutex);
}

/* Until the caller has heard of a failure, or for good. */
static void wait_failure(struct loaderd_cuda *lc) {
    pthread_mutex_lock(&lc->mutex);
    while (lc->failure && !lc->stop)
        pthread_cond_wait(&lc->freed, &lc->mutex);
    pthread_mutex_unlock(&lc->mutex);
}

static bool is_stopped(struct loaderd_cuda *lc) {
    pthread_mutex_lock(&lc->mutex);
    bool stop = lc->stop;
    pthread_mutex_unlock(&lc->mutex);
    return stop;
}

/* ---- statistics -------------------------------------------------------------------------------------------------------- */

/* A whole batch lies on the device and nobody has taken it. */
static bool trainer_has_one(const struct loaderd_cuda *lc) {
    for (uint32_t i = 0; i < lc->depth; i++)
        if (lc->buffer[i].state == BUFFER_FILLED && !lc->buffer[i].in_flight)
            return true;
    return false;
}

/* Time slept since `start`, by the one who was waited for; the trainer, if it had a batch all the same. */
static void account(struct loaderd_cuda *lc, uint64_t start, uint64_t *counter) {
    uint64_t ns = cuda_now_ns() - start;
    pthread_mutex_lock(&lc->mutex);
    *(trainer_has_one(lc) ? &lc->statistics.trainer_ns : counter) += ns;
    pthread_mutex_unlock(&lc->mutex);
}

/* ---- copies in flight -------------------------------------------------------------------------------------------------- */

static void give_back(struct loaderd_cuda *lc, const struct loaderd_batch *host) {
    pthread_mutex_lock(&lc->loader_mutex);
    loaderd_release(lc->loader, host);
    pthread_mutex_unlock(&lc->loader_mutex);
}

/* The oldest copy is done: its slot goes back. */
static void retire(struct loaderd_cuda *lc) {
    struct buffer *b = &lc->buffer[lc->flight[lc->flight_first]];
    lc->flight_first = (lc->flight_first + 1) % lc->depth;
    lc->flight_length--;
    pthread_mutex_lock(&lc->mutex);
    b->in_flight = false;
    pthread_mutex_unlock(&lc->mutex);
    if (!lc->synthetic)
        give_back(lc, &b->host);
}

static bool oldest_is_done(const struct loaderd_cuda *lc) {
    return lc->flight_length && device_event_done(lc->buffer[lc->flight[lc->flight_first]].ready) != 0;
}

static void wait_oldest(struct loaderd_cuda *lc) {
    uint64_t start = cuda_now_ns();
    int r = device_event_sync(lc->buffer[lc->flight[lc->flight_first]].ready);
    account(lc, start, &lc->statistics.copy_ns);
    retire(lc);
    if (r < 0)
        fail(lc, r, true, "a copy to the device failed: ", device_error());
}

/* ---- buffers ----------------------------------------------------------------------------------------------------------- */

/* A free buffer, else the one that was returned first, else NULL. */
static struct buffer *pick(struct loaderd_cuda *lc) {
    struct buffer *best = NULL;
    pthread_mutex_lock(&lc->mutex);
    for (uint32_t i = 0; i < lc->depth; i++) {
        struct buffer *b = &lc->buffer[i];
        if (b->state == BUFFER_FREE) {
            best = b;
            break;
        }
        if (b->state == BUFFER_RETURNED && (!best || b->returned < best->returned))
            best = b;
    }
    pthread_mutex_unlock(&lc->mutex);
    return best;
}

/* The caller's work on it is over, and its own copy has been seen to end. */
static bool is_usable(const struct buffer *b) {
    return !b->in_flight && (b->state == BUFFER_FREE || device_event_done(b->done) != 0);
}

static void wait_buffer(struct loaderd_cuda *lc) {
    uint64_t start = cuda_now_ns();
    pthread_mutex_lock(&lc->mutex);
    bool none = true;
    while (none && !lc->stop) {
        for (uint32_t i = 0; i < lc->depth; i++)
            none = none && (lc->buffer[i].state == BUFFER_FILLED || lc->buffer[i].state == BUFFER_HELD);
        if (none)
            pthread_cond_wait(&lc->freed, &lc->mutex);
    }
    lc->statistics.trainer_ns += cuda_now_ns() - start;
    pthread_mutex_unlock(&lc->mutex);
}

static void wait_done(struct loaderd_cuda *lc, struct buffer *b) {
    uint64_t start = cuda_now_ns();
    int r = device_event_sync(b->done);
    account(lc, start, &lc->statistics.trainer_ns);
    if (r < 0)
        fail(lc, r, true, "the work of the trainer on the device failed: ", device_error());
}

/* ---- batches from the loader --------------------------------------------------------------------------------------------- */

/* The one real batch again, under the next number. */
static int fetch_synthetic(struct loaderd_cuda *lc, struct loaderd_batch *ret) {
    struct loaderd_state at;
    if (lc->end_due) {
        lc->end_due = false;
        return 0;
    }
    cuda_advance(lc, lc->filled_count, &at);
    *ret = lc->real;
    ret->epoch = at.epoch;
    ret->step = at.step;
    ret->sequence += lc->filled_count;
    ret->flags = at.step + 1 == lc->steps ? ret->flags | LOADERD_BATCH_LAST : ret->flags & ~LOADERD_BATCH_LAST;
    lc->end_due = at.step + 1 == lc->steps;
    return 1;
}

/* For the daemon's verdict and its flight recorder. What the helper waited for data counts only while the trainer had none. */
static void tell_device(struct loaderd_cuda *lc) {
    pthread_mutex_lock(&lc->mutex);
    struct loaderd_device_words words = {.waited_ns = lc->statistics.data_ns - lc->told_data_ns,
                                         .call_wait_ns = lc->statistics.wait_ns,
                                         .stream_wait_ns = lc->statistics.stream_wait_ns};
    lc->told_data_ns = lc->statistics.data_ns;
    pthread_mutex_unlock(&lc->mutex);
    memcpy(words.uuid, lc->uuid, sizeof words.uuid);
    loaderd_internal_tell_device(lc->loader, &words);
}

static int fetch(struct loaderd_cuda *lc, struct loaderd_batch *ret) {
    if (lc->has_real)
        return fetch_synthetic(lc, ret);
    int r = loaderd_try_next(lc->loader, ret);
    if (r == 1)
        tell_device(lc);
    if (r == 1 && lc->filled_count == 0) { /* the caller may have held batches when it handed the loader over */
        pthread_mutex_lock(&lc->mutex);
        lc->start.epoch = ret->epoch;
        lc->start.step = ret->step;
        pthread_mutex_unlock(&lc->mutex);
    }
    if (r == 1 && lc->synthetic) {
        lc->real = *ret;
        lc->has_real = true;
        lc->end_due = (ret->flags & LOADERD_BATCH_LAST) != 0;
    }
    return r;
}

/* Views of the batch as it will be on the device. */
static void describe(struct loaderd_cuda *lc, struct buffer *b) {
    const struct loaderd_batch *host = &b->host;
    for (uint32_t i = 0; i < lc->info.nfields; i++) {
        uint64_t offset = (uint64_t)((const uint8_t *)host->fields[i].data - (const uint8_t *)host->slot);
        b->fields[i] = lc->fields[i];
        b->fields[i].data = i == lc->finished ? b->finished : (uint8_t *)b->slot + offset;
    }
    memcpy(b->rows, host->row, lc->info.batch * sizeof *b->rows);
    b->generation = ++lc->generation;
    b->batch = *host;
    b->batch.fields = b->fields;
    b->batch.row = b->rows;
    b->batch.slot = b->slot;
    b->batch.generation = b->generation;
    b->batch.ring = b;
}

/* Rows that the daemon would have left zero are zero, whatever a u8 zero becomes. */
static int zero_rows(const struct loaderd_cuda *lc, struct buffer *b) {
    const struct loaderd_field *f = &lc->fields[lc->finished];
    uint64_t row_bytes = f->bytes / (uint64_t)f->dims[0];
    uint8_t *finished = b->finished;
    uint32_t rows = b->host.rows < lc->info.batch ? b->host.rows : lc->info.batch;
    int r = 0;
    for (uint32_t row = 0; row < rows && r == 0; row++)
        if (b->rows[row].status & LOADERD_ROW_BLANK)
            r = device_zero(finished + row * row_bytes, row_bytes, lc->stream);
    if (r == 0 && rows < lc->info.batch)
        r = device_zero(finished + rows * row_bytes, (lc->info.batch - rows) * row_bytes, lc->stream);
    return r;
}

static int finish(const struct loaderd_cuda *lc, struct buffer *b) {
    struct finish_job job;
    struct finish_table table;
    char text[256];
    struct loaderd_field source = b->host.fields[lc->finished];
    source.data = (uint8_t *)b->slot + ((const uint8_t *)source.data - (const uint8_t *)b->host.slot);
    int r = finish_prepare(&lc->finish, &source, NULL, b->finished, &job, &table, text, sizeof text);
    if (r == 0)
        r = device_finish(&job, &table, lc->stream);
    return r == 0 ? zero_rows(lc, b) : r;
}

/* Queues the copy of b->host. */
static int queue_copy(struct loaderd_cuda *lc, struct buffer *b) {
    device_range_push("loaderd copy");
    int r = device_copy_in(b->slot, b->host.slot, b->host.slot_bytes, lc->stream);
    describe(lc, b);
    if (r == 0 && lc->finished < lc->info.nfields)
        r = finish(lc, b);
    if (r == 0)
        r = device_event_record(b->ready, lc->stream);
    device_range_pop();
    return r;
}

static void start_copy(struct loaderd_cuda *lc, struct buffer *b, const struct loaderd_batch *host) {
    b->host = *host;
    int r = host->slot_bytes <= lc->slot_bytes ? queue_copy(lc, b) : -EPROTO;
    if (r < 0) {
        fail(lc, r, true, "cannot copy a batch to the device: ", r == -EPROTO ? "it has grown" : device_error());
        device_stream_sync(lc->stream);
        if (!lc->synthetic)
            give_back(lc, host);
        return;
    }
    lc->flight[(lc->flight_first + lc->flight_length++) % lc->depth] = (uint32_t)(b - lc->buffer);
    pthread_mutex_lock(&lc->mutex);
    b->number = lc->filled_count++;
    b->state = BUFFER_FILLED;
    b->in_flight = true;
    lc->statistics.copies++;
    lc->statistics.bytes += host->slot_bytes;
    lc->statistics.rings = lc->pinning.rings;
    lc->shown = lc->pinning;
    push(lc, ITEM_BATCH, (uint32_t)(b - lc->buffer));
    pthread_mutex_unlock(&lc->mutex);
}

/* The loader said that an epoch is over; twice in a row: everything. */
static void end_epoch(struct loaderd_cuda *lc) {
    pthread_mutex_lock(&lc->mutex);
    if (lc->epoch_ended)
        lc->over = true;
    else
        push(lc, ITEM_END, 0);
    pthread_cond_signal(&lc->filled);
    pthread_mutex_unlock(&lc->mutex);
    lc->epoch_ended = true;
}

/* What the loader has: as fetch(); a failure is passed on before the caller may mend it (loaderd_cuda_supply). */
static int ask_loader(struct loaderd_cuda *lc, struct loaderd_batch *ret) {
    pthread_mutex_lock(&lc->loader_mutex);
    int r = fetch(lc, ret);
    if (r < 0 && r != -EAGAIN && !(r == -EBUSY && lc->flight_length))
        fail(lc, r, r == -EBUSY, "", loaderd_error(lc->loader));
    pthread_mutex_unlock(&lc->loader_mutex);
    return r;
}

/* True where something was done: a copy queued, an end or a failure noted. False: nothing can be had now. */
static bool feed(struct loaderd_cuda *lc, struct buffer *b) {
    struct loaderd_batch host;
    int r = ask_loader(lc, &host);
    if (r == 1 && (lc->flags & LOADERD_CUDA_REQUIRE_PINNED) && !lc->pinning.pinned) {
        fail(lc, -EPERM, true, "after the daemon came back ", lc->pinning.note);
    } else if (r == 1) {
        lc->epoch_ended = false;
        start_copy(lc, b, &host);
    } else if (r == 0) {
        end_epoch(lc);
    }
    return r != -EAGAIN && !(r == -EBUSY && lc->flight_length);
}

static void wait_data(struct loaderd_cuda *lc, int fd) {
    uint64_t start = cuda_now_ns();
    struct pollfd items[2] = {{.fd = fd, .events = POLLIN}, {.fd = lc->stop_fd, .events = POLLIN}};
    poll(items, 2, POLL_MS);
    account(lc, start, &lc->statistics.data_ns);
}

static bool is_over(struct loaderd_cuda *lc) {
    pthread_mutex_lock(&lc->mutex);
    bool over = lc->over;
    pthread_mutex_unlock(&lc->mutex);
    return over;
}

static void wait_stop(struct loaderd_cuda *lc) {
    struct pollfd item = {.fd = lc->stop_fd, .events = POLLIN};
    while (!is_stopped(lc))
        poll(&item, 1, -1);
}

/* One thing that can be done now, or one sleep. */
static void work(struct loaderd_cuda *lc, int fd) {
    while (oldest_is_done(lc))
        retire(lc);
    struct buffer *b = pick(lc);
    bool usable = b && is_usable(b);
    if (usable && feed(lc, b))
        return;
    if (lc->flight_length)
        wait_oldest(lc);
    else if (!b)
        wait_buffer(lc);
    else if (!usable)
        wait_done(lc, b);
    else
        wait_data(lc, fd);
}

void *cuda_helper(void *arg) {
    struct loaderd_cuda *lc = arg;
    int previous, mode, fd = loaderd_fd(lc->loader);
    device_relax_capture(&mode);
    if (fd < 0)
        fail(lc, fd, true, "", loaderd_error(lc->loader));
    else if (device_switch(lc->device, &previous) < 0)
        fail(lc, -ENODEV, true, "", device_error());
    while (!is_stopped(lc) && !is_over(lc)) {
        wait_failure(lc);
        if (!is_stopped(lc))
            work(lc, fd);
    }
    while (lc->flight_length)
        wait_oldest(lc);
    wait_stop(lc);
    if (lc->has_real)
        loaderd_release(lc->loader, &lc->real);
    return NULL;
}
