/* SPDX-License-Identifier: MIT */
/* Consumer side of a ring: see consumer.h. No system call outside attach and detach; allocates only in attach. */
#include "consumer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define SPIN_TURNS 200 /* looks before sleeping: 4 to 10 microseconds */

static int refuse(char *error, size_t size, int code, const char *what, uint64_t found) {
    if (error && size)
        snprintf(error, size, "the daemon's ring is not one of ours: %s is %llu", what, (unsigned long long)found);
    return code;
}

/* Every word that an address is computed from, against the size that the kernel says. */
static int check_header(const struct loaderd_ring_header *h, uint64_t bytes, char *error, size_t size) {
    if (h->magic != LOADERD_RING_MAGIC)
        return refuse(error, size, -EPROTO, "its magic", h->magic);
    if (h->version != LOADERD_RING_VERSION)
        return refuse(error, size, -EPROTO, "its version", h->version);
    if (h->total_bytes != bytes)
        return refuse(error, size, -EPROTO, "its size", h->total_bytes);
    if (h->slots < LOADERD_RING_MIN_SLOTS || h->slots > LOADERD_RING_MAX_SLOTS)
        return refuse(error, size, -EPROTO, "its number of slots", h->slots);
    if (h->batch == 0 || h->row_bytes != sizeof(struct loaderd_row))
        return refuse(error, size, -EPROTO, "its row size", h->row_bytes);
    if (h->nfields == 0 || h->nfields > LOADERD_MAX_FIELDS)
        return refuse(error, size, -EPROTO, "its number of fields", h->nfields);
    if (h->slot_offset < sizeof *h || h->slot_offset > bytes || h->slot_stride > (bytes - h->slot_offset) / h->slots ||
        h->payload_offset < sizeof(struct loaderd_slot_header) + (uint64_t)h->batch * sizeof(struct loaderd_row) ||
        h->payload_offset > h->slot_stride || h->payload_bytes > h->slot_stride - h->payload_offset)
        return refuse(error, size, -EPROTO, "its slot stride", h->slot_stride);
    if (h->steps_per_epoch == 0)
        return refuse(error, size, -EPROTO, "its number of steps", 0);
    for (uint32_t i = 0; i < h->nfields; i++) {
        const struct loaderd_ring_field *f = &h->fields[i];
        uint64_t want = loaderd_dtype_size(f->dtype);
        for (uint32_t d = 0; d < f->ndim && d < LOADERD_MAX_DIMS; d++)
            if (f->dims[d] < 0 || __builtin_mul_overflow(want, (uint64_t)f->dims[d], &want))
                return refuse(error, size, -EPROTO, "a dimension", (uint64_t)f->dims[d]);
        if (f->ndim < 1 || f->ndim > LOADERD_MAX_DIMS || f->bytes != want || f->bytes > h->payload_bytes ||
            f->offset > h->payload_bytes - f->bytes || memchr(f->name, 0, sizeof f->name) == NULL)
            return refuse(error, size, -EPROTO, "a field's size", f->bytes);
    }
    return 0;
}

/* Fills `views`: where each field of each slot is. */
static void make_views(struct consumer *c) {
    for (uint32_t s = 0; s < c->slots; s++)
        for (uint32_t i = 0; i < c->nfields; i++) {
            const struct loaderd_ring_field *f = &c->header->fields[i];
            struct loaderd_field *v = &c->views[(size_t)s * c->nfields + i];
            v->name = f->name;
            v->dtype = f->dtype;
            v->ndim = f->ndim;
            memcpy(v->dims, f->dims, sizeof v->dims);
            v->bytes = f->bytes;
            v->data = c->slots_base + s * c->slot_stride + c->payload_offset + f->offset;
            if (s == 0) {
                c->fields[i] = *v;
                c->fields[i].data = NULL;
            }
        }
}

static int check_control(const struct consumer *c, char *error, size_t size) {
    uint64_t words = c->header->slots * sizeof(uint64_t);
    if (c->control_bytes < sizeof *c->control + words)
        return refuse(error, size, -EPROTO, "its control area's size", c->control_bytes);
    if (c->control->magic != LOADERD_CONTROL_MAGIC)
        return refuse(error, size, -EPROTO, "its control area's magic", c->control->magic);
    if (c->control->release_offset % sizeof(uint64_t) || c->control->release_offset > c->control_bytes - words)
        return refuse(error, size, -EPROTO, "the place of its release words", c->control->release_offset);
    uint64_t offset = c->control->ids_offset, capacity = c->control->ids_capacity;
    if (capacity && (offset % sizeof(uint64_t) || offset > c->control_bytes ||
                     capacity > (c->control_bytes - offset) / sizeof(uint64_t)))
        return refuse(error, size, -EPROTO, "the place of its id queue", offset);
    offset = c->control->waited_offset;
    capacity = c->control->waited_capacity;
    if (capacity && (offset % sizeof(uint64_t) || offset > c->control_bytes ||
                     capacity > (c->control_bytes - offset) / sizeof(uint64_t)))
        return refuse(error, size, -EPROTO, "the place of its waiting times", offset);
    return 0;
}

