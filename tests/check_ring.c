/* SPDX-License-Identifier: MIT */
/*
 * The ring, both sides: layout and seals, wrap, out-of-order release, words that a hostile trainer may write, and a stress
 * of several producers and one consumer over one mapping (so that the thread sanitizer sees all of it).
 */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/memfd.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "../client/consumer.h"
#include "base/util.h"
#include "ring.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define STRESS_BATCHES 4000u
#else
#define STRESS_BATCHES 40000u
#endif

static struct ring_spec spec_of(uint32_t slots, uint32_t batch, uint32_t rows_per_unit, uint64_t sequences) {
    return (struct ring_spec){.slots = slots,
                              .batch = batch,
                              .rows_per_unit = rows_per_unit,
                              .nfields = 2,
                              .field = {{.name = "image", .dtype = LOADERD_U8, .ndim = 3, .dims = {5, 7, 3}},
                                        {.name = "label", .dtype = LOADERD_I32, .ndim = 0}},
                              .sequences = sequences,
                              .steps_per_epoch = 10,
                              .samples = 1000,
                              .world = 1,
                              .held = 1,
                              .node = -1};
}

static struct ring *ring_of(const struct ring_spec *spec) {
    struct ring *ring;
    struct diag diag = DIAG_INIT;
    ck_assert_msg(ring_new(spec, &ring, &diag) == 0, "%s", diag.text);
    ck_assert_int_ge(ring_node(ring), -1);
    ck_assert_str_ne(ring_huge_pages(ring), "");
    return ring;
}

static struct consumer consumer_of(struct ring *ring, uint32_t member) {
    struct consumer c;
    char error[200] = "";
    const uint8_t *data = (const uint8_t *)ring_slot(ring, 0) - sizeof(struct loaderd_ring_header);
    int r = consumer_bind(&c, data, ring_data_bytes(ring), (void *)(uintptr_t)ring_control(ring, member),
                          ring_control_bytes(ring, member), error, sizeof error);
    ck_assert_msg(r == 0, "%s", error);
    return c;
}

static struct consumer consumer_over(struct ring *ring) {
    return consumer_of(ring, 0);
}

static void write_unit(struct ring *ring, uint64_t sequence, uint32_t unit, const struct ring_spec *spec) {
    uint32_t first = unit * spec->rows_per_unit, end = MIN(first + spec->rows_per_unit, spec->batch);
    for (uint32_t row = first; row < end; row++) {
        int32_t value = (int32_t)(sequence * spec->batch + row);
        memcpy(ring_row_field(ring, sequence, 1, row), &value, sizeof value);
        memset(ring_row_field(ring, sequence, 0, row), value & 0xff, ring_row_bytes(ring, 0));
        ring_rows(ring, sequence)[row].sample = (uint64_t)value;
    }
}

/* So many units are written: returns ring_publish()'s answer where the last one is among them. */
static bool complete(struct ring *ring, uint64_t sequence, uint32_t units, const struct ring_spec *spec) {
    if (!ring_complete(ring, sequence, units))
        return false;
    struct loaderd_slot_header *h = ring_slot(ring, sequence);
    h->epoch = sequence / spec->steps_per_epoch;
    h->step = sequence % spec->steps_per_epoch;
    h->rows = h->valid = spec->batch;
    return ring_publish(ring, sequence);
}

/* Fills a unit as a worker would. */
static bool fill(struct ring *ring, uint64_t sequence, uint32_t unit, const struct ring_spec *spec) {
    write_unit(ring, sequence, unit, spec);
    return complete(ring, sequence, 1, spec);
}

static void produce(struct ring *ring, const struct ring_spec *spec, uint64_t want_sequence) {
    uint32_t units = (spec->batch + spec->rows_per_unit - 1) / spec->rows_per_unit;
    for (uint32_t i = 0; i < units; i++) {
        uint64_t sequence;
        uint32_t unit;
        ck_assert_uint_eq(ring_claim(ring, 1, &sequence, &unit), 1);
        ck_assert_uint_eq(sequence, want_sequence);
        ck_assert_uint_eq(unit, i);
        fill(ring, sequence, unit, spec);
    }
}

