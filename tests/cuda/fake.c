/* SPDX-License-Identifier: MIT */
/*
 * A device without a device: client/cuda/device.h over one thread a stream, an in-order list of operations and host memory
 * that is filled with junk. Copies read the host's memory when their turn comes, as DMA does, so a slot that is given back
 * or unmapped too early is seen. Registrations are kept and checked: no overlap, mapped when made and when taken back.
 */
#include "gpu.h"

#include <check.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "../../client/cuda/device.h"

struct operation {
    struct operation *next;
    enum { COPY, ZERO, RECORD, WAIT, SLEEP, SUM, FINISH } kind;
    void *to;
    const void *from;
    uint64_t amount; /* bytes, microseconds, the number of the recording */
    struct CUevent_st *event;
    struct finish_job job;
    struct finish_table table;
};

struct CUstream_st {
    pthread_t thread;
    struct operation *first, **last;
    bool busy, stop, captured;
};

struct CUevent_st {
    uint64_t recorded, completed, when_ns;
    uint32_t uses; /* by its owner and by queued work */
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct gpu_faults faults = {.devices = 1, .registers_left = -1, .copies_left = -1};
static struct gpu_leaks leaks;
static int captures;
static struct {
    const uint8_t *base;
    size_t bytes;
} registered[256];
static _Thread_local int current;
static _Thread_local char message[200];

struct gpu_faults *gpu_faults(void) {
    return &faults;
}

struct gpu_leaks gpu_leaks(void) {
    return leaks;
}

const char *device_error(void) {
    return message;
}

static int refuse(int code, const char *text) {
    snprintf(message, sizeof message, "%s", text);
    return code;
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

/* ---- streams ----------------------------------------------------------------------------------------------------------- */

/* The scalar twin of the kernels. */
static void run_finish(const struct finish_job *j, const struct finish_table *t) {
    uint64_t image = (uint64_t)j->height * j->width * j->channels, rows = j->units / image;
    if (j->wide)
        rows = j->units * (j->planar ? 12 : 4) / image;
    uint8_t *out = j->destination;
    for (uint64_t row = 0; row < rows; row++)
        for (uint32_t y = 0; y < j->height; y++)
            for (uint32_t x = 0; x < j->width; x++)
                for (uint32_t c = 0; c < j->channels; c++) {
                    uint32_t flip = j->flips ? j->flips[row] : 0;
                    uint32_t sy = flip & 2 ? j->height - 1 - y : y, sx = flip & 1 ? j->width - 1 - x : x;
                    uint8_t v = j->source[row * image + ((uint64_t)sy * j->width + sx) * j->channels + c];
                    uint64_t to = j->planar ? ((row * j->channels + c) * j->height + y) * j->width + x
                                            : ((row * j->height + y) * j->width + x) * j->channels + c;
                    if (j->element == 4)
                        memcpy(out + to * 4, &t->value.f32[c][v], 4);
                    else if (j->element == 2)
                        memcpy(out + to * 2, &t->value.u16[c][v], 2);
                    else
                        out[to] = v;
                }
}

static void run(const struct operation *o) {
    uint64_t sum;
    if ((o->kind == COPY || o->kind == SLEEP) && (o->kind == SLEEP ? o->amount : faults.copy_us)) {
        uint64_t us = o->kind == SLEEP ? o->amount : faults.copy_us;
        nanosleep(&(struct timespec){.tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000 * 1000)}, NULL);
    }
    if (o->kind == COPY)
        memcpy(o->to, o->from, o->amount);
    else if (o->kind == ZERO)
        memset(o->to, 0, o->amount);
    else if (o->kind == FINISH)
        run_finish(&o->job, &o->table);
    else if (o->kind == SUM) {
        memcpy(&sum, o->to, sizeof sum);
        sum += gpu_sum_of(o->from, o->amount);
        memcpy(o->to, &sum, sizeof sum);
    }
}

/* With the mutex held. */
static void drop_use(struct CUevent_st *event) {
    if (--event->uses == 0)
        free(event);
}

static void *serve(void *arg) {
    struct CUstream_st *s = arg;
    pthread_mutex_lock(&mutex);
    for (;;) {
        struct operation *o = s->first;
        if (!o && s->stop)
            break;
        if (!o || (o->kind == WAIT && o->event->completed < o->amount)) {
            pthread_cond_wait(&changed, &mutex);
            continue;
        }
        s->busy = true;
        pthread_mutex_unlock(&mutex);
        run(o);
        pthread_mutex_lock(&mutex);
        if (o->kind == RECORD) {
            o->event->completed = o->amount;
            o->event->when_ns = now_ns();
        }
        s->first = o->next;
        if (!s->first)
            s->last = &s->first;
        s->busy = false;
        if (o->kind == RECORD || o->kind == WAIT)
            drop_use(o->event);
        free(o);
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&mutex);
    return NULL;
}

static struct CUstream_st default_stream;

static struct CUstream_st *resolve(struct CUstream_st *stream) {
    if (stream)
        return stream;
    pthread_mutex_lock(&mutex);
    if (!default_stream.last) {
        default_stream.last = &default_stream.first;
        pthread_create(&default_stream.thread, NULL, serve, &default_stream);
    }
    pthread_mutex_unlock(&mutex);
    return &default_stream;
}

static int queue(struct CUstream_st *stream, struct operation operation) {
    struct operation *o = malloc(sizeof *o);
    ck_assert_ptr_nonnull(o);
    *o = operation;
    o->next = NULL;
    stream = resolve(stream);
    pthread_mutex_lock(&mutex);
    ck_assert_msg(!stream->captured, "work on a stream that is being captured");
    if (o->kind == RECORD)
        o->amount = ++o->event->recorded;
    if (o->kind == WAIT)
        o->amount = o->event->recorded;
    if (o->kind == RECORD || o->kind == WAIT)
        o->event->uses++;
    *stream->last = o;
    stream->last = &o->next;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
    return 0;
}

int device_stream_new(struct CUstream_st **ret) {
    struct CUstream_st *s = calloc(1, sizeof *s);
    ck_assert_ptr_nonnull(s);
    s->last = &s->first;
    ck_assert_int_eq(pthread_create(&s->thread, NULL, serve, s), 0);
    pthread_mutex_lock(&mutex);
    leaks.streams++;
    pthread_mutex_unlock(&mutex);
    *ret = s;
    return 0;
}

void device_stream_free(struct CUstream_st *s) {
    if (!s)
        return;
    pthread_mutex_lock(&mutex);
    s->stop = true;
    leaks.streams--;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
    pthread_join(s->thread, NULL);
    free(s);
}

int device_stream_sync(struct CUstream_st *stream) {
    stream = resolve(stream);
    pthread_mutex_lock(&mutex);
    while (stream->first || stream->busy)
        pthread_cond_wait(&changed, &mutex);
    pthread_mutex_unlock(&mutex);
    return 0;
}

int device_stream_captured(struct CUstream_st *stream) {
    pthread_mutex_lock(&mutex);
    int captured = stream ? stream->captured : captures > 0;
    pthread_mutex_unlock(&mutex);
    return captured;
}

void device_relax_capture(int *mode) {
    *mode = 0;
}

void device_restore_capture(int mode) {
    (void)mode;
}

/* ---- devices ----------------------------------------------------------------------------------------------------------- */

int device_count(void) {
    return faults.devices > 0 ? faults.devices : refuse(-ENODEV, "no device: the test says so");
}

int device_switch(int device, int *ret_previous) {
    *ret_previous = current == device ? -1 : current;
    current = device;
    return 0;
}

int device_enter(int device, int *ret_previous) {
    int count = device_count();
    *ret_previous = -1;
    if (count < 0)
        return count;
    if (device >= count)
        return refuse(-ENODEV, "no such device");
    device = device < 0 ? current : device;
    device_switch(device, ret_previous);
    return device;
}

void device_leave(int previous) {
    if (previous >= 0)
        current = previous;
}

int device_pci_address(int device, char *buffer, size_t size) {
    snprintf(buffer, size, "0000:00:%02x.9", device);
    return 0;
}

void device_uuid(int device, uint8_t ret[16]) {
    for (int i = 0; i < 16; i++)
        ret[i] = (uint8_t)(0xa0 + i + device);
}

/* ---- memory ------------------------------------------------------------------------------------------------------------ */

int device_alloc(void **ret, size_t bytes) {
    *ret = malloc(bytes);
    ck_assert_ptr_nonnull(*ret);
    memset(*ret, 0xa5, bytes);
    pthread_mutex_lock(&mutex);
    leaks.allocations++;
    pthread_mutex_unlock(&mutex);
    return 0;
}

void device_free(void *memory) {
    pthread_mutex_lock(&mutex);
    leaks.allocations -= memory != NULL;
    pthread_mutex_unlock(&mutex);
    free(memory);
}

int device_alloc_host(void **ret, size_t bytes) {
    return device_alloc(ret, bytes);
}

void device_free_host(void *memory) {
    device_free(memory);
}

static bool is_mapped(const void *base, size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *resident = calloc(bytes / page + 1, 1);
    bool mapped = mincore((void *)(uintptr_t)base, bytes, resident) == 0;
    free(resident);
    return mapped;
}

int device_register(const void *base, size_t bytes) {
    const uint8_t *from = base;
    ck_assert_msg((uintptr_t)base % 4096 == 0 && bytes && is_mapped(base, bytes), "registering what is not mapped");
    if (faults.registers_left == 0)
        return refuse(-EPERM, "the test refuses it");
    pthread_mutex_lock(&mutex);
    if (faults.registers_left > 0)
        faults.registers_left--;
    size_t at = sizeof registered / sizeof registered[0];
    for (size_t i = 0; i < sizeof registered / sizeof registered[0]; i++) {
        if (!registered[i].base)
            at = i;
        else
            ck_assert_msg(from >= registered[i].base + registered[i].bytes || from + bytes <= registered[i].base,
                          "registered twice");
    }
    registered[at].base = base;
    registered[at].bytes = bytes;
    leaks.registrations++;
    pthread_mutex_unlock(&mutex);
    return 0;
}

int device_unregister(const void *base) {
    pthread_mutex_lock(&mutex);
    size_t at = 0;
    while (at < sizeof registered / sizeof registered[0] && registered[at].base != base)
        at++;
    ck_assert_msg(at < sizeof registered / sizeof registered[0], "unregistering what is not registered");
    ck_assert_msg(is_mapped(base, registered[at].bytes), "unmapped before it was unregistered");
    registered[at].base = NULL;
    leaks.registrations--;
    pthread_mutex_unlock(&mutex);
    return 0;
}

/* ---- events ------------------------------------------------------------------------------------------------------------ */

int device_event_new(struct CUevent_st **ret, bool timed) {
    (void)timed;
    *ret = calloc(1, sizeof **ret);
    ck_assert_ptr_nonnull(*ret);
    (*ret)->uses = 1;
    pthread_mutex_lock(&mutex);
    leaks.events++;
    pthread_mutex_unlock(&mutex);
    return 0;
}

/* As with CUDA, an event may go while work that needs it is queued: the last of that work frees it. */
void device_event_free(struct CUevent_st *event) {
    if (!event)
        return;
    pthread_mutex_lock(&mutex);
    leaks.events--;
    drop_use(event);
    pthread_mutex_unlock(&mutex);
}

int device_event_record(struct CUevent_st *event, struct CUstream_st *stream) {
    return queue(stream, (struct operation){.kind = RECORD, .event = event});
}

int device_event_done(struct CUevent_st *event) {
    pthread_mutex_lock(&mutex);
    int done = event->completed == event->recorded;
    pthread_mutex_unlock(&mutex);
    return done;
}

int device_event_sync(struct CUevent_st *event) {
    pthread_mutex_lock(&mutex);
    uint64_t wanted = event->recorded;
    while (event->completed < wanted)
        pthread_cond_wait(&changed, &mutex);
    pthread_mutex_unlock(&mutex);
    return 0;
}

int device_event_elapsed_ns(struct CUevent_st *from, struct CUevent_st *to, uint64_t *ret) {
    *ret = to->when_ns - from->when_ns;
    return 0;
}

int device_stream_wait(struct CUstream_st *stream, struct CUevent_st *event) {
    return queue(stream, (struct operation){.kind = WAIT, .event = event});
}

/* ---- work -------------------------------------------------------------------------------------------------------------- */

int device_copy_in(void *destination, const void *host, size_t bytes, struct CUstream_st *stream) {
    if (faults.copies_left == 0)
        return refuse(-EIO, "the test refuses the copy");
    if (faults.copies_left > 0)
        faults.copies_left--;
    return queue(stream, (struct operation){.kind = COPY, .to = destination, .from = host, .amount = bytes});
}

int device_copy_within(void *destination, const void *source, size_t bytes, struct CUstream_st *stream) {
    return queue(stream, (struct operation){.kind = COPY, .to = destination, .from = source, .amount = bytes});
}

int device_zero(void *destination, size_t bytes, struct CUstream_st *stream) {
    return queue(stream, (struct operation){.kind = ZERO, .to = destination, .amount = bytes});
}

int device_finish(const struct finish_job *job, const struct finish_table *table, struct CUstream_st *stream) {
    return queue(stream, (struct operation){.kind = FINISH, .job = *job, .table = *table});
}

int device_busy(uint64_t nanoseconds, struct CUstream_st *stream) {
    return queue(stream, (struct operation){.kind = SLEEP, .amount = nanoseconds / 1000});
}

void device_range_push(const char *name) {
    (void)name;
}

void device_range_pop(void) {
}

/* ---- gpu.h ------------------------------------------------------------------------------------------------------------- */

bool gpu_is_fake(void) {
    return true;
}

int gpu_devices(void) {
    return faults.devices;
}

void gpu_use(int device) {
    current = device;
}

struct CUstream_st *gpu_stream_new(void) {
    struct CUstream_st *s;
    device_stream_new(&s);
    return s;
}

void gpu_stream_free(struct CUstream_st *stream) {
    device_stream_free(stream);
}

void gpu_sync(struct CUstream_st *stream) {
    device_stream_sync(stream);
}

void *gpu_alloc(size_t bytes) {
    void *p;
    device_alloc(&p, bytes);
    return p;
}

void gpu_free(void *memory) {
    device_free(memory);
}

void gpu_slow(struct CUstream_st *stream, uint64_t microseconds) {
    queue(stream, (struct operation){.kind = SLEEP, .amount = microseconds});
}

void gpu_sum(struct CUstream_st *stream, const void *bytes, size_t count, uint64_t *ret_on_device) {
    queue(stream, (struct operation){.kind = SUM, .to = ret_on_device, .from = bytes, .amount = count});
}

void gpu_upload(void *device, const void *host, size_t bytes) {
    memcpy(device, host, bytes);
}

void gpu_download(void *host, const void *device, size_t bytes, struct CUstream_st *stream) {
    device_stream_sync(stream);
    memcpy(host, device, bytes);
}

void gpu_zero(void *device, size_t bytes) {
    memset(device, 0, bytes);
}

void gpu_capture_begin(struct CUstream_st *stream) {
    pthread_mutex_lock(&mutex);
    stream->captured = true;
    captures++;
    pthread_mutex_unlock(&mutex);
}

void gpu_capture_end(struct CUstream_st *stream) {
    pthread_mutex_lock(&mutex);
    stream->captured = false;
    captures--;
    pthread_mutex_unlock(&mutex);
}

int gpu_trivial(void) {
    return 0;
}
