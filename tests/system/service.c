/* SPDX-License-Identifier: MIT */
/* The service: who owns the socket (starts in one instant, stale and foreign files), configuration, reload, quotas. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"

static void write_text(const char *path, const char *text) {
    FILE *f = fopen(path, "we");
    ck_assert_ptr_nonnull(f);
    fputs(text, f);
    ck_assert_int_eq(fclose(f), 0);
}

/* Runs a daemon that must end at once with an error; its log must say so. */
static void expect_refusal(const char *const *arguments, const char *says) {
    unlink("refused");
    int status = end_process(spawn_daemon(arguments, "refused"), 0);
    char *log = read_text("refused");
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 1, "0x%x %s", status, log);
    ck_assert_msg(strstr(log, says) != NULL, "'%s' is not in: %s", says, log);
    free(log);
}

static pid_t start_synthetic(void) {
    return start_daemon("--dataset", "synthetic:256x3x8x8:u8", "--workers", "1", NULL);
}

START_TEST(a_socket_has_one_owner) {
    harness_begin();
    const char *again[] = {"--dataset", "synthetic:256x3x8x8:u8", "--socket", harness_socket(), NULL};
    char says[64];
    pid_t daemon = start_synthetic();
    snprintf(says, sizeof says, "pid %d", (int)daemon);
    expect_refusal(again, says);
    expect_sessions(harness_socket(), 0, 0); /* the first is not disturbed */
    for (int i = 0; i < 3; i++) {            /* killed: the next start needs no cleaning up */
        end_process(daemon, SIGKILL);
        ck_assert_int_eq(access(harness_socket(), F_OK), 0);
        daemon = start_synthetic();
    }
    ck_assert_int_eq(end_process(daemon, SIGTERM), 0);
    ck_assert_int_ne(access(harness_socket(), F_OK), 0);
    daemon = start_synthetic();
    ck_assert_int_eq(end_process(daemon, SIGINT), 0);
    harness_end();
}
END_TEST

START_TEST(foreign_files_stay) {
    harness_begin();
    const char *arguments[] = {"--dataset", "synthetic:256x3x8x8:u8", "--socket", harness_socket(), NULL};
    struct stat before, after;
    write_text(harness_socket(), "precious");
    stat(harness_socket(), &before);
    expect_refusal(arguments, "is no socket");
    stat(harness_socket(), &after);
    ck_assert_uint_eq(before.st_ino, after.st_ino);
    char *text = read_text(harness_socket());
    ck_assert_str_eq(text, "precious");
    free(text);
    unlink(harness_socket());
    ck_assert_int_eq(mkdir(harness_socket(), 0700), 0);
    expect_refusal(arguments, "is no socket");
    ck_assert_int_eq(rmdir(harness_socket()), 0);
    ck_assert_int_eq(symlink("/nowhere", harness_socket()), 0);
    expect_refusal(arguments, "is no socket");
    unlink(harness_socket());
    /* another program's live socket, of another kind */
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", harness_socket());
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    ck_assert_int_eq(listen(fd, 1), 0);
    expect_refusal(arguments, "in use by another program");
    ck_assert_int_eq(access(harness_socket(), F_OK), 0);
    close(fd);
    unlink(harness_socket());
    /* a lock file that is somebody's text */
    char lock[100];
    snprintf(lock, sizeof lock, "%s.lock", harness_socket());
    write_text(lock, "a longer text than any pid");
    expect_refusal(arguments, "is no lock file");
    text = read_text(lock);
    ck_assert_str_eq(text, "a longer text than any pid");
    free(text);
    harness_end();
}
END_TEST

