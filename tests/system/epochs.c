/* SPDX-License-Identifier: MIT */
/* Every sample exactly once an epoch, over 1, 2 and 3 ranks, with the content that belongs to it; nobody is rescued. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

#define SAMPLES 1003
#define EPOCHS 2

struct shared {
    uint32_t seen[EPOCHS][SAMPLES];
    uint64_t samples[EPOCHS][SAMPLES]; /* by position: which sample */
    uint32_t batches[4];
    uint64_t rescues;
    uint32_t zeros[4];
};

struct client {
    struct shared *shared;
    int64_t rank, world;
    const char *last;
    bool poll;
};

static int next_by_poll(struct loaderd *loader, struct loaderd_batch *batch) {
    for (;;) {
        int r = loaderd_try_next(loader, batch);
        if (r != -EAGAIN)
            return r;
        struct pollfd p = {.fd = loaderd_fd(loader), .events = POLLIN};
        ck_assert_msg(poll(&p, 1, 5000) == 1, "nothing came within 5 s");
    }
}

static int consume(void *arg) {
    struct client *c = arg;
    struct shared *s = c->shared;
    char last[32];
    snprintf(last, sizeof last, "last=%s", c->last);
    const char *keys[] = {"batch=16", "shuffle=full", "seed=5", last, NULL};
    struct loaderd_options o = LOADERD_OPTIONS_INIT;
    o.keys = keys;
    o.rank = c->rank;
    o.world = c->world;
    o.epochs = EPOCHS;
    struct loaderd *loader = open_loader("records", &o);
    struct loaderd_batch b;
    uint64_t sequence = 0, epoch = 0;
    for (int r; epoch < EPOCHS;) {
        r = c->poll ? next_by_poll(loader, &b) : loaderd_next(loader, &b);
        ck_assert_msg(r >= 0, "%d %s", r, loaderd_error(loader));
        if (r == 0) {
            s->zeros[c->rank]++;
            epoch++;
            continue;
        }
        ck_assert_uint_eq(b.epoch, epoch);
        ck_assert_uint_eq(b.sequence, sequence++);
        check_records(&b);
        for (uint32_t i = 0; i < b.valid; i++) {
            __atomic_fetch_add(&s->seen[epoch][b.row[i].sample], 1, __ATOMIC_RELAXED);
            ck_assert_uint_lt(b.row[i].position, SAMPLES);
            s->samples[epoch][b.row[i].position] = b.row[i].sample;
        }
        ck_assert_int_eq(loaderd_release(loader, &b), 0);
        s->batches[c->rank]++;
    }
    ck_assert_int_eq(loaderd_next(loader, &b), 0); /* and for ever */
    ck_assert_int_eq(loaderd_try_next(loader, &b), 0);
    struct loaderd_state state;
    ck_assert_int_eq(loaderd_state(loader, &state), 0);
    ck_assert_uint_eq(state.epoch, EPOCHS);
    ck_assert_uint_eq(state.step, 0);
    ck_assert_uint_eq(state.global_batch, 16 * (uint64_t)c->world);
    struct loaderd_statistics statistics;
    loaderd_statistics(loader, &statistics);
    __atomic_fetch_add(&s->rescues, statistics.rescues, __ATOMIC_RELAXED);
    loaderd_close(loader);
    return 0;
}

/* How often each sample was seen in all. */
static void check_seen(const struct shared *s, const char *last, uint32_t world) {
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        uint32_t once = 0;
        for (int i = 0; i < SAMPLES; i++) {
            ck_assert_msg(s->seen[epoch][i] <= 1, "sample %d came %u times", i, s->seen[epoch][i]);
            once += s->seen[epoch][i];
        }
        uint32_t all = strcmp(last, "drop") == 0 ? SAMPLES / (16 * world) * 16 * world : SAMPLES;
        ck_assert_uint_eq(once, all);
    }
    ck_assert_int_ne(memcmp(s->samples[0], s->samples[1], sizeof s->samples[0]), 0);
}

