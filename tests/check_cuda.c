/* SPDX-License-Identifier: MIT */
/*
 * libloaderd-cuda with a real daemon. The same tests run as check_cuda over tests/cuda/fake.c (no CUDA needed), where faults
 * can be asked for and leaks counted, and as check_cuda_device over the CUDA runtime, where most of them need a device.
 * LOADERD_TEST_BATCHES: how many batches the test with slow kernels runs.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <loaderd/cuda.h>

#include "cuda/gpu.h"
#include "system/harness.h"

#ifdef FAKE_DEVICE
#include "../client/cuda/finish.h"
#include "../client/cuda/pin.h"
#include "../client/ring_hooks.h"
#include "transform/internal.h"
#endif

#define SAMPLES 200
#define BATCH 16
#define DATA 1020
#define STEPS (SAMPLES / BATCH)

static bool has_device(void) {
    if (gpu_devices() > 0)
        return true;
    fprintf(stderr, "skipped: no CUDA device here\n");
    return false;
}

static struct loaderd *open_records(const char *slots, uint64_t epochs) {
    const char *keys[] = {
        "record=id:u32 data:u8[1020]", "batch=16", "shuffle=full", "seed=3", "last=drop", "workers=2", slots, NULL};
    struct loaderd_options o = LOADERD_OPTIONS_INIT;
    o.keys = keys;
    o.epochs = epochs;
    o.job = NULL;
    return open_loader("./records.bin", &o);
}

static struct loaderd_cuda *open_cuda(struct loaderd *loader, const struct loaderd_cuda_options *options) {
    struct loaderd_cuda *lc = NULL;
    char error[512] = "";
    int r = loaderd_cuda_open(&lc, loader, options, error, sizeof error);
    ck_assert_msg(r == 0, "loaderd_cuda_open: %d %s", r, error);
    return lc;
}

/* A batch on the device looks like one on the host. */
static void check_device_batch(const struct loaderd_batch *b, struct CUstream_st *stream) {
    uint8_t *host = malloc(b->slot_bytes);
    struct loaderd_field fields[LOADERD_MAX_FIELDS];
    struct loaderd_batch view = *b;
    gpu_download(host, b->slot, b->slot_bytes, stream);
    for (uint32_t i = 0; i < b->nfields; i++) {
        fields[i] = b->fields[i];
        fields[i].data = host + ((const uint8_t *)b->fields[i].data - (const uint8_t *)b->slot);
    }
    view.fields = fields;
    view.slot = host;
    check_records(&view);
    free(host);
}

static void must_next_on(struct loaderd_cuda *lc, struct CUstream_st *stream, struct loaderd_batch *b) {
    int r = loaderd_cuda_next(lc, stream, b);
    ck_assert_msg(r == 1, "loaderd_cuda_next: %d %s", r, loaderd_cuda_error(lc));
}

static void must_release_on(struct loaderd_cuda *lc, struct CUstream_st *stream, const struct loaderd_batch *b) {
    int r = loaderd_cuda_release(lc, stream, b);
    ck_assert_msg(r == 0, "loaderd_cuda_release: %d %s", r, loaderd_cuda_error(lc));
}

static void check_nothing_left(void) {
    struct gpu_leaks l = gpu_leaks();
    ck_assert_msg(!l.allocations && !l.streams && !l.events && !l.registrations,
                  "left on the device: %d allocations, %d streams, %d events, %d registrations", l.allocations,
                  l.streams, l.events, l.registrations);
    if (gpu_devices() > 0)
        ck_assert_int_eq(gpu_trivial(), 0);
}

/* ---- no device ----------------------------------------------------------------------------------------------------------- */

START_TEST(no_device) {
    harness_begin();
    make_records("records.bin", SAMPLES, DATA);
    struct loaderd *loader = open_records("slots=4", 1);
    struct loaderd_cuda *lc = NULL;
    struct loaderd_batch b;
    char error[512] = "";
    double bandwidth = 0;
    if (gpu_is_fake())
        gpu_faults()->devices = 0;
    if (gpu_devices() == 0) {
        ck_assert_int_eq(loaderd_cuda_open(&lc, loader, NULL, error, sizeof error), -ENODEV);
        ck_assert_ptr_null(lc);
        ck_assert_msg(strstr(error, "driver") || strstr(error, "device"), "%s", error);
        ck_assert_int_eq(loaderd_cuda_open(&lc, loader, NULL, NULL, 0), -ENODEV);
        *error = '\0';
        ck_assert_int_eq(loaderd_cuda_pin(loader, 0, error, sizeof error), -ENODEV);
        ck_assert_str_ne(error, "");
        ck_assert_int_eq(loaderd_cuda_bandwidth(0, 1 << 20, &bandwidth, error, sizeof error), -ENODEV);
        ck_assert_int_eq(loaderd_cuda_node(0), -ENODEV);
    } else { /* one that is not there */
        ck_assert_int_eq(loaderd_cuda_pin(loader, 1000, error, sizeof error), -ENODEV);
        ck_assert_int_eq(gpu_trivial(), 0);
    }
    ck_assert_int_eq(loaderd_cuda_unpin(loader), -ENOENT);
    loaderd_cuda_close(NULL);
    must_next(loader, &b); /* the loader is as good as before */
    check_records(&b);
    ck_assert_int_eq(loaderd_release(loader, &b), 0);
    loaderd_close(loader);
    harness_end();
}
END_TEST

START_TEST(bad_options) {
    harness_begin();
    make_records("records.bin", SAMPLES, DATA);
    struct loaderd *loader = open_records("slots=4", 1);
    struct loaderd_cuda *lc = NULL;
    struct loaderd_cuda_options o = LOADERD_CUDA_OPTIONS_INIT;
    char error[512];
    o.size = 4;
    ck_assert_int_eq(loaderd_cuda_open(&lc, loader, &o, error, sizeof error), -EINVAL);
    o = (struct loaderd_cuda_options)LOADERD_CUDA_OPTIONS_INIT;
    o.depth = 1;
    ck_assert_int_eq(loaderd_cuda_open(&lc, loader, &o, error, sizeof error), -EINVAL);
    o.depth = 0;
    o.flags = 0x80;
    ck_assert_int_eq(loaderd_cuda_open(&lc, loader, &o, error, sizeof error), -EINVAL);
    o.flags = LOADERD_CUDA_REQUIRE_PINNED | LOADERD_CUDA_UNPINNED;
    ck_assert_int_eq(loaderd_cuda_open(&lc, loader, &o, error, sizeof error), -EINVAL);
    if (has_device()) {
        o.flags = 0;
        o.finish.dtype = LOADERD_F32; /* there is no picture */
        ck_assert_int_eq(loaderd_cuda_open(&lc, loader, &o, error, sizeof error), -EINVAL);
        ck_assert_msg(strstr(error, "picture") != NULL, "%s", error);
        o.finish_field = "data";
        ck_assert_int_eq(loaderd_cuda_open(&lc, loader, &o, error, sizeof error), -EINVAL);
        o.finish_field = "nothing";
        ck_assert_int_eq(loaderd_cuda_open(&lc, loader, &o, error, sizeof error), -EINVAL);
        o = (struct loaderd_cuda_options)LOADERD_CUDA_OPTIONS_INIT;
        o.device = 1000;
        ck_assert_int_eq(loaderd_cuda_open(&lc, loader, &o, error, sizeof error), -ENODEV);
    }
    ck_assert_ptr_null(lc);
    loaderd_close(loader);
    check_nothing_left();
    harness_end();
}
END_TEST

