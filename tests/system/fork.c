/* SPDX-License-Identifier: MIT */
/* A loader belongs to the process that opened it: children are told so, and cannot hurt it. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"

static struct loaderd *loader;
static struct loaderd_batch held;

/* Every call in a child. */
static int use_in_child(void *arg) {
    bool close_it = arg != NULL;
    struct loaderd_batch b;
    struct loaderd_state state;
    struct loaderd_info info;
    struct loaderd_statistics statistics;
    char path[100];
    ck_assert_int_eq(loaderd_next(loader, &b), -ECHILD);
    ck_assert_msg(strstr(loaderd_error(loader), "another process") != NULL, "%s", loaderd_error(loader));
    ck_assert_int_eq(loaderd_try_next(loader, &b), -ECHILD);
    ck_assert_int_eq(loaderd_release(loader, &held), -ECHILD);
    ck_assert_int_eq(loaderd_state(loader, &state), -ECHILD);
    ck_assert_int_eq(loaderd_info(loader, &info), -ECHILD);
    ck_assert_int_eq(loaderd_statistics(loader, &statistics), -ECHILD);
    ck_assert_int_eq(loaderd_fd(loader), -ECHILD);
    ck_assert_int_eq(loaderd_sample_path(loader, 0, path, sizeof path), -ECHILD);
    check_records(&held); /* it may look at what its parent holds */
    if (close_it)
        loaderd_close(loader);
    struct loaderd *own = open_loader("records", NULL); /* its own works */
    must_next(own, &b);
    check_records(&b);
    loaderd_close(own);
    return 0;
}

static pid_t begin(void) {
    harness_begin();
    make_records("records.bin", 500, 30);
    pid_t daemon = start_daemon("--name", "records", "--dataset", "records.bin", "--record", "id:u32 data:u8[30]",
                                "--batch", "8", "--workers", "2", "--slots", "64", NULL);
    loader = open_loader("records", NULL);
    ck_assert_int_ge(loaderd_fd(loader), 0);
    must_next(loader, &held);
    return daemon;
}

START_TEST(children_are_told) {
    pid_t daemon = begin();
    struct loaderd_batch b;
    for (uint64_t n = 1; n < 30; n++) {
        if (n % 8 == 1)
            expect_client(start_client(use_in_child, n % 16 == 1 ? &held : NULL));
        must_next(loader, &b);
        ck_assert_uint_eq(b.sequence, n);
        check_records(&b);
        loaderd_release(loader, &b);
    }
    check_records(&held);
    ck_assert_int_eq(loaderd_release(loader, &held), 0);
    expect_sessions(harness_socket(), 1, 1000);
    struct loaderd_statistics statistics;
    loaderd_statistics(loader, &statistics);
    ck_assert_uint_eq(statistics.reconnects, 0);
    ck_assert_uint_eq(statistics.rescues, 0);
    loaderd_close(loader);
    expect_sessions(harness_socket(), 0, 1000);
    ck_assert_int_eq(end_process(daemon, SIGTERM), 0);
    harness_end();
}
END_TEST

static int sleep_in_child(void *arg) {
    (void)arg;
    for (;;)
        pause();
    return 1;
}

/* A child that lives on with a copy of the connection does not keep the session. */
START_TEST(close_is_seen_behind_a_child) {
    pid_t daemon = begin();
    pid_t child = start_client(sleep_in_child, NULL);
    loaderd_close(loader);
    expect_sessions(harness_socket(), 0, 1000);
    ck_assert(process_lives(child));
    end_process(child, SIGKILL);
    ck_assert_int_eq(end_process(daemon, SIGTERM), 0);
    harness_end();
}
END_TEST

/* A reconnect with a child around that holds the old connection: the poll descriptor must not stay at its end. */
START_TEST(reconnect_with_a_child_around) {
    pid_t daemon = begin();
    pid_t child = start_client(sleep_in_child, NULL);
    end_process(daemon, SIGKILL);
    daemon = start_daemon("--name", "records", "--dataset", "records.bin", "--record", "id:u32 data:u8[30]", "--batch",
                          "8", "--slots", "64", NULL);
    struct loaderd_batch b;
    for (uint64_t n = 1; n < 30; n++) {
        must_next(loader, &b);
        ck_assert_uint_eq(b.sequence, n);
        check_records(&b);
        loaderd_release(loader, &b);
    }
    loaderd_close(loader);
    end_process(child, SIGKILL);
    expect_sessions(harness_socket(), 0, 1000);
    ck_assert_int_eq(end_process(daemon, SIGTERM), 0);
    harness_end();
}
END_TEST

int main(void) {
    const struct harness_test tests[] = {
        {"told", children_are_told},
        {"close", close_is_seen_behind_a_child},
        {"reconnect", reconnect_with_a_child_around},
        {NULL, NULL},
    };
    return harness_main("fork", tests);
}