static void check_batch(const struct loaderd_batch *batch, uint32_t rows) {
    const int32_t *label = batch->fields[1].data;
    const uint8_t *image = batch->fields[0].data;
    size_t bytes = batch->fields[0].bytes / rows;
    for (uint32_t row = 0; row < rows; row++) {
        int32_t want = (int32_t)(batch->sequence * rows + row);
        ck_assert_int_eq(label[row], want);
        ck_assert_uint_eq(batch->row[row].sample, (uint64_t)want);
        for (size_t i = 0; i < bytes; i++)
            if (image[row * bytes + i] != (want & 0xff))
                ck_abort_msg("batch %llu row %u byte %zu", (unsigned long long)batch->sequence, row, i);
    }
}

START_TEST(layout_is_aligned_and_disjoint) {
    struct ring_spec spec = spec_of(4, 3, 1, UINT64_MAX);
    struct ring *ring = ring_of(&spec);
    const struct loaderd_ring_header *h =
        (const void *)((const uint8_t *)ring_slot(ring, 0) - sizeof(struct loaderd_ring_header));
    ck_assert_uint_eq(h->magic, LOADERD_RING_MAGIC);
    ck_assert_uint_eq(h->total_bytes, ring_data_bytes(ring));
    ck_assert_uint_eq(h->payload_offset % 4096, 0);
    ck_assert_uint_eq(h->slot_stride % 4096, 0);
    ck_assert_uint_eq(h->fields[0].bytes, 3 * 5 * 7 * 3);
    ck_assert_uint_eq(h->fields[1].bytes, 3 * 4);
    ck_assert_uint_eq(h->fields[1].offset, 320); /* 315 rounded up to 64 */
    ck_assert_uint_eq(h->payload_bytes, 332);
    ck_assert_int_eq(h->fields[0].dims[0], 3);
    ck_assert_int_eq(h->fields[0].dims[3], 3);
    ck_assert_uint_eq(h->fields[1].ndim, 1);
    ring_free(ring);
}
END_TEST