/* ---- batches ------------------------------------------------------------------------------------------------------------- */

/* The daemon tells which device its trainer uses: of the fake one the UUID is known. */
static void expect_gpu(struct loaderd *loader) {
#ifdef FAKE_DEVICE
    static const char wanted[] = "\"gpu\": \"GPU-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadaeaf\"";
    struct loaderd_info info;
    bool found = false;
    ck_assert_int_eq(loaderd_info(loader, &info), 0);
    for (int i = 0; i < 600 && !found; i++) { /* it looks ten times a second */
        char *json = read_status(info.socket);
        found = strstr(json, wanted) != NULL;
        free(json);
        if (!found)
            sleep_ms(50);
    }
    ck_assert(found);
#else
    (void)loader;
#endif
}

/* Two epochs: contents, ends, positions, state, statistics. */
START_TEST(whole_epochs) {
    if (!has_device())
        return;
    harness_begin();
    make_records("records.bin", SAMPLES, DATA);
    struct loaderd *loader = open_records("slots=4", 2);
    struct loaderd_cuda *lc = open_cuda(loader, NULL);
    struct CUstream_st *stream = gpu_stream_new();
    struct loaderd_batch b;
    struct loaderd_state state;
    uint64_t n = 0;
    int ends = 0, r;
    while (ends < 2) {
        r = loaderd_cuda_next(lc, stream, &b);
        ck_assert_msg(r >= 0, "%d %s", r, loaderd_cuda_error(lc));
        if (r == 0) {
            ends++;
            ck_assert_uint_eq(n, (uint64_t)ends * STEPS);
            continue;
        }
        ck_assert_uint_eq(b.sequence, n);
        ck_assert_uint_eq(b.epoch, n / STEPS);
        ck_assert_uint_eq(b.step, n % STEPS);
        check_device_batch(&b, stream);
        ck_assert_int_eq(loaderd_cuda_state(lc, &state), 0);
        ck_assert_uint_eq(state.epoch * STEPS + state.step, n);
        must_release_on(lc, stream, &b);
        n++;
        ck_assert_int_eq(loaderd_cuda_state(lc, &state), 0);
        ck_assert_uint_eq(state.epoch * STEPS + state.step, n);
    }
    ck_assert_int_eq(loaderd_cuda_next(lc, stream, &b), 0);
    ck_assert_int_eq(loaderd_cuda_next(lc, stream, &b), 0);
    ck_assert_int_eq(loaderd_cuda_release(lc, stream, &b), -EINVAL); /* released before */
    struct loaderd_cuda_statistics s;
    struct loaderd_cuda_info info;
    ck_assert_int_eq(loaderd_cuda_statistics(lc, &s), 0);
    ck_assert_uint_eq(s.batches, 2 * STEPS);
    ck_assert_uint_eq(s.copies, 2 * STEPS);
    ck_assert_uint_eq(s.bytes, s.copies * b.slot_bytes);
    ck_assert_uint_eq(s.rings, 1);
    ck_assert_uint_gt(s.stream_waits, 0);
    ck_assert_int_eq(loaderd_cuda_info(lc, &info), 0);
    ck_assert_msg(info.pinned == 1 && info.pinned_bytes > 4 * b.slot_bytes && info.pin_ns > 0, "%s", info.note);
    ck_assert_uint_eq(info.depth, 3);
    ck_assert_uint_eq(info.device_bytes, 3 * b.slot_bytes);
    ck_assert_uint_eq(info.finished, info.nfields);
    expect_gpu(loader);
    loaderd_cuda_close(lc);
    loaderd_close(loader);
    gpu_stream_free(stream);
    check_nothing_left();
    harness_end();
}
END_TEST

/* The default stream, and a position in the middle; the loader is usable after close. */
START_TEST(default_stream_and_close) {
    if (!has_device())
        return;
    harness_begin();
    make_records("records.bin", SAMPLES, DATA);
    struct loaderd *loader = open_records("slots=6", 0);
    struct loaderd_batch b;
    struct loaderd_state state;
    for (int i = 0; i < 5; i++) {
        must_next(loader, &b);
        ck_assert_int_eq(loaderd_release(loader, &b), 0);
    }
    struct loaderd_cuda *lc = open_cuda(loader, NULL);
    ck_assert_int_eq(loaderd_cuda_state(lc, &state), 0);
    ck_assert_uint_eq(state.step, 5);
    must_next_on(lc, NULL, &b);
    ck_assert_uint_eq(b.step, 5);
    check_device_batch(&b, NULL);
    must_release_on(lc, NULL, &b);
    must_next_on(lc, NULL, &b); /* held: freed by close */
    ck_assert_int_eq(loaderd_cuda_state(lc, &state), 0);
    ck_assert_uint_eq(state.step, 6);
    loaderd_cuda_close(lc);
    must_next(loader, &b); /* behind what was fetched ahead */
    ck_assert_uint_ge(b.step, 7);
    check_records(&b);
    ck_assert_int_eq(loaderd_release(loader, &b), 0);
    loaderd_close(loader);
    check_nothing_left();
    harness_end();
}
END_TEST

