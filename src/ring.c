/* SPDX-License-Identifier: MIT */
/* Producer side of a ring: see ring.h and abi/ring.h. Allocates only in ring_new(). */
#include "ring.h"

#include <linux/memfd.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <fcntl.h>

#include "base/util.h"
#include "topology.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

#define POPULATE_THREADS 8u
#define POPULATE_BYTES (UINT64_C(64) << 20) /* a further thread for each so many bytes of a ring */

#define APART 128 /* bytes between words that different threads write: processors fetch cache lines in pairs */

/* What only the daemon knows of a slot. All workers write its countdown; its publisher alone writes the other word. */
struct slot_state {
    _Alignas(APART) _Atomic uint32_t countdown; /* units of the current sequence not yet written */
    _Alignas(APART) _Atomic uint64_t published; /* seq + 1 that the daemon itself published last */
};

/* One trainer. Constant while it is in `member` of its ring, but for what the trainer writes. */
struct ring_member {
    struct loaderd_control *control;
    _Atomic uint64_t *release;
    _Atomic uint64_t *waited;      /* the control area's: untrusted */
    uint64_t control_bytes, start; /* start: the first sequence that it gets */
    int control_fd, wake_fd;       /* wake_fd is owned, -1: none */
    struct ring_member *next;      /* of those that left */
    uint64_t version;              /* see ring_bury() */
};

struct ring {
    struct loaderd_ring_header *header; /* data mapping */
    const _Atomic uint64_t *queue;      /* explicit order: the trainer's ids */
    struct slot_state *state;           /* slots of them */
    uint8_t *slot_base;
    uint64_t slot_stride, payload_offset;
    uint64_t data_bytes;
    uint64_t row_bytes[LOADERD_MAX_FIELDS];
    uint32_t slots, units, wake_free; /* wake_free: slots that must be free before the sleeping workers are woken */
    int data_fd;
    bool locked;
    int node_wanted;
    struct ring_member *left;                 /* the owner's thread */
    int node;                                 /* that holds the data, -1: several or unknown */
    char huge_pages[16];                      /* the kernel's word for shared memory */
    _Alignas(APART) _Atomic uint64_t cursor;  /* next unit to claim: sequence * units + unit */
    _Alignas(APART) _Atomic uint64_t granted; /* 1 + a sequence that was found claimable; see granted() */
    _Atomic uint64_t published_count;         /* batches published, for statistics */
    _Alignas(APART) _Atomic uint64_t limit;   /* sequences that may be claimed */
    _Atomic uint64_t let;                     /* the same, of an explicit order: whose ids are there; else UINT64_MAX */
    _Atomic uint32_t members;                 /* places of `member` that were ever used */
    _Atomic(struct ring_member *) member[RING_MOST_MEMBERS];
};

static uint64_t elements(const struct field_spec *field) {
    uint64_t n = 1;
    for (uint32_t i = 0; i < field->ndim; i++)
        if (field->dims[i] < 0 || !mul_u64(n, (uint64_t)field->dims[i], &n))
            return UINT64_MAX;
    return n;
}

/* Offsets and sizes of a ring; all zero-checked against overflow. */
struct layout {
    uint64_t payload_offset, payload_bytes, slot_stride, total;
    uint64_t field_offset[LOADERD_MAX_FIELDS], field_bytes[LOADERD_MAX_FIELDS];
};

static bool layout_of(const struct ring_spec *spec, struct layout *ret) {
    struct layout l = {0};
    const uint64_t most = UINT64_C(1) << 62;
    l.payload_offset = align_up(sizeof(struct loaderd_slot_header) + (uint64_t)spec->batch * sizeof(struct loaderd_row),
                                LOADERD_RING_ALIGN);
    for (uint32_t i = 0; i < spec->nfields; i++) {
        uint64_t bytes;
        if (!mul_u64(elements(&spec->field[i]), loaderd_dtype_size(spec->field[i].dtype), &bytes) ||
            !mul_u64(bytes, spec->batch, &bytes) || bytes > most)
            return false;
        l.field_offset[i] = align_up(l.payload_bytes, LOADERD_RING_FIELD_ALIGN);
        l.field_bytes[i] = bytes;
        if (!add_u64(l.field_offset[i], bytes, &l.payload_bytes) || l.payload_bytes > most)
            return false;
    }
    l.slot_stride = align_up(l.payload_offset + l.payload_bytes, LOADERD_RING_ALIGN);
    uint64_t all;
    if (!mul_u64(l.slot_stride, spec->slots, &all) || all > most)
        return false;
    l.total = all + sizeof(struct loaderd_ring_header);
    *ret = l;
    return true;
}