START_TEST(of_many_starts_one_wins) {
    harness_begin();
    const char *arguments[] = {"--dataset", "synthetic:64x3x8x8:u8", "--socket", harness_socket(), "--workers", "1",
                               NULL};
    for (int round = 0; round < 5; round++) {
        pid_t pids[6], winner = 0;
        int alive = 6;
        for (int i = 0; i < 6; i++)
            pids[i] = spawn_daemon(arguments, "log");
        uint64_t until = clock_ms() + 20000;
        while (alive > 1) {
            ck_assert_uint_lt(clock_ms(), until);
            alive = 0;
            for (int i = 0; i < 6; i++)
                if (process_lives(pids[i])) {
                    alive++;
                    winner = pids[i];
                }
            ck_assert_int_ge(alive, 1);
            sleep_ms(5);
        }
        char *json = read_status(harness_socket());
        ck_assert_uint_eq(status_sum(json, "pid"), (uint64_t)winner);
        free(json);
        for (int i = 0; i < 6; i++) {
            int status = end_process(pids[i], pids[i] == winner ? round % 2 ? SIGKILL : SIGTERM : 0);
            if (pids[i] != winner)
                ck_assert_int_eq(WEXITSTATUS(status), 1);
        }
    }
    harness_end();
}
END_TEST

START_TEST(long_paths_are_refused) {
    harness_begin();
    char path[140];
    memset(path, 'x', sizeof path);
    memcpy(path, "/tmp/", 5);
    path[120] = '\0';
    const char *arguments[] = {"--dataset", "synthetic:256x3x8x8:u8", "--socket", path, NULL};
    expect_refusal(arguments, "107");
    struct loaderd_options o = LOADERD_OPTIONS_INIT;
    struct loaderd *loader;
    char error[512];
    o.socket = path;
    ck_assert_int_eq(loaderd_open(&loader, "default", &o, error, sizeof error), -ENAMETOOLONG);
    ck_assert_msg(strstr(error, "107") != NULL, "%s", error);
    /* where it looked */
    unsetenv("LOADERD_SOCKET");
    ck_assert_int_eq(loaderd_open(&loader, "default", NULL, error, sizeof error), -ECONNREFUSED);
    ck_assert_msg(strstr(error, "run/loaderd/socket") && strstr(error, "/run/loaderd/socket"), "%s", error);
    harness_end();
}
END_TEST

static void expect_open(const char *name, const char *const *keys, int code, const char *says) {
    struct loaderd_options o = LOADERD_OPTIONS_INIT;
    struct loaderd *loader = NULL;
    char error[512] = "";
    o.keys = keys;
    int r = loaderd_open(&loader, name, &o, error, sizeof error);
    ck_assert_msg(r == code && strstr(error, says), "%s: %d %s", name, r, error);
    loaderd_close(loader);
}

START_TEST(wrong_configurations_are_errors) {
    harness_begin();
    write_text("typo.conf", "[pipeline a]\ndataset = synthetic:64x3x8x8:u8\nbacth = 3\n");
    write_text("good.conf", "[pipeline a]\ndataset = synthetic:64x3x8x8:u8\n[pipeline b]\ndataset = /no/such\n");
    const char *typo[] = {"--config", "typo.conf", "--socket", harness_socket(), NULL};
    expect_refusal(typo, "typo.conf:3");
    const char *missing[] = {"--config", "none.conf", NULL};
    expect_refusal(missing, "none.conf");
    const char *both[] = {"--config", "good.conf", "--dataset", "x", NULL};
    expect_refusal(both, "not both");
    const char *nothing[] = {"--socket", harness_socket(), NULL};
    expect_refusal(nothing, "--config");
    const char *unknown[] = {"--dataset", "x", "--wrkers", "3", NULL};
    expect_refusal(unknown, "did you mean --workers");
    const char *dataset[] = {"--dataset", "/no/such/folder", "--socket", harness_socket(), NULL};
    expect_refusal(dataset, "/no/such/folder");
    ck_assert_int_ne(access(harness_socket(), F_OK), 0);
    pid_t daemon = start_daemon("--config", "good.conf", NULL); /* of several one may fail: its clients are told */
    expect_open("b", NULL, -ENOENT, "/no/such");
    expect_open("a", NULL, 0, "");
    expect_open("a\n\033;31m", NULL, -ENOENT, "no pipeline");
    expect_open("a\n\033[31m", NULL, -EINVAL, "control character (byte 0x0a)"); /* a pattern, so a dataset */
    struct loaderd_options o = LOADERD_OPTIONS_INIT;
    struct loaderd *loader;
    o.held = UINT32_MAX;
    ck_assert_int_eq(loaderd_open(&loader, "a", &o, NULL, 0), -EINVAL);
    ck_assert_int_eq(end_process(daemon, SIGTERM), 0);
    char *log = read_text("log");
    ck_assert_msg(strstr(log, "'a??;31m'") && !strchr(log, '\033'), "%s", log);
    free(log);
    const char *value[] = {"--dataset", "x", "--workers", NULL};
    expect_refusal(value, "needs a value");
    const char *check[] = {"--config", "good.conf", "--check-config", NULL};
    ck_assert_int_eq(end_process(spawn_daemon(check, "log"), 0), 0);
    const char *check_typo[] = {"--config", "typo.conf", "--check-config", NULL};
    expect_refusal(check_typo, "did you mean 'batch'");
    harness_end();
}
END_TEST