/* From mappings to a consumer; on failure the mappings stay where they are. */
static int bind(struct consumer *c, char *error, size_t size) {
    int r = check_header(c->header, c->data_bytes, error, size);
    if (r == 0)
        r = check_control(c, error, size);
    if (r < 0)
        return r;
    const struct loaderd_ring_header *h = c->header;
    c->release = (_Atomic uint64_t *)((uint8_t *)c->control + c->control->release_offset);
    c->ids_capacity = c->control->ids_capacity;
    if (c->ids_capacity)
        c->ids = (_Atomic uint64_t *)((uint8_t *)c->control + c->control->ids_offset);
    c->waited_capacity = c->control->waited_capacity;
    if (c->waited_capacity)
        c->waited = (_Atomic uint64_t *)((uint8_t *)c->control + c->control->waited_offset);
    c->slots = h->slots;
    c->batch = h->batch;
    c->nfields = h->nfields;
    c->slots_base = (const uint8_t *)h + h->slot_offset;
    c->slot_stride = h->slot_stride;
    c->payload_offset = h->payload_offset;
    c->payload_bytes = h->payload_bytes;
    c->sequences = h->sequences;
    c->held = calloc(c->slots, sizeof *c->held);
    c->fields = calloc(c->nfields, sizeof *c->fields);
    c->views = calloc((size_t)c->slots * c->nfields, sizeof *c->views);
    if (!c->held || !c->fields || !c->views)
        return -ENOMEM;
    make_views(c);
    return 0;
}

static int map_fd(int fd, int protection, size_t least, void **ret_map, size_t *ret_bytes) {
    struct stat st;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (st.st_size < (off_t)least)
        return -EPROTO;
    void *map = mmap(NULL, (size_t)st.st_size, protection, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        return -errno;
    *ret_map = map;
    *ret_bytes = (size_t)st.st_size;
    return 0;
}

int consumer_attach(struct consumer *ret, int data_fd, int control_fd, char *error, size_t error_size) {
    struct consumer c = {.mapped = true};
    void *data = NULL, *control = NULL;
    if (error && error_size)
        error[0] = '\0';
    int r = map_fd(data_fd, PROT_READ, sizeof *c.header, &data, &c.data_bytes);
    if (r == 0)
        r = map_fd(control_fd, PROT_READ | PROT_WRITE, sizeof *c.control, &control, &c.control_bytes);
    c.header = data;
    c.control = control;
    if (r == 0)
        r = bind(&c, error, error_size);
    if (r < 0) {
        if (error && error_size && !error[0])
            snprintf(error, error_size, "cannot map the daemon's ring: %s", strerror(-r));
        consumer_detach(&c);
        return r;
    }
    *ret = c;
    return 0;
}

int consumer_bind(struct consumer *ret, const void *data, size_t data_bytes, void *control, size_t control_bytes,
                  char *error, size_t error_size) {
    struct consumer c = {.header = data, .data_bytes = data_bytes, .control = control, .control_bytes = control_bytes};
    int r = bind(&c, error, error_size);
    if (r < 0)
        consumer_detach(&c);
    else
        *ret = c;
    return r;
}

void consumer_start(struct consumer *c, uint64_t sequence) {
    c->next = c->prefix = sequence;
    atomic_store_explicit(&c->control->popped, sequence, memory_order_relaxed);
}

bool consumer_detached(const struct consumer *c) {
    atomic_thread_fence(memory_order_acquire); /* what was read of a batch was read before */
    return atomic_load(&c->control->detached) != 0;
}

void consumer_detach(struct consumer *c) {
    if (c->mapped && c->header)
        munmap((void *)(uintptr_t)c->header, c->data_bytes);
    if (c->mapped && c->control)
        munmap(c->control, c->control_bytes);
    free(c->held);
    free(c->fields);
    free(c->views);
    *c = (struct consumer){0};
}

static const struct loaderd_slot_header *slot_of(const struct consumer *c, uint64_t sequence) {
    return (const struct loaderd_slot_header *)(c->slots_base + (sequence % c->slots) * c->slot_stride);
}

/* The word lives in read-only memory: a plain load, never a read-modify-write. */
static uint64_t published(const struct consumer *c, uint64_t sequence, memory_order order) {
    return atomic_load_explicit(&((struct loaderd_slot_header *)(uintptr_t)slot_of(c, sequence))->published, order);
}

int consumer_try(struct consumer *c, struct loaderd_batch *ret, const char **ret_message) {
    if (c->next >= c->sequences)
        return -ENODATA;
    uint32_t slot = (uint32_t)(c->next % c->slots);
    if (c->held[slot])
        return -EBUSY;
    /* pairs with the daemon's exchange in ring_publish(): the whole slot is visible */
    if (published(c, c->next, memory_order_acquire) != c->next + 1)
        return 0;
    const struct loaderd_slot_header *h = slot_of(c, c->next);
    if (h->error) {
        *ret_message = h->message;
        return h->error < 0 ? h->error : -EIO;
    }
    *ret = (struct loaderd_batch){.epoch = h->epoch,
                                  .step = h->step,
                                  .sequence = c->next,
                                  .rows = h->rows,
                                  .valid = h->valid,
                                  .flags = h->flags,
                                  .nfields = c->nfields,
                                  .fields = &c->views[(size_t)slot * c->nfields],
                                  .row = (const struct loaderd_row *)(h + 1),
                                  .slot = (const uint8_t *)h + c->payload_offset,
                                  .slot_bytes = c->payload_bytes,
                                  .generation = c->header->generation,
                                  .ring = c};
    c->held[slot] = c->next + 1;
    if (c->waited)
        atomic_store_explicit(&c->waited[c->next % c->waited_capacity], 0, memory_order_relaxed);
    c->next++;
    atomic_store_explicit(&c->control->popped, c->next, memory_order_release);
    return 1;
}

void consumer_waited(struct consumer *c, uint64_t ns) {
    if (c->waited && c->next)
        atomic_store_explicit(&c->waited[(c->next - 1) % c->waited_capacity], ns, memory_order_relaxed);
}

bool consumer_spin(const struct consumer *c) {
    for (int turn = 0; turn < SPIN_TURNS; turn++) {
        if (published(c, c->next, memory_order_relaxed) == c->next + 1)
            return true;
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("isb"); /* as long as a pause of x86; yield is nothing there */
#endif
    }
    return false;
}

static uint64_t wake_at(const struct consumer *c) {
    return atomic_load(&((struct loaderd_ring_header *)(uintptr_t)c->header)->wake_at);
}

bool consumer_announce(struct consumer *c, bool *ret_kick) {
    *ret_kick = false;
    /* seq_cst exchange then seq_cst load, as the daemon does with its own two words: one of both sees the other */
    atomic_exchange(&c->control->waiting, c->next + 1);
    if (published(c, c->next, memory_order_seq_cst) == c->next + 1)
        return true;
    /* The workers may sleep until half a ring is free; with many batches held that never comes, so say that we wait. */
    uint64_t at = wake_at(c);
    if (at > c->prefix && (at != c->kicked_at || c->prefix != c->kicked_prefix)) {
        c->kicked_at = at;
        c->kicked_prefix = c->prefix;
        *ret_kick = true;
    }
    return false;
}

void consumer_awake(struct consumer *c) {
    atomic_store_explicit(&c->control->waiting, 0, memory_order_relaxed);
}

int consumer_release(struct consumer *c, uint64_t sequence, bool *ret_kick) {
    uint32_t slot = (uint32_t)(sequence % c->slots);
    *ret_kick = false;
    if (c->held[slot] != sequence + 1)
        return -EINVAL;
    c->held[slot] = 0;
    atomic_exchange(&c->release[slot], sequence + 1);
    while (c->prefix < c->next && c->held[c->prefix % c->slots] != c->prefix + 1)
        c->prefix++;
    uint64_t at = wake_at(c);
    if (at && c->prefix >= at && at != c->answered_at) {
        c->answered_at = at;
        *ret_kick = true;
    }
    return 0;
}

uint32_t consumer_held(const struct consumer *c) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->slots; i++)
        n += c->held[i] != 0;
    return n;
}