START_TEST(memfds_are_sealed) {
    struct ring_spec spec = spec_of(3, 2, 1, UINT64_MAX);
    struct ring *ring = ring_of(&spec);
    int fd = ring_data_fd(ring);
    ck_assert_int_eq(fcntl(fd, F_GET_SEALS), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL);
    ck_assert_int_eq(fcntl(ring_control_fd(ring, 0), F_GET_SEALS), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    ck_assert_int_eq(ftruncate(fd, 0), -1);
    ck_assert_int_eq(errno, EPERM);
    ck_assert_int_eq(ftruncate(ring_control_fd(ring, 0), 0), -1);
    ck_assert_int_eq((int)write(fd, "x", 1), -1);
    ck_assert_int_eq(errno, EPERM);
    ck_assert_ptr_eq(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
    void *view = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
    ck_assert_ptr_ne(view, MAP_FAILED);
    ck_assert_int_eq(mprotect(view, 4096, PROT_READ | PROT_WRITE), -1);
    munmap(view, 4096);
    ring_free(ring);
}
END_TEST

START_TEST(refusals_name_the_remedy) {
    struct diag diag = DIAG_INIT;
    struct ring *ring = NULL;
    struct ring_spec spec = spec_of(8, 64, 1, UINT64_MAX);
    spec.max_bytes = 100000;
    ck_assert_int_eq(ring_new(&spec, &ring, &diag), -ENOMEM);
    ck_assert_ptr_nonnull(strstr(diag.text, "lower slots or batch"));
    ck_assert_ptr_nonnull(strstr(diag.text, "max-ring-bytes"));
    spec = spec_of(4, 2, 1, UINT64_MAX);
    spec.held = 3;
    ck_assert_int_eq(ring_new(&spec, &ring, &diag), -EINVAL);
    ck_assert_ptr_nonnull(strstr(diag.text, "at least 5"));
    spec = spec_of(2, 2, 1, UINT64_MAX);
    spec.held = 0;
    ck_assert_int_eq(ring_new(&spec, &ring, &diag), -EINVAL);
    spec = spec_of(8, 1u << 20, 1, UINT64_MAX);
    spec.field[0].dims[0] = INT64_MAX / 2;
    ck_assert_uint_eq(ring_bytes(&spec), 0);
    ck_assert_int_eq(ring_new(&spec, &ring, &diag), -EOVERFLOW);
    spec = spec_of(8, 1, 1, UINT64_MAX); /* more than any machine has: refused, not killed */
    spec.field[0].dims[0] = INT64_C(1) << 40;
    ck_assert_int_eq(ring_new(&spec, &ring, &diag), -ENOMEM);
    ck_assert_ptr_null(ring);
}
END_TEST

START_TEST(wraps_many_times) {
    struct ring_spec spec = spec_of(3, 4, 3, 100);
    struct ring *ring = ring_of(&spec);
    struct consumer c = consumer_over(ring);
    const char *message;
    struct loaderd_batch batch;
    bool kick;
    for (uint64_t s = 0; s < 100; s++) {
        ck_assert_int_eq(consumer_try(&c, &batch, &message), 0);
        produce(ring, &spec, s);
        ck_assert_int_eq(consumer_try(&c, &batch, &message), 1);
        ck_assert_uint_eq(batch.sequence, s);
        ck_assert_uint_eq(batch.epoch, s / 10);
        ck_assert_uint_eq(batch.step, s % 10);
        check_batch(&batch, 4);
        ck_assert_int_eq(consumer_release(&c, batch.sequence, &kick), 0);
        ck_assert_int_eq(consumer_release(&c, batch.sequence, &kick), -EINVAL); /* not twice */
    }
    ck_assert_int_eq(consumer_try(&c, &batch, &message), -ENODATA);
    ck_assert(!ring_claimable(ring));
    consumer_detach(&c);
    ring_free(ring);
}
END_TEST

START_TEST(out_of_order_release_stalls_at_the_oldest) {
    struct ring_spec spec = spec_of(4, 1, 1, UINT64_MAX);
    struct ring *ring = ring_of(&spec);
    struct consumer c = consumer_over(ring);
    struct loaderd_batch batch[4];
    const char *message;
    bool kick;
    for (uint64_t s = 0; s < 4; s++)
        produce(ring, &spec, s);
    ck_assert(!ring_claimable(ring));
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(consumer_try(&c, &batch[i], &message), 1);
    ck_assert_int_eq(consumer_try(&c, &batch[0], &message), -EBUSY);
    ck_assert_uint_eq(consumer_held(&c), 4);
    for (uint64_t s = 3; s >= 1; s--) {
        consumer_release(&c, s, &kick);
        ck_assert(!ring_claimable(ring)); /* batch 0 is held: its slot is the next one */
        ck_assert_uint_eq(c.prefix, 0);
    }
    consumer_release(&c, 0, &kick);
    ck_assert_uint_eq(c.prefix, 4);
    for (uint64_t s = 4; s < 8; s++)
        produce(ring, &spec, s);
    ck_assert(!ring_claimable(ring));
    consumer_detach(&c);
    ring_free(ring);
}
END_TEST

/* Any value but the exact one means "not released". */
START_TEST(hostile_release_words_free_nothing) {
    struct ring_spec spec = spec_of(3, 1, 1, UINT64_MAX);
    struct ring *ring = ring_of(&spec);
    struct consumer c = consumer_over(ring);
    for (uint64_t s = 0; s < 3; s++)
        produce(ring, &spec, s);
    const uint64_t bad[] = {0, 2, 3, 4, UINT64_MAX, UINT64_MAX - 1, UINT64_C(1) << 63, 1000};
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        atomic_store(&c.release[0], bad[i]);
        ck_assert(!ring_claimable(ring));
    }
    atomic_store(&c.release[0], 1);
    ck_assert(ring_claimable(ring));
    consumer_detach(&c);
    ring_free(ring);
}
END_TEST

/* The oldest slot goes unit by unit; later ones several at a time, never across a slot's end. */
START_TEST(read_ahead_claims_several) {
    struct ring_spec spec = spec_of(4, 5, 1, UINT64_MAX);
    struct ring *ring = ring_of(&spec);
    uint64_t sequence;
    uint32_t unit;
    for (uint32_t i = 0; i < 5; i++) {
        ck_assert_uint_eq(ring_claim(ring, 3, &sequence, &unit), 1);
        ck_assert_uint_eq(sequence, 0);
        ck_assert_uint_eq(unit, i);
    }
    ck_assert_uint_eq(ring_claim(ring, 3, &sequence, &unit), 3);
    ck_assert_uint_eq(sequence, 1);
    ck_assert_uint_eq(unit, 0);
    ck_assert_uint_eq(ring_claim(ring, 3, &sequence, &unit), 2);
    ck_assert_uint_eq(unit, 3);
    for (uint32_t i = 0; i < 5; i++)
        fill(ring, 0, i, &spec);
    ck_assert(!ring_complete(ring, 1, 3)); /* a claim's units are counted down together */
    ck_assert(ring_complete(ring, 1, 2));
    ring_publish(ring, 1);
    ck_assert_uint_eq(ring_claim(ring, 3, &sequence, &unit), 1); /* number 2 is the oldest now */
    ck_assert_uint_eq(sequence, 2);
    ring_free(ring);
}
END_TEST

START_TEST(stop_after_ends_claims) {
    struct ring_spec spec = spec_of(4, 2, 1, UINT64_MAX);
    struct ring *ring = ring_of(&spec);
    ring_stop_after(ring, 1);
    produce(ring, &spec, 0);
    produce(ring, &spec, 1);
    ck_assert(!ring_claimable(ring));
    ring_stop_after(ring, 5); /* never later again */
    ck_assert(!ring_claimable(ring));
    ring_free(ring);
}
END_TEST

/* The daemon asks once at half a ring free; the trainer answers each request once. */
START_TEST(wake_at_half_a_ring) {
    struct ring_spec spec = spec_of(8, 1, 1, UINT64_MAX);
    struct ring *ring = ring_of(&spec);
    struct consumer c = consumer_over(ring);
    struct loaderd_batch batch;
    const char *message;
    bool kick;
    for (uint64_t s = 0; s < 8; s++)
        produce(ring, &spec, s);
    ck_assert(!ring_ask_wake(ring));
    int kicks = 0;
    for (int i = 0; i < 8; i++) {
        ck_assert_int_eq(consumer_try(&c, &batch, &message), 1);
        ck_assert(!ring_wake_overdue(ring) || i > 3);
        consumer_release(&c, batch.sequence, &kick);
        kicks += kick;
        ck_assert_int_eq(kicks, i >= 3 ? 1 : 0);
    }
    ck_assert(ring_wake_overdue(ring));
    ck_assert(!consumer_announce(&c, &kick));
    ck_assert(!kick); /* answered already */
    consumer_detach(&c);
    ring_free(ring);
}
END_TEST

/* With many batches held, half a ring never gets free: a trainer that is about to sleep says so. */
START_TEST(trainer_that_holds_many_kicks_before_sleeping) {
    struct ring_spec spec = spec_of(8, 1, 1, UINT64_MAX);
    struct ring *ring = ring_of(&spec);
    struct consumer c = consumer_over(ring);
    struct loaderd_batch batch;
    const char *message;
    bool kick;
    for (uint64_t s = 0; s < 8; s++)
        produce(ring, &spec, s);
    ck_assert(!ring_ask_wake(ring));
    for (int i = 0; i < 8; i++)
        ck_assert_int_eq(consumer_try(&c, &batch, &message), 1);
    consumer_release(&c, 0, &kick);
    ck_assert(!kick);
    ck_assert(!consumer_announce(&c, &kick));
    ck_assert(kick);
    ck_assert(!consumer_announce(&c, &kick));
    ck_assert(!kick); /* nothing new since */
    consumer_detach(&c);
    ring_free(ring);
}
END_TEST

/* ---- stress --------------------------------------------------------------------------------------------------------- */

struct stress {
    struct ring *ring;
    struct ring_spec spec;
    _Atomic uint32_t to_workers, to_trainer; /* futexes: bytes sent */
    _Atomic uint64_t rescues;
    _Atomic bool over;
};

static void sleep_on(_Atomic uint32_t *word, uint32_t value) {
    const struct timespec t = {2, 0}; /* far beyond any scheduling delay: reaching it is a lost wake-up */
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, &t, NULL, 0);
}