/* SHM-07: slow work behind every copy, the batch released at once, three slots: no buffer and no slot is reused early. */
START_TEST(slow_kernels) {
    if (!has_device())
        return;
    harness_begin();
    make_records("records.bin", SAMPLES, DATA);
    const char *wanted = getenv("LOADERD_TEST_BATCHES");
    const uint64_t batches = wanted ? strtoull(wanted, NULL, 10) : gpu_is_fake() ? 300 : 2000;
    uint64_t *ids = calloc(batches * BATCH, sizeof *ids), *got = calloc(batches * 2, sizeof *got);
    uint64_t *sums = gpu_alloc(batches * 2 * sizeof *sums);
    gpu_zero(sums, batches * 2 * sizeof *sums);
    struct loaderd *loader = open_records("slots=3", 0);
    struct loaderd_cuda_options o = LOADERD_CUDA_OPTIONS_INIT;
    o.depth = 2;
    struct loaderd_cuda *lc = open_cuda(loader, &o);
    struct CUstream_st *stream = gpu_stream_new();
    struct loaderd_batch b;
    if (gpu_is_fake())
        gpu_faults()->copy_us = 100;
    for (uint64_t n = 0; n < batches; n++) {
        int r = loaderd_cuda_next(lc, stream, &b);
        ck_assert_msg(r >= 0, "%d %s", r, loaderd_cuda_error(lc));
        if (r == 0 && n--)
            continue;
        for (uint32_t i = 0; i < BATCH; i++)
            ids[n * BATCH + i] = b.row[i].sample;
        gpu_slow(stream, n % 100 == 7 ? 20000 : 200);
        gpu_sum(stream, b.fields[0].data, b.fields[0].bytes, sums + 2 * n);
        gpu_sum(stream, b.fields[1].data, b.fields[1].bytes, sums + 2 * n + 1);
        must_release_on(lc, stream, &b);
    }
    gpu_download(got, sums, batches * 2 * sizeof *sums, stream);
    for (uint64_t n = 0; n < batches; n++) {
        uint32_t id[BATCH];
        uint8_t data[BATCH * DATA];
        for (uint32_t i = 0; i < BATCH; i++) {
            id[i] = (uint32_t)ids[n * BATCH + i];
            for (uint32_t k = 0; k < DATA; k++)
                data[i * DATA + k] = record_byte(id[i], k);
        }
        ck_assert_msg(got[2 * n] == gpu_sum_of((uint8_t *)id, sizeof id) &&
                          got[2 * n + 1] == gpu_sum_of(data, sizeof data),
                      "batch %lu came out wrong", (unsigned long)n);
    }
    struct loaderd_cuda_statistics s;
    ck_assert_int_eq(loaderd_cuda_statistics(lc, &s), 0);
    ck_assert_uint_gt(s.trainer_ns, 0); /* it saw that the trainer was the slow one, at least at times */
    loaderd_cuda_close(lc);
    loaderd_close(loader);
    gpu_stream_free(stream);
    gpu_free(sums);
    free(ids);
    free(got);
    check_nothing_left();
    harness_end();
}
END_TEST

START_TEST(release_order) {
    if (!has_device())
        return;
    harness_begin();
    make_records("records.bin", SAMPLES, DATA);
    struct loaderd *loader = open_records("slots=3", 0);
    struct loaderd_cuda_options o = LOADERD_CUDA_OPTIONS_INIT;
    o.depth = 4;
    struct loaderd_cuda *lc = open_cuda(loader, &o);
    struct CUstream_st *stream = gpu_stream_new();
    struct loaderd_batch b[4], more;
    struct loaderd_state state;
    for (int i = 0; i < 4; i++)
        must_next_on(lc, stream, &b[i]);
    ck_assert_int_eq(loaderd_cuda_next(lc, stream, &more), -EBUSY); /* nothing could ever come */
    ck_assert_msg(strstr(loaderd_cuda_error(lc), "depth") != NULL, "%s", loaderd_cuda_error(lc));
    must_release_on(lc, stream, &b[2]);
    must_release_on(lc, stream, &b[1]);
    ck_assert_int_eq(loaderd_cuda_release(lc, stream, &b[1]), -EINVAL);
    ck_assert_int_eq(loaderd_cuda_state(lc, &state), 0);
    ck_assert_uint_eq(state.step, 0); /* the first one is held */
    must_next_on(lc, stream, &more);
    ck_assert_uint_eq(more.step, 4);
    check_device_batch(&more, stream);
    check_device_batch(&b[0], stream); /* what is held stays */
    check_device_batch(&b[3], stream);
    must_release_on(lc, stream, &b[0]);
    ck_assert_int_eq(loaderd_cuda_state(lc, &state), 0);
    ck_assert_uint_eq(state.step, 3); /* 3 and 4 are held */
    must_release_on(lc, stream, &more);
    must_release_on(lc, stream, &b[3]);
    ck_assert_int_eq(loaderd_cuda_state(lc, &state), 0);
    ck_assert_uint_eq(state.step, 5);
    loaderd_cuda_close(lc);
    loaderd_close(loader);
    gpu_stream_free(stream);
    check_nothing_left();
    harness_end();
}
END_TEST

/* SHM-06: attach and detach again and again, two clients at once; nothing is left registered, no old error surfaces. */
START_TEST(attach_detach) {
    if (!has_device())
        return;
    harness_begin();
    make_records("records.bin", SAMPLES, DATA);
    pid_t daemon = start_daemon("--name", "records", "--dataset", "records.bin", "--record", "id:u32 data:u8[1020]",
                                "--workers", "2", "--slots", "4", NULL);
    const char *keys[] = {"batch=16", NULL};
    struct loaderd_options o = LOADERD_OPTIONS_INIT;
    o.keys = keys;
    struct loaderd *second = open_loader("records", &o);
    struct loaderd_cuda *other = open_cuda(second, NULL);
    for (int i = 0; i < 50; i++) {
        struct loaderd *loader = open_loader("records", &o);
        struct loaderd_cuda *lc = open_cuda(loader, NULL);
        struct loaderd_cuda_info info;
        struct loaderd_batch b;
        char error[256];
        ck_assert_int_eq(loaderd_cuda_info(lc, &info), 0);
        ck_assert_msg(info.pinned, "%s", info.note);
        ck_assert_int_eq(loaderd_cuda_pin(loader, 0, error, sizeof error), -EBUSY);
        must_next_on(lc, NULL, &b);
        check_device_batch(&b, NULL);
        if (i % 2)
            must_release_on(lc, NULL, &b);
        int r = loaderd_cuda_next(other, NULL, &b);
        ck_assert_msg(r >= 0, "%s", loaderd_cuda_error(other));
        if (r == 1) {
            check_device_batch(&b, NULL);
            must_release_on(other, NULL, &b);
        }
        loaderd_cuda_close(lc);
        loaderd_close(loader);
        ck_assert_int_eq(gpu_trivial(), 0);
    }
    loaderd_cuda_close(other);
    loaderd_close(second);
    end_process(daemon, SIGTERM);
    check_nothing_left();
    harness_end();
}
END_TEST

