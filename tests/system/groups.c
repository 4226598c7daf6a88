/* SPDX-License-Identifier: MIT */
/* Groups: trainers that share one ring receive every batch, each at its own pace, whoever of them or of the daemon dies. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <zlib.h>

#include "harness.h"

#define SAMPLES 2000
#define BATCH 16
#define STEPS (SAMPLES / BATCH)
#define MOST 6

struct shared {
    uint64_t progress[MOST]; /* batches received */
    uint64_t worst_wait_ms[MOST], reconnects[MOST], rescues[MOST];
    int result[MOST]; /* of the call that ended it, 0: its end */
    bool at_release[MOST];
    struct loaderd_state state[MOST];
    uint32_t crc[STEPS][2];
    uint32_t hold; /* these many batches, then wait for `go` */
    uint32_t go;
};

struct client {
    struct shared *s;
    int number;
    const char *group, *laggard;
    uint64_t from, until; /* batches */
    int pace_us;
    bool check_crc;
};

static pid_t start_service(void) {
    return start_daemon("--name", "records", "--dataset", "records.bin", "--record", "id:u32 data:u8[60]", "--workers",
                        "2", NULL);
}

static struct loaderd *join(const struct client *c) {
    const char *keys[] = {"batch=16", "shuffle=full", "last=drop", "group-wait=20", c->laggard, NULL};
    struct loaderd_options o = LOADERD_OPTIONS_INIT;
    o.keys = keys;
    o.group = c->group;
    o.reconnect_timeout_ms = 20000;
    o.next_timeout_ms = 30000;
    o.epoch = c->from / STEPS;
    o.step = c->from % STEPS;
    return open_loader("records", &o);
}

static void check_batch(const struct client *c, const struct loaderd_batch *b, uint64_t n) {
    ck_assert_uint_eq(b->epoch, n / STEPS);
    ck_assert_uint_eq(b->step, n % STEPS);
    ck_assert_uint_eq(b->sequence, n - c->from);
    check_records(b);
    for (uint32_t i = 0; c->check_crc && n < STEPS && i < 2; i++)
        ck_assert_uint_eq(crc32_z(crc32_z(0, NULL, 0), b->fields[i].data, b->fields[i].bytes), c->s->crc[n % STEPS][i]);
}

/* A copy of the batch: what it holds is for sure only once its release says so. */
static struct loaderd_batch copy_batch(const struct loaderd_batch *b) {
    static struct loaderd_field fields[2];
    static struct loaderd_row rows[BATCH];
    static uint8_t bytes[2][BATCH * 64];
    struct loaderd_batch copy = *b;
    ck_assert_uint_eq(b->nfields, 2);
    for (int i = 0; i < 2; i++) {
        fields[i] = b->fields[i];
        ck_assert_uint_le(fields[i].bytes, sizeof bytes[i]);
        memcpy(bytes[i], fields[i].data, fields[i].bytes);
        fields[i].data = bytes[i];
    }
    memcpy(rows, b->row, sizeof rows);
    copy.fields = fields;
    copy.row = rows;
    return copy;
}

static int consume(void *arg) {
    struct client *c = arg;
    struct shared *s = c->s;
    struct loaderd_batch b;
    struct loaderd_statistics statistics;
    struct loaderd *loader = join(c);
    s->result[c->number] = 0;
    for (uint64_t n = c->from; n < c->until;) {
        uint64_t before = clock_ms();
        int r = loaderd_next(loader, &b);
        uint64_t took = clock_ms() - before;
        if (n > c->from + 10 && took > s->worst_wait_ms[c->number])
            s->worst_wait_ms[c->number] = took;
        if (r == 0)
            continue;
        s->result[c->number] = r < 0 ? r : 0;
        if (r == -ESTALE) {
            ck_assert_int_eq(loaderd_next(loader, &b), -ESTALE);
            loaderd_close(loader);
            return 0;
        }
        ck_assert_msg(r == 1, "%d %s", r, loaderd_error(loader));
        struct loaderd_batch copy = copy_batch(&b);
        usleep((useconds_t)c->pace_us);
        r = loaderd_release(loader, &b);
        if (r < 0) {
            s->result[c->number] = r;
            s->at_release[c->number] = true;
            ck_assert_int_eq(r, -ESTALE);
            ck_assert_ptr_nonnull(strstr(loaderd_error(loader), "overwritten"));
            while ((r = loaderd_next(loader, &b)) == 0)
                ;
            ck_assert_msg(r == -ESTALE, "%d %s", r, loaderd_error(loader));
            loaderd_close(loader);
            return 0;
        }
        check_batch(c, &copy, n);
        loaderd_state(loader, &s->state[c->number]);
        ck_assert_uint_eq(s->state[c->number].epoch * STEPS + s->state[c->number].step, n + 1);
        __atomic_store_n(&s->progress[c->number], ++n - c->from, __ATOMIC_SEQ_CST);
        while (s->hold && n - c->from == s->hold && !__atomic_load_n(&s->go, __ATOMIC_SEQ_CST))
            sleep_ms(1);
    }
    loaderd_statistics(loader, &statistics);
    s->reconnects[c->number] = statistics.reconnects;
    s->rescues[c->number] = statistics.rescues;
    loaderd_close(loader);
    return 0;
}

