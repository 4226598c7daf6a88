/* SPDX-License-Identifier: MIT */
/* Trainers that are killed or stopped: their slots come back, the others lose nothing and do not wait for them. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"

#define SAMPLES 2000

struct shared {
    uint32_t ready, go;   /* clients that hold what they should; may they end */
    uint32_t progress[8]; /* batches */
    uint64_t worst_wait_ms[8];
};

struct client {
    struct shared *s;
    int number;
    uint32_t hold;    /* batches */
    uint32_t batches; /* then the end */
};

static pid_t start_service(void) {
    make_records("records.bin", SAMPLES, 60);
    return start_daemon("--name", "records", "--dataset", "records.bin", "--record", "id:u32 data:u8[60]", "--workers",
                        "2", NULL);
}

static struct loaderd *open_records(uint32_t held) {
    static const char *keys[] = {"batch=16", "shuffle=full", "last=pad", NULL};
    struct loaderd_options o = LOADERD_OPTIONS_INIT;
    o.keys = keys;
    o.held = held;
    return open_loader("records", &o);
}

/* Holds some batches, says so, and sleeps. */
static int hold(void *arg) {
    struct client *c = arg;
    struct loaderd_batch b;
    struct loaderd *loader = open_records(c->hold + 1);
    for (uint32_t i = 0; i < c->hold; i++)
        must_next(loader, &b);
    __atomic_fetch_add(&c->s->ready, 1, __ATOMIC_SEQ_CST);
    for (;;)
        pause();
    return 1;
}

/* Consumes for ever, as fast as it can: always on its way into or out of the library. */
static int consume_for_ever(void *arg) {
    struct client *c = arg;
    struct loaderd_batch b;
    struct loaderd *loader = open_records(1);
    __atomic_fetch_add(&c->s->ready, 1, __ATOMIC_SEQ_CST);
    for (;;) {
        int r = loaderd_next(loader, &b);
        ck_assert_int_ge(r, 0);
        if (r == 1)
            loaderd_release(loader, &b);
        c->s->progress[c->number]++;
    }
    return 1;
}

/* Consumes a fixed number of batches in order; remembers its longest wait. */
static int consume(void *arg) {
    struct client *c = arg;
    struct loaderd_batch b;
    struct loaderd *loader = open_records(1);
    __atomic_fetch_add(&c->s->ready, 1, __ATOMIC_SEQ_CST);
    for (uint64_t i = 0; i < c->batches; i++) {
        uint64_t before = clock_ms();
        int r = loaderd_next(loader, &b);
        if (r == 0)
            r = loaderd_next(loader, &b);
        ck_assert_msg(r == 1, "%d %s", r, loaderd_error(loader));
        uint64_t took = clock_ms() - before;
        if (took > c->s->worst_wait_ms[c->number])
            c->s->worst_wait_ms[c->number] = took;
        ck_assert_uint_eq(b.sequence, i);
        check_records(&b);
        loaderd_release(loader, &b);
        c->s->progress[c->number]++;
    }
    struct loaderd_statistics statistics;
    loaderd_statistics(loader, &statistics);
    ck_assert_uint_eq(statistics.rescues, 0);
    ck_assert_uint_eq(statistics.reconnects, 0);
    loaderd_close(loader);
    return 0;
}

static void wait_ready(struct shared *s, uint32_t clients) {
    uint64_t until = clock_ms() + 30000;
    while (__atomic_load_n(&s->ready, __ATOMIC_SEQ_CST) < clients) {
        ck_assert_uint_lt(clock_ms(), until);
        sleep_ms(2);
    }
}

START_TEST(killed_clients_leave_nothing) {
    harness_begin();
    pid_t daemon = start_service();
    struct shared *s = shared_memory(sizeof *s);
    struct client good = {s, 0, 0, 600};
    struct client victims[] = {{s, 1, 3, 0}, {s, 2, 0, 0}, {s, 3, 5, 0}};
    loaderd_close(open_records(1)); /* the daemon opens the dataset behind its start: its descriptors count */
    expect_sessions(harness_socket(), 0, 1000);
    uint32_t descriptors = count_descriptors(daemon);
    pid_t survivor = start_client(consume, &good);
    for (int round = 0; round < 4; round++) {
        pid_t pids[3];
        s->ready = 0;
        for (int i = 0; i < 3; i++)
            pids[i] = start_client(i == 1 ? consume_for_ever : hold, &victims[i]);
        wait_ready(s, 3);
        sleep_ms(20);
        for (int i = 0; i < 3; i++)
            ck_assert(WIFSIGNALED(end_process(pids[i], SIGKILL)));
    }
    expect_client(survivor);
    expect_sessions(harness_socket(), 0, 1000);
    ck_assert_uint_eq(s->progress[0], 600);
    /* memory and descriptors of the dead are given back */
    uint64_t until = clock_ms() + 1000;
    while (count_descriptors(daemon) > descriptors && clock_ms() < until)
        sleep_ms(10);
    ck_assert_uint_le(count_descriptors(daemon), descriptors);
    ck_assert_int_eq(end_process(daemon, SIGTERM), 0);
    char *log = read_text("log");
    ck_assert_ptr_nonnull(strstr(log, "stopped"));
    free(log);
    harness_end();
}
END_TEST