START_TEST(a_reload_disturbs_nobody) {
    harness_begin();
    write_text("a.conf", "[daemon]\nworkers = 2\n[pipeline one]\ndataset = synthetic:256x3x8x8:u8\nbatch = 8\n"
                         "[pipeline gone]\ndataset = synthetic:64x3x8x8:u8\n");
    pid_t daemon = start_daemon("--config", "a.conf", NULL);
    struct loaderd *loader = open_loader("one", NULL), *other = open_loader("gone", NULL);
    struct loaderd_batch b;
    uint64_t sequence = 0;
    for (; sequence < 40; sequence++) {
        must_next(loader, &b);
        ck_assert_int_eq(b.fields[0].dims[0], 8);
        loaderd_release(loader, &b);
        if (b.flags & LOADERD_BATCH_LAST)
            ck_assert_int_eq(loaderd_next(loader, &b), 0);
    }
    expect_open("two", NULL, -ENOENT, "one, gone");
    write_text("a.conf", "[pipeline one]\nbatch = eight\n"); /* broken: nothing changes */
    kill(daemon, SIGHUP);
    for (int i = 0; i < 200; i++) {
        char *log = read_text("log");
        bool said = strstr(log, "not changed") != NULL;
        free(log);
        if (said)
            break;
        sleep_ms(10);
        ck_assert_int_lt(i, 199);
    }
    expect_open("one", NULL, 0, "");
    write_text("a.conf", "[pipeline one]\ndataset = synthetic:256x3x8x8:u8\nbatch = 16\nclient-keys = seed, slots\n"
                         "[pipeline two]\ndataset = synthetic:100x3x4x4:u8\n");
    kill(daemon, SIGHUP);
    uint64_t until = clock_ms() + 5000;
    char error[512];
    struct loaderd *two = NULL;
    while (loaderd_open(&two, "two", NULL, error, sizeof error) == -ENOENT && clock_ms() < until)
        sleep_ms(10);
    ck_assert_ptr_nonnull(two);
    expect_open("gone", NULL, -ENOENT, "one, two");
    expect_open("one", (const char *[]){"batch=4", NULL}, -EACCES, "seed, slots");
    expect_open("one", (const char *[]){"seed=4", "slots=5", NULL}, 0, "");
    expect_open("one", (const char *[]){"workers=4", NULL}, -EACCES, "daemon");
    expect_open("one", (const char *[]){"dataset=/etc", NULL}, -EACCES, "dataset");
    struct loaderd *fresh = open_loader("one", NULL);
    must_next(fresh, &b);
    ck_assert_int_eq(b.fields[0].dims[0], 16);
    int r;
    for (uint64_t i = 0; i < 40; i++) { /* the old sessions go on as they were */
        if ((r = loaderd_next(loader, &b)) == 0)
            must_next(loader, &b);
        ck_assert_int_eq(b.fields[0].dims[0], 8);
        loaderd_release(loader, &b);
    }
    for (uint64_t i = 0; i < 5; i++) {
        if ((r = loaderd_next(other, &b)) == 0)
            must_next(other, &b);
        loaderd_release(other, &b);
    }
    loaderd_close(loader);
    loaderd_close(other);
    loaderd_close(two);
    loaderd_close(fresh);
    expect_sessions(harness_socket(), 0, 1000);
    ck_assert_int_eq(end_process(daemon, SIGTERM), 0);
    harness_end();
}
END_TEST