static void wait_progress(struct shared *s, int client, uint64_t batches) {
    uint64_t until = clock_ms() + 20000;
    while (__atomic_load_n(&s->progress[client], __ATOMIC_SEQ_CST) < batches) {
        ck_assert_uint_lt(clock_ms(), until);
        sleep_ms(1);
    }
}

static void read_digest(struct shared *s) {
    const char *program = getenv("LOADERCTL");
    char command[512], line[256];
    snprintf(command, sizeof command,
             "%s digest ./records.bin --record 'id:u32 data:u8[60]' --batch 16 --shuffle full --last drop 2>/dev/null",
             program ? program : "./loaderctl");
    FILE *f = popen(command, "re");
    ck_assert_ptr_nonnull(f);
    unsigned step, steps = 0;
    while (fgets(line, sizeof line, f)) {
        uint32_t crc[2];
        if (sscanf(line, "%u id=%x data=%x", &step, &crc[0], &crc[1]) != 3)
            continue;
        ck_assert_uint_lt(step, STEPS);
        memcpy(s->crc[step], crc, sizeof crc);
        steps++;
    }
    ck_assert_int_eq(pclose(f), 0);
    ck_assert_uint_eq(steps, STEPS);
}

static struct shared *begin(void) {
    harness_begin();
    make_records("records.bin", SAMPLES, 60);
    return shared_memory(sizeof(struct shared));
}

/* One decoding feeds four, each at its own pace. */
START_TEST(all_receive_all) {
    struct shared *s = begin();
    struct client c[4];
    pid_t pids[4], daemon = start_service();
    read_digest(s);
    s->hold = 100;
    for (int i = 0; i < 4; i++) {
        c[i] = (struct client){s, i, "four:4", NULL, 0, STEPS, i * 100, true};
        pids[i] = start_client(consume, &c[i]);
    }
    for (int i = 0; i < 4; i++)
        wait_progress(s, i, 100);
    sleep_ms(50);
    char *json = read_status(harness_socket());
    ck_assert_uint_eq(count_sessions(harness_socket()), 1);
    ck_assert_ptr_nonnull(strstr(json, "\"group\": \"four\", \"members\": [{"));
    ck_assert_uint_eq(status_sum(json, "popped"), 400);
    const char *session = strstr(json, "\"sessions\": [");
    uint64_t samples = status_sum(session, "samples");
    ck_assert_uint_ge(samples, 100 * BATCH); /* once for all four */
    ck_assert_uint_le(samples, 108 * BATCH);
    free(json);
    __atomic_store_n(&s->go, 1, __ATOMIC_SEQ_CST);
    for (int i = 0; i < 4; i++) {
        expect_client(pids[i]);
        ck_assert_uint_eq(s->progress[i], STEPS);
        ck_assert_uint_eq(s->rescues[i], 0);
        ck_assert_uint_eq(s->reconnects[i], 0);
    }
    expect_sessions(harness_socket(), 0, 1000);
    ck_assert_int_eq(end_process(daemon, SIGTERM), 0);
    harness_end();
}
END_TEST

START_TEST(a_killed_member_is_not_waited_for) {
    struct shared *s = begin();
    struct client c[3];
    pid_t pids[3], daemon = start_service();
    for (int i = 0; i < 3; i++) {
        c[i] = (struct client){s, i, "three:3", NULL, 0, 2 * STEPS, 2000, false};
        pids[i] = start_client(consume, &c[i]);
    }
    uint32_t descriptors = 0;
    for (int i = 0; i < 3; i++)
        wait_progress(s, i, 40);
    descriptors = count_descriptors(daemon);
    kill(pids[1], SIGSTOP); /* so that it holds one for sure, or blocks */
    sleep_ms(50);
    s->worst_wait_ms[0] = s->worst_wait_ms[2] = 0;
    ck_assert(WIFSIGNALED(end_process(pids[1], SIGKILL)));
    uint64_t at = s->progress[0], killed = clock_ms();
    wait_progress(s, 0, at + 10);
    ck_assert_uint_lt(clock_ms() - killed, 1000);
    uint64_t until = clock_ms() + 5000; /* what it had is freed */
    while (count_descriptors(daemon) >= descriptors && clock_ms() < until)
        sleep_ms(5);
    ck_assert_uint_lt(count_descriptors(daemon), descriptors);
    expect_client(pids[0]);
    expect_client(pids[2]);
    ck_assert_uint_eq(s->progress[0], 2 * STEPS);
    ck_assert_uint_eq(s->progress[2], 2 * STEPS);
    ck_assert_int_eq(end_process(daemon, SIGTERM), 0);
    harness_end();
}
END_TEST

