/* SPDX-License-Identifier: MIT */
/* Private daemons: one a job, one scan, gone with the last session, nothing left behind. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "harness.h"

#define SAMPLES 400
#define CLIENTS 8

struct shared {
    uint32_t at_start, go, open;
    int32_t daemon[CLIENTS];
    uint32_t seen[SAMPLES];
};

struct client {
    struct shared *s;
    int rank;
};

static const char *const record_keys[] = {
    "record=id:u32 data:u8[20]", "batch=5", "shuffle=full", "log-level=info", "workers=2", NULL};

/* All at the same instant: as ranks of one job, one epoch. */
static int open_and_consume(void *arg) {
    struct client *c = arg;
    struct shared *s = c->s;
    char text[32];
    snprintf(text, sizeof text, "%d", c->rank);
    setenv("RANK", text, 1);
    snprintf(text, sizeof text, "%d", CLIENTS);
    setenv("WORLD_SIZE", text, 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", "29517", 1);
    struct loaderd_options o = LOADERD_OPTIONS_INIT;
    struct loaderd_info info;
    struct loaderd_batch b;
    o.keys = record_keys;
    o.epochs = 1;
    __atomic_fetch_add(&s->at_start, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&s->at_start, __ATOMIC_SEQ_CST) < CLIENTS)
        ;
    struct loaderd *loader = open_loader("./records.bin", &o);
    loaderd_info(loader, &info);
    ck_assert_uint_eq(info.rank, (uint32_t)c->rank);
    ck_assert_uint_eq(info.world, CLIENTS);
    s->daemon[c->rank] = info.daemon_pid;
    __atomic_fetch_add(&s->open, 1, __ATOMIC_SEQ_CST);
    while (!__atomic_load_n(&s->go, __ATOMIC_SEQ_CST))
        sleep_ms(2);
    for (int r; (r = loaderd_next(loader, &b)) != 0;) {
        ck_assert_msg(r == 1, "%d %s", r, loaderd_error(loader));
        check_records(&b);
        for (uint32_t i = 0; i < b.valid; i++)
            __atomic_fetch_add(&s->seen[b.row[i].sample], 1, __ATOMIC_SEQ_CST);
        loaderd_release(loader, &b);
    }
    loaderd_close(loader);
    return 0;
}

static uint32_t count_text(const char *text, const char *part) {
    uint32_t n = 0;
    for (; (text = strstr(text, part)); text++)
        n++;
    return n;
}