static void expect_reloads(unsigned count) {
    for (uint64_t until = clock_ms() + 20000;; sleep_ms(5)) {
        char *log = read_text("log");
        unsigned found = 0;
        for (const char *at = log; (at = strstr(at, "configuration read again")); at++)
            found++;
        free(log);
        if (found >= count)
            return;
        ck_assert_uint_lt(clock_ms(), until);
    }
}

static void reload(pid_t daemon, const char *text, unsigned count) {
    write_text("a.conf", text);
    kill(daemon, SIGHUP);
    expect_reloads(count);
}

/* Quotas of the new file hold from now on, also for pipelines that are open; what needs a restart is named. */
START_TEST(a_reload_changes_quotas) {
#define PIPELINE "[pipeline a]\ndataset = synthetic:256x3x64x64:u8\nbatch = 8\nslots = 4\n"
    harness_begin();
    const char *large[] = {"batch=64", NULL}; /* 4 slots of 768 KiB */
    write_text("a.conf", "[daemon]\nworkers = 1\nmax-ring-bytes = 1M\nmax-sessions-per-user = 2\n" PIPELINE);
    pid_t daemon = start_daemon("--config", "a.conf", NULL);
    struct loaderd *loader = open_loader("a", NULL), *second = open_loader("a", NULL);
    struct loaderd_batch b;
    must_next(loader, &b);
    loaderd_release(loader, &b);
    expect_open("a", NULL, -EUSERS, "max-sessions-per-user");
    reload(daemon, "[daemon]\nworkers = 1\nmax-ring-bytes = 1M\nmax-sessions-per-user = 3\n" PIPELINE, 1);
    expect_open("a", large, -ENOMEM, "a session may have 1 MiB; lower slots or batch, or raise max-ring-bytes");
    reload(daemon, "[daemon]\nworkers = 1\nmax-ring-bytes = 8M\nmax-sessions-per-user = 3\n" PIPELINE, 2);
    expect_open("a", large, 0, "");
    char *log = read_text("log");
    ck_assert_msg(!strstr(log, "restart"), "%s", log);
    free(log);
    reload(daemon,
           "[daemon]\nworkers = 2\ndirect = no\nmax-ring-bytes = 64K\nmax-ring-bytes-per-user = 1K\n"
           "max-sessions = 2\n" PIPELINE,
           3);
    expect_open("a", NULL, -EUSERS, "as many as max-sessions allows");
    loaderd_close(second);
    expect_sessions(harness_socket(), 1, 2000);
    expect_open("a", NULL, -EUSERS, "max-ring-bytes-per-user lets one user have");
    reload(daemon, "[daemon]\nworkers = 2\ndirect = no\nmax-ring-bytes = 64K\n" PIPELINE, 4);
    expect_open("a", NULL, -ENOMEM, "max-ring-bytes");
    log = read_text("log");
    ck_assert_msg(strstr(log, "[daemon] workers, direct: changed in the file, but not in this daemon") != NULL, "%s",
                  log);
    free(log);
    char *status = read_status(harness_socket());
    ck_assert_uint_eq(status_sum(status, "workers"), 1);
    free(status);
    for (int i = 0; i < 8; i++) { /* a ring larger than what is allowed now goes on */
        must_next(loader, &b);
        loaderd_release(loader, &b);
    }
    loaderd_close(loader);
    ck_assert_int_eq(end_process(daemon, SIGTERM), 0);
    harness_end();
#undef PIPELINE
}
END_TEST

/* Keys of the dataset: the next session has another one under the same name, the one that runs keeps its own. */
START_TEST(a_reload_opens_a_changed_dataset) {
    harness_begin();
    uint16_t ids[17];
    for (uint16_t i = 0; i < 17; i++)
        ids[i] = i;
    FILE *f = fopen("ids.bin", "we");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(ids, sizeof ids, 1, f), 1);
    ck_assert_int_eq(fclose(f), 0);