START_TEST(pin_alone) {
    if (!has_device())
        return;
    harness_begin();
    make_records("records.bin", SAMPLES, DATA);
    struct loaderd *loader = open_records("slots=4", 0);
    struct loaderd_cuda *lc = NULL;
    struct loaderd_batch b;
    char error[512] = "";
    for (int i = 0; i < 3; i++) {
        ck_assert_msg(loaderd_cuda_pin(loader, -1, error, sizeof error) == 0, "%s", error);
        ck_assert_int_eq(loaderd_cuda_pin(loader, -1, error, sizeof error), -EBUSY);
        ck_assert_int_eq(loaderd_cuda_open(&lc, loader, NULL, error, sizeof error), -EBUSY);
        must_next(loader, &b);
        check_records(&b);
        ck_assert_int_eq(loaderd_release(loader, &b), 0);
        if (i < 2)
            ck_assert_int_eq(loaderd_cuda_unpin(loader), 0);
    }
    loaderd_close(loader); /* takes the registration back */
    check_nothing_left();
    harness_end();
}
END_TEST

START_TEST(captured_stream) {
    if (!has_device())
        return;
    harness_begin();
    make_records("records.bin", SAMPLES, DATA);
    struct loaderd *loader = open_records("slots=4", 0);
    struct loaderd_cuda *lc = open_cuda(loader, NULL);
    struct CUstream_st *stream = gpu_stream_new(), *graph = gpu_stream_new();
    struct loaderd_batch b, c;
    int r;
    must_next_on(lc, stream, &b);
    void *mine = gpu_alloc(b.slot_bytes);
    gpu_capture_begin(graph); /* the strictest mode: the helper goes on all the same */
    ck_assert_int_eq(loaderd_cuda_next(lc, graph, &c), -EBUSY);
    ck_assert_msg(strstr(loaderd_cuda_error(lc), "captured") != NULL, "%s", loaderd_cuda_error(lc));
    ck_assert_int_eq(loaderd_cuda_release(lc, graph, &b), -EBUSY);
    ck_assert_int_eq(loaderd_cuda_copy(lc, graph, &b, mine, b.slot_bytes), -EBUSY);
    sleep_ms(50);
    gpu_capture_end(graph);
    ck_assert_int_eq(gpu_trivial(), 0);
    for (int i = 0; i < 20; i++) { /* nothing has changed, and a fixed buffer is filled before each launch */
        check_device_batch(&b, stream);
        ck_assert_int_eq(loaderd_cuda_copy(lc, stream, &b, mine, b.slot_bytes), 0);
        ck_assert_int_eq(loaderd_cuda_copy(lc, stream, &b, mine, b.slot_bytes + 1), -EINVAL);
        const uint64_t first = b.row[0].sample; /* rows and fields are the batch's: gone with it */
        const size_t offset = (size_t)((const uint8_t *)b.fields[0].data - (const uint8_t *)b.slot);
        c = b;
        must_release_on(lc, stream, &b);
        ck_assert_int_eq(loaderd_cuda_copy(lc, stream, &c, mine, c.slot_bytes), -EINVAL); /* not held any more */
        uint8_t *host = malloc(c.slot_bytes);
        gpu_download(host, mine, c.slot_bytes, stream);
        uint32_t id;
        memcpy(&id, host + offset, sizeof id);
        ck_assert_uint_eq(id, first);
        free(host);
        do {
            r = loaderd_cuda_next(lc, stream, &b);
        } while (r == 0);
        ck_assert_int_eq(r, 1);
    }
    loaderd_cuda_close(lc);
    loaderd_close(loader);
    gpu_free(mine);
    gpu_stream_free(stream);
    gpu_stream_free(graph);
    check_nothing_left();
    harness_end();
}
END_TEST

/* ---- the manual way ------------------------------------------------------------------------------------------------------ */

START_TEST(manual_copies) {
    if (!has_device())
        return;
    harness_begin();
    make_records("records.bin", SAMPLES, DATA);
    struct loaderd *loader = open_records("slots=3", 0);
    struct loaderd_cuda_options o = LOADERD_CUDA_OPTIONS_INIT;
    o.depth = LOADERD_CUDA_MANUAL;
    struct loaderd_cuda *lc = open_cuda(loader, &o);
    struct CUstream_st *stream = gpu_stream_new();
    struct loaderd_batch b;
    struct loaderd_state state;
    void *mine = NULL;
    ck_assert_int_eq(loaderd_cuda_next(lc, stream, &b), -EINVAL);
    for (uint64_t n = 0; n < 3 * STEPS; n++) {
        int r = loaderd_next(loader, &b);
        if (r == 0 && n--)
            continue;
        ck_assert_msg(r == 1, "%d %s", r, loaderd_error(loader));
        if (!mine)
            mine = gpu_alloc(b.slot_bytes);
        ck_assert_int_eq(loaderd_cuda_copy(lc, stream, &b, mine, b.slot_bytes), 0);
        gpu_slow(stream, 500);
        must_release_on(lc, stream, &b);
        ck_assert_int_eq(loaderd_cuda_state(lc, &state), 0);
        ck_assert_uint_eq(state.epoch * STEPS + state.step, n + 1);
        uint8_t *host = malloc(b.slot_bytes);
        gpu_download(host, mine, b.slot_bytes, stream);
        uint32_t id;
        memcpy(&id, host + ((const uint8_t *)b.fields[0].data - (const uint8_t *)b.slot), sizeof id);
        ck_assert_uint_lt(id, SAMPLES);
        free(host);
    }
    loaderd_cuda_close(lc);
    loaderd_close(loader);
    gpu_stream_free(stream);
    gpu_free(mine);
    check_nothing_left();
    harness_end();
}
END_TEST

/* ---- faults -------------------------------------------------------------------------------------------------------------- */