static void wake(_Atomic uint32_t *word) {
    atomic_fetch_add(word, 1);
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

static void *producer(void *arg) {
    struct stress *t = arg;
    while (!atomic_load(&t->over)) {
        uint64_t sequence;
        uint32_t unit;
        uint32_t count = ring_claim(t->ring, 2, &sequence, &unit);
        for (uint32_t i = 0; i < count; i++)
            write_unit(t->ring, sequence, unit + i, &t->spec);
        if (count && complete(t->ring, sequence, count, &t->spec))
            wake(&t->to_trainer);
        if (count)
            continue;
        uint32_t seen = atomic_load(&t->to_workers);
        if (ring_ask_wake(t->ring))
            continue;
        uint64_t began = now_ns();
        sleep_on(&t->to_workers, seen);
        if (now_ns() - began > UINT64_C(1900000000) && ring_claimable(t->ring) && !atomic_load(&t->over))
            atomic_fetch_add(&t->rescues, 1);
    }
    return NULL;
}

static int wait_or_end(struct stress *t, struct consumer *c, struct loaderd_batch *batch) {
    const char *message;
    int r;
    while ((r = consumer_try(c, batch, &message)) == 0) {
        uint32_t seen = atomic_load(&t->to_trainer);
        bool kick, ready = consumer_announce(c, &kick);
        if (kick)
            wake(&t->to_workers);
        if (!ready) {
            uint64_t began = now_ns();
            sleep_on(&t->to_trainer, seen);
            if (now_ns() - began > UINT64_C(1900000000))
                atomic_fetch_add(&t->rescues, 1);
        }
        consumer_awake(c);
    }
    return r;
}

static void wait_for(struct stress *t, struct consumer *c, struct loaderd_batch *batch) {
    ck_assert_int_eq(wait_or_end(t, c, batch), 1);
}

START_TEST(stress_of_threads_over_one_mapping) {
    const uint32_t held_most = (uint32_t)_i;
    struct stress t = {.spec = spec_of(held_most + 2 + (held_most & 1), 6, 2, STRESS_BATCHES)};
    t.spec.held = MAX(held_most, 1u);
    t.spec.slots = MAX(t.spec.slots, 3u);
    t.ring = ring_of(&t.spec);
    struct consumer c = consumer_over(t.ring);
    pthread_t thread[3];
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(pthread_create(&thread[i], NULL, producer, &t), 0);
    uint64_t held[16];
    uint32_t n = 0, random = 12345;
    for (uint64_t s = 0; s < STRESS_BATCHES; s++) {
        struct loaderd_batch batch;
        wait_for(&t, &c, &batch);
        ck_assert_uint_eq(batch.sequence, s);
        check_batch(&batch, t.spec.batch);
        held[n++] = batch.sequence;
        while (n > 0) {
            uint32_t oldest = 0;
            for (uint32_t i = 1; i < n; i++)
                oldest = held[i] < held[oldest] ? i : oldest;
            random = random * 1664525u + 1013904223u;
            bool must = held[oldest] + t.spec.held <= s + 1; /* an old one would stall the ring */
            if (!must && (random >> 16 & 1))
                break;
            uint32_t pick = must ? oldest : (random >> 8) % n;
            bool kick;
            ck_assert_int_eq(consumer_release(&c, held[pick], &kick), 0);
            held[pick] = held[--n];
            if (kick)
                wake(&t.to_workers);
        }
    }
    atomic_store(&t.over, true);
    wake(&t.to_workers);
    for (int i = 0; i < 3; i++)
        pthread_join(thread[i], NULL);
    ck_assert_uint_eq(atomic_load(&t.rescues), 0);
    consumer_detach(&c);
    ring_free(t.ring);
}
END_TEST

struct faithful {
    struct stress *t;
    uint32_t member;
    _Atomic uint64_t at;
};

static void *consume_all(void *arg) {
    struct faithful *f = arg;
    struct consumer c = consumer_of(f->t->ring, f->member);
    struct loaderd_batch batch;
    int r;
    while ((r = wait_or_end(f->t, &c, &batch)) == 1) {
        bool kick;
        ck_assert_uint_eq(batch.sequence, atomic_load(&f->at));
        check_batch(&batch, f->t->spec.batch);
        ck_assert_int_eq(consumer_release(&c, batch.sequence, &kick), 0);
        ck_assert(!consumer_detached(&c));
        if (kick)
            wake(&f->t->to_workers);
        atomic_store(&f->at, batch.sequence + 1);
    }
    ck_assert_int_eq(r, -ENODATA);
    consumer_detach(&c);
    return NULL;
}

/* Joins where the ring just is, takes some batches, and leaves, maybe with one in hand. False at the end. */
static bool visit(struct stress *t, uint64_t start, uint32_t batches, uint32_t *joined) {
    uint32_t member;
    struct loaderd_batch batch;
    struct diag diag = DIAG_INIT;
    int r = ring_join(t->ring, start, -1, &member, &diag);
    if (r == -ESTALE) {
        wake(&t->to_workers);
        return true;
    }
    ck_assert_msg(r == 0, "%d %s", r, diag.text);
    struct consumer c = consumer_of(t->ring, member);
    consumer_start(&c, start);
    ++*joined;
    for (uint32_t i = 0; i < batches && (r = wait_or_end(t, &c, &batch)) == 1; i++) {
        bool kick;
        ck_assert_uint_eq(batch.sequence, start + i);
        check_batch(&batch, t->spec.batch); /* nobody wrote into what this member was to get */
        if (i + 1 == batches && batches % 2)
            break;
        ck_assert_int_eq(consumer_release(&c, batch.sequence, &kick), 0);
        if (kick)
            wake(&t->to_workers);
    }
    ck_assert(!consumer_detached(&c));
    struct loaderd_control *control = c.control;
    ck_assert_uint_eq(atomic_load(&control->detached), 0);
    ring_leave(t->ring, member);
    ck_assert(consumer_detached(&c));
    wake(&t->to_workers);
    consumer_detach(&c);
    return r != -ENODATA;
}

/* How often members may join: each leaves a descriptor with the ring until workers are seen to have moved on (ring_bury). */
static uint32_t visits_most(void) {
    struct rlimit limit;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = limit.rlim_max;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    return (uint32_t)CLAMP(limit.rlim_max, 200u, 3100u) - 100;
}

START_TEST(stress_of_members) {
    struct stress t = {.spec = spec_of(8, 6, 2, STRESS_BATCHES)};
    uint32_t second, random = 99, joined = 0, visits = 0, most = visits_most();
    struct diag diag = DIAG_INIT;
    t.ring = ring_of(&t.spec);
    ring_let(t.ring, 0);
    ck_assert_int_eq(ring_join(t.ring, 0, -1, &second, &diag), 0);
    ck_assert_uint_eq(second, 1);
    ring_let(t.ring, UINT64_MAX);
    struct faithful faithful[2] = {{&t, 0, 0}, {&t, second, 0}};
    pthread_t workers[3], readers[2];
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(pthread_create(&workers[i], NULL, producer, &t), 0);
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(pthread_create(&readers[i], NULL, consume_all, &faithful[i]), 0);
    for (bool more = true; more && visits < most; visits++) {
        random = random * 1664525u + 1013904223u;
        uint64_t at = MAX(atomic_load(&faithful[0].at), atomic_load(&faithful[1].at));
        uint64_t back = (random >> 8) % 8;
        if (at >= t.spec.sequences)
            break;
        more = visit(&t, at > back ? at - back : at, 1 + (random >> 16) % 40, &joined);
        if (visits % 8 == 0)
            sched_yield();
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(readers[i], NULL);
        ck_assert_uint_eq(atomic_load(&faithful[i].at), t.spec.sequences);
    }
    atomic_store(&t.over, true);
    wake(&t.to_workers);
    for (int i = 0; i < 3; i++)
        pthread_join(workers[i], NULL);
    ck_assert_uint_eq(atomic_load(&t.rescues), 0);
    ck_assert_uint_gt(joined, 10);
    ring_free(t.ring);
}
END_TEST

START_TEST(members_join_and_leave) {
    struct ring_spec spec = spec_of(4, 2, 1, UINT64_MAX);
    struct ring *ring = ring_of(&spec);
    struct diag diag = DIAG_INIT;
    struct consumer c[3] = {consumer_over(ring)};
    struct loaderd_batch batch;
    const char *message;
    bool kick;
    uint32_t member;
    uint64_t sequence;
    ring_let(ring, 0);
    ck_assert(!ring_claimable(ring));
    ck_assert_int_eq(ring_join(ring, 2, -1, &member, &diag), 0); /* begins with batch 2 */
    ck_assert_uint_eq(member, 1);
    ring_let(ring, UINT64_MAX);
    c[1] = consumer_of(ring, 1);
    consumer_start(&c[1], 2);
    for (uint64_t s = 0; s < 4; s++)
        produce(ring, &spec, s);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(consumer_try(&c[0], &batch, &message), 1);
        consumer_release(&c[0], (uint64_t)i, &kick);
    }
    produce(ring, &spec, 4); /* batches 0 and 1 are none of member 1's */
    produce(ring, &spec, 5);
    ck_assert(!ring_claimable(ring)); /* batch 2 is */
    ck_assert_uint_eq(ring_blockers(ring, &sequence), 2);
    ck_assert_uint_eq(sequence, 6);
    ck_assert_int_eq(consumer_try(&c[1], &batch, &message), 1);
    ck_assert_uint_eq(batch.sequence, 2);
    /* ring: 2 held by member 1, 3, 4, 5; next is 6, which takes 2's slot */
    ck_assert_int_eq(ring_join(ring, 3, -1, &member, &diag), -ESTALE);
    ck_assert_int_eq(ring_join(ring, 4, -1, &member, &diag), 0);
    ck_assert_uint_eq(member, 2);
    ck_assert(ring_has_left(ring)); /* the refused one was seen for a moment */
    ck_assert_uint_eq(ring_bury(ring, 1, 0), 1);
    ck_assert(!ring_has_left(ring));
    ring_leave(ring, 1);
    ck_assert(consumer_detached(&c[1]));
    ck_assert(ring_has_left(ring));
    ck_assert(ring_claimable(ring));
    produce(ring, &spec, 6);
    ck_assert_uint_eq(ring_bury(ring, 7, 6), 1); /* the refused one was stamped 1 */
    ck_assert_uint_eq(ring_bury(ring, 0, 7), 0);
    ck_assert_int_eq(ring_join(ring, 6, -1, &member, &diag), 0); /* its place is free again */
    ck_assert_uint_eq(member, 1);
    for (uint32_t i = 3; i < RING_MOST_MEMBERS; i++)
        ck_assert_int_eq(ring_join(ring, 6, -1, &member, &diag), 0);
    ck_assert_int_eq(ring_join(ring, 6, -1, &member, &diag), -EUSERS);
    /* one look for all */
    struct consumer waiting[2] = {consumer_of(ring, 3), consumer_of(ring, 5)};
    for (int i = 0; i < 2; i++) {
        consumer_start(&waiting[i], 7);
        consumer_announce(&waiting[i], &kick);
    }
    ring_leave(ring, 0);
    ring_leave(ring, 2);
    uint32_t unit;
    ck_assert_uint_eq(ring_claim(ring, 2, &sequence, &unit), 1);
    ck_assert_uint_eq(sequence, 7);
    ck_assert(!ring_complete(ring, 7, 1));
    ck_assert_uint_gt(ring_claim(ring, 2, &sequence, &unit), 0);
    ck_assert(ring_complete(ring, 7, 1));
    ck_assert_uint_eq(ring_publish(ring, 7), 1u << 3 | 1u << 5);
    for (int i = 0; i < 2; i++) {
        consumer_detach(&c[i]);
        consumer_detach(&waiting[i]);
    }
    ring_free(ring);
}
END_TEST