static uint32_t count_files(const char *path) {
    DIR *d = opendir(path);
    uint32_t n = 0;
    if (!d)
        return 0;
    for (struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

/* The daemon is an adopted child of ours: it must end by itself. */
static void expect_end(pid_t pid, int ms) {
    uint64_t until = clock_ms() + (uint64_t)ms;
    while (process_lives(pid)) {
        ck_assert_msg(clock_ms() < until, "the private daemon %d lives on", (int)pid);
        sleep_ms(5);
    }
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
}

static void expect_nothing_left(void) {
    ck_assert_uint_eq(count_files("run/loaderd"), 0);
}

/* Stderr of this test goes to a file: the private daemon inherits it. */
static void catch_stderr(void) {
    int fd = open("stderr", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    ck_assert_int_ge(fd, 0);
    dup2(fd, STDERR_FILENO);
    close(fd);
}

START_TEST(eight_opens_give_one_daemon) {
    harness_begin();
    catch_stderr();
    make_records("records.bin", SAMPLES, 20);
    struct shared *s = shared_memory(sizeof *s);
    struct client clients[CLIENTS];
    pid_t pids[CLIENTS];
    for (int i = 0; i < CLIENTS; i++) {
        clients[i] = (struct client){s, i};
        pids[i] = start_client(open_and_consume, &clients[i]);
    }
    uint64_t until = clock_ms() + 30000;
    while (__atomic_load_n(&s->open, __ATOMIC_SEQ_CST) < CLIENTS) {
        ck_assert_msg(clock_ms() < until, "%s", read_text("stderr"));
        sleep_ms(5);
    }
    char *json = read_status("run/loaderd/private-master-127.0.0.1-29517.sock");
    ck_assert_uint_eq(count_text(json, "\"open\": true"), 1);                                     /* one pipeline */
    ck_assert_uint_eq(count_text(json, "\"job\": \"master-127.0.0.1-29517\", \"pid\""), CLIENTS); /* its sessions */
    free(json);
    __atomic_store_n(&s->go, 1, __ATOMIC_SEQ_CST);
    for (int i = 0; i < CLIENTS; i++)
        expect_client(pids[i]);
    for (int i = 0; i < CLIENTS; i++)
        ck_assert_int_eq(s->daemon[i], s->daemon[0]);
    for (int i = 0; i < SAMPLES; i++)
        ck_assert_uint_eq(s->seen[i], 1);
    expect_end(s->daemon[0], 1000);
    expect_nothing_left();
    char *log = read_text("stderr");
    ck_assert_uint_eq(count_text(log, "listens at"), 1);
    ck_assert_msg(count_text(log, "400 samples") == 1, "%s", log); /* one scan */
    free(log);
    harness_end();
}
END_TEST

START_TEST(each_process_without_a_job_has_its_own) {
    harness_begin();
    make_records("records.bin", SAMPLES, 20);
    struct loaderd_options o = LOADERD_OPTIONS_INIT;
    struct loaderd_info a, b;
    o.keys = record_keys;
    catch_stderr();
    struct loaderd *first = open_loader("./records.bin", &o), *second = open_loader("./records.bin", &o);
    loaderd_info(first, &a);
    loaderd_info(second, &b);
    ck_assert_int_ne(a.daemon_pid, b.daemon_pid);
    o.job = "a job / of ours";
    struct loaderd *third = open_loader("./records.bin", &o);
    o.keys = NULL;
    struct loaderd *fourth = open_loader("synthetic:64x3x8x8:u8", &o);
    struct loaderd_info c, d;
    loaderd_info(third, &c);
    loaderd_info(fourth, &d);
    ck_assert_int_eq(c.daemon_pid, d.daemon_pid);
    ck_assert_uint_eq(d.samples, 64);
    loaderd_close(first);
    expect_end(a.daemon_pid, 1000);
    loaderd_close(second);
    expect_end(b.daemon_pid, 1000);
    loaderd_close(third);
    sleep_ms(300);
    ck_assert(process_lives(d.daemon_pid)); /* the fourth still needs it */
    loaderd_close(fourth);
    expect_end(d.daemon_pid, 1000);
    expect_nothing_left();
    harness_end();
}
END_TEST

/* Loaders of one job share a daemon, but not a dataset where keys of it differ. */
START_TEST(loaders_of_a_job_have_their_own_dataset_keys) {
    harness_begin();
    catch_stderr();
    uint16_t ids[17];
    for (uint16_t i = 0; i < 17; i++)
        ids[i] = i;
    FILE *f = fopen("ids.bin", "we");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(ids, sizeof ids, 1, f), 1);
    ck_assert_int_eq(fclose(f), 0);
    struct loaderd_options o = LOADERD_OPTIONS_INIT;
    struct loaderd *loader[2];
    struct loaderd_info info[2];
    o.job = "one";
    for (int i = 0; i < 2; i++) {
        const char *keys[] = {"format=tokens", "token-dtype=u16", "batch=1", i ? "tokens=4" : "tokens=8", NULL};
        o.keys = keys;
        loader[i] = open_loader("./ids.bin", &o);
        loaderd_info(loader[i], &info[i]);
    }
    ck_assert_int_eq(info[0].daemon_pid, info[1].daemon_pid);
    for (int i = 0; i < 2; i++) {
        struct loaderd_batch b;
        must_next(loader[i], &b);
        ck_assert_uint_eq(info[i].samples, i ? 4 : 2);
        ck_assert_int_eq(b.fields[0].dims[1], i ? 5 : 9);
        loaderd_close(loader[i]);
    }
    expect_end(info[0].daemon_pid, 1000);
    harness_end();
}
END_TEST

static int open_and_sleep(void *arg) {
    struct client *c = arg;
    struct loaderd_options o = LOADERD_OPTIONS_INIT;
    struct loaderd_info info;
    o.keys = record_keys;
    struct loaderd *loader = open_loader("./records.bin", &o);
    loaderd_info(loader, &info);
    __atomic_store_n(&c->s->daemon[0], info.daemon_pid, __ATOMIC_SEQ_CST);
    for (;;)
        pause();
    return 1;
}

START_TEST(a_killed_notebook_leaves_nothing) {
    harness_begin();
    catch_stderr();
    make_records("records.bin", SAMPLES, 20);
    struct shared *s = shared_memory(sizeof *s);
    struct client c = {s, 0};
    pid_t pid = start_client(open_and_sleep, &c);
    while (!__atomic_load_n(&s->daemon[0], __ATOMIC_SEQ_CST))
        sleep_ms(2);
    end_process(pid, SIGKILL);
    expect_end(s->daemon[0], 1000);
    expect_nothing_left();
    harness_end();
}
END_TEST

/* Its starter was killed before it could open: nobody ever comes. */
START_TEST(a_daemon_without_sessions_ends) {
    harness_begin();
    int status;
    const char *arguments[] = {"--private", "--socket", harness_socket(), "--log-level=info", NULL};
    uint64_t start = clock_ms();
    pid_t pid = spawn_daemon(arguments, "log");
    ck_assert_int_eq(waitpid(pid, &status, 0), pid); /* the first process goes into the background */
    ck_assert_int_eq(status, 0);
    pid_t background = waitpid(-1, &status, 0); /* adopted by us */
    ck_assert_int_gt(background, 0);
    ck_assert_int_eq(status, 0);
    ck_assert_uint_ge(clock_ms() - start, 1900);
    ck_assert_uint_lt(clock_ms() - start, 4000);
    ck_assert_int_ne(access(harness_socket(), F_OK), 0);
    harness_end();
}
END_TEST

static void expect_failure(const char *name, const struct loaderd_options *o, int code, const char *says) {
    struct loaderd *loader = NULL;
    char error[512] = "";
    int r = loaderd_open(&loader, name, o, error, sizeof error);
    ck_assert_msg(r == code && strstr(error, says), "%s: %d %s", name, r, error);
    ck_assert_ptr_null(loader);
}

START_TEST(failures_say_why) {
    harness_begin();
    catch_stderr();
    make_records("records.bin", SAMPLES, 20);
    struct loaderd_options o = LOADERD_OPTIONS_INIT;
    expect_failure("./nothing", &o, -ENOENT, "/nothing");
    const char *daemon_key[] = {"workers=many", NULL}, *key[] = {"bacth=3", "record=id:u32 data:u8[20]", NULL},
               *form[] = {"batch", NULL};
    uint64_t start = clock_ms();
    o.keys = daemon_key;
    expect_failure("./records.bin", &o, -ECONNREFUSED, "workers");
    o.keys = key;
    expect_failure("./records.bin", &o, -ENOENT, "batch");
    o.keys = form;
    expect_failure("./records.bin", &o, -EINVAL, "key=value");
    o.keys = NULL;
    o.daemon = "/no/such/loaderd";
    expect_failure("./records.bin", &o, -ENOENT, "/no/such/loaderd");
    o.daemon = "/bin/true";
    expect_failure("./records.bin", &o, -ECONNREFUSED, "ended while it started");
    ck_assert_uint_lt(clock_ms() - start, 5000); /* none of these is worth a second try */
    sleep_ms(200);
    expect_nothing_left();
    harness_end();
}
END_TEST

START_TEST(what_a_killed_daemon_left_is_swept) {
    harness_begin();
    catch_stderr();
    make_records("records.bin", SAMPLES, 20);
    struct loaderd_options o = LOADERD_OPTIONS_INIT;
    struct loaderd_info info;
    o.keys = record_keys;
    struct loaderd *loader = open_loader("./records.bin", &o);
    loaderd_info(loader, &info);
    kill(info.daemon_pid, SIGKILL);
    loaderd_close(loader);
    while (process_lives(info.daemon_pid))
        sleep_ms(2);
    ck_assert_uint_eq(count_files("run/loaderd"), 2);
    DIR *d = opendir("run/loaderd");
    struct timespec old[2] = {{.tv_sec = time(NULL) - 100}, {.tv_sec = time(NULL) - 100}};
    for (struct dirent *e; (e = readdir(d));)
        if (e->d_name[0] == 'p')
            ck_assert_int_eq(utimensat(dirfd(d), e->d_name, old, AT_SYMLINK_NOFOLLOW), 0);
    closedir(d);
    loader = open_loader("./records.bin", &o);
    loaderd_info(loader, &info);
    ck_assert_uint_eq(count_files("run/loaderd"), 2); /* those of the new one */
    loaderd_close(loader);
    expect_end(info.daemon_pid, 1000);
    expect_nothing_left();
    harness_end();
}
END_TEST

/* Of what the trainer has open, the daemon keeps stderr. */
START_TEST(descriptors_are_not_inherited) {
    harness_begin();
    catch_stderr();
    make_records("records.bin", SAMPLES, 20);
    int pipes[2];
    ck_assert_int_eq(pipe(pipes), 0); /* without O_CLOEXEC: somebody else's code */
    ck_assert_int_eq(dup2(pipes[1], 50), 50);
    struct loaderd_options o = LOADERD_OPTIONS_INIT;
    struct loaderd_info info;
    o.keys = record_keys;
    struct loaderd *loader = open_loader("./records.bin", &o);
    loaderd_info(loader, &info);
    close(pipes[1]);
    close(50);
    char byte;
    ck_assert_int_eq(read(pipes[0], &byte, 1), 0); /* nobody else has the other end */
    char path[64], target[64] = "";
    snprintf(path, sizeof path, "/proc/%d/cwd", info.daemon_pid);
    ck_assert_int_gt(readlink(path, target, sizeof target - 1), 0);
    ck_assert_str_eq(target, "/");
    ck_assert_int_ne(getpgid(info.daemon_pid), getpgrp());
    loaderd_close(loader);
    expect_end(info.daemon_pid, 1000);
    harness_end();
}
END_TEST

int main(void) {
    const struct harness_test tests[] = {
        {"eight", eight_opens_give_one_daemon},
        {"jobs", each_process_without_a_job_has_its_own},
        {"dataset_keys", loaders_of_a_job_have_their_own_dataset_keys},
        {"notebook", a_killed_notebook_leaves_nothing},
        {"grace", a_daemon_without_sessions_ends},
        {"failures", failures_say_why},
        {"litter", what_a_killed_daemon_left_is_swept},
        {"descriptors", descriptors_are_not_inherited},
        {NULL, NULL},
    };
    return harness_main("private", tests);
}