/* The daemon is killed while copies run: nothing is corrupt, the next batch is the one it would have been. */
START_TEST(killed_daemon) {
    if (!has_device())
        return;
    harness_begin();
    make_records("records.bin", SAMPLES, DATA);
    const char *keys[] = {"batch=16", "shuffle=full", "seed=3", "last=drop", NULL};
    struct loaderd_options o = LOADERD_OPTIONS_INIT;
    o.keys = keys;
    o.reconnect_timeout_ms = 20000;
    pid_t daemon = 0;
    struct loaderd *loader = NULL;
    struct loaderd_cuda *lc = NULL;
    struct CUstream_st *stream = gpu_stream_new();
    struct loaderd_batch b;
    struct loaderd_cuda_statistics s;
    if (gpu_is_fake())
        gpu_faults()->copy_us = 2000;
    uint64_t n = 0;
    for (int restarts = 0; restarts < 4; restarts++) {
        if (daemon)
            end_process(daemon, SIGKILL);
        daemon = start_daemon("--name", "records", "--dataset", "records.bin", "--record", "id:u32 data:u8[1020]",
                              "--workers", "2", "--slots", "4", NULL);
        if (!loader) {
            loader = open_loader("records", &o);
            lc = open_cuda(loader, NULL);
        }
        for (int i = 0; i < 25; i++) {
            int r = loaderd_cuda_next(lc, stream, &b);
            ck_assert_msg(r >= 0, "%d %s", r, loaderd_cuda_error(lc));
            if (r == 0)
                continue;
            ck_assert_uint_eq(b.sequence, n);
            ck_assert_uint_eq(b.epoch * STEPS + b.step, n);
            n++;
            check_device_batch(&b, stream);
            must_release_on(lc, stream, &b);
        }
    }
    ck_assert_int_eq(loaderd_cuda_statistics(lc, &s), 0);
    ck_assert_uint_eq(s.rings, 4);
    loaderd_cuda_close(lc);
    loaderd_close(loader);
    end_process(daemon, SIGTERM);
    gpu_stream_free(stream);
    check_nothing_left();
    harness_end();
}
END_TEST

/* No daemon comes back: the error comes behind the batches that were copied, and the next call tries again. */
START_TEST(lost_daemon) {
    if (!has_device())
        return;
    harness_begin();
    make_records("records.bin", SAMPLES, DATA);
    pid_t daemon = start_daemon("--name", "records", "--dataset", "records.bin", "--record", "id:u32 data:u8[1020]",
                                "--workers", "2", "--slots", "4", NULL);
    const char *keys[] = {"batch=16", NULL};
    struct loaderd_options o = LOADERD_OPTIONS_INIT;
    o.keys = keys;
    o.reconnect_timeout_ms = 200;
    struct loaderd *loader = open_loader("records", &o);
    struct loaderd_cuda *lc = open_cuda(loader, NULL);
    struct CUstream_st *stream = gpu_stream_new();
    struct loaderd_batch b;
    int r, taken = 0;
    must_next_on(lc, stream, &b);
    end_process(daemon, SIGKILL);
    must_release_on(lc, stream, &b);
    while ((r = loaderd_cuda_next(lc, stream, &b)) == 1) {
        check_device_batch(&b, stream);
        must_release_on(lc, stream, &b);
        taken++;
    }
    ck_assert_int_le(taken, 8);
    ck_assert_msg(r == -ECONNRESET, "%d %s", r, loaderd_cuda_error(lc));
    ck_assert_str_ne(loaderd_cuda_error(lc), "");
    ck_assert_int_eq(loaderd_cuda_next(lc, stream, &b), -ECONNRESET);
    loaderd_cuda_close(lc);
    loaderd_close(loader);
    gpu_stream_free(stream);
    check_nothing_left();
    harness_end();
}
END_TEST

/* In a child everything says -ECHILD, and the parent's batches and registration are untouched. */
static int in_child(void *arg) {
    void **of = arg;
    struct loaderd_cuda *lc = of[0];
    struct loaderd_batch b;
    struct loaderd_state state;
    struct loaderd_cuda_statistics s;
    if (loaderd_cuda_next(lc, NULL, &b) != -ECHILD || loaderd_cuda_release(lc, NULL, &b) != -ECHILD ||
        loaderd_cuda_state(lc, &state) != -ECHILD || loaderd_cuda_statistics(lc, &s) != -ECHILD)
        return 1;
    loaderd_cuda_close(lc);
    loaderd_close(of[1]);
    return 0;
}

START_TEST(forked_child) {
    if (!has_device())
        return;
    harness_begin();
    make_records("records.bin", SAMPLES, DATA);
    struct loaderd *loader = open_records("slots=4", 0);
    struct loaderd_cuda *lc = open_cuda(loader, NULL);
    struct loaderd_batch b;
    must_next_on(lc, NULL, &b);
    expect_client(start_client(in_child, (void *[]){lc, loader}));
    for (int i = 0; i < 10; i++) {
        check_device_batch(&b, NULL);
        must_release_on(lc, NULL, &b);
        must_next_on(lc, NULL, &b);
    }
    loaderd_cuda_close(lc);
    loaderd_close(loader);
    check_nothing_left();
    harness_end();
}
END_TEST

/* An explicit order: ids come while the helper has the loader; without them -EDEADLK, until there are some. */
START_TEST(explicit_order) {
    if (!has_device())
        return;
    harness_begin();
    make_records("records.bin", SAMPLES, DATA);
    const char *keys[] = {
        "record=id:u32 data:u8[1020]", "batch=16", "shuffle=explicit", "workers=2", "slots=4", "last=keep", NULL};
    struct loaderd_options o = LOADERD_OPTIONS_INIT;
    o.keys = keys;
    struct loaderd *loader = open_loader("./records.bin", &o);
    struct loaderd_cuda *lc = open_cuda(loader, NULL);
    struct loaderd_batch b;
    uint64_t ids[BATCH * 2];
    char path[256];
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < BATCH * 2; i++)
            ids[i] = (uint64_t)(round * 31 + i * 7) % SAMPLES;
        ck_assert_int_eq(loaderd_cuda_supply(lc, ids, BATCH * 2), BATCH * 2);
        for (int k = 0; k < 2; k++) {
            must_next_on(lc, NULL, &b);
            for (int i = 0; i < BATCH; i++)
                ck_assert_uint_eq(b.row[i].sample, ids[k * BATCH + i]);
            check_device_batch(&b, NULL);
            must_release_on(lc, NULL, &b);
        }
        if (round % 5 == 4)
            ck_assert_int_eq(loaderd_cuda_next(lc, NULL, &b), -EDEADLK);
    }
    ck_assert_int_gt(loaderd_cuda_sample_path(lc, 3, path, sizeof path), 0);
    ck_assert_ptr_nonnull(strstr(path, "records.bin"));
    ck_assert_int_eq(loaderd_cuda_supply_end(lc), 0);
    ck_assert_int_eq(loaderd_cuda_next(lc, NULL, &b), 0);
    ck_assert_int_eq(loaderd_cuda_supply(lc, ids, 1), -EINVAL);
    loaderd_cuda_close(lc);
    loaderd_close(loader);
    check_nothing_left();
    harness_end();
}
END_TEST