uint64_t ring_bytes(const struct ring_spec *spec) {
    struct layout l;
    return layout_of(spec, &l) ? l.total : 0;
}

static uint64_t generation_new(void) {
    static _Atomic uint64_t count;
    return (now_ns() << 8) ^ ((uint64_t)getpid() << 40) ^ (atomic_fetch_add(&count, 1) + 1);
}

static void fill_header(struct loaderd_ring_header *h, const struct ring_spec *spec, const struct layout *l) {
    h->magic = LOADERD_RING_MAGIC;
    h->version = LOADERD_RING_VERSION;
    h->header_bytes = sizeof *h;
    h->total_bytes = l->total;
    h->slot_offset = sizeof *h;
    h->slot_stride = l->slot_stride;
    h->payload_offset = l->payload_offset;
    h->payload_bytes = l->payload_bytes;
    h->slots = spec->slots;
    h->batch = spec->batch;
    h->nfields = spec->nfields;
    h->row_bytes = sizeof(struct loaderd_row);
    h->generation = generation_new();
    h->first_epoch = spec->first_epoch;
    h->first_step = spec->first_step;
    h->steps_per_epoch = spec->steps_per_epoch;
    h->sequences = spec->sequences;
    h->samples = spec->samples;
    h->seed = spec->seed;
    h->rank = spec->rank;
    h->world = spec->world;
    memcpy(h->fingerprint, spec->fingerprint, sizeof h->fingerprint);
    for (uint32_t i = 0; i < spec->nfields; i++) {
        struct loaderd_ring_field *f = &h->fields[i];
        const struct field_spec *s = &spec->field[i];
        memcpy(f->name, s->name, sizeof f->name);
        f->name[sizeof f->name - 1] = '\0';
        f->dtype = s->dtype;
        f->ndim = s->ndim + 1;
        f->dims[0] = spec->batch;
        memcpy(&f->dims[1], s->dims, s->ndim * sizeof s->dims[0]);
        f->offset = l->field_offset[i];
        f->bytes = l->field_bytes[i];
    }
}

/* A part of a mapping whose pages one thread makes. */
struct part {
    uint8_t *begin;
    uint64_t bytes;
    int result;
};

static void *populate_part(void *arg) {
    struct part *part = arg;
    part->result = madvise(part->begin, part->bytes, MADV_POPULATE_WRITE) < 0 ? -errno : 0;
    return NULL;
}

/* Makes all pages present: the kernel clears some 4 GB/s a core, so that a large ring takes several. */
static int populate(uint8_t *map, uint64_t bytes) {
    struct part part[POPULATE_THREADS];
    pthread_t thread[POPULATE_THREADS];
    bool started[POPULATE_THREADS] = {false};
    uint64_t count = CLAMP(bytes / POPULATE_BYTES, 1u, POPULATE_THREADS);
    uint64_t each = align_up(bytes / count, LOADERD_RING_ALIGN);
    int result = 0;
    for (uint64_t i = 0; i < count; i++) {
        part[i] = (struct part){map + i * each, i + 1 < count ? each : bytes - i * each, 0};
        if (i + 1 < count && pthread_create(&thread[i], NULL, populate_part, &part[i]) == 0)
            started[i] = true;
        else
            populate_part(&part[i]);
    }
    for (uint64_t i = 0; i < count; i++) {
        if (started[i])
            pthread_join(thread[i], NULL);
        result = result < 0 ? result : part[i].result;
    }
    return result;
}

