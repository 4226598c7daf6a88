/* SPDX-License-Identifier: MIT */
/* loaderctl drain and detach: an old daemon hands its trainers to a new one, batch by batch; one session is ended. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../client/connection.h"
#include "harness.h"

#define SAMPLES 2000

static pid_t start_service(void) {
    return start_daemon("--name", "records", "--dataset", "records.bin", "--record", "id:u32 data:u8[60]", "--workers",
                        "2", NULL);
}

static pid_t run_loaderctl(const char *command, const char *argument, const char *more) {
    const char *program = getenv("LOADERCTL");
    pid_t pid = fork();
    if (pid == 0) {
        if (!freopen("out", "a", stdout) || dup2(STDOUT_FILENO, STDERR_FILENO) < 0)
            _exit(126);
        execl(program ? program : "./loaderctl", "loaderctl", command, argument, more, NULL);
        _exit(127);
    }
    return pid;
}

struct shared {
    uint64_t progress[4];
    uint64_t reconnects[4], rescues[4];
    uint32_t go; /* may end */
};

struct client {
    struct shared *s;
    int number;
    bool polls;
};

static int receive(struct loaderd *loader, struct loaderd_batch *b, bool polls) {
    for (;;) {
        int r = polls ? loaderd_try_next(loader, b) : loaderd_next(loader, b);
        if (r != -EAGAIN)
            return r;
        struct pollfd p = {.fd = loaderd_fd(loader), .events = POLLIN};
        ck_assert_int_eq(poll(&p, 1, 10000), 1);
    }
}

/* Consumes every batch in order until told to stop. */
static int consume(void *arg) {
    struct client *c = arg;
    const char *keys[] = {"batch=16", "shuffle=full", "last=drop", NULL};
    struct loaderd_options o = LOADERD_OPTIONS_INIT;
    struct loaderd_batch b;
    struct loaderd_statistics statistics;
    o.keys = keys;
    o.reconnect_timeout_ms = 20000;
    struct loaderd *loader = open_loader("records", &o);
    for (uint64_t n = 0; !__atomic_load_n(&c->s->go, __ATOMIC_SEQ_CST);) {
        int r = receive(loader, &b, c->polls);
        if (r == 0)
            continue;
        ck_assert_msg(r == 1, "%d %s", r, loaderd_error(loader));
        ck_assert_uint_eq(b.sequence, n);
        ck_assert_uint_eq(b.epoch * (SAMPLES / 16) + b.step, n);
        check_records(&b);
        loaderd_release(loader, &b);
        __atomic_store_n(&c->s->progress[c->number], ++n, __ATOMIC_SEQ_CST);
        usleep(200);
    }
    loaderd_statistics(loader, &statistics);
    c->s->reconnects[c->number] = statistics.reconnects;
    c->s->rescues[c->number] = statistics.rescues;
    loaderd_close(loader);
    return 0;
}

static void wait_progress(struct shared *s, int clients, uint64_t further) {
    uint64_t until = clock_ms() + 20000;
    for (int i = 0; i < clients; i++) {
        uint64_t at = __atomic_load_n(&s->progress[i], __ATOMIC_SEQ_CST);
        while (__atomic_load_n(&s->progress[i], __ATOMIC_SEQ_CST) < at + further) {
            ck_assert_uint_lt(clock_ms(), until);
            sleep_ms(1);
        }
    }
}

START_TEST(daemons_hand_over) {
    harness_begin();
    make_records("records.bin", SAMPLES, 60);
    pid_t daemon = start_service();
    struct shared *s = shared_memory(sizeof *s);
    struct client clients[3] = {{s, 0, false}, {s, 1, true}, {s, 2, false}};
    pid_t pids[3];
    for (int i = 0; i < 3; i++)
        pids[i] = start_client(consume, &clients[i]);
    for (int round = 0; round < 3; round++) {
        wait_progress(s, 3, 30);
        pid_t command = run_loaderctl("drain", "--timeout=20", NULL);
        while (access(harness_socket(), F_OK) == 0)
            sleep_ms(1);
        if (round == 1)
            ck_assert_int_eq(end_process(daemon, 0), 0); /* nobody there for a while */
        pid_t next = start_service();
        if (round != 1)
            ck_assert_int_eq(end_process(daemon, 0), 0);
        ck_assert_int_eq(end_process(command, 0), 0);
        daemon = next;
    }
    wait_progress(s, 3, 30);
    __atomic_store_n(&s->go, 1, __ATOMIC_SEQ_CST);
    for (int i = 0; i < 3; i++) {
        expect_client(pids[i]);
        ck_assert_uint_eq(s->reconnects[i], 3);
        ck_assert_uint_eq(s->rescues[i], 0);
    }
    ck_assert_int_eq(end_process(daemon, SIGTERM), 0);
    char *log = read_text("log"), *out = read_text("out");
    ck_assert_ptr_nonnull(strstr(log, "draining: 3 sessions"));
    ck_assert_ptr_nonnull(strstr(log, "(drained)"));
    ck_assert_ptr_nonnull(strstr(out, "drains; it has 3 sessions"));
    free(log);
    free(out);
    harness_end();
}
END_TEST