static void run_stopped(const char *laggard, bool waits) {
    struct shared *s = begin();
    struct client c[3];
    pid_t pids[3], daemon = start_service();
    for (int i = 0; i < 3; i++) {
        c[i] = (struct client){s, i, "three:3", laggard, 0, 3 * STEPS, 300, false};
        pids[i] = start_client(consume, &c[i]);
    }
    for (int i = 0; i < 3; i++)
        wait_progress(s, i, 30);
    kill(pids[1], SIGSTOP);
    uint64_t at = s->progress[1];
    sleep_ms(1800);
    if (waits)
        ck_assert_uint_le(s->progress[0], at + 10); /* the ring's slots, and no further */
    else
        ck_assert_uint_ge(s->progress[0], at + 30);
    kill(pids[1], SIGCONT);
    for (int i = 0; i < 3; i++)
        expect_client(pids[i]);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(s->result[i], i == 1 && !waits ? -ESTALE : 0);
        ck_assert(i == 1 && !waits ? s->progress[i] < 3 * STEPS : s->progress[i] == 3 * STEPS);
    }
    ck_assert_int_eq(end_process(daemon, SIGTERM), 0);
    harness_end();
}

START_TEST(a_stopped_member_is_waited_for) {
    run_stopped("group-laggard=wait", true);
}
END_TEST

START_TEST(a_stopped_member_is_left_behind) {
    run_stopped("group-laggard=1", false);
}
END_TEST

/* Members stand at different batches when the daemon dies, and go on from there. */
START_TEST(daemons_come_and_go) {
    struct shared *s = begin();
    struct client c[3];
    pid_t pids[3], daemon = start_service();
    read_digest(s);
    for (int i = 0; i < 3; i++) {
        c[i] = (struct client){s, i, "three:3", NULL, 0, 3 * STEPS, 200 + i * 300, true};
        pids[i] = start_client(consume, &c[i]);
    }
    for (int round = 1; round <= 3; round++) {
        for (int i = 0; i < 3; i++)
            wait_progress(s, i, (uint64_t)round * 60);
        end_process(daemon, round == 2 ? SIGTERM : SIGKILL);
        daemon = start_service();
    }
    for (int i = 0; i < 3; i++) {
        expect_client(pids[i]);
        ck_assert_uint_eq(s->progress[i], 3 * STEPS);
        ck_assert_uint_eq(s->reconnects[i], 3);
    }
    ck_assert_int_eq(end_process(daemon, SIGTERM), 0);
    harness_end();
}
END_TEST

/* One joins while the ring holds its next batch; one comes back from far behind. */
START_TEST(late_members) {
    struct shared *s = begin();
    struct client c[4];
    pid_t pids[4], daemon = start_service();
    s->hold = 200;
    for (int i = 0; i < 2; i++) {
        c[i] = (struct client){s, i, "two:2", NULL, 0, 3 * STEPS, 100, false};
        pids[i] = start_client(consume, &c[i]);
    }
    wait_progress(s, 0, 200);
    wait_progress(s, 1, 200);
    c[2] = (struct client){s, 2, "two:2", NULL, 203, 3 * STEPS, 100, false};
    c[3] = (struct client){s, 3, "two:2", NULL, 20, 3 * STEPS, 0, false};
    pids[2] = start_client(consume, &c[2]);
    pids[3] = start_client(consume, &c[3]);
    wait_progress(s, 3, 200);
    expect_sessions(harness_socket(), 2, 1000);
    char *json = read_status(harness_socket());
    const char *members = strstr(json, "\"member_pid\"");
    int n = 0;
    for (; members; members = strstr(members + 1, "\"member_pid\""))
        n++;
    ck_assert_int_eq(n, 3);
    free(json);
    __atomic_store_n(&s->go, 1, __ATOMIC_SEQ_CST);
    for (int i = 0; i < 4; i++) {
        expect_client(pids[i]);
        ck_assert_uint_eq(s->progress[i], 3 * STEPS - c[i].from);
    }
    expect_sessions(harness_socket(), 0, 1000);
    ck_assert_int_eq(end_process(daemon, SIGTERM), 0);
    harness_end();
}
END_TEST