/* What a client is handed: every single word of the header, changed, is refused or harmless. */
START_TEST(consumer_refuses_a_strange_header) {
    struct ring_spec spec = spec_of(3, 2, 1, 4);
    struct ring *ring = ring_of(&spec);
    size_t bytes = ring_data_bytes(ring), control_bytes = ring_control_bytes(ring, 0);
    uint8_t *data = aligned_alloc(4096, bytes), *control = aligned_alloc(4096, control_bytes);
    const uint8_t *original = (const uint8_t *)ring_slot(ring, 0) - sizeof(struct loaderd_ring_header);
    const uint32_t strange[] = {0, 1, 0x7fffffff, 0xffffffff, 0x80000000};
    for (size_t at = 0; at < 384 + 2 * 128; at += 4)
        for (size_t k = 0; k < ARRAY_SIZE(strange); k++) {
            memcpy(data, original, bytes);
            memcpy(control, ring_control(ring, 0), control_bytes);
            memcpy(data + at, &strange[k], 4);
            struct consumer c;
            char error[200];
            if (consumer_bind(&c, data, bytes, control, control_bytes, error, sizeof error) < 0)
                continue;
            struct loaderd_batch batch;
            const char *message;
            if (consumer_try(&c, &batch, &message) == 1)
                for (uint32_t f = 0; f < batch.nfields; f++) {
                    const uint8_t *first = batch.fields[f].data;
                    ck_assert(first >= data && first + batch.fields[f].bytes <= data + bytes);
                }
            consumer_detach(&c);
        }
    free(data);
    free(control);
    ring_free(ring);
}
END_TEST

int main(void) {
    Suite *suite = suite_create("ring");
    TCase *tc = tcase_create("ring");
    tcase_set_timeout(tc, 240);
    tcase_add_test(tc, layout_is_aligned_and_disjoint);
    tcase_add_test(tc, memfds_are_sealed);
    tcase_add_test(tc, refusals_name_the_remedy);
    tcase_add_test(tc, wraps_many_times);
    tcase_add_test(tc, out_of_order_release_stalls_at_the_oldest);
    tcase_add_test(tc, hostile_release_words_free_nothing);
    tcase_add_test(tc, read_ahead_claims_several);
    tcase_add_test(tc, stop_after_ends_claims);
    tcase_add_test(tc, wake_at_half_a_ring);
    tcase_add_test(tc, trainer_that_holds_many_kicks_before_sleeping);
    tcase_add_test(tc, members_join_and_leave);
    tcase_add_test(tc, consumer_refuses_a_strange_header);
    tcase_add_test(tc, stress_of_members);
    tcase_add_loop_test(tc, stress_of_threads_over_one_mapping, 1, 7);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