/* LOADERD_SYNTHETIC: one real batch for ever, with moving positions. */
START_TEST(synthetic) {
    if (!has_device())
        return;
    harness_begin();
    make_records("records.bin", SAMPLES, DATA);
    setenv("LOADERD_SYNTHETIC", "1", 1);
    struct loaderd *loader = open_records("slots=4", 1);
    struct loaderd_cuda *lc = open_cuda(loader, NULL);
    struct CUstream_st *stream = gpu_stream_new();
    struct loaderd_batch b;
    uint64_t first = 0, n = 0;
    for (int ends = 0; ends < 5;) {
        int r = loaderd_cuda_next(lc, stream, &b);
        ck_assert_msg(r >= 0, "%d %s", r, loaderd_cuda_error(lc));
        if (r == 0) {
            ends++;
            ck_assert_uint_eq(n, (uint64_t)ends * STEPS);
            continue;
        }
        first = n ? first : b.row[0].sample;
        ck_assert_uint_eq(b.row[0].sample, first);
        ck_assert_uint_eq(b.epoch * STEPS + b.step, n);
        check_device_batch(&b, stream);
        must_release_on(lc, stream, &b);
        n++;
    }
    loaderd_cuda_close(lc);
    loaderd_close(loader);
    gpu_stream_free(stream);
    check_nothing_left();
    harness_end();
}
END_TEST

START_TEST(several_devices) {
    if (!has_device())
        return;
    if (gpu_is_fake())
        gpu_faults()->devices = 2;
    int devices = gpu_devices();
    if (devices < 2) {
        fprintf(stderr, "skipped: one CUDA device here\n");
        return;
    }
    harness_begin();
    make_records("records.bin", SAMPLES, DATA);
    struct loaderd *loader[2];
    struct loaderd_cuda *lc[2];
    struct CUstream_st *stream[2];
    struct loaderd_batch b;
    for (int d = 0; d < 2; d++) {
        struct loaderd_cuda_options o = LOADERD_CUDA_OPTIONS_INIT;
        o.device = d;
        loader[d] = open_records("slots=4", 0);
        lc[d] = open_cuda(loader[d], &o);
        gpu_use(d);
        stream[d] = gpu_stream_new();
        gpu_use(0);
    }
    for (int i = 0; i < 60; i++) {
        int r = loaderd_cuda_next(lc[i % 2], stream[i % 2], &b);
        ck_assert_int_ge(r, 0);
        if (r == 0)
            continue;
        gpu_use(i % 2);
        check_device_batch(&b, stream[i % 2]);
        gpu_use(0);
        must_release_on(lc[i % 2], stream[i % 2], &b);
    }
    for (int d = 0; d < 2; d++) {
        loaderd_cuda_close(lc[d]);
        loaderd_close(loader[d]);
        gpu_use(d);
        gpu_stream_free(stream[d]);
    }
    gpu_use(0);
    check_nothing_left();
    harness_end();
}
END_TEST

/* ---- finishing ----------------------------------------------------------------------------------------------------------- */

/* Pictures of the demo's generator, and one that is none. */
static void make_pictures(void) {
    const char *build = getenv("builddir");
    char command[4400];
    snprintf(command, sizeof command, "%s/tools/demo-data --train 4 --validation 1 pictures >/dev/null 2>&1",
             build ? build : ".");
    ck_assert_msg(system(command) == 0, "%s", command);
    FILE *f = fopen("pictures/train/dune/zzzz.jpg", "w");
    ck_assert_ptr_nonnull(f);
    fputs("this is no picture", f);
    fclose(f);
}

static struct loaderd *open_pictures(const char *dtype, const char *layout, const char *normalize) {
    const char *keys[] = {"image=64",       "augment=random-resized-crop,flip",
                          "batch=9",        "last=pad",
                          "on-error=blank", dtype,
                          layout,           "shuffle=none",
                          "seed=5",         "workers=2",
                          normalize,        NULL};
    struct loaderd_options o = LOADERD_OPTIONS_INIT;
    o.keys = keys;
    o.epochs = 1;
    return open_loader("./pictures/train", &o);
}

static void compare_with_daemon(uint32_t dtype, const char *dtype_key, uint32_t layout, bool normalize) {
    struct loaderd_cuda_options o = LOADERD_CUDA_OPTIONS_INIT;
    o.finish = (struct loaderd_cuda_finish_spec){.dtype = dtype,
                                                 .layout = layout,
                                                 .normalize = normalize,
                                                 .mean = {0.485f, 0.456f, 0.406f},
                                                 .std = {0.229f, 0.224f, 0.225f}};
    struct loaderd *theirs =
        open_pictures(dtype_key, layout ? "layout=nchw" : "layout=nhwc", normalize ? "normalize=imagenet" : NULL);
    struct loaderd *ours = open_pictures("dtype=u8", "layout=nhwc", NULL);
    struct loaderd_cuda *lc = open_cuda(ours, &o);
    struct CUstream_st *stream = gpu_stream_new();
    struct loaderd_batch a, b;
    uint32_t blank = 0;
    int r;
    while ((r = loaderd_next(theirs, &a)) == 1) {
        must_next_on(lc, stream, &b);
        const struct loaderd_field *f = &a.fields[0], *g = &b.fields[0];
        ck_assert_uint_eq(f->dtype, g->dtype);
        ck_assert_uint_eq(f->bytes, g->bytes);
        ck_assert_mem_eq(f->dims, g->dims, f->ndim * sizeof *f->dims);
        uint8_t *host = malloc(g->bytes);
        gpu_download(host, g->data, g->bytes, stream);
        for (uint64_t i = 0; i < g->bytes; i++)
            if (host[i] != ((const uint8_t *)f->data)[i])
                ck_abort_msg("%s layout %u normalize %d step %lu: byte %lu is %02x, the daemon's %02x", dtype_key,
                             layout, normalize, (unsigned long)b.step, (unsigned long)i, host[i],
                             ((const uint8_t *)f->data)[i]);
        free(host);
        for (uint32_t row = 0; row < a.rows; row++) {
            ck_assert_uint_eq(a.row[row].sample, b.row[row].sample);
            blank += (a.row[row].status & LOADERD_ROW_BLANK) != 0;
        }
        ck_assert_int_eq(loaderd_release(theirs, &a), 0);
        must_release_on(lc, stream, &b);
    }
    ck_assert_int_eq(r, 0);
    ck_assert_int_eq(loaderd_cuda_next(lc, stream, &b), 0);
    ck_assert_uint_ge(blank, 1); /* such rows are zero bytes in both */
    loaderd_cuda_close(lc);
    loaderd_close(ours);
    loaderd_close(theirs);
    gpu_stream_free(stream);
}

