/* SPDX-License-Identifier: MIT */
/* loaderd_seek(): to any place, held batches and all; no batch of before appears; explicit orders begin anew. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

#define SAMPLES 500
#define BATCH 16
#define STEPS (SAMPLES / BATCH)

static pid_t start_service(void) {
    return start_daemon("--name", "records", "--dataset", "records.bin", "--record", "id:u32 data:u8[60]", "--workers",
                        "2", NULL);
}

static struct loaderd_options options_of(const char *shuffle) {
    static const char *keys[] = {"batch=16", NULL, "last=drop", NULL};
    static const char *explicit_keys[] = {"batch=16", "shuffle=explicit", NULL};
    struct loaderd_options o = LOADERD_OPTIONS_INIT;
    keys[1] = shuffle;
    o.keys = strcmp(shuffle, "shuffle=explicit") == 0 ? explicit_keys : keys;
    o.reconnect_timeout_ms = 20000;
    o.held = 3;
    return o;
}

/* The ids of two epochs, by a loader that never seeks. */
static uint64_t (*straight(void))[BATCH] {
    struct loaderd_options o = options_of("shuffle=full");
    uint64_t(*ids)[BATCH] = calloc(2 * STEPS, sizeof *ids);
    struct loaderd *loader = open_loader("records", &o);
    struct loaderd_batch b;
    for (int n = 0; n < 2 * STEPS; n++) {
        if (n == STEPS)
            ck_assert_int_eq(loaderd_next(loader, &b), 0);
        must_next(loader, &b);
        for (int i = 0; i < BATCH; i++)
            ids[n][i] = b.row[i].sample;
        loaderd_release(loader, &b);
    }
    loaderd_close(loader);
    return ids;
}

static void check_place(const struct loaderd_batch *b, uint64_t (*ids)[BATCH], uint64_t epoch, uint64_t step) {
    ck_assert_uint_eq(b->epoch, epoch);
    ck_assert_uint_eq(b->step, step);
    ck_assert_uint_eq(b->rows, BATCH);
    for (int i = 0; i < BATCH; i++)
        ck_assert_uint_eq(b->row[i].sample, ids[epoch * STEPS + step][i]);
    check_records(b);
}

/* Five batches from (epoch, step) on, or those that there are. Where `keep` is not NULL the second one stays leased. */
static void walk(struct loaderd *loader, uint64_t (*ids)[BATCH], uint64_t epoch, uint64_t step,
                 struct loaderd_batch *keep) {
    struct loaderd_batch b;
    for (uint64_t n = 0; n < 5; n++) {
        int r = loaderd_next(loader, &b);
        if (r == 0 && epoch == 0)
            r = loaderd_next(loader, &b);
        if (r == 0)
            break;
        ck_assert_int_eq(r, 1);
        check_place(&b, ids, epoch + (step + n) / STEPS, (step + n) % STEPS);
        if (keep && n == 1)
            *keep = b;
        else
            ck_assert_int_eq(loaderd_release(loader, &b), 0);
    }
}

/* To the very end, where the session was to end, and back; a place that is none is named, and changes nothing. */
static void check_ends(struct loaderd *loader, uint64_t (*ids)[BATCH]) {
    struct loaderd_batch b;
    ck_assert_int_eq(loaderd_seek(loader, 1, STEPS - 1), 0);
    must_next(loader, &b);
    check_place(&b, ids, 1, STEPS - 1);
    loaderd_release(loader, &b);
    ck_assert_int_eq(loaderd_next(loader, &b), 0);
    ck_assert_int_eq(loaderd_next(loader, &b), 0);
    ck_assert_int_eq(loaderd_seek(loader, 0, 2), 0);
    must_next(loader, &b);
    check_place(&b, ids, 0, 2);
    ck_assert_int_eq(loaderd_seek(loader, 0, STEPS), -EINVAL);
    ck_assert_ptr_nonnull(strstr(loaderd_error(loader), "an epoch has 31"));
    ck_assert_int_eq(loaderd_seek(loader, 2, 0), -EINVAL);
    ck_assert_ptr_nonnull(strstr(loaderd_error(loader), "before epoch 2"));
    loaderd_release(loader, &b);
    must_next(loader, &b);
    check_place(&b, ids, 0, 3);
}

