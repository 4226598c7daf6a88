/* SPDX-License-Identifier: MIT */
/* The daemon is killed or replaced: the trainer's next batch is the one it would have been, what it holds stays. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"

#define SAMPLES 500
#define BATCH 16
#define STEPS (SAMPLES / BATCH)
#define EPOCHS 4

static pid_t start_service(void) {
    return start_daemon("--name", "records", "--dataset", "records.bin", "--record", "id:u32 data:u8[60]", "--workers",
                        "2", NULL);
}

static struct loaderd_options options_of(uint32_t held) {
    static const char *keys[] = {"batch=16", "shuffle=full", "last=drop", "seed=3", NULL};
    struct loaderd_options o = LOADERD_OPTIONS_INIT;
    o.keys = keys;
    o.held = held;
    o.epochs = EPOCHS;
    o.reconnect_timeout_ms = 20000;
    return o;
}

/* First sample of each batch of an undisturbed run. */
static void record_reference(uint64_t *first) {
    struct loaderd_options o = options_of(1);
    struct loaderd *loader = open_loader("records", &o);
    struct loaderd_batch b;
    for (int n = 0, ends = 0; ends < EPOCHS;) {
        int r = loaderd_next(loader, &b);
        ck_assert_int_ge(r, 0);
        if (r == 0) {
            ends++;
            continue;
        }
        first[n++] = b.row[0].sample;
        loaderd_release(loader, &b);
    }
    loaderd_close(loader);
}

static void check_batch(const struct loaderd_batch *b, uint64_t n, const uint64_t *first) {
    ck_assert_uint_eq(b->sequence, n);
    ck_assert_uint_eq(b->epoch, n / STEPS);
    ck_assert_uint_eq(b->step, n % STEPS);
    ck_assert_uint_eq(b->row[0].sample, first[n]);
    check_records(b);
}

/* Ends the daemon now and then, in each way, while the loader goes on. */
static void run_with_restarts(pid_t daemon, struct loaderd *loader, const uint64_t *first, pid_t *ret_daemon) {
    static const int signals[] = {SIGKILL, SIGTERM, SIGKILL, SIGKILL};
    static const uint64_t at[] = {1, 20, STEPS, 3 * STEPS + 5};
    struct loaderd_batch held[2], b;
    struct loaderd_state state;
    int restarts = 0, ends = 0;
    uint64_t n = 0;
    must_next(loader, &held[0]);
    check_batch(&held[0], n++, first);
    while (ends < EPOCHS) {
        if (restarts < 4 && n == at[restarts]) {
            end_process(daemon, signals[restarts++]);
            daemon = start_service();
        }
        int r = loaderd_next(loader, &b);
        ck_assert_msg(r >= 0, "%d %s", r, loaderd_error(loader));
        if (r == 0) {
            ends++;
            ck_assert_uint_eq(n, (uint64_t)ends * STEPS);
            continue;
        }
        check_batch(&b, n++, first);
        loaderd_state(loader, &state);
        if (n <= 40) {
            ck_assert_uint_eq(state.epoch * STEPS + state.step, 0); /* batch 0 is held, over two daemons' deaths */
            check_batch(&held[0], 0, first);
        }
        loaderd_release(loader, &b);
        if (n == 40) {
            loaderd_release(loader, &held[0]);
            ck_assert_int_eq(loaderd_release(loader, &held[0]), -EINVAL);
        }
        loaderd_state(loader, &state);
        if (n >= 40)
            ck_assert_uint_eq(state.epoch * STEPS + state.step, n);
    }
    ck_assert_int_eq(restarts, 4);
    *ret_daemon = daemon;
}