static void run_ranks(struct shared *s, const char *last, int world, bool by_poll) {
    struct client clients[3];
    pid_t pids[3];
    memset(s, 0, sizeof *s);
    for (int rank = 0; rank < world; rank++) {
        clients[rank] = (struct client){s, rank, world, last, by_poll};
        pids[rank] = start_client(consume, &clients[rank]);
    }
    for (int rank = 0; rank < world; rank++)
        expect_client(pids[rank]);
    check_seen(s, last, (uint32_t)world);
    for (int rank = 0; rank < world; rank++) {
        ck_assert_uint_eq(s->batches[rank], s->batches[0]);
        ck_assert_uint_eq(s->zeros[rank], EPOCHS);
    }
    ck_assert_uint_eq(s->rescues, 0);
}

START_TEST(every_sample_once) {
    harness_begin();
    make_records("records.bin", SAMPLES, 40);
    pid_t daemon = start_daemon("--name", "records", "--dataset", "records.bin", "--record", "id:u32 data:u8[40]",
                                "--workers", "2", NULL);
    static const char *const lasts[] = {"pad", "keep", "drop"};
    struct shared *s = shared_memory(sizeof *s);
    static uint64_t reference[EPOCHS][SAMPLES];
    for (int world = 1; world <= 3; world++)
        for (int i = 0; i < 3; i++) {
            run_ranks(s, lasts[i], world, (world + i) % 2);
            if (world == 1 && i == 0)
                memcpy(reference, s->samples, sizeof reference);
            else if (i != 2) /* the global sequence is the same for all world sizes */
                ck_assert_int_eq(memcmp(reference, s->samples, sizeof reference), 0);
        }
    expect_sessions(harness_socket(), 0, 1000);
    char *json = read_status(harness_socket());
    ck_assert_uint_eq(status_sum(json, "rescues"), 0);
    free(json);
    ck_assert_int_eq(end_process(daemon, SIGTERM), 0);
    harness_end();
}
END_TEST

START_TEST(no_system_call_while_batches_are_ready) {
    harness_begin();
    make_records("records.bin", SAMPLES, 40);
    pid_t daemon =
        start_daemon("--name", "records", "--dataset", "records.bin", "--record", "id:u32 data:u8[40]", NULL);
    const char *keys[] = {"batch=4", "slots=64", NULL};
    struct loaderd_options o = LOADERD_OPTIONS_INIT;
    o.keys = keys;
    o.held = 40;
    struct loaderd *loader = open_loader("records", &o);
    struct loaderd_batch b[40];
    struct loaderd_statistics before, after;
    for (int i = 0; i < 40; i++)
        must_next(loader, &b[i]);
    sleep_ms(200); /* the rest of the ring fills up */
    loaderd_statistics(loader, &before);
    for (int i = 0; i < 20; i++) {
        ck_assert_int_eq(loaderd_release(loader, &b[i]), 0);
        must_next(loader, &b[i]);
    }
    loaderd_statistics(loader, &after);
    ck_assert_uint_eq(after.waits, before.waits);
    ck_assert_uint_eq(after.wakes_sent, before.wakes_sent);
    ck_assert_uint_eq(after.rescues, 0);
    ck_assert_int_eq(loaderd_release(loader, &b[3]), 0);
    ck_assert_int_eq(loaderd_release(loader, &b[3]), -EINVAL);
    ck_assert_msg(strstr(loaderd_error(loader), "not held") != NULL, "%s", loaderd_error(loader));
    loaderd_close(loader);
    ck_assert_int_eq(end_process(daemon, SIGTERM), 0);
    harness_end();
}
END_TEST