#define PIPELINE "[pipeline a]\ndataset = ids.bin\nformat = tokens\ntoken-dtype = u16\nbatch = 1\ntokens = "
    write_text("a.conf", PIPELINE "8\n");
    pid_t daemon = start_daemon("--config", "a.conf", NULL);
    struct loaderd *eights = open_loader("a", NULL);
    reload(daemon, PIPELINE "4\n", 1);
    struct loaderd *fours = open_loader("a", NULL);
    struct {
        struct loaderd *loader;
        uint32_t length;
    } cases[] = {{eights, 8}, {fours, 4}};
    for (int i = 0; i < 2; i++) {
        struct loaderd_info info;
        struct loaderd_batch b;
        loaderd_info(cases[i].loader, &info);
        ck_assert_uint_eq(info.samples, 16 / cases[i].length);
        for (uint32_t window = 0; window < info.samples; window++) {
            must_next(cases[i].loader, &b);
            ck_assert_int_eq(b.fields[0].dims[1], cases[i].length + 1);
            ck_assert_int_eq(*(const uint16_t *)b.fields[0].data, window * cases[i].length);
            loaderd_release(cases[i].loader, &b);
        }
        loaderd_close(cases[i].loader);
    }
    ck_assert_int_eq(end_process(daemon, SIGTERM), 0);
    harness_end();
#undef PIPELINE
}
END_TEST

START_TEST(quotas_hold) {
    harness_begin();
    pid_t daemon = start_daemon("--dataset", "synthetic:256x3x8x8:u8", "--workers", "1", "--max-sessions-per-user", "3",
                                "--max-ring-bytes", "1M", NULL);
    struct loaderd *loaders[3];
    for (int i = 0; i < 3; i++)
        loaders[i] = open_loader("default", NULL);
    expect_open("default", NULL, -EUSERS, "max-sessions-per-user");
    loaderd_close(loaders[0]);
    expect_sessions(harness_socket(), 2, 1000);
    loaders[0] = open_loader("default", NULL);
    loaderd_close(loaders[2]);
    expect_sessions(harness_socket(), 2, 1000);
    expect_open("nothing", NULL, -ENOENT, "default");
    expect_open("default", (const char *[]){"batch=100000", NULL}, -ENOMEM, "max-ring-bytes");
    /* rings of closed sessions count while their process lives: it may still map them */
    struct loaderd_options o = LOADERD_OPTIONS_INIT;
    const char *keys[] = {"batch=256", "slots=3", NULL};
    char error[512] = "";
    int r = 0;
    o.keys = keys;
    for (int i = 0; i < 100 && r == 0; i++) {
        r = loaderd_open(&loaders[2], "default", &o, error, sizeof error);
        if (r == 0)
            loaderd_close(loaders[2]);
        sleep_ms(20);
    }
    ck_assert_msg(r == -EUSERS && strstr(error, "until their process ends"), "%d %s", r, error);
    loaderd_close(loaders[0]);
    loaderd_close(loaders[1]);
    ck_assert_int_eq(end_process(daemon, SIGTERM), 0);
    harness_end();
}
END_TEST

struct visitor {
    uid_t uid;
    int expect; /* of loaderd_open() */
    const char *says;
};

/* The sum over one user's rings is a quota of its own, exact in bytes: the ring that reaches it opens, the next not. */
START_TEST(rings_are_counted_by_user) {
    harness_begin();
    pid_t daemon = start_daemon("--dataset", "synthetic:256x3x8x8:u8", "--workers", "1", NULL);
    struct loaderd *loader = open_loader("default", NULL);
    char *json = read_status(harness_socket()), limit[32];
    uint64_t bytes = status_sum(json, "ring_bytes");
    free(json);
    ck_assert_uint_gt(bytes, 4096);
    loaderd_close(loader);
    ck_assert_int_eq(end_process(daemon, SIGTERM), 0);
    for (int spare = 0; spare < 2; spare++) {
        snprintf(limit, sizeof limit, "%llu", (unsigned long long)(2 * bytes - 1 + (uint64_t)spare));
        daemon = start_daemon("--dataset", "synthetic:256x3x8x8:u8", "--workers", "1", "--max-ring-bytes-per-user",
                              limit, NULL);
        loader = open_loader("default", NULL);
        expect_open("default", NULL, spare ? 0 : -EUSERS, spare ? "" : "max-ring-bytes-per-user lets one user have");
        expect_sessions(harness_socket(), 1, 2000);
        struct loaderd_batch b;
        must_next(loader, &b); /* the first one's life goes on */
        loaderd_close(loader);
        ck_assert_int_eq(end_process(daemon, SIGTERM), 0);
    }
    harness_end();
}
END_TEST