START_TEST(any_place) {
    static const uint64_t places[][2] = {{0, 0},         {1, 3}, {0, STEPS - 1}, {0, 7},
                                         {1, STEPS - 1}, {0, 0}, {0, 0},         {1, 0}};
    harness_begin();
    make_records("records.bin", SAMPLES, 60);
    pid_t daemon = start_service();
    uint64_t(*ids)[BATCH] = straight();
    struct loaderd_options o = options_of("shuffle=full");
    o.epochs = 2;
    struct loaderd *loader = open_loader("records", &o);
    struct loaderd_batch held = {0}, held_early;
    struct loaderd_state state;
    must_next(loader, &held_early);
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        uint64_t epoch = places[i][0], step = places[i][1];
        if (i == 4) { /* the daemon dies; seeking finds the next one */
            end_process(daemon, SIGKILL);
            daemon = start_service();
        }
        ck_assert_msg(loaderd_seek(loader, epoch, step) == 0, "%s", loaderd_error(loader));
        loaderd_state(loader, &state);
        ck_assert_uint_eq(state.epoch, epoch);
        ck_assert_uint_eq(state.step, step);
        walk(loader, ids, epoch, step, i == 1 ? &held : NULL);
        check_place(&held_early, ids, 0, 0); /* of the first ring */
        if (i > 1 && i < 6)
            check_place(&held, ids, 1, 4);
        if (i == 6) {
            ck_assert_int_eq(loaderd_release(loader, &held), 0);
            ck_assert_int_eq(loaderd_release(loader, &held), -EINVAL);
        }
    }
    ck_assert_int_eq(loaderd_release(loader, &held_early), 0);
    check_ends(loader, ids);
    struct loaderd_statistics statistics;
    loaderd_statistics(loader, &statistics);
    ck_assert_uint_eq(statistics.reconnects, 0);
    ck_assert_uint_eq(statistics.rescues, 0);
    expect_sessions(harness_socket(), 1, 5000); /* the old ones have ended */
    loaderd_close(loader);
    free(ids);
    end_process(daemon, SIGTERM);
    harness_end();
}
END_TEST

/* The descriptor of loaderd_fd() stays the same and speaks for the new place. */
START_TEST(polled) {
    harness_begin();
    make_records("records.bin", SAMPLES, 60);
    pid_t daemon = start_service();
    struct loaderd_options o = options_of("shuffle=none");
    struct loaderd *loader = open_loader("records", &o);
    struct pollfd p = {.fd = loaderd_fd(loader), .events = POLLIN};
    for (uint64_t place = 20; place > 0; place -= 5) {
        struct loaderd_batch b;
        int r;
        ck_assert_int_eq(loaderd_seek(loader, 0, place), 0);
        ck_assert_int_eq(loaderd_fd(loader), p.fd);
        while ((r = loaderd_try_next(loader, &b)) == -EAGAIN)
            ck_assert_int_eq(poll(&p, 1, 20000), 1);
        ck_assert_int_eq(r, 1);
        ck_assert_uint_eq(b.row[0].sample, place * BATCH);
        loaderd_release(loader, &b);
    }
    loaderd_close(loader);
    end_process(daemon, SIGTERM);
    harness_end();
}
END_TEST

START_TEST(explicit_begins_anew) {
    harness_begin();
    make_records("records.bin", SAMPLES, 60);
    pid_t daemon = start_service();
    struct loaderd_options o = options_of("shuffle=explicit");
    struct loaderd *loader = open_loader("records", &o);
    struct loaderd_batch b;
    uint64_t ids[4 * BATCH];
    for (uint64_t round = 0; round < 6; round++) {
        ck_assert_msg(loaderd_seek(loader, 0, round % 3 * 1000) == 0, "%s", loaderd_error(loader));
        ck_assert_int_eq(loaderd_next(loader, &b), -EDEADLK); /* no id is left of before */
        for (size_t i = 0; i < 4 * BATCH; i++)
            ids[i] = (round * 100 + i * 7) % SAMPLES;
        ck_assert_int_eq((int)loaderd_supply(loader, ids, 4 * BATCH), 4 * BATCH);
        if (round == 4) { /* ends short, and can be told to go on from elsewhere */
            ck_assert_int_eq((int)loaderd_supply(loader, ids, 3), 3);
            ck_assert_int_eq(loaderd_supply_end(loader), 0);
        }
        for (uint64_t n = 0; n < (round == 4 ? 5 : 2); n++) { /* the others were made ahead: never seen */
            must_next(loader, &b);
            ck_assert_uint_eq(b.step, round % 3 * 1000 + n);
            ck_assert_uint_eq(b.rows, n < 4 ? BATCH : 3);
            for (uint32_t i = 0; i < b.rows; i++)
                ck_assert_uint_eq(b.row[i].sample, ids[n < 4 ? n * BATCH + i : i]);
            check_records(&b);
            loaderd_release(loader, &b);
        }
    }
    loaderd_close(loader);
    end_process(daemon, SIGTERM);
    harness_end();
}
END_TEST

/* A private daemon's only session seeks: the daemon stays. */
START_TEST(private_daemon_stays) {
    harness_begin();
    make_records("records.bin", SAMPLES, 60);
    static const char *keys[] = {"format=raw", "record=id:u32 data:u8[60]", "batch=16", NULL};
    struct loaderd_options o = LOADERD_OPTIONS_INIT;
    o.keys = keys;
    struct loaderd *loader = open_loader("./records.bin", &o);
    struct loaderd_info first, info;
    struct loaderd_batch b;
    loaderd_info(loader, &first);
    for (uint64_t i = 0; i < 8; i++) {
        ck_assert_msg(loaderd_seek(loader, i, i) == 0, "%s", loaderd_error(loader));
        must_next(loader, &b);
        ck_assert_uint_eq(b.row[0].sample, i * BATCH);
        loaderd_release(loader, &b);
        loaderd_info(loader, &info);
        ck_assert_int_eq(info.daemon_pid, first.daemon_pid);
    }
    loaderd_close(loader);
    harness_end();
}
END_TEST

int main(void) {
    const struct harness_test tests[] = {
        {"any_place", any_place},          {"polled", polled}, {"explicit", explicit_begins_anew},
        {"private", private_daemon_stays}, {NULL, NULL},
    };
    return harness_main("seek", tests);
}