START_TEST(the_next_batch_is_the_next_batch) {
    harness_begin();
    make_records("records.bin", SAMPLES, 60);
    uint64_t first[EPOCHS * STEPS];
    pid_t daemon = start_service();
    record_reference(first);
    struct loaderd_options o = options_of(3);
    struct loaderd *loader = open_loader("records", &o);
    run_with_restarts(daemon, loader, first, &daemon);
    struct loaderd_statistics statistics;
    struct loaderd_info info;
    loaderd_statistics(loader, &statistics);
    loaderd_info(loader, &info);
    ck_assert_uint_eq(statistics.rescues, 0);
    ck_assert_uint_ge(statistics.reconnects, 3);
    ck_assert_uint_le(statistics.reconnects, 4);
    ck_assert_uint_eq(statistics.batches, EPOCHS * STEPS);
    ck_assert_int_eq(info.daemon_pid, daemon);
    struct loaderd_batch b;
    end_process(daemon, SIGKILL); /* after the end nobody is needed */
    ck_assert_int_eq(loaderd_next(loader, &b), 0);
    ck_assert_int_eq(loaderd_try_next(loader, &b), 0);
    loaderd_close(loader);
    harness_end();
}
END_TEST

/* The same for a caller that polls: the descriptor keeps its number and wakes it. */
START_TEST(polling_over_a_restart) {
    harness_begin();
    make_records("records.bin", SAMPLES, 60);
    uint64_t first[EPOCHS * STEPS], n = 0;
    pid_t daemon = start_service();
    record_reference(first);
    struct loaderd_options o = options_of(1);
    struct loaderd *loader = open_loader("records", &o);
    int fd = loaderd_fd(loader), ends = 0, polls = 0;
    while (ends < EPOCHS) {
        struct loaderd_batch b;
        int r = loaderd_try_next(loader, &b);
        if (r == -EAGAIN) {
            struct pollfd p = {.fd = fd, .events = POLLIN};
            ck_assert_int_eq(loaderd_fd(loader), fd);
            ck_assert_msg(poll(&p, 1, 10000) == 1, "nothing came within 10 s");
            ck_assert_int_lt(++polls, 20000);
            continue;
        }
        ck_assert_msg(r >= 0, "%d %s", r, loaderd_error(loader));
        ends += r == 0;
        if (r == 0)
            continue;
        check_batch(&b, n++, first);
        loaderd_release(loader, &b);
        if (n == 33 || n == 70) {
            end_process(daemon, SIGKILL);
            daemon = start_service();
        }
    }
    ck_assert_uint_eq(n, EPOCHS * STEPS);
    loaderd_close(loader);
    ck_assert_int_eq(end_process(daemon, SIGTERM), 0);
    harness_end();
}
END_TEST

START_TEST(nobody_comes_back) {
    harness_begin();
    make_records("records.bin", SAMPLES, 60);
    pid_t daemon = start_service();
    struct loaderd_options o = options_of(1);
    o.reconnect_timeout_ms = 300;
    struct loaderd *loader = open_loader("records", &o);
    o.reconnect_timeout_ms = -1;
    struct loaderd *never = open_loader("records", &o);
    struct loaderd_batch b;
    must_next(loader, &b); /* so that the daemon is not killed before its first batch */
    loaderd_release(loader, &b);
    end_process(daemon, SIGKILL);
    int r;
    while ((r = loaderd_next(never, &b)) == 1)
        loaderd_release(never, &b);
    ck_assert_int_eq(r, -ECONNRESET);
    ck_assert_int_eq(loaderd_next(never, &b), -ECONNRESET);
    while ((r = loaderd_next(loader, &b)) == 1)
        loaderd_release(loader, &b);
    ck_assert_int_eq(r, -ECONNRESET);
    ck_assert_msg(strstr(loaderd_error(loader), "none came back") != NULL, "%s", loaderd_error(loader));
    daemon = start_service(); /* asked again, it looks again */
    must_next(loader, &b);
    ck_assert_uint_gt(b.sequence, 0);
    loaderd_close(loader);
    loaderd_close(never);
    ck_assert_int_eq(end_process(daemon, SIGTERM), 0);
    harness_end();
}
END_TEST