START_TEST(finishing_equals_the_daemon) {
    if (!has_device())
        return;
    harness_begin();
    make_pictures();
    compare_with_daemon(LOADERD_F32, "dtype=f32", LOADERD_CUDA_NCHW, true);
    compare_with_daemon(LOADERD_F32, "dtype=f32", LOADERD_CUDA_NHWC, false);
    compare_with_daemon(LOADERD_BF16, "dtype=bf16", LOADERD_CUDA_NHWC, true);
    compare_with_daemon(LOADERD_F16, "dtype=f16", LOADERD_CUDA_NCHW, true);
    compare_with_daemon(LOADERD_U8, "dtype=u8", LOADERD_CUDA_NCHW, false);
    check_nothing_left();
    harness_end();
}
END_TEST

/* Every shape of kernel, mirrored and not, against a scalar written here. */
static void finish_one(struct loaderd_cuda *lc, const int64_t dims[4], uint32_t dtype, uint32_t layout, bool mirrored) {
    const uint64_t rows = (uint64_t)dims[0], H = (uint64_t)dims[1], W = (uint64_t)dims[2], C = (uint64_t)dims[3];
    const uint64_t count = rows * H * W * C, element = loaderd_dtype_size(dtype);
    struct loaderd_cuda_finish_spec spec = {.dtype = dtype, .layout = layout};
    struct loaderd_field source = {.name = "x", .dtype = LOADERD_U8, .ndim = 4, .bytes = count};
    uint8_t *pixels = malloc(count), *flips = malloc(rows), *out = malloc(count * element);
    for (uint64_t i = 0; i < count; i++)
        pixels[i] = (uint8_t)(i * 2654435761u >> 7);
    for (uint64_t i = 0; i < rows; i++)
        flips[i] = (uint8_t)(i & 3);
    void *on_device = gpu_alloc(count), *result = gpu_alloc(count * element), *flags = gpu_alloc(rows);
    gpu_upload(on_device, pixels, count);
    gpu_upload(flags, flips, rows);
    memcpy(source.dims, dims, 4 * sizeof *dims);
    source.data = on_device;
    int r = loaderd_cuda_finish(lc, NULL, &spec, &source, mirrored ? flags : NULL, result);
    ck_assert_msg(r == 0, "%d %s", r, loaderd_cuda_error(lc));
    gpu_download(out, result, count * element, NULL);
    for (uint64_t n = 0; n < rows; n++)
        for (uint64_t y = 0; y < H; y++)
            for (uint64_t x = 0; x < W; x++)
                for (uint64_t c = 0; c < C; c++) {
                    uint64_t sx = mirrored && (n & 1) ? W - 1 - x : x, sy = mirrored && (n & 2) ? H - 1 - y : y;
                    uint8_t v = pixels[((n * H + sy) * W + sx) * C + c];
                    uint64_t at = layout ? ((n * C + c) * H + y) * W + x : ((n * H + y) * W + x) * C + c;
                    float wanted = (float)v / 255.0f;
                    if (element == 4)
                        ck_assert_mem_eq(out + at * 4, &wanted, 4);
                    else if (element == 1)
                        ck_assert_uint_eq(out[at], v);
                }
    free(pixels);
    free(flips);
    free(out);
    gpu_free(on_device);
    gpu_free(result);
    gpu_free(flags);
}

START_TEST(finishing_shapes) {
    if (!has_device())
        return;
    static const int64_t shapes[][4] = {{5, 8, 8, 3}, {3, 7, 12, 3}, {4, 5, 7, 3},
                                        {1, 1, 4, 3}, {4, 6, 9, 1},  {2, 3, 16, 1}};
    harness_begin();
    make_records("records.bin", SAMPLES, DATA);
    struct loaderd *loader = open_records("slots=4", 1);
    struct loaderd_cuda *lc = open_cuda(loader, NULL);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (uint32_t k = 0; k < 4; k++) {
            finish_one(lc, shapes[i], LOADERD_F32, k & 1, k & 2);
            finish_one(lc, shapes[i], LOADERD_U8, k & 1, k & 2);
        }
    struct loaderd_cuda_finish_spec spec = {.dtype = LOADERD_I32};
    struct loaderd_field source = {.dtype = LOADERD_U8, .ndim = 4, .dims = {1, 1, 1, 2}, .bytes = 2};
    ck_assert_int_eq(loaderd_cuda_finish(lc, NULL, &spec, &source, NULL, NULL), -EINVAL);
    spec.dtype = LOADERD_F32;
    ck_assert_int_eq(loaderd_cuda_finish(lc, NULL, &spec, &source, NULL, NULL), -EINVAL);
    ck_assert_msg(strstr(loaderd_cuda_error(lc), "channels") != NULL, "%s", loaderd_cuda_error(lc));
    spec.normalize = 1; /* std is 0 */
    source.dims[3] = 3;
    ck_assert_int_eq(loaderd_cuda_finish(lc, NULL, &spec, &source, NULL, NULL), -EINVAL);
    loaderd_cuda_close(lc);
    loaderd_close(loader);
    check_nothing_left();
    harness_end();
}
END_TEST

/* ---- with a fake device only ----------------------------------------------------------------------------------------------- */

#ifdef FAKE_DEVICE
static char noted[400];
static int notes;
static void note(void *arg, const char *line) {
    (void)arg;
    notes++;
    snprintf(noted, sizeof noted, "%s", line);
}

/* Registration is refused: unpinned with one line, or an error where pinned was demanded. */
START_TEST(refused_registration) {
    harness_begin();
    make_records("records.bin", SAMPLES, DATA);
    struct loaderd *loader = open_records("slots=4", 0);
    struct loaderd_cuda_options o = LOADERD_CUDA_OPTIONS_INIT;
    struct loaderd_cuda *lc = NULL;
    struct loaderd_cuda_info info;
    struct loaderd_batch b;
    char error[512] = "";
    gpu_faults()->registers_left = 0;
    o.notify = note;
    o.flags = LOADERD_CUDA_REQUIRE_PINNED;
    ck_assert_int_eq(loaderd_cuda_open(&lc, loader, &o, error, sizeof error), -EPERM);
    ck_assert_msg(strstr(error, "not pinned") && strstr(error, "the test refuses it"), "%s", error);
    ck_assert_int_eq(loaderd_cuda_pin(loader, 0, error, sizeof error), -EPERM);
    notes = 0;
    o.flags = 0;
    lc = open_cuda(loader, &o);
    ck_assert_int_eq(notes, 1);
    ck_assert_msg(strstr(noted, "copies are slower") != NULL, "%s", noted);
    ck_assert_int_eq(loaderd_cuda_info(lc, &info), 0);
    ck_assert_uint_eq(info.pinned, 0);
    ck_assert_str_eq(info.note, noted);
    for (int i = 0; i < 20; i++) {
        int r = loaderd_cuda_next(lc, NULL, &b);
        ck_assert_int_ge(r, 0);
        if (r == 0)
            continue;
        check_device_batch(&b, NULL);
        must_release_on(lc, NULL, &b);
    }
    loaderd_cuda_close(lc);
    o.flags = LOADERD_CUDA_UNPINNED; /* no line where it was asked for */
    notes = 0;
    loaderd_cuda_close(open_cuda(loader, &o));
    ck_assert_int_eq(notes, 0);
    loaderd_close(loader);
    check_nothing_left();
    harness_end();
}
END_TEST