/* allow: nobody else's user, read again by SIGHUP; root and the daemon's own user always may. */
static int visit_allowed(void *arg) {
    const struct visitor *v = arg;
    if (setgid(v->uid) < 0 || setuid(v->uid) < 0)
        return 1;
    expect_open("closed", NULL, v->expect, v->says);
    expect_open("open", NULL, 0, "");
    return 0;
}

static void write_allow(const char *allow) {
    char text[256];
    snprintf(text, sizeof text,
             "[pipeline open]\ndataset = synthetic:64x3x8x8:u8\n"
             "[pipeline closed]\ndataset = synthetic:64x3x8x8:u8\nallow = %s\n",
             allow);
    write_text("a.conf", text);
}

START_TEST(a_pipeline_lets_in_whom_it_allows) {
    harness_begin();
    write_allow("no-such-user-here");
    pid_t daemon = start_daemon("--config", "a.conf", "--socket-mode", "0666", "--workers", "1", NULL);
    expect_open("closed", NULL, 0, ""); /* the owner's */
    expect_open("closed", (const char *[]){"allow=all", NULL}, -EACCES, "allow");
    char *log = read_text("log");
    ck_assert_msg(strstr(log, "pipeline closed: allow: there is no user 'no-such-user-here'") != NULL, "%s", log);
    free(log);
    if (geteuid() == 0) {
        ck_assert_int_eq(chmod(harness_directory(), 0755), 0);
        struct visitor nobody = {65534, -EACCES, "pipeline 'closed' does not let user 65534 in"};
        expect_client(start_client(visit_allowed, &nobody));
        static const char *const lists[] = {"65534", "1,@65534"};
        for (int i = 0; i < 2; i++) {
            write_allow(lists[i]);
            kill(daemon, SIGHUP);
            expect_reloads((unsigned)i + 1);
            nobody = (struct visitor){65534, 0, ""};
            expect_client(start_client(visit_allowed, &nobody));
        }
        write_allow("@1");
        kill(daemon, SIGHUP);
        expect_reloads(3);
        nobody = (struct visitor){65534, -EACCES, "it allows @1"};
        expect_client(start_client(visit_allowed, &nobody));
    } else {
        fprintf(stderr, "allow: other users not tried, only root can be several\n");
    }
    ck_assert_int_eq(end_process(daemon, SIGTERM), 0);
    harness_end();
}
END_TEST

static int visit(void *arg) {
    const struct visitor *v = arg;
    if (setgid(v->uid) < 0 || setuid(v->uid) < 0)
        return 1;
    expect_open("default", NULL, v->expect, v->says);
    return 0;
}

/* Who may connect is the socket's mode; how much, is counted by user. */
START_TEST(users_are_told_apart) {
    if (geteuid() != 0) {
        fprintf(stderr, "users_are_told_apart: skipped, only root can be several users\n");
        return;
    }
    harness_begin();
    ck_assert_int_eq(chmod(harness_directory(), 0755), 0);
    pid_t daemon = start_synthetic();
    struct visitor nobody = {65534, -EACCES, "socket-group"};
    expect_client(start_client(visit, &nobody));
    ck_assert_int_eq(end_process(daemon, SIGTERM), 0);
    daemon = start_daemon("--dataset", "synthetic:256x3x8x8:u8", "--socket-mode", "0666", "--max-sessions-per-user",
                          "1", NULL);
    struct loaderd *loader = open_loader("default", NULL);
    nobody = (struct visitor){65534, 0, ""};
    expect_client(start_client(visit, &nobody));
    struct visitor root = {0, -EUSERS, "user 0 has 1"};
    expect_client(start_client(visit, &root));
    loaderd_close(loader);
    ck_assert_int_eq(end_process(daemon, SIGTERM), 0);
    harness_end();
}
END_TEST