START_TEST(other_data_is_refused) {
    harness_begin();
    make_records("records.bin", SAMPLES, 60);
    pid_t daemon = start_service();
    struct loaderd_options o = options_of(1);
    struct loaderd *loader = open_loader("records", &o);
    struct loaderd_batch b;
    end_process(daemon, SIGKILL);
    make_records("records.bin", SAMPLES + 50, 60);
    daemon = start_service();
    int r;
    while ((r = loaderd_next(loader, &b)) == 1)
        loaderd_release(loader, &b);
    ck_assert_int_eq(r, -EINVAL);
    ck_assert_msg(strstr(loaderd_error(loader), "another dataset") != NULL, "%s", loaderd_error(loader));
    ck_assert_int_eq(loaderd_next(loader, &b), -EINVAL);
    loaderd_close(loader);
    ck_assert_int_eq(end_process(daemon, SIGTERM), 0);
    harness_end();
}
END_TEST

static pid_t start_folder(void) {
    return start_daemon("--name", "bad", "--dataset", "folder", "--index", "none", "--image", "8", "--augment",
                        "center-crop", "--batch", "2", "--on-error", "fail", NULL);
}

/* A bad sample under on-error=fail: its sentence, again and again, also from the next daemon. */
START_TEST(a_failed_step_stays_failed) {
    harness_begin();
    ck_assert_int_eq(mkdir("folder", 0700), 0);
    ck_assert_int_eq(mkdir("folder/class", 0700), 0);
    for (int i = 0; i < 4; i++) {
        char name[64];
        snprintf(name, sizeof name, "folder/class/%d.jpg", i);
        FILE *f = fopen(name, "we");
        ck_assert_ptr_nonnull(f);
        fputs("this is no picture", f);
        fclose(f);
    }
    pid_t daemon = start_folder();
    struct loaderd *loader = open_loader("bad", NULL);
    struct loaderd_batch b;
    struct loaderd_state state;
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 2; i++) {
            ck_assert_int_eq(loaderd_next(loader, &b), -EBADMSG);
            ck_assert_msg(strstr(loaderd_error(loader), "class/0.jpg") != NULL, "%s", loaderd_error(loader));
            ck_assert_int_eq(loaderd_try_next(loader, &b), -EBADMSG);
        }
        loaderd_state(loader, &state);
        ck_assert_uint_eq(state.step, 0);
        loaderd_close(loader);
        end_process(daemon, SIGKILL);
        daemon = start_folder();
        loader = open_loader("bad", NULL);
    }
    loaderd_close(loader);
    ck_assert_int_eq(end_process(daemon, SIGTERM), 0);
    harness_end();
}
END_TEST

/* A private daemon that is killed is started again by the one who misses it. */
START_TEST(private_daemons_come_back) {
    harness_begin();
    make_records("records.bin", SAMPLES, 60);
    const char *keys[] = {"record=id:u32 data:u8[60]", "batch=16", "shuffle=full", "last=drop", "seed=3", NULL};
    struct loaderd_options o = options_of(1);
    o.keys = keys;
    struct loaderd *loader = open_loader("./records.bin", &o);
    struct loaderd_info before, after;
    struct loaderd_batch b;
    loaderd_info(loader, &before);
    uint64_t n = 0;
    for (; n < 20; n++) {
        must_next(loader, &b);
        ck_assert_uint_eq(b.sequence, n);
        loaderd_release(loader, &b);
    }
    kill(before.daemon_pid, SIGKILL);
    for (; n < STEPS; n++) {
        must_next(loader, &b);
        ck_assert_uint_eq(b.sequence, n);
        check_records(&b);
        loaderd_release(loader, &b);
    }
    loaderd_info(loader, &after);
    ck_assert_int_ne(before.daemon_pid, after.daemon_pid);
    loaderd_close(loader);
    harness_end();
}
END_TEST

int main(void) {
    const struct harness_test tests[] = {
        {"next_batch", the_next_batch_is_the_next_batch},
        {"polling", polling_over_a_restart},
        {"nobody", nobody_comes_back},
        {"other_data", other_data_is_refused},
        {"failed", a_failed_step_stays_failed},
        {"private", private_daemons_come_back},
        {NULL, NULL},
    };
    return harness_main("restart", tests);
}