/* ---- explicit order ----------------------------------------------------------------------------------------------- */

static struct loaderd_ring_header *words(const struct consumer *c) {
    return (struct loaderd_ring_header *)(uintptr_t)c->header;
}

uint64_t consumer_ids_room(const struct consumer *c) {
    /* pairs with the daemon's release: it has read these ids */
    uint64_t waiting = c->ids_supplied - atomic_load_explicit(&words(c)->consumed, memory_order_acquire);
    return waiting <= c->ids_capacity ? c->ids_capacity - waiting : 0;
}

void consumer_put_id(struct consumer *c, uint64_t i, uint64_t id) {
    atomic_store_explicit(&c->ids[(c->ids_supplied + i) % c->ids_capacity], id, memory_order_relaxed);
}

/* Does the daemon sleep for what was just said? Each request is answered once. */
static bool answer_ids(struct consumer *c, bool end) {
    uint64_t at = atomic_load(&words(c)->ids_wake_at);
    if (at == 0 || at == c->ids_answered_at || (c->ids_supplied < at && !end))
        return false;
    c->ids_answered_at = at;
    return true;
}

bool consumer_supplied(struct consumer *c, uint64_t count) {
    c->ids_supplied += count;
    /* seq_cst exchange, then seq_cst load: one of both sees the other; also a release of the ids */
    atomic_exchange(&c->control->ids_supplied, c->ids_supplied);
    return answer_ids(c, false);
}

bool consumer_ids_end(struct consumer *c) {
    c->ids_over = true;
    atomic_exchange(&c->control->ids_end, c->ids_supplied + 1);
    return answer_ids(c, true);
}