/* What systemd would see: READY after the pipelines were tried, STOPPING at the end, and a socket that it made. */
START_TEST(the_service_manager_is_told) {
    harness_begin();
    char path[100], text[512];
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(path, sizeof path, "%s/notify", harness_directory());
    memcpy(address.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    setenv("NOTIFY_SOCKET", path, 1);
    write_text("a.conf", "[pipeline one]\ndataset = synthetic:256x3x8x8:u8\n");
    pid_t daemon = start_daemon("--config", "a.conf", NULL);
    static const struct {
        int signal;
        const char *says[2];
    } steps[] = {{0, {"READY=1", NULL}}, {SIGHUP, {"RELOADING=1", "READY=1"}}, {SIGTERM, {"STOPPING=1", NULL}}};
    for (int i = 0; i < 3; i++) {
        if (steps[i].signal)
            kill(daemon, steps[i].signal);
        for (int j = 0; j < 2 && steps[i].says[j]; j++) {
            struct pollfd p = {.fd = fd, .events = POLLIN};
            ck_assert_int_eq(poll(&p, 1, 10000), 1);
            ssize_t n = recv(fd, text, sizeof text - 1, 0);
            ck_assert_int_gt(n, 0);
            text[n] = '\0';
            ck_assert_msg(strncmp(text, steps[i].says[j], strlen(steps[i].says[j])) == 0, "%s", text);
        }
    }
    ck_assert_int_eq(end_process(daemon, 0), 0);
    close(fd);
    harness_end();
}
END_TEST

static int run_activated(void *arg) {
    (void)arg;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, harness_socket(), strlen(harness_socket()) + 1);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    char pid[16];
    if (bind(fd, (struct sockaddr *)&address, sizeof address) < 0 || listen(fd, 8) < 0 || dup2(fd, 3) != 3)
        return 1;
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    setenv("LISTEN_PID", pid, 1);
    setenv("LISTEN_FDS", "1", 1);
    for (int other = 4; other < 100; other++)
        close(other);
    alarm(0);
    execl(harness_daemon(), "loaderd", "--dataset", "synthetic:64x3x8x8:u8", "--log-level=error", NULL);
    return 1;
}

START_TEST(socket_activation) {
    harness_begin();
    pid_t daemon = start_client(run_activated, NULL);
    while (access(harness_socket(), F_OK) < 0)
        sleep_ms(2);
    sleep_ms(20);
    struct loaderd *loader = open_loader("default", NULL);
    struct loaderd_batch b;
    must_next(loader, &b);
    loaderd_close(loader);
    ck_assert_int_eq(end_process(daemon, SIGTERM), 0);
    ck_assert_int_eq(access(harness_socket(), F_OK), 0); /* the manager's, not ours to remove */
    harness_end();
}
END_TEST

int main(void) {
    const struct harness_test tests[] = {
        {"one_owner", a_socket_has_one_owner},
        {"foreign_files", foreign_files_stay},
        {"many_starts", of_many_starts_one_wins},
        {"long_paths", long_paths_are_refused},
        {"configuration", wrong_configurations_are_errors},
        {"reload", a_reload_disturbs_nobody},
        {"reload_quotas", a_reload_changes_quotas},
        {"reload_dataset", a_reload_opens_a_changed_dataset},
        {"quotas", quotas_hold},
        {"rings", rings_are_counted_by_user},
        {"users", users_are_told_apart},
        {"allow", a_pipeline_lets_in_whom_it_allows},
        {"notify", the_service_manager_is_told},
        {"activation", socket_activation},
        {NULL, NULL},
    };
    return harness_main("service", tests);
}