/* A memfd of `bytes`, mapped and with every page present, from `node` where that has them; or a negative errno. */
static int memory_new(const char *name, uint64_t bytes, int node, int *ret_fd, void **ret_map, struct diag *diag) {
    cleanup_close int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return diag_set(diag, -errno, "cannot create shared memory: %s", strerror(errno));
    if (ftruncate(fd, (off_t)bytes) < 0)
        return diag_set(diag, -errno, "cannot size shared memory to %llu bytes: %s", (unsigned long long)bytes,
                        strerror(errno));
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        return diag_set(diag, -errno, "cannot map %llu bytes of shared memory: %s", (unsigned long long)bytes,
                        strerror(errno));
    madvise(map, bytes, MADV_HUGEPAGE);     /* advice: refused where shmem has no huge pages */
    topology_bind_memory(map, bytes, node); /* a preference: refused in some containers, which status tells */
    int r = populate(map, bytes);
    if (r == -EINVAL) /* before Linux 5.14 */
        r = fallocate(fd, 0, 0, (off_t)bytes) < 0 ? -errno : 0;
    if (r < 0) {
        munmap(map, bytes);
        return diag_set(diag, -ENOMEM,
                        "ring needs %llu MiB of memory and the system refused them (%s); lower slots or batch",
                        (unsigned long long)(bytes >> 20), strerror(-r));
    }
    *ret_fd = steal_fd(&fd);
    *ret_map = map;
    return 0;
}

/* Where the pages are, by a look at 16 of them. */
static int placement(const uint8_t *map, uint64_t bytes) {
    int node = topology_node_of(map);
    for (uint64_t i = 1; i < 16 && node >= 0; i++)
        if (topology_node_of(map + bytes / 16 * i) != node)
            return -1;
    return MAX(node, -1);
}