static int one_member(void *arg) {
    (void)arg;
    const char *keys[] = {"batch=16", "group-wait=1", NULL};
    struct loaderd_options o = LOADERD_OPTIONS_INIT;
    o.keys = keys;
    o.group = "three:3";
    struct loaderd *loader = open_loader("records", &o);
    struct loaderd_batch b;
    must_next(loader, &b);
    loaderd_release(loader, &b);
    sleep_ms(300);
    loaderd_close(loader);
    return 0;
}

/* loaderctl detach ends a group's session for all of its members. */
static int be_detached(void *arg) {
    struct client *c = arg;
    struct loaderd_batch b;
    struct loaderd *loader = join(c);
    int r;
    while ((r = loaderd_next(loader, &b)) >= 0) {
        if (r == 1)
            r = loaderd_release(loader, &b);
        __atomic_fetch_add(&c->s->progress[c->number], 1, __ATOMIC_SEQ_CST);
        usleep(300);
    }
    ck_assert_msg(r == -ECANCELED, "%d %s", r, loaderd_error(loader));
    loaderd_close(loader);
    return 0;
}

START_TEST(a_group_is_detached) {
    struct shared *s = begin();
    struct client c[3];
    pid_t pids[3], daemon = start_service();
    for (int i = 0; i < 3; i++) {
        c[i] = (struct client){s, i, "three:3", NULL, 0, 0, 0, false};
        pids[i] = start_client(be_detached, &c[i]);
    }
    for (int i = 0; i < 3; i++)
        wait_progress(s, i, 30);
    const char *program = getenv("LOADERCTL");
    char command[256];
    snprintf(command, sizeof command, "%s detach 1 --reason=enough >/dev/null", program ? program : "./loaderctl");
    ck_assert_int_eq(system(command), 0);
    for (int i = 0; i < 3; i++)
        expect_client(pids[i]);
    expect_sessions(harness_socket(), 0, 1000);
    ck_assert_int_eq(end_process(daemon, SIGTERM), 0);
    harness_end();
}
END_TEST

START_TEST(who_may_be_a_member) {
    static const char *const wrong[] = {"", ":", "three", "three:", ":3", "three:0", "three:33", "three:x", "three:3x"};
    begin();
    pid_t daemon = start_service();
    struct loaderd_options o = LOADERD_OPTIONS_INIT;
    struct loaderd *loader;
    char error[1024];
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        o.group = wrong[i];
        ck_assert_int_eq(loaderd_open(&loader, "records", &o, error, sizeof error), -EINVAL);
        ck_assert_msg(strstr(error, "NAME:MEMBERS") != NULL, "%s", error);
    }
    uint64_t before = clock_ms();
    pid_t first = start_client(one_member, NULL), second = start_client(one_member, NULL);
    sleep_ms(200);
    const char *keys[] = {"batch=17", NULL};
    o.keys = keys;
    o.group = "three:3";
    ck_assert_int_eq(loaderd_open(&loader, "records", &o, error, sizeof error), -EINVAL);
    ck_assert_msg(strstr(error, "batch 16") && strstr(error, "batch 17"), "%s", error);
    const char *ids[] = {"shuffle=explicit", NULL};
    o.keys = ids;
    o.group = "alone:1";
    ck_assert_int_eq(loaderd_open(&loader, "records", &o, error, sizeof error), -EINVAL);
    ck_assert_msg(strstr(error, "cannot be shared") != NULL, "%s", error);
    expect_client(first); /* the third never came */
    expect_client(second);
    ck_assert_uint_ge(clock_ms() - before, 1000);
    expect_sessions(harness_socket(), 0, 1000);
    ck_assert_int_eq(end_process(daemon, SIGTERM), 0);
    harness_end();
}
END_TEST

int main(void) {
    const struct harness_test tests[] = {
        {"all", all_receive_all},
        {"killed", a_killed_member_is_not_waited_for},
        {"waited", a_stopped_member_is_waited_for},
        {"left", a_stopped_member_is_left_behind},
        {"restart", daemons_come_and_go},
        {"late", late_members},
        {"detached", a_group_is_detached},
        {"who", who_may_be_a_member},
        {NULL, NULL},
    };
    return harness_main("groups", tests);
}