START_TEST(held_batches_end_in_busy) {
    harness_begin();
    make_records("records.bin", SAMPLES, 40);
    pid_t daemon =
        start_daemon("--name", "records", "--dataset", "records.bin", "--record", "id:u32 data:u8[40]", NULL);
    const char *keys[] = {"batch=4", "slots=4", NULL};
    struct loaderd_options o = LOADERD_OPTIONS_INIT;
    o.keys = keys;
    struct loaderd *loader = open_loader("records", &o);
    struct loaderd_batch b[5];
    struct loaderd_state state;
    for (int i = 0; i < 4; i++)
        must_next(loader, &b[i]);
    ck_assert_int_eq(loaderd_next(loader, &b[4]), -EBUSY);
    ck_assert_msg(strstr(loaderd_error(loader), "held") != NULL, "%s", loaderd_error(loader));
    loaderd_state(loader, &state);
    ck_assert_uint_eq(state.step, 0); /* nothing was released */
    ck_assert_int_eq(loaderd_release(loader, &b[1]), 0);
    loaderd_state(loader, &state);
    ck_assert_uint_eq(state.step, 0);
    ck_assert_int_eq(loaderd_release(loader, &b[0]), 0);
    loaderd_state(loader, &state);
    ck_assert_uint_eq(state.step, 2);
    must_next(loader, &b[4]);
    ck_assert_uint_eq(b[4].step, 4);
    char path[300];
    ck_assert_int_gt(loaderd_sample_path(loader, 17, path, sizeof path), 0);
    ck_assert_msg(strstr(path, "records.bin#17") != NULL, "%s", path);
    ck_assert_int_eq(loaderd_sample_path(loader, SAMPLES, path, sizeof path), -ERANGE);
    ck_assert_int_eq(loaderd_sample_path(loader, 17, path, 5), -ENOSPC);
    loaderd_close(loader);
    ck_assert_int_eq(end_process(daemon, SIGTERM), 0);
    harness_end();
}
END_TEST

static int resume_part(const char *record, const struct loaderd_state *from, struct loaderd_state *to, int batches,
                       uint64_t *samples, int64_t world) {
    const char *keys[] = {"batch=16", "shuffle=full", record, NULL};
    struct loaderd_options o = LOADERD_OPTIONS_INIT;
    if (world == 2) {
        keys[0] = "batch=8";
        o.rank = 1;
        o.world = 2;
    }
    o.keys = keys;
    o.state = from;
    struct loaderd *loader = NULL;
    char error[512];
    int r = loaderd_open(&loader, "records", &o, error, sizeof error);
    for (int i = 0; r == 0 && i < batches; i++) {
        struct loaderd_batch b;
        must_next(loader, &b);
        samples[i] = b.row[0].sample;
        loaderd_release(loader, &b);
    }
    if (r == 0)
        loaderd_state(loader, to);
    else
        ck_assert_msg(strstr(error, "state belongs") != NULL, "%s", error);
    loaderd_close(loader);
    return r;
}

START_TEST(states_continue) {
    harness_begin();
    make_records("records.bin", SAMPLES, 40);
    pid_t daemon =
        start_daemon("--name", "records", "--dataset", "records.bin", "--record", "id:u32 data:u8[40]", NULL);
    struct loaderd_state state, later;
    uint64_t whole[30], part[30], rank1[30];
    ck_assert_int_eq(resume_part("seed=9", NULL, &later, 30, whole, 1), 0);
    ck_assert_int_eq(resume_part("seed=9", NULL, &state, 11, part, 1), 0);
    ck_assert_uint_eq(state.step, 11);
    ck_assert_uint_eq(state.seed, 9);
    ck_assert_int_eq(resume_part("seed=9", &state, &state, 19, part + 11, 1), 0);
    ck_assert_int_eq(memcmp(whole, part, sizeof whole), 0);
    ck_assert_int_eq(memcmp(&state, &later, sizeof state), 0);
    ck_assert_int_eq(resume_part("shuffle=none", &state, &later, 1, part, 1), -EINVAL); /* another order */
    state.step = 0; /* the same global batch over two ranks: rank 1 begins in the middle of each */
    ck_assert_int_eq(resume_part("seed=9", &state, &later, 5, rank1, 2), 0);
    ck_assert_uint_eq(later.step, 5);
    ck_assert_uint_eq(later.global_batch, 16);
    ck_assert_int_eq(end_process(daemon, SIGTERM), 0);
    harness_end();
}
END_TEST

int main(void) {
    const struct harness_test tests[] = {
        {"every_sample_once", every_sample_once},
        {"no_system_call", no_system_call_while_batches_are_ready},
        {"held", held_batches_end_in_busy},
        {"states", states_continue},
        {NULL, NULL},
    };
    return harness_main("epochs", tests);
}