START_TEST(a_stopped_client_slows_nobody) {
    harness_begin();
    pid_t daemon = start_service();
    struct shared *s = shared_memory(sizeof *s);
    struct client stopped = {s, 1, 0, 3000}, good = {s, 2, 0, 1500};
    pid_t sleeper = start_client(consume, &stopped);
    wait_ready(s, 1);
    sleep_ms(10);
    kill(sleeper, SIGSTOP);
    sleep_ms(10);
    uint32_t before = __atomic_load_n(&s->progress[1], __ATOMIC_SEQ_CST);
    expect_client(start_client(consume, &good));
    ck_assert_uint_eq(s->progress[2], 1500);
    ck_assert_uint_lt(s->worst_wait_ms[2], 2000); /* the other one sleeps all the time */
    ck_assert_uint_eq(__atomic_load_n(&s->progress[1], __ATOMIC_SEQ_CST), before);
    kill(sleeper, SIGCONT);
    expect_client(sleeper); /* goes on with the very next batch: consume() checks that */
    expect_sessions(harness_socket(), 0, 1000);
    ck_assert_int_eq(end_process(daemon, SIGTERM), 0);
    harness_end();
}
END_TEST

static int fork_and_die(void *arg) {
    struct client *c = arg;
    struct loaderd *loader = open_records(1);
    struct loaderd_batch b;
    must_next(loader, &b);
    if (fork() == 0) { /* holds a copy of the connection */
        __atomic_fetch_add(&c->s->ready, 1, __ATOMIC_SEQ_CST);
        while (!__atomic_load_n(&c->s->go, __ATOMIC_SEQ_CST))
            sleep_ms(5);
        _exit(0);
    }
    wait_ready(c->s, 1);
    raise(SIGKILL);
    return 0;
}

/* The connection stays open in a forked child; the death of the process itself is what counts. */
START_TEST(death_is_seen_behind_a_forked_child) {
    harness_begin();
    pid_t daemon = start_service();
    struct shared *s = shared_memory(sizeof *s);
    struct client c = {.s = s};
    pid_t pid = start_client(fork_and_die, &c);
    ck_assert(WIFSIGNALED(end_process(pid, 0)));
    expect_sessions(harness_socket(), 0, 1000);
    __atomic_store_n(&s->go, 1, __ATOMIC_SEQ_CST);
    ck_assert_int_eq(end_process(daemon, SIGTERM), 0);
    harness_end();
}
END_TEST

START_TEST(a_stopped_daemon_is_named) {
    harness_begin();
    pid_t daemon = start_service();
    struct loaderd_options o = LOADERD_OPTIONS_INIT;
    o.next_timeout_ms = 300;
    struct loaderd *loader = open_loader("records", &o);
    struct loaderd_batch b;
    int r = 1;
    kill(daemon, SIGSTOP);
    for (int i = 0; i < 20 && r == 1; i++) /* what is ready stays so */
        if ((r = loaderd_next(loader, &b)) == 1)
            loaderd_release(loader, &b);
    ck_assert_int_eq(r, -ETIMEDOUT);
    ck_assert_msg(strstr(loaderd_error(loader), "is stopped") != NULL, "%s", loaderd_error(loader));
    kill(daemon, SIGCONT);
    must_next(loader, &b); /* no harm done */
    loaderd_close(loader);
    ck_assert_int_eq(end_process(daemon, SIGTERM), 0);
    harness_end();
}
END_TEST

int main(void) {
    const struct harness_test tests[] = {
        {"killed", killed_clients_leave_nothing},
        {"stopped", a_stopped_client_slows_nobody},
        {"forked", death_is_seen_behind_a_forked_child},
        {"daemon_stopped", a_stopped_daemon_is_named},
        {NULL, NULL},
    };
    return harness_main("death", tests);
}