/* A copy fails: the batches before it are delivered, then the error stays. */
START_TEST(failed_copy) {
    harness_begin();
    make_records("records.bin", SAMPLES, DATA);
    struct loaderd *loader = open_records("slots=4", 0);
    gpu_faults()->copies_left = 5;
    struct loaderd_cuda *lc = open_cuda(loader, NULL);
    struct loaderd_batch b;
    for (int i = 0; i < 5; i++) {
        must_next_on(lc, NULL, &b);
        check_device_batch(&b, NULL);
        must_release_on(lc, NULL, &b);
    }
    ck_assert_int_eq(loaderd_cuda_next(lc, NULL, &b), -EIO);
    ck_assert_msg(strstr(loaderd_cuda_error(lc), "the test refuses the copy") != NULL, "%s", loaderd_cuda_error(lc));
    ck_assert_int_eq(loaderd_cuda_next(lc, NULL, &b), -EIO);
    loaderd_cuda_close(lc);
    must_next(loader, &b); /* the loader goes on */
    loaderd_close(loader);
    check_nothing_left();
    harness_end();
}
END_TEST

/* Pieces: at most 1 GiB, whole slots, everything covered once; a slot larger than that is one piece. */
static void check_pieces(uint64_t stride, uint32_t slots, uint64_t tail) {
    struct loaderd_mapped_ring ring = {.slot_offset = 4096, .slot_stride = stride, .slots = slots};
    ring.bytes = ring.slot_offset + stride * slots + tail;
    uint64_t done = 0, pieces = 0;
    while (done < ring.bytes) {
        uint64_t end = pin_piece(&ring, done);
        ck_assert_uint_gt(end, done);
        ck_assert_uint_le(end, ring.bytes);
        if (end < ring.bytes)
            ck_assert_uint_eq((end - ring.slot_offset) % stride, 0);
        ck_assert_uint_le(end - done, (stride > PIN_PIECE ? stride : PIN_PIECE) + tail + ring.slot_offset);
        done = end;
        pieces++;
    }
    ck_assert_uint_eq(done, ring.bytes);
    ck_assert_uint_le(pieces, ring.bytes / (stride > PIN_PIECE / 2 ? stride : PIN_PIECE / 2) + 1);
}

START_TEST(pieces) {
    check_pieces(4096, 3, 0);
    check_pieces(40 << 20, 3, 0);
    check_pieces(40 << 20, 300, 0);
    check_pieces(UINT64_C(600) << 20, 8, 123 << 12);
    check_pieces(UINT64_C(1) << 30, 4, 0);
    check_pieces(UINT64_C(3) << 30, 4, 4096);
}
END_TEST

/* The host's tables are the daemon's. */
START_TEST(tables) {
    static const uint32_t dtypes[] = {LOADERD_F32, LOADERD_F16, LOADERD_BF16};
    static const float means[][3] = {{0.485f, 0.456f, 0.406f}, {0.5f, 0.5f, 0.5f}, {-1e6f, 3e-9f, 0}};
    static const float stds[][3] = {{0.229f, 0.224f, 0.225f}, {0.5f, 0.25f, -1}, {1e-9f, 1e9f, 3e-6f}};
    struct loaderd_field f = {.name = "image", .dtype = LOADERD_U8, .ndim = 4, .dims = {2, 4, 4, 3}, .bytes = 96};
    for (size_t d = 0; d < 3; d++)
        for (size_t m = 0; m < 4; m++) {
            struct loaderd_cuda_finish_spec spec = {.dtype = dtypes[d], .normalize = m > 0};
            struct transform_spec theirs = {.channels = 3, .dtype = dtypes[d], .normalize = m > 0};
            struct finish_job job;
            struct finish_table table;
            struct output_table daemon;
            char error[256] = "";
            if (m > 0) {
                memcpy(spec.mean, means[m - 1], sizeof spec.mean);
                memcpy(spec.std, stds[m - 1], sizeof spec.std);
                memcpy(theirs.mean, means[m - 1], sizeof theirs.mean);
                memcpy(theirs.std, stds[m - 1], sizeof theirs.std);
            }
            ck_assert_msg(finish_prepare(&spec, &f, NULL, NULL, &job, &table, error, sizeof error) == 0, "%s", error);
            output_table_fill(&daemon, &theirs);
            for (int c = 0; c < 3; c++)
                for (int v = 0; v < 256; v++)
                    if (dtypes[d] == LOADERD_F32)
                        ck_assert_mem_eq(&table.value.f32[c][v], &daemon.value.f32[c][v], 4);
                    else
                        ck_assert_uint_eq(table.value.u16[c][v], daemon.value.u16[c][v]);
        }
}
END_TEST
#endif

int main(void) {
    const struct harness_test tests[] = {{"no_device", no_device},
                                         {"bad_options", bad_options},
                                         {"whole_epochs", whole_epochs},
                                         {"default_stream_and_close", default_stream_and_close},
                                         {"slow_kernels", slow_kernels},
                                         {"release_order", release_order},
                                         {"attach_detach", attach_detach},
                                         {"pin_alone", pin_alone},
                                         {"captured_stream", captured_stream},
                                         {"manual_copies", manual_copies},
                                         {"killed_daemon", killed_daemon},
                                         {"lost_daemon", lost_daemon},
                                         {"forked_child", forked_child},
                                         {"explicit_order", explicit_order},
                                         {"synthetic", synthetic},
                                         {"several_devices", several_devices},
                                         {"finishing_equals_the_daemon", finishing_equals_the_daemon},
                                         {"finishing_shapes", finishing_shapes},
#ifdef FAKE_DEVICE
                                         {"refused_registration", refused_registration},
                                         {"failed_copy", failed_copy},
                                         {"pieces", pieces},
                                         {"tables", tables},
#endif
                                         {NULL, NULL}};
    return harness_main("cuda", tests);
}