/* The word in brackets of "always within_size [advise] never deny force". */
static void read_huge_pages(char *word, size_t size) {
    char line[128] = "";
    FILE *file = fopen("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "re");
    const char *begin = file && fgets(line, sizeof line, file) ? strchr(line, '[') : NULL;
    const char *end = begin ? strchr(begin, ']') : NULL;
    if (file)
        fclose(file);
    if (end)
        snprintf(word, size, "%.*s", (int)(end - begin - 1), begin + 1);
    else
        snprintf(word, size, "unknown");
}

static int make_data(struct ring *ring, const struct ring_spec *spec, const struct layout *l, struct diag *diag) {
    void *map;
    int r = memory_new("loaderd-ring", l->total, spec->node, &ring->data_fd, &map, diag);
    if (r < 0)
        return r;
    ring->header = map;
    ring->data_bytes = l->total;
    ring->slot_base = (uint8_t *)map + sizeof(struct loaderd_ring_header);
    ring->slot_stride = l->slot_stride;
    ring->payload_offset = l->payload_offset;
    for (uint32_t i = 0; i < spec->nfields; i++)
        ring->row_bytes[i] = l->field_bytes[i] / spec->batch;
    ring->locked = mlock(map, l->total) == 0;
    ring->node = placement(map, l->total);
    read_huge_pages(ring->huge_pages, sizeof ring->huge_pages);
    fill_header(ring->header, spec, l);
    if (fcntl(ring->data_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) < 0)
        return diag_set(diag, -errno, "cannot seal the ring: %s; Linux 5.1 or later is needed", strerror(errno));
    return 0;
}

static void free_member(struct ring_member *member) {
    if (!member)
        return;
    if (member->control)
        munmap(member->control, member->control_bytes);
    if (member->control_fd >= 0)
        close(member->control_fd);
    if (member->wake_fd >= 0)
        close(member->wake_fd);
    free(member);
}

/* A trainer's control area, with room for `ids` of an explicit order. */
static int make_control(struct ring *ring, uint64_t ids, struct ring_member *m, struct diag *diag) {
    uint64_t queue = align_up(sizeof(struct loaderd_control) + ring->slots * sizeof(uint64_t), 64), bytes, waited;
    void *map;
    if (!mul_u64(ids, sizeof(uint64_t), &bytes) || bytes > UINT64_C(1) << 40)
        return diag_set(diag, -EOVERFLOW, "room for %llu ids ahead is too much; lower slots or batch",
                        (unsigned long long)ids);
    waited = align_up(queue + bytes, 64);
    bytes = align_up(waited + ring_lookback(ring) * sizeof(uint64_t), LOADERD_RING_ALIGN);
    int r = memory_new("loaderd-control", bytes, ring->node_wanted, &m->control_fd, &map, diag);
    if (r < 0)
        return r;
    m->control = map;
    m->control_bytes = bytes;
    m->control->magic = LOADERD_CONTROL_MAGIC;
    m->control->version = LOADERD_RING_VERSION;
    m->control->slots = ring->slots;
    m->control->total_bytes = bytes;
    m->control->release_offset = sizeof(struct loaderd_control);
    m->control->waited_offset = waited;
    m->control->waited_capacity = ring_lookback(ring);
    m->waited = (_Atomic uint64_t *)((uint8_t *)map + waited);
    m->release = (_Atomic uint64_t *)((uint8_t *)map + sizeof(struct loaderd_control));
    if (ids) {
        m->control->ids_offset = queue;
        m->control->ids_capacity = ids;
        ring->queue = (_Atomic uint64_t *)((uint8_t *)map + queue);
    }
    if (fcntl(m->control_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
        return diag_set(diag, -errno, "cannot seal the control area: %s", strerror(errno));
    return 0;
}

/* A member that no worker sees yet. */
static int make_member(struct ring *ring, uint64_t ids, uint64_t start, struct ring_member **ret, struct diag *diag) {
    struct ring_member *m = calloc(1, sizeof *m);
    if (!m)
        return diag_set(diag, -ENOMEM, "out of memory for a ring");
    m->control_fd = m->wake_fd = -1;
    m->start = start;
    int r = make_control(ring, ids, m, diag);
    if (r < 0)
        free_member(m);
    else
        *ret = m;
    return r;
}

static int check_spec(const struct ring_spec *spec, uint64_t bytes, struct diag *diag) {
    if (spec->slots < LOADERD_RING_MIN_SLOTS || spec->slots > LOADERD_RING_MAX_SLOTS)
        return diag_set(diag, -EINVAL, "slots = %u: must be %u to %u", spec->slots, LOADERD_RING_MIN_SLOTS,
                        LOADERD_RING_MAX_SLOTS);
    if (spec->slots < spec->held + 2)
        return diag_set(diag, -EINVAL, "slots = %u is too few for a trainer that holds %u batches: at least %u",
                        spec->slots, spec->held, spec->held + 2);
    if (bytes == 0)
        return diag_set(diag, -EOVERFLOW, "ring of %u slots of %u rows does not fit 64 bits; lower batch", spec->slots,
                        spec->batch);
    if (spec->max_bytes && bytes > spec->max_bytes)
        return diag_set(
            diag, -ENOMEM,
            "ring of %u slots x %llu bytes needs %llu MiB, a session may have %llu MiB; lower slots or batch, "
            "or raise max-ring-bytes",
            spec->slots, (unsigned long long)((bytes - 4096) / spec->slots),
            (unsigned long long)((bytes + 0xfffff) >> 20), (unsigned long long)(spec->max_bytes >> 20));
    return 0;
}

int ring_new(const struct ring_spec *spec, struct ring **ret, struct diag *diag) {
    struct layout l = {0};
    bool fits = layout_of(spec, &l);
    int r = check_spec(spec, fits ? l.total : 0, diag);
    if (r < 0)
        return r;
    struct ring *ring = aligned_alloc(APART, align_up(sizeof *ring, APART));
    if (!ring)
        return diag_set(diag, -ENOMEM, "out of memory for a ring");
    memset(ring, 0, sizeof *ring);
    ring->data_fd = -1;
    ring->node_wanted = spec->node;
    ring->slots = spec->slots;
    ring->units = (spec->batch + spec->rows_per_unit - 1) / spec->rows_per_unit;
    ring->wake_free = MAX(1u, MIN(spec->slots / 2, spec->slots - spec->held - 1));
    atomic_init(&ring->limit, spec->sequences);
    atomic_init(&ring->let, UINT64_MAX);
    ring->state = aligned_alloc(APART, spec->slots * sizeof *ring->state);
    if (!ring->state)
        r = diag_set(diag, -ENOMEM, "out of memory for a ring");
    for (uint32_t i = 0; r == 0 && i < spec->slots; i++) {
        atomic_init(&ring->state[i].countdown, ring->units);
        atomic_init(&ring->state[i].published, 0);
    }
    if (r == 0)
        r = make_data(ring, spec, &l, diag);
    struct ring_member *first = NULL;
    if (r == 0)
        r = make_member(ring, spec->ids, 0, &first, diag);
    if (r < 0) {
        ring_free(ring);
        return r;
    }
    atomic_init(&ring->member[0], first);
    atomic_init(&ring->members, 1);
    *ret = ring;
    return 0;
}

void ring_free(struct ring *ring) {
    if (!ring)
        return;
    if (ring->header)
        munmap(ring->header, ring->data_bytes);
    for (uint32_t i = 0; i < RING_MOST_MEMBERS; i++)
        free_member(atomic_load(&ring->member[i]));
    ring_bury(ring, UINT64_MAX, UINT64_MAX);
    if (ring->data_fd >= 0)
        close(ring->data_fd);
    free(ring->state);
    free(ring);
}

int ring_data_fd(const struct ring *ring) {
    return ring->data_fd;
}
int ring_control_fd(const struct ring *ring, uint32_t member) {
    return atomic_load(&ring->member[member])->control_fd;
}
uint64_t ring_data_bytes(const struct ring *ring) {
    return ring->data_bytes;
}
uint64_t ring_control_bytes(const struct ring *ring, uint32_t member) {
    return atomic_load(&ring->member[member])->control_bytes;
}
uint32_t ring_slots(const struct ring *ring) {
    return ring->slots;
}
uint32_t ring_lookback(const struct ring *ring) {
    return MAX(RING_LOOKBACK, ring->slots);
}
bool ring_locked(const struct ring *ring) {
    return ring->locked;
}
int ring_node(const struct ring *ring) {
    return ring->node;
}
const char *ring_huge_pages(const struct ring *ring) {
    return ring->huge_pages;
}

static uint64_t next_sequence(const struct ring *ring) {
    return atomic_load(&ring->cursor) / ring->units;
}

/* Has each trainer that got the slot's batch number `previous` - 1 (0: none was there) given it back? */
static bool released(const struct ring *ring, uint32_t slot, uint64_t previous, memory_order order) {
    uint32_t members = atomic_load(&ring->members);
    for (uint32_t i = 0; i < members; i++) {
        /* both seq_cst, as ring_join()'s store before it looks at the cursor, and the cursor's own exchange */
        const struct ring_member *m = atomic_load(&ring->member[i]);
        if (!m || (previous && m->start >= previous))
            continue;
        /* pairs with the trainer's exchange: it has read all that it wanted */
        if (atomic_load_explicit(&m->release[slot], order) != previous)
            return false;
    }
    return true;
}

/*
 * May `sequence` be claimed? Only if the daemon itself published the slot's previous batch and the trainer's release
 * word says exactly that one: any other value, whatever the trainer wrote, means "not released".
 */
static bool may_claim(struct ring *ring, uint64_t sequence, memory_order order) {
    if (sequence >= atomic_load_explicit(&ring->limit, memory_order_relaxed))
        return false;
    /* pairs with the release in ring_let(): the batch's ids are there */
    if (sequence >= atomic_load_explicit(&ring->let, memory_order_acquire))
        return false;
    uint32_t slot = (uint32_t)(sequence % ring->slots);
    uint64_t previous = sequence < ring->slots ? 0 : sequence - ring->slots + 1;
    /* pairs with the release in ring_publish(): the countdown has been set again */
    if (atomic_load_explicit(&ring->state[slot].published, memory_order_acquire) != previous)
        return false;
    return released(ring, slot, previous, order);
}

/* Everything before `sequence` is published: the trainer waits for this one next. */
static bool is_oldest(struct ring *ring, uint64_t sequence) {
    return sequence == 0 ||
           atomic_load_explicit(&ring->state[(sequence - 1) % ring->slots].published, memory_order_relaxed) == sequence;
}

/*
 * The same for the sequence at the cursor, asked by all workers: who finds that it may be claimed tells the others. That
 * stays true until its last unit is claimed, since the slot is published by none before and the release word of a batch
 * that was released belongs to nobody. A member that joins meanwhile was refused if it was to get the slot's last batch
 * (ring_join). What ends a ring is looked at each time.
 */
static bool granted(struct ring *ring, uint64_t sequence) {
    if (sequence >= atomic_load_explicit(&ring->limit, memory_order_relaxed) ||
        sequence >= atomic_load_explicit(&ring->let, memory_order_acquire))
        return false;
    /* pairs with the release below: what that worker acquired of the trainers and of the publisher, this one has */
    if (atomic_load_explicit(&ring->granted, memory_order_acquire) == sequence + 1)
        return true;
    if (!may_claim(ring, sequence, memory_order_acquire))
        return false;
    atomic_store_explicit(&ring->granted, sequence + 1, memory_order_release);
    return true;
}

static void pause_a_moment(uint32_t turns) {
    for (uint32_t i = 0; i < turns; i++) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("yield");
#endif
    }
}

/*
 * How many units to take. Of the oldest slot one, but twice as many after each exchange that another worker spoiled, up to
 * a sixteenth of what is left: where workers collide at the cursor again and again their units are so small that
 * claiming costs more than making, and nobody sits on much.
 */
static uint32_t choose_count(struct ring *ring, uint64_t sequence, uint32_t left, uint32_t collisions, uint32_t most) {
    if (is_oldest(ring, sequence))
        most = MIN(most, MIN(UINT32_C(1) << MIN(collisions, 6u), left / 16));
    return CLAMP(most, 1u, left);
}

uint32_t ring_claim(struct ring *ring, uint32_t most, uint64_t *ret_sequence, uint32_t *ret_unit) {
    /* acquire: members are looked at behind the cursor; see ring_join() */
    uint64_t cursor = atomic_load_explicit(&ring->cursor, memory_order_acquire);
    for (uint32_t collisions = 0; collisions < 64; collisions++) {
        uint64_t sequence = cursor / ring->units;
        if (!granted(ring, sequence))
            return 0;
        uint32_t unit = (uint32_t)(cursor % ring->units);
        uint32_t count = choose_count(ring, sequence, ring->units - unit, collisions, most);
        if (atomic_compare_exchange_strong_explicit(&ring->cursor, &cursor, cursor + count, memory_order_seq_cst,
                                                    memory_order_acquire)) {
            *ret_sequence = sequence;
            *ret_unit = unit;
            return count;
        }
        pause_a_moment(UINT32_C(4) << MIN(collisions, 6u)); /* shorter, 16 threads make half the claims */
    }
    return 0;
}

bool ring_claimable(struct ring *ring) {
    return may_claim(ring, next_sequence(ring), memory_order_acquire);
}

static uint8_t *slot_at(const struct ring *ring, uint64_t sequence) {
    return ring->slot_base + (sequence % ring->slots) * ring->slot_stride;
}

struct loaderd_slot_header *ring_slot(const struct ring *ring, uint64_t sequence) {
    return (struct loaderd_slot_header *)slot_at(ring, sequence);
}

struct loaderd_row *ring_rows(const struct ring *ring, uint64_t sequence) {
    return (struct loaderd_row *)(slot_at(ring, sequence) + sizeof(struct loaderd_slot_header));
}

void *ring_row_field(const struct ring *ring, uint64_t sequence, uint32_t field, uint32_t row) {
    return slot_at(ring, sequence) + ring->payload_offset + ring->header->fields[field].offset +
           row * ring->row_bytes[field];
}

uint64_t ring_row_bytes(const struct ring *ring, uint32_t field) {
    return ring->row_bytes[field];
}

bool ring_complete(struct ring *ring, uint64_t sequence, uint32_t units) {
    struct slot_state *state = &ring->state[sequence % ring->slots];
    /* release: my rows; acquire by whoever is last: everybody's rows */
    return atomic_fetch_sub_explicit(&state->countdown, units, memory_order_acq_rel) == units;
}

uint32_t ring_publish(struct ring *ring, uint64_t sequence) {
    struct slot_state *state = &ring->state[sequence % ring->slots];
    atomic_store_explicit(&state->countdown, ring->units, memory_order_relaxed);
    /* pairs with the acquire in may_claim() */
    atomic_store_explicit(&state->published, sequence + 1, memory_order_release);
    atomic_fetch_add_explicit(&ring->published_count, 1, memory_order_relaxed);
    /* seq_cst exchange then seq_cst load, as the trainer does with its own two words: one of both sees the other */
    atomic_exchange(&ring_slot(ring, sequence)->published, sequence + 1);
    uint32_t wake = 0, members = atomic_load(&ring->members);
    for (uint32_t i = 0; i < members; i++) {
        const struct ring_member *m = atomic_load(&ring->member[i]);
        if (m && atomic_load(&m->control->waiting) == sequence + 1)
            wake |= UINT32_C(1) << i;
    }
    return wake;
}

int ring_wake_fd(const struct ring *ring, uint32_t member) {
    const struct ring_member *m = atomic_load(&ring->member[member]);
    return m ? m->wake_fd : -1;
}

void ring_stop_after(struct ring *ring, uint64_t sequence) {
    uint64_t limit = atomic_load(&ring->limit);
    while (limit > sequence + 1 && !atomic_compare_exchange_weak(&ring->limit, &limit, sequence + 1))
        ;
}

static uint64_t begun(const struct ring *ring) {
    return (atomic_load(&ring->cursor) + ring->units - 1) / ring->units;
}

void ring_finish(struct ring *ring) {
    uint64_t limit = atomic_load(&ring->limit), wanted = begun(ring);
    while (limit > wanted && !atomic_compare_exchange_weak(&ring->limit, &limit, wanted))
        ;
}

bool ring_finished(const struct ring *ring) {
    return atomic_load(&ring->published_count) >= begun(ring);
}

void ring_let(struct ring *ring, uint64_t sequences) {
    atomic_store_explicit(&ring->let, sequences, memory_order_release);
}

bool ring_emptied(const struct ring *ring, uint64_t sequence) {
    uint64_t previous = sequence < ring->slots ? 0 : sequence - ring->slots + 1;
    /* pairs with the release in ring_publish(): nobody reads that batch's ids any more */
    return atomic_load_explicit(&ring->state[sequence % ring->slots].published, memory_order_acquire) == previous;
}

const _Atomic uint64_t *ring_queue(const struct ring *ring) {
    return ring->queue;
}

struct loaderd_ring_header *ring_header(const struct ring *ring) {
    return ring->header;
}

/* A worker that was held up between its look at the cursor and this must not take a younger request back: trainers may
 * have answered the older one, and answer each once. seq_cst, the look as well: with consumer_release()'s exchange and its
 * load of wake_at one of both sees the other. */
static void raise_word(_Atomic uint64_t *word, uint64_t value) {
    uint64_t found = atomic_load(word);
    while (found < value && !atomic_compare_exchange_weak(word, &found, value))
        ;
}

bool ring_ask_wake(struct ring *ring) {
    uint64_t sequence = next_sequence(ring);
    if (sequence >= ring->slots) /* else nothing is to be released yet: another worker is at it, or the ring is over */
        raise_word(&ring->header->wake_at, sequence - ring->slots + ring->wake_free);
    /* a sequence that others have claimed meanwhile is not what should be waited for */
    return may_claim(ring, sequence, memory_order_seq_cst) || next_sequence(ring) != sequence;
}

/* Every trainer that got it has released batch `sequence`, or says so. */
static bool answered(const struct ring *ring, uint64_t sequence) {
    uint32_t members = atomic_load(&ring->members);
    for (uint32_t i = 0; i < members; i++) {
        const struct ring_member *m = atomic_load(&ring->member[i]);
        if (m && m->start <= sequence && atomic_load(&m->release[sequence % ring->slots]) < sequence + 1)
            return false;
    }
    return true;
}

bool ring_wake_overdue(const struct ring *ring) {
    uint64_t wake_at = atomic_load(&ring->header->wake_at);
    if (wake_at == 0)
        return false;
    for (uint64_t s = wake_at > ring->slots ? wake_at - ring->slots : 0; s < wake_at; s++)
        if (!answered(ring, s))
            return false;
    return true;
}

void ring_fill(const struct ring *ring, uint64_t *ret_published, uint64_t *ret_unreleased) {
    uint64_t unreleased = 0;
    for (uint32_t i = 0; i < ring->slots; i++) {
        uint64_t published = atomic_load_explicit(&ring->state[i].published, memory_order_relaxed);
        if (published && !released(ring, i, published, memory_order_relaxed))
            unreleased++;
    }
    *ret_published = atomic_load_explicit(&ring->published_count, memory_order_relaxed);
    *ret_unreleased = unreleased;
}

const struct loaderd_control *ring_control(const struct ring *ring, uint32_t member) {
    const struct ring_member *m = atomic_load(&ring->member[member]);
    return m ? m->control : NULL;
}

uint64_t ring_waited(const struct ring *ring, uint64_t sequence, uint32_t *ret_member) {
    uint64_t most = 0;
    for (uint32_t i = 0; i < atomic_load(&ring->members); i++) {
        const struct ring_member *m = atomic_load(&ring->member[i]);
        if (!m || m->start > sequence)
            continue;
        uint64_t ns = atomic_load_explicit(&m->waited[sequence % ring_lookback(ring)], memory_order_relaxed);
        if (ns > most) {
            most = ns;
            *ret_member = i;
        }
    }
    return most;
}

uint64_t ring_taken(const struct ring *ring) {
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < atomic_load(&ring->members); i++) {
        const struct ring_member *m = atomic_load(&ring->member[i]);
        /* pairs with the trainer's release: what it says of the batches before is there */
        uint64_t popped = m ? atomic_load_explicit(&m->control->popped, memory_order_acquire) : UINT64_MAX;
        least = MIN(least, popped);
    }
    uint64_t published = atomic_load_explicit(&ring->published_count, memory_order_acquire);
    return MIN(least, published);
}

/* ---- members ----------------------------------------------------------------------------------------------------- */

void ring_set_wake(struct ring *ring, uint32_t member, int wake_fd) {
    atomic_load(&ring->member[member])->wake_fd = wake_fd;
}

int ring_join(struct ring *ring, uint64_t start, int wake_fd, uint32_t *ret_member, struct diag *diag) {
    struct ring_member *m;
    uint32_t i = 0;
    while (i < RING_MOST_MEMBERS && atomic_load(&ring->member[i]))
        i++;
    if (i == RING_MOST_MEMBERS)
        return diag_set(diag, -EUSERS, "the group has %u members already, as many as there may be", i);
    int r = make_member(ring, 0, start, &m, diag);
    if (r < 0)
        return r;
    m->wake_fd = wake_fd;
    atomic_store(&ring->member[i], m);
    if (i >= atomic_load(&ring->members))
        atomic_store(&ring->members, i + 1);
    /* A worker that has not seen the member may take the sequence at the cursor, and no other: its next look is behind an
     * exchange of the cursor, which is behind ours of it. The slot of the batch before that one may be written to. */
    uint64_t cursor = next_sequence(ring);
    if (atomic_load_explicit(&ring->let, memory_order_relaxed) && start + ring->slots < cursor + 2) {
        m->wake_fd = -1; /* the caller's still */
        ring_leave(ring, i);
        return -ESTALE;
    }
    *ret_member = i;
    return 0;
}

void ring_leave(struct ring *ring, uint32_t member) {
    struct ring_member *m = atomic_load(&ring->member[member]);
    if (!m)
        return;
    atomic_exchange(&m->control->detached, 1); /* before anything is written that it may hold */
    atomic_exchange(&ring->member[member], NULL);
    m->next = ring->left;
    ring->left = m;
}

uint32_t ring_bury(struct ring *ring, uint64_t version, uint64_t oldest) {
    struct ring_member **link = &ring->left;
    uint32_t waiting = 0;
    while (*link) {
        struct ring_member *m = *link;
        if (m->version == 0)
            m->version = version;
        if (m->version && m->version <= oldest) {
            *link = m->next;
            free_member(m);
        } else {
            waiting++;
            link = &m->next;
        }
    }
    return waiting;
}

bool ring_has_left(const struct ring *ring) {
    for (const struct ring_member *m = ring->left; m; m = m->next)
        if (m->version == 0)
            return true;
    return false;
}

uint32_t ring_blockers(const struct ring *ring, uint64_t *ret_sequence) {
    uint64_t sequence = next_sequence(ring), previous = sequence < ring->slots ? 0 : sequence - ring->slots + 1;
    uint32_t slot = (uint32_t)(sequence % ring->slots), blockers = 0;
    *ret_sequence = sequence;
    if (previous == 0 || sequence >= atomic_load(&ring->limit) || atomic_load(&ring->state[slot].published) != previous)
        return 0;
    for (uint32_t i = 0; i < atomic_load(&ring->members); i++) {
        const struct ring_member *m = atomic_load(&ring->member[i]);
        if (m && m->start < previous && atomic_load(&m->release[slot]) != previous)
            blockers |= UINT32_C(1) << i;
    }
    return blockers;
}

uint32_t ring_waiters(const struct ring *ring) {
    uint32_t waiters = 0;
    for (uint32_t i = 0; i < atomic_load(&ring->members); i++) {
        const struct ring_member *m = atomic_load(&ring->member[i]);
        if (m && atomic_load(&m->control->popped) >= atomic_load(&ring->published_count))
            waiters |= UINT32_C(1) << i;
    }
    return waiters;
}