/* An idle daemon ends at once; one whose session is stuck ends when the time is over; nobody new gets in. */
START_TEST(draining_ends) {
    harness_begin();
    make_records("records.bin", SAMPLES, 60);
    pid_t daemon = start_service();
    ck_assert_int_eq(end_process(run_loaderctl("drain", NULL, NULL), 0), 0);
    ck_assert_int_eq(end_process(daemon, 0), 0);
    ck_assert_int_ne(access(harness_socket(), F_OK), 0);
    daemon = start_service();
    int early = raw_hello(harness_socket());
    struct loaderd_options o = LOADERD_OPTIONS_INIT;
    const char *keys[] = {"shuffle=explicit", "batch=16", NULL};
    o.keys = keys;
    o.reconnect_timeout_ms = -1;
    struct loaderd *loader = open_loader("records", &o);
    struct loaderd_batch b;
    ck_assert_int_eq(loaderd_try_next(loader, &b), -EDEADLK);
    const struct loaderd_drain drain = {{LOADERD_DRAIN, sizeof drain}, 300, 0};
    char packet[512];
    int fds[2];
    ck_assert_int_eq(connection_send(early, &drain, sizeof drain), 0);
    ck_assert_int_gt(raw_receive(early, packet, sizeof packet, fds), 0);
    ck_assert_int_eq(raw_receive(early, packet, sizeof packet, fds), 0);
    ck_assert_int_eq(end_process(daemon, 0), 0);
    close(early);
    for (uint64_t id = 0; id < 16; id++)
        loaderd_supply(loader, &id, 1);
    int r = loaderd_next(loader, &b);
    ck_assert_int_eq(r, -ECONNRESET);
    loaderd_close(loader);
    harness_end();
}
END_TEST

START_TEST(one_session_is_detached) {
    harness_begin();
    make_records("records.bin", SAMPLES, 60);
    pid_t daemon = start_service();
    struct loaderd *first = open_loader("records", NULL), *second = open_loader("records", NULL);
    struct loaderd_batch b;
    must_next(first, &b);
    ck_assert_int_eq(WEXITSTATUS(end_process(run_loaderctl("detach", "77", NULL), 0)), 1);
    ck_assert_int_eq(WEXITSTATUS(end_process(run_loaderctl("detach", "one", NULL), 0)), 1);
    ck_assert_int_eq(WEXITSTATUS(end_process(run_loaderctl("detach", NULL, NULL), 0)), 2);
    ck_assert_int_eq(end_process(run_loaderctl("detach", "1", "--reason=it is in the way"), 0), 0);
    expect_sessions(harness_socket(), 1, 1000);
    int r = 1, batches = 0;
    for (; r == 1 && batches < 100; batches++) {
        loaderd_release(first, &b);
        r = loaderd_next(first, &b);
    }
    ck_assert_int_eq(r, -ECANCELED);
    ck_assert_msg(strstr(loaderd_error(first), "session 1 was detached") && strstr(loaderd_error(first), "in the way"),
                  "%s", loaderd_error(first));
    ck_assert_int_eq(loaderd_next(first, &b), -ECANCELED);
    ck_assert_int_eq(loaderd_try_next(first, &b), -ECANCELED);
    for (int i = 0; i < 30; i++) { /* the other one notices nothing */
        must_next(second, &b);
        ck_assert_uint_eq(b.sequence, i);
        check_records(&b);
        loaderd_release(second, &b);
    }
    loaderd_close(first);
    loaderd_close(second);
    ck_assert_int_eq(end_process(daemon, SIGTERM), 0);
    harness_end();
}
END_TEST

int main(void) {
    const struct harness_test tests[] = {
        {"hand_over", daemons_hand_over},
        {"ends", draining_ends},
        {"detach", one_session_is_detached},
        {NULL, NULL},
    };
    return harness_main("drain", tests);
}
